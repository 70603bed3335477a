"""The newest version of each request that kafkasafe speaks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["newest"]

_NEWEST: Final[Mapping[str, int]] = {
    # From v13 on, Produce and Fetch requests name topics by id.
    "Produce": 12,
    "Fetch": 12,
    "ListOffsets": 10,
    "Metadata": 13,
    "InitProducerId": 5,
    "OffsetForLeaderEpoch": 4,
    "DescribeProducers": 0,
}


def newest(name: str, maximum: int = 32767) -> int:
    """Returns the newest version of a request that may be sent.

    Args:
        name: Kafka's name of the request.
        maximum: The newest version whose meaning suits the caller.
    """
    return min(maximum, _NEWEST.get(name, maximum))

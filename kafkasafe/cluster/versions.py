"""The newest version of each request that kafkasafe speaks: the same for every `Cluster`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["newest"]

_NEWEST: Final[Mapping[str, int]] = {
    # From v13 on, Produce and Fetch name topics by id.
    "Produce": 12,
    "Fetch": 12,
    "ListOffsets": 10,
    "Metadata": 13,
    "InitProducerId": 5,
    "OffsetForLeaderEpoch": 4,
    "DescribeProducers": 0,
}


def newest(name: str, maximum: int = 32767) -> int:
    """The newest version of a request that may be spoken.

    Args:
        name: Kafka's name of the request.
        maximum: The newest version that means what the caller wants.
    """
    return min(maximum, _NEWEST.get(name, maximum))

"""Which broker a request goes to that any of them can answer: the same for every `Cluster`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import kafka.errors as kafka_errors

__all__ = ["any_broker", "preference"]

LinkT = TypeVar("LinkT")


def preference(
    *, suspect: bool, ready: bool, failures: int, bootstrap: bool, in_flight: int
) -> tuple[bool, bool, int, bool, int]:
    """Returns a sort key for a link to a broker. A request goes to the link with the lowest key.

    Args:
        suspect: The broker has been silent for too long.
        ready: A request would be written at once.
        failures: Failed attempts to connect since the last connection.
        bootstrap: It leads to one of `bootstrap_servers`. These are used unless a known broker is better.
        in_flight: Requests that the broker has not answered.
    """
    return suspect, not ready, failures, bootstrap, in_flight


def any_broker(
    links: Sequence[LinkT], order: Callable[[LinkT], Any], *, answered: bool, final: bool
) -> LinkT | BaseException | None:
    """The link to use, why there is none, or None: the request waits for the next metadata.

    Args:
        links: To all known brokers.
        order: What `preference` makes of a link, with a tie-breaker.
        answered: The cluster has answered a request for metadata before.
        final: The request has waited for metadata already.
    """
    if links and (answered or final):
        return min(links, key=order)
    if not final:
        return None
    unknown: BaseException = kafka_errors.NodeNotReadyError("No broker is known yet")
    return unknown

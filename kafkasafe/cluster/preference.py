"""Chooses the broker for a request that any broker can answer. Every implementation of `Cluster` uses this module.
Pure.
"""

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
        suspect: Whether the broker has been silent for too long.
        ready: Whether a request would be written at once.
        failures: Failed attempts to connect since the last connection.
        bootstrap: Whether the link leads to one of `bootstrap_servers`. Such a link is used only if no other link is
            equally good.
        in_flight: Requests that the broker has not answered.
    """
    return suspect, not ready, failures, bootstrap, in_flight


def any_broker(
    links: Sequence[LinkT], order: Callable[[LinkT], Any], *, answered: bool, final: bool
) -> LinkT | BaseException | None:
    """The link to use; or the reason why no link can be used; or None if the request must wait for the next metadata.

    Args:
        links: Links to all known brokers.
        order: Returns the sort key of a link: the result of `preference`, with a tie-breaker.
        answered: Whether the cluster has ever answered a metadata request.
        final: Whether the request has waited for metadata already.
    """
    if links and (answered or final):
        return min(links, key=order)
    if not final:
        return None
    unknown: BaseException = kafka_errors.NodeNotReadyError("No broker is known yet")
    return unknown

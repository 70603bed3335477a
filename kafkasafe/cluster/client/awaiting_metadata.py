"""What waits for an answer about metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkasafe.cluster.api import Reply

__all__ = ["AwaitingMetadata", "ParkedRequest", "Waiting"]


@dataclass(frozen=True, slots=True)
class ParkedRequest:
    """A request that cannot be routed before the next answer.

    Attributes:
        route: Routes it again. Its argument says whether this is the last try.
        fail: Called instead of `route`, with the reason.
    """

    route: Callable[[bool], None]
    fail: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What one metadata request serves.

    Attributes:
        replies: Replies of callers that asked for metadata.
        parked: Requests that could not be routed.
    """

    replies: list[Reply[Any]] = field(default_factory=list)
    parked: list[ParkedRequest] = field(default_factory=list)


class AwaitingMetadata:
    """Replies and parked requests that came since the last metadata request began."""

    def __init__(self) -> None:
        self._replies: list[Reply[Any]] = []
        self._replies_of_new: list[Reply[Any]] = []
        self._parked: list[ParkedRequest] = []

    def add(self, reply: Reply[Any], *, of_new: bool) -> None:
        """Adds a reply. `of_new`: its caller asked only about topics that no request has named yet."""
        (self._replies_of_new if of_new else self._replies).append(reply)

    def park(self, request: ParkedRequest) -> None:
        """Adds a request."""
        self._parked.append(request)

    def take_parked(self) -> list[ParkedRequest]:
        """Removes and returns the parked requests."""
        parked, self._parked = self._parked, []
        return parked

    def take(self, *, of_new: bool) -> Waiting:
        """Removes and returns what the request that begins now serves. One about new topics does not serve all."""
        replies, self._replies_of_new = self._replies_of_new, []
        if of_new:
            return Waiting(replies)
        replies, self._replies = self._replies + replies, []
        return Waiting(replies, self.take_parked())

"""When a consumer with `client_rack` reads a partition from its leader alone. Pure: the time is an argument.

A leader answers a Fetch with a rack id by the name of a follower, and without records (KIP-392). So long as the
consumer says its rack, the leader says nothing else:

1. A follower is killed. The consumer gets metadata: the follower is offline.
2. The follower is started again, and the leader names it.
3. The metadata still say that it is offline. The consumer asks the leader, with the same rack id. Back to 2., without
   a pause and without a record, until metadata come by their age.

Rule: a follower that cannot be used is left for `LEADER_ONLY_S`. Meanwhile requests with that partition carry no rack
id, and the leader gives the records itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["ANSWER_S", "LEADER_ONLY_S", "Followers"]

T = TypeVar("T", bound=Hashable)

LEADER_ONLY_S: Final = 30.0
"""For how long a partition is read from its leader alone, seconds."""
ANSWER_S: Final = 3.0
"""How much longer than `fetch_max_wait_ms` a follower may take for an answer, seconds."""


class Followers(Generic[T]):
    """Which partitions are not to be read from followers, and which followers owe an answer.

    Args:
        max_wait_s: `fetch_max_wait_ms`, in seconds: how long a broker may wait for records.
    """

    __slots__ = ("_asked", "_left_until", "_max_wait_s", "_overdue")

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._left_until: dict[T, float] = {}
        self._asked: dict[int, tuple[float, frozenset[T]]] = {}
        """By follower: until when it has to answer, and which partitions it was asked for."""
        self._overdue: dict[int, frozenset[T]] = {}
        """Partitions that were left because the follower owes an answer. Its answer may still come."""

    @property
    def patience_s(self) -> float:
        """How long a follower may take for an answer."""
        return self._max_wait_s + ANSWER_S

    def leave(self, partitions: Iterable[T], now: float) -> None:
        """Read these from their leaders alone for a while."""
        for partition in partitions:
            self._left_until[partition] = now + LEADER_ONLY_S

    def leaves(self, partition: T, now: float) -> bool:
        """Whether the partition is read from its leader alone."""
        return self._left_until.get(partition, now) > now

    def asked(self, node: int, partitions: Iterable[T], now: float) -> None:
        """A Fetch goes to a follower, for these partitions."""
        if wanted := frozenset(partitions):
            self._asked[node] = now + self.patience_s, wanted

    def answered(self, node: int) -> None:
        """The Fetch to this broker has ended."""
        self._asked.pop(node, None)
        self._overdue.pop(node, None)

    def failed(self, node: int, now: float) -> frozenset[T]:
        """The Fetch to this broker has failed. The partitions that are left for that."""
        _, partitions = self._asked.get(node, (0.0, frozenset[T]()))
        self.leave(partitions, now)
        return partitions

    def hang(self, now: float) -> frozenset[T]:
        """Leave the followers whose answers are overdue. Return their partitions."""
        found: frozenset[T] = frozenset()
        for node, (until, partitions) in list(self._asked.items()):
            if until <= now:
                del self._asked[node]
                self._overdue[node] = partitions
                found |= partitions
        self.leave(found, now)
        return found

    def was_left(self, node: int, partition: T) -> bool:
        """Whether this follower's answer comes too late for the partition."""
        return partition in self._overdue.get(node, ())

    def due_s(self, now: float) -> float | None:
        """Seconds until the first answer of a follower is overdue; None if no follower was asked."""
        untils = [until for until, _ in list(self._asked.values())]
        return max(0.0, min(untils) - now) if untils else None

"""Decides when a consumer with `client_rack` reads a partition only from its leader. Pure: the time is an argument.

If a Fetch has a rack id, the leader may answer with the id of a follower instead of records (KIP-392). The leader
repeats this answer as long as the consumer sends its rack id:

1. A follower is killed. The consumer gets metadata: the follower is offline.
2. The follower is started again, and the leader names it.
3. The metadata still say that it is offline. The consumer asks the leader, with the same rack id. Steps 2 and 3 repeat
   without a pause and without a record, until the metadata expire.

Rule: if a follower cannot be used, the consumer reads the partition from its leader for `LEADER_ONLY_S`. Meanwhile
requests for the partition carry no rack id, so the leader returns the records itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, Generic, TypeVar

__all__ = ["ANSWER_S", "LEADER_ONLY_S", "Followers"]

T = TypeVar("T", bound=Hashable)

LEADER_ONLY_S: Final = 30.0
"""How long a partition is read only from its leader, seconds."""
ANSWER_S: Final = 3.0
"""Time in addition to `fetch_max_wait_ms` that a follower has for an answer, seconds."""


class Followers(Generic[T]):
    """The partitions that must not be read from followers, and the followers that have not answered yet.

    Args:
        max_wait_s: `fetch_max_wait_ms`, in seconds: how long a broker may wait for records.
    """

    __slots__ = ("_asked", "_left_until", "_max_wait_s", "_overdue")

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._left_until: dict[T, float] = {}
        self._asked: dict[int, tuple[float, frozenset[T]]] = {}
        """For each follower with a Fetch in flight: the deadline of its answer, and the requested partitions."""
        self._overdue: dict[int, frozenset[T]] = {}
        """For each follower with an overdue answer: the partitions that are read from their leaders instead. The answer
        may still come.
        """

    @property
    def patience_s(self) -> float:
        """How long a follower may take to answer."""
        return self._max_wait_s + ANSWER_S

    def leave(self, partitions: Iterable[T], now: float) -> None:
        """Read these partitions only from their leaders for a while."""
        for partition in partitions:
            self._left_until[partition] = now + LEADER_ONLY_S

    def leaves(self, partition: T, now: float) -> bool:
        """Whether the partition is read only from its leader."""
        return self._left_until.get(partition, now) > now

    def asked(self, node: int, partitions: Iterable[T], now: float) -> None:
        """Record that a Fetch for these partitions is sent to a follower."""
        if wanted := frozenset(partitions):
            self._asked[node] = now + self.patience_s, wanted

    def answered(self, node: int) -> None:
        """Record that the Fetch to this broker has ended."""
        self._asked.pop(node, None)
        self._overdue.pop(node, None)

    def failed(self, node: int, now: float) -> frozenset[T]:
        """Record that the Fetch to this broker has failed. Return its partitions, which are read only from their
        leaders now.
        """
        _, partitions = self._asked.get(node, (0.0, frozenset[T]()))
        self.leave(partitions, now)
        return partitions

    def hang(self, now: float) -> frozenset[T]:
        """Stop reading from followers whose answers are overdue. Return their partitions."""
        found: frozenset[T] = frozenset()
        for node, (until, partitions) in list(self._asked.items()):
            if until <= now:
                del self._asked[node]
                self._overdue[node] = partitions
                found |= partitions
        self.leave(found, now)
        return found

    def was_left(self, node: int, partition: T) -> bool:
        """Whether this follower's answer about the partition is overdue."""
        return partition in self._overdue.get(node, ())

    def due_s(self, now: float) -> float | None:
        """Seconds until the first answer of a follower is overdue; None if no follower was asked."""
        untils = [until for until, _ in list(self._asked.values())]
        return max(0.0, min(untils) - now) if untils else None

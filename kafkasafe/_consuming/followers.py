"""Decides when a consumer with `client_rack` reads a partition only from its leader. Pure: the time is an argument.

If a Fetch has a rack id, the leader may answer with the id of a follower instead of records (KIP-392). While the
consumer sends its rack id, the leader repeats this answer:

1. A follower is killed. The consumer gets metadata that say that the follower is offline.
2. The follower is started again. The consumer sends a Fetch to the leader, and the leader answers with the follower's
   id.
3. The consumer's metadata still say that the follower is offline. So the consumer sends the Fetch to the leader again,
   with the same rack id, and gets the same answer. The consumer repeats this Fetch without a pause until the metadata
   expire, and gets no record.

Rule: if a follower cannot be used, the consumer reads the partition from its leader for `LEADER_ONLY_S`. During this
time, requests for the partition carry no rack id, so the leader returns the records itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T", bound=Hashable)

LEADER_ONLY_S: Final = 30.0
"""How long, in seconds, a partition is read only from its leader."""
ANSWER_S: Final = 3.0
"""A follower must answer a Fetch within `fetch_max_wait_ms` plus this many seconds."""
_MOST_LATE_ERRORS: Final = 1000


class Followers(Generic[T]):
    """Tracks the partitions that must not be read from followers, and the followers that have not answered yet.

    The polling thread and kafka-python's I/O thread call the methods. Times are monotonic seconds.

    Args:
        max_wait_s: The option `fetch_max_wait_ms`, in seconds: how long a broker may wait for records.
        lock: A lock that no other object uses.
    """

    __slots__ = ("_asked", "_late", "_left_until", "_lock", "_overdue", "_patience_s")

    def __init__(self, max_wait_s: float, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self._patience_s = max_wait_s + ANSWER_S
        """How long, in seconds, a follower may take to answer."""
        self._left_until: dict[T, float] = {}
        self._asked: dict[int, tuple[float, frozenset[T]]] = {}
        """For each follower with a Fetch in flight: the deadline of its answer, and the requested partitions."""
        self._overdue: dict[int, frozenset[T]] = {}
        """For each follower whose answer is overdue: the requested partitions, which the consumer now reads from their
        leaders. The follower's answer may still arrive.
        """
        self._late: deque[Any] = deque(maxlen=_MOST_LATE_ERRORS)
        """The latest errors in overdue responses of followers."""

    def leave(self, partitions: Iterable[T], now: float) -> None:
        """Read these partitions only from their leaders for a while."""
        with self._lock:
            self._leave(partitions, now)

    def _leave(self, partitions: Iterable[T], now: float) -> None:
        for partition in partitions:
            self._left_until[partition] = now + LEADER_ONLY_S

    def leaves(self, partitions: Iterable[T], now: float) -> bool:
        """Return whether the consumer now reads at least one of these partitions only from its leader."""
        with self._lock:
            return self._leaves(partitions, now)

    def _leaves(self, partitions: Iterable[T], now: float) -> bool:
        return any(self._left_until.get(partition, now) > now for partition in partitions)

    def asked(self, node: int, partitions: Iterable[T], now: float) -> None:
        """Note that the consumer sends a Fetch for these partitions to a follower."""
        if wanted := frozenset(partitions):
            with self._lock:
                self._asked[node] = now + self._patience_s, wanted

    def answered(self, node: int) -> None:
        """Handle the end of the Fetch to this broker."""
        with self._lock:
            self._asked.pop(node, None)
            self._overdue.pop(node, None)

    def failed(self, node: int, now: float) -> frozenset[T]:
        """Note that the Fetch to this follower has failed. Return the partitions of the Fetch. For a while, the
        consumer reads these partitions only from their leaders.
        """
        with self._lock:
            _, partitions = self._asked.get(node, (0.0, frozenset[T]()))
            self._leave(partitions, now)
        return partitions

    def hang(self, now: float) -> frozenset[T]:
        """Stop reading from followers whose answers are overdue. Return their partitions."""
        with self._lock:
            found = self._take_overdue(now)
            self._leave(found, now)
        return found

    def _take_overdue(self, now: float) -> frozenset[T]:
        found: frozenset[T] = frozenset()
        for node, (until, partitions) in list(self._asked.items()):
            if until <= now:
                del self._asked[node]
                self._overdue[node] = partitions
                found |= partitions
        return found

    def note_errors(self, node: int, rows: Iterable[tuple[T, Any]]) -> None:
        """Note the errors in a follower's overdue response. The consumer already reads the affected partitions from
        their leaders.
        """
        with self._lock:
            overdue = self._overdue.get(node, ())
            self._late.extend(row for partition, row in rows if partition in overdue)

    def is_late(self, row: Any) -> bool:
        """Return whether this part of a response is an error from a follower that answered too late."""
        with self._lock:
            return self._is_late(row)

    def _is_late(self, row: Any) -> bool:
        return any(each is row for each in self._late)

    def due_s(self, now: float) -> float:
        """Return the seconds until a follower's answer is overdue. If no answer is awaited, return the time-out for a
        new Fetch.
        """
        with self._lock:
            return max(0.0, min((until - now for until, _ in self._asked.values()), default=self._patience_s))

"""Decides which partitions are read from followers (KIP-392). The polling thread and kafka-python's I/O thread ask."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable
from typing import Any, Final

from kafka.structs import TopicPartition

from kafkasafe._consuming.followers import Followers
from kafkasafe.kafkapython.adapter import KafkaPython

__all__ = ["Following"]

_MOST_LATE_ERRORS: Final = 1000


class Following:
    """Applies the rules of `followers` for one consumer. Any thread may call the methods. Times are monotonic seconds.

    Args:
        port: Gives the assignment and the metadata.
        max_wait_s: `fetch_max_wait_ms`, in seconds: how long a broker may wait for records.
    """

    __slots__ = ("_followers", "_late", "_lock", "_port")

    def __init__(self, port: KafkaPython, max_wait_s: float) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._followers: Followers[TopicPartition] = Followers(max_wait_s)
        self._late: collections.deque[Any] = collections.deque(maxlen=_MOST_LATE_ERRORS)
        """The latest errors from followers that the consumer had stopped reading from."""

    def due_s(self, now: float) -> float:
        """Return the seconds until the first answer of a follower is overdue. A fetch may be sent to a follower now."""
        with self._lock:
            due_s = self._followers.due_s(now)
        return self._followers.patience_s if due_s is None else min(due_s, self._followers.patience_s)

    def leave(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Read these partitions only from their leaders for a while."""
        with self._lock:
            self._followers.leave(partitions, now)

    def leave_unusable(self, now: float) -> None:
        """Fetch from the leader if a partition's follower cannot be used. Refresh the metadata in this case."""
        with self._lock:
            left = set(self._followers.hang(now))
        for tp, state in self._port.assigned().items():
            named = state.preferred_read_replica()
            if named is None:
                continue
            # While the follower's connection is in back-off, kafka-python would not fetch the partition at all.
            if not self._port.can_follow(tp, named):
                left.add(tp)
            if tp in left or self.leaves([tp], now):
                state.clear_preferred_read_replica()
        if left:
            self.leave(left, now)
            self._port.request_metadata()

    def leaves(self, partitions: Iterable[TopicPartition], now: float) -> bool:
        """Return whether one of these partitions is read only from its leader."""
        with self._lock:
            return any(self._followers.leaves(tp, now) for tp in partitions)

    def asked(self, node: int, partitions: Iterable[TopicPartition], now: float) -> None:
        """Record that a fetch for these partitions is sent to a follower."""
        with self._lock:
            self._followers.asked(node, partitions, now)

    def answered(self, node: int) -> None:
        """Record that the fetch to this broker has ended."""
        with self._lock:
            self._followers.answered(node)

    def failed(self, node: int, now: float) -> None:
        """Record that the fetch to this broker has failed. If it is a follower, read its partitions only from their
        leaders, and refresh the metadata.
        """
        with self._lock:
            left = self._followers.failed(node, now)
        if left:
            self._port.request_metadata()

    def note_errors(self, node: int, rows: Iterable[tuple[TopicPartition, Any]]) -> None:
        """Note errors in an overdue response. The consumer already reads these partitions from their leaders.

        Args:
            node: The broker.
            rows: The partitions with an error, and their rows in the response.
        """
        with self._lock:
            self._late.extend(row for tp, row in rows if self._followers.was_left(node, tp))

    def is_late(self, row: Any) -> bool:
        """Return whether this part of a response is an error that came too late."""
        with self._lock:
            return any(each is row for each in self._late)

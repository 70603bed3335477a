"""Decides which partitions are read from followers (KIP-392). The polling thread and kafka-python's I/O thread ask."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable
from typing import Any, Final

from kafka.structs import TopicPartition

from kafkasafe._consuming.followers import Followers

__all__ = ["Following"]

_MOST_LATE_ERRORS: Final = 1000


class Following:
    """Applies the rules of `followers` for one consumer. Any thread may call the methods. Times are monotonic seconds.

    Args:
        max_wait_s: `fetch_max_wait_ms`, in seconds: how long a broker may wait for records.
    """

    __slots__ = ("_followers", "_late", "_lock")

    def __init__(self, max_wait_s: float) -> None:
        self._lock = threading.Lock()
        self._followers: Followers[TopicPartition] = Followers(max_wait_s)
        self._late: collections.deque[Any] = collections.deque(maxlen=_MOST_LATE_ERRORS)
        """The latest errors from followers that the consumer had stopped reading from."""

    @property
    def patience_s(self) -> float:
        """How long a follower may take to answer."""
        return self._followers.patience_s

    def due_s(self, now: float) -> float | None:
        """Return the seconds until the first answer of a follower is overdue; None if no follower was asked."""
        with self._lock:
            return self._followers.due_s(now)

    def leave(self, partitions: Iterable[TopicPartition], now: float) -> None:
        """Read these partitions only from their leaders for a while."""
        with self._lock:
            self._followers.leave(partitions, now)

    def leaves(self, partitions: Iterable[TopicPartition], now: float) -> bool:
        """Return whether one of these partitions is read only from its leader."""
        with self._lock:
            return any(self._followers.leaves(tp, now) for tp in partitions)

    def hang(self, now: float) -> frozenset[TopicPartition]:
        """Stop fetching from followers whose answers are overdue. Return their partitions."""
        with self._lock:
            return self._followers.hang(now)

    def asked(self, node: int, partitions: Iterable[TopicPartition], now: float) -> None:
        """Record that a fetch for these partitions is sent to a follower."""
        with self._lock:
            self._followers.asked(node, partitions, now)

    def answered(self, node: int) -> None:
        """Record that the fetch to this broker has ended."""
        with self._lock:
            self._followers.answered(node)

    def failed(self, node: int, now: float) -> bool:
        """Record that the fetch to this broker has failed. Return whether its partitions are read only from their
        leaders now.
        """
        with self._lock:
            return bool(self._followers.failed(node, now))

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
        if not self._late:
            return False
        with self._lock:
            return any(each is row for each in self._late)

"""Records on their way to the application: records that a poll has taken, and records that an iterator holds."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition


@dataclass(frozen=True, slots=True)
class _Held:
    """The offset after the last record that an iterator has taken from one partition. The iterator returns the taken
    records one by one.

    Attributes:
        state: kafka-python's state of the partition.
        after: Offset after the last record.
        position: The position of the partition after the last record, after the transaction markers that follow it, and
            after the offsets that compaction has removed.
    """

    state: Any
    after: int
    position: OffsetAndMetadata


class HeldRecords:
    """For each partition, stores the offset after the last record that an iterator has taken. The iterator returns the
    taken records one by one.

    A partition's position advances with each record that is returned. The next fetch must begin after the last record
    that an iterator has taken, even while the position is lower.
    """

    def __init__(self, subscriptions: Any) -> None:
        self._subscriptions = subscriptions
        self._held: dict[TopicPartition, _Held] = {}
        self._postponed: list[Any] = []

    def hold(self, tp: TopicPartition, after: int, position: OffsetAndMetadata) -> None:
        """Notes that an iterator has taken records from a partition.

        Args:
            tp: Partition of the records.
            after: Offset after the last record.
            position: Position from which the partition is read after the taken records.
        """
        self._held[tp] = _Held(self._subscriptions.assignment.get(tp), after, position)

    def let_go(self) -> None:
        """Forgets the records that the iterator held. If the application got all records of a partition, moves the
        partition to the stored position.
        """
        held, self._held = self._held, {}
        for tp, end in held.items():
            state = self._subscriptions.assignment.get(tp)
            if state is end.state and state.is_fetchable() and state.position.offset == end.after:
                self._subscriptions.place(state, end.position)

    def forget(self) -> None:
        """Forgets all records, because the application has called `seek` and so changed the positions."""
        self._held = {}

    def has(self, tp: TopicPartition) -> bool:
        """Returns whether an iterator holds records of this partition. Any thread may call this method."""
        end = self._held.get(tp)
        position = None if end is None else end.state.position
        return end is not None and position is not None and position.offset < end.after

    def postpones(self, completed: Any) -> bool:
        """Returns whether a response begins directly after the records that an iterator holds. Such a response is
        stored until `put_back_postponed`.
        """
        end = self._held.get(completed.topic_partition)
        if end is None or completed.fetched_offset != end.position.offset:
            return False
        self._postponed.append(completed)
        return True

    def put_back_postponed(self, responses: collections.deque[Any]) -> bool:
        """Inserts the postponed responses at the front of `responses`. Returns whether a response was postponed."""
        if not self._postponed:
            return False
        # Clear `_postponed` last, so that Ctrl-C between these two lines loses no response.
        responses.extendleft(reversed(self._postponed))
        self._postponed = []
        return True


class TakenRecords:
    """Stores the position that each partition had before the current poll took records from it."""

    def __init__(self, subscriptions: Any) -> None:
        self._subscriptions = subscriptions
        self._before: dict[TopicPartition, tuple[Any, OffsetAndMetadata]] = {}

    def begin(self) -> None:
        """Begins a poll. Forgets the positions that earlier polls stored, because their records were returned."""
        self._before = {}

    def take(self, tp: TopicPartition, state: Any) -> None:
        """Stores the position of a partition before the poll takes records from the partition."""
        if state is not None and state.position is not None:
            self._before.setdefault(tp, (state, state.position))

    def forget(self, tp: TopicPartition) -> None:
        """Forgets the stored position of a partition, because a `seek` or a reset sets another position."""
        self._before.pop(tp, None)

    def give_back(self) -> None:
        """Moves the partitions back to the stored positions, because the poll will not return its records.

        For example, Ctrl-C may come when the records of some partitions were taken, but the records of other partitions
        are still being decoded. All these records are fetched again.
        """
        before, self._before = self._before, {}
        for tp, (state, position) in before.items():
            if self._subscriptions.assignment.get(tp) is state and state.position is not None:
                self._subscriptions.place(state, position)

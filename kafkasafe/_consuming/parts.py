"""The state of each assigned partition, and the partitions that wait for a decision of the application."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kafka.structs import TopicPartition

from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe._consuming.partition import AssignedPartition, PlaceLeft
from kafkasafe._consuming.ports import Assignments, AssignmentState
from kafkasafe._consuming.position_table import PositionEvent


class AssignedPartitions:
    """An `AssignedPartition` for each assigned partition. Only the polling thread changes these objects. Other threads
    may call only the methods whose docstrings permit it.
    """

    __slots__ = ("_assignments", "_left", "_memory", "_parts", "_unhanded")

    def __init__(self, assignments: Assignments, memory: LineageMemory) -> None:
        self._assignments = assignments
        self._memory = memory
        self._parts: dict[TopicPartition, AssignedPartition] = {}
        self._left: dict[TopicPartition, PlaceLeft] = {}
        """For each revoked partition: its position at the revocation."""
        self._unhanded: Callable[[], Mapping[TopicPartition, int]] = dict

    def hand_out_later(self, unhanded: Callable[[], Mapping[TopicPartition, int]]) -> None:
        """Tell the parts which fetched records a buffering consumer has not returned yet.

        Args:
            unhanded: Returns a mapping from partitions to the first offset that was fetched but not returned yet. The
                mapping has no entry for a partition whose records were all returned.
        """
        self._unhanded = unhanded

    def consumed(self, tp: TopicPartition, position: int) -> int:
        """Return the offset after the last record that the application got. While fetched records are buffered, this
        offset is lower than `position`.
        """
        return min(position, self._unhanded().get(tp, position))

    def take_left(self, tp: TopicPartition) -> PlaceLeft | None:
        """Return and forget the position that a partition had when it was revoked. Return None if the partition had no
        position, or if the application chose another position.
        """
        return self._left.pop(tp, None)

    def renewed(self, tp: TopicPartition) -> None:
        """Treat a partition as newly assigned, and forget its former position, which an event has reported already."""
        self._of(tp, self._assignments.state(tp))
        self._left.pop(tp, None)

    def get(self, tp: TopicPartition) -> AssignedPartition | None:
        """Return the state of a partition, even if it has been revoked meanwhile. Any thread may call this method."""
        return self._parts.get(tp)

    def items(self) -> list[tuple[TopicPartition, AssignedPartition]]:
        """Return all partitions and their states. Any thread may call this method."""
        return list(self._parts.items())

    def values(self) -> list[AssignedPartition]:
        """Return the states of all partitions. Any thread may call this method."""
        return list(self._parts.values())

    def of(self, tp: TopicPartition) -> AssignedPartition | None:
        """Return the state for a partition's present assignment; None if the partition is not assigned."""
        return self._of(tp, self._assignments.state(tp))

    def _of(self, tp: TopicPartition, state: AssignmentState | None) -> AssignedPartition | None:
        part = self._parts.get(tp)
        if state is None or part is None or part.state is not state:
            if part is not None:
                part.cancel()
                self._remember(tp, part)
                self._leave(tp, part)
                del self._parts[tp]
            if state is None:
                return None
            part = self._parts[tp] = AssignedPartition(state, self._memory.get(tp.topic, tp.partition))
        return part

    def _leave(self, tp: TopicPartition, part: AssignedPartition) -> None:
        left = part.place_left
        if left is not None:
            self._left[tp] = left._replace(offset=self.consumed(tp, left.offset))
        elif part.is_reset_by_application:
            self._left.pop(tp, None)
        # If the partition was revoked before it had a position, keep the position of an earlier assignment.

    def present(self) -> list[tuple[TopicPartition, AssignedPartition]]:
        """Return the assigned partitions and their states. Drop the states of revoked partitions, but keep their
        histories.
        """
        assigned = self._assignments.assigned()
        for tp in self._parts.keys() - assigned.keys():
            self._of(tp, None)
        return [(tp, part) for tp, state in assigned.items() if (part := self._of(tp, state)) is not None]

    def keep(self, records: Mapping[TopicPartition, list[Any]]) -> None:
        """Pass the history of each partition, up to the partition's position, to `LineageMemory`, which can write the
        history to disk.

        Args:
            records: The records that are about to be returned. The positions do not include them.
        """
        for tp, part in self.items():
            some = records.get(tp)
            self._remember(tp, part, some[-1].offset + 1 if some else 0)

    def _remember(self, tp: TopicPartition, part: AssignedPartition, least: int = 0) -> None:
        if part.history.lineage.entries:
            self._memory.keep(tp.topic, tp.partition, part.remembered(least))
        else:
            # The application has discarded the former history, or the consumer now reads the log of another topic.
            self._memory.forget(tp.topic, tp.partition)

    def undecided(self, only: TopicPartition | None = None) -> list[AssignedPartition]:
        """Return the partitions that wait for the application's decision. If `only` is given, consider no other
        partition.
        """
        found = []
        for tp, part in self.items():
            if (
                part.error is None
                or (only is not None and tp != only)
                or self._assignments.state(tp) is not part.state
            ):
                continue
            position = part.state.position
            if position is None or position.offset != part.position:
                # The position has changed without a decision of the application. Check the new position, too.
                part.on(PositionEvent.MOVED)
                continue
            found.append(part)
        return found

    @staticmethod
    def error(undecided: list[AssignedPartition]) -> Exception:
        """Return one of the partitions' errors, for the caller to raise: an error that `poll` has never raised or, if
        none exists, the error that `poll` raised longest ago.
        """
        part = min(undecided, key=lambda part: part.raised_at)
        part.raised(time.monotonic())
        if part.error is None:  # pragma: no cover - each undecided partition has an error
            raise RuntimeError("nothing is undecided")
        # Raise the error with a new traceback each time: Python extends the traceback of an error that is raised again.
        return part.error.with_traceback(None)

    def has_others(self) -> bool:
        """Return whether at least one unpaused partition does not wait for a decision."""
        for tp, state in self._assignments.assigned().items():
            part = self._parts.get(tp)
            if not state.paused and (part is None or part.state is not state or part.error is None):
                return True
        return False

    def cancel(self) -> None:
        for part in self.values():
            part.cancel()

    def is_busy(self) -> bool:
        return any(part.inquiry is not None for part in self._parts.values())

    def resting(self, now: float) -> set[TopicPartition]:
        """Return the partitions whose fetches are paused after an error. Any thread may call it."""
        return {tp for tp, part in self.items() if part.failures.rest_until > now}

"""Find positions and check them. A position comes from the application, from a committed offset or from a reset."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.ports import Assignments, Group, Leadership, Metadata
from kafkasafe._consuming.position_table import Activity, PositionEvent
from kafkasafe._consuming.rereading import Rereading
from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.cluster.at_once import at_once
from kafkasafe.history.epochs import UNDEFINED


class Positions:
    """Finds and checks the positions of one consumer. Only the polling thread calls this object, except for
    `lost`.
    """

    __slots__ = (
        "_assignments",
        "_group",
        "_has_group",
        "_lost_nodes",
        "_metadata",
        "_moves",
        "_parts",
        "_rereading",
    )

    def __init__(
        self,
        assignments: Assignments,
        group: Group,
        metadata: Metadata,
        parts: AssignedPartitions,
        moves: Moves,
        rereading: Rereading,
        *,
        has_group: bool,
    ) -> None:
        self._assignments = assignments
        self._group = group
        self._metadata = metadata
        self._parts = parts
        self._moves = moves
        self._rereading = rereading
        self._has_group = has_group
        self._lost_nodes: set[int] = set()

    def lost(self, node: int) -> None:
        """Note that a fetch from this broker has failed. kafka-python's I/O thread calls this method."""
        self._lost_nodes.add(node)

    def sought(self, tp: TopicPartition) -> None:
        """Note that the application has chosen a position, and cancel resets and checks of the old position."""
        self._rereading.moved(tp)
        part = self._parts.of(tp)
        if part is not None:
            self._moves.carry_out(tp, part, part.sought())

    def refresh_committed(self, timeout_ms: float | None = None) -> bool:
        """Find missing positions, like `_refresh_committed_offsets` of kafka-python's KafkaConsumer. Unlike
        kafka-python, keep a committed offset's leader epoch and lineage.
        """
        self._rereading.settle(timeout_ms)
        if self._is_placed():
            return True
        missing = self._missing()
        if missing and self._has_group:
            number = self._rereading.draw(missing)
            try:
                committed = self._group.committed(set(missing), timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                return False
            except BaseException:
                self._rereading.answered(missing)
                raise
            self._rereading.answered(missing)
            for tp in missing:
                self._rereading.begin(tp, number, committed[tp].offset if tp in committed else None)
            for tp, offset in committed.items():
                part = self._parts.of(tp)
                if part is None:  # revoked by a rebalance meanwhile
                    continue
                if part.state.position is not None or part.state.awaiting_reset:
                    continue  # an event hook has called `seek` meanwhile
                epoch = UNDEFINED if offset.leader_epoch is None else offset.leader_epoch
                self._assignments.place(tp, offset.offset, epoch)
                part.history.restore(offset.metadata, epoch, offset.offset)
                self._rereading.resumed(tp, offset.offset)
        for tp in self._missing():
            part = self._parts.of(tp)
            if part is not None:
                left = self._rereading.left(tp) or part.place_left
                leadership = self._metadata.leadership(tp)
                topic_id = None if leadership is None else leadership[0]
                previous = left.offset if left is not None and left.is_in(topic_id) else None
                part.resets(("no_position", previous), left)
        self._assignments.reset_missing()
        return self._is_placed()

    def _is_placed(self) -> bool:
        """Return whether all partitions have a position."""
        return all(state.has_valid_position for state in self._assignments.assigned().values())

    def _missing(self) -> list[TopicPartition]:
        """Return the partitions that have no position, and no requested reset."""
        states = self._assignments.assigned()
        return [tp for tp, state in states.items() if state.is_missing_position()]

    def begin(self) -> None:
        states = self._assignments.assigned()
        if resetting := [
            tp for tp, state in states.items() if state.awaiting_reset and state.is_reset_allowed()
        ]:
            at_once(functools.partial(self._reset, resetting))
        self.begin_checks()

    def _reset(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            part = self._parts.of(tp)
            if part is not None and part.is_idle:
                self._moves.on(tp, part, PositionEvent.RESET_DUE)

    def begin_checks(self) -> None:
        """Begin the checks that are due, because the new leader's log may differ from the former leader's."""
        lost = set()
        while self._lost_nodes:
            lost.add(self._lost_nodes.pop())
        if lost:
            for part in self._parts.values():
                part.doubt(lost)
        due: list[tuple[TopicPartition, AssignedPartition, Leadership]] = []
        for tp, part in self._parts.present():
            if part.at.activity is not Activity.IDLE:
                # An interrupt may have prevented the start of the procedure. If so, return to IDLE before the next
                # fetch.
                part.mend()
            if part.at.activity is not Activity.IDLE or part.state.position is None:
                continue
            leadership = self._metadata.leadership(tp)
            if leadership is None:
                if part.checked is None and part.history.lineage.entries:
                    # Hold the partition: new metadata may arrive before the next fetch, and the check must precede this
                    # fetch. Also request metadata, because kafka-python does so only when it fetches a partition
                    # without a leader.
                    self._moves.on(tp, part, PositionEvent.LEADER_UNKNOWN)
            elif part.history.former.name(leadership[0], time.monotonic()):
                # The metadata are outdated: they still contain the id of a deleted topic.
                self._moves.on(tp, part, PositionEvent.LEADER_UNKNOWN)
            elif part.is_due(leadership):
                due.append((tp, part, leadership))
        if due:
            at_once(functools.partial(self._check_all, due))

    def _check_all(self, due: Iterable[tuple[TopicPartition, AssignedPartition, Leadership]]) -> None:
        for check in due:
            self.check(*check)

    def check(self, tp: TopicPartition, part: AssignedPartition, leadership: Leadership) -> None:
        """Check the position of a partition. Called only while no procedure runs for the partition."""
        position = part.state.position.offset
        part.looked()
        # If nothing was read before the position, no record can be lost. But if another member has read a new topic
        # with the same name and committed the position, the metadata may still show the former topic. `LogChecks.walk`
        # detects this case.
        if part.history.reaches_below(position) or part.history.is_of_another(leadership[0]):
            part.place(position)
            self._moves.on(tp, part, PositionEvent.CHECK_DUE)
            return
        part.history.adopt(leadership[0])
        part.check(leadership)
        self._moves.on(tp, part, PositionEvent.UNREAD, offset=position)

    def begin_at_its_start(self, tp: TopicPartition, part: AssignedPartition, position: int) -> None:
        """Reset the position to the start of a recreated topic. Called if no record of the former topic was read.

        1. The consumer begins at the end of the log, offset 10. The topic is deleted and created again.
        2. The new topic gets 15 records after the consumer has chosen to begin at the end.
        3. Offset 10 exists in the new log, too. If the consumer continued at offset 10, it would skip the records 0 to
           9.
        """
        if self._assignments.strategy not in {EARLIEST, LATEST}:
            part.place(position)
            self._moves.carry_out(tp, part, part.strand(kafka_errors.OffsetOutOfRangeError({tp: position})))
            return
        part.resets(("recreated", position))
        self._moves.on(tp, part, PositionEvent.NEW_TOPIC, strategy=EARLIEST)

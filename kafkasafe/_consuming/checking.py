"""Check positions after a change of leaders: the new leader's log may differ from the former leader's."""

from __future__ import annotations

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.partition import AssignedPartition, Leadership
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.port import Port
from kafkasafe._consuming.position_table import Activity, PositionEvent
from kafkasafe.cluster.api import EARLIEST, LATEST
from kafkasafe.cluster.at_once import at_once

__all__ = ["Checking"]


class Checking:
    """Begins the checks of one consumer's positions. Only the polling thread calls this object.

    Args:
        port: Gives the metadata.
        parts: The assigned partitions.
        moves: Moves positions.
    """

    __slots__ = ("_moves", "_parts", "_port")

    def __init__(self, port: Port, parts: AssignedPartitions, moves: Moves) -> None:
        self._port = port
        self._parts = parts
        self._moves = moves

    @at_once()
    def begin(self) -> None:
        """Begin all checks that are due."""
        if lost := self._port.take_lost_nodes():
            for each in self._parts.values():
                each.doubt(lost)
        assigned = list(self._port.assigned())
        self._parts.drop_revoked(assigned)
        for tp in assigned:
            part = self._parts.of(tp)
            if part is None:
                continue
            # An interrupt may have left the position in a state without its procedure. Mend that before the next fetch.
            part.mend()
            if part.at.activity is not Activity.IDLE or part.state.position is None:
                continue
            leadership = self._port.leadership(tp)
            if leadership is None:
                if part.checked is None and part.history.lineage.entries:
                    # New metadata may arrive before the fetch is sent, and no record may be read unchecked. Request
                    # metadata here, because kafka-python only does so when it fetches a partition without a leader.
                    self._moves.on(tp, part, PositionEvent.LEADER_UNKNOWN)
            elif leadership[0] in part.history.former_ids:
                # These metadata are older than those that this consumer has seen.
                self._moves.on(tp, part, PositionEvent.LEADER_UNKNOWN)
            elif part.is_due(leadership):
                self.check(tp, part, leadership)

    def check(self, tp: TopicPartition, part: AssignedPartition, leadership: Leadership) -> None:
        """Check the position of a partition. No procedure is running for this position."""
        position = part.state.position.offset
        part.looked()
        if part.history.reaches_below(position):
            part.place(position)
            self._moves.on(tp, part, PositionEvent.CHECK_DUE)
            return
        # Nothing was read before the position, so no record can be lost.
        topic_id = part.history.topic_id
        is_another = None not in {topic_id, leadership[0]} and topic_id != leadership[0]
        part.history.adopt(leadership[0])
        part.check(leadership)
        self._moves.on(tp, part, PositionEvent.UNREAD, offset=position)
        if is_another and position > 0:
            self._begin_at_its_start(tp, part, position)

    def _begin_at_its_start(self, tp: TopicPartition, part: AssignedPartition, position: int) -> None:
        """Go to the start of a recreated topic, if no record of the former topic was read.

        1. The consumer begins at the end of the log, offset 10. The topic is deleted and created again.
        2. The new topic gets 15 records. All of them are newer than the position.
        3. Offset 10 exists in the new log, too. Reading on there would skip the records 0 to 9.
        """
        if self._port.strategy not in {EARLIEST, LATEST}:
            part.place(position)
            self._moves.carry_out(tp, part, part.strand(kafka_errors.OffsetOutOfRangeError({tp: position})))
            return
        part.resets(("recreated", position))
        self._moves.on(tp, part, PositionEvent.NEW_TOPIC, strategy=EARLIEST)

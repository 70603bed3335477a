"""Find positions: from the application's decisions, from commits and by resets."""

from __future__ import annotations

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._consuming.moves import Moves
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.port import Port
from kafkasafe._consuming.position_table import PositionEvent
from kafkasafe._consuming.rereading import Rereading
from kafkasafe.cluster.at_once import at_once
from kafkasafe.history.epochs import UNDEFINED

__all__ = ["Positions"]


class Positions:
    """Finds the positions of one consumer. Only the polling thread calls this object.

    Args:
        port: The client that fetches.
        parts: The assigned partitions.
        moves: Moves positions.
        rereading: Decides which partitions are read again.
        has_group: Whether the consumer has a group, and so may have committed offsets.
    """

    __slots__ = ("_has_group", "_moves", "_parts", "_port", "_rereading")

    def __init__(
        self, port: Port, parts: AssignedPartitions, moves: Moves, rereading: Rereading, *, has_group: bool
    ) -> None:
        self._port = port
        self._parts = parts
        self._moves = moves
        self._rereading = rereading
        self._has_group = has_group

    def sought(self, tp: TopicPartition) -> None:
        """Record that the application has chosen a position, and cancel resets and checks of the old one."""
        self._rereading.moved(tp)
        part = self._parts.of(tp)
        if part is not None:
            self._moves.carry_out(tp, part, part.sought())

    def refresh_committed(self, timeout_ms: float | None = None) -> bool:
        """Like kafka-python's method of this name, but keep the leader epoch and the lineage of a committed offset."""
        self._rereading.settle(timeout_ms)
        if self._port.is_placed():
            return True
        missing = self._port.missing()
        if missing and self._has_group:
            number = self._rereading.draw(missing)
            try:
                committed = self._port.committed(missing, timeout_ms)
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
                epoch = UNDEFINED if offset.leader_epoch is None else offset.leader_epoch
                self._port.place(tp, offset.offset, epoch)
                part.history.restore(offset.metadata, epoch, offset.offset)
        for tp in self._port.missing():
            part = self._parts.of(tp)
            if part is not None:
                part.resets(("no_position", None))
        return self._port.reset_missing()

    @at_once()
    def begin_resets(self) -> None:
        """Begin to look up the targets of all resets."""
        for tp in self._port.resetting():
            part = self._parts.of(tp)
            if part is not None and part.is_idle:
                self._moves.on(tp, part, PositionEvent.RESET_DUE)

"""Partitions that wait for a decision of the application, and the errors that report this."""

from __future__ import annotations

import time

from kafka.structs import TopicPartition

from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.port import Port
from kafkasafe._consuming.position_table import PositionEvent

__all__ = ["Decisions"]


class Decisions:
    """Knows which partitions wait for a decision of the application. Only the polling thread calls this object.

    Args:
        port: Gives the assignment.
        parts: The assigned partitions.
    """

    __slots__ = ("_parts", "_port")

    def __init__(self, port: Port, parts: AssignedPartitions) -> None:
        self._port = port
        self._parts = parts

    def due(self, only: TopicPartition | None = None) -> list[AssignedPartition]:
        """Return partitions that wait for the application's decision; with `only`, at most this one."""
        found = []
        for tp, part in self._parts.items():
            if only is not None and tp != only:
                continue
            if part.error is None or self._port.state(tp) is not part.state:
                continue
            position = part.state.position
            if position is None or position.offset != part.position:
                # Something other than a decision moved the position. Check the new position, too.
                part.on(PositionEvent.MOVED)
                continue
            found.append(part)
        return found

    @staticmethod
    def error(due: list[AssignedPartition]) -> Exception:
        """Return the error that was raised least recently. The caller raises it."""
        part = min(due, key=lambda part: part.raised_at)
        part.raised(time.monotonic())
        if part.error is None:  # pragma: no cover - that is what `due` means
            raise RuntimeError("nothing is undecided")
        # Raise the error with a new traceback each time. Otherwise its traceback would grow.
        return part.error.with_traceback(None)

    def has_others(self) -> bool:
        """Return whether records can come from a partition that does not wait for a decision."""
        for tp, state in self._port.assigned().items():
            part = self._parts.get(tp)
            if not state.paused and (part is None or part.state is not state or part.error is None):
                return True
        return False

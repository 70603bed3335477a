"""The state of each assigned partition."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.structs import TopicPartition

from kafkasafe._consuming.keeper import HistoryKeeper
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.port import Port

__all__ = ["AssignedPartitions"]


class AssignedPartitions:
    """An `AssignedPartition` for each assigned partition. The polling thread changes them; any thread may read them.

    Args:
        port: Gives the assignment.
        keeper: Keeps the histories of partitions that are revoked.
    """

    __slots__ = ("_keeper", "_parts", "_port")

    def __init__(self, port: Port, keeper: HistoryKeeper) -> None:
        self._port = port
        self._keeper = keeper
        self._parts: dict[TopicPartition, AssignedPartition] = {}

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
        state = self._port.state(tp)
        part = self._parts.get(tp)
        if state is None or part is None or part.state is not state:
            if part is not None:
                part.cancel()
                self._keeper.keep(tp, part)
                del self._parts[tp]
            if state is None:
                return None
            part = self._parts[tp] = AssignedPartition(state, self._keeper.known(tp))
        return part

    def drop_revoked(self, assigned: Iterable[TopicPartition]) -> None:
        """Drop the partitions that are not assigned any more, but keep their histories."""
        for tp in self._parts.keys() - set(assigned):
            self.of(tp)

    def cancel(self) -> None:
        """Cancel all procedures."""
        for part in self.values():
            part.cancel()

    def is_busy(self) -> bool:
        """Return whether a procedure runs."""
        return any(part.inquiry is not None for part in self._parts.values())

    def resting(self, now: float) -> set[TopicPartition]:
        """Return the partitions that are not fetched now, after a failure. Any thread may call it."""
        return {tp for tp, part in self.items() if part.failures.rest_until > now}

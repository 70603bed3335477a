"""In which order units are appended and committed, on each of their partitions."""

from __future__ import annotations

from collections import deque

from kafkasafe._core.units.terms import Phase, Unit

__all__ = ["Order"]


class Order:
    """Units in line, and what is known to stand in the logs."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[Unit]] = {}
        """By destination, units in order, until they are known to be committed, or refused."""
        self._bare: deque[Unit] = deque()
        """Those without a batch."""
        self._floor: dict[int, int] = {}
        """By destination, the last offset of what is committed (inclusive)."""

    def _line(self, destination: int) -> deque[Unit]:
        return self._lines.setdefault(destination, deque())

    def _leave(self, unit: Unit) -> None:
        for destination in unit.destinations:
            line = self._lines.get(destination)
            if line is not None and unit in line:
                line.remove(unit)
                if not line:
                    del self._lines[destination]
        for each in unit.each:
            if each in self._bare:
                self._bare.remove(each)

    def _is_next(self, unit: Unit, destination: int) -> bool:
        for other in self._lines[destination]:
            if other is unit:
                return True
            if other.phase in {Phase.WAITING, Phase.ASKING, Phase.REFUSED}:
                return False
        return False

    def _issued_before(self, unit: Unit, destination: int) -> bool:
        for other in self._lines[destination]:
            if other is unit:
                return True
            if not other.issued:
                return False
        return True

    def _in_order(self, unit: Unit) -> bool:
        """Everything that was accepted before it stands before it in the logs."""
        for batch in unit.batches:
            place = unit.places.get(batch.handle, -1)
            if 0 <= place <= self._floor.get(batch.destination, -1):
                return False
        return True

    def _raise_floors(self, unit: Unit) -> None:
        for batch in unit.batches:
            place = unit.places.get(batch.handle, -1)
            if place >= 0 and unit.alone:
                # Whatever was known before: a log may have been cut since.
                self._floor[batch.destination] = place + batch.count - 1
            elif place >= 0:
                self._raise_floor(batch.destination, place + batch.count - 1)

    def _raise_floor(self, destination: int, offset: int) -> None:
        self._floor[destination] = max(self._floor.get(destination, -1), offset)

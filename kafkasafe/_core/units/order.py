"""In which order units are appended and committed, on each of their lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kafkasafe._core.units.terms import GroupPartition, Line, Phase, Unit

__all__ = ["Order"]


class Order:
    """Units in line, and what is known to stand in the logs."""

    def __init__(self) -> None:
        self._lines: dict[Line, deque[Unit]] = {}
        """By destination or group partition, units in order, until they are known to be committed, or refused."""
        self._bare: deque[Unit] = deque()
        """Those that have neither batches nor offsets."""
        self._floor: dict[int, int] = {}
        """By destination, the last offset of what is committed (inclusive)."""
        self._broken: dict[GroupPartition, int] = {}
        """The newest reading of which a unit was dropped: whatever is accepted of it from now on is dropped, too."""
        self._reached: dict[GroupPartition, tuple[int, int, int]] = {}
        """What was committed last: the offset, its reading, and the newest reading that had begun by then."""

    def _line(self, line: Line) -> deque[Unit]:
        return self._lines.setdefault(line, deque())

    def _is_first(self, unit: Unit, lines: Iterable[Line]) -> bool:
        return all(self._lines[line][0] is unit for line in lines)

    def _leave(self, unit: Unit) -> None:
        for at in unit.lines:
            line = self._lines.get(at)
            if line is not None and unit in line:
                line.remove(unit)
                if not line:
                    del self._lines[at]
        for each in unit.each:
            if each in self._bare:
                self._bare.remove(each)

    def _is_next(self, unit: Unit, line: Line) -> bool:
        for other in self._lines[line]:
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

    def _is_broken(self, unit: Unit) -> bool:
        """It is accepted now, and goes on from a unit that was dropped."""
        return any(
            line in self._broken and unit.reading(line).number <= self._broken[line]
            for line in unit.group_lines
        )

    def _is_superseded(self, unit: Unit) -> bool:
        """The group was moved by another reading after the unit's began, and past where that one started.

        1. A consumer without a group's generation (`assign`) ends, and a unit of it with records 0 to 9 waits in the
        spool. 2. The consumer of the next incarnation is given the group's offset, 0, and processes the same records.
        3. The unit of before is committed: the group is at 10. 4. The unit of the second consumer comes. It is not
        committed, or records 0 to 9 would be in the output twice.
        """
        for line in unit.group_lines:
            reading = unit.reading(line)
            if line in self._reached:
                offset, number, newest = self._reached[line]
                if number != reading.number <= newest and reading.start < offset:
                    return True
        return False

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

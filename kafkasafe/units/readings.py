"""Units of a consumer's readings go on from one another: which are broken off, and which come too late."""

from __future__ import annotations

from kafkasafe.units.terms import GroupPartition
from kafkasafe.units.unit import Transaction, Unit

__all__ = ["Break", "ReadingOrder"]

Break = dict[GroupPartition, tuple[int, int]]
"""By group partition: the newest reading of which a unit was dropped, and the number of the first such unit."""


class ReadingOrder:
    """What became of the readings of consumers."""

    def __init__(self) -> None:
        self._broken: dict[GroupPartition, int] = {}
        """The newest reading of which a unit was dropped: whatever is accepted of it from now on is dropped, too."""
        self._reached: dict[GroupPartition, tuple[int, int, int]] = {}
        """What was committed last: the offset, its reading, and the newest reading that had begun by then."""

    def is_broken(self, unit: Unit) -> bool:
        """It is accepted now, and goes on from a unit that was dropped."""
        return any(
            line in self._broken and unit.reading(line).number <= self._broken[line]
            for line in unit.group_lines
        )

    def is_superseded(self, unit: Unit) -> bool:
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

    def reach(self, transaction: Transaction, newest: int) -> None:
        """Its offsets are committed; `newest` is the number of the reading that began last."""
        for each in transaction.offsets:
            for at in each.positions:
                line = each.group, at.topic, at.partition
                self._reached[line] = at.offset, transaction.reading(line).number, newest

    def break_off(self, unit: Unit, broken: Break) -> None:
        """It was dropped; what is accepted later of its readings is as well."""
        for line in unit.group_lines:
            mine = unit.reading(line).number
            reading, number = broken.get(line, (mine, unit.number))
            broken[line] = max(reading, mine), min(number, unit.number)
            self._broken[line] = max(self._broken.get(line, mine), broken[line][0])

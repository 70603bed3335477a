"""Decides which units (atomic batches) are dropped because of the reading (a consumer's run) to which they belong.

A reading is one run of a consumer through a partition, and each unit of a reading begins at the offset where the
previous unit ended. So a reading is broken off when one of its units is dropped: the later units are dropped, too. A
unit is superseded when a unit of another reading has already committed the results of the same input.
"""

from __future__ import annotations

from kafkasafe.units.terms import GroupPartition
from kafkasafe.units.unit import Transaction, Unit

Break = dict[GroupPartition, tuple[int, int]]
"""For each group partition, two numbers: the number of the newest reading in which a unit was dropped, and the lowest
number of a dropped unit (`Unit.number`).
"""


class ReadingOrder:
    """Remembers in which readings (runs of consumers) a unit was dropped, and how far committed units moved each
    group's offsets.
    """

    def __init__(self) -> None:
        self._broken: dict[GroupPartition, int] = {}
        """For each group partition: the number of the newest reading in which a unit was dropped. A unit that is
        accepted later is dropped, too, unless it belongs to a newer reading.
        """
        self._reached: dict[GroupPartition, tuple[int, int, int]] = {}
        """For each group partition, three numbers: the offset that was committed last, the number of the reading whose
        unit committed it, and the number of the newest reading at that time.
        """

    def is_broken(self, unit: Unit) -> bool:
        """Whether to drop a newly accepted unit, because a unit of the same reading or of a newer one was dropped."""
        return any(
            line in self._broken and unit.reading(line).number <= self._broken[line]
            for line in unit.group_lines
        )

    def is_superseded(self, unit: Unit) -> bool:
        """Whether another reading (a consumer's run) has already processed and committed this unit's input.

        This is so if, after this unit's reading began, a unit of another reading moved the group's committed offset
        past the offset where this unit's reading began. An example:

        1. A consumer uses `assign`, so it has no generation. The consumer is closed while its first unit, with records
           0 to 9, waits in the spool.
        2. The consumer of the next incarnation gets the group's offset, 0, and processes the same records.
        3. The first unit is committed, so the group's offset is 10.
        4. The second consumer's unit is accepted. If it were also committed, the output would have the results of
           records 0 to 9 twice.
        """
        for line in unit.group_lines:
            reading = unit.reading(line)
            if line in self._reached:
                offset, number, newest = self._reached[line]
                if number != reading.number <= newest and reading.start < offset:
                    return True
        return False

    def reach(self, transaction: Transaction, newest: int) -> None:
        """Note the committed offsets of a transaction. `newest` is the number of the newest reading."""
        for each in transaction.offsets:
            for at in each.positions:
                line = each.group, at.topic, at.partition
                self._reached[line] = at.offset, transaction.reading(line).number, newest

    def break_off(self, unit: Unit, broken: Break) -> None:
        """Note that a unit is dropped. From now on, `is_broken` is true for each new unit that moves the same offset of
        the group, and belongs to the same reading or to an older one.
        """
        for line in unit.group_lines:
            mine = unit.reading(line).number
            reading, number = broken.get(line, (mine, unit.number))
            broken[line] = max(reading, mine), min(number, unit.number)
            self._broken[line] = max(self._broken.get(line, mine), broken[line][0])

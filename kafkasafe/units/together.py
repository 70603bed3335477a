"""Decides which units share a transaction."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Final

from kafkasafe import marks as m
from kafkasafe.units.order import Lines
from kafkasafe.units.terms import Grant, GroupPartition, Line, Reading
from kafkasafe.units.unit import Entry, Transaction, TransactionalId, Unit

MOST: Final = 128
"""Largest number of units that share a transaction."""
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Largest total size of units that share a transaction. The size is limited because the engine copies all of these
units to send them, and prepares all of them again after a failure.
"""
_FEWER_BITS: Final = 3
"""After a failure, the number of units per transaction is divided by eight: it is shifted right by this many bits."""


class Sharing:
    """Chooses the units that share a transaction.

    Args:
        lines: The order of units.
        most: Largest number of units that share a transaction.
    """

    def __init__(self, lines: Lines, most: int) -> None:
        self._lines = lines
        self._most = most

    def gather(self, unit: Unit, fits: Callable[[Unit], bool]) -> list[Unit]:
        """`unit`, and the units directly after it that may share its transaction, in order.

        Args:
            unit: The next unit; all earlier units of the same partitions and group offsets have begun.
            fits: Returns whether a unit could begin if it were its turn.
        """
        found = [unit]
        most = _fellows(unit, self._most)
        if most == 1:
            return found
        room = _MOST_BYTES - _size(unit)
        members = _Members(unit)
        lines: dict[Line, Iterator[Entry]] = {}
        heads: dict[Line, Entry | None] = {}
        ahead: set[Entry] = set()
        for at in unit.lines:
            lines[at] = self._lines.at(at)
            while (each := next(lines[at])) is not unit:
                ahead.add(each)
            heads[at] = next(lines[at], None)
        while len(found) < most:
            heads_left = [head for head in heads.values() if head is not None]
            if not heads_left:
                break
            other = min(heads_left, key=lambda head: head.number)
            fellows = _fellows(other, self._most) if isinstance(other, Unit) else 0
            if (
                isinstance(other, Unit)
                and _size(other) <= room
                and len(found) < fellows
                and members.admit(other)
                and fits(other)
                # In each line (partition or group offset) that `other` shares with the found units, `other` comes
                # directly after them. In its other lines, `other` waits only for entries for which the first unit also
                # waits.
                and all(
                    heads[at] is other if at in heads else self._is_right_after(other, at, ahead)
                    for at in other.lines
                )
            ):
                found.append(other)
                members.add(other)
                most = min(most, fellows)
                room -= _size(other)
                for at in other.lines:
                    if at not in lines:
                        lines[at] = self._lines.at(at)
                        while next(lines[at]) is not other:
                            pass
                    heads[at] = next(lines[at], None)
                continue
            for at, head in heads.items():
                if head is other:
                    heads[at] = None
        return found

    def _is_right_after(self, other: Unit, line: Line, ahead: Container[Entry]) -> bool:
        """Whether all entries before the unit `other` in this line are in `ahead`."""
        return all(
            each in ahead
            for each in itertools.takewhile(lambda each: each is not other, self._lines.at(line))
        )


def transaction_of(units: Sequence[Unit], tid: TransactionalId, grant: Grant) -> Transaction:
    """Make the transaction of these units. `Lines.unite` then replaces the units in the lines with the transaction."""
    if len(units) == 1:
        [unit] = units
        offsets, readings, batches = unit.offsets, unit.readings, unit.batches
    else:
        offsets = _newest_offsets(units)
        readings = {line: reading for each in units for line, reading in each.readings.items()}
        batches = [batch for each in units for batch in each.batches]
    return Transaction(tuple(units), tid, grant, offsets, readings, batches, units[0].phase)


class _Members:
    """For each consumer group in a transaction: the member that commits the offsets, and the readings (runs of
    consumers) from which the offsets come.

    All offsets that a transaction commits for a group must come from the same member, in the same generation.
    """

    def __init__(self, unit: Unit) -> None:
        self._of_groups: dict[str, tuple[str, int, str | None]] = {}
        self._readings: dict[GroupPartition, Reading] = {}
        self.add(unit)

    def admit(self, unit: Unit) -> bool:
        return all(
            self._of_groups.get(each.group, _identity(each)) == _identity(each) for each in unit.offsets
        ) and all(
            self._readings.get(line, unit.reading(line)) == unit.reading(line) for line in unit.group_lines
        )

    def add(self, unit: Unit) -> None:
        self._of_groups.update((each.group, _identity(each)) for each in unit.offsets)
        self._readings.update((line, unit.reading(line)) for line in unit.group_lines)


def _identity(offsets: m.GroupOffsets) -> tuple[str, int, str | None]:
    return offsets.member_id, offsets.generation_id, offsets.group_instance_id


def _newest_offsets(units: Sequence[Unit]) -> tuple[m.GroupOffsets, ...]:
    """The offsets of all units. If several units move the same offset of a group, the last unit's offset counts."""
    newest: dict[str, m.GroupOffsets] = {}
    positions: dict[str, dict[tuple[str, int], m.Position]] = {}
    for each in units:
        for offsets in each.offsets:
            newest[offsets.group] = offsets
            of_group = positions.setdefault(offsets.group, {})
            of_group.update({(at.topic, at.partition): at for at in offsets.positions})
    return tuple(
        dataclasses.replace(offsets, positions=tuple(positions[group].values()))
        for group, offsets in newest.items()
    )


def _fellows(unit: Unit, most: int) -> int:
    """Return how many units may be in one transaction with this unit, this unit included.

    A unit with a user's transactional id is alone in its transaction. After each failure, the number of units per
    transaction is divided by eight:

    1. 128 units share a transaction. A broker repeatedly refuses a batch of one of these units.
    2. Then 16 units share a transaction, then 2 units, and then each unit is alone. So the engine finds the unit whose
       batch is refused.
    3. After a failure with another cause, such as a broker's crash, the next transaction still commits 16 units. If
       each failure reduced a transaction to one unit, occasional failures would make the delivery of a backlog very
       slow.
    """
    if unit.transactional_id or not (unit.batches or unit.group_lines):
        return 1
    return max(1, most >> (_FEWER_BITS * unit.tries))


def _size(unit: Unit) -> int:
    return sum(batch.size_bytes for batch in unit.batches)

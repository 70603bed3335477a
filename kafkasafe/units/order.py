"""The unfinished units, and the order in which they are appended and committed for each partition or group offset."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from kafkasafe import marks as m
from kafkasafe.units.terms import GroupPartition, Line, Phase, Reading
from kafkasafe.units.unit import Entry, Transaction, Unit


class Lines:
    """Holds the unfinished units by id, their order in each line, and the last committed offset of each log.

    In each line, the units of a transaction are adjacent, so a single entry, the transaction, takes their place. The
    rules for the order treat this entry like a unit.

    Attributes:
        by_id: Maps a unit id to the unfinished unit, in the order in which the units were accepted.
        batchless: The unfinished units that have no batches. The spool must keep the segments with the marks of these
            units, just as it keeps segments with waiting batches.
    """

    def __init__(self) -> None:
        self.by_id: dict[bytes, Unit] = {}
        self.batchless: dict[bytes, Unit] = {}
        self._numbers = 0
        self._lines: dict[Line, deque[Entry]] = {}
        """By destination or group partition: the units and transactions that are neither committed nor refused, in
        order.
        """
        self._bare: deque[Unit] = deque()
        """Units that have neither batches nor offsets."""
        self._floor: dict[int, int] = {}
        """Maps a destination to its last committed offset (inclusive)."""

    # -- units -----------------------------------------------------------------------------------------------------

    def make(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading],
    ) -> Unit:
        """Make a new unit after all others. Once the unit has its batches, the caller calls `join`."""
        self._numbers += 1
        unit = Unit(self._numbers, unit_id, transactional_id, offsets, dict(readings))
        self.by_id[unit_id] = unit
        return unit

    def pop(self, unit_id: bytes) -> Unit | None:
        """Remove a unit whose fate is durable."""
        self.batchless.pop(unit_id, None)
        return self.by_id.pop(unit_id, None)

    @property
    def all(self) -> list[Unit]:
        """All unfinished units, in the order in which they were accepted. Any thread may call it."""
        return list(self.by_id.values())

    def renumber(self) -> list[Unit]:
        """Number the units of a lane's log in the order in which they were accepted. Returns the units.

        The log may have another order: a unit whose batches were divided may come after units that were accepted later.
        """
        ordered = sorted(self.by_id.values(), key=lambda unit: unit.accepted_at)
        self.by_id = {unit.unit_id: unit for unit in ordered}
        for number, unit in enumerate(ordered, 1):
            unit.renumber(number)
        return ordered

    # -- places in lines -------------------------------------------------------------------------------------------

    def join(self, unit: Unit) -> None:
        """Add an accepted unit at the end of its lines. The unit must already have all of its batches."""
        if not unit.batches:
            self.batchless[unit.unit_id] = unit
        lines = unit.lines
        for line in lines:
            self._lines.setdefault(line, deque()).append(unit)
        if not lines:
            self._bare.append(unit)

    def leave(self, entry: Entry) -> None:
        """Remove an entry that is committed or refused."""
        for at in entry.lines:
            line = self._lines.get(at)
            if line is not None and entry in line:
                line.remove(entry)
                if not line:
                    del self._lines[at]
        if isinstance(entry, Unit) and entry in self._bare:
            self._bare.remove(entry)

    def move(self, unit: Unit, before: Iterable[int]) -> None:
        """Update the destinations' lines after a batch of the unit was divided. In each line, the unit remains before
        all units that were accepted later.
        """
        entry = unit.transaction or unit
        former, now = set(before), unit.destinations
        for destination in former.difference(now):
            self._lines[destination].remove(entry)
        for destination in now:
            if destination not in former:
                line = self._lines.setdefault(destination, deque())
                later = sum(1 for other in line if other.number > unit.number)
                line.insert(len(line) - later, entry)

    def unite(self, transaction: Transaction) -> None:
        """In each line, replace the units of a transaction with the transaction."""
        for at in transaction.lines:
            line = self._lines[at]
            mine_here = [each for each in transaction.units if at in each.lines]
            line[line.index(mine_here[0])] = transaction
            for each in mine_here[1:]:
                line.remove(each)

    def part(self, transaction: Transaction) -> None:
        """In each line, replace a transaction with its units."""
        for at in transaction.lines:
            line = self._lines[at]
            index = line.index(transaction)
            del line[index]
            for each in reversed(transaction.units):
                if at in each.lines:
                    line.insert(index, each)

    def at(self, line: Line) -> Iterator[Entry]:
        """The entries of a line, in order."""
        return iter(self._lines[line])

    def from_end(self, line: Line) -> Iterator[Entry]:
        """The entries of a line in reverse order; no entries if the line does not exist."""
        return reversed(self._lines.get(line, ()))

    def __len__(self) -> int:
        """The number of lines."""
        return len(self._lines)

    # -- whose turn it is ------------------------------------------------------------------------------------------

    def next_units(self) -> list[Unit]:
        """Waiting units that may begin now, in the order in which they were accepted."""
        found: dict[int, Unit] = {}
        for line in self._lines.values():
            for unit in line:
                if isinstance(unit, Unit) and unit.phase is Phase.WAITING:
                    found[unit.number] = unit
                    break
                if unit.phase in {Phase.ASKING, Phase.REFUSED}:
                    break
        for unit in self._bare:
            if unit.phase is Phase.WAITING:
                found[unit.number] = unit
        return [
            unit for _, unit in sorted(found.items()) if all(self._is_next(unit, line) for line in unit.lines)
        ]

    def _is_next(self, unit: Unit, line: Line) -> bool:
        for other in self._lines[line]:
            if other is unit:
                return True
            if other.phase in {Phase.WAITING, Phase.ASKING, Phase.REFUSED}:
                return False
        return False

    def is_first(self, entry: Entry, lines: Iterable[Line]) -> bool:
        """Whether all entries before `entry` in these lines are committed or refused."""
        return all(self._lines[line][0] is entry for line in lines)

    def all_issued_before(self, transaction: Transaction) -> bool:
        """Whether only `issued` transactions are before this transaction in the lines of its destinations: the engine
        has got all of their batches to send.
        """
        return all(self._issued_before(transaction, destination) for destination in transaction.destinations)

    def _issued_before(self, transaction: Transaction, destination: int) -> bool:
        for other in self._lines[destination]:
            if other is transaction:
                return True
            if not (isinstance(other, Transaction) and other.issued):
                return False
        return True

    # -- the logs --------------------------------------------------------------------------------------------------

    def in_order(self, transaction: Transaction) -> bool:
        """Whether, in each log, the transaction's batches come after the batches of all earlier units."""
        places = transaction.places
        for batch in transaction.batches:
            place = places.get(batch.handle, -1)
            if 0 <= place <= self._floor.get(batch.destination, -1):
                return False
        return True

    def raise_floors(self, entry: Entry, *, alone: bool) -> None:
        """Note that an entry is committed. `alone` says that all earlier entries were committed or refused before the
        entry was appended.
        """
        places = entry.places
        for batch in entry.batches:
            place = places.get(batch.handle, -1)
            if place >= 0 and alone:
                # Set the offset even if it is lower than before, because the log may have been truncated.
                self._floor[batch.destination] = place + batch.count - 1
            elif place >= 0:
                self.raise_floor(batch.destination, place + batch.count - 1)

    def raise_floor(self, destination: int, offset: int) -> None:
        """Note that the log contains committed batches up to this offset, inclusive."""
        self._floor[destination] = max(self._floor.get(destination, -1), offset)

    def forget(self, destination: int) -> None:
        """Forget the destination's last committed offset, because later batches go to another log."""
        self._floor.pop(destination, None)

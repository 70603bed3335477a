"""Groups of batches and marks to write together, and their consequences once they are durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch, Fate

__all__ = [
    "Begun",
    "Consequence",
    "Ended",
    "Identified",
    "Persist",
    "SilenceBroken",
    "UnitEnded",
    "UnitGroup",
    "UnitStaged",
    "unit_marks",
]


@dataclass(frozen=True, slots=True)
class Ended:
    """The mark with a batch's fate is durable.

    Attributes:
        batch: The batch.
        fate: How it ended.
        kept: The batch stays in the spool: it was refused, and its parts take its place in the order.
    """

    batch: Batch
    fate: Fate
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """The baseline of a partition is durable: its end offset before the first batch of this lane.

    Attributes:
        destination: Destination number.
    """

    destination: int


@dataclass(frozen=True, slots=True)
class Identified:
    """The ids of already durable batches are durable too.

    Attributes:
        destination: Destination number.
        batches: Each with the id it was given.
    """

    destination: int
    batches: tuple[tuple[Batch, BatchId], ...]


@dataclass(frozen=True, slots=True)
class UnitStaged:
    """The mark that all units of a transaction are appended is durable."""

    transaction: u.Transaction


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """The fate of a unit is durable."""

    unit: u.Unit
    fate: Fate


@dataclass(frozen=True, slots=True)
class SilenceBroken:
    """The spool no longer contains a valid mark that this lane's owner has stopped sending."""


Consequence = Ended | Begun | Identified | SilenceBroken | UnitStaged | UnitEnded


def unit_marks(unit: u.Unit, first: int, batches: int) -> list[m.Mark]:
    """The marks with which a group declares batches of a unit.

    Args:
        unit: The unit.
        first: Index of the first of these batches in the group's manifest.
        batches: How many of these batches there are.
    """
    marks: list[m.Mark] = [m.Unit(unit.unit_id, first, batches, unit.transactional_id, unit.offsets)]
    if unit.recorded:
        marks.append(m.Read(unit.unit_id, unit.recorded))
    return marks


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """One atomic group: a unit with all its batches, which may be none."""

    unit: u.Unit
    batches: tuple[Batch, ...]
    handle: int
    """The journal accepted batches with a lower handle before this unit."""

    @property
    def marks(self) -> list[m.Mark]:
        """The marks that make the batches a unit."""
        return unit_marks(self.unit, 0, len(self.batches))


@dataclass(slots=True)
class Persist:
    """Groups to write and make durable together: groups of batches, and one group for each new unit.

    Attributes:
        batches: To be written, in this order.
        marks: To be written before the batches.
        atomic: Write all or nothing.
        after: The consequences once the groups are durable; `persisted()` applies them.
        units: New units, each in a separate group.
    """

    batches: list[Batch] = field(default_factory=list)
    marks: list[m.Mark] = field(default_factory=list)
    atomic: bool = False
    after: list[Consequence] = field(default_factory=list)
    units: list[UnitGroup] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.batches or self.marks or self.after or self.units)

    @property
    def runs(self) -> list[tuple[UnitGroup | None, list[Batch]]]:
        """Batches and units in the order in which the journal accepted them, which is also the order on disk."""
        if not self.units:
            return [(None, self.batches)] if self.batches else []
        runs: list[tuple[UnitGroup | None, list[Batch]]] = []
        batches, at = self.batches, 0
        for group in self.units:
            # A divided batch's parts are written as they are, before all later batches.
            begin = at
            while at < len(batches) and (self.atomic or batches[at].handle < group.handle):
                at += 1
            if at > begin:
                runs.append((None, batches[begin:at]))
            runs.append((group, list(group.batches)))
        if at < len(batches):
            runs.append((None, batches[at:]))
        return runs

    def keep_whole(self) -> None:
        """Make the group atomic."""
        self.atomic = True

    def leave_to(self, rest: Persist) -> None:
        """Keep only the division in this group; leave other batches, and units, to the next group.

        The shell may write decisions before batches that a failing disk did not take: a batch in the same group would
        overtake those before it.
        """
        parts: list[Batch] = []
        places: dict[int, int] = {}
        for index, mark in enumerate(self.marks):
            if isinstance(mark, m.Replaced):
                # Several marks name the same merged batch.
                place = places.setdefault(mark.first_child, len(parts))
                if place == len(parts):
                    parts += self.batches[mark.first_child : mark.first_child + mark.children]
                self.marks[index] = m.Replaced(mark.position, place, mark.children)
            elif isinstance(mark, m.Unit):
                # This mark follows the REPLACED mark of the same batches.
                self.marks[index] = replace(mark, first=len(parts) - mark.batches)
        apart = {batch.handle for batch in parts}
        rest.batches.extend(batch for batch in self.batches if batch.handle not in apart)
        rest.units.extend(self.units)
        self.units = []
        self.batches[:] = parts

    def keep_rest(self, rest: Sequence[Persist]) -> None:
        """Keep only these parts of the group: the others are durable."""
        self.marks = [mark for part in rest for mark in part.marks]
        self.after = [each for part in rest for each in part.after]
        self.batches = [batch for part in rest for batch in part.batches]
        self.units = [unit for part in rest for unit in part.units]

    def keep_batches(self, first: int) -> None:
        """Keep only the batches from this index on: the others, and all decisions, are durable."""
        del self.batches[:first]
        self.marks, self.after = [], []

    def leave_out_void(self) -> None:
        """Leave out units that ended before they were written."""
        if any(group.unit.void for group in self.units):
            self.units = [group for group in self.units if not group.unit.void]

    @property
    def everything(self) -> list[Batch]:
        """All batches, in the order in which they are written."""
        return [batch for _, run in self.runs for batch in run]

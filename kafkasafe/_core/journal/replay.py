"""What the marks of a group say about the batches after them, while the log of earlier incarnations is read.

What follows from it is decided in `recovery`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.journal.states import Batch

__all__ = ["Replay"]


@dataclass(slots=True)
class Replay:
    """The group that is being read, and what of the log concerns all groups.

    Attributes:
        index: Of the next batch in the group.
        blind_before: A group with its marks is lost at this position: neither an id nor its absence says of an earlier
            batch whether it was sent. -1: nothing is lost.
        quiet: The last group of the incarnation before said when all its requests are dead; None where it did not, or
            something was sent since.
    """

    index: int = 0
    blind_before: int = -1
    quiet: m.Quiet | None = None
    _parents: list[tuple[Batch, range]] = field(default_factory=list, init=False)
    _origins: list[tuple[int, range]] = field(default_factory=list, init=False)
    _units: list[tuple[u.Unit, range]] = field(default_factory=list, init=False)
    _given: dict[int, tuple[tuple[int, int, int], ...]] = field(default_factory=dict, init=False)
    _moves: tuple[m.Move, ...] = field(default=(), init=False)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def replace(self, parent: Batch | None, origin: int, children: range) -> None:
        """These batches of the group replace one, whose records were first written at `origin`; None: it is gone."""
        self._origins.append((origin, children))
        if parent is not None:
            self._parents.append((parent, children))

    def origin_from(self, first: int, default: int) -> int:
        """Where the records of the batches from this one on were first written."""
        return next((at for at, children in self._origins if children.start == first), default)

    def divides_unit(self, first: int) -> bool:
        """Whether the batches from this one on are parts of a batch of a unit."""
        return any(parent.unit is not None and children.start == first for parent, children in self._parents)

    def read_unit(self, unit: u.Unit, members: range) -> None:
        """These batches of the group are of this unit."""
        self._units.append((unit, members))

    def choose(self, index: int, runs: tuple[tuple[int, int, int], ...]) -> None:
        """Of these records of a batch the partition was given."""
        self._given[index] = runs

    def move(self, moves: tuple[m.Move, ...]) -> None:
        """The batches of the group are copies."""
        self._moves = moves

    def announce(self, quiet: m.Quiet) -> None:
        """An incarnation says when its requests are dead, or takes that back."""
        self.quiet = quiet if quiet.until_ms >= 0 else None

    def lose(self, position: int) -> None:
        """The group at this position is damaged."""
        self.blind_before = position

    @property
    def is_blind(self) -> bool:
        """Whether marks are lost."""
        return self.blind_before >= 0

    # -- the next batch ------------------------------------------------------------------------------------------------

    @property
    def moved(self) -> m.Move | None:
        """Which batch the next one is a copy of."""
        return self._moves[self.index] if self.index < len(self._moves) else None

    @property
    def unit(self) -> u.Unit | None:
        """The unit that the next batch is of."""
        return next((unit for unit, members in self._units if self.index in members), None)

    @property
    def parent(self) -> Batch | None:
        """The batch that the next one is a part of."""
        return next((parent for parent, children in self._parents if self.index in children), None)

    @property
    def origin(self) -> int:
        """Where the records of the next batch were first written; -1: nowhere else."""
        return next((at for at, children in self._origins if self.index in children), -1)

    @property
    def given(self) -> tuple[tuple[int, int, int], ...] | None:
        """Of which records of the next batch the partition was given."""
        return self._given.get(self.index)

    def go_on(self) -> None:
        """The next batch is read, or cannot be."""
        self.index += 1

    # -- the end of a group --------------------------------------------------------------------------------------------

    @property
    def parents(self) -> Sequence[Batch]:
        """The batches that those of the group replace."""
        return [parent for parent, _ in self._parents]

    def end_group(self) -> None:
        """Another group follows."""
        self._parents.clear()
        self._origins.clear()
        self._units.clear()
        self._given.clear()
        self._moves = ()
        self.index = 0

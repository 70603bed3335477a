"""Holds the data that the marks (entries) of a spool group contain about the group's batches. Recovery reads the
batches after the marks.

`recovery` draws the conclusions from the marks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.journal.batch import Batch


class ReadPlace(NamedTuple):
    """The data that the marks (entries) of a spool group contain about one batch of the group.

    Attributes:
        moved: The move that copied the batch to its current position; None if the batch is not a copy.
        unit: The batch's unit; None if the batch belongs to no unit.
        parent: The batch that this batch replaces, wholly or partly; None if this batch replaces none.
        origin: Position where the batch's records were first written; -1: at the batch's current position.
        given: The partitions that the caller gave for the batch's records, with one entry for each run of consecutive
            records: see `marks.Given.runs`.
    """

    moved: m.Move | None
    unit: u.Unit | None
    parent: Batch | None
    origin: int
    given: tuple[tuple[int, int, int], ...] | None


@dataclass(slots=True)
class Replay:
    """The data in the marks of the current group, and facts from the lane's log that concern more than one group.

    Attributes:
        index: Index of the next batch in the group.
        blind_before: Position of the last spool group that is lost together with its marks; -1 if no group is lost. A
            lost mark may have changed the ids of batches before this position, so their ids do not show whether they
            were sent.
        quiet: The QUIET mark of the previous incarnation, which says until when brokers may still append its requests.
            None if the incarnation wrote no QUIET mark, or revoked it.
        parents: The batches that the spool group replaces, each with the indexes of its replacements.
    """

    index: int = 0
    blind_before: int = -1
    quiet: m.Quiet | None = None
    parents: list[tuple[Batch, range]] = field(default_factory=list, init=False)
    _origins: list[tuple[int, range]] = field(default_factory=list, init=False)
    _units: list[tuple[u.Unit, range]] = field(default_factory=list, init=False)
    _given: dict[int, tuple[tuple[int, int, int], ...]] = field(default_factory=dict, init=False)
    _moves: tuple[m.Move, ...] = field(default=(), init=False)

    # -- marks ---------------------------------------------------------------------------------------------------------

    def replace(self, parent: Batch | None, origin: int, children: range) -> None:
        """Note that these batches of the spool group replace the batch `parent`, whose records were first written at
        `origin`.

        `parent` is None if the spool has deleted the replaced batch.
        """
        self._origins.append((origin, children))
        if parent is not None:
            self.parents.append((parent, children))

    def origin_from(self, first: int, default: int) -> int:
        """The position at which the records of some parts were first written. `first` is the index of the first part in
        the spool group. Returns `default` if no parts begin there.
        """
        return next((at for at, children in self._origins if children.start == first), default)

    def divides_unit(self, first: int) -> bool:
        """Whether the parts of a divided batch begin at this index, and the divided batch belongs to a unit (atomic
        batch).
        """
        return any(parent.unit is not None and children.start == first for parent, children in self.parents)

    def read_unit(self, unit: u.Unit, members: range) -> None:
        """Note that these batches of the spool group belong to this unit (atomic batch)."""
        self._units.append((unit, members))

    def choose(self, index: int, runs: tuple[tuple[int, int, int], ...]) -> None:
        """Store the partitions that the caller gave for a batch's records: one for each run of consecutive records."""
        self._given[index] = runs

    def move(self, moves: tuple[m.Move, ...]) -> None:
        """Note that the batches of the spool group are copies."""
        self._moves = moves

    def announce(self, quiet: m.Quiet) -> None:
        """Note a QUIET mark. The mark either says until when brokers may still append an incarnation's requests, or
        revokes an earlier QUIET mark.
        """
        self.quiet = quiet if quiet.until_ms >= 0 else None

    def lose(self, position: int) -> None:
        """Note that the spool group at this position is damaged."""
        self.blind_before = position

    @property
    def is_blind(self) -> bool:
        """Whether marks are lost."""
        return self.blind_before >= 0

    # -- the next batch ------------------------------------------------------------------------------------------------

    def take(self) -> ReadPlace:
        """Return the marks' data about the next batch, and advance to the following batch."""
        index = self.index
        self.index += 1
        return ReadPlace(
            self._moves[index] if index < len(self._moves) else None,
            next((unit for unit, members in self._units if index in members), None),
            next((parent for parent, children in self.parents if index in children), None),
            next((at for at, children in self._origins if index in children), -1),
            self._given.get(index),
        )

    # -- the end of a group --------------------------------------------------------------------------------------------

    def end_group(self) -> None:
        """Reset the state of the group."""
        self.parents.clear()
        self._origins.clear()
        self._units.clear()
        self._given.clear()
        self._moves = ()
        self.index = 0

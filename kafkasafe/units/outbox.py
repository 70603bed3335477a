"""Keeps decisions about units until they are carried out."""

from __future__ import annotations

from collections.abc import Iterable

from kafkasafe import marks as m
from kafkasafe.units.requests import Action
from kafkasafe.units.terms import Member
from kafkasafe.units.unit import Transaction, Unit


class UnitOutbox:
    """Holds requests and marks, and the units and transactions that continue once the marks are durable. Also remembers
    whether further decisions may be possible.

    Attributes:
        staging: Transactions whose STAGED marks `take_marks` returns next.
        ending: Units whose ENDED mark `take_marks` returns next.
        too_large: Units with a batch that is too large for the cluster. The engine divides the batch, and the unit is
            prepared again.
    """

    def __init__(self) -> None:
        self.staging: list[Transaction] = []
        self.ending: list[Unit] = []
        self.too_large: list[tuple[Unit, Member]] = []
        self._actions: list[Action] = []
        self._marks: list[m.Mark] = []
        self._begun_marks: list[m.Mark] = []
        """BEGUN marks. No step waits until a BEGUN mark is durable, so the journal writes BEGUN marks only together
        with other marks.
        """
        self._changed = False

    # -- decisions -------------------------------------------------------------------------------------------------

    def ask(self, action: Action) -> None:
        """Add a request or another action."""
        self._actions.append(action)

    def begin(self, mark: m.Begun) -> None:
        """Add a BEGUN mark."""
        self._begun_marks.append(mark)

    def stage(self, transaction: Transaction, marks: Iterable[m.Staged]) -> None:
        """Add the STAGED marks of a transaction that is completely appended."""
        self._marks.extend(marks)
        self.staging.append(transaction)

    def end(self, unit: Unit, outcome: m.UnitOutcome, reason: str) -> None:
        """Note the fate of a unit, and add its ENDED mark if the unit was written."""
        if unit.durable:
            self._marks.append(m.Ended(unit.unit_id, outcome, reason))
        self.ending.append(unit)

    def divide(self, unit: Unit, batch: Member) -> None:
        """Add a batch that is too large for the cluster."""
        self.too_large.append((unit, batch))

    # -- taken by the engine ----------------------------------------------------------------------------------------

    def take_actions(self) -> list[Action]:
        """Return the actions that are due, each only once."""
        actions, self._actions = self._actions, []
        return actions

    def take_marks(self) -> list[m.Mark]:
        """Take the marks to persist now."""
        if not self._marks:
            return []
        marks = self._begun_marks + self._marks
        self._marks, self._begun_marks = [], []
        return marks

    @property
    def is_empty(self) -> bool:
        """True if there are no actions and marks, and no decision is possible until the next event."""
        return not (
            self._changed or self._actions or self._marks or self.too_large or self.staging or self.ending
        )

    # -- whether there is more to decide ---------------------------------------------------------------------------

    def change(self) -> None:
        """Note an event, after which further decisions may be possible."""
        self._changed = True

    def take_change(self) -> bool:
        """Whether `change` was called since the last call of `take_change`."""
        changed, self._changed = self._changed, False
        return changed

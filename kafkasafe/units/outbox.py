"""What has been decided about units, and is to be carried out."""

from __future__ import annotations

from collections.abc import Iterable

from kafkasafe import marks as m
from kafkasafe.units.requests import Action
from kafkasafe.units.terms import Member
from kafkasafe.units.unit import Transaction, Unit

__all__ = ["Outbox"]


class Outbox:
    """Requests, marks and what follows from those; and whether there may be more to decide.

    Attributes:
        staging: Transactions whose STAGED marks are among the marks.
        ending: Units whose ENDED mark is among the marks.
        too_large: Units of which the cluster finds a batch too large: it is divided, and all of it prepared again.
    """

    def __init__(self) -> None:
        self.staging: list[Transaction] = []
        self.ending: list[Unit] = []
        self.too_large: list[tuple[Unit, Member]] = []
        self._actions: list[Action] = []
        self._marks: list[m.Mark] = []
        self._begun_marks: list[m.Mark] = []
        """Nothing waits for them: they go to the disk with marks for which something waits."""
        self._changed = False

    # -- what is decided -------------------------------------------------------------------------------------------

    def ask(self, action: Action) -> None:
        """A request, or another thing to be done now."""
        self._actions.append(action)

    def begin(self, mark: m.Begun) -> None:
        """A BEGUN mark."""
        self._begun_marks.append(mark)

    def stage(self, transaction: Transaction, marks: Iterable[m.Staged]) -> None:
        """All of it is appended: the marks of its units."""
        self._marks.extend(marks)
        self.staging.append(transaction)

    def end(self, unit: Unit, outcome: m.UnitOutcome, reason: str) -> None:
        """The fate of a unit; one that was not written has no mark."""
        if unit.durable:
            self._marks.append(m.Ended(unit.unit_id, outcome, reason))
        self.ending.append(unit)

    def divide(self, unit: Unit, batch: Member) -> None:
        """The cluster finds this batch too large."""
        self.too_large.append((unit, batch))

    # -- what is carried out ---------------------------------------------------------------------------------------

    def take_actions(self) -> list[Action]:
        """What is to be done now; each thing is given once."""
        actions, self._actions = self._actions, []
        return actions

    def take_marks(self) -> list[m.Mark]:
        """What is to be persisted now."""
        if not self._marks:
            return []
        marks = self._begun_marks + self._marks
        self._marks, self._begun_marks = [], []
        return marks

    @property
    def is_empty(self) -> bool:
        """Nothing is to be done, written or decided until something happens."""
        return not (
            self._changed or self._actions or self._marks or self.too_large or self.staging or self.ending
        )

    # -- whether there is more to decide ---------------------------------------------------------------------------

    def change(self, *, changed: bool = True) -> None:
        """Something happened: there may be more to decide."""
        self._changed = changed

    def take_change(self) -> bool:
        """Whether something happened since this was asked last."""
        changed, self._changed = self._changed, False
        return changed

"""How far the transactions of atomic batches have come. A step that is only repeated is no progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.units import Transaction

_ATTEMPTS: Final = 3
"""The steps of so many attempts count as progress, even if an earlier attempt has come further."""


@dataclass(slots=True)
class _Known:
    """What is known about the transactions that begin with one unit.

    Attributes:
        attempt: The current attempt.
        far: How far the current attempt has come.
        furthest: How far any attempt has come.
        attempts: The number of attempts.
    """

    attempt: Transaction
    far: tuple[int, int]
    furthest: tuple[int, int]
    attempts: int = 1


class UnitProgress:
    """How far the transactions of a lane have come.

    1. An atomic batch moves the offsets of a group. The group's coordinator cannot write them for an hour.
    2. The producer gives up each attempt after a few seconds, and appends the records again in another transaction.
    3. If these repeated steps always counted as progress, a caller in `close` would wait for an hour.

    But if only new steps counted, a caller would give up a large atomic batch that failed once, near its end: appending
    its records again can take longer than the caller waits without progress. So a few attempts count.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, _Known] = {}
        """By the id of a transaction's first unit. A transaction of fewer units counts as further, because the number
        of units cannot fall for ever.
        """

    def goes_further(self, transaction: Transaction) -> bool:
        """Note how far a transaction has come. Returns whether this is progress."""
        if transaction.tid is None:
            return False  # a late answer: the transaction is over, and its units may be, too
        far = (-len(transaction.units), transaction.placed - transaction.notes_left)
        known = self._known.get(transaction.unit_id)
        if known is None:
            self._known[transaction.unit_id] = _Known(transaction, far, far)
            return True
        begins = known.attempt is not transaction
        if begins:
            known.attempt = transaction
            known.attempts += 1
        goes_on = begins or far > known.far
        known.far = far
        if far > known.furthest:
            known.furthest = far
            return True
        return goes_on and known.attempts <= _ATTEMPTS

    def end(self, unit_id: bytes) -> None:
        """Forget a unit that has ended."""
        self._known.pop(unit_id, None)

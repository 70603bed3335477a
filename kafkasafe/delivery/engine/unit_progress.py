"""How far the transactions of atomic batches have come. A step that is only repeated is no progress."""

from __future__ import annotations

from typing import Final

from kafkasafe.units import Transaction

_ATTEMPTS: Final = 3
"""The steps of so many attempts count as progress, even if an earlier attempt has come further."""


class _Attempts:
    """The transactions that begin with one unit.

    Args:
        transaction: The first attempt.
        far: How far the first attempt has come.
    """

    __slots__ = ("_current", "_far", "_furthest", "_number")

    def __init__(self, transaction: Transaction, far: tuple[int, int]) -> None:
        self._current = transaction
        self._far = self._furthest = far
        self._number = 1

    def goes_further(self, transaction: Transaction, far: tuple[int, int]) -> bool:
        """Note how far an attempt has come. Returns whether this is progress."""
        begins = transaction is not self._current
        self._number += begins
        goes_on = begins or far > self._far
        self._current, self._far = transaction, far
        if far > self._furthest:
            self._furthest = far
            return True
        return goes_on and self._number <= _ATTEMPTS


class UnitProgress:
    """How far the transactions of a lane have come.

    1. An atomic batch moves the offsets of a group. The group's coordinator cannot write them for an hour.
    2. The producer gives up each attempt after a few seconds, and appends the records again in another transaction.
    3. If these repeated steps always counted as progress, a caller in `close` would wait for an hour.

    But if only new steps counted, a caller would give up a large atomic batch that failed once, near its end: appending
    its records again can take longer than the caller waits without progress. So a few attempts count.
    """

    __slots__ = ("_attempts",)

    def __init__(self) -> None:
        self._attempts: dict[bytes, _Attempts] = {}
        """By the id of a transaction's first unit. A transaction of fewer units counts as further, because the number
        of units cannot fall for ever.
        """

    def goes_further(self, transaction: Transaction) -> bool:
        """Note how far a transaction has come. Returns whether this is progress."""
        if transaction.tid is None:
            return False  # a late answer: the transaction is over, and its units may be, too
        far = (-len(transaction.units), transaction.placed - transaction.notes_left)
        attempts = self._attempts.get(transaction.unit_id)
        if attempts is None:
            self._attempts[transaction.unit_id] = _Attempts(transaction, far)
            return True
        return attempts.goes_further(transaction, far)

    def end(self, unit_id: bytes) -> None:
        """Forget a unit that has ended."""
        self._attempts.pop(unit_id, None)

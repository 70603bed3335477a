"""How far the transactions of atomic batches have come. A step that is only repeated is no progress."""

from __future__ import annotations

from kafkasafe.units import Transaction


class UnitProgress:
    """How far the transactions of a lane have come.

    1. An atomic batch moves the offsets of a group. The group's coordinator cannot write them for an hour.
    2. The producer gives up each attempt after a few seconds, and appends the records again in another transaction.
    3. If these repeated steps counted as progress, a caller in `close` would wait for an hour.
    """

    __slots__ = ("_furthest",)

    def __init__(self) -> None:
        self._furthest: dict[bytes, tuple[int, int]] = {}
        """By the id of a transaction's first unit. A transaction of fewer units counts as further, because the number
        of units cannot fall for ever.
        """

    def goes_further(self, transaction: Transaction) -> bool:
        """Note how far a transaction has come. Returns whether no earlier attempt came so far."""
        far = (-len(transaction.units), transaction.placed - transaction.notes_left)
        former = self._furthest.get(transaction.unit_id)
        if former is not None and far <= former:
            return False
        self._furthest[transaction.unit_id] = far
        return True

    def end(self, unit_id: bytes) -> None:
        """Forget a unit that has ended."""
        self._furthest.pop(unit_id, None)

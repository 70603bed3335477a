"""The transactional ids of a lane: which one a unit gets, and how one becomes ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kafkasafe._core.units.outbox import Outbox
from kafkasafe._core.units.requests import Fence
from kafkasafe._core.units.terms import Grant
from kafkasafe._core.units.unit import Slot, Transaction, Unit

__all__ = ["EPOCH_REFUSED", "FENCED", "LAST_EPOCH", "TransactionalIds"]

FENCED: Final = frozenset({47, 90})
"""The epoch is refused: a newer one was granted, or made by a time-out."""
EPOCH_REFUSED: Final = 90
"""The one of them that a unit has which is refused for that."""
LAST_EPOCH: Final = 0x7FFF - 1
"""The one after it is never granted: a new producer id is."""


class TransactionalIds:
    """The lane's own transactional ids, and those that users gave.

    Args:
        out: Takes the requests.
        pool: How many of the lane's own there are.
    """

    def __init__(self, out: Outbox, pool: int) -> None:
        self._out = out
        self._pool = [""] * pool
        self._slots: dict[str, Slot] = {}

    def name(self, prefix: str) -> None:
        """What the lane's own transactional ids begin with."""
        self._pool = [f"{prefix}-{number}" for number in range(len(self._pool))]

    def clear(self) -> None:
        """Forget them all."""
        self._slots.clear()

    # -- which there are -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Slot:
        return self._slots.setdefault(name, Slot(name))

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    @property
    def pool(self) -> tuple[str, ...]:
        """The lane's own."""
        return tuple(self._pool)

    def is_own(self, name: str) -> bool:
        """Whether it is one of the lane's own."""
        return name in self._pool

    def granted(self, name: str) -> Grant | None:
        """What the id's holder has; None while it is not ours."""
        slot = self._slots.get(name)
        return None if slot is None else slot.grant

    @property
    def under_way(self) -> list[Transaction]:
        """Those of all ids, in order."""
        found = (slot.transaction for slot in self._slots.values() if slot.transaction is not None)
        return sorted(found, key=lambda each: each.number)

    @property
    def coming(self) -> int:
        """How many will be free when InitProducerId is answered."""
        return sum(slot.fencing and slot.transaction is None for slot in self._slots.values())

    def is_open(self, destination: int) -> bool:
        """Whether a transaction with the partition may be open, or its end is not durable."""
        return any(
            destination in slot.aborting
            or (slot.transaction is not None and destination in slot.transaction.destinations)
            for slot in self._slots.values()
        )

    def choose(self, unit: Unit) -> Slot | None:
        """An id for its transaction; None: all are taken."""
        if unit.transactional_id:
            slot = self[unit.transactional_id]
            return slot if slot.is_free else None
        free = [slot for name in self._pool if (slot := self[name]).is_free]
        ready = (slot for slot in free if slot.grant is not None and not slot.fresh)
        return next(ready, free[0] if free else None)

    # -- InitProducerId --------------------------------------------------------------------------------------------

    def fence(self, slot: Slot, *, refused: bool = False) -> None:
        """Ask for a new grant: it aborts what is open under the id, and shuts out whatever is late."""
        # Of a name that the user gave: who has taken it over since is not to be fenced in turn.
        keep = slot.former if not self.is_own(slot.transactional_id) and slot.transaction is None else None
        slot.begin_fencing()
        late = _late(slot, keep) if refused else None
        self._out.ask(Fence(slot, slot.turn, late or keep, timed_out=late is not None))

    def fence_late(self, action: Fence) -> bool:
        """Whether the coordinator is asked once more, with the epoch that a time-out gave."""
        slot = action.slot
        late = None if action.timed_out else _late(slot, action.keep)
        if late is not None:
            slot.next_turn()
            self._out.ask(Fence(slot, slot.turn, late, timed_out=True))
        return late is not None

    def may_be_anothers(self, slot: Slot) -> bool:
        """Whether a refused epoch may say that another producer has the id now.

        What an earlier incarnation staged belongs to this one all the same, which takes over what it finds.
        """
        return not self.is_own(slot.transactional_id) and not slot.fresh and slot.grant is not None


def _late(slot: Slot, keep: Grant | None) -> Grant | None:
    """The grant that a time-out made of this one, which was refused; None where it may be another's.

    The coordinator aborts what is open for too long under the next epoch. Who takes over what is open gets the one
    after that, so nobody was ever granted the next one, and it is current until somebody has taken over. Of what
    was not open that is not so. With protocol 2 the grant itself is taken as well.
    """
    if keep is None or not slot.opened or keep.protocol >= 2 or keep.epoch >= LAST_EPOCH:
        return None
    return Grant(keep.producer_id, keep.epoch + 1, keep.protocol)

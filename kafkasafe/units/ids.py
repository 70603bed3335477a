"""The transactional ids of a lane: which one a unit gets, and how one becomes ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kafkasafe.units.outbox import Outbox
from kafkasafe.units.requests import InitProducerId
from kafkasafe.units.terms import Grant
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

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
        self._known: dict[str, TransactionalId] = {}

    def name(self, prefix: str) -> None:
        """What the lane's own transactional ids begin with."""
        self._pool = [f"{prefix}-{number}" for number in range(len(self._pool))]

    def clear(self) -> None:
        """Forget them all."""
        self._known.clear()

    # -- which there are -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> TransactionalId:
        return self._known.setdefault(name, TransactionalId(name))

    def __iter__(self) -> Iterator[TransactionalId]:
        return iter(self._known.values())

    @property
    def pool(self) -> tuple[str, ...]:
        """The lane's own."""
        return tuple(self._pool)

    def is_own(self, name: str) -> bool:
        """Whether it is one of the lane's own."""
        return name in self._pool

    def granted(self, name: str) -> Grant | None:
        """What the id's holder has; None while it is not ours."""
        tid = self._known.get(name)
        return None if tid is None else tid.grant

    @property
    def under_way(self) -> list[Transaction]:
        """Those of all ids, in order."""
        found = (tid.transaction for tid in self._known.values() if tid.transaction is not None)
        return sorted(found, key=lambda each: each.number)

    @property
    def coming(self) -> int:
        """How many will be free when InitProducerId is answered."""
        return sum(tid.fencing and tid.transaction is None for tid in self._known.values())

    def is_open(self, destination: int) -> bool:
        """Whether a transaction with the partition may be open, or its end is not durable."""
        return any(
            destination in tid.aborting
            or (tid.transaction is not None and destination in tid.transaction.destinations)
            for tid in self._known.values()
        )

    def choose(self, unit: Unit) -> TransactionalId | None:
        """An id for its transaction; None: all are taken."""
        if unit.transactional_id:
            tid = self[unit.transactional_id]
            return tid if tid.is_free else None
        free = [tid for name in self._pool if (tid := self[name]).is_free]
        ready = (tid for tid in free if tid.grant is not None and not tid.fresh)
        return next(ready, free[0] if free else None)

    # -- InitProducerId --------------------------------------------------------------------------------------------

    def fence(self, tid: TransactionalId, *, refused: bool = False) -> None:
        """Ask for a new grant: it aborts what is open under the id, and shuts out whatever is late."""
        # Of a name that the user gave: a successor that has taken it over since must not be fenced in turn.
        keep = tid.former if not self.is_own(tid.name) and tid.transaction is None else None
        tid.begin_fencing()
        late = _late(tid, keep) if refused else None
        self._out.ask(InitProducerId(tid, tid.turn, late or keep, timed_out=late is not None))

    def fence_late(self, action: InitProducerId) -> bool:
        """Whether the coordinator is asked once more, with the epoch that a time-out gave."""
        tid = action.tid
        late = None if action.timed_out else _late(tid, action.keep)
        if late is not None:
            tid.next_turn()
            self._out.ask(InitProducerId(tid, tid.turn, late, timed_out=True))
        return late is not None

    def may_be_anothers(self, tid: TransactionalId) -> bool:
        """Whether a refused epoch may say that another producer has the id now.

        What an earlier incarnation staged belongs to this one all the same, which takes over what it finds.
        """
        return not self.is_own(tid.name) and not tid.fresh and tid.grant is not None


def _late(tid: TransactionalId, keep: Grant | None) -> Grant | None:
    """The grant that a time-out made of this one, which was refused; None where it may be another's.

    The coordinator aborts a transaction that is open for too long, under the next epoch. A successor that takes over an
    open transaction gets the epoch after that. So no producer is ever granted the next one, and it is current until a
    successor takes over. If no transaction was open, a successor may have the next one. With protocol 2 it may have the
    grant itself as well.
    """
    if keep is None or not tid.opened or keep.protocol >= 2 or keep.epoch >= LAST_EPOCH:
        return None
    return Grant(keep.producer_id, keep.epoch + 1, keep.protocol)

"""The transactional ids of a lane: which id a unit gets, and how the producer acquires the id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kafkasafe.codes.numbers import PRODUCER_FENCED
from kafkasafe.units.outbox import UnitOutbox
from kafkasafe.units.requests import InitProducerId
from kafkasafe.units.terms import Grant
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

EPOCH_REFUSED: Final = PRODUCER_FENCED
"""The error code that a refused unit reports if the coordinator's error was one of `FENCED_CODES`."""
LAST_EPOCH: Final = 0x7FFF - 1
"""After this epoch, the coordinator grants a new producer id, never the next epoch."""


class TransactionalIds:
    """The lane's own transactional ids, and the transactional ids that users gave.

    Args:
        out: Receives the requests.
        pool: Number of the lane's own transactional ids.
    """

    def __init__(self, out: UnitOutbox, pool: int) -> None:
        self._out = out
        self._pool = [""] * pool
        self._known: dict[str, TransactionalId] = {}
        self._producer_ids: dict[str, set[int]] = {}
        """Maps a transactional id to all known producer ids that the coordinator granted for it."""

    def name(self, prefix: str) -> None:
        """Set the prefix of the lane's own transactional ids."""
        self._pool = [f"{prefix}-{number}" for number in range(len(self._pool))]

    def clear(self) -> None:
        """Forget all transactional ids, but not their producer ids."""
        self._known.clear()

    def note(self, name: str, producer_id: int) -> None:
        """Note that the coordinator granted this producer id for a transactional id."""
        self._producer_ids.setdefault(name, set()).add(producer_id)

    def forget_producer_ids(self) -> None:
        """Forget all producer ids, because another cluster granted them."""
        self._producer_ids.clear()

    @property
    def own_producer_ids(self) -> frozenset[int]:
        """The producer ids of the lane's own transactional ids. No other producer writes under these producer ids."""
        return frozenset().union(*(self._producer_ids.get(name, ()) for name in self._pool))

    # -- known ids -------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> TransactionalId:
        return self._known.setdefault(name, TransactionalId(name))

    def __iter__(self) -> Iterator[TransactionalId]:
        return iter(self._known.values())

    @property
    def pool(self) -> tuple[str, ...]:
        """The lane's own ids."""
        return tuple(self._pool)

    def is_own(self, name: str) -> bool:
        """Whether `name` is one of the lane's own ids."""
        return name in self._pool

    def granted(self, name: str) -> Grant | None:
        """The grant of this id; None while this producer does not hold the id."""
        tid = self._known.get(name)
        return None if tid is None else tid.grant

    @property
    def under_way(self) -> list[Transaction]:
        """The transactions in progress, in the order in which their first units were accepted."""
        found = (tid.transaction for tid in self._known.values() if tid.transaction is not None)
        return sorted(found, key=lambda each: each.number)

    @property
    def coming(self) -> int:
        """The number of ids that will be free once InitProducerId for them is answered."""
        return sum(tid.fencing and tid.transaction is None for tid in self._known.values())

    @property
    def aborts(self) -> bool:
        """Whether a transaction is being aborted, so that it may still be open. Any thread may call it."""
        return any(tid.aborts for tid in list(self._known.values()))

    def is_open(self, destination: int) -> bool:
        """Whether this partition has a transaction that may still be open, or whose end is not durable yet."""
        return any(
            destination in tid.aborting
            or (tid.transaction is not None and destination in tid.transaction.destinations)
            for tid in self._known.values()
        )

    def choose(self, unit: Unit) -> TransactionalId | None:
        """An id for the unit's transaction; None if all ids are in use."""
        if unit.transactional_id:
            tid = self[unit.transactional_id]
            return tid if tid.is_free else None
        free = [tid for name in self._pool if (tid := self[name]).is_free]
        ready = (tid for tid in free if tid.grant is not None and not tid.fresh)
        return next(ready, free[0] if free else None)

    # -- InitProducerId --------------------------------------------------------------------------------------------

    def fence(self, tid: TransactionalId, *, refused: bool = False) -> None:
        """Send InitProducerId, which aborts an open transaction of the id, and fences delayed requests."""
        # Do not fence another producer that may have taken over a user's id in the meantime.
        keep = tid.former if not self.is_own(tid.name) and tid.transaction is None else None
        tid.begin_fencing()
        late = _late(tid, keep) if refused else None
        self._out.ask(InitProducerId(tid, tid.turn, late or keep, timed_out=late is not None))

    def fence_late(self, action: InitProducerId) -> bool:
        """Repeat InitProducerId, now with the epoch that the coordinator sets when it aborts the transaction after a
        timeout. Returns False, and sends nothing, if such a request cannot help.
        """
        tid = action.tid
        late = None if action.timed_out else _late(tid, action.keep)
        if late is not None:
            tid.next_turn()
            self._out.ask(InitProducerId(tid, tid.turn, late, timed_out=True))
        return late is not None

    def may_be_anothers(self, tid: TransactionalId) -> bool:
        """Whether another producer may hold the id now, if the coordinator has refused this producer's epoch.

        Returns False if an earlier incarnation staged a transaction under the id, because this incarnation then takes
        over the id from any holder.
        """
        return not self.is_own(tid.name) and not tid.fresh and tid.grant is not None


def _late(tid: TransactionalId, keep: Grant | None) -> Grant | None:
    """The grant that is current if the coordinator refused `keep` because the transaction timed out. None if another
    producer may hold this grant.

    Let E be the epoch of `keep`. After a timeout, the coordinator aborts the open transaction under epoch E + 1. A
    producer that takes over an open transaction (a successor) gets epoch E + 2. So if a transaction was open, no
    producer ever holds epoch E + 1: it is only the current epoch until a successor takes over. If no transaction was
    open, a successor may hold epoch E + 1. With version 2 of the transaction protocol, a successor may even hold epoch
    E, that is, the refused grant.
    """
    if keep is None or not tid.opened or keep.protocol >= 2 or keep.epoch >= LAST_EPOCH:
        return None
    return Grant(keep.producer_id, keep.epoch + 1, keep.protocol)

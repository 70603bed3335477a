"""The parcels (batches as callers see them) without a final outcome. The journal may have packed their batches into
compact rows.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kafkasafe import journal as j
from kafkasafe.cluster.api import Clock
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.waits import Guard
from kafkasafe.journal.spool_index import Ordered
from kafkasafe.limits.run_ahead import RunAhead

_NONE: Final = float("inf")


class Ahead:
    """Measures how far callers run ahead of the cluster: counts the bytes of submitted batches without a final outcome.

    Callers only register their batches, and only the pump's thread changes the counts. In a caller's thread, Ctrl-C
    could interrupt an addition and leave a wrong sum. Batches of earlier incarnations in the spool do not count.

    Call the methods with the ledger's lock held. Any thread may read `is_far` and `has_eased` without the lock.

    Args:
        limit_bytes: The option `run_ahead_bytes`. None: no caller ever waits.
        clock: Gives the monotonic time.
    """

    def __init__(self, limit_bytes: int | None, clock: Clock) -> None:
        self._clock = clock
        self._counts = None if limit_bytes is None else RunAhead(limit_bytes)
        # The batches that the pump has not taken yet: by the number of the first batch of each submission, the size of
        # all its batches in bytes. A submission can have thousands of batches, and `has_eased` is called for each
        # delivered batch, so it must not add up their sizes.
        self._untaken: dict[int, int] = {}

    @property
    def is_far(self) -> bool:
        """Whether a caller of `send` should wait until more records are delivered."""
        return self._counts is not None and self._counts.is_reached(self._untaken_bytes())

    @property
    def has_eased(self) -> bool:
        """Whether a caller that waits because of `is_far` should stop waiting."""
        return self._counts is None or self._counts.has_eased(self._untaken_bytes())

    def submit(self, parcels: Sequence[Parcel]) -> None:
        """Register batches that a caller submits together, perhaps a second time after an interruption."""
        self._untaken[parcels[0].number] = sum(parcel.size_bytes for parcel in parcels)

    def take(self, submitted: Sequence[Parcel], new: Iterable[Parcel]) -> None:
        """Count batches that the pump has taken over.

        Args:
            submitted: All batches of the submission.
            new: Those of them that the pump had not taken before.
        """
        now = self._clock.monotonic()
        self._untaken.pop(submitted[0].number, None)
        for parcel in new:
            if self._counts is not None and parcel.size_bytes and not parcel.done and not parcel.ahead:
                parcel.count_ahead(counted=True)
                self._counts.accepted((parcel.topic, parcel.partition), parcel.size_bytes, now)

    def withdraw(self, parcel: Parcel) -> None:
        """Stop counting a batch without an answer, for example because the journal has packed it: a packed batch takes
        almost no memory.
        """
        if parcel.ahead and self._counts is not None:
            parcel.count_ahead(counted=False)
            self._counts.withdrawn((parcel.topic, parcel.partition), parcel.size_bytes)

    def finish(self, parcel: Parcel) -> None:
        """Stop counting a batch whose outcome is final. A time-out (`delivery_timeout_ms`) is no answer."""
        if parcel.expired:
            self.withdraw(parcel)
        elif parcel.ahead and self._counts is not None:
            parcel.count_ahead(counted=False)
            now = self._clock.monotonic()
            self._counts.answered((parcel.topic, parcel.partition), parcel.size_bytes, now)

    def expire(self) -> None:
        """Stop counting the batches for partitions whose leaders have not answered recently. While a caller of `send`
        waits, call `expire` repeatedly.
        """
        if self._counts is not None:
            self._counts.expire(self._clock.monotonic())

    @property
    def silent(self) -> frozenset[tuple[str, int]]:
        """Partitions whose batches do not count because their leaders do not answer. `expire` updates the set."""
        return frozenset() if self._counts is None else self._counts.silent

    def clear(self, parcels: Iterable[Parcel]) -> None:
        """Forget all batches, at the end of the producer."""
        self._untaken.clear()
        for parcel in parcels:
            parcel.count_ahead(counted=False)
        if self._counts is not None:
            self._counts.clear()

    def _untaken_bytes(self) -> int:
        return sum(tuple(self._untaken.values()))


class OpenParcels:
    """See the module. `Ledger` and the engine change this object with the lock held; any thread may read it."""

    def __init__(self, guard: Guard, ahead: Ahead) -> None:
        self._guard = guard
        self._ahead = ahead
        self.numbers = itertools.count(1)
        self.open: Ordered[Parcel] = Ordered()
        """Parcels in memory, by number."""
        self._packed = self._packed_records = 0
        # `_packed_from` has, for each destination, the number of its first packed batch. `_first_packed` is the lowest
        # number in `_packed_from`.
        self._packed_from: dict[int, int] = {}
        self._first_packed: float = _NONE
        self._moves = 0
        """Odd while batches are being packed or unpacked."""
        # `_live` has weak references to the parcels of packed batches that callers still hold. `_kept` has strong
        # references to those with a watcher, to keep them alive.
        self._live: weakref.WeakValueDictionary[int, Parcel] = weakref.WeakValueDictionary()
        self._kept: dict[int, Parcel] = {}
        self._revived_number = 0
        """Number of the newest batch that the engine sends again because the cluster lost it."""

    def __len__(self) -> int:
        return len(self.open) + self._packed

    # -- parcels in memory ---------------------------------------------------------------------------------------------

    def add(self, parcel: Parcel) -> None:
        """Add a parcel that has a number. Call with the ledger's lock held."""
        self.open[parcel.number] = parcel

    def add_recovered(self, parcels: Iterable[Parcel]) -> None:
        """Number and add batches (parcels) that an earlier incarnation accepted."""
        with self._guard.lock:
            for parcel in parcels:
                parcel.renumber(next(self.numbers))
                self.open[parcel.number] = parcel

    def revive(self, parcel: Parcel) -> None:
        """Add a lost batch that the engine sends again. The batch gets a new number, so that callers wait for its
        outcome again.
        """
        with self._guard.lock:
            self._revived_number = next(self.numbers)
            parcel.renumber(self._revived_number)
            self.open[parcel.number] = parcel

    def remove(self, parcel: Parcel) -> None:
        """Remove a parcel whose outcome is final. Call with the ledger's lock held."""
        self.open.pop(parcel.number, None)

    def take_all(self) -> list[Parcel]:
        """Remove and return all batches (parcels), because the producer ends. Call with the ledger's lock held."""
        undone = [*self.open.values(), *list(self._live.values())]
        self.open.clear()
        self._live.clear()
        self._kept.clear()
        self._packed_from.clear()
        self._packed = self._packed_records = 0
        self._first_packed = _NONE
        return undone

    # -- packed parcels ------------------------------------------------------------------------------------------------

    def pack(self, destination: int, parcels: Sequence[Parcel]) -> None:
        """Note that the journal has packed these batches into compact rows. Keeps only the parcels that callers or
        watchers need.
        """
        with self._guard.lock, self._moving():
            for parcel in parcels:
                parcel.pack(self._kept)
                if parcel.watcher is not None:
                    self._kept[parcel.number] = parcel
                self._live[parcel.number] = parcel
            first_number = self._packed_from.setdefault(destination, parcels[0].number)
            self._first_packed = min(self._first_packed, first_number)
            self._packed += len(parcels)
            self._packed_records += sum(parcel.count for parcel in parcels)
            for parcel in parcels:
                self.open.pop(parcel.number)
                self._ahead.withdraw(parcel)

    def pack_unseen(self, packed: j.Packed) -> None:
        """Register batches of earlier incarnations that were packed while the log was read. No caller holds a reference
        to these batches.
        """
        with self._guard.lock, self._moving():
            self._packed_from[packed.destination] = packed.first_number
            self._first_packed = min(self._first_packed, packed.first_number)
            self._packed += packed.batches
            self._packed_records += packed.records

    @contextlib.contextmanager
    def _moving(self) -> Iterator[None]:
        self._moves += 1
        try:
            yield
        finally:
            self._moves += 1

    def unpack(self, number: int) -> Parcel | None:
        """Take the parcel (the callers' object) of a packed batch; None if neither a caller nor a watcher needs it any
        more.
        """
        parcel = self._live.pop(number, None)
        if parcel is not None:
            parcel.unpack()
        self._kept.pop(number, None)
        return parcel

    def unpacked(self, destination: int, parcel: Parcel, next_number: int) -> None:
        """Return an unpacked parcel to `open`. `next_number` is the number of the next packed batch for the same
        destination, or -1.
        """
        with self._guard.lock, self._moving():
            self.open[parcel.number] = parcel
            self._packed -= 1
            self._packed_records -= parcel.count
            if next_number < 0:
                del self._packed_from[destination]
            else:
                self._packed_from[destination] = next_number
            if parcel.number == self._first_packed:
                self._first_packed = min(self._packed_from.values(), default=_NONE)

    # -- both ----------------------------------------------------------------------------------------------------------

    @property
    def oldest(self) -> Parcel | None:
        """The oldest parcel in memory."""
        return self.open.get(self.open.least or 0)

    def flushed(self, number: int) -> bool:
        """Whether every batch up to `number` has a final outcome."""
        while True:
            moves = self._moves
            least, packed = self.open.least, self._first_packed
            if moves == self._moves and not moves % 2:
                return (least is None or least > number) and packed > number
            time.sleep(0)  # some batches are being packed or unpacked

    def settled(self, number: int) -> bool:
        """Whether every batch up to `number`, and every lost batch that was sent again, has a final outcome."""
        return self.flushed(max(number, self._revived_number))

    def records(self, number: int) -> int:
        """Approximate number of records in the batches up to `number`. If any of these batches is packed, the result
        includes the records of all packed batches, of which only the total is known.
        """
        packed = self._packed_records if self._first_packed <= number else 0
        return packed + sum(parcel.count for parcel in list(self.open.values()) if parcel.number <= number)

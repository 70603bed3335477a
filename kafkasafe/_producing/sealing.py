"""Seal open batches, and pass them to the pump in the order of sealing.

This module holds the producer's lock for longer than a moment. While it does, it uses no disk, and calls no code of the
application but the partitioner.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.engine.slips import Slip
from kafkasafe._producing.chunk import Chunk
from kafkasafe._producing.encoding import Encoding
from kafkasafe.atomic import BatchOutcome
from kafkasafe.errors import SpoolWriteError
from kafkasafe.logs import EventLog

__all__ = ["NEVER", "Sealing"]

log = EventLog("producer")

NEVER: Final = float("inf")
_NO_MEMORY_S: Final = 0.1
"""If memory is short, the producer's thread tries again to encode after this time, seconds."""


class Sealing(Encoding):
    """Part of `SafeProducer`."""

    def _new_lock(self) -> None:
        self._lock = threading.RLock()
        # Returns whether this thread holds the lock already.
        self._interrupted: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def _hand_over_units(self) -> None:
        """Pass accepted atomic batches to the pump. A signal handler may interrupt and repeat it."""
        if not self._units:
            return
        with self._lock:
            for outcome in list(self._units):
                if outcome._accepted:
                    self._hand_over(outcome)
                    self._units.pop(outcome, None)
                    outcome._handed_over()

    def _hand_over(self, outcome: BatchOutcome) -> None:
        head, parcels = outcome._head, outcome._parcels
        if outcome._callbacks:
            outcome._watch()
        if parcels or (head.slip is not None and head.slip.offsets):
            self._pump.submit([head, *parcels])
        elif not head.done:
            outcome._settle_empty()
        for chunk in outcome._chunks:
            encoded = chunk.encoded
            if chunk.parcels is None and encoded is not None:
                chunk.count, chunk.absent, chunk.sizes = encoded.count, encoded.absent, encoded.sizes
                chunk.parcel_of, chunk.index_in = encoded.parcel_of, encoded.index_in
                chunk.parcels = encoded.parcels
            chunk.forget()
            if chunk.firsts or chunk.callbacks or chunk.errbacks:
                chunk.watch(chunk.parcels or ())

    def _seal_due(self, now: float) -> float:
        """Seal chunks that are due, on the pump's thread. Return when the next one is due."""
        if not self._chunks and not self._units:
            return NEVER
        # If another thread holds the lock, it seals chunks or waits for room, and there is nothing to do here.
        if not self._lock.acquire(timeout=0.05):
            return now
        try:
            due = NEVER
            self._hand_over_units()
            for chunk in list(self._chunks.values()):
                # A Ctrl-C may leave a chunk without a record. Seal it, too.
                if chunk.due > now:
                    due = min(due, chunk.due)
                elif not self._seal_or_leave(chunk):
                    due = min(due, now + _NO_MEMORY_S)
            return due
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _let_go(self) -> Iterator[None]:
        """Release this thread's locks for a while, in a signal handler that interrupted another call.

        The handler waits for other threads, which need these locks. The interrupted call goes on later in the middle of
        its work, so all open chunks are sealed before other threads can see them. The call notices this (`Chunk.open`).
        """
        held: list[Any] = []
        for lock in (self._pump.ledger.lock, self._lock):
            while lock._is_owned():  # type: ignore[attr-defined]
                if not held:
                    self._seal_all()
                lock.release()
                held.append(lock)
        try:
            yield
        finally:
            for lock in reversed(held):
                lock.acquire()

    def _seal_chunk(self, chunk: Chunk) -> None:
        if chunk.parcels is None:
            batch = chunk.atomic
            if batch is not None:
                batch._cannot_wait()
            with self._lock:
                if chunk.parcels is None:
                    self._seal(chunk)

    def _seal_all(self) -> None:
        with self._lock:
            self._hand_over_units()
            for chunk in list(self._chunks.values()):
                self._seal(chunk)

    def _seal_or_leave(self, chunk: Chunk) -> bool:
        """Seal a chunk, or leave it to the next call if memory or stack is short. Return whether it is sealed.

        Called with the lock held, for accepted records. It must not raise: the error does not concern the caller's own
        record, and a program that sends its record again after an error would have it twice.
        """
        try:
            self._seal(chunk)
        except (SpoolWriteError, MemoryError, RecursionError) as error:
            log.seldom(
                logging.WARNING,
                "not_encoded",
                chunk.topic,
                "Accepted records of topic %s wait in memory, to be encoded by the next call or in a moment: %s",
                chunk.topic,
                error,
                client_id=self.client_id,
                topic=chunk.topic,
                error=type(error).__name__,
            )
        return chunk.parcels is not None

    def _unsealed(self) -> int:
        """Return how many accepted records are not encoded."""
        return sum(chunk.waiting for chunk in list(self._chunks.values()))

    def _seal(self, chunk: Chunk) -> None:
        """Choose partitions and encode. Called with the lock held: order of sealing is order of delivery.

        A signal handler may raise anywhere in here (Ctrl-C), and so may Python, if memory or stack is short. Then the
        chunk is still in `_chunks`, accepts no more records, and the next call goes on: no accepted record is
        forgotten, and none is submitted twice. A handler may also call this method while it interrupts the method
        itself, or `send`. Then the first encoding counts.
        """
        chunk.open = False
        if self._units:
            self._hand_over_units()  # batches accepted by an interrupted commit come first
        if chunk.parcels is None:
            encoded = chunk.encoded or self._encoded(chunk)
            if chunk.encoded is None:
                if self._config.delivery == "transactional" and encoded.parcels:
                    encoded = replace(encoded, head=_as_unit(encoded.parcels))
                chunk.encoded = encoded
                chunk.count, chunk.absent, chunk.sizes = encoded.count, encoded.absent, encoded.sizes
                chunk.parcel_of, chunk.index_in = encoded.parcel_of, encoded.index_in
            # Submit the parcels before other threads can see them in `chunk.parcels` and wait for them.
            head = chunk.encoded.head
            parcels = chunk.encoded.parcels
            self._pump.submit(parcels if head is None else [head, *parcels])
            chunk.parcels = chunk.encoded.parcels
            if any(parcel.durable or parcel.done for parcel in chunk.parcels):
                self._pump.nudge()  # done already: wake waiting callers, which could not see these parcels before
            chunk.forget()
        if chunk.firsts or chunk.callbacks or chunk.errbacks:
            chunk.watch(chunk.parcels)
        if self._chunks.get(chunk.topic) is chunk:
            other = self._chunks.pop(chunk.topic, None)
            if (
                other is not None
                and other is not chunk
                and self._chunks.setdefault(chunk.topic, other) is not other
            ):
                # A signal handler came just now, and another thread opened this chunk while the handler waited.
                self._seal(other)


def _as_unit(parcels: Sequence[Parcel]) -> Parcel:
    """Join parcels into one unit (`delivery="transactional"`). Return the parcel that stands for the unit."""
    slip = Slip(joins=parcels[0].topic)
    for parcel in parcels:
        parcel.slip = slip
    return Parcel("", -1, None, 0, 0, 0, slip=slip)

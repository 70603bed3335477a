"""The end of an open batch: it is sealed, and handed to the pump, in the order of sealing.

What needs the producer's lock for more than a moment is here. No disk and no code of the user's but the partitioner is
called with it.
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
"""Until the producer's thread tries again to encode what it had no memory for."""


class Sealing(Encoding):
    """Part of `SafeProducer`."""

    def _new_lock(self) -> None:
        self._lock = threading.RLock()
        # Whether this thread has it already.
        self._interrupted: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    def _hand_over_units(self) -> None:
        """Those that are accepted. In the middle of itself too: a signal handler."""
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
        """Seal what lingered long enough; returns when the next one is due. On the pump's thread."""
        if not self._chunks and not self._units:
            return NEVER
        # A caller that seals, or waits for room, holds the lock: then there is nothing to do here.
        if not self._lock.acquire(timeout=0.05):
            return now
        try:
            due = NEVER
            self._hand_over_units()
            for chunk in list(self._chunks.values()):
                # Also one without a record, which a Ctrl-C left.
                if chunk.due > now:
                    due = min(due, chunk.due)
                elif not self._seal_or_leave(chunk):
                    due = min(due, now + _NO_MEMORY_S)
            return due
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _let_go(self) -> Iterator[None]:
        """Without the locks that this thread has: in a signal handler, which came in the middle of another call.

        What it waits for needs them. That call goes on where it was, so everything open is sealed before another thread
        may look at it; it notices that (`Chunk.open`).
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
        """Seal; where there is no memory or stack for it, leave that to the next call. Whether it is sealed.

        Called with the lock held, for records that are accepted: an error of their sealing is none of the caller's
        record, and a program that sends again what raised would have that one twice.
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
        """How many accepted records are not encoded."""
        return sum(chunk.waiting for chunk in list(self._chunks.values()))

    def _seal(self, chunk: Chunk) -> None:
        """Choose partitions and encode. Called with the lock held: order of sealing is order of delivery.

        A signal handler may raise anywhere in here (Ctrl-C), and so may Python, for lack of memory or stack. Then the
        chunk is still among the open ones, takes no more records, and the next call goes on: nothing that was accepted
        is forgotten, and nothing submitted twice. A handler may as well call this in the middle of itself, or of
        `send`: what was encoded first is what counts.
        """
        chunk.open = False
        if self._units:
            self._hand_over_units()  # accepted before, by a commit that was interrupted
        if chunk.parcels is None:
            encoded = chunk.encoded or self._encoded(chunk)
            if chunk.encoded is None:
                if self._config.delivery == "transactional" and encoded.parcels:
                    encoded = replace(encoded, head=_as_unit(encoded.parcels))
                chunk.encoded = encoded
                chunk.count, chunk.absent, chunk.sizes = encoded.count, encoded.absent, encoded.sizes
                chunk.parcel_of, chunk.index_in = encoded.parcel_of, encoded.index_in
            # Before anybody can wait for them.
            head = chunk.encoded.head
            parcels = chunk.encoded.parcels
            self._pump.submit(parcels if head is None else [head, *parcels])
            chunk.parcels = chunk.encoded.parcels
            if any(parcel.durable or parcel.done for parcel in chunk.parcels):
                self._pump.nudge()  # by now: callers who wait could not see that it is of theirs
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
                # A signal handler came just now, and while it waited another thread opened it.
                self._seal(other)


def _as_unit(parcels: Sequence[Parcel]) -> Parcel:
    """Have them delivered together (`delivery="transactional"`): the parcel that stands for all of them."""
    slip = Slip(joins=parcels[0].topic)
    for parcel in parcels:
        parcel.slip = slip
    return Parcel("", -1, None, 0, 0, 0, slip=slip)

"""Keeps the open batches of a producer, seals them, and passes them to the pump in the order of sealing.

The accumulator may hold its lock while it encodes a whole open batch, but never accesses the disk under the lock. The
accumulator calls no code of the application except the partitioner.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, Protocol

from kafkasafe._producing.encoding import Encoder
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.open_batch import NOT_ENCODED, Encoded, OpenBatch
from kafkasafe._producing.open_batch_room import MOST_BYTES, room_for
from kafkasafe._producing.partitioning import Partitioning
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.engine.parcels import Parcel, UnitHandle
from kafkasafe.delivery.pump import Pump
from kafkasafe.errors import SpoolWriteError, UsageError
from kafkasafe.logs import EventLog
from kafkasafe.process.locks import new_rlock
from kafkasafe.record import batch as codec

log = EventLog("producer")

NEVER: Final = float("inf")
_ROOM_AND_LEFT: Final[Callable[[OpenBatch], tuple[int, int]]] = attrgetter("room", "left")
_NO_MEMORY_S: Final = 0.1
"""If memory was too short to encode, the pump's thread tries again after this many seconds."""


class AcceptedUnit(Protocol):
    """An atomic batch on its way to the pump."""

    @property
    def head(self) -> Parcel:
        """The `Parcel` that represents the whole atomic batch. It has no records of its own."""

    @property
    def open_batches(self) -> Sequence[OpenBatch]:
        """The open batches that contain the atomic batch's records. No other thread adds records to them."""

    @property
    def accepted(self) -> bool:
        """Whether the batch was accepted."""

    def carry(self, parcels: list[Parcel]) -> None:
        """Store the atomic batch's encoded records, as one `Parcel` for each encoded batch."""

    def accept(self) -> None:
        """Accept the batch, unless it was accepted or dropped already. Atomic, because it is one call into C."""

    def refuse(self) -> None:
        """Drop the batch, unless it was accepted or dropped already."""

    def hand_over(self) -> None:
        """Pass the accepted batch to the pump. Reentrant: a signal handler may interrupt and repeat this call."""


class Accumulator:
    """Keeps the open batches, seals open batches under its lock, and passes atomic batches to the pump.

    Callers acquire `lock` only with a `with` statement. The lock is reentrant: a signal handler that interrupts a call
    of the producer may call the producer on the same thread (see `OpenBatch`, `released`).

    Attributes:
        open_batches: The open batches, by topic. `send` reads this dict without a lock. No other dict ever replaces it.
        lock: Held while an open batch is sealed, because the order of sealing is the order of delivery.
        max_record_bytes: Largest size of a record.
        open_batch_bytes: How many bytes of records a new open batch usually has room for. If an open batch has more
            room, it may be divided into several batches for one partition. Each batch has at most `open_batch_bytes`.
        most_room: Maximum room of a single open batch, in bytes; 0: no open batch gets more room than
            `open_batch_bytes`. Also the maximum for the sum of all open batches' extra room (room beyond
            `open_batch_bytes`).
    """

    def __init__(
        self, config: ProducerConfig, lifecycle: Lifecycle, partitioning: Partitioning, pump: Pump
    ) -> None:
        self.open_batches: dict[str, OpenBatch] = {}
        self.lock = new_rlock()
        self.max_record_bytes = config.max_record_bytes - 2 * codec.HEADER_BYTES
        self.open_batch_bytes = min(config.batch_bytes, self.max_record_bytes)
        self.most_room = _most_room(config)
        self._config = config
        self._lifecycle = lifecycle
        self._pump = pump
        self._encoder = Encoder(partitioning, config.compression, self.open_batch_bytes)
        self._being_encoded: list[OpenBatch] = []
        """The open batches whose encoding has begun but not ended. The encodings are nested: each encoding began during
        the previous encoding in this list.
        """
        self._spread: dict[str, int] = {}
        """For each topic whose last open batch had records of several partitions: the number of these partitions."""
        self._units: dict[AcceptedUnit, None] = {}
        """Atomic batches on their way from their callers to the pump, in the order of acceptance."""

    def interrupted(self) -> bool:
        """Return whether this thread holds the lock already. True means that a signal handler or the partitioner makes
        the present call while another call of the producer is in progress.
        """
        return _is_held(self.lock)

    def forked(self) -> None:
        """In a forked child: forget all records, because the parent delivers them.

        The child gets a new lock, because a thread that does not exist in the child may have held the old lock.
        """
        self.lock = new_rlock()
        self._being_encoded.clear()
        self.open_batches.clear()
        self._units.clear()

    def refuse_units(self) -> None:
        """Drop the atomic batches that are not accepted yet."""
        for unit in list(self._units):
            unit.refuse()

    def accept_unit(self, unit: AcceptedUnit) -> None:
        """Accept an atomic batch in one step, unless it was dropped meanwhile. The producer sends earlier accepted
        records before the batch.

        During this call, a signal handler may raise an error (Ctrl-C), or wait, or close the producer. An error before
        `unit.accept()` leaves the batch unaccepted. After `unit.accept()`, the batch is in `_units` until a thread
        hands it to the pump.
        """
        unit_handle = unit.head.unit_handle
        with self.lock:
            self._seal_topics(dict.fromkeys(open_batch.topic for open_batch in unit.open_batches))
            parcels: list[Parcel] = []
            for open_batch in unit.open_batches:
                open_batch.shut()
                parcels += open_batch.keep(self._encoder.encoded(open_batch)).parcels
            for parcel in parcels:
                parcel.belong_to(unit_handle)
            unit.carry(parcels)
            try:
                self._units[unit] = None
                # The order matters: `close` ends the lifecycle, then drops the batches that are not accepted.
                self._lifecycle.raise_closed()
                unit.accept()
                self.hand_over_units()
            finally:
                if not unit.accepted:
                    self._units.pop(unit, None)
            if not unit.accepted:
                self._lifecycle.raise_closed()

    def _seal_topics(self, topics: Iterable[str]) -> None:
        for topic in topics:
            open_batch = self.open_batches.get(topic)
            if open_batch is not None:
                self.seal(open_batch)

    def hand_over_units(self) -> None:
        """Pass accepted atomic batches to the pump. Reentrant: a signal handler may interrupt this call and call it
        again.
        """
        if not self._units:
            return
        with self.lock:
            for unit in (each for each in list(self._units) if each.accepted):
                unit.hand_over()
                self._units.pop(unit, None)

    def seal_due(self, now: float) -> float:
        """Seal the open batches that are due. Return the monotonic time, in seconds, at which the next open batch is
        due. Called on the pump's thread.
        """
        if not self.open_batches and not self._units:
            return NEVER
        # If the lock is not free after the time-out, another thread is sealing open batches. Return `now`, so that the
        # pump calls this method again in its next turn.
        if not self.lock.acquire(timeout=0.05):
            return now
        try:
            self.hand_over_units()
            return min(
                (self._seal_if_due(each, now) for each in list(self.open_batches.values())), default=NEVER
            )
        finally:
            self.lock.release()

    def _seal_if_due(self, open_batch: OpenBatch, now: float) -> float:
        # Also seal empty open batches, which a Ctrl-C may leave behind.
        if open_batch.due > now:
            return open_batch.due
        return NEVER if self.seal_or_leave(open_batch) else now + _NO_MEMORY_S

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """For a signal handler that interrupted another call: release this thread's locks for a while.

        The handler waits for other threads, which need these locks. But the interrupted call may be in the middle of
        its work on an open batch. So this method seals all open batches before it releases the locks. When the
        interrupted call continues, it finds that its open batch is sealed (`OpenBatch.open`).
        """
        held: list[Any] = []
        for lock in (self._pump.ledger.lock, self.lock):
            while _is_held(lock):
                if not held:
                    self.seal_all()
                lock.release()
                held.append(lock)
        try:
            yield
        finally:
            for lock in reversed(held):
                lock.acquire()

    def seal_one(self, open_batch: OpenBatch) -> None:
        """Seal an open batch, for a caller that waits for its records.

        Raises:
            UsageError: The open batch belongs to an atomic batch that is open or was dropped.
            SpoolWriteError: There is not enough memory to encode.
        """
        if open_batch.parcels is None:
            guard = open_batch.guard
            if guard is not None:
                guard()
            with self.lock:
                if open_batch.parcels is None:
                    self.seal(open_batch)

    def seal_all(self) -> None:
        """Seal all open batches, and pass accepted atomic batches to the pump.

        Raises:
            SpoolWriteError: There is not enough memory to encode.
        """
        with self.lock:
            self.hand_over_units()
            for open_batch in list(self.open_batches.values()):
                self.seal(open_batch)

    def seal_or_leave(self, open_batch: OpenBatch) -> bool:
        """Seal an open batch. If memory or stack is too short, leave the open batch to a later call. Return whether the
        open batch is sealed.

        Called with the lock held. This method must not raise an error, because the records are accepted already: after
        an error, the program would send a record a second time.
        """
        try:
            self.seal(open_batch)
        except (SpoolWriteError, MemoryError, RecursionError) as error:
            log.limited(
                logging.WARNING,
                "not_encoded",
                open_batch.topic,
                "Accepted records of topic %s wait in memory until the next call, or the producer's thread, encodes"
                " them: %s",
                open_batch.topic,
                error,
                client_id=self._config.client_id,
                topic=open_batch.topic,
                error=type(error).__name__,
            )
        return open_batch.parcels is not None

    def unsealed(self) -> int:
        """Return how many accepted records are not encoded yet."""
        return sum(open_batch.waiting for open_batch in list(self.open_batches.values()))

    def give_up(self, error: BaseException) -> None:
        """Make this error the result of all records that are not encoded. Called after the producer has ended."""
        with self.lock:
            for topic, open_batch in list(self.open_batches.items()):
                lost = self._encoder.lost(open_batch, error)
                if open_batch.parcels is None and open_batch.keep(lost) is lost:
                    open_batch.submitted()
                    open_batch.watch()
                self.open_batches.pop(topic, None)
        self._pump.ledger.waiters.notify_all()

    def needed_bytes(self) -> int:
        """Return the largest number of bytes that the open batches and one new open batch may need in the spool.

        This method must be fast: a program with thousands of topics has thousands of open batches, and the producer
        calls the method for each of them.
        """
        pairs, usual = map(_ROOM_AND_LEFT, list(self.open_batches.values())), self.open_batch_bytes
        # An open batch keeps its room until it is sealed. So if its room is larger than `open_batch_bytes`, the
        # difference counts as taken even while it is empty. `left` is negative if a record did not fit.
        taken = sum(room - min(left, usual) if left > 0 else room for room, left in pairs)
        return 2 * self.max_record_bytes + taken

    def next_room(self, topic: str) -> int:
        """Return the room, in bytes, of the topic's next open batch, provided that the spool has enough space for this
        room.
        """
        usual, most = self.open_batch_bytes, self.most_room
        if not self._encoder.partitioning.knows(topic):
            return usual  # its records may have to wait in a single batch until partitions are chosen
        room = room_for(usual, self._spread.get(topic, 1), most)
        if room > usual:
            beyond = sum(open_batch.room - usual for open_batch in list(self.open_batches.values()))
            room = max(usual, min(room, usual + most - beyond))
        return room

    def seal(self, open_batch: OpenBatch) -> None:
        """Choose partitions and encode. Called with the lock held, because the order of sealing is the order of
        delivery.

        An error may interrupt this call: a signal handler may raise an error (Ctrl-C), and Python raises an error if
        memory or stack runs out. After an error, the open batch is still in `open_batches` and accepts no more records.
        The next call continues the work, and no accepted record is forgotten or submitted twice. A signal handler that
        interrupts this method or `send` may itself call this method. If both calls encode, the first encoding is used.
        """
        open_batch.shut()
        if self._units:
            self.hand_over_units()  # atomic batches that an interrupted commit has accepted come first
        if open_batch.parcels is None:
            encoded = open_batch.encoded
            if encoded is NOT_ENCODED:
                encoded = self._encoded(open_batch)
                # A signal handler may have encoded and sealed the open batch meanwhile. Then the pump already has the
                # handler's parcels (encoded batches) and the parcel that represents all of them (`head`). None of these
                # parcels may change.
                own = open_batch.encoded is NOT_ENCODED
                if own and self._config.delivery == "transactional" and encoded.parcels:
                    encoded = replace(encoded, head=_as_unit(encoded.parcels))
                encoded = open_batch.keep(encoded)
            # Submit the parcels before other threads can see them in `open_batch.parcels`, because these threads may
            # wait for the parcels' results.
            head, parcels = encoded.head, encoded.parcels
            self._pump.ledger.submit(parcels if head is None else [head, *parcels])
            open_batch.submitted()
            # Count partitions, not encoded batches: more room helps only if the records go to many partitions.
            spread = len({parcel.partition for parcel in parcels})
            if spread > 1:
                self._spread[open_batch.topic] = spread
            else:
                self._spread.pop(open_batch.topic, None)
            if any(parcel.durable or parcel.done for parcel in parcels):
                # Wake the callers now: some batches became durable or done before callers could see them in
                # `open_batch.parcels`.
                self._pump.ledger.waiters.notify_all()
        open_batch.watch()
        if self.open_batches.get(open_batch.topic) is open_batch:
            other = self.open_batches.pop(open_batch.topic, None)
            if (
                other is not None
                and other is not open_batch
                and self.open_batches.setdefault(open_batch.topic, other) is not other
            ):
                # A signal handler interrupted this call, and another thread began `other` while the handler waited.
                self.seal(other)

    def _encoded(self, open_batch: OpenBatch) -> Encoded:
        """Encode an open batch. Called with the lock held.

        If a partitioner calls `send`, the producer seals and encodes the same open batch again, asks the partitioner
        again, and the partitioner calls `send` again. This method limits the recursion, which would exhaust the stack.
        One nested encoding is allowed, because a signal handler that interrupts the partitioner may also call `send`.

        Raises:
            UsageError: The partitioner called the producer again, while the producer encoded records for the
                partitioner's first call.
            SpoolWriteError: There is not enough memory.
        """
        depth = len(self._being_encoded)
        if self._being_encoded.count(open_batch) > 1:
            raise UsageError(
                "The partitioner calls its own producer while the producer asks the partitioner about records of topic"
                f" {open_batch.topic}, which were accepted before the topic was known. This call failed, and no"
                " accepted record is lost. Send through another producer, or to another topic"
            )
        try:
            self._being_encoded.append(open_batch)
            return self._encoder.encoded(open_batch)
        finally:
            del self._being_encoded[depth:]


def _most_room(config: ProducerConfig) -> int:
    """Return the largest room of an open batch, in bytes; 0 if no open batch may have more room than `batch_size`.

    For each producer and partition, a broker remembers only the last five batches. With `delivery="transactional"`, a
    unit (the batches of one transaction) contains at most five open batches. So each open batch may add at most one
    batch for each partition, and gets no more room than `batch_size`.
    """
    if config.delivery == "transactional":
        return 0
    ahead = config.run_ahead_bytes
    return MOST_BYTES if ahead is None else min(MOST_BYTES, ahead // 2)


def _is_held(lock: Any) -> bool:
    """Return whether this thread holds an RLock. CPython has only a private method for this."""
    return bool(lock._is_owned())  # noqa: SLF001


def _as_unit(parcels: Sequence[Parcel]) -> Parcel:
    """Join encoded batches into one unit (atomic batch), which is delivered as a whole (`delivery="transactional"`).
    Return the `Parcel` that represents the unit.
    """
    unit_handle = UnitHandle(joins=parcels[0].topic)
    for parcel in parcels:
        parcel.belong_to(unit_handle)
    return Parcel("", -1, None, 0, 0, 0, unit_handle=unit_handle)

"""The future that `await producer.send(...)` returns, and the producer's helper objects for the future."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafka.producer.future import RecordMetadata

from kafkasafe import producer as threads
from kafkasafe._producing.accepted_record import AcceptedRecord
from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.opening import ProducerParts
from kafkasafe._producing.spelling import Absent, Tidy, called, tidy_dir
from kafkasafe.aio.threads import Worker, running_loop
from kafkasafe.delivery.awaiting import Fates, LoopWaits
from kafkasafe.limits.patience import timeout_of
from kafkasafe.process.one_process import stays_with_producer

Call = Callable[["RecordFuture"], object]
Key = tuple[int, int]
"""Identifies a record until the record is done: the id of the record's open batch, and the record's number in the
batch.
"""
Waiting = tuple[list[tuple[Call, contextvars.Context | None]], asyncio.Task[None]]

_new_tuple: Final[Any] = tuple.__new__
"""Creates a named tuple without a Python-level call."""


_RESULT: Final = "`await` waits for the result, and `result()` returns it if it is known"
_EXCEPTION: Final = "use `exception()`, as in asyncio: it is None after success"
_ADD_DONE_CALLBACK: Final = "use `add_done_callback`"


class Owner(Protocol):
    """The producer of a future. The future keeps its producer alive."""

    @property
    def opened(self) -> Opened:
        """The objects of the started producer."""


class NamedAsInAsyncio(metaclass=Tidy):
    """A result with the method names of asyncio's futures. Using a name that only kafka-python's futures have, such as
    `get`, raises an error.
    """

    __slots__ = ()
    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        is_done = Absent(
            "use `done()`, with parentheses, as in asyncio; the futures of kafkasafe have kafka-python's names"
        )
        value = Absent(_RESULT)
        get = Absent(_RESULT)
        succeeded = Absent(_EXCEPTION)
        failed = Absent(_EXCEPTION)
        retriable = Absent("no error needs a retry: the producer retries every retriable error")
        add_callback = Absent(_ADD_DONE_CALLBACK)
        add_errback = Absent(_ADD_DONE_CALLBACK)
        add_both = Absent(_ADD_DONE_CALLBACK)

    @staticmethod
    def cancel(msg: object = None) -> bool:  # noqa: ARG004  # asyncio's
        """Do nothing: accepted records cannot be cancelled. To stop a wait for the result, cancel the task or use a
        time-out.

        Returns:
            False. asyncio's futures also return False if they can no longer be cancelled.
        """
        return False

    @staticmethod
    def cancelled() -> bool:
        """Return False, because accepted records cannot be cancelled."""
        return False


class RecordFuture(NamedAsInAsyncio):
    """The result of one `send`. `await future` waits for the acknowledgement and returns the record's metadata.

    `await future.durable()` waits only until the record is durable.

    The methods have the names of asyncio.Future's methods; the methods of `kafkasafe.RecordFuture` have kafka-python's
    names.

    A future computes its state only when the program asks for it, so unused futures are cheap. Several tasks may await
    the same future, any number of times. Cancelling a waiting task affects neither the record nor other tasks. The
    future belongs to the loop on which its producer was started; it is not thread-safe.
    """

    __slots__ = ("__weakref__", "index", "open_batch", "owner")

    # `SafeProducer.send` sets the three attributes itself, which saves a Python call for each record. `dir()` leaves
    # out these attributes, which are not for programs.
    __init__ = object.__init__
    owner: Owner
    """The producer. This reference keeps the producer alive."""
    open_batch: Any
    """The open batch that has the record."""
    index: int
    """The record's number in the open batch."""
    _UNLISTED = frozenset({"index", "open_batch", "owner", "refer_to"})
    __reduce_ex__ = stays_with_producer

    def refer_to(self, owner: Owner, open_batch: Any, index: int) -> RecordFuture:
        """Make this object the future of record `index` of an open batch. To save time, `SafeProducer.send` sets the
        attributes itself.
        """
        self.owner, self.open_batch, self.index = owner, open_batch, index
        return self

    def _accepted(self) -> AcceptedRecord:
        return AcceptedRecord(self.owner.opened.parts, self.open_batch, self.index)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait for the cluster's acknowledgement.

        Returns:
            The metadata, as in KafkaProducer: `topic`, `partition`, `offset`, `timestamp` …

        Raises:
            RejectedError: The cluster rejected the record.
            DeliveryTimeoutError: `delivery_timeout_ms` passed. The record is still delivered.
            WrongClusterError: See `kafkasafe.RecordFuture.get`.
            SpoolError: An error ended the producer.
        """
        open_batch = self.open_batch
        acked = open_batch.acked
        if acked is None:
            if open_batch.parcels is not None:
                parcel, _ = open_batch.locate(self.index)
                if parcel.done and parcel.error is None:
                    metadata: RecordMetadata = open_batch.metadata(self.index)
                    return metadata
            opened = self.owner.opened
            if open_batch.parcels is None or not self._accepted().is_done:
                opened.due_batches.add(open_batch)
                ledger = opened.parts.delivery.pump.ledger
                # Do the same as `AcceptedRecord.wait_in_loop`, but with fewer objects and calls for each record.
                yield from opened.waits_here().until(
                    open_batch, self.index, lambda: Fates(open_batch, ledger, durable=False)
                )
            # The first task that gets a result of the open batch may set `acked`. Other tasks that wait for records of
            # the open batch then use `acked`.
            acked = open_batch.acked
            if acked is None:
                return AcceptedRecord(opened.parts, open_batch, self.index).result(None)
        topic, partition, place, base, stamp, keys, values = acked
        fields = topic, partition, place, base + self.index, stamp, None, keys, values, -1
        return _new_tuple(RecordMetadata, fields)  # type: ignore[no-any-return]

    async def durable(self, timeout: float | None = None) -> RecordFuture:  # noqa: ASYNC109  # as the other future's
        """Wait until the record is on disk (fsynced) or in the cluster. After the return, no crash can lose the record.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            The future itself.

        Raises:
            KafkaTimeoutError: The record was not durable in time. The record may still become durable.
            SpoolError: The spool failed permanently.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        record = self._accepted()
        if not record.durable_or_never():
            opened = self.owner.opened
            opened.due_batches.add(self.open_batch)
            await record.wait_in_loop(opened.waits_here(), timeout, durable=True)
        record.made_durable(timeout)
        return self

    @called
    def done(self) -> bool:
        """Return whether the record was acknowledged, rejected or dropped."""
        return self._accepted().is_done

    def result(self) -> RecordMetadata:
        """Return the metadata of the record, or raise its error.

        Raises:
            InvalidStateError: The record is not done.
        """
        record = self._accepted()
        if not record.is_done:
            raise asyncio.InvalidStateError("The record has no result yet: await the future")
        return record.result(None)

    @called
    def exception(self) -> BaseException | None:
        """Return why the record was not delivered; None if the record was delivered.

        Raises:
            InvalidStateError: The record is not done.
        """
        record = self._accepted()
        if not record.is_done:
            raise asyncio.InvalidStateError("The record has no result yet: await the future")
        return record.error

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the record's producer."""
        return self.owner.opened.loop

    def add_done_callback(
        self, call: Callable[[RecordFuture], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call `call(future)` on the loop when the record is done. If the record is already done, schedule the call at
        once.

        Raises:
            UsageError: The record belongs to an atomic batch that is still open or was dropped.
        """
        if self.open_batch.guard is not None:
            self.open_batch.guard("add the callback after the block")
        self.owner.opened.callbacks.add(self, (id(self.open_batch), self.index), call, context)

    def remove_done_callback(self, call: Callable[[RecordFuture], object]) -> int:
        """Remove a callback, however often it was added. Return how many times it was there."""
        return self.owner.opened.callbacks.remove((id(self.open_batch), self.index), call)

    def __repr__(self) -> str:
        return repr(self._accepted())


class DoneCallbacks:
    """Keeps the callbacks of one producer's futures, by record. Several futures may belong to the same record.

    Args:
        loop: The producer's loop, on which the callbacks are called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Key, Waiting] = {}

    def add(self, future: RecordFuture, key: Key, call: Call, context: contextvars.Context | None) -> None:
        """Call `call(future)` when the record is done. If the record is already done, schedule the call at once."""
        if future.done():
            self._loop.call_soon(call, future, context=context)
            return
        known = self._waiting.get(key)
        if known is None:
            known = self._waiting[key] = [], self._loop.create_task(self._wait(key, future))
        known[0].append((call, context))

    async def _wait(self, key: Key, future: RecordFuture) -> None:
        try:
            await asyncio.gather(future, return_exceptions=True)
            if not future.done():
                # `future` raised WrongClusterError. The producer delivers the record when the record's own cluster
                # answers again.
                await waits_of(future.owner.opened.parts).wait(future.done)
        finally:
            calls, _ = self._waiting.pop(key)
        for call, context in calls:
            self._loop.call_soon(call, future, context=context)

    def remove(self, key: Key, call: Call) -> int:
        """Remove a callback, however often it was added. Return how many times it was there."""
        known = self._waiting.get(key)
        if known is None:
            return 0
        before = len(known[0])
        known[0][:] = [item for item in known[0] if item[0] != call]
        return before - len(known[0])


class DueBatches:
    """Collects open batches during an iteration of the loop, and lets the pump seal them afterwards.

    Other tasks can add records to the open batches until the end of the iteration.
    """

    def __init__(self, parts: ProducerParts) -> None:
        self._parts = parts
        self._open_batches: set[OpenBatch] = set()

    def add(self, open_batch: OpenBatch) -> None:
        """Seal an open batch soon, unless it is sealed already.

        Raises:
            UsageError: The open batch belongs to an atomic batch that is not committed.
        """
        if open_batch.parcels is not None:
            return
        guard = open_batch.guard
        if guard is not None:
            guard("batch.send(...) is not awaited: await its future, or batch.outcome, after the block")
        if not self._open_batches:
            running_loop().call_soon(self._seal)
        self._open_batches.add(open_batch)

    def _seal(self) -> None:
        open_batches, self._open_batches = self._open_batches, set()
        for open_batch in open_batches:
            # Let the pump seal the open batch: the batch then includes records that are sent while the pump writes, and
            # the loop need not wake another thread.
            open_batch.make_due()
        self._parts.delivery.pump.wake()


@dataclass(frozen=True)
class Opened:
    """The objects of a started producer, which exist until the producer ends.

    Attributes:
        producer: The inner producer.
        parts: The objects of the inner producer.
        loop: The loop on which the producer was started.
        worker: Thread that encodes batches.
        waits: The object through which coroutines of `loop` wait for the producer.
        due_batches: Open batches for which tasks wait.
        callbacks: Callbacks of futures.
    """

    producer: threads.SafeProducer
    parts: ProducerParts
    loop: asyncio.AbstractEventLoop
    worker: Worker
    waits: LoopWaits
    due_batches: DueBatches
    callbacks: DoneCallbacks

    @classmethod
    def of(cls, producer: threads.SafeProducer, loop: asyncio.AbstractEventLoop) -> Opened:
        """Make the objects for an inner producer. Called on its loop."""
        parts = producer.parts
        worker = Worker(f"kafkasafe-aio-{producer.client_id}")
        return cls(producer, parts, loop, worker, waits_of(parts), DueBatches(parts), DoneCallbacks(loop))

    def waits_here(self) -> LoopWaits:
        """Return the object through which coroutines of the running loop wait for the producer.

        The running loop may differ from the producer's loop, because a program may await a future after the producer's
        loop has ended.
        """
        return self.waits if running_loop() is self.loop else waits_of(self.parts)


def waits_of(parts: ProducerParts) -> LoopWaits:
    """Return the object through which coroutines of the running loop wait for a producer."""
    return LoopWaits.of(parts.delivery.pump.ledger.waiters, running_loop())

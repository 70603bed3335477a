"""The future of one `send`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from kafka.producer.future import FutureRecordMetadata, RecordMetadata

from kafkasafe._producing.accepted_record import AcceptedRecord
from kafkasafe._producing.delivery import safely
from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.opening import ProducerParts
from kafkasafe._producing.spelling import (
    ADD_CALLBACK,
    GET,
    IS_DONE,
    NEVER_CANCELLED,
    Absent,
    Tidy,
    not_for_callers,
    tidy_dir,
)
from kafkasafe.delivery.awaiting import LoopWaits
from kafkasafe.limits.patience import timeout_of
from kafkasafe.process.one_process import stays_with_producer

_FATE: Final = "only the producer sets the result of a record"


class OpenProducer(Protocol):
    """The producer of a future or an atomic batch. The future or batch keeps a reference to its producer, so that the
    garbage collector does not end the producer.
    """

    @property
    def parts(self) -> ProducerParts:
        """The producer's objects."""


class RecordFuture(FutureRecordMetadata, metaclass=Tidy):
    """The future of one `send`: it has `durable`, and the members of `FutureRecordMetadata` that callers use.

    As in kafka-python, `is_done`, `value` and `exception` are attributes. The methods of `kafkasafe.aio.RecordFuture`
    are named as in asyncio. A future computes its state only when the program asks for it, so unused futures are cheap.
    """

    __slots__ = ("first_free", "index", "open_batch", "producer")

    # The base class's constructor makes a lock and lists that this class does not need. In place of a constructor,
    # `send` sets the four attributes, which saves a Python call for each record. `dir()` leaves out these attributes,
    # which are not for programs.
    __init__ = object.__init__
    producer: OpenProducer
    """The producer. This reference keeps the producer alive."""
    open_batch: OpenBatch
    """The open batch that has the record."""
    index: int
    """The record's number in the open batch."""
    first_free: bool
    """Whether the record has no callback yet. The thread that adds the first callback deletes this attribute. If two
    threads try at the same time, the second deletion fails, and its thread adds its callback to the list of later
    callbacks.
    """
    _UNLISTED = frozenset(
        {"args", "error_on_callbacks", "first_free", "index", "open_batch", "producer", "refer_to"}
    )
    __dir__ = tidy_dir
    __reduce_ex__ = stays_with_producer

    if not TYPE_CHECKING:
        success = not_for_callers(_FATE)
        failure = not_for_callers(_FATE)
        rebind = not_for_callers(_FATE)
        chain = not_for_callers("use `add_callback(other.success)` and `add_errback(other.failure)`")
        done = Absent(IS_DONE)
        result = Absent(GET)
        add_done_callback = Absent(ADD_CALLBACK)
        remove_done_callback = Absent("a callback cannot be removed")
        cancel = Absent(NEVER_CANCELLED)
        cancelled = Absent(NEVER_CANCELLED)

    def refer_to(self, producer: OpenProducer, open_batch: OpenBatch, index: int) -> Self:
        """Make this object the future of record `index` of an open batch. To save time, `send` sets the attributes
        itself.
        """
        self.producer, self.open_batch, self.index, self.first_free = producer, open_batch, index, True
        return self

    def _accepted(self) -> AcceptedRecord:
        return AcceptedRecord(self.producer.parts, self.open_batch, self.index)

    # kafka-python assigns the next three attributes. This class computes their values on access.
    @property
    def is_done(self) -> bool:  # type: ignore[override]
        """Whether the record was rejected, dropped, or acknowledged (and the acknowledgement is durably stored in the
        spool).
        """
        open_batch = self.open_batch
        return open_batch.parcels is not None and open_batch.locate(self.index)[0].done

    @property
    def value(self) -> RecordMetadata | None:  # type: ignore[override]
        """The metadata; None until the record is acknowledged."""
        return self.open_batch.metadata(self.index) if self.succeeded() else None

    @property
    def exception(self) -> BaseException | None:  # type: ignore[override]
        """Why the record was not delivered; None while the record is pending, or if it was delivered."""
        return self._accepted().error

    def durable(self, timeout: float | None = None) -> RecordFuture:
        """Wait until the record is on disk (fsynced, with its batch id if it has one) or in the cluster.

        With `spool="never"`, the method waits for the cluster's acknowledgement, because only the cluster makes a
        record durable.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            The future itself. After the return, a crash of this process, of brokers, or of both cannot lose the record.

        Raises:
            KafkaTimeoutError: The record was not durable in time. The record may still become durable.
            SpoolError: The spool failed permanently.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        record = self._accepted()
        parts = self.producer.parts
        parts.accumulator.seal_one(self.open_batch)
        parts.delivery.pump.wait(record.durable_or_never, timeout)
        record.made_durable(timeout)
        return self

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the cluster's acknowledgement, and for the record's callbacks.

        Args:
            timeout: Seconds; None for no limit. If the record's result is known at the time-out, the call ends with the
                result, even if the record's callbacks have not run.

        Raises:
            KafkaTimeoutError: The record was not acknowledged in time. The record stays in the spool and is still
                delivered.
            RejectedError: The cluster rejected the record.
            WrongClusterError: The brokers do not belong to the cluster that the record is meant for. The producer
                delivers the record when this cluster answers again.
        """
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        record = self._accepted()
        parts = self.producer.parts
        parts.accumulator.seal_one(self.open_batch)
        parts.delivery.pump.wait(record.done_or_never, timeout, choosy=True)
        if record.is_done:
            parts.delivery.called(self.open_batch, deadline)
        return record.result(timeout)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait in a coroutine: `await future` is a `get()` that blocks no thread and does not wait for callbacks.

        Cancelling the coroutine does not affect the record.

        Raises:
            UsageError: The record belongs to an atomic batch that is still open or was dropped.
        """
        record = self._accepted()
        if not record.is_done:
            import asyncio  # the program that awaits has imported it

            pump = self.producer.parts.delivery.pump
            if self.open_batch.parcels is None:
                guard = self.open_batch.guard
                if guard is not None:
                    guard()
                # Let the pump's thread seal the open batch: choosing partitions and encoding records would block the
                # event loop.
                self.open_batch.make_due()
                pump.wake()
            waits = LoopWaits.of(pump.ledger.waiters, asyncio.get_running_loop())
            yield from record.wait_in_loop(waits)
        return record.result(None)

    def succeeded(self) -> bool:
        """Return whether the record was acknowledged."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Return whether the record was rejected or dropped."""
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """Return False: callers never need to retry, because the producer itself retries after each retriable error."""
        return False

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f(*args, metadata, **kwargs)` when the record is acknowledged.

        The producer's callback thread calls `f`. If the record is acknowledged already, `add_callback` itself calls `f`
        at once. `flush()`, `get()` and `close()` return only after the callback. Adding a callback does not close the
        current batch early.
        """
        if args or kwargs:
            f = functools.partial(f, *args, **kwargs)
        open_batch = self.open_batch
        if open_batch.open:
            # The common case needs no lock (see `OpenBatch`): store the callback, then check that the batch is still
            # open. `firsts` has one entry for each record. Only one caller can set the record's entry, because
            # `first_free` can be deleted only once.
            try:
                del self.first_free
                open_batch.firsts[self.index] = f
            except AttributeError:
                return self._add_callback(f)
            except IndexError:
                open_batch.put_first(self.index, f)
            if open_batch.open:
                return self
            firsts = open_batch.first_calls()
            if self.index < len(firsts) and firsts[self.index] is not None:
                if open_batch.parcels is not None:
                    open_batch.watch_record(self.index)
                return self
        return self._add_callback(f)

    def _add_callback(self, call: Callable[[RecordMetadata], Any]) -> RecordFuture:
        """Add a callback to those of the open batch. Call it at once if the record has been delivered already."""
        if not self._enlisted(self.open_batch.callbacks, call) and self.succeeded():
            safely(lambda: call(self.open_batch.metadata(self.index)))
        return self

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f(*args, exception, **kwargs)` when the record is rejected or dropped."""
        call = functools.partial(f, *args, **kwargs) if args or kwargs else f
        if not self._enlisted(self.open_batch.errbacks, call) and self.failed():
            safely(lambda: call(self.exception))
        return self

    def _enlisted(self, calls: list[Any], call: Callable[..., Any]) -> bool:
        """Add the call to `calls`, so that the callback thread makes the call. If the record's result is final already,
        only return False.
        """
        open_batch = self.open_batch
        if open_batch.parcels is not None and self.is_done:
            return False
        if not calls:
            open_batch.thread.start()
        calls += (self.index, call)
        # Add the callback to `calls` first, and read `parcels` only then. If `parcels` is still None, the open batch is
        # not sealed yet, and the callback thread will find the callback after sealing.
        if open_batch.parcels is not None:
            open_batch.watch_record(self.index)
        return True

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f` with the metadata or the exception when the record's result is final."""
        self.add_callback(f, *args, **kwargs)
        self.add_errback(f, *args, **kwargs)
        return self

    def __repr__(self) -> str:
        return repr(self._accepted())

"""Atomic batches in an event loop. See kafkasafe/atomic.py, and docs/staged.md."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from types import TracebackType
from typing import Any, Self

from kafkasafe import atomic
from kafkasafe._producing.spelling import called
from kafkasafe.aio.consumer import SafeConsumer, calls_of
from kafkasafe.aio.futures import NamedAsInAsyncio, Owner, RecordFuture
from kafkasafe.aio.instead import headers_of
from kafkasafe.aio.threads import call_in_thread, running_loop
from kafkasafe.errors import BatchDroppedError, UsageError
from kafkasafe.limits.patience import timeout_of
from kafkasafe.process.one_process import stays_with_producer


class BatchOutcome(NamedAsInAsyncio):
    """The result of a whole atomic batch. `await outcome` waits until the batch is committed.

    `await outcome.durable()` waits only until the batch is on disk.

    The methods have the names of asyncio.Future's methods; the methods of `kafkasafe.BatchOutcome` have kafka-python's
    names.

    Attributes:
        batch_id: Id of the batch, as `kafkasafe spool ls` shows it.
    """

    __reduce_ex__ = stays_with_producer

    def __init__(self, outcome: atomic.BatchOutcome) -> None:
        self._outcome = outcome
        self._unit = outcome.unit
        self.batch_id = outcome.batch_id

    def __await__(self) -> Generator[Any, None, atomic.BatchMetadata]:
        """Wait until the batch is committed.

        Raises:
            BatchDroppedError: The batch was dropped, and none of its records is delivered.
            WrongClusterError: The brokers do not belong to the cluster that the batch is meant for.
        """
        return self._get().__await__()

    async def _get(self) -> atomic.BatchMetadata:
        unit = self._unit
        await unit.waits(running_loop()).wait(unit.done_or_never)
        return self._outcome.get(0.0)

    async def durable(self, timeout: float | None = None) -> BatchOutcome:  # noqa: ASYNC109
        """Wait until the whole batch is on disk. With `spool="never"`, wait until the batch is committed.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            The outcome itself.

        Raises:
            KafkaTimeoutError: The batch was not durable in time. The batch may still become durable.
            SpoolError: The spool failed permanently.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        unit = self._unit
        if not await unit.waits(running_loop()).wait(unit.kept_or_never, timeout):
            raise unit.not_durable(timeout)
        self._outcome.durable(0.0)
        return self

    @called
    def done(self) -> bool:
        """Return whether the batch is committed or dropped."""
        return self._outcome.is_done

    def result(self) -> atomic.BatchMetadata:
        """Return the committed batch's metadata. If the batch was dropped, raise the error that explains why.

        Raises:
            InvalidStateError: The batch is not done.
        """
        self._check_done()
        return self._outcome.get(0.0)

    @called
    def exception(self) -> BaseException | None:
        """Return why the batch was dropped; None if the batch was committed.

        Raises:
            InvalidStateError: The batch is not done.
        """
        self._check_done()
        return self._outcome.exception

    def _check_done(self) -> None:
        if not self._outcome.is_done:
            raise asyncio.InvalidStateError("The batch has no result yet: await the outcome")

    def add_done_callback(
        self, call: Callable[[BatchOutcome], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call `call(outcome)` on the running loop when the batch is committed or dropped. If the batch is committed or
        dropped already, schedule the call at once.
        """
        loop = running_loop()

        def soon(_: object) -> None:
            loop.call_soon_threadsafe(call, self, context=context)

        self._outcome.add_both(soon)

    def __repr__(self) -> str:
        return repr(self._outcome)


class AtomicBatch:
    """Collects records and offsets that are delivered together: `async with producer.batch() as batch`.

    Only one task at a time may use a batch.

    If the block raises an exception, or the task is cancelled, the producer sends nothing of the batch.
    """

    def __init__(self, owner: Owner, batch: atomic.AtomicBatch) -> None:
        self._owner = owner
        self._batch = batch
        self._unawaited: set[_SendingOffsets] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._batch.decision.first.made:
            return
        if kind is None:
            await self.commit()
        else:
            self._batch.drop()

    @property
    def outcome(self) -> BatchOutcome:
        """The result of the batch.

        Raises:
            UsageError: The batch is not committed yet, or was dropped.
        """
        return BatchOutcome(self._batch.outcome)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> RecordFuture:
        """Add a record. This method never has to wait, so it is not a coroutine: the producer accepts the records only
        at `commit`.


        Returns:
            A future for the record's metadata. Await it only after `commit`.

        Raises:
            Exception: As for `kafkasafe.AtomicBatch.send`.
        """
        record = self._batch.send(topic, value, key, headers_of(headers), partition, timestamp_ms)
        future: RecordFuture = RecordFuture()
        return future.refer_to(self._owner, record.open_batch, record.index)

    def send_offsets(self, offsets: Any, group: Any = None) -> Awaitable[None]:
        """Add a consumer's offsets to the batch, so that the batch's records and the offsets are committed together.
        Await the result of this call.

        The batch gets the offsets after the last records that the consumer has returned to the program.

        Args:
            offsets: A SafeConsumer of this package, opened with `enable_auto_commit=False`; or any argument of
                `kafkasafe.atomic.AtomicBatch.send_offsets`.
            group: As for `kafkasafe.atomic.AtomicBatch.send_offsets`.

        Raises:
            UsageError: The batch was committed or dropped before; or the consumer has no group or commits
                automatically.
        """
        sending = _SendingOffsets(
            self._unawaited.discard, functools.partial(self._send_offsets, offsets, group)
        )
        self._unawaited.add(sending)
        return sending

    async def _send_offsets(self, offsets: Any, group: Any) -> None:
        if not isinstance(offsets, SafeConsumer):
            self._batch.send_offsets(offsets, group)
            return
        decision = self._batch.decision
        decision.check_open()
        giver = weakref.ref(offsets)
        fate = self._batch.offsets.claim(str(offsets.client.config["group_id"]), giver)
        try:
            lane = self._owner.opened.parts.delivery.pump.own_lane
            offer = await calls_of(offsets).offer_positions(fate, lane)
            decision.check_open()
            self._batch.offsets.take(giver, fate, *offer)
        except BatchDroppedError:
            self._batch.drop()
            raise
        except BaseException as error:
            # The consumer's thread may still claim offsets for this batch, but these offsets do not become part of the
            # batch.
            fate.forget()
            if isinstance(error, asyncio.CancelledError) and decision.outcome is None:
                self._batch.drop()  # do not send the batch's records without the offsets
            raise

    async def commit(self) -> BatchOutcome:
        """Pass the whole batch to the producer.

        If the call is cancelled, the producer either accepts the whole batch or drops the batch. After an acceptance,
        `outcome` returns the outcome of the batch. After a drop, `outcome` raises UsageError, and the program can send
        the records again without duplicates.

        Raises:
            SpoolFullError: The spool had no room within `max_block_ms`. The batch was not accepted; call `commit` again
                later.
            UsageError: The batch was committed or dropped before.
        """
        self._batch.decision.check_open()
        if self._unawaited:
            self._batch.drop()
            raise UsageError(
                "send_offsets() was not awaited, so the batch would lack the offsets. Nothing of it is sent: await"
                " send_offsets() before commit"
            )
        try:
            return BatchOutcome(await call_in_thread("kafkasafe-aio-commit", self._batch.commit))
        except asyncio.CancelledError:
            with contextlib.suppress(UsageError):  # accepted
                self._batch.drop()
            raise

    def drop(self) -> None:
        """Discard the batch. The producer has sent none of the batch's records, and will send none."""
        self._batch.drop()


class _SendingOffsets:
    """The awaitable that `send_offsets` returns. Informs the batch when the program awaits this object."""

    def __init__(
        self, awaited: Callable[[_SendingOffsets], object], send: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._awaited = awaited
        self._send = send

    def __await__(self) -> Generator[Any, None, None]:
        self._awaited(self)
        return self._send().__await__()

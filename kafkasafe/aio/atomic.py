"""Atomic batches in an event loop. See kafkasafe/atomic.py, and docs/staged.md."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Generator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kafkasafe import atomic
from kafkasafe._core.patience import timeout_of
from kafkasafe._io.spelling import Absent, Tidy, called, tidy_dir
from kafkasafe.aio.consumer import SafeConsumer
from kafkasafe.aio.futures import (
    ADD_DONE_CALLBACK,
    DONE,
    EXCEPTION,
    RESULT,
    RecordFuture,
    waits_of,
)
from kafkasafe.aio.instead import headers_of
from kafkasafe.aio.threads import call_in_thread
from kafkasafe.errors import BatchDroppedError, UsageError, WaitTimeoutError

if TYPE_CHECKING:
    from kafkasafe.aio.producer import SafeProducer

__all__ = ["AtomicBatch", "BatchOutcome"]


class BatchOutcome(metaclass=Tidy):
    """What becomes of an atomic batch as a whole: `await` it for its commit, or `await outcome.durable()`.

    Its names are asyncio.Future's; kafka-python's are those of `kafkasafe.BatchOutcome`.

    Attributes:
        batch_id: As `spool ls` shows it.
    """

    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        is_done = Absent(DONE)
        value = Absent(RESULT)
        get = Absent(RESULT)
        succeeded = Absent(EXCEPTION)
        failed = Absent(EXCEPTION)
        retriable = Absent("never: what can be retried is retried")
        add_callback = Absent(ADD_DONE_CALLBACK)
        add_errback = Absent(ADD_DONE_CALLBACK)
        add_both = Absent(ADD_DONE_CALLBACK)

    def __init__(self, outcome: atomic.BatchOutcome) -> None:
        self._outcome = outcome
        self.batch_id = outcome.batch_id

    def __await__(self) -> Generator[Any, None, atomic.BatchMetadata]:
        """Wait until it is committed.

        Raises:
            BatchDroppedError: It was given up, and none of it is delivered.
            WrongClusterError: Another cluster answers instead of the one that it is for.
        """
        return self._get().__await__()

    async def _get(self) -> atomic.BatchMetadata:
        outcome, ledger = self._outcome, self._outcome._producer._pump.ledger
        await waits_of(outcome._producer).wait(
            lambda: outcome.is_done or ledger.wrong_cluster is not None or ledger.failure is not None
        )
        return outcome.get(0.0)

    async def durable(self, timeout: float | None = None) -> BatchOutcome:  # noqa: ASYNC109
        """Wait until all of it is on disk; with `spool="never"`: until it is committed.

        Args:
            timeout: Seconds, None for ever.

        Returns:
            Itself.

        Raises:
            KafkaTimeoutError: Not durable in time. It may still become so.
            SpoolError: The spool failed for good.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        outcome = self._outcome
        ledger, in_memory = outcome._producer._pump.ledger, outcome._producer._config.in_memory
        in_time = await waits_of(outcome._producer).wait(
            lambda: (
                outcome.is_done or (outcome._head.durable and not in_memory) or ledger.failure is not None
            ),
            timeout,
        )
        if not in_time:
            raise WaitTimeoutError(
                f"The batch was not durable after {timeout} s.{outcome._producer._disk_cause()}{outcome._because()}"
            )
        outcome.durable(0.0)
        return self

    @called
    def done(self) -> bool:
        """Whether its fate is final."""
        return self._outcome.is_done

    def result(self) -> atomic.BatchMetadata:
        """What was committed, or the error raised for which it was given up.

        Raises:
            InvalidStateError: It is not done.
        """
        self._check_done()
        return self._outcome.get(0.0)

    @called
    def exception(self) -> BaseException | None:
        """Why a batch that is done was given up; None when it was committed.

        Raises:
            InvalidStateError: It is not done.
        """
        self._check_done()
        return self._outcome.exception

    def _check_done(self) -> None:
        if not self._outcome.is_done:
            raise asyncio.InvalidStateError("The batch has no fate yet: await the outcome")

    @staticmethod
    def cancel(msg: object = None) -> bool:  # noqa: ARG004  # asyncio's
        """What was accepted is delivered: nothing is cancelled.

        Returns:
            False, as of a future that can no longer be cancelled.
        """
        return False

    @staticmethod
    def cancelled() -> bool:
        """Never: what was accepted is delivered."""
        return False

    def add_done_callback(
        self, call: Callable[[BatchOutcome], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Call `call(outcome)` on the running loop when the batch is committed or given up; soon if it is."""
        loop = asyncio.get_running_loop()

        def soon(_: object) -> None:
            loop.call_soon_threadsafe(call, self, context=context)

        self._outcome.add_both(soon)

    def __repr__(self) -> str:
        return repr(self._outcome)


class AtomicBatch:
    """Collects what is to be delivered together: `async with producer.batch() as batch`. One task at a time.

    An exception in the block, also that of a task that is cancelled: nothing of it is sent.
    """

    def __init__(self, owner: SafeProducer, batch: atomic.AtomicBatch) -> None:
        self._owner = owner
        self._batch = batch
        self._unawaited: set[_SendingOffsets] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._batch._outcome is not None or self._batch._dropped:
            return
        if kind is None:
            await self.commit()
        else:
            self._batch.drop()

    @property
    def outcome(self) -> BatchOutcome:
        """What becomes of it.

        Raises:
            UsageError: It is not committed yet, or was dropped.
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
        """Add a record; no coroutine, since nothing is accepted before `commit`.

        Returns:
            A future for the record's metadata, which may be awaited after `commit`.

        Raises:
            Exception: As of `kafkasafe.SafeProducer.batch`'s `send`.
        """
        record = self._batch.send(topic, value, key, headers_of(headers), partition, timestamp_ms)
        future: RecordFuture = RecordFuture()
        future._owner, future._chunk, future._index = self._owner, record._chunk, record._index
        return future

    def send_offsets(self, offsets: Any, group: Any = None) -> Awaitable[None]:
        """To be awaited: commit a consumer's offsets together with the records: of what it has handed out.

        Args:
            offsets: A SafeConsumer of this package, opened with `enable_auto_commit=False`; or what
                `kafkasafe.atomic.AtomicBatch.send_offsets` takes.
            group: See there.

        Raises:
            UsageError: The batch was committed or dropped; or the consumer is in no group, or commits by itself.
        """
        return _SendingOffsets(self, offsets, group)

    async def _send_offsets(self, offsets: Any, group: Any) -> None:
        if not isinstance(offsets, SafeConsumer):
            self._batch.send_offsets(offsets, group)
            return
        self._batch._check_open()
        fate = self._batch._claim(str(offsets._opened.config["group_id"]))
        try:
            offer = await offsets._offer_positions(fate)
            self._batch._check_open()
            self._batch._take_offer(fate, *offer)
        except BatchDroppedError:
            self._batch.drop()
            raise
        except BaseException:
            # Its offsets may be claimed later, on the consumer's thread: they are not in the batch.
            fate.forget()
            raise

    async def commit(self) -> BatchOutcome:
        """Hand it over as a whole.

        Cancelled meanwhile it is accepted as a whole by then, and `outcome` is there; or it is dropped, and `outcome`
        is a UsageError. Who sends its records again in the latter case has none of them twice.

        Raises:
            SpoolFullError: No room within `max_block_ms`. Nothing of it was accepted; it may be committed again later.
            UsageError: It was committed or dropped before.
        """
        self._batch._check_open()
        if self._unawaited:
            self._batch.drop()
            raise UsageError(
                "send_offsets() was not awaited: the batch would be without the offsets. Nothing of it is sent"
            )
        try:
            return BatchOutcome(await call_in_thread("kafkasafe-aio-commit", self._batch.commit))
        except asyncio.CancelledError:
            with contextlib.suppress(UsageError):  # accepted
                self._batch.drop()
            raise

    def drop(self) -> None:
        """Forget it. Nothing of it was sent, or will be."""
        self._batch.drop()


class _SendingOffsets:
    """What `send_offsets` returns. The batch knows whether it was awaited."""

    def __init__(self, batch: AtomicBatch, offsets: Any, group: Any) -> None:
        self._batch = batch
        self._offsets = offsets
        self._group = group
        batch._unawaited.add(self)

    def __await__(self) -> Generator[Any, None, None]:
        self._batch._unawaited.discard(self)
        return self._batch._send_offsets(self._offsets, self._group).__await__()

"""SafeProducer for asyncio: aiokafka's interface, on the spool of kafkasafe.SafeProducer."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Iterable
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, Unpack, cast

from kafka.producer.future import RecordMetadata

from kafkasafe import producer as threads
from kafkasafe._producing.open_batch import Special
from kafkasafe._producing.shutdown import report_failed_close
from kafkasafe._producing.spelling import Absent, Tidy, tidy_dir
from kafkasafe.aio.atomic import AtomicBatch
from kafkasafe.aio.futures import Opened, RecordFuture
from kafkasafe.aio.gate import SendGate
from kafkasafe.aio.instead import BATCHES, BLOCK, UNIT, FunctionPartitioner, headers_of
from kafkasafe.aio.threads import call_in_thread, retrieve, running_loop
from kafkasafe.config import check_no_positional, validate
from kafkasafe.errors import ConfigError, ProducerClosedError, UsageError
from kafkasafe.health.states import ProducerHealth, unopened_producer
from kafkasafe.limits.patience import timeout_of
from kafkasafe.options import AsyncProducerOptions, ProducerOptions
from kafkasafe.process.one_process import OfOneProcess
from kafkasafe.record.batch import RECORD_OVERHEAD

_OTHER_LOOP = (
    "The producer belongs to another event loop: open one for each, or use asyncio.run_coroutine_threadsafe"
)


class SafeProducer(OfOneProcess, metaclass=Tidy):
    """`kafkasafe.SafeProducer` for asyncio, with the method names of AIOKafkaProducer.

    `async with SafeProducer(bootstrap_servers=...) as producer:` starts and closes the producer; so do `start()` and
    `stop()`. The producer belongs to the loop on which it was started. From other threads, use
    `asyncio.run_coroutine_threadsafe`.

    No method blocks the loop: other threads open the spool, encode, and wait for room and for the cluster. Your
    serializers and your partitioner run on the loop; `on_rejected` and `on_event` run on the producer's own thread.

    Args:
        loop: Ignored; accepted for compatibility with aiokafka.
        configs: The options of `kafkasafe.SafeProducer`. `partitioner` may be a function, as in aiokafka:
            `partitioner(key_bytes, all_partitions, available_partitions)`.

    Raises:
        ConfigError: An option is unknown or cannot work.
    """

    _UNLISTED = frozenset({"opened"})
    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        create_batch = Absent(BATCHES)
        send_batch = Absent(BATCHES)
        transaction = Absent(BLOCK)
        begin_transaction = Absent(UNIT)
        commit_transaction = Absent(UNIT)
        abort_transaction = Absent(UNIT)
        send_offsets_to_transaction = Absent(UNIT)

    def __init__(
        self,
        *arguments: Never,
        loop: Any = None,  # noqa: ARG002
        **configs: Unpack[AsyncProducerOptions],
    ) -> None:
        check_no_positional(arguments)
        partitioner = configs.get("partitioner")
        if callable(partitioner) and not hasattr(partitioner, "partition"):
            configs["partitioner"] = FunctionPartitioner(partitioner)
        # Validate the options now, so that wrong options raise an error in the constructor and not in `start`.
        if validate(dict(configs)).transactional_id is not None:
            raise ConfigError(
                "transactional_id: this SafeProducer has no transaction() or begin_transaction(); leave the option"
                " out, and use `async with producer.batch(transactional_id=...) as batch` (docs/staged.md)"
            )
        self._configs = cast("ProducerOptions", configs)
        self._started: Opened | None = None
        self._gate: SendGate | None = None
        self._plain_gate: SendGate | None = None
        """The gate, if no serializer is set; else None."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._once = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    # -- start and close -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the spool. `start` does not wait for a broker: records wait on disk until a broker answers.

        If the call is cancelled, nothing stays open. Idempotent.

        Raises:
            SpoolError: The spool cannot be opened. The message says which records are safe, and what to do.
            ProducerClosedError: The producer was closed before.
        """
        if self._closing is not None:
            raise ProducerClosedError("The producer is closed; open a new one")
        loop = running_loop()
        if self._loop is not None and self._loop is not loop:
            raise UsageError(_OTHER_LOOP)
        self._loop = loop
        async with self._once:
            if self._started is None:
                await self._start(loop)

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        configs = (
            self._configs
        )  # the thread gets no reference to `self`, which may be dropped before the thread ends
        producer = await call_in_thread(
            "kafkasafe-aio-start", lambda: threads.SafeProducer(**configs), undo=_let_be
        )
        opened = Opened.of(producer, loop)
        self._gate = SendGate(opened.parts, opened.worker, loop)
        self._started = opened
        self._plain_gate = self._gate if opened.parts.form.plain else None

    async def stop(self) -> None:
        """Do the same as `close()`. `stop` is aiokafka's name for this method."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the other producer's
        """Make all accepted records durable, wait for deliveries, and release the spool.

        If the call is cancelled, closing continues in the background, and the interpreter waits at exit until closing
        has ended. A repeated call waits for the end of the first call.

        Args:
            timeout: Seconds to wait for deliveries. Default: see `kafkasafe.SafeProducer.close`.

        Raises:
            ValueError: The timeout is negative or nan.
            Exception: As for `kafkasafe.SafeProducer.close`.
        """
        if timeout is not None and (timeout := timeout_of(timeout)) < 0:
            raise ValueError(f"Invalid timeout: {timeout}")
        closing = self._closing
        # A task of another loop cannot be awaited here, and never ends if its loop was closed. The inner producer's
        # `close` waits for a thread that already closes it.
        if closing is None or closing.get_loop() is not asyncio.get_running_loop():
            closing = self._closing = asyncio.ensure_future(self._close(timeout))
            closing.add_done_callback(retrieve)
        await asyncio.shield(closing)

    async def _close(self, timeout: float | None) -> None:  # noqa: ASYNC109
        async with self._once:  # wait for a running `start`
            opened = self._started
        if opened is None:
            return
        producer = opened.producer
        try:
            # The thread is not a daemon, so accepted records are on disk before the interpreter ends.
            await call_in_thread(
                "kafkasafe-aio-close",
                lambda: producer.close(timeout),
                daemon=False,
                otherwise=opened.worker,
            )
        finally:
            opened.worker.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Call `close()`.

        If the block raised an exception, do not raise an error of `close()`: log it and add it to the exception as a
        note.
        """
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except Exception as own:
            report_failed_close(own, error, self.client_id)

    def __del__(self) -> None:
        """Let the worker's thread close a producer that was dropped without `close()`."""
        opened = getattr(self, "_started", None)
        if opened is not None and opened.parts.lifecycle.closed is None:
            self._started = None
            opened.parts.shutdown.forgo_warning()
            # The inner producer's `__del__` waits a moment, so let the worker's thread drop the inner producer.
            opened.worker.put(_Last(opened.producer))
            opened.worker.stop()
            # Warn on this thread and not on the worker's, so that `pytest.warns` sees the warning.
            with contextlib.suppress(Exception):
                warnings.warn(
                    f"SafeProducer {self.client_id} was dropped without close(); it continues until all records are"
                    " delivered. Use `async with`, or `await producer.stop()`",
                    ResourceWarning,
                    stacklevel=2,
                    source=self,
                )

    # -- send ------------------------------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> RecordFuture:
        """Accept a record. Soon after this call, the record is on disk (wait with `await future.durable()`), from where
        the producer delivers the record.

        **If the call is cancelled, the record was not accepted.** The producer accepts the record only in the last step
        of the call: no other task can run between this step and the return of `send`.

        If a program sends many records, `send` lets other tasks run in between. If the spool has no room, `send` waits
        up to `max_block_ms`. The producer accepts records for one topic in the order of the calls of `send`.

        Args:
            topic: Topic name.
            value: Bytes, or an object for `value_serializer`. None deletes the key from a compacted topic.
            key: Bytes, or an object for `key_serializer`. The key determines the partition, as in KafkaProducer.
            partition: Partition number, instead of the partitioner's choice.
            timestamp_ms: Ms since the epoch. Default: the time at which the producer accepted the first record of the
                same batch.
            headers: (str, bytes) tuples; a value may be None.

        Returns:
            A future for the record's metadata. You may `await` it or ignore it.

        Raises:
            SpoolFullError: The spool had no room within `max_block_ms`. The record was not accepted.
            ProducerClosedError: `close` was called before.
            UsageError: `start` was not called, or the call comes from another loop.
            Exception: As for `kafkasafe.SafeProducer.send`. If the call raises, the record was not accepted.
        """
        gate = self._plain_gate
        if (
            gate is not None
            and gate.left > 0
            and type(value) is bytes
            and partition is None
            and timestamp_ms is None
            and headers is None
            and (key is None or type(key) is bytes)
            and not gate.lines
            and gate.place._thread_id == get_ident()  # noqa: SLF001  # see `place_of`
        ):
            # The same fast path as in `kafkasafe.SafeProducer.send` (see `OpenBatch`). The gate handles the other
            # cases.
            size = RECORD_OVERHEAD + len(value)
            if key is not None:
                size += len(key)
            try:
                open_batch = gate.open_batches[topic]
                open_batch.left = left = open_batch.left - size
                if left >= 0:
                    index = next(open_batch.numbers)
                    if key is not None:
                        open_batch.keys[index] = key
                    # Create the future first: if the stack is exhausted, this call raises before the record is
                    # accepted.
                    future: RecordFuture = RecordFuture()
                    open_batch.values[index] = value
                    if open_batch.open:
                        gate.left -= 1
                        future.owner = self
                        future.open_batch = open_batch
                        future.index = index
                        return future
                    if open_batch.took(index):
                        return gate.future(self, open_batch, index)
            except IndexError:
                if gate.put(open_batch, index, key, value, None):
                    return gate.future(self, open_batch, index)
            except KeyError:
                pass
        value, key, special, size = self._checked(topic, value, key, partition, timestamp_ms, headers)
        gate = self._gate
        if gate is None:
            raise self._not_started()
        return gate.try_now(self, topic, key, value, special, size) or await gate.wait_and_accept(
            self, topic, key, value, special, size
        )

    def _checked(
        self, topic: str, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
    ) -> tuple[bytes | None, bytes | None, Special | None, int]:
        """Check and serialize a record. Return the record's value, key and other fields, and its approximate size in
        bytes.
        """
        parts = self.opened.parts
        if running_loop() is not self._loop:
            raise UsageError(_OTHER_LOOP)
        key, value, special, size = parts.form.prepare(
            topic, value, key, headers_of(headers), partition, timestamp_ms
        )
        return value, key, special, size

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement. If the call is cancelled, the record may be accepted already.

        Raises:
            Exception: As for `send`, and for the future.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    def batch(self, *, transactional_id: str = "") -> AtomicBatch:
        """Open an atomic batch: records of any topics and partitions, delivered together or not at all.

            async with producer.batch() as batch:
                batch.send("orders", order)
                batch.send("audit", entry)
            await batch.outcome

        See `kafkasafe.SafeProducer.batch`.

        Args:
            transactional_id: The transactional id. Default: an id that the producer chooses.
        """
        return AtomicBatch(self, self.opened.producer.batch(transactional_id=transactional_id))

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until all records accepted so far are acknowledged or rejected, as `kafkasafe.SafeProducer.flush` does.

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: Some records did not get a result in time. These records are on disk and will be
                delivered.
            Exception: As for `kafkasafe.SafeProducer.flush`.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        opened = self.opened
        parts = opened.parts
        parts.lifecycle.check_fork()
        ledger = parts.delivery.pump.ledger
        await self._seal(opened)
        parts.delivery.pump.adopt_now()
        number = ledger.last_number()
        finished = await opened.waits_here().wait(
            lambda: parts.delivery.settled_or_never(number) or ledger.failure is not None, timeout
        )
        parts.delivery.raise_unsettled(number, timeout, finished=finished)

    async def durable(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until all records accepted so far are durable, as `kafkasafe.SafeProducer.durable` does.

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: Some records were not durable in time.
            SpoolError: The spool failed permanently.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        opened = self.opened
        parts = opened.parts
        parts.lifecycle.check_fork()
        ledger = parts.delivery.pump.ledger
        await self._seal(opened)
        number = ledger.undurable.last_number()
        if parts.config.spool == "on_error":
            parts.delivery.pump.spill_all()
        pump = parts.delivery.pump
        look = 0 if parts.config.in_memory else pump.ask_look()
        await opened.waits_here().wait(
            lambda: (
                (ledger.undurable.spooled(number) and pump.has_looked(look))
                or ledger.failure is not None
                or (
                    parts.config.in_memory and (ledger.errors.undecidable or ledger.wrong_cluster is not None)
                )
            ),
            timeout,
        )
        parts.delivery.raise_unspooled(number, timeout)
        parts.delivery.raise_displaced(look, timeout)

    async def _seal(self, opened: Opened) -> None:
        seal_all = opened.parts.accumulator.seal_all
        if self._closing is None:
            await opened.worker.run(seal_all)
        else:  # the worker may have ended
            await call_in_thread("kafkasafe-aio-seal", seal_all)

    # -- looking ---------------------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic.

        Raises:
            ProducerClosedError: `close` was called before.
            KafkaTimeoutError: The partitions were not known within `max_block_ms`.
            TypeError: The topic is not a string.
            ValueError: The topic name is invalid.
        """
        producer = self.opened.producer
        self.opened.parts.admission.check_topic(topic)
        return await call_in_thread("kafkasafe-aio-look", lambda: producer.partitions_for(topic))

    def resolve_undecidable(self, *, resend: bool) -> None:
        """Decide about undecidable batches; see `kafkasafe.SafeProducer.resolve_undecidable`."""
        self.opened.producer.resolve_undecidable(resend=resend)

    def bootstrap_connected(self) -> bool:
        """Return whether the cluster answers. For a readiness probe, use `health` instead."""
        return self.opened.producer.bootstrap_connected()

    def health(self) -> ProducerHealth:
        """Like `kafkasafe.SafeProducer.health`. Never waits. Any thread may call this method, even before `start`."""
        if self._started is None:
            return unopened_producer(closed=self._closing is not None)
        return self._started.producer.health()

    def metrics(self, raw: bool = False) -> dict[str, Any]:
        """Like `kafkasafe.SafeProducer.metrics`."""
        return self.opened.producer.metrics(raw)

    @property
    def client_id(self) -> str:
        """The option `client_id`; "kafkasafe" by default."""
        return str(self._configs.get("client_id") or "kafkasafe")

    @property
    def client(self) -> threads.SafeProducer:
        """The inner `kafkasafe.SafeProducer`, as soon as the producer is started. The inner producer has some methods
        that this class lacks.

        The inner producer's methods may block the loop.
        """
        return self.opened.producer

    def __repr__(self) -> str:
        return f"<aio.SafeProducer {self._started.producer if self._started else 'not started'}>"

    # -- not for programs ------------------------------------------------------------------------------------------

    @property
    def opened(self) -> Opened:
        """The inner objects, which the futures of this producer use. Raises an error if the producer is not open."""
        if self._started is None:
            raise self._not_started()
        return self._started

    def _not_started(self) -> Exception:
        if self._closing is not None:
            return ProducerClosedError("The producer is closed")
        return UsageError(
            "The producer is not started: use `async with SafeProducer(...) as producer`, or `await producer.start()`"
        )


class _Last:
    """A job that holds the last reference to a producer."""

    __slots__ = ("_producer",)

    def __init__(self, producer: threads.SafeProducer) -> None:
        self._producer = producer

    def __call__(self) -> None:
        """Do nothing. The worker drops the job, and with it the producer."""


def _let_be(producer: threads.SafeProducer) -> None:
    """Close the producer of a cancelled `start`. The producer has accepted no record."""
    producer.close(0.0)

"""SafeProducer for asyncio: aiokafka's interface, on the spool of kafkasafe.SafeProducer."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterable
from threading import get_ident
from types import TracebackType
from typing import Any, Self, Unpack

from kafka.producer.future import RecordMetadata

from kafkasafe import producer as threads
from kafkasafe._core.batch import RECORD_OVERHEAD
from kafkasafe._core.health import ProducerHealth, unopened_producer
from kafkasafe._core.patience import timeout_of
from kafkasafe._io.awaiting import LoopWaits
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe._producing.chunk import Special
from kafkasafe._producing.hold import goes_first
from kafkasafe.aio.atomic import AtomicBatch
from kafkasafe.aio.futures import RecordFuture, waits_of
from kafkasafe.aio.gate import Gate
from kafkasafe.aio.instead import FunctionPartitioner, NotOfProducer, headers_of
from kafkasafe.aio.threads import Worker, call_in_thread, retrieve
from kafkasafe.config import validate
from kafkasafe.errors import ConfigError, ProducerClosedError, UsageError
from kafkasafe.logs import EventLog
from kafkasafe.options import ProducerOptions

__all__ = ["SafeProducer"]

log = EventLog("producer")

_OTHER_LOOP = (
    "The producer belongs to another event loop: make one for each, or use asyncio.run_coroutine_threadsafe"
)
Call = tuple[Callable[[RecordFuture], object], contextvars.Context | None]


class SafeProducer(NotOfProducer, OfOneProcess):
    """`kafkasafe.SafeProducer` for a program with an event loop; the methods are named as AIOKafkaProducer's.

    `async with SafeProducer(bootstrap_servers=...) as producer:` starts and closes it, or `start()` and `stop()` do. It
    belongs to the loop that it was started on; other threads use `asyncio.run_coroutine_threadsafe`.

    Nothing here holds the loop up: another thread opens the spool, encodes, waits for room and for the cluster.
    Serializers and a partitioner of yours run on the loop; `on_rejected` and `on_event` on the producer's own thread.

    Args:
        loop: Ignored; aiokafka's.
        configs: The options of `kafkasafe.SafeProducer`. `partitioner` may be a function, as aiokafka's:
            `partitioner(key_bytes, all_partitions, available_partitions)`.

    Raises:
        ConfigError: An option is unknown or cannot work.
    """

    def __init__(self, *, loop: Any = None, **configs: Unpack[ProducerOptions]) -> None:  # noqa: ARG002
        partitioner = configs.get("partitioner")
        if callable(partitioner) and not hasattr(partitioner, "partition"):
            configs["partitioner"] = FunctionPartitioner(partitioner)
        # So that what is wrong is said here.
        if validate(dict(configs)).transactional_id is not None:
            raise ConfigError(
                "transactional_id: this SafeProducer has no transaction() or begin_transaction(); leave the option"
                " out, and use `async with producer.batch(transactional_id=...) as batch` (docs/staged.md)"
            )
        self._configs = configs
        self._producer: threads.SafeProducer | None = None
        self._gate: Gate | None = None
        self._plain_gate: Gate | None = None
        """The same, where bytes are sent as they are."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._once = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._to_seal: set[Any] = set()
        self._calls: dict[tuple[int, int], tuple[RecordFuture, list[Call], asyncio.Task[None]]] = {}

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the spool. It does not wait for a broker: records wait on disk until there is one.

        Cancelled, it leaves nothing open. Again, it does nothing.

        Raises:
            SpoolError: The spool cannot be opened; the message says what is safe and what to do.
            ProducerClosedError: It was closed.
        """
        if self._closing is not None:
            raise ProducerClosedError("The producer is closed; make a new one")
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise UsageError(_OTHER_LOOP)
        self._loop = loop
        async with self._once:
            if self._producer is None:
                await self._start(loop)

    async def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        producer = await call_in_thread(
            "kafkasafe-aio-start", lambda: threads.SafeProducer(**self._configs), undo=_let_be
        )
        self._producer = producer
        self._waits = waits_of(producer)
        self._worker = Worker(f"kafkasafe-aio-{producer.client_id}")
        self._gate = Gate(producer, self._worker, loop)
        self._plain_gate = self._gate if producer._plain else None

    async def stop(self) -> None:
        """As `close()`; aiokafka's name."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the other producer's
        """Make everything durable, deliver what can be delivered, and let go of the spool.

        Cancelled, it goes on by itself, and the interpreter waits for it. Again, it waits for the same end.

        Args:
            timeout: Seconds to wait for deliveries. Default: see `kafkasafe.SafeProducer.close`.

        Raises:
            ValueError: A negative timeout, or nan.
            Exception: As of `kafkasafe.SafeProducer.close`.
        """
        if timeout is not None and (timeout := timeout_of(timeout)) < 0:
            raise ValueError(f"Invalid timeout: {timeout}")
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout))
            self._closing.add_done_callback(retrieve)
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float | None) -> None:  # noqa: ASYNC109
        async with self._once:  # a start under way ends first
            producer = self._producer
        if producer is None:
            return
        try:
            # Not a daemon: what was accepted is on disk before the interpreter ends.
            await call_in_thread("kafkasafe-aio-close", lambda: producer.close(timeout), daemon=False)
        finally:
            self._worker.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, as `close()`. After an exception of the block nothing else is raised, but logged, and noted there."""
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except Exception as own:
            error.add_note(f"And when the SafeProducer was closed: {type(own).__name__}: {own}")
            log.error(  # noqa: TRY400  # what it says matters, not where it was raised
                "Not raised after a %s: %s",
                type(error).__name__,
                own,
                client_id=self.client_id,
                error=type(own).__name__,
                event="close_failed",
            )

    def __del__(self) -> None:
        """Dropped without `close()`: as `kafkasafe.SafeProducer`, but no loop waits for it."""
        producer = getattr(self, "_producer", None)
        if producer is not None and producer._closed is None:
            self._producer = None
            goes_first(producer._pump, producer._spool_path)
            # Its own `__del__` waits a moment, and so runs over there.
            self._worker.put(_Last(producer))
            self._worker.stop()

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
        """Accept a record. It is on disk soon after (`await future.durable()`), and delivered from there.

        **Cancelled, it has accepted nothing**: a record is accepted in the step in which this returns, never before.

        Where many records come it gives other tasks their turn; where there is no room in the spool it waits up to
        `max_block_ms`. Records to one topic are accepted in the order in which `send` was called.

        Args:
            topic: Topic name.
            value: Bytes, or what `value_serializer` takes. None deletes the key from a compacted topic.
            key: Bytes, or what `key_serializer` takes. Decides the partition as KafkaProducer does.
            partition: Partition number, instead of the partitioner's choice.
            timestamp_ms: Ms since the epoch. Default: when the first record of its batch was accepted.
            headers: (str, bytes) tuples; a value may be None.

        Returns:
            A future for the record's metadata: `await` it, or keep it, or throw it away.

        Raises:
            SpoolFullError: No room within `max_block_ms`. The record was not accepted.
            ProducerClosedError: After `close`.
            UsageError: Before `start`, or on another loop.
            Exception: As of `kafkasafe.SafeProducer.send`: nothing that raises was accepted.
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
            and gate.place._thread_id == get_ident()
        ):
            # As `kafkasafe.SafeProducer.send` does it: see `Chunk`. What is rare is for the gate.
            size = RECORD_OVERHEAD + len(value)
            if key is not None:
                size += len(key)
            try:
                chunk = gate.producer._chunks[topic]
                chunk.left = left = chunk.left - size
                if left >= 0:
                    index = next(chunk.numbers)
                    if key is not None:
                        chunk.keys[index] = key
                    # Before the record is accepted: at the end of the stack any call raises.
                    future: RecordFuture = RecordFuture()
                    chunk.values[index] = value
                    if chunk.open:
                        gate.left -= 1
                        future._owner = self
                        future._chunk = chunk
                        future._index = index
                        return future
                    if chunk.took(index):
                        return gate.future(self, chunk, index)
            except IndexError:
                if gate.put(chunk, index, key, value, None):
                    return gate.future(self, chunk, index)
            except KeyError:
                pass
        value, key, special, size = self._checked(topic, value, key, partition, timestamp_ms, headers)
        gate = self._opened_gate
        return gate.try_now(self, topic, key, value, special, size) or await gate.wait_and_accept(
            self, topic, key, value, special, size
        )

    def _checked(
        self, topic: str, value: Any, key: Any, partition: Any, timestamp_ms: Any, headers: Any
    ) -> tuple[bytes | None, bytes | None, Special | None, int]:
        """Value, key, what else there is, and about how many bytes it is."""
        producer = self._producer
        if producer is None:
            raise self._not_started()
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(_OTHER_LOOP)
        key, value, special, size = producer._checked(
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
        """`send`, and wait for the acknowledgement. Cancelled meanwhile the record may have been accepted.

        Raises:
            Exception: As of `send`, and of the future.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    def batch(self, *, transactional_id: str = "") -> AtomicBatch:
        """Records of any topics and partitions that are delivered together or not at all.

            async with producer.batch() as batch:
                batch.send("orders", order)
                batch.send("audit", entry)
            await batch.outcome

        See `kafkasafe.SafeProducer.batch`.

        Args:
            transactional_id: Of the transaction; by default one of this producer's own.
        """
        return AtomicBatch(self, self._opened.batch(transactional_id=transactional_id))

    # -- waiting ---------------------------------------------------------------------------------------------------

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until every record accepted before has its fate; as `kafkasafe.SafeProducer.flush`.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not everything in time. It is on disk and will be delivered.
            Exception: As of `kafkasafe.SafeProducer.flush`.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        producer = self._opened
        producer._check_fork()
        ledger = producer._pump.ledger
        await self._seal(producer)
        producer._pump.adopt_now()
        number = ledger.last_number()
        finished = await self._waits_here().wait(
            lambda: producer._settled_or_never(number) or ledger.failure is not None, timeout
        )
        producer._raise_unsettled(number, timeout, finished=finished)

    async def durable(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until every record accepted before is durable; as `kafkasafe.SafeProducer.durable`.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not everything in time.
            SpoolError: The spool failed for good.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        producer = self._opened
        producer._check_fork()
        ledger = producer._pump.ledger
        await self._seal(producer)
        number = ledger.last_undurable()
        if producer._config.spool == "on_error":
            producer._pump.spill_all()
        await self._waits_here().wait(
            lambda: (
                ledger.spooled(number)
                or ledger.failure is not None
                or (producer._config.in_memory and (ledger.parked or ledger.wrong_cluster is not None))
            ),
            timeout,
        )
        producer._raise_unspooled(number, timeout)

    async def _seal(self, producer: threads.SafeProducer) -> None:
        if self._closing is None:
            await self._worker.run(producer._seal_all)
        else:  # the worker may have ended
            await call_in_thread("kafkasafe-aio-seal", producer._seal_all)

    # -- looking ---------------------------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> set[int]:
        """Partitions of a topic.

        Raises:
            ProducerClosedError: After `close`.
            KafkaTimeoutError: Not known within `max_block_ms`.
            TypeError: It is no string.
            ValueError: A topic of this name cannot exist.
        """
        producer = self._opened
        producer._check_topic(topic)
        return await call_in_thread("kafkasafe-aio-look", lambda: producer.partitions_for(topic))

    def resolve_undecidable(self, *, resend: bool) -> None:
        """Decide about undecidable batches; see `kafkasafe.SafeProducer.resolve_undecidable`."""
        self._opened.resolve_undecidable(resend=resend)

    def bootstrap_connected(self) -> bool:
        """Whether the cluster answers. No readiness probe: in an outage the producer still accepts records."""
        return self._opened.bootstrap_connected()

    def health(self) -> ProducerHealth:
        """As of `kafkasafe.SafeProducer`. It never waits, and any thread may call it, also before `start`."""
        if self._producer is None:
            return unopened_producer(closed=self._closing is not None)
        return self._producer.health()

    def metrics(self, raw: bool = False) -> dict[str, Any]:
        """As of `kafkasafe.SafeProducer`."""
        return self._opened.metrics(raw)

    @property
    def client_id(self) -> str:
        """As given, or "kafkasafe"."""
        return str(self._configs.get("client_id") or "kafkasafe")

    @property
    def client(self) -> threads.SafeProducer:
        """The producer underneath, once it is started: for what is not here. Its calls may wait; the loop would."""
        return self._opened

    def __repr__(self) -> str:
        return f"<aio.SafeProducer {self._producer or 'not started'}>"

    # -- friends ---------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> threads.SafeProducer:
        if self._producer is None:
            raise self._not_started()
        return self._producer

    @property
    def _opened_gate(self) -> Gate:
        if self._gate is None:
            raise self._not_started()
        return self._gate

    def _not_started(self) -> Exception:
        if self._closing is not None:
            return ProducerClosedError("The producer is closed")
        return UsageError(
            "Not started: `async with SafeProducer(...) as producer`, or `await producer.start()`"
        )

    def _loop_of(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise self._not_started()
        return self._loop

    def _waits_here(self) -> LoopWaits:
        """Those of the running loop: a future may be awaited after its producer's loop is over."""
        loop = asyncio.get_running_loop()
        return self._waits if loop is self._loop else waits_of(self._opened)

    def _seal_soon(self, chunk: Any) -> None:
        """Somebody waits for it. What other tasks send in this iteration of the loop still comes along."""
        if chunk.parcels is not None:
            return
        batch = chunk.atomic
        if batch is not None:
            batch._cannot_wait()
        if not self._to_seal:
            asyncio.get_running_loop().call_soon(self._seal_now)
        self._to_seal.add(chunk)

    def _seal_now(self) -> None:
        producer, chunks = self._producer, self._to_seal
        self._to_seal = set()
        if producer is not None:
            for chunk in chunks:
                # By the pump: what is sent while it writes comes along, and no other thread has to be woken for it.
                chunk.due = 0.0
            producer._pump.poke()

    def _call_when_done(
        self,
        future: RecordFuture,
        call: Callable[[RecordFuture], object],
        context: contextvars.Context | None,
    ) -> None:
        loop = self._loop_of()
        if future.done():
            loop.call_soon(call, future, context=context)
            return
        key = id(future._chunk), future._index
        known = self._calls.get(key)
        if known is None:
            known = self._calls[key] = future, [], loop.create_task(self._call(key, future))
        known[1].append((call, context))

    async def _call(self, key: tuple[int, int], future: RecordFuture) -> None:
        try:
            await asyncio.gather(future, return_exceptions=True)
        finally:
            _, calls, _ = self._calls.pop(key)
        for call, context in calls:
            self._loop_of().call_soon(call, future, context=context)

    def _call_no_more(self, future: RecordFuture, call: Callable[[RecordFuture], object]) -> int:
        known = self._calls.get((id(future._chunk), future._index))
        if known is None:
            return 0
        before = len(known[1])
        known[1][:] = [item for item in known[1] if item[0] != call]
        return before - len(known[1])


class _Last:
    """A job that has the last reference to a producer."""

    __slots__ = ("_producer",)

    def __init__(self, producer: threads.SafeProducer) -> None:
        self._producer = producer

    def __call__(self) -> None:
        """Nothing: it is dropped after this."""


def _let_be(producer: threads.SafeProducer) -> None:
    """A start that was cancelled: nothing was accepted."""
    producer.close(0.0)

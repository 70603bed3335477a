"""SafeProducer: KafkaProducer's interface, on a spool that outlives the process.

Here is what programs see of it, and `send`; what carries it out is in `kafkasafe._producing`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from kafka.producer.future import FutureRecordMetadata, RecordMetadata

from kafkasafe._core.batch import RECORD_OVERHEAD
from kafkasafe._core.patience import timeout_of
from kafkasafe._io.awaiting import Fates, LoopWaits
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.refusals import because
from kafkasafe._io.spelling import Absent, Tidy, not_for_callers, tidy_dir
from kafkasafe._producing.calling import safely
from kafkasafe._producing.chunk import Chunk, Special
from kafkasafe._producing.closing import Closing
from kafkasafe._producing.flushing import Flushing
from kafkasafe._producing.looking import Looking
from kafkasafe._producing.opening import Opening
from kafkasafe._producing.transacting import Transacting
from kafkasafe.atomic import ADD_CALLBACK, GET, IS_DONE, NEVER_CANCELLED, AtomicBatch
from kafkasafe.config import DEFAULTS, DEPRECATED
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.logs import EventLog

__all__ = ["RecordFuture", "SafeProducer"]

log = EventLog("producer")


_FATE: Final = "the producer alone decides what becomes of a record"


class RecordFuture(FutureRecordMetadata, metaclass=Tidy):
    """The result of one `send`. All that callers use of `FutureRecordMetadata`, and `durable`.

    Its names are kafka-python's: `is_done`, `value` and `exception` are attributes. asyncio's are those of
    `kafkasafe.aio.RecordFuture`. It costs next to nothing until it is asked.
    """

    __slots__ = ("_chunk", "_first", "_index", "_producer")

    # Not the base class's, whose lock and lists no future needs. `send` sets the four, without the call of a Python
    # function for each record.
    __init__ = object.__init__
    _producer: SafeProducer
    _chunk: Chunk
    _index: int
    _first: bool
    """No callback was added yet. Whoever deletes it, which one thread can, adds the first one."""
    _UNLISTED = frozenset({"args", "error_on_callbacks"})
    __dir__ = tidy_dir

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

    def _parcel(self) -> Parcel | None:
        return None if self._chunk.parcels is None else self._chunk.locate(self._index)[0]

    # kafka-python assigns these three; here they are computed when asked.
    @property
    def is_done(self) -> bool:  # type: ignore[override]
        """Whether the record was acknowledged (and its commit mark is durable), or rejected, or given up."""
        chunk = self._chunk
        return chunk.parcels is not None and chunk.locate(self._index)[0].done

    @property
    def value(self) -> RecordMetadata | None:  # type: ignore[override]
        """The metadata, None while there is none."""
        return self._metadata() if self.succeeded() else None

    @property
    def exception(self) -> BaseException | None:  # type: ignore[override]
        """Why the record was not delivered, None while that is open or when it was."""
        parcel = self._parcel()
        return parcel.error if parcel is not None and parcel.done else None

    def durable(self, timeout: float | None = None) -> RecordFuture:
        """Wait until the record is on disk (fsynced, with its batch id if it has one) or in the cluster.

        With `spool="never"` only the cluster makes a record durable: this waits for its acknowledgement.

        Args:
            timeout: Seconds, None for ever.

        Returns:
            The future itself. From here on a crash of this process, of brokers, or of both cannot lose the record.

        Raises:
            KafkaTimeoutError: Not durable in time. It may still become so.
            SpoolError: The spool failed for good.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        self._producer._seal_chunk(self._chunk)
        self._producer._pump.wait(self._durable_or_never, timeout)
        return self._made_durable(timeout)

    def _durable_or_never(self) -> bool:
        """Whether `durable` has something to say."""
        producer = self._producer
        in_memory = producer._config.in_memory
        ledger = producer._pump.ledger
        return (
            self._is_durable()
            or self.is_done
            or (in_memory and ledger.wrong_cluster is not None)
            or ledger.failure is not None
        )

    def _made_durable(self, timeout: float | None) -> RecordFuture:
        """The end of `durable`: itself, or the error."""
        in_memory = self._producer._config.in_memory
        if not self._is_durable():
            self._producer._raise_failure()
            if in_memory and not self.is_done:
                self._producer._raise_wrong_cluster()
            error = self.exception
            if error is not None:
                raise error.with_traceback(None)
            cause = self._producer._network_cause() if in_memory else self._producer._disk_cause()
            raise WaitTimeoutError(f"The record was not durable after {timeout} s.{cause}{self._because()}")
        return self

    def _is_durable(self) -> bool:
        parcel = self._parcel()
        if parcel is None:
            return False
        kept = parcel.durable and not self._producer._config.in_memory
        return kept or (parcel.done and parcel.error is None)

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the cluster's acknowledgement, and for the record's callbacks.

        Args:
            timeout: Seconds, None for ever. What is known of the record is returned or raised at the end, even if
                callbacks take longer.

        Raises:
            KafkaTimeoutError: Not acknowledged in time. The record stays in the spool and is still delivered.
            RejectedError: The cluster rejected it.
            WrongClusterError: Another cluster answers instead of the one that the record is for. It is delivered when
                that one answers again.
        """
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._producer._seal_chunk(self._chunk)
        self._producer._pump.wait(self._done_or_never, timeout, choosy=True)
        if self.is_done:
            self._producer._called(self._chunk, deadline)
        return self._result(timeout)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """In a coroutine: `await future` is `get()` that blocks no thread. It does not wait for callbacks.

        A coroutine that is cancelled meanwhile costs the record nothing.
        """
        if not self.is_done:
            if self._chunk.parcels is None:
                # By the pump: whoever seals chooses partitions and encodes, which takes a loop too long.
                self._chunk.due = 0.0
                self._producer._pump.poke()
            waits = LoopWaits.of(self._producer._pump.ledger.waiters, asyncio.get_running_loop())
            yield from self._wait_in_loop(waits)
        return self._result(None)

    def _wait_in_loop(
        self, waits: LoopWaits, timeout_s: float | None = None, *, durable: bool = False
    ) -> Any:
        """To be awaited, or yielded from: until `_result` or `_made_durable` has something to say."""
        chunk, producer = self._chunk, self._producer
        ledger, kept = producer._pump.ledger, durable and not producer._config.in_memory
        return waits.until(
            (chunk, True) if kept else chunk,
            self._index,
            lambda: Fates(chunk, ledger, durable=kept),
            timeout_s,
        )

    def _done_or_never(self) -> bool:
        """Whether `get` has something to say."""
        ledger = self._producer._pump.ledger
        return self.is_done or ledger.wrong_cluster is not None or ledger.failure is not None

    def _result(self, timeout: float | None) -> RecordMetadata:
        """The end of `get`: the metadata, or the error."""
        parcel = self._parcel()
        if parcel is not None and parcel.done and parcel.error is None:
            return self._metadata()
        if not self.is_done:
            self._producer._raise_failure()
            self._producer._raise_wrong_cluster()
            cause = "" if self._is_durable() else self._producer._disk_cause()
            cause += self._producer._network_cause()
            raise WaitTimeoutError(f"Timeout after waiting for {timeout} secs.{cause}{self._because()}")
        error = self.exception
        if error is not None:
            raise error.with_traceback(None)
        return self._metadata()

    def _because(self) -> str:
        return because(self._producer._pump.refused(self._chunk.topic))

    def _metadata(self) -> RecordMetadata:
        return self._chunk.metadata(self._index)

    def succeeded(self) -> bool:
        """The record was acknowledged."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """The record was rejected or given up."""
        return self.is_done and self.exception is not None

    def retriable(self) -> bool:
        """Never: what can be retried is retried."""
        return False

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f(*args, metadata, **kwargs)` when the record is acknowledged.

        On the producer's own callback thread, or at once if it is already. `flush()`, `get()` and `close()` return
        after it. It does not end a batch.
        """
        if args or kwargs:
            f = functools.partial(f, *args, **kwargs)
        chunk = self._chunk
        if chunk.open:
            # The common case, without a lock, as `Chunk` does it: put it there, then look whether the chunk is still
            # open. The place is the record's own, and the first one's who adds anything: deleting succeeds once.
            try:
                del self._first
                chunk.firsts[self._index] = f
            except AttributeError:
                return self._add_callback(f)
            except IndexError:
                chunk.put_first(self._index, f)
            if chunk.open:
                return self
            firsts = chunk.first_calls()
            if self._index < len(firsts) and firsts[self._index] is not None:
                if chunk.parcels is not None:
                    chunk.watch((chunk.locate(self._index)[0],))
                return self
        return self._add_callback(f)

    def _add_callback(self, call: Callable[[RecordMetadata], Any]) -> RecordFuture:
        """It is not the record's first, or comes when the chunk is or may be sealed."""
        if not self._enlisted(self._chunk.callbacks, call) and self.succeeded():
            safely(lambda: call(self._metadata()))
        return self

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f(*args, exception, **kwargs)` when the record is rejected or given up."""
        call = functools.partial(f, *args, **kwargs) if args or kwargs else f
        if not self._enlisted(self._chunk.errbacks, call) and self.failed():
            safely(lambda: call(self.exception))
        return self

    def _enlisted(self, calls: list[Any], call: Callable[..., Any]) -> bool:
        """Leave a call to the callback thread, unless the record's fate is final."""
        chunk = self._chunk
        if chunk.parcels is not None and self.is_done:
            return False
        if not calls:
            chunk.thread.start()
        calls += (self._index, call)
        # In this order: the list is looked at after the chunk was sealed.
        if chunk.parcels is not None:
            chunk.watch((chunk.locate(self._index)[0],))
        return True

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> RecordFuture:
        """Call `f` with the metadata or the exception when the fate of the record is final."""
        self.add_callback(f, *args, **kwargs)
        self.add_errback(f, *args, **kwargs)
        return self

    def _add_cb_eb(self, cb: Callable[..., Any], eb: Callable[..., Any]) -> None:
        self.add_callback(cb)
        self.add_errback(eb)

    def __repr__(self) -> str:
        if not self.is_done:
            return f"<RecordFuture {self._chunk.topic} pending{', durable' if self._is_durable() else ''}>"
        return f"<RecordFuture {self.exception or self._metadata()}>"


class SafeProducer(Opening, metaclass=Tidy):
    """A KafkaProducer that loses nothing: what `send` accepted is on disk before it is promised.

    Takes KafkaProducer's options under their names; unknown ones are refused. Defaults that differ: `linger_ms=5`,
    `batch_size=1000000`, `delivery_timeout_ms=None` (nothing is given up), `reconnect_backoff_max_ms=1000`. Its own:

    Args:
        spool_dir (str or Path): Where records wait. One directory per cluster; any number of processes may share it.
            Default: `KAFKASAFE_SPOOL_DIR`, else the user's state directory.
        spool (str): "always": every record is on disk before it is sent. "on_error": only what the cluster does not
            acknowledge within `spool_after_ms`, when the buffer fills, and at close; a crash of this process before
            that loses those records. "never": there are no files; whatever the cluster has not acknowledged is lost
            when this process ends.
        spool_max_bytes (int): Largest size of the spool on disk, or of what waits in memory (`spool="never"`). When it
            is full `send` blocks up to `max_block_ms`, then raises SpoolFullError. Default: 1 GiB, of memory 32 MiB.
        spool_segment_bytes (int): Size of one file. Default: an eighth of that, at most 64 MiB.
        spool_sync (str): "group": one fsync for all batches that wait. "each": one per batch. "os": none; a crash of
            the machine (not of the process) may lose what is not acknowledged.
        delivery (str): "idempotent": each batch goes to its partition by itself, once, for readers of any kind.
            "transactional": in a transaction, committed in a step of its own, by this process or by another one;
            exactly once for readers with `isolation_level="read_committed"`. See docs/staged.md.
        spool_lane (int): Ask for this lane; LaneBusyError if another process has it. Default: the lowest free one.
        retain_acked_bytes (int): Keep so many bytes of delivered records on disk. Default: 0.
        delivery_timeout_ms (int): When it ends a future fails, but the record stays in the spool and is delivered.
        retain_acked_ms (float): Keep delivered records on disk for so many milliseconds. Default: 0.
        on_data_loss (str): What to do about acknowledged records that the cluster lost. "restore": send again what the
            spool still has, in order, before anything newer; what it does not have is a DataLossError of the next
            `send`, `flush` or `close`. "raise": send nothing again, DataLossError for all of it. Each loss is raised
            once. "event": only report it. Every mode emits `DataLost`, logs an error and counts it.
        restore_recreated_topics (bool): Send it again also into a topic that was deleted and created again.
            Default: no.
        data_loss_check_ms (int): How often idle partitions are checked for such a loss. Default: 30000.
        on_undecidable (str): What to do with a batch whose presence in the log cannot be determined: "raise" (from
            `send` and `flush`, until `resolve_undecidable`), "resend" (it may be there twice) or "skip".
        on_corrupt (str): "raise" SpoolCorruptError on a damaged spool, or "quarantine" what is damaged and go on.
            Damage found while sending stops its partition only ("raise": until the file is restored).
        on_rejected (callable): Called with topic, partition, key, value, headers, timestamp_ms and error of each
            record that the cluster rejected. For a dead-letter topic, send to it from here, through another producer.
        on_event (callable): Called with each event of `kafkasafe.events`, on the producer's own thread.
        prometheus (bool): Be collected by prometheus-client's default registry; `kafkasafe.metrics.install` does it for
            others. Default: no.
        blocked_timeout_ms (int): How long the cluster may refuse a topic that is missing, forbidden or invalid, or
            timestamps that are too far ahead, or fail on one batch, before what waits for it is rejected. Counted in
            this life of the producer, without a break. None: for ever. Default: seven days.
        on_blocked_topic (str): What `send` does meanwhile for a topic that is missing, forbidden or invalid: "raise"
            kafka-python's exception for the code (the record is not accepted), or "accept" more records, which wait.
        producer_id_expiration_ms (int): As on the brokers. Default: 86400000.

    Raises:
        ConfigError: An option is unknown or cannot work.
        SpoolError: The spool cannot be opened; the message says what is safe and what to do.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = dict(DEFAULTS)
    """Options and their defaults."""
    # KafkaProducer has it; no program needs it.
    _UNLISTED = frozenset({"max_usable_produce_magic"})
    __dir__ = tidy_dir
    DEPRECATED_CONFIGS: ClassVar[Iterable[str]] = tuple(DEPRECATED)
    _opened = False
    _new_future: Final = RecordFuture

    if not TYPE_CHECKING:
        # What else programs call, from the parts that carry it out. To help() it is this class's own so; type checkers
        # see what is inherited.
        __init__ = Opening.__init__
        flush = Flushing.flush
        durable = Flushing.durable
        close = Closing.close
        __del__ = Closing.__del__
        partitions_for = Looking.partitions_for
        metrics = Looking.metrics
        health = Looking.health
        init_transactions = Transacting.init_transactions
        begin_transaction = Transacting.begin_transaction
        send_offsets_to_transaction = Transacting.send_offsets_to_transaction
        commit_transaction = Transacting.commit_transaction
        abort_transaction = Transacting.abort_transaction

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Accept a record.

        It is on disk soon after (`future.durable()`, `producer.durable()`), and in the cluster as soon as that takes
        it.

        Args:
            topic: Topic name.
            value: Bytes, or what `value_serializer` takes. None deletes the key from a compacted topic.
            key: Bytes, or what `key_serializer` takes. Decides the partition as KafkaProducer does.
            headers: (str, bytes) tuples; a value may be None.
            partition: Partition number, instead of the partitioner's choice.
            timestamp_ms: Ms since the epoch. Default: when the first record of its batch was accepted, at most
                `linger_ms` ago.

        Returns:
            A future for the record's metadata.

        Raises:
            SpoolFullError: No room within `max_block_ms`. The record was not accepted.
            SpoolWriteError: There is no memory to encode the records before this one, which was not accepted.
            RecursionError: At the end of Python's stack. The record was not accepted.
            KafkaTimeoutError: Callbacks of earlier records were not called within `max_block_ms`, because they are too
                slow. The record was not accepted.
            TopicAuthorizationFailedError, UnknownTopicOrPartitionError, InvalidTopicError: The cluster refuses the
                topic, confirmed (a missing one for a minute: it may be new), and records wait for it. This one was not
                accepted; those are delivered when the cluster takes them (`on_blocked_topic="raise"`).
            ProducerClosedError: After `close`.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_data_loss`); once for
                each loss. The record was not accepted: send it again.
            TypeError: Key or value is not bytes and there is no serializer for it; headers of another shape.
            ValueError: Neither key nor value; a topic that cannot exist; a partition the topic does not have.
            MessageSizeTooLargeError: Larger than `max_request_size`.
        """
        special: Special | None = None
        if (
            self._plain
            and type(value) is bytes
            and headers is None
            and partition is None
            and timestamp_ms is None
            and (key is None or type(key) is bytes)
        ):
            size = RECORD_OVERHEAD + len(value)
            if key is not None:
                size += len(key)
        else:
            key, value, special, size = self._checked(topic, value, key, headers, partition, timestamp_ms)
        # Without the lock, which costs more than all the rest: see `Chunk`.
        chunk: Chunk | None = None
        index = -1
        try:
            chunk = self._chunks[topic]
            chunk.left = left = chunk.left - size
            if left >= 0:
                index = next(chunk.numbers)
                if key is not None:
                    chunk.keys[index] = key
                if special is not None:
                    chunk.special[index] = special
                # Before the record is accepted: at the end of the stack any call raises.
                future: RecordFuture = RecordFuture()
                chunk.values[index] = value
                if chunk.open:
                    # One by one: of four at once a tuple is made, which takes as long as the rest of them.
                    future._producer = self
                    future._chunk = chunk
                    future._index = index
                    future._first = True
                    return future
        except LookupError:
            pass
        return self._accept(topic, key, value, special, size, chunk, index)

    def batch(self, *, transactional_id: str = "") -> AtomicBatch:
        """Records of any topics and partitions that are delivered together or not at all.

            with producer.batch() as batch:
                batch.send("orders", order)
                batch.send("audit", entry)
            batch.outcome.get()

        An exception in the block: nothing of it is sent. At the end of the block the batch goes into the spool as a
        whole, and from there to the cluster in one transaction: readers with `isolation_level="read_committed"` see all
        of it or nothing, exactly once, whatever crashes. It waits there through an outage.

        Args:
            transactional_id: Of the transaction; by default one of this producer's own.
        """
        self._check_fork()
        self._raise_closed()
        return AtomicBatch(self, transactional_id)

    def _future(self, chunk: Chunk, index: int) -> RecordFuture:
        future: RecordFuture = RecordFuture()
        future._producer, future._chunk, future._index, future._first = self, chunk, index, True
        return future

    def resolve_undecidable(self, *, resend: bool) -> None:
        """Decide about the undecidable batches that the last UndecidableError spoke of; about all, if none was raised.

        A batch that becomes undecidable after that error is for another decision: the next `send` or `flush` raises it.

        Args:
            resend: True: send it under a new id; it may then be in the log twice. False: take it as delivered.

        Raises:
            TypeError: `resend` is neither: "no" is no answer to be taken for a yes.
        """
        if not isinstance(resend, bool):
            raise TypeError(f"resend must be True or False, not {resend!r}: nothing was decided")
        self._check_fork()
        self._pump.resolve_undecidable(resend=resend)

    @classmethod
    def max_usable_produce_magic(cls, api_version: tuple[int, ...]) -> int:  # noqa: ARG003  # KafkaProducer's signature
        """The record format: 2, since SafeProducer speaks to brokers since 0.11 alone."""
        return 2

    def bootstrap_connected(self) -> bool:
        """Whether the cluster answers. No readiness probe: in an outage the producer still accepts records (`health`).

        The constructor does not fail where no broker can be used, since records wait on disk; with a wrong password, CA
        or address this stays False, and `last_network_error` says why.
        """
        return self._transport.connected

    @property
    def last_network_error(self) -> BaseException | None:
        """Why no broker can be used (wrong password, certificate, address …), as of the latest try.

        None while the cluster answers, and before the first try.
        """
        return self._transport.last_error

    @property
    def client_id(self) -> str:
        """As given, or "kafkasafe"."""
        return self._config.client_id

    @property
    def spool_dir(self) -> os.PathLike[str] | None:
        """Where records wait; None with `spool="never"`."""
        return None if self._config.in_memory else self._config.spool_dir

    @property
    def lane(self) -> str:
        """Name of this producer's lane in the spool directory."""
        return self._pump.lane

    def __enter__(self) -> Self:
        """Usable in `with`: closes at the end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, as `close()`. After an exception of the block nothing else is raised, but logged, and noted there."""
        if error is None:
            self.close()
            return
        try:
            self.close()
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

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        where = "never" if self._config.in_memory else self._config.spool_dir
        return f"<SafeProducer {self._config.client_id} {state} spool={where}>"

"""SafeProducer: KafkaProducer's interface, on a spool that outlives the process.

This module has the public interface and `send`. The implementation is in `kafkasafe._producing`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Never, Self, Unpack

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._producing.open_batch import OpenBatch, Special
from kafkasafe._producing.opening import ProducerParts, opened
from kafkasafe._producing.record_future import RecordFuture
from kafkasafe._producing.shutdown import report_failed_close
from kafkasafe._producing.spelling import Tidy, not_for_callers, tidy_dir
from kafkasafe.atomic import AtomicBatch
from kafkasafe.config import DEFAULTS, DEPRECATED, check_no_positional, validate
from kafkasafe.delivery.metric_samples import producer_samples
from kafkasafe.health.states import ProducerHealth
from kafkasafe.options import ProducerOptions
from kafkasafe.process.one_process import OfOneProcess
from kafkasafe.record.batch import RECORD_OVERHEAD
from kafkasafe.stats import Sample

if TYPE_CHECKING:
    from kafkasafe.transactional import LastTransaction, ProducerTransactions

__all__ = ["RecordFuture", "SafeProducer"]


class SafeProducer(OfOneProcess, metaclass=Tidy):
    """A KafkaProducer that keeps every record on disk until Kafka has it.

    Once `future.durable()` or `producer.durable()` has returned, the record arrives exactly once and in order, even if
    the process, the brokers, or both are killed. docs/promises.md has the conditions.

    SafeProducer takes KafkaProducer's options under their names and refuses unknown ones. Some defaults differ:
    `linger_ms=5`, `batch_size=1000000`, `delivery_timeout_ms=None` (no limit), `reconnect_backoff_max_ms=1000`. The
    following options are SafeProducer's own:

    Args:
        spool_dir (str or Path): Directory that holds pending records. Use one directory per cluster; any number of
            processes may share a directory. Default: `KAFKASAFE_SPOOL_DIR`, else the user's state directory.
        spool (str): "always": every record is on disk before it is sent. "on_error": a record is written to disk only
            if the cluster does not acknowledge it within `spool_after_ms`, if the buffer fills, or at close; a crash of
            this process before that loses the record. "never": the producer writes no files; records that the cluster
            has not acknowledged are lost when this process ends.
        spool_after_ms (int): How long `spool="on_error"` waits for an acknowledgement before it writes to disk.
            Default: 1000.
        spool_max_bytes (int): Largest size of the spool on disk, or of pending records in memory (`spool="never"`). If
            the spool is full, `send` blocks up to `max_block_ms`, then raises SpoolFullError. Default: 1 GiB on disk,
            32 MiB in memory.
        run_ahead_bytes (int): While the cluster answers, `send` waits if this many accepted bytes are not acknowledged
            yet. During an outage the limit does not apply: records are buffered on disk. Default: 14 MiB; None: no
            limit.
        spool_segment_bytes (int): Size of one file. Default: an eighth of `spool_max_bytes`, at most 64 MiB.
        spool_sync (str): "group": one fsync for all waiting batches. "each": one fsync per batch. "os": no fsync; a
            crash of the machine (not of the process) may lose records that are not acknowledged.
        rejected_max_bytes (int): How many bytes of rejected records each lane keeps. Default: as `spool_max_bytes`, but
            at most 256 MiB.
        delivery (str): "idempotent": each batch is sent to its partition independently. The log contains each record
            exactly once, for consumers with any isolation level. "transactional": batches are sent in transactions,
            which this process or another one commits in a separate step. The log contains each record exactly once for
            consumers with `isolation_level="read_committed"`. See docs/staged.md.
        spool_lane (int): Use this lane (subdirectory of the spool). If another process has this lane, the constructor
            raises LaneBusyError. Default: the lane that this `client_id` used before, or the lowest free one.
        retain_acked_bytes (int): Keep this many bytes of delivered records on disk. Default: 0.
        delivery_timeout_ms (int): A future fails after this time, but its record stays in the spool and is still
            delivered.
        retain_acked_ms (float): Keep delivered records on disk for this many milliseconds. Default: 0.
        on_data_loss (str): What to do about acknowledged records that the cluster lost. "restore": records that are
            still in the spool are sent again, in order and before all records that have not been sent yet; for the
            others, the next `send`, `flush` or `close` raises DataLossError. "raise": nothing is sent again, and
            DataLossError is raised for all lost records. Each loss is raised once. "event": nothing is sent again, and
            nothing is raised. In all three cases, the producer emits `DataLost`, logs an error and counts the loss in
            the metrics.
        restore_recreated_topics (bool): Send lost records again even if their topic was deleted and created again.
            Default: no.
        data_loss_check_ms (int): How often idle partitions are checked for lost records. Default: 30000.
        on_undecidable (str): What to do with a batch whose presence in the log cannot be determined: "raise" (from
            `send` and `flush`, until `resolve_undecidable`), "resend" (the batch may be in the log twice) or "skip" (it
            may be missing).
        on_corrupt (str): "raise": raise SpoolCorruptError if the spool is damaged. "quarantine": copy the damaged bytes
            to another file, and continue. If the producer finds damage during delivery, it stops only the partition of
            the damaged records. With "raise", the partition waits until the file is restored.
        on_rejected (callable): Called with topic, partition, key, value, headers, timestamp_ms and error of each record
            that the cluster rejected. The function may send the record to a dead-letter topic, but through another
            producer.
        on_event (callable): Called with each event of `kafkasafe.events`, on the producer's own thread.
        prometheus (bool): Register the metrics in prometheus-client's default registry; for another registry call
            `kafkasafe.metrics.install`. Default: no.
        blocked_timeout_ms (int): After this time the producer rejects records that the cluster still blocks. A cluster
            blocks records if their topic is missing, forbidden or invalid, if their timestamps are too far in the
            future, or if their batch makes the broker fail. The time starts again if the cluster gives a different
            answer or none, or if the producer is restarted. None: no limit. Default: seven days.
        on_blocked_topic (str): What `send` does while its topic is missing, forbidden or invalid. "raise": `send` does
            not accept the record, and raises kafka-python's exception for the error code. "accept": `send` accepts the
            record, which then waits.
        producer_id_expiration_ms (int): The brokers' setting `producer.id.expiration.ms`. Default: 86400000.

    Raises:
        ConfigError: An option is unknown or cannot work.
        SpoolError: The spool cannot be opened. The message says which records are safe, and what to do.
    """

    DEFAULT_CONFIG: ClassVar[Mapping[str, Any]] = dict(DEFAULTS)
    """Options and their defaults."""
    _UNLISTED = frozenset({"parts"})
    __dir__ = tidy_dir
    DEPRECATED_CONFIGS: ClassVar[Iterable[str]] = tuple(DEPRECATED)

    if not TYPE_CHECKING:
        max_usable_produce_magic = not_for_callers("records have format 2, which brokers know since 0.11")

    def __init__(self, *arguments: Never, **configs: Unpack[ProducerOptions]) -> None:
        check_no_positional(arguments)
        config = validate(configs)
        self.config: Mapping[str, Any] = config.kafka
        self._config = config
        self._transactions: ProducerTransactions | None = None
        parts = opened(config, self._before_start)
        self._pump = parts.delivery.pump
        # `send` reads these two attributes. They save a step for each record.
        self._plain = parts.form.plain and self._transactions is None
        self._open_batches = parts.accumulator.open_batches
        self.parts = parts
        """The producer's objects, for its futures and for clients such as `kafkasafe.aio`; not for programs."""
        parts.shutdown.begin(self)
        if config.prometheus:
            from kafkasafe.metrics import install

            try:
                install(self)
            except BaseException:
                with contextlib.suppress(Exception):  # the caller needs the other error
                    self.close(0.0)
                raise

    def _before_start(self, parts: ProducerParts) -> None:
        if parts.config.transactional_id is not None:
            from kafkasafe.transactional import ProducerTransactions  # few programs use it

            self._transactions = ProducerTransactions(parts)
            parts.shutdown.end_first(self._transactions)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Accept a record for delivery.

        The record is on disk soon after the call, and in the cluster as soon as the cluster accepts it.
        `future.durable()` and `producer.durable()` wait until the record is on disk.

        Args:
            topic: Topic name.
            value: Bytes, or an object for `value_serializer`. The value None deletes the key from a compacted topic.
            key: Bytes, or an object for `key_serializer`. The key determines the partition, as in KafkaProducer.
            headers: (str, bytes) tuples; a value may be None.
            partition: Partition number, instead of the partitioner's choice.
            timestamp_ms: Ms since the epoch. Default: the time at which the first record of its batch was accepted, at
                most `linger_ms` ago.

        Returns:
            A future for the record's metadata.

        Raises:
            SpoolFullError: The spool had no room within `max_block_ms`. The record was not accepted.
            SpoolWriteError: There is not enough memory to encode earlier records. This record was not accepted.
            RecursionError: Python's stack is exhausted. The record was not accepted.
            KafkaTimeoutError: Callbacks of earlier records are too slow: they were not called within `max_block_ms`.
                The record was not accepted.
            TopicAuthorizationFailedError, UnknownTopicOrPartitionError, InvalidTopicError: The cluster blocks the
                topic, and earlier records wait for it. A missing topic counts as blocked after a minute, because it may
                be new. This record was not accepted; earlier records are delivered when the cluster accepts them. Only
                with `on_blocked_topic="raise"`.
            ProducerClosedError: `close` was called before.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_data_loss`). Raised
                once for each loss. This record was not accepted: send it again.
            TypeError: Key or value is not bytes and has no serializer, or headers has the wrong type.
            ValueError: Key and value are both None, the topic name is invalid, or the topic has no such partition.
            MessageSizeTooLargeError: The record is larger than `max_request_size`.
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
            if self._transactions is not None:
                return self._transactions.send(self, topic, value, key, headers, partition, timestamp_ms)
            key, value, special, size = self.parts.form.prepare(
                topic, value, key, headers, partition, timestamp_ms
            )
        # Take no lock: a lock would take more time than the rest of this method. See `OpenBatch`.
        open_batch: OpenBatch | None = None
        index = -1
        future: RecordFuture
        try:
            open_batch = self._open_batches[topic]
            open_batch.left = left = open_batch.left - size
            if left >= 0:
                index = next(open_batch.numbers)
                if key is not None:
                    open_batch.keys[index] = key
                if special is not None:
                    open_batch.special[index] = special
                # Create the future first: if the stack is exhausted, this call raises before the record is accepted.
                future = RecordFuture()
                open_batch.values[index] = value
                if open_batch.open:
                    # Four single assignments: a tuple assignment takes twice as long.
                    future.producer = self
                    future.open_batch = open_batch
                    future.index = index
                    future.first_free = True
                    return future
        except LookupError:
            pass
        future = RecordFuture()
        return future.refer_to(
            self, *self.parts.admission.accept(topic, key, value, special, size, open_batch, index)
        )

    def batch(self, *, transactional_id: str = "") -> AtomicBatch:
        """Open an atomic batch: records of any topics and partitions, delivered together or not at all.

            with producer.batch() as batch:
                batch.send("orders", order)
                batch.send("audit", entry)
            batch.outcome.get()

        If the block raises an exception, none of its records is sent. At the end of the block the whole batch goes into
        the spool, and from there to the cluster in one transaction. Consumers with `isolation_level="read_committed"`
        see all of the batch or nothing, exactly once, even after crashes. During an outage the batch waits in the
        spool.

        Args:
            transactional_id: The transactional id to use. Default: one of this producer's own ids.
        """
        self.parts.lifecycle.raise_closed()
        return AtomicBatch(self, transactional_id)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all records accepted so far are acknowledged, rejected or dropped, and their callbacks have run.

        If the cluster may have lost acknowledged records, `flush` also waits until it is known whether they are lost,
        and until resent records are in the log. A `flush` that is called from a callback does not wait for callbacks.
        During a long wait, `flush` logs the reason every 30 s (WARNING `flush_waits`).

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: Some records have no result yet. The message says how many of these records are on disk
                and will be delivered, and how many are in memory only. Their callbacks will still be called.
            SpoolWriteError: There is not enough memory to encode accepted records. The next call tries again.
            UndecidableError: It cannot be determined whether a batch is in the log (`on_undecidable="raise"`).
            WrongClusterError: These brokers belong to a different cluster than the records. The records are on disk,
                and are delivered when their own cluster answers again.
            DataLossError: The cluster lost acknowledged records that are not sent again (see `on_data_loss`). Each call
                raises one loss that was not raised before. Pending records are delivered nevertheless.
        """
        self.parts.delivery.flush(timeout)

    def durable(self, timeout: float | None = None) -> None:
        """Wait until all records accepted so far are durable: fsynced in the spool, or in the cluster.

        With `spool="never"` only the cluster makes a record durable, so `durable` waits until the cluster has the
        records. It also waits for records whose futures failed after `delivery_timeout_ms`.

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: Some records were not durable in time.
            SpoolWriteError: There is not enough memory to encode accepted records. The next call tries again.
            SpoolError: The spool failed permanently.
        """
        self.parts.delivery.durable(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Make all accepted records durable, wait for deliveries, and release the spool.

        `close` also waits for the records of earlier producers in this spool directory. With the default directory,
        `close` also waits for records in the directories next to this one. If an atomic batch was given up, `close`
        waits until the cluster has aborted the batch's transaction. Undelivered records stay on disk, and the next
        producer on the directory delivers them. For each directory, a warning gives the number of undelivered records.
        With `spool="never"`, undelivered records are lost, and `close` raises an error. Calling `close` again does
        nothing. If another thread is closing the producer, `close` waits for that thread, for at most `timeout`; on the
        callback thread it returns at once. At the end of the interpreter, open producers are closed automatically.

        In `on_event` and `on_rejected`, `close` refuses further records and returns. The producer's thread then
        delivers in the background, and ends when `close` would have returned. A later call of `close` on another thread
        waits for the deliveries and raises the errors. The end of the interpreter waits for the deliveries, too.

        Args:
            timeout: Maximum number of seconds to wait for deliveries, and for a failing disk to work again. Writing to
                a disk that is slow but works may take ten seconds even if `timeout` is shorter. Default: wait until no
                record has been delivered for 5 s (30 s with `spool="never"`). If the producer waits until a known
                time before a retry, the default is longer, by at most two request timeouts.

        Raises:
            SpoolError: Some accepted records could not be made durable, or the spool failed permanently.
            DeliveryTimeoutError: With `spool="never"`: the cluster has not acknowledged all accepted records. Their
                futures have the same error.
            WrongClusterError: These brokers belong to a different cluster than the pending records. The records are on
                disk.
            DataLossError: As for `flush`. If several losses have not been raised yet, `close` raises the error of one,
                and the error's `others` contains the errors of the rest. If a check for losses did not end in time, the
                producer logs a WARNING (`data_loss_unknown`), and the next producer on the directory repeats the check.
            ValueError: The timeout is negative or nan. The producer is still open. After any other error it is closed.
        """
        self.parts.shutdown.close(timeout)

    def __del__(self) -> None:
        """Handle a producer that was dropped without `close()`: its thread continues to deliver for as long as
        `close()` would have waited.

        Like KafkaProducer's `__del__`, this method waits for a second at most. Meanwhile, it lets the thread deliver
        records, so that they come before the records of the program's next producer. The method takes no lock, because
        the garbage collector may call it at any time.
        """
        if "parts" in vars(self) and self.parts.shutdown.drop(self):
            with contextlib.suppress(Exception):
                # An application may turn warnings into errors, which no caller of `__del__` could catch: suppress these
                # errors.
                text = f"SafeProducer {self.client_id} was dropped without close(); it still delivers its records"
                warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic.

        Raises:
            ProducerClosedError: `close` was called before.
            KafkaTimeoutError: The partitions were not known within `max_block_ms`.
            TypeError: The topic is not a string.
            ValueError: The topic name is invalid.
        """
        self.parts.lifecycle.raise_closed()
        self.parts.admission.check_topic(topic)
        return self.parts.delivery.partitions(topic)

    def metrics(self, raw: bool = False) -> dict[str, Any]:
        """Return counters as {"kafkasafe": {name: value}}, and a few of KafkaProducer's metrics in
        "producer-metrics".

        All rates and averages cover the time since the start. KafkaProducer's own rates and averages cover only the
        last minute.
        """
        return self.parts.delivery.counts(raw=raw)

    def health(self) -> ProducerHealth:
        """Return whether the producer can accept records (and if not, why), and whether the cluster answers.

        Meant for probes (docs/operations.md): `health` never waits for a disk, a lock or a broker. Any thread may call
        `health` at any time, even after `close`.
        """
        return self.parts.admission.health()

    def metric_samples(self) -> Iterable[Sample]:
        """Return the values that `kafkasafe.metrics` collects."""
        return producer_samples(self._pump, closed=self.parts.lifecycle.closed is not None)

    def init_transactions(self) -> LastTransaction | None:
        """Take over the transactional id. Call `init_transactions` once, before the first transaction.

        The cluster fences older producers with the same id. If an earlier producer on this spool called
        `commit_transaction` and then stopped for whatever reason, that transaction is finished first.

        Returns:
            The result of the last transaction for which an earlier producer called `commit_transaction`; None if this
            spool contains no such transaction. (A transaction is never sent before that call.) A second call of
            `init_transactions` does nothing and returns None.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaTimeoutError: Not finished within `max_block_ms`. Nothing is lost; call it again to wait longer.
            TransactionalIdAuthorizationFailedError, InvalidTransactionTimeoutError: The cluster refuses the id.
        """
        return self._in_transactions().init()

    def begin_transaction(self) -> None:
        """Begin a transaction. Later calls of `send` and `send_offsets_to_transaction` belong to this transaction.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaError: `init_transactions` was not called, a transaction is open, the producer is fenced, or
                `abort_transaction` was not called after an error.
        """
        self._in_transactions().begin(self)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, Any],
        group_metadata: Any,
    ) -> None:
        """Commit a consumer's offsets in the transaction. If the group refuses the offsets, `commit_transaction` fails.

        If you call this method several times for one group, the offsets of all calls are committed. If the group's
        generation changes between two calls, the group refuses the offsets, and `commit_transaction` raises
        CommitFailedError.

        Args:
            offsets: OffsetAndMetadata by TopicPartition; each offset is that of the next record to read.
            group_metadata: The consumer's `group_metadata()`, or the name of a group that has no members.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaError: No transaction is open.
            TypeError, ValueError: `group_metadata` has a wrong type, or its fields contradict each other.
        """
        self._in_transactions().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Commit the transaction. Once the transaction is on disk, its commit is final and survives any crash.

        The call waits, without a limit, until `read_committed` consumers can see the records. If the call is
        interrupted, repeat it; otherwise `init_transactions` of a later producer finishes the transaction.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            ProducerFencedError: Another producer has taken over the id. Nothing of the transaction is delivered, and
                this producer can only be closed.
            CommitFailedError: The consumer whose offsets are part of the transaction has left its group. Nothing is
                delivered: call `abort_transaction`.
            BatchDroppedError: The cluster rejected the transaction permanently, and its records are in `rejected/`:
                call `abort_transaction`.
            SpoolFullError: The spool had no room within `max_block_ms`. The transaction is still open.
            KafkaError: No transaction is open.
        """
        self._in_transactions().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction. None of the transaction's records was sent; their futures have a
        TransactionAbortedError.

        If the call is interrupted, call it again.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaError: No transaction is open, or the producer is fenced.
        """
        self._in_transactions().abort()

    def _in_transactions(self) -> ProducerTransactions:
        self.parts.lifecycle.check_fork()
        transactions = self._transactions
        if transactions is None:
            raise kafka_errors.IllegalStateError(
                "Transactional method invoked on a non-transactional producer: set transactional_id"
            )
        self.parts.lifecycle.raise_closed()
        return transactions

    def resolve_undecidable(self, *, resend: bool) -> None:
        """Decide about the batches of the last UndecidableError, or, if none was raised, about all undecidable batches.

        For a batch that became undecidable after that error, the next `send` or `flush` raises another
        UndecidableError.

        Args:
            resend: True: send the batches again under a new id; their records may then be in the log twice. False:
                treat the batches as delivered; their records may be missing.

        Raises:
            TypeError: `resend` is not a bool. A string such as "no" would otherwise count as True.
        """
        if not isinstance(resend, bool):
            raise TypeError(f"resend must be True or False, not {resend!r}: nothing was decided")
        self.parts.lifecycle.check_fork()
        self._pump.resolve_undecidable(resend=resend)

    def bootstrap_connected(self) -> bool:
        """Return whether the cluster answers.

        For a readiness probe, use `health`: the producer accepts records during an outage, too. The constructor does
        not fail if no broker can be reached, because records wait on disk. With a wrong password, CA or address this
        method keeps returning False, and `last_network_error` says why.
        """
        return self.parts.cluster.connected

    @property
    def last_network_error(self) -> BaseException | None:
        """Why no broker can be used (wrong password, certificate, address …), according to the latest attempt.

        None while the cluster answers, and before the first attempt to connect.
        """
        return self.parts.cluster.last_error

    @property
    def client_id(self) -> str:
        """The option `client_id`; "kafkasafe" by default."""
        return self._config.client_id

    @property
    def spool_dir(self) -> os.PathLike[str] | None:
        """The directory that holds pending records; None with `spool="never"`."""
        return None if self._config.in_memory else self._config.spool_dir

    @property
    def lane(self) -> str:
        """Name of this producer's lane in the spool directory."""
        return self._pump.lane

    def __enter__(self) -> Self:
        """Return the producer. The end of the `with` block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close, as `close()`.

        If the block raised an exception, an error of `close()` is only logged and added to the exception as a note.
        """
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception as own:
            report_failed_close(own, error, self.client_id)

    def __repr__(self) -> str:
        state = "closed" if self.parts.lifecycle.closed else "open"
        where = "never" if self._config.in_memory else self._config.spool_dir
        return f"<SafeProducer {self._config.client_id} {state} spool={where}>"

"""Atomic batches: records of any topics, and a consumer's offsets, that are committed together or not at all.

    with producer.batch() as batch:
        batch.send("orders", order)
        batch.send("audit", entry)
    batch.outcome.durable()     # the whole batch is on disk and will be delivered even after a crash
    batch.outcome.get()         # committed

docs/staged.md shows how to use atomic batches, and docs/staged-protocol.md explains how they work. Kafka commits
partition by partition. If the leader of one partition is unavailable, readers may see the batch's records in that
partition some seconds later than the records in the other partitions.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kafkasafe._producing.batch_unit import BatchDecision, BatchMetadata, BatchUnit
from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.record_future import OpenProducer, RecordFuture
from kafkasafe._producing.spelling import ADD_CALLBACK, GET, IS_DONE, NEVER_CANCELLED, Absent, Tidy, tidy_dir
from kafkasafe._producing.unit_offsets import UnitOffsets, is_out, positions_of, text_of
from kafkasafe.delivery.batch_offsets import check_settings, offering
from kafkasafe.delivery.engine.parcels import Parcel, UnitHandle
from kafkasafe.errors import BatchDroppedError, SpoolFullError, UsageError, WaitTimeoutError
from kafkasafe.limits.patience import timeout_of
from kafkasafe.process.one_process import stays_with_producer
from kafkasafe.record.batch import RECORD_OVERHEAD

__all__ = ["AtomicBatch", "BatchMetadata", "BatchOutcome"]


class BatchOutcome(metaclass=Tidy):
    """The result of a whole atomic batch. Attributes and methods have the same names as in kafka-python's futures.

    Attributes:
        batch_id: Id of the batch, as `kafkasafe spool ls` shows it: 32 hexadecimal digits.
    """

    _UNLISTED = frozenset({"unit"})
    __dir__ = tidy_dir
    __reduce_ex__ = stays_with_producer

    if not TYPE_CHECKING:
        done = Absent(IS_DONE)
        result = Absent(GET)
        add_done_callback = Absent(ADD_CALLBACK)
        remove_done_callback = Absent("a callback cannot be removed")
        cancel = Absent(NEVER_CANCELLED)
        cancelled = Absent(NEVER_CANCELLED)

    def __init__(self, producer: OpenProducer, unit: BatchUnit) -> None:
        head = unit.head
        self.batch_id = "" if head.unit_handle is None else head.unit_handle.unit_id.hex()
        self._producer = producer
        self._parts = producer.parts
        self._head = head
        self.unit = unit
        """The batch on its way to the cluster, for clients that are built on this class, such as `kafkasafe.aio`; not
        for programs.
        """

    def __repr__(self) -> str:
        if self.is_done:
            return f"<BatchOutcome {self.batch_id} {self._head.error or 'committed'}>"
        return f"<BatchOutcome {self.batch_id} pending{', durable' if self._head.durable else ''}>"

    def durable(self, timeout: float | None = None) -> BatchOutcome:
        """Wait until the whole batch is on disk. With `spool="never"`, wait until the batch is committed.

        Args:
            timeout: Seconds; None for no limit.

        Returns:
            This outcome. A crash of this process, of brokers, or of both can no longer lose the batch or a part of it.

        Raises:
            KafkaTimeoutError: The batch was not durable in time. It may still become durable.
            SpoolError: The spool failed permanently.
            BatchDroppedError: The batch was dropped.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        unit = self.unit
        if not self._parts.delivery.pump.wait(unit.is_kept, timeout) and not unit.is_kept():
            self._parts.delivery.raise_failure()
            raise unit.not_durable(timeout)
        if self._head.error is not None:
            raise self._head.error.with_traceback(None)
        return self

    def get(self, timeout: float | None = None) -> BatchMetadata:
        """Wait until the batch is committed, and until its callbacks have run.

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            KafkaTimeoutError: The batch was not committed in time. The producer keeps the batch and still delivers it
                as a whole.
            BatchDroppedError: The batch was dropped, and none of its records is delivered.
            WrongClusterError: These brokers belong to a different cluster than the batch.
        """
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        self._parts.delivery.pump.wait(self.unit.done_or_wrong_cluster, timeout)
        if not self._head.done:
            self._parts.delivery.raise_failure()
            self._parts.delivery.raise_wrong_cluster()
            kept = "It is kept and will be delivered as a whole."
            if not self._head.durable and not self._parts.config.in_memory:
                kept = f"It is not on disk yet.{self._parts.delivery.disk_cause()}"
            raise WaitTimeoutError(
                f"The batch was not committed after {timeout} s. {kept}"
                f"{self._parts.delivery.network_cause()}{self.unit.because()}"
            )
        self._parts.delivery.called(None, deadline)
        if self._head.error is not None:
            raise self._head.error.with_traceback(None)
        return self.unit.metadata()

    @property
    def is_done(self) -> bool:
        """Whether the batch is committed or dropped."""
        return self._head.done

    @property
    def exception(self) -> BaseException | None:
        """Why the batch was dropped; None if it was not dropped (yet)."""
        return self._head.error if self._head.done else None

    @property
    def value(self) -> BatchMetadata | None:
        """The metadata of the committed batch; None if the batch is not committed."""
        return self.unit.metadata() if self.succeeded() else None

    def succeeded(self) -> bool:
        """Return whether the batch was committed."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Return whether the batch was dropped."""
        return self.is_done and self.exception is not None

    @staticmethod
    def retriable() -> bool:
        """Return False: the producer itself retries every retriable error."""
        return False

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchOutcome:
        """Call `f(*args, metadata, **kwargs)` when the batch is committed, on the producer's callback thread. Once the
        producer is closed, `add_callback` itself may call `f`.

        `flush()`, `close()` and `get()` return after the callback. If this process ends before the commit, another
        process delivers the batch from the spool, and the callback is not called.

        Raises:
            TypeError: `f` is not callable.
        """
        if not callable(f):
            raise TypeError(f"add_callback: {f!r} is not callable")
        self.unit.add(True, lambda metadata: f(*args, metadata, **kwargs), self._producer)
        return self

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchOutcome:
        """Call `f(*args, exception, **kwargs)` when the batch is dropped."""
        self.unit.add(False, lambda error: f(*args, error, **kwargs), self._producer)
        return self

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchOutcome:
        """Call `f` with the metadata or the exception when the batch is committed or dropped."""
        return self.add_callback(f, *args, **kwargs).add_errback(f, *args, **kwargs)


class AtomicBatch(metaclass=Tidy):
    """Collects records and offsets that are delivered together or not at all. Only one thread may use it at a time.

    Before `commit` the batch is in memory only. After `commit`, the spool has either the whole batch or nothing of it,
    and `read_committed` consumers, too, get the whole batch or nothing.
    """

    _UNLISTED = frozenset({"decision", "offsets"})
    __dir__ = tidy_dir
    _informed: ClassVar[bool] = False
    """Whether the program knows the outcome of this batch before it opens its next batch."""

    def __init__(self, producer: OpenProducer, transactional_id: str) -> None:
        self._producer = producer
        self._parts = parts = producer.parts
        self._plain = parts.form.plain
        self._transactional_id = text_of("transactional_id", transactional_id)
        self._open_batches: list[OpenBatch] = []
        self._open: dict[str, OpenBatch] = {}
        self._most = parts.config.spool_segment_bytes
        self._room = self._most
        """Number of bytes by which the batch may still grow: it must fit into one file of the spool."""
        # Not for programs: clients that are built on this class, such as `kafkasafe.aio`, use the next two attributes.
        self.decision: BatchDecision[BatchOutcome] = BatchDecision()
        self.offsets = UnitOffsets(parts, self.decision.first)
        self._made = self.decision.first.made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._made:
            return
        if kind is None:
            self.commit()
        else:
            self.drop()

    @property
    def outcome(self) -> BatchOutcome:
        """The result of the batch.

        Raises:
            UsageError: The batch is not committed yet, or was dropped.
        """
        outcome = self.decision.outcome
        if outcome is None:
            raise UsageError(
                "This batch was dropped: none of its records is sent"
                if self.decision.is_dropped
                else "This batch is still open: commit it, or leave its with block, before you use its outcome"
            )
        # If the commit was interrupted, finish it.
        self._parts.accumulator.hand_over_units()
        return outcome

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordFuture:
        """Add a record to the batch. `SafeProducer.send` describes arguments and further errors.

        The producer accepts the record only when `commit` is called.

        Returns:
            A future for the record's metadata. Wait for it only after `commit`.

        Raises:
            UsageError: The batch was committed or dropped before.
            SpoolFullError: The batch would not fit into one file of the spool (`spool_segment_bytes`).
        """
        if self._made:
            self.decision.check_is(None)
        open_batch: OpenBatch | None = None
        index = -1
        # The same fast path as in `SafeProducer.send`. Other records take the slow path (`_add`).
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
            try:
                open_batch = self._open[topic]
                left = open_batch.left - size
                if left >= 0 and size <= self._room and open_batch.open:
                    index = next(open_batch.numbers)
                    if key is not None:
                        open_batch.keys[index] = key
                    # Create the future first: if the stack is exhausted, this call raises before the record is added.
                    future: RecordFuture = RecordFuture()
                    open_batch.values[index] = value
                    open_batch.left = left
                    self._room -= size
                    future.producer = self._producer
                    future.open_batch = open_batch
                    future.index = index
                    future.first_free = True
                    return future
            except LookupError:
                pass
        return self._add(topic, value, key, headers, partition, timestamp_ms, open_batch, index)

    def _add(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
        open_batch: OpenBatch | None,
        index: int,
    ) -> RecordFuture:
        """Finish a call of `send` that the fast path could not finish.

        If `index` is not negative, the record's place in the lists of `open_batch` is already reserved, but still
        empty.
        """
        parts = self._parts
        key, value, special, size = parts.form.prepare(topic, value, key, headers, partition, timestamp_ms)
        parts.admission.check_topic(topic)
        parts.admission.check_size(size)
        if size > self._room:
            raise SpoolFullError(
                f"An atomic batch may hold {self._most:,} bytes (spool_segment_bytes): this record was not added."
                " Commit the batch without it, or raise spool_segment_bytes"
            )
        if index < 0:
            open_batch = self._open.get(topic)
            if open_batch is not None and open_batch.open and open_batch.left >= size:
                index = next(open_batch.numbers)
        if open_batch is None or not 0 <= index < open_batch.most - 1:
            open_batch = parts.admission.make_separate_batch(topic, self._cannot_wait)
            # Add the open batch to `_open_batches` first: a Ctrl-C between these lines must not leave an open batch out
            # of this list.
            self._open_batches.append(open_batch)
            self._open[topic] = open_batch
            index = next(open_batch.numbers)
        open_batch.take_room(size)
        open_batch.put(index, key, value, special)
        future: RecordFuture = RecordFuture()
        future.refer_to(self._producer, open_batch, index)
        self._room -= size
        return future

    def send_offsets(self, offsets: Any, group: Any = None) -> None:
        """Commit a consumer's offsets together with the records.

        A group that has members accepts offsets only from its members. If the consumer loses its partitions before the
        batch is committed, the whole batch is dropped (BatchDroppedError), and the partitions' new owner reads the same
        records again.

        Args:
            offsets: A consumer that was opened with `enable_auto_commit=False`: a SafeConsumer, or a KafkaConsumer with
                `isolation_level="read_committed"`. The batch commits the consumer's positions on its assigned
                partitions. Instead of a consumer, `offsets` may be a dict of OffsetAndMetadata by TopicPartition,
                together with `group`. The batch commits the offsets of all calls, for one group or for several
                consumers.
            group: The consumer's `group_metadata()`, or the name of a group that has no members.

        Raises:
            UsageError: The batch was committed or dropped before. Also raised if the consumer is closed, or if its
                options do not fit: no group, automatic commits, or no stable offsets (KIP-447). The message says which
                option to set.
            TypeError: A partition, an offset or the group has the wrong type.
            ValueError: A number is out of range, such as a negative offset.
            ConfigError: A string is too long, or cannot be written as UTF-8.
            BatchDroppedError: An earlier batch was dropped, so the consumer will go back and read that batch's input
                again. Discard this batch, and continue with `poll`. With a KafkaConsumer, first `seek` to the offsets
                that `committed` returns.
            UsageError: With a SafeConsumer: another producer has an open batch that contains this consumer's offsets.
                This error is also raised if the consumer uses `assign`, and another producer's lane in the spool still
                holds a batch with this consumer's offsets: that batch may be committed later. The message explains what
                to do. This batch stays open.
            KafkaTimeoutError: With a SafeConsumer: another producer has a batch that contains this consumer's offsets.
                The outcome of that batch was still unknown after the consumer's `request_timeout_ms`. This batch stays
                open.
            WrongClusterError, SpoolError: The producer can no longer deliver, and an earlier batch with offsets is
                still on disk.
        """
        self.decision.check_open()
        offer = offering(offsets)
        if offer is not None:
            check_settings(offsets)
            giver = weakref.ref(offsets)
            fate = self.offsets.claim(offsets.config["group_id"], giver)
            lane = self._parts.delivery.pump.own_lane
            try:
                self.offsets.take(giver, fate, *offer(fate, lane))
            except BatchDroppedError:
                self.drop()
                raise
            return
        given = positions_of(offsets, group)
        for at in given.positions:
            self._parts.admission.check_topic(at.topic)
        if not given.positions:
            return
        if is_out(offsets, given) and self._parts.given_offsets.moves(given):
            self.drop()
            raise BatchDroppedError(
                "This consumer is not a member of its group at the moment, and other members may read the same records."
                " Throw away the collected records, call poll(), and seek() each partition to its committed() offset:"
                " kafkasafe.SafeConsumer does that by itself"
            )
        try:
            self.offsets.give(given, informed=self._informed)
        except BatchDroppedError:
            self.drop()
            # If the producer can no longer deliver, the earlier batch was not dropped: it is still on disk.
            self._parts.delivery.raise_wrong_cluster()
            self._parts.delivery.raise_failure()
            raise

    def commit(self) -> BatchOutcome:
        """Pass the whole batch to the producer. An empty batch is committed at once, without a request.

        If the call is interrupted (Ctrl-C, or a signal handler that raises), the producer has accepted either the whole
        batch or nothing. If the producer accepted the batch, `outcome` returns the outcome; if not, `outcome` raises
        UsageError, and you can commit the batch again or drop it.

        Returns:
            The batch's outcome. `durable()` waits until the whole batch is on disk, `get()` until it is committed.

        Raises:
            SpoolFullError: The spool had no room within `max_block_ms`. Nothing was accepted; call `commit` again
                later.
            UsageError: The batch was committed or dropped before.
            BatchDroppedError: Since `send_offsets`, the consumer went back to an earlier offset or lost its partitions.
                Nothing is sent, and the batch's input will be read again.
        """
        self.decision.check_open()
        if self.offsets.is_void:
            self.offsets.miss()
            self.drop()
            raise BatchDroppedError(
                "The consumer whose offsets are in this batch went back to an earlier offset or lost its partitions, so"
                " its records will be read again. Nothing of this batch is sent"
            )
        unit_handle = UnitHandle(
            transactional_id=self._transactional_id,
            offsets=tuple(self.offsets.groups.values()),
            readings=dict(self.offsets.readings),
        )
        head = Parcel("", -1, None, 0, 0, 0, unit_handle=unit_handle)
        unit = BatchUnit(head, self._open_batches, self.decision.first, self._parts)
        outcome = BatchOutcome(self._producer, unit)
        self.decision.begin(unit, outcome)
        self._parts.admission.submit_unit(unit, self._most - self._room)
        self.decision.check_is(outcome)
        return outcome

    def drop(self) -> None:
        """Discard the batch. None of its records is ever sent.

        Raises:
            UsageError: The batch was committed before.
        """
        self.decision.drop()
        # Break the reference cycle: it would keep this batch and the producer alive until the next garbage collection.
        self._open.clear()
        self._open_batches.clear()

    def _cannot_wait(self, instead: str = "wait for it after the block") -> None:
        """Raise UsageError, because a call waits for a record of a batch that is still open or was dropped."""
        if self.decision.outcome is None:
            raise UsageError(
                "The batch of this record was dropped: the record is not sent"
                if self.decision.is_dropped
                else "The batch of this record is still open, and nothing of it is sent before the batch is committed:"
                f" {instead}"
            )

"""Atomic batches: records of any topics, and a consumer's offsets, that readers see together or never.

    with producer.batch() as batch:
        batch.send("orders", order)
        batch.send("audit", entry)
    batch.outcome.durable()     # on disk, as a whole: delivered whatever happens
    batch.outcome.get()         # committed

docs/staged.md says what happens in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from kafka import TopicPartition

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.batch import RECORD_OVERHEAD
from kafkasafe._core.patience import timeout_of
from kafkasafe._core.readings import Claim
from kafkasafe._io.batch_offsets import BatchFate, check_settings
from kafkasafe._io.callbacks import take
from kafkasafe._io.engine.parcels import Parcel, leaves
from kafkasafe._io.engine.slips import Slip
from kafkasafe._io.refusals import because
from kafkasafe._io.spelling import Absent, Tidy, tidy_dir
from kafkasafe.errors import BatchDroppedError, UsageError, WaitTimeoutError

if TYPE_CHECKING:
    from kafkasafe.producer import RecordFuture, SafeProducer

__all__ = ["AtomicBatch", "BatchMetadata", "BatchOutcome"]

_TEXT_BYTES: Final = 0x7FFF
"""Of a text in Kafka's protocol."""
_INT32: Final = 0x7FFF_FFFF
_INT64: Final = 0x7FFF_FFFF_FFFF_FFFF
_FATE: Final = "fate"


# What asyncio's futures have, and what there is instead.
IS_DONE: Final = (
    "as in kafka-python it is `is_done`, without parentheses; asyncio's names are those of kafkasafe.aio"
)
GET: Final = "`get(timeout)` waits for it, `value` has it if it is there"
ADD_CALLBACK: Final = "use `add_callback`, `add_errback` or `add_both`"
NEVER_CANCELLED: Final = "what was accepted is delivered, nothing can cancel it"


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """A committed atomic batch.

    Attributes:
        batch_id: As `spool ls` shows it.
        offsets: Of each partition, the offsets of the first and the last record (inclusive), -1 where not known.
        records: How many there are.
    """

    batch_id: str
    offsets: Mapping[TopicPartition, tuple[int, int]]
    records: int


class BatchOutcome(metaclass=Tidy):
    """What becomes of an atomic batch as a whole. Its names are those of `RecordFuture`, kafka-python's.

    Attributes:
        batch_id: As `spool ls` shows it: 32 hexadecimal digits.
    """

    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        done = Absent(IS_DONE)
        result = Absent(GET)
        add_done_callback = Absent(ADD_CALLBACK)
        remove_done_callback = Absent("a callback cannot be removed")
        cancel = Absent(NEVER_CANCELLED)
        cancelled = Absent(NEVER_CANCELLED)

    def __init__(self, producer: SafeProducer, head: Parcel, batch: AtomicBatch) -> None:
        self.batch_id = "" if head.slip is None else head.slip.unit_id.hex()
        self._producer = producer
        self._head = head
        self._chunks = batch._chunks
        self._fate: dict[str, BatchOutcome | None] | None = batch._fate
        """None once it is handed over: it names this object, and the two would live until the garbage collector comes,
        and the producer with them."""
        self._parcels: list[Parcel] = []
        self._callbacks: list[tuple[bool, Callable[[Any], object]]] = []

    @property
    def _accepted(self) -> bool:
        fate = self._fate
        return fate is None or fate.get(_FATE) is self

    def _accept(self) -> None:
        """Unless the batch has another fate by now."""
        if self._fate is not None:
            self._fate.setdefault(_FATE, self)

    def _refuse(self) -> None:
        """Drop the batch, unless it is accepted by now."""
        if self._fate is not None:
            self._fate.setdefault(_FATE, None)

    def _handed_over(self) -> None:
        """The pump has it: nothing about it is decided here any more."""
        self._fate = None
        for chunk in self._chunks:
            chunk.atomic = None

    def _settle_empty(self) -> None:
        """There is nothing to be delivered, and so it is."""
        self._head.durable = self._head.done = True
        if self._callbacks:
            self._producer._callbacks.put(lambda: self._call(0))

    def __repr__(self) -> str:
        if self.is_done:
            return f"<BatchOutcome {self.batch_id} {self._head.error or 'committed'}>"
        return f"<BatchOutcome {self.batch_id} pending{', durable' if self._head.durable else ''}>"

    def durable(self, timeout: float | None = None) -> BatchOutcome:
        """Wait until all of it is on disk; with `spool="never"`: until it is committed.

        Args:
            timeout: Seconds, None for ever.

        Returns:
            Itself. From here on a crash of this process, of brokers, or of both cannot lose the batch, or half of it.

        Raises:
            KafkaTimeoutError: Not durable in time. It may still become so.
            SpoolError: The spool failed for good.
        """
        if timeout is not None:
            timeout = timeout_of(timeout)
        in_memory = self._producer._config.in_memory

        def kept() -> bool:
            return self._head.done or (self._head.durable and not in_memory)

        if not self._producer._pump.wait(kept, timeout) and not kept():
            self._producer._raise_failure()
            raise WaitTimeoutError(
                f"The batch was not durable after {timeout} s.{self._producer._disk_cause()}{self._because()}"
            )
        if self._head.error is not None:
            raise self._head.error.with_traceback(None)
        return self

    def get(self, timeout: float | None = None) -> BatchMetadata:
        """Wait until it is committed, and until its callbacks have run.

        Args:
            timeout: Seconds, None for ever.

        Raises:
            KafkaTimeoutError: Not committed in time. It stays in the spool and is still delivered, as a whole.
            BatchDroppedError: It was given up, and none of it is delivered.
            WrongClusterError: Another cluster answers instead of the one that it is for.
        """
        deadline = None if timeout is None else time.monotonic() + (timeout := timeout_of(timeout))
        pump = self._producer._pump
        pump.wait(lambda: self._head.done or pump.ledger.wrong_cluster is not None, timeout)
        if not self._head.done:
            self._producer._raise_failure()
            self._producer._raise_wrong_cluster()
            kept = "It is kept and delivered as a whole."
            if not self._head.durable and not self._producer._config.in_memory:
                kept = f"It is not on disk yet.{self._producer._disk_cause()}"
            raise WaitTimeoutError(
                f"The batch was not committed after {timeout} s. {kept}"
                f"{self._producer._network_cause()}{self._because()}"
            )
        self._producer._called(None, deadline)
        if self._head.error is not None:
            raise self._head.error.with_traceback(None)
        return self._metadata()

    def _because(self) -> str:
        """What waits because the cluster refuses it: this, or what stands before it."""
        return because(self._producer._pump.refused())

    @property
    def is_done(self) -> bool:
        """Whether its fate is final."""
        return self._head.done

    @property
    def exception(self) -> BaseException | None:
        """Why it was given up; None when it was not, or not yet."""
        return self._head.error if self._head.done else None

    @property
    def value(self) -> BatchMetadata | None:
        """What was committed, None while nothing is."""
        return self._metadata() if self.succeeded() else None

    def succeeded(self) -> bool:
        """Whether it was committed."""
        return self.is_done and self.exception is None

    def failed(self) -> bool:
        """Whether it was given up."""
        return self.is_done and self.exception is not None

    @staticmethod
    def retriable() -> bool:
        """Never: what can be retried is retried."""
        return False

    def add_callback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchOutcome:
        """Call `f(*args, metadata, **kwargs)` when it is committed, on the producer's callback thread.

        `flush()`, `close()` and `get()` return after it. What this process leaves in the spool another one delivers,
        and calls nothing.

        Raises:
            TypeError: `f` cannot be called.
        """
        if not callable(f):
            raise TypeError(f"add_callback: {f!r} cannot be called")
        return self._add(True, lambda metadata: f(*args, metadata, **kwargs))

    def add_errback(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchOutcome:
        """Call `f(*args, exception, **kwargs)` when it is given up."""
        return self._add(False, lambda error: f(*args, error, **kwargs))

    def add_both(self, f: Callable[..., Any], *args: Any, **kwargs: Any) -> BatchOutcome:
        """Call `f` with the metadata or the exception when its fate is final."""
        return self.add_callback(f, *args, **kwargs).add_errback(f, *args, **kwargs)

    def _add(self, wanted: bool, call: Callable[[Any], object]) -> BatchOutcome:
        self._callbacks.append((wanted, call))
        self._watch()
        return self

    def _watch(self) -> None:
        """Have the callbacks called. Twice does no harm."""
        self._producer._callbacks.start()
        # In this order: the pump sets `done`, then looks for the watcher.
        self._head.watcher = self._ended
        if self._head.done:
            self._head.watcher = None
            self._producer._callbacks.put(lambda: self._call(0))

    def _ended(self, _: Parcel) -> None:
        """By the pump, with its lock held."""
        self._producer._callbacks.hand(self._call, len(self._callbacks))

    def _call(self, due: int) -> None:
        callbacks = take(self._callbacks)
        error = self._head.error
        answer: Any = self._metadata() if error is None else error
        mine = [call for wanted, call in callbacks if wanted is (error is None)]
        self._producer._callbacks.call(mine, [answer] * len(mine), due)

    def _metadata(self) -> BatchMetadata:
        found: dict[TopicPartition, tuple[int, int]] = {}
        records = 0
        for parcel in (leaf for each in self._parcels for leaf in leaves(each)):
            at = TopicPartition(parcel.topic, parcel.partition)
            last = parcel.base_offset + parcel.count - 1 if parcel.base_offset >= 0 else -1
            found[at] = found.get(at, (parcel.base_offset, -1))[0], last
            records += parcel.count
        return BatchMetadata(self.batch_id, found, records)


class AtomicBatch:
    """Collects what is to be delivered together. One thread at a time.

    Nothing of it leaves memory before `commit`. From then on it is indivisible: in the spool, in Kafka, and for
    readers.
    """

    _told: ClassVar[bool] = False
    """The program hears of a dropped batch before it makes the next one."""

    def __init__(self, producer: SafeProducer, transactional_id: str) -> None:
        self._producer = producer
        self._new_future = producer._new_future
        self._transactional_id = _text("transactional_id", transactional_id)
        self._chunks: list[Any] = []
        self._open: dict[str, Any] = {}
        self._offsets: dict[str, m.GroupOffsets] = {}
        self._readings: dict[u.GroupPartition, u.Reading] = {}
        self._claims: dict[str, tuple[BatchFate, list[Claim]]] = {}
        """By group."""
        self._most = producer._config.spool_segment_bytes
        self._room = self._most
        """Bytes that it may still take: it is to fit into a file of the spool."""
        self._fate: dict[str, BatchOutcome | None] = {}
        """What was decided first, in one call into C (`setdefault`): its outcome, once it is accepted; None: dropped.

        Ctrl-C, a signal handler or another thread may come at any moment of a commit.
        """

    @property
    def _dropped(self) -> bool:
        return self._fate.get(_FATE, self) is None

    @property
    def _outcome(self) -> BatchOutcome | None:
        return self._fate.get(_FATE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fate:
            return
        if kind is None:
            self.commit()
        else:
            self.drop()

    @property
    def outcome(self) -> BatchOutcome:
        """What becomes of it.

        Raises:
            UsageError: It is not committed yet, or was dropped.
        """
        outcome = self._outcome
        if outcome is None:
            raise UsageError(
                "This batch was dropped: nothing of it is sent"
                if self._dropped
                else "This batch is still open: commit it, or leave its with block, before its outcome is asked for"
            )
        # Of a commit that was interrupted.
        self._producer._hand_over_units()
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
        """Add a record. Arguments and errors are those of `SafeProducer.send`; nothing is accepted before `commit`.

        Returns:
            A future for the record's metadata, which may be waited for after `commit`.

        Raises:
            UsageError: The batch was committed, or dropped.
            SpoolFullError: The batch is larger than a file of the spool (`spool_segment_bytes`) may be.
        """
        if self._fate:
            self._check_fate(None)
        producer = self._producer
        chunk: Any = None
        index = -1
        # As `SafeProducer.send` does it; what is special goes the other way.
        if (
            producer._plain
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
                chunk = self._open[topic]
                left = chunk.left - size
                if left >= 0 and size <= self._room and chunk.open:
                    index = next(chunk.numbers)
                    if key is not None:
                        chunk.keys[index] = key
                    chunk.values[index] = value
                    chunk.left = left
                    self._room -= size
                    future: RecordFuture = self._new_future()
                    future._producer = producer
                    future._chunk = chunk
                    future._index = index
                    future._first = True
                    return future
            except LookupError:
                pass
        future, size = producer._send_into(
            self, topic, value, key, headers, partition, timestamp_ms, chunk, index
        )
        self._room -= size
        return future

    def send_offsets(self, offsets: Any, group: Any = None) -> None:
        """Commit a consumer's offsets together with the records.

        The group takes them only from a member: when the consumer has lost its partitions before the batch is
        committed, all of the batch is dropped (BatchDroppedError), and whoever has them now reads the same records
        again.

        Args:
            offsets: A SafeConsumer, or a KafkaConsumer with `isolation_level="read_committed"`, opened with
                `enable_auto_commit=False`: its positions on the partitions that it is assigned. Or a dict
                {TopicPartition: OffsetAndMetadata}, with `group`.
            group: The consumer's `group_metadata()`, or the name of a group that has no members.

        Raises:
            UsageError: The batch was committed or dropped; or the consumer is in no group, commits by itself, or is
                given offsets that transactions are about to change. The message says which option to set.
            TypeError: Something else is given for a partition, an offset or the group.
            ValueError: It is none that can be: a negative offset, a text that is too long.
            BatchDroppedError: A batch before this one was dropped, and what this consumer has read since comes again.
                Throw this batch away, and go on with `poll`; a KafkaConsumer has to `seek` to what `committed` says
                first.
        """
        self._check_open()
        if hasattr(offsets, "_offer_positions"):
            check_settings(offsets)
            fate = self._claim(offsets.config["group_id"])
            try:
                self._take_offer(fate, *offsets._offer_positions(fate))
            except BatchDroppedError:
                self.drop()
                raise
            return
        given = _positions(offsets, group)
        for at in given.positions:
            self._producer._check_topic(at.topic)
        if not given.positions:
            return
        fate = self._claim(given.group)
        try:
            readings, claims = self._producer._given_offsets.offer(fate, given, told=self._told)
        except BatchDroppedError:
            self.drop()
            raise
        self._offsets[given.group] = given
        self._readings.update(readings)
        self._claims[given.group] = fate, claims

    def _take_offer(
        self,
        fate: BatchFate,
        positions: Mapping[TopicPartition, Any],
        group: Any,
        readings: Mapping[TopicPartition, u.Reading],
        claims: list[Claim],
    ) -> None:
        """Offsets of a SafeConsumer, which has claimed them already."""
        name = str(group.group_id)
        self._claims[name] = fate, claims
        if not positions:
            return
        for at in positions:
            self._producer._check_topic(at.topic)
        self._offsets[name] = _positions(positions, group)
        self._readings.update(((name, *at), reading) for at, reading in readings.items())

    def _claim(self, group: str) -> BatchFate:
        """Offsets of the group come; former ones are replaced."""
        former = self._claims.pop(group, None)
        self._offsets.pop(group, None)
        if former is not None:
            former[0].forget()
        for line in [line for line in self._readings if line[0] == group]:
            del self._readings[line]
        return BatchFate(self._fate)

    def commit(self) -> BatchOutcome:
        """Hand it over as a whole. One without records and offsets is committed at once, and sends nothing.

        Interrupted (Ctrl-C, or a signal handler that raises) it is accepted as a whole, or not at all: `outcome` says
        which. One that was not may be committed again, or dropped.

        Returns:
            Its outcome. `durable()` waits until all of it is on disk, `get()` until readers can see it.

        Raises:
            SpoolFullError: No room within `max_block_ms`. Nothing of it was accepted; it may be committed again later.
            UsageError: It was committed or dropped before.
            BatchDroppedError: The consumer of `send_offsets` was moved back since: nothing of it is sent.
        """
        self._check_open()
        if any(claim.void for _, claims in self._claims.values() for claim in claims):
            self.drop()
            raise BatchDroppedError(
                "The consumer whose offsets are in this batch was moved back, or has lost its partitions: its records"
                " come again. Nothing of it is sent"
            )
        slip = Slip(
            transactional_id=self._transactional_id,
            offsets=tuple(self._offsets.values()),
            readings=dict(self._readings),
        )
        head = Parcel("", -1, None, 0, 0, 0, slip=slip)
        outcome = BatchOutcome(self._producer, head, self)
        self._producer._submit_unit(outcome, self._most - self._room)
        self._check_fate(outcome)
        return outcome

    def drop(self) -> None:
        """Forget it. Nothing of it was sent, or will be.

        Raises:
            UsageError: It was committed before.
        """
        if self._fate.setdefault(_FATE, None) is not None:
            raise UsageError("This batch was committed already")
        # They name this batch, and would keep it, and the producer, until the garbage collector comes.
        self._open.clear()
        self._chunks.clear()

    def _check_open(self) -> None:
        if self._fate:
            self._check_fate(None)

    def _check_fate(self, outcome: BatchOutcome | None) -> None:
        if outcome is None or self._outcome is not outcome:
            raise UsageError(f"This batch was {'dropped' if self._dropped else 'committed'} already")

    def _cannot_wait(self) -> None:
        """Somebody waits for a record of it."""
        if self._outcome is None:
            raise UsageError(
                "The batch that this record is part of was dropped: it is not sent"
                if self._dropped
                else "The batch that this record is part of is still open: nothing of it is sent before it is committed"
            )


def _positions(offsets: Any, group: Any) -> m.GroupOffsets:
    if isinstance(offsets, Mapping):
        if group is None:
            raise UsageError(
                "send_offsets({...}) needs the group: consumer.group_metadata(), or a group's name"
            )
        for at, given in offsets.items():
            if not (hasattr(at, "topic") and hasattr(at, "partition")):
                raise TypeError(f"send_offsets: {at!r} is not a TopicPartition")
            if not (isinstance(given, int) or (hasattr(given, "offset") and hasattr(given, "metadata"))):
                raise TypeError(f"send_offsets: {given!r} is not an OffsetAndMetadata, and no number")
        if not (isinstance(group, str) or hasattr(group, "group_id")):
            raise TypeError(f"send_offsets: {group!r} is neither group_metadata() nor the name of a group")
        if not (group if isinstance(group, str) else group.group_id):
            raise ValueError("send_offsets: the name of the group is empty")
        found = {
            at: (given, "", -1)
            if isinstance(given, int)
            else (
                given.offset,
                given.metadata or "",
                -1 if (e := getattr(given, "leader_epoch", -1)) is None else e,
            )
            for at, given in offsets.items()
        }
    else:
        consumer = offsets
        if not all(
            hasattr(consumer, each) for each in ("config", "group_metadata", "assignment", "position")
        ):
            raise TypeError(f"send_offsets: {offsets!r} is neither a consumer nor a dict of offsets")
        check_settings(consumer)
        group = consumer.group_metadata()
        found = {at: (consumer.position(at), "", -1) for at in consumer.assignment()}
    positions = tuple(
        m.Position(
            _text("a topic", at.topic),
            _number("a partition", at.partition, most=_INT32),
            _number("an offset", offset, most=_INT64),
            _number("a leader epoch", epoch, most=_INT32, least=-1),
            _text("the metadata of an offset", metadata),
        )
        for at, (offset, metadata, epoch) in sorted(found.items())
    )
    if isinstance(group, str):
        return m.GroupOffsets(_text("group", group), "", -1, None, positions)
    return m.GroupOffsets(
        _text("group_id", group.group_id),
        _text("member_id", group.member_id or ""),
        _number("generation_id", group.generation_id, most=_INT32, least=-1),
        None if group.group_instance_id is None else _text("group_instance_id", group.group_instance_id),
        positions,
    )


def _text(what: str, given: Any) -> str:
    """What cannot be written into the spool is refused here: there it would be the end of the producer."""
    if not isinstance(given, str):
        raise TypeError(f"{what}: must be a text, not {given!r}")
    try:
        size = len(given.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what}: {given!r} cannot be written as UTF-8") from error
    if size > _TEXT_BYTES:
        raise ValueError(f"{what}: {size} bytes are too long, {_TEXT_BYTES} may be")
    return given


def _number(what: str, given: Any, *, most: int, least: int = 0) -> int:
    if type(given) is not int:
        raise TypeError(f"{what}: must be an int, not {given!r}")
    if not least <= given <= most:
        raise ValueError(f"{what}: must be from {least} to {most}, not {given}")
    return given

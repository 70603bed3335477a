"""`SafeConsumer`: KafkaConsumer, whose offsets never go backwards silently and who notices when its log was changed.

Group management, fetching, decoding and commits are kafka-python's. What it decides about *positions* is replaced:
where a log ends, whether what was read is still in it, what an error of one partition means, and every reset.

How it hangs together. kafka-python's `poll` asks its fetcher, in this order, to reset positions, to validate them, and
to fetch. `_Fetcher` passes the first two on to `SafeConsumer._begin_resets` and `_begin_checks`, which begin procedures
(`_io.inquiry`), one per partition at most; `_carry_on` applies what has come out of them. What was fetched goes by
`_on_fetched` first. A partition under examination is not fetched from (kafka-python's `_awaiting_validation`), the
others are. All decisions are made on the thread that polls; only the text of a lineage is also made on kafka-python's
I/O thread, for commits (`_lock`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import random
import re
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Unpack

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.future import Future
from kafka.structs import MemberState, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from kafkasafe._core.codes import classify_code
from kafkasafe._core.epochs import (
    UNDEFINED,
    BatchMark,
    BatchMemory,
    BatchWalk,
    Diverged,
    EpochWalk,
    Lineage,
    LineageError,
    Outcome,
    Same,
    Unknown,
)
from kafkasafe._core.memory import Remembered
from kafkasafe._core.patience import seconds_of
from kafkasafe._io.at_once import at_once
from kafkasafe._io.batches import BatchFetcher, BatchPolling
from kafkasafe._io.connect import connect
from kafkasafe._io.inquiry import Ask, Desk, Inquiry, Pause, Procedure, insist, pause_s
from kafkasafe._io.lineage_file import LineageMemory
from kafkasafe._io.lookups import OUT_OF_RANGE, REMOTE, LeaderChangedError, LookUps, Note
from kafkasafe._io.metadata import Metadata
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe._io.stats import ConsumerStats, PartitionProgress, Reading
from kafkasafe._io.transport import _Manager
from kafkasafe.classification import Verdict
from kafkasafe.cluster.api import (
    EARLIEST,
    LATEST,
    Cluster,
    Failure,
    OffsetListed,
    RecordsFetched,
    Reply,
    TopicInfo,
    in_words,
)
from kafkasafe.config import validate_consumer
from kafkasafe.errors import LogDivergedError, OffsetNotAvailableError, RemoteStorageNotReadyError
from kafkasafe.events import (
    ConsumerEvent,
    HistoryTrimmed,
    LogDiverged,
    OffsetHeld,
    OffsetLowered,
    PartitionNotReady,
    PartitionReady,
    PositionReset,
)
from kafkasafe.logs import EventLog, as_own_thread, limit_foreign
from kafkasafe.metrics import consumer_readings, install
from kafkasafe.offsets import EndOffsetTracker, IsolationLevel
from kafkasafe.options import ConsumerOptions

__all__ = ["Offsets", "SafeConsumer", "check_offset"]

log = EventLog("consumer")

_STRATEGY: Final[dict[int, Literal["earliest", "latest"]]] = {EARLIEST: "earliest", LATEST: "latest"}

_TOPIC_AUTHORIZATION_FAILED: Final = 29
_OFFSET_NOT_AVAILABLE: Final = 78
# NOT_LEADER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH: another leader, or one who knows another epoch.
_OTHER_LEADER: Final = frozenset({6, 74, 75})
# A leader that did not say whether it has a remote part is asked again after this, seconds.
_REMOTE_AGAIN_S: Final = 1.0
# Each round of asking about an offset out of range is three requests: so ten a second.
_RANGE_PAUSE_S: Final = 0.3
# How long after an error of a follower the leader is asked to serve by itself (it would send us back at once).
_LEADER_ONLY_S: Final = 30.0
# While some partition waits for the application's decision, `poll` comes back to say so at least as often as this.
_REMINDER_MS: Final = 1000
_BRIEFLY_MS: Final = 100

_LAST_OFFSET: Final = 2**63 - 1

# What a deleted topic answers, and for a moment a broker that just started: UNKNOWN_TOPIC_OR_PARTITION,
# UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID.
_OTHER_TOPIC: Final = frozenset({3, 100, 103})
# The file of `lineage_path` is written at most so often, and after a failure not sooner than this.
_SAVE_S: Final = 1.0
_SAVE_AGAIN_S: Final = 10.0
# Pause before an end offset that is held is asked for again.
_SETTLE_S: Final = 0.5

# Base offset, length, leader epoch, magic, CRC, attributes, last offset's delta.
_HEADER: Final = struct.Struct(">qiibIhi")
_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
_LOG_OVERHEAD: Final = 12
_MAGIC_2: Final = 2
# Offset, length, CRC, magic, attributes of messages before format 2.
_OLD_HEADER: Final = struct.Struct(">qiIbb")
_HAS_DELETE_HORIZON: Final = 0x40


class Offsets(dict[TopicPartition, Any]):
    """Offsets by partition.

    Attributes:
        missing: With `partial=True`: why the other partitions have none, by partition.
    """

    def __init__(
        self, answered: Mapping[TopicPartition, Any], missing: Mapping[TopicPartition, Exception]
    ) -> None:
        super().__init__(answered)
        self.missing = dict(missing)


class _Walked:
    """What a walk found, in the log of which topic, and under which leader epoch."""

    __slots__ = ("epoch", "leadership", "outcome", "recreated", "round_trips", "topic_id")

    def __init__(self, outcome: Outcome, epoch: int, round_trips: int, *, recreated: bool = False) -> None:
        self.outcome = outcome
        self.epoch = epoch
        self.round_trips = round_trips
        self.recreated = recreated
        self.topic_id: bytes | None = None
        # What kafka-python's metadata said when it began: the same again is no news.
        self.leadership: _Leadership | None = None


class _Ranged:
    """What is behind an offset out of range: the log's bounds, and the walk if there was one."""

    __slots__ = ("end", "start", "walked")

    def __init__(self, start: int, end: int, walked: _Walked | None) -> None:
        self.start = start
        self.end = end
        self.walked = walked


class _Local:
    """Where the leader's own part of the log begins; None: it has no other."""

    __slots__ = ("start",)

    def __init__(self, start: int | None) -> None:
        self.start = start


class _Trouble:
    """What stands in the way of one look-up.

    Where an error looks like remote storage that is not ready, the leader is asked whether the log has a remote part:
    each of these errors has other causes too.
    """

    __slots__ = ("_asked_at", "_desk", "_last", "_lookups", "_remote", "_tp")

    def __init__(self, tp: TopicPartition, desk: Desk, lookups: LookUps) -> None:
        self._tp = tp
        self._desk = desk
        self._lookups = lookups
        self._last: Exception | None = None
        self._remote: Inquiry[bool | None] | None = None
        self._asked_at = -math.inf

    def note(self, error: Exception) -> None:
        """A try failed."""
        self._last = error
        known = self._remote is not None and (not self._remote.done or self._remote.result is not None)
        if isinstance(error, RemoteStorageNotReadyError):
            return  # that is known, then
        if not known and _code_of(error) in {*REMOTE, OUT_OF_RANGE}:
            now = time.monotonic()
            if now - self._asked_at >= _REMOTE_AGAIN_S:
                self._asked_at = now
                self._remote = self._desk.begin(self._lookups.has_remote_part(*self._tp))

    def too_late(self, timeout_s: float) -> Exception:
        """The error of a look-up whose time is over."""
        topic, partition = self._tp
        last, code = self._last, _code_of(self._last)
        said = "no answer" if last is None else repr(last) if code is None else f"error code {code}, {last!r}"
        message = f"No offset of {topic}-{partition} within {timeout_s:g} s; at last: {said}"
        error: Exception
        if code == _OFFSET_NOT_AVAILABLE:
            error = OffsetNotAvailableError(
                f"{message}. Its new leader is catching up; nothing was concluded, call again.",
                topic=topic,
                partition=partition,
            )
        elif isinstance(last, RemoteStorageNotReadyError) or (
            code in {*REMOTE, OUT_OF_RANGE} and self._remote is not None and self._remote.result
        ):
            error = RemoteStorageNotReadyError(
                f"{message}. Remote storage is not ready; nothing was concluded, call again.",
                topic=topic,
                partition=partition,
                code=UNDEFINED if code is None else code,
            )
        else:
            error = kafka_errors.KafkaTimeoutError(message)
        error.__cause__ = last
        return error


def _code_of(error: Exception | None) -> int | None:
    """Kafka's error code, where a broker answered one."""
    if isinstance(error, RemoteStorageNotReadyError):
        return error.code
    if not isinstance(error, kafka_errors.BrokerResponseError):
        return None
    code: int | None = getattr(error, "errno", None)
    return code


class _ResetTo:
    """Where a reset leads."""

    __slots__ = ("offset", "start", "strategy")

    def __init__(self, strategy: int, offset: int, start: int | None) -> None:
        self.strategy = strategy
        self.offset = offset
        self.start = start


_Leadership = tuple[bytes | None, int, int]
"""Topic id, leader, leader epoch; as the metadata have it."""

_ResetReason = tuple[Literal["no_position", "retention", "beyond_end"], int | None]
"""Why, and the position before."""


class _Part:
    """What is known of an assigned partition.

    Attributes:
        state: kafka-python's; another one stands for another assignment.
        lineage: What was read. Changed under `SafeConsumer._lock`.
        marks: The newest batches that were read, where leader epochs do not tell enough.
        topic_id: Of the topic that was read.
        former_ids: Of topics of that name that are gone. kafka-python's metadata may still have them.
        doubted: A connection to the leader was lost, and no leader epoch tells who leads since.
        checked: Under whom the position was found good; None: it has to be checked.
        inquiry: The procedure under way, one at a time.
        position: Offset for which it was begun.
        suspected: A batch, or the broker, spoke of another log than the one that was read.
        diverged: Found, and not decided about yet.
        error: What `poll` raises until the position changes.
        told: When it was raised last; 0: not yet.
        reset: Why the position is about to be reset; None: the application asked for it.
        leader_until: A follower answered with an error: until then only the leader is read from.
        failures: Fetches that failed one after the other.
        failing_since: When the first of them did.
        failing_code: Error code of the last one.
        failing_reason: What that means.
        code: Error code that was told of last, 0: none.
        overdue_since: When fetches began to fail, or `poll` last said that it takes too long.
        remote: Whether the position lies in remote storage; None: not known yet. Only looked at when a fetch failed.
    """

    __slots__ = (
        "checked",
        "code",
        "diverged",
        "doubted",
        "error",
        "failing_code",
        "failing_reason",
        "failing_since",
        "failures",
        "former_ids",
        "inquiry",
        "leader_until",
        "lineage",
        "marks",
        "overdue_since",
        "position",
        "remote",
        "reset",
        "state",
        "suspected",
        "told",
        "topic_id",
    )

    def __init__(self, state: Any) -> None:
        self.state: Any = state
        self.lineage = Lineage()
        self.marks = BatchMemory()
        self.checked: _Leadership | None = None
        self.topic_id: bytes | None = None
        self.former_ids: set[bytes] = set()
        self.doubted = False
        self.inquiry: Inquiry[Any] | None = None
        self.position = -1
        self.suspected = False
        self.diverged: LogDiverged | None = None
        self.error: Exception | None = None
        self.told = 0.0
        self.reset: _ResetReason | None = None
        self.leader_until = 0.0
        self.failures = 0
        self.failing_code = 0
        self.failing_reason = ""
        self.failing_since = self.overdue_since = 0.0
        self.code = 0
        self.remote: bool | None = None

    def cancel(self) -> None:
        if self.inquiry is not None:
            self.inquiry.cancel()
            self.inquiry = None


class SafeConsumer(OfOneProcess, BatchPolling, KafkaConsumer):
    """A drop-in for kafka-python's `KafkaConsumer`. Not thread-safe, as that; look-ups of offsets are.

    What it does beside:

    - `end_offsets`, `beginning_offsets` and `offsets_for_times` never go back without a proof, and ask as often as is
      sensible; they take `partial=True`.
    - When records that were read are gone from the log, it says which (`LogDiverged`), also after a restart: the
      leader epochs of what was read go with the committed offset, as its metadata (where none is given).
    - Errors of one partition that pass do not end `poll`; the others go on.
    - No position is reset without an event.
    - `poll_arrow` and `poll_batches` give whole Arrow tables.

    Args:
        topics: To subscribe to, as KafkaConsumer's.
        options: KafkaConsumer's options, and:
            on_divergence: "raise" (default): `poll` raises LogDivergedError, at once and, until the application seeks,
                whenever there are no records of other partitions to return. "seek": go on from the first offset that
                differs. Or a callable that gets the `LogDiverged` and returns the offset to go on from (None: raise).
            on_event: Gets each `kafkasafe.events.ConsumerEvent`, on the thread that called the consumer. What it
                raises is logged.
            offsets_path: File that remembers the highest ends and starts from one life of the process to the next; an
                answer of `end_offsets` or `beginning_offsets` is in it before it is returned. One consumer per file.
                Default: nothing is remembered.
            offsets_hold_timeout_s: How long a lower end offset that nothing explains is held before it is called
                undecidable, seconds (30). The old value stands all the same. A lower start is believed then.
            lineage_path: File that remembers what was read (leader epochs; CRCs of batches where there are none) from
                one life of the process to the next, for positions that are not committed to a group, or committed with
                metadata of your own. Written at most once a second by `poll`, by `save_lineage` and by `close`. One
                consumer per file. Default: it goes with committed offsets only.
            metrics: Be collected by prometheus-client's default registry; `kafkasafe.metrics.install` does it for
                another one.
            remote_storage_timeout_ms: After how long without a partition's remote segments `poll` raises
                RemoteStorageNotReadyError. Default: never, it waits.

    Attributes:
        counters: How many events of each kind there were, by name.

    Raises:
        ConfigError: An option is unknown or has a value that cannot work.
        LineageFileError: The file of `lineage_path` is damaged, of a newer version, or in use.
        BaselineError: The same of `offsets_path`.
        KafkaTimeoutError: No broker could be used within `bootstrap_timeout_ms`; the message has the reason.
    """

    config: dict[str, Any]
    _fetcher: Any
    _coordinator: Any
    _subscription: Any
    _manager: Any
    _client: Any

    def __init__(self, *topics: str, **options: Unpack[ConsumerOptions]) -> None:
        self._safe = validate_consumer(options)
        self._tracker = EndOffsetTracker(
            self._safe.offsets_path, hold_timeout_s=self._safe.offsets_hold_timeout_s
        )
        self.counters: collections.Counter[str] = collections.Counter()
        self._log = log.bind(client_id=options.get("client_id", KafkaConsumer.DEFAULT_CONFIG["client_id"]))
        self._stats = ConsumerStats()
        self._lock = threading.Lock()
        self._transport: Cluster | None = None
        self._parts: dict[TopicPartition, _Part] = {}
        self._resting: dict[TopicPartition, float] = {}
        self._desk = Desk(self._ring)
        self._keeps_lineage = True
        self._memory = LineageMemory(self._safe.lineage_path)
        self._save_due = 0.0
        self._save_ends_due = 0.0
        parent: Any = super()
        try:
            parent.__init__(*topics, **{**_OURS, **self._safe.kafka})
        except BaseException as failed:
            self._memory.close()
            if hasattr(self, "_client"):
                # KafkaConsumer leaves its thread and sockets behind, for each try of an application anew.
                self._client.close()
            cause = getattr(getattr(self, "_manager", None), "last_failure", None)
            if isinstance(failed, kafka_errors.KafkaTimeoutError) and cause is not None:
                raise kafka_errors.KafkaTimeoutError(
                    f"Unable to bootstrap from {self.config['bootstrap_servers']}: {in_words(cause)}"
                ) from cause
            raise
        # KafkaConsumer makes its parts itself and has no hook for others.
        self._fetcher.__class__ = _Fetcher
        self._fetcher.owner = self
        self._coordinator.__class__ = _Coordinator
        self._coordinator.owner = self
        self._lookups = LookUps(
            self._network,
            self._tracker,
            self._stats,
            self._emit,
            int(self._fetcher._isolation_level),
            _ignore,
        )
        if self._safe.metrics:
            install(self)

    @property
    def client_id(self) -> str:
        """KafkaConsumer's option; label of the metrics."""
        return str(self.config["client_id"])

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[Any]]:
        """As KafkaConsumer's. A partition that waits for the application's decision does not stop the others.

        Args:
            timeout_ms: How long to wait for records; at most a second while a partition is undecided.
            max_records: How many to return at most.
            update_offsets: kafka-python's own.

        Raises:
            LogDivergedError: See `on_divergence`. At once, and later whenever there is nothing else to return.
            OffsetOutOfRangeError: The same, with `auto_offset_reset="none"`.
            RemoteStorageNotReadyError: See `remote_storage_timeout_ms`.
            CorruptRecordError: The next batch of a partition is damaged. Its position stays where it is.
        """
        undecided = self._undecided()
        if undecided:
            # Even when nobody else has records: the group is looked after in there.
            timeout_ms = min(timeout_ms, _REMINDER_MS if self._has_others() else _BRIEFLY_MS)
        parent: Any = super()
        try:
            records: dict[TopicPartition, list[Any]] = parent.poll(timeout_ms, max_records, update_offsets)
        except kafka_errors.CorruptRecordError as error:
            raise kafka_errors.CorruptRecordError(
                f"{error.args[0] if error.args else 'A record batch is damaged'}. The position stays before it: poll"
                " again, if it may have been damaged on its way; seek past it to leave it out."
            ) from error
        if self._safe.lineage_path is not None and time.monotonic() >= self._save_due:
            # An iterator moves the position with each record; otherwise they count as handed out now.
            self._save_now_and_then({} if update_offsets else records)
        if not records and (undecided := self._undecided()):
            raise self._told(undecided)
        return records

    def __repr__(self) -> str:
        known = getattr(self, "_subscription", None)
        if known is None:
            return "<SafeConsumer not opened>"
        if known.subscribed_pattern is not None:
            reads = known.subscribed_pattern.pattern
        else:
            reads = ", ".join(sorted(known.subscription or {tp.topic for tp in self._assigned()}))
        group = f" group={self.config['group_id']}" if self.config["group_id"] is not None else ""
        state = "closed" if self._closed else "open"
        return f"<SafeConsumer {self.client_id} {state}{group} topics={reads}>"

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """As KafkaConsumer's; also writes `offsets_path` and `lineage_path`.

        Raises:
            OSError: A file could not be written. Everything is closed all the same.
        """
        if self._closed:
            return
        # Answers that come from here on find nobody: what they would wake is about to be closed.
        self._desk.retire()
        for part in list(self._parts.values()):
            part.cancel()
        parent: Any = super()
        try:
            parent.close(autocommit=autocommit, timeout_ms=timeout_ms)
        finally:
            for part in list(self._parts.values()):
                part.cancel()
            with self._lock:
                transport, self._transport = self._transport, None
            if transport is not None:
                transport.close(5.0)
            try:
                self.save_lineage()
            finally:
                self._memory.close()
                self._tracker.save()

    def save_lineage(self) -> None:
        """Write what was read to `lineage_path`; durable on return. Does nothing without that option.

        For who keeps positions himself: before one is stored, so that even what was read in the last second before a
        kill -9 can be compared with the log.

        Raises:
            OSError: It could not be written; what the file had before stands.
        """
        self._keep_all({})
        self._memory.save()

    def _save_now_and_then(self, records: Mapping[TopicPartition, list[Any]]) -> None:
        self._keep_all(records)
        try:
            self._memory.save()
        except OSError:
            # Reading goes on: without the file only the next life knows less. `close` raises it.
            log.exception(
                "%s could not be written",
                self._safe.lineage_path,
                client_id=self.client_id,
                path=str(self._safe.lineage_path),
                event="lineage_not_written",
            )
            self.counters["lineage_write_errors"] += 1
            self._save_due = time.monotonic() + _SAVE_AGAIN_S
        else:
            self._save_due = time.monotonic() + _SAVE_S

    def _keep_all(self, records: Mapping[TopicPartition, list[Any]]) -> None:
        """Remember all partitions, up to what was handed out; `records` are about to be."""
        for tp, part in self._parts.items():
            some = records.get(tp)
            self._keep(tp, part, some[-1].offset + 1 if some else 0)

    def _keep(self, tp: TopicPartition, part: _Part, least: int = 0) -> None:
        position = part.state.position
        with self._lock:
            lineage = part.lineage.copy()
        # Without a position (a reset is under way): what was read before stands.
        if position is not None:
            lineage.truncate(max(position.offset, least))
        marks = tuple(mark for mark in part.marks.marks if mark.base_offset < lineage.end_offset)
        self._memory.keep(tp.topic, tp.partition, Remembered(part.topic_id, lineage, marks))

    # --- look-ups of offsets ----------------------------------------------------------------------------------------

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """Where the logs end: the offset of the next record. Never lower than before without a proof.

        While a new leader catches up (KIP-207), this waits. A lower answer is checked against the leader's epochs:
        where records are gone the lower value is returned, with an `OffsetLowered` event; else the old one stands, with
        an `OffsetHeld` event.

        Args:
            partitions: Which.
            timeout_ms: How long it may take, default `request_timeout_ms`.
            partial: True: return what could be answered; the others are in `missing` of the result.

        Returns:
            Offsets by partition, a dict.

        Raises:
            OffsetNotAvailableError: Time is over, and the new leader still catches up.
            RemoteStorageNotReadyError: Time is over, a part of the log is in remote storage, and it may be the reason.
            KafkaTimeoutError: Time is over for another reason, which is its `__cause__`. The two above are kinds of it.
            KafkaError: What no retry helps, as a missing right.
            TypeError: `timeout_ms` is not a number.
            ValueError: It is nan.
        """
        try:
            return self._look_up(
                {tp: functools.partial(self._end, tp) for tp in partitions}, timeout_ms, partial=partial
            )
        finally:
            self._save_ends()

    def _save_ends(self) -> None:
        """Before the application has the answer: after a kill -9 the next life must not give a lower one."""
        if self._safe.offsets_path is None or time.monotonic() < self._save_ends_due:
            return
        try:
            self._tracker.save(if_changed=True)
        except OSError:
            # The answer is right all the same; without the file only the next life knows less. `close` raises it.
            log.exception(
                "%s could not be written",
                self._safe.offsets_path,
                client_id=self.client_id,
                path=str(self._safe.offsets_path),
                event="offsets_not_written",
            )
            self._save_ends_due = time.monotonic() + _SAVE_AGAIN_S

    def beginning_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """Where the logs begin. Never lower than before, unless it is another log.

        A new leader may begin earlier, since it has not deleted as much yet: then the old value stands, with an
        `OffsetHeld` event. It is checked against the leader's epochs; where the log is another one (or the topic), the
        lower value is returned, with an `OffsetLowered` event. Where nothing can prove it (brokers without epochs) the
        old value stands for `offsets_hold_timeout_s`, then the lower one is believed. Resets of positions do without
        all this: they go to where the leader's log begins at that moment.

        Arguments and errors: see `end_offsets`.
        """
        try:
            return self._look_up(
                {tp: functools.partial(self._lookups.start, *tp) for tp in partitions},
                timeout_ms,
                partial=partial,
            )
        finally:
            self._save_ends()

    def offsets_for_times(
        self,
        timestamps: Mapping[TopicPartition, int],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """First offsets at or after a time.

        An answer that left out the remote part of a log is not believed; it is waited for. Where a record was found
        before by this consumer and none is found now, though it is neither below the start of the log nor proven to be
        gone, the record of before is returned, with an `OffsetHeld` event.

        Args:
            timestamps: Ms since the epoch, by partition.
            timeout_ms: See `end_offsets`.
            partial: See `end_offsets`.

        Returns:
            OffsetAndTimestamp by partition, None where there is no such record.

        Raises:
            ValueError: A time is negative.
            KafkaError: See `end_offsets`.
        """
        times = {tp: int(timestamp) for tp, timestamp in timestamps.items()}
        for tp, timestamp in times.items():
            if timestamp < 0:
                raise ValueError(
                    f"The target time for partition {tp} is {timestamp}. The target time cannot be negative."
                )
        return self._look_up(
            {tp: functools.partial(self._at_time, tp, ms) for tp, ms in times.items()},
            timeout_ms,
            partial=partial,
        )

    def _look_up(
        self,
        procedures: Mapping[TopicPartition, Callable[[Note], Procedure[Any]]],
        timeout_ms: float | None,
        *,
        partial: bool,
    ) -> Offsets:
        timeout_s = seconds_of(self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms)
        deadline = time.monotonic() + timeout_s
        # A desk of its own: others may look up at the same time.
        desk = Desk()
        troubles = {tp: _Trouble(tp, desk, self._lookups) for tp in procedures}
        begun = desk.begin_all(make(troubles[tp].note) for tp, make in procedures.items())
        inquiries = dict(zip(procedures, begun, strict=True))
        while not all(inquiry.done for inquiry in inquiries.values()):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            desk.wait(left_s)
            desk.work()
        answered: dict[TopicPartition, Any] = {}
        missing: dict[TopicPartition, Exception] = {}
        for tp, inquiry in inquiries.items():
            if not inquiry.done:
                inquiry.cancel()
                missing[tp] = troubles[tp].too_late(timeout_s)
                self._stats.exhausted["list_offsets"] += 1
            elif inquiry.error is not None:
                missing[tp] = inquiry.error
            else:
                answered[tp] = inquiry.result
        if missing and not partial:
            # What no retry helps says more than that time is over.
            raise min(missing.values(), key=lambda error: isinstance(error, kafka_errors.KafkaTimeoutError))
        return Offsets(answered, missing)

    def _start(self, tp: TopicPartition) -> Procedure[int]:
        """Where the leader's log begins at this moment: what can be fetched from it, whatever was answered before."""
        return (yield from self._lookups.listed(*tp, EARLIEST)).offset

    def _at_time(
        self, tp: TopicPartition, timestamp: int, note: Note
    ) -> Procedure[OffsetAndTimestamp | None]:
        found = yield from self._lookups.at_time(*tp, timestamp, note)
        return (
            None
            if found.offset < 0
            else OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch)
        )

    def _local(self, tp: TopicPartition) -> Procedure[_Local]:
        return _Local((yield from self._lookups.local_start(*tp)))

    def _end(self, tp: TopicPartition, note: Note) -> Procedure[int]:
        return (yield from self._lookups.end(*tp, note)).offset

    @property
    def _isolation(self) -> IsolationLevel:
        return "read_committed" if int(self._fetcher._isolation_level) else "read_uncommitted"

    def _network(self) -> Cluster:
        """Our own connections, made when they are needed first."""
        transport = self._transport
        if transport is not None and not self._closed:
            return transport  # without the lock: each question of a look-up comes here several times
        with self._lock:
            if self._closed:
                raise kafka_errors.IllegalStateError("The consumer is closed")
            if self._transport is None:
                # The version that was found is no option: brokers may be upgraded while this runs.
                options = {**self.config, "api_version": self._safe.kafka.get("api_version")}
                transport = connect(options)
                transport.start()
                self._transport = transport
            return self._transport

    # --- positions ----------------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Sequence[str] = (), pattern: str | None = None, listener: Any | None = None
    ) -> None:
        """KafkaConsumer's. Without a group it takes effect when brokers have answered, in a moment.

        KafkaConsumer then reads what it read before, or after `unsubscribe` nothing, until partitions change in the
        cluster, if the client knows the topics already.

        Raises:
            IllegalStateError: `assign` chose the partitions, or it subscribed in the other way: `unsubscribe` first.
            TypeError: Names are no list, the listener is none.
        """
        parent: Any = super()
        parent.subscribe(topics, pattern, listener)
        if self.config["group_id"] is None:
            self._coordinator._metadata_snapshot = {}
            self._cluster.request_update()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """As KafkaConsumer's. Also the answer to a `LogDivergedError`.

        Raises:
            ValueError: The partition is not assigned, or the offset is not one.
        """
        check_offset(offset)
        parent: Any = super()
        parent.seek(partition, offset)
        self._decided(partition)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """As KafkaConsumer's.

        Raises:
            ValueError: An offset is not one. KafkaConsumer repeats it until the time is over, or has a negative one
                committed, which later counts as none.
        """
        _check_offsets(offsets)
        parent: Any = super()
        parent.commit(offsets, timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        callback: Callable[..., object] | None = None,
    ) -> Future:
        """As KafkaConsumer's.

        Raises:
            ValueError: An offset is not one.
        """
        _check_offsets(offsets)
        parent: Any = super()
        future: Future = parent.commit_async(offsets, callback)
        return future

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """As KafkaConsumer's."""
        parent: Any = super()
        parent.seek_to_beginning(*partitions)
        for tp in partitions or self._subscription.assigned_partitions():
            self._decided(tp)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """As KafkaConsumer's."""
        parent: Any = super()
        parent.seek_to_end(*partitions)
        for tp in partitions or self._subscription.assigned_partitions():
            self._decided(tp)

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """Offset of the next record, None when it is not known in time.

        Args:
            partition: Which.
            timeout_ms: How long it may take, default `request_timeout_ms`.

        Raises:
            LogDivergedError: See `on_divergence`.
            IllegalStateError: The partition is not assigned.
        """
        if not isinstance(partition, TopicPartition):
            raise TypeError("partition must be a TopicPartition namedtuple")
        if not self._subscription.is_assigned(partition):
            raise kafka_errors.IllegalStateError("Partition is not assigned")
        timeout_s = seconds_of(self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms)
        deadline = time.monotonic() + timeout_s
        while True:
            self._refresh_committed_offsets(timeout_ms=max(0.0, deadline - time.monotonic()) * 1000)
            self._begin_resets()
            self._begin_checks()
            self._carry_on(partition)
            state = self._subscription.assignment.get(partition)
            if state is None:
                raise kafka_errors.IllegalStateError("Partition is not assigned any more")
            left_s = deadline - time.monotonic()
            if left_s <= 0 or (state.has_valid_position and not state.awaiting_validation):
                return None if state.position is None else int(state.position.offset)
            self._desk.wait(min(left_s, 0.1))

    def metrics(self, raw: bool = False) -> Any:
        """As KafkaConsumer's, with how many events of each kind there were in the group `kafkasafe-consumer`."""
        parent: Any = super()
        metrics = parent.metrics(raw)
        if metrics is None or raw:
            return metrics
        return {**metrics, "kafkasafe-consumer": dict(self.counters)}

    def _decided(self, tp: TopicPartition) -> None:
        """The application has chosen a position: no reset, no examination of the old one."""
        part = self._part(tp)
        if part is None:
            return
        part.cancel()
        part.reset = part.error = part.checked = part.remote = None
        part.suspected = False
        if part.diverged is not None:
            # It knows what is gone. Whatever it chose, this is not to be told again.
            with self._lock:
                part.lineage.truncate(part.diverged.at)
                part.marks.truncate(part.diverged.at)
            part.diverged = None

    def _part(self, tp: TopicPartition) -> _Part | None:
        state = self._subscription.assignment.get(tp)
        part = self._parts.get(tp)
        if state is None or part is None or part.state is not state:
            if part is not None:
                part.cancel()
                self._keep(tp, part)
                del self._parts[tp]
                self._resting.pop(tp, None)
            if state is None:
                return None
            part = self._parts[tp] = _Part(state)
            known = self._memory.get(tp.topic, tp.partition)
            if known is not None:
                part.lineage, part.topic_id = known.lineage.copy(), known.topic_id
                for mark in known.marks:
                    part.marks.observe(mark)
        return part

    def _refresh_committed_offsets(self, timeout_ms: float | None = None) -> bool:
        """kafka-python's, but the leader epoch and the lineage of a committed offset are not thrown away."""
        if self._subscription.has_all_fetch_positions():
            return True
        missing = self._subscription.missing_fetch_positions()
        if missing and self.config["group_id"] is not None:
            try:
                committed = self._coordinator.fetch_committed_offsets(missing, timeout_ms=timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                return False
            for tp, offset in committed.items():
                part = self._part(tp)
                if part is None:  # a rebalance was faster
                    continue
                epoch = UNDEFINED if offset.leader_epoch is None else offset.leader_epoch
                self._subscription.seek(tp, OffsetAndMetadata(offset.offset, "", epoch))
                with self._lock:
                    lineage = _restored(offset.metadata, epoch, offset.offset, part.lineage)
                    if lineage is not part.lineage:
                        # Whoever committed it may have read another topic of the name, or another log.
                        part.lineage, part.topic_id, part.marks = lineage, None, BatchMemory()
        for tp in self._subscription.missing_fetch_positions():
            part = self._part(tp)
            if part is not None:
                part.reset = ("no_position", None)
        self._subscription.reset_missing_positions()
        return bool(self._subscription.has_all_fetch_positions())

    # --- procedures, begun ----------------------------------------------------------------------------------------

    @at_once()
    def _begin_resets(self) -> None:
        for tp in self._subscription.partitions_needing_reset():
            part = self._part(tp)
            if part is not None and part.inquiry is None:
                part.inquiry = self._desk.begin(self._reset(tp, part.state.reset_strategy, part.reset))

    def _reset(self, tp: TopicPartition, strategy: int, reason: _ResetReason | None) -> Procedure[_ResetTo]:
        start = None
        if strategy == EARLIEST or (reason is not None and reason[0] == "no_position"):
            start = yield from self._start(tp)
        if strategy == EARLIEST and start is not None:
            return _ResetTo(strategy, start, start)
        end = yield from self._settled_end(tp)
        return _ResetTo(strategy, end, start)

    def _settled_end(self, tp: TopicPartition) -> Procedure[int]:
        """An end to go on from: one that is held although the log is shorter would be out of range at once."""
        began = time.monotonic()
        while True:
            end = yield from self._end(tp, _ignore)
            if end <= (yield from self._log_end(tp)):
                return end
            if time.monotonic() - began >= self._safe.offsets_hold_timeout_s:
                lowered = self._tracker.accept(tp.topic, tp.partition, isolation_level=self._isolation)
                if lowered is not None:
                    event = OffsetLowered(
                        tp.topic, tp.partition, lowered.offset, lowered.previous, lowered.cause.value
                    )
                    self._emit(event)
                    return lowered.offset
            yield Pause(_SETTLE_S)

    @at_once()
    def _begin_checks(self) -> None:
        """Whoever leads now may have another log than whoever led when the position was found good."""
        assigned = list(self._assigned())
        for tp in [tp for tp in self._parts if tp not in self._subscription.assignment]:
            self._part(tp)
        for tp in assigned:
            part = self._part(tp)
            if part is None or part.inquiry is not None or part.error is not None:
                continue
            if part.state.position is None:
                continue
            leadership = self._leadership(tp)
            if leadership is not None and leadership[0] in part.former_ids:
                # What is known is newer.
                self._manager.cluster.request_update()
                part.state._awaiting_validation = True
            elif leadership is None:
                if part.checked is None and part.lineage.entries:
                    # Metadata may come before the fetch is sent: nothing is to be read unchecked. And it is
                    # the fetch of a partition without a leader that makes kafka-python ask for them.
                    part.state._awaiting_validation = True
                    self._manager.cluster.request_update()
            elif (
                part.suspected or part.doubted or part.checked is None or _is_newer(leadership, part.checked)
            ):
                self._check(tp, part, leadership)

    def _check(self, tp: TopicPartition, part: _Part, leadership: _Leadership) -> None:
        position = part.state.position.offset
        part.doubted = False
        if not part.lineage.entries or part.lineage.start_offset >= position:
            # Nothing was read before the position: there is nothing to lose.
            if part.suspected:
                with self._lock:
                    part.lineage = Lineage((), position)
                part.suspected = False
            if part.topic_id is not None and part.topic_id != leadership[0]:
                part.former_ids.add(part.topic_id)
            part.checked, part.topic_id = leadership, leadership[0]
            part.state._awaiting_validation = False
            return
        part.position = position
        part.state._awaiting_validation = True
        part.inquiry = self._desk.begin(
            self._walk(
                tp, part.lineage.copy(), part.marks.marks, position, part.topic_id, frozenset(part.former_ids)
            )
        )

    def _leadership(self, tp: TopicPartition) -> _Leadership | None:
        cluster = self._manager.cluster
        leader = cluster.leader_for_partition(tp)
        if leader is None or leader < 0:
            return None
        epoch = cluster.leader_epoch_for_partition(tp)
        topic_id = cluster.topic_id(tp.topic)
        number = None if topic_id is None else topic_id.bytes
        return number, leader, UNDEFINED if epoch is None else epoch

    def _walk(
        self,
        tp: TopicPartition,
        lineage: Lineage,
        marks: Sequence[BatchMark],
        position: int,
        topic_id: bytes | None,
        former_ids: frozenset[bytes],
    ) -> Procedure[_Walked]:
        tries = 0
        while True:
            leadership = self._leadership(tp)
            # kafka-python's metadata may be minutes old.
            info = yield from self._fresh(tp.topic)
            told = info.partitions.get(tp.partition)
            # Nor need a broker know yet what another one has told kafka-python.
            ids = {info.topic_id if any(info.topic_id) else None, leadership[0] if leadership else None}
            if ids & former_ids:
                self._manager.cluster.request_update()
                yield Pause(pause_s(tries))
                tries += 1
                continue
            other = next(iter(ids - {None, topic_id}), None)
            try:
                if topic_id is not None and other is not None:
                    end = yield from self._log_end(tp)
                    epoch = UNDEFINED if told is None else told.leader_epoch
                    walked = _Walked(_all_gone(lineage, position, end), epoch, 0, recreated=True)
                else:
                    current = self._newest_epoch(tp)
                    walked = yield from self._walk_one_leader(tp, lineage, marks, position, current)
            except LeaderChangedError:
                self._manager.cluster.request_update()
                yield Pause(pause_s(tries))
                tries += 1
                continue
            walked.topic_id = other or topic_id
            walked.leadership = leadership
            return walked

    def _fresh(self, topic: str) -> Procedure[TopicInfo]:
        """What metadata say now of a topic, once it exists."""
        transport = self._network()
        tries = 0
        while True:
            answer = yield Ask(functools.partial(transport.refresh_metadata, [topic]))
            info = transport.topic(topic)
            if not isinstance(answer, Failure) and info is not None:
                if not info.error_code:
                    return info
                verdict = classify_code(info.error_code, "metadata")
                if not verdict.retriable:
                    raise _code_error(info.error_code, f"{topic}: {verdict.explanation}")
            yield Pause(pause_s(tries))
            tries += 1

    def _walk_one_leader(
        self, tp: TopicPartition, lineage: Lineage, marks: Sequence[BatchMark], position: int, current: int
    ) -> Procedure[_Walked]:
        start = yield from self._start(tp)
        walk = EpochWalk(lineage, position=position, log_start_offset=start)
        outcome: Outcome | None
        try:
            while (epoch := walk.query()) is not None:
                answer = yield from self._lookups.epoch_end(*tp, epoch, current)
                walk.answer(answer.leader_epoch, answer.end_offset)
        except kafka_errors.IllegalStateError:  # closed meanwhile
            raise
        except kafka_errors.KafkaError as error:
            # Brokers before 2.3 do not let every client ask about epochs.
            outcome = Unknown(f"the broker does not tell about epochs: {error!r}")
        else:
            outcome = walk.outcome
        if marks and not (isinstance(outcome, Diverged) and outcome.exact):
            compared = yield from self._compare(tp, marks, position, start, current)
            rounds = walk.round_trips + compared.round_trips
            match outcome, compared.outcome:
                case Diverged(at=at, rolled_back_epochs=epochs), Diverged(at=first) as found if first <= at:
                    return _Walked(dataclasses.replace(found, rolled_back_epochs=epochs), current, rounds)
                case ((Unknown() | Same() | None), (Same() | Diverged()) as found):
                    return _Walked(found, current, rounds)
                case _:
                    pass  # what the epochs say stands
        if isinstance(outcome, Unknown) and walk.steps:
            ours = lineage.copy()
            ours.truncate(position)
            if 0 <= current < ours.newest_epoch:
                # It answered to its own epoch, and that is older than what we have read: epochs never decrease.
                end = yield from self._log_end(tp)
                return _Walked(_all_gone(lineage, position, end), current, walk.round_trips, recreated=True)
        if isinstance(outcome, Diverged):
            end = yield from self._log_end(tp)
            again = EpochWalk(lineage, position=position, log_start_offset=start, log_end_offset=end)
            for step in walk.steps:
                again.answer(step.reply_epoch, step.reply_end_offset)
            outcome = again.outcome
        return _Walked(outcome or _NOTHING, current, walk.round_trips)

    def _compare(
        self, tp: TopicPartition, marks: Sequence[BatchMark], position: int, start: int, current: int
    ) -> Procedure[BatchWalk]:
        """Compares batches that were read with the leader's."""
        end = yield from self._log_end(tp)
        walk = BatchWalk(marks, position=position, log_start_offset=start, log_end_offset=end)
        tries = 0
        while (offset := walk.query()) is not None:
            answer = yield from self._batch_at(tp, offset, current)
            found = next((each for each in _headers(answer.records) if each.last_offset >= offset), None)
            if found is None:
                # Behind the high watermark: a new leader that catches up. Nothing could be fetched now anyway.
                yield Pause(pause_s(tries))
                tries += 1
                continue
            rewritten = found.rewritten or found.base_offset > offset
            walk.answer(found.last_offset, found.crc, rewritten=rewritten)
        return walk

    def _batch_at(self, tp: TopicPartition, offset: int, current: int) -> Procedure[RecordsFetched]:
        transport = self._network()

        def send(reply: Reply[Any]) -> None:
            # The first batch comes whole, however large.
            transport.fetch_records(tp.topic, tp.partition, offset, 1, reply, current_leader_epoch=current)

        def failed(_: Exception, verdict: Verdict) -> None:
            if verdict.code in _OTHER_LEADER or verdict.code == OUT_OF_RANGE:
                raise LeaderChangedError

        answer: RecordsFetched = yield from insist(
            transport, tp.topic, "fetch", send, failed, stats=self._stats
        )
        return answer

    def _log_end(self, tp: TopicPartition) -> Procedure[int]:
        transport = self._network()

        def send(reply: Reply[Any]) -> None:
            transport.log_end_offset(tp.topic, tp.partition, reply)

        answer: OffsetListed = yield from insist(transport, tp.topic, "list_offsets", send, stats=self._stats)
        return answer.offset

    def _newest_epoch(self, tp: TopicPartition) -> int:
        """kafka-python and our transport have metadata of their own each."""
        leadership = self._leadership(tp)
        info = self._network().topic(tp.topic)
        told = info.partitions.get(tp.partition) if info is not None else None
        return max(
            UNDEFINED if leadership is None else leadership[2],
            UNDEFINED if told is None else told.leader_epoch,
        )

    def _examine_range(
        self,
        tp: TopicPartition,
        lineage: Lineage,
        marks: Sequence[BatchMark],
        position: int,
        topic_id: bytes | None,
        former_ids: frozenset[bytes],
    ) -> Procedure[_Ranged]:
        start = yield from self._start(tp)
        end = yield from self._log_end(tp)
        walked = None
        if position > end and lineage.entries and lineage.start_offset < position:
            walked = yield from self._walk(tp, lineage, marks, position, topic_id, former_ids)
        return _Ranged(start, end, walked)

    # --- procedures, applied ----------------------------------------------------------------------------------------

    def _carry_on(self, only: TopicPartition | None = None) -> None:
        """Applies what has come out, and raises what the application has not heard of yet.

        Args:
            only: Raise what is to be said of this partition, also once more, and of no other.
        """
        self._desk.work()
        for tp, part in list(self._parts.items()):
            if part.inquiry is not None and part.inquiry.done:
                inquiry, part.inquiry = part.inquiry, None
                self._apply(tp, part, inquiry)
        undecided = self._undecided()
        if only is not None:
            undecided = [part for part in undecided if part is self._parts.get(only)]
        elif undecided := [part for part in undecided if not part.told]:
            self._log.debug("%s partitions wait for a decision", len(undecided), event="undecided")
        if undecided:
            raise self._told(undecided)

    def _undecided(self) -> list[_Part]:
        """Partitions with an error that only the application can end."""
        found = []
        for tp, part in list(self._parts.items()):
            if part.error is None or self._subscription.assignment.get(tp) is not part.state:
                continue
            position = part.state.position
            if position is None or position.offset != part.position:
                part.error = None
                continue
            found.append(part)
        return found

    @staticmethod
    def _told(undecided: list[_Part]) -> Exception:
        """The error that was raised the longest time ago."""
        part = min(undecided, key=lambda part: part.told)
        part.told = time.monotonic()
        if part.error is None:  # pragma: no cover - that is what `undecided` means
            raise RuntimeError("nothing is undecided")
        # A new traceback each time, instead of one that grows.
        return part.error.with_traceback(None)

    def _has_others(self) -> bool:
        """Whether records can come from a partition that is not undecided."""
        for tp, state in self._assigned().items():
            part = self._parts.get(tp)
            if not state.paused and (part is None or part.state is not state or part.error is None):
                return True
        return False

    def _assigned(self) -> dict[TopicPartition, Any]:
        """kafka-python's I/O thread assigns."""
        with self._subscription._lock:
            return dict(self._subscription.assignment)

    def _apply(self, tp: TopicPartition, part: _Part, inquiry: Inquiry[Any]) -> None:
        if self._subscription.assignment.get(tp) is not part.state:
            return
        if isinstance(inquiry.error, kafka_errors.IllegalStateError):  # closed meanwhile
            return
        result = inquiry.result
        if inquiry.error is not None:
            self._on_inquiry_failed(tp, part, inquiry.error)
        elif isinstance(result, _ResetTo):
            self._apply_reset(tp, part, result)
        elif part.state.position is None or part.state.position.offset != part.position:
            part.checked = None  # it was about another position
        elif isinstance(result, _Local):
            self._apply_local(tp, part, result)
        elif isinstance(result, _Ranged):
            self._apply_range(tp, part, result)
        elif isinstance(result, _Walked):
            self._apply_walk(tp, part, result)

    def _on_inquiry_failed(self, tp: TopicPartition, part: _Part, error: Exception) -> None:
        if part.state.awaiting_reset or not isinstance(error, kafka_errors.KafkaError):
            raise error
        # Brokers before 2.3 do not let clients ask about epochs; without the right to ask, fetching fails by itself.
        self._log.seldom(
            logging.WARNING,
            "not_comparable",
            f"{tp.topic}-{tp.partition}",
            "%s-%s: what was read cannot be compared with the log: %r",
            tp.topic,
            tp.partition,
            error,
            topic=tp.topic,
            partition=tp.partition,
            error=type(error).__name__,
        )
        part.suspected = False
        part.checked = self._leadership(tp)
        self._resting[tp] = time.monotonic() + pause_s(part.failures)
        part.state.complete_validation()

    def _apply_reset(self, tp: TopicPartition, part: _Part, to: _ResetTo) -> None:
        state = part.state
        if not state.awaiting_reset or state.reset_strategy != to.strategy:
            return
        self._subscription.seek(tp, OffsetAndMetadata(to.offset, "", UNDEFINED))
        part.checked = None
        leadership = self._leadership(tp)
        if leadership is not None:
            # Before anything is fetched: which topic it is must be known then.
            self._check(tp, part, leadership)
        reason, part.reset = part.reset, None
        if reason is None:
            return  # the application asked for it
        why, previous = reason
        begin = to.start if previous is None else previous
        skipped = None
        if why != "beyond_end" and begin is not None and begin < to.offset:
            skipped = (begin, to.offset - 1)
        self._emit(
            PositionReset(tp.topic, tp.partition, why, _STRATEGY[to.strategy], previous, to.offset, skipped)
        )

    def _apply_range(self, tp: TopicPartition, part: _Part, ranged: _Ranged) -> None:
        if ranged.walked is not None and isinstance(ranged.walked.outcome, Diverged):
            self._apply_walk(tp, part, ranged.walked)
            return
        if ranged.start <= part.position <= ranged.end:
            # It is in the log (KIP-1007): whoever said it is not does not find a remote segment yet.
            part.state._awaiting_validation = False
            self._rest(
                tp,
                part,
                OUT_OF_RANGE,
                "OFFSET_OUT_OF_RANGE",
                "in the log, but its remote segment is not found (yet)",
            )
            return
        strategy = self._subscription._default_offset_reset_strategy
        if strategy not in _STRATEGY:
            part.error, part.told = kafka_errors.OffsetOutOfRangeError({tp: part.position}), 0.0
            return
        why: Literal["retention", "beyond_end"] = (
            "retention" if part.position < ranged.start else "beyond_end"
        )
        with self._lock:
            if why == "retention":
                part.lineage.forget_before(ranged.start)
            else:
                part.lineage.truncate(ranged.end)
                part.marks.truncate(ranged.end)
        part.reset = (why, part.position)
        self._subscription.request_offset_reset(tp, strategy)

    def _apply_local(self, tp: TopicPartition, part: _Part, local: _Local) -> None:
        part.remote = local.start is not None and part.position < local.start
        if part.remote and part.failures and part.code != part.failing_code:
            self._emit_not_ready(tp, part)

    def _apply_walk(self, tp: TopicPartition, part: _Part, walked: _Walked) -> None:
        outcome = walked.outcome
        # Another leader since then will be newer than this.
        seen = walked.leadership
        part.checked = None if seen is None else (seen[0], seen[1], walked.epoch)
        if part.topic_id is not None and walked.topic_id not in {None, part.topic_id}:
            part.former_ids.add(part.topic_id)
            self._manager.cluster.request_update()
        part.topic_id = walked.topic_id
        if not isinstance(outcome, Diverged):
            if part.suspected:
                # Up to the position all is well, so it is what was read behind it before that is gone.
                part.suspected = False
                with self._lock:
                    part.lineage.truncate(part.position)
                    part.marks.truncate(part.position)
                part.state.position = OffsetAndMetadata(part.position, "", UNDEFINED)
            if isinstance(outcome, Unknown):
                self._log.seldom(
                    logging.INFO,
                    "unknown_lineage",
                    f"{tp.topic}-{tp.partition}",
                    "%s-%s at %s: %s",
                    tp.topic,
                    tp.partition,
                    part.position,
                    outcome.reason,
                    topic=tp.topic,
                    partition=tp.partition,
                    position=part.position,
                )
                start = outcome.log_start_offset
                # A position before the log's start is reset, with an event of its own.
                if start == part.position and walked.epoch > part.lineage.newest_epoch:
                    self._emit(HistoryTrimmed(tp.topic, tp.partition, part.position, start, outcome.reason))
            part.state.complete_validation()
            return
        part.suspected = False
        event = LogDiverged(
            topic=tp.topic,
            partition=tp.partition,
            position=part.position,
            at=outcome.at,
            rolled_back=outcome.rolled_back,
            replaced=outcome.replaced,
            epochs=outcome.rolled_back_epochs,
            exact=outcome.exact,
            cause="recreated" if walked.recreated else "truncated",
            round_trips=walked.round_trips,
        )
        part.diverged = event
        # Until it is decided about, nothing is fetched.
        part.state._awaiting_validation = True
        part.error, part.told = _diverged_error(event), 0.0
        self._emit(event)
        policy = self._safe.on_divergence
        target: int | None
        if callable(policy):
            try:
                target = policy(event)
            except Exception as error:
                # As if it had said None, but its own error tells more.
                part.error = error
                return
        else:
            target = event.at if policy == "seek" else None
        if target is not None:
            self.seek(tp, target)

    # --- what was fetched -------------------------------------------------------------------------------------------

    def _on_fetched(self, completed: Any) -> bool:
        """Whether kafka-python may have it."""
        tp, data = completed.topic_partition, completed.partition_data
        part = self._part(tp)
        code: int = data.error_code
        if (
            part is None
            or not part.state.is_fetchable()
            or part.state.position.offset != completed.fetched_offset
        ):
            return code == 0  # of another time; kafka-python throws it away
        if code:
            self._on_fetch_failed(tp, part, data)
            return False
        if part.failures:
            self._resting.pop(tp, None)
            event = PartitionReady(
                tp.topic, tp.partition, time.monotonic() - part.failing_since, part.failures
            )
            part.failures = part.code = 0
            part.remote = None
            self._emit(event)
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            self._suspect(part)
            return False
        if data.records and not self._observe(part, data.records, completed.fetched_offset):
            self._suspect(part)
            return False
        return True

    def _suspect(self, part: _Part) -> None:
        part.suspected = True
        part.state._awaiting_validation = True
        self._manager.cluster.request_update()

    def _observe(self, part: _Part, records: Any, fetched: int) -> bool:
        """Notes the leader epochs of the batches; False: they contradict what was read before."""
        run_epoch, run_start, run_end = UNDEFINED, -1, -1
        # Later brokers tell the epoch under which they lead, and which topic it is: that is proof enough.
        marked = part.checked is None or part.checked[2] < 0 or part.topic_id is None
        expected = fetched
        with self._lock:
            for batch in _headers(records):
                start, end = max(batch.base_offset, fetched), batch.last_offset + 1
                if end <= start:
                    continue
                if marked or batch.epoch < 0:
                    # Of an old compressed message only the last offset is told: it begins behind the one before.
                    base = expected if batch.wrapped else batch.base_offset
                    part.marks.observe(BatchMark(min(base, batch.last_offset), batch.last_offset, batch.crc))
                expected = end
                if batch.wrapped:
                    start = max(min(base, batch.last_offset), fetched)
                if batch.epoch == run_epoch and run_start >= 0:
                    run_end = end
                    continue
                if run_start >= 0 and not _noted(part.lineage, run_epoch, run_start, run_end):
                    return False
                run_epoch, run_start, run_end = batch.epoch, start, end
            return run_start < 0 or _noted(part.lineage, run_epoch, run_start, run_end)

    def _on_fetch_failed(self, tp: TopicPartition, part: _Part, data: Any) -> None:
        code: int = data.error_code
        position: int = part.state.position.offset
        if part.state.clear_preferred_read_replica() is not None:
            # A follower: whatever its trouble is, the leader may have none, and is asked at once.
            part.leader_until = time.monotonic() + _LEADER_ONLY_S
            if code != OUT_OF_RANGE and classify_code(code, "fetch").refresh_metadata:
                self._manager.cluster.request_update()
            return
        if code == OUT_OF_RANGE:
            part.position = position
            part.state._awaiting_validation = True
            part.inquiry = self._desk.begin(
                self._examine_range(
                    tp,
                    part.lineage.copy(),
                    part.marks.marks,
                    position,
                    part.topic_id,
                    frozenset(part.former_ids),
                )
            )
            return
        if code == _TOPIC_AUTHORIZATION_FAILED:
            raise kafka_errors.TopicAuthorizationFailedError({tp.topic})
        verdict = classify_code(code, "fetch")
        if not verdict.retriable:
            raise _code_error(code, f"{tp.topic}-{tp.partition} at {position}: {verdict.explanation}")
        self._fetcher._maybe_update_current_leader(tp, data)
        if code in _OTHER_TOPIC:
            part.checked = None  # it may be another one when it is there again
        if verdict.refresh_metadata:
            self._manager.cluster.request_update()
        self._rest(tp, part, code, verdict.name, verdict.explanation)

    def _rest(self, tp: TopicPartition, part: _Part, code: int, name: str, reason: str) -> None:
        """Fetches from this partition again after a pause."""
        now = time.monotonic()
        pause = _RANGE_PAUSE_S if code == OUT_OF_RANGE else pause_s(part.failures)
        self._resting[tp] = now + pause
        if part.failures == 0:
            part.failing_since = part.overdue_since = now
        part.failures += 1
        part.failing_code, part.failing_reason = code, reason
        self._stats.retries["fetch", name] += 1
        self._stats.backoff_s["fetch"] += pause
        maybe_remote = code in REMOTE or code == OUT_OF_RANGE
        if maybe_remote and part.remote is None and part.inquiry is None:
            part.position = part.state.position.offset
            part.inquiry = self._desk.begin(self._local(tp))
        remote = maybe_remote and bool(part.remote)
        # An ordinary change of leaders is over with the first pause; what it is else may still be asked.
        enough = 5 if maybe_remote and part.remote is None else 1
        if part.code != code and (remote or part.failures > enough or code in _OTHER_TOPIC):
            self._emit_not_ready(tp, part)
        timeout_s = self._safe.remote_storage_timeout_s
        if remote and timeout_s is not None and now - part.overdue_since >= timeout_s:
            part.overdue_since = now
            self._stats.exhausted["fetch"] += 1
            raise RemoteStorageNotReadyError(
                f"{tp.topic}-{tp.partition} cannot be read at {part.state.position.offset} for"
                f" {now - part.failing_since:.3g} s (error code {code}): {reason}. Its position stays; poll again to"
                " wait on.",
                topic=tp.topic,
                partition=tp.partition,
                code=code,
            )

    def _emit_not_ready(self, tp: TopicPartition, part: _Part) -> None:
        part.code = part.failing_code
        position = part.state.position.offset
        remote = bool(part.remote)
        self._emit(
            PartitionNotReady(tp.topic, tp.partition, position, part.code, part.failing_reason, remote)
        )

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _due_s(self) -> float | None:
        """Seconds until a pause of a partition or procedure ends; None: there is none."""
        now = time.monotonic()
        rests = [until - now for until in list(self._resting.values()) if until > now]
        due = self._desk.due_s()
        if due is not None:
            rests.append(due)
        return min(rests, default=None)

    def _avoids_followers(self) -> bool:
        now = time.monotonic()
        return any(part.leader_until > now for part in list(self._parts.values()))

    def _is_busy(self) -> bool:
        return any(part.inquiry is not None for part in self._parts.values())

    def _ring(self) -> None:
        """An answer is there: wakes `poll`. On our network thread; kafka-python's futures belong to its own."""
        alarm = self._fetcher._reset_task
        if isinstance(alarm, Future) and not alarm.is_done and not self._closed:
            with contextlib.suppress(RuntimeError):  # kafka-python's loop was closed meanwhile
                self._manager.call_soon(_complete, alarm)

    def _emit(self, event: ConsumerEvent) -> None:
        self.counters[type(event).__name__] += 1
        self._count(event)
        match event:
            case LogDiverged() | OffsetLowered():
                self._say(logging.ERROR, event)
            case PositionReset(skipped=skipped) if skipped is not None:
                self._say(logging.WARNING, event)
            case _:
                self._say(logging.INFO, event)
        if self._safe.on_event is None:
            return
        try:
            self._safe.on_event(event)
        except Exception:
            # The hook is the application's: it must not decide what becomes of the partition.
            self._log.exception("on_event failed for %s", event, event="hook_failed")

    def _say(self, level: int, event: ConsumerEvent) -> None:
        """The level that never repeats by itself is said each time: a loss, a position that was moved."""
        fields = {"topic": event.topic, "partition": event.partition}
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        if level == logging.INFO:
            about = f"{event.topic}-{event.partition}"
            self._log.seldom(level, name, about, "%s", event, **fields)
        elif level == logging.WARNING:
            self._log.warning("%s", event, event=name, **fields)
        else:
            self._log.error("%s", event, event=name, **fields)

    def _count(self, event: ConsumerEvent) -> None:
        stats, topic = self._stats, event.topic
        match event:
            case LogDiverged(rolled_back=(first, last)):
                stats.divergences[topic] += 1
                stats.diverged_records[topic] += last - first + 1
            case OffsetLowered(cause=cause, look_up="latest"):
                stats.regressions[topic, cause] += 1
            case OffsetHeld(why=why, look_up="latest"):
                stats.held[topic, why] += 1
            case OffsetLowered() | OffsetHeld():
                pass  # these metrics are about ends
            case PositionReset(reason=reason, skipped=skipped):
                stats.resets[topic, reason] += 1
                if skipped is not None:
                    stats.skipped_records[topic] += skipped[1] - skipped[0] + 1
            case PartitionReady(after_s=after_s):
                stats.not_ready_s[topic] += after_s
            case PartitionNotReady():
                pass  # counted when it is over
            case HistoryTrimmed():
                stats.history_trimmed[topic] += 1

    def _readings(self) -> Iterable[Reading]:
        """For `kafkasafe.metrics`."""
        return consumer_readings(self._stats, self._progress())

    def _progress(self) -> dict[TopicPartition, PartitionProgress]:
        """Where it is on each assigned partition, for metrics; on any thread."""
        now, found = time.monotonic(), {}
        for tp, state in self._assigned().items():
            part, position = self._parts.get(tp), state.position
            known = self._tracker.end_offset(tp.topic, tp.partition, isolation_level=self._isolation)
            ends = [end for end in (known, state.highwater) if end is not None]
            found[tp] = PartitionProgress(
                None if position is None else position.offset,
                max(ends, default=None),
                now - part.failing_since if part is not None and part.failures else None,
                part is not None and part.error is not None,
                part is not None and part.failures > 0 and bool(part.remote),
            )
        return found

    # --- commits ------------------------------------------------------------------------------------------------------

    def _with_lineage(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """On kafka-python's I/O thread. Metadata that the application gave stay what they are."""
        if not self._keeps_lineage or not all(
            isinstance(offset, OffsetAndMetadata) for offset in offsets.values()
        ):
            return dict(offsets)
        return {tp: self._described(tp, offset) for tp, offset in offsets.items()}

    def _described(self, tp: TopicPartition, offset: OffsetAndMetadata) -> OffsetAndMetadata:
        part = self._parts.get(tp)
        if part is None:
            return offset
        with self._lock:
            lineage = part.lineage.copy()
        if not 0 <= offset.offset <= lineage.end_offset or not lineage.entries:
            return offset
        lineage.truncate(offset.offset)
        if not lineage.entries:
            return offset
        epoch = offset.leader_epoch
        if epoch is None or epoch < 0:
            known = lineage.epoch_at(offset.offset - 1)
            epoch = UNDEFINED if known is None else known
        return OffsetAndMetadata(offset.offset, offset.metadata or lineage.encode(), epoch)


class _Fetcher(BatchFetcher):
    """kafka-python's fetcher, with the consumer's decisions."""

    owner: SafeConsumer

    def reset_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002  # kafka-python's signature
        self.owner._begin_resets()

    def maybe_validate_positions(self) -> None:
        self.owner._begin_checks()

    def validate_offsets_if_needed(self, timeout_ms: float | None = None) -> None:  # noqa: ARG002
        self.owner._carry_on()

    def _handle_fetch_error(self, node_id: int, exception: BaseException) -> None:
        """On kafka-python's I/O thread."""
        parent: Any = super()
        parent._handle_fetch_error(node_id, exception)
        for part in list(self.owner._parts.values()):
            if part.checked is not None and part.checked[2] < 0 and part.checked[1] == node_id:
                part.doubted = True

    def fetch_records(
        self, max_records: int | None = None, update_offsets: bool = True, timeout_ms: float | None = None
    ) -> Any:
        due_s = self.owner._due_s()
        if due_s is not None:
            timeout_ms = due_s * 1000 if timeout_ms is None else min(due_s * 1000, timeout_ms)
        # It is one of the futures that kafka-python waits for.
        if self.owner._is_busy():
            if self._reset_task is None or self._reset_task.is_done:
                self._reset_task = Future()
                if self.owner._desk.has_work:
                    self._reset_task.success(None)
        else:
            self._reset_task = None
        parent: Any = super()
        return parent.fetch_records(max_records, update_offsets=update_offsets, timeout_ms=timeout_ms)

    def _fetchable_partitions(self) -> Sequence[TopicPartition]:
        parent: Any = super()
        now, resting = time.monotonic(), self.owner._resting
        return [tp for tp in parent._fetchable_partitions() if resting.get(tp, 0.0) <= now]

    def _create_fetch_requests(self) -> Any:
        """Without our rack while a follower is avoided, or the leader would send us there again and again."""
        parent: Any = super()
        config: dict[str, Any] = self.config
        rack = config["client_rack"]
        if rack and self.owner._avoids_followers():
            config["client_rack"] = ""
        try:
            return parent._create_fetch_requests()
        finally:
            config["client_rack"] = rack

    def _parse_fetched_data(self, completed_fetch: Any) -> Any:
        if self.owner._on_fetched(completed_fetch):
            parent: Any = super()
            return parent._parse_fetched_data(completed_fetch)
        tp = completed_fetch.topic_partition
        if completed_fetch.metric_aggregator:
            completed_fetch.metric_aggregator.record(tp, 0, 0)
        self._subscriptions.move_partition_to_end(tp)
        return None


class _Coordinator(ConsumerCoordinator):
    """kafka-python's coordinator; lineages go with committed offsets."""

    owner: SafeConsumer
    config: dict[str, Any]

    def need_rejoin(self) -> bool:
        """Whether to join, or to go on with it (as `AbstractCoordinator.rejoinNeededOrPending` of Kafka's own client).

        A leader whose topics got partitions needs to join until it has assigned them; kafka-python then no longer
        asks for the outcome, and the member stays without partitions and heartbeats for ever.
        """
        parent: Any = super()
        me: Any = self
        return bool(parent.need_rejoin() or (me.rejoining and me._subscription.partitions_auto_assigned()))

    async def join_group_async(self, timeout_ms: float | None = None) -> bool:
        """Joins the group, also where the answer came between two polls.

        kafka-python throws such an answer away and asks to join anew, which sends the whole group into another
        rebalance; members that are polled in turns, or seldom and briefly, never came to an end.
        """
        parent: Any = super()
        # kafka-python says nothing of its types.
        me: Any = self
        task = me._join_task
        if task is not None and task.succeeded() and me.state is MemberState.REBALANCING:
            me._join_task = None
            with me._lock:
                me.rejoining = me.rejoin_needed = False
                me.state = MemberState.STABLE
                me._enable_heartbeat()
            made = me._generation
            await me._on_join_complete_async(made.generation_id, made.member_id, made.protocol, task.value)
        return bool(await parent.join_group_async(timeout_ms=timeout_ms))

    async def ensure_coordinator_ready_async(self, timeout_ms: float | None = None) -> bool:
        """kafka-python's lets an error of the metadata request that follows a failed look-up out of `poll`."""
        parent: Any = super()
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                return bool(
                    await parent.ensure_coordinator_ready_async(
                        timeout_ms=None if timeout_ms is None else left_s * 1000
                    )
                )
            except kafka_errors.InvalidMetadataError as error:
                self.owner._log.seldom(
                    logging.INFO,
                    "no_coordinator",
                    "",
                    "No group coordinator yet: %r",
                    error,
                    error=type(error).__name__,
                )
            if time.monotonic() >= deadline:
                return False
            await self._manager._net.sleep(self.config["retry_backoff_ms"] / 1000)

    async def _send_offset_commit_request(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Any:
        parent: Any = super()
        described = self.owner._with_lineage(offsets)
        try:
            return await parent._send_offset_commit_request(described)
        except kafka_errors.OffsetMetadataTooLargeError:
            if described == dict(offsets):
                raise
            self.owner._log.warning(
                "offset.metadata.max.bytes of the brokers is below 2048: what was read before cannot be kept with"
                " committed offsets",
                event="lineage_not_kept",
            )
            self.owner._keeps_lineage = False
            return await parent._send_offset_commit_request(offsets)


class _ReachingManager(_Manager):
    """Finds the way back when all brokers that the metadata name are gone: by the bootstrap servers (KIP-899).

    Attributes:
        last_failure: Why the last connection, or question for metadata, failed.
    """

    def __init__(self, net: Any, **configs: Any) -> None:
        self.last_failure: BaseException | None = None
        parent: Any = super()
        parent.__init__(net, **configs)
        name = (
            "allow_auto_create_topics"  # an option that KafkaConsumer of kafka-python 3.0 forgets on the way
        )
        self.cluster = Metadata(**{**self.cluster.config, name: configs.get(name, True)})
        attach: Any = self.cluster.attach
        attach(self)

    def update_backoff(self, node_id: Any) -> Any:
        # KafkaConnectionManager calls it where it handles the error, which it only logs.
        failure = sys.exc_info()[1]
        late = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)
        cut_short = isinstance(failure, late) or isinstance(getattr(failure, "__cause__", None), late)
        # The last try ends with the time there is, which says nothing of why the tries before it failed.
        if failure is not None and not (cut_short and self.last_failure is not None):
            self.last_failure = failure
        parent: Any = super()
        return parent.update_backoff(node_id)

    def least_loaded_node(self) -> Any:
        parent: Any = super()
        node = parent.least_loaded_node()
        if node is not None or any(conn.connected for conn in self._conns.values()):
            return node
        brokers = [broker.node_id for broker in self.cluster.bootstrap_brokers()]
        able = [node_id for node_id in brokers if parent.connection_delay(node_id) <= 0]
        return random.choice(able) if able else None


def _tidy_client(**options: Any) -> Any:
    """What KafkaConsumer stands on, but with our connections: they close their socket when they fail, and look names
    up on a thread of their own.
    """
    make: Any = KafkaConsumer.DEFAULT_CONFIG["kafka_client"]
    client = make(manager=False, **options)  # not None: it must not make one of its own
    manager: Any = _ReachingManager
    client._manager = manager(client._net, **options)
    limit_foreign()
    client._net.run_forever = as_own_thread(client._net.run_forever)
    return client


# KafkaConsumer's options, where the default is another: a cluster that comes back is to be noticed soon.
_OURS: Final[dict[str, Any]] = {"kafka_client": _tidy_client, "reconnect_backoff_max_ms": 1000}


def check_offset(given: Any) -> None:
    """Whether the protocol has it: else each later commit of the consumer would fail, deep in kafka-python.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(given, int) or not 0 <= given <= _LAST_OFFSET:
        raise ValueError(f"Not an offset: {given!r}. It is an int from 0 to 2**63-1")


def _check_offsets(given: Mapping[TopicPartition, OffsetAndMetadata] | None) -> None:
    # What else may be wrong kafka-python says.
    for each in given.values() if isinstance(given, Mapping) else ():
        if isinstance(each, OffsetAndMetadata):
            check_offset(each.offset)


def _ignore(_: object) -> None:
    """For procedures whose failures need no note."""


def _complete(alarm: Future) -> None:
    if not alarm.is_done:
        alarm.success(None)


class _Header:
    """What is looked at of a batch, or of a message from before format 2.

    Attributes:
        base_offset: First offset; of an old compressed message its last one, which is all it says.
        last_offset: Inclusive.
        epoch: Leader epoch, -1: none.
        crc: Its checksum.
        wrapped: An old compressed message, of several records.
        rewritten: Compaction has been there.
    """

    __slots__ = ("base_offset", "crc", "epoch", "last_offset", "rewritten", "wrapped")

    def __init__(
        self, base_offset: int, last_offset: int, epoch: int, crc: int, *, wrapped: bool, rewritten: bool
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.epoch = epoch
        self.crc = crc
        self.wrapped = wrapped
        self.rewritten = rewritten


def _headers(records: Any) -> Iterator[_Header]:
    """Of all whole batches."""
    view = memoryview(records)
    at, size = 0, len(view)
    while size - at >= _OLD_HEADER.size:
        base, length, crc, magic, attributes = _OLD_HEADER.unpack_from(view, at)
        end = at + _LOG_OVERHEAD + length
        if length <= 0 or end > size:
            return
        if magic < _MAGIC_2:
            yield _Header(base, base, UNDEFINED, crc, wrapped=bool(attributes & 7), rewritten=False)
        elif length + _LOG_OVERHEAD >= _COUNT_AT + _COUNT.size:
            base, _, epoch, _, crc, attributes, last_delta = _HEADER.unpack_from(view, at)
            (count,) = _COUNT.unpack_from(view, at + _COUNT_AT)
            rewritten = count != last_delta + 1 or bool(attributes & _HAS_DELETE_HORIZON)
            yield _Header(base, base + last_delta, epoch, crc, wrapped=False, rewritten=rewritten)
        at = end


_NOTHING: Final = Unknown("nothing was asked")


def _noted(lineage: Lineage, epoch: int, start: int, end: int) -> bool:
    return lineage.observe(max(epoch, UNDEFINED), start, end)


def _restored(metadata: str | None, epoch: int, offset: int, remembered: Lineage) -> Lineage:
    """What a committed offset tells of what was read before it; `remembered` itself where that is what counts."""
    try:
        lineage = Lineage.decode(metadata or "")
    except LineageError:
        pass  # the application's own, or none
    else:
        lineage.truncate(offset)
        return lineage
    if remembered.entries and (
        remembered.epoch_at(offset - 1) == epoch or (epoch == UNDEFINED and offset <= remembered.end_offset)
    ):
        return remembered
    # Read by others since.
    return Lineage.resumed(epoch, offset)


def _is_newer(now: _Leadership, then: _Leadership) -> bool:
    if None not in {now[0], then[0]} and now[0] != then[0]:
        return True  # another topic
    if now[2] >= 0:
        return now[2] > then[2]
    return now[1] != then[1]  # brokers before 2.4 do not tell the epoch


def _all_gone(lineage: Lineage, position: int, log_end: int) -> Diverged:
    """The topic of this name is another one."""
    ours = lineage.copy()
    ours.truncate(position)
    first, last = ours.start_offset, ours.end_offset - 1
    standing = min(log_end - 1, last)
    epochs = tuple(epoch for epoch, _ in ours.entries if epoch != UNDEFINED)
    return Diverged(0, (first, last), (first, standing) if standing >= first else None, None, epochs)


def _diverged_error(event: LogDiverged) -> LogDivergedError:
    first, last = event.rolled_back
    other = (
        "nothing is there now"
        if event.replaced is None
        else f"other records are now at {event.replaced[0]} to {event.replaced[1]}"
    )
    what = (
        "the topic was deleted and recreated"
        if event.cause == "recreated"
        else "an unclean election or a lost disk"
    )
    choice = (
        f"seek to {event.at} to go on"
        if event.resume_offset == event.at
        else f"seek to {event.at} to read what is there now, or to {event.resume_offset} to leave that out"
    )
    return LogDivergedError(
        f"{event.topic}-{event.partition}: offsets {first} to {last}, which this consumer had read, are no longer in"
        f" the log ({what}; {other}). Decide what that means for the results you derived from them, then {choice}.",
        event=event,
    )


def _code_error(code: int, message: str) -> Exception:
    error: Exception = kafka_errors.for_code(code)(message)
    return error

"""`SafeConsumer`: KafkaConsumer, whose offsets never go backwards silently and who notices when its log was changed.

Group management, fetching, decoding and commits are kafka-python's. What it decides about *positions* is replaced:
where a log ends, whether what was read is still in it, what an error of one partition means, and every reset.

How it hangs together. What users call is here; the rest of the class is in `_consuming`. kafka-python's `poll` asks its
fetcher, in this order, to reset positions, to validate them, and to fetch. `_consuming.fetcher.Fetcher` passes the
first two on to `_begin_resets` and `_begin_checks`, which begin procedures (`_io.inquiry`), one per partition at most;
`_carry_on` applies what has come out of them. What was fetched goes by `_on_fetched` first. A partition under
examination is not fetched from (kafka-python's `_awaiting_validation`), the others are. All decisions are made on the
thread that polls; only the text of a lineage is also made on kafka-python's I/O thread, for commits (`_lock`).
"""

from __future__ import annotations

import collections
import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Unpack

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka.future import Future
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

from kafkasafe._consuming.applying import Applying
from kafkasafe._consuming.client import OURS
from kafkasafe._consuming.coordinator import Coordinator
from kafkasafe._consuming.fetcher import Fetcher
from kafkasafe._consuming.ground import ignore, log
from kafkasafe._consuming.partition import Part
from kafkasafe._consuming.polls import Polls
from kafkasafe._consuming.rereading import Rereading
from kafkasafe._consuming.trouble import Trouble
from kafkasafe._core.followers import Followers
from kafkasafe._core.patience import closing_timeout, seconds_of
from kafkasafe._core.readings import Fate
from kafkasafe._io.batches import BatchPolling
from kafkasafe._io.inquiry import Desk, Procedure
from kafkasafe._io.lineage_file import LineageMemory
from kafkasafe._io.lookups import LookUps, Note
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe._io.stats import ConsumerStats
from kafkasafe.cluster.api import Cluster, in_words
from kafkasafe.config import validate_consumer
from kafkasafe.errors import UsageError, WaitTimeoutError
from kafkasafe.metrics import install
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.options import ConsumerOptions

__all__ = ["Offsets", "SafeConsumer", "check_offset"]

# While some partition waits for the application's decision, `poll` comes back to say so at least as often as this.
_REMINDER_MS: Final = 1000
_BRIEFLY_MS: Final = 100

_LAST_OFFSET: Final = 2**63 - 1


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


def _close_ms(timeout_ms: float | None, timeout: float | None) -> float | None:
    """The one that was given, in ms."""
    if timeout is None:
        return timeout_ms
    if timeout_ms is not None:
        raise UsageError(f"close(timeout_ms={timeout_ms!r}, timeout={timeout!r}): give one of them")
    seconds = closing_timeout(timeout)
    return None if seconds is None else seconds * 1000


class _LookingUp(Applying):
    """Part of `SafeConsumer`: look-ups of many partitions, side by side."""

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
        troubles = {tp: Trouble(tp, desk, self._lookups) for tp in procedures}
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

    def _at_time(
        self, tp: TopicPartition, timestamp: int, note: Note
    ) -> Procedure[OffsetAndTimestamp | None]:
        found = yield from self._lookups.at_time(*tp, timestamp, note)
        return (
            None
            if found.offset < 0
            else OffsetAndTimestamp(found.offset, found.timestamp, found.leader_epoch)
        )


class SafeConsumer(OfOneProcess, BatchPolling, _LookingUp, KafkaConsumer):
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
            offsets_hold_timeout_ms: How long a lower end offset that nothing explains is held before it is called
                undecidable. Default: 30000. The old value stands all the same. A lower start is believed then.
            lineage_path: File that remembers what was read (leader epochs; CRCs of batches where there are none) from
                one life of the process to the next, for positions that are not committed to a group, or committed with
                metadata of your own. Written at most once a second by `poll`, by `save_lineage` and by `close`. One
                consumer per file. Default: it goes with committed offsets only.
            prometheus: Be collected by prometheus-client's default registry; `kafkasafe.metrics.install` does it for
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

    _asks_for_stable_offsets = True

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
        self._parts: dict[TopicPartition, Part] = {}
        self._polls = Polls()
        self._resting: dict[TopicPartition, float] = {}
        self._desk = Desk(self._ring)
        self._keeps_lineage = True
        self._memory = LineageMemory(self._safe.lineage_path)
        self._save_due = 0.0
        self._save_ends_due = 0.0
        parent: Any = super()
        try:
            parent.__init__(*topics, **{**OURS, **self._safe.kafka})
        except BaseException as failed:
            self._memory.close()
            if hasattr(self, "_client"):
                # KafkaConsumer leaves its thread and sockets behind, for each try of an application anew.
                self._client.close()
            cause = getattr(getattr(self, "_manager", None), "last_failure", None)
            if isinstance(failed, kafka_errors.KafkaTimeoutError) and cause is not None:
                raise WaitTimeoutError(
                    f"Unable to bootstrap from {self.config['bootstrap_servers']}: {in_words(cause)}"
                ) from cause
            raise
        # KafkaConsumer makes its parts itself and has no hook for others.
        self._followers = Followers(self.config["fetch_max_wait_ms"] / 1000)
        self._fetcher.__class__ = Fetcher
        self._fetcher.serve(self)
        self._coordinator.__class__ = Coordinator
        self._coordinator.owner = self
        # Never an offset that a transaction is about to change: an atomic batch that another process has in its spool
        # is committed whatever becomes of that process, and its records would be read again.
        self._coordinator._isolation_level = type(self._coordinator._isolation_level).READ_COMMITTED
        self._subscription.all_consumed_offsets = self._committable
        self._rereading = Rereading(self._subscription, self._coordinator, self._emit)
        self._lookups = LookUps(
            self._network,
            self._tracker,
            self._stats,
            self._emit,
            int(self._fetcher._isolation_level),
            ignore,
        )
        if self._safe.prometheus:
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
            timeout_ms: How long to wait for records; at most a second while a partition is stopped.
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
            with self._polls:
                records: dict[TopicPartition, list[Any]] = parent.poll(
                    timeout_ms, max_records, update_offsets
                )
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

    def close(
        self, autocommit: bool = True, timeout_ms: float | None = None, *, timeout: float | None = None
    ) -> None:
        """As KafkaConsumer's; also writes `offsets_path` and `lineage_path`.

        Args:
            autocommit: Commit what was read, with `enable_auto_commit`.
            timeout_ms: How long to wait for the commit and for leaving the group. Default: kafka-python's.
            timeout: The same in seconds, as the producer's `close` takes it.

        Raises:
            UsageError: Both time-outs were given. Nothing was closed.
            ValueError: A negative timeout, or nan. Nothing was closed.
            OSError: A file could not be written. Everything is closed all the same.
        """
        timeout_ms = _close_ms(timeout_ms, timeout)
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
        where records are gone the lower value is returned, with an `EndOffsetRegressed` event; else the old one stands,
        with an `EndOffsetHeld` event.

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
            TypeError: `timeout_ms` is not a number, or something is not a TopicPartition.
            ValueError: `timeout_ms` is nan.
        """
        try:
            return self._look_up(
                {tp: functools.partial(self._end, tp) for tp in _partitions_of(partitions)},
                timeout_ms,
                partial=partial,
            )
        finally:
            self._save_ends()

    def beginning_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """Where the logs begin. Never lower than before, unless it is another log.

        A new leader may begin earlier, since it has not deleted as much yet: then the old value stands, with an
        `EndOffsetHeld` event. It is checked against the leader's epochs; where the log is another one (or the topic),
        the lower value is returned, with an `EndOffsetRegressed` event. Where nothing can prove it (brokers without
        epochs) the old value stands for `offsets_hold_timeout_ms`, then the lower one is believed. Resets of positions
        do without all this: they go to where the leader's log begins at that moment.

        Arguments and errors: see `end_offsets`.
        """
        try:
            return self._look_up(
                {tp: functools.partial(self._lookups.start, *tp) for tp in _partitions_of(partitions)},
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
        gone, the record of before is returned, with an `EndOffsetHeld` event.

        Args:
            timestamps: Ms since the epoch, by partition.
            timeout_ms: See `end_offsets`.
            partial: See `end_offsets`.

        Returns:
            OffsetAndTimestamp by partition, None where there is no such record.

        Raises:
            ValueError: A time is negative.
            TypeError: Something is not a TopicPartition, or a time not a number.
            KafkaError: See `end_offsets`.
        """
        for given in timestamps.values():
            if not isinstance(given, (int, float)) and not hasattr(given, "__index__"):
                raise TypeError(f"Not a time: {given!r}. It is ms since the epoch")
        times = {tp: int(timestamps[tp]) for tp in _partitions_of(timestamps)}
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
        """As KafkaConsumer's. Without `offsets` it leaves out the positions that automatic commits leave out.

        Those are positions in a recreated topic that the application has not decided about, and in a log that was cut
        where no leader epoch tells the former log from the new one: committed, such an offset would be one of the new
        log.

        Raises:
            LogDivergedError: An offset is given for such a partition, and it is above `event.at`. Nothing was
                committed; `seek` first.
            ValueError: An offset is not one. KafkaConsumer repeats it until the time is over, or has a negative one
                committed, which later counts as none.
        """
        self._check_offsets(offsets)
        parent: Any = super()
        parent.commit(offsets, timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        callback: Callable[..., object] | None = None,
    ) -> Future:
        """As KafkaConsumer's; see `commit`.

        Raises:
            LogDivergedError: As of `commit`.
            ValueError: An offset is not one.
        """
        self._check_offsets(offsets)
        parent: Any = super()
        future: Future = parent.commit_async(offsets, callback)
        return future

    def _check_offsets(self, given: Mapping[TopicPartition, OffsetAndMetadata] | None) -> None:
        # What else may be wrong kafka-python says.
        for tp, each in given.items() if isinstance(given, Mapping) else ():
            if not isinstance(each, OffsetAndMetadata):
                continue
            check_offset(each.offset)
            if self._is_withheld(tp, each.offset) and (undecided := self._undecided(tp)):
                raise self._told(undecided)

    def _offer_positions(self, fate: Callable[[], Fate]) -> tuple[Any, ...]:
        """For an atomic batch: what was handed out and is in none yet, the group's member, the readings, the claims.

        Raises:
            LogDivergedError: A partition is undecided (see `on_divergence`).
            BatchDroppedError: See `kafkasafe._consuming.rereading`.
        """
        if undecided := self._undecided():
            raise self._told(undecided)
        positions = self._subscription.all_consumed_offsets()
        moved, readings, claims = self._rereading.offer(fate, positions)
        me: Any = self
        return moved, me.group_metadata(), readings, claims

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


def check_offset(given: Any) -> None:
    """Whether the protocol has it: else each later commit of the consumer would fail, deep in kafka-python.

    Raises:
        ValueError: It is not.
    """
    if not isinstance(given, int) or not 0 <= given <= _LAST_OFFSET:
        raise ValueError(f"Not an offset: {given!r}. It is an int from 0 to 2**63-1")


def _partitions_of(given: Iterable[Any]) -> list[TopicPartition]:
    """Those to be asked about; a look-up of anything else would go on until its time is over."""
    found = list(given)
    for tp in found:
        if not (
            isinstance(tp, tuple) and len(tp) == 2 and isinstance(tp[0], str) and hasattr(tp[1], "__index__")
        ):
            raise TypeError(f"{tp!r} is not a TopicPartition: TopicPartition(topic, partition)")
    return found

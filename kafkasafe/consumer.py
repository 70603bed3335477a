"""`SafeConsumer`: a KafkaConsumer whose offsets never go back silently. If the log loses records after the consumer has
read them, the consumer reports the loss.

kafka-python manages the group, fetches, decodes and commits. SafeConsumer replaces kafka-python's decisions about
*positions*: where a log ends, whether the log still contains the records that the consumer has read, what an error of
one partition means, and when to reset a position.

This module has the public methods. The objects in `_consuming` decide about positions; `ConsumerObjects` creates these
objects. kafka-python's `poll` asks its fetcher to reset positions, to validate positions, and to fetch. For the first
two requests, kafkasafe's subclass of the fetcher calls `Results.carry_on`. `carry_on` starts at most one check per
partition (`Positions.begin`), and applies the results of finished checks. The consumer does not fetch from a partition
that is being checked (`Assignments.hold`). `Responses.accept` gets each fetch response before kafka-python does. All
decisions are made on the polling thread. Commits contain the history of the records that were read (the lineage).
kafka-python's I/O thread may also encode this history, under the lock of the `History` object.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, overload

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe._consuming.lineage_file import LineageMemory
from kafkasafe._consuming.objects import ConsumerObjects
from kafkasafe._consuming.reports import Reports
from kafkasafe.cluster.api import in_words
from kafkasafe.config import check_topics, validate_consumer
from kafkasafe.delivery.batch_offsets import Offer, offering
from kafkasafe.delivery.metric_samples import AT_CLOSE
from kafkasafe.errors import UsageError, WaitTimeoutError
from kafkasafe.health.states import ConsumerHealth
from kafkasafe.kafkapython.client import OURS
from kafkasafe.kafkapython.consumer import ExtendedConsumer
from kafkasafe.kafkapython.loop import LoopClosedError
from kafkasafe.limits.patience import closing_timeout, seconds_of
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.options import ConsumerOptions
from kafkasafe.process.one_process import OfOneProcess
from kafkasafe.stats import Sample

__all__ = ["Offsets", "SafeConsumer", "check_offset"]

# While a partition waits for the application's decision, a call of `poll` returns or raises after this time at the
# latest.
_REMINDER_MS: Final = 1000
_BRIEFLY_MS: Final = 100

_LAST_OFFSET: Final = 2**63 - 1


class Offsets(dict[TopicPartition, Any]):
    """Offsets by partition.

    Attributes:
        missing: With `partial=True`: the error of each partition that has no offset.
    """

    def __init__(
        self, answered: Mapping[TopicPartition, Any], missing: Mapping[TopicPartition, Exception]
    ) -> None:
        super().__init__(answered)
        self.missing = dict(missing)


def _close_ms(timeout_ms: float | None, timeout: float | None) -> float | None:
    """Return the time-out in milliseconds, from whichever of the two arguments was given; None if neither was."""
    if timeout is None:
        return timeout_ms
    if timeout_ms is not None:
        raise UsageError(f"close(timeout_ms={timeout_ms!r}, timeout={timeout!r}): give only one of them")
    seconds = closing_timeout(timeout)
    return None if seconds is None else seconds * 1000


class SafeConsumer(OfOneProcess, ExtendedConsumer):
    """A drop-in replacement for kafka-python's `KafkaConsumer`. Not thread-safe, except for look-ups of offsets.

    Differences from KafkaConsumer:

    - `end_offsets` and `beginning_offsets` do not return a lower offset than before, unless it is proven that the log
      changed (for example, that records were lost). After `offsets_hold_timeout_ms`, a lower start offset needs no
      proof. If `offsets_for_times` has found a record, a later call does not return None, unless the log has lost or
      deleted the record. Look-ups retry if a new attempt may help, and accept `partial=True`.
    - If the log has lost records that were read, the consumer says which (`LogDiverged`), even after a restart. For
      this purpose, the metadata of committed offsets contain the leader epochs of the records that the consumer has
      read, unless the application commits with metadata of its own.
    - A temporary error of one partition does not end `poll`: the consumer continues with the other partitions.
    - No position is reset without an event.
    - `poll_arrow` and `poll_batches` return whole Arrow tables.

    Args:
        topics: Topics to subscribe to, as for KafkaConsumer.
        options: All options of KafkaConsumer, and the following ones.
            on_divergence: "raise" (default): `poll` raises LogDivergedError at once. Until the application seeks,
                `poll` raises the error again whenever it has no records of other partitions to return. "seek": continue
                at the first offset that differs. A callable gets the `LogDiverged` event and returns the offset at
                which to continue, or None to raise the error.
            on_event: A function that gets each `kafkasafe.events.ConsumerEvent`, on the thread that called the
                consumer. Exceptions of this function are logged.
            offsets_path: File that keeps the highest end and start offsets across restarts. A result of `end_offsets`
                or `beginning_offsets` is written to the file before the method returns it. Each consumer needs a file
                of its own. Default: no file.
            offsets_hold_timeout_ms: How long look-ups return the old start or end offset if a broker's answer is lower
                and nothing explains this. After this time, look-ups return the lower start offset. A lower end offset
                is only reported as unproven, and look-ups return the old one. Default: 30000.
            lineage_path: File that keeps, across restarts, the history of the records that were read: leader epochs, or
                CRCs of batches without epochs. You need the file if you do not commit positions to a group, or if you
                commit positions with metadata of your own. `poll` (at most once a second), `save_lineage` and `close`
                write the file. Each consumer needs a file of its own. Default: no file; only the metadata of committed
                offsets carries the history.
            prometheus: Register the metrics in prometheus-client's default registry; for another registry call
                `kafkasafe.metrics.install`.
            remote_storage_timeout_ms: `poll` raises RemoteStorageNotReadyError if a partition's remote segments could
                not be read for this many milliseconds. Default: the consumer keeps trying.

    Raises:
        ConfigError: An option is unknown or has a value that cannot work.
        LineageFileError: The file `lineage_path` is damaged, comes from a newer version, or another consumer uses it.
        BaselineError: The file `offsets_path` is damaged, is of another kind, or comes from a newer version.
        KafkaTimeoutError: No broker could be used within `bootstrap_timeout_ms`; the message has the reason.
    """

    _asks_for_stable_offsets = True

    if TYPE_CHECKING:
        # Types for methods that KafkaConsumer defines without types.
        def assignment(self) -> set[TopicPartition]:
            """Return the partitions that are assigned to this consumer."""

        def bootstrap_connected(self) -> bool:
            """Return whether a broker is connected."""

        @overload
        def committed(
            self,
            partition: TopicPartition,
            metadata: Literal[False] = False,
            timeout_ms: float | None = None,
        ) -> int | None: ...

        @overload
        def committed(
            self, partition: TopicPartition, metadata: Literal[True], timeout_ms: float | None = None
        ) -> OffsetAndMetadata | None: ...

        def committed(
            self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
        ) -> int | OffsetAndMetadata | None:
            """Return the committed offset of a partition; None if none exists. With `metadata=True`, return an
            OffsetAndMetadata.
            """

        def highwater(self, partition: TopicPartition) -> int | None:
            """Return the high watermark of a partition's latest fetch response; None before the first response."""

        def partitions_for_topic(self, topic: str) -> set[int]:
            """Return the numbers of a topic's partitions."""

        def pause(self, *partitions: TopicPartition) -> None:
            """Stop fetching from partitions until `resume`."""

        def paused(self) -> set[TopicPartition]:
            """Return the partitions that `pause` stopped."""

        def resume(self, *partitions: TopicPartition) -> None:
            """Fetch from paused partitions again."""

        def subscription(self) -> set[str] | None:
            """Return the subscribed topics; None without a subscription."""

        def topics(self) -> set[str]:
            """Return the topics that this client may see."""

    def __init__(self, *topics: str, **options: Unpack[ConsumerOptions]) -> None:
        check_topics(topics)
        self._safe = validate_consumer(options)
        self._tracker = EndOffsetTracker(
            self._safe.offsets_path, hold_timeout_s=self._safe.offsets_hold_timeout_s
        )
        self._reports = Reports(
            options.get("client_id", KafkaConsumer.DEFAULT_CONFIG["client_id"]), self._safe.on_event
        )
        self._memory = LineageMemory(self._safe.lineage_path)
        parent: Any = super()
        try:
            parent.__init__(*topics, **{**OURS, **self._safe.kafka})
            self._objects = ConsumerObjects(
                safe=self._safe,
                config=self.config,
                port=self._port(),
                tracker=self._tracker,
                memory=self._memory,
                reports=self._reports,
                seek=self.seek,
                rewound=self._begin_iterating_again,
                is_closed=self._is_closed,
            )
        except BaseException as failed:
            self._memory.close()
            cause = self._abandon()
            if isinstance(failed, kafka_errors.KafkaTimeoutError) and cause is not None:
                raise WaitTimeoutError(
                    f"Unable to bootstrap from {self.config['bootstrap_servers']}: {in_words(cause)}"
                ) from cause
            raise
        self._extend(self._objects, chooses_sizes="max_partition_fetch_bytes" not in self._safe.kafka)
        if self._safe.prometheus:
            from kafkasafe.metrics import install

            try:
                install(self)
            except BaseException:
                with contextlib.suppress(Exception):  # the caller needs the other error
                    self.close(autocommit=False)
                raise

    @property
    def client_id(self) -> str:
        """The option `client_id`, which is also a label of the metrics."""
        return str(self.config["client_id"])

    @property
    def counters(self) -> collections.Counter[str]:
        """Number of events of each kind, by name. Each access returns a copy."""
        return self._reports.stats.named()

    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[Any]]:
        """Like KafkaConsumer's `poll`. A partition that waits for the application's decision does not stop other
        partitions.

        Args:
            timeout_ms: How long to wait for records. While a partition waits for the application's decision, the call
                waits a second at most.
            max_records: Largest number of records to return.
            update_offsets: As in kafka-python.

        Raises:
            LogDivergedError: See `on_divergence`. Raised at once, and later by each call that has no records to return.
            OffsetOutOfRangeError: A position is out of range, with `auto_offset_reset="none"`. Raised as often as
                LogDivergedError.
            RemoteStorageNotReadyError: See `remote_storage_timeout_ms`.
            CorruptRecordError: The next batch of a partition is damaged. The position does not move.
            ForkedProcessError: The consumer was opened before a fork, and belongs to the parent process.
        """
        objects = self._objects
        if objects.parts.undecided():
            # Poll even if no other partition has records: kafka-python's `poll` keeps the group membership alive.
            timeout_ms = min(timeout_ms, _REMINDER_MS if objects.parts.has_others() else _BRIEFLY_MS)
        parent: Any = super()
        if update_offsets:
            # Drop the records that an iterator has fetched but not returned: they are read again from the position.
            self._begin_iterating_again()
        self._begin_poll()
        try:
            with objects.polls:
                records: dict[TopicPartition, list[Any]] = parent.poll(
                    timeout_ms, max_records, update_offsets
                )
            if self._safe.lineage_path is not None and self._memory.is_due:
                # With `update_offsets=False`, the caller is an iterator. It returns the records later, one by one, so
                # do not count them as returned yet.
                objects.parts.keep({} if update_offsets else records)
                self._memory.save_if_possible(self._reports)
        except LoopClosedError:
            return {}  # a hook has closed the consumer during this call
        except kafka_errors.CorruptRecordError as error:
            self._begin_poll()
            raise kafka_errors.CorruptRecordError(
                f"{error.args[0] if error.args else 'A record batch is damaged'}. The position stays before this batch."
                " If the network may have damaged it, poll again. To skip the batch, seek past it."
            ) from error
        except Exception:
            self._begin_poll()
            raise
        except BaseException:
            # Start all checks again: a check that Ctrl-C or a signal handler has interrupted would never end.
            self._give_back()
            objects.parts.cancel()
            raise
        if not records and (undecided := objects.parts.undecided()):
            raise objects.parts.error(undecided)
        return records

    def __repr__(self) -> str:
        reads = self._reads()
        if reads is None:
            return "<SafeConsumer not opened>"
        group = f" group={self.config['group_id']}" if self.config["group_id"] is not None else ""
        state = "closed" if self._is_closed() else "open"
        return f"<SafeConsumer {self.client_id} {state}{group} topics={reads}>"

    def close(
        self, autocommit: bool = True, timeout_ms: float | None = None, *, timeout: float | None = None
    ) -> None:
        """Like KafkaConsumer's `close`; it also writes `offsets_path` and `lineage_path`.

        In a forked child `close` does nothing, because the child is not a member of the group.

        Args:
            autocommit: Whether to commit the positions, if `enable_auto_commit` is set.
            timeout_ms: How long to wait for the commit and for leaving the group. Default: kafka-python's.
            timeout: The same time in seconds, as for the producer's `close`.

        Raises:
            UsageError: Both time-outs were given, or a rebalance listener calls this method. Nothing was closed.
            ValueError: The time-out is negative or nan. Nothing was closed.
            OSError: A file could not be written. The consumer is closed nevertheless.
        """
        timeout_ms = _close_ms(timeout_ms, timeout)
        if self._is_closed() or self._leave_to_parent():
            return
        self._refuse_in_listener("close")
        # Ignore brokers' answers from now on: they would wake objects that are about to be closed.
        self._objects.runner.retire()
        self._objects.parts.cancel()
        parent: Any = super()
        try:
            parent.close(autocommit=autocommit, timeout_ms=timeout_ms)
        except BaseException:
            # Stop the I/O thread: its heartbeats would keep this member in the group.
            self._abandon()
            raise
        finally:
            self._objects.parts.cancel()
            self._objects.connections.close()
            try:
                self.save_lineage()
            finally:
                try:
                    self._memory.close()
                    self._tracker.save()
                finally:
                    for call in AT_CLOSE:
                        call(self)

    def save_lineage(self) -> None:
        """Write the file `lineage_path`: the history of the records that the consumer has read. The file is durable on
        return.

        Does nothing without the option `lineage_path`. `poll` writes the file too, but at most once a second. If your
        program stores positions itself, call `save_lineage` each time before the program stores them, so that the file
        is never older than the stored positions, even after a kill -9.

        Raises:
            OSError: The file could not be written. It keeps its former contents.
            ForkedProcessError: The consumer was opened before a fork, and belongs to the parent process.
        """
        self._check_process()
        self._objects.parts.keep({})
        self._memory.save()

    # --- look-ups of offsets ----------------------------------------------------------------------------------------

    def end_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """Return the end offset of each log. A result is lower than an earlier one only if a loss is proven, or
        if a reset of a position had to accept the lower end (`EndOffsetRegressed` with the reason "accepted").

        While a new leader catches up (KIP-207), the method waits. If an answer is lower than before, the method checks
        it against the leader's epochs. If records were lost, the method returns the lower value and emits an
        `EndOffsetRegressed` event. If no loss is proven, the method returns the old value and emits an `EndOffsetHeld`
        event.

        Args:
            partitions: Partitions to look up.
            timeout_ms: How long the call may take. Default: `request_timeout_ms`.
            partial: True: return the offsets that could be found; the other partitions are in `missing` of the result.

        Returns:
            Offsets by partition, a dict.

        Raises:
            OffsetNotAvailableError: The call timed out while the new leader was still catching up.
            RemoteStorageNotReadyError: The call timed out, perhaps because a part of the log is in remote storage.
            KafkaTimeoutError: The call timed out for another reason (`__cause__`). Base class of
                OffsetNotAvailableError and RemoteStorageNotReadyError.
            KafkaError: An error that a retry cannot cure, such as a missing permission.
            TypeError: `timeout_ms` is not a number, or a partition is not a TopicPartition.
            ValueError: `timeout_ms` is nan.
        """
        return Offsets(*self._objects.look_ups.ends(_partitions_of(partitions), timeout_ms, partial=partial))

    def beginning_offsets(
        self,
        partitions: Iterable[TopicPartition],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """Return the start offset of each log. A result is lower than an earlier one only if the log or the topic was
        replaced, or after `offsets_hold_timeout_ms`.

        The former leader may have deleted more records than the new leader. Then the new leader answers with a lower
        offset, although nothing was replaced. So the method compares the leader's epochs before it trusts a lower
        answer. If the log or the topic was replaced, the method returns the lower value and emits an
        `EndOffsetRegressed` event. If nothing was replaced, the method returns the old value and emits an
        `EndOffsetHeld` event. Brokers without leader epochs cannot give a proof: for `offsets_hold_timeout_ms`, the
        method returns the old value, and then the lower one. A reset of a position skips these checks and uses the
        current start of the leader's log.

        Arguments and errors: see `end_offsets`.
        """
        return Offsets(
            *self._objects.look_ups.starts(_partitions_of(partitions), timeout_ms, partial=partial)
        )

    def offsets_for_times(
        self,
        timestamps: Mapping[TopicPartition, int],
        timeout_ms: float | None = None,
        *,
        partial: bool = False,
    ) -> Offsets:
        """Return the first offsets at or after a timestamp.

        If an answer left out the remote part of a log, the method ignores the answer and asks again. If a broker finds
        no record where an earlier look-up found one, the method returns the former result and emits an `EndOffsetHeld`
        event, unless the log now begins after that record, or is proven to have lost it.

        Args:
            timestamps: Ms since the epoch, by partition.
            timeout_ms: See `end_offsets`.
            partial: See `end_offsets`.

        Returns:
            OffsetAndTimestamp by partition; None if the log has no such record.

        Raises:
            ValueError: A timestamp is negative, nan, or above 2**63-1.
            TypeError: A partition is not a TopicPartition, or a timestamp is not a number.
            KafkaError: See `end_offsets`.
        """
        for given in timestamps.values():
            if not isinstance(given, (int, float)) and not hasattr(given, "__index__"):
                raise TypeError(f"Not a timestamp: {given!r}. Give ms since the epoch")
            if not given < 2**63:  # nor nan
                raise ValueError(f"Not a timestamp: {given!r}. Give ms since the epoch, below 2**63")
        times = {tp: int(timestamps[tp]) for tp in _partitions_of(timestamps)}
        for tp, timestamp in times.items():
            if timestamp < 0:
                raise ValueError(
                    f"The target time for partition {tp} is {timestamp}. The target time cannot be negative."
                )
        return Offsets(*self._objects.look_ups.at_times(times, timeout_ms, partial=partial))

    # --- positions ----------------------------------------------------------------------------------------------------

    def subscribe(
        self, topics: Sequence[str] = (), pattern: str | None = None, listener: Any | None = None
    ) -> None:
        """Like KafkaConsumer's `subscribe`. Without a group, the subscription takes effect once brokers have answered.

        KafkaConsumer does not apply such a subscription at once if it already knows the topics. KafkaConsumer continues
        to read the former topics (after `unsubscribe`, no topics) until a partition is added or removed in the cluster.

        Raises:
            IllegalStateError: The consumer used `assign`, or subscribed in the other way (topics or pattern): call
                `unsubscribe` first.
            TypeError: `topics` is not a list, or `listener` is not a ConsumerRebalanceListener.
        """
        parent: Any = super()
        parent.subscribe(topics, pattern, listener)
        if self.config["group_id"] is None:
            self._take_subscription_at_once()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Like KafkaConsumer's `assign`."""
        parent: Any = super()
        parent.assign(partitions)
        self._objects.rereading.unassigned()

    def unsubscribe(self) -> None:
        """Like KafkaConsumer's `unsubscribe`."""
        parent: Any = super()
        parent.unsubscribe()
        self._objects.rereading.unassigned()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Like KafkaConsumer's `seek`. After a `LogDivergedError`, this call decides where the consumer continues.

        Raises:
            ValueError: The partition is not assigned, or the offset is not an int from 0 to 2**63-1.
        """
        check_offset(offset)
        parent: Any = super()
        parent.seek(partition, offset)
        self._objects.positions.sought(partition)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Like KafkaConsumer's `commit`. Without `offsets`, `commit` commits the same positions as automatic commits.

        In two cases, these commits leave out a position until the application has decided where to continue: the topic
        was recreated, or no leader epoch distinguishes the truncated log from the former one. Otherwise a later
        consumer would take the position for one in the new log.

        Raises:
            LogDivergedError: In one of these two cases, an offset in `offsets` is above `event.divergent_offset`.
                Nothing was committed; call `seek` first.
            ValueError: An offset is not an int from 0 to 2**63-1. KafkaConsumer commits a negative offset, which later
                counts as no offset, and retries any other invalid offset until the commit times out.
        """
        self._check_offsets(offsets)
        parent: Any = super()
        parent.commit(offsets, timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None,
        callback: Callable[..., object] | None = None,
    ) -> Future:
        """Like KafkaConsumer's `commit_async`. Without `offsets`, `commit_async` leaves out the same positions as
        `commit`.

        Raises:
            LogDivergedError: As for `commit`.
            ValueError: As for `commit`.
        """
        self._check_offsets(offsets)
        parent: Any = super()
        future: Future = parent.commit_async(offsets, callback)
        return future

    def _check_offsets(self, given: Mapping[TopicPartition, OffsetAndMetadata] | None) -> None:
        # Ill-formed arguments are not checked here, because kafka-python reports them.
        for tp, each in given.items() if isinstance(given, Mapping) else ():
            if not isinstance(each, OffsetAndMetadata):
                continue
            check_offset(each.offset)
            objects = self._objects
            if objects.commits.is_withheld(tp, each.offset) and (undecided := objects.parts.undecided(tp)):
                raise objects.parts.error(undecided)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Like KafkaConsumer's `seek_to_beginning`. After a `LogDivergedError`, the consumer then continues there."""
        parent: Any = super()
        parent.seek_to_beginning(*partitions)
        for tp in partitions or self.assignment():
            self._objects.positions.sought(tp)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Like KafkaConsumer's `seek_to_end`. After a `LogDivergedError`, the consumer then continues there."""
        parent: Any = super()
        parent.seek_to_end(*partitions)
        for tp in partitions or self.assignment():
            self._objects.positions.sought(tp)

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """Return the offset of the next record; None if it is not known in time.

        Args:
            partition: The partition, which must be assigned.
            timeout_ms: How long the call may take. Default: `request_timeout_ms`.

        Raises:
            LogDivergedError: See `on_divergence`.
            OffsetOutOfRangeError: The position is out of range, with `auto_offset_reset="none"`.
            IllegalStateError: The partition is not assigned.
            ForkedProcessError: The consumer was opened before a fork, and belongs to the parent process.
        """
        self._check_process()
        if not isinstance(partition, TopicPartition):
            raise TypeError("partition must be a TopicPartition namedtuple")
        if self._objects.assignments.state(partition) is None:
            raise kafka_errors.IllegalStateError("Partition is not assigned")
        timeout_s = seconds_of(self.config["request_timeout_ms"] if timeout_ms is None else timeout_ms)
        deadline = time.monotonic() + timeout_s
        objects = self._objects
        while True:
            objects.positions.refresh_committed(max(0.0, deadline - time.monotonic()) * 1000)
            objects.results.carry_on(partition)
            state = objects.assignments.state(partition)
            if state is None:
                raise kafka_errors.IllegalStateError("Partition is no longer assigned")
            left_s = deadline - time.monotonic()
            # A closed consumer no longer validates its positions.
            is_known = state.has_valid_position and not state.awaiting_validation
            if left_s <= 0 or is_known or self._is_closed():
                return None if state.position is None else int(state.position.offset)
            objects.runner.wait(min(left_s, 0.1))

    def health(self) -> ConsumerHealth:
        """Return the consumer's health: whether the program polls, which partitions `poll` does not read, and whether a
        broker is connected.

        `health` never waits for a broker or a lock (docs/operations.md). Any thread may call `health` at any time, even
        after `close`.
        """
        return self._objects.status.health(closed=self._is_closed())

    def metric_samples(self) -> Iterable[Sample]:
        """Return the values that `kafkasafe.metrics` collects."""
        return self._objects.status.samples(closed=self._is_closed())

    def metrics(self, raw: bool = False) -> Any:
        """Like KafkaConsumer's `metrics`. The entry `kafkasafe-consumer` contains the number of events of each kind."""
        parent: Any = super()
        metrics = parent.metrics(raw)
        if metrics is None or raw:
            return metrics
        return {**metrics, "kafkasafe-consumer": dict(self.counters)}


def objects_of(consumer: SafeConsumer) -> ConsumerObjects:
    """Return the internal objects of a consumer, for clients such as `kafkasafe.aio`."""
    return consumer._objects  # noqa: SLF001  # not for programs


@offering.register
def _(consumer: SafeConsumer) -> Offer:
    group: Any = consumer
    return lambda fate, lane: objects_of(consumer).rereading.offer(fate, lane, group.group_metadata)


def check_offset(given: Any) -> None:
    """Refuse an offset that Kafka's protocol cannot carry: each later commit would fail inside kafka-python.

    Raises:
        ValueError: The value is not an int from 0 to 2**63-1.
    """
    if not isinstance(given, int) or not 0 <= given <= _LAST_OFFSET:
        raise ValueError(f"Not an offset: {given!r}. Give an int from 0 to 2**63-1")


def _partitions_of(given: Iterable[Any]) -> list[TopicPartition]:
    """Return the partitions as a list. Refuse other types at once, because their look-ups would time out.

    Raises:
        TypeError: An item is not a TopicPartition.
    """
    found = list(given)
    for tp in found:
        if not (
            isinstance(tp, tuple) and len(tp) == 2 and isinstance(tp[0], str) and hasattr(tp[1], "__index__")
        ):
            raise TypeError(f"{tp!r} is not a TopicPartition: TopicPartition(topic, partition)")
    return found

"""The counters of producers and consumers. `metric_definitions` defines the metrics that are made from these counters.

Counters are plain numbers in dicts. An increment takes no lock, because only one thread writes the counters: the
producer's delivery thread, or the thread that polls a consumer. Any thread may read a copy. Prometheus's own objects,
which take a lock for each increment, are made from these counters during a scrape.

Other sources (such as a Spark query) have their own `Definition`s and yield `Sample`s of them.
"""

from __future__ import annotations

import collections
import time
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafkasafe.metric_definitions import RETRIES, Definition

BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds of the buckets, seconds. One more bucket counts longer durations."""


class Histogram:
    """Counts of durations.

    Attributes:
        counts: Number of durations in each bucket. (Unlike Prometheus's buckets, these buckets do not include all
            shorter durations.)
        sum_s: Sum of all durations, seconds.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, weight: int = 1) -> None:
        """Count the same duration `weight` times."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += weight
        self.sum_s += seconds * weight


class Count:
    """A number that only grows.

    Attributes:
        value: The number.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self, number: int = 1) -> None:
        """Add to the number."""
        self.value += number


Sample: TypeAlias = tuple[Definition, tuple[str, ...], float | Histogram]
"""A metric at one moment: its definition, the values of its labels, and its number or histogram."""


class RetryStats:
    """Counters of retries.

    Attributes:
        retries: By (api, error): number of requests that were sent again because of the error.
        backoff_s: By api: total seconds of the pauses before requests were sent again.
        exhausted: By api: number of operations that reached their deadline without a result.
        started_s: When counting began, seconds since 1970.
    """

    def __init__(self) -> None:
        self.started_s = time.time()
        self.retries: collections.Counter[tuple[str, str]] = collections.Counter()
        self.backoff_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.exhausted: collections.Counter[str] = collections.Counter()

    def retry_samples(self) -> Iterator[Sample]:
        """Yield the values of `retries`, `backoff_s` and `exhausted`."""
        for pair, count in self.retries.copy().items():
            yield RETRIES["retries"], pair, count
        for api, seconds in self.backoff_s.copy().items():
            yield RETRIES["retry_backoff_seconds"], (api,), seconds
        for api, count in self.exhausted.copy().items():
            yield RETRIES["retries_exhausted"], (api,), count


class Stats(RetryStats):
    """Counters of a producer. `exhausted` counts batches that were not acknowledged within `delivery_timeout_ms`.

    Attributes:
        records: By (topic, outcome): number of records. Outcomes: accepted, committed, rejected, timed_out, damaged,
            dropped.
        errors: By (api, error): number of responses with an error code, and of requests without a response.
        sequence_errors: Number of sequence errors, by (error, result of the check that followed).
        in_doubt_resolved: By (result, evidence): number of batches that were in doubt until the evidence showed whether
            they are in the log.
        losses: How often acknowledged records were found to be lost, by reason.
        lost_records: By topic: number of acknowledged records that were lost.
        healed_records: By topic: number of lost records that are in the log again.
        history_trimmed: By topic: number of elections that may have lost acknowledged records. No check can decide
            whether they did, because the records were deleted before the check.
        units: By outcome: number of atomic batches.
        atomic_batches_asked: How often the cluster was asked about the transaction of an atomic batch.
        unit_failures: By kind of request for an atomic batch: how often such a request failed.
        sent_batches: Number of batches sent so far; a batch that is sent twice counts twice.
        resent_batches: Number of repetitions among `sent_batches`.
        gathered_batches: Number of small batches that were joined into larger ones.
        undecidable_batches: Number of batches whose presence in the log could not be determined.
        in_doubt_asked: Number of batches for which the cluster was asked whether they are in the log.
        produce_failures: Number of batches whose request got no response.
        produce_errors: By error code: number of batches whose response had this code.
        pauses: How often delivery or a transaction paused because of an error, and then continued.
        rejected_not_kept: How often rejected records could not be written to rejected/.
        spool_write_errors: Number of writes to the spool that failed.
        spool_displaced: How often files of the spool were found moved, deleted or truncated.
        spool_copied_bytes: Bytes of undelivered batches that were copied so that their segments could be deleted.
        spool_missing_records: Number of records that are neither in the log nor in the spool.
        replayed_records: Number of undelivered records of earlier runs that were found when a lane was opened.
        corrupt: Number of damaged ranges that were found when a lane was opened.
        fsync: Time to write a group of batches to the spool and make it durable.
        durable: Time from the moment when a record's batch is complete, until the batch is durable.
        ack: Time from the moment when a record's batch is complete, until the spool has durably marked the record as
            acknowledged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.records: collections.Counter[tuple[str, str]] = collections.Counter()
        self.errors: collections.Counter[tuple[str, str]] = collections.Counter()
        self.sequence_errors: collections.Counter[tuple[str, str]] = collections.Counter()
        self.in_doubt_resolved: collections.Counter[tuple[str, str]] = collections.Counter()
        self.losses: collections.Counter[str] = collections.Counter()
        self.lost_records: collections.Counter[str] = collections.Counter()
        self.healed_records: collections.Counter[str] = collections.Counter()
        self.history_trimmed: collections.Counter[str] = collections.Counter()
        self.units: collections.Counter[str] = collections.Counter()
        self.atomic_batches_asked = Count()
        self.unit_failures: collections.Counter[str] = collections.Counter()
        self.sent_batches = Count()
        self.resent_batches = Count()
        self.gathered_batches = Count()
        self.undecidable_batches = Count()
        self.in_doubt_asked = Count()
        self.produce_failures = Count()
        self.produce_errors: collections.Counter[int] = collections.Counter()
        self.pauses = Count()
        self.rejected_not_kept = Count()
        self.spool_write_errors = Count()
        self.spool_displaced = Count()
        self.spool_copied_bytes = Count()
        self.spool_missing_records = Count()
        self.replayed_records = Count()
        self.corrupt = Count()
        self.fsync = Histogram()
        self.durable = Histogram()
        self.ack = Histogram()

    def named(self) -> dict[str, int]:
        """Return these counters in the form of `SafeProducer.metrics()`. A counter that is 0 is left out."""
        outcomes: collections.Counter[str] = collections.Counter()
        for (_, outcome), count in self.records.copy().items():
            outcomes[outcome] += count
        found = {
            "records_accepted": outcomes["accepted"],
            "records_committed": outcomes["committed"],
            "records_rejected": outcomes["rejected"],
            "batches_sent": self.sent_batches.value,
            "batches_resent": self.resent_batches.value,
            "batches_gathered": self.gathered_batches.value,
            "batches_undecidable": self.undecidable_batches.value,
            "in_doubt_asked": self.in_doubt_asked.value,
            "produce_failures": self.produce_failures.value,
            **{f"produce_error_{code}": count for code, count in self.produce_errors.copy().items()},
            "retries": self.pauses.value,
            "atomic_batches_asked": self.atomic_batches_asked.value,
            **{f"unit_{action}_failures": count for action, count in self.unit_failures.copy().items()},
            "data_loss_detected": self.losses.total(),
            "data_loss_records": self.lost_records.copy().total(),
            "data_loss_restored_records": self.healed_records.copy().total(),
            "loss_checks_inconclusive": self.history_trimmed.copy().total(),
            "rejected_not_kept": self.rejected_not_kept.value,
            "spool_write_errors": self.spool_write_errors.value,
            "spool_displaced": self.spool_displaced.value,
            "spool_copied_bytes": self.spool_copied_bytes.value,
            "spool_missing_records": self.spool_missing_records.value,
            "fsync_count": sum(self.fsync.counts),
            "fsync_us": int(self.fsync.sum_s * 1e6),
        }
        return {name: count for name, count in found.items() if count}


class ConsumerStats(RetryStats):
    """Counters of a SafeConsumer.

    Other threads than the polling thread may look up offsets, too: then an increment may be lost, which is harmless.

    Attributes:
        events: By name of the event's class: number of events.
        lineage_write_errors: Number of failed writes of the file `lineage_path`.
        resets: By (topic, reason): how often `auto_offset_reset` set a position.
        skipped_records: By topic: number of offsets that position resets skipped.
        regressions: By (topic, reason): how often an end offset was proven to have decreased.
        held: By (topic, reason): how often a lower end offset was ignored because nothing proved a loss.
        divergences: By topic: how often the log no longer contained records that had been read.
        diverged_records: By topic: number of offsets that were read and are missing from the log.
        history_trimmed: By topic: number of elections that may have lost records that the consumer had read. No check
            can decide whether they did, because the records were deleted before the check.
        unavailable_s: By topic: seconds for which offset look-ups waited because the leader was not ready (error codes
            78 and 5).
        not_ready_s: By topic: seconds during which fetches failed. They are added when fetches work again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: collections.Counter[str] = collections.Counter()
        self.lineage_write_errors = Count()
        self.resets: collections.Counter[tuple[str, str]] = collections.Counter()
        self.skipped_records: collections.Counter[str] = collections.Counter()
        self.regressions: collections.Counter[tuple[str, str]] = collections.Counter()
        self.held: collections.Counter[tuple[str, str]] = collections.Counter()
        self.divergences: collections.Counter[str] = collections.Counter()
        self.diverged_records: collections.Counter[str] = collections.Counter()
        self.history_trimmed: collections.Counter[str] = collections.Counter()
        self.unavailable_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.not_ready_s: collections.defaultdict[str, float] = collections.defaultdict(float)

    def named(self) -> collections.Counter[str]:
        """Return the counters that `SafeConsumer.metrics()` shows. A counter that is 0 is left out."""
        found = self.events.copy()
        if self.lineage_write_errors.value:
            found["lineage_write_errors"] = self.lineage_write_errors.value
        return found


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """A consumer's progress on a partition.

    Attributes:
        position: Next offset that the consumer will return; None if not known yet.
        end_offset: Highest known end offset; None if not known yet.
        not_ready_s: Number of seconds for which fetches have been failing; None if they work.
        undecided: Whether the application must choose another position. Either the log no longer contains records that
            the consumer has read, or the position is out of range.
        remote: Whether fetches fail and the position is known to be in remote storage.
    """

    position: int | None
    end_offset: int | None
    not_ready_s: float | None
    undecided: bool
    remote: bool

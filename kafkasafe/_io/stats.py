"""What is counted, and under which names it is shown.

Counts are plain ints in dicts, changed by one thread (the pump's, or whoever polls a consumer) and read by anybody: an
increment is one bytecode's
work for its one writer, and a reader copies. Prometheus's own objects take a lock per increment; they are made from
this when somebody scrapes.

Whoever counts something else (a consumer, a Spark query) has `Definition`s of its own and gives `Reading`s of them.
"""

from __future__ import annotations

import collections
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = [
    "BUCKETS_S",
    "CONSUMER",
    "PRODUCER",
    "RETRIES",
    "ConsumerStats",
    "Definition",
    "Histogram",
    "PartitionProgress",
    "Reading",
    "RetryStats",
    "Stats",
]

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
"""Upper bounds, seconds; one more bucket takes the rest."""


class Histogram:
    """Counts of durations.

    Attributes:
        counts: By bucket, not cumulative.
        sum_s: Sum of all durations, seconds.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, weight: int = 1) -> None:
        """`weight` times the same duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += weight
        self.sum_s += seconds * weight


@dataclass(frozen=True, slots=True)
class Definition:
    """One family of metrics.

    Attributes:
        name: Behind `kafkasafe_`; a counter's without `_total`.
        kind: What Prometheus calls it.
        text: One sentence for people.
        labels: Beside `client_id`.
        merge: What becomes of gauges with the same labels: of two producers of one client id, of several processes.
        left: Of a gauge: what several processes that are scraped as one show of a source that is closed.
        per_partition: Shown only where `install(..., partitions=True)` asked for it: a label without a bound.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    merge: Literal["sum", "max", "min"] = "sum"
    per_partition: bool = False
    left: float = 0.0


Reading: TypeAlias = tuple[Definition, tuple[str, ...], float | Histogram]
"""What is to be seen now: definition, values of its labels, and the number."""

_RETRIES: Final = (
    Definition("retries", "counter", "Requests sent again, by the error that caused it.", ("api", "error")),
    Definition(
        "retry_backoff_seconds",
        "counter",
        "Pauses before requests were sent again, of all partitions.",
        ("api",),
    ),
    Definition(
        "retries_exhausted",
        "counter",
        "Operations that hit their deadline. A producer's records stay in the spool.",
        ("api",),
    ),
)
"""Of both: no family may come twice."""

_TRIMMED: Final = Definition(
    "loss_checks_inconclusive",
    "counter",
    "Elections after which nothing was left to prove that the log ever had what was acknowledged, or read.",
    ("topic",),
)
"""Of both, too."""

_CONNECTED: Final = Definition(
    "connected",
    "gauge",
    "1 while brokers can be used, 0 otherwise: a producer's latest metadata request was answered, a consumer has a"
    " connection.",
    merge="min",
    left=1.0,
)
"""Of both, too."""

_DEFINITIONS: Final = (
    Definition("records", "counter", "Records by what became of them.", ("topic", "outcome")),
    *_RETRIES,
    Definition(
        "request_errors",
        "counter",
        "Requests that failed: error responses and missing responses.",
        ("api", "error"),
    ),
    Definition(
        "sequence_errors",
        "counter",
        "Sequence errors by what the cluster's state proved: decided (is the batch in the log?), gap, undecidable"
        "; of UNKNOWN_PRODUCER_ID also retention (it removed what was acknowledged), loss, none (nothing is missing).",
        ("error", "result"),
    ),
    Definition(
        "in_doubt_resolved",
        "counter",
        "Batches in doubt, by what was found and how.",
        ("result", "evidence"),
    ),
    Definition(
        "data_loss_detected",
        "counter",
        "Times that acknowledged records were found to be gone.",
        ("reason",),
    ),
    Definition("data_loss_records", "counter", "Acknowledged records that the cluster lost.", ("topic",)),
    Definition(
        "data_loss_restored_records",
        "counter",
        "Lost acknowledged records that are in the log again.",
        ("topic",),
    ),
    _TRIMMED,
    Definition(
        "undecidable_batches", "counter", "Batches whose presence in the log could not be determined."
    ),
    Definition("atomic_batches", "counter", "Atomic batches by what became of them.", ("outcome",)),
    Definition("atomic_batches_waiting", "gauge", "Atomic batches without a fate, by step.", ("step",)),
    Definition("spool_write_errors", "counter", "Writes to the spool that failed."),
    Definition(
        "spool_displaced",
        "counter",
        "Times that files of the spool were found moved, deleted or cut while their producer works.",
    ),
    Definition(
        "spool_displaced_lanes",
        "gauge",
        "Lanes that are not where their path leads, and cannot be restored for now: nothing in them is called durable.",
    ),
    Definition("spool_full", "counter", "Sends that were rejected because there was no room."),
    Definition(
        "spool_copied_bytes",
        "counter",
        "Bytes of undelivered batches copied to the log's end to free segments (compaction).",
    ),
    Definition(
        "spool_replayed_records",
        "counter",
        "Unfinished records of earlier lives, found when a lane was opened.",
    ),
    Definition("spool_corrupt", "counter", "Damaged ranges, found when a lane was opened."),
    Definition("spool_records", "gauge", "Records on disk that are not delivered yet."),
    Definition(
        "spool_bytes",
        "gauge",
        "Bytes in the spool of this producer, without adopted lanes; with spool='never' those that wait in memory.",
    ),
    Definition("spool_capacity_bytes", "gauge", "Largest size of the spool."),
    Definition(
        "spool_volume_free_bytes",
        "gauge",
        "Free room on the volume of the spool, measured every second. Not with spool='never'.",
        merge="min",
        left=float("inf"),
    ),
    _CONNECTED,
    Definition(
        "orphaned_spool_records",
        "gauge",
        "Records that wait in other directories beside the default one, which no process delivers.",
        merge="max",
    ),
    Definition("spool_segments", "gauge", "Files of the spool."),
    Definition(
        "waiting_for_older_partitions",
        "gauge",
        "Partitions of which records wait until what earlier producers left in other lanes is delivered.",
    ),
    Definition("rejected_kept_records", "gauge", "Rejected records that are kept until they are resent."),
    Definition("rejected_kept_bytes", "gauge", "Bytes of rejected records that are kept."),
    Definition("rejected_capacity_bytes", "gauge", "Largest size of what is kept of rejected records."),
    Definition(
        "spool_oldest_record_age_seconds",
        "gauge",
        "How long ago the oldest undelivered batch was sealed; of an earlier life: its newest timestamp.",
        merge="max",
    ),
    Definition(
        "blocked_destinations",
        "gauge",
        "Partitions, transactional ids and groups that the cluster blocks for a reason that may pass: a right, a"
        " topic, one batch. What waits for them is kept.",
        ("kind", "name", "error"),
    ),
    Definition("blocked_records", "gauge", "Records that wait for them.", ("kind", "name", "error")),
    Definition(
        "blocked_age_seconds",
        "gauge",
        "For how long they have been blocked; after blocked_timeout_ms what waits for them is rejected.",
        ("kind", "name", "error"),
        merge="max",
    ),
    Definition("unfinished_batches", "gauge", "Batches accepted and not yet acknowledged."),
    Definition("in_doubt_batches", "gauge", "Batches sent without a known outcome."),
    Definition("undurable_batches", "gauge", "Batches accepted and not yet on disk."),
    Definition(
        "producer_id_age_seconds",
        "gauge",
        "Age of the newest timestamp in the oldest undelivered batch that has a batch id. Brokers forget the id when"
        " this reaches producer.id.expiration.ms.",
        merge="max",
    ),
    Definition(
        "producer_id_expiration_seconds",
        "gauge",
        "The option producer_id_expiration_ms: when brokers are assumed to forget.",
        merge="max",
    ),
    Definition(
        "last_acked_offset",
        "gauge",
        "Offset of the last acknowledged record.",
        ("topic", "partition"),
        merge="max",
        per_partition=True,
    ),
    Definition(
        "spool_fsync_duration_seconds", "histogram", "Time to write a group to the spool and make it durable."
    ),
    Definition(
        "durable_latency_seconds", "histogram", "From the sealing of a record's batch until it is durable."
    ),
    Definition(
        "ack_latency_seconds",
        "histogram",
        "From the sealing of a record's batch until its commit is durable.",
    ),
)

_CONSUMER: Final = (
    *_RETRIES,
    Definition("offset_resets", "counter", "Positions that auto_offset_reset set.", ("topic", "reason")),
    Definition("skipped_records", "counter", "Offsets that resets left out.", ("topic",)),
    Definition(
        "end_offset_regressions", "counter", "End offsets that went back, with a proof.", ("topic", "reason")
    ),
    Definition(
        "end_offsets_held", "counter", "Lower end offsets that were not believed.", ("topic", "reason")
    ),
    Definition(
        "log_divergences", "counter", "Times that records which were read were found to be gone.", ("topic",)
    ),
    Definition("diverged_records", "counter", "Offsets that were read and are gone.", ("topic",)),
    _TRIMMED,
    Definition(
        "offset_not_available_seconds",
        "counter",
        "Time that look-ups of offsets waited for a leader that was not ready.",
        ("topic",),
    ),
    Definition(
        "partition_not_ready_seconds",
        "counter",
        "Time that partitions could not be fetched from, once they can be again.",
        ("topic",),
    ),
    _CONNECTED,
    Definition(
        "last_poll_age_seconds",
        "gauge",
        "Time since the program polled last, 0 during a poll; missing before the first one.",
        merge="max",
    ),
    Definition(
        "lag_records",
        "gauge",
        "Offsets between position and end, of the assigned partitions of a topic.",
        ("topic", "group"),
    ),
    Definition(
        "not_ready_partitions",
        "gauge",
        "Partitions that cannot be fetched from for the moment.",
        ("topic",),
    ),
    Definition(
        "remote_storage_not_ready_partitions",
        "gauge",
        "Those of them whose position lies in remote storage (KIP-1007).",
        ("topic",),
    ),
    Definition(
        "stopped_partitions",
        "gauge",
        "Partitions that wait for the application to choose a position.",
        ("topic",),
    ),
    Definition(
        "end_offset",
        "gauge",
        "Highest end offset known.",
        ("topic", "partition"),
        merge="max",
        per_partition=True,
    ),
    Definition(
        "position",
        "gauge",
        "Next offset to be handed out.",
        ("topic", "partition"),
        merge="max",
        per_partition=True,
    ),
)

CONSUMER: Final = {definition.name: definition for definition in _CONSUMER}
"""What a consumer counts, by name."""

PRODUCER: Final = {definition.name: definition for definition in _DEFINITIONS}
"""What a producer counts, by name."""


RETRIES: Final = {definition.name: definition for definition in _RETRIES}
"""What everybody counts who tries again, by name."""


class RetryStats:
    """What was tried again.

    Attributes:
        retries: By (api, error): requests sent again, and why.
        backoff_s: By api: seconds of pauses before them.
        exhausted: By api: deadlines that ended before there was an answer.
    """

    def __init__(self) -> None:
        self.retries: collections.Counter[tuple[str, str]] = collections.Counter()
        self.backoff_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.exhausted: collections.Counter[str] = collections.Counter()

    def retry_readings(self) -> Iterator[Reading]:
        """Of these three."""
        for pair, count in self.retries.copy().items():
            yield RETRIES["retries"], pair, count
        for api, seconds in self.backoff_s.copy().items():
            yield RETRIES["retry_backoff_seconds"], (api,), seconds
        for api, count in self.exhausted.copy().items():
            yield RETRIES["retries_exhausted"], (api,), count


class Stats(RetryStats):
    """All that a pump counts; `exhausted` are batches that were not acknowledged within `delivery_timeout_ms`.

    Attributes:
        records: By (topic, outcome): accepted, committed, rejected, timed_out, damaged, dropped.
        errors: By (api, error): answers with an error code, and requests without an answer.
        sequence_errors: By (error, result).
        in_doubt_resolved: By (result, evidence): batches.
        losses: By reason: how often acknowledged records were found to be gone.
        lost_records: By topic.
        healed_records: By topic.
        history_trimmed: By topic: how often nothing was left to prove that what was acknowledged was ever there.
        units: By outcome: atomic batches.
        replayed_records: Of earlier lives, found when a lane was opened.
        corrupt: Damaged ranges found then.
        fsync: Durations of writes to the spool, made durable.
        durable: From the sealing of a record's batch until it is durable.
        ack: From there until its commit mark is durable.
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
        self.replayed_records = 0
        self.corrupt = 0
        self.fsync = Histogram()
        self.durable = Histogram()
        self.ack = Histogram()


class ConsumerStats(RetryStats):
    """All that a SafeConsumer counts.

    Look-ups of offsets may come from other threads than the one that polls; a count may be lost then, no more.

    Attributes:
        resets: By (topic, reason): positions set by `auto_offset_reset`.
        skipped_records: By topic: offsets that those left out.
        regressions: By (topic, reason): end offsets that went back, with a proof.
        held: By (topic, reason): lower end offsets that were not believed.
        divergences: By topic: how often records that were read were found to be gone.
        diverged_records: By topic: how many (offsets).
        history_trimmed: By topic: how often nothing was left to prove that what was read was ever there.
        unavailable_s: By topic: how long look-ups of the end waited for a leader that was not ready (78, 5).
        not_ready_s: By topic: how long partitions could not be fetched from, those that can be again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.resets: collections.Counter[tuple[str, str]] = collections.Counter()
        self.skipped_records: collections.Counter[str] = collections.Counter()
        self.regressions: collections.Counter[tuple[str, str]] = collections.Counter()
        self.held: collections.Counter[tuple[str, str]] = collections.Counter()
        self.divergences: collections.Counter[str] = collections.Counter()
        self.diverged_records: collections.Counter[str] = collections.Counter()
        self.history_trimmed: collections.Counter[str] = collections.Counter()
        self.unavailable_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.not_ready_s: collections.defaultdict[str, float] = collections.defaultdict(float)


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a consumer is on a partition.

    Attributes:
        position: Next offset to be handed out; None: not known yet.
        end_offset: Highest known; None: not known yet.
        not_ready_s: For how long it cannot be fetched from, seconds; None: it can.
        undecided: Records that were read are gone, or the position is out of range, and the application has not
            chosen another position.
        remote: It cannot be fetched from, and its position is known to lie in remote storage.
    """

    position: int | None
    end_offset: int | None
    not_ready_s: float | None
    undecided: bool
    remote: bool

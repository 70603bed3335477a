"""The definitions of the metrics of producers and consumers: name, type, HELP text and labels of each family.

Other sources (such as a Spark query) have definitions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Definition:
    """One family of metrics.

    Attributes:
        name: Name without the prefix `kafkasafe_`, and without `_total` for a counter.
        kind: Prometheus's type of the metric.
        text: HELP text.
        labels: Labels in addition to `client_id`.
        merge: How gauges with the same labels are combined. For example, producers with the same client id have the
            same labels, in one process or in several.
        left: Value that a gauge shows after its source was closed, if several processes are scraped as one.
        per_partition: Whether the family is shown only after `install(..., partitions=True)`, because the number of
            partitions is unbounded.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: tuple[str, ...] = ()
    merge: Literal["sum", "max", "min"] = "sum"
    per_partition: bool = False
    left: float = 0.0


_RETRIES: Final = (
    Definition(
        "retries", "counter", "Requests sent again, by the error that made this necessary.", ("api", "error")
    ),
    Definition(
        "retry_backoff_seconds",
        "counter",
        "Total length of the pauses before requests were sent again, seconds, summed over all partitions.",
        ("api",),
    ),
    Definition(
        "retries_exhausted",
        "counter",
        "Operations that reached their deadline without a result. A producer's records stay in the spool.",
        ("api",),
    ),
)
"""Shared by producers and consumers, because Prometheus allows each family only once."""

_TRIMMED: Final = Definition(
    "loss_checks_inconclusive",
    "counter",
    "Elections after which acknowledged or read records were deleted before anything proved that the log still had"
    " them.",
    ("topic",),
)
"""Shared by producers and consumers, too."""

_CONNECTED: Final = Definition(
    "connected",
    "gauge",
    "1 while the cluster is reachable, 0 otherwise. A producer: its latest metadata request was answered. A consumer:"
    " it has a connection.",
    merge="min",
    left=1.0,
)
"""Shared by producers and consumers, too."""

_START_TIME: Final = Definition(
    "start_time_seconds",
    "gauge",
    "When the producer or consumer was started, seconds since 1970. A new value means a restart.",
    merge="max",
)
"""Shared by both, too."""

_DEFINITIONS: Final = (
    Definition("records", "counter", "Records by outcome.", ("topic", "outcome")),
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
        "Sequence errors, by the result of the check that followed: decided (it is known whether the batch is in the"
        " log), gap, or undecidable. UNKNOWN_PRODUCER_ID has three more results: retention (it removed acknowledged"
        " records), loss (acknowledged records are missing), and none (no records are missing).",
        ("error", "result"),
    ),
    Definition(
        "in_doubt_resolved",
        "counter",
        "Batches in doubt that were resolved, by result and by the evidence for it.",
        ("result", "evidence"),
    ),
    Definition(
        "data_loss_detected",
        "counter",
        "How often the producer found that acknowledged records were lost.",
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
    Definition("atomic_batches", "counter", "Atomic batches by outcome.", ("outcome",)),
    Definition(
        "atomic_batches_waiting",
        "gauge",
        "Atomic batches that are neither committed nor dropped yet, by step.",
        ("step",),
    ),
    Definition("spool_write_errors", "counter", "Writes to the spool that failed."),
    Definition(
        "spool_displaced",
        "counter",
        "How often an open producer found files of its spool moved, deleted or truncated.",
    ),
    Definition(
        "spool_displaced_lanes",
        "gauge",
        "Lanes whose files are not in their place and cannot be restored for now. No record in them counts as durable.",
    ),
    Definition(
        "spool_full", "counter", "Sends that the producer did not accept because the spool had no room."
    ),
    Definition(
        "spool_copied_bytes",
        "counter",
        "Bytes of undelivered batches copied to the end of the spool's log to free segments (compaction).",
    ),
    Definition(
        "spool_replayed_records",
        "counter",
        "Undelivered records of earlier runs, found when a lane was opened.",
    ),
    Definition("spool_corrupt", "counter", "Damaged ranges, found when a lane was opened."),
    Definition("spool_records", "gauge", "Records on disk that are not delivered yet."),
    Definition(
        "spool_bytes",
        "gauge",
        "Bytes in this producer's spool, without adopted lanes. With spool='never': bytes of pending records.",
    ),
    Definition("spool_capacity_bytes", "gauge", "Largest size of the spool."),
    Definition(
        "spool_volume_free_bytes",
        "gauge",
        "Free space on the volume of the spool, measured every second. Absent with spool='never'.",
        merge="min",
        left=float("inf"),
    ),
    _CONNECTED,
    _START_TIME,
    Definition(
        "orphaned_spool_records",
        "gauge",
        "Undelivered records that no process delivers, in other spool directories next to the default one.",
        merge="max",
    ),
    Definition("spool_segments", "gauge", "Files of the spool."),
    Definition(
        "waiting_for_older_partitions",
        "gauge",
        "Partitions whose records wait until older records in other lanes are delivered.",
    ),
    Definition(
        "rejected_kept_records", "gauge", "Rejected records that the spool keeps until they are resent."
    ),
    Definition("rejected_kept_bytes", "gauge", "Bytes of rejected records that the spool keeps."),
    Definition(
        "rejected_capacity_bytes", "gauge", "Largest size of the rejected records that the spool keeps."
    ),
    Definition(
        "spool_oldest_record_age_seconds",
        "gauge",
        "Time since the oldest undelivered batch was sealed. For a batch of an earlier run: time since its newest"
        " timestamp.",
        merge="max",
    ),
    Definition(
        "blocked_destinations",
        "gauge",
        "Partitions, transactional ids and groups that the cluster blocks for a reason that may be temporary: a missing"
        " permission, a missing topic, one batch. Their records are kept.",
        ("kind", "name", "error"),
    ),
    Definition(
        "blocked_records", "gauge", "Records that wait for a blocked destination.", ("kind", "name", "error")
    ),
    Definition(
        "blocked_age_seconds",
        "gauge",
        "How long the destination has been blocked. After blocked_timeout_ms its records are rejected.",
        ("kind", "name", "error"),
        merge="max",
    ),
    Definition("unfinished_batches", "gauge", "Accepted batches that are not yet acknowledged."),
    Definition("in_doubt_batches", "gauge", "Sent batches whose outcome is not known."),
    Definition("undurable_batches", "gauge", "Accepted batches that are not yet on disk."),
    Definition(
        "producer_id_age_seconds",
        "gauge",
        "Age of the newest timestamp in the oldest undelivered batch with a batch id. Brokers forget the id when this"
        " age reaches producer.id.expiration.ms.",
        merge="max",
    ),
    Definition(
        "producer_id_expiration_seconds",
        "gauge",
        "The option producer_id_expiration_ms: the age at which brokers are assumed to forget a producer id.",
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
        "durable_latency_seconds",
        "histogram",
        "Time from sealing a record's batch until the batch is durable.",
    ),
    Definition(
        "ack_latency_seconds",
        "histogram",
        "Time from sealing a record's batch until the mark of its acknowledgement is durable.",
    ),
)

_CONSUMER: Final = (
    *_RETRIES,
    Definition("offset_resets", "counter", "Positions that auto_offset_reset set.", ("topic", "reason")),
    Definition("skipped_records", "counter", "Offsets that resets skipped.", ("topic",)),
    Definition(
        "end_offset_regressions",
        "counter",
        "How often an end offset was proven to have decreased.",
        ("topic", "reason"),
    ),
    Definition(
        "end_offsets_held",
        "counter",
        "How often a lower end offset was ignored because nothing proved a loss.",
        ("topic", "reason"),
    ),
    Definition(
        "log_divergences",
        "counter",
        "How often records that were read were found to be missing from the log.",
        ("topic",),
    ),
    Definition(
        "diverged_records", "counter", "Offsets that were read and are missing from the log.", ("topic",)
    ),
    _TRIMMED,
    Definition(
        "offset_not_available_seconds",
        "counter",
        "Time that look-ups of offsets spent waiting for a leader that was not ready.",
        ("topic",),
    ),
    Definition(
        "partition_not_ready_seconds",
        "counter",
        "Time during which fetches from a partition failed. It is added when fetches work again.",
        ("topic",),
    ),
    _CONNECTED,
    _START_TIME,
    Definition(
        "last_poll_age_seconds",
        "gauge",
        "Time since the program's last poll, 0 during a poll; absent before the first poll.",
        merge="max",
    ),
    Definition(
        "lag_records",
        "gauge",
        "Offsets between position and end, summed over the assigned partitions of a topic.",
        ("topic", "group"),
    ),
    Definition(
        "not_ready_partitions",
        "gauge",
        "Partitions from which the consumer cannot fetch for the moment.",
        ("topic",),
    ),
    Definition(
        "remote_storage_not_ready_partitions",
        "gauge",
        "Partitions from which the consumer cannot fetch and whose position is in remote storage (KIP-1007).",
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
        "Next offset that the consumer will return.",
        ("topic", "partition"),
        merge="max",
        per_partition=True,
    ),
)

CONSUMER: Final = {definition.name: definition for definition in _CONSUMER}
"""Metrics of a consumer, by name."""

PRODUCER: Final = {definition.name: definition for definition in _DEFINITIONS}
"""Metrics of a producer, by name."""


RETRIES: Final = {definition.name: definition for definition in _RETRIES}
"""Metrics of retries, by name. Every source that retries has them."""

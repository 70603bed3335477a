"""Two Grafana boards as code: `python examples/dashboard/grafana.py` writes overview.json and internals.json.

Overview fits on one screen. The board shows whether all records are delivered, how many are not, and how long the
spools will have room for more. Internals has a collapsed row for each part of kafkasafe. Import both boards in Grafana
(Dashboards, New, Import). Grafana then asks for the Prometheus data source. The boards link to each other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    DataSourceRef,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DashboardRangeMapOptions,
    FieldColorModeId,
    RangeMap,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMapping,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
)
from tools import rules

FILES = {
    "overview": Path(__file__).with_name("overview.json"),
    "internals": Path(__file__).with_name("internals.json"),
}
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH = 24


@dataclasses.dataclass(frozen=True)
class Shown:
    """One panel.

    Attributes:
        title: Title of the panel.
        unit: Grafana's name of the unit.
        queries: Pairs of PromQL and legend. In the PromQL, `x[]` selects the metric x of the clients that the user has
            chosen, `x[job]` selects a metric without the label `client_id`, and `{chosen}` is replaced by the
            matchers, next to further matchers.
        text: Description for an operator.
        levels: The values at which the panel becomes yellow, and red (only in panels that show one number).
        top: Largest possible value.
        words: (from, to, text, colour): texts that the panel shows instead of numbers.
        nothing: Text that is shown if there is no number.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str
    levels: tuple[float | None, float | None] = (None, None)
    top: float | None = None
    words: tuple[tuple[float, float | None, str, str], ...] = ()
    nothing: str | None = None


def _new(counter: str, matchers: str = "[]", over: str = "$__rate_interval") -> str:
    """Returns PromQL for a counter's growth. Unlike `increase`, this PromQL includes a new counter's first value."""
    grown = f"increase({counter}{matchers}[{over}])"
    first = f"(min_over_time({counter}{matchers}[{over}]) unless {counter}{matchers} offset {over})"
    return f"({grown} + {first} or {grown})"


def _total(counter: str) -> str:
    """Returns PromQL for the growth over the board's whole time range, as one number."""
    return f"sum({_new(counter, over='$__range')}) or vector(0)"


def _by(labels: str, counter: str, matchers: str = "[]") -> str:
    return f"sum by ({labels}) ({_new(counter, matchers)})"


def _quantile(part: float, buckets: str) -> str:
    return f"histogram_quantile({part}, sum by (client_id, le) (rate({buckets}[][$__rate_interval])))"


def _of_batches(part: float) -> str:
    buckets = "kafkasafe_spark_batch_duration_seconds_bucket[job]"
    # Micro-batches may be minutes apart.
    return f"histogram_quantile({part}, sum by (query, le) (increase({buckets}[1h])))"


_LOST = Shown(
    "Records lost",
    "short",
    ((_total("kafkasafe_data_loss_records_total"), "lost"),),
    "Records that the cluster acknowledged and lost, in the time range of the board.",
    (None, 1),
)

_UNDELIVERED = (
    "count(kafkasafe_spool_oldest_record_age_seconds[] > 10 or kafkasafe_orphaned_spool_records[] > 0"
    " or kafkasafe_rejected_kept_records[] > 0) or vector(0)"
)
"""PromQL for the number of clients with undelivered records."""

_DELIVERED = (
    'sum by (outcome) (rate(kafkasafe_records_total{outcome=~"accepted|committed", {chosen}}'
    "[$__rate_interval]))"
)

_SEVERITIES = (
    "max by (alertname, client_id, query)"
    ' (ALERTS{alertstate="firing", alertname=~"{alerts}", severity="page", {chosen}} * 3'
    ' or ALERTS{alertstate="firing", alertname=~"{alerts}", {chosen}} * 2'
    ' or ALERTS{alertstate="pending", alertname=~"{alerts}", {chosen}})'
)

_TILES = (
    Shown(
        "All delivered",
        "short",
        (
            (
                _UNDELIVERED,
                "clients with undelivered records",
            ),
        ),
        "No: a client has a record that has been undelivered for more than 10 s, rejected records that are kept, or"
        " records in another directory that no process delivers.",
        (1, None),
        words=((0, 0, "yes", "green"), (1, None, "no", "orange")),
    ),
    Shown(
        "Undelivered",
        "short",
        (("sum(kafkasafe_spool_records[])", "records"),),
        "Records that are safe on disk, but not in the topic yet.",
    ),
    Shown(
        "Oldest record",
        "s",
        (("max(kafkasafe_spool_oldest_record_age_seconds[])", "age"),),
        "Age of the oldest record that is not in the topic yet. In an outage, this is the length of the outage.",
        (60, 900),
    ),
    Shown(
        "Fullest spool",
        "percentunit",
        (("max(kafkasafe:spool_fill:ratio[])", "full"),),
        "If a spool has no room for another segment (94 % with the defaults), send() blocks and then raises.",
        (0.5, 0.7),
        top=1,
    ),
    Shown(
        "Ack latency, p99",
        "s",
        (
            (
                f"max({_quantile(0.99, 'kafkasafe_ack_latency_seconds_bucket')} >= 0)",
                "p99",
            ),
        ),
        "For the slowest client: time from sealing a batch until its acknowledgement is on disk.",
        (1, 10),
        nothing="no acks",
    ),
    Shown(
        "Consumer lag",
        "short",
        (("sum(kafkasafe_lag_records[])", "records"),),
        "Records in the topics that the consumers have not read yet.",
        nothing="no consumer",
    ),
    _LOST,
    Shown(
        "Alerts",
        "short",
        (
            (
                'count(ALERTS{alertstate="firing", alertname=~"{alerts}", {chosen}}) or vector(0)',
                "firing",
            ),
        ),
        "Alerts of rules.yml that fire for the chosen jobs and clients.",
        (None, 1),
    ),
)

_GRAPHS = (
    Shown(
        "Accepted and delivered records",
        "cps",
        (
            (
                _DELIVERED,
                "{{outcome}}",
            ),
        ),
        "accepted: send() took the record; committed: the cluster acknowledged it, and the spool noted that on disk.",
    ),
    Shown(
        "Undelivered records",
        "short",
        (("sum by (client_id) (kafkasafe_spool_records[])", "{{client_id}}"),),
        "These records are safe on disk.",
    ),
    Shown(
        "Oldest undelivered record",
        "s",
        (("max by (client_id) (kafkasafe_spool_oldest_record_age_seconds[])", "{{client_id}}"),),
        "Age of each client's oldest record that is not in the topic yet.",
    ),
    Shown(
        "Room left for records",
        "bytes",
        (("min by (client_id) (kafkasafe:spool_room:bytes[])", "{{client_id}}"),),
        "Bytes by which the spool may still grow, or the free room on its volume if that is less.",
    ),
    Shown(
        "Ack latency, p99",
        "s",
        ((_quantile(0.99, "kafkasafe_ack_latency_seconds_bucket"), "{{client_id}}"),),
        "Time from sealing a record's batch until its acknowledgement is on disk.",
    ),
    Shown(
        "Consumer lag",
        "short",
        (("sum by (group, topic) (kafkasafe_lag_records[])", "{{group}} {{topic}}"),),
        "Records that the consumers have not read yet, by group and topic.",
    ),
)

_ALERTS = Shown(
    "Alerts over time",
    "short",
    (
        (
            _SEVERITIES,
            "{{alertname}} {{client_id}}{{query}}",
        ),
    ),
    "page: cannot wait; ticket: can wait for working hours; pending: fires if its condition lasts."
    " docs/runbook.md has a section for each alert.",
    words=((1, 1, "pending", "yellow"), (2, 2, "ticket", "orange"), (3, 3, "page", "red")),
    nothing="No alert",
)

_NUMBERS = (
    _LOST,
    Shown(
        "Restored records",
        "short",
        ((_total("kafkasafe_data_loss_restored_records_total"), "restored"),),
        "Lost records that are in the log again, because the spool had retained them.",
    ),
    Shown(
        "Batches in doubt",
        "short",
        (("sum(kafkasafe_in_doubt_batches[])", "batches"),),
        "Batches that were sent, but it is not known yet whether they are in the log.",
    ),
    Shown(
        "Undecidable batches",
        "short",
        ((_total("kafkasafe_undecidable_batches_total"), "batches"),),
        "Batches whose presence in the log cannot be determined. on_undecidable or resolve_undecidable() decides.",
        (None, 1),
    ),
    Shown(
        "Records skipped",
        "short",
        ((_total("kafkasafe_skipped_records_total"), "records"),),
        "Records that a reset of the position skipped.",
        (None, 1),
    ),
    Shown(
        "Clients without a broker",
        "short",
        (("count(kafkasafe_connected[] == 0) or vector(0)", "clients"),),
        "Producers and consumers that can use no broker at the moment.",
        (1, None),
    ),
)

_ROWS: tuple[tuple[str, tuple[Shown, ...]], ...] = (
    (
        "Produce",
        (
            Shown(
                "Records by outcome",
                "cps",
                (
                    (
                        "sum by (client_id, outcome) (rate(kafkasafe_records_total[][$__rate_interval]))",
                        "{{client_id}} {{outcome}}",
                    ),
                ),
                "accepted: send() took the record; committed: it was acknowledged, and the spool noted that on disk.",
            ),
            Shown(
                "Ack latency",
                "s",
                (
                    ("kafkasafe:ack_latency_seconds:p99_5m[]", "{{client_id}} p99"),
                    (
                        _quantile(0.5, "kafkasafe_ack_latency_seconds_bucket"),
                        "{{client_id}} p50",
                    ),
                ),
                "Time from sealing a record's batch until its acknowledgement is on disk.",
            ),
            Shown(
                "Acknowledged within a second",
                "percentunit",
                (("kafkasafe:acked_within_1s:ratio_5m[]", "{{client_id}}"),),
                "Share of the records acknowledged in five minutes; use it for a service level objective.",
                top=1,
            ),
            Shown(
                "Brokers usable",
                "short",
                (("min by (client_id) (kafkasafe_connected[])", "{{client_id}}"),),
                "1: yes, 0: outage; for producers and consumers.",
                top=1,
            ),
            Shown(
                "Durable latency",
                "s",
                (
                    (
                        _quantile(0.99, "kafkasafe_durable_latency_seconds_bucket"),
                        "{{client_id}} p99",
                    ),
                    (
                        _quantile(0.99, "kafkasafe_spool_fsync_duration_seconds_bucket"),
                        "{{client_id}} fsync p99",
                    ),
                ),
                "Time from sealing a record's batch until it is durable, and the duration of fsync.",
            ),
            Shown(
                "Errors and retries",
                "cps",
                (
                    (
                        "sum by (client_id, api, error) (rate(kafkasafe_request_errors_total[][$__rate_interval]))",
                        "{{client_id}} {{api}} {{error}}",
                    ),
                    (
                        "sum by (client_id, api, error) (rate(kafkasafe_retries_total[][$__rate_interval]))",
                        "{{client_id}} {{api}} {{error}}, again",
                    ),
                ),
                "Errors in brokers' answers, by Kafka's names, and requests that are repeated because of errors.",
            ),
            Shown(
                "Pauses before retries",
                "short",
                (
                    (
                        "sum by (client_id, api) (rate(kafkasafe_retry_backoff_seconds_total[][$__rate_interval]))",
                        "{{client_id}} {{api}}",
                    ),
                ),
                "Seconds of pause per second, summed over all partitions.",
            ),
            Shown(
                "Destinations blocked by the cluster",
                "short",
                (("sum(kafkasafe_blocked_destinations[]) or vector(0)", "destinations"),),
                "Partitions, transactional ids, groups: a permission or a topic is missing, or a broker fails on a"
                " batch.",
            ),
            Shown(
                "Records blocked by the cluster",
                "short",
                (("sum(kafkasafe_blocked_records[]) or vector(0)", "records"),),
                "The spool keeps these records, and the producer tries them again.",
            ),
            Shown(
                "Rejected and orphaned records",
                "short",
                (
                    ("sum(kafkasafe_rejected_kept_records[])", "rejected, kept"),
                    ("sum(kafkasafe_orphaned_spool_records[])", "orphaned in other directories"),
                ),
                "kafkasafe spool resend sends rejected records again; kafkasafe spool drain delivers orphaned records.",
            ),
            Shown(
                "Room for rejected records",
                "bytes",
                (
                    ("sum by (client_id) (kafkasafe_rejected_kept_bytes[])", "{{client_id}} kept"),
                    ("sum by (client_id) (kafkasafe_rejected_capacity_bytes[])", "{{client_id}} at most"),
                ),
                "If no space is left, a partition with more rejected records waits until some are resent or removed.",
            ),
            Shown(
                "Atomic batches by outcome",
                "cps",
                (
                    (
                        "sum by (client_id, outcome) (rate(kafkasafe_atomic_batches_total[][$__rate_interval]))",
                        "{{client_id}} {{outcome}}",
                    ),
                ),
                "The records of an atomic batch are delivered together or not at all.",
            ),
            Shown(
                "Pending atomic batches",
                "short",
                (
                    (
                        "sum by (client_id, step) (kafkasafe_atomic_batches_waiting[])",
                        "{{client_id}} {{step}}",
                    ),
                ),
                "Pending atomic batches by step of their transaction.",
            ),
            Shown(
                "Batches in doubt",
                "short",
                (("sum by (client_id) (kafkasafe_in_doubt_batches[])", "{{client_id}}"),),
                "Batches that were sent and have no answer yet.",
            ),
            Shown(
                "Doubts resolved",
                "short",
                (
                    (
                        _by("client_id, result, evidence", "kafkasafe_in_doubt_resolved_total"),
                        "{{client_id}} {{result}} by {{evidence}}",
                    ),
                ),
                "After a crash or a lost answer: whether the batch was in the log, and how that was determined.",
            ),
            Shown(
                "Sequence errors",
                "short",
                (
                    (
                        _by("client_id, error, result", "kafkasafe_sequence_errors_total"),
                        "{{client_id}} {{error}} {{result}}",
                    ),
                ),
                "decided: it was proven which batches the cluster has; gap: the cluster also lacks an earlier batch.",
            ),
            Shown(
                "Lost and restored records",
                "short",
                (
                    (_by("client_id, topic", "kafkasafe_data_loss_records_total"), "{{topic}} lost"),
                    (
                        _by("client_id, topic", "kafkasafe_data_loss_restored_records_total"),
                        "{{topic}} restored",
                    ),
                ),
                "Acknowledged records that the cluster no longer has.",
            ),
            Shown(
                "Losses detected, and inconclusive checks",
                "short",
                (
                    (
                        _by("client_id, reason", "kafkasafe_data_loss_detected_total"),
                        "{{client_id}} detected by {{reason}}",
                    ),
                    (
                        f"sum({_new('kafkasafe_loss_checks_inconclusive_total')}) or vector(0)",
                        "inconclusive: records removed before they could be checked",
                    ),
                ),
                "How often records were found missing, and how often a check found nothing left to compare.",
            ),
            Shown(
                "Last acknowledged offset",
                "short",
                (
                    (
                        "max by (topic, partition) (kafkasafe_last_acked_offset[])",
                        "{{topic}}-{{partition}}",
                    ),
                ),
                "Only where metrics were installed with partitions=True.",
            ),
        ),
    ),
    (
        "Spool",
        (
            Shown(
                "Bytes on disk",
                "bytes",
                (
                    ("sum by (client_id) (kafkasafe_spool_bytes[])", "{{client_id}}"),
                    ("sum by (client_id) (kafkasafe_spool_capacity_bytes[])", "{{client_id}} at most"),
                ),
                "Undelivered records, and acknowledged records that are retained.",
            ),
            Shown(
                "Free room on the volume",
                "bytes",
                (("min by (client_id) (kafkasafe_spool_volume_free_bytes[])", "{{client_id}}"),),
                "If the spool may grow by more than this, the volume fills before the spool does.",
            ),
            Shown(
                "Undelivered records on disk",
                "short",
                (("sum by (client_id) (kafkasafe_spool_records[])", "{{client_id}}"),),
                "These records are safe on disk.",
            ),
            Shown(
                "Undelivered batches",
                "short",
                (
                    ("sum by (client_id) (kafkasafe_unfinished_batches[])", "{{client_id}}"),
                    ("sum by (client_id) (kafkasafe_undurable_batches[])", "{{client_id}} not on disk yet"),
                ),
                "Batches that were accepted and are not acknowledged yet.",
            ),
            Shown(
                "Oldest undelivered record",
                "s",
                (("max by (client_id) (kafkasafe_spool_oldest_record_age_seconds[])", "{{client_id}}"),),
                "In an outage, this is the length of the outage.",
            ),
            Shown(
                "Age of producer ids",
                "percentunit",
                (("max by (client_id) (kafkasafe:producer_id_life:ratio[])", "{{client_id}}"),),
                "At 100 % brokers forget which batches they have from a producer id with undelivered batches.",
                top=1,
            ),
            Shown(
                "Spool errors",
                "short",
                (
                    (_by("client_id", "kafkasafe_spool_write_errors_total"), "{{client_id}} failed writes"),
                    (_by("client_id", "kafkasafe_spool_corrupt_total"), "{{client_id}} damaged ranges"),
                    (
                        _by("client_id", "kafkasafe_spool_displaced_total"),
                        "{{client_id}} moved or deleted files",
                    ),
                    (
                        _by("client_id", "kafkasafe_spool_full_total"),
                        "{{client_id}} sends not accepted, no room",
                    ),
                ),
                "Number of events. Damage is quarantined and reported, never ignored.",
            ),
            Shown(
                "Displaced lanes",
                "short",
                (("sum by (client_id) (kafkasafe_spool_displaced_lanes[])", "{{client_id}}"),),
                "Lanes that are no longer at their path. The producer reports no record in them as durable.",
            ),
            Shown(
                "Records found at the start",
                "short",
                ((_by("client_id", "kafkasafe_spool_replayed_records_total"), "{{client_id}}"),),
                "Records that earlier runs of the process left undelivered.",
            ),
            Shown(
                "Files of the spool",
                "short",
                (("sum by (client_id) (kafkasafe_spool_segments[])", "{{client_id}}"),),
                "Number of segments in all lanes.",
            ),
            Shown(
                "Partitions held back for earlier producers",
                "short",
                (
                    (
                        "sum by (client_id) (kafkasafe_waiting_for_older_partitions[])",
                        "{{client_id}} partitions",
                    ),
                ),
                "Records that earlier producers left in other lanes of the directory are delivered first.",
            ),
            Shown(
                "Copied to make room",
                "Bps",
                (
                    (
                        "sum by (client_id) (rate(kafkasafe_spool_copied_bytes_total[][$__rate_interval]))",
                        "{{client_id}}",
                    ),
                ),
                "Undelivered records in old files are copied to new files, so that the old files can be deleted.",
            ),
        ),
    ),
    (
        "Consume",
        (
            Shown(
                "Lag",
                "short",
                (
                    (
                        "sum by (client_id, group, topic) (kafkasafe_lag_records[])",
                        "{{client_id}} {{group}} {{topic}}",
                    ),
                ),
                "Number of offsets between the position and the end of the log.",
            ),
            Shown(
                "Position and end",
                "short",
                (
                    (
                        "max by (client_id, topic, partition) (kafkasafe_position[])",
                        "{{client_id}} {{topic}}-{{partition}}",
                    ),
                    ("max by (topic, partition) (kafkasafe_end_offset[])", "{{topic}}-{{partition}} end"),
                ),
                "Only where metrics were installed with partitions=True.",
            ),
            Shown(
                "Position resets",
                "short",
                (
                    (
                        _by("client_id, topic, reason", "kafkasafe_offset_resets_total"),
                        "{{client_id}} {{topic}} {{reason}}",
                    ),
                ),
                "no_position means a first start.",
            ),
            Shown(
                "Records skipped by resets",
                "short",
                ((_by("client_id, topic", "kafkasafe_skipped_records_total"), "{{client_id}} {{topic}}"),),
                "The program never read these records.",
            ),
            Shown(
                "End offset regressions",
                "short",
                (
                    (
                        _by("client_id, topic, reason", "kafkasafe_end_offset_regressions_total"),
                        "{{client_id}} {{topic}} end went back: {{reason}}",
                    ),
                    (
                        _by("client_id, topic", "kafkasafe_log_divergences_total"),
                        "{{client_id}} {{topic}} diverged",
                    ),
                ),
                "Number of regressions, each proven by leader epochs or by the topic id.",
            ),
            Shown(
                "Records read, then lost",
                "short",
                ((_by("client_id, topic", "kafkasafe_diverged_records_total"), "{{client_id}} {{topic}}"),),
                "Records that are no longer in the log. The program may have to undo its work on these records.",
            ),
            Shown(
                "End offsets held",
                "short",
                (
                    (
                        _by("client_id, topic, reason", "kafkasafe_end_offsets_held_total"),
                        "{{client_id}} {{topic}} {{reason}}",
                    ),
                ),
                "Lower ends that brokers answered, but that kafkasafe did not accept: nothing proved a loss.",
            ),
            Shown(
                "Leader without a high watermark",
                "s",
                (
                    (
                        _by("client_id, topic", "kafkasafe_offset_not_available_seconds_total"),
                        "{{client_id}} {{topic}}",
                    ),
                ),
                "Time that offset look-ups took after an election: OFFSET_NOT_AVAILABLE (78), KIP-207.",
            ),
            Shown(
                "Partitions that cannot be read",
                "short",
                (
                    (
                        "sum by (client_id, topic) (kafkasafe_not_ready_partitions[])",
                        "{{client_id}} {{topic}}",
                    ),
                    (
                        "sum by (client_id, topic) (kafkasafe_remote_storage_not_ready_partitions[])",
                        "{{client_id}} {{topic}} remote storage",
                    ),
                    (
                        "sum by (client_id, topic) (kafkasafe_stopped_partitions[])",
                        "{{client_id}} {{topic}} until the program seeks",
                    ),
                ),
                "Their positions are kept, and the other partitions are read.",
            ),
            Shown(
                "Time in which partitions could not be read",
                "s",
                (
                    (
                        _by("client_id, topic", "kafkasafe_partition_not_ready_seconds_total"),
                        "{{client_id}} {{topic}}",
                    ),
                ),
                "Counted once a partition can be read again.",
            ),
            Shown(
                "Deadlines exceeded",
                "short",
                ((_by("client_id, api", "kafkasafe_retries_exhausted_total"), "{{client_id}} {{api}}"),),
                "Operations without an answer before their deadline. A producer's records stay in the spool.",
            ),
            Shown(
                "Time since the last poll",
                "s",
                (("max by (client_id) (kafkasafe_last_poll_age_seconds[])", "{{client_id}}"),),
                "The program reads no records while it does not poll.",
            ),
        ),
    ),
    (
        "Spark",
        (
            Shown(
                "Micro-batches by outcome",
                "short",
                ((_by("query, outcome", "kafkasafe_spark_batches_total", "[job]"), "{{query}} {{outcome}}"),),
                "duplicate: already committed, so skipped; resumed: more than one transaction was needed.",
            ),
            Shown(
                "Exceptions",
                "short",
                ((_by("query", "kafkasafe_spark_query_failures_total", "[job]"), "{{query}}"),),
                "Query runs that an exception ended.",
            ),
            Shown(
                "Rows",
                "cps",
                (
                    (
                        "sum by (query, direction) (rate(kafkasafe_spark_rows_total[job][$__rate_interval]))",
                        "{{query}} {{direction}}",
                    ),
                ),
                "in: rows read, as Spark reports them; out: rows committed.",
            ),
            Shown(
                "Duration of micro-batches",
                "s",
                (
                    (_of_batches(0.99), "{{query}} p99"),
                    (_of_batches(0.5), "{{query}} p50"),
                ),
                "As Spark reports it, including planning.",
            ),
            Shown(
                "Behind latest",
                "short",
                (("sum by (query) (kafkasafe_spark_offsets_behind_latest[job])", "{{query}}"),),
                "Records between the end of the last micro-batch and the ends of the logs.",
            ),
            Shown(
                "Active queries",
                "short",
                (("sum(kafkasafe_spark_active_queries[job])", "queries"),),
                "Number of queries that are running.",
            ),
            Shown(
                "Transactions restarted",
                "short",
                ((_by("query", "kafkasafe_spark_restarts_total", "[job]"), "{{query}}"),),
                "Transactions that were repeated so that each micro-batch is committed once.",
            ),
            Shown(
                "Requests retried",
                "short",
                ((_by("query", "kafkasafe_spark_retries_total", "[job]"), "{{query}}"),),
                "Requests that carry records.",
            ),
            Shown(
                "Bytes sent",
                "Bps",
                (
                    (
                        "sum by (query) (rate(kafkasafe_spark_sent_bytes_total[job][$__rate_interval]))",
                        "{{query}}",
                    ),
                ),
                "Includes aborted transactions.",
            ),
            Shown(
                "Source events",
                "short",
                (
                    (
                        _by("topic, event, reason", "kafkasafe_spark_source_events_total", "[job]"),
                        "{{topic}} {{event}}: {{reason}}",
                    ),
                ),
                "held: a lower end was not accepted; regressed: it was proven; lost: a query continues without some"
                " records.",
            ),
            Shown(
                "Records lost to queries",
                "short",
                (
                    (
                        _by("topic, reason", "kafkasafe_spark_source_lost_records_total", "[job]"),
                        "{{topic}} {{reason}}",
                    ),
                ),
                "Records that queries could not read and skipped.",
            ),
        ),
    ),
)


def _lost(counter: str) -> str:
    return f"(increase({counter}[][2m]) > 0 or {counter}[] unless {counter}[] offset 2m)"


_ANNOTATIONS: tuple[dict[str, Any], ...] = (
    {
        "name": "Losses",
        "iconColor": "red",
        "expr": "sum by (client_id, topic) ("
        + " or ".join(
            _lost(f"kafkasafe_{name}_records_total") for name in ("data_loss", "diverged", "skipped")
        )
        + ") > 0",
        "step": "30s",
        "titleFormat": "Records lost or skipped",
        "textFormat": "{{client_id}}: {{topic}}",
        "tagKeys": "client_id,topic",
        "useValueForTime": False,
    },
    {
        "name": "Restarts",
        "iconColor": "blue",
        "expr": "max by (job, instance, client_id) (kafkasafe_start_time_seconds[] > 0) * 1000",
        "step": "30s",
        "titleFormat": "Start",
        "textFormat": "{{client_id}}",
        "tagKeys": "client_id",
        # The metric's value is a time. Grafana draws one annotation for each value, at that time.
        "useValueForTime": True,
    },
)


def _chosen(expression: str) -> str:
    alerts = [rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule]
    clients = 'job=~"$job", client_id=~"$client_id"'
    chosen = expression.replace("{alerts}", "|".join(alerts)).replace("{chosen}", clients)
    return chosen.replace("[]", f"{{{clients}}}").replace("[job]", '{job=~"$job"}')


def _panel(
    builder: Stat | Timeseries | StateTimeline, shown: Shown, *, instant: bool = False
) -> Stat | Timeseries | StateTimeline:
    builder.title(shown.title).description(shown.text).unit(shown.unit).datasource(SOURCE).min(0)
    if shown.top is not None:
        builder.max(shown.top)
    if shown.nothing is not None:
        builder.no_value(shown.nothing)
    if shown.words:
        builder.mappings(list(_mappings(shown)))
    for number, (expression, legend) in enumerate(shown.queries):
        query = Dataquery().expr(_chosen(expression)).legend_format(legend).ref_id("ABCDEF"[number])
        builder.with_target((query.instant() if instant else query).datasource(SOURCE))
    return builder


def _mappings(shown: Shown) -> Iterator[ValueMapping]:
    for index, (low, high, text, colour) in enumerate(shown.words):
        result = ValueMappingResult(text=text, color=colour, index=index)
        if low == high:
            yield ValueMap({f"{low:g}": result})
        else:
            yield RangeMap(DashboardRangeMapOptions(low, high, result))


def _number(shown: Shown, of: int) -> Stat:
    yellow, red = shown.levels
    steps = [Threshold(color="blue" if shown.levels == (None, None) else "green", value=None)]
    if yellow is not None:
        steps.append(Threshold(color="yellow", value=yellow))
    if red is not None:
        steps.append(Threshold(color="red", value=red))
    panel = Stat().span(_WIDTH // of).height(3).color_mode(BigValueColorMode.BACKGROUND)
    # Show the current number: during an outage, the last number before it would be misleading.
    panel.graph_mode(BigValueGraphMode.NONE).reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    panel.thresholds(d.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    _panel(panel, shown, instant=True)
    return panel


def _graph(shown: Shown, height: int) -> Timeseries:
    panel = Timeseries().span(_WIDTH // 3).height(height).fill_opacity(10)
    # A client has the same colour in all panels.
    panel.color_scheme(d.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    panel.legend(
        VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    _panel(panel, shown)
    return panel


def _timeline(shown: Shown, height: int) -> StateTimeline:
    panel = StateTimeline().span(_WIDTH).height(height).merge_values(True).show_value(VisibilityMode.AUTO)
    panel.legend(VizLegendOptions().show_legend(False))
    _panel(panel, shown)
    return panel


def _variable(name: str, label: str, query: str) -> d.QueryVariable:
    return (
        d.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _board(name: str, title: str, text: str) -> d.Dashboard:
    return (
        d.Dashboard(title)
        .uid(name)
        .description(text)
        .tags(["kafka", "kafkasafe"])
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(
            d.DashboardLink("kafkasafe")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["kafkasafe"])
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(d.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("job", "Job", "label_values(kafkasafe_build_info, job)"))
        .with_variable(
            _variable(
                "client_id", "Client", 'label_values({__name__=~"kafkasafe_.+", job=~"$job"}, client_id)'
            )
        )
    )


def _overview() -> d.Dashboard:
    board = _board(
        "kafkasafe-overview",
        "kafkasafe: overview",
        "Is everything delivered, and how long will the room last?",
    )
    for shown in _TILES:
        board.with_panel(_number(shown, len(_TILES)))
    for shown in _GRAPHS:
        board.with_panel(_graph(shown, 6))
    return board.with_panel(_timeline(_ALERTS, 5))


def _internals() -> d.Dashboard:
    board = _board(
        "kafkasafe-internals",
        "kafkasafe: internals",
        "Records that are spooled, in doubt, lost, restored, held or diverged.",
    )
    for shown in _NUMBERS:
        board.with_panel(_number(shown, len(_NUMBERS)))
    for title, panels in _ROWS:
        row = d.Row(title)
        for shown in panels:
            row.with_panel(_graph(shown, 8))
        board.with_row(row)
    return board


def _panels(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields all panels of a board, including panels in collapsed rows."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def _close(board: dict[str, Any]) -> None:
    """Places the collapsed rows one below the other."""
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    for number, row in enumerate(rows):
        up = row["gridPos"]["y"] - (rows[0]["gridPos"]["y"] + number)
        for panel in (row, *row["panels"]):
            panel["gridPos"]["y"] -= up


def build(name: str) -> str:
    """Returns the JSON of one board, `overview` or `internals`."""
    builder = {"overview": _overview, "internals": _internals}[name]()
    board: dict[str, Any] = json.loads(JSONEncoder().encode(builder.build()))
    # The builders cannot set these.
    source = {"type": "prometheus", "uid": "${datasource}"}
    board["annotations"] = {
        "list": [
            {**annotation, "expr": _chosen(annotation["expr"]), "datasource": source, "enable": True}
            for annotation in _ANNOTATIONS
        ]
    }
    kinds = sorted({panel["type"] for panel in _panels(board)} - {"row"})
    board["__requires"] = [
        {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "11.0.0"},
        {"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
        *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds),
    ]
    for number, panel in enumerate(_panels(board), 1):
        panel["id"] = number
    _close(board)
    return json.dumps(board, sort_keys=True, indent=2) + "\n"


if __name__ == "__main__":
    for _name, _file in FILES.items():
        _file.write_text(build(_name))

"""The Grafana dashboard, as code: `python examples/dashboard/grafana.py` writes kafkasafe.json beside this file.

Import that file in Grafana (Dashboards, New, Import); it asks which Prometheus to read.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.builders.common import ReduceDataOptions, VizLegendOptions, VizTooltipOptions
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    DataSourceRef,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
)
from tools import rules

FILE = Path(__file__).with_name("kafkasafe.json")
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH = 24


@dataclasses.dataclass(frozen=True)
class Shown:
    """One panel.

    Attributes:
        title: Above it.
        unit: As Grafana names units.
        queries: (PromQL, legend); `[]` stands for the label matchers, so that `x[]` is of the clients chosen, and
            `[job]` for those of metrics that have no client.
        text: What it tells an operator.
        levels: From which value on it is yellow, and red. Only of those that show one number.
        top: The largest value that can be.
    """

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    text: str
    levels: tuple[float | None, float | None] = (None, None)
    top: float | None = None


def _new(counter: str, matchers: str = "[]", over: str = "$__rate_interval") -> str:
    """What it grew by, its first value included where it began to exist meanwhile: `increase` does not see that."""
    grown = f"increase({counter}{matchers}[{over}])"
    first = f"(min_over_time({counter}{matchers}[{over}]) unless {counter}{matchers} offset {over})"
    return f"({grown} + {first} or {grown})"


def _total(counter: str) -> str:
    """The same of the time that is shown, as one number."""
    return f"sum({_new(counter, over='$__range')}) or vector(0)"


def _by(labels: str, counter: str, matchers: str = "[]") -> str:
    return f"sum by ({labels}) ({_new(counter, matchers)})"


def _quantile(part: float, buckets: str) -> str:
    return f"histogram_quantile({part}, sum by (client_id, le) (rate({buckets}[][$__rate_interval])))"


def _of_batches(part: float) -> str:
    buckets = "kafkasafe_spark_batch_duration_seconds_bucket[job]"
    # Micro-batches may be minutes apart.
    return f"histogram_quantile({part}, sum by (query, le) (increase({buckets}[1h])))"


_NUMBERS = (
    Shown(
        "Acknowledged records lost",
        "short",
        ((_total("kafkasafe_data_loss_records_total"), "lost"),),
        "What the cluster acknowledged and lost, in the time that is shown.",
        (None, 1),
    ),
    Shown(
        "Restored records",
        "short",
        ((_total("kafkasafe_data_loss_restored_records_total"), "restored"),),
        "Of those, what is in the log again, from the retained spool.",
    ),
    Shown(
        "Undelivered records",
        "short",
        (("sum(kafkasafe_spool_records[])", "records"),),
        "Durable, and not delivered yet.",
    ),
    Shown(
        "Fullest spool",
        "percentunit",
        (("max(kafkasafe:spool_fill:ratio[])", "full"),),
        "Where there is no room for another segment (94 % with the defaults) send() blocks, and then raises.",
        (0.5, 0.7),
    ),
    Shown(
        "Batches in doubt",
        "short",
        (("sum(kafkasafe_in_doubt_batches[])", "batches"),),
        "Sent, and nobody knows yet whether they are in the log.",
    ),
    Shown(
        "Undecidable batches",
        "short",
        ((_total("kafkasafe_undecidable_batches_total"), "batches"),),
        "The evidence is gone: your policy on_undecidable decided, or waits for you.",
        (None, 1),
    ),
    Shown(
        "Records skipped",
        "short",
        ((_total("kafkasafe_skipped_records_total"), "records"),),
        "What resets of positions left out.",
        (None, 1),
    ),
    Shown(
        "Alerts",
        "short",
        (
            (
                'count(ALERTS{alertstate="firing", alertname=~"{alerts}", {chosen}}) or vector(0)',
                "firing",
            ),
        ),
        "Of rules.yml, that are firing for the jobs and clients chosen.",
        (None, 1),
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
                "accepted: taken by send(); committed: acknowledged, and marked so on disk.",
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
                "How long a record waits for the cluster, its commit mark on disk included.",
            ),
            Shown(
                "Acknowledged within a second",
                "percentunit",
                (("kafkasafe:acked_within_1s:ratio_5m[]", "{{client_id}}"),),
                "Of the records that were acknowledged in five minutes; for an objective of the service.",
                top=1,
            ),
            Shown(
                "Brokers can be used",
                "short",
                (("min by (client_id) (kafkasafe_connected[])", "{{client_id}}"),),
                "1: yes, 0: an outage. Producers and consumers.",
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
                "How long until a record may be promised; and the disk's part of it.",
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
                "What brokers answer, by the protocol's names, and what is sent again because of it.",
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
                "Seconds of pause per second, of all partitions together.",
            ),
            Shown(
                "Blocked by the cluster",
                "short",
                (("sum(kafkasafe_blocked_destinations[]) or vector(0)", "destinations"),),
                "Partitions, transactional ids, groups: a right or a topic is missing, or a broker fails on a batch.",
            ),
            Shown(
                "Records that wait for it",
                "short",
                (("sum(kafkasafe_blocked_records[]) or vector(0)", "records"),),
                "They are kept, and tried again.",
            ),
            Shown(
                "Rejected, and orphaned",
                "short",
                (
                    ("sum(kafkasafe_rejected_kept_records[])", "rejected, kept"),
                    ("sum(kafkasafe_orphaned_spool_records[])", "orphaned in other directories"),
                ),
                "kafkasafe spool resend brings the former back, spool drain the latter.",
            ),
            Shown(
                "Room for rejected records",
                "bytes",
                (
                    ("sum by (client_id) (kafkasafe_rejected_kept_bytes[])", "{{client_id}} kept"),
                    ("sum by (client_id) (kafkasafe_rejected_capacity_bytes[])", "{{client_id}} at most"),
                ),
                "Where it is used up, a partition with more to be rejected waits until others are resent or removed.",
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
                "Delivered together or not at all: what became of them.",
            ),
            Shown(
                "Atomic batches under way",
                "short",
                (
                    (
                        "sum by (client_id, step) (kafkasafe_atomic_batches_waiting[])",
                        "{{client_id}} {{step}}",
                    ),
                ),
                "By step.",
            ),
            Shown(
                "Batches in doubt",
                "short",
                (("sum by (client_id) (kafkasafe_in_doubt_batches[])", "{{client_id}}"),),
                "Sent, without an answer so far.",
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
                "After a crash or a lost answer: was the batch in the log, and how that was found out.",
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
                "decided: it was proven which batches the cluster has; gap: it misses an earlier one as well.",
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
                "Losses noticed, and checks without a result",
                "short",
                (
                    (
                        _by("client_id, reason", "kafkasafe_data_loss_detected_total"),
                        "{{client_id}} noticed by {{reason}}",
                    ),
                    (
                        f"sum({_new('kafkasafe_loss_checks_inconclusive_total')}) or vector(0)",
                        "histories that were removed before they could be checked",
                    ),
                ),
                "How often records were found to be gone, and how often that can no longer be checked.",
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
                "What waits, and what is retained of what was acknowledged.",
            ),
            Shown(
                "Free room on the volume",
                "bytes",
                (("min by (client_id) (kafkasafe_spool_volume_free_bytes[])", "{{client_id}}"),),
                "Where it is less than the spool may still need, the volume is full before the spool is.",
            ),
            Shown(
                "Undelivered records on disk",
                "short",
                (("sum by (client_id) (kafkasafe_spool_records[])", "{{client_id}}"),),
                "They are safe there.",
            ),
            Shown(
                "Undelivered batches",
                "short",
                (
                    ("sum by (client_id) (kafkasafe_unfinished_batches[])", "{{client_id}}"),
                    ("sum by (client_id) (kafkasafe_undurable_batches[])", "{{client_id}} not on disk yet"),
                ),
                "Accepted, and not acknowledged yet.",
            ),
            Shown(
                "Oldest undelivered record",
                "s",
                (("max by (client_id) (kafkasafe_spool_oldest_record_age_seconds[])", "{{client_id}}"),),
                "The length of the outage.",
            ),
            Shown(
                "Life of producer ids",
                "percentunit",
                (("max by (client_id) (kafkasafe:producer_id_life:ratio[])", "{{client_id}}"),),
                "At 100 % brokers forget which batches of an undelivered producer id they have.",
                top=1,
            ),
            Shown(
                "Trouble of the spool",
                "short",
                (
                    (_by("client_id", "kafkasafe_spool_write_errors_total"), "{{client_id}} failed writes"),
                    (_by("client_id", "kafkasafe_spool_corrupt_total"), "{{client_id}} damaged ranges"),
                    (
                        _by("client_id", "kafkasafe_spool_displaced_total"),
                        "{{client_id}} moved or deleted files",
                    ),
                    (_by("client_id", "kafkasafe_spool_full_total"), "{{client_id}} sends refused: no room"),
                ),
                "How often. Damage is set aside and reported, never passed over.",
            ),
            Shown(
                "Displaced lanes",
                "short",
                (("sum by (client_id) (kafkasafe_spool_displaced_lanes[])", "{{client_id}}"),),
                "Not where their path leads: nothing in them is called durable.",
            ),
            Shown(
                "Records found at the start",
                "short",
                ((_by("client_id", "kafkasafe_spool_replayed_records_total"), "{{client_id}}"),),
                "What earlier runs of the process left undelivered.",
            ),
            Shown(
                "Files of the spool",
                "short",
                (("sum by (client_id) (kafkasafe_spool_segments[])", "{{client_id}}"),),
                "Segments.",
            ),
            Shown(
                "Held back for earlier producers",
                "short",
                (
                    (
                        "sum by (client_id) (kafkasafe_waiting_for_older_partitions[])",
                        "{{client_id}} partitions",
                    ),
                ),
                "What they left in other lanes of the directory is delivered first.",
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
                "What waits for a partition, while others are delivered, is written once more.",
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
                "Offsets between position and end.",
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
                "Positions that were reset",
                "short",
                (
                    (
                        _by("client_id, topic, reason", "kafkasafe_offset_resets_total"),
                        "{{client_id}} {{topic}} {{reason}}",
                    ),
                ),
                "no_position is a first start.",
            ),
            Shown(
                "Records skipped by resets",
                "short",
                ((_by("client_id, topic", "kafkasafe_skipped_records_total"), "{{client_id}} {{topic}}"),),
                "They were never read.",
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
                "How often; always with a proof: leader epochs, or the topic's id.",
            ),
            Shown(
                "Records that were read and are gone",
                "short",
                ((_by("client_id, topic", "kafkasafe_diverged_records_total"), "{{client_id}} {{topic}}"),),
                "What the program did with them may have to be undone.",
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
                "Lower ends that were answered and not believed: nothing proved that records are gone.",
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
                "Time that look-ups waited in the window after an election: OFFSET_NOT_AVAILABLE (78), KIP-207.",
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
                        "{{client_id}} {{topic}} waits for the application",
                    ),
                ),
                "Their position is kept, and the others go on.",
            ),
            Shown(
                "Time that partitions could not be read",
                "s",
                (
                    (
                        _by("client_id, topic", "kafkasafe_partition_not_ready_seconds_total"),
                        "{{client_id}} {{topic}}",
                    ),
                ),
                "It is counted once they can be read again.",
            ),
            Shown(
                "Deadlines that ended",
                "short",
                ((_by("client_id, api", "kafkasafe_retries_exhausted_total"), "{{client_id}} {{api}}"),),
                "Operations without an answer in their time. A producer's records stay in the spool.",
            ),
            Shown(
                "Time since the last poll",
                "s",
                (("max by (client_id) (kafkasafe_last_poll_age_seconds[])", "{{client_id}}"),),
                "Of the program. It reads nothing meanwhile.",
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
                "duplicate: committed before, and skipped; resumed: more than one transaction was needed.",
            ),
            Shown(
                "Exceptions",
                "short",
                ((_by("query", "kafkasafe_spark_query_failures_total", "[job]"), "{{query}}"),),
                "Runs of queries that one ended.",
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
                "in: read, as Spark says; out: committed.",
            ),
            Shown(
                "Duration of micro-batches",
                "s",
                (
                    (_of_batches(0.99), "{{query}} p99"),
                    (_of_batches(0.5), "{{query}} p50"),
                ),
                "As Spark says, planning included.",
            ),
            Shown(
                "Behind latest",
                "short",
                (("sum by (query) (kafkasafe_spark_offsets_behind_latest[job])", "{{query}}"),),
                "Records between the end of the last micro-batch and the end of the logs.",
            ),
            Shown(
                "Queries that run",
                "short",
                (("sum(kafkasafe_spark_active_queries[job])", "queries"),),
                "Now.",
            ),
            Shown(
                "Transactions begun again",
                "short",
                ((_by("query", "kafkasafe_spark_restarts_total", "[job]"), "{{query}}"),),
                "What it took to commit each micro-batch once.",
            ),
            Shown(
                "Requests sent again",
                "short",
                ((_by("query", "kafkasafe_spark_retries_total", "[job]"), "{{query}}"),),
                "Those with records.",
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
                "Those of transactions that came to nothing too.",
            ),
            Shown(
                "What sources noticed",
                "short",
                (
                    (
                        _by("topic, event, reason", "kafkasafe_spark_source_events_total", "[job]"),
                        "{{topic}} {{event}}: {{reason}}",
                    ),
                ),
                "held: a lower end was not believed; regressed: it was, with a proof; lost: a query goes on without.",
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
                "They go on without them.",
            ),
        ),
    ),
)


def _chosen(expression: str) -> str:
    alerts = [rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule]
    clients = 'job=~"$job", client_id=~"$client_id"'
    chosen = expression.replace("{alerts}", "|".join(alerts)).replace("{chosen}", clients)
    return chosen.replace("[]", f"{{{clients}}}").replace("[job]", '{job=~"$job"}')


def _panel(builder: Stat | Timeseries, shown: Shown) -> Stat | Timeseries:
    builder.title(shown.title).description(shown.text).unit(shown.unit).datasource(SOURCE).min(0)
    if shown.top is not None:
        builder.max(shown.top)
    for number, (expression, legend) in enumerate(shown.queries):
        builder.with_target(
            Dataquery()
            .expr(_chosen(expression))
            .legend_format(legend)
            .ref_id("ABCDEF"[number])
            .datasource(SOURCE)
        )
    return builder


def _number(shown: Shown) -> Stat | Timeseries:
    yellow, red = shown.levels
    steps = [Threshold(color="green", value=None)]
    if yellow is not None:
        steps.append(Threshold(color="yellow", value=yellow))
    if red is not None:
        steps.append(Threshold(color="red", value=red))
    panel = Stat().span(_WIDTH // len(_NUMBERS)).height(4).color_mode(BigValueColorMode.BACKGROUND)
    panel.reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    panel.thresholds(d.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    return _panel(panel, shown)


def _graph(shown: Shown) -> Stat | Timeseries:
    panel = Timeseries().span(_WIDTH // 3).height(8).fill_opacity(10)
    panel.legend(
        VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    return _panel(panel, shown)


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


def build() -> str:
    """The JSON of the dashboard."""
    builder = (
        d.Dashboard("kafkasafe")
        .uid("kafkasafe")
        .description("What is spooled, in doubt, lost, restored, held or diverged.")
        .tags(["kafka", "kafkasafe"])
        .timezone("browser")
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(d.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_variable("job", "Job", "label_values(kafkasafe_build_info, job)"))
        .with_variable(
            _variable(
                "client_id", "Client", 'label_values({__name__=~"kafkasafe_.+", job=~"$job"}, client_id)'
            )
        )
    )
    for shown in _NUMBERS:
        builder.with_panel(_number(shown))
    for title, panels in _ROWS:
        builder.with_row(d.Row(title))
        for shown in panels:
            builder.with_panel(_graph(shown))
    return JSONEncoder(sort_keys=True, indent=2).encode(builder.build()) + "\n"


if __name__ == "__main__":
    FILE.write_text(build())

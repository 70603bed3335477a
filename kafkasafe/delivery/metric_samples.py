"""The metric samples of producers and consumers, which `kafkasafe.metrics` exports to Prometheus.

The samples are in their own module, so that programs without Prometheus need not import prometheus-client.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kafka.structs import TopicPartition

from kafkasafe.metric_definitions import CONSUMER, PRODUCER
from kafkasafe.stats import ConsumerStats, PartitionProgress, Sample

if TYPE_CHECKING:
    from kafkasafe.delivery.pump import Pump
    from kafkasafe.health.states import ConsumerHealth

AT_CLOSE: Final[list[Callable[[object], None]]] = []
"""Functions that a producer or a consumer calls with itself as the argument once it has closed. On import,
`kafkasafe.metrics` adds its function to this list. A closing producer must not import `kafkasafe.metrics`, because a
producer may close while the interpreter exits.
"""


def consumer_samples(
    stats: ConsumerStats,
    progress: Mapping[TopicPartition, PartitionProgress],
    group: str,
    health: ConsumerHealth | None,
) -> Iterator[Sample]:
    """Yield a consumer's samples. `group` is empty without a group; `health` is None once the consumer is closed."""
    yield from stats.retry_samples()
    for name, by_pair in (
        ("offset_resets", stats.resets),
        ("end_offset_regressions", stats.regressions),
        ("end_offsets_held", stats.held),
    ):
        for pair, count in by_pair.copy().items():
            yield CONSUMER[name], pair, count
    by_name: tuple[tuple[str, dict[str, float] | collections.Counter[str]], ...] = (
        ("skipped_records", stats.skipped_records),
        ("log_divergences", stats.divergences),
        ("diverged_records", stats.diverged_records),
        ("loss_checks_inconclusive", stats.history_trimmed),
        ("offset_not_available_seconds", stats.unavailable_s),
        ("partition_not_ready_seconds", stats.not_ready_s),
    )
    for name, numbers in by_name:
        for label, number in numbers.copy().items():
            yield CONSUMER[name], (label,), number
    if health is not None:
        yield CONSUMER["connected"], (), health.connected
        yield CONSUMER["start_time_seconds"], (), stats.started_s
        if health.last_poll_age_s is not None:
            yield CONSUMER["last_poll_age_seconds"], (), health.last_poll_age_s
    for (topic, partition), at in progress.items():
        lag = 0 if at.position is None or at.end_offset is None else max(0, at.end_offset - at.position)
        # The metrics collector adds up the values of a topic's partitions.
        yield CONSUMER["lag_records"], (topic, group), lag
        yield CONSUMER["not_ready_partitions"], (topic,), at.not_ready_s is not None
        yield CONSUMER["remote_storage_not_ready_partitions"], (topic,), at.remote
        yield CONSUMER["stopped_partitions"], (topic,), at.undecided
        for name, offset in (("end_offset", at.end_offset), ("position", at.position)):
            if offset is not None:
                yield CONSUMER[name], (topic, str(partition)), offset


def producer_samples(pump: Pump, *, closed: bool) -> Iterator[Sample]:
    """Yield the samples of a producer. A closed producer has only counters and histograms."""
    stats = pump.stats
    yield from stats.retry_samples()
    for name, counts in (
        ("records", stats.records),
        ("request_errors", stats.errors),
        ("sequence_errors", stats.sequence_errors),
        ("in_doubt_resolved", stats.in_doubt_resolved),
    ):
        for pair, count in counts.copy().items():
            yield PRODUCER[name], pair, count
    for name, by_name in (
        ("data_loss_detected", stats.losses),
        ("atomic_batches", stats.units),
        ("data_loss_records", stats.lost_records),
        ("data_loss_restored_records", stats.healed_records),
        ("loss_checks_inconclusive", stats.history_trimmed),
    ):
        for label, number in by_name.copy().items():
            yield PRODUCER[name], (label,), number
    for name, number in (
        ("undecidable_batches", stats.undecidable_batches.value),
        ("spool_write_errors", stats.spool_write_errors.value),
        ("spool_displaced", stats.spool_displaced.value),
        ("spool_full", pump.refused_sends),
        ("spool_copied_bytes", stats.spool_copied_bytes.value),
        ("spool_replayed_records", stats.replayed_records.value),
        ("spool_corrupt", stats.corrupt.value),
    ):
        yield PRODUCER[name], (), number
    yield PRODUCER["spool_fsync_duration_seconds"], (), stats.fsync
    yield PRODUCER["durable_latency_seconds"], (), stats.durable
    yield PRODUCER["ack_latency_seconds"], (), stats.ack
    if closed:
        return
    yield PRODUCER["start_time_seconds"], (), stats.started_s
    state = pump.state()
    for name, gauge in state.gauges.items():
        yield PRODUCER[name], (), gauge
    for step, count in state.units.items():
        yield PRODUCER["atomic_batches_waiting"], (step,), count
    for refused in state.refused:
        labels = (refused.kind, refused.name, refused.error)
        yield PRODUCER["blocked_destinations"], labels, 1
        yield PRODUCER["blocked_records"], labels, refused.records
        yield PRODUCER["blocked_age_seconds"], labels, refused.age_s
    for (topic, partition), offset in state.last_acked_offsets.items():
        yield PRODUCER["last_acked_offset"], (topic, str(partition)), offset

"""Prometheus: one collector, `install(producer, consumer)` in one line.

What a client counts is read when somebody scrapes; nothing is paid per record. Names follow Prometheus's
conventions: base units, `_total` on counters, protocol error names as labels.
"""

from __future__ import annotations

import importlib.metadata
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from kafka.structs import TopicPartition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from kafkasafe._io.pump import Pump
from kafkasafe._io.stats import BUCKETS_S, ConsumerStats, Histogram, PartitionProgress

__all__ = ["install", "uninstall"]


@runtime_checkable
class CollectedProducer(Protocol):
    """A SafeProducer."""

    _pump: Pump

    @property
    def client_id(self) -> str:
        """Label of all its metrics."""


@runtime_checkable
class CollectedConsumer(Protocol):
    """A SafeConsumer."""

    _stats: ConsumerStats

    @property
    def client_id(self) -> str:
        """Label of all its metrics."""

    def _progress(self) -> dict[TopicPartition, PartitionProgress]:
        """Where it is on each partition; on any thread."""


Collected = CollectedProducer | CollectedConsumer
"""What can be collected."""

_lock = threading.Lock()
_installed: weakref.WeakKeyDictionary[CollectorRegistry, _Collector] = weakref.WeakKeyDictionary()


def install(
    *clients: Collected, registry: CollectorRegistry = REGISTRY, partitions: bool = False
) -> Collector:
    """Have producers and consumers collected by a Prometheus registry.

    May be called again, for more of them. One that is closed keeps its last counts for as long as it is referenced;
    one that is gone leaves.

    Args:
        clients: SafeProducers and SafeConsumers to collect.
        registry: Prometheus's own by default. Multiprocess mode (`PROMETHEUS_MULTIPROC_DIR`) reads only values that
            prometheus-client stores itself, so it does not see these: expose each process.
        partitions: Add families with a `partition` label.

    Returns:
        The collector.

    Raises:
        TypeError: Something else was given.
    """
    for client in clients:
        if not isinstance(client, CollectedProducer | CollectedConsumer):
            raise TypeError(f"metrics are those of SafeProducer and SafeConsumer, not of {client!r}")
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            collector = _installed[registry] = _Collector()
            registry.register(collector)
        collector.add(*clients)
        collector.partitions = collector.partitions or partitions
    return collector


def uninstall(*clients: Collected, registry: CollectorRegistry = REGISTRY) -> None:
    """Forget producers and consumers; without arguments, take the collector out of the registry."""
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            return
        collector.discard(*clients)
        if not clients:
            del _installed[registry]
            registry.unregister(collector)


class _Collector(Collector):
    def __init__(self) -> None:
        self.producers: weakref.WeakSet[CollectedProducer] = weakref.WeakSet()
        self.consumers: weakref.WeakSet[CollectedConsumer] = weakref.WeakSet()
        self.partitions = False

    def add(self, *clients: Collected) -> None:
        for client in clients:
            if isinstance(client, CollectedProducer):
                self.producers.add(client)
            else:
                self.consumers.add(client)

    def discard(self, *clients: Collected) -> None:
        for client in clients:
            if isinstance(client, CollectedProducer):
                self.producers.discard(client)
            else:
                self.consumers.discard(client)

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked when something is collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        info = GaugeMetricFamily("kafkasafe_build_info", "Version of kafkasafe.", labels=["version"])
        info.add_metric([importlib.metadata.version("kafkasafe")], 1)
        yield info
        producers = sorted(self.producers, key=id)
        consumers = sorted(self.consumers, key=id)
        yield from _counters(producers, consumers)
        yield from _gauges(producers, partitions=self.partitions)
        yield from _histograms(producers)
        yield from _consumer_counters(consumers)
        yield from _consumer_gauges(consumers, partitions=self.partitions)


def _counters(producers: list[CollectedProducer], consumers: list[CollectedConsumer]) -> Iterator[Metric]:
    families = {
        name: CounterMetricFamily(f"kafkasafe_{name}", text, labels=["client_id", *labels])
        for name, text, labels in (
            ("records", "Records by what became of them.", ["topic", "outcome"]),
            ("retries", "Requests sent again, by the error that caused it.", ["api", "error"]),
            ("request_errors", "Requests answered with an error, or not at all.", ["api", "error"]),
            ("sequence_errors", "Sequence errors, by what the cluster's state proved.", ["error", "verdict"]),
            ("in_doubt_resolved", "Batches in doubt, by what was found and how.", ["verdict", "method"]),
            ("acked_loss_detected", "Times that acknowledged records were found to be gone.", ["detector"]),
            ("acked_lost_records", "Acknowledged records that the cluster lost.", ["topic"]),
            ("acked_healed_records", "Lost acknowledged records that are in the log again.", ["topic"]),
            ("undecidable_batches", "Batches of which nobody could know whether they are in the log.", []),
            ("spool_write_errors", "Writes to the spool that failed.", []),
        )
    }
    for producer in producers:
        client, stats = producer.client_id, producer._pump.stats
        for name, counts in (
            ("records", stats.records),
            ("retries", stats.retries),
            ("request_errors", stats.errors),
            ("sequence_errors", stats.sequence_errors),
            ("in_doubt_resolved", stats.in_doubt_resolved),
        ):
            for pair, count in counts.copy().items():
                families[name].add_metric([client, *pair], count)
        for name, by_name in (
            ("acked_loss_detected", stats.losses),
            ("acked_lost_records", stats.lost_records),
            ("acked_healed_records", stats.healed_records),
        ):
            for label, count in by_name.copy().items():
                families[name].add_metric([client, label], count)
        counters = producer._pump.counters
        families["undecidable_batches"].add_metric([client], counters["batches_undecidable"])
        families["spool_write_errors"].add_metric([client], counters["spool_write_errors"])
    # One family for both: no name may come twice.
    for consumer in consumers:
        for (api, error), count in consumer._stats.retries.copy().items():
            families["retries"].add_metric([consumer.client_id, api, error], count)
    yield from families.values()


def _consumer_counters(consumers: list[CollectedConsumer]) -> Iterator[Metric]:
    for name, text, attribute, labels in (
        ("offset_resets", "Positions that auto_offset_reset set.", "resets", ("topic", "reason")),
        ("skipped_records", "Offsets that resets left out.", "skipped_records", ("topic",)),
        (
            "end_offset_regressions",
            "End offsets that went back, with a proof.",
            "regressions",
            ("topic", "cause"),
        ),
        ("end_offsets_held", "Lower end offsets that were not believed.", "held", ("topic", "why")),
        (
            "log_divergences",
            "Times that records which were read were found to be gone.",
            "divergences",
            ("topic",),
        ),
        ("diverged_records", "Offsets that were read and are gone.", "diverged_records", ("topic",)),
        (
            "offset_not_available_seconds",
            "Time that look-ups of offsets waited for a leader that was not ready.",
            "unavailable_s",
            ("topic",),
        ),
        (
            "partition_not_ready_seconds",
            "Time that partitions could not be fetched from, once they can be again.",
            "not_ready_s",
            ("topic",),
        ),
        ("retry_backoff_seconds", "Pauses before requests were sent again.", "backoff_s", ("api",)),
        ("retries_exhausted", "Deadlines that ended before there was an answer.", "exhausted", ("api",)),
    ):
        family = CounterMetricFamily(f"kafkasafe_{name}", text, labels=["client_id", *labels])
        for consumer in consumers:
            counts: dict[str | tuple[str, str], float] = getattr(consumer._stats, attribute).copy()
            for key, count in counts.items():
                values = [key] if isinstance(key, str) else list(key)
                family.add_metric([consumer.client_id, *values], count)
        yield family


def _consumer_gauges(consumers: list[CollectedConsumer], *, partitions: bool) -> Iterator[Metric]:
    by_topic = {
        name: GaugeMetricFamily(f"kafkasafe_{name}", text, labels=["client_id", "topic"])
        for name, text in (
            ("lag_records", "Offsets between position and end, of the assigned partitions of a topic."),
            ("not_ready_partitions", "Partitions that cannot be fetched from for the moment."),
            ("undecided_partitions", "Partitions that wait for the application to choose a position."),
        )
    }
    by_partition = {
        name: GaugeMetricFamily(f"kafkasafe_{name}", text, labels=["client_id", "topic", "partition"])
        for name, text in (
            ("end_offset", "Highest end offset known."),
            ("position", "Next offset to be handed out."),
        )
    }
    for consumer in consumers:
        client = consumer.client_id
        sums: dict[str, list[int]] = {}
        for (topic, partition), at in consumer._progress().items():
            total = sums.setdefault(topic, [0, 0, 0])
            if at.position is not None and at.end_offset is not None:
                total[0] += max(0, at.end_offset - at.position)
            total[1] += at.not_ready_s is not None
            total[2] += at.undecided
            for name, value in (("end_offset", at.end_offset), ("position", at.position)):
                if value is not None:
                    by_partition[name].add_metric([client, topic, str(partition)], value)
        for topic, total in sums.items():
            for family, value in zip(by_topic.values(), total, strict=True):
                family.add_metric([client, topic], value)
    yield from by_topic.values()
    if partitions:
        yield from by_partition.values()


def _gauges(producers: list[CollectedProducer], *, partitions: bool) -> Iterator[Metric]:
    texts = {
        "spool_bytes": "Bytes in the spool, of all lanes this process owns.",
        "spool_capacity_bytes": "Largest size of the spool.",
        "spool_segments": "Files of the spool.",
        "unfinished_batches": "Batches accepted and not yet acknowledged.",
        "in_doubt_batches": "Batches that may have been appended without our knowing.",
        "undurable_batches": "Batches accepted and not yet on disk.",
        "oldest_unfinished_age_seconds": "How long ago the oldest unfinished batch was sealed.",
    }
    families = {
        name: GaugeMetricFamily(f"kafkasafe_{name}", text, labels=["client_id"])
        for name, text in texts.items()
    }
    last_acked = GaugeMetricFamily(
        "kafkasafe_last_acked_offset",
        "Offset of the last acknowledged record.",
        labels=["client_id", "topic", "partition"],
    )
    for producer in producers:
        state = producer._pump.state()
        for name, family in families.items():
            family.add_metric([producer.client_id], state.gauges[name])
        for (topic, partition), offset in state.last_acked_offsets.items():
            last_acked.add_metric([producer.client_id, topic, str(partition)], offset)
    yield from families.values()
    if partitions:
        yield last_acked


def _histograms(producers: list[CollectedProducer]) -> Iterator[Metric]:
    for name, text, attribute in (
        ("spool_fsync_duration_seconds", "Time to write a group to the spool and make it durable.", "fsync"),
        ("durable_latency_seconds", "From the sealing of a record's batch until it is durable.", "durable"),
        ("ack_latency_seconds", "From the sealing of a record's batch until its commit is durable.", "ack"),
    ):
        family = HistogramMetricFamily(f"kafkasafe_{name}", text, labels=["client_id"])
        for producer in producers:
            histogram: Histogram = getattr(producer._pump.stats, attribute)
            counts, total = list(histogram.counts), 0
            buckets = []
            for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([producer.client_id], buckets, histogram.sum_s)
        yield family

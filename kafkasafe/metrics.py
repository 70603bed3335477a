"""Prometheus: one collector, `install(producer)` in one line.

What a producer counts is read when somebody scrapes; nothing is paid per record. Names follow Prometheus's
conventions: base units, `_total` on counters, protocol error names as labels.
"""

from __future__ import annotations

import importlib.metadata
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry

from kafkasafe._io.pump import Pump
from kafkasafe._io.stats import BUCKETS_S, Histogram

__all__ = ["install", "uninstall"]


class Collected(Protocol):
    """What can be collected: a SafeProducer."""

    _pump: Pump

    @property
    def client_id(self) -> str:
        """Label of all its metrics."""


_lock = threading.Lock()
_installed: weakref.WeakKeyDictionary[CollectorRegistry, _Collector] = weakref.WeakKeyDictionary()


def install(
    *producers: Collected, registry: CollectorRegistry = REGISTRY, partitions: bool = False
) -> Collector:
    """Have producers collected by a Prometheus registry.

    May be called again, for more producers. One that is closed keeps its last counts for as long as it is referenced;
    one that is gone leaves.

    Args:
        producers: SafeProducers to collect.
        registry: Prometheus's own by default. Multiprocess mode (`PROMETHEUS_MULTIPROC_DIR`) reads only values that
            prometheus-client stores itself, so it does not see these: expose each process.
        partitions: Add families with a `partition` label.

    Returns:
        The collector.
    """
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            collector = _installed[registry] = _Collector()
            registry.register(collector)
        for producer in producers:
            collector.producers.add(producer)
        collector.partitions = collector.partitions or partitions
    return collector


def uninstall(*producers: Collected, registry: CollectorRegistry = REGISTRY) -> None:
    """Forget producers; without arguments, take the collector out of the registry."""
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            return
        for producer in producers:
            collector.producers.discard(producer)
        if not producers:
            del _installed[registry]
            registry.unregister(collector)


class _Collector(Collector):
    def __init__(self) -> None:
        self.producers: weakref.WeakSet[Collected] = weakref.WeakSet()
        self.partitions = False

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked when something is collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        info = GaugeMetricFamily("kafkasafe_build_info", "Version of kafkasafe.", labels=["version"])
        info.add_metric([importlib.metadata.version("kafkasafe")], 1)
        yield info
        producers = sorted(self.producers, key=id)
        yield from _counters(producers)
        yield from _gauges(producers, partitions=self.partitions)
        yield from _histograms(producers)


def _counters(producers: list[Collected]) -> Iterator[Metric]:
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
    yield from families.values()


def _gauges(producers: list[Collected], *, partitions: bool) -> Iterator[Metric]:
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


def _histograms(producers: list[Collected]) -> Iterator[Metric]:
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

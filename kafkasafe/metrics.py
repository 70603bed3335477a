"""Prometheus: one collector, `install(producer, consumer)` in one line.

What is counted is read when somebody scrapes; nothing is paid per record. Names follow Prometheus's conventions: base
units, `_total` on counters, protocol error names as labels. All begin with `kafkasafe_` and have the label `client_id`.

Whatever has a `client_id` and gives `_readings` can be collected beside producers, with definitions of its own; whoever
shows the same numbers under other names adds a *view* (`Collector.views`): a function from the sources to families.
"""

from __future__ import annotations

import atexit
import collections
import importlib.metadata
import operator
import os
import platform
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, TypeAlias, runtime_checkable

import prometheus_client
from kafka.structs import TopicPartition
from prometheus_client import multiprocess, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector as PrometheusCollector
from prometheus_client.utils import floatToGoString

from kafkasafe._core.health import ConsumerHealth
from kafkasafe._io.pump import Pump
from kafkasafe._io.stats import (
    BUCKETS_S,
    CONSUMER,
    PRODUCER,
    ConsumerStats,
    Definition,
    Histogram,
    PartitionProgress,
    Reading,
)

__all__ = [
    "Collector",
    "Server",
    "Source",
    "consumer_readings",
    "flush",
    "install",
    "producer_readings",
    "serve",
    "uninstall",
]

_MIRROR_EVERY_S: Final = 1.0
_INFO: Final = "kafkasafe_build_info"
_INFO_TEXT: Final = "Version of kafkasafe, and of what it stands on."
_MERGES: Final[Mapping[str, Callable[[float, float], float]]] = {"sum": operator.add, "max": max, "min": min}
_BOUNDS: Final = (*map(floatToGoString, BUCKETS_S), "+Inf")


@runtime_checkable
class Source(Protocol):
    """What can be collected: a SafeProducer, a SafeConsumer …"""

    @property
    def client_id(self) -> str:
        """Label of all its metrics."""

    def _readings(self) -> Iterable[Reading]: ...


_Key: TypeAlias = tuple[str, tuple[str, ...]]
_Values: TypeAlias = dict[_Key, float | Histogram]
"""By client id and labels."""

_lock = threading.Lock()
_installed: weakref.WeakKeyDictionary[CollectorRegistry, Collector] = weakref.WeakKeyDictionary()
_mirrors: dict[CollectorRegistry, _Mirror] = {}


def install(*sources: Source, registry: CollectorRegistry = REGISTRY, partitions: bool = False) -> Collector:
    """Have producers and consumers collected by a Prometheus registry.

    May be called again, for more of them. One that is closed keeps its last counts for as long as it is referenced; one
    that is gone leaves. Counts of several with the same `client_id` are added up, and do not go back when one of them
    leaves.

    Where several processes are scraped as one (`PROMETHEUS_MULTIPROC_DIR` is set, as for gunicorn), the numbers are
    also copied, once a second and when a producer is closed, into prometheus-client's files, so that its
    `MultiProcessCollector` has them: counters are added up, gauges are those of the processes that live.

    Args:
        sources: SafeProducers, SafeConsumers and RetryPolicies to collect.
        registry: Prometheus's own by default.
        partitions: Add families with a `partition` label.

    Returns:
        The collector.

    Raises:
        TypeError: Something else was given.
    """
    for source in sources:
        if not isinstance(source, Source):
            raise TypeError(
                f"metrics are those of SafeProducer, SafeConsumer and RetryPolicy, not of {source!r}"
            )
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            collector = _installed[registry] = Collector()
            registry.register(collector)
        for source in sources:
            collector.add(source)
        collector.partitions = collector.partitions or partitions
        if registry is REGISTRY and _multiprocess() and registry not in _mirrors:
            _mirrors[registry] = _Mirror(collector)
            _mirrors[registry].start()
    return collector


def uninstall(*sources: Source, registry: CollectorRegistry = REGISTRY) -> None:
    """Forget sources; without arguments, take the collector out of the registry."""
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            return
        for source in sources:
            collector.discard(source)
        if not sources:
            del _installed[registry]
            registry.unregister(collector)
            mirror = _mirrors.pop(registry, None)
            if mirror is not None:
                mirror.stop()


def flush() -> None:
    """Copy the numbers into prometheus-client's files now, where several processes are scraped as one."""
    for mirror in list(_mirrors.values()):
        mirror.copy()


class Server:
    """An HTTP endpoint for Prometheus, until `close`.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, server: Any, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def close(self) -> None:
        """Stop listening. Calling it again does nothing."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Server of metrics on port {self.port}>"


def serve(
    *sources: Source,
    port: int = 0,
    address: str = "127.0.0.1",
    registry: CollectorRegistry = REGISTRY,
    partitions: bool = False,
) -> Server:
    """`install`, and an HTTP endpoint that shows what is in the registry.

    Args:
        sources: As for `install`.
        port: 0 for one that is free: see `Server.port`.
        address: Of this machine, to listen on.
        registry: As for `install`. Where several processes are scraped as one, all of them are shown.
        partitions: As for `install`.

    Raises:
        OSError: It cannot listen there.
    """
    shown = registry
    if registry is REGISTRY and _multiprocess():
        shown = CollectorRegistry()
        multiprocess.MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    server, thread = prometheus_client.start_http_server(port, addr=address, registry=shown)
    install(*sources, registry=registry, partitions=partitions)
    return Server(server, thread)


def _multiprocess() -> bool:
    # As prometheus-client decides it: when it is imported.
    return bool(getattr(values.ValueClass, "_multiprocess", False))


class Collector(PrometheusCollector):
    """Reads all sources when somebody scrapes. Made by `install`.

    Attributes:
        partitions: Families with a `partition` label are shown.
        views: Functions from the sources that live to more families, called with each scrape.
    """

    def __init__(self) -> None:
        self.partitions = False
        self.views: list[Callable[[Sequence[Any]], Iterable[Metric]]] = []
        self._lock = threading.Lock()
        self._sources: list[_Seen] = []
        self._retired: dict[str, dict[Definition, dict[tuple[str, ...], float | Histogram]]] = {}

    def add(self, source: Source) -> None:
        """Collect one more."""
        with self._lock:
            self._retire_gone()  # where nobody scrapes, nothing else would
            if all(seen.source() is not source for seen in self._sources):
                self._sources.append(_Seen(source))

    def discard(self, source: Source) -> None:
        """Collect it no more; nothing is remembered of it."""
        with self._lock:
            self._sources = [seen for seen in self._sources if seen.source() is not source]

    @property
    def sources(self) -> list[Any]:
        """What is collected, as far as it still is there."""
        with self._lock:
            return [source for seen in self._sources if (source := seen.source()) is not None]

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are checked when something is collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families."""
        labels = _build()
        info = GaugeMetricFamily(_INFO, _INFO_TEXT, labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        with self._lock:
            read, live = self._read()
        for definition, found in read.items():
            yield _family(definition, found)
        for view in list(self.views):
            yield from view(live)

    def _read(self) -> tuple[dict[Definition, _Values], list[Source]]:
        read: dict[Definition, _Values] = {}
        live = [source for seen in self._sources if (source := seen.source()) is not None]
        self._retire_gone()
        for seen in self._sources:
            source = seen.source()
            if source is None:
                continue
            seen.readings = list(source._readings())
            for definition, labels, value in seen.readings:
                if self.partitions or not definition.per_partition:
                    _merge(read.setdefault(definition, {}), (seen.client_id, labels), value, definition.merge)
        # What others of the same name had counted before they left: a counter does not go back.
        for client in {seen.client_id for seen in self._sources} & self._retired.keys():
            for definition, by_label in self._retired[client].items():
                for labels, value in by_label.items():
                    _merge(read.setdefault(definition, {}), (client, labels), value, "sum")
        return read, live

    def _retire_gone(self) -> None:
        for seen in [seen for seen in self._sources if seen.source() is None]:
            self._retire(seen)

    def _retire(self, seen: _Seen) -> None:
        self._sources.remove(seen)
        kept = self._retired.setdefault(seen.client_id, {})
        for definition, labels, value in seen.readings:
            if definition.kind != "gauge":
                _merge(kept.setdefault(definition, {}), labels, value, "sum")


def _build() -> dict[str, str]:
    return {
        "version": importlib.metadata.version("kafkasafe"),
        "kafka_python": importlib.metadata.version("kafka-python"),
        "python": platform.python_version(),
    }


class _Seen:
    """A source, and what it showed last."""

    def __init__(self, source: Source) -> None:
        self.source = weakref.ref(source)
        self.client_id = source.client_id
        self.readings: list[Reading] = []


def _merge(found: dict[Any, float | Histogram], key: Any, value: float | Histogram, how: str) -> None:
    before = found.get(key)
    if isinstance(value, Histogram):
        total = Histogram()
        for part in (value, before):
            if isinstance(part, Histogram):
                total.counts = [a + b for a, b in zip(total.counts, part.counts, strict=True)]
                total.sum_s += part.sum_s
        found[key] = total
    elif isinstance(before, (int, float)):
        found[key] = _MERGES[how](before, value)
    else:
        found[key] = value


def _family(definition: Definition, found: _Values) -> Metric:
    name, labels = f"kafkasafe_{definition.name}", ["client_id", *definition.labels]
    if definition.kind == "histogram":
        histogram = HistogramMetricFamily(name, definition.text, labels=labels)
        for (client, more), value in found.items():
            if isinstance(value, Histogram):
                total = 0
                buckets = []
                for bound, count in zip(_BOUNDS, value.counts, strict=True):
                    total += count
                    buckets.append((bound, float(total)))
                histogram.add_metric([client, *more], buckets, value.sum_s)
        return histogram
    kind = CounterMetricFamily if definition.kind == "counter" else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(name, definition.text, labels=labels)
    for (client, more), value in found.items():
        if not isinstance(value, Histogram):
            family.add_metric([client, *more], value)
    return family


# -- several processes that are scraped as one -----------------------------------------------------------------------


class _Mirror:
    """Copies what a collector reads into prometheus-client's files of this process."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lock = threading.Lock()
        self._cells: dict[tuple[str, tuple[str, ...]], _Cell] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkasafe-metrics", daemon=True)

    def start(self) -> None:
        labels = _build()
        info: Any = values.ValueClass  # of a gauge, as prometheus-client makes them
        info("gauge", _INFO, _INFO, list(labels), list(labels.values()), _INFO_TEXT, "livemax").set(1)
        self._thread.start()
        atexit.register(self.copy)

    def stop(self) -> None:
        self._ended.set()
        atexit.unregister(self.copy)

    def _run(self) -> None:
        while not self._ended.wait(_MIRROR_EVERY_S):
            self.copy()

    def copy(self) -> None:
        """Now."""
        with self._collector._lock:
            read, _ = self._collector._read()
        with self._lock:
            stale = {key for key, cell in self._cells.items() if cell.definition.kind == "gauge"}
            for definition, found in read.items():
                for (client, labels), value in found.items():
                    self._write(definition, (client, *labels), value)
                    stale.discard((f"kafkasafe_{definition.name}", (client, *labels)))
            # What is closed, or not assigned any more, has no level; and a file forgets nothing.
            for key in stale:
                self._cells[key].leave()

    def _write(self, definition: Definition, labels: tuple[str, ...], value: float | Histogram) -> None:
        name = f"kafkasafe_{definition.name}"
        if not isinstance(value, Histogram):
            if definition.kind == "counter":
                self._cell(definition, name, f"{name}_total", labels).grow(value)
            else:
                self._cell(definition, name, name, labels).set(value)
            return
        for bound, count in zip(_BOUNDS, value.counts, strict=True):
            self._cell(definition, name, f"{name}_bucket", (*labels, bound)).grow(count)
        self._cell(definition, name, f"{name}_sum", labels).grow(value.sum_s)

    def _cell(self, definition: Definition, name: str, sample: str, labels: tuple[str, ...]) -> _Cell:
        cell = self._cells.get((sample, labels))
        if cell is None:
            names = ("client_id", *definition.labels)
            cell = self._cells[sample, labels] = _Cell(
                definition,
                values.ValueClass(
                    definition.kind,
                    name,
                    sample,
                    (*names, "le") if sample.endswith("_bucket") else names,
                    labels,
                    definition.text,
                    multiprocess_mode=f"live{definition.merge}",
                ),
            )
        return cell


class _Cell:
    """One number in a file. A counter's never goes back there, though its source may be another one by now."""

    def __init__(self, definition: Definition, value: Any) -> None:
        self.definition = definition
        self._value = value
        self._last = 0.0

    def grow(self, total: float) -> None:
        """The source has counted so far."""
        self._value.inc(total - self._last if total >= self._last else total)
        self._last = total

    def set(self, number: float) -> None:
        self._value.set(number)

    def leave(self) -> None:
        """The source is closed."""
        self._value.set(self.definition.left)


def _forked() -> None:
    """In a child: what the parent counts is the parent's, and so is the thread that copies it."""
    global _lock
    _lock = threading.Lock()
    for collector in list(_installed.values()):
        collector._lock = threading.Lock()
        collector._sources.clear()
        collector._retired.clear()
    for mirror in _mirrors.values():
        atexit.unregister(mirror.copy)
    _mirrors.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(after_in_child=_forked)


# -- what they show --------------------------------------------------------------------------------------------------


def consumer_readings(
    stats: ConsumerStats,
    progress: Mapping[TopicPartition, PartitionProgress],
    group: str,
    health: ConsumerHealth | None,
) -> Iterator[Reading]:
    """What a consumer of the group (empty: of none) shows. One that is closed has no health."""
    yield from stats.retry_readings()
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
        if health.last_poll_age_s is not None:
            yield CONSUMER["last_poll_age_seconds"], (), health.last_poll_age_s
    for (topic, partition), at in progress.items():
        lag = 0 if at.position is None or at.end_offset is None else max(0, at.end_offset - at.position)
        # Those of a topic's partitions are added up.
        yield CONSUMER["lag_records"], (topic, group), lag
        yield CONSUMER["not_ready_partitions"], (topic,), at.not_ready_s is not None
        yield CONSUMER["remote_storage_not_ready_partitions"], (topic,), at.remote
        yield CONSUMER["stopped_partitions"], (topic,), at.undecided
        for name, offset in (("end_offset", at.end_offset), ("position", at.position)):
            if offset is not None:
                yield CONSUMER[name], (topic, str(partition)), offset


def producer_readings(pump: Pump, *, closed: bool) -> Iterator[Reading]:
    """What a producer shows; what one that is closed had counted."""
    stats, counters = pump.stats, pump.counters
    yield from stats.retry_readings()
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
        ("undecidable_batches", counters["batches_undecidable"]),
        ("spool_write_errors", counters["spool_write_errors"]),
        ("spool_displaced", counters["spool_displaced"]),
        ("spool_full", pump.refused_sends),
        ("spool_copied_bytes", counters["spool_copied_bytes"]),
        ("spool_replayed_records", stats.replayed_records),
        ("spool_corrupt", stats.corrupt),
    ):
        yield PRODUCER[name], (), number
    yield PRODUCER["spool_fsync_duration_seconds"], (), stats.fsync
    yield PRODUCER["durable_latency_seconds"], (), stats.durable
    yield PRODUCER["ack_latency_seconds"], (), stats.ack
    if closed:
        return
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

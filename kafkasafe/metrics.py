"""Prometheus metrics: `install(producer, consumer)` registers one collector.

The collector reads the counters during a scrape; sending or reading a record costs nothing extra. Names follow
Prometheus's conventions: base units, `_total` on counters, names of protocol errors as labels. All names begin with
`kafkasafe_`, and all metrics have the label `client_id`.

`install` also accepts any other object with a `client_id` and a method `metric_samples`. Such an object defines its own
metrics. To show the same numbers under other names, add a *view* to `Collector.views`: a function from the sources to
metric families.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import operator
import os
import platform
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, Self, TypeAlias, runtime_checkable

import prometheus_client
from prometheus_client import multiprocess, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector as PrometheusCollector
from prometheus_client.utils import floatToGoString

from kafkasafe.delivery.metric_samples import AT_CLOSE
from kafkasafe.metric_definitions import Definition
from kafkasafe.process.locks import new_lock
from kafkasafe.process.weak_members import members
from kafkasafe.stats import BUCKETS_S, Histogram, Sample

__all__ = [
    "Collector",
    "Server",
    "Source",
    "flush",
    "install",
    "serve",
    "uninstall",
]

_MIRROR_EVERY_S: Final = 1.0
_SCRAPE_S: Final = 1.0
"""How many seconds a closing source waits for the end of a scrape. Without a limit, a signal handler that closes a
producer during a scrape on the same thread would wait for ever.
"""
_INFO: Final = "kafkasafe_build_info"
_INFO_TEXT: Final = "Versions of kafkasafe, kafka-python and Python."
_MERGES: Final[Mapping[str, Callable[[float, float], float]]] = {"sum": operator.add, "max": max, "min": min}
_BOUNDS: Final = (*map(floatToGoString, BUCKETS_S), "+Inf")


@runtime_checkable
class Source(Protocol):
    """An object whose metrics can be collected, such as a SafeProducer or a SafeConsumer."""

    @property
    def client_id(self) -> str:
        """Value of the label `client_id` in all of the object's metrics."""

    def metric_samples(self) -> Iterable[Sample]:
        """Return the current values of the object's metrics."""


_Key: TypeAlias = tuple[str, tuple[str, ...]]
_Values: TypeAlias = dict[_Key, float | Histogram]
"""The values of one metric, keyed by client id and labels."""

_lock = new_lock()
_installed: weakref.WeakKeyDictionary[CollectorRegistry, Collector] = weakref.WeakKeyDictionary()
_mirrors: dict[CollectorRegistry, _Mirror] = {}


def install(*sources: Source, registry: CollectorRegistry = REGISTRY, partitions: bool = False) -> Collector:
    """Register producers and consumers with a Prometheus registry.

    Call `install` again to add more sources. A closed source keeps its last counts while the program references it; a
    source that was garbage-collected is removed. Counters of sources with the same `client_id` are added up, and the
    sum does not decrease when one of these sources is removed. The sum includes all that a producer or consumer had
    counted when it was closed, even if no scrape happened between its close and its removal.

    If several processes are scraped as one (`PROMETHEUS_MULTIPROC_DIR` is set, as for gunicorn), the numbers are also
    copied into prometheus-client's files, once a second and when a producer closes. prometheus-client's
    `MultiProcessCollector` then adds up the counters of all processes, and shows the gauges of live processes only.

    Args:
        sources: SafeProducers, SafeConsumers and RetryPolicies to collect.
        registry: The registry. Default: prometheus-client's default registry.
        partitions: Also show the families with a `partition` label.

    Returns:
        The collector.

    Raises:
        TypeError: A source is of another type.
    """
    for source in sources:
        if not isinstance(source, Source):
            raise TypeError(f"only SafeProducer, SafeConsumer and RetryPolicy have metrics, not {source!r}")
    with _lock:
        collector = _installed.get(registry)
        if collector is None:
            collector = Collector()
            registry.register(collector)
            _installed[registry] = collector  # after `register`: if that fails, the next call must try again
        for source in sources:
            collector.add(source)
        collector.partitions = collector.partitions or partitions
        if registry is REGISTRY and _multiprocess() and registry not in _mirrors:
            mirror = _Mirror(collector)
            mirror.start()
            _mirrors[registry] = mirror
    return collector


def uninstall(*sources: Source, registry: CollectorRegistry = REGISTRY) -> None:
    """Stop collecting these sources. Without arguments, remove the collector from the registry."""
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
    """If several processes are scraped as one, copy the numbers into prometheus-client's files now."""
    for mirror in list(_mirrors.values()):
        mirror.copy()


class Server:
    """An HTTP endpoint for Prometheus. It runs until `close`.

    Attributes:
        port: Port on which it listens.
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
    """Call `install`, and start an HTTP endpoint that shows the metrics of the registry.

    Args:
        sources: As for `install`.
        port: Port to listen on; 0 for any free port (see `Server.port`).
        address: Local address to listen on.
        registry: As for `install`. If several processes are scraped as one, the endpoint shows the metrics of all
            processes.
        partitions: As for `install`.

    Raises:
        OSError: The endpoint cannot listen on this address and port.
    """
    shown = registry
    if registry is REGISTRY and _multiprocess():
        shown = CollectorRegistry()
        multiprocess.MultiProcessCollector(shown)  # type: ignore[no-untyped-call]
    server = Server(*prometheus_client.start_http_server(port, addr=address, registry=shown))
    try:
        install(*sources, registry=registry, partitions=partitions)
    except BaseException:
        server.close()
        raise
    return server


def _multiprocess() -> bool:
    # At import, prometheus-client decides whether several processes are scraped as one.
    return bool(getattr(values.ValueClass, "_multiprocess", False))


class Collector(PrometheusCollector):
    """A collector of prometheus-client that reads all sources during a scrape. `install` creates it.

    Attributes:
        partitions: Whether families with a `partition` label are shown.
        views: Functions that take the live sources and return further families. The collector calls them in a scrape.
    """

    def __init__(self) -> None:
        self.partitions = False
        self.views: list[Callable[[Sequence[Any]], Iterable[Metric]]] = []
        self._lock = new_lock()
        self._sources: list[_Seen] = []
        self._retired: dict[str, dict[Definition, dict[tuple[str, ...], float | Histogram]]] = {}

    def add(self, source: Source) -> None:
        """Collect one more source."""
        with self._lock:
            self._retire_gone()  # without scrapes, nothing else removes dead sources
            if not self._has(source):
                self._sources.append(_Seen(source))

    def _has(self, source: Source) -> bool:
        return any(seen.source() is source for seen in self._sources)

    def discard(self, source: Source) -> None:
        """Stop collecting a source, and forget its counts."""
        with self._lock:
            self._sources = self._without(source)

    def _without(self, source: Source) -> list[_Seen]:
        return [seen for seen in self._sources if seen.source() is not source]

    @property
    def sources(self) -> list[Any]:
        """The collected sources that still exist."""
        with self._lock:
            sources = [seen.source() for seen in self._sources]
        return [source for source in sources if source is not None]

    def describe(self) -> Iterable[Metric]:
        """Return no families, so that prometheus-client does not check their names when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        labels = _build()
        info = GaugeMetricFamily(_INFO, _INFO_TEXT, labels=list(labels))
        info.add_metric(list(labels.values()), 1)
        yield info
        read, live = self.read()
        for definition, found in read.items():
            yield _family(definition, found)
        for view in list(self.views):
            yield from view(live)

    def read(self) -> tuple[dict[Definition, _Values], list[Source]]:
        """Return the current values of all metrics, and the sources that still exist."""
        with self._lock:
            return self._read()

    def read_within(self, limit_s: float) -> dict[Definition, _Values] | None:
        """Return the current values of all metrics; None if a running scrape takes longer than `limit_s` (-1: no
        limit).
        """
        if not self._lock.acquire(timeout=limit_s):
            return None
        try:
            return self._read()[0]
        finally:
            self._lock.release()

    def closed(self, source: object) -> None:
        """Store the last counts of a source that closes: the program may drop the source before the next scrape."""
        if not self._lock.acquire(timeout=_SCRAPE_S):
            return
        try:
            for seen in (each for each in self._sources if each.source() is source):
                seen.look()
        finally:
            self._lock.release()

    def forked(self) -> None:
        """In a forked child: collect nothing, because the sources are the parent's.

        The child gets a new lock: a thread that does not exist in the child may have held the old one.
        """
        self._lock = new_lock()
        self._sources.clear()
        self._retired.clear()

    def _read(self) -> tuple[dict[Definition, _Values], list[Source]]:
        read: dict[Definition, _Values] = {}
        live = [source for seen in self._sources if (source := seen.source()) is not None]
        self._retire_gone()
        for seen in self._sources:
            seen.look()
            for definition, labels, value in seen.samples:
                if self.partitions or not definition.per_partition:
                    _merge(read.setdefault(definition, {}), (seen.client_id, labels), value, definition.merge)
        # Add the counts of removed sources with the same client id, because a counter must not decrease.
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
        for definition, labels, value in seen.samples:
            if definition.kind != "gauge":
                _merge(kept.setdefault(definition, {}), labels, value, "sum")


def _build() -> dict[str, str]:
    return {
        "version": importlib.metadata.version("kafkasafe"),
        "kafka_python": importlib.metadata.version("kafka-python"),
        "python": platform.python_version(),
    }


class _Seen:
    """A source and its last values."""

    def __init__(self, source: Source) -> None:
        self.source = weakref.ref(source)
        self.client_id = source.client_id
        self.samples: list[Sample] = []

    def look(self) -> None:
        """Store the source's current values, if the source still exists."""
        source = self.source()
        if source is not None:
            self.samples = list(source.metric_samples())


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


# -- several processes scraped as one -----------------------------------------------------------------------


class _Mirror:
    """Copies the samples of a collector into the files that prometheus-client keeps for this process."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._lock = new_lock()
        self._cells: dict[tuple[str, tuple[str, ...]], _Cell] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kafkasafe-metrics", daemon=True)

    def start(self) -> None:
        labels = _build()
        info: Any = values.ValueClass  # prometheus-client creates its gauges in the same way
        info("gauge", _INFO, _INFO, list(labels), list(labels.values()), _INFO_TEXT, "livemax").set(1)
        self._thread.start()
        atexit.register(self.copy)

    def stop(self) -> None:
        self._ended.set()
        atexit.unregister(self.copy)

    def _run(self) -> None:
        while not self._ended.wait(_MIRROR_EVERY_S):
            self.copy()

    def copy(self, limit_s: float = -1) -> None:
        """Copy the present samples. Give up if a running copy or scrape takes longer than `limit_s` (-1: no limit)."""
        if not self._lock.acquire(timeout=limit_s):
            return
        try:
            read = self._collector.read_within(limit_s)
            if read is not None:
                self._write_all(read)
        finally:
            self._lock.release()

    def _write_all(self, read: Mapping[Definition, _Values]) -> None:
        stale = {key for key, cell in self._cells.items() if cell.definition.kind == "gauge"}
        for definition, found in read.items():
            for (client, labels), value in found.items():
                self._write(definition, (client, *labels), value)
                stale.discard((f"kafkasafe_{definition.name}", (client, *labels)))
        # Overwrite the gauges of closed sources and revoked partitions: they stay in the file, but have no new values.
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
    """One number in a metrics file. A counter never decreases, even if a new source counts from 0 again."""

    def __init__(self, definition: Definition, value: Any) -> None:
        self.definition = definition
        self._value = value
        self._last = 0.0

    def grow(self, total: float) -> None:
        """Add the increase of a counter. `total` is the source's count so far."""
        self._value.inc(total - self._last if total >= self._last else total)
        self._last = total

    def set(self, number: float) -> None:
        self._value.set(number)

    def leave(self) -> None:
        """Set the value that the metric shows for a closed source."""
        self._value.set(self.definition.left)


def _forked() -> None:
    """In a forked child: remove all sources and mirrors, because they belong to the parent."""
    global _lock
    _lock = new_lock()
    for collector in list(_installed.values()):
        collector.forked()
    for mirror in _mirrors.values():
        atexit.unregister(mirror.copy)
    _mirrors.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(after_in_child=_forked)


def _closed(source: object) -> None:
    for collector in members(_installed.values):
        collector.closed(source)
    for mirror in list(_mirrors.values()):
        mirror.copy(_SCRAPE_S)


AT_CLOSE.append(_closed)

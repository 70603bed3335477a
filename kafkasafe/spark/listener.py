"""Streaming queries in Prometheus: a `StreamingQueryListener`.

Spark says how long a batch took and how many rows it read. What the sink made of it (written, skipped as a duplicate,
resumed) Spark does not know; that comes from the sinks of this process, and from the writers by `outcomes.py`.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kafkasafe.errors import ConfigError
from kafkasafe.spark import stats
from kafkasafe.spark.outcomes import inbox
from kafkasafe.spark.positions import Positions

__all__ = ["MetricsListener"]

log = logging.getLogger("kafkasafe.spark")

_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class MetricsListener(StreamingQueryListener):
    """Counts what streaming queries do, for Prometheus.

    ```python
    spark.streams.addListener(MetricsListener())
    ```

    Families, with the label `query` (its name, or its id where it has none):

    - `kafkasafe_spark_batches_total{outcome}`: micro-batches of kafkasafe's sink and writer: `written`, `duplicate`
      (committed before, skipped), `resumed` (written with more than one transaction), `failed`.
    - `kafkasafe_spark_rows_total{direction}`: `in` (read, as Spark says), `out` (committed).
    - `kafkasafe_spark_restarts_total`, `kafkasafe_spark_retries_total`: transactions begun again; requests sent again.
    - `kafkasafe_spark_sent_bytes_total`: of batches that were sent, those of transactions that came to nothing too.
    - `kafkasafe_spark_batch_duration_seconds`: histogram of whole micro-batches, as Spark says.
    - `kafkasafe_spark_offsets_behind_latest`: records between the end of the last batch and the end of the logs; only
      for sources that tell where the logs end.
    - `kafkasafe_spark_active_queries`.
    - `kafkasafe_spark_query_failures_total`: runs that an exception ended.

    Of kafkasafe's source, as far as its processes are on this machine, with the label `topic`:

    - `kafkasafe_spark_source_events_total{event,reason}`: `held` (a lower end offset was not believed), `lowered` (it
      was, with a proof), `lost` (the query goes on without records).
    - `kafkasafe_spark_source_lost_records_total{reason}`: those records.

    Args:
        registry: Prometheus's own by default.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._collector = _Collector()
        self._registry = registry
        registry.register(self._collector)
        _expect_sources()

    def close(self) -> None:
        """Takes the families out of the registry."""
        self._registry.unregister(self._collector)

    # Spark's names.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """A query began."""
        self._collector.started(str(event.id), str(event.runId), event.name)
        inbox.expect(str(event.id), str(event.runId))
        _expect_sources()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """A micro-batch ended."""
        self._collector.progress(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """There was nothing to do."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """A query ended. Its counts stay."""
        inbox.stop_expecting(str(event.id), str(event.runId))
        self._collector.ended(str(event.id), str(event.runId), failed=event.exception is not None)


class _Query:
    def __init__(self, name: str) -> None:
        self.name = name
        self.run: str | None = None  # None: it has ended
        self.rows = 0
        self.seconds = 0.0
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.behind: int | None = None
        self.last_batch = -1
        self.failures = 0


class _Collector(Collector):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}

    def describe(self) -> list[Metric]:
        """Nothing: names are checked when something is collected."""
        return []

    def started(self, query_id: str, run_id: str, name: str | None) -> None:
        with self._lock:
            query = self._queries.setdefault(query_id, _Query(name or query_id))
            query.run = run_id

    def ended(self, query_id: str, run_id: str, *, failed: bool = False) -> None:
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None:
                query.failures += failed
            # Spark tells of an end later than of the start of the next run.
            if query is not None and query.run == run_id:
                query.run = None

    def progress(self, progress: Mapping[str, Any]) -> None:
        query_id = str(progress["id"])
        with self._lock:
            query = self._queries.get(query_id)
            if query is None:  # it had started before there was a listener
                query = self._queries[query_id] = _Query(progress.get("name") or query_id)
                query.run = str(progress.get("runId"))
            query.behind = _behind(progress.get("sources", ()), query.behind)
            batch = int(progress.get("batchId", -1))
            # Spark reports a query that waits again and again, with the number of the batch to come.
            took = progress.get("durationMs", {})
            if "addBatch" not in took or batch == query.last_batch:
                return
            query.last_batch = batch
            query.rows += max(0, int(progress.get("numInputRows", 0)))
            seconds = took.get("triggerExecution", took["addBatch"]) / 1000
            query.seconds += seconds
            query.counts[sum(seconds > bound for bound in _BUCKETS_S)] += 1

    def collect(self) -> Iterator[Metric]:
        """All families."""
        batches = CounterMetricFamily(
            "kafkasafe_spark_batches",
            "Micro-batches of sinks and writers, by outcome.",
            labels=["query", "outcome"],
        )
        rows = CounterMetricFamily(
            "kafkasafe_spark_rows", "Rows read and committed.", labels=["query", "direction"]
        )
        restarts = CounterMetricFamily(
            "kafkasafe_spark_restarts", "Transactions begun again for the same micro-batch.", labels=["query"]
        )
        retries = CounterMetricFamily(
            "kafkasafe_spark_retries", "Requests with records that were sent again.", labels=["query"]
        )
        sent = CounterMetricFamily(
            "kafkasafe_spark_sent_bytes", "Bytes of batches that were sent.", labels=["query"]
        )
        duration = HistogramMetricFamily(
            "kafkasafe_spark_batch_duration_seconds", "Time of a micro-batch.", labels=["query"]
        )
        behind = GaugeMetricFamily(
            "kafkasafe_spark_offsets_behind_latest", "Records not read yet.", labels=["query"]
        )
        active = GaugeMetricFamily("kafkasafe_spark_active_queries", "Queries that run.")
        failures = CounterMetricFamily(
            "kafkasafe_spark_query_failures", "Runs that an exception ended.", labels=["query"]
        )
        events = CounterMetricFamily(
            "kafkasafe_spark_source_events",
            "What the source noticed: ends that were held or lowered, records that are lost.",
            labels=["topic", "event", "reason"],
        )
        lost = CounterMetricFamily(
            "kafkasafe_spark_source_lost_records",
            "Records that queries went on without.",
            labels=["topic", "reason"],
        )
        with self._lock:
            names = {query_id: query.name for query_id, query in self._queries.items()}
            active.add_metric([], sum(query.run is not None for query in self._queries.values()))
            for query in self._queries.values():
                rows.add_metric([query.name, "in"], query.rows)
                failures.add_metric([query.name], query.failures)
                if query.behind is not None:
                    behind.add_metric([query.name], query.behind)
                total, buckets = 0, []
                for bound, count in zip([*map(str, _BUCKETS_S), "+Inf"], query.counts, strict=True):
                    total += count
                    buckets.append((bound, float(total)))
                duration.add_metric([query.name], buckets, query.seconds)
        for (query_id, outcome), count in stats.batches.copy().items():
            batches.add_metric([names.get(query_id, query_id), outcome], count)
        for family, counts, labels in (
            (rows, stats.rows, ["out"]),
            (restarts, stats.restarts, []),
            (retries, stats.retries, []),
            (sent, stats.sent_bytes, []),
        ):
            for query_id, count in counts.copy().items():
                family.add_metric([names.get(query_id, query_id), *labels], count)
        for event, count in stats.source_events.copy().items():
            events.add_metric(event, count)
        for loss, count in stats.source_lost_records.copy().items():
            lost.add_metric(loss, count)
        yield from (batches, rows, restarts, retries, sent, duration, behind, active, failures, events, lost)


def _expect_sources() -> None:
    """Those of this process's Spark. With Spark Connect there is no JVM here, or not yet."""
    try:
        from pyspark import SparkContext

        gateway: Any = SparkContext._gateway
        if gateway is not None:
            inbox.expect_sources(int(gateway.jvm.java.lang.ProcessHandle.current().pid()))
    except Exception as failed:  # whatever py4j raises: a count is not worth a query
        log.debug("Spark's process is not known, so what sources notice is not counted: %r", failed)


def _behind(sources: Any, before: int | None) -> int | None:
    """Records between where the sources are and where their logs end; as before where none of them tells."""
    total, told = 0, False
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end and latest:
            told = True
            total += sum(max(0, offset - end.get(place, offset)) for place, offset in latest.items())
    return total if told else before


def _offsets(position: Any) -> dict[tuple[str, str], int]:
    """(topic, partition) → offset, of Spark's own Kafka source or of kafkasafe's."""
    if isinstance(position, str):
        try:
            position = json.loads(position)
        except ValueError:
            return {}
    if not isinstance(position, dict):
        return {}
    if isinstance(position.get("kafkasafe"), int):
        try:
            marks = Positions.decode(position).marks
        except ConfigError:
            return {}
        return {(topic, str(number)): mark.offset for (topic, number), mark in marks.items()}
    return {
        (topic, number): offset
        for topic, offsets in position.items()
        if isinstance(offsets, dict)
        for number, offset in offsets.items()
        if isinstance(offset, int)
    }

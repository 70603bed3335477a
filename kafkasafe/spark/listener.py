"""A `StreamingQueryListener` that exports the metrics of streaming queries to Prometheus.

Spark reports how long a batch took and how many rows it read. Spark does not know whether the sink wrote the batch,
skipped it as a duplicate, or resumed it. Sinks in this process count the outcomes of batches directly. Writers run in
other processes and send their outcomes through `outcomes.py`.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
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
from kafkasafe.process.locks import new_lock
from kafkasafe.spark import stats
from kafkasafe.spark.java import gateway
from kafkasafe.spark.outcomes import inbox
from kafkasafe.spark.positions import Positions

log = logging.getLogger("kafkasafe.spark")

_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class MetricsListener(StreamingQueryListener):
    """Exports metrics of streaming queries to Prometheus.

    ```python
    spark.streams.addListener(MetricsListener())
    ```

    Metric families with the label `query` (the query's name, or its id if it has no name). Queries with the same name
    are counted together; their lag is the sum of the lags of the running queries:

    - `kafkasafe_spark_batches_total{outcome}`: micro-batches of kafkasafe's sink and writer: `written`, `duplicate`
      (committed before, so skipped), `resumed` (written with more than one transaction), `failed`.
    - `kafkasafe_spark_rows_total{direction}`: `in` (rows read, as reported by Spark), `out` (rows committed).
    - `kafkasafe_spark_restarts_total`: restarted transactions.
    - `kafkasafe_spark_retries_total`: retried requests.
    - `kafkasafe_spark_sent_bytes_total`: bytes of sent batches, including those of aborted transactions.
    - `kafkasafe_spark_batch_duration_seconds`: histogram of the duration of whole micro-batches, as reported by Spark.
    - `kafkasafe_spark_offsets_behind_latest`: records between the end of the last batch and the end of the logs. The
      metric exists only for sources that report where the logs end.
    - `kafkasafe_spark_active_queries`: queries that are running.
    - `kafkasafe_spark_query_failures_total`: query runs that an exception ended.

    Metric families of kafkasafe's source, with the label `topic`. They count only events in processes on this machine:

    - `kafkasafe_spark_source_events_total{event,reason}`: `held` (a lower end offset was not accepted), `regressed` (a
      lower end offset was accepted, because a loss of records was proven), `lost` (the query skipped lost records).
    - `kafkasafe_spark_source_lost_records_total{reason}`: number of lost records that queries skipped.

    Args:
        registry: Prometheus registry; the default is Prometheus's global registry.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._collector = _Collector()
        self._registry = registry
        registry.register(self._collector)
        _expect_sources()

    def close(self) -> None:
        """Removes the families from the registry."""
        self._registry.unregister(self._collector)

    # The method names are Spark's.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Registers a query that has started."""
        self._collector.started(str(event.id), str(event.runId), event.name)
        inbox.expect(str(event.id), str(event.runId))
        _expect_sources()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Counts a micro-batch that has ended."""
        self._collector.progress(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Does nothing: an idle query changes no metric."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Marks a query as ended, and keeps its counts."""
        inbox.stop_expecting(str(event.id), str(event.runId))
        self._collector.ended(str(event.id), str(event.runId), failed=event.exception is not None)


class _Query:
    """The counts of one query, over all its runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run: str | None = None  # id of the current run; None: the query has ended
        self.rows = 0
        self.seconds = 0.0
        self.counts = [0] * (len(_BUCKETS_S) + 1)
        self.lag: int | None = None
        self.last_batch = -1
        self.failures = 0

    def started(self, run_id: str) -> None:
        self.run = run_id

    def ended(self, run_id: str, *, failed: bool) -> None:
        self.failures += failed
        # Spark may report the end of a run after the start of the next run.
        if self.run == run_id:
            self.run = None

    def progress(self, progress: Mapping[str, Any]) -> None:
        self.lag = _behind(progress.get("sources", ()), self.lag)
        batch = int(progress.get("batchId", -1))
        # While a query waits for data, Spark repeats its progress report with the id of the next batch. Do not count
        # such repetitions.
        took = progress.get("durationMs", {})
        if "addBatch" not in took or batch == self.last_batch:
            return
        self.last_batch = batch
        self.rows += max(0, int(progress.get("numInputRows", 0)))
        seconds = took.get("triggerExecution", took["addBatch"]) / 1000
        self.seconds += seconds
        self.counts[sum(seconds > bound for bound in _BUCKETS_S)] += 1


class _Collector(Collector):
    def __init__(self) -> None:
        self._lock = new_lock()
        self._queries: dict[str, _Query] = {}

    def describe(self) -> list[Metric]:
        """Returns no metric families. Without `describe`, registering this collector would collect all metrics."""
        return []

    def started(self, query_id: str, run_id: str, name: str | None) -> None:
        with self._lock:
            self._queries.setdefault(query_id, _Query(name or query_id)).started(run_id)

    def ended(self, query_id: str, run_id: str, *, failed: bool = False) -> None:
        with self._lock:
            query = self._queries.get(query_id)
            if query is not None:
                query.ended(run_id, failed=failed)

    def progress(self, progress: Mapping[str, Any]) -> None:
        query_id = str(progress["id"])
        with self._lock:
            query = self._queries.get(query_id)
            if query is None:  # the query started before the listener was added
                query = self._queries[query_id] = _Query(progress.get("name") or query_id)
                query.started(str(progress.get("runId")))
            query.progress(progress)

    def collect(self) -> Iterator[Metric]:
        """Yields all families."""
        batches = CounterMetricFamily(
            "kafkasafe_spark_batches",
            "Micro-batches of sinks and writers, by outcome.",
            labels=["query", "outcome"],
        )
        rows = CounterMetricFamily(
            "kafkasafe_spark_rows", "Rows read (in) and committed (out).", labels=["query", "direction"]
        )
        restarts = CounterMetricFamily(
            "kafkasafe_spark_restarts", "Restarted transactions of micro-batches.", labels=["query"]
        )
        retries = CounterMetricFamily(
            "kafkasafe_spark_retries", "Requests with records that were sent again.", labels=["query"]
        )
        sent = CounterMetricFamily("kafkasafe_spark_sent_bytes", "Bytes of sent batches.", labels=["query"])
        duration = HistogramMetricFamily(
            "kafkasafe_spark_batch_duration_seconds", "Duration of a micro-batch.", labels=["query"]
        )
        lag = GaugeMetricFamily(
            "kafkasafe_spark_offsets_behind_latest", "Records not read yet.", labels=["query"]
        )
        active = GaugeMetricFamily("kafkasafe_spark_active_queries", "Running queries.")
        failures = CounterMetricFamily(
            "kafkasafe_spark_query_failures", "Query runs that ended with an exception.", labels=["query"]
        )
        events = CounterMetricFamily(
            "kafkasafe_spark_source_events",
            "Events of the source: end offsets held or regressed, records lost.",
            labels=["topic", "event", "reason"],
        )
        lost = CounterMetricFamily(
            "kafkasafe_spark_source_lost_records",
            "Lost records that queries skipped.",
            labels=["topic", "reason"],
        )
        with self._lock:
            names = {query_id: query.name for query_id, query in self._queries.items()}
            active.add_metric([], sum(query.run is not None for query in self._queries.values()))
            self._add_queries(rows, failures, lag, duration)
        outcomes: Counter[tuple[str, str]] = Counter()
        for (query_id, outcome), count in stats.batches.copy().items():
            outcomes[names.get(query_id, query_id), outcome] += count
        for labels, count in outcomes.items():
            batches.add_metric(labels, count)
        for family, counted, more in (
            (rows, stats.rows, ["out"]),
            (restarts, stats.restarts, []),
            (retries, stats.retries, []),
            (sent, stats.sent_bytes, []),
        ):
            sums: Counter[str] = Counter()
            for query_id, count in counted.copy().items():
                sums[names.get(query_id, query_id)] += count
            for name, count in sums.items():
                family.add_metric([name, *more], count)
        for event, count in stats.source_events.copy().items():
            events.add_metric(event, count)
        for loss, count in stats.source_lost_records.copy().items():
            lost.add_metric(loss, count)
        yield from (batches, rows, restarts, retries, sent, duration, lag, active, failures, events, lost)

    def _add_queries(
        self,
        rows: CounterMetricFamily,
        failures: CounterMetricFamily,
        lag: GaugeMetricFamily,
        duration: HistogramMetricFamily,
    ) -> None:
        """Add the values of the queries, by name. Called with the lock held."""
        # Queries with different ids may have the same name, for instance after a new checkpoint.
        by_name: dict[str, list[_Query]] = {}
        for query in self._queries.values():
            by_name.setdefault(query.name, []).append(query)
        for name, queries in by_name.items():
            rows.add_metric([name, "in"], sum(query.rows for query in queries))
            failures.add_metric([name], sum(query.failures for query in queries))
            running = [query for query in queries if query.run is not None] or queries[-1:]
            lags = [query.lag for query in running if query.lag is not None]
            if lags:
                lag.add_metric([name], sum(lags))
            total, buckets = 0, []
            counts = map(sum, zip(*(query.counts for query in queries), strict=True))
            for bound, count in zip([*map(str, _BUCKETS_S), "+Inf"], counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            duration.add_metric([name], buckets, sum(query.seconds for query in queries))


def _expect_sources() -> None:
    """Prepares the inbox that receives events from the sources of this process's Spark driver.

    Does nothing if this process has no JVM, for example with Spark Connect.
    """
    try:
        connection = gateway()
        if connection is not None:
            inbox.expect_sources(int(connection.jvm.java.lang.ProcessHandle.current().pid()))
    except Exception as failed:  # py4j may raise any exception, and a missing count must not end a query
        log.debug("Spark's JVM process is unknown, so events of sources are not counted: %r", failed)


def _behind(sources: Any, before: int | None) -> int | None:
    """Returns a query's lag: how many records lie between the positions of its sources and the ends of the logs.

    Returns `before` if no source reports where the logs end.
    """
    total, reported = 0, False
    for source in sources:
        end, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if end and latest:
            reported = True
            total += sum(max(0, offset - end.get(place, offset)) for place, offset in latest.items())
    return total if reported else before


def _offsets(position: Any) -> dict[tuple[str, str], int]:
    """Converts a position of kafkasafe's source or Spark's own Kafka source to a dict (topic, partition) → offset."""
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

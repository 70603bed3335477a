"""The Spark row of examples/dashboard, and its alerts: a real Prometheus, queries that really fail."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from sourcing import delete_before, new_topic, until, write

from kafkasafe.metrics import serve
from kafkasafe.spark import MetricsListener, foreach_batch_sink
from kafkasafe.testing.broker import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

IN = 'kafkasafe_spark_rows_total{query="copies", direction="in"} == 20'
EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "dashboard"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its modules are run as a program from their directory."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    import run

    yield run
    for name in ("run", "tools", "workload", "grafana"):
        sys.modules.pop(name, None)


@pytest.fixture
def scraped(spark: SparkSession) -> Iterator[str]:
    """Where the metrics of this Spark's queries are: `host:port`."""
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    spark.streams.addListener(listener)
    with serve(registry=registry) as server:
        yield f"127.0.0.1:{server.port}"
    spark.streams.removeListener(listener)
    listener.close()


@pytest.mark.timeout(600)
def test_alerts_fire_when_a_query_fails_and_when_it_goes_on_without_records(
    spark: SparkSession, kafka: KafkaCluster, scraped: str, example: Any, tmp_path: Path
) -> None:
    source, target = new_topic(kafka), new_topic(kafka, config={"max.message.bytes": "2000"})
    servers = {"kafka.bootstrap.servers": ",".join(kafka.bootstrap_servers)}
    write(kafka, source, [b"%d" % number for number in range(20)])

    sink = foreach_batch_sink(target, **servers)
    slow: list[str] = []

    def run(name: str) -> str:
        """What ended a query that copies what there is, if something did."""
        while True:
            query = (
                spark.readStream.format("kafkasafe")
                .options(**servers, subscribe=source, startingOffsets="earliest", failOnDataLoss="false")
                .load()
                .selectExpr("value")
                .writeStream.queryName(name)
                .foreachBatch(sink)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            until(lambda query=query: not query.isActive)
            ended = str(query.exception() or "")
            # Spark gives a Python process ten seconds to connect, which a busy machine exceeds: a failure as well.
            if "to connect back" not in ended and "CANNOT_OPEN_SOCKET" not in ended:
                return ended
            slow.append(ended)

    with example.Prometheus(scraped) as prometheus:

        def fired() -> set[tuple[str, str]]:
            """Other tests of this process have their own sinks and sources."""
            return {alert for alert in prometheus.alerts() if alert[1] in {"copies", source}}

        try:
            example.wait_for(lambda: bool(prometheus.query("up == 1")), lambda: "a scrape")
            assert run("copies") == ""
            example.wait_for(lambda: bool(prometheus.query(IN)), lambda: "the rows")
            assert slow or fired() == set()
            # Retention removes what was not read yet, and a row is too large for where it goes.
            write(kafka, source, [b"%d" % number for number in range(20, 40)])
            delete_before(kafka, source, 30)
            write(kafka, source, [random.randbytes(5000)])
            assert "RejectedError" in run("copies")
            expected = {("SparkSourceDataLost", source), ("SparkBatchFailed", "copies")}
            example.wait_for(lambda: fired() == expected, lambda: sorted(prometheus.alerts()))
            # Both by what the sink reports and by what Spark does: a function of the user's own may fail.
            for kind in ("failed_batches", "query_failures"):
                recorded = f'kafkasafe:spark_{kind}:new15m{{query="copies"}} > 0'
                example.wait_for(
                    lambda asked=recorded: bool(prometheus.query(asked)), lambda asked=recorded: asked
                )
            asked = example.expressions(spark=True)
            assert len(asked) > 10
            example.answered(prometheus, asked)
        finally:
            sink.close()

"""`format("kafkasafe")` in a real Spark, on real brokers."""

from __future__ import annotations

import json
import logging
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sourcing
from noting import events_of
from prometheus_client import CollectorRegistry
from sourcing import Load, new_topic, until, write

from kafkasafe.events import SourceDataLost
from kafkasafe.spark import KafkaSafeSource, MetricsListener, register
from kafkasafe.spark.options import read_options
from kafkasafe.spark.source_readers import StreamReader
from kafkasafe.testing.broker import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def numbered(first: int, behind: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, behind)]


@pytest.fixture
def options(kafka_cluster: KafkaCluster) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": ",".join(kafka_cluster.bootstrap_servers),
        "startingOffsets": "earliest",
    }


@pytest.fixture
def load(spark: SparkSession, options: dict[str, str]) -> Callable[..., DataFrame]:
    def load(topic: str, **more: str) -> DataFrame:
        return spark.read.format("kafkasafe").options(**options, subscribe=topic, **more).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts a query that appends values to a Parquet directory, which Spark writes exactly once."""
    queries: list[StreamingQuery] = []

    def start(topic: str, *, available_now: bool = True, **more: str) -> StreamingQuery:
        frame = spark.readStream.format("kafkasafe").options(**options, subscribe=topic, **more).load()
        writer = (
            frame.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        writer = (
            writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="0 seconds")
        )
        queries.append(writer.start())
        return queries[-1]

    yield start
    for query in queries:
        query.stop()


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> Callable[[], list[bytes]]:
    """What the stream has written, by offset."""

    def rows() -> list[bytes]:
        found = spark.read.schema("value STRING, partition INT, offset LONG").parquet(str(tmp_path / "out"))
        return [row.value.encode() for row in found.orderBy("partition", "offset").collect()]

    return rows


def is_slow_start(query: StreamingQuery) -> bool:
    """Spark gives a Python process ten seconds to connect, which a busy machine exceeds. Nothing was read then."""
    return "to connect back" in str(query.exception())


def finish(start: Callable[..., StreamingQuery], topic: str, **given: str) -> StreamingQuery:
    """A query that has read what there is."""
    while True:
        query = start(topic, **given)
        until(lambda query=query: not query.isActive, 120)
        if not is_slow_start(query):
            assert query.exception() is None, query.exception()
            return query


def started(start: Callable[..., StreamingQuery], topic: str) -> StreamingQuery:
    """A query that goes on, and has run a batch."""
    while True:
        query = start(topic, available_now=False)
        until(lambda query=query: not query.isActive or query.lastProgress, 120)
        if not is_slow_start(query):
            assert query.isActive, query.exception()
            return query


def failure(start: Callable[..., StreamingQuery], topic: str, **given: str) -> str:
    """What ended a query."""
    while True:
        query = start(topic, **given)
        until(lambda query=query: not query.isActive, 120)
        if not is_slow_start(query):
            return str(query.exception())


# --- batch ----------------------------------------------------------------------------------------------------------


def test_a_batch_query_sees_what_sparks_own_source_would(
    load: Callable[..., DataFrame], kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster, 3)
    with sourcing.producing(kafka_cluster) as producer:
        for number in range(300):
            headers = [("h", b"%d" % number)] if number % 2 else None
            producer.produce(
                topic, b"%d" % number, key=b"k%d" % (number % 7), partition=number % 3, headers=headers
            )
    frame = load(topic)
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
    ]
    frame = load(topic, includeHeaders="true", minPartitions="7")
    assert frame.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    assert frame.rdd.getNumPartitions() >= 7
    rows = {bytes(row.value): row for row in frame.collect()}
    assert set(rows) == set(numbered(0, 300))
    row = rows[b"5"]
    assert (bytes(row.key), row.topic, row.partition, row.offset, row.timestampType) == (
        b"k5",
        topic,
        2,
        1,
        0,
    )
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"5")]
    assert rows[b"4"].headers is None
    assert abs(row.timestamp.timestamp() - time.time()) < 600


def test_columns_that_are_not_wanted_are_not_read(
    spark: SparkSession, options: dict[str, str], kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, numbered(0, 50))
    reader = spark.read.format("kafkasafe").options(**options, subscribe=topic)
    frame = reader.schema("offset LONG, value BINARY").load()
    assert [(row.offset, bytes(row.value)) for row in frame.collect()] == list(enumerate(numbered(0, 50)))


def test_an_empty_topic_and_an_empty_range(
    load: Callable[..., DataFrame], kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster, 2)
    assert load(topic, includeHeaders="true").collect() == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"startingOffset": "latest"}, "Did you mean startingOffsets?"),
        ({"subscribePattern": "x"}, "give exactly one"),
        (
            {"kafka.bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.pollTimeoutMs": "500"},
            "No broker at 127.0.0.1:1",
        ),
        ({"subscribe": "not-there"}, "does not have not-there: create it"),
        ({"onEvent": "nowhere.to.be:found"}, "cannot be imported"),
    ],
)
def test_what_is_wrong_is_told_with_the_fix(
    spark: SparkSession, options: dict[str, str], given: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match=r"KAFKASAFE\.") as raised:
        spark.read.format("kafkasafe").options(**{**options, "subscribe": "x", **given}).load().collect()
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("schema", "told"),
    [("valu BINARY", "use only key, value, topic"), ("value STRING", "Column value is binary, not string")],
)
def test_a_schema_that_cannot_be(
    spark: SparkSession, options: dict[str, str], schema: str, told: str
) -> None:
    reader = spark.read.format("kafkasafe").schema(schema).options(**options, subscribe="x")
    with pytest.raises(Exception, match=told):
        reader.load().collect()


def test_the_types_are_those_that_spark_expects_of_arrow() -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from kafkasafe.spark.columns import arrow_schema
    from kafkasafe.spark.source import KafkaSafeSource

    schema = KafkaSafeSource({"includeHeaders": "true"}).schema()
    assert arrow_schema(schema).equals(to_arrow_schema(schema, timezone="UTC"), check_metadata=True)


# --- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_goes_on_from_its_checkpoint(
    stream: Callable[..., StreamingQuery], written: Callable[[], list[bytes]], kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, numbered(0, 100))
    query = finish(stream, topic, maxOffsetsPerTrigger="30")
    assert [progress.numInputRows for progress in query.recentProgress] == [30, 30, 30, 10]
    assert written() == numbered(0, 100)
    write(kafka_cluster, topic, numbered(100, 140))
    finish(stream, topic)
    assert written() == numbered(0, 140)
    # Nothing new: nothing is run.
    finish(stream, topic)
    assert written() == numbered(0, 140)


def test_a_stream_under_load_while_leaders_move_and_a_broker_dies(
    stream: Callable[..., StreamingQuery], written: Callable[[], list[bytes]], kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster)
    with Load(kafka_cluster, topic, pause_s=0.001) as load:
        query = started(stream, topic)

        def batches(more: int) -> None:
            before = query.lastProgress.batchId if query.lastProgress else 0
            until(
                lambda: (
                    not query.isActive or (query.lastProgress and query.lastProgress.batchId >= before + more)
                )
            )
            assert query.isActive, query.exception()

        batches(1)
        for _ in range(2):
            state = kafka_cluster.wait_in_sync(topic, 0)
            kafka_cluster.move_leader(topic, 0, to=next(n for n in state.replicas if n != state.leader))
            batches(2)
        leader = kafka_cluster.leader(topic)
        kafka_cluster.kill(leader)
        batches(2)
        kafka_cluster.start(leader)
        # Another life of the query, in the middle.
        query.stop()
        query = started(stream, topic)
        batches(2)
        load.stop()
        query.stop()
        finish(stream, topic)
        assert written() == numbered(0, load.count)


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_new_query_of_spark_4_0_asks_for_its_end_before_its_begin(
    options: dict[str, str], kafka_cluster: KafkaCluster, starting: str
) -> None:
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, numbered(0, 10))
    given = {**options, "subscribe": topic, "startingOffsets": starting}
    reader = StreamReader(read_options(given, streaming=True), KafkaSafeSource(given).schema())

    def values(start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        rows = [reader.read(piece) for piece in reader.partitions(start, end)]
        return [value for batches in rows for batch in batches for value in batch["value"].to_pylist()]

    try:
        first_end = reader.latestOffset()
        write(kafka_cluster, topic, numbered(10, 15))
        begin = reader.initialOffset()
        assert values(begin, first_end) == (numbered(0, 10) if starting == "earliest" else [])
        second_end = reader.latestOffset()
        assert values(first_end, second_end) == numbered(10, 15)
        assert reader.latestOffset() == second_end, "Spark would run an empty batch"
    finally:
        reader.stop()


def test_a_range_without_records_is_none_in_spark_4_0(options: dict[str, str]) -> None:
    given = {**options, "subscribe": "any"}
    reader = StreamReader(read_options(given, streaming=True), KafkaSafeSource(given).schema())
    assert list(reader.read(None)) == []


@pytest.fixture
def register_with(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Registers the source in a session whose workers would be another Python. A registered source keeps that one."""

    def with_python(python: str) -> None:
        monkeypatch.setattr(spark.sparkContext, "pythonExec", python)
        register(spark)

    yield with_python
    monkeypatch.undo()
    register(spark)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Other threads log too."""
    return [record for record in caplog.records if getattr(record, "event", "") == "other_worker_python"]


def test_a_python_for_the_workers_that_lacks_something_is_told(
    register_with: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a script that is run with an environment's interpreter, without activating it."""
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False)
    for _ in range(2):
        register_with(str(bare / "bin" / "python3"))
    (told,) = warnings_of(caplog)
    assert f"will run {bare}/bin/python3, which has no " in told.getMessage()
    assert "tenacity" in told.getMessage()
    assert "PYSPARK_PYTHON" in told.getMessage()


def test_a_python_for_the_workers_that_has_everything_is_not_told(
    register_with: Callable[[str], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that is a link, or comes by way of a version manager."""
    shim = tmp_path / "python3"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    shim.chmod(0o755)
    for python in (sys.executable, str(shim), "no-such-python"):
        register_with(python)
    assert warnings_of(caplog) == []


def stream_id(tmp_path: Path) -> str:
    """Of a query that has no name: what metrics call it by."""
    found: str = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
    return found


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_are_gone_before_a_stream_read_them(
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    stream: Callable[..., StreamingQuery],
    written: Callable[[], list[bytes]],
    kafka_cluster: KafkaCluster,
    fail: str,
) -> None:
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, numbered(0, 20))
    finish(stream, topic)
    write(kafka_cluster, topic, numbered(20, 40))
    sourcing.delete_before(kafka_cluster, topic, 30)
    given = {"failOnDataLoss": fail, "onEvent": "noting:note"}
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    spark.streams.addListener(listener)
    request.addfinalizer(listener.close)
    request.addfinalizer(lambda: spark.streams.removeListener(listener))

    def sample(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"kafkasafe_spark_{name}_total", labels)

    if fail == "true":
        query = stream_id(tmp_path)
        told = failure(stream, topic, **given)
        # Spark tells its listeners later; a run that began too slowly was one more.
        until(lambda: sample("query_failures", query=query))
        assert "KAFKASAFE.DATA_LOSS" in told
        assert "removed offsets 20 to 29 unread" in told
        assert written() == numbered(0, 20)
        return
    query = finish(stream, topic, **given)
    assert written() == numbered(0, 20) + numbered(30, 40)
    entry = query.lastProgress.sources[0].endOffset
    assert '"why": "retention", "lost_first": 20, "lost_last": 29' in str(entry)
    told = events_of(topic).read_text()
    events_of(topic).unlink()
    assert told == f"{SourceDataLost(topic, 0, 'retention', 20, 30, (20, 29))}\n"
    # What the process of the planner noticed, the driver counts.
    until(lambda: sample("source_events", topic=topic, event="lost", reason="retention") == 1)
    assert sample("source_lost_records", topic=topic, reason="retention") == 10


def test_the_checkpoint_of_something_else(
    stream: Callable[..., StreamingQuery], kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, numbered(0, 3))
    finish(stream, topic)
    offsets = next(path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name == "0")
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:-1], '{"rows": 17}']))
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink()
    for commit in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        commit.unlink()
    for commit in (tmp_path / "checkpoint" / "commits").glob(".0*"):
        commit.unlink()
    assert "CHECKPOINT_OF_ANOTHER_SOURCE" in failure(stream, topic)


def test_a_batch_that_goes_back_is_planned_again_when_its_entry_is_deleted(
    stream: Callable[..., StreamingQuery],
    written: Callable[[], list[bytes]],
    kafka_cluster: KafkaCluster,
    tmp_path: Path,
) -> None:
    """The steps of docs/spark-operations.md."""
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, numbered(0, 10))
    finish(stream, topic)
    offsets = tmp_path / "checkpoint" / "offsets"
    # As of a leader that answered too little, on a Spark that does not say where a batch begins.
    text = (offsets / "0").read_text()
    assert '"offset": 10' in text
    (offsets / "1").write_text(
        text.replace('"offset": 10', '"offset": 4').replace('"begin": 0', '"first": 0')
    )
    for _ in range(2):
        assert "OFFSETS_GO_BACK" in failure(stream, topic)
    write(kafka_cluster, topic, numbered(10, 15))
    assert not (tmp_path / "checkpoint" / "commits" / "1").exists()
    (offsets / "1").unlink()
    (offsets / ".1.crc").unlink(missing_ok=True)
    finish(stream, topic)
    assert written() == numbered(0, 15)


def test_a_committed_reader_streams_only_what_was_committed(
    stream: Callable[..., StreamingQuery], written: Callable[[], list[bytes]], kafka_cluster: KafkaCluster
) -> None:
    topic = new_topic(kafka_cluster)
    sourcing.transact(kafka_cluster, topic, [b"gone"] * 5, commit=False)
    sourcing.transact(kafka_cluster, topic, numbered(0, 5), commit=True)
    given = {"kafka.isolation.level": "read_committed"}
    until(lambda: [finish(stream, topic, **given), written()][1] == numbered(0, 5))


# --- the audit ------------------------------------------------------------------------------------------------------


def test_spark_audits_as_one_process_does(spark: SparkSession, kafka_cluster: KafkaCluster) -> None:
    from kafkasafe.audit import IdSource, audit

    topic = new_topic(kafka_cluster, 2)
    for first in (0, 100, 100):
        with sourcing.producing(kafka_cluster) as producer:
            for number in range(first, first + 100):
                value = b'{"a b": %d}' % number
                producer.produce(
                    topic, value, key=b"k%d" % number, partition=number % 2, headers=[("h", b"%d" % number)]
                )
    write(kafka_cluster, topic, [b"no json"])
    connection = {"bootstrap_servers": kafka_cluster.bootstrap_servers}
    for ids in ("json:a b", "header:h"):
        one = audit(topic, connection, ids=IdSource.parse(ids))
        other = audit(topic, connection, ids=IdSource.parse(ids), spark=spark)
        assert other.ids is not None
        assert one.ids is not None
        assert (other.ids.records, other.ids.distinct, other.ids.missing, other.ids.without_id) == (
            one.ids.records,
            one.ids.distinct,
            one.ids.missing,
            one.ids.without_id,
        )
        assert (one.ids.repeated, other.partitions) == (100, one.partitions)


@pytest.mark.parametrize(
    ("ids", "missing"),
    [
        ([b"1", b"01", b"3"], 1),  # two texts, but one number
        ([b"7", b"9\n"], None),
        ([b"1" * 40, b"2"], None),  # Spark's numbers have at most 38 digits
    ],
)
def test_spark_finds_missing_numbers(
    spark: SparkSession, kafka_cluster: KafkaCluster, ids: list[bytes], missing: int | None
) -> None:
    from kafkasafe.audit import IdSource, audit

    topic = new_topic(kafka_cluster)
    for value in ids:
        write(kafka_cluster, topic, [b"x"], headers=[("h", None), ("h", value)])
    connection = {"bootstrap_servers": kafka_cluster.bootstrap_servers}
    for count_with in (None, spark):
        found = audit(topic, connection, ids=IdSource.parse("header:h"), spark=count_with).ids
        assert found is not None
        assert (found.distinct, found.without_id) == (len(ids), 0)
    assert found.missing == missing

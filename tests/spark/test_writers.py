"""`df.write` and `writeStream` with `format("kafkasafe")`, on a real Spark and a real Kafka."""

from __future__ import annotations

import collections
import json
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from kafka.errors import KafkaError
from prometheus_client import CollectorRegistry
from pyspark.sql import Row
from sinks import crash, killing_driver, new_name, numbers, options, read, values
from sourcing import delete_before

from kafkasafe.errors import CheckpointMismatchError, ConfigError, UsageError
from kafkasafe.record.partition import partition_for_key
from kafkasafe.spark import MetricsListener, foreach_batch_sink, tasks, write_batch, writers
from kafkasafe.spark.appender import FencedError
from kafkasafe.spark.connections import close_connections
from kafkasafe.spark.marker_store import MarkerStore
from kafkasafe.spark.staging import StagingError
from kafkasafe.spark.transactions import TransactionRequests
from kafkasafe.spark.writers import batch_writer, parts_of_rows, stream_writer

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

STAGED = pytest.mark.parametrize("inline", ["1048576", "0"], ids=["inline", "staged"])
STAGED_IN_FULL = pytest.mark.parametrize(
    "inline", ["1048576", pytest.param("0", marks=pytest.mark.full)], ids=["inline", "staged"]
)


@pytest.fixture
def topic(kafka):
    name = new_name()
    kafka.create_topic(name, partitions=3)
    return name


def rows(spark, begin, end, *columns):
    return spark.range(begin, end, 1, 2).selectExpr(*(columns or ["CAST(id AS STRING) AS value"]))


def save(df, cluster, **more):
    df.write.format("kafkasafe").mode("append").options(**options(cluster, **more)).save()


# --- batch queries --------------------------------------------------------------------------------------------------


@STAGED
def test_keys_headers_and_nulls_arrive_as_the_sink_writes_them(spark, kafka, topic, inline):
    columns = [
        "IF(id % 7 = 0, NULL, CAST(id AS STRING)) AS Key",
        "'ignored' AS note",
        "IF(id % 5 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
        (
            "IF(id % 3 = 0, NULL, array(struct('trace' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value),"
            " struct('empty' AS key, CAST(NULL AS BINARY) AS value))) AS headers"
        ),
    ]
    other = new_name()
    kafka.create_topic(other, partitions=3)
    save(rows(spark, 0, 3000, *columns), kafka, TOPIC=topic, inlinebytes=inline)
    write_batch(rows(spark, 0, 3000, *columns), other, **options(kafka))
    ours, theirs = (
        collections.Counter(
            (m.key(), m.value(), str(m.headers()), m.partition() if m.key() else None)
            for m in read(kafka, name)
        )
        for name in (topic, other)
    )
    assert ours.total() == 3000
    assert ours == theirs
    assert all(partition == partition_for_key(key, 3) for key, _, _, partition in ours if key)


@STAGED
def test_the_columns_topic_and_partition_say_where_rows_go(spark, kafka, topic, inline):
    other = new_name()
    kafka.create_topic(other, partitions=2)
    save(
        rows(
            spark,
            0,
            400,
            "CAST(id AS STRING) AS value",
            f"IF(id % 2 = 0, '{topic}', '{other}') AS topic",
            "CAST(IF(id % 4 < 2, 1, NULL) AS INT) AS partition",
        ),
        kafka,
        inlineBytes=inline,
    )
    assert values(kafka, topic) == numbers(range(0, 400, 2))
    assert values(kafka, other) == numbers(range(1, 400, 2))
    assert all(
        m.partition() == 1 for name in (topic, other) for m in read(kafka, name) if int(m.value()) % 4 < 2
    )


def test_more_than_fits_into_a_message_goes_by_the_staging_topic(spark, kafka, topic):
    staging = new_name("staging")
    long = "CONCAT(CAST(id AS STRING), '-', REPEAT(SHA2(CAST(id AS STRING), 512), 10)) AS value"
    settings = {
        "topic": topic,
        "stagingTopic": staging,
        "kafka.batch.size": "100000",
        "inlineBytes": "500000",
    }
    save(rows(spark, 0, 100, long), kafka, **settings)
    with kafka.admin() as admin:
        assert staging not in admin.list_topics()
    save(rows(spark, 0, 3000, long), kafka, **settings)
    found = collections.Counter(int(m.value().split(b"-")[0]) for m in read(kafka, topic))
    assert found == collections.Counter([*range(100), *range(3000)])
    staged = read(kafka, staging)
    assert len(staged) >= 30
    assert all(len(m.value()) < 110_000 for m in staged)


def test_a_version_is_written_once(spark, kafka, topic):
    app = new_name("job")
    for version in (1, 1, 4, 3):
        save(
            rows(spark, version * 10, version * 10 + 10), kafka, topic=topic, txnAppId=app, txnVersion=version
        )
    assert values(kafka, topic) == numbers(range(10, 20), range(40, 50))
    save(rows(spark, 0, 10), kafka, topic=topic)
    save(rows(spark, 0, 0), kafka, topic=topic)
    save(rows(spark, 0, 10), kafka, topic=topic)
    assert values(kafka, topic) == numbers(range(10), range(10), range(10, 20), range(40, 50))


def test_what_cannot_work_is_told_before_anything_is_written(spark, kafka, topic, tmp_path):
    def refused(match, df=None, mode="append", **more):
        df = rows(spark, 0, 10) if df is None else df
        writer = df.write.format("kafkasafe").options(**options(kafka, **{"topic": topic, **more}))
        with pytest.raises(Exception, match=match):
            (writer.mode(mode) if mode else writer).save()

    refused('UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*"Append"', mode=None)
    refused(r'INVALID_MODE.*records of a topic cannot be replaced: use .mode\("append"\)', mode="overwrite")
    refused(
        "'stagingtopc' is not an option of the kafkasafe sink. Did you mean stagingTopic", stagingTopc="x"
    )
    refused("txnAppId and txnVersion belong together", txnAppId="x")
    refused("txnAppId and txnVersion belong together", txnVersion="1")
    refused("inlineBytes", inlineBytes="-1")
    refused("There is no column value among id", spark.range(3))
    refused("Column key is bigint", spark.range(3).selectExpr("id AS key", "'' AS value"))
    refused("A row's partition is 7", rows(spark, 0, 3, "'x' AS value", "7 AS partition"))
    refused("A row of about", rows(spark, 0, 1, "REPEAT('x', 2000000) AS value"))
    assert values(kafka, topic) == numbers()
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    for match, mode, more in (
        ("txnVersion is for batch use", "append", {"txnVersion": "3"}),
        ("does not support Update mode", "update", {}),
        ("onMarkerMismatch", "append", {"onMarkerMismatch": "perhaps"}),
    ):
        query = stream.writeStream.format("kafkasafe").outputMode(mode)
        with pytest.raises(Exception, match=match):
            query.options(
                **options(kafka, topic=topic, checkpointLocation=str(tmp_path / new_name()), **more)
            ).start().awaitTermination(300)


# --- streaming queries ----------------------------------------------------------------------------------------------


class Query:
    """A streaming query over files of numbers, which is run to their end again and again."""

    def __init__(self, spark, kafka, topic, folder: Path) -> None:
        self.spark, self.topic = spark, topic
        self.source, self.checkpoint = str(folder / "in"), folder / "checkpoint"
        self.options = options(kafka, topic=topic)

    def add(self, begin, end):
        rows(self.spark, begin, end).coalesce(1).write.mode("append").text(self.source)

    def run(self, where="true", **more):
        """What Spark says of the batches."""
        query = (
            self.spark.readStream.schema("value string")
            .option("maxFilesPerTrigger", 1)
            .text(self.source)
            .where(where)
            .writeStream.format("kafkasafe")
            .options(**{**self.options, **more})
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(300)
            return [progress.batchId for progress in query.recentProgress]
        finally:
            query.stop()

    def forget_commit(self, batch_id):
        """As if the driver had died before Spark wrote it down."""
        for name in (f"{batch_id}", f".{batch_id}.crc"):
            (self.checkpoint / "commits" / name).unlink()


@STAGED_IN_FULL
def test_a_stream_writes_each_batch_once_however_it_is_repeated(spark, kafka, topic, tmp_path, inline):
    query = Query(spark, kafka, topic, tmp_path)
    for number in range(3):
        query.add(number * 100, number * 100 + 100)
    assert query.run(inlineBytes=inline) == [0, 1, 2]
    query.forget_commit(2)
    query.add(300, 400)
    assert query.run(inlineBytes=inline) == [2, 3]
    # A batch without rows moves the marker too.
    query.add(0, 50)
    assert query.run("false") == [4]
    query.add(400, 500)
    assert query.run(inlineBytes=inline) == [5]
    assert values(kafka, topic) == numbers(range(500))
    assert values(kafka, topic, committed=False) == numbers(range(500))


def test_a_stream_goes_on_where_the_sink_ended_and_the_other_way_round(spark, kafka, topic, tmp_path):
    query = Query(spark, kafka, topic, tmp_path)
    query.add(0, 100)
    query.run()
    query.add(100, 200)
    sink = foreach_batch_sink(topic, **options(kafka))
    stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(query.source)
    by_sink = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(query.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert by_sink.awaitTermination(300)
    sink.close()
    query.forget_commit(1)
    query.add(200, 300)
    query.run()
    assert values(kafka, topic) == numbers(range(300))


def test_a_commit_that_fails_ends_the_query_and_its_restart_writes_the_batch(spark, kafka, topic, tmp_path):
    query = Query(spark, kafka, topic, tmp_path)
    query.add(0, 100)
    query.run()
    query.add(100, 200)
    too_long = {"kafka.transaction.timeout.ms": "86400000"}
    with pytest.raises(Exception, match=r"more than the brokers' transaction\.max\.timeout\.ms"):
        query.run(**too_long)
    assert values(kafka, topic) == numbers(range(100))
    query.run()
    assert values(kafka, topic, committed=False) == numbers(range(200))


def test_the_listener_counts_what_commit_did_in_its_own_process(spark, kafka, topic, tmp_path):
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    spark.streams.addListener(listener)
    query = Query(spark, kafka, topic, tmp_path)

    def counted():
        """Outcomes and rows by now; Spark tells its listeners later."""
        deadline = time.monotonic() + 60
        while registry.get_sample_value("kafkasafe_spark_active_queries") != 0:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        metadata = json.loads((query.checkpoint / "metadata").read_text())
        labels = {"query": metadata["id"]}
        rows_out = registry.get_sample_value("kafkasafe_spark_rows_total", {**labels, "direction": "out"})
        outcomes = {
            name: registry.get_sample_value("kafkasafe_spark_batches_total", {**labels, "outcome": name})
            for name in ("written", "duplicate", "failed")
        }
        return rows_out, {name: count for name, count in outcomes.items() if count}

    try:
        for number in range(3):
            query.add(number * 100, number * 100 + 100)
        query.run()
        assert counted() == (300, {"written": 3})
        query.forget_commit(2)
        query.run()
        assert counted() == (300, {"written": 3, "duplicate": 1})
        query.add(300, 400)
        with pytest.raises(Exception, match=r"more than the brokers' transaction\.max\.timeout\.ms"):
            query.run(**{"kafka.transaction.timeout.ms": "86400000"})
        assert counted() == (300, {"written": 3, "duplicate": 1, "failed": 1})
        query.run()
        assert counted() == (400, {"written": 4, "duplicate": 1, "failed": 1})
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_a_checkpoint_that_does_not_fit_is_refused(spark, kafka, topic, tmp_path):
    app = new_name("app")
    query = Query(spark, kafka, topic, tmp_path / "one")
    query.options["txnAppId"] = app
    query.add(0, 100)
    query.run()
    other = Query(spark, kafka, topic, tmp_path / "two")
    other.options["txnAppId"] = app
    other.add(100, 200)
    with pytest.raises(Exception, match=r"CHECKPOINT_MISMATCH.*belongs to query"):
        other.run()
    assert values(kafka, topic) == numbers(range(100))


def test_complete_mode_appends_the_whole_result_as_sparks_own_sink_does(spark, kafka, topic, tmp_path):
    rows(spark, 0, 40, "CAST(id % 4 AS STRING) AS value").write.text(str(tmp_path / "in"))
    counts = spark.readStream.schema("value string").text(str(tmp_path / "in")).groupBy("value").count()
    query = (
        counts.selectExpr("CONCAT(value, ':', count) AS value")
        .writeStream.format("kafkasafe")
        .outputMode("complete")
        .options(**options(kafka, topic=topic, checkpointLocation=str(tmp_path / "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(300)
    assert values(kafka, topic) == collections.Counter([b"0:10", b"1:10", b"2:10", b"3:10"])


# --- without Spark: each step, and what may be lost -----------------------------------------------------------------


class Task:
    """What a writer asks of Spark's TaskContext."""

    def __init__(self, number=0, attempt=0, query="query", batch=None) -> None:
        self.number, self.attempt = number, attempt
        self.properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": batch}

    def partitionId(self):
        return self.number

    def attemptNumber(self):
        return self.attempt

    def getLocalProperty(self, name):
        return self.properties[name]


class Steps:
    """A streaming writer's `write` and `commit`, in this process."""

    def __init__(self, kafka, topic, monkeypatch) -> None:
        self.kafka, self.monkeypatch = kafka, monkeypatch
        self.options = options(kafka, topic=topic, txnAppId=new_name("app"), stagingTopic=new_name("staging"))

    def writer(self, **more):
        from pyspark.sql.types import StringType, StructField, StructType

        return stream_writer({**self.options, **more}, StructType([StructField("value", StringType())]))

    def write(self, batch_id, *ranges, inline="0", **task):
        """The messages of tasks, one for each range."""
        messages = []
        for number, one in enumerate(ranges):
            self.monkeypatch.setattr(
                tasks, "task_context", lambda number=number: Task(number, batch=str(batch_id), **task)
            )
            part = pa.record_batch({"value": pa.array(list(map(str, one)), pa.string())})
            messages.append(self.writer(inlineBytes=inline).write(iter([part])))
        return messages

    def commit(self, messages, batch_id, **more):
        self.writer(**more).commit(messages, batch_id)


def close_sessions():
    """The next commit opens new ones."""
    while writers._sessions:
        writers._sessions.popitem()[1].close()


@pytest.fixture
def steps(kafka, topic, monkeypatch):
    yield Steps(kafka, topic, monkeypatch)
    close_sessions()
    close_connections()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["fence", "judge", "open", "verify", "mark", "commit"])
def test_a_commit_that_dies_at_any_step_is_followed_by_one_that_writes_once(
    kafka, topic, steps, monkeypatch, step, after
):
    steps.commit(steps.write(0, range(50)), 0)
    if step in {"fence", "judge"}:
        close_sessions()  # a session takes these two steps for its first batch only
    with crash(monkeypatch, step, after=after):
        steps.commit(steps.write(1, range(50, 90), range(90, 120)), 1)
    close_sessions()
    # Other tasks, by another way.
    steps.commit(steps.write(1, range(110, 120), range(50, 110), inline="1000000"), 1)
    steps.commit(steps.write(2, range(120, 130)), 2)
    assert values(kafka, topic) == numbers(range(130))


def test_a_commit_adds_the_topics_partitions_once(kafka, topic, steps, mocker):
    added = mocker.spy(TransactionRequests, "add_partitions")
    steps.commit(steps.write(0, range(50), inline="1000000"), 0)
    assert added.call_count == 1
    assert values(kafka, topic) == numbers(range(50))


def test_what_other_attempts_staged_is_not_written(kafka, topic, steps):
    steps.write(0, range(100), range(100, 200))
    won = steps.write(0, range(100), range(100, 200), attempt=1)
    steps.write(0, range(100), range(100, 200), attempt=2)
    steps.commit(won, 0)
    assert values(kafka, topic, committed=False) == numbers(range(200))


def test_a_staged_batch_that_was_deleted_fails_the_batch(kafka, topic, steps):
    messages = steps.write(0, range(100), range(100, 200))
    lost = messages[1].staged[0]
    delete_before(kafka, steps.options["stagingTopic"], lost.at_offset + 1, lost.at_partition)
    with pytest.raises(
        StagingError, match=r"STAGED_BATCH_LOST.*log now begins at [12] \(retention\?\).*longer retention"
    ):
        steps.commit(messages, 0)
    # The transaction is ended, and the batch can come again.
    assert values(kafka, topic) == numbers()
    steps.commit(steps.write(0, range(200)), 0)
    assert values(kafka, topic) == numbers(range(200))


def test_a_staged_batch_that_became_another_one_fails_the_batch(kafka, topic, steps):
    staging = steps.options["stagingTopic"]
    kafka.create_topic(staging, partitions=1)
    messages = steps.write(0, range(100, 200))
    kafka.delete_topic(staging)
    kafka.create_topic(staging, partitions=1)
    other = steps.write(0, range(500, 600))
    assert other[0].staged[0].at_offset == messages[0].staged[0].at_offset
    with pytest.raises(StagingError, match=r"STAGED_BATCH_LOST.*that offset contains other records"):
        steps.commit(messages, 0)
    assert values(kafka, topic) == numbers()


def test_results_of_another_batch_or_query_or_of_nobody_are_refused(kafka, topic, steps):
    zero, one = steps.write(0, range(10)), steps.write(1, range(10, 20))
    for messages in (one, [*zero, *one], [*zero, *steps.write(0, range(10, 20), query="other")]):
        with pytest.raises(UsageError, match="MIXED_BATCHES"):
            steps.commit(messages, 0)
    for messages in ([*zero, None], []):
        with pytest.raises(UsageError, match="NO_MESSAGE"):
            steps.commit(messages, 0)
    with pytest.raises(UsageError, match=r"trigger\(continuous="):
        steps.commit([None, None], 0)
    assert values(kafka, topic, committed=False) == numbers()
    del steps.options["txnAppId"]
    with pytest.raises(ConfigError, match="set txnAppId"):
        steps.commit(steps.write(0, range(10), query=""), 0)


def test_a_marker_that_does_not_fit_is_refused(kafka, topic, steps):
    with pytest.raises(CheckpointMismatchError, match="no marker for txnAppId"):
        steps.commit(steps.write(3, range(10)), 3)
    steps.commit(steps.write(3, range(10)), 3, onMarkerMismatch="accept")
    with pytest.raises(CheckpointMismatchError, match="this sink never wrote the batches in between"):
        steps.commit(steps.write(5, range(10)), 5)
    steps.commit(steps.write(4, range(10, 20)), 4)
    # Where the checkpoint cannot be seen, the number of rows is what a batch is known by.
    with pytest.raises(CheckpointMismatchError, match=r"committed \(10 rows\).*with other rows"):
        steps.commit(steps.write(4, range(10, 25)), 4)
    assert values(kafka, topic) == numbers(range(20))


def test_a_commit_that_lives_on_without_its_driver_is_locked_out(kafka, topic, steps, mocker):
    steps.commit(steps.write(0, range(10)), 0)
    messages = steps.write(1, range(10, 20))
    real = MarkerStore.write

    def slow(self, grant, marker):
        mark.side_effect = real
        writers._sessions.clear()  # another process
        steps.commit(messages, 1)
        real(self, grant, marker)

    old = writers._session(writers._parsed(steps.options), steps.options["txnAppId"])
    mark = mocker.patch.object(MarkerStore, "write", autospec=True, side_effect=slow)
    try:
        # Which step finds it out, and whether with the new id or the old, depends on the coordinator's markers.
        with pytest.raises((FencedError, KafkaError)) as refused:
            steps.commit(messages, 1)
        assert isinstance(refused.value, FencedError) or refused.value.errno in {47, 90}
    finally:
        old.close()
    assert values(kafka, topic) == numbers(range(20))


def test_many_tasks_give_the_driver_less_each(kafka, topic, steps, monkeypatch):
    part = pa.record_batch({"value": pa.array(["x" * 1000] * 300)})
    for number, staged in ((63, False), (64, True)):
        monkeypatch.setattr(tasks, "task_context", lambda number=number: Task(number, batch="0"))
        message = steps.writer().write(iter([part]))
        assert (bool(message.staged), bool(message.inline)) == (staged, not staged)


def test_rows_of_a_spark_that_has_no_arrow_for_streams(spark, kafka, topic):  # its parser of schemas
    from pyspark.sql.types import _parse_datatype_string

    schema = _parse_datatype_string(
        "note bigint, key string, value binary, headers array<struct<key:string,value:binary>>, partition int"
    )
    writer = batch_writer(options(kafka, topic=topic), schema, overwrite=False)
    header = Row(key="k", value=bytearray(b"v"))
    given = [
        Row(note=1, key="a", value=bytearray(b"1"), headers=[header], partition=None),
        Row(note=None, key=None, value=None, headers=None, partition=2),
    ] * 6000
    parts = list(parts_of_rows(iter(given), writer._rows_schema))
    assert [part.num_rows for part in parts] == [10_000, 2000]
    assert parts[1].to_pylist()[:2] == [
        {"key": "a", "value": b"1", "headers": [{"key": "k", "value": b"v"}], "partition": None},
        {"key": None, "value": None, "headers": None, "partition": 2},
    ]


# --- kill -9 --------------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_kill_9_of_the_driver_between_tasks_and_commit_and_inside_commit(spark, kafka, topic, tmp_path):
    query = Query(spark, kafka, topic, tmp_path)
    for number in range(3):
        query.add(number * 100, number * 100 + 100)
    settings = [{**query.options, "inlineBytes": "0"}, query.source, str(query.checkpoint)]
    for kills in ("begin:0", "begin:0,verify:1"):
        code, told = killing_driver(settings, kills, tmp_path)
        assert code == -signal.SIGKILL, told
    assert {path.name for path in tmp_path.glob("*-[01]")} == {"begin-0", "verify-1"}
    # The second one was in the middle of a transaction.
    assert values(kafka, topic, committed=False) == numbers(range(200))
    query.run()
    assert values(kafka, topic) == numbers(range(300))

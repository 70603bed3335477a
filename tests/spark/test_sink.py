"""The foreachBatch sink on a real Spark and a real Kafka, in one process."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from kafka.admin import NewPartitions
from prometheus_client import CollectorRegistry
from pyspark import StatusTracker
from sinks import STEPS, crash, new_name, numbers, options, read, values

from kafkasafe.errors import CheckpointMismatchError, ConfigError, UsageError
from kafkasafe.record.partition import partition_for_key
from kafkasafe.spark import FencedError, MetricsListener, foreach_batch_sink, sink, stats, write_batch
from kafkasafe.spark.appender import RestartError
from kafkasafe.spark.java import map_in_arrow
from kafkasafe.spark.listener import _behind, _Collector
from kafkasafe.spark.marker_store import MarkerStore
from kafkasafe.spark.plans import commits_are_validated
from kafkasafe.spark.session import Outcome
from kafkasafe.spark.session_settings import exchange_settings, with_settings
from kafkasafe.spark.sink import _Job, _Turns
from kafkasafe.spark.sink_transaction import SinkTransaction
from kafkasafe.spark.txn import Marker

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture
def topic(kafka):
    name = new_name()
    kafka.create_topic(name, partitions=3)
    return name


@pytest.fixture
def make(kafka, topic):
    """Makes sinks of one application, each with a driver's memory of its own, and closes them."""
    made = []
    app = new_name("app")

    def sink(to=topic, **more):
        made.append(foreach_batch_sink(to, **{**options(kafka, txnAppId=app), **more}))
        return made[-1]

    yield sink
    for one in made:
        one.close()


def rows(spark, begin, end, expression="CAST(id AS STRING) AS value"):
    return spark.range(begin, end, 1, 2).selectExpr(
        *([expression] if isinstance(expression, str) else expression)
    )


def test_a_micro_batch_is_written_once_however_it_comes_again(spark, kafka, topic, make):
    first = make()
    first(rows(spark, 0, 1000), 0)
    assert (first.last.name, first.last.rows) == ("written", 1000)
    first(rows(spark, 1000, 1500), 1)
    # Another driver, which repeats the last batch in another order, from other partitions.
    again = make()
    again(rows(spark, 1000, 1500).repartition(5).orderBy("value"), 1)
    assert (again.last.name, again.last.rows) == ("duplicate", 0)
    again(rows(spark, 1500, 1600), 2)
    assert values(kafka, topic) == numbers(range(1600))
    assert values(kafka, topic, committed=False) == numbers(range(1600))


def test_partitions_that_a_topic_gets_during_a_transaction_are_for_the_next_one(
    spark, kafka, topic, make, monkeypatch
):
    opened = SinkTransaction.open

    def open_then_grow(self, grant, **how):
        opened(self, grant, **how)
        with kafka.admin() as admin:
            admin.create_partitions({topic: NewPartitions(6)})
        kafka.leader(topic, 5)

    keyed = ["CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"]
    sink = make()
    with monkeypatch.context() as patched:
        patched.setattr(SinkTransaction, "open", open_then_grow)
        sink(rows(spark, 0, 300, keyed), 0)
    assert (sink.last.name, sink.last.restarts) == ("written", 0)
    sink(rows(spark, 300, 600, keyed), 1)
    found = read(kafka, topic)
    assert sorted(int(m.value()) for m in found) == list(range(600))
    assert all(m.partition() == partition_for_key(m.key(), 3 if int(m.key()) < 300 else 6) for m in found)


def test_a_batch_without_rows_moves_the_marker(spark, kafka, topic, make):
    sink = make()
    sink(rows(spark, 0, 0), 0)
    sink(rows(spark, 0, 10), 1)
    assert values(kafka, topic) == numbers(range(10))


def test_a_stage_that_ran_twice_costs_a_new_transaction_also_where_no_task_has_rows(spark, make, monkeypatch):
    """Tasks of its first run may still have rows."""
    real, asked = StatusTracker.getStageInfo, []

    def twice_at_first(tracker, stage):
        asked.append(stage)
        return real(tracker, stage)._replace(currentAttemptId=int(len(asked) == 1))

    monkeypatch.setattr(StatusTracker, "getStageInfo", twice_at_first)
    writing = make()
    writing(rows(spark, 0, 10).where("value = 'none'"), 0)
    assert (writing.last.name, writing.last.rows, writing.last.restarts) == ("resumed", 0, 1)


def test_keys_headers_and_nulls_arrive_as_from_any_other_producer(spark, kafka, topic, make):
    columns = [
        "IF(id % 7 = 0, NULL, CAST(id AS STRING)) AS key",
        "IF(id % 5 = 0, NULL, CAST(CAST(id AS STRING) AS BINARY)) AS value",
        (
            "IF(id % 3 = 0, NULL, array(struct('trace' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value),"
            " struct('empty' AS key, CAST(NULL AS BINARY) AS value))) AS headers"
        ),
        "'ignored' AS note",
    ]
    make()(rows(spark, 0, 3000, columns), 0)
    found = read(kafka, topic)
    assert len(found) == 3000
    assert all(m.partition() == partition_for_key(m.key(), 3) for m in found if m.key() is not None)
    assert sorted(m.key() for m in found if m.key()) == sorted(b"%d" % i for i in range(3000) if i % 7)
    assert sum(m.value() is None for m in found) == 600
    with_headers = {m.key(): m.headers() for m in found if m.key() and m.headers()}
    assert with_headers == {
        b"%d" % i: [("trace", b"%d" % i), ("empty", None)] for i in range(3000) if i % 3 and i % 7
    }


def test_the_columns_topic_and_partition_say_where_rows_go(spark, kafka, topic, make):
    other = new_name()
    kafka.create_topic(other, partitions=2)
    columns = [
        "CAST(id AS STRING) AS value",
        f"IF(id % 2 = 0, '{topic}', '{other}') AS topic",
        "CAST(IF(id % 4 < 2, 1, NULL) AS INT) AS partition",
    ]
    sink = make(None)
    sink(rows(spark, 0, 400, columns), 0)
    make(None)(rows(spark, 0, 400, columns), 0)
    assert values(kafka, topic) == numbers(range(0, 400, 2))
    assert values(kafka, other) == numbers(range(1, 400, 2))
    assert all(
        m.partition() == 1 for name in (topic, other) for m in read(kafka, name) if int(m.value()) % 4 < 2
    )


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_is_read_by_others(spark, kafka, topic, make, codec):
    # Large and hard to compress: more than one block of each codec.
    long = "CONCAT(CAST(id AS STRING), '-', REPEAT(SHA2(CAST(id AS STRING), 512), 10)) AS value"
    make(**{"kafka.compression.type": codec, "exchange": "always"})(rows(spark, 0, 3000, long), 0)
    found = read(kafka, topic)
    assert sorted(int(m.value().split(b"-")[0]) for m in found) == list(range(3000))


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_at_any_step_is_followed_by_one_that_writes_once(
    spark, kafka, topic, make, monkeypatch, step, after
):
    sink = make()
    sink(rows(spark, 0, 50), 0)
    if step in {"fence", "judge"}:
        sink = make()  # a driver takes these two steps for its first batch only
    with crash(monkeypatch, step, after=after):
        sink(rows(spark, 50, 120), 1)
    successor = make()
    successor(rows(spark, 50, 120).repartition(1), 1)
    assert successor.last.name == ("duplicate" if (step, after) == ("commit", True) else "written")
    successor(rows(spark, 120, 130), 2)
    assert values(kafka, topic) == numbers(range(130))


@pytest.fixture
def lost_answer(mocker):
    """The first commit is carried out, and its answer is lost."""
    real = SinkTransaction.commit

    def lost(self, grant):
        commit.side_effect = real
        real(self, grant)
        raise TimeoutError("the answer is lost")

    commit = mocker.patch.object(SinkTransaction, "commit", autospec=True, side_effect=lost)
    yield
    assert commit.call_count == 1, "it is looked up, not carried out again"


@pytest.mark.usefixtures("lost_answer")
def test_a_commit_without_an_answer_is_looked_up(spark, kafka, topic, make):
    sink = make()
    sink(rows(spark, 0, 70), 0)
    assert (sink.last.name, sink.last.rows) == ("resumed", 70)
    assert values(kafka, topic, committed=False) == numbers(range(70))


@pytest.mark.usefixtures("lost_answer")
def test_a_commit_without_an_answer_is_looked_up_also_where_no_marker_is_kept(spark, kafka, topic):
    outcome = write_batch(rows(spark, 0, 70), topic, **options(kafka))
    assert (outcome.name, outcome.rows) == ("resumed", 70)
    assert values(kafka, topic, committed=False) == numbers(range(70))


def test_adaptive_execution_is_left_on_where_the_query_has_something_to_adapt(spark):
    plain = rows(spark, 0, 10)
    adaptive = "spark.sql.adaptive.enabled"
    assert exchange_settings(plain)[adaptive] == "false"
    assert adaptive not in exchange_settings(plain.groupBy("value").count())
    # Set for the job only.
    before = spark.conf.get(adaptive)
    with with_settings(plain, exchange_settings(plain)) as job:
        assert spark.conf.get(adaptive) == before
        assert job.sparkSession.conf.get(adaptive) == "false"
        assert job.count() == 10


def test_settings_of_a_session_stay_what_they_were_however_many_write_at_once(spark, kafka, topic):
    names = ["spark.sql.adaptive.enabled", "spark.sql.execution.arrow.maxBytesPerBatch"]
    before = {name: spark.conf.get(name) for name in names}
    seen, failed, done = [], [], threading.Event()
    keyed = ["CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"]

    def write(begin):
        try:
            for at in range(begin, begin + 200, 100):
                write_batch(rows(spark, at, at + 100, keyed), topic, **options(kafka))
        except Exception as error:
            failed.append(error)

    def watch():
        while not done.wait(0.02):
            seen.append({name: spark.conf.get(name) for name in names})

    threads = [threading.Thread(target=write, args=(number * 200,)) for number in range(3)]
    watcher = threading.Thread(target=watch)
    for thread in [*threads, watcher]:
        thread.start()
    for thread in threads:
        thread.join(240)
    done.set()
    watcher.join(60)
    assert not failed
    # Neither during the writes nor after them.
    assert all(settings == before for settings in seen)
    assert {name: spark.conf.get(name) for name in names} == before
    assert values(kafka, topic) == numbers(range(600))


@pytest.mark.parametrize("kind", ["python", "jvm"])
def test_an_error_of_the_query_that_sounds_like_a_dead_worker_ends_it_at_once(
    spark, kafka, topic, make, kind
):
    if kind == "python":

        def call(batches):
            for _ in batches:
                raise RuntimeError("customer API said: Connection reset by peer, java.io.EOFException")
                yield

        failing = map_in_arrow(rows(spark, 0, 10), call, "value string")
    else:
        failing = rows(
            spark, 0, 10, "IF(id = 5, raise_error('ExecutorLostFailure: Connection reset'), 'x') AS value"
        )
    sink = make()
    with pytest.raises(Exception, match="Connection reset") as told:
        sink(failing, 0)
    assert not isinstance(told.value, RestartError)
    assert sink._sessions[sink._options.app_id].restarts == 0


def test_partitions_of_one_task_are_not_mixed_up(spark, kafka):
    topic = new_name()
    kafka.create_topic(topic, partitions=5)  # more than tasks that can run at once
    keyed = ["CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"]
    assert write_batch(rows(spark, 0, 20_000, keyed), topic, **options(kafka)).rows == 20_000
    found = read(kafka, topic)
    assert len(found) == 20_000
    assert {message.value() for message in found} == {b"%d" % number for number in range(20_000)}
    assert all(message.partition() == partition_for_key(message.key(), 5) for message in found)


def test_a_driver_that_was_replaced_cannot_write_any_more(spark, kafka, topic, make, mocker):
    old, new = make(), make()
    old(rows(spark, 0, 10), 0)
    real = MarkerStore.write

    def slow(self, grant, marker):
        mark.side_effect = real
        mocker.patch.object(sink, "_turns", _Turns())  # another driver is another process
        new(rows(spark, 10, 20), 1)
        real(self, grant, marker)

    mark = mocker.patch.object(MarkerStore, "write", autospec=True, side_effect=slow)
    with pytest.raises(
        FencedError, match=r"Another driver began a transaction for .*Give each driver a txnAppId of its own"
    ):
        old(rows(spark, 10, 20), 1)
    assert values(kafka, topic) == numbers(range(20))


def test_a_worker_that_is_killed_costs_a_new_transaction(spark, kafka, topic, make, tmp_path):
    flag = str(tmp_path / "killed")

    def kill_once(batches):
        import os
        import signal

        for batch in batches:
            yield batch
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os.kill(os.getpid(), signal.SIGKILL)

    dying = map_in_arrow(rows(spark, 0, 30_000), kill_once, "value string")
    sink = make()
    sink(dying, 0)
    assert sink.last.name == "resumed"
    assert sink.last.restarts >= 1
    assert Path(flag).exists()
    assert values(kafka, topic) == numbers(range(30_000))


KEYED = ["CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"]


HEADERS = "array(struct('h' AS key, CAST('v' AS BINARY) AS value)) AS headers"


@pytest.fixture
def planned(mocker):
    """The jobs whose tasks send rows."""
    return mocker.spy(_Job, "_plan")


@pytest.fixture
def collected(mocker):
    """The jobs whose rows the driver encodes."""
    return mocker.spy(_Job, "_encoded")


@pytest.mark.parametrize(
    ("columns", "collects"),
    [(KEYED, True), (KEYED[1:], True), ([*KEYED, HEADERS], False)],
    ids=["keys", "no keys", "headers"],
)
def test_a_small_batch_that_follows_a_small_one_is_sent_by_the_driver(
    spark, kafka, topic, make, planned, collected, columns, collects
):
    sink = make()
    for batch_id in range(3):
        sink(rows(spark, batch_id * 100, batch_id * 100 + 100, columns), batch_id)
        assert (sink.last.name, sink.last.rows, planned.call_count) == ("written", 100, 1)
    assert collected.call_count == (2 if collects else 0)
    found = read(kafka, topic)
    assert sorted(int(message.value()) for message in found) == list(range(300))
    if columns is KEYED:
        assert all(message.partition() == partition_for_key(message.key(), 3) for message in found)


def test_nulls_empty_values_and_chosen_partitions_arrive_through_the_driver(
    spark, kafka, topic, make, collected
):
    columns = [
        "IF(id % 3 = 0, NULL, CAST(id AS STRING)) AS key",
        "IF(id % 3 = 1, NULL, IF(id % 3 = 2, '', CAST(id AS STRING))) AS VALUE",
        "IF(id % 3 = 2, 1, NULL) AS partition",
        "id AS another",
    ]
    sink = make()
    for batch_id in range(2):
        sink(rows(spark, batch_id * 30, batch_id * 30 + 30, columns), batch_id)
    assert collected.call_count == 1
    found = read(kafka, topic)
    assert len(found) == 60
    for message in found:
        assert message.key() is not None or int(message.value()) % 3 == 0
        if message.key() is not None:
            kind = int(message.key()) % 3
            assert message.value() == (None if kind == 1 else b"")
            assert message.partition() == (1 if kind == 2 else partition_for_key(message.key(), 3))


def test_more_rows_than_the_driver_collects_are_sent_by_tasks(spark, kafka, topic, make, planned, collected):
    sink = make()
    sink(rows(spark, 0, 100, KEYED), 0)
    sink(rows(spark, 100, 10_000, KEYED), 1)
    assert (sink.last.name, sink.last.restarts) == ("written", 0)
    assert (planned.call_count, collected.call_count) == (2, 0)
    assert values(kafka, topic, committed=False) == numbers(range(10_000))


def test_after_a_row_that_is_too_large_the_driver_does_not_collect(
    spark, kafka, topic, make, planned, collected
):
    sink = make()
    sink(rows(spark, 0, 10), 0)
    sink(rows(spark, 0, 10, "repeat('x', 9000) AS value"), 1)
    assert (sink.last.name, sink.last.restarts, planned.call_count) == ("written", 0, 2)
    sink(rows(spark, 10, 20), 2)
    assert (planned.call_count, collected.call_count) == (2, 0)
    assert values(kafka, topic, committed=False) == {b"x" * 9000: 10, **numbers(range(20))}


def test_a_large_batch_that_follows_a_small_one_is_sent_by_tasks(spark, kafka, topic, make, planned):
    sink = make(inlineBytes=4000)
    sink(rows(spark, 0, 100, KEYED), 0)
    sink(rows(spark, 100, 200, KEYED), 1)
    assert planned.call_count == 1
    sink(rows(spark, 200, 5000, KEYED), 2)  # two tasks, of which each has too much
    assert (sink.last.name, sink.last.restarts, planned.call_count) == ("written", 0, 2)
    sink(rows(spark, 5000, 5100, KEYED), 3)
    assert planned.call_count == 3
    assert values(kafka, topic, committed=False) == numbers(range(5100))


@pytest.mark.parametrize("switch", [{"exchange": "always"}, {"inlineBytes": 0}])
def test_small_batches_are_sent_by_tasks_where_the_options_say_so(spark, kafka, topic, make, planned, switch):
    sink = make(**switch)
    for batch_id in range(2):
        sink(rows(spark, batch_id * 10, batch_id * 10 + 10, KEYED), batch_id)
    assert planned.call_count == 2
    assert values(kafka, topic) == numbers(range(20))


def test_small_batches_go_to_the_topics_of_their_rows(spark, kafka, topic, make, planned, collected):
    other = new_name()
    kafka.create_topic(other, partitions=2)
    to = f"IF(id % 2 = 0, '{topic}', '{other}') AS topic"
    sink = make(None)
    for batch_id in range(2):
        sink(rows(spark, batch_id * 10, batch_id * 10 + 10, [to, *KEYED]), batch_id)
    assert (planned.call_count, collected.call_count) == (1, 1)
    assert values(kafka, topic) == numbers(range(0, 20, 2))
    assert values(kafka, other) == numbers(range(1, 20, 2))


def test_a_worker_that_is_killed_while_it_encodes_for_the_driver_costs_a_new_transaction(
    spark, kafka, topic, make, planned, tmp_path
):
    flag = str(tmp_path / "killed")

    def kill_once(batches):
        import os
        import signal

        for batch in batches:
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                yield batch
            else:
                os.kill(os.getpid(), signal.SIGKILL)

    sink = make()
    sink(rows(spark, 0, 10), 0)
    sink(map_in_arrow(rows(spark, 10, 200), kill_once, "value string"), 1)
    assert (sink.last.name, sink.last.rows, planned.call_count) == ("resumed", 190, 1)
    assert Path(flag).exists()
    assert values(kafka, topic, committed=False) == numbers(range(200))


def test_an_error_of_the_query_is_told_and_nothing_of_the_batch_is_seen(spark, kafka, topic, make):
    failing = rows(spark, 0, 500, "IF(id = 450, raise_error('bad row'), CAST(id AS STRING)) AS value")
    sink = make()
    with pytest.raises(Exception, match="bad row"):
        sink(failing, 0)
    # Its transaction is ended: readers are not held up, and the batch can come again.
    assert values(kafka, topic) == numbers()
    sink(rows(spark, 0, 500), 0)
    assert values(kafka, topic) == numbers(range(500))


def test_a_marker_outlives_the_offsets_of_its_group(spark, kafka, topic, make):
    make()(rows(spark, 0, 10), 0)
    sink = make()
    sink(rows(spark, 10, 20), 1)
    group = sink._sessions[sink._options.app_id]._id
    with kafka.admin() as admin:
        admin.delete_groups([group])
    late = make()
    late(rows(spark, 10, 20), 1)
    assert late.last.name == "duplicate"
    late(rows(spark, 20, 30), 2)
    assert values(kafka, topic) == numbers(range(30))


def test_a_checkpoint_that_does_not_fit_is_refused(spark, kafka, topic, make):
    with pytest.raises(CheckpointMismatchError, match=r"no marker for txnAppId.*onMarkerMismatch=accept"):
        make()(rows(spark, 0, 10), 3)
    make()(rows(spark, 0, 10), 0)
    with pytest.raises(CheckpointMismatchError, match="this sink never wrote the batches in between"):
        make()(rows(spark, 10, 20), 2)
    make()(rows(spark, 10, 20), 1)
    with pytest.raises(CheckpointMismatchError, match="older than the topic"):
        make()(rows(spark, 0, 10), 0)
    # Without the query's own plan the number of rows decides; it must be the same.
    with pytest.raises(CheckpointMismatchError, match=r"committed \(10 rows\).*with other rows"):
        make()(rows(spark, 10, 25), 1)
    again = make()
    again(rows(spark, 10, 20), 1)
    assert again.last.name == "duplicate"
    # Accepting writes, whatever the numbers are.
    sink = make(onMarkerMismatch="accept")
    sink(rows(spark, 20, 30), 7)
    sink(rows(spark, 30, 40), 5)
    assert sink.last.name == "written"
    make()(rows(spark, 40, 50), 6)
    assert values(kafka, topic) == numbers(range(50))


def test_a_marker_of_version_1_is_believed_only_where_it_proves_something(
    spark, kafka, topic, make, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(
            Marker, "encode", lambda m: f'{{"v":1,"next":{m.next_batch_id},"query":"{m.query_id}"}}'
        )
        make()(rows(spark, 0, 10), 0)
    with pytest.raises(CheckpointMismatchError, match="did not record its rows"):
        make()(rows(spark, 0, 10), 0)
    make()(rows(spark, 10, 20), 1)
    assert values(kafka, topic) == numbers(range(20))


def test_a_marker_of_another_query_is_refused(spark, kafka, topic, make, monkeypatch):
    monkeypatch.setattr(
        "kafkasafe.spark.sink._property", lambda _, name: "query-1" if "query" in name else None
    )
    make()(rows(spark, 0, 10), 0)
    monkeypatch.setattr(
        "kafkasafe.spark.sink._property", lambda _, name: "query-2" if "query" in name else None
    )
    with pytest.raises(CheckpointMismatchError, match=r"belongs to query 'query-1'.*new txnAppId"):
        make()(rows(spark, 0, 10), 0)


def test_a_marker_nobody_understands_is_not_guessed(spark, kafka, topic, make, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(Marker, "encode", lambda _: '{"v":9}')
        make()(rows(spark, 0, 10), 0)
    with pytest.raises(CheckpointMismatchError, match="cannot be read"):
        make()(rows(spark, 10, 20), 1)


def test_a_batch_query_is_written_once_for_each_version(spark, kafka, topic, make, monkeypatch):
    app = new_name("job")
    for version, name in ((1, "written"), (1, "duplicate"), (4, "written"), (3, "duplicate")):
        done = write_batch(rows(spark, 0, 100), topic, **options(kafka, txnAppId=app, txnVersion=version))
        assert done.name == name
    assert write_batch(rows(spark, 0, 100), topic, **options(kafka)).rows == 100
    assert values(kafka, topic) == numbers(range(100), range(100), range(100))
    # Versions and the batch ids of a streaming query have nothing to do with each other.
    monkeypatch.setattr("kafkasafe.spark.sink._property", lambda _, name: "q" if "query" in name else None)
    make()(rows(spark, 100, 110), 0)
    settings = options(kafka, txnAppId=make()._options.app_id, txnVersion=0)
    with pytest.raises(CheckpointMismatchError, match="belongs to query 'q', but this is a batch job"):
        write_batch(rows(spark, 0, 1), topic, **settings)


@pytest.mark.parametrize("keeps_state", [False, True])
def test_a_query_that_repeats_its_last_batch_does_not_repeat_its_rows(
    spark, kafka, topic, tmp_path, keeps_state
):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    for number in range(3):
        rows(spark, number * 100, number * 100 + 100).coalesce(1).write.mode("append").text(str(source))
    outcomes, validated = [], set()

    def run():
        sink = foreach_batch_sink(topic, **options(kafka))

        def write(df, batch_id):
            query_id = df.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            validated.add(commits_are_validated(df.sparkSession, query_id))
            sink(df, batch_id)
            outcomes.append(sink.last.name)

        found = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(str(source))
        query = (
            (found.dropDuplicates(["value"]) if keeps_state else found)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            # SPARK-52008: Spark fails a query whose foreachBatch did not have the state of its micro-batch committed.
            assert query.awaitTermination(300)
        finally:
            query.stop()
            sink.close()

    run()
    assert outcomes == ["written"] * 3
    # As if the driver had died between the sink's commit and Spark's.
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    rows(spark, 300, 400).coalesce(1).write.mode("append").text(str(source))
    run()
    assert outcomes == ["written"] * 3 + ["duplicate", "written"]
    assert values(kafka, topic) == numbers(range(400))
    # Only a query that keeps state computes a duplicate, since that costs as much as the batch did.
    assert validated == {keeps_state}
    # Another checkpoint has another query id, hence markers of its own: all rows come again.
    shutil.rmtree(checkpoint)
    run()
    assert values(kafka, topic) == numbers(range(400), range(400))


def test_the_state_of_a_query_is_right_after_a_batch_that_the_driver_did_not_collect(
    spark, kafka, topic, tmp_path, planned, collected
):
    source = tmp_path / "in"
    # Some rows of each file are in the file before it. The first job of the third batch commits the state, too.
    for begin, end in ((0, 10), (5, 20), (10, 4000), (0, 4010)):
        rows(spark, begin, end).coalesce(1).write.mode("append").text(str(source))
    sink = foreach_batch_sink(topic, **options(kafka))
    query = (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", 1)
        .text(str(source))
        .dropDuplicates(["value"])
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
    finally:
        query.stop()
        sink.close()
    assert (planned.call_count, collected.call_count) == (2, 2)
    assert values(kafka, topic) == numbers(range(4010))


def test_the_listener_counts_what_spark_cannot_see(spark, kafka, topic, tmp_path):
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    spark.streams.addListener(listener)
    sink = foreach_batch_sink(topic, **options(kafka))
    rows(spark, 0, 100).write.text(str(tmp_path / "in"))
    name = new_name("query")
    try:
        query = (
            spark.readStream.schema("value string")
            .text(str(tmp_path / "in"))
            .writeStream.queryName(name)
            .foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)

        def sample(what, **labels):
            return registry.get_sample_value(f"kafkasafe_spark_{what}", {"query": name, **labels})

        # Spark tells its listeners later.
        deadline = time.monotonic() + 60
        while registry.get_sample_value("kafkasafe_spark_active_queries") != 0 or not sample(
            "batch_duration_seconds_count"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert sample("batches_total", outcome="written") == 1
        assert sample("rows_total", direction="in") == sample("rows_total", direction="out") == 100
        assert sample("restarts_total") == 0
    finally:
        spark.streams.removeListener(listener)
        listener.close()
        sink.close()


def test_a_query_that_had_started_before_its_listener_is_active():
    collector = _Collector()
    collector.progress({"id": "query", "runId": "run", "batchId": 3, "sources": []})
    assert active(collector) == 1
    collector.started("query", "next", None)
    collector.ended("query", "run")  # told late
    assert active(collector) == 1
    collector.ended("query", "next")
    collector.progress({"id": "query", "runId": "next", "batchId": 3, "sources": []})
    assert active(collector) == 0


def active(collector):
    (found,) = (one for one in collector.collect() if one.name == "kafkasafe_spark_active_queries")
    return found.samples[0].value


def test_queries_of_one_name_have_one_series():
    """A query with a new checkpoint has a new id. Prometheus drops the second of two samples with the same labels."""
    collector = _Collector()
    name, ids = new_name("query"), [new_name("id"), new_name("id")]
    for number, (query, rows, end) in enumerate(zip(ids, (20, 30), (4, 9), strict=True)):
        collector.started(query, f"run-{number}", name)
        collector.progress(
            {
                "id": query,
                "batchId": 0,
                "numInputRows": rows,
                "durationMs": {"addBatch": 200},
                "sources": [{"endOffset": {"t": {"0": end}}, "latestOffset": {"t": {"0": 10}}}],
            }
        )
        stats.count(query, Outcome("written", rows, 1, 0.2), {"restarts": 1, "retries": 2, "bytes": 3})
        if number == 0:
            collector.ended(query, "run-0", failed=True)
    samples = [sample for family in collector.collect() for sample in family.samples]
    found = Counter((sample.name, *sorted(sample.labels.items())) for sample in samples)
    assert set(found.values()) == {1}

    def value(family, **labels):
        return next(
            sample.value
            for sample in samples
            if sample.name == f"kafkasafe_spark_{family}" and sample.labels == {"query": name, **labels}
        )

    for direction in ("in", "out"):
        assert value("rows_total", direction=direction) == 50
    assert value("batches_total", outcome="written") == 2
    assert (value("restarts_total"), value("retries_total"), value("sent_bytes_total")) == (2, 4, 6)
    assert value("batch_duration_seconds_count") == 2
    assert value("batch_duration_seconds_bucket", le="0.1") == 0
    assert value("batch_duration_seconds_sum") == pytest.approx(0.4)
    assert value("query_failures_total") == 1
    assert value("offsets_behind_latest") == 1  # not that of the query that has ended


@pytest.mark.parametrize(
    ("latest", "behind"),
    [
        ({"t": {"0": 15, "1": 7}}, 5),
        ('{"t": {"0": 10, "1": 9}}', 2),
        ({"kafkasafe": 1, "topics": {"t": {"partitions": {"0": {"offset": 11}, "2": {"offset": 3}}}}}, 1),
        (None, None),
        ("no JSON", None),
    ],
)
def test_how_far_a_query_is_behind(latest, behind):
    assert _behind([{"endOffset": {"t": {"0": 10, "1": 7}}, "latestOffset": latest}], None) == behind


def test_two_writes_of_one_micro_batch_need_two_names(spark, kafka, topic, make, monkeypatch):
    monkeypatch.setattr("kafkasafe.spark.sink._property", lambda _, name: "run-1" if "job" in name else None)
    sink = make()
    sink(rows(spark, 0, 10), 0)
    with pytest.raises(UsageError, match="txnAppId of its own"):
        make()(rows(spark, 10, 20), 0)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["id"], "no column value among id"),
        (["id AS value"], "Column value is bigint, but it must be string or binary: use CAST"),
        (["'x' AS value", "id AS key"], "Column key is bigint"),
        (["'x' AS value", "id AS partition"], "Column partition is bigint, but it must be integer"),
        (["'x' AS value", "map('a', 1) AS headers"], "Column headers is map"),
        (["'x' AS value", "CAST(7 AS INT) AS partition"], "has 0 to 2"),
        (["'x' AS value", "CAST(-1 AS INT) AS partition"], "A row's partition is -1"),
        (["REPEAT('x', 2000000) AS value"], "kafka.max.request.size=1048576"),
        (
            [
                "'x' AS value",
                "array(struct(CAST(NULL AS STRING) AS key, CAST('v' AS BINARY) AS value)) AS headers",
            ],
            r"\[KAFKASAFE\.INVALID_ROW\] A row cannot be written: A header without a key",
        ),
    ],
)
def test_rows_that_cannot_be_written_are_named(spark, make, columns, says):
    with pytest.raises(ConfigError, match=says):
        make()(rows(spark, 0, 1, columns), 0)


@pytest.mark.parametrize(
    ("columns", "says"),
    [(["'x' AS value"], "neither an option topic nor a column topic"),
     (["'x' AS value", "CAST(NULL AS STRING) AS topic"], "topic is null")],
)  # fmt: skip
def test_rows_without_a_topic_are_named(spark, make, columns, says):
    with pytest.raises(ConfigError, match=says):
        make(None)(rows(spark, 0, 1, columns), 0)


def test_no_query_id_and_no_name_is_an_error(spark, kafka):
    sink = foreach_batch_sink("anything", **options(kafka))
    with pytest.raises(ConfigError, match="set txnAppId"):
        sink(rows(spark, 0, 1), 0)


def test_a_topic_that_is_recompressed_by_the_broker_says_what_to_set(spark, kafka, make):
    name = new_name()
    kafka.create_topic(name, partitions=2, config={"compression.type": "gzip"})
    with pytest.raises(Exception, match=r"Set kafka\.compression\.type to the topic's compression\.type"):
        make(name)(rows(spark, 0, 10), 0)
    make(name, **{"kafka.compression.type": "gzip"})(rows(spark, 0, 10), 0)
    assert values(kafka, name) == numbers(range(10))


def test_a_topic_whose_broker_sets_the_time(spark, kafka, make):
    name = new_name()
    kafka.create_topic(name, partitions=2, config={"message.timestamp.type": "LogAppendTime"})
    for batch_id, codec in enumerate(("none", "lz4")):
        make(name, **{"kafka.compression.type": codec})(
            rows(spark, batch_id * 300, batch_id * 300 + 300), batch_id
        )
    assert values(kafka, name) == numbers(range(600))


def test_no_broker_is_told_with_the_option_to_look_at(spark):
    sink = foreach_batch_sink(
        "t", **{"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": 1500, "txnAppId": "x"}
    )
    try:
        with pytest.raises(ConfigError, match=r"No broker of kafka\.bootstrap\.servers=127\.0\.0\.1:1"):
            sink(rows(spark, 0, 1), 0)
    finally:
        sink.close()


def test_a_transaction_timeout_above_the_brokers_is_named(spark, make):
    with pytest.raises(ConfigError, match=r"transaction\.max\.timeout\.ms"):
        make(**{"kafka.transaction.timeout.ms": 2_000_000_000})(rows(spark, 0, 1), 0)


def test_a_sink_can_be_pickled(kafka):
    import pickle

    sink = foreach_batch_sink("t", **options(kafka))
    assert repr(pickle.loads(pickle.dumps(sink))) == repr(sink)

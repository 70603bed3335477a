"""The driver hands the records of a small micro-batch to Spark together with the plan."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sourcing
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from sourcing import new_topic, transact, write

from kafkasafe.history.epochs import Lineage
from kafkasafe.spark import KafkaSafeSource
from kafkasafe.spark.options import read_options
from kafkasafe.spark.positions import INITIAL
from kafkasafe.spark.streaming import LimitedStreamReader
from kafkasafe.testing.broker import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

Make = Callable[..., LimitedStreamReader]


@pytest.fixture
def make(kafka_cluster: KafkaCluster) -> Iterator[Make]:
    made: list[LimitedStreamReader] = []

    def make(topic: str, **more: str) -> LimitedStreamReader:
        given = {
            "kafka.bootstrap.servers": ",".join(kafka_cluster.bootstrap_servers),
            "startingOffsets": "earliest",
            "subscribe": topic,
            **more,
        }
        options = read_options(given, streaming=True)
        made.append(LimitedStreamReader(options, KafkaSafeSource(given).schema()))
        return made[-1]

    yield make
    for reader in made:
        reader.stop()


def batch(
    reader: LimitedStreamReader, start: dict[str, Any]
) -> tuple[dict[str, Any], list[Any], list[bytes] | None]:
    """Plans a micro-batch as Spark does: its end, its tasks, and the values that are handed over; None: none are."""
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    pieces = reader.partitions(start, end)
    handed = None
    if isinstance(reader, _SimpleStreamReaderWrapper):  # as `partitions_func` of PySpark
        handed = [value for part in reader.getCache(start, end) for value in part["value"].to_pylist()]
    assert type(reader) is LimitedStreamReader
    return end, pieces, handed


def read(reader: LimitedStreamReader, pieces: list[Any]) -> list[bytes]:
    """The values that tasks read."""
    return [value for piece in pieces for part in reader.read(piece) for value in part["value"].to_pylist()]


def filled(cluster: KafkaCluster, count: int = 30, partitions: int = 3) -> tuple[str, list[bytes]]:
    topic = new_topic(cluster, partitions)
    values = [b"%d" % number for number in range(count)]
    for partition in range(partitions):
        write(cluster, topic, values[partition::partitions], partition)
    return topic, sorted(values)


def test_a_small_micro_batch_is_one_task_whose_records_are_handed_over(
    make: Make, kafka_cluster: KafkaCluster
) -> None:
    topic, values = filled(kafka_cluster)
    reader = make(topic)
    end, pieces, handed = batch(reader, INITIAL.encode())
    assert handed is not None
    assert len(pieces) == 1
    assert sorted(handed) == values
    assert sorted(read(reader, pieces)) == values, "a task reads them if Spark has lost them"
    write(kafka_cluster, topic, [b"new"])
    _, _, handed = batch(reader, end)
    assert handed == [b"new"]


@pytest.mark.parametrize(
    "more",
    [{"inlineBytes": "0"}, {"inlineBytes": "9"}, {"minPartitions": "2"}, {"maxRecordsPerPartition": "20"}],
)
def test_options_that_want_tasks_get_them(
    make: Make, kafka_cluster: KafkaCluster, more: dict[str, str]
) -> None:
    topic, values = filled(kafka_cluster)
    for partition in range(3):  # a second batch, which a response of 9 bytes leaves out
        write(kafka_cluster, topic, [b"x"], partition)
    values = sorted([*values, b"x", b"x", b"x"])
    reader = make(topic, **more)
    _, pieces, handed = batch(reader, INITIAL.encode())
    assert handed is None
    assert len(pieces) >= 3
    assert sorted(read(reader, pieces)) == values


def test_a_large_micro_batch_and_many_partitions_are_tasks(make: Make, kafka_cluster: KafkaCluster) -> None:
    topic, _ = filled(kafka_cluster, 2001)
    assert batch(make(topic), INITIAL.encode())[2] is None
    topic, _ = filled(kafka_cluster, 34, partitions=17)
    assert batch(make(topic), INITIAL.encode())[2] is None


def test_after_a_long_micro_batch_the_next_hundred_are_tasks(make: Make, kafka_cluster: KafkaCluster) -> None:
    topic, _ = filled(kafka_cluster, 1, partitions=1)
    reader = make(topic)
    end, _, handed = batch(reader, INITIAL.encode())
    assert handed is not None
    reader._handed_at -= 3  # type: ignore[operator]
    found = []
    for _ in range(101):
        write(kafka_cluster, topic, [b"x"])
        end, _, handed = batch(reader, end)
        found.append(handed)
    assert found == [None] * 100 + [[b"x"]]


def test_a_pyspark_that_does_not_take_the_records_gets_tasks(make: Make, kafka_cluster: KafkaCluster) -> None:
    topic, values = filled(kafka_cluster)
    reader = make(topic)
    start = INITIAL.encode()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert sorted(read(reader, list(reader.partitions(start, end)))) == values
    write(kafka_cluster, topic, [b"new"])
    _, pieces, handed = batch(reader, end)
    assert handed is None
    assert read(reader, pieces) == [b"new"]


def test_records_above_the_limit_in_one_batch_are_tasks(make: Make, kafka_cluster: KafkaCluster) -> None:
    """A broker sends a whole batch, even if it is larger than what was asked for."""
    topic = new_topic(kafka_cluster)
    write(kafka_cluster, topic, [b"x" * 100] * 20)
    assert batch(make(topic, inlineBytes="1000"), INITIAL.encode())[2] is None
    assert len(batch(make(topic, inlineBytes="10000"), INITIAL.encode())[2] or []) == 20


def test_aborted_records_are_not_handed_over(make: Make, kafka_cluster: KafkaCluster) -> None:
    topic = new_topic(kafka_cluster)
    transact(kafka_cluster, topic, [b"aborted"], commit=False)
    reader = make(topic, isolationLevel="read_committed")
    end, pieces, handed = batch(reader, INITIAL.encode())
    assert handed == [] == read(reader, pieces)
    transact(kafka_cluster, topic, [b"committed"], commit=True)
    assert batch(reader, end)[2] == [b"committed"]


def test_records_of_another_leader_epoch_are_left_to_a_task(make: Make, kafka_cluster: KafkaCluster) -> None:
    topic, _ = filled(kafka_cluster, partitions=1)
    reader = make(topic)
    start = INITIAL.encode()
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    ranges = reader._planner.ranges(reader._recent.decode(start), reader._recent.decode(end))
    wrong = [replace(piece, epochs=Lineage([(7, 0)], piece.end).encode()) for piece in ranges]
    assert reader._read(ranges) is not None
    assert reader._read(wrong) is None


def test_a_damaged_answer_is_left_to_a_task(make: Make, kafka_cluster: KafkaCluster) -> None:
    """Spark runs a failed task again. An error while the driver plans ends the query."""
    topic, values = filled(kafka_cluster, partitions=1)
    reader = make(topic)
    start = INITIAL.encode()
    end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
    network: Any = reader._planner.network()
    fetch = network.fetch_records

    def damaged(*args: Any, **more: Any) -> None:
        *others, reply = args

        def spoilt(answer: Any) -> None:
            records = bytearray(answer.records)
            records[-1] ^= 1
            reply(replace(answer, records=bytes(records)))

        fetch(*others, spoilt, **more)

    network.fetch_records = damaged
    pieces = reader.partitions(start, end)
    assert type(reader) is LimitedStreamReader
    assert sorted(read(reader, pieces)) == values


@pytest.mark.spark
def test_all_columns_are_the_same_with_and_without_tasks(
    spark: SparkSession, kafka_cluster: KafkaCluster, tmp_path: Any
) -> None:
    topic = new_topic(kafka_cluster, 3)
    with sourcing.producing(kafka_cluster) as producer:
        for number in range(300):
            headers = [("h", b"%d" % number)] if number % 2 else None
            key = b"k%d" % number if number % 3 else None
            producer.produce(topic, b"%d" % number, key=key, partition=number % 3, headers=headers)
    found = []
    tasks = []
    for inline in ("0", "1000000"):
        reader = spark.readStream.format("kafkasafe").option("subscribe", topic).option("inlineBytes", inline)
        reader = reader.option("kafka.bootstrap.servers", ",".join(kafka_cluster.bootstrap_servers))
        reader = reader.option("startingOffsets", "earliest").option("includeHeaders", "true")
        rows: list[Any] = []

        def take(df: Any, _: int, rows: list[Any] = rows) -> None:
            tasks.append(df.rdd.getNumPartitions())
            rows += df.collect()

        writer = reader.option("maxOffsetsPerTrigger", "100").load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(tmp_path / inline)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination()
        assert sum(one["numInputRows"] for one in query.recentProgress) == 300
        assert query.lastProgress["sources"][0]["latestOffset"] is not None
        found.append(sorted(rows, key=lambda row: (row.partition, row.offset)))
    assert found[0] == found[1]
    assert tasks == [3, 3, 3, 1, 1, 1]

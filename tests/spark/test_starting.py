"""A stream that starts at `latest`, in a real Spark, while records come all the time. See test_first_batch.py."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sourcing
from sinks import killing_driver, new_name, options, values
from sourcing import Load, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def topic(kafka: Any) -> str:
    return sourcing.new_topic(kafka)


@pytest.fixture
def load(kafka: Any, topic: str) -> Iterator[Load]:
    with Load(kafka, topic, pause_s=0.005) as made:
        until(lambda: made.count > 50)
        yield made


def is_slow_start(failed: object) -> bool:
    """Spark gives a Python process ten seconds to connect, which a busy machine exceeds. Nothing was read then."""
    return "to connect back" in str(failed)


def test_a_sink_that_fails_in_the_first_batch_gets_its_rows_again(
    spark: SparkSession, kafka: Any, topic: str, load: Load, tmp_path: Path
) -> None:
    tries: dict[int, list[list[int]]] = {}

    class SinkError(Exception):
        pass

    def write(df: Any, batch_id: int) -> None:
        values = [int(row.value) for row in df.selectExpr("CAST(value AS STRING) AS value").collect()]
        tries.setdefault(batch_id, []).append(sorted(values))
        # Also where it has written, and Spark does not know: the next life repeats the batch.
        if (batch_id == 0 and len(tries[0]) < 3) or (batch_id == 2 and len(tries[2]) < 2):
            raise SinkError

    frame = spark.readStream.format("kafkasafe").options(**options(kafka, subscribe=topic)).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
    runs = 0
    while max(tries, default=0) < 4:
        query = writer.start()
        runs += 1
        assert runs < 20
        until(lambda query=query: not query.isActive or max(tries, default=0) >= 4)
        failed = query.exception()
        query.stop()
        assert failed is None or "SinkError" in str(failed) or is_slow_start(failed), failed
    load.stop()
    assert len(tries[0]) >= 3
    for number, found in tries.items():
        assert all(rows == found[0] for rows in found), f"batch {number} had other rows when it was repeated"
    rows = [row for number in sorted(tries) for row in tries[number][0]]
    assert rows == list(range(rows[0], rows[0] + len(rows)))
    assert rows[0] > 0
    assert len(rows) > 50


@pytest.mark.crash
def test_drivers_that_die_in_the_first_batch_lose_no_row_and_double_none(
    spark: SparkSession, kafka: Any, topic: str, load: Load, tmp_path: Path
) -> None:
    target, checkpoint = new_name(), tmp_path / "checkpoint"
    kafka.create_topic(target, partitions=2)
    source = options(kafka, subscribe=topic)
    settings = [options(kafka, topic=target), source, str(checkpoint)]
    for kills in ("begin:0", "begin:0,verify:0"):
        for _ in range(4):
            code, told = killing_driver(settings, kills, tmp_path)
            if code == -signal.SIGKILL:
                break
            assert is_slow_start(told), told
    assert {path.name for path in tmp_path.glob("*-0")} == {"begin-0", "verify-0"}
    assert not list((checkpoint / "commits").glob("[0-9]*"))
    frame = spark.readStream.format("kafkasafe").options(**source).load().select("value")
    writer = frame.writeStream.format("kafkasafe").options(**settings[0])
    writer = writer.option("checkpointLocation", str(checkpoint))
    for _ in range(5):
        query = writer.start()
        until(
            lambda query=query: not query.isActive or len(list((checkpoint / "commits").glob("[0-9]*"))) > 2
        )
        if query.isActive:
            break
        assert is_slow_start(query.exception()), query.exception()
    load.stop()
    query.processAllAvailable()
    query.stop()
    found = values(kafka, target)
    numbers = sorted(int(value or b"") for value in found)
    assert set(found.values()) == {1}
    assert numbers == list(range(numbers[0], load.count))
    assert numbers[0] > 0

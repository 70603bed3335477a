"""A stream that starts at `latest`, in a real Spark, while records come all the time. See test_first_batch.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sourcing
from sinks import new_name, options, values
from sourcing import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Load:
    """Numbers, written to a topic until it is stopped."""

    def __init__(self, kafka: Any, topic: str) -> None:
        self.count = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, args=(kafka, topic))
        self._thread.start()

    def _write(self, kafka: Any, topic: str) -> None:
        with sourcing.producing(kafka) as producer:
            while not self._stop.wait(0.005):
                producer.produce(topic, b"%d" % self.count, partition=0)
                producer.poll(0)
                self.count += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)


@pytest.fixture
def topic(kafka: Any) -> str:
    return sourcing.new_topic(kafka)


@pytest.fixture
def load(kafka: Any, topic: str) -> Iterator[Load]:
    made = Load(kafka, topic)
    until(lambda: made.count > 50)
    yield made
    made.stop()


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
    script = Path(__file__).with_name("killing.py")
    for kills in ("begin:0", "begin:0,verify:0"):
        for _ in range(4):
            with (tmp_path / "stderr").open("w") as said:
                driver = subprocess.Popen(
                    [sys.executable, str(script), json.dumps(settings)],
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    env={
                        **os.environ,
                        "KILLING": kills,
                        "KILLING_DIR": str(tmp_path),
                        "SPARK_LOCAL_DIRS": str(tmp_path),
                    },
                )
                if driver.wait(240) == -signal.SIGKILL:
                    break
            told = (tmp_path / "stderr").read_text()
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

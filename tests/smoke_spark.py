"""Whether kafkasafe works on each minor version of PySpark that it promises, without pandas.

python tests/smoke_spark.py                # `make smoke-spark`: 4.0, 4.1, 4.2 and the newest 4.x
python tests/smoke_spark.py 4.1.2          # one of your choice

Each in an environment of its own (`.venv-pyspark-VERSION`, kept for the next run), into which the package is installed
as a user would, with the extra `spark` and nothing else; on a broker of its own. One line for each check; exit code 1
when one fails. Not part of `make test`: it downloads several hundred megabytes, and takes a minute for each version.
Needs Java 17.
"""

from __future__ import annotations

import collections
import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Name → what pip is asked for.
VERSIONS = {
    "4.0": "pyspark==4.0.*",
    "4.1": "pyspark==4.1.*",
    "4.2": "pyspark==4.2.*",
    "newest": "pyspark>=4.3,<5",
}
LIMIT_S = 900.0
WAIT_S = 180.0


# --- each version in an environment of its own ------------------------------------------------------------------


def environment(name: str) -> Path:
    """The interpreter of an environment with this PySpark and the package as it is now."""
    home = ROOT / f".venv-pyspark-{name}"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    subprocess.run(
        [*pip, f"{ROOT}[spark]", VERSIONS.get(name, f"pyspark=={name}")],
        check=True,
        timeout=LIMIT_S,
        env=own_environment(),
    )
    return python


def own_environment() -> dict[str, str]:
    """Without what would bring in the packages of another environment, or this directory's."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYSPARK_PYTHON"}}


def all_versions(names: list[str]) -> int:
    failed = []
    for name in names:
        try:
            python = environment(name)
            with tempfile.TemporaryDirectory(prefix="kafkasafe-smoke-") as directory:
                command = [python, __file__, "--here"]
                done = subprocess.run(
                    command, cwd=directory, env=own_environment(), timeout=LIMIT_S, check=False
                )
        except subprocess.SubprocessError as error:
            print(f"pyspark {name:9} FAILED: {error}", flush=True)
            failed.append(name)
        else:
            if done.returncode:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"all well on {', '.join(names)}")
    return 1 if failed else 0


# --- the checks, in such an environment -------------------------------------------------------------------------


class Smoke:
    """What the checks share."""

    def __init__(self, cluster: Any, spark: Any, directory: Path) -> None:
        self.cluster, self.spark, self.directory = cluster, spark, directory
        self.servers = {"kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers)}
        self.version = tuple(int(part) for part in spark.version.split(".")[:2])
        # Older ones do not tell a Python source where a micro-batch begins.
        self.limits = self.version >= (4, 2)
        self._topics = 0

    def topic(self, partitions: int = 3) -> str:
        self._topics += 1
        name = f"smoke-{self._topics}"
        self.cluster.create_topic(name, partitions=partitions)
        return name

    def produce(self, topic: str, numbers: range, **more: Any) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers)
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % 3, **more)
        producer.flush(60)
        producer.close()

    def committed(self, topic: str) -> list[Any]:
        """All records, by a reader that is not Spark's."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            isolation_level="read_committed",
            enable_auto_commit=False,
        )
        try:
            places = [
                TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))
            ]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            ends, found = consumer.end_offsets(places), []
            deadline = time.monotonic() + WAIT_S
            while any(consumer.position(place) < ends[place] for place in places):
                assert time.monotonic() < deadline, f"{topic} is not read to its end"
                for records in consumer.poll(timeout_ms=500).values():
                    found += records
            return found
        finally:
            consumer.close()

    def expect_values(self, topic: str, numbers: range) -> None:
        found = collections.Counter(int(record.value) for record in self.committed(topic))
        assert found == collections.Counter(numbers), summary(found, numbers)

    def source(self, topic: str, **more: Any) -> Any:
        options = {**self.servers, "subscribe": topic, "startingOffsets": "earliest", **more}
        return self.spark.readStream.format("kafkasafe").options(**options).load()

    def run(
        self, start: Callable[[], Any], ready: Callable[[], bool], told: Callable[[], object] = str
    ) -> Any:
        """A query that is run until it has done its work; by Trigger.AvailableNow where there is one."""
        while True:
            query = start()
            deadline = time.monotonic() + WAIT_S
            while query.isActive and not (not self.limits and ready()):
                assert time.monotonic() < deadline, f"not done within {WAIT_S} s: {query.status} {told()}"
                time.sleep(0.1)
            failed = query.exception()
            query.stop()
            # Spark gives a Python process ten seconds to connect, which a busy machine exceeds.
            if failed is not None and "to connect back" in str(failed):
                continue
            assert failed is None, failed
            return query

    def is_done(self, topic: str, rows: int, checkpoint: Path) -> bool:
        """All rows are there, and Spark has noted every micro-batch that it planned."""
        planned, done = (
            {path.name for path in (checkpoint / name).glob("[0-9]*")} for name in ("offsets", "commits")
        )
        # Of a batch that a life before has noted, the plan may be gone already.
        return planned <= done and len(self.committed(topic)) >= rows

    def trigger(self, writer: Any) -> Any:
        return (
            writer.trigger(availableNow=True) if self.limits else writer.trigger(processingTime="0 seconds")
        )


def summary(found: collections.Counter[int], wanted: range) -> str:
    missing = sum(number not in found for number in wanted)
    twice = sum(count - 1 for count in found.values())
    return f"{missing} missing, {twice} there twice, {sum(found.values())} in all"


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died behind the commit in Kafka, before Spark noted it."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def fails(action: Callable[[], Any], *said: str) -> None:
    """It is refused, with these words."""
    try:
        action()
    except Exception as error:
        text = str(error)
        missing = [words for words in said if words not in text]
        assert not missing, f"the error does not say {missing}: {text[:600]}"
    else:
        raise AssertionError(f"no error that says {said}")


def installed_alone(smoke: Smoke) -> str:
    import kafkasafe.spark
    from kafkasafe.spark import KafkaSafeSource, MetricsListener, foreach_batch_sink, write_batch  # noqa: F401

    assert importlib.util.find_spec("pandas") is None, "pandas is installed"
    home = Path(kafkasafe.spark.__file__).resolve()
    assert home.is_relative_to(Path(sys.prefix).resolve()), f"another kafkasafe was imported: {home}"
    assert smoke.spark.version.startswith("4."), smoke.spark.version
    return f"pyarrow {importlib.metadata.version('pyarrow')}, numpy {importlib.metadata.version('numpy')}"


def write_batch_with_headers(smoke: Smoke) -> str:
    from kafkasafe.spark import write_batch

    topic = smoke.topic()
    rows = smoke.spark.range(0, 1000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key",
        "CAST(id AS STRING) AS value",
        "array(struct('trace' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    options = {**smoke.servers, "txnAppId": "smoke", "txnVersion": 1}
    first, second = write_batch(rows, topic, **options), write_batch(rows, topic, **options)
    assert (first.name, first.rows, second.name) == ("written", 1000, "duplicate"), (first, second)
    smoke.expect_values(topic, range(1000))
    for record in smoke.committed(topic):
        assert record.key == record.value, record
        assert list(record.headers) == [("trace", record.value)], record
    return "1000 rows, the second time none"


def batch_read(smoke: Smoke) -> str:
    topic = smoke.topic()
    # Now, or retention would take them.
    at = int(time.time() * 1000)
    smoke.produce(topic, range(900), key=b"k", headers=[("h", b"v")], timestamp_ms=at)
    frame = (
        smoke.spark.read.format("kafkasafe")
        .options(**smoke.servers, subscribe=topic, includeHeaders="true")
        .load()
    )
    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"
    ], frame.columns  # fmt: skip
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert sorted(int(row.value) for row in rows) == list(range(900))
    for row in rows:
        assert (bytes(row.key), row.topic, row.partition) == (b"k", topic, int(row.value) % 3), row
        assert (row.offset, row.ms, row.timestampType) == (int(row.value) // 3, at, 0), row
        assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"v")], row
    assert frame.where("partition = 1").count() == 300
    nothing = smoke.spark.read.format("kafkasafe").options(**smoke.servers, subscribe=smoke.topic()).load()
    assert nothing.count() == 0
    return "900 rows, 8 columns; none of an empty topic"


def streaming_read(smoke: Smoke) -> str:
    topic = smoke.topic()
    out, checkpoint = smoke.directory / "read", smoke.directory / "read-checkpoint"

    def rows() -> list[int]:
        if not out.exists():
            return []
        found = smoke.spark.read.schema("value STRING").parquet(str(out)).collect()
        return sorted(int(row.value) for row in found)

    def start() -> Any:
        limit = {"maxOffsetsPerTrigger": "100"} if smoke.limits else {}
        values = smoke.source(topic, **limit).selectExpr("CAST(value AS STRING) AS value")
        writer = values.writeStream.format("parquet").option("path", str(out))
        return smoke.trigger(writer.option("checkpointLocation", str(checkpoint))).start()

    for end in (300, 600):
        smoke.produce(topic, range(end - 300, end))
        smoke.run(start, lambda end=end: len(rows()) >= end)
        assert rows() == list(range(end)), f"{len(rows())} rows, not {end}"
    return "600 rows in two lives" + (", availableNow, maxOffsetsPerTrigger" if smoke.limits else "")


def sink_with_restart(smoke: Smoke) -> str:
    from prometheus_client import CollectorRegistry

    from kafkasafe.spark import MetricsListener, foreach_batch_sink

    origin, target = smoke.topic(), smoke.topic()
    checkpoint = smoke.directory / "sink-checkpoint"
    registry = CollectorRegistry()
    listener = MetricsListener(registry)
    smoke.spark.streams.addListener(listener)
    outcomes: list[str] = []

    def life(rows: int) -> None:
        sink = foreach_batch_sink(target, **smoke.servers)

        def write(df: Any, batch_id: int) -> None:
            sink(df, batch_id)
            outcomes.append(f"{batch_id} {sink.last.name}")

        def start() -> Any:
            columns = smoke.source(origin).selectExpr("value AS key", "value")
            writer = columns.writeStream.queryName("smoke").foreachBatch(write)
            return smoke.trigger(writer.option("checkpointLocation", str(checkpoint))).start()

        try:
            smoke.run(start, lambda: smoke.is_done(target, rows, checkpoint), lambda: outcomes)
        finally:
            sink.close()

    smoke.produce(origin, range(300))
    life(300)
    forget_last_commit(checkpoint)
    smoke.produce(origin, range(300, 600))
    life(600)
    smoke.expect_values(target, range(600))
    assert outcomes == ["0 written", "0 duplicate", "1 written"], outcomes

    def counted(name: str, **labels: str) -> float:
        return registry.get_sample_value(f"kafkasafe_spark_{name}", {"query": "smoke", **labels}) or 0.0

    # The listener is told a little later.
    deadline = time.monotonic() + WAIT_S
    while counted("rows_total", direction="in") < 600:
        assert time.monotonic() < deadline, f"rows in: {counted('rows_total', direction='in')}"
        time.sleep(0.1)
    smoke.spark.streams.removeListener(listener)
    assert counted("rows_total", direction="out") == 600
    assert counted("batches_total", outcome="duplicate") == 1
    assert counted("batches_total", outcome="written") == 2
    assert counted("batch_duration_seconds_count") >= 2
    listener.close()
    return f"600 rows once, metrics; batches {', '.join(outcomes)}"


def writers_with_restart(smoke: Smoke) -> str:
    topic = smoke.topic()
    rows = smoke.spark.range(0, 1000, 1, 2).selectExpr(
        "CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    for inline in ("0", "1048576"):  # the second time a repetition
        options = {
            **smoke.servers,
            "topic": topic,
            "txnAppId": "smoke-writer",
            "txnVersion": "1",
            "inlineBytes": inline,
        }
        rows.write.format("kafkasafe").mode("append").options(**options).save()
    smoke.expect_values(topic, range(1000))

    origin, target = smoke.topic(), smoke.topic()
    checkpoint = smoke.directory / "writer-checkpoint"

    def start() -> Any:
        writer = smoke.source(origin).selectExpr("value AS key", "value").writeStream.format("kafkasafe")
        writer = writer.options(**smoke.servers, topic=target, checkpointLocation=str(checkpoint))
        return smoke.trigger(writer).start()

    for end in (300, 600):
        smoke.produce(origin, range(end - 300, end))
        smoke.run(start, lambda end=end: smoke.is_done(target, end, checkpoint))
        if end == 300:
            forget_last_commit(checkpoint)
    smoke.expect_values(target, range(600))
    return "1000 rows and, repeated, none; a stream's 600 once, in two lives"


def stream_at_latest(smoke: Smoke) -> str:
    """Records come all the time; the sink fails twice in the first micro-batch, in lives of their own."""
    from kafka import KafkaProducer

    topic = smoke.topic(1)
    checkpoint = smoke.directory / "latest-checkpoint"
    stop, written = threading.Event(), [0]
    first: list[list[int]] = []
    rows: dict[int, list[int]] = {}

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=smoke.cluster.bootstrap_servers)
        while not stop.wait(0.005):
            producer.send(topic, b"%d" % written[0], partition=0)
            written[0] += 1
        producer.flush(60)
        producer.close()

    def write(df: Any, batch_id: int) -> None:
        found = sorted(int(row.value) for row in df.selectExpr("CAST(value AS STRING) AS value").collect())
        if batch_id == 0:
            first.append(found)
            if len(first) < 3:
                raise ValueError("not this time")
        rows[batch_id] = found

    def run(until: Callable[[], bool]) -> Any:
        frame = smoke.source(topic, startingOffsets="latest")
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        query = writer.start()
        deadline = time.monotonic() + WAIT_S
        while query.isActive and not until():
            assert time.monotonic() < deadline, query.status
            time.sleep(0.05)
        failed = query.exception()
        query.stop()
        assert failed is None or "not this time" in str(failed) or "to connect back" in str(failed), failed

    writer = threading.Thread(target=produce)
    writer.start()
    try:
        deadline = time.monotonic() + WAIT_S
        while written[0] < 20 or len(rows) < 4:
            assert time.monotonic() < deadline, f"{written[0]} records, batches {sorted(rows)}"
            if written[0] >= 20:
                run(lambda: len(rows) >= 4)
    finally:
        stop.set()
        writer.join()
    run(lambda: bool(rows) and rows[max(rows)][-1:] == [written[0] - 1])
    assert len(first) == 3, first
    assert first[0] == first[1] == first[2], first
    found = [row for number in sorted(rows) for row in rows[number]]
    assert found == list(range(found[0], written[0])), (
        f"{len(found)} rows from {found[0]}, not to {written[0]}"
    )
    assert found[0] > 0, "it did not begin at the end"
    return f"{len(found)} rows once, from the end on; the first batch three times, {len(first[0])} rows"


def wrong_options(smoke: Smoke) -> str:
    from kafkasafe.spark import foreach_batch_sink

    def load(**options: str) -> Callable[[], Any]:
        return lambda: smoke.spark.read.format("kafkasafe").options(**options).load().collect()

    fails(
        load(**smoke.servers, subscribe="x", startingOffset="earliest"), "startingOffset", "startingOffsets"
    )
    fails(load(subscribe="x"), "kafka.bootstrap.servers")
    fails(load(**smoke.servers), "subscribe")
    fails(load(**smoke.servers, subscribe="x", startingOffsets="soon"), "startingOffsets", "soon")
    fails(lambda: foreach_batch_sink("t", **smoke.servers, txnAppID2="x"), "txnAppID2", "txnAppId")
    if smoke.limits:
        return "refused, with the name that was meant"

    def limited() -> None:
        frame = smoke.source("x", maxOffsetsPerTrigger="10")
        frame.writeStream.format("noop").option(
            "checkpointLocation", str(smoke.directory / "limited")
        ).start().processAllAvailable()

    fails(limited, "maxOffsetsPerTrigger needs PySpark 4.2")
    return "refused, with the name that was meant; maxOffsetsPerTrigger too"


CHECKS: dict[str, Callable[[Smoke], str]] = {
    "without pandas, as installed": installed_alone,
    "write_batch, keyed, headers": write_batch_with_headers,
    "batch read, all columns": batch_read,
    "streaming read": streaming_read,
    "stream to sink, restart, metrics": sink_with_restart,
    "write, writeStream, restart": writers_with_restart,
    "stream at latest, failing sink": stream_at_latest,
    "wrong options": wrong_options,
}


@contextlib.contextmanager
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from kafkasafe.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("kafkasafe-smoke")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def here() -> int:
    """All checks, on the PySpark of this interpreter."""
    from kafkasafe.testing.broker import KafkaCluster

    failed = 0
    with KafkaCluster(brokers=1) as cluster, session() as spark:
        directory = Path(tempfile.mkdtemp(prefix="kafkasafe-smoke-"))
        smoke = Smoke(cluster, spark, directory)
        for name, check in CHECKS.items():
            began, trace = time.monotonic(), ""
            try:
                said = check(smoke)
            except Exception as error:
                failed += 1
                said, trace = f"FAILED: {type(error).__name__}: {error}", traceback.format_exc()
            print(
                f"pyspark {spark.version:9} {name:34} {time.monotonic() - began:5.1f} s  {said}", flush=True
            )
            if trace:
                print(trace, file=sys.stderr, flush=True)
        shutil.rmtree(directory, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.exit(here() if arguments == ["--here"] else all_versions(arguments or list(VERSIONS)))

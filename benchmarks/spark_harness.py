"""Common parts of the Spark benchmarks: they start Spark and a broker, run measurements in turns, and print results."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

OURS, THEIRS = "kafkasafe, exactly once", "JVM, at least once"

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
# Further jars that the connector needs. The token provider is version 4.0.0, because Maven cannot resolve later
# versions.
BESIDE = (
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "org.scala-lang.modules:scala-parallel-collections_2.13:1.2.0",
)


def connector(directory: Path, version: str | None = None) -> tuple[str, list[str]]:
    """Has Maven fetch Spark's Kafka connector.

    Args:
        directory: Directory for the jars. It is created if it does not exist.
        version: Version of the connector. None: the version of the installed PySpark, or the newest version before it,
            because not every patch release of PySpark has a connector.

    Returns:
        The version, and the paths of the jars.
    """
    import pyspark

    if version is not None:
        candidates = [version]
    else:
        major, minor, patch = (int(part) for part in pyspark.__version__.split(".")[:3])
        candidates = [f"{major}.{minor}.{number}" for number in range(patch, -1, -1)]
        candidates += [f"{major}.{number}.0" for number in range(minor - 1, -1, -1)]
    for candidate in candidates:
        if _fetched(f"{CONNECTOR}:{candidate}", directory):
            break
    else:
        sys.exit(f"Maven resolves no connector of {', '.join(candidates)}")
    for artifact in BESIDE:
        if not _fetched(artifact, directory):
            sys.exit(f"Maven does not resolve {artifact}")
    return candidate, [str(path) for path in sorted(directory.glob("*.jar"))]


def _fetched(artifact: str, directory: Path) -> bool:
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
    command = ["mvn", "-B", "-q", goal, f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def spark_and_broker(jars: str | None, **settings: str) -> Iterator[tuple[Any, Any]]:
    """Starts Spark on two cores, and one broker.

    Args:
        jars: Directory with the jars of Spark's Kafka connector, "fetch" to have Maven fetch them, None for none.
        settings: Settings of Spark, with underscores instead of dots.
    """
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory() as scratch:
        # Write bytecode to this folder, so that the Python processes that Spark starts find compiled modules, as after
        # an installation.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(scratch) / "pycache")
        if jars == "fetch":
            version, paths = connector(Path(scratch))
            print(f"JVM connector {version}", flush=True)
        else:
            paths = [str(path) for path in sorted(Path(jars).glob("*.jar"))] if jars else []
        with _started(paths, settings) as started:
            yield started


@contextlib.contextmanager
def _started(jars: list[str], settings: Mapping[str, str]) -> Iterator[tuple[Any, Any]]:
    from pyspark.sql import SparkSession

    from kafkasafe.testing.broker import KafkaCluster

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.jars": ",".join(jars)} if jars else {}),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }.items():
        builder = builder.config(name, value)
    with KafkaCluster(brokers=1, java_options=["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC"]) as cluster:
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark, cluster
        finally:
            spark.stop()


def produce(
    servers: str, topic: str, records: Iterable[tuple[bytes | str | None, bytes]], partitions: int
) -> None:
    """Fills a topic before the clock starts, with librdkafka and large batches.

    Args:
        servers: Bootstrap servers of the cluster.
        topic: The topic.
        records: Keys and values.
        partitions: Number of the topic's partitions.
    """
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "linger.ms": 100,
            "queue.buffering.max.messages": 500_000,
        }
    )
    for number, (key, value) in enumerate(records):
        while True:
            try:
                producer.produce(topic, value, key=key, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def take_turns(
    turns: Mapping[str, Callable[[], Callable[[], None]]],
    rows: int,
    rounds: int,
    what: str = "",
    after: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Runs each turn in each round and prints rows per second.

    Args:
        turns: Name → function that prepares a turn, and returns the function to be timed.
        rows: Number of rows of one turn.
        rounds: Number of rounds. The first round loads classes and does not count.
        what: Prefix of each printed line.
        after: Called after each turn, not timed.

    Returns:
        Rows per second by name.
    """
    rates: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name, turn in turns.items():
            run = turn()
            began = time.perf_counter()
            run()
            rate = rows / (time.perf_counter() - began)
            load = Path("/proc/loadavg").read_text(encoding="ascii").split()[0]
            print(f"{what}round {number}: {name:24s} {rate:12,.0f} rows/s   (load {load})", flush=True)
            after()
            if number:
                rates[name].append(rate)
    for name, found in rates.items():
        print(f"{what}{name:24s} median {statistics.median(found):12,.0f} rows/s, best {max(found):,.0f}")
    ours = rates[OURS]
    for name in rates.keys() - {OURS}:
        median, best = statistics.median(ours) / statistics.median(rates[name]), max(ours) / max(rates[name])
        print(f"{what}ratio to {name}: {median:.2f} of the medians, {best:.2f} of the best", flush=True)
    return rates

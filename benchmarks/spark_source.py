"""Compares format("kafkasafe") with Spark's own Kafka source: records per second of batch queries, on one broker.

    python benchmarks/spark_source.py [--records N] [--partitions N] [--repeats N] [--json FILE]

Both sources read the same topic into Spark's `noop` sink: first all seven columns, then only the value. Spark pushes
the projection to the JVM source, but not to a Python source: for kafkasafe, the query sets the schema instead. After
one warm-up of each source, the sources take turns, and the median counts. The benchmark compares the number of rows
that each source read with the number of records in the topic.

Records have 100-byte values. "keyed" records have keys, and values of varying length (60 to 140 bytes). The batches in
the topic have up to 1 MB.

Maven fetches the connector (`org.apache.spark:spark-sql-kafka-0-10`) for the installed version of PySpark, or the
newest version before it if this patch release has no connector, or the version that --connector names. The broker and
Spark share the machine, so compare ratios within one run, not absolute figures.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_harness import connector, produce

JAVA_OPTIONS = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC")
KEYS = 10_000
TOPICS = ("plain", "keyed")


def write(servers: str, topic: str, count: int, partitions: int) -> None:
    """Creates values that differ, and that no compression shrinks to almost nothing."""
    noise = os.urandom(200_000)
    rng = random.Random(7)
    keyed = topic == "keyed"
    places = [rng.randrange(100_000) for _ in range(1024)]
    values = [noise[at : at + (rng.randrange(60, 141) if keyed else 100)] for at in places]
    keys = (b"customer-%06d" % (number * 7919 % KEYS) if keyed else None for number in range(count))
    produce(servers, topic, ((key, values[number & 1023]) for number, key in enumerate(keys)), partitions)


def measure(run: Callable[[], None], records: int) -> float:
    began = time.perf_counter()
    run()
    return records / (time.perf_counter() - began)


def main() -> None:
    import pyspark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from kafkasafe.spark import register
    from kafkasafe.testing.broker import KafkaCluster

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000, help="number of records of each topic")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--connector", help="version of the JVM source (default: PySpark's, or the newest before it)"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    records, partitions = arguments.records, arguments.partitions

    with tempfile.TemporaryDirectory() as scratch:
        version, jars = connector(Path(scratch) / "jars", arguments.connector)
        print(f"PySpark {pyspark.__version__}, JVM connector {version}", flush=True)
        with KafkaCluster(brokers=1, java_options=JAVA_OPTIONS) as cluster:
            servers = ",".join(cluster.bootstrap_servers)
            for topic in TOPICS:
                cluster.create_topic(topic, partitions)
                write(servers, topic, records, partitions)
            spark = (
                SparkSession.builder.master("local[2]")
                .config("spark.jars", ",".join(jars))
                .config("spark.ui.enabled", "false")
                .config("spark.driver.memory", "2g")
                .config("spark.driver.host", "127.0.0.1")
                .config("spark.ui.showConsoleProgress", "false")
                .getOrCreate()
            )
            spark.sparkContext.setLogLevel("ERROR")
            register(spark)

            def frame(source: str, topic: str, columns: str) -> Any:
                reader = spark.read.format(source).option("kafka.bootstrap.servers", servers)
                reader = reader.option("subscribe", topic)
                if columns == "all":
                    return reader.load()
                if source == "kafkasafe":
                    return reader.schema("value BINARY").load()
                return reader.load().select("value")

            rows = []
            for topic in TOPICS:
                for columns in ("all", "value"):
                    rates: dict[str, list[float]] = {"kafka": [], "kafkasafe": []}
                    for source in rates:
                        assert frame(source, topic, columns).count() == records, source
                    for turn in range(arguments.repeats + 1):
                        for source, found in rates.items():
                            query = frame(source, topic, columns).write.format("noop").mode("overwrite")
                            rate = measure(query.save, records)
                            if turn:
                                found.append(rate)
                    medians = {source: statistics.median(found) for source, found in rates.items()}
                    ratio = medians["kafkasafe"] / medians["kafka"]
                    rows.append(
                        {"topic": topic, "columns": columns, **medians, "ratio": ratio, "runs": rates}
                    )
                    print(
                        f"{topic:6} {columns:6} JVM {medians['kafka']:>11,.0f}/s   kafkasafe"
                        f" {medians['kafkasafe']:>11,.0f}/s   {ratio:.2f}x",
                        flush=True,
                    )
            spark.stop()
    if arguments.json:
        about = {"pyspark": pyspark.__version__, "connector": version, "records": records}
        arguments.json.write_text(json.dumps({**about, "partitions": partitions, "rows": rows}, indent=1))
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""Rows per second of the exactly-once Spark sink, beside Spark's own JVM sink (at least once), in the same run.

    python benchmarks/spark_sink.py --jars DIR          # DIR: the jars of Spark's Kafka connector
    python benchmarks/spark_sink.py                     # without the JVM sink

The same cached rows are written by each in turn, several times; the best time counts. One broker on this machine, which
shares its cores with Spark.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from pathlib import Path

WRITER = "kafkasafe writer, exactly once"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--keyed", action="store_true", help="rows with keys: they go through an exchange")
    parser.add_argument("--writer", action="store_true", help='beside it df.write.format("kafkasafe")')
    parser.add_argument("--jars", help="directory with the jars of Spark's Kafka connector")
    options = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from kafkasafe.spark import register, write_batch
    from kafkasafe.testing.broker import KafkaCluster

    jars = ",".join(map(str, sorted(Path(options.jars).glob("*.jar")))) if options.jars else ""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        **({"spark.jars": jars} if jars else {}),
    }.items():
        builder = builder.config(name, value)
    with KafkaCluster(brokers=1, java_options=["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC"]) as cluster:
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        register(spark)
        servers = ",".join(cluster.bootstrap_servers)
        rows = spark.range(0, options.rows, 1, 2).selectExpr(
            *(["CAST(id AS STRING) AS key"] if options.keyed else []),
            f"CAST(LPAD(CAST(id AS STRING), {options.size}, 'x') AS BINARY) AS value",
        )
        rows = rows.cache()
        assert rows.count() == options.rows
        settings = {"kafka.bootstrap.servers": servers, "kafka.compression.type": options.compression}
        best: dict[str, float] = {}
        for number in range(options.rounds):
            for name in (
                "kafkasafe, exactly once",
                *([WRITER] if options.writer else []),
                *(["JVM, at least once"] if jars else []),
            ):
                topic = f"t-{uuid.uuid4().hex}"
                cluster.create_topic(topic, partitions=options.partitions)
                began = time.perf_counter()
                if name == WRITER:
                    writer = rows.write.format("kafkasafe").mode("append")
                    writer.options(**settings).option("topic", topic).save()
                elif name.startswith("kafkasafe"):
                    assert write_batch(rows, topic, **settings).rows == options.rows
                else:
                    rows.write.format("kafka").options(**settings).option("topic", topic).save()
                seconds = time.perf_counter() - began
                cluster.delete_topic(topic)
                print(f"round {number}: {name:24s} {options.rows / seconds:12,.0f} rows/s", flush=True)
                if number:  # the first one loads classes
                    best[name] = min(best.get(name, seconds), seconds)
        spark.stop()
    for name, seconds in best.items():
        print(f"best: {name:24s} {options.rows / seconds:12,.0f} rows/s")
    ours, *others = best.items()
    for name, seconds in others:
        print(f"ratio to {name}: {seconds / ours[1]:.2f}")


if __name__ == "__main__":
    main()

"""Compares, in one run, the rows per second of the exactly-once Spark sink and of Spark's JVM sink (at least once).

    python benchmarks/spark_sink.py --jars fetch    # beside Spark's own connector; or DIR with its jars
    python benchmarks/spark_sink.py                 # without the JVM sink

The sinks take turns to write the same cached rows, several times. The first round does not count. One broker shares
the cores of this machine with Spark.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable

from spark_harness import OURS, THEIRS, spark_and_broker, take_turns

WRITER = "kafkasafe writer, exactly once"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--keyed", action="store_true", help="rows with keys: they go through an exchange")
    parser.add_argument("--writer", action="store_true", help='also measure df.write.format("kafkasafe")')
    parser.add_argument("--jars", help="directory with the jars of Spark's connector, or fetch")
    options = parser.parse_args()
    with spark_and_broker(options.jars) as (spark, cluster):
        from kafkasafe.spark import register, write_batch

        register(spark)
        rows = spark.range(0, options.rows, 1, 2).selectExpr(
            *(["CAST(id AS STRING) AS key"] if options.keyed else []),
            f"CAST(LPAD(CAST(id AS STRING), {options.size}, 'x') AS BINARY) AS value",
        )
        rows = rows.cache()
        assert rows.count() == options.rows
        settings = {
            "kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "kafka.compression.type": options.compression,
        }
        topics: list[str] = []

        def fresh() -> str:
            for topic in topics:
                cluster.delete_topic(topic)
            topics[:] = [f"t-{uuid.uuid4().hex}"]
            cluster.create_topic(topics[0], partitions=options.partitions)
            return topics[0]

        def ours() -> Callable[[], None]:
            topic = fresh()

            def run() -> None:
                assert write_batch(rows, topic, **settings).rows == options.rows

            return run

        def other(name: str) -> Callable[[], Callable[[], None]]:
            def turn() -> Callable[[], None]:
                writer = rows.write.format(name).mode("append").options(**settings)
                return writer.option("topic", fresh()).save

            return turn

        turns = {OURS: ours}
        if options.writer:
            turns[WRITER] = other("kafkasafe")
        if options.jars:
            turns[THEIRS] = other("kafka")
        take_turns(turns, options.rows, options.rounds)


if __name__ == "__main__":
    main()

"""Compares streaming queries from Kafka to Kafka: kafkasafe's source and exactly-once sink, and Spark's JVM source and
sink.

    python benchmarks/spark_pipeline.py --jars fetch    # beside Spark's own connector; or DIR with its jars
    python benchmarks/spark_pipeline.py                 # without the JVM's

The query reads a topic (`readStream`), adds a field to each JSON value, and writes to the sink, with
`trigger(availableNow=True)` and micro-batches limited by `maxOffsetsPerTrigger`. A turn is the whole query from `start`
to its end, with a new checkpoint and a new topic. Both pairs of source and sink take turns, and the first round does
not count. After each turn the benchmark counts the rows that a read_committed reader sees (with Spark's JVM source, if
available). No row may be missing, and kafkasafe's sink must have written each row once. One broker shares the machine
with Spark.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spark_harness import OURS, THEIRS, produce, spark_and_broker, take_turns

CUSTOMERS = 10_000
KINDS = ("plain", "keyed")


def fill(servers: str, topic: str, rows: int, *, keyed: bool, partitions: int) -> None:
    """Fills a topic with numbered JSON values of about 100 bytes."""
    rng = random.Random(7)
    texts = [f"{rng.getrandbits(4 * rng.randrange(30, 90)):x}" for _ in range(1024)]

    def records() -> Iterator[tuple[str | None, bytes]]:
        for number in range(rows):
            value = f'{{"id":{number},"page":"/p/{number % 977}","text":"{texts[number & 1023]}"}}'
            yield f"customer-{number * 7919 % CUSTOMERS}" if keyed else None, value.encode()

    produce(servers, topic, records(), partitions)


class Pipeline:
    """Runs queries for one kind of rows, from one topic to new topics."""

    def __init__(
        self, spark: Any, cluster: Any, kind: str, options: argparse.Namespace, scratch: Path
    ) -> None:
        self.spark, self.cluster, self.kind, self.options, self.scratch = (
            spark,
            cluster,
            kind,
            options,
            scratch,
        )
        self.servers = ",".join(cluster.bootstrap_servers)
        self.columns = ["key", "value"] if kind == "keyed" else ["value"]
        cluster.create_topic(kind, partitions=options.partitions)
        fill(self.servers, kind, options.rows, keyed=kind == "keyed", partitions=options.partitions)

    def turn(self, name: str) -> Callable[[], None]:
        """Prepares a query with a new topic and a new checkpoint."""
        from kafkasafe.spark import foreach_batch_sink

        topic, checkpoint = f"t-{uuid.uuid4().hex}", self.scratch / uuid.uuid4().hex
        self.cluster.create_topic(topic, partitions=self.options.partitions)
        reader = self.spark.readStream.format("kafkasafe" if name == OURS else "kafka")
        for option, value in {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": self.kind,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(-(-self.options.rows // self.options.batches)),
        }.items():
            reader = reader.option(option, value)
        if name == OURS:
            # Set the schema: unlike the JVM's source, a Python source does not learn from the projection which columns
            # the query needs.
            reader = reader.schema(", ".join(f"{column} BINARY" for column in self.columns))
        put_in = "CAST(concat('{\"seen\":true,', substring(CAST(value AS STRING), 2)) AS BINARY) AS value"
        rows = reader.load().selectExpr(*self.columns[:-1], put_in)
        sink = foreach_batch_sink(topic, **{"kafka.bootstrap.servers": self.servers})
        if name == OURS:
            writer = rows.writeStream.foreachBatch(sink)
        else:
            writer = rows.writeStream.format("kafka").option("topic", topic)
            writer = writer.option("kafka.bootstrap.servers", self.servers)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)

        def run() -> None:
            query = writer.start()
            query.awaitTermination()
            self.pending = (
                name,
                topic,
                len([one for one in query.recentProgress if one["numInputRows"]]),
                sink,
            )

        return run

    def check(self) -> None:
        """Counts the rows that the last turn wrote."""
        name, topic, batches, sink = self.pending
        sink.close()
        assert name != OURS or batches >= self.options.batches, batches
        reader = self.spark.read.format("kafka" if self.options.jars else "kafkasafe")
        reader = reader.option("kafka.bootstrap.servers", self.servers).option("subscribe", topic)
        found = reader.option("kafka.isolation.level", "read_committed").load()
        found = found.selectExpr("get_json_object(CAST(value AS STRING), '$.id') AS id", "key")
        counts = found.selectExpr("count(*)", "count(DISTINCT id)", "count(key)").collect()[0]
        rows = self.options.rows
        assert counts[1] == rows, (name, counts)
        assert counts[2] == (counts[0] if self.kind == "keyed" else 0), (name, counts)
        assert name != OURS or counts[0] == rows, (name, counts)
        self.cluster.delete_topic(topic)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=4, help="minimum number of micro-batches")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jars", help="directory with the jars of Spark's connector, or fetch")
    options = parser.parse_args()
    with spark_and_broker(options.jars) as (spark, cluster), tempfile.TemporaryDirectory() as scratch:
        from kafkasafe.spark import register

        register(spark)
        for kind in options.kinds.split(","):
            pipeline = Pipeline(spark, cluster, kind, options, Path(scratch))

            def turn(name: str, pipeline: Pipeline = pipeline) -> Callable[[], Callable[[], None]]:
                return lambda: pipeline.turn(name)

            names = [OURS, THEIRS] if options.jars else [OURS]
            turns = {name: turn(name) for name in names}
            take_turns(turns, options.rows, options.rounds, f"{kind:5s} ", after=pipeline.check)


if __name__ == "__main__":
    main()

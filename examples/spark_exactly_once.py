"""Counts clicks per page and minute with Spark, from Kafka to Kafka, while the driver is killed with kill -9.

python examples/spark_exactly_once.py                              # starts its own Kafka and kills its own driver
python examples/spark_exactly_once.py --bootstrap localhost:9092   # uses your Kafka and ends after reading the topic

With your own Kafka you can kill the program at any time and start it again.

This needs `pip install kafkasafe[spark]` and Java 17. Source and sink need no connector jar. Afterwards the topic
`page-totals` holds each total once, although Spark computed some micro-batches twice.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from kafkasafe import SafeProducer

CLICKS, TOTALS = "clicks", "page-totals"
PAGES = ["/", "/search", "/cart", "/checkout", "/help"]
BEGIN_S = 1_700_000_040  # the beginning of a minute
MINUTES = 40


def pipeline(servers: str, checkpoint: str) -> None:
    """The code that a user writes. Each run of the driver executes this code with the same checkpoint."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from kafkasafe.spark import foreach_batch_sink, register

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("page totals")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "700m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    clicks = (
        spark.readStream.format("kafkasafe")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", CLICKS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 3500)
        .load()
        .select(f.from_json(f.col("value").cast("string"), "at LONG, page STRING").alias("click"))
        .select(f.timestamp_seconds("click.at").alias("at"), "click.page")
    )
    totals = (
        clicks.withWatermark("at", "1 minute")
        .groupBy(f.window("at", "1 minute").alias("minute"), "page")
        .count()
        .select(
            f.col("page").alias("key"),
            f.to_json(f.struct(f.unix_timestamp("minute.start").alias("minute"), "page", "count")).alias(
                "value"
            ),
        )
    )
    sink = foreach_batch_sink(TOTALS, {"kafka.bootstrap.servers": servers})

    def write(df, batch_id) -> None:
        print(f"batch {batch_id} begins", flush=True)
        sink(df, batch_id)
        print(f"batch {batch_id}: {sink.last.name}, {sink.last.rows} totals", flush=True)

    query = (
        totals.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sink.close()
    spark.stop()


def produce(servers: list[str], spool: str, clicks: int) -> collections.Counter:
    """Writes clicks. Returns the number of clicks for each minute and page."""
    rng, expected = random.Random(6), collections.Counter()
    with SafeProducer(bootstrap_servers=servers, spool_dir=spool) as producer:
        for number in range(clicks):
            at, page = BEGIN_S + number * MINUTES * 60 // clicks, rng.choice(PAGES)
            expected[at // 60 * 60, page] += 1
            producer.send(CLICKS, json.dumps({"at": at, "page": page}).encode())
        # One much later click moves the watermark, so that Spark completes all minutes before it.
        producer.send(CLICKS, json.dumps({"at": BEGIN_S + 86400, "page": "/"}).encode())
        producer.flush()
    return expected


def read_totals(servers: list[str]) -> list[tuple[int, str, int]]:
    """Returns the totals that a reader of committed records sees."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        partitions = [
            TopicPartition(TOTALS, number) for number in sorted(consumer.partitions_for_topic(TOTALS))
        ]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(timeout_ms=500).values():
                totals = [json.loads(record.value) for record in records]
                found += [(total["minute"], total["page"], total["count"]) for total in totals]
        return found
    finally:
        consumer.close()


def live(servers: list[str], checkpoint: str, *, kill_in_batch: int | None) -> None:
    """Runs the driver once, and kills it in the middle of a batch if `kill_in_batch` is given."""
    command = [sys.executable, __file__, "--pipeline", ",".join(servers), checkpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as driver:
        try:
            for line in driver.stdout:
                print("   ", line.rstrip())
                if line.startswith(f"batch {kill_in_batch} begins"):
                    os.killpg(driver.pid, signal.SIGKILL)
                    print("killed the driver with kill -9 in the middle of that batch")
            code = driver.wait()
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    assert code == (0 if kill_in_batch is None else -signal.SIGKILL), code


def own_cluster(clicks: int) -> None:
    from kafkasafe.testing.broker import KafkaCluster

    with KafkaCluster(brokers=1) as cluster, tempfile.TemporaryDirectory() as scratch:
        servers = cluster.bootstrap_servers
        cluster.create_topic(CLICKS)  # one partition keeps the clicks in order of time
        cluster.create_topic(TOTALS, partitions=2)
        expected = produce(servers, str(Path(scratch) / "spool"), clicks)
        print(f"{clicks} clicks are in the topic {CLICKS}")
        checkpoint = str(Path(scratch) / "checkpoint")
        live(servers, checkpoint, kill_in_batch=1)
        live(servers, checkpoint, kill_in_batch=None)
        cluster.wait_for_markers()  # the brokers answer a commit before they write its transaction markers
        found = read_totals(servers)
        once = collections.Counter({(minute, page): count for minute, page, count in found})
        print(
            f"{TOTALS} holds {len(found)} totals of {sum(once.values())} clicks,"
            f" {len(found) - len(once)} of them twice, {len(expected.keys() - once.keys())} missing"
        )
        assert len(found) == len(once), "the topic holds a total twice"
        assert once == expected, "totals are wrong"
        print("each total is correct and exists once")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the example starts its own")
    parser.add_argument("--checkpoint", default="page-totals-checkpoint", help="only with --bootstrap")
    parser.add_argument("--clicks", type=int, default=6000)
    parser.add_argument("--pipeline", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.clicks < 1:
        parser.error("--clicks must be 1 or more")
    if options.pipeline:
        pipeline(*options.pipeline)
    elif options.bootstrap:
        pipeline(options.bootstrap, options.checkpoint)
    else:
        own_cluster(options.clicks)


if __name__ == "__main__":
    main()

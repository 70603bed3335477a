"""Kills drivers, Python workers and brokers (-9) while the Spark sink writes micro-batches. A seed determines the
kills.

    python benchmarks/spark_chaos.py --seeds 3        # the exactly-once sink, beside it a plain foreachBatch
    python benchmarks/spark_chaos.py --sinks writer   # writeStream.format("kafkasafe"), killed inside commit too
    python benchmarks/spark_chaos.py --sinks exact,jvm --jars DIR    # and Spark's own sink, with its jars

A streaming query reads files of numbers and writes them to a topic on three brokers (replication 3, min.insync 2).
Each run of the driver shuffles the rows into a new order and uses another number of partitions, so that each
repetition of a micro-batch differs from the first attempt. When a driver has died, the next one starts from the
checkpoint. At the end the benchmark counts every number, as a read_committed reader and as a read_uncommitted reader
sees it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from confluent_kafka import Consumer, KafkaException, TopicPartition

PARTITIONS = 3
NAMES = {
    "exact": "exactly-once sink",
    "writer": "streaming writer",
    "naive": "plain foreachBatch",
    "jvm": "Spark's JVM sink",
}


# --- the driver: another process, which is killed ---------------------------------------------------------------------


def naive_partition(servers: str, topic: str, rows) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 5}
    )
    for row in rows:
        while True:
            try:
                producer.produce(topic, row.value.encode())
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def telling():
    """Returns a listener that reports the end of each micro-batch, which a data source's writer cannot report."""
    from pyspark.sql.streaming import StreamingQueryListener

    class Telling(StreamingQueryListener):
        def onQueryStarted(self, event) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event) -> None:  # noqa: N802
            print("outcome written 0", flush=True)
            print(f"start {event.progress.batchId + 1}", flush=True)

        def onQueryTerminated(self, event) -> None:  # noqa: N802
            pass

    return Telling()


def drive(settings: dict) -> None:
    from functools import partial

    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(settings["master"]).appName("chaos")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        **({"spark.jars": settings["jars"]} if settings["jars"] else {}),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    servers, topic, rng = settings["servers"], settings["topic"], random.Random(settings["life"])
    stream = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1).text(settings["source"])
    columns = ["value AS key", "value"] if settings["keyed"] else ["value"]
    if settings["sink"] == "exact":
        from kafkasafe.spark import foreach_batch_sink

        sink = foreach_batch_sink(
            topic, **{"kafka.bootstrap.servers": servers, "kafka.compression.type": "lz4"}
        )

    def write(df, batch_id) -> None:
        print(f"start {batch_id}", flush=True)
        if settings["sink"] == "exact":
            df = df.repartition(rng.randint(1, 5)).sortWithinPartitions(
                f.hash(f.col("value"), f.lit(rng.random()))
            )
            sink(df.selectExpr(*columns), batch_id)
            print(f"outcome {sink.last.name} {sink.last.restarts}", flush=True)
        else:
            df.repartition(2).foreachPartition(partial(naive_partition, servers, topic))
            print("outcome written 0", flush=True)

    writer = stream.writeStream
    if settings["sink"] == "writer":
        from spark_chaos_writer import TellingSource

        spark.dataSource.register(TellingSource)
        spark.streams.addListener(telling())
        # Each run of the driver gives its tasks different rows.
        stream = stream.repartition(rng.randint(1, 5), f.hash(f.col("value"), f.lit(rng.random())))
        writer = stream.selectExpr(*columns).writeStream.format("telling")
        writer = writer.options(
            **{
                "kafka.bootstrap.servers": servers,
                "topic": topic,
                "kafka.compression.type": "lz4",
                # Some runs stage all batches, some put all batches into messages, and some do both.
                "inlineBytes": str(rng.choice([0, 200_000, 10_000_000])),
            }
        )
        print("start -1", flush=True)
    elif settings["sink"] == "jvm":
        writer = writer.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
        print("start -1", flush=True)
    else:
        writer = writer.foreachBatch(write)
    query = writer.option("checkpointLocation", settings["checkpoint"]).trigger(availableNow=True).start()
    query.awaitTermination()
    print("finished", flush=True)
    spark.stop()


# --- the run ----------------------------------------------------------------------------------------------------------


class Life:
    """One run of the driver, and its output."""

    def __init__(self, settings: dict) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--drive", json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Workers import spark_chaos_writer.py from this directory.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(
                    filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)])
                ),
                "CHAOS_COMMIT": settings["commits"],
            },
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.errors: collections.deque[str] = collections.deque(maxlen=60)
        self.readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines.put)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors.append)),
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, pipe, put) -> None:
        for line in pipe:
            put(line.rstrip("\n"))

    def workers(self) -> list[int]:
        """Returns the Python workers of Spark, which are descendants of the driver's JVM, without the daemon that
        forks them.
        """
        found = []
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "pyspark.daemon" in " ".join(child.cmdline()) and not child.children():
                        found.append(child.pid)
        return found

    def kill(self, *, alone: bool) -> None:
        """Kills the driver, either alone (its JVM then continues for a moment) or together with its JVM."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL) if alone else os.killpg(
                self.process.pid, signal.SIGKILL
            )

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        for reader in self.readers:
            reader.join(60)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def write_source(directory: Path, rows: int, files: int) -> None:
    directory.mkdir()
    for number in range(files):
        begin, end = rows * number // files, rows * (number + 1) // files
        (directory / f"{number:05d}.txt").write_text("\n".join(map(str, range(begin, end))) + "\n")


def count(servers: str, topic: str, rows: int, *, committed: bool) -> dict[str, int]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"count-{random.random()}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    seen = np.zeros(rows, np.int64)
    open_ends = set(range(PARTITIONS))
    deadline = time.monotonic() + 240
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in open_ends])
        while open_ends:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end: {open_ends}"
            numbers = []
            for message in consumer.consume(20_000, 1.0):
                if message.error() is None:
                    numbers.append(int(message.value()))
                elif message.error().code() == -191:
                    open_ends.discard(message.partition())
            np.add.at(seen, np.array(numbers, np.int64), 1)
    finally:
        consumer.close()
    return {
        "distinct": int((seen > 0).sum()),
        "duplicates": int(np.maximum(seen - 1, 0).sum()),
        "missing": int((seen == 0).sum()),
    }


class Growth:
    """Detects that a topic grows, which means that records are being sent."""

    def __init__(self, servers: str, topic: str) -> None:
        self.topic = topic
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "growth",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",  # otherwise brokers return the last stable offset
                "log_level": 0,
            }
        )
        self.last = [0] * PARTITIONS

    def ends(self) -> list[int]:
        """Returns the ends of the logs, including open and aborted transactions. If no broker answers, returns earlier
        ends.
        """
        for number in range(PARTITIONS):
            with contextlib.suppress(KafkaException):
                _, end = self.consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=0.5)
                self.last[number] = max(self.last[number], end)
        return list(self.last)


def run(cluster, seed: int, sink: str, options: argparse.Namespace, scratch: Path) -> dict:
    rng = random.Random(seed)  # the same kills for each sink
    topic = f"{sink}-{seed}"
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    servers = ",".join(cluster.bootstrap_servers)
    kills = ["driver", "worker", "broker"] * options.kills
    rng.shuffle(kills)
    if sink == "jvm":  # Spark's sink has no Python workers
        kills = [kill for kill in kills if kill != "worker"]
    settings = {
        "master": "local[2]" if seed % 3 else "local[2,4]",  # a task is tried once, or up to four times
        "servers": servers,
        "topic": topic,
        "source": str(scratch / "source"),
        "checkpoint": str(scratch / f"checkpoint-{topic}"),
        "sink": sink,
        "commits": str(scratch / f"commit-{topic}"),  # file that exists when the writer's `commit` has begun
        "keyed": seed % 2 == 1,
        "jars": options.jars_list if sink == "jvm" else "",
    }
    done: collections.Counter[str] = collections.Counter()
    outcomes: collections.Counter[str] = collections.Counter()
    lives = 0
    began = time.monotonic()
    down: tuple[int, float] | None = None
    finished = False
    growth = Growth(servers, topic)
    commits = Path(settings["commits"])
    before: list[int] | None = None  # ends of the logs when the wait for the next kill began

    def sending(ends: list[int]) -> bool:
        # Watch the writer's `commit`, not the log: the writer sends only there, and so quickly that a growing log would
        # be noticed too late.
        return commits.exists() if sink == "writer" else growth.ends() != ends

    while not finished:
        lives += 1
        assert lives < 60, "the query does not come to its end"
        life = Life({**settings, "life": seed * 1000 + lives})
        try:
            hit_at: float | None = None
            # Spark's own sink does not report its batches, so wait until the log grows.
            before = growth.ends() if sink == "jvm" and kills else None
            while True:
                if down is not None and time.monotonic() > down[1]:
                    cluster.start(down[0], timeout_s=120)
                    down = None
                try:
                    line = life.lines.get(timeout=0.02).split()
                except queue.Empty:
                    line = []
                if line[:1] == ["start"] and kills and hit_at is None and down is None:
                    # Most kills should happen while a batch is being sent, the others at any time. As soon as only as
                    # many batches as kills are left, each batch gets a kill.
                    few = len(kills) >= options.files - outcomes.total()
                    if few and sink != "writer":  # the writer reports when it commits, so no batch is missed
                        hit_at = time.monotonic() + rng.uniform(0, 0.1)
                    elif rng.random() < 0.7:
                        before = growth.ends()
                        commits.unlink(missing_ok=True)
                    else:
                        hit_at = time.monotonic() + rng.uniform(0, options.within)
                elif before is not None and not line and sending(before):
                    # Kill within a fraction of a second: later, the whole batch would be sent already.
                    soon = 0.5 if sink == "writer" else 0.1
                    before, hit_at = None, time.monotonic() + rng.uniform(0, soon)
                elif line[:1] == ["outcome"]:
                    before = None
                    outcomes[line[1]] += 1
                    done["restarts"] += int(line[2])
                elif line[:1] == ["finished"]:
                    finished = True
                if hit_at is not None and time.monotonic() >= hit_at and life.process.poll() is None:
                    hit_at = None
                    what = kills[-1]
                    if what == "driver":
                        alone = rng.random() < 0.5
                        # Kill the workers too: they have their own process groups, and would finish their work without
                        # the driver.
                        others = life.workers() if sink == "writer" and not alone else []
                        life.kill(alone=alone)
                        for worker in others:
                            with contextlib.suppress(ProcessLookupError):
                                os.kill(worker, signal.SIGKILL)
                    elif what == "broker":
                        node = rng.randint(1, 3)
                        cluster.kill(node)
                        down = node, time.monotonic() + rng.uniform(1, 4)
                    else:
                        workers = life.workers()
                        if not workers:
                            hit_at = time.monotonic() + 0.05
                            continue
                        # Prefer the process that runs `commit`.
                        committing = int(commits.read_text()) if commits.exists() else -1
                        chosen = committing if committing in workers else rng.choice(workers)
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(chosen, signal.SIGKILL)
                    kills.pop()
                    done[what] += 1
                    if sink == "jvm" and kills:
                        before = growth.ends()
                if life.process.poll() is not None and life.lines.empty():
                    break
                assert time.monotonic() - began < options.timeout, "\n".join(life.errors)
        finally:
            life.close()
        if options.verbose and not finished:
            print("\n".join(life.errors), file=sys.stderr)
    growth.consumer.close()
    if down is not None:
        cluster.start(down[0], timeout_s=120)
    cluster.wait_for_markers()
    result = {
        "seed": seed,
        "sink": sink,
        "rows": options.rows,
        "lives": lives,
        "kills": {what: done[what] for what in ("driver", "worker", "broker")},
        "transactions_begun_again": done["restarts"],
        "outcomes": dict(outcomes),
        "read_committed": count(servers, topic, options.rows, committed=True),
        "read_uncommitted": count(servers, topic, options.rows, committed=False),
        "seconds": round(time.monotonic() - began, 1),
    }
    cluster.delete_topic(topic)
    return result


def show(result: dict) -> None:
    seen, raw = result["read_committed"], result["read_uncommitted"]
    kills = " + ".join(f"{number} {what}" for what, number in result["kills"].items())
    print(
        f"seed {result['seed']:3d}  {NAMES[result['sink']]:18s}  in {result['rows']}  distinct out {seen['distinct']}"
        f"  duplicates {seen['duplicates']}  missing {seen['missing']}  (aborted copies in the log"
        f" {raw['duplicates'] - seen['duplicates']}; kill -9: {kills}; {result['lives']} drivers,"
        f" {result['transactions_begun_again']} transactions begun again, {result['seconds']:.0f} s)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="how many runs")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=10, help="number of micro-batches")
    parser.add_argument(
        "--kills", type=int, default=2, help="number of kills of each kind: driver, worker, broker"
    )
    parser.add_argument(
        "--within", type=float, default=1.5, help="maximum seconds from the start of a micro-batch to a kill"
    )
    parser.add_argument("--sinks", default="exact,naive", help="some of exact, writer, naive, jvm")
    parser.add_argument("--jars", help="directory with the jars of Spark's Kafka connector, for jvm")
    parser.add_argument("--timeout", type=float, default=570, help="seconds for one run")
    parser.add_argument("--json", type=Path, help="append results to this file, one per line")
    parser.add_argument("--verbose", action="store_true", help="print what drivers wrote to stderr")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(json.loads(options.drive))
        return
    options.jars_list = ",".join(map(str, sorted(Path(options.jars).glob("*.jar")))) if options.jars else ""
    from kafkasafe.testing.broker import KafkaCluster

    # Drivers have their own sessions, so end them explicitly when the run is interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wrong = 0
    with (
        tempfile.TemporaryDirectory() as scratch,
        KafkaCluster(brokers=3, config={"min.insync.replicas": 2}) as cluster,
    ):
        write_source(Path(scratch) / "source", options.rows, options.files)
        for seed in range(options.first, options.first + options.seeds):
            for sink in options.sinks.split(","):
                result = run(cluster, seed, sink, options, Path(scratch))
                show(result)
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(result) + "\n")
                if sink in {"exact", "writer"}:
                    seen = result["read_committed"]
                    wrong += seen["duplicates"] + seen["missing"]
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

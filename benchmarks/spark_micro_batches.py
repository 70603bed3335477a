"""Compares the latency of small micro-batches, and of plans with many partitions, with Spark's JVM source and sink.

    python benchmarks/spark_micro_batches.py --jars fetch           # beside Spark's own connector; or DIR with its jars
    python benchmarks/spark_micro_batches.py --jars fetch --count   # what each micro-batch does; no times
    python benchmarks/spark_micro_batches.py --what plan --jars fetch

`batches`: a query from Kafka to Kafka reads an already filled topic in micro-batches of `--rows` rows. Several clients
take turns: the sink (`foreachBatch`), the sink after the JVM's source, the writer (`writeStream.format("kafkasafe")`),
and the JVM's source and sink. A turn is one query. The first micro-batches of a query and the first round do not
count. The latency is Spark's own `triggerExecution`, which includes the plan, the reading, the writing, the commit,
and Spark's two logs. The CPU time is that of Spark's driver with all its Python processes, without the broker, for
each counted micro-batch.

`plan`: measures `latestOffset` of queries on a topic with `--partitions-of-plan` partitions, as Spark reports it. In
the case `idle`, one partition has new records for each plan; in the case `moved`, every partition has new records. A
micro-batch of kafkasafe's source reads `--rows-of-plan` records. The JVM's source reads at least one record of each
partition with new records, in one task for each partition. With 1,000 partitions in `moved`, such a micro-batch took
more than four minutes. The JVM's source asks for the same offsets in both cases, so both cases are compared with its
result in `idle`.

`--count`: runs one query of each kind through a proxy that counts requests, and prints for each micro-batch its
requests by kind, its Spark jobs, and the Python processes that it started. The proxy makes the times meaningless. With
`--fsyncs`, strace also counts the fsyncs. strace stops the JVM at each system call, so a query then takes minutes.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import re
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from spark_harness import OURS, THEIRS, produce, spark_and_broker
from spark_pipeline import fill

WRITER = "kafkasafe writer"
SINK = "kafkasafe sink, JVM source"
CLIENTS = {"sink": OURS, "sink-alone": SINK, "writer": WRITER, "jvm": THEIRS}
KINDS = ("plain", "keyed")
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
PUT_IN = "CAST(concat('{\"seen\":true,', substring(CAST(value AS STRING), 2)) AS BINARY) AS value"


class Processes:
    """The processes of Spark's driver: this process, its JVM, and all its Python processes, but not the broker."""

    def __init__(self, spark: Any) -> None:
        self._jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)
        self._seen: dict[tuple[int, float], float] = {}

    def cpu_s(self) -> float:
        """Returns the CPU seconds since the start. For a process that has ended, the value of the last call counts."""
        for process in [psutil.Process(), self._jvm, *self._jvm.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system
        return sum(self._seen.values())

    def pids(self) -> set[int]:
        """Returns the Python processes below the JVM. Other processes do not count, such as `chmod` for a local
        checkpoint.
        """
        found = set()
        for process in self._jvm.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("python"):
                    found.add(process.pid)
        return found

    @property
    def jvm(self) -> int:
        return self._jvm.pid


class Kafka:
    """The queries of one kind of rows."""

    def __init__(
        self, spark: Any, cluster: Any, servers: str, options: argparse.Namespace, scratch: Path
    ) -> None:
        self.spark, self.cluster, self.servers, self.options, self.scratch = (
            spark,
            cluster,
            servers,
            options,
            scratch,
        )

    def query(self, kind: str, name: str) -> tuple[Any, str]:
        """Creates a query that copies the topic `kind` to a new topic in micro-batches. Returns its writer, and the
        topic.
        """
        from kafkasafe.spark import foreach_batch_sink

        columns = ["key", "value"] if kind == "keyed" else ["value"]
        topic, checkpoint = f"t-{uuid.uuid4().hex}", self.scratch / uuid.uuid4().hex
        self.cluster.create_topic(topic, partitions=self.options.partitions)
        reader = self.spark.readStream.format("kafka" if name in {THEIRS, SINK} else "kafkasafe")
        reader = reader.option("kafka.bootstrap.servers", self.servers).option("subscribe", kind)
        reader = reader.option("startingOffsets", "earliest").option(
            "maxOffsetsPerTrigger", self.options.rows
        )
        if name not in {THEIRS, SINK}:
            reader = reader.schema(", ".join(f"{column} BINARY" for column in columns))
        rows = reader.load().selectExpr(*columns[:-1], PUT_IN)
        if name in {OURS, SINK}:
            sink = foreach_batch_sink(topic, **{"kafka.bootstrap.servers": self.servers})
            writer = rows.writeStream.foreachBatch(sink)
        else:
            writer = rows.writeStream.format("kafka" if name == THEIRS else "kafkasafe").option(
                "topic", topic
            )
            writer = writer.option("kafka.bootstrap.servers", self.servers)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        return writer, topic

    def check(self, name: str, topic: str) -> None:
        """Checks that a query wrote every row, and kafkasafe's query every row once."""
        reader = self.spark.read.format("kafkasafe").option("kafka.bootstrap.servers", self.servers)
        found = reader.option("subscribe", topic).option("isolationLevel", "read_committed").load()
        counts = found.selectExpr("get_json_object(CAST(value AS STRING), '$.id') AS id")
        total, distinct = counts.selectExpr("count(*)", "count(DISTINCT id)").collect()[0]
        rows = self.options.rows * self.options.batches
        assert distinct == rows, (name, total, distinct)
        assert name == THEIRS or total == rows, (name, total, distinct)
        self.cluster.delete_topic(topic)


def names_of(options: argparse.Namespace) -> list[str]:
    """Returns the clients that take turns, without the JVM's source and sink if the connector's jars are missing."""
    names = [CLIENTS[name] for name in options.clients.split(",")]
    return [name for name in names if options.jars or name not in {THEIRS, SINK}]


def counted_from(query: Any, number: int) -> None:
    """Returns when a query has run that many micro-batches, or has ended."""
    while query.isActive and len(query.recentProgress) < number:
        time.sleep(0.01)


def progress_of(query: Any) -> list[dict[str, Any]]:
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()
    return [json.loads(one.json) for one in query.recentProgress if one["numInputRows"]]


def load() -> str:
    return Path("/proc/loadavg").read_text(encoding="ascii").split()[0]


# --- latency of micro-batches -----------------------------------------------------------------------------------------


def batches(kafka: Kafka, options: argparse.Namespace) -> None:
    processes = Processes(kafka.spark)
    names = names_of(options)
    for kind in options.kinds.split(","):
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name in names:
                writer, topic = kafka.query(kind, name)
                query = writer.start()
                counted_from(query, options.skip)
                skipped, before = len(query.recentProgress), processes.cpu_s()
                while query.isActive:
                    processes.cpu_s()
                    time.sleep(0.1)
                told = progress_of(query)
                counted = told[skipped:]
                cpu_ms = (processes.cpu_s() - before) / len(counted) * 1000
                kafka.check(name, topic)
                times = {
                    part: statistics.median(one["durationMs"].get(part, 0) for one in counted)
                    for part in ("triggerExecution", *PARTS)
                }
                parts = ", ".join(f"{part} {times[part]:.0f}" for part in PARTS)
                print(
                    f"{kind:5s} round {number}: {name:24s} {times['triggerExecution']:5.0f} ms a micro-batch"
                    f" ({parts}), CPU {cpu_ms:.0f} ms   (load {load()})",
                    flush=True,
                )
                if number:
                    found[name].append((times["triggerExecution"], cpu_ms))
        for name in names:
            ms = statistics.median(one[0] for one in found[name])
            cpu = statistics.median(one[1] for one in found[name])
            print(f"{kind:5s} {name:24s} median {ms:.0f} ms, CPU {cpu:.0f} ms", flush=True)
        for name in names if THEIRS in names else []:
            if name == THEIRS:
                continue
            pairs = list(zip(found[name], found[THEIRS], strict=True))
            ratios = [statistics.median(ours[at] / theirs[at] for ours, theirs in pairs) for at in (0, 1)]
            print(
                f"{kind:5s} {name} / JVM: latency {ratios[0]:.2f}, CPU {ratios[1]:.2f} (medians of pairs)",
                flush=True,
            )


# --- latestOffset with many partitions --------------------------------------------------------------------------------


def plan(kafka: Kafka, options: argparse.Namespace) -> None:
    partitions, rows, count = options.partitions_of_plan, options.rows_of_plan, options.batches_of_plan
    jvm: list[float] = []
    for case in ("idle", "moved"):
        topic = f"plan-{case}"
        kafka.cluster.create_topic(topic, partitions=partitions)
        # In the case `moved`, each partition needs new records until the end.
        total = partitions * (count + 2) if case == "moved" else rows * (count + 2)
        produce(
            kafka.servers,
            topic,
            ((None, b"x" * 100) for _ in range(total)),
            partitions if case == "moved" else 1,
        )
        names = [OURS, THEIRS] if options.jars and case == "idle" else [OURS]
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(options.rounds):
            for name, times in found.items():
                reader = kafka.spark.readStream.format("kafka" if name == THEIRS else "kafkasafe")
                reader = reader.option("kafka.bootstrap.servers", kafka.servers).option("subscribe", topic)
                reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", rows)
                if name != THEIRS:
                    reader = reader.schema("value BINARY")
                writer = reader.load().select("value").writeStream.format("noop")
                writer = writer.option("checkpointLocation", str(kafka.scratch / uuid.uuid4().hex))
                # Do not use availableNow, which asks the brokers for the ends only once.
                query = writer.trigger(processingTime="0 seconds").start()
                counted_from(query, count)
                query.stop()
                told = [json.loads(one.json) for one in query.recentProgress]
                told = [one for one in told if one["numInputRows"]][options.skip_of_plan :]
                ms = statistics.median(one["durationMs"]["latestOffset"] for one in told)
                size = max(len(json.dumps(one["sources"][0]["endOffset"])) for one in told)
                print(
                    f"{case:5s} round {number}: {name:24s} latestOffset {ms:5.0f} ms of {len(told)}, offsets"
                    f" {size:,} bytes   (load {load()})",
                    flush=True,
                )
                if number:
                    times.append(ms)
        for name, times in found.items():
            print(
                f"{case:5s} {name:24s} latestOffset median {statistics.median(times):.0f} ms, of {partitions}",
                flush=True,
            )
        jvm = found.get(THEIRS, jvm)
        if jvm:
            ratio = statistics.median(found[OURS]) / statistics.median(jvm)
            print(f"{case:5s} latestOffset / JVM: {ratio:.2f} (of medians)", flush=True)


# --- what a micro-batch does ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def fsyncs(pid: int, file: Path) -> Iterator[None]:
    """Writes the fsyncs of a process and of all its later children to a file."""
    command = ["strace", "-f", "-q", "-e", "trace=fsync,fdatasync", "-p", str(pid), "-o", str(file)]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)
    try:
        yield
    finally:
        tracer.terminate()
        try:
            tracer.wait(10)
        except subprocess.TimeoutExpired:
            # strace 6.1 may wait for ever for a thread, so kill strace. strace has flushed each line of its file, and
            # the kernel lets the traced processes continue.
            tracer.kill()
            tracer.wait(30)


def count(kafka: Kafka, proxy: Any, options: argparse.Namespace) -> None:
    """Prints what each kind of query does per micro-batch, computed as the difference between a long and a short
    query.
    """
    processes = Processes(kafka.spark)
    names = names_of(options)
    tracker = kafka.spark.sparkContext.statusTracker()
    for kind in options.kinds.split(","):
        for name in names:
            writer, topic = kafka.query(kind, name)
            writer.start().awaitTermination()  # start Python's processes and load classes before counting
            kafka.check(name, topic)
            writer, topic = kafka.query(kind, name)
            proxy.forget()
            seen = processes.pids()
            file = kafka.scratch / f"{uuid.uuid4().hex}.strace"
            started: set[int] = set()
            with fsyncs(processes.jvm, file) if options.fsyncs else contextlib.nullcontext():
                query = writer.start()
                run = str(query.runId)
                while query.isActive:
                    started |= processes.pids() - seen
                    time.sleep(0.002)
            number = len(progress_of(query))
            asked = collections.Counter(call.api for call in proxy.requests())
            synced = ""
            if options.fsyncs:
                calls = len(re.findall("f(?:data)?sync", file.read_text(encoding="ascii")))
                synced = f"; {calls / number:.2f} fsyncs"
            jobs = len(tracker.getJobIdsForGroup(run))
            requests = ", ".join(f"{api} {calls / number:.2f}" for api, calls in asked.most_common())
            print(
                f"{kind:5s} {name:24s} of {number} micro-batches, each: {sum(asked.values()) / number:.1f} requests"
                f" ({requests}); {jobs / number:.2f} Spark jobs; {len(started) / number:.2f} Python processes started"
                f"{synced}",
                flush=True,
            )
            kafka.check(name, topic)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--what", default="batches,plan")
    parser.add_argument("--count", action="store_true", help="count what a micro-batch does, measure nothing")
    parser.add_argument("--fsyncs", action="store_true", help="with --count: count fsyncs too, by strace")
    parser.add_argument(
        "--clients", default=",".join(CLIENTS), help="the clients that take turns, separated by commas"
    )
    parser.add_argument("--rows", type=int, default=1000, help="rows of a micro-batch")
    parser.add_argument("--batches", type=int, default=25, help="number of micro-batches of a query")
    parser.add_argument("--skip", type=int, default=5, help="number of first micro-batches that do not count")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--partitions-of-plan", type=int, default=1000)
    parser.add_argument("--rows-of-plan", type=int, default=20)
    parser.add_argument("--batches-of-plan", type=int, default=10)
    parser.add_argument("--skip-of-plan", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jars", help="directory with the jars of Spark's connector, or fetch")
    options = parser.parse_args()
    with spark_and_broker(options.jars) as (spark, cluster), tempfile.TemporaryDirectory() as scratch:
        from kafkasafe.spark import register
        from kafkasafe.testing.proxy import FaultProxy

        register(spark)
        servers = ",".join(cluster.bootstrap_servers)
        for kind in options.kinds.split(","):
            cluster.create_topic(kind, partitions=options.partitions)
            fill(
                servers,
                kind,
                options.rows * options.batches,
                keyed=kind == "keyed",
                partitions=options.partitions,
            )
        if options.count:
            with FaultProxy(bootstrap=servers) as proxy:
                servers = ",".join(proxy.bootstrap_servers)
                count(Kafka(spark, cluster, servers, options, Path(scratch)), proxy, options)
            return
        kafka = Kafka(spark, cluster, servers, options, Path(scratch))
        if "batches" in options.what.split(","):
            batches(kafka, options)
        if "plan" in options.what.split(","):
            plan(kafka, options)


if __name__ == "__main__":
    main()

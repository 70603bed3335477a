"""Kills drivers and executors (-9) of a stateful stream from Kafka to Kafka, and counts lost and duplicated rows.

    python benchmarks/spark_stream_kills.py --drivers 5 --executors 5 --seed 1
    python benchmarks/spark_stream_kills.py --drivers 2 --executors 1 --sink naive    # control: a plain foreachBatch

A program continuously writes orders and payments to two topics, and some orders twice. Meanwhile a streaming query
starts at `latest`, on a standalone cluster (a master, and two workers with one executor each). The query drops the
repeated orders (`dropDuplicatesWithinWatermark`), joins orders with their payments (stream to stream, by id and time),
computes the sums of each user in windows of two seconds, and writes the sums to a third topic, exactly once.

Half of the kills happen *between the sink's commit and Spark's*: the sink has committed, and `foreachBatch` has not
returned. The other half happen *while rows are written*: the output topic has grown since the micro-batch began. The
first kill of a driver happens between the two commits of the query's first micro-batch.

At the end a plain read_committed reader (librdkafka) reads all three topics. The benchmark computes the sums again
without Spark, from the input records after the offsets at which the first micro-batch began. The output must have each
sum once, with the right value.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

PARTITIONS = 3
WINDOW_MS = 2000
PAYMENT_WITHIN_S = 5
USERS = 300
TWICE = 0.2  # share of the orders that are written twice
PAID = 0.9
JAVA_OPTIONS = os.environ.get("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
"""Options of drivers, executors and daemons."""
PADDING = "x" * 400
"""Padding of each row. With a small `kafka.batch.size`, a micro-batch then takes many requests."""


# --- the driver: another process, which is killed ---------------------------------------------------------------------


def query_of(spark: Any, settings: Mapping[str, Any]) -> Any:
    """Returns the data frame of the output, which has one row for each user and window."""
    from pyspark.sql import functions as f

    def stream(topic: str, schema: str) -> Any:
        given = {"kafka.bootstrap.servers": settings["servers"], "subscribe": topic}
        rows = (
            spark.readStream.format("kafkasafe").options(**given).load()
        )  # starts at latest, which is the default
        rows = rows.select(f.from_json(f.col("value").cast("string"), schema).alias("v")).select("v.*")
        return rows.withColumn("at", f.timestamp_millis("ms")).withWatermark("at", "20 seconds")

    orders = stream(settings["orders"], "id LONG, user STRING, ms LONG").dropDuplicatesWithinWatermark(["id"])
    payments = stream(settings["payments"], "id LONG, amount LONG, ms LONG")
    joined = orders.alias("o").join(
        payments.alias("p"),
        f.expr(f"o.id = p.id AND p.at BETWEEN o.at AND o.at + INTERVAL {PAYMENT_WITHIN_S} SECONDS"),
    )
    sums = joined.groupBy(f.window("o.at", f"{WINDOW_MS} milliseconds"), f.col("o.user")).agg(
        f.count("*").alias("count"), f.sum("p.amount").alias("amount"), f.sum("o.id").alias("ids")
    )
    name = f.concat_ws("|", f.unix_millis("window.start"), "user")
    value = f.to_json(f.struct(name.alias("name"), "count", "amount", "ids", f.lit(PADDING).alias("padding")))
    return sums.select(*([name.alias("key")] if settings["keyed"] else []), value.alias("value"))


def naive_partition(servers: str, topic: str, rows: Any) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "enable.idempotence": True})
    for row in rows:
        producer.produce(topic, row.value.encode())
        producer.poll(0)
    assert producer.flush(120) == 0


def causes_of(query: Any) -> str:
    """Returns the chain of exceptions that ended a query, on one line and without the query's plan."""
    error, found = query._jsq.exception().get(), []
    while error is not None and len(found) < 8:
        found.append(
            f"{error.getClass().getName()}: {error.getMessage()}".split("=== Streaming Query")[0].strip()
        )
        error = error.getCause()
    return " <- ".join(found)[:4000].replace("\n", " ")


def is_held(hold: Path, batch_id: int) -> bool:
    """Returns whether a micro-batch must wait. If the file `hold` exists, all micro-batches wait, except the one that
    the file names.
    """
    try:
        return hold.read_text() != str(batch_id)
    except FileNotFoundError:
        return False


def drive(settings: dict[str, Any]) -> None:
    from functools import partial

    from pyspark.sql import SparkSession

    from kafkasafe.spark import foreach_batch_sink, register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(settings["master"]).appName("stream-kills")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "640m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "640m",
        "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.minBatchesToRetain": "10000",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    folder = Path(settings["folder"])
    sink = foreach_batch_sink(
        settings["target"], **{"kafka.bootstrap.servers": settings["servers"], "kafka.batch.size": 2000}
    )

    def write(df: Any, batch_id: int) -> None:
        print(f"begun {batch_id}", flush=True)
        if settings["sink"] == "exact":
            sink(df, batch_id)
            print(f"committed {batch_id} {sink.last.name} {sink.last.rows}", flush=True)
        else:
            df.foreachPartition(partial(naive_partition, settings["servers"], settings["target"]))
            print(f"committed {batch_id} written -1", flush=True)
        deadline = time.monotonic() + 60
        while is_held(folder / "hold", batch_id) and time.monotonic() < deadline:  # wait for the kill
            time.sleep(0.01)

    rows = query_of(spark, settings)
    query = rows.writeStream.foreachBatch(write).option("checkpointLocation", settings["checkpoint"]).start()
    while query.isActive and not (folder / "stop").exists():
        time.sleep(0.05)
    failed = query.exception()
    query.stop()
    why = "" if failed is None else causes_of(query)
    print("failed" if failed else "stopped", why, flush=True)
    spark.stop()


class Driver:
    """One run of the driver, and its output."""

    def __init__(self, settings: Mapping[str, Any], log: Path) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--drive", json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        self.committed: int | None = None
        self.begun: int | None = None
        self.rows = 0
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.failed = ""
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            word, *rest = line.split()
            if word == "begun":
                self.begun = int(rest[0])
            elif word == "committed":
                self.outcomes[rest[1]] += 1
                self.rows = int(rest[2])
                self.committed = int(rest[0])
            elif word in {"failed", "stopped"}:
                self.failed = line if word == "failed" else ""

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def kill(self, *, alone: bool) -> None:
        """Kills the driver, either alone (its JVM then continues for a moment) or together with its JVM."""
        with contextlib.suppress(ProcessLookupError):
            if alone:
                os.kill(self.process.pid, signal.SIGKILL)
            else:
                os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        self._reader.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


# --- the standalone cluster -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def daemon(name: str, *arguments: str, say: str, log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Runs a daemon of a standalone cluster. Yields the first line of the daemon's log that contains `say`, and the
    process.
    """
    import pyspark

    home = Path(pyspark.__file__).parent
    verbose = log.parent / "log4j2.properties"
    verbose.write_text(
        "rootLogger.level=info\nrootLogger.appenderRef.a.ref=console\nappender.a.type=Console\n"
        "appender.a.name=console\nappender.a.target=SYSTEM_ERR\nappender.a.layout.type=PatternLayout\n"
        "appender.a.layout.pattern=%m%n\n"
    )
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_NO_DAEMONIZE": "1",
        # Do not give up an application whose executors are killed repeatedly.
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile={verbose} {JAVA_OPTIONS}"
        " -Dspark.deploy.maxExecutorRetries=-1",
    }
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    with log.open("wb") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as running:
        try:
            deadline = time.monotonic() + 120
            while not (lines := [line for line in log.read_text().splitlines() if say in line]):
                assert running.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield lines[0], running
        finally:
            running.terminate()
            running.wait(60)


@contextlib.contextmanager
def standalone(folder: Path) -> Iterator[tuple[str, Callable[[], list[int]]]]:
    """Runs a standalone cluster. Yields the cluster's address, and a function that lists its executors' processes."""
    with contextlib.ExitStack() as stack:
        started, _ = stack.enter_context(
            daemon(
                *("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                say="Starting Spark master at",
                log=folder / "master.log",
            )
        )
        master = started.split()[-1]
        workers = []
        for host in ("127.0.0.1", "127.0.0.2"):
            resources = (
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(folder / host),
                "--webui-port",
                "0",
            )
            workers.append(
                stack.enter_context(
                    daemon(
                        *("worker.Worker", "--host", host, *resources, master),
                        say="Successfully registered with master",
                        log=folder / f"worker-{host}.log",
                    )
                )[1]
            )

        def executors() -> list[int]:
            found = []
            for worker in workers:
                with contextlib.suppress(psutil.Error):
                    for child in psutil.Process(worker.pid).children(recursive=True):
                        with contextlib.suppress(psutil.Error):
                            if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                                found.append(child.pid)
            return found

        yield master, executors


# --- the input --------------------------------------------------------------------------------------------------------


class Load:
    """Writes orders and payments until `stop`. `later` writes orders and payments with later event times, to close all
    windows.
    """

    def __init__(self, servers: str, orders: str, payments: str, seed: int, rate: float) -> None:
        self._orders, self._payments = orders, payments
        self._rng = random.Random(seed)
        self._rate = rate
        self._stop = threading.Event()
        self.written = 0
        self._failed: list[Any] = []
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "on_delivery": lambda error, _: self._failed.append(error) if error else None,
            }
        )
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        began = time.monotonic()
        while not self._stop.wait(0.01):
            while self.written < (time.monotonic() - began) * self._rate:
                self._order(int(time.time() * 1000))
                self._producer.poll(0)
        self._producer.flush(60)

    def _order(self, ms: int) -> None:
        number, rng = self.written, self._rng
        self.written += 1
        order = json.dumps({"id": number, "user": f"u{rng.randrange(USERS)}", "ms": ms}).encode()
        for _ in range(2 if rng.random() < TWICE else 1):
            self._producer.produce(self._orders, order, partition=rng.randrange(PARTITIONS))
        if rng.random() < PAID:
            payment = json.dumps({"id": number, "amount": rng.randrange(100), "ms": ms + rng.randrange(50)})
            self._producer.produce(self._payments, payment.encode(), partition=rng.randrange(PARTITIONS))

    def stop(self) -> int:
        """Stops writing. Returns an event time (ms) after all records so far, and before those of `later`."""
        self._stop.set()
        self._thread.join(120)
        return int(time.time() * 1000) + 1_800_000

    def later(self, hours: int) -> None:
        for _ in range(20):
            self._order(int(time.time() * 1000) + hours * 3_600_000)
        assert self._producer.flush(60) == 0
        assert not self._failed, self._failed


def read(servers: str, topic: str, begins: Mapping[int, int], level: str) -> list[tuple[int, int, bytes]]:
    """Returns (partition, offset, value) of all records from the given offsets on, as librdkafka reads them."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"count-{random.random()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": level,
        }
    )
    found, open_ends = [], set(range(PARTITIONS))
    deadline = time.monotonic() + 240
    try:
        consumer.assign([TopicPartition(topic, number, begins.get(number, 0)) for number in open_ends])
        while open_ends:
            assert time.monotonic() < deadline, f"{topic} cannot be read to its end: {open_ends}"
            for message in consumer.consume(20_000, 1.0):
                if message.error() is None:
                    found.append((message.partition(), message.offset(), message.value()))
                elif message.error().code() == -191:
                    open_ends.discard(message.partition())
    finally:
        consumer.close()
    return found


class Growth:
    """Sees that a topic grows: records are being sent now."""

    def __init__(self, servers: str, topic: str) -> None:
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "growth",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "log_level": 0,
            }
        )

    def total(self) -> int:
        total = 0
        for number in range(PARTITIONS):
            with contextlib.suppress(KafkaException):
                total += self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=5)[
                    1
                ]
        return total

    def close(self) -> None:
        self._consumer.close()


# --- what there should be ---------------------------------------------------------------------------------------------


def expected(
    orders: list[dict[str, Any]], payments: list[dict[str, Any]], before_ms: int
) -> dict[str, tuple[int, int, int]]:
    """Computes the query's result without Spark, for windows before a time: `window|user` → (count, amount, ids)."""
    by_id = {order["id"]: order for order in orders}
    sums: dict[str, tuple[int, int, int]] = {}
    for payment in payments:
        order = by_id.get(payment["id"])
        if order is None or not 0 <= payment["ms"] - order["ms"] <= PAYMENT_WITHIN_S * 1000:
            continue
        if order["ms"] >= before_ms:
            continue
        name = f"{order['ms'] // WINDOW_MS * WINDOW_MS}|{order['user']}"
        count, amount, ids = sums.get(name, (0, 0, 0))
        sums[name] = count + 1, amount + payment["amount"], ids + order["id"]
    return sums


def begins_of(checkpoint: Path) -> dict[str, dict[int, int]]:
    """Returns the offsets at which the first micro-batch began, by topic, from its entry in the offset log."""
    found: dict[str, dict[int, int]] = {}
    for line in (checkpoint / "offsets" / "0").read_text().splitlines():
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict) and "kafkasafe" in entry:
                for topic, of_topic in entry["topics"].items():
                    found[topic] = {int(key): mark["begin"] for key, mark in of_topic["partitions"].items()}
    return found


def compare(
    found: list[tuple[int, int, bytes]], wanted: Mapping[str, tuple[int, int, int]], before_ms: int
) -> dict[str, int]:
    rows: dict[str, list[tuple[int, int, int]]] = {}
    for _, _, value in found:
        row = json.loads(value)
        if int(row["name"].split("|")[0]) < before_ms:
            rows.setdefault(row["name"], []).append((row["count"], row["amount"], row["ids"]))
    return {
        "wanted": len(wanted),
        "lost": sum(name not in rows for name in wanted),
        "twice": sum(len(values) - 1 for values in rows.values()),
        "wrong": sum(values[0] != wanted[name] for name, values in rows.items() if name in wanted),
        "unwanted": sum(name not in wanted for name in rows),
    }


# --- the run ----------------------------------------------------------------------------------------------------------


class Run:
    """Runs drivers one after the other, and kills drivers and executors."""

    def __init__(
        self, settings: dict[str, Any], executors: Callable[[], list[int]], options: argparse.Namespace
    ) -> None:
        self.settings, self.executors, self.options = settings, executors, options
        self.folder = Path(settings["folder"])
        self.hold = self.folder / "hold"
        self.rng = random.Random(options.seed)
        self.growth = Growth(settings["servers"], settings["target"])
        self.done: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.batches_hit: list[tuple[str, int]] = []
        self.failures: list[str] = []
        self.lives = 0
        self.driver: Driver | None = None
        self.deadline = time.monotonic() + options.timeout

    def check(self) -> None:
        assert time.monotonic() < self.deadline, f"not done in time: {self.done}, {self.failures[-3:]}"

    def running(self) -> Driver:
        """Returns the running driver. If it has ended, starts the next one."""
        if self.driver is not None and self.driver.lives:
            return self.driver
        self.end()
        self.lives += 1
        assert self.lives < 200, self.failures[-3:]
        # In some runs, rows have keys, so that they go through an exchange before they are sent.
        settings = {**self.settings, "keyed": self.rng.random() < 0.5}
        self.driver = Driver(settings, self.folder / "driver.log")
        return self.driver

    def end(self) -> None:
        driver, self.driver = self.driver, None
        if driver is not None:
            driver.close()
            self.outcomes += driver.outcomes
            if driver.failed:
                self.failures.append(driver.failed)
                print(f"{time.strftime('%H:%M:%S')} the query {driver.failed[:1500]}", flush=True)

    def until(self, condition: Callable[[Driver], bool]) -> Driver:
        """Waits until the condition is true for the running driver, and returns the driver."""
        while True:
            self.check()
            driver = self.running()
            if condition(driver):
                return driver
            time.sleep(0.005)

    def kill(self, what: str, aim: str) -> None:
        driver = self._committed() if aim == "between" else self._writing()
        batch = -1 if driver.begun is None else driver.begun
        if what == "driver":
            driver.kill(alone=self.rng.random() < 0.3)
            driver.process.wait(60)
        else:
            while not (processes := self.executors()):
                self.check()
                time.sleep(0.05)
            chosen = processes if self.rng.random() < 0.3 else [self.rng.choice(processes)]
            for process in chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        self.hold.unlink(missing_ok=True)
        self.done[f"{what} {aim}"] += 1
        self.batches_hit.append((f"{what} {aim}", batch))
        print(f"{time.strftime('%H:%M:%S')} killed: {what}, {aim}, batch {batch}", flush=True)

    def _committed(self) -> Driver:
        """Returns a driver that waits after its sink has committed a micro-batch with rows (the first time, any
        micro-batch).
        """
        while True:
            driver = self.running()
            seen = driver.committed
            self.hold.touch()  # does not change an existing file's content
            driver = self.until(
                lambda now, old=driver, seen=seen: (
                    now.committed is not None and (now is not old or now.committed != seen)
                )
            )
            if driver.rows != 0 or not self.batches_hit:
                return driver
            # Release this micro-batch and hold the next one. Replace the file atomically. The driver checks the file
            # only now and then: it might not notice a moment without the file, and would hold this batch for a minute.
            let_go = self.hold.with_suffix(".new")
            let_go.write_text(str(driver.committed))
            let_go.replace(self.hold)

    def _writing(self) -> Driver:
        """Returns a driver whose micro-batch is sending rows: since it began, the topic has grown by more than
        transaction markers.
        """
        while True:
            driver = self.running()
            seen = driver.begun
            driver = self.until(
                lambda now, old=driver, seen=seen: (
                    now.begun is not None and (now is not old or now.begun != seen)
                )
            )
            before, batch = self.growth.total(), driver.begun
            while driver.lives and driver.begun == batch and driver.committed != batch:
                self.check()
                if self.growth.total() > before + 2 * PARTITIONS:
                    time.sleep(self.rng.uniform(0, 0.1))
                    return driver
            # This micro-batch wrote no rows.

    def batches(self, count: int) -> None:
        """Waits for this number of further micro-batches, but at most 30 s, because the query may have read all
        records.
        """
        until = time.monotonic() + 30
        target = (self.running().begun or 0) + count
        self.until(lambda now: (now.begun or 0) >= target or time.monotonic() > until)

    def finish(self, complete: Callable[[], bool]) -> None:
        looked = 0.0

        def is_complete(_: Driver) -> bool:
            nonlocal looked
            if time.monotonic() - looked < 2.0:
                return False
            looked = time.monotonic()
            return complete()

        self.until(is_complete)
        (self.folder / "stop").touch()
        driver = self.driver
        assert driver is not None
        driver.process.wait(120)
        self.end()
        self.growth.close()


def run(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    from kafkasafe.testing.broker import KafkaCluster

    began = time.monotonic()
    names = {name: f"{name}-{options.seed}" for name in ("orders", "payments", "target")}
    with KafkaCluster(brokers=1) as cluster, standalone(scratch) as (master, executors):
        servers = ",".join(cluster.bootstrap_servers)
        for name in names.values():
            cluster.create_topic(name, partitions=PARTITIONS)
        load = Load(servers, names["orders"], names["payments"], options.seed, options.rate)
        checkpoint = scratch / "checkpoint"
        settings = {
            **names,
            "servers": servers,
            "master": master,
            "folder": str(scratch),
            "checkpoint": str(checkpoint),
            "sink": options.sink,
        }
        try:
            time.sleep(2.0)
            ends = {
                topic: {
                    number: len(
                        [1 for where, _, _ in read(servers, topic, {}, "read_committed") if where == number]
                    )
                    for number in range(PARTITIONS)
                }
                for topic in (names["orders"], names["payments"])
            }
            running = Run(settings, executors, options)
            try:
                kills = [("driver", number) for number in range(options.drivers)]
                kills += [("executor", number) for number in range(options.executors)]
                # Kills of drivers and of executors begin with different aims, so that even one kill of each covers both
                # aims.
                aims = {"driver": ("between", "writing"), "executor": ("writing", "between")}
                plan = [(what, aims[what][number % 2]) for what, number in kills]
                running.rng.shuffle(plan)
                if ("driver", "between") in plan:  # in the very first micro-batch
                    plan.remove(("driver", "between"))
                    plan.insert(0, ("driver", "between"))
                for what, aim in plan:
                    running.kill(what, aim)
                before_ms = load.stop()
                # Wait: if records of later hours were read before the last current records, the current records would
                # be late.
                running.batches(3)
                begins = begins_of(checkpoint)

                def inputs(topic: str) -> list[dict[str, Any]]:
                    found = read(servers, topic, begins[topic], "read_committed")
                    return [json.loads(value) for _, _, value in found]

                load.later(1)
                wanted = expected(inputs(names["orders"]), inputs(names["payments"]), before_ms)
                rounds = [2]

                def complete() -> bool:
                    # A batch uses the watermark of the previous batch, so write later records repeatedly.
                    load.later(rounds[0])
                    rounds[0] += 1
                    so_far = compare(read(servers, names["target"], {}, "read_committed"), wanted, before_ms)
                    return so_far["lost"] == 0 or rounds[0] > 60

                running.finish(complete)
            finally:
                running.end()
        finally:
            load.stop()
        cluster.wait_for_markers()
        committed = read(servers, names["target"], {}, "read_committed")
        raw = read(servers, names["target"], {}, "read_uncommitted")
        skipped = {
            topic: {number: (ends[topic][number], begin) for number, begin in of_topic.items()}
            for topic, of_topic in begins.items()
        }
        return {
            "seed": options.seed,
            "sink": options.sink,
            "orders": load.written,
            "kills": dict(running.done),
            "in_batches": running.batches_hit,
            "drivers": running.lives,
            "outcomes": dict(running.outcomes),
            **compare(committed, wanted, before_ms),
            "aborted_rows_in_the_log": len(raw) - len(committed),
            "began_at_the_end": all(end <= at for ends in skipped.values() for end, at in ends.values()),
            "failures": running.failures,
            "seconds": round(time.monotonic() - began, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--drivers", type=int, default=5, help="number of kills of drivers")
    parser.add_argument("--executors", type=int, default=5, help="number of kills of executors")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=150.0, help="orders a second")
    parser.add_argument("--sink", choices=("exact", "naive"), default="exact")
    parser.add_argument("--timeout", type=float, default=1500, help="time limit for all kills, in seconds")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    parser.add_argument("--keep", type=Path, help="leave the logs in this directory")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(json.loads(options.drive))
        return
    # End drivers, too, on SIGTERM: they have sessions of their own, and would outlive this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            result = run(options, Path(scratch))
        finally:
            if options.keep:
                shutil.copytree(scratch, options.keep, dirs_exist_ok=True, ignore=lambda *_: ["checkpoint"])
    text = json.dumps(result)
    print(re.sub(r'"failures": \[.*?\], ', "", text), flush=True)
    if options.json:
        with options.json.open("a") as file:
            file.write(text + "\n")
    bad = [name for name in ("lost", "twice", "wrong", "unwanted") if result[name]]
    sys.exit(1 if bad or not result["wanted"] or not result["began_at_the_end"] else 0)


if __name__ == "__main__":
    main()

"""Compares producers in one run on one broker: records per second until `flush()` has returned.

    python benchmarks/produce.py [--quick] [--records N] [--repeats N] [--json FILE] [--profile]

Each measurement runs in its own process, so that no client disturbs another one. Each measurement starts with a short
warm-up (connections, metadata, producer id, and for SafeProducer the first segment of the spool). Each round runs every
client once, and the median of all rounds counts. After each measurement, the benchmark compares the topic's end offsets
with the number of sent records. Clients that would take minutes send fewer records; all rates are per second.

SafeProducer has its defaults. The other clients have their best documented settings, which the benchmark prints.
confluent-kafka's queue is large enough for all records, so that `produce()` never waits or fails (the queues of
SafeProducer and kafka-python are limited), and its batches may hold as many messages as fit. confluent-kafka's
idempotence is off, as it is by default, although SafeProducer's and kafka-python's is on; the row
`confluent-idempotent` shows confluent-kafka with the same guarantee. kafka-python has SafeProducer's batch size and
linger time. In rows with "+callbacks", each record has a delivery callback. An application needs such a callback to
learn the outcome of each record; SafeProducer always returns a future for each record. The row of Java shows Kafka's
own ProducerPerformance, which sends without keys. ProducerPerformance first sends as many records as it then measures,
to warm up its compiler. Java's CPU time includes the start of its process, spread over all records.

If other programs or the broker share the machine's cores, compare ratios, not records per second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import json
import os
import platform
import pstats
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

CLIENTS = {
    "safe-always": "SafeProducer, spool=always",
    "safe-on_error": "SafeProducer, spool=on_error",
    "safe-staged": "SafeProducer, delivery=transactional",
    "safe-batch": "SafeProducer, batch() of 10,000",
    "safe-callbacks": "SafeProducer, spool=always +callbacks",
    "kafka-python": "kafka-python",
    "kafka-python-callbacks": "kafka-python +callbacks",
    "confluent": "confluent-kafka",
    "confluent-callbacks": "confluent-kafka +callbacks",
    "confluent-idempotent": "confluent-kafka idempotent +callbacks",
    "aiokafka": "aiokafka",
    "java": "Java's ProducerPerformance",
}
LAYOUTS = {"1 partition, no keys": 1, "3 partitions, keys": 3}
SIZES = (100, 1024)
# The best settings for throughput in the documentation of each client. The benchmark prints them.
KAFKA_PYTHON = {"batch_size": 1_000_000, "linger_ms": 5}
CONFLUENT = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 10_000_000,
    "queue.buffering.max.kbytes": 2_000_000,
}
AIOKAFKA = {"max_batch_size": 1_000_000, "linger_ms": 5, "acks": "all", "enable_idempotence": True}
JAVA = {"batch.size": 1_000_000, "linger.ms": 5, "buffer.memory": 1_000_000_000}
"""Java's producer is idempotent with acks=all by default."""
# Share of --records that a slow client sends, so that each measurement takes seconds, not minutes.
SHARE = {"kafka-python": 0.06, "kafka-python-callbacks": 0.06, "aiokafka": 0.1}
SIZE_SHARE = {100: 1.0, 1024: 0.25}
WARM_UP = 2000
KEYS = 10_000
ATOMIC = 10_000
"""Number of records in each atomic batch."""
# Unlike the test clusters' defaults, these options allow the optimising compiler, for throughput.
JAVA_OPTIONS = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC")


# --- one measurement, in a process of its own -------------------------------------------------------------------------


def records_of(size: int, keyed: bool, count: int) -> tuple[list[bytes], list[bytes] | None]:
    """Creates values and keys before the clock starts. They differ, and compression cannot shrink them much."""
    noise = os.urandom(4 * size + 65_536)
    distinct = [noise[i * 61 % 65_536 :][:size] for i in range(1024)]
    values = [distinct[i & 1023] for i in range(count)]
    if not keyed:
        return values, None
    names = [b"customer-%06d" % i for i in range(KEYS)]
    return values, [names[i * 7919 % KEYS] for i in range(count)]


Send = Callable[[list[bytes], "list[bytes] | None"], None]


def sending(producer, topic: str, *, callbacks: bool) -> Send:
    """Returns a function that sends as an application does, with a KafkaProducer or a SafeProducer."""
    delivered = 0

    def on_delivery(_: object) -> None:
        nonlocal delivered
        delivered += 1

    def run(values: list[bytes], keys: list[bytes] | None) -> None:
        nonlocal delivered
        delivered = 0
        send = producer.send
        if callbacks and keys is None:
            for value in values:
                send(topic, value).add_callback(on_delivery)
        elif callbacks:
            for value, key in zip(values, keys, strict=True):
                send(topic, value, key).add_callback(on_delivery)
        elif keys is None:
            for value in values:
                send(topic, value)
        else:
            for value, key in zip(values, keys, strict=True):
                send(topic, value, key)
        producer.flush()
        if callbacks and delivered != len(values):
            sys.exit(f"{delivered} of {len(values)} callbacks had run when flush() returned")

    return run


@contextlib.contextmanager
def safe(
    topic: str, servers: str, spool: str, mode: str, *, callbacks: bool, delivery: str = "idempotent"
) -> Iterator[Send]:
    from kafkasafe.producer import SafeProducer

    with SafeProducer(
        bootstrap_servers=servers.split(","), spool_dir=spool, spool=mode, delivery=delivery
    ) as producer:
        yield sending(producer, topic, callbacks=callbacks)


@contextlib.contextmanager
def atomic(topic: str, servers: str, spool: str) -> Iterator[Send]:
    from kafkasafe.producer import SafeProducer

    with SafeProducer(bootstrap_servers=servers.split(","), spool_dir=spool) as producer:

        def run(values: list[bytes], keys: list[bytes] | None) -> None:
            for first in range(0, len(values), ATOMIC):
                with producer.batch() as batch:
                    send = batch.send
                    if keys is None:
                        for value in values[first : first + ATOMIC]:
                            send(topic, value)
                    else:
                        upto = first + ATOMIC
                        for value, key in zip(values[first:upto], keys[first:upto], strict=True):
                            send(topic, value, key)
            producer.flush()

        yield run


@contextlib.contextmanager
def kafka_python(topic: str, servers: str, *, callbacks: bool) -> Iterator[Send]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers.split(","), **KAFKA_PYTHON)
    try:
        yield sending(producer, topic, callbacks=callbacks)
    finally:
        producer.close()


@contextlib.contextmanager
def confluent(topic: str, servers: str, *, callbacks: bool, idempotent: bool) -> Iterator[Send]:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": idempotent, **CONFLUENT})
    failed = 0

    def delivered(error: object, _: object) -> None:
        nonlocal failed
        failed += error is not None

    def run(values: list[bytes], keys: list[bytes] | None) -> None:
        produce, poll = producer.produce, producer.poll
        on_delivery = delivered if callbacks else None
        for i, value in enumerate(values):
            produce(topic, value, None if keys is None else keys[i], on_delivery=on_delivery)
            if not i & 1023:
                poll(0)
        if producer.flush(300) or failed:
            sys.exit("confluent-kafka did not deliver everything")

    yield run


@contextlib.contextmanager
def aio(topic: str, servers: str) -> Iterator[Send]:
    from aiokafka import AIOKafkaProducer

    async def start() -> AIOKafkaProducer:
        producer = AIOKafkaProducer(bootstrap_servers=servers, **AIOKAFKA)
        await producer.start()
        return producer

    async def send_all(values: list[bytes], keys: list[bytes] | None) -> None:
        for i, value in enumerate(values):
            await producer.send(topic, value, None if keys is None else keys[i])
        await producer.flush()

    with asyncio.Runner() as runner:
        producer = runner.run(start())
        try:
            yield lambda values, keys: runner.run(send_all(values, keys))
        finally:
            runner.run(producer.stop())


def open_client(name: str, topic: str, servers: str, spool: str) -> contextlib.AbstractContextManager[Send]:
    match name:
        case "safe-always" | "safe-on_error":
            return safe(topic, servers, spool, name.removeprefix("safe-"), callbacks=False)
        case "safe-staged":
            return safe(topic, servers, spool, "always", callbacks=False, delivery="transactional")
        case "safe-batch":
            return atomic(topic, servers, spool)
        case "safe-callbacks":
            return safe(topic, servers, spool, "always", callbacks=True)
        case "kafka-python" | "kafka-python-callbacks":
            return kafka_python(topic, servers, callbacks=name != "kafka-python")
        case "aiokafka":
            return aio(topic, servers)
        case _:
            idempotent = name == "confluent-idempotent"
            return confluent(topic, servers, callbacks=name != "confluent", idempotent=idempotent)


def measure(options: argparse.Namespace) -> None:
    values, keys = records_of(options.size, options.keyed, options.records)
    with open_client(options.client, options.topic, options.servers, options.spool) as run:
        run(values[:WARM_UP], keys and keys[:WARM_UP])
        profile = cProfile.Profile() if options.profile else contextlib.nullcontext()
        cpu = time.process_time()
        with profile:
            started = time.perf_counter()
            run(values, keys)
            seconds = time.perf_counter() - started
        cpu = time.process_time() - cpu
    if isinstance(profile, cProfile.Profile):
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    print(json.dumps({"records": len(values), "seconds": seconds, "cpu_us": cpu / len(values) * 1e6}))


# --- all measurements -------------------------------------------------------------------------------------------------


def end_offsets(servers: list[str], topic: str, partitions: int) -> int:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=servers)
    try:
        return sum(consumer.end_offsets([TopicPartition(topic, p) for p in range(partitions)]).values())
    finally:
        consumer.close()


def java(cluster, topic: str, size: int, count: int) -> dict[str, float]:
    """Runs Kafka's own benchmark of its Java producer, after a warm-up with as many records."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    settings = {"bootstrap.servers": ",".join(cluster.bootstrap_servers), **JAVA}
    printed = cluster.run_java_tool(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--record-size", str(size), "--throughput", "-1"),
        *("--num-records", str(2 * count), "--warmup-records", str(count)),
        *("--command-property", *(f"{name}={value}" for name, value in settings.items())),
        timeout_s=600,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    steady = re.search(r"([\d,]+) steady state records sent, ([\d.]+) records/sec", printed)
    if steady is None:
        sys.exit(f"ProducerPerformance printed no figure after its warm-up:\n{printed}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"records": count, "seconds": count / float(steady[2]), "cpu_us": cpu / (2 * count) * 1e6}


def one(
    cluster, client: str, size: int, partitions: int, count: int, options: argparse.Namespace
) -> dict[str, float]:
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, partitions=partitions)
    if client == "java":
        try:
            return java(cluster, topic, size, count)
        finally:
            cluster.delete_topic(topic)
    spool = tempfile.mkdtemp(prefix="kafkasafe-bench-", dir=options.spool_parent)
    command = [
        *(sys.executable, __file__, "--client", client, "--topic", topic, "--size", str(size)),
        *("--records", str(count), "--servers", ",".join(cluster.bootstrap_servers), "--spool", spool),
        *(["--keyed"] if partitions > 1 else []),
        *(["--profile"] if options.profile else []),
    ]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=600)
        if done.returncode:
            sys.exit(f"{client} failed with exit code {done.returncode}")
        result = json.loads(done.stdout.splitlines()[-1])
        found, expected = (
            end_offsets(cluster.bootstrap_servers, topic, partitions),
            count + min(WARM_UP, count),
        )
        # A transaction has markers, which also occupy offsets.
        if found < expected or (found > expected and client not in {"safe-staged", "safe-batch"}):
            sys.exit(f"{client}: the topic ends at {found}, {expected} records were sent")
    finally:
        shutil.rmtree(spool, ignore_errors=True)
        cluster.delete_topic(topic)
    return result


def machine() -> dict[str, object]:
    model = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }


def fsync_ms(directory: str | None) -> float:
    """Returns the median time of one fdatasync of 4 KB."""
    times = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(50):
            os.write(file.fileno(), b"x" * 4096)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


def ratio(rate: float | None, to: float | None) -> str:
    return f"{rate / to:.2f}x" if rate and to else "-"


def run_all(options: argparse.Namespace) -> list[dict[str, object]]:
    from kafkasafe.testing.broker import KafkaCluster

    facts = machine()
    print(
        f"{facts['cores']} cores ({facts['cpu']}), load {facts['load']}, Linux {facts['kernel']}, Python"
        f" {facts['python']}; fdatasync of 4 KB: {fsync_ms(options.spool_parent):.2f} ms"
    )
    print(
        f"SafeProducer: defaults; kafka-python: {KAFKA_PYTHON}; confluent-kafka: {CONFLUENT};"
        f" aiokafka: {AIOKAFKA}; Java: {JAVA}"
    )
    names = options.clients.split(",") if options.clients else list(CLIENTS)
    rows: list[dict[str, object]] = []
    # Delete the 1 GB log of each measurement as soon as its topic is deleted.
    config = {"file.delete.delay.ms": 0, "log.initial.task.delay.ms": 1000}
    with KafkaCluster(brokers=1, config=config, java_options=JAVA_OPTIONS) as cluster:
        # Warm up the broker: its compiler must have seen each kind of request before the first measurement.
        one(cluster, names[0], 100, 1, min(options.records, 200_000), options)
        for size in options.sizes:
            for layout, partitions in LAYOUTS.items():
                shown = [name for name in names if name != "java" or partitions == 1]
                rates: dict[str, list[float]] = {name: [] for name in shown}
                cpu: dict[str, list[float]] = {name: [] for name in shown}
                for _ in range(options.repeats):
                    for name in shown:
                        count = int(options.records * SHARE.get(name, 1.0) * SIZE_SHARE.get(size, 1.0))
                        result = one(cluster, name, size, partitions, max(count, 1000), options)
                        rates[name].append(result["records"] / result["seconds"])
                        cpu[name].append(result["cpu_us"])
                medians = {name: statistics.median(found) for name, found in rates.items()}
                print(f"\n{size} B, {layout}")
                print(
                    f"  {'':40}{'records/s':>12}{'MB/s':>8}{'CPU us':>8}{'/kafka-python':>15}{'/confluent':>12}  runs"
                )
                for name in shown:
                    rate, used = medians[name], statistics.median(cpu[name])
                    print(
                        f"  {CLIENTS[name]:40}{rate:>12,.0f}{rate * size / 1e6:>8.0f}{used:>8.2f}"
                        f"{ratio(rate, medians.get('kafka-python')):>15}{ratio(rate, medians.get('confluent')):>12}"
                        f"  {' '.join(f'{found / 1000:.0f}k' for found in rates[name])}",
                        flush=True,
                    )
                    rows.append(
                        {
                            "client": name,
                            "size": size,
                            "layout": layout,
                            "records_per_s": round(rate),
                            "runs": [round(found) for found in rates[name]],
                            "client_cpu_us": round(used, 3),
                            "to_kafka_python": medians.get("kafka-python") and rate / medians["kafka-python"],
                            "to_confluent": medians.get("confluent") and rate / medians["confluent"],
                        }
                    )
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "results": rows}, indent=1) + "\n")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, default=0, help="records per measurement, at 100 B (default 1,000,000)"
    )
    parser.add_argument("--repeats", type=int, default=0, help="default 5")
    parser.add_argument("--quick", action="store_true", help="300,000 records, 3 repeats, only 100 B")
    parser.add_argument("--sizes", type=int, nargs="+", help="bytes per value (default 100 1024)")
    parser.add_argument("--clients", help=f"comma-separated list of: {', '.join(CLIENTS)}")
    parser.add_argument("--spool-parent", help="directory for the spools, on the disk to be measured")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="cProfile of the calling thread (slower)")
    child = parser.add_argument_group("one measurement (used by this program itself)")
    child.add_argument("--client", choices=CLIENTS)
    for name in ("--topic", "--servers", "--spool"):
        child.add_argument(name)
    child.add_argument("--size", type=int)
    child.add_argument("--keyed", action="store_true")
    options = parser.parse_args()
    if options.client:
        measure(options)
        return
    options.records = options.records or (300_000 if options.quick else 1_000_000)
    options.repeats = options.repeats or (3 if options.quick else 5)
    options.sizes = options.sizes or (SIZES[:1] if options.quick else SIZES)
    if unknown := set((options.clients or "").split(",")) - {"", *CLIENTS}:
        parser.error(f"unknown clients: {', '.join(sorted(unknown))}")
    run_all(options)


if __name__ == "__main__":
    main()

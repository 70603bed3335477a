"""Compares consumers in one run: records per second from one partition, on one broker.

    python benchmarks/consume.py [--quick] [--records N] [--repeats N] [--json FILE] [--profile]

Each measurement runs in its own process, so that no client disturbs another one. confluent-kafka with its defaults
writes the topic once (batches of up to 1 MB, not compressed), and the topic is in the page cache. The clock starts when
the client has received some records: by then, connections, metadata and the first fetch are complete, and
confluent-kafka has fetched ahead. The clock stops with the last record. Each round runs every client once, and the
median of all rounds counts. Clients that would take minutes read fewer records; all rates are per second. The benchmark
counts the records and checks the last offset. Nothing else is done with the records, which favours clients that create
an object for each record.

SafeConsumer and KafkaConsumer have their defaults. confluent-kafka has the settings that its documentation offers for
throughput, and the benchmark prints them. The row "defaults" shows confluent-kafka with its defaults: it then waits for
a second whenever its queue is full. The rows "16 MB" use larger fetches, in clients that support them (poll_arrow uses
up to 8 MiB by default). confluent-kafka returns up to 10,000 messages for each call; poll_arrow and aiokafka's getmany
return all records that have arrived. The row of Java shows the result of Kafka's own ConsumerPerformance, without the
time of the rebalance. Java's CPU time includes the start of its process.

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
import random
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

CLIENTS = {
    "kafka-python": "KafkaConsumer.poll",
    "safe": "SafeConsumer.poll",
    "confluent": "confluent-kafka consume()",
    "confluent-16MB": "confluent-kafka consume(), 16 MB",
    "confluent-defaults": "confluent-kafka consume(), defaults",
    "aiokafka": "aiokafka getmany()",
    "java": "Java's ConsumerPerformance",
    "arrow": "SafeConsumer.poll_arrow",
    "arrow-16MB": "SafeConsumer.poll_arrow, 16 MB",
    "arrow-views": "SafeConsumer.poll_arrow, views",
    "arrow-values": "… 16 MB, value and offset alone",
}
# Name: bytes of the value, whether lengths vary around it, share of --records.
TOPICS = {
    "100 B, keyed": (100, False, 1.0),
    "100 B on average, 50 to 150, keyed": (100, True, 1.0),
    "1 KB, keyed": (1024, False, 0.25),
}
CONFLUENT = {
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_000_000,
}
SHARE = {"kafka-python": 0.15, "safe": 0.4, "aiokafka": 0.4}
LARGE_FETCH = 16_000_000
KEYS = 10_000
JAVA_OPTIONS = ("-Xms256m", "-Xmx1g", "-XX:+UseSerialGC")


# --- one measurement, in a process of its own -------------------------------------------------------------------------


Poll = Callable[[], tuple[int, int]]
"""How many records came, and the offset of the last of them."""


@contextlib.contextmanager
def kafka_python(kind: type, servers: list[str], topic: str) -> Iterator[Poll]:
    from kafka import TopicPartition

    consumer = kind(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    consumer.assign([TopicPartition(topic, 0)])

    def poll() -> tuple[int, int]:
        count, last = 0, -1
        for records in consumer.poll(1000).values():
            count += len(records)
            last = records[-1].offset
        return count, last

    try:
        yield poll
    finally:
        consumer.close()


@contextlib.contextmanager
def arrow(
    servers: list[str],
    topic: str,
    fetch_bytes: int | None,
    columns: list[str] | None,
    *,
    views: bool,
) -> Iterator[Poll]:
    from kafka import TopicPartition

    from kafkasafe.consumer import SafeConsumer

    more = {} if fetch_bytes is None else {"max_partition_fetch_bytes": fetch_bytes}
    consumer = SafeConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False, **more
    )
    consumer.assign([TopicPartition(topic, 0)])

    def poll() -> tuple[int, int]:
        table = consumer.poll_arrow(1000, columns=columns, views=views)
        return table.num_rows, table["offset"][-1].as_py() if table.num_rows else -1

    try:
        yield poll
    finally:
        consumer.close()


@contextlib.contextmanager
def confluent(
    servers: list[str], topic: str, fetch_bytes: int | None, more: dict[str, int]
) -> Iterator[Poll]:
    from confluent_kafka import Consumer, TopicPartition

    settings = {
        "bootstrap.servers": ",".join(servers),
        "group.id": "bench",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        **more,
    }
    if fetch_bytes is not None:
        settings["fetch.message.max.bytes"] = fetch_bytes
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])

    def poll() -> tuple[int, int]:
        messages = consumer.consume(10_000, 1.0)
        return len(messages), messages[-1].offset() if messages else -1

    try:
        yield poll
    finally:
        consumer.close()


@contextlib.contextmanager
def aio(servers: list[str], topic: str) -> Iterator[Poll]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def start() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        return consumer

    async def some() -> tuple[int, int]:
        count, last = 0, -1
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            count += len(records)
            last = records[-1].offset
        return count, last

    with asyncio.Runner() as runner:
        consumer = runner.run(start())
        try:
            yield lambda: runner.run(some())
        finally:
            runner.run(consumer.stop())


def open_client(name: str, servers: list[str], topic: str) -> contextlib.AbstractContextManager[Poll]:
    match name:
        case "kafka-python":
            from kafka import KafkaConsumer

            return kafka_python(KafkaConsumer, servers, topic)
        case "safe":
            from kafkasafe.consumer import SafeConsumer

            return kafka_python(SafeConsumer, servers, topic)
        case "aiokafka":
            return aio(servers, topic)
        case "confluent" | "confluent-16MB" | "confluent-defaults":
            more = {} if name.endswith("defaults") else CONFLUENT
            return confluent(servers, topic, LARGE_FETCH if name.endswith("MB") else None, more)
        case _:
            columns = ["offset", "value"] if name == "arrow-values" else None
            fetch_bytes = None if name in {"arrow", "arrow-views"} else LARGE_FETCH
            return arrow(servers, topic, fetch_bytes, columns, views=name == "arrow-views")


def measure(options: argparse.Namespace) -> None:
    wanted = options.records
    with open_client(options.client, options.servers.split(","), options.topic) as poll:
        first, last = 0, -1
        deadline = time.monotonic() + 60
        while not first:
            first, last = poll()
            if time.monotonic() > deadline:
                sys.exit(f"{options.client}: nothing came within 60 s")
        count = first
        profile = cProfile.Profile() if options.profile else contextlib.nullcontext()
        cpu = time.process_time()
        with profile:
            started = time.perf_counter()
            while count < wanted:
                some, offset = poll()
                count += some
                last = offset if some else last
            seconds = time.perf_counter() - started
        cpu = time.process_time() - cpu
    if last != count - 1:
        sys.exit(f"{options.client}: {count} records, and the last one has offset {last}")
    if isinstance(profile, cProfile.Profile):
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    read = count - first
    print(json.dumps({"records": read, "seconds": seconds, "cpu_us": cpu / read * 1e6}))


# --- all measurements -------------------------------------------------------------------------------------------------


def fill(cluster, size: int, varies: bool, count: int) -> str:
    """Creates a topic with this number of records."""
    from confluent_kafka import Producer

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic)
    producer = Producer(
        {
            "bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    noise = os.urandom(4 * size + 65_536)
    rnd = random.Random(size)
    lengths = [rnd.randint(size // 2, size * 3 // 2) if varies else size for _ in range(1024)]
    for index in range(count):
        length = lengths[index & 1023]
        key = b"customer-%06d" % (index * 7919 % KEYS)
        producer.produce(topic, noise[index * 61 % 65_536 :][:length], key, 0)
        if not index & 1023:
            producer.poll(0)
    if producer.flush(300):
        sys.exit("confluent-kafka did not deliver everything")
    return topic


def java(cluster, topic: str, count: int) -> dict[str, float]:
    """Runs Kafka's own benchmark of its Java consumer."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = cluster.run_java_tool(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", ",".join(cluster.bootstrap_servers), "--topic", topic),
        *("--num-records", str(count), "--hide-header"),
        timeout_s=300,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # start, end, MB, MB/s, records, records/s, rebalance in ms, fetch in ms, fetched MB/s, fetched records/s
    fields = printed.strip().splitlines()[-1].split(", ")
    read, per_s = int(fields[4]), float(fields[9])
    if read < count:
        sys.exit(f"ConsumerPerformance read {read} of {count} records:\n{printed}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"records": read, "seconds": read / per_s, "cpu_us": cpu / read * 1e6}


def one(cluster, client: str, topic: str, count: int, options: argparse.Namespace) -> dict[str, float]:
    if client == "java":
        return java(cluster, topic, count)
    command = [
        *(sys.executable, __file__, "--client", client, "--topic", topic, "--records", str(count)),
        *("--servers", ",".join(cluster.bootstrap_servers)),
        *(["--profile"] if options.profile else []),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"{client} failed with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


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


def ratio(rate: float | None, to: float | None) -> str:
    return f"{rate / to:.2f}x" if rate and to else "-"


def run_all(options: argparse.Namespace) -> list[dict[str, object]]:
    from kafkasafe.testing.broker import KafkaCluster

    facts = machine()
    print(
        f"{facts['cores']} cores ({facts['cpu']}), load {facts['load']}, Linux {facts['kernel']},"
        f" Python {facts['python']}"
    )
    print(f"SafeConsumer, KafkaConsumer: defaults; confluent-kafka: {CONFLUENT}")
    names = options.clients.split(",") if options.clients else list(CLIENTS)
    rows: list[dict[str, object]] = []
    config = {"file.delete.delay.ms": 0, "log.initial.task.delay.ms": 1000}
    with KafkaCluster(brokers=1, config=config, java_options=JAVA_OPTIONS) as cluster:
        for layout, (size, varies, share) in TOPICS.items():
            total = int(options.records * share)
            topic = fill(cluster, size, varies, total)
            # Warm up the broker, so that its JVM has compiled the code for these requests.
            one(cluster, names[-1], topic, total, options)
            rates: dict[str, list[float]] = {name: [] for name in names}
            cpu: dict[str, list[float]] = {name: [] for name in names}
            for _ in range(options.repeats):
                for name in names:
                    result = one(cluster, name, topic, int(total * SHARE.get(name, 1.0)), options)
                    rates[name].append(result["records"] / result["seconds"])
                    cpu[name].append(result["cpu_us"])
            cluster.delete_topic(topic)
            medians = {name: statistics.median(found) for name, found in rates.items()}
            print(f"\n{layout}")
            print(
                f"  {'':36}{'records/s':>12}{'MB/s':>8}{'CPU us':>8}{'/KafkaConsumer':>16}{'/confluent':>12}  runs"
            )
            for name in names:
                rate, used = medians[name], statistics.median(cpu[name])
                print(
                    f"  {CLIENTS[name]:36}{rate:>12,.0f}{rate * size / 1e6:>8.0f}{used:>8.2f}"
                    f"{ratio(rate, medians.get('kafka-python')):>16}{ratio(rate, medians.get('confluent')):>12}"
                    f"  {' '.join(f'{found / 1000:.0f}k' for found in rates[name])}",
                    flush=True,
                )
                rows.append(
                    {
                        "client": name,
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
        "--records", type=int, default=0, help="records per measurement, at 100 B (default 2,000,000)"
    )
    parser.add_argument("--repeats", type=int, default=0, help="default 5")
    parser.add_argument("--quick", action="store_true", help="600,000 records, 3 repeats")
    parser.add_argument("--clients", help=f"comma-separated list of: {', '.join(CLIENTS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="cProfile of the polling thread (slower)")
    child = parser.add_argument_group("one measurement (used by this program itself)")
    child.add_argument("--client", choices=CLIENTS)
    for name in ("--topic", "--servers"):
        child.add_argument(name)
    options = parser.parse_args()
    if options.client:
        measure(options)
        return
    options.records = options.records or (600_000 if options.quick else 2_000_000)
    options.repeats = options.repeats or (3 if options.quick else 5)
    if unknown := set((options.clients or "").split(",")) - {"", *CLIENTS}:
        parser.error(f"unknown clients: {', '.join(sorted(unknown))}")
    run_all(options)


if __name__ == "__main__":
    main()

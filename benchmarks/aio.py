"""Compares kafkasafe.aio with aiokafka in one run: records per second, CPU time, and the delay of the event loop.

python benchmarks/aio.py                      # starts a Kafka of its own
python benchmarks/aio.py --bootstrap localhost:9092 --rounds 5

All clients use acks=all, idempotence, the same 100-byte values, and one partition. Each client has a new topic in each
round. aiokafka runs once with its defaults, and once with the settings that its documentation advises for throughput (a
linger, large batches).

- send: one task awaits each send(), then all futures. The clock stops when all futures are done.
- flush: one task awaits each send(), keeps no future, and then awaits flush().
- N tasks: each task awaits send_and_wait() for one record after the other.
- getone: a consumer reads the records one by one.

Each round runs every client once. The table shows the medians of all rounds, and the rate of each round. "Loop late"
is the delay of a task that sleeps for 1 ms again and again. The benchmark first measures the delay of an idle loop.
"""

import argparse
import asyncio
import contextlib
import gc
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiokafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import kafkasafe
from kafkasafe.aio import SafeConsumer, SafeProducer

VALUE = b"x" * 100
CLIENTS: dict[str, dict[str, Any]] = {
    "aiokafka, defaults": {},
    "aiokafka, tuned": {"linger_ms": 5, "max_batch_size": 1_000_000},
    "kafkasafe.aio": {},
    'kafkasafe.aio, spool="on_error"': {"spool": "on_error"},
    'kafkasafe.aio, spool="never"': {"spool": "never"},
}
"""Clients by name, with the options that differ from their defaults."""


class Delay:
    """Measures the delay of a task that should run every millisecond."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            self.late_ms.append((time.perf_counter() - due) * 1000)


@dataclass
class Row:
    """The results of one client in one test, over all rounds."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        rates = " ".join(f"{rate:,.0f}" for rate in self.rates)
        return (
            f"{statistics.median(self.rates):10,.0f} /s {statistics.median(self.cpu_us):7.1f} µs CPU"
            f"  loop late {late(self.late_ms)}  rounds: {rates}"
        )


def late(late_ms: list[float]) -> str:
    ordered = sorted(late_ms) or [float("nan")]
    at = [ordered[int(len(ordered) * part)] for part in (0.5, 0.99)]
    return f"{at[0]:5.2f} / {at[1]:6.2f} / {ordered[-1]:6.2f} ms"


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Delay]:
    delay = Delay()
    task = asyncio.create_task(delay.watch())
    await asyncio.sleep(0.05)
    try:
        yield delay
    finally:
        task.cancel()


async def timed(row: Row, count: int, work: Awaitable[None]) -> None:
    gc.collect()
    async with watched() as delay:
        began, used = time.perf_counter(), time.process_time()
        await work
        seconds, used = time.perf_counter() - began, time.process_time() - used
    row.rates.append(count / seconds)
    row.cpu_us.append(used / count * 1e6)
    row.late_ms += delay.late_ms


async def send(producer: Any, topic: str, count: int) -> None:
    futures = [await producer.send(topic, VALUE) for _ in range(count)]
    for future in futures:
        await future


async def flush(producer: Any, topic: str, count: int) -> None:
    for _ in range(count):
        await producer.send(topic, VALUE)
    await producer.flush()


async def wait_each(producer: Any, topic: str, count: int, tasks: int) -> None:
    async def sender() -> None:
        for _ in range(count // tasks):
            await producer.send_and_wait(topic, VALUE)

    await asyncio.gather(*[sender() for _ in range(tasks)])


async def getone(consumer: Any, count: int) -> None:
    for _ in range(count):
        await consumer.getone()


@contextlib.asynccontextmanager
async def producer_of(name: str, servers: str) -> AsyncIterator[Any]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as spool:
        options = {"bootstrap_servers": servers, "acks": "all", "enable_idempotence": True, **CLIENTS[name]}
        if name.startswith("aiokafka"):
            producer: Any = AIOKafkaProducer(**options)
        else:
            if options.get("spool") != "never":
                options["spool_dir"] = spool
            producer = SafeProducer(**options)
        async with producer:
            yield producer


async def one_round(
    number: int, servers: str, count: int, create: Callable[[str], object], rows: dict[tuple[str, str], Row]
) -> None:
    def row(client: str, work: str) -> Row:
        return rows.setdefault((work, client), Row())

    for position, name in enumerate(CLIENTS):
        topics = [f"r{number}-{position}-{work}" for work in ("send", "flush", "tasks")]
        for topic in topics:
            create(topic)
        async with producer_of(name, servers) as producer:
            for topic in topics:
                await producer.send_and_wait(topic, VALUE)
            await flush(producer, topics[2], 5000)  # warm
            await timed(row(name, "send"), count, send(producer, topics[0], count))
            await timed(row(name, "flush"), count, flush(producer, topics[1], count))
            for tasks, share in ((1, 200), (100, 5), (1000, 5)):
                some = max(count // share // tasks, 1) * tasks
                await timed(row(name, f"{tasks} tasks"), some, wait_each(producer, topics[2], some, tasks))
    read = min(count, 200_000)
    for name, kind in (("aiokafka", AIOKafkaConsumer), ("kafkasafe.aio", SafeConsumer)):
        consumer = kind(f"r{number}-2-send", bootstrap_servers=servers, auto_offset_reset="earliest")
        async with consumer:
            await consumer.getone()
            await timed(row(name, "getone"), read, getone(consumer, read))


async def measure(servers: str, count: int, rounds: int, create: Callable[[str], object]) -> None:
    print(
        f"kafkasafe {kafkasafe.__version__} on kafka-python {kafka.__version__}, aiokafka {aiokafka.__version__};"
        f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {count:,} records, {rounds} rounds"
    )
    for name, options in CLIENTS.items():
        print(f"  {name}: {options or 'defaults'}")
    async with watched() as idle:
        await asyncio.sleep(1)
    print(f"loop late: median / 99 % / worst; idle {late(idle.late_ms)}", flush=True)
    rows: dict[tuple[str, str], Row] = {}
    for number in range(rounds):
        await one_round(number, servers, count, create, rows)
    for work in dict.fromkeys(work for work, _ in rows):
        print(work)
        best = max(
            statistics.median(row.rates) for (of, name), row in rows.items() if of == work and name[0] == "a"
        )
        for (of, name), row in rows.items():
            if of == work:
                print(f"  {name:32} {statistics.median(row.rates) / best:6.2f}x {row}")
    print("x: of the better median of aiokafka's two")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: the benchmark starts one")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        servers = options.bootstrap
        create: Callable[[str], object] = str  # brokers that create topics create this one
        if not servers:
            from kafkasafe.testing.broker import KafkaCluster

            cluster = stack.enter_context(KafkaCluster(brokers=1))
            create = lambda topic: cluster.create_topic(topic, partitions=1)  # noqa: E731
            servers = ",".join(cluster.bootstrap_servers)
        asyncio.run(measure(servers, options.count, options.rounds, create))


if __name__ == "__main__":
    main()

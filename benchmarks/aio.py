"""kafkasafe.aio beside aiokafka, in one run: records a second, and how late the event loop is.

python benchmarks/aio.py                      # starts a Kafka of its own
python benchmarks/aio.py --bootstrap localhost:9092

Producers: acks=all, idempotent, 100-byte values, one partition. "One by one" is one task that awaits each send(); the
time ends when everything is acknowledged. The loop's delay is that of a task that sleeps 1 ms at a time, beside that of
an idle loop in the same process just before.
"""

import argparse
import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kafkasafe.aio import SafeConsumer, SafeProducer

VALUE = b"x" * 100


class Delay:
    """How late a task is that wants to run every millisecond."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []

    async def watch(self) -> None:
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            self.late_ms.append((time.perf_counter() - due) * 1000)

    def __str__(self) -> str:
        late = sorted(self.late_ms)
        median, most = statistics.median(late), late[int(len(late) * 0.99)]
        return f"median {median:5.2f}, 99 % {most:6.2f}, worst {late[-1]:6.2f} ms"


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Delay]:
    delay = Delay()
    task = asyncio.create_task(delay.watch())
    await asyncio.sleep(0.05)
    try:
        yield delay
    finally:
        task.cancel()


async def timed(name: str, count: int, work: Callable[[], Awaitable[None]]) -> float:
    gc.collect()
    async with watched() as delay:
        began, used = time.perf_counter(), time.process_time()
        await work()
        seconds, used = time.perf_counter() - began, time.process_time() - used
    print(
        f"{name:44} {count / seconds:10,.0f} records/s, {used / count * 1e6:6.1f} µs of CPU each   loop late: {delay}",
        flush=True,
    )
    return count / seconds


def one_by_one(producer: Any, topic: str, count: int) -> Callable[[], Awaitable[None]]:
    async def work() -> None:
        for _ in range(count):
            await producer.send(topic, VALUE)
        await producer.flush()

    return work


def tasks(producer: Any, topic: str, count: int) -> Callable[[], Awaitable[None]]:
    async def sender() -> None:
        for _ in range(count // 100):
            await producer.send_and_wait(topic, VALUE)

    async def work() -> None:
        await asyncio.gather(*[sender() for _ in range(100)])

    return work


async def consume(consumer: Any, count: int) -> None:
    while count > 0:
        await consumer.getone()
        count -= 1


async def ours_as(
    name: str, servers: str, count: int, rates: dict[str, float], topic: str, **options: Any
) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as spool:
        async with SafeProducer(bootstrap_servers=servers, spool_dir=spool, **options) as ours:
            await ours.send_and_wait(topic, VALUE)
            await one_by_one(ours, topic, 20_000)()
            rates["ours"] = await timed(f"{name}, one by one", count, one_by_one(ours, topic, count))
            rates["ours, tasks"] = await timed(
                f"{name}, 100 tasks", count // 4, tasks(ours, f"{topic}-tasks", count // 4)
            )


async def measure(servers: str, count: int, create: Callable[[str], object]) -> None:
    async with watched() as idle:
        await asyncio.sleep(1)
    print(f"an idle loop is late: {idle}", flush=True)
    for topic in ("theirs", "ours", "ours-on-error"):
        create(topic)
        create(f"{topic}-tasks")
    rates: dict[str, float] = {}
    theirs = {"bootstrap_servers": servers, "acks": "all", "enable_idempotence": True}
    async with AIOKafkaProducer(**theirs, linger_ms=5, max_batch_size=1_000_000) as producer:
        await producer.send_and_wait("theirs", VALUE)
        rates["theirs"] = await timed(
            "aiokafka, one by one, linger 5 ms, 1 MB", count, one_by_one(producer, "theirs", count)
        )
    async with AIOKafkaProducer(**theirs) as producer:
        await producer.send_and_wait("theirs", VALUE)
        rates["theirs, defaults"] = await timed(
            "aiokafka, one by one, its defaults", count, one_by_one(producer, "theirs", count)
        )
        rates["theirs, tasks"] = await timed(
            "aiokafka, 100 tasks of send_and_wait", count // 4, tasks(producer, "theirs-tasks", count // 4)
        )
    await ours_as("kafkasafe.aio", servers, count, rates, "ours")
    await ours_as('kafkasafe.aio, spool="on_error"', servers, count, {}, "ours-on-error", spool="on_error")
    read = min(count, 200_000)
    async with AIOKafkaConsumer("ours", bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        await consumer.getone()
        rates["theirs, read"] = await timed("aiokafka, getone()", read, lambda: consume(consumer, read))
    async with SafeConsumer("ours", bootstrap_servers=servers, auto_offset_reset="earliest") as reader:
        await reader.getone()
        rates["ours, read"] = await timed("kafkasafe.aio, getone()", read, lambda: consume(reader, read))
    best = max(rates["theirs"], rates["theirs, defaults"])
    print(
        f"aio produces {rates['ours'] / best:.1f} times aiokafka's best one by one, "
        f"{rates['ours, tasks'] / rates['theirs, tasks']:.1f} times with 100 tasks, "
        f"reads {rates['ours, read'] / rates['theirs, read']:.1f} times"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bootstrap", help="host:port of a cluster; default: one is started")
    parser.add_argument("--count", type=int, default=300_000)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        servers = options.bootstrap
        create: Callable[[str], object] = str  # brokers that create topics do
        if not servers:
            from kafkasafe.testing.broker import KafkaCluster

            cluster = stack.enter_context(KafkaCluster(brokers=1))
            create = lambda topic: cluster.create_topic(topic, partitions=1)  # noqa: E731
            servers = ",".join(cluster.bootstrap_servers)
        asyncio.run(measure(servers, options.count, create))


if __name__ == "__main__":
    main()

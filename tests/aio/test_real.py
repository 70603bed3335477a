"""On a real broker: the consumer of asyncio, KafkaHandler, and the delay of the loop."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import threading
import time

import pytest
from helpers import LONG_S, longest_callback, run, until
from kafka import TopicPartition
from topics import read_values

from kafkasafe import SafeProducer as ThreadProducer
from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.logging_handler import KafkaHandler
from kafkasafe.testing.broker import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

COUNT = 600


@pytest.fixture(scope="module")
def broker():
    """One of this module's own, which may be killed and paused."""
    with KafkaCluster(brokers=1) as cluster:
        yield cluster


def test_a_group_reads_everything_through_rebalance_cancellation_and_an_outage(broker, tmp_path):
    broker.create_topic("aio-read", partitions=2)
    with ThreadProducer(bootstrap_servers=broker.bootstrap_servers, spool_dir=tmp_path) as producer:
        for number in range(2 * COUNT):
            producer.send("aio-read", b"%d" % (number // 2), partition=number % 2)
    options = {
        "bootstrap_servers": broker.bootstrap_servers,
        "group_id": "aio-readers",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 10_000,
    }
    tp = TopicPartition("aio-read", 0)

    async def main():
        seen = collections.Counter()
        reads = asyncio.Event()

        async def iterates(most):
            async with SafeConsumer("aio-read", **options) as consumer:
                async for record in consumer:
                    seen[record.partition, record.offset] += 1
                    reads.set()
                    await asyncio.sleep(0.005)  # so that the other one joins meanwhile
                    most -= 1
                    if not most:
                        return

        async def many():
            await reads.wait()  # or it may leave too few for the first one
            async with SafeConsumer("aio-read", **options) as consumer:
                while len(seen) < 2 * COUNT:
                    with contextlib.suppress(TimeoutError):
                        # Cancelled again and again: it takes nothing then.
                        async with asyncio.timeout(0.02):
                            for records in (await consumer.getmany(timeout_ms=1000, max_records=9)).values():
                                seen.update((record.partition, record.offset) for record in records)
                    await asyncio.sleep(0)
                await consumer.commit()

        await asyncio.gather(iterates(200), many())
        assert seen.keys() == {(partition, offset) for partition in (0, 1) for offset in range(COUNT)}
        async with SafeConsumer("aio-read", **options) as consumer:
            committed = [await consumer.committed(TopicPartition("aio-read", n)) for n in (0, 1)]
            assert committed == [COUNT, COUNT]
        async with SafeConsumer(**options | {"group_id": None}) as consumer:
            consumer.assign([tp])
            consumer.seek(tp, 17)
            assert (await consumer.getone()).offset == 17
            broker.pause(1)
            task = asyncio.create_task(read_rest(consumer))
            await asyncio.sleep(0.5)
            broker.resume(1)
            assert await task == list(range(18, COUNT))

    async def read_rest(consumer):
        return [(await consumer.getone()).offset for _ in range(18, COUNT)]

    run(main())


def test_no_callback_of_the_loop_takes_long_under_load_and_in_an_outage(broker, tmp_path):
    """Processor time of the loop's thread: a machine that is busy does not change it, a wait would not be seen. So a task
    that only counts the iterations has to go on meanwhile as well."""
    broker.create_topic("aio-lag", partitions=1)
    turns = rounds = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    async def main():
        counting = asyncio.create_task(count())
        async with SafeProducer(bootstrap_servers=broker.bootstrap_servers, spool_dir=tmp_path) as producer:

            async def waits(number):
                for _ in range(20):
                    await producer.send_and_wait("aio-lag", b"%d" % number)

            async def program():
                nonlocal rounds
                rounds += 1
                waiting = [asyncio.create_task(waits(number)) for number in range(100)]
                for _ in range(20_000):
                    await producer.send("aio-lag", b"v" * 100)
                broker.pause(1)
                before = turns
                futures = [await producer.send("aio-lag", b"w") for _ in range(2000)]
                await futures[-1].durable()
                await until(lambda: turns > before + 200)
                broker.resume(1)
                for future in [*waiting, *futures]:
                    await future

            longest = await longest_callback(program, 0.005)
        counting.cancel()
        return longest

    assert run(main()) < 0.005
    assert len(read_values(broker.bootstrap_servers, "aio-lag")[0]) == 24_000 * rounds


def test_who_logs_is_not_held_up_while_the_broker_hangs_or_is_dead(broker, tmp_path):
    """Everything that was accepted arrives, once; nothing of the handler's own is logged to it."""
    broker.create_topic("handler-logs", partitions=1)
    handler = KafkaHandler(
        "handler-logs",
        bootstrap_servers=broker.bootstrap_servers,
        spool_dir=tmp_path,
        block_ms=200,
        close_ms=LONG_S * 1000,
    )
    root, logger = logging.getLogger(), logging.getLogger("real-app")
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    slowest = [0.0] * 3
    stop = threading.Event()

    def logs(number):
        count = 0
        while not stop.is_set():
            began = time.monotonic()
            logger.info("of %d: %d", number, count)
            slowest[number] = max(slowest[number], time.monotonic() - began)
            count += 1
            time.sleep(0.002)
        counts[number] = count

    counts = [0] * 3
    threads = [threading.Thread(target=logs, args=(number,)) for number in range(3)]
    try:
        for thread in threads:
            thread.start()
        handler.flush()
        broker.pause(1)
        time.sleep(1.5)
        broker.resume(1)
        broker.kill(1)
        time.sleep(1.5)
        broker.start(1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(LONG_S)
        handler.flush()
        dropped = handler.dropped
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
    with ThreadProducer(bootstrap_servers=broker.bootstrap_servers, spool_dir=tmp_path) as producer:
        producer.flush(LONG_S)
    assert dropped == 0
    found = collections.Counter(
        value.decode() for value in read_values(broker.bootstrap_servers, "handler-logs")[0]
    )
    expected = {f"of {number}: {index}" for number in range(3) for index in range(counts[number])}
    assert expected <= found.keys()
    assert {found[line] for line in expected} == {1}
    assert max(slowest) < 20, "it waited for the broker"
    assert sum(found.values()) < 3 * len(expected) + 3000, "its own records came back"

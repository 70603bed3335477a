"""A program that takes long with what was fetched, or gives up waiting again and again: its group and its thread are
looked after all the same."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest
from kafka import TopicPartition

from kafkasafe import SafeProducer as ThreadProducer
from kafkasafe.aio import SafeConsumer

TP = TopicPartition("orders", 0)
COUNT = 40
LONG_S = 0.3
"""A program's work on a record: a consumer looks after its group more often than that."""


@pytest.fixture
def options(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=2)
    with ThreadProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        for number in range(COUNT):
            producer.send("orders", b"%d" % number, partition=number % 2)
    return {
        "bootstrap_servers": fake_kafka.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "group_id": "readers",
    }


async def test_what_is_done_is_committed_while_the_program_works_through_what_was_fetched(options):
    async with SafeConsumer(**options, auto_commit_interval_ms=10) as consumer:
        consumer.assign([TP])
        for offset in range(4):
            assert (await consumer.getone()).offset == offset
            await asyncio.sleep(LONG_S)
        # The one in hand is not in it.
        assert 1 <= await consumer.committed(TP) <= 3


@pytest.mark.parametrize("ask", ["getone", "getmany"])
async def test_another_member_joins_while_the_program_works_through_what_was_fetched(options, ask):
    first, second = (SafeConsumer("orders", **options, heartbeat_interval_ms=100) for _ in range(2))
    async with first:
        seen = [(await first.getone()).value]
        starting = asyncio.create_task(second.start())
        while not second.assignment():
            if ask == "getone":
                seen.append((await first.getone()).value)
            else:
                found = await first.getmany(timeout_ms=5000, max_records=1)
                seen += [record.value for records in found.values() for record in records]
            await asyncio.sleep(LONG_S)
            if starting.done():
                await second.getmany()
        assert len(seen) < COUNT, "it joined after everything was read"
        assert len(set(seen)) == len(seen)
        assert len(first.assignment()) == 1
        await second.stop()


async def test_who_gives_up_waiting_leaves_one_poll_behind(options):
    """They lined up, each for its own time, and stop() waited for all of them."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([TP])
        polled, go_on, plain = [], threading.Event(), consumer.client.poll

        def poll(*given):
            polled.append(given)
            assert go_on.wait(60)
            return plain(*given)

        consumer.client.poll = poll
        for _ in range(20):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.005):
                    await consumer.getone()
        go_on.set()
        assert await consumer.position(TP) >= 0  # after all that was asked for
        assert len(polled) == 1
        assert (await consumer.getone()).offset == 0


async def test_the_error_of_a_poll_that_nobody_waited_for_is_that_of_the_next_request(options):
    async with SafeConsumer(**options) as consumer:
        consumer.assign([TP])
        go_on, plain = threading.Event(), consumer.client.poll

        def poll(*given):
            consumer.client.poll = plain
            assert go_on.wait(60)
            raise ValueError("damaged")

        consumer.client.poll = poll
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.005):
                await consumer.getone()
        go_on.set()
        assert await consumer.position(TP) == 0
        with pytest.raises(ValueError, match="damaged"):
            await consumer.getone()
        assert (await consumer.getone()).offset == 0

"""`health()` in kafkasafe.aio: it is there before the start, and on the loop it waits for nothing."""

from __future__ import annotations

import asyncio

from helpers import until

from kafkasafe.aio import SafeConsumer, SafeProducer


def names(health):
    return [each.name for each in health.reasons]


async def test_from_before_the_start_until_after_the_end(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", 1)
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path)
    assert (names(producer.health()), producer.health().alive) == (["not_started"], True)
    async with producer:
        await (await producer.send("orders", b"1"))
        assert (producer.health().ready, producer.health().connected) == (True, True)
        fake_kafka.refuse()
        fake_kafka.cut()
        await (await producer.send("orders", b"2")).durable(30)
        await until(lambda: not producer.health().connected)
        assert producer.health().ready
        assert producer.health().waiting_records == 1
        # From another thread, without asyncio.run_coroutine_threadsafe.
        assert (await asyncio.to_thread(producer.health)).ready
        fake_kafka.restore()
        await producer.flush(30)
    assert (names(producer.health()), producer.health().alive) == (["closed"], False)


async def test_closed_without_a_start(tmp_path):
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path)
    await producer.close()
    assert (names(producer.health()), producer.health().alive) == (["closed"], False)


async def test_of_a_consumer(fake_kafka):
    """A program that works through what was fetched polls: its group is looked after as well."""
    fake_kafka.create_topic("orders", 1)
    consumer = SafeConsumer("orders", bootstrap_servers=fake_kafka.bootstrap_servers, group_id="readers")
    assert names(consumer.health()) == ["not_started"]
    async with consumer:
        assert await consumer.getmany(timeout_ms=50) == {}
        health = consumer.health()
        assert (health.ready, health.connected, names(health)) == (True, True, [])
        assert health.last_poll_age_s is not None
    assert names(consumer.health()) == ["closed"]


async def test_attending_to_the_group_is_a_poll(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", 1)
    async with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        for number in range(50):
            await producer.send("orders", b"%d" % number)
        await producer.flush(30)
    async with SafeConsumer(
        "orders",
        bootstrap_servers=fake_kafka.bootstrap_servers,
        group_id="readers",
        auto_offset_reset="earliest",
    ) as consumer:
        await consumer.getone()
        ages = []
        for _ in range(12):
            await asyncio.sleep(0.1)
            await consumer.getone()
            ages.append(consumer.health().last_poll_age_s)
        # It has 37 records more in hand, and asks for none.
        assert min(ages[6:]) < 0.6

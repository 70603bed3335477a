"""`health()` of kafkasafe.aio.SafeProducer: it is there before the start, and on the loop it waits for nothing."""

from __future__ import annotations

import asyncio

from helpers import run, until

from kafkasafe.aio import SafeProducer


def names(health):
    return [each.name for each in health.reasons]


def test_from_before_the_start_until_after_the_end(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", 1)

    async def main():
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

    run(main())


def test_closed_without_a_start(tmp_path):
    async def main():
        producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path)
        await producer.close()
        assert (names(producer.health()), producer.health().alive) == (["closed"], False)

    run(main())

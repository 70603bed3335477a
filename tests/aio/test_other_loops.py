"""Without an asyncio loop, as on trio: the error says what kafkasafe.aio needs. And closing on two asyncio loops."""

from __future__ import annotations

import asyncio

import pytest

from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.errors import UsageError


def driven_by_another_loop(coroutine):
    """Its first step, as trio makes it: there is a coroutine, and asyncio's loop is none."""
    with pytest.raises(UsageError, match=r"asyncio only.*asyncio\.run.*trio.*threads"):
        coroutine.send(None)
    coroutine.close()


def test_start_says_that_asyncio_is_needed(fake_kafka, tmp_path):
    servers = fake_kafka.bootstrap_servers
    driven_by_another_loop(SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path).start())
    driven_by_another_loop(SafeConsumer("orders", bootstrap_servers=servers).start())


def test_a_consumer_that_was_never_started_says_it_too(fake_kafka):
    consumer = SafeConsumer("orders", bootstrap_servers=fake_kafka.bootstrap_servers)
    driven_by_another_loop(consumer.__aenter__())


@pytest.mark.parametrize("ended", [False, True], ids=["the loop runs", "the loop was closed"])
def test_close_on_a_loop_while_another_loop_closes(fake_kafka, tmp_path, ended):
    """It raised a RuntimeError: the task of the first close belonged to the other loop."""
    fake_kafka.create_topic("orders")
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    producer = SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", linger_ms=60_000
    )

    async def begin() -> asyncio.Task[None]:
        await producer.start()
        await producer.send_and_wait("orders", b"1")
        fake_kafka.stall()
        await producer.send("orders", b"2")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.2)
        return closing

    closing = first.run_until_complete(begin())
    if ended:
        first.close()
    fake_kafka.restore()
    second.run_until_complete(producer.close())
    assert fake_kafka.values("orders") == [b"1", b"2"]
    if not ended:
        first.run_until_complete(closing)
        first.close()
    second.close()

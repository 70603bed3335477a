"""Atomic batches in an event loop."""

from __future__ import annotations

import asyncio
import contextlib

import kafka.errors
import pytest
from helpers import cancelled_at, until
from kafka import TopicPartition

from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.errors import UsageError

TP = TopicPartition("orders", 0)


@pytest.fixture
def options(fake_kafka, tmp_path):
    for topic in ("orders", "audit"):
        fake_kafka.create_topic(topic, partitions=1)
    return {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path / "spool"}


async def test_all_or_nothing_and_the_consumers_offsets_with_it(options, fake_kafka):
    reading = {
        "bootstrap_servers": options["bootstrap_servers"],
        "enable_auto_commit": False,
        "isolation_level": "read_committed",  # what is committed is known when the marker of the batch is there
    }
    async with SafeProducer(**options) as producer:
        for number in range(10):
            await producer.send("orders", b"%d" % number)
        await producer.flush()
        async with SafeConsumer(
            "orders", **reading, group_id="g", auto_offset_reset="earliest", max_poll_records=10
        ) as consumer:
            async with producer.batch() as batch:
                for _ in range(3):
                    record = await consumer.getone()
                    future = batch.send("audit", b"of " + record.value, headers=[("h", b"x")])
                await batch.send_offsets(consumer)
                for wait in (future.durable, lambda: future):
                    with pytest.raises(UsageError, match=r"still open.*batch.send\(...\) is not awaited"):
                        await wait()
                with pytest.raises(UsageError):
                    batch.outcome  # noqa: B018
            assert await batch.outcome.durable(60) is not None
            committed = await batch.outcome
            assert committed.records == 3
            assert (await future).topic == "audit"
            assert await consumer.committed(TP) == 3
        with contextlib.suppress(KeyError):
            async with producer.batch() as batch:
                batch.send("audit", b"never")
                raise KeyError
        with pytest.raises(UsageError):
            batch.outcome  # noqa: B018
    assert [value for value in fake_kafka.values("audit") if value] == [b"of 0", b"of 1", b"of 2"]


async def test_a_callback_of_a_record_is_refused_until_its_batch_is_committed(options):
    """It was called at once, although the record was not done."""
    async with SafeProducer(**options) as producer:
        called = []
        async with producer.batch() as batch:
            future = batch.send("orders", b"1")
            with pytest.raises(UsageError, match=r"still open.*add the callback after the block"):
                future.add_done_callback(called.append)
        future.add_done_callback(called.append)
        await batch.outcome
        await until(lambda: called == [future])
        assert future.done()
        dropped = producer.batch()
        future = dropped.send("orders", b"2")
        dropped.drop()
        with pytest.raises(UsageError, match="was dropped"):
            future.add_done_callback(called.append)


async def test_it_waits_through_an_outage(options, fake_kafka):
    async with SafeProducer(**options) as producer:
        await producer.send_and_wait("audit", b"0")
        fake_kafka.kill_all()
        async with producer.batch() as batch:
            batch.send("audit", b"1")
            batch.send("orders", b"1")
        await batch.outcome.durable()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await batch.outcome
        assert not batch.outcome.done()
        fake_kafka.start_all()
        await batch.outcome
        assert batch.outcome.exception() is None
    with pytest.raises(kafka.errors.KafkaError):
        producer.batch()
    assert [value for value in fake_kafka.values("audit") if value] == [b"0", b"1"]
    assert [value for value in fake_kafka.values("orders") if value] == [b"1"]


@pytest.mark.parametrize("how", ["waiting", "waking"])
async def test_the_fate_of_a_batch_is_known_when_its_commit_was_cancelled(options, fake_kafka, how):
    """Who sends what was not accepted once more has nothing twice."""
    sent = [b"%d" % number for number in range(40)]

    def filled(producer, value):
        batch = producer.batch()
        batch.send("audit", value)
        batch.send("orders", value)
        return batch

    async with SafeProducer(**options) as producer:
        for value in sent:
            batch = filled(producer, value)
            await cancelled_at(1, how, batch.commit())
            try:
                outcome = batch.outcome
            except UsageError:
                outcome = await filled(producer, value).commit()
            await outcome
    assert [value for value in fake_kafka.values("audit") if value] == sent
    assert [value for value in fake_kafka.values("orders") if value] == sent


async def test_a_commit_that_is_cancelled_while_it_waits_is_not_accepted_later(options, fake_kafka):
    async with SafeProducer(**options) as producer:
        batch = producer.batch()
        batch.send("orders", b"1")
        with producer.client.parts.accumulator.lock:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(batch.commit(), 0.05)
            with pytest.raises(UsageError, match="dropped"):
                batch.outcome  # noqa: B018
        await producer.send_and_wait("orders", b"2")
    assert [value for value in fake_kafka.values("orders") if value] == [b"2"]

"""Atomic batches in an event loop."""

from __future__ import annotations

import asyncio
import contextlib

import kafka.errors
import pytest
from helpers import cancelled_at, run, until
from kafka import TopicPartition

from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.errors import UsageError

TP = TopicPartition("orders", 0)


@pytest.fixture
def options(fake_kafka, tmp_path):
    for topic in ("orders", "audit"):
        fake_kafka.create_topic(topic, partitions=1)
    return {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path / "spool"}


def test_all_or_nothing_and_the_consumers_offsets_with_it(options, fake_kafka):
    async def main():
        reading = {"bootstrap_servers": options["bootstrap_servers"], "enable_auto_commit": False}
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
                    called = []
                    batch.spool_after_commit(called.append)
                    await batch.send_offsets(consumer)
                    for wait in (future.durable, lambda: future):
                        with pytest.raises(UsageError, match="still open"):
                            await wait()
                    with pytest.raises(UsageError):
                        batch.outcome  # noqa: B018
                assert await batch.outcome.durable(60) is not None
                committed = await batch.outcome
                assert committed.records == 3
                assert (await future).topic == "audit"
                await until(lambda: len(called) == 1)
                assert await consumer.committed(TP) == 3
            with contextlib.suppress(KeyError):
                async with producer.batch() as batch:
                    batch.send("audit", b"never")
                    raise KeyError
            with pytest.raises(UsageError):
                batch.outcome  # noqa: B018

    run(main())
    assert [value for value in fake_kafka.values("audit") if value] == [b"of 0", b"of 1", b"of 2"]


def test_it_waits_through_an_outage_and_a_cancelled_commit_is_whole(options, fake_kafka):
    async def main():
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
            cancelled = producer.batch()
            cancelled.send("audit", b"2")
            cancelled.send("orders", b"2")
            _, result = await cancelled_at(1, "waiting", cancelled.commit())
            assert isinstance(result, asyncio.CancelledError)
            await until(lambda: cancelled._batch._outcome is not None)
            with pytest.raises(UsageError):
                await cancelled.commit()
            assert not cancelled.outcome.done()
            fake_kafka.start_all()
            await batch.outcome
            await cancelled.outcome
            assert cancelled.outcome.exception() is None
        with pytest.raises(kafka.errors.KafkaError):
            producer.batch()

    run(main())
    assert [value for value in fake_kafka.values("audit") if value] == [b"0", b"1", b"2"]
    assert [value for value in fake_kafka.values("orders") if value] == [b"1", b"2"]

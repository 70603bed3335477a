"""Consume, process, produce in an event loop: a producer is closed with a batch under way, and another lane goes on."""

from __future__ import annotations

import contextlib

import pytest
from kafka import TopicPartition

from kafkasafe import SafeProducer as Reopened
from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.errors import BatchDroppedError, UsageError

COUNT = 40
TP, OUT = TopicPartition("in", 0), TopicPartition("out", 0)


@pytest.fixture
def servers(fake_kafka, tmp_path):
    for topic in ("in", "out"):
        fake_kafka.create_topic(topic, partitions=1)
    with Reopened(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "in") as made:
        for number in range(COUNT):
            made.send("in", b"%d" % number)
        made.flush(60)
    return fake_kafka.bootstrap_servers


@pytest.fixture
def first(servers, tmp_path):
    return {"bootstrap_servers": servers, "spool_dir": tmp_path / "spool", "retry_backoff_ms": 20}


def member(servers, **options):
    return SafeConsumer(
        bootstrap_servers=servers,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=10,
        **options,
    )


async def some(consumer, most=5):
    while not (found := await consumer.getmany(timeout_ms=100, max_records=most)):
        pass
    return [record.value for records in found.values() for record in records]


async def copy(producer, consumer, values):
    async with producer.batch() as batch:
        for value in values:
            batch.send("out", value)
        await batch.send_offsets(consumer)
    return batch.outcome


async def leave_a_batch(fake_kafka, consumer, first):
    """A producer commits records 0 to 4, and is closed with a batch of records 5 to 9 in its spool."""
    async with SafeProducer(**first) as producer:
        await (await copy(producer, consumer, await some(consumer)))
        fake_kafka.deny("write", transactional_id="*")
        await (await copy(producer, consumer, await some(consumer))).durable()
        await producer.close(timeout=0)
    fake_kafka.deny("write", transactional_id="*", on=False)


async def copy_on(producer, consumer, end):
    while (await consumer.committed(TP) or 0) < end:
        with contextlib.suppress(BatchDroppedError):
            await (await copy(producer, consumer, await some(consumer)))


async def output(servers):
    async with SafeConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as reader:
        await reader.assign([OUT])
        found = []
        while len(found) < COUNT:
            found += await some(reader, 100)
        found += [each.value for some in (await reader.getmany(timeout_ms=300)).values() for each in some]
        return [int(value) for value in found]


@pytest.mark.parametrize("how", ["client_id", "spool_dir"])
async def test_a_member_goes_on_with_another_lane(fake_kafka, servers, first, tmp_path, how):
    second = {**first, how: "two" if how == "client_id" else tmp_path / "two"}
    async with member(servers) as consumer, SafeProducer(**second) as producer:
        await consumer.subscribe(["in"])
        await leave_a_batch(fake_kafka, consumer, first)
        await copy_on(producer, consumer, 15)
        async with SafeProducer(**first) as again:
            await again.flush()
        await copy_on(producer, consumer, COUNT)
    assert await output(servers) == list(range(COUNT))


async def test_assign_is_refused_while_another_directory_has_a_batch(fake_kafka, servers, first, tmp_path):
    second = {**first, "spool_dir": tmp_path / "two"}
    async with member(servers) as consumer, SafeProducer(**second) as producer:
        await consumer.assign([TP])
        await leave_a_batch(fake_kafka, consumer, first)
        batch = producer.batch()
        for value in await some(consumer):
            batch.send("out", value)
        with pytest.raises(UsageError, match="spool drain"):
            await batch.send_offsets(consumer)
        async with SafeProducer(**first) as again:
            await again.flush()
        with pytest.raises(BatchDroppedError, match="read again"):
            await batch.send_offsets(consumer)
        await copy_on(producer, consumer, COUNT)
    assert await output(servers) == list(range(COUNT))

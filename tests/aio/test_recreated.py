"""A topic that was deleted and created again under a consumer of asyncio: see `tests/consumer/test_recreated.py`."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from helpers import run
from kafka import KafkaConsumer, TopicPartition

from kafkasafe import SafeProducer as ThreadProducer
from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.errors import LogDivergedError
from kafkasafe.testing import FakeCluster

TP = TopicPartition("orders", 0)
OLD = [b"old%d" % number for number in range(10)]
NEW = [b"new%d" % number for number in range(15)]


def write(cluster, path, values):
    with ThreadProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=path) as producer:
        for value in values:
            producer.send("orders", value)


@pytest.fixture
def cluster(tmp_path):
    # A consumer that asks for the topic between its deletion and its creation must not create it.
    with FakeCluster(config={"auto.create.topics.enable": False}) as running:
        running.create_topic("orders", 1)
        write(running, tmp_path / "old", OLD)
        yield running


@pytest.fixture
def recreate(cluster, tmp_path):
    def work():
        # In one step: with metadata from in between, the consumer would leave the partition of a topic that does not
        # exist, and commit.
        with cluster._acting() as handler:
            handler.centre.delete_topic("orders")
            handler.groups.topic_deleted("orders")
            handler.centre.create_topic("orders", 1)
        write(cluster, tmp_path / "new", NEW)

    return work


@pytest.fixture
def options(cluster):
    return {
        "bootstrap_servers": cluster.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "group_id": "readers",
        # A slow machine takes so long that a commit falls due before the consumer can know that the topic is another.
        "auto_commit_interval_ms": 3_600_000,
        "metadata_max_age_ms": 1000,
    }


async def values(consumer, count):
    async with asyncio.timeout(60):
        return [(await consumer.getone()).value for _ in range(count)]


async def told(consumer):
    """The event of the LogDivergedError that a request for records raises."""
    async with asyncio.timeout(60):
        with pytest.raises(LogDivergedError) as raised:
            await consumer.getone()
    return raised.value.event


def committed(cluster):
    """As any client sees it."""
    with contextlib.closing(
        KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers")
    ) as plain:
        return plain.committed(TP)


@pytest.mark.parametrize("end", ["stop", "commit", "error"])
def test_an_undecided_position_is_in_no_commit_of_all_positions(cluster, recreate, options, end):
    async def first():
        async with SafeConsumer("orders", **options) as consumer:
            assert await values(consumer, len(OLD)) == OLD
            assert not await consumer.getmany(timeout_ms=20)  # from here on a fetch waits at the broker
            recreate()
            assert (await told(consumer)).rolled_back == (0, 9)
            if end == "commit":
                await consumer.commit()
            if end == "error":
                raise LookupError

    async def second():
        async with SafeConsumer("orders", **options) as consumer:
            assert await values(consumer, len(NEW)) == NEW

    with contextlib.suppress(LookupError):
        run(first())
    assert committed(cluster) is None
    run(second())
    assert committed(cluster) == len(NEW)


async def test_an_undecided_partition_is_in_no_atomic_batch(recreate, options, tmp_path):
    async with (
        SafeConsumer("orders", **{**options, "enable_auto_commit": False}) as consumer,
        SafeProducer(bootstrap_servers=options["bootstrap_servers"], spool_dir=tmp_path / "p") as producer,
    ):
        assert await values(consumer, len(OLD)) == OLD
        assert not await consumer.getmany(timeout_ms=20)
        recreate()
        await told(consumer)
        batch = producer.batch()
        with pytest.raises(LogDivergedError):
            await batch.send_offsets(consumer)
        batch.drop()
        with pytest.raises(LogDivergedError, match="then seek to 0"):
            await consumer.commit({TP: 10})
        consumer.seek(TP, 0)
        assert await values(consumer, len(NEW)) == NEW
        async with producer.batch() as batch:
            batch.send("orders", b"sum")
            await batch.send_offsets(consumer)
        await batch.outcome
        assert await consumer.committed(TP) == len(NEW)

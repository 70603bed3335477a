"""Consume, process, produce in an event loop: what is handed out while its partition is moved is not sent, and comes again."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from pathlib import Path

import pytest
from helpers import until
from kafka import TopicPartition
from kafka.structs import ConsumerGroupMetadata

from kafkasafe.aio import SafeConsumer, SafeProducer
from kafkasafe.aio.consumer import calls_of
from kafkasafe.delivery.readings import OffsetsFate
from kafkasafe.errors import BatchDroppedError, UsageError
from kafkasafe.events import PositionRewound
from kafkasafe.spool.own_lane import OwnLane

COUNT = 40
LANE = OwnLane(b"lane", Path("lane"), in_memory=False)
TP, EMPTY, MORE = TopicPartition("orders", 0), TopicPartition("none", 0), TopicPartition("more", 0)
GONE = ConsumerGroupMetadata("g", 3, "gone", None)
"""A member that the group does not have: it refuses its offsets."""


@pytest.fixture
def options(fake_kafka):
    for topic in ("orders", "none", "more", "out"):
        fake_kafka.create_topic(topic, partitions=1)
    return {
        "bootstrap_servers": fake_kafka.bootstrap_servers,
        "group_id": "g",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_poll_records": 10,
    }


@contextlib.asynccontextmanager
async def opened(options, tmp_path):
    """A producer that has sent records, and a consumer of them."""
    async with SafeProducer(
        bootstrap_servers=options["bootstrap_servers"], spool_dir=tmp_path / "spool", retry_backoff_ms=20
    ) as producer:
        for number in range(COUNT):
            await producer.send("orders", b"%d" % number)
        await producer.flush()
        async with SafeConsumer(**options) as consumer:
            await consumer.assign([TP, EMPTY])
            yield producer, consumer


async def some(consumer, most=5):
    while not (found := await consumer.getmany(timeout_ms=100, max_records=most)):
        pass
    return [record.offset for records in found.values() for record in records]


async def deliver(producer, consumer):
    async with producer.batch() as batch:
        batch.send("out", b"of it")
        await batch.send_offsets(consumer)
    return batch.outcome


async def drop(producer, consumer, monkeypatch):
    """A batch that the group refuses; returns when it is dropped."""
    with monkeypatch.context() as patch:
        patch.setattr(consumer.client, "group_metadata", lambda: GONE)
        outcome = await deliver(producer, consumer)
    with pytest.raises(BatchDroppedError):
        await outcome


async def test_a_paused_partition_is_paused_after_it_was_moved_back_and_can_be_resumed(
    options, tmp_path, monkeypatch
):
    async with opened(options, tmp_path) as (producer, consumer):
        await (await some_delivered(producer, consumer))
        assert await some(consumer) == [5, 6, 7, 8, 9]
        consumer.pause(TP)
        await drop(producer, consumer, monkeypatch)
        while not consumer.client.counters["PositionRewound"]:
            assert await consumer.getmany(timeout_ms=20) == {}
        assert consumer.paused() == {TP}
        await consumer.resume(*consumer.paused())
        assert await some(consumer) == [5, 6, 7, 8, 9]


async def some_delivered(producer, consumer):
    assert await some(consumer) == [0, 1, 2, 3, 4]
    return await deliver(producer, consumer)


async def test_a_partition_that_is_paused_while_it_is_moved_back_can_be_resumed(
    options, tmp_path, monkeypatch
):
    async with opened(options, tmp_path) as (producer, consumer):
        await (await some_delivered(producer, consumer))
        assert await some(consumer) == [5, 6, 7, 8, 9]
        await drop(producer, consumer, monkeypatch)
        reached, go = held(consumer, monkeypatch)
        asked = asyncio.create_task(consumer.getmany(EMPTY, timeout_ms=100))
        await until(reached.is_set)
        paused = consumer.pause(TP)
        go.set()
        await paused
        await asked
        assert consumer.client.counters["PositionRewound"]
        assert consumer.paused() == {TP}
        await consumer.resume(*consumer.paused())
        assert await some(consumer) == [5, 6, 7, 8, 9]


def held(consumer, monkeypatch):
    """The next poll waits before it looks at what was dropped."""
    reached, go = threading.Event(), threading.Event()
    settle = consumer.client._objects.rereading.settle

    def slow(timeout_ms):
        reached.set()
        assert go.wait(60)
        return settle(timeout_ms)

    monkeypatch.setattr(consumer.client._objects.rereading, "settle", slow)
    return reached, go


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_handed_out_while_its_partition_is_moved_back_is_not_sent(
    options, tmp_path, monkeypatch, waits
):
    """One task waits for a partition, another one goes on with what is fetched of the other."""
    async with opened(options, tmp_path) as (producer, consumer):
        await (await some_delivered(producer, consumer))
        assert await some(consumer) == [5, 6, 7, 8, 9]
        assert await some(consumer, 3) == [10, 11, 12]
        await drop(producer, consumer, monkeypatch)
        reached, go = held(consumer, monkeypatch)
        asked = asyncio.create_task(consumer.getone(EMPTY))
        await until(reached.is_set)
        consumer._records._attend_at = float("inf")
        assert [(await consumer.getone()).offset for _ in range(2)] == [13, 14]
        if waits:
            go.set()
            await until(lambda: consumer.client.counters["PositionRewound"])
            await consumer.position(EMPTY)
        batch = producer.batch()
        batch.send("out", b"13, 14")
        offered = asyncio.ensure_future(batch.send_offsets(consumer))
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(BatchDroppedError):
            await offered
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        assert await some(consumer) == [5, 6, 7, 8, 9]
        # It was told once.
        await (await deliver(producer, consumer))
        assert await consumer.committed(TP) == 10


async def test_without_its_offsets_a_batch_is_not_sent(options, tmp_path, monkeypatch):
    """`send_offsets` took too long for the program."""
    async with opened(options, tmp_path) as (producer, consumer):
        assert await some(consumer) == [0, 1, 2, 3, 4]
        reached, go = held(consumer, monkeypatch)
        asked = asyncio.create_task(consumer.getone(EMPTY))
        await until(reached.is_set)
        batch = producer.batch()
        batch.send("out", b"0 to 4")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(batch.send_offsets(consumer), 0.01)
        with pytest.raises(UsageError, match="dropped"):
            await batch.commit()
        go.set()
        asked.cancel()
        # The same records are in the next one.
        await (await deliver(producer, consumer))
        assert await consumer.committed(TP) == 5


async def test_what_is_in_memory_of_a_held_partition_is_not_sent_without_its_offsets(options, tmp_path):
    """A batch of `orders` is undecided, one of `more` was dropped, and a poll has looked at both since."""
    async with opened(options, tmp_path) as (producer, consumer):
        for number in range(COUNT):
            await producer.send("more", b"%d" % number)
        await producer.flush()
        await consumer.assign([TP, MORE, EMPTY])
        fates = {TP: OffsetsFate.WAITING, MORE: OffsetsFate.WAITING}
        for tp in fates:
            assert await some_of(consumer, tp, 3) == [0, 1, 2]
        await (await deliver(producer, consumer))
        for tp in (TP, MORE):
            assert await some_of(consumer, tp, 2) == [3, 4]
            await calls_of(consumer).offer_positions(functools.partial(fates.get, tp), LANE)
        assert await some_of(consumer, TP) == [5, 6, 7, 8, 9]
        assert await some_of(consumer, TP, 2) == [10, 11]
        assert await some_of(consumer, MORE, 2) == [5, 6]
        fates[MORE] = OffsetsFate.DROPPED
        with pytest.raises(BatchDroppedError):
            await calls_of(consumer).offer_positions(lambda: OffsetsFate.WAITING, LANE)
        while not consumer.client.counters["PositionRewound"]:
            await consumer.getmany(EMPTY, timeout_ms=20)
        assert consumer.client._objects.rereading._informed == {TP}
        # Nothing since: it is left out. Then what is in memory is returned, and it cannot be left out.
        moved, *_ = await calls_of(consumer).offer_positions(lambda: OffsetsFate.WAITING, LANE)
        assert TP not in moved
        assert await some_of(consumer, TP, 2) == [12, 13]
        with pytest.raises(BatchDroppedError):
            await calls_of(consumer).offer_positions(lambda: OffsetsFate.WAITING, LANE)
        fates[TP] = OffsetsFate.COMMITTED
        while consumer.client.counters["PositionRewound"] < 2:
            await consumer.getmany(EMPTY, timeout_ms=20)


async def some_of(consumer, tp, most=5):
    while not (found := await consumer.getmany(tp, timeout_ms=100, max_records=most)):
        pass
    return [record.offset for record in found[tp]]


async def test_what_is_in_memory_of_a_partition_after_the_program_was_told_is_not_sent(
    options, tmp_path, monkeypatch
):
    """The program was told, goes on with what is in memory, and only then the partition is moved back."""
    async with opened(options, tmp_path) as (producer, consumer):
        await (await some_delivered(producer, consumer))
        assert await some(consumer) == [5, 6, 7, 8, 9]
        assert await some(consumer, 3) == [10, 11, 12]
        await drop(producer, consumer, monkeypatch)
        monkeypatch.setattr(consumer._records, "_attend_at", float("inf"))
        assert [(await consumer.getone()).offset for _ in range(2)] == [13, 14]
        with pytest.raises(BatchDroppedError):
            await deliver(producer, consumer)
        assert [(await consumer.getone()).offset for _ in range(2)] == [15, 16]
        while not consumer.client.counters["PositionRewound"]:
            await consumer.getmany(EMPTY, timeout_ms=20)
        with pytest.raises(BatchDroppedError):
            await deliver(producer, consumer)
        assert await some(consumer) == [5, 6, 7, 8, 9]
        await (await deliver(producer, consumer))
        assert await consumer.committed(TP) == 10


async def three(consumer, *, commits):
    """The program gets three of the ten records that were fetched. It commits the first one, or all three."""
    got = [(await consumer.getone()).offset]
    await consumer.commit()
    got += [(await consumer.getone()).offset for _ in range(2)]
    if commits:
        await consumer.commit()
    return got


def check_read_again(got, events, *, commits):
    """Six records were read. After `three`, the consumer continued at the committed offset."""
    rewound = [event for event in events if isinstance(event, PositionRewound)]
    if commits:
        assert (got, rewound) == ([0, 1, 2, 3, 4, 5], [])
    else:
        assert (got, rewound) == ([0, 1, 2, 1, 2, 3], [PositionRewound("orders", 0, "rebalanced", 3)])


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("commits", [False, True])
async def test_only_records_that_the_program_got_count_as_read_before_a_rebalance(
    fake_kafka, options, tmp_path, commits, slow
):
    """The consumer has fetched more than the program got: those records are not read again, but for the first time.

    If the program is slow, the consumer joins the group again without fetching, because it has records.
    """
    events = []
    async with (
        opened(options, tmp_path),
        SafeConsumer("orders", **options, on_event=events.append) as consumer,
    ):
        got = await three(consumer, commits=commits)
        state = consumer.client._subscription.assignment[TP]
        assert state.position.offset > 3
        consumer.client._coordinator.reset_generation()
        fake_kafka.advance(60)  # the session of the member that it was is over
        if slow:
            await asyncio.sleep(0.3)
        else:
            consumer.pause(TP)
        while len(got) < 6:
            found = await consumer.getmany(timeout_ms=20, max_records=3)
            got += [record.offset for records in found.values() for record in records]
        assert consumer.client._subscription.assignment[TP] is not state
    check_read_again(got, events, commits=commits)


@pytest.mark.parametrize("commits", [False, True])
async def test_only_records_that_the_program_got_count_as_read_before_it_subscribes_again(
    fake_kafka, options, tmp_path, commits
):
    events = []
    async with (
        opened(options, tmp_path),
        SafeConsumer("orders", **options, on_event=events.append) as consumer,
    ):
        got = await three(consumer, commits=commits)
        assert consumer.client._subscription.assignment[TP].position.offset > 3
        await consumer.unsubscribe()
        await consumer.subscribe(["orders"])
        while len(got) < 6:
            got += await some(consumer, most=3)
    check_read_again(got, events, commits=commits)

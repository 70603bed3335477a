"""Where a program of asyncio has its consumer read: nothing is skipped, nothing of before is handed out, and a wrong
move is refused at once."""

from __future__ import annotations

import asyncio
import contextlib

import kafka.errors
import pytest
from helpers import until
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata

from kafkasafe import SafeProducer as ThreadProducer
from kafkasafe.aio import SafeConsumer
from kafkasafe.errors import UsageError

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
UNASSIGNED = TopicPartition("orders", 7)
COUNT = 20


@pytest.fixture
def options(fake_kafka, tmp_path):
    for topic in ("orders", "audit"):
        fake_kafka.create_topic(topic, partitions=2)
    with ThreadProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        for topic in ("orders", "audit"):
            for number in range(2 * COUNT):
                producer.send(topic, b"%d" % (number // 2), partition=number % 2)
    return {
        "bootstrap_servers": fake_kafka.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "group_id": "readers",
        "enable_auto_commit": False,
    }


async def offsets(consumer, most):
    """So many offsets, by partition."""
    found: dict[TopicPartition, list[int]] = {A: [], B: []}
    async with asyncio.timeout(60):
        for _ in range(most):
            record = await consumer.getone()
            found[TopicPartition(record.topic, record.partition)].append(record.offset)
    return found


@contextlib.asynccontextmanager
async def one_of_each(options):
    """A consumer that has handed out the first record of each partition; at the end all others come, and once."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([A, B])
        await consumer.getone(A)
        await consumer.getone(B)
        yield consumer
        rest = list(range(1, COUNT))
        assert await offsets(consumer, 2 * len(rest)) == {A: rest, B: rest}


async def test_where_nothing_is_committed_seek_to_committed_skips_nothing(options):
    async with one_of_each(options) as consumer:
        await consumer.commit({A: 1})
        assert await consumer.seek_to_committed() == {A: 1, B: None}
        assert await consumer.position(B) == 1


async def test_what_comes_after_seek_to_end_is_read_and_seek_to_beginning_can_be_committed(
    options, fake_kafka, tmp_path
):
    """As with aiokafka. The positions were looked up with the next request for records: what had come was skipped."""
    loop = asyncio.get_running_loop()
    with ThreadProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "late") as late:
        async with SafeConsumer("orders", **options) as consumer:
            await consumer.getone()
            assert await consumer.seek_to_end(A)
            future = late.send("orders", b"late", partition=A.partition)
            await loop.run_in_executor(None, future.get, 60)
            assert (await consumer.getone(A)).value == b"late"
            await consumer.commit()
            assert await consumer.committed(A) > 1
            assert await consumer.seek_to_beginning(A)
            await consumer.commit()
            assert await consumer.committed(A) == 0


async def test_a_seek_to_the_end_ends_without_a_broker_and_is_made_up_for(options, fake_kafka):
    async with SafeConsumer("orders", **options, request_timeout_ms=1000) as consumer:
        await consumer.getone()
        fake_kafka.kill_all()
        assert not await consumer.seek_to_end(A)
        fake_kafka.start_all()
        ends = await consumer.end_offsets([A])
        assert await consumer.position(A) == ends[A]


async def test_a_position_that_no_broker_tells_in_time_raises_a_time_out(options, fake_kafka):
    async with SafeConsumer("orders", **options, request_timeout_ms=300, fetch_max_wait_ms=50) as consumer:
        await consumer.getone()
        fake_kafka.kill_all()
        assert not await consumer.seek_to_end(A)
        with pytest.raises(kafka.errors.KafkaTimeoutError, match="orders-0"):
            await consumer.position(A)
        fake_kafka.start_all()


@pytest.mark.parametrize("move", ["seek_to_beginning", "seek_to_end", "seek_to_committed"])
async def test_a_move_of_a_partition_that_is_not_assigned_moves_none(options, move):
    async with one_of_each(options) as consumer:
        with pytest.raises(kafka.errors.IllegalStateError, match="Unassigned"):
            await getattr(consumer, move)(A, UNASSIGNED)


async def test_a_move_that_fails_skips_nothing(options, monkeypatch):
    """As one of a partition that another member was given in the same moment."""
    async with one_of_each(options) as consumer:

        def fails(*partitions):
            raise ValueError(partitions)

        monkeypatch.setattr(consumer.client, "seek_to_end", fails)
        with pytest.raises(ValueError, match="orders"):
            await consumer.seek_to_end(A, B)


@pytest.mark.parametrize("group", ["readers", None])
async def test_after_subscribe_nothing_of_the_topics_before_is_handed_out(options, group):
    async with SafeConsumer("orders", **{**options, "group_id": group}) as consumer:
        assert (await consumer.getone()).topic == "orders"
        consumer.subscribe(["audit"])
        assert {(await consumer.getone()).topic for _ in range(5)} == {"audit"}
        consumer.subscribe(["orders", "audit"])
        seen = set()
        while len(seen) < 4 * COUNT - 6:  # without a group it goes on where it was
            record = await consumer.getone()
            seen.add((record.topic, record.partition, record.offset))


async def test_topics_a_pattern_and_partitions_exclude_each_other_and_that_is_said_at_once(options):
    """`assign` and `subscribe` are not awaited in aiokafka's programs: an error of their future is seen by nobody."""
    consumer = SafeConsumer("orders", **options)
    assert consumer.subscription() == {"orders"}
    for started in (False, True):
        with pytest.raises(kafka.errors.IllegalStateError, match="unsubscribe"):
            consumer.assign([A])
        with pytest.raises(kafka.errors.IllegalStateError, match="unsubscribe"):
            consumer.subscribe(pattern="orders")
        if not started:
            await consumer.start()
    assert (await consumer.getone()).topic == "orders"
    consumer.unsubscribe()
    assert consumer.subscription() == set()
    consumer.assign([A])
    with pytest.raises(kafka.errors.IllegalStateError, match="unsubscribe"):
        consumer.subscribe(["audit"])
    assert (await consumer.getone()).offset == 0
    consumer.unsubscribe()
    consumer.subscribe(["audit"])
    assert consumer.subscription() == {"audit"}
    assert (await consumer.getone()).topic == "audit"
    await consumer.stop()

    early = SafeConsumer("orders", **options)
    early.unsubscribe()
    early.assign([B])
    async with early:
        assert (await early.getone()).partition == 1


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ({UNASSIGNED: 1}, kafka.errors.IllegalStateError),
        ({TopicPartition("none", 0): 1}, kafka.errors.IllegalStateError),
        ([A], TypeError),
        ({"orders": 1}, TypeError),
        ({A: (1, 2)}, TypeError),
        ({A: (1, b"")}, TypeError),
        ({A: (1, "", 2)}, ValueError),
        ({A: (1,)}, ValueError),
        ({A: None}, ValueError),
        ({A: 2**63}, ValueError),
        ({A: (2**63, "")}, ValueError),
        ({A: OffsetAndMetadata(2**63, "", -1)}, ValueError),
        ({A: OffsetAndMetadata(-5, "", -1)}, ValueError),
    ],
    ids=repr,
)
async def test_what_cannot_be_committed_is_refused_at_once(options, offsets, error):
    """An unknown partition was asked for again for ever, and all other calls of the consumer waited for that."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([A])
        with pytest.raises(error, match=r"offset|TopicPartition|Unassigned"):
            await consumer.commit(offsets)
        await consumer.commit({A: (3, "note")})
        assert await consumer.committed(A) == 3


async def test_a_listener_without_a_group_is_not_called(options):
    """Neither with what it has from the beginning, nor (as it was) with what it has at the end."""
    heard = []

    class Listener:
        def on_partitions_revoked(self, revoked):
            heard.append(revoked)

        def on_partitions_assigned(self, assigned):
            heard.append(assigned)

    async with SafeConsumer(**{**options, "group_id": None}) as consumer:
        consumer.subscribe(["orders"], listener=Listener())
        await consumer.getone()
    assert heard == []


async def test_words_of_aiokafka_for_defaults(options):
    async with SafeConsumer("orders", **options, api_version="auto", max_poll_records=None) as consumer:
        assert (await consumer.getone()).topic == "orders"
        for wrong in ({"max_records": "5"}, {"max_records": 1.5}, {"max_records": 0}):
            with pytest.raises(ValueError, match="positive int"):
                await consumer.getmany(**wrong)
        for timeout_ms in (None, "x"):
            with pytest.raises(TypeError, match="timeout_ms"):
                await consumer.getmany(timeout_ms=timeout_ms)


@pytest.mark.parametrize("wrong", [2**63, -1, 1.5, "5"])
async def test_what_is_no_offset_is_refused_at_once(options, wrong):
    """One that the protocol has no room for was taken, and each commit afterwards failed."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([A])
        with pytest.raises(ValueError, match="Not an offset: "):
            consumer.seek(A, wrong)
        assert (await consumer.getone()).offset == 0
        await consumer.commit()


async def test_another_loop_moves_nothing(options):
    """It changed what the loop of the consumer was looking at."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([A])
        assert (await consumer.getone()).offset == 0

        async def elsewhere():
            for call in (
                lambda: consumer.seek(A, 7),
                lambda: consumer.pause(A),
                lambda: consumer.resume(A),
                lambda: consumer.assign([B]),
                consumer.unsubscribe,
            ):
                with pytest.raises(UsageError, match="another event loop"):
                    call()
            for wait in (consumer.commit, consumer.seek_to_end, consumer.seek_to_committed):
                with pytest.raises(UsageError, match="another event loop"):
                    await wait()

        await asyncio.to_thread(asyncio.run, elsewhere())
        assert consumer.assignment() == {A}
        assert consumer.paused() == set()
        assert (await consumer.getone()).offset == 1


async def test_what_is_no_list_of_partitions_is_a_clear_error(options):
    async with SafeConsumer(**options) as consumer:
        for call in (consumer.beginning_offsets, consumer.end_offsets):
            with pytest.raises(TypeError, match="list of TopicPartitions"):
                await call(None)
        with pytest.raises(TypeError, match="list of TopicPartitions"):
            consumer.assign(5)
        with pytest.raises(TypeError, match="list of names"):
            consumer.subscribe(None)
        with pytest.raises(TypeError, match="a dict"):
            await consumer.offsets_for_times([A])
        with pytest.raises(TypeError, match="topic"):
            await consumer.partitions_for_topic(None)
        assert await consumer.partitions_for_topic("orders") == {0, 1}


BAD_NAMES = ["bad name", "", "..", "x" * 250, None]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_constructor_refuses_a_topic_that_cannot_exist(options, name):
    """Each `start` failed, also after an `unsubscribe`."""
    with pytest.raises(TypeError if name is None else ValueError):
        SafeConsumer("orders", name, **options)


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("started", [False, True])
async def test_a_topic_that_cannot_exist_is_refused_at_once(options, name, started):
    """Before `start` it was accepted, and then each `start` failed, also after an `unsubscribe`."""
    consumer = SafeConsumer(**options)
    if started:
        await consumer.start()
    error = TypeError if name is None else ValueError
    with pytest.raises(error):
        consumer.subscribe(["orders", name])
    with pytest.raises(error):
        consumer.assign([TopicPartition(name, 0)])
    assert consumer.subscription() == set()
    consumer.assign([B])  # the refused calls have chosen nothing
    async with consumer:
        assert (await consumer.getone()).partition == 1


async def test_who_hears_that_there_is_no_position_may_seek(options):
    """aiokafka's example of local state. What was assigned in a poll that raised was not known to be."""
    async with SafeConsumer("orders", **{**options, "auto_offset_reset": "none"}) as consumer:
        with pytest.raises(kafka.errors.NoOffsetForPartitionError):
            await consumer.getone()
        assert consumer.assignment() == {A, B}
        consumer.seek(A, 7)
        await consumer.seek_to_beginning(B)
        assert (await consumer.getone(A)).offset == 7
        assert (await consumer.getone(B)).offset == 0


async def test_a_new_assignment_counts_at_once_while_another_task_asks_for_records(options):
    """A poll that ran during `assign` gave the former assignment back, so that `seek` refused the new partition."""
    found = []

    async def read(consumer):
        while True:
            record = await consumer.getone()
            found.append((TopicPartition(record.topic, record.partition), record.offset))

    async with SafeConsumer(**{**options, "auto_offset_reset": "latest"}) as consumer:
        consumer.assign([A])
        reading = asyncio.create_task(read(consumer))
        try:
            for partition in (B, A, B):
                await asyncio.sleep(0.12)
                await consumer.assign([partition])
                assert consumer.assignment() == {partition}
                found.clear()
                await consumer.seek(partition, COUNT - 2)
                await until(lambda: len(found) >= 2)
                assert found == [(partition, COUNT - 2), (partition, COUNT - 1)]
            await asyncio.sleep(0.12)
            await consumer.unsubscribe()
            assert consumer.assignment() == set()
        finally:
            reading.cancel()


async def test_a_partition_that_is_given_up_is_no_longer_paused(options):
    """As in KafkaConsumer and aiokafka: before the next request for records, too."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([A, B])
        await consumer.getone(A)
        await consumer.pause(A, B)
        await consumer.assign([A])
        assert consumer.paused() == {A} == await asyncio.to_thread(consumer.client.paused)
        await consumer.unsubscribe()
        assert consumer.paused() == set()
        await consumer.assign([A])
        assert consumer.paused() == set()
        assert (await consumer.getone()).offset == 0

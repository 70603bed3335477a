"""SafeConsumer in an event loop: what is committed was handed out, and what is handed out was not skipped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import time

import kafka.errors
import pytest
from helpers import Ticks, cancelled_at, run, until
from kafka import TopicPartition

from kafkasafe import SafeConsumer as ThreadConsumer
from kafkasafe import SafeProducer as ThreadProducer
from kafkasafe.aio import SafeConsumer
from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.testing import FakeCluster

TP = TopicPartition("orders", 0)
COUNT = 1000


@pytest.fixture
def options(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=2)
    with ThreadProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        for number in range(2 * COUNT):
            producer.send("orders", b"%d" % (number // 2), partition=number % 2)
    return {
        "bootstrap_servers": fake_kafka.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "group_id": "readers",
        "max_poll_records": 100,
    }


async def read(consumer, count):
    """So many records; each partition's in order."""
    found: dict[int, list[int]] = {0: [], 1: []}
    async for record in consumer:
        found[record.partition].append(record.offset)
        count -= 1
        if not count:
            break
    for offsets in found.values():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
    return found


async def test_a_poll_wakes_the_loop_once(options, monkeypatch):
    """Each time the thread gives the interpreter away, and waits for it while the loop is busy."""
    async with SafeConsumer("orders", **options) as consumer:
        await consumer.getone()
        loop, woken = asyncio.get_running_loop(), 0
        wake = loop.call_soon_threadsafe

        def counted(*args, **kwargs):
            nonlocal woken
            woken += 1
            return wake(*args, **kwargs)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        polls = consumer._thread.polls
        await read(consumer, 2 * COUNT - 1)
        assert woken == consumer._thread.polls - polls > 10
        monkeypatch.undo()


async def test_a_group_goes_on_where_it_was(options):
    """Automatic commit at the end: what was handed out, though more was fetched."""
    async with SafeConsumer("orders", **options) as consumer:
        first = await read(consumer, 730)
    async with SafeConsumer("orders", **options) as consumer:
        second = await read(consumer, 2 * COUNT - 730)
        assert consumer.assignment() == {TP, TopicPartition("orders", 1)}
        assert consumer.subscription() == {"orders"}
    for partition in (0, 1):
        assert first[partition] + second[partition] == list(range(COUNT))
    with pytest.raises(StopAsyncIteration):
        await anext(consumer)
    with pytest.raises(kafka.errors.IllegalStateError):
        await consumer.getone()


async def test_the_record_in_hand_comes_again_after_an_error(options):
    with contextlib.suppress(KeyError):
        async with SafeConsumer(**options) as consumer:
            await consumer.assign([TP])
            async for record in consumer:
                if record.offset == 41:
                    raise KeyError
    async with SafeConsumer(**options) as consumer:
        assert await consumer.committed(TP) == 41
        consumer.assign([TP])
        assert (await consumer.getone()).offset == 41


async def test_a_commit_is_of_what_was_handed_out_also_while_more_is_fetched(options):
    """Commits of one task beside requests of another."""
    async with SafeConsumer(**options, enable_auto_commit=False) as consumer:
        consumer.assign([TP])
        seen = []

        async def reads():
            async for record in consumer:
                seen.append(record.offset)
                if record.offset == COUNT - 1:
                    return
                await asyncio.sleep(0)

        reading = asyncio.create_task(reads())
        while not reading.done():
            # What is handed out while it is on its way may or may not be in it; nothing later is.
            await consumer.commit()
            if seen:
                assert await consumer.committed(TP) <= seen[-1] + 1
            await asyncio.sleep(0)
        await reading
        await consumer.commit()
        assert await consumer.committed(TP) == COUNT
        await consumer.commit({TP: 7})
        assert await consumer.committed(TP) == 7
        await consumer.commit({TP: (8, "note")})
        assert await consumer.seek_to_committed(TP) == {TP: 8}
        assert (await consumer.getone()).offset == 8


async def test_no_method_of_kafka_pythons_objects_is_replaced(options):
    """Their classes are replaced: an attribute that hides a method is easily overlooked."""
    async with SafeConsumer("orders", **options) as consumer:
        await consumer.getone()
        inner = consumer.client
        for each in (
            inner._subscription,
            inner._fetcher,
            inner._coordinator,
            inner._client,
            inner._manager,
        ):
            assert not [name for name in vars(each) if callable(getattr(type(each), name, None))]


async def test_a_wait_that_is_not_a_number_is_refused(options):
    """It would never end."""
    async with SafeConsumer("orders", **options) as consumer:
        with pytest.raises(ValueError, match="timeout_ms"):
            await consumer.getmany(timeout_ms=math.nan)


async def test_a_fetch_on_its_way_is_not_committed(options):
    """Asked for before the loop knew of it."""
    async with SafeConsumer(**options, enable_auto_commit=False) as consumer:
        consumer.assign([TP])
        await consumer.getmany(timeout_ms=30_000, max_records=100)
        while consumer._records:
            await consumer.getone()
        asking = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        given = consumer.position(TP), consumer.commit()
        before = 100
        committing = asyncio.gather(*given)
        await asking
        await committing
        assert await consumer.committed(TP) <= before + 1


async def test_position_is_that_of_what_a_request_that_was_given_up_fetched(options):
    async with SafeConsumer(**options) as consumer:
        consumer.assign([TP])
        await consumer.getmany(timeout_ms=30_000)
        while consumer._records:
            await consumer.getone()
        following = await consumer.position(TP)
        asking = asyncio.create_task(consumer.getone())
        await asyncio.sleep(0)
        asking.cancel()
        assert await consumer.position(TP) == following
        assert consumer._records
        assert (await consumer.getone()).offset == following


async def test_seek_pause_and_position(options):
    async with SafeConsumer(**options) as consumer:
        with pytest.raises(ValueError, match="Unassigned"):
            await consumer.seek(TP, 5)
        other = TopicPartition("orders", 1)
        consumer.assign([TP, other])
        assert (await consumer.getmany(timeout_ms=30_000)).keys() <= {TP, other}
        for offset in (500, 3, 900):
            consumer.seek(TP, offset)
            assert (await consumer.getone(TP)).offset == offset
            assert await consumer.position(TP) == offset + 1
        consumer.pause(other)
        assert consumer.paused() == {other}
        found = [await consumer.getone() for _ in range(50)]
        assert {record.partition for record in found} == {0}
        consumer.resume(other)
        assert (await consumer.getone(other)).partition == 1
        await consumer.seek_to_end(TP)
        assert await consumer.position(TP) == COUNT
        await consumer.seek_to_beginning(TP)
        assert (await consumer.getone(TP)).offset == 0
        assert await consumer.end_offsets([TP]) == {TP: COUNT}
        assert await consumer.beginning_offsets([TP]) == {TP: 0}
        assert (await consumer.offsets_for_times({TP: 0}))[TP].offset == 0
        assert "orders" in await consumer.topics()
        assert await consumer.partitions_for_topic("orders") == {0, 1}
        assert consumer.highwater(TP) == COUNT
        assert consumer.last_poll_timestamp() > 0
        await consumer.assign([other])
        assert (await consumer.getone()).partition == 1


async def test_who_waits_for_one_partition_does_not_fetch_all_of_the_others(options):
    async with SafeConsumer(**options) as consumer:
        other = TopicPartition("orders", 1)
        await consumer.assign([TP, other])
        await consumer.seek_to_end(TP)
        polls = consumer._thread.polls
        waiting = asyncio.create_task(consumer.getone(TP))
        await until(lambda: consumer._records)
        await until(lambda: consumer._thread.polls > polls + 40)
        assert len(consumer._records) <= 2 * options["max_poll_records"]
        consumer.seek(TP, COUNT - 1)
        assert (await waiting).offset == COUNT - 1
        assert [(await consumer.getone(other)).offset for _ in range(COUNT)] == list(range(COUNT))
        with pytest.raises(ValueError, match="offset"):
            await consumer.commit({TP: -5})


async def test_a_cancelled_request_takes_no_record(options):
    """At each of its awaits, again and again: all are handed out once, in order."""
    async with SafeConsumer(**options) as consumer:
        consumer.assign([TP])
        seen: list[int] = []
        calls = cancelled = 0
        while len(seen) < COUNT:
            calls += 1
            _, result = await cancelled_at(calls % 3 + 1, "waking", consumer.getone())
            if isinstance(result, asyncio.CancelledError):
                cancelled += 1
            else:
                seen.append(result.offset)
        assert cancelled
        assert seen == list(range(COUNT))


async def test_the_loop_runs_while_brokers_are_down_and_reading_goes_on_after(options, fake_kafka):
    ticks = Ticks()
    ticking = asyncio.create_task(ticks.run())
    with pytest.raises(ConfigError):
        SafeConsumer(no_such_option=1)
    with pytest.raises(UsageError, match="start"):
        await SafeConsumer(**options).commit()
    async with SafeConsumer("orders", **options) as consumer:
        await consumer.getone()
        fake_kafka.kill_all()
        reading = asyncio.create_task(read(consumer, 2 * COUNT - 1))
        before = ticks._count
        await until(lambda: ticks._count > before + 100)
        committing = asyncio.create_task(consumer.commit())
        await until(lambda: ticks._count > before + 150)
        fake_kafka.start_all()
        await asyncio.gather(committing, return_exceptions=True)
        await reading
    ticking.cancel()


async def test_two_members_share_a_group_and_a_rebalance_commits_no_more_than_was_handed_out(
    options, fake_kafka
):
    """The first has fetched more than it handed out when the second comes; nothing is skipped."""
    seen: set[tuple[int, int]] = set()

    async def member(stop_after=None):
        async with SafeConsumer("orders", **options, session_timeout_ms=6000) as consumer:
            count = 0
            while len(seen) < 2 * COUNT:
                for records in (await consumer.getmany(timeout_ms=100, max_records=7)).values():
                    seen.update((record.partition, record.offset) for record in records)
                    count += len(records)
                if stop_after is not None and count >= stop_after:
                    return
                await asyncio.sleep(0.001)

    await asyncio.gather(member(), member(stop_after=300), member())
    assert seen == {(partition, offset) for partition in (0, 1) for offset in range(COUNT)}


def test_close_takes_a_timeout_in_seconds_in_both_worlds(options, fake_kafka):
    """Without it both wait for as long as a request may take, half a minute, when the cluster is away."""
    threaded = ThreadConsumer("orders", **{**options, "group_id": "threads"})
    while not threaded.poll(1000):
        pass

    async def main():
        async with asyncio.timeout(60):
            consumer = SafeConsumer("orders", **options)
            await consumer.start()
            await consumer.getone()
            fake_kafka.kill_all()
            for wrong in (-1, math.nan):
                with pytest.raises(ValueError):
                    await consumer.close(wrong)
                with pytest.raises(ValueError):
                    threaded.close(timeout=wrong)
            with pytest.raises(UsageError, match="give only one of them"):
                threaded.close(timeout=1, timeout_ms=1000)
            started = time.monotonic()
            await consumer.close(timeout=0.5)
            return time.monotonic() - started

    assert run(main()) < 15
    started = time.monotonic()
    threaded.close(timeout=0.5)
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("group", ["readers", None])
async def test_a_start_that_was_cancelled_and_repeated_reads_nothing_twice(options, group, monkeypatch):
    """The records that the first start fetched are not handed out: the second one fetches them again."""
    fetched, go_on, plain = threading.Event(), threading.Event(), ThreadConsumer.poll

    def poll(consumer, *given):
        found = plain(consumer, *(given if go_on.is_set() else (60_000,)))
        if found and not go_on.is_set():
            fetched.set()
            assert go_on.wait(60)
        return found

    monkeypatch.setattr(ThreadConsumer, "poll", poll)
    consumer = SafeConsumer("orders", **options | {"group_id": group})
    starting = asyncio.create_task(consumer.start())
    await until(fetched.is_set)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    again = asyncio.create_task(consumer.start())
    await until(lambda: consumer._thread.is_open)
    go_on.set()
    await again
    found = await read(consumer, 2 * COUNT)
    assert found == {0: list(range(COUNT)), 1: list(range(COUNT))}
    assert not await consumer.getmany(timeout_ms=50)
    await consumer.stop()


def test_dropped_without_close_it_says_so_and_its_threads_end(options):
    """What it handed out is not committed: it comes again."""

    def threads():
        return {each for each in threading.enumerate() if "dropped" in each.name}

    async def main():
        consumer = SafeConsumer("orders", **options, client_id="dropped")
        await consumer.start()
        await consumer.getone()
        assert threads()
        with pytest.warns(ResourceWarning, match="Unclosed") as said:  # noqa: PT031
            del consumer
            # Its thread may be about to let go of the last job. The warning has the consumer, so no weak reference to it
            # need ever end.
            await until(lambda: gc.collect() >= 0 and any("Unclosed" in str(each.message) for each in said))
        await until(lambda: not threads())
        async with SafeConsumer("orders", **options) as consumer:
            assert not await consumer.committed(TP)  # 0 where the warning kept it until its thread closed it

    run(main())


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("made", [False, True])
def test_start_waits_for_topics_that_brokers_make_and_not_for_those_that_they_do_not(tmp_path, group, made):
    async def main(servers):
        async with SafeConsumer(
            "new", bootstrap_servers=servers, group_id=group, metadata_max_age_ms=500
        ) as consumer:
            assert consumer.assignment() == ({TopicPartition("new", 0)} if made else set())
            if not made:
                cluster.create_topic("new")
                while not consumer.assignment():
                    assert not await consumer.getmany(timeout_ms=50)
            await consumer.position(TopicPartition("new", 0))
            with ThreadProducer(bootstrap_servers=servers, spool_dir=tmp_path) as producer:
                producer.send("new", b"after")
            assert (await asyncio.wait_for(consumer.getone(), 30)).value == b"after"

    with FakeCluster(config={"auto.create.topics.enable": str(made).lower()}) as cluster:
        run(main(cluster.bootstrap_servers))

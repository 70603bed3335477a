"""What aiokafka's documentation does with a consumer: listeners that are coroutines, `subscribe` before `start`, `seek`
right after it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time

import aiokafka
import kafka.errors
import pytest
from helpers import run
from kafka import TopicPartition

from kafkasafe import SafeProducer as ThreadProducer
from kafkasafe.aio import SafeConsumer
from kafkasafe.errors import UsageError

TP = TopicPartition("orders", 0)
COUNT = 20


@pytest.fixture
def produce(fake_kafka, tmp_path):
    def produce():
        with ThreadProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
            for number in range(COUNT):
                producer.send("orders", b"%d" % number, partition=0)

    fake_kafka.create_topic("orders", partitions=1)
    produce()
    return produce


@pytest.fixture
def options(fake_kafka, produce):
    return {
        "bootstrap_servers": fake_kafka.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "group_id": "readers",
        "enable_auto_commit": False,
    }


class Listener(aiokafka.ConsumerRebalanceListener):
    """As in aiokafka's example of local state, and it waits for the consumer."""

    def __init__(self, consumer):
        self.consumer, self.heard = consumer, []
        self.loop = asyncio.get_running_loop()

    async def on_partitions_revoked(self, revoked):
        assert asyncio.get_running_loop() is self.loop
        if revoked:
            await self.consumer.commit()
            self.heard.append(await self.consumer.committed(TP))

    async def on_partitions_assigned(self, assigned):
        assert self.consumer.assignment() == assigned
        for tp in assigned:
            await self.consumer.seek_to_beginning(tp)
            self.consumer.seek(tp, 5)  # nobody waits for it
            self.heard.append(await self.consumer.position(tp))


async def test_a_listener_of_coroutines_seeks_and_commits_before_records_are_handed_out(options):
    consumer = SafeConsumer(**options)
    listener = Listener(consumer)
    consumer.subscribe(["orders"], listener=listener)
    async with consumer:
        assert listener.heard == [5]
        assert [(await consumer.getone()).offset for _ in range(3)] == [5, 6, 7]
        other = SafeConsumer("orders", **options)
        starting = asyncio.create_task(other.start())
        while not starting.done():
            await consumer.getmany(timeout_ms=50, max_records=1)
        await starting
        # Given anew: committed before, and what is fetched already is not handed out any more.
        assert listener.heard[1] >= 8
        await other.stop()
        before = len(listener.heard)
    assert len(listener.heard) > before or not consumer.assignment()  # at the end it could commit as well


async def test_who_asks_again_while_a_listener_is_waited_for_does_not_have_it_called_again(options):
    """A loop that gives up after a moment and asks anew: aiokafka's `getmany` is used so, and `wait_for`."""
    running, heard, done = 0, [], asyncio.Event()

    class Slow:
        async def on_partitions_revoked(self, revoked):
            nonlocal running
            if not revoked:
                return
            heard.append(revoked)
            running += 1
            assert running == 1
            await done.wait()
            running -= 1

        async def on_partitions_assigned(self, assigned):
            pass

    consumer, other = SafeConsumer(**options), SafeConsumer("orders", **options)
    consumer.subscribe(["orders"], listener=Slow())
    async with consumer, asyncio.timeout(120):
        starting = asyncio.create_task(other.start())
        gave_up = 0
        while not starting.done() or not done.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await consumer.getmany(timeout_ms=1000)
            gave_up += bool(heard)
            if gave_up >= 10:
                done.set()
        await starting
        await other.stop()


async def test_plain_methods_of_a_listener_are_called_on_the_loop_too(options):
    heard = []

    class Plain:
        def on_partitions_revoked(self, revoked):
            pass

        def on_partitions_assigned(self, assigned):
            heard.append((asyncio.get_running_loop(), assigned))
            consumer.seek(TP, 11)

    consumer = None
    consumer = SafeConsumer(**options)
    consumer.subscribe(pattern="^ord", listener=Plain())
    async with consumer:
        assert heard == [(asyncio.get_running_loop(), {TP})]
        assert (await consumer.getone()).offset == 11


async def test_a_listener_that_fails_or_asks_for_records_or_the_end_is_an_error_of_the_next_request(options):
    for asks in ("getone", "getmany", "stop"):

        class Asks(Listener):
            async def on_partitions_assigned(self, assigned, asks=asks):
                await getattr(self.consumer, asks)()

        consumer = SafeConsumer(**options)
        consumer.subscribe(["orders"], listener=Asks(consumer))
        await consumer.start()
        with pytest.raises(kafka.errors.KafkaError) as raised:
            await consumer.getone()
        assert isinstance(raised.value.__cause__, UsageError)
        await consumer.stop()


@pytest.mark.parametrize("group_id", [None, "late"])
async def test_what_comes_after_start_is_read_from_latest(options, produce, group_id):
    options.update(auto_offset_reset="latest", group_id=group_id)
    async with SafeConsumer("orders", **options) as consumer:
        assert consumer.assignment() == {TP}
        await asyncio.to_thread(produce)
        assert (await consumer.getone()).offset == COUNT
        consumer.seek(aiokafka.TopicPartition("orders", 0), 3)
        assert (await consumer.getone(aiokafka.TopicPartition("orders", 0))).offset == 3


async def test_assigned_before_start(options):
    consumer = SafeConsumer(**options)
    await consumer.assign([aiokafka.TopicPartition("orders", 0)])
    await consumer.start()
    assert consumer.assignment() == {TP}
    assert (await consumer.getone()).offset == 0
    await consumer.stop()
    with pytest.raises(kafka.errors.IllegalStateError):
        consumer.assign([TP])


async def test_what_cannot_be_meant_is_said_at_once(options):
    async with SafeConsumer(**options) as consumer:
        for wrong in (
            {"topics": "orders"},
            {},
            {"topics": ["orders"], "pattern": "o"},
            {"topics": ["orders"], "listener": object()},
        ):
            with pytest.raises(TypeError):
                consumer.subscribe(**wrong)
        with pytest.raises(ValueError, match="regular"):
            consumer.subscribe(pattern="(")
        with pytest.raises(kafka.errors.IllegalStateError, match="Unassigned"):
            consumer.seek(TP, 5)
        with pytest.raises(kafka.errors.IllegalStateError, match="Unassigned"):
            consumer.pause(TP)
        assert consumer.paused() == set()
        with pytest.raises(TypeError, match="names"):
            SafeConsumer(["orders"])
        consumer.assign([TP])
        for offset in (-1, "5", None):
            with pytest.raises(ValueError, match="offset"):
                consumer.seek(TP, offset)
        for call in (consumer.position, consumer.committed, consumer.getone, consumer.getmany):
            with pytest.raises(TypeError, match="TopicPartition"):
                await call("orders")
        assert (await consumer.getone()).offset == 0


async def test_a_listener_may_start_the_consumer_that_waits_for_it(options):
    consumer = SafeConsumer(**options)

    class Starts(Listener):
        async def on_partitions_assigned(self, assigned):
            await consumer.start()
            self.heard.append(assigned)

    listener = Starts(consumer)
    consumer.subscribe(["orders"], listener=listener)
    async with asyncio.timeout(60), consumer:
        assert listener.heard[-1] == {TP}
        assert (await consumer.getone()).offset == 0


async def test_what_was_fetched_is_not_handed_out_on_another_loop(options):
    """Which is that of a forked child as well."""
    async with SafeConsumer("orders", **options) as consumer:
        first = await consumer.getone()
        for call in (consumer.getone, consumer.getmany):
            with pytest.raises(UsageError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, call())
        assert (first.offset, (await consumer.getone()).offset) == (0, 1)


def test_what_was_fetched_is_not_handed_out_in_a_forked_child(options):
    def ask(consumer):
        try:
            consumer.getone().send(None)
        except StopIteration:
            return 1
        except UsageError as error:
            return 0 if "No asyncio event loop is running" in str(error) else 2
        return 3

    async def main():
        async with SafeConsumer("orders", **options) as consumer:
            first = await consumer.getone()
            child = os.fork()
            if not child:
                try:
                    os._exit(ask(consumer))
                finally:
                    os._exit(4)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert (first.offset, (await consumer.getone()).offset) == (0, 1)

    run(main())


async def test_no_request_of_another_task_runs_beside_the_poll_when_a_listener_ends(options, monkeypatch):
    """The thread of the listener's call executes it while the consumer's thread waits, or else the latter does."""
    consumer, loop = SafeConsumer(**options), asyncio.get_running_loop()
    rebalances, calls, beside, requests = consumer._calls._rebalances, [], [], []
    call = rebalances.call

    async def counted(*args):
        calls.append(True)
        try:
            await call(*args)
        finally:
            calls.pop()

    def slow():
        time.sleep(0.05)
        if threading.current_thread().name.endswith("-listener") and not calls:
            beside.append(True)

    def asked():
        requests.append(rebalances.submit(slow))

    monkeypatch.setattr(rebalances, "call", counted)
    # Another task makes a request in the moment in which the last request of the listener has ended.
    monkeypatch.setattr("kafkasafe.aio.listeners._nothing", lambda: loop.call_soon_threadsafe(asked))
    listener = Listener(consumer)
    consumer.subscribe(["orders"], listener=listener)
    async with consumer:
        assert (await consumer.getone()).offset == 5
        await asyncio.gather(*requests)
    assert requests
    assert not beside

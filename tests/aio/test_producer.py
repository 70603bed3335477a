"""SafeProducer in an event loop: what it accepts is delivered, whoever is cancelled, and the loop never waits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import warnings
from pathlib import Path

import kafka.errors
import pytest
from helpers import LONG_S, Ticks, cancelled_at, longest_callback, run, until

import kafkasafe
from kafkasafe._producing.encoding import Encoder
from kafkasafe._producing.open_batch import NOT_ENCODED
from kafkasafe.aio import RecordFuture, SafeProducer
from kafkasafe.aio.gate import _QUOTA
from kafkasafe.aio.threads import _ThreadOfLoop, call_in_thread
from kafkasafe.errors import ConfigError, ProducerClosedError, SpoolFullError, UsageError, WrongClusterError
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory


@pytest.fixture
def options(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=1)
    return {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path / "spool"}


async def test_a_record_is_accepted_then_durable_then_delivered(options, fake_kafka):
    async with SafeProducer(**options) as producer:
        future = await producer.send("orders", b"v", b"k", headers=[("h", b"x")])
        assert isinstance(future, RecordFuture)
        assert await future.durable() is future
        metadata = await future
        assert (metadata.topic, metadata.partition, metadata.offset) == ("orders", 0, 0)
        assert await future == metadata
        assert future.done()
        assert future.result() == metadata
        assert future.exception() is None
        assert (await producer.send_and_wait("orders", b"w", partition=0)).offset == 1
        assert await producer.partitions_for("orders") == {0}
        await producer.flush()
        await producer.durable()
    with pytest.raises(ProducerClosedError):
        await producer.send("orders", b"late")
    assert fake_kafka.values("orders") == [b"v", b"w"]


@pytest.mark.parametrize("headers", [5, "ab", {"h": b"x"}])
async def test_headers_that_are_no_list_of_pairs(options, headers):
    async with SafeProducer(**options) as producer:
        with pytest.raises(TypeError, match=r"headers must be a list of \(str, bytes\) tuples, not"):
            await producer.send("orders", b"v", headers=headers)
        async with producer.batch() as batch:
            with pytest.raises(TypeError, match="headers must be a list"):
                batch.send("orders", b"v", headers=headers)
            batch.send("orders", b"v", headers=(pair for pair in [("h", None)]))
        assert (await producer.send_and_wait("orders", b"w", headers=(("h", b"x"),))).offset >= 1


async def test_start_and_stop_as_aiokafka_has_them(options, fake_kafka):
    producer = SafeProducer(**options)
    with pytest.raises(UsageError, match="start"):
        await producer.send("orders", b"early")
    await asyncio.gather(producer.start(), producer.start())
    await producer.start()
    with pytest.raises(UsageError, match="another event loop"):
        await asyncio.to_thread(lambda: run(producer.send("orders", b"of another loop")))
    future = await producer.send("orders", b"v")
    await asyncio.gather(producer.stop(), producer.stop())
    await producer.stop()
    # Also after the end, as long as somebody has the future.
    assert (await future).offset == 0
    with pytest.raises(ProducerClosedError):
        await producer.start()
    with pytest.raises(ConfigError):
        SafeProducer(bootstrap_servers="localhost:1", no_such_option=1)


@pytest.mark.parametrize("foreign", [False, True])
def test_a_loop_that_stopped_in_the_middle_leaves_its_producer_to_no_other(options, fake_kafka, foreign):
    """Its thread goes on with another loop."""
    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def main():
        producer = SafeProducer(**options)
        await producer.start()
        gate = producer._gate
        if foreign:  # as of a loop that does not tell its thread
            gate.place = _ThreadOfLoop(loop)
        assert gate.place._thread_id == threading.get_ident()
        await producer.send_and_wait("orders", b"1")
        await producer.send("orders", b"2")
        assert gate.left > 0, "the short way is open"
        loop.stop()
        return producer

    try:
        task = loop.create_task(main())
        loop.run_forever()
        with pytest.raises(UsageError, match="another event loop"):
            other.run_until_complete(task.result().send("orders", b"3"))
        loop.run_until_complete(task.result().stop())
    finally:
        loop.close()
        other.close()
    assert fake_kafka.values("orders") == [b"1", b"2"]


def test_futures_of_a_producer_of_threads_are_awaited_too(options):
    """From several loops at once."""
    with kafkasafe.SafeProducer(**options) as producer:
        futures = [producer.send("orders", b"%d" % i) for i in range(100)]

        async def main():
            return [metadata.offset for metadata in await asyncio.gather(*futures)]

        found = []
        others = [threading.Thread(target=lambda: found.append(run(main()))) for _ in range(3)]
        for thread in others:
            thread.start()
        for thread in others:
            thread.join(LONG_S)
        assert found == [list(range(100))] * 3

        async def refused():
            await producer.send("orders", b"x" * 100, partition=5)

        with pytest.raises(ValueError, match="Unrecognized partition"):
            run(refused())


def test_one_wake_up_of_the_loop_for_many_records(options):
    async def main():
        async with SafeProducer(**options) as producer:
            loop, calls = asyncio.get_running_loop(), []
            call = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda *args, **kwargs: calls.append(args[0]) or call(*args, **kwargs)
            results = await asyncio.gather(*[producer.send_and_wait("orders", b"v") for _ in range(2000)])
            assert [result.offset for result in results] == list(range(2000))
            return len(calls)

    # Some for each batch that became durable, and was acknowledged; there are no 2000 of these.
    assert run(main()) < 500


def test_a_hundred_tasks_that_wait_for_each_record_share_batches_and_wake_ups(options, fake_kafka):
    """The loop is woken when something that they wait for is there, and not for each step on the way."""
    batches = 0

    async def main():
        nonlocal batches
        async with SafeProducer(**options) as producer:
            await producer.send_and_wait("orders", b"v")
            loop, calls = asyncio.get_running_loop(), []
            call, ledger = loop.call_soon_threadsafe, producer.client._pump.ledger
            submit = ledger.submit

            def counted(parcels):
                nonlocal batches
                batches += len(parcels)
                submit(parcels)

            ledger.submit = counted
            loop.call_soon_threadsafe = lambda *args, **kwargs: calls.append(args[0]) or call(*args, **kwargs)

            async def sender():
                for _ in range(60):
                    await producer.send_and_wait("orders", b"v")

            await asyncio.gather(*[sender() for _ in range(100)])
            return len(calls)

    wakes = run(main())
    assert len(fake_kafka.values("orders")) == 6001
    assert batches < 1200, "those that wait at the same time do not share a batch"
    assert wakes <= 1.75 * batches + 20


async def test_what_was_delivered_before_its_sender_could_see_that_is_seen(options, monkeypatch):
    """The thread that seals is held up between handing a batch over and noting that, until it is acknowledged."""
    waiting, looked = threading.Event(), threading.Event()
    # There nothing else wakes who waits.
    in_memory = {"bootstrap_servers": options["bootstrap_servers"], "spool": "never"}
    async with SafeProducer(**in_memory, batch_size=16_384, linger_ms=60_000) as producer:
        pump = producer.client._pump
        submit = pump.ledger.submit

        def slow(parcels):
            if pump.is_current_thread():
                submit(parcels)
                return
            waiting.wait(LONG_S)
            submit(parcels)
            looked.wait(LONG_S)

        monkeypatch.setattr(pump.ledger, "submit", slow)
        future = await producer.send("orders", b"v" * 16_000)
        open_batch = producer.client._open_batches["orders"]
        other = asyncio.create_task(producer.send("orders", b"v" * 16_000))
        await until(lambda: open_batch.encoded is not NOT_ENCODED)  # by the thread that is held up
        task = asyncio.ensure_future(future)
        await until(lambda: pump.ledger.waiters)
        waiting.set()
        await until(lambda: all(parcel.done for parcel in open_batch.encoded.parcels))
        for _ in range(10):
            await asyncio.sleep(0.01)
        assert not task.done()
        looked.set()
        async with asyncio.timeout(20):
            assert (await task).offset == 0
        await other


def test_records_of_many_tasks_are_accepted_in_the_order_of_their_calls(options, fake_kafka):
    """Through batches that fill up and the turns that other tasks get."""
    count = 20_000

    async def main():
        async with SafeProducer(**options, linger_ms=1) as producer:
            others = 0

            async def other():
                nonlocal others
                while True:
                    await asyncio.sleep(0)
                    others += 1

            task = asyncio.create_task(other())
            await asyncio.sleep(0)
            await asyncio.gather(*[producer.send("orders", b"%d" % i) for i in range(count // 2)])
            for i in range(count // 2, count):
                await producer.send("orders", b"%d" % i)
            task.cancel()
            return others

    assert run(main()) >= count // _QUOTA
    assert fake_kafka.values("orders") == [b"%d" % i for i in range(count)]


def outage(cluster):
    cluster.kill_all()


async def fill(producer):
    """Until a send has to wait for room."""
    accepted = 0
    while True:
        sending = asyncio.create_task(producer.send("orders", b"f" * 20_000))
        done, _ = await asyncio.wait([sending], timeout=1.0)
        if not done:
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            return accepted
        sending.result()
        accepted += 1


@pytest.mark.parametrize("how", ["waiting", "waking"])
@pytest.mark.parametrize("case", ["turn", "full", "busy", "line"])
def test_a_cancelled_send_has_accepted_nothing(options, fake_kafka, case, how):
    """At each of its awaits: in front of it is another task's turn, a batch that is full, or other tasks."""

    async def hindered(producer, stack):
        if case == "full":
            open_batch = None
            while open_batch is None or open_batch.left > 20_000:
                await producer.send("orders", b"b" * 45_000)
                open_batch = producer.client._open_batches.get("orders")
        elif case == "busy":
            held = threading.Event()
            ended = threading.Event()
            lock = producer.client.parts.accumulator.lock

            def hold():
                with lock:
                    held.set()
                    ended.wait(0.02)

            thread = threading.Thread(target=hold)
            thread.start()
            await until(held.is_set)
            stack.append(thread)
        elif case == "line":
            stack += [asyncio.create_task(producer.send("orders", b"before")) for _ in range(_QUOTA + 50)]
            await asyncio.sleep(0)

    async def main():
        reached, accepted, step = True, [], 0
        async with SafeProducer(**options, linger_ms=1000, batch_size=100_000) as producer:
            while reached and step < 20:
                step += 1
                stack = []
                await hindered(producer, stack)

                async def send(value):
                    if case == "turn":
                        for _ in range(_QUOTA):
                            await producer.send("orders", b"before")
                    return await producer.send("orders", value)

                value = b"%d %s" % (step, case.encode().rjust(30_000))
                reached, result = await cancelled_at(step, how, send(value))
                if not isinstance(result, asyncio.CancelledError):
                    accepted.append(value)
                for left in stack:
                    if isinstance(left, threading.Thread):
                        left.join(LONG_S)
                    else:
                        await left
        assert not reached, "it was never without an await more"
        return step, accepted

    steps, accepted = run(main())
    assert (steps == 1) == (case == "busy"), "only another thread that encodes does not hold it up"
    assert accepted
    written = [value for value in fake_kafka.values("orders") if value.endswith(case.encode())]
    assert written == accepted


def test_a_full_spool_holds_up_who_sends_and_nobody_else(options, fake_kafka):
    """Then it says so; whoever is cancelled meanwhile has accepted nothing; all that was accepted is delivered."""

    async def main():
        ticks = Ticks()
        ticking = asyncio.create_task(ticks.run())
        small = {"spool_max_bytes": 16 << 20, "max_request_size": 300_000}
        async with SafeProducer(**options, **small, max_block_ms=1500) as producer:
            await producer.send_and_wait("orders", b"f" * 20_000)
            outage(fake_kafka)
            accepted = 1 + await fill(producer)
            with pytest.raises(SpoolFullError):
                await producer.send("orders", b"f" * 20_000)
            with pytest.raises(kafka.errors.KafkaTimeoutError):
                await producer.flush(0.05)
            for step in range(1, 5):
                _, result = await cancelled_at(step, "waiting", producer.send("orders", b"n" * 20_000))
                assert isinstance(result, asyncio.CancelledError)
            waiting = asyncio.create_task(producer.send("orders", b"f" * 20_000))
            before = ticks._count
            await until(lambda: ticks._count > before + 20)
            fake_kafka.start_all()
            await waiting
        ticking.cancel()
        return accepted + 1

    accepted = run(main())
    assert fake_kafka.values("orders") == [b"f" * 20_000] * accepted


def test_the_loop_waits_for_no_disk_no_lock_and_no_opening(options, fake_kafka, monkeypatch):
    """Each of them goes on only after the loop has run twenty times meanwhile."""
    ticks = Ticks()

    def patient(function, what):
        def wait_then_call(*args, **kwargs):
            ticks.wait_for(20, what)
            return function(*args, **kwargs)

        return wait_then_call

    monkeypatch.setattr(OsFiles, "sync_data", patient(OsFiles.sync_data, "fsync"))
    monkeypatch.setattr(SpoolDirectory, "open", patient(SpoolDirectory.open, "open"))
    monkeypatch.setattr(Encoder, "encoded", patient(Encoder.encoded, "encoding"))

    async def main():
        ticking = asyncio.create_task(ticks.run())
        async with SafeProducer(**options, batch_size=50_000) as producer:
            lonely = {"bootstrap_servers": "127.0.0.1:1", "spool_dir": options["spool_dir"].with_name("b")}
            async with SafeProducer(**lonely, max_block_ms=200) as other:
                await other.send("unknown", b"v")
                with pytest.raises(kafka.errors.KafkaTimeoutError):
                    await other.partitions_for("unknown")
                await other.close(0.5)
            futures = [await producer.send("orders", b"v" * 1000) for _ in range(200)]
            await futures[-1].durable()
            await producer.durable()
            await asyncio.gather(*futures)
            outage(fake_kafka)
            await producer.send("orders", b"w")
            await producer.durable()
            fake_kafka.start_all()
            await producer.flush()
        ticking.cancel()

    run(main())
    assert not ticks.blocked
    assert fake_kafka.values("orders") == [b"v" * 1000] * 200 + [b"w"]


def test_a_callback_of_the_loop_takes_less_than_5_ms_of_it(options):
    """Of processor time on the loop's thread, under load and in front of twenty thousand waiting tasks."""

    async def main():
        async with SafeProducer(**options, compression_type="gzip") as producer:

            async def program():
                tasks = [
                    asyncio.create_task(producer.send_and_wait("orders", b"v" * 100)) for _ in range(100)
                ]
                for _ in range(30_000):
                    await producer.send("orders", b"v" * 100, key=b"k")
                for _ in range(20_000):
                    tasks.append(asyncio.ensure_future(await producer.send("orders", b"v")))
                    if len(tasks) % 100 == 0:  # or this test would take the loop for long itself
                        await asyncio.sleep(0)
                await producer.flush()
                for task in tasks:
                    await task

            return await longest_callback(program, 0.005)

    assert run(main()) < 0.005


async def test_who_waits_may_be_cancelled_and_the_record_comes(options, fake_kafka):
    async with SafeProducer(**options) as producer:
        await producer.send_and_wait("orders", b"0")
        outage(fake_kafka)
        future = await producer.send("orders", b"1")
        for wait in (lambda: future, producer.flush):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await wait()
        waiting = asyncio.ensure_future(future)
        called = []
        future.add_done_callback(called.append)
        future.add_done_callback(print)
        assert future.remove_done_callback(print) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not future.cancelled()
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        await future.durable()
        fake_kafka.start_all()
        assert (await future).offset == 1
        await until(lambda: called == [future])
        assert not producer.client._pump.ledger.waiters, "somebody still waits"
    assert fake_kafka.values("orders") == [b"0", b"1"]


async def test_a_callback_waits_until_the_records_own_cluster_answers_again(options, fake_kafka):
    async with SafeProducer(**options) as producer:
        await producer.send_and_wait("orders", b"0")
        outage(fake_kafka)
        future = await producer.send("orders", b"1")
        called = []
        future.add_done_callback(called.append)
        ledger = producer.client._pump.ledger
        ledger.refuse_cluster(WrongClusterError("Another cluster answers"))
        with pytest.raises(WrongClusterError):
            await future
        await asyncio.sleep(0.05)
        assert called == [], "the record is not done"
        ledger.accept_cluster()
        fake_kafka.start_all()
        await until(lambda: called == [future])
        assert future.result().offset == 1


@pytest.mark.parametrize("step", [1, 2, 3])
async def test_a_cancelled_start_leaves_nothing_open(options, step):
    producer = SafeProducer(**options, spool_lane=0)
    _, result = await cancelled_at(step, "waiting", producer.start())
    if isinstance(result, asyncio.CancelledError):
        # The lane is free again soon, or this would raise LaneBusyError to the end.
        for _ in range(1000):
            with contextlib.suppress(kafkasafe.LaneBusyError):
                await producer.start()
                break
            await asyncio.sleep(0.05)
    await producer.send_and_wait("orders", b"v")
    await producer.stop()


async def test_a_cancelled_close_goes_on(options, fake_kafka):
    producer = SafeProducer(**options)
    await producer.start()
    await producer.send_and_wait("orders", b"0")
    for i in range(1, 1000):
        await producer.send("orders", b"%d" % i)
    closing = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await producer.close()
    assert fake_kafka.values("orders") == [b"%d" % i for i in range(1000)]


async def test_close_needs_no_new_thread(options, fake_kafka, mocker):
    producer = SafeProducer(**options)
    await producer.start()
    await producer.send("orders", b"0")
    started = threading.Thread.start

    def lanes():
        return [lane.name for lane in Path(options["spool_dir"]).glob("lane-*")]

    def start(thread):
        if thread.name == "kafkasafe-aio-close":
            raise RuntimeError("can't start new thread")
        started(thread)

    mocker.patch.object(threading.Thread, "start", start)
    await producer.close()
    assert fake_kafka.values("orders") == [b"0"]
    async with SafeProducer(**options):
        assert lanes() == ["lane-000"]


def test_a_refused_record_is_an_error_of_its_future_and_none_of_the_block_is_hidden(options, fake_kafka):
    fake_kafka.create_topic("small", config={"max.message.bytes": "2000"})

    async def main():
        async with SafeProducer(**options) as producer:
            future = await producer.send("small", b"x" * 5000)
            with pytest.raises(kafkasafe.RejectedError):
                await future
            assert isinstance(future.exception(), kafkasafe.RejectedError)
            with pytest.raises(kafka.errors.MessageSizeTooLargeError):
                await producer.send("orders", b"x" * 2_000_000)
            with pytest.raises(TypeError):
                await producer.send("orders", 5)
            with pytest.raises(ValueError, match="topic"):
                await producer.send("not a topic", b"v")
            raise KeyError("of the block")

    with pytest.raises(KeyError):
        run(main())


def test_dropped_without_close_everything_is_delivered_and_the_loop_does_not_wait(options, fake_kafka):
    async def main():
        producer = SafeProducer(**options)
        await producer.start()
        await producer.send_and_wait("orders", b"0")
        await producer.send("orders", b"1")
        pump = producer.client._pump
        del producer
        gc.collect()
        await until(pump.ended)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(main())
    assert fake_kafka.values("orders") == [b"0", b"1"]


def drop(producers):
    producers.clear()
    gc.collect()


def test_a_dropped_producer_warns_at_once_on_the_thread_that_dropped_it(options):
    """As aiokafka's does (test_producer_warn_unclosed): `pytest.warns` sees it, and sees it once."""
    threads = []

    def seen(message, category, *_):
        threads.append((category, threading.current_thread(), str(message)))

    async def main():
        producers = [SafeProducer(**options)]
        await producers[0].start()
        pump = producers[0].client._pump
        with pytest.warns(ResourceWarning, match="was dropped without close"):
            drop(producers)
        await until(pump.ended)
        await asyncio.sleep(0.1)  # the thread that had the last reference has dropped it

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = seen
        run(main())
    assert not [said for kind, _, said in threads if kind is ResourceWarning and "SafeProducer" in said]


async def test_a_producer_is_dropped_although_the_thread_that_opened_it_goes_on(options, monkeypatch):
    """The thread ends a moment after `start`. It had the last reference then, and nothing warned the program."""
    kept = []

    def call(name, function, **others):
        kept.append(function)
        return call_in_thread(name, function, **others)

    monkeypatch.setattr("kafkasafe.aio.producer.call_in_thread", call)
    producers = [SafeProducer(**options)]
    await producers[0].start()
    pump = producers[0].client._pump
    with pytest.warns(ResourceWarning, match="was dropped without close"):
        drop(producers)
    assert kept
    await until(pump.ended)


async def test_after_close_nothing_is_waited_for(options, fake_kafka):
    """`flush` after `close` waited for ever; whatever is left is for the next life."""
    producer = SafeProducer(**options)
    await producer.start()
    future = await producer.send("orders", b"")
    await producer.close(0.0)
    for _ in range(2):
        await producer.flush()
        await producer.durable(timeout=60)
    await future.durable()
    with pytest.raises(ProducerClosedError):
        await producer.send("orders", b"")


async def test_a_future_that_somebody_cancels_is_delivered(options):
    """aiokafka: "Cancelling this future will not cancel the send"."""
    async with SafeProducer(**options) as producer:
        futures = [await producer.send("orders", b"%d" % number) for number in range(5)]
        _, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        for future in [*pending, futures[0]]:
            assert future.cancel() is False
            assert not future.cancelled()
        assert len({(await future).offset for future in futures}) == 5


@pytest.mark.parametrize("topic", ["", "a b", "..", None, 5, b"orders"])
async def test_partitions_of_a_topic_that_cannot_exist(options, topic):
    """They were waited for, for `max_block_ms`."""
    async with SafeProducer(**options) as producer:
        with pytest.raises((TypeError, ValueError), match=r"[Tt]opic"):
            await producer.partitions_for(topic)
        assert await producer.partitions_for("orders")


async def test_a_time_that_is_none_is_refused(options, fake_kafka):
    """Not a number would stand among the loop's timers, and a text failed deep inside, or not, as it came."""
    async with SafeProducer(**options) as producer:
        for partition in (0, None):  # before and after the record has its fate
            future = await producer.send("orders", b"", partition=partition)
            async with producer.batch() as batch:
                batch.send("orders", b"")
            waits = (
                producer.flush,
                producer.durable,
                future.durable,
                batch.outcome.durable,
                producer.close,
            )
            for wait in waits:
                for wrong, error in ((math.nan, ValueError), ("5", TypeError), ([], TypeError)):
                    with pytest.raises(error, match="timeout"):
                        await wait(wrong)
            await future

"""`send` in the middle of which something else happens: before each of its bytecodes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

import pytest
from ctrl_c import PRODUCER, CtrlC
from helpers import LONG_S, run, until
from kafka.producer.future import RecordMetadata

from kafkasafe.aio import SafeProducer
from kafkasafe.aio.gate import _QUOTA
from kafkasafe.errors import UsageError

MODULES = {
    "kafkasafe.aio.producer",
    "kafkasafe.aio.gate",
    "kafkasafe.aio.threads",
    "kafkasafe.delivery.pump",
    *PRODUCER,
}

WAITING = {"wait_and_accept", "_clear", "sleep", "wake"}
"""What comes where a step is not possible now; which it is not when another thread happens to seal."""


@pytest.fixture
def options(fake_kafka):
    fake_kafka.create_topic("orders", partitions=1)
    # Without a disk: a batch of each step would wait for it.
    return {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool": "never", "linger_ms": 600_000}


class Before:
    """Calls `action` before this thread's bytecode number `step` in the modules under test; says whether there was one."""

    def __init__(self, step, action):
        self._left, self._action = step, action
        self.reached = False

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def _trace(self, frame, event, _):
        if frame.f_globals.get("__name__") not in MODULES or asyncio.current_task() is None:
            return None
        if frame.f_code.co_name in WAITING:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.reached:
            if self._left == 0:
                self.reached = True
                sys.settrace(None)
                self._action()
            self._left -= 1
        return self._trace


class Sealing:
    """Another thread that seals the open batch; held up in the middle until the loop comes to it."""

    def __init__(self, client, where):
        self._client, self._where = client, where
        self._thread = None
        self._go_on = threading.Event()

    def __call__(self):
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,))
        self._thread.start()
        if not self._client.parts.accumulator.lock._is_owned():
            begun.wait(LONG_S)
        # When what is under test waits, or has ended.
        asyncio.get_running_loop().call_soon(self._go_on.set)

    def _run(self, begun):
        client = self._client
        with client.parts.accumulator.lock:
            open_batch = client._open_batches.get("orders")
            if open_batch is not None and self._where == "not yet taken":
                open_batch.open = False
            elif open_batch is not None and self._where == "taken":
                open_batch.open = False
                open_batch.close()
            elif open_batch is not None and self._where == "sealed":
                client.parts.accumulator.seal(open_batch)
            begun.set()
            self._go_on.wait(LONG_S)
            if open_batch is not None:
                client.parts.accumulator.seal(open_batch)

    async def over(self):
        if self._thread is not None:
            await until(lambda: not self._thread.is_alive())


@pytest.mark.parametrize("room", ["plenty", "to be made"])
@pytest.mark.parametrize("where", ["not yet taken", "taken", "sealed"])
def test_another_thread_seals_in_the_middle_of_send(options, fake_kafka, where, room):
    """What is accepted comes once and in order, whatever that thread has done of it; nobody waits for it in vain."""
    sent = []

    async def main():
        futures = []
        async with SafeProducer(**options) as producer:
            for step in range(10_000):
                await asyncio.sleep(0)  # all that this iteration of the loop takes is left
                # The first opens a batch and has the quota counted; the 17th of it needs room for more.
                producer.client.parts.accumulator.seal_all()
                for i in range(16 if room == "to be made" else 2):
                    sent.append(b"%d before %d" % (step, i))
                    futures.append(await producer.send("orders", sent[-1], b"k"))
                sealing = Sealing(producer.client, where)
                with Before(step, sealing) as at:
                    sent.append(b"%d" % step)
                    futures.append(await producer.send("orders", sent[-1], b"k"))
                sent.append(b"%d after" % step)
                futures.append(await producer.send("orders", sent[-1], b"k"))
                await sealing.over()
                if not at.reached:
                    await producer.flush()
                    assert [(await future).offset for future in futures] == list(range(len(sent)))
                    return step
        raise AssertionError("it never ended")

    assert run(main()) > 60
    assert fake_kafka.values("orders") == sent


@pytest.mark.parametrize("room", ["plenty", "to be made", "none", "in turns", "in the next iteration"])
def test_ctrl_c_anywhere_in_send(options, fake_kafka, room):
    """The record may be accepted or not; the producer goes on, and everything else comes once, in order."""
    sent, doubtful, places = [], set(), set()
    before = {"plenty": 2, "to be made": 16, "none": 0, "in turns": 2, "in the next iteration": _QUOTA}[room]

    async def main():
        async with SafeProducer(**options) as producer:
            # Several bytecodes in a row lead to the same call.
            for step in range(0, 10_000, 3):
                await asyncio.sleep(0)  # all that this iteration of the loop takes is left
                for i in range(before):
                    sent.append(b"%d before %d" % (step, i))
                    await producer.send("orders", sent[-1])
                if room == "in turns":  # it is the second of three that wait
                    producer.client._open_batches["orders"].left = 0
                others = [b"%d first" % step, b"%d last" % step] if room == "in turns" else []
                first = [asyncio.ensure_future(producer.send("orders", value)) for value in others[:1]]
                if first:
                    await asyncio.sleep(0)
                last = [asyncio.ensure_future(producer.send("orders", value)) for value in others[1:]]
                sent.extend(others[:1])
                sent.append(b"%d" % step)
                sent.extend(others[1:])
                at = CtrlC(step, MODULES)
                with contextlib.suppress(KeyboardInterrupt), at:
                    await producer.send("orders", b"%d" % step)
                await asyncio.gather(*first, *last)
                if at.pressed:
                    doubtful.add(b"%d" % step)
                    places.add(at.place)
                for i in range(_QUOTA + 50):  # more than an iteration of the loop takes
                    sent.append(b"%d after %d" % (step, i))
                    await producer.send("orders", sent[-1])
                if not at.pressed:
                    return step
                await asyncio.to_thread(
                    producer.client.parts.accumulator.seal_all
                )  # another thread has its turn
        raise AssertionError("it never ended")

    assert run(main()) > 60
    assert len(places) > 5
    values = fake_kafka.values("orders")
    came = set(values)
    assert values == [value for value in sent if value in came]
    assert came >= set(sent) - doubtful


async def test_another_thread_is_refused_in_the_same_iteration(options):
    async with SafeProducer(**options) as producer:
        await producer.send("orders", b"1")
        refused = []

        def other():
            with pytest.raises(UsageError, match="another event loop") as error:
                run(producer.send("orders", b"2"))
            refused.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join(LONG_S)
        assert refused
        assert (await producer.send_and_wait("orders", b"3")).offset == 1


@pytest.mark.parametrize("differ", [False, True])
async def test_metadata_of_each_record_of_a_batch(options, differ):
    """Whether only offsets differ, and then all but the first are made at once, or more does."""
    async with SafeProducer(**options) as producer:
        futures = [
            await producer.send("orders", b"v" * (1 + i * differ), b"k" if differ else None)
            for i in range(20)
        ]
        for again in range(2):
            found = [await future for future in futures]
            assert all(type(metadata) is RecordMetadata for metadata in found)
            assert [metadata.offset for metadata in found] == list(range(20)), again
            assert found == [future.result() for future in futures]
            assert found[3].serialized_value_size == (4 if differ else 1)


def test_a_record_that_is_larger_than_a_batch_is_one_of_its_own(options, fake_kafka):
    async def main():
        async with SafeProducer(**options, batch_size=1_000) as producer, asyncio.timeout(LONG_S):
            futures = [
                await producer.send("orders", b"%d" % i * size)
                for i, size in enumerate((10, 5_000, 5_000, 10))
            ]
            # None of the first three waits until linger_ms is over: they are full, or another one came after them.
            return [(await future).offset for future in futures[:3]]

    assert run(main()) == [0, 1, 2]

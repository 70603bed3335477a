"""Tasks that wait to send, while their event loop ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import weakref

import pytest

from kafkasafe.aio import SafeProducer
from kafkasafe.aio.gate import _Line, _Turn
from kafkasafe.delivery.awaiting import CheckResult, LoopWaits
from kafkasafe.delivery.engine.waits import WaitingCallers
from kafkasafe.errors import SpoolFullError


def test_a_task_that_leaves_a_line_of_a_closed_loop_wakes_nobody(monkeypatch):
    """A loop that is closed with waiting tasks drops them. Each of them leaves its line, where the others still wait."""
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending"

    async def wait(line):
        turn = _Turn()
        line.enter(turn)
        try:
            await line.wait(turn, loop)
        finally:
            line.leave(turn)
            line.wake()

    line = _Line()
    tasks = [loop.create_task(wait(line)) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    dropped = [weakref.ref(task) for task in tasks]
    del line, tasks
    gc.collect()
    assert [each() for each in dropped] == [None] * 3
    assert [each.exc_value for each in unraisable] == []


async def test_tasks_that_wait_for_room_one_after_the_other_wait_no_longer_than_one(
    fake_kafka, tmp_path, monkeypatch
):
    """Each waited for `max_block_ms` after the one before it had given up."""
    fake_kafka.create_topic("orders")
    async with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", max_block_ms=1000
    ) as producer:
        room = producer.client.parts.delivery.pump.ledger.room
        with monkeypatch.context() as patch:
            patch.setattr(room, "takes", lambda *_: False)
            began = time.monotonic()
            sends = [producer.send("orders", b"x") for _ in range(20)]
            results = await asyncio.gather(*sends, return_exceptions=True)
            waited_s = time.monotonic() - began
        assert [type(each) for each in results] == [SpoolFullError] * 20
        assert 1.0 <= waited_s < 10.0
        await (await producer.send("orders", b"y"))


def test_a_loop_that_runs_again_after_ctrl_c_wakes_all_who_wait():
    """The loop's thread was between two slices of the coroutines that it wakes. None was woken any more."""
    loop = asyncio.new_event_loop()
    waiting = WaitingCallers()
    waits = LoopWaits(loop, waiting)
    ready, presses = [], [True]

    def is_ready(number):
        if ready and number == 300 and presses:
            presses.clear()
            raise KeyboardInterrupt
        return bool(ready)

    class Numbered:
        def stirred(self):
            return True

        def look(self):
            return CheckResult.SOME

        def is_ready(self, entry):
            return is_ready(entry)

    async def wait_for(number):
        await waits.until("all", number, Numbered)

    tasks = [loop.create_task(wait_for(number)) for number in range(600)]
    loop.run_until_complete(asyncio.sleep(0))
    ready.append(True)
    waiting.notify_all()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(asyncio.sleep(1))
    waiting.notify_all()
    done, pending = loop.run_until_complete(asyncio.wait(tasks, timeout=10))
    loop.close()
    assert len(done) == 600, len(pending)

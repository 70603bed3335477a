"""Tasks that wait to send, while their event loop ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import weakref

from kafkasafe.aio import SafeProducer
from kafkasafe.aio.gate import _Line, _Turn
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

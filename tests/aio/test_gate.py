"""Tasks that wait to send, while their event loop ends."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref

from kafkasafe.aio.gate import _Line, _Turn


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

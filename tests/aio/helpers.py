"""For tests of kafkasafe.aio: coroutines that are watched, cancelled and measured."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

LONG_S = 60.0
"""Only a test that hangs takes so long."""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded():
        async with asyncio.timeout(LONG_S):
            return await coroutine

    return asyncio.run(bounded())


async def until(ready, limit_s=LONG_S):
    end = time.monotonic() + limit_s
    while not ready():
        assert time.monotonic() < end, "waited for in vain"
        await asyncio.sleep(0.005)


class Stepped:
    """A coroutine that says at each await what it is suspended on."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], on_step) -> None:
        self._coroutine, self._on_step = coroutine, on_step

    def __await__(self):
        number = 0
        give = self._coroutine.send
        argument: Any = None
        while True:
            try:
                waited = give(argument)
            except StopIteration as end:
                return end.value
            number += 1
            self._on_step(number, waited)
            try:
                argument, give = (yield waited), self._coroutine.send
            except BaseException as error:
                argument, give = error, self._coroutine.throw


async def cancelled_at(step: int, how: str, coroutine: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
    """Run it as a task that is cancelled at its await number `step`.

    Args:
        step: From 1.
        how: "waiting": while it waits. "waking": in the very moment in which what it waits for has come.
        coroutine: Run.

    Returns:
        Whether it had so many awaits; its result, or the CancelledError.
    """
    loop = asyncio.get_running_loop()
    reached = []

    def on_step(number, waited):
        if number != step:
            return
        reached.append(number)
        if how == "waking" and waited is not None:
            waited.add_done_callback(lambda _: task.cancel())
        else:
            loop.call_soon(task.cancel)

    async def stepped():
        return await Stepped(coroutine, on_step)

    task = loop.create_task(stepped())
    try:
        result = await task
        return bool(reached), result
    except asyncio.CancelledError as error:
        return True, error


class Ticks:
    """Counts iterations of the loop, and lets other threads wait for some."""

    def __init__(self) -> None:
        self._seen = threading.Condition()
        self._count = 0
        self.blocked: list[str] = []
        """What waited in vain: the loop stood still."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            with self._seen:
                self._count += 1
                self._seen.notify_all()

    def wait_for(self, more: int, what: str, limit_s: float = 20.0) -> None:
        """On another thread: until the loop ran so many times. Were it blocked by us, it never would."""
        with self._seen:
            end = self._count + more
            if not self._seen.wait_for(lambda: self._count >= end, limit_s):
                self.blocked.append(what)


@contextlib.contextmanager
def callbacks_measured(seconds: list[float]) -> Iterator[None]:
    """CPU time of each callback of this thread's loop: what others take of the machine is hardly in it."""
    before = asyncio.Handle._run

    def measured(self):
        began = time.thread_time()
        try:
            return before(self)
        finally:
            seconds.append(time.thread_time() - began)

    gc.collect()
    gc.disable()  # a collection is everybody's
    asyncio.Handle._run = measured
    try:
        yield
    finally:
        asyncio.Handle._run = before
        gc.enable()


async def longest_callback(program: Callable[[], Coroutine[Any, Any, Any]], below_s: float) -> float:
    """CPU time of the longest callback while a program runs: the least of up to three rounds.

    A callback that does too much does it in each round. What the machine adds to one of twenty thousand (page faults, a
    processor that another guest has) comes to another one each time.
    """
    rounds: list[float] = []
    while len(rounds) < 3 and min(rounds, default=below_s) >= below_s:
        seconds: list[float] = []
        with callbacks_measured(seconds):
            await program()
        rounds.append(max(seconds))
    return min(rounds)

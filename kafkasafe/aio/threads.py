"""How a loop has other threads do what would hold it up."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafkasafe._core.patience import seconds_of
from kafkasafe.logs import apart

__all__ = ["Worker", "call_in_thread", "end_of", "place_of", "retrieve"]

T = TypeVar("T")


async def call_in_thread(
    name: str, call: Callable[[], T], *, undo: Callable[[T], object] | None = None, daemon: bool = True
) -> T:
    """`call()` on a thread of its own, which the program's executors cannot hold up.

    Args:
        name: Of the thread.
        call: Goes on when this is cancelled.
        undo: Then called with its result, on the same thread.
        daemon: Whether the end of the interpreter may cut it off.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def abandon(result: T) -> None:
        if undo is not None:
            threading.Thread(target=undo, args=(result,), name=name, daemon=daemon).start()

    def give(result: T, error: BaseException | None) -> None:
        if not done.done():
            _resolve(done, result, error)
        elif error is None:
            abandon(result)

    def run() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = call()
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(give, result, error)
        except RuntimeError:  # the loop is closed
            if error is None and undo is not None:
                undo(result)

    threading.Thread(target=run, name=name, daemon=daemon).start()
    try:
        return await done
    except asyncio.CancelledError:
        if done.done() and not done.cancelled() and done.exception() is None:
            abandon(done.result())  # it came in the same moment
        raise


def _resolve(waiter: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)


def retrieve(task: asyncio.Future[None]) -> None:
    """When a task is done that nobody may be waiting for any more: who was to see its error may have been cancelled."""
    if not task.cancelled():
        task.exception()


def end_of(timeout_ms: float) -> float:
    """When a wait that begins now ends: monotonic seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is nan.
    """
    return time.monotonic() + seconds_of(timeout_ms)


class _Place:
    """Where a loop runs that does not say so itself."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        return threading.get_ident() if asyncio._get_running_loop() is self._loop else None


def place_of(loop: asyncio.AbstractEventLoop) -> Any:
    """What has a `_thread_id`: that of the thread which the loop runs in just now, None while it does not run.

    To be compared for each record; `asyncio.get_running_loop` asks the system for the process each time. In a forked
    child it is as in the parent.
    """
    return loop if hasattr(loop, "_thread_id") else _Place(loop)


class Worker:
    """A thread that does short jobs in order: encoding full batches, mostly."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, job: Callable[[], object]) -> None:
        """Do it, without anybody waiting. Takes no lock: the garbage collector may call."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End after the jobs that are there."""
        self._jobs.put(None)

    async def run(self, job: Callable[[], T]) -> T:
        """Do it, and wait for it; who is cancelled meanwhile does not stop it."""
        return await self.submit(job)

    def submit(self, job: Callable[[], T], *, then: Callable[[], object] | None = None) -> asyncio.Future[T]:
        """Do it; the future of the running loop has the result. Cancelled, it does not stop it.

        Args:
            job: What is to be done.
            then: Called on the loop when it is done, also by an error or for nobody, before the future is.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed
                # At once: each wake-up of the loop takes the interpreter away from this thread.
                loop.call_soon_threadsafe(give, result, error)

        def give(result: T, error: BaseException | None) -> None:
            try:
                if then is not None:
                    then()
            finally:
                _resolve(done, result, error)

        self._jobs.put(work)
        return done

    @apart()
    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with contextlib.suppress(
                Exception
            ):  # of jobs that nobody waits for; the producer's own calls tell
                job()
            del job

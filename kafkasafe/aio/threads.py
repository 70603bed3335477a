"""Threads that execute blocking calls for an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kafkasafe.errors import UsageError
from kafkasafe.limits.patience import seconds_of
from kafkasafe.logs import apart

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        UsageError: No asyncio loop is running: the program runs on trio, or without a loop.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UsageError(
            "No asyncio event loop is running, and kafkasafe.aio works on asyncio only. Start the program with"
            ' asyncio.run(main()), or with anyio.run(main, backend="asyncio"). On trio, call kafkasafe.SafeProducer'
            " and kafkasafe.SafeConsumer in threads (trio.to_thread.run_sync)"
        ) from None


async def call_in_thread(
    name: str,
    call: Callable[[], T],
    *,
    undo: Callable[[T], object] | None = None,
    daemon: bool = True,
    otherwise: Worker | None = None,
) -> T:
    """Run `call()` on a separate thread, because the program's executors may be busy.

    Args:
        name: Name of the thread.
        call: Function to run. If this coroutine is cancelled, the function still runs to its end.
        undo: Called with the result of `call` after a cancellation.
        daemon: Whether the interpreter may exit before the call ends.
        otherwise: The worker that runs the call if the process can start no more threads. If no worker is given, this
            function raises Python's RuntimeError.
    """
    loop = running_loop()
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

    try:
        threading.Thread(target=run, name=name, daemon=daemon).start()
    except RuntimeError:
        if otherwise is None:
            raise
        otherwise.put(run)
    try:
        return await done
    except asyncio.CancelledError:
        if done.done() and not done.cancelled() and done.exception() is None:
            abandon(done.result())  # the call ended at the same moment as the cancellation
        raise


def _resolve(waiter: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(result)
    else:
        waiter.set_exception(error)


def retrieve(task: asyncio.Future[None]) -> None:
    """Retrieve the error of a finished task, so that asyncio does not warn if every waiter was cancelled."""
    if not task.cancelled():
        task.exception()


def end_of(timeout_ms: float) -> float:
    """Return the end of a wait that begins now, as monotonic time in seconds.

    Raises:
        TypeError: The time-out is not a number.
        ValueError: The time-out is nan.
    """
    return time.monotonic() + seconds_of(timeout_ms)


class _ThreadOfLoop:
    """Provides `_thread_id` for an event loop without this attribute."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def _thread_id(self) -> int | None:
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        return threading.get_ident() if running is self._loop else None


def place_of(loop: asyncio.AbstractEventLoop) -> Any:
    """Return an object whose `_thread_id` is the id of the loop's thread; None while the loop does not run.

    For each record, callers compare `_thread_id` with the current thread's id. `asyncio.get_running_loop` would be
    slower, because it makes a system call (getpid) each time. In a forked child, `_thread_id` is still the parent's
    value.
    """
    return loop if hasattr(loop, "_thread_id") else _ThreadOfLoop(loop)


class Worker:
    """A thread that executes short jobs in order, mostly the encoding of full batches."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, job: Callable[[], object]) -> None:
        """Execute a job without waiting for it. Takes no lock, because the garbage collector may call this method."""
        self._jobs.put(job)

    def stop(self) -> None:
        """End the thread after the queued jobs."""
        self._jobs.put(None)

    async def run(self, job: Callable[[], T]) -> T:
        """Execute a job and wait for it. If this coroutine is cancelled, the job still runs to its end."""
        return await self.submit(job)

    def submit(self, job: Callable[[], T], *, then: Callable[[], object] | None = None) -> asyncio.Future[T]:
        """Execute a job, and return a future of the running loop for its result.

        If the future is cancelled, the job still runs to its end.

        Args:
            job: The job.
            then: Called on the loop after the job and before the future is resolved, even if the job failed or the
                future was cancelled.
        """
        loop = running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job()
            except BaseException as raised:
                error = raised
            # Call `call_soon_threadsafe` only once: each wake-up of the loop takes the interpreter lock from this
            # thread.
            with contextlib.suppress(RuntimeError):  # the loop is closed
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
            ):  # no caller waits for this job; later calls of the producer raise the producer's errors
                job()
            del job

"""Rebalance listeners that run on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kafka import AsyncConsumerRebalanceListener
from kafka.future import Future
from kafka.structs import TopicPartition

from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import Worker
from kafkasafe.errors import UsageError

T = TypeVar("T")

_METHODS: Final = ("on_partitions_revoked", "on_partitions_assigned")
_current: contextvars.ContextVar[ListenerCall | None] = contextvars.ContextVar(
    "kafkasafe_listening", default=None
)


class ListenerCall:
    """One call of a listener.

    During the call, the consumer's own thread waits in a poll. So another thread executes the listener's requests to
    the consumer.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Execute a job on this call's thread. Return a future of the running loop for the result."""
        return self._worker.submit(job)

    def is_own(self) -> bool:
        """Return whether the running task is the task of the listener."""
        return _current.get() is self

    async def call(self, method: Callable[[Any], Any], partitions: set[TopicPartition]) -> None:
        """Call the listener. Then wait for the requests that the listener has made but not awaited.

        Raises:
            Exception: Any exception of the listener.
        """
        _current.set(self)
        try:
            result = method(partitions)
            if inspect.isawaitable(result):
                await result
        finally:
            await self._worker.run(_nothing)

    async def end(self) -> None:
        """End the thread, because the listener has returned. First wait for the requests that other tasks made while
        the listener ran. No request may follow this call.
        """
        try:
            await self._worker.run(_nothing)
        finally:
            self._worker.stop()


class Rebalances:
    """Calls rebalance listeners, and executes requests while a listener runs.

    Args:
        thread: The consumer's thread. While a listener runs, this thread waits inside the consumer's `poll` or `close`
            for the listener's end.
    """

    def __init__(self, thread: ThreadSide, records: RecordQueue) -> None:
        self._thread, self._records = thread, records
        self._call: ListenerCall | None = None

    @property
    def is_calling(self) -> bool:
        return self._call is not None

    def is_own(self) -> bool:
        """Return whether a listener is running and the current task is the listener's."""
        return self._call is not None and self._call.is_own()

    def check_not_own(self, what: str) -> None:
        """Check that a request does not come from a listener.

        Raises:
            UsageError: A listener makes the request.
        """
        if self.is_own():
            raise UsageError(
                f"A rebalance listener cannot {what}: the call would wait for the listener itself"
            )

    async def call(self, method: Callable[[Any], Any], partitions: set[TopicPartition]) -> None:
        """Call a method of a listener, unless the program has dropped the consumer.

        Raises:
            Exception: Any exception of the listener.
        """
        if self._thread.is_dropped:
            return
        self._records.lose(*self._thread.lost())
        client_id = self._thread.consumer.client_id
        self._call = call = ListenerCall(f"kafkasafe-aio-{client_id}-listener")
        self._records.hold()
        try:
            await call.call(method, partitions)
        finally:
            # From now on, requests go to the consumer's thread again. Earlier requests must end before the consumer's
            # thread continues its poll.
            self._call = None
            try:
                await call.end()
            finally:
                self._records.release()

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Execute a job on the consumer's thread. While a listener runs, execute the job on the thread of
        `ListenerCall` instead.
        """
        return (self._call or self._thread).submit(job)


class Listener(AsyncConsumerRebalanceListener):
    """Calls the program's listener on the program's loop. Meanwhile, the network thread does other work."""

    def __init__(
        self, rebalances: Rebalances, given: Any, loop: asyncio.AbstractEventLoop, network: Any
    ) -> None:
        self._rebalances = rebalances
        self._given, self._loop, self._network = given, loop, network
        self._called_on_loop: asyncio.Task[None] | None = None

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Pass the call on to the program's listener. kafka-python calls this method."""
        await self._called("on_partitions_revoked", revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Pass the call on to the program's listener. kafka-python calls this method."""
        await self._called("on_partitions_assigned", assigned)

    async def on_partitions_lost(self, lost: Any) -> None:
        """Pass the call on to the program's listener.

        Without a method `on_partitions_lost`, as in aiokafka's listeners, call the listener's `on_partitions_revoked`.
        """
        known = hasattr(self._given, "on_partitions_lost")
        await self._called("on_partitions_lost" if known else "on_partitions_revoked", lost)

    async def _called(self, name: str, partitions: Any) -> None:
        done, method, given = Future(), getattr(self._given, name), set(partitions)

        def answer(task: asyncio.Task[None]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()

            def finish() -> None:
                if error is None or isinstance(error, asyncio.CancelledError):
                    done.success(None)
                else:
                    done.failure(error)

            with contextlib.suppress(RuntimeError):  # the consumer's network has ended
                self._network.call_soon_threadsafe(finish)

        def begin() -> None:
            self._called_on_loop = self._loop.create_task(self._rebalances.call(method, given))
            self._called_on_loop.add_done_callback(answer)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop is closed, so the listener cannot run
            return
        await done


def _nothing() -> None:
    pass


def as_listener(given: Any) -> Any:
    """Check a listener given to `subscribe`.

    Raises:
        TypeError: The listener lacks `on_partitions_revoked` or `on_partitions_assigned`.
    """
    if given is not None and not all(callable(getattr(given, name, None)) for name in _METHODS):
        raise TypeError(
            f"listener: {given!r} must have on_partitions_revoked() and on_partitions_assigned(), like a"
            " ConsumerRebalanceListener"
        )
    return given

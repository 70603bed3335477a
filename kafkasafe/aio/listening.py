"""A rebalance listener in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kafka import AsyncConsumerRebalanceListener
from kafka.future import Future
from kafka.structs import TopicPartition

from kafkasafe.aio.threads import Worker

if TYPE_CHECKING:
    from kafkasafe.aio.consumer import SafeConsumer

__all__ = ["Listener", "Listening", "as_listener"]

T = TypeVar("T")

_METHODS: Final = ("on_partitions_revoked", "on_partitions_assigned")
_current: contextvars.ContextVar[Listening | None] = contextvars.ContextVar(
    "kafkasafe_listening", default=None
)


class Listening:
    """One call of a listener. Meanwhile the consumer's thread waits for it within a poll, so another one does what is
    asked of the consumer.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name)

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Do it now; the future of the running loop has the result."""
        return self._worker.submit(job)

    def is_own(self) -> bool:
        """Whether the running task is the listener's."""
        return _current.get() is self

    async def call(self, method: Callable[[Any], Any], partitions: set[TopicPartition]) -> None:
        """Have it called; also what it did not wait for is done afterwards.

        Raises:
            Exception: The listener's.
        """
        _current.set(self)
        try:
            result = method(partitions)
            if inspect.isawaitable(result):
                await result
        finally:
            try:
                await self._worker.run(_nothing)
            finally:
                self._worker.stop()


class Listener(AsyncConsumerRebalanceListener):
    """Calls the program's on its loop, and lets the network thread go on until it is done."""

    def __init__(
        self, owner: SafeConsumer, given: Any, loop: asyncio.AbstractEventLoop, network: Any
    ) -> None:
        self._owner = weakref.ref(owner)  # a consumer that is dropped is still collected
        self._given, self._loop, self._network = given, loop, network
        self._running: asyncio.Task[None] | None = None

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """kafka-python's."""
        await self._told("on_partitions_revoked", revoked)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """kafka-python's."""
        await self._told("on_partitions_assigned", assigned)

    async def on_partitions_lost(self, lost: Any) -> None:
        """kafka-python's; aiokafka's listeners do not have it."""
        known = hasattr(self._given, "on_partitions_lost")
        await self._told("on_partitions_lost" if known else "on_partitions_revoked", lost)

    async def _told(self, name: str, partitions: Any) -> None:
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
            self._running = self._loop.create_task(self._hear(method, given))
            self._running.add_done_callback(answer)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:  # the loop is closed: nobody listens
            return
        await done

    async def _hear(self, method: Callable[[Any], Any], partitions: set[TopicPartition]) -> None:
        owner = self._owner()
        if owner is not None:
            await owner._hear(method, partitions)


def _nothing() -> None:
    pass


def as_listener(given: Any) -> Any:
    """What may be given to `subscribe`.

    Raises:
        TypeError: It has not both methods.
    """
    if given is not None and not all(callable(getattr(given, name, None)) for name in _METHODS):
        raise TypeError(
            f"listener: {given!r} has no on_partitions_revoked() and on_partitions_assigned(), as a"
            " ConsumerRebalanceListener has"
        )
    return given

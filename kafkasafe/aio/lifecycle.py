"""Starts and closes a consumer, and checks that the consumer is used on its own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import kafka.errors as kafka_errors

from kafkasafe.aio.listeners import Rebalances
from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import retrieve, running_loop
from kafkasafe.errors import UsageError


class ConsumerLifecycle:
    """Starts a consumer once, and closes it once."""

    def __init__(self, thread: ThreadSide, records: RecordQueue, rebalances: Rebalances) -> None:
        self._thread, self._records, self._rebalances = thread, records, rebalances
        self._loop: asyncio.AbstractEventLoop | None = None
        self._once = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_closing(self) -> bool:
        return self._closing is not None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which the consumer was started.

        Raises:
            UsageError: The consumer was not started.
        """
        if self._loop is None:
            raise UsageError("Not started")
        return self._loop

    def check_open(self) -> None:
        """Check that the consumer is open and that the running loop may use it.

        Raises:
            IllegalStateError: The consumer is closed.
            UsageError: The consumer belongs to another loop.
        """
        # Closing also calls a rebalance listener, which may commit.
        if self._closing is not None and not self._rebalances.is_calling:
            raise kafka_errors.IllegalStateError("The consumer is closed")
        self._check_loop()

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. Raise an error if the running loop is not the consumer's, for example in a forked
        child.
        """
        loop = running_loop()
        if self._loop is not None and self._loop is not loop:
            raise UsageError("The consumer belongs to another event loop: open one for each loop")
        return loop

    async def start(self, settle: Callable[[], Awaitable[None]]) -> None:
        """Open the consumer, then call `settle()`. See `SafeConsumer.start`."""
        if self._closing is not None:
            raise kafka_errors.IllegalStateError("The consumer is closed; open a new one")
        self._loop = self._check_loop()
        self._records.belong_to(self._loop)
        if self._rebalances.is_own():
            return  # `start` is waiting for this listener
        async with self._once:
            if self._thread.is_open:
                return
            await self._thread.open()
            try:
                await settle()
            except asyncio.CancelledError:
                self._thread.undo_open()
                self._records.begin_anew()
                raise

    async def close(self, timeout: float | None, *, finished: bool) -> None:  # noqa: ASYNC109  # as the consumer's
        """Close the consumer. See `SafeConsumer.close`.

        Args:
            timeout: Seconds for the last commit and for leaving the group; None for `request_timeout_ms`.
            finished: Whether the program has finished processing all records that it has received.
        """
        self._rebalances.check_not_own("close the consumer")
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout, finished=finished))
            self._closing.add_done_callback(retrieve)
            self._records.hold()
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float | None, *, finished: bool) -> None:  # noqa: ASYNC109
        async with self._once:  # wait for a running `start`
            is_open = self._thread.is_open
        if not is_open:
            return
        if finished:
            self._records.finish_all()
        await self._thread.close(timeout, self._records.seen())

    def drop(self) -> bool:
        """Close a consumer that the program has dropped. Return False if the consumer was closed before or never
        started.
        """
        if self._closing is not None or not self._thread.is_open:
            return False
        self._thread.drop()
        return True

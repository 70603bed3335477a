"""Callbacks of record futures."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkasafe.aio.futures import RecordFuture

__all__ = ["DoneCallbacks"]

Call = Callable[["RecordFuture"], object]
Waiting = tuple[list[tuple[Call, contextvars.Context | None]], asyncio.Task[None]]


class DoneCallbacks:
    """The callbacks that wait for records of one producer, by record. Several futures may be of the same record.

    Args:
        loop: The producer's loop, on which the callbacks are called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[tuple[int, int], Waiting] = {}

    def add(self, future: RecordFuture, call: Call, context: contextvars.Context | None) -> None:
        """Call `call(future)` when the record is done; soon if it already is."""
        if future.done():
            self._loop.call_soon(call, future, context=context)
            return
        key = future._key
        known = self._waiting.get(key)
        if known is None:
            known = self._waiting[key] = [], self._loop.create_task(self._wait(key, future))
        known[0].append((call, context))

    async def _wait(self, key: tuple[int, int], future: RecordFuture) -> None:
        try:
            await asyncio.gather(future, return_exceptions=True)
        finally:
            calls, _ = self._waiting.pop(key)
        for call, context in calls:
            self._loop.call_soon(call, future, context=context)

    def remove(self, future: RecordFuture, call: Call) -> int:
        """Remove a callback. Return how many times it had been added."""
        known = self._waiting.get(future._key)
        if known is None:
            return 0
        before = len(known[0])
        known[0][:] = [item for item in known[0] if item[0] != call]
        return before - len(known[0])

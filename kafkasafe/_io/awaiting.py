"""How coroutines wait for what a producer's threads do: woken through their loop, once for all that came at a time.

A thread that notifies (`Waiting.notify_all`) rings the bell of each loop that has somebody waiting. A bell that rings
already is left alone, so a burst of a thousand batches costs one `call_soon_threadsafe`. The loop then looks itself, in
slices: nothing here holds it up for longer than a few hundred looks take.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable, Hashable
from typing import Final

from kafkasafe._io.engine.waits import Waiting

__all__ = ["LoopWaits"]

_SLICE: Final = 256
"""Looks and wake-ups in one iteration of the loop."""


class _Group:
    """Waiters of one thing: they are looked at only when it has changed."""

    __slots__ = ("again", "changed", "entries", "left")

    def __init__(self, changed: Callable[[], bool]) -> None:
        self.changed = changed
        self.entries: dict[asyncio.Future[bool], Callable[[], bool]] = {}
        self.left: list[asyncio.Future[bool]] = []
        self.again = False

    def look(self, most: int) -> int:
        """Wake those who are ready, after at most so many looks; returns how many it took."""
        if not self.left:
            if not self.again:
                return 0
            self.again = False
            if not self.changed():
                return 1
            self.left = list(self.entries)[::-1]
        taken = 1
        while self.left and taken < most:
            taken += 1
            waiter = self.left.pop()
            ready = self.entries.get(waiter)
            if ready is not None and not waiter.done() and ready():
                waiter.set_result(True)
        return taken

    @property
    def due(self) -> bool:
        return bool(self.left) or self.again


class LoopWaits:
    """The coroutines of one loop that wait for one producer. A bell, as `Waiting` has them.

    Use `of`. All but `set` on the loop's own thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, waiting: Waiting) -> None:
        self._loop = loop
        self._waiting = waiting
        self._groups: dict[Hashable, _Group] = {}
        self._todo: collections.deque[_Group] = collections.deque()
        self._rung = False
        self._working = False

    @classmethod
    def of(cls, waiting: Waiting, loop: asyncio.AbstractEventLoop) -> LoopWaits:
        """The one of this loop, which is there while somebody waits."""
        for bell in waiting.bells():
            if isinstance(bell, LoopWaits) and bell._loop is loop:
                return bell
        return cls(loop, waiting)

    def set(self) -> None:
        """Ring, from any thread: everybody looks soon."""
        if not self._rung:
            self._rung = True
            try:
                self._loop.call_soon_threadsafe(self._look)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                self._waiting.remove(self)

    async def wait(
        self,
        ready: Callable[[], bool],
        timeout_s: float | None = None,
        *,
        about: Hashable = None,
        changed: Callable[[], bool] | None = None,
    ) -> bool:
        """Until `ready()`; False when the time ended first. A cancelled wait leaves nothing behind.

        Args:
            ready: Only looks.
            timeout_s: None for ever.
            about: What it is about. Waiters about the same thing are looked at together, when `changed()`.
            changed: Whether a look is worth it; of the first waiter about the thing. Default: always.
        """
        if ready():
            return True
        waiter: asyncio.Future[bool] = self._loop.create_future()
        key = ready if about is None else about
        group = self._groups.get(key)
        if group is None:
            if not self._groups:
                self._waiting.add(self)
            group = self._groups[key] = _Group(changed or _always)
        group.entries[waiter] = ready
        timer = None
        try:
            # Once more: it may have come before the bell was heard.
            if ready():
                return True
            if timeout_s is not None:
                timer = self._loop.call_later(timeout_s, _end, waiter)
            return await waiter or ready()
        finally:
            if timer is not None:
                timer.cancel()
            del group.entries[waiter]
            if not group.entries and self._groups.get(key) is group:
                del self._groups[key]
                if not self._groups:
                    self._waiting.remove(self)

    def _look(self) -> None:
        # In this order: who rings from here on has the loop look again.
        self._rung = False
        for group in self._groups.values():
            if not group.due:
                self._todo.append(group)
            group.again = True
        if not self._working:
            self._work()

    def _work(self) -> None:
        left = _SLICE
        while self._todo and left > 0:
            group = self._todo[0]
            left -= max(group.look(left), 1)
            if not group.due:
                self._todo.popleft()
        self._working = bool(self._todo)
        if self._working:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon(self._work)


def _always() -> bool:
    return True


def _end(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)

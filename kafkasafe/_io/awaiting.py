"""How coroutines wait for what a producer's threads do: woken through their loop, once for all that came at a time.

A thread that notifies (`Waiting.notify_all`) rings the bell of each loop that has somebody waiting. A bell that rings
already is left alone, so a burst of a thousand batches costs one `call_soon_threadsafe`. The loop then looks itself, in
slices: nothing here holds it up for longer than a few hundred looks take.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import types
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafkasafe._io.engine.ledger import Ledger
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.engine.waits import Waiting

if TYPE_CHECKING:
    import asyncio

__all__ = ["Fates", "LoopWaits", "Progress", "Subject"]

_SLICE: Final = 256
"""Looks and wake-ups in one iteration of the loop."""
_FEW: Final = 8
"""So many things that are waited for are looked at by the thread that rings."""


class Progress(enum.Enum):
    """What a look at a `Subject` shows."""

    NONE = enum.auto()
    """Nobody can go on who could not before."""
    SOME = enum.auto()
    """Some may: each is to be looked at."""
    ALL = enum.auto()
    """Everybody who waits for it can."""


class Subject(Protocol):
    """What many wait for together."""

    def stirred(self) -> bool:
        """Whether a look may be worth it. From any thread; once it is, it stays so."""

    def look(self) -> Progress:
        """What has become of it since this was called last. On the loop's thread."""

    def is_ready(self, entry: Any) -> bool:
        """Whether one of those who wait can go on; after `Progress.SOME`."""


class Chunk(Protocol):
    """Records that were accepted together.

    Attributes:
        parcels: What they were encoded into, once they are.
    """

    parcels: list[Parcel] | None

    def locate(self, index: int, /) -> tuple[Parcel, Any]:
        """The parcel that a record is in."""


class _Plain:
    """For those who look for themselves, each time."""

    def stirred(self) -> bool:
        return True

    def look(self) -> Progress:
        return Progress.SOME

    def is_ready(self, entry: Callable[[], bool]) -> bool:
        return entry()


class Fates:
    """What coroutines wait for that await records which were accepted together. A `Subject`.

    Args:
        chunk: The records.
        ledger: Of their producer.
        durable: On disk is enough.
    """

    __slots__ = ("_chunk", "_durable", "_ledger", "_seen")

    def __init__(self, chunk: Chunk, ledger: Ledger, *, durable: bool) -> None:
        self._chunk = chunk
        self._ledger = ledger
        self._durable = durable
        self._seen: object = ()

    def stirred(self) -> bool:
        """See `Subject`."""
        parcels, ledger = self._chunk.parcels, self._ledger
        if ledger.failure is not None or ledger.wrong_cluster is not None:
            return True
        if parcels is None:  # who seals rings then, if there is anything to see
            return False
        if len(parcels) > _FEW:
            return True
        durable = self._durable
        return any(parcel.done or parcel.children or (durable and parcel.durable) for parcel in parcels)

    def look(self) -> Progress:
        """See `Subject`."""
        parcels, ledger, durable = self._chunk.parcels, self._ledger, self._durable
        if ledger.failure is not None:
            return Progress.ALL
        if parcels is not None and all(parcel.done or (durable and parcel.durable) for parcel in parcels):
            return Progress.ALL
        now = [list(map(list, map(self._state, parcels or ()))), ledger.wrong_cluster]
        seen, self._seen = self._seen, now
        return Progress.NONE if now == seen else Progress.SOME

    def is_ready(self, entry: int) -> bool:
        """Of the record with this number; see `Subject`."""
        parcels, ledger = self._chunk.parcels, self._ledger
        if ledger.failure is not None or (ledger.wrong_cluster is not None and not self._durable):
            return True
        if parcels is None:
            return False
        parcel, _ = self._chunk.locate(entry)
        return parcel.done or (self._durable and parcel.durable)

    def _state(self, parcel: Parcel) -> Iterator[object]:
        yield parcel.done
        yield parcel.durable
        for child, _ in parcel.children or ():
            yield from self._state(child)


class _Group:
    """Waiters of one thing: they are looked at only when it has changed."""

    __slots__ = ("again", "all", "entries", "left", "subject")

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.entries: dict[asyncio.Future[bool], Any] = {}
        self.left: list[tuple[asyncio.Future[bool], Any]] = []
        self.all = False
        """Those that are left need no look of their own."""
        self.again = False

    def look(self, most: int) -> int:
        """Wake those who are ready, after at most so many looks; returns how many it took."""
        if not self.left:
            if not self.again:
                return 0
            self.again = False
            progress = self.subject.look()
            if progress is Progress.NONE:
                return 1
            self.all = progress is Progress.ALL
            self.left = list(self.entries.items())
            self.left.reverse()
        left, is_ready = self.left, self.subject.is_ready
        now = min(most, len(left))
        for _ in range(now):
            waiter, entry = left.pop()
            if not waiter.done() and (self.all or is_ready(entry)):
                waiter.set_result(True)
        return 1 + now

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
        if self._rung or not self._stirred():
            return
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed: nobody waits there any more
            self._waiting.remove(self)

    def _stirred(self) -> bool:
        """Whether the loop is to be woken, which takes the interpreter away from the thread that rings."""
        if len(self._groups) > _FEW:
            return True
        try:
            return any(group.subject.stirred() for group in self._groups.values())
        except RuntimeError:  # the loop changes them just now
            return True

    async def wait(
        self, ready: Callable[[], bool], timeout_s: float | None = None, *, about: Hashable = None
    ) -> bool:
        """Until `ready()`; False when the time ended first. A cancelled wait leaves nothing behind.

        Args:
            ready: Only looks.
            timeout_s: None for ever.
            about: What it is about. Waiters about the same thing are looked at together.
        """
        if ready():
            return True
        key = ready if about is None else about
        return await self.until(key, ready, _Plain, timeout_s) or ready()

    @types.coroutine
    def until(
        self,
        about: Hashable,
        entry: Any,
        subject: Callable[[], Subject],
        timeout_s: float | None = None,
    ) -> Generator[Any, None, bool]:
        """Until `is_ready(entry)` of a subject; False when the time ended first. To be awaited, or yielded from.

        Threads may take it back meanwhile: who goes on looks again.

        Args:
            about: Waiters about the same thing are looked at together.
            entry: What this one waits for.
            subject: Makes what they all wait for: called for the first of them.
            timeout_s: None for ever.
        """
        waiter: asyncio.Future[bool] = self._loop.create_future()
        known = group = self._groups.get(about)
        if group is None:
            if not self._groups:
                self._waiting.add(self)
            group = self._groups[about] = _Group(subject())
        group.entries[waiter] = entry
        timer = None
        try:
            # Where nobody waited for it before nobody may have been woken for it.
            if known is None and group.subject.is_ready(entry):
                return True
            if timeout_s is not None:
                timer = self._loop.call_later(timeout_s, _end, waiter)
            return (yield from waiter)
        finally:
            if timer is not None:
                timer.cancel()
            del group.entries[waiter]
            if not group.entries and self._groups.get(about) is group:
                del self._groups[about]
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


def _end(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)

"""Lets coroutines wait for events in a producer's threads. Several events at the same time wake an event loop only
once.

A thread that notifies (`WaitingCallers.notify_all`) sets the wake flag of each loop on which coroutines wait. If a loop
is already being woken, setting its flag does nothing more. So a burst of a thousand batches costs one
`call_soon_threadsafe`. The loop then checks the waiting coroutines in slices, so that no iteration makes more than a
few hundred checks.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import types
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.delivery.engine.waits import WaitingCallers

if TYPE_CHECKING:
    import asyncio

_SLICE: Final = 256
"""Maximum number of checks and wake-ups in one iteration of the loop."""
_FEW: Final = 8
"""The notifying thread checks up to this many batches or other things that coroutines wait for. If none of them has
progressed, the thread does not wake the loop. If there are more, the thread wakes the loop without a check.
"""


class CheckResult(enum.Enum):
    """The result of checking a `Subject`."""

    NONE = enum.auto()
    """The change lets no coroutine continue."""
    SOME = enum.auto()
    """Some coroutines may continue. Each must be checked."""
    ALL = enum.auto()
    """All coroutines that wait for the subject can continue."""


class Subject(Protocol):
    """Something that many coroutines wait for."""

    def stirred(self) -> bool:
        """Whether `look` may find progress. Any thread may call this method. Once the result is True, it stays True."""

    def look(self) -> CheckResult:
        """Checks for progress since the previous call. Returns whether none, some or all of the coroutines may
        continue. Must be called on the loop's thread.
        """

    def is_ready(self, entry: Any) -> bool:
        """Whether the coroutine with this entry can continue."""


class AcceptedRecords(Protocol):
    """Records that were accepted together.

    Attributes:
        parcels: The parcels that contain the records; None until the records are encoded.
    """

    parcels: list[Parcel] | None

    def locate(self, index: int, /) -> tuple[Parcel, Any]:
        """Returns the parcel (encoded batch) that contains the record with this index, and the record's place in the
        parcel.
        """


class _Plain:
    """A subject without a condition: each coroutine supplies its own function, which says whether the coroutine can
    continue.
    """

    def stirred(self) -> bool:
        return True

    def look(self) -> CheckResult:
        return CheckResult.SOME

    def is_ready(self, entry: Callable[[], bool]) -> bool:
        return entry()


class Fates:
    """The outcomes of records that were accepted together. A `Subject`.

    Args:
        records: The records.
        ledger: The ledger of the producer that accepted the records.
        durable: True if coroutines wait until the records are on disk; False if coroutines wait for the final outcome.
    """

    __slots__ = ("_durable", "_ledger", "_records", "_seen")

    def __init__(self, records: AcceptedRecords, ledger: Ledger, *, durable: bool) -> None:
        self._records = records
        self._ledger = ledger
        self._durable = durable
        self._seen: object = ()

    def stirred(self) -> bool:
        """See `Subject`."""
        parcels, ledger = self._records.parcels, self._ledger
        if ledger.failure is not None or ledger.wrong_cluster is not None:
            return True
        if parcels is None:  # the records are not encoded yet: the encoding thread will notify this object
            return False
        if len(parcels) > _FEW:
            return True
        durable = self._durable
        return any(parcel.done or parcel.children or (durable and parcel.durable) for parcel in parcels)

    def look(self) -> CheckResult:
        """See `Subject`."""
        parcels, ledger, durable = self._records.parcels, self._ledger, self._durable
        if ledger.failure is not None:
            return CheckResult.ALL
        if parcels is not None and all(parcel.done or (durable and parcel.durable) for parcel in parcels):
            return CheckResult.ALL
        now = [list(map(list, map(self._state, parcels or ()))), ledger.wrong_cluster]
        seen, self._seen = self._seen, now
        return CheckResult.NONE if now == seen else CheckResult.SOME

    def is_ready(self, entry: int) -> bool:
        """See `Subject`. The entry is the record's number."""
        parcels, ledger = self._records.parcels, self._ledger
        if ledger.failure is not None or (ledger.wrong_cluster is not None and not self._durable):
            return True
        if parcels is None:
            return False
        parcel, _ = self._records.locate(entry)
        return parcel.done or (self._durable and parcel.durable)

    def _state(self, parcel: Parcel) -> Iterator[object]:
        yield parcel.done
        yield parcel.durable
        for child, _ in parcel.children or ():
            yield from self._state(child)


class _SubjectWaiters:
    """Coroutines that wait for the same thing (the subject). The loop checks the coroutines only after the subject has
    changed.
    """

    __slots__ = ("again", "all", "entries", "left", "subject")

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.entries: dict[asyncio.Future[bool], Any] = {}
        self.left: list[tuple[asyncio.Future[bool], Any]] = []
        self.all = False
        """Whether all coroutines in `left` can continue. None of them then needs its own check."""
        self.again = False

    def look(self, most: int) -> int:
        """Checks up to `most` coroutines, and wakes those that can continue. Returns the number of checks."""
        if not self.left:
            if not self.again:
                return 0
            self.again = False
            progress = self.subject.look()
            if progress is CheckResult.NONE:
                return 1
            self.all = progress is CheckResult.ALL
            self.left = list(self.entries.items())
            self.left.reverse()
        left, is_ready = self.left, self.subject.is_ready
        now = min(most, len(left))
        for _ in range(now):
            # Remove the waiter only after its check. So a waiter whose check is interrupted by Ctrl-C stays in `left`,
            # and is checked again.
            waiter, entry = left[-1]
            if not waiter.done() and (self.all or is_ready(entry)):
                waiter.set_result(True)
            left.pop()
        return 1 + now

    @property
    def due(self) -> bool:
        return bool(self.left) or self.again

    def look_again(self) -> None:
        """Notes that the subject has changed, so that the next call of `look` checks the coroutines."""
        self.again = True


class LoopWaits:
    """The coroutines that wait for one producer on one loop. `WaitingCallers` uses this object as a wake flag.

    Get an instance from `of`. All methods but `set` must be called on the loop's own thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, waiting: WaitingCallers) -> None:
        self._loop = loop
        self._waiting = waiting
        self._groups: dict[Hashable, _SubjectWaiters] = {}
        self._todo: collections.deque[_SubjectWaiters] = collections.deque()
        self._rung = False
        self._working = False

    @classmethod
    def of(cls, waiting: WaitingCallers, loop: asyncio.AbstractEventLoop) -> LoopWaits:
        """The instance for this loop. The instance exists while at least one coroutine waits on the loop."""
        for wake_flag in waiting.wake_flags():
            if isinstance(wake_flag, LoopWaits) and wake_flag.is_of(loop):
                return wake_flag
        return cls(loop, waiting)

    def is_of(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the coroutines run on this loop."""
        return self._loop is loop

    def set(self) -> None:
        """Schedules a check of all waiting coroutines, unless one is scheduled already. Any thread may call it."""
        if self._rung or not self._stirred():
            return
        self._rung = True
        try:
            self._loop.call_soon_threadsafe(self._look)
        except RuntimeError:  # the loop is closed, so no coroutine waits on it any more
            self._waiting.remove(self)

    def _stirred(self) -> bool:
        """Whether to wake the loop. A needlessly woken loop competes with the notifying thread for the GIL."""
        if len(self._groups) > _FEW:
            return True
        try:
            return any(group.subject.stirred() for group in self._groups.values())
        except RuntimeError:  # the loop's thread is changing `_groups`
            return True

    async def wait(
        self, ready: Callable[[], bool], timeout_s: float | None = None, *, about: Hashable = None
    ) -> bool:
        """Waits until `ready()` returns True. Returns False on timeout. May be cancelled.

        Args:
            ready: A check without side effects.
            timeout_s: How long to wait; None: no limit.
            about: Key of the subject. Coroutines with the same key are checked together.
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
        """Waits until the subject's `is_ready(entry)` returns True. Returns False on timeout. Use with `await` or
        `yield from`.

        Between the wake-up and the coroutine's next step, other threads may make the condition false again. So the
        caller must check the condition after the wait.

        Args:
            about: Key of the subject. Coroutines with the same key are checked together.
            entry: The argument for the subject's `is_ready`. It says what this coroutine waits for.
            subject: Makes the subject. `until` calls it only if no coroutine waits for the subject yet.
            timeout_s: How long to wait; None: no limit.
        """
        waiter: asyncio.Future[bool] = self._loop.create_future()
        known = group = self._groups.get(about)
        if group is None:
            if not self._groups:
                self._waiting.add(self)
            group = self._groups[about] = _SubjectWaiters(subject())
        group.entries[waiter] = entry
        timer = None
        try:
            # Check the condition now: as long as no coroutine waited for it, a change may not have woken this loop.
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
        # Reset the flag before the check. If a thread sets the flag again after this line, the loop checks again.
        self._rung = False
        for group in self._groups.values():
            if not group.due:
                self._todo.append(group)
            group.look_again()
        if not self._working:
            self._work()

    def _work(self) -> None:
        left = _SLICE
        try:
            while self._todo and left > 0:
                group = self._todo[0]
                left -= max(group.look(left), 1)
                if not group.due:
                    self._todo.popleft()
        finally:
            # Schedule the remaining checks even after a Ctrl-C, because the program may run the event loop again.
            self._working = bool(self._todo)
            if self._working:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon(self._work)


def _end(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(False)

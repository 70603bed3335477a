"""Virtual time, which passes only when a test advances it, and its timers."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

_BEGIN_MS: Final = 1_700_000_000_000


class Timer:
    """A function that is called at a certain time, unless `cancel` is called before that time."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work

    def cancel(self) -> None:
        """Cancels the call. Does nothing if the function was already called."""
        self._work = None

    @property
    def is_set(self) -> bool:
        """Whether the call is still to come."""
        return self._work is not None

    def fire(self) -> bool:
        """Makes the call. Returns False if it was cancelled."""
        work, self._work = self._work, None
        if work is None:
            return False
        work()
        return True


class VirtualTime:
    """A clock (`kafkasafe.cluster.api.Clock`) and its timers.

    Time passes only in `run_for`, `run_until` and `step`. Timers that are due at the same moment fire in the order in
    which they were set, so a run can be repeated exactly.
    """

    def __init__(self) -> None:
        self._now_s = 0.0
        self._slept_s = 0.0
        self._set_ms = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        """The time in seconds, which begins at 0."""
        return self._now_s

    def elapsed(self) -> float:
        """The time in seconds, including the time when the machine was suspended."""
        return self._now_s + self._slept_s

    def wall_ms(self) -> int:
        """The time of the wall clock, in ms since the epoch."""
        return _BEGIN_MS + self._set_ms + int(self.elapsed() * 1000)

    def boot_id(self) -> bytes:
        """The id of the machine's boot, which is always the same."""
        return bytes(15) + b"\1"

    def sleep(self, seconds: float) -> None:
        """Suspends the machine for `seconds`. `elapsed` and `wall_ms` advance; `monotonic` does not."""
        self._slept_s += seconds

    def set(self, seconds: float) -> None:
        """Sets the wall clock forward by `seconds`, or back if `seconds` is negative."""
        self._set_ms += int(seconds * 1000)

    def call_at(self, at_s: float, work: Callable[[], None]) -> Timer:
        """Calls a function when `monotonic` reaches this time; at once if `monotonic` is already later."""
        timer = Timer(work)
        heapq.heappush(self._timers, (max(at_s, self._now_s), next(self._numbers), timer))
        return timer

    def call_later(self, seconds: float, work: Callable[[], None]) -> Timer:
        """Calls a function after this many seconds."""
        return self.call_at(self._now_s + seconds, work)

    @property
    def next_s(self) -> float | None:
        """When the next timer is due, or None."""
        while self._timers and not self._timers[0][2].is_set:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def step(self) -> bool:
        """Advances to the next timer and fires it. Returns whether there was one."""
        at = self.next_s
        if at is None:
            return False
        self._now_s = max(self._now_s, at)
        return heapq.heappop(self._timers)[2].fire()

    def run_until(self, at_s: float) -> None:
        """Advances to this time. Fires all timers that are due by then."""
        timers = self._timers
        while timers and timers[0][0] <= at_s:
            due_s, _, timer = heapq.heappop(timers)
            if timer.is_set:
                self._now_s = max(self._now_s, due_s)
                timer.fire()
        self._now_s = max(self._now_s, at_s)

    def run_for(self, seconds: float) -> None:
        """Lets time pass."""
        self.run_until(self._now_s + seconds)

    def run_while(self, condition: Callable[[], bool], at_most_s: float = 600.0) -> bool:
        """Lets time pass while a condition holds, at most `at_most_s`. Returns whether the condition no longer
        holds.
        """
        end_s = self._now_s + at_most_s
        while condition():
            due = self.next_s
            if due is None or due > end_s:
                self._now_s = end_s if due is not None else self._now_s
                return not condition()
            self.step()
        return True

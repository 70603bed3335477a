"""How callers wait: without holding a lock. If a signal handler interrupted a caller that held a lock, the pump could
not get the lock until the handler returned.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Final, Protocol

from kafkasafe.process.locks import new_rlock
from kafkasafe.process.wake_flag import WakeFlag

_LOOK_EVERY_S: Final = 5.0
"""Seconds after which a waiting caller checks its condition even if no thread has notified it."""


class Guard:
    """The lock of the ledger's parts (see `ledger.py`), and the callers that wait for a change."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Create a new lock, because the thread that held the old lock may not exist in a forked child."""
        self.lock = new_rlock()
        self.waiters = WaitingCallers()


class _ConditionalWakeFlag(WakeFlag):
    """A flag that is set only if the waiting thread can continue. The notifying thread checks the condition itself,
    because a useless wake-up costs both threads more than a check.
    """

    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__()
        self._ready = ready

    def set(self) -> None:
        try:
            ready = self._ready()
        except Exception:  # the waiting thread raises the error, not the notifying one
            ready = True
        if ready:
            super().set()


class Wakeable(Protocol):
    """A flag that any thread can set: a `WakeFlag`, or the flag of an event loop (`delivery/awaiting.py`)."""

    def set(self) -> None:
        """Set the flag. Never blocks."""


class WaitingCallers:
    """The waiting callers, each with its own wake flag. Unlike callers that wait on a `threading.Condition`, these
    callers hold no lock while they check.

    A signal handler may interrupt any Python code of the main thread. With a Condition, a handler might interrupt a
    caller that holds the Condition's lock, and the pump could not get the lock until the handler returns.
    """

    def __init__(self) -> None:
        self._wake_flags: list[Wakeable] = []

    def __bool__(self) -> bool:
        return bool(self._wake_flags)

    def notify_all(self) -> None:
        """Set all wake flags, so that waiting threads check their conditions."""
        for wake_flag in tuple(self._wake_flags):
            wake_flag.set()

    def add(self, wake_flag: Wakeable) -> None:
        """Let `notify_all` set this wake flag too."""
        self._wake_flags.append(wake_flag)

    def remove(self, wake_flag: Wakeable) -> None:
        """Stop setting a wake flag. Does nothing if the flag was not added."""
        with contextlib.suppress(ValueError):
            self._wake_flags.remove(wake_flag)

    def wake_flags(self) -> tuple[Wakeable, ...]:
        """The wake flags that `notify_all` sets."""
        return tuple(self._wake_flags)

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, *, choosy: bool = False) -> bool:
        """Wait until `ready()` returns True. Returns False on timeout.

        Args:
            ready: Checks the condition, without side effects.
            timeout: Seconds, None for no limit.
            choosy: Whether the notifying thread may also call `ready`, even while it holds locks.
        """
        end = None if timeout is None else time.monotonic() + timeout
        wake_flag = _ConditionalWakeFlag(ready) if choosy else WakeFlag()
        self._wake_flags.append(wake_flag)
        try:
            while True:
                wake_flag.clear()
                if ready():
                    return True
                left = _LOOK_EVERY_S if end is None else end - time.monotonic()
                if left <= 0:
                    return False
                wake_flag.wait(min(left, _LOOK_EVERY_S))
        finally:
            self._wake_flags.remove(wake_flag)

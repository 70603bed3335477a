"""How callers wait: without a lock that a signal handler on their own thread could find taken."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["Bell", "Waiting"]

_LOOK_EVERY_S: Final = 5.0
"""A caller who waits looks by itself this often, should nobody ring."""


class Bell:
    """An Event in which a signal handler that raises (Ctrl-C) leaves no lock taken: each method is one call into C."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def set(self) -> None:
        """Ring."""
        with contextlib.suppress(RuntimeError):  # it rings already
            self._silent.release()

    def clear(self) -> None:
        """Silent from now on."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Until it rings; silent again on return."""
        self._silent.acquire(timeout=timeout_s)


class Rings(Protocol):
    """What can be rung, from any thread: a `Bell`, or that of an event loop (`_io/awaiting.py`)."""

    def set(self) -> None:
        """Ring. Never blocks."""


class Waiting:
    """Callers who wait, each with a bell of its own: a Condition whose waiters hold no lock while they look.

    A signal handler may run in the middle of any Python code of the main thread. In a Condition's waiter it would find
    the lock taken by the very thread it runs on, and the pump could not get it before the handler returns.
    """

    def __init__(self) -> None:
        self._bells: list[Rings] = []

    def __bool__(self) -> bool:
        return bool(self._bells)

    def notify_all(self) -> None:
        """What they wait for may have come."""
        for bell in tuple(self._bells):
            bell.set()

    def add(self, bell: Rings) -> None:
        """From now on this one rings as well."""
        self._bells.append(bell)

    def remove(self, bell: Rings) -> None:
        """No longer; harmless where it does not."""
        with contextlib.suppress(ValueError):
            self._bells.remove(bell)

    def bells(self) -> tuple[Rings, ...]:
        """Those that ring."""
        return tuple(self._bells)

    def wait_for(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Until `ready()`; False when the time ended first."""
        end = None if timeout is None else time.monotonic() + timeout
        bell = Bell()
        self._bells.append(bell)
        try:
            while True:
                bell.clear()
                if ready():
                    return True
                left = _LOOK_EVERY_S if end is None else end - time.monotonic()
                if left <= 0:
                    return False
                bell.wait(min(left, _LOOK_EVERY_S))
        finally:
            self._bells.remove(bell)

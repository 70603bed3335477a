"""How callers wait: without a lock that a signal handler on their own thread could find taken."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

__all__ = ["Bell", "Waiting"]

_LOOK_EVERY_S: Final = 5.0
"""A waiting caller checks its condition this often by itself, in case no thread rings."""


class Bell:
    """An Event in which a signal handler that raises (Ctrl-C) leaves no lock taken: each method is one call into C."""

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def set(self) -> None:
        """Ring."""
        try:  # noqa: SIM105  # a context manager costs more than the rest
            self._silent.release()
        except RuntimeError:  # it rings already
            pass

    def clear(self) -> None:
        """Stop ringing."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until the bell rings. It is silent again on return."""
        self._silent.acquire(timeout=timeout_s)


class _Choosy(Bell):
    """Rings only if the waiting thread can continue: a useless wake-up costs both threads more than a check."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__()
        self._ready = ready

    def set(self) -> None:
        try:
            ready = self._ready()
        except Exception:  # the waiting thread raises it, not the ringing one
            ready = True
        if ready:
            super().set()


class Rings(Protocol):
    """What can be rung, from any thread: a `Bell`, or that of an event loop (`delivery/awaiting.py`)."""

    def set(self) -> None:
        """Ring. Never blocks."""


class Waiting:
    """The waiting callers, each with a bell of its own: a Condition whose waiters hold no lock while they check.

    A signal handler may interrupt any Python code of the main thread. If it interrupted the waiter of a Condition, its
    own thread would hold the lock, and the pump could not get the lock before the handler returns.
    """

    def __init__(self) -> None:
        self._bells: list[Rings] = []

    def __bool__(self) -> bool:
        return bool(self._bells)

    def notify_all(self) -> None:
        """Ring all bells, so that waiting threads check their conditions."""
        for bell in tuple(self._bells):
            bell.set()

    def add(self, bell: Rings) -> None:
        """Let `notify_all` ring this bell too."""
        self._bells.append(bell)

    def remove(self, bell: Rings) -> None:
        """Stop ringing a bell. Harmless if it was not added."""
        with contextlib.suppress(ValueError):
            self._bells.remove(bell)

    def bells(self) -> tuple[Rings, ...]:
        """The bells that `notify_all` rings."""
        return tuple(self._bells)

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, *, choosy: bool = False) -> bool:
        """Wait until `ready()`. Returns False if the time ended first.

        Args:
            ready: Checks the condition, without side effects.
            timeout: Seconds, None for no limit.
            choosy: `ready` may also be called by the ringing thread, with any lock held.
        """
        end = None if timeout is None else time.monotonic() + timeout
        bell = _Choosy(ready) if choosy else Bell()
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

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
        try:  # noqa: SIM105  # a context manager costs more than the rest
            self._silent.release()
        except RuntimeError:  # it rings already
            pass

    def clear(self) -> None:
        """Silent from now on."""
        self._silent.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Until it rings; silent again on return."""
        self._silent.acquire(timeout=timeout_s)


class _Choosy(Bell):
    """Rings only if whoever waits can go on: to be woken in vain costs both threads more than a look."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__()
        self._ready = ready

    def set(self) -> None:
        try:
            ready = self._ready()
        except Exception:  # whose it is hears of it: not the thread that rings
            ready = True
        if ready:
            super().set()


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

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, *, choosy: bool = False) -> bool:
        """Until `ready()`; False when the time ended first.

        Args:
            ready: Only looks.
            timeout: Seconds, None for ever.
            choosy: Whoever rings may look as well: on its own thread, with any lock held.
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

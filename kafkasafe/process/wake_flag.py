"""A flag with which one thread wakes another, even if a signal handler or Ctrl-C interrupts one of the threads."""

from __future__ import annotations

import threading


class WakeFlag:
    """Like threading.Event, but an interrupt (Ctrl-C) cannot leave its lock locked, because each method is a single
    call into C.
    """

    def __init__(self) -> None:
        self._cleared = threading.Lock()
        self._cleared.acquire()

    def set(self) -> None:
        try:  # noqa: SIM105  # contextlib.suppress would take most of the time
            self._cleared.release()
        except RuntimeError:  # the flag is set already
            pass

    def clear(self) -> None:
        self._cleared.acquire(blocking=False)

    def wait(self, timeout_s: float) -> None:
        """Wait until the flag is set, or until the timeout. The flag is clear on return."""
        self._cleared.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

"""Lets one thread make many requests with a single wake-up of the network thread.

Without this module, the first of many requests would wake the network thread while the calling thread is still making
the rest. So the network thread would send separate messages, although several requests could share one message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final


class _DeferredWakes(threading.local):
    wakes: dict[int, Callable[[], None]] | None = None


_deferred: Final = _DeferredWakes()


def at_once(work: Callable[[], None]) -> None:
    """Calls `work`. While `work` runs, requests of this thread wake no network thread. At the end, wakes each network
    thread that got requests, once.

    `work` must not wait for an answer. This function is no context manager: Ctrl-C may raise at the beginning of
    `__exit__`, and then later requests of this thread would wake no network thread.
    """
    if _deferred.wakes is not None:
        work()
        return
    wakes = _deferred.wakes = {}
    try:
        work()
    finally:
        # Do not reset `wakes` in a function, because Ctrl-C may raise when a function begins.
        _deferred.wakes = None
        for wake in wakes.values():
            wake()


def is_deferred(wake: Callable[[], None], key: int) -> bool:
    """Returns whether this thread runs `at_once`. If so, `at_once` calls `wake` at its end, once for each `key`."""
    if _deferred.wakes is None:
        return False
    _deferred.wakes[key] = wake
    return True

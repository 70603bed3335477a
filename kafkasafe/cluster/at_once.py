"""Lets one thread make many requests with a single wake-up of the network thread.

Without this module, the first of many requests would wake the network thread while the other thread is still making the
rest. The network thread would send each request as soon as it is made. So requests that could share one message would
be sent separately.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final


class _DeferredWakes(threading.local):
    wakes: dict[int, Callable[[], None]] | None = None


_deferred: Final = _DeferredWakes()


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """In this context, requests of this thread do not wake a network thread. At the end of the context, each network
    thread that got requests is woken once.

    Do not wait for an answer in this context.
    """
    if _deferred.wakes is not None:
        yield
        return
    wakes = _deferred.wakes = {}
    try:
        yield
    finally:
        # Do not call a function for this: Ctrl-C may raise when a function begins.
        _deferred.wakes = None
        for wake in wakes.values():
            wake()


def is_deferred(wake: Callable[[], None], key: int) -> bool:
    """Returns whether this thread is in an `at_once` context. If it is, `wake` is called once for each `key` when the
    context ends.
    """
    if _deferred.wakes is None:
        return False
    _deferred.wakes[key] = wake
    return True

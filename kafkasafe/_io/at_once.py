"""Many requests from one thread, of which the network thread hears by one wake-up.

A network thread that is woken by the first of many requests competes with the thread that makes the others, and sends
what it finds meanwhile: requests that could have gone out as one go out in pieces.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["at_once", "held"]


class _Held(threading.local):
    wakes: dict[int, Callable[[], None]] | None = None


_held: Final = _Held()


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """In here, requests that this thread makes do not wake network threads; at the end, each is woken once.

    Do not wait for an answer in here.
    """
    if _held.wakes is not None:
        yield
        return
    wakes = _held.wakes = {}
    try:
        yield
    finally:
        _held.wakes = None
        for wake in wakes.values():
            wake()


def held(wake: Callable[[], None], key: int) -> bool:
    """Whether `wake` will be called at the end of this thread's `at_once`, once per key. False: it is not in one."""
    if _held.wakes is None:
        return False
    _held.wakes[key] = wake
    return True

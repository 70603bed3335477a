"""Locks for `with` statements: Ctrl-C leaves none of them locked, on every supported version of Python.

CPython 3.14 enters a `with` block by an ordinary call:

1. A thread runs `with lock:`. The instruction CALL calls `lock.__enter__`, which acquires the lock.
2. At its end, CALL looks for signals, and finds Ctrl-C.
3. The KeyboardInterrupt is raised at CALL, before the instructions for which `__exit__` is called. The lock stays
   locked, and every other thread waits for ever.

Earlier versions use the instruction BEFORE_WITH, which does not look for signals. On 3.14, the locks of this module
have an `__enter__` in Python, because CALL does not look for signals after a function in Python has returned.
`__enter__` acquires the lock by the step of a `for` loop, after which Python does not look for signals either.
`__exit__` is a function in C, which releases the lock before Python looks for signals.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Final, cast


def new_lock() -> threading.Lock:
    """A lock with the methods of `threading.Lock`."""
    lock = threading.Lock()
    return cast("threading.Lock", EnteredByStep(lock)) if sys.version_info >= (3, 14) else lock


def new_rlock() -> threading.RLock:
    """A lock with the methods of `threading.RLock`."""
    lock = threading.RLock()
    return cast("threading.RLock", EnteredByStep(lock)) if sys.version_info >= (3, 14) else lock


_OPTIONAL: Final = ("locked", "_is_owned", "_release_save", "_acquire_restore")
"""Methods that only some locks have. `threading.Condition` uses those with an underscore."""


class _Exit:
    """The method `__exit__` of `EnteredByStep`: the lock's own one, a function in C."""

    def __get__(self, entered: EnteredByStep | None, _: type) -> Any:
        return _exit if entered is None else entered.own_exit


def _exit(entered: EnteredByStep, *error: Any) -> Any:
    return entered.own_exit(*error)  # contextlib.ExitStack calls the method of the class


class EnteredByStep:
    """See the module. The methods other than `__enter__` are those of the lock, functions in C.

    Args:
        lock: The lock that this object stands for: a `threading.Lock` or a `threading.RLock`.
    """

    __slots__ = ("_acquisitions", "acquire", "own_exit", "release", *_OPTIONAL)

    def __init__(self, lock: Any) -> None:
        self.acquire = lock.acquire
        self.release = lock.release
        for name in _OPTIONAL:
            if hasattr(lock, name):
                setattr(self, name, getattr(lock, name))
        self._acquisitions = iter(lock.acquire, None)  # each step acquires the lock
        self.own_exit = lock.__exit__

    def __enter__(self) -> bool:
        for _ in self._acquisitions:
            return True
        raise AssertionError("the iterator never ends")

    __exit__ = _Exit()

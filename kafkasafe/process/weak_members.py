"""Reads a weak collection while other threads may add members to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def members(begin: Callable[[], Iterable[_T]]) -> list[_T]:
    """Return the members of a weak collection. If another thread adds a member during the call, read the collection
    again.

    Args:
        begin: Begins an iteration of the collection.
    """
    while True:
        with contextlib.suppress(RuntimeError):  # "changed size during iteration"
            return list(begin())

"""The end of a process that `multiprocessing` started: it calls no exit handlers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

__all__ = ["at_end_of_child"]


def at_end_of_child(call: Callable[[], object]) -> Callable[[], object]:
    """In a child of `multiprocessing`: call it when the child's function has returned or raised. Elsewhere nothing.

    Such a child ends by `os._exit`, and only runs the finalizers of `multiprocessing`.

    Returns:
        Forgets it.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None:
        return _nothing
    # Of those without an object the ones with a priority are run; a high one before the process waits for its children.
    finalizer = util.Finalize(None, call, exitpriority=100)
    cancel: Callable[[], object] = finalizer.cancel
    return cancel


def _nothing() -> None:
    """There is nothing to be forgotten."""

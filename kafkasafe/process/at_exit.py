"""Exit handlers for processes that `multiprocessing` starts: such a process does not run the handlers of `atexit`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def at_end_of_child(call: Callable[[], object]) -> Callable[[], object]:
    """In a child of `multiprocessing`, calls `call` after the child's target function. In other processes, does
    nothing.

    A child of `multiprocessing` ends with `os._exit`, and runs only the finalizers of `multiprocessing`.

    Returns:
        A function that cancels the call.
    """
    util: Any = sys.modules.get("multiprocessing.util")
    process: Any = sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None:
        return _nothing
    # `multiprocessing` runs a finalizer without an object only if it has an exit priority. With a high priority, the
    # finalizer runs before the process waits for its children.
    finalizer = util.Finalize(None, call, exitpriority=100)
    cancel: Callable[[], object] = finalizer.cancel
    return cancel


def _nothing() -> None:
    """Does nothing, because no call was registered."""

"""Faults that a test causes: errors of the disk, and the death of a process."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass


class ProcessKilled(BaseException):
    """The process that made this call has died, as after kill -9. No more code of this process should run."""


@dataclass(slots=True)
class Fault:
    """A fault, and the calls of `Files` at which it occurs. `Disk.fail` arms the fault; calls before `Disk.fail` do not
    count.

    Attributes:
        call: Number of matching calls that still succeed before the fault occurs.
        operation: Name of the method of `Files` that the fault matches; None: all methods.
        error: errno of the OSError to raise. 0 (only for `writev`): raise nothing, but write only a part of the bytes.
        times: Number of calls that fail; None: all later calls.
        partial: Fraction (0.0 to 1.0) of a `writev`'s bytes that are still written when the fault occurs. A `writev`
            that raises no error writes at least one byte.
        kill: Whether the process dies at this call; no OSError is raised.
        hits: How often the fault has occurred so far.
    """

    call: int = 0
    operation: str | None = None
    error: int = errno.EIO
    times: int | None = 1
    partial: float = 0.5
    kill: bool = False
    hits: int = 0

    def strikes(self, operation: str) -> bool:
        """Counts a call of `Files`. Returns whether the fault occurs at it."""
        if self.operation not in {None, operation} or (self.times is not None and self.hits >= self.times):
            return False
        if self.call > 0:
            self.call -= 1
            return False
        self.hits += 1
        return True


def striking(faults: Iterable[Fault], operation: str) -> Fault | None:
    """Counts a call of `Files`. Returns the first fault that occurs at this call, or None."""
    return next((fault for fault in faults if fault.strikes(operation)), None)

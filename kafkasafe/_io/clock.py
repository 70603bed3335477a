"""Seconds that also pass while the machine sleeps, and what time it is for another life.

`time.monotonic` stops on Linux while a laptop or a virtual machine is suspended; brokers forget us all the same.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kafkasafe._core.journal import Clock

__all__ = ["SleepingClock", "SystemClock", "elapsed_s", "read_clock"]

_CLOCK: Final = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_LEAST_S: Final = 0.1  # the two clocks are not read at the same moment


def elapsed_s() -> float:
    """Seconds since some moment, with those the machine slept; without them where no clock counts them."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class SleepingClock:
    """Seconds with the machine's sleep in them, and how many of them it slept.

    Args:
        on_sleep: Called with (seconds slept, seconds as `now` returns them), before the first time with that sleep in
            it is returned.
        elapsed: Counts sleep.
        awake: Does not.
    """

    def __init__(
        self,
        on_sleep: Callable[[float, float], None],
        *,
        elapsed: Callable[[], float] = elapsed_s,
        awake: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_sleep = on_sleep
        self._elapsed = elapsed
        self._awake = awake
        self._slept = elapsed() - awake()

    def now(self) -> float:
        """Seconds."""
        now = self._elapsed()
        slept = now - self._awake()
        if slept - self._slept > _LEAST_S:
            seconds, self._slept = slept - self._slept, slept
            self._on_sleep(seconds, now)
        return now


class SystemClock:
    """This machine's time: `kafkasafe.cluster.api.Clock`."""

    monotonic = staticmethod(time.monotonic)
    elapsed = staticmethod(elapsed_s)

    @staticmethod
    def wall_ms() -> int:
        """Ms since the epoch."""
        return time.time_ns() // 1_000_000

    @staticmethod
    def boot_id() -> bytes:
        """Of the running kernel; zeros where it has none."""
        return _boot_id()


def read_clock() -> Clock:
    """What time it is, for a later life to know how long ago this was."""
    return Clock(time.time_ns() // 1_000_000, _boot_id(), time.monotonic_ns() // 1_000_000)


@functools.cache
def _boot_id() -> bytes:
    """Of the running kernel; zeros where it has none."""
    with contextlib.suppress(OSError, ValueError):
        return uuid.UUID(_BOOT_ID.read_text(encoding="ascii").strip()).bytes
    return bytes(16)

"""Clocks that count the time during which the machine is suspended, and timestamps that a later incarnation can
compare.

On Linux, `time.monotonic` stops while a laptop or a virtual machine is suspended. But the brokers' timeouts continue.
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

from kafkasafe.journal import Moment

_CLOCK: Final = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS: Final = Path("/proc/self/timens_offsets")
_LEAST_S: Final = 0.1  # smaller differences can arise because the two clocks are read one after the other


def elapsed_s() -> float:
    """Seconds since an arbitrary moment. Includes suspensions if the system has a clock that counts them."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)


class SleepingClock:
    """A clock that counts the time of suspensions, and reports each suspension.

    Args:
        on_sleep: `now` calls this function when it notices a suspension, with the length of the suspension in seconds
            and the time that `now` is about to return.
        elapsed: A clock that counts the time of suspensions.
        awake: A clock that stands still during suspensions.
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
        """The time in seconds."""
        now = self._elapsed()
        slept = now - self._awake()
        if slept - self._slept > _LEAST_S:
            seconds, self._slept = slept - self._slept, slept
            self._on_sleep(seconds, now)
        return now


class SystemClock:
    """The clocks of this machine. Implements `kafkasafe.cluster.api.Clock`."""

    monotonic = staticmethod(time.monotonic)
    elapsed = staticmethod(elapsed_s)

    @staticmethod
    def wall_ms() -> int:
        """Ms since the epoch."""
        return time.time_ns() // 1_000_000

    @staticmethod
    def boot_id() -> bytes:
        """Id of the current boot; zeros if the system does not report one."""
        return _boot_id()


def read_clock() -> Moment:
    """The current time, in a form from which a later incarnation can compute how much time has passed."""
    return Moment(time.time_ns() // 1_000_000, _boot_id(), time.monotonic_ns() // 1_000_000)


@functools.cache
def _boot_id() -> bytes:
    """See `boot_id_of`; zeros if the system does not report a boot id."""
    with contextlib.suppress(OSError, ValueError):
        boot, offsets = _BOOT_ID.read_text(encoding="ascii"), ""
        with contextlib.suppress(FileNotFoundError):  # a kernel without time namespaces
            offsets = _OFFSETS.read_text(encoding="ascii")
        return boot_id_of(boot, offsets)
    return bytes(16)


def boot_id_of(boot: str, offsets: str) -> bytes:
    """Id of a boot, as one time namespace sees it. Equal ids mean that the times since the boot can be compared.

    Args:
        boot: The kernel's boot id, which is the same in all time namespaces.
        offsets: Text of the file `timens_offsets`: how far the clocks of the time namespace are ahead.
    """
    found = uuid.UUID(boot.strip())
    shifts = [word for line in offsets.splitlines() for word in line.split()[1:]]
    return uuid.uuid5(found, " ".join(shifts)).bytes if any(map(int, shifts)) else found.bytes

"""What time it is for two lives of a lane, and how long requests of the earlier one may still arrive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe._core import marks as m

__all__ = ["Clock", "alive_s"]

_CLOCKS_DIFFER_MS: Final = 60_000
"""How far the wall clocks of two machines, or of one before and after it was set, may lie apart."""


@dataclass(frozen=True, slots=True)
class Clock:
    """What time it is, also for another life.

    Attributes:
        wall_ms: Ms since the epoch. It may be set, also back.
        boot_id: 16 bytes, of this run of the machine; zeros when unknown.
        boot_ms: Ms since that began, without the time it slept.
    """

    wall_ms: int
    boot_id: bytes
    boot_ms: int


def alive_s(quiet: m.Quiet | None, clock: Clock | None, request_timeout_s: float) -> float:
    """How long requests of earlier lives may still be appended, at most.

    Args:
        quiet: What the last one wrote down at its end, None if it did not, or sent something after that.
        clock: Now; None: nothing is known about the time since.
        request_timeout_s: After this a request without an answer is dead.
    """
    if quiet is None or clock is None:
        return request_timeout_s
    left_ms = quiet.until_ms - quiet.written_ms
    if any(clock.boot_id) and clock.boot_id == quiet.boot_id:
        passed_ms = clock.boot_ms - quiet.boot_ms
    else:
        passed_ms = clock.wall_ms - quiet.written_ms
        if passed_ms >= 0:
            # Another machine's clock, or one that was set meanwhile.
            passed_ms = max(0, passed_ms - _CLOCKS_DIFFER_MS)
    if passed_ms < 0:
        return max(request_timeout_s, left_ms / 1000)
    return max(0, left_ms - passed_ms) / 1000

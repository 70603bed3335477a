"""Times that two incarnations of a lane can compare, and how long requests of the earlier one stay alive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe import marks as m

__all__ = ["Clock", "alive_s"]

_CLOCKS_DIFFER_MS: Final = 60_000
"""How far the wall clocks of two machines, or of one machine before and after a correction, may differ."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The current time, comparable with that of another incarnation.

    Attributes:
        wall_ms: Ms since the epoch. The clock may be set, even backwards.
        boot_id: 16 bytes, of this run of the machine; zeros when unknown.
        boot_ms: Ms since this run of the machine began, without the time for which the machine slept.
    """

    wall_ms: int
    boot_id: bytes
    boot_ms: int


def alive_s(quiet: m.Quiet | None, clock: Clock | None, request_timeout_s: float) -> float:
    """Upper bound of the time for which brokers may still append requests of earlier incarnations.

    Args:
        quiet: The mark that the last incarnation wrote at its end; None if it wrote none, or sent something afterwards.
        clock: The current time; None: the time since the mark is unknown.
        request_timeout_s: After this time, no broker can append a request without an answer any more.
    """
    if quiet is None or clock is None:
        return request_timeout_s
    left_ms = quiet.until_ms - quiet.written_ms
    if any(clock.boot_id) and clock.boot_id == quiet.boot_id:
        passed_ms = clock.boot_ms - quiet.boot_ms
    else:
        passed_ms = clock.wall_ms - quiet.written_ms
        if passed_ms >= 0:
            # The clock may be another machine's, or may have been corrected meanwhile.
            passed_ms = max(0, passed_ms - _CLOCKS_DIFFER_MS)
    if passed_ms < 0:
        return max(request_timeout_s, left_ms / 1000)
    return max(0, left_ms - passed_ms) / 1000

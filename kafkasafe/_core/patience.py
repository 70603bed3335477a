"""How long `close()` waits for deliveries, and what callers say how long anything may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Patience", "seconds_of"]


def seconds_of(timeout_ms: float) -> float:
    """What somebody gave as a time-out in ms, in seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is nan.
    """
    if not isinstance(timeout_ms, (int, float)):
        raise TypeError(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")
    if math.isnan(timeout_ms):
        raise ValueError("timeout_ms must be a number of milliseconds, not nan")
    return timeout_ms / 1000


@dataclass(frozen=True, slots=True)
class Patience:
    """When waiting for deliveries ends.

    Attributes:
        idle_s: How long nothing may happen.
        pause_s: How long a pause may be whose end is known; one that was announced as longer is not waited for to its
            end. 0: no pause is waited for.
    """

    idle_s: float
    pause_s: float

    def ends_at(self, began: float, last_progress: float, pause_until: float) -> float:
        """When to give up, unless something happens before.

        Args:
            began: When the waiting began. What happened before, or did not, says nothing about it.
            last_progress: When the fate of a batch came nearer for the last time.
            pause_until: The end of the pause that something waits for; in the past when nothing does.
        """
        since = max(began, last_progress)
        return max(since, min(pause_until, since + self.pause_s)) + self.idle_s

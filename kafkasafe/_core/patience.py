"""How long `close()` waits for deliveries, and what callers say how long anything may take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

__all__ = ["Patience", "closing_timeout", "seconds_of", "timeout_of"]


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


def timeout_of(timeout: Any) -> float:
    """Convert a caller's time-out in seconds, other than None, to a float.

    Types that convert to float, such as numpy's numbers, are accepted, as by KafkaProducer. nan is not: it is neither
    before nor after any time, so a wait with it ends at once, or never.

    Raises:
        TypeError: It is not a number.
        ValueError: It is nan, or larger than any float.
    """
    said = "timeout must be a number of seconds, or None, not"
    if isinstance(timeout, (str, bytes, bytearray)):
        raise TypeError(f"{said} {timeout!r}")  # of which float() makes one
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        raise TypeError(f"{said} {timeout!r}") from None
    except OverflowError:
        raise ValueError(f"{said} an int that is larger than any float") from None
    if math.isnan(seconds):
        raise ValueError(f"{said} {timeout!r}")
    return timeout if isinstance(timeout, (int, float)) else seconds


def closing_timeout(timeout: Any) -> float | None:
    """What `close` was given as its time-out in seconds.

    Raises:
        TypeError: It is not a number.
        ValueError: It is negative, nan, or larger than any float.
    """
    if timeout is not None and (timeout := timeout_of(timeout)) < 0:
        raise ValueError(f"Invalid timeout: {timeout}")
    return timeout  # type: ignore[no-any-return]


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

"""How long `close()` waits for deliveries, and the conversion of callers' time-outs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any


def seconds_of(timeout_ms: Any) -> float:
    """Convert a caller's time-out from ms to seconds. numpy's numbers are accepted, as by KafkaConsumer.

    Raises:
        TypeError: The time-out is not a number.
        ValueError: The time-out is nan.
    """
    if not isinstance(timeout_ms, Real):
        raise TypeError(f"timeout_ms must be a number of milliseconds, not {timeout_ms!r}")
    if math.isnan(timeout_ms):
        raise ValueError("timeout_ms must be a number of milliseconds, not nan")
    return float(timeout_ms) / 1000


def timeout_of(timeout: Any) -> float:
    """Convert a caller's time-out, in seconds and not None, to a float.

    Like KafkaProducer, accepts types that convert to float, such as numpy's numbers. nan is not accepted: it is neither
    before nor after any time, so a wait would end immediately or never.

    Raises:
        TypeError: The time-out is not a number.
        ValueError: The time-out is nan, or larger than any float.
    """
    said = "timeout must be a number of seconds, or None, not"
    if isinstance(timeout, (str, bytes, bytearray)):
        raise TypeError(f"{said} {timeout!r}")  # float() would accept strings
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
    """Check the time-out of `close`, in seconds.

    Raises:
        TypeError: The time-out is not a number.
        ValueError: The time-out is negative, nan, or larger than any float.
    """
    if timeout is not None and (timeout := timeout_of(timeout)) < 0:
        raise ValueError(f"Invalid timeout: {timeout}")
    return timeout  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Patience:
    """Decides when a wait for deliveries ends.

    Attributes:
        idle_s: Maximum time, in seconds, that the wait continues without progress.
        pause_s: Maximum time, in seconds, that `close` waits for the known end of a pause; 0: `close` does not wait for
            pauses.
    """

    idle_s: float
    pause_s: float

    def ends_at(self, began: float, last_progress: float, pause_until: float) -> float:
        """Time at which to give up without further progress.

        Args:
            began: When the caller began to wait; earlier progress does not count.
            last_progress: When a batch last made progress towards its outcome.
            pause_until: The end of the current or last pause.
        """
        since = max(began, last_progress)
        return max(since, min(pause_until, since + self.pause_s)) + self.idle_s

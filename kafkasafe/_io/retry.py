"""When to try again: tenacity's waits. Whether to try is decided in the core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tenacity

__all__ = ["Backoff"]


class Backoff:
    """Exponential pauses with full jitter.

    Args:
        first_s: Upper bound of the first pause, seconds.
        max_s: Upper bound of any pause, seconds.
        least_s: Lower bound of any pause: at most 1 / least_s tries a second, whatever the dice say.
    """

    def __init__(self, first_s: float, max_s: float, least_s: float = 0.02) -> None:
        self._wait = tenacity.wait_random_exponential(multiplier=first_s, max=max_s, min=least_s)
        self._least_s = least_s

    def pause_s(self, attempt: int) -> float:
        """Seconds to wait after failure number `attempt` (≥ 1) in a row."""
        never_called: Callable[..., Any] = Backoff.pause_s
        state = tenacity.RetryCallState(tenacity.Retrying(), fn=never_called, args=(), kwargs={})
        state.attempt_number = min(attempt, 32)
        return max(self._least_s, float(self._wait(state)))

"""How long every pause before another try is: one kind of tenacity's waits.

Whether to try again is decided in the core (`kafkasafe.classify`); when, here and nowhere else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import tenacity
from tenacity.wait import wait_base

__all__ = ["PAUSES", "Backoff"]

_ENOUGH: Final = 32  # attempts after which no bound grows any more


class Backoff(wait_base):
    """Exponential pauses with jitter; may be given to tenacity as `wait`.

    The bound of a pause is `first_s` after the first failure, doubles with each further one and ends at `max_s`. The
    pause is anywhere between the part of it that is not left to chance and the bound itself.

    Args:
        first_s: Upper bound of the first pause, seconds.
        max_s: Upper bound of any pause, seconds.
        least_s: Lower bound of any pause, seconds: at most 1 / least_s tries a second, whatever the dice say.
        jitter: The part of the bound that is left to chance: 1 is full jitter, 0 none.
        dice: A number in [0, 1).
    """

    def __init__(
        self,
        first_s: float,
        max_s: float,
        *,
        least_s: float = 0.02,
        jitter: float = 1.0,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._bound = tenacity.wait_exponential(multiplier=first_s, max=max_s)
        self._least_s = least_s
        self._jitter = jitter
        self._dice = dice

    @classmethod
    def around(cls, first_s: float, max_s: float, *, share: float = 0.2) -> Backoff:
        """Pauses of `first_s`, doubling up to `max_s`, each off by at most that share of it (KIP-580)."""
        return cls(first_s * (1 + share), max_s * (1 + share), least_s=0.0, jitter=2 * share / (1 + share))

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Seconds until the next attempt: tenacity asks."""
        bound_s = float(self._bound(retry_state))
        shortest_s = max(self._least_s, bound_s * (1 - self._jitter))
        return shortest_s + max(0.0, bound_s - shortest_s) * self._dice()

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after failure number `failures` (≥ 1) in a row, where no call is repeated by tenacity."""
        # The way tenacity itself makes one for its `for attempt in Retrying(...)`, which has no function either.
        state = tenacity.RetryCallState(_ITERATION, fn=None, args=(), kwargs={})
        state.attempt_number = min(failures, _ENOUGH)
        return self(state)


_ITERATION: Final = tenacity.Retrying()

PAUSES: Final = Backoff(0.1, 0.4, least_s=0.1)
"""Between two tries of a look-up, a fetch, a step of a transaction: at most ten requests a second (KAFKA-19599 saw
9,000), and a partition that is ready again is noticed within a second."""

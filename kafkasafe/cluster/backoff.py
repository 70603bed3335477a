"""The lengths of all pauses before a retry.

The core decides whether to retry (`kafkasafe.classify`). This module alone decides when.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tenacity

_ENOUGH: Final = 32  # number of failures after which a pause's upper bound has surely reached `max_s`


class Backoff:
    """Exponential pauses with jitter. Can be passed to tenacity as `wait`.

    The upper bound of a pause is `first_s` after the first failure, doubles with each further failure, and stops at
    `max_s`. The pause is a random value between (1 - `jitter`) times the bound and the bound itself.

    Args:
        first_s: Upper bound of the first pause, in seconds.
        max_s: Upper bound of any pause, in seconds.
        least_s: Lower bound of any pause, in seconds, which permits at most 1 / least_s attempts in a second.
        jitter: The random share of a pause: 1 is full jitter, 0 is no jitter.
        random_fraction: Returns a number in [0, 1).
    """

    def __init__(
        self,
        first_s: float,
        max_s: float,
        *,
        least_s: float = 0.02,
        jitter: float = 1.0,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._least_s = least_s
        self._jitter = jitter
        self._random_fraction = random_fraction

    @classmethod
    def around(
        cls,
        first_s: float,
        max_s: float,
        *,
        share: float = 0.2,
        random_fraction: Callable[[], float] = random.random,
    ) -> Backoff:
        """Returns pauses that begin at `first_s` and double up to `max_s`. Each pause is randomly longer or shorter by
        at most `share` of its length (KIP-580).
        """
        jitter = 2 * share / (1 + share)
        return cls(
            first_s * (1 + share),
            max_s * (1 + share),
            least_s=0.0,
            jitter=jitter,
            random_fraction=random_fraction,
        )

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Seconds until the next attempt, for tenacity."""
        return self.pause_s(retry_state.attempt_number)

    def pause_s(self, failures: int) -> float:
        """Seconds to wait after `failures` (≥ 1) failures in a row."""
        bound_s = min(self._first_s * 2.0 ** (min(failures, _ENOUGH) - 1), self._max_s)
        shortest_s = max(self._least_s, bound_s * (1 - self._jitter))
        return shortest_s + max(0.0, bound_s - shortest_s) * self._random_fraction()


PAUSES: Final = Backoff(0.1, 0.4, least_s=0.1)
"""Pauses between two attempts of a look-up, a fetch, or a step of a transaction. The pauses permit at most ten requests
in a second (not 9,000 as in KAFKA-19599), and are at most 0.4 s long, so that a retry soon notices a partition that is
ready again.
"""

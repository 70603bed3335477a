"""When deliveries made progress last, which decides how long callers wait for them."""

from __future__ import annotations

from kafkasafe.cluster.api import Clock
from kafkasafe.limits.patience import Patience

__all__ = ["DeliveryProgress"]


class DeliveryProgress:
    """The last progress, and the longest pause. Any thread may ask `patience_ends`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        """Time of the last progress: a new answer about a batch, a grant, or a topic's metadata. Monotonic seconds."""
        self._pause_until = 0.0
        """When the longest pause with a known end is over, monotonic seconds."""

    def note(self) -> None:
        """Note progress with a batch."""
        self._last = self._clock.monotonic()

    def pause(self, until: float) -> None:
        """Note a pause that ends at this time, monotonic seconds."""
        self._pause_until = max(self._pause_until, until)

    def patience_ends(self, patience: Patience, began: float, *, paused: bool = False) -> float:
        """The time at which a caller that has waited for deliveries since `began` gives up, monotonic seconds.

        Args:
            patience: The caller's patience.
            began: When the caller began to wait.
            paused: A pause with an unknown end is under way. It counts if `patience` allows for pauses at all.
        """
        until = float("inf") if paused else self._pause_until
        return patience.ends_at(began, self._last, until)

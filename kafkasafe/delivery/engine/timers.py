"""Messages that the engine processes after a delay."""

from __future__ import annotations

import heapq
import itertools

from kafkasafe.cluster.api import Clock
from kafkasafe.delivery.engine.messages import Message

__all__ = ["Timers"]


class Timers:
    """Messages with their times. Messages for the same time are processed in the order in which they were added."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: list[tuple[float, int, Message]] = []
        self._numbers = itertools.count()

    @property
    def next_at(self) -> float:
        """When the next message is due, monotonic seconds; infinite if there is none."""
        return self._waiting[0][0] if self._waiting else float("inf")

    def add(self, delay_s: float, message: Message) -> None:
        """Process this message after a delay, in seconds."""
        heapq.heappush(self._waiting, (self._clock.monotonic() + delay_s, next(self._numbers), message))

    def take(self, now: float) -> Message | None:
        """Remove the next message that is due at this time; None if there is none."""
        if not self._waiting or self._waiting[0][0] > now:
            return None
        return heapq.heappop(self._waiting)[2]

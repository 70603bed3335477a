"""Estimates the brokers' time, and the age of a batch by their clocks."""

from __future__ import annotations

from kafkasafe.journal.batch import Batch

__all__ = ["BrokerClock"]


class BrokerClock:
    """Brokers expire producer state by their own clock. If our clock is behind, our batches look older to brokers than
    to us.

    Attributes:
        state_age_s: How long after a batch's own timestamp a broker surely keeps the producer state.
    """

    __slots__ = ("_at_least_ms", "_behind_ms", "state_age_s")

    def __init__(self, state_age_s: float) -> None:
        self.state_age_s = state_age_s
        self._behind_ms = 0
        self._at_least_ms = 0

    def show(self, broker_ms: int, now_ms: int) -> bool:
        """Note a broker's timestamp. Returns whether our clock is so far behind that brokers may drop our state at any
        moment.
        """
        self._behind_ms = max(0, broker_ms - now_ms)
        self._at_least_ms = 0
        return self._behind_ms > self.state_age_s * 1000

    def show_at_least(self, at_least_ms: int) -> None:
        """Note a lower bound of the time, from other clients' records."""
        self._at_least_ms = at_least_ms

    def now_ms(self, now_ms: int) -> int:
        """The latest possible time of the brokers' clocks when ours shows `now_ms`."""
        return max(now_ms + self._behind_ms, self._at_least_ms)

    def age_s(self, batch: Batch, now_ms: int) -> float:
        """The age of a batch as brokers see it: they count from the timestamp of the last batch, not
        from its append.
        """
        return max(0.0, (self.now_ms(now_ms) - batch.max_timestamp) / 1000)

    def is_old(self, batch: Batch, now_ms: int) -> bool:
        """Whether a leader may drop the producer state at any moment if this is the producer's last batch."""
        return self.now_ms(now_ms) - batch.max_timestamp > self.state_age_s * 1000

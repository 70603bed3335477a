"""What time it may be for brokers, and how old a batch is for them."""

from __future__ import annotations

from kafkasafe._core.journal.states import Batch

__all__ = ["BrokerClock"]


class BrokerClock:
    """Brokers forget a producer by their clock. Where ours is behind, our batches are older for them than for us.

    Attributes:
        state_age_s: How long after a batch's own timestamp a broker surely remembers the producer.
    """

    __slots__ = ("_at_least_ms", "_behind_ms", "state_age_s")

    def __init__(self, state_age_s: float) -> None:
        self.state_age_s = state_age_s
        self._behind_ms = 0
        self._at_least_ms = 0

    def show(self, broker_ms: int, now_ms: int) -> bool:
        """A broker's own timestamp. Whether our clock is so far behind that brokers may forget us at any moment."""
        self._behind_ms = max(0, broker_ms - now_ms)
        self._at_least_ms = 0
        return self._behind_ms > self.state_age_s * 1000

    def show_at_least(self, at_least_ms: int) -> None:
        """Records of other clients say that it is as late as this."""
        self._at_least_ms = at_least_ms

    def now_ms(self, now_ms: int) -> int:
        """What time it is for brokers, at the latest, when it is `now_ms` for us."""
        return max(now_ms + self._behind_ms, self._at_least_ms)

    def age_s(self, batch: Batch, now_ms: int) -> float:
        """How old a batch is for brokers: they go by the timestamp of the last batch, not by the time of its append."""
        return max(0.0, (self.now_ms(now_ms) - batch.max_timestamp) / 1000)

    def is_old(self, batch: Batch, now_ms: int) -> bool:
        """A leader forgets a producer by the timestamp of its last batch: after this one any moment."""
        return self.now_ms(now_ms) - batch.max_timestamp > self.state_age_s * 1000

"""Times that two incarnations of a lane can compare, and the time of the brokers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe import marks as m
from kafkasafe.journal.batch import Batch

__all__ = ["BrokerClock", "Clock", "alive_s"]

_CLOCKS_DIFFER_MS: Final = 60_000
"""How far the wall clocks of two machines, or of one machine before and after a correction, may differ."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The current time, comparable with that of another incarnation.

    Attributes:
        wall_ms: Ms since the epoch. The clock may be set, even backwards.
        boot_id: 16 bytes, of this run of the machine; zeros when unknown.
        boot_ms: Ms since this run of the machine began, without the time for which the machine slept.
    """

    wall_ms: int
    boot_id: bytes
    boot_ms: int


def alive_s(quiet: m.Quiet | None, clock: Clock | None, request_timeout_s: float) -> float:
    """Upper bound of the time for which brokers may still append requests of earlier incarnations.

    Args:
        quiet: The mark that the last incarnation wrote at its end; None if it wrote none, or sent something afterwards.
        clock: The current time; None: the time since the mark is unknown.
        request_timeout_s: After this time, no broker can append a request without an answer any more.
    """
    if quiet is None or clock is None:
        return request_timeout_s
    left_ms = quiet.until_ms - quiet.written_ms
    if any(clock.boot_id) and clock.boot_id == quiet.boot_id:
        passed_ms = clock.boot_ms - quiet.boot_ms
    else:
        passed_ms = clock.wall_ms - quiet.written_ms
        if passed_ms >= 0:
            # The clock may be another machine's, or may have been corrected meanwhile.
            passed_ms = max(0, passed_ms - _CLOCKS_DIFFER_MS)
    if passed_ms < 0:
        return max(request_timeout_s, left_ms / 1000)
    return max(0, left_ms - passed_ms) / 1000


class BrokerClock:
    """Brokers expire producer state by their own clock. If our clock is behind, our batches look older to brokers than
    to us.

    Attributes:
        state_age_s: How long after a batch's own timestamp a broker is certain to keep the producer state.
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
        """Note a lower bound for the current time, from other clients' records."""
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

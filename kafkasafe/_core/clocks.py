"""What time is it at the brokers, where no broker says so?

Topics with CreateTime keep the times of those who write to them, and ListOffsets gives the largest of a partition. One
that is later than all that this producer wrote there was read off another clock. Brokers of Kafka 4 accept none that is
more than an hour ahead of their own (`message.timestamp.after.max.ms`); older ones accept any, so it is a hint: more
care may be taken because of it, and nothing may be refused.
"""

from __future__ import annotations

from typing import Final, TypeAlias

__all__ = ["Clocks"]

_Address: TypeAlias = tuple[str, int]

_HOUR_S: Final = 3600.0
_PAUSE_S: Final = 60.0
_LEEWAY_MS: Final = 3_600_000
_NO_TIME_MS: Final = 4_102_444_800_000
"""The year 2100. A later timestamp does not come from a clock in ms: it is in microseconds, or a mistake."""


class Clocks:
    """Decides when others' clocks are asked for and what follows; see the module.

    About a partition it asks once an hour, about any once a minute, never in a producer's first minute, and not within
    an hour after a broker stamped a record itself.

    Args:
        now: Monotonic seconds.
        state_age_s: How long after a batch's own timestamp a broker surely remembers the producer.
    """

    def __init__(self, now: float, state_age_s: float) -> None:
        self._state_age_ms = state_age_s * 1000
        self._next = now + _PAUSE_S
        self._next_of: dict[_Address, float] = {}
        self._quiet_until = now
        self._ours: dict[_Address, int] = {}
        self._others: dict[_Address, int] = {}
        self.at_least_ms = 0
        """So late it is at the brokers, if the others' clocks are right; ms since the epoch."""

    def sent(self, address: _Address, max_timestamp: int) -> None:
        """A batch of this producer goes there: its times say nothing about the clocks of others."""
        if max_timestamp > self._ours.get(address, -1):
            self._ours[address] = max_timestamp

    def stamped(self, now: float) -> None:
        """A broker stamped a record itself (LogAppendTime): what others think does not count."""
        self._next = now + _HOUR_S
        self._others.clear()
        self.at_least_ms = 0

    def asks(self, address: _Address, now: float) -> bool:
        """A batch was acknowledged there: whether to ask now for the largest timestamp of the partition."""
        if now < self._next or now < self._next_of.get(address, now):
            return False
        self._next = now + _PAUSE_S
        self._next_of[address] = now + _HOUR_S
        return True

    def unanswered(self, address: _Address) -> None:
        """No answer came: it may be asked again as soon as any question may be."""
        self._next_of.pop(address, None)

    def listed(self, address: _Address, timestamp: int, now: float, now_ms: int) -> bool:
        """The answer. The newest about a partition counts, the latest of all partitions is taken.

        Args:
            address: The partition.
            timestamp: Its largest, in ms since the epoch; -1 if it has no record.
            now: Monotonic seconds.
            now_ms: Our clock.

        Returns:
            Whether it has to be said that others are so far ahead that brokers may forget us: once an hour.
        """
        if self._ours.get(address, -1) < timestamp < _NO_TIME_MS:
            self._others[address] = timestamp
        else:
            self._others.pop(address, None)
        self.at_least_ms = max(0, max(self._others.values(), default=0) - _LEEWAY_MS)
        bound_ms = self._others.get(address, 0) - _LEEWAY_MS
        if bound_ms - now_ms <= self._state_age_ms or now < self._quiet_until:
            return False
        self._quiet_until = now + _HOUR_S
        return True

"""Estimates the brokers' time from the timestamps of other producers' records, if no broker reports its own time.

Topics with CreateTime keep the timestamps of their producers, and ListOffsets returns the largest timestamp of a
partition. If the largest timestamp is later than all timestamps that this producer wrote to the partition, it comes
from another producer's clock. Brokers of Kafka 4 accept no timestamp that is more than an hour ahead of their own clock
(`message.timestamp.after.max.ms`). Older brokers accept any timestamp, so the estimate is only a hint: it may make the
producer wait longer, but never refuse a record.
"""

from __future__ import annotations

from typing import Final, TypeAlias

_Address: TypeAlias = tuple[str, int]

_HOUR_S: Final = 3600.0
_PAUSE_S: Final = 60.0
_LEEWAY_MS: Final = 3_600_000
_NO_TIME_MS: Final = 4_102_444_800_000
"""A timestamp after the year 2100 is in microseconds instead of ms, or is a mistake."""


class Clocks:
    """Decides when the engine asks for other producers' timestamps, and estimates the brokers' time from the answers.
    See the module.

    The engine asks at most once an hour about the same partition, and at most once a minute in total. The engine does
    not ask in the first minute after a producer's start, or in the hour after a broker stamped a record with the
    broker's own time.

    Args:
        now: Monotonic seconds.
        state_age_s: For this many seconds after a batch's timestamp, a broker certainly keeps the state of the batch's
            producer.
    """

    def __init__(self, now: float, state_age_s: float) -> None:
        self._state_age_ms = state_age_s * 1000
        self._next = now + _PAUSE_S
        self._next_of: dict[_Address, float] = {}
        self._quiet_until = now
        self._ours: dict[_Address, int] = {}
        self._others: dict[_Address, int] = {}
        self.at_least_ms = 0
        """Lower bound of the brokers' time, in ms since the epoch, if the other producers' clocks are right; 0 if
        unknown.
        """

    def sent(self, address: _Address, max_timestamp: int) -> None:
        """Note the largest timestamp in a batch of this producer, so that `listed` does not attribute it to another
        producer.
        """
        if max_timestamp > self._ours.get(address, -1):
            self._ours[address] = max_timestamp

    def stamped(self, now: float) -> None:
        """Note that a broker stamped a record with its own time (LogAppendTime). Discards the timestamps of other
        producers.
        """
        self._next = now + _HOUR_S
        self._others.clear()
        self.at_least_ms = 0

    def asks(self, address: _Address, now: float) -> bool:
        """Whether to ask now for the largest timestamp of a partition in which a batch was just acknowledged."""
        if now < self._next or now < self._next_of.get(address, now):
            return False
        self._next = now + _PAUSE_S
        self._next_of[address] = now + _HOUR_S
        return True

    def unanswered(self, address: _Address) -> None:
        """Note that a request got no answer, so that `asks` may soon choose this partition again."""
        self._next_of.pop(address, None)

    def listed(self, address: _Address, timestamp: int, now: float, now_ms: int) -> bool:
        """Store a partition's largest timestamp, and compute `at_least_ms` from the largest timestamp that another
        producer wrote to any partition.

        Args:
            address: The partition.
            timestamp: The partition's largest timestamp, in ms since the epoch; -1 if the partition has no record.
            now: Monotonic seconds.
            now_ms: This machine's time, in ms since the epoch.

        Returns:
            Whether to warn that other clocks are so far ahead that brokers may drop this producer's state. True at most
            once an hour.
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

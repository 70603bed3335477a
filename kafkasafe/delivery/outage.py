"""Measures how long nothing was delivered, so that a program's log shows both the start and the end of an outage."""

from __future__ import annotations

from typing import Final

_SHORT_S: Final = 10.0
"""A shorter outage is not worth a message: it may be an election, or the restart of a broker."""


class Outage:
    """The time from the first failed request to the next acknowledgement, over all partitions together.

    Args:
        now: The current time, in seconds. A producer that starts during an outage sends nothing that could fail. Its
            outage begins now, or when the first acknowledged batch was sealed, if that is later.
    """

    def __init__(self, now: float) -> None:
        self._began: float | None = None
        self._start: float | None = now

    def failed(self, now: float) -> None:
        """Record that a broker refused a batch, or a request had no answer."""
        if self._began is None:
            self._began = now

    def acked(self, now: float, sealed_at: float) -> float:
        """Record an acknowledgement. Returns for how long nothing was delivered, 0 if that is too short to report.

        Args:
            now: Seconds.
            sealed_at: When the batch was sealed, by the same clock.
        """
        began = self._began
        if began is None and self._start is not None:
            began = max(self._start, sealed_at)
        self._began = self._start = None
        return 0.0 if began is None or now - began < _SHORT_S else now - began

"""The time of the program's last poll. Other threads may read it."""

from __future__ import annotations

import time

__all__ = ["Polls"]


class Polls:
    """The polls of one consumer. The block of `with polls:` is one poll; blocks may be nested."""

    __slots__ = ("_ended_at", "_under_way")

    def __init__(self) -> None:
        self._under_way = 0
        self._ended_at: float | None = None

    def __enter__(self) -> None:
        """Note the start of a poll."""
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        """Note the end of a poll, with records or with an error."""
        self._ended_at = time.monotonic()
        self._under_way -= 1

    def age_s(self) -> float | None:
        """Return the seconds since the last poll; 0 during a poll, None before the first one. Any thread may ask."""
        if self._under_way:
            return 0.0
        return None if self._ended_at is None else max(0.0, time.monotonic() - self._ended_at)

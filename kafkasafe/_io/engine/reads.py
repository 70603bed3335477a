"""Divisions of a lane's batches that wait, because the spool cannot be read or has no space for the parts."""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe._core import journal as j

__all__ = ["Reads"]


class Reads:
    """The pending divisions of one lane.

    Attributes:
        undivided: Divisions whose batch could not be read, or that have no space yet.
        attempt: Number of consecutive failures to read.
        unreadable_until: When the engine reads again, monotonic seconds.
        room_attempt: Number of consecutive times without space.
    """

    __slots__ = ("attempt", "room_attempt", "undivided", "unreadable_until")

    def __init__(self) -> None:
        self.undivided: Sequence[j.Divide] = ()
        self.attempt = 0
        self.unreadable_until = 0.0
        self.room_attempt = 0

    def take(self) -> Sequence[j.Divide]:
        """Take the pending divisions. `leave` returns those that could not be done."""
        undivided, self.undivided = self.undivided, ()
        return undivided

    def leave(self, undivided: Sequence[j.Divide]) -> None:
        """Keep divisions that could not be done."""
        self.undivided = undivided

    def fail(self) -> int:
        """Note that the spool could not be read. Returns the number of consecutive failures."""
        self.attempt += 1
        return self.attempt

    def wait(self, until: float) -> None:
        """Read again at this time."""
        self.unreadable_until = until

    def succeed(self) -> None:
        """Note that the spool could be read."""
        self.attempt = 0

    def miss_room(self) -> int:
        """Note that there is no space for the parts. Returns how many times in a row."""
        self.room_attempt += 1
        return self.room_attempt

    def find_room(self) -> None:
        """Note that a batch was divided."""
        self.room_attempt = 0

"""Divisions of a lane's batches that wait: the spool could not be read, or has no room for the parts."""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe._core import journal as j

__all__ = ["Reads"]


class Reads:
    """Of one lane.

    Attributes:
        undivided: What could not be read when it was to be divided, or has no room for that yet.
        attempt: How often reading failed in a row.
        unreadable_until: When it is tried again, monotonic seconds.
        room_attempt: How often there was no room in a row.
    """

    __slots__ = ("attempt", "room_attempt", "undivided", "unreadable_until")

    def __init__(self) -> None:
        self.undivided: Sequence[j.Divide] = ()
        self.attempt = 0
        self.unreadable_until = 0.0
        self.room_attempt = 0

    def take(self) -> Sequence[j.Divide]:
        """What waits to be divided; `leave` says what is left of it."""
        undivided, self.undivided = self.undivided, ()
        return undivided

    def leave(self, undivided: Sequence[j.Divide]) -> None:
        """These could not be divided."""
        self.undivided = undivided

    def fail(self) -> int:
        """The spool could not be read. Returns how often that was so in a row."""
        self.attempt += 1
        return self.attempt

    def wait(self, until: float) -> None:
        """It is read again at this time."""
        self.unreadable_until = until

    def succeed(self) -> None:
        """The spool could be read."""
        self.attempt = 0

    def miss_room(self) -> int:
        """There is no room for the parts. Returns how often that was so in a row."""
        self.room_attempt += 1
        return self.room_attempt

    def find_room(self) -> None:
        """Something was divided."""
        self.room_attempt = 0

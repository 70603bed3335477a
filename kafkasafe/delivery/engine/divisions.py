"""Divisions of a lane's batches that wait, because the spool cannot be read or has no space for the parts."""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe import journal as j

__all__ = ["Divisions"]


class Divisions:
    """The pending divisions of one lane, and the space for their parts.

    Attributes:
        pending: Divisions whose batch could not be read, or that have no space yet.
        attempt: Number of consecutive failures to read.
        unreadable_until: When the engine reads again, monotonic seconds.
        room_attempt: How many times in a row there was no space.
        unwritten_bytes: Bytes of parts that are not on disk yet.
        waiting_bytes: Bytes on disk that wait for their partitions. Recounted when segments are deleted.
    """

    __slots__ = (
        "_room_at",
        "attempt",
        "pending",
        "room_attempt",
        "unreadable_until",
        "unwritten_bytes",
        "waiting_bytes",
    )

    def __init__(self) -> None:
        self.pending: Sequence[j.Divide] = ()
        self.unwritten_bytes = 0
        self.waiting_bytes = 0
        self._room_at = 0.0
        self.attempt = 0
        self.unreadable_until = 0.0
        self.room_attempt = 0

    def take(self) -> Sequence[j.Divide]:
        """Take the pending divisions. The caller puts back (`leave`) those that could not be done."""
        pending, self.pending = self.pending, ()
        return pending

    def leave(self, pending: Sequence[j.Divide]) -> None:
        """Keep divisions that could not be done."""
        self.pending = pending

    def fail(self) -> int:
        """Record that the spool could not be read. Returns the number of consecutive failures."""
        self.attempt += 1
        return self.attempt

    def wait(self, until: float) -> None:
        """Read again at this time."""
        self.unreadable_until = until

    def succeed(self) -> None:
        """Record that the spool could be read."""
        self.attempt = 0

    def miss_room(self) -> int:
        """Record that the disk has no space for the parts. Returns how many times in a row."""
        self.room_attempt += 1
        return self.room_attempt

    def find_room(self) -> None:
        """Record that a batch was divided."""
        self.room_attempt = 0

    def is_blocked(self, now: float) -> bool:
        """Whether to divide nothing now: parts are not on disk yet, or a pause for space is under way."""
        return bool(self.unwritten_bytes) or self._room_at > now

    def pause(self, until: float) -> None:
        """Wait for space until this time, monotonic seconds."""
        self._room_at = until

    def end_pause(self) -> None:
        """Look for space again: segments were deleted."""
        self._room_at = 0.0

    def add_unwritten(self, size: int) -> None:
        """Note parts of this size that are to be written."""
        self.unwritten_bytes += size

    def written(self) -> None:
        """Record that the parts are on disk."""
        self.unwritten_bytes = 0

    def count_waiting(self, size: int) -> None:
        """Note how many bytes wait for their partitions."""
        self.waiting_bytes = size

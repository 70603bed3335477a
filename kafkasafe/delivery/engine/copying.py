"""How far a lane's log is being copied forward, and when the engine checks again whether to copy."""

from __future__ import annotations

__all__ = ["Copying"]


class Copying:
    """What `RoomKeeper` knows of one lane.

    Attributes:
        before: Unfinished batches before this position are being copied forward; -1: none are.
    """

    __slots__ = ("_look_at", "_looked_bytes", "before")

    def __init__(self) -> None:
        self.before = -1
        self._looked_bytes = 0
        """Size of the log when the engine last checked whether to copy batches."""
        self._look_at = 0.0
        """When the engine checks again even if the log did not grow, monotonic seconds."""

    @property
    def is_under_way(self) -> bool:
        """Whether batches are being copied."""
        return self.before >= 0

    def is_due(self, now: float, used_bytes: int, growth_bytes: int) -> bool:
        """Whether to check again: some time has passed, or the log grew by this many bytes."""
        return now >= self._look_at or used_bytes >= self._looked_bytes + growth_bytes

    def look(self, used_bytes: int, next_at: float) -> None:
        """Note a check now. The next check follows at this time at the latest."""
        self._looked_bytes, self._look_at = used_bytes, next_at

    def forget_size(self) -> None:
        """Record that there is enough space: everything written from now on counts as growth."""
        self._looked_bytes = 0

    def begin(self, before: int) -> None:
        """Copy the unfinished batches before this position; -1: none."""
        self.before = before

    def stop(self) -> None:
        """Stop copying: nothing more needs a copy, or the disk is full."""
        self.before = -1

    def fail(self, next_at: float) -> None:
        """Stop copying after a failed write. The engine checks again at this time."""
        self.before = -1
        self._look_at = next_at

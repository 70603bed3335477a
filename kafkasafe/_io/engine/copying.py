"""How far a lane's log is being copied forward, and when that is considered again."""

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
        """How large the log was when it was last looked what is worth being copied."""
        self._look_at = 0.0
        """When it is looked again though it did not grow, monotonic seconds."""

    @property
    def is_under_way(self) -> bool:
        """Batches are being copied."""
        return self.before >= 0

    def is_due(self, now: float, used_bytes: int, growth_bytes: int) -> bool:
        """Whether to look again: some time has passed, or the log grew by so much."""
        return now >= self._look_at or used_bytes >= self._looked_bytes + growth_bytes

    def look(self, used_bytes: int, next_at: float) -> None:
        """It is looked now, and again at this time at the latest."""
        self._looked_bytes, self._look_at = used_bytes, next_at

    def forget_size(self) -> None:
        """There is room enough: whatever is written then is growth."""
        self._looked_bytes = 0

    def begin(self, before: int) -> None:
        """Copy what is unfinished before this position; -1: nothing."""
        self.before = before

    def stop(self) -> None:
        """No more is to be copied, or has room."""
        self.before = -1

    def fail(self, next_at: float) -> None:
        """A copy could not be written. It is looked again at this time."""
        self.before = -1
        self._look_at = next_at

"""When the engine looks again for segments of one lane that can be deleted."""

from __future__ import annotations

__all__ = ["ReleaseCheck"]


class ReleaseCheck:
    """The results of the last check."""

    __slots__ = ("_excess", "_position")

    def __init__(self) -> None:
        self._position = -1
        self._excess = 0
        """Bytes by which the lane exceeded half of `spool_max_bytes`, after the deletion; negative if it did not."""

    def is_due(self, position: int, excess: int, more: int) -> bool:
        """Whether another position may be released, or the excess grew by more than `more` bytes."""
        return position != self._position or excess > max(self._excess + more, 0)

    def note(self, position: int, excess: int) -> None:
        """Note a check."""
        self._position, self._excess = position, excess

    def freed(self, size: int) -> None:
        """Record that segments of this size were deleted."""
        self._excess -= size

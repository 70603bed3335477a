"""An adopted lane that another producer wants back."""

from __future__ import annotations

__all__ = ["Handover"]


class Handover:
    """Hands the lane over after two idle checks in a row: answers from before the first one are on disk by then."""

    __slots__ = ("_was_idle",)

    def __init__(self) -> None:
        self._was_idle = False

    def look(self, *, idle: bool) -> bool:
        """Whether to hand the lane over now.

        Args:
            idle: Another producer wants the lane, none of its batches is in flight, and everything is written.
        """
        was_idle, self._was_idle = self._was_idle, idle
        return idle and was_idle

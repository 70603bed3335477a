"""How far a producer is on its way to its end."""

from __future__ import annotations

__all__ = ["CloseState"]


class CloseState:
    """See the module. Any thread may read it.

    Attributes:
        closing: `close` was called: the engine begins nothing that takes long.
        stop: The pump ends after its current work.
        abandon: The current work takes too long: the engine begins nothing more.
        close_by: Until when the engine waits for a failing disk, monotonic seconds.
    """

    def __init__(self) -> None:
        self.closing = False
        self.stop = False
        self.abandon = False
        self.close_by = float("inf")

    def close(self, close_by: float | None) -> None:
        """Record that `close` was called. None: the time for a failing disk stays as it is."""
        if close_by is not None:
            self.close_by = close_by
        self.closing = True
        self.stop = True

    def end(self) -> None:
        """End the pump after its current work: everything is delivered, or its patience is over."""
        self.stop = True

    def give_up(self) -> None:
        """Begin nothing more."""
        self.abandon = True

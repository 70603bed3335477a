"""What the checks for losses found out about a lane's partitions, so that they ask no more than once."""

from __future__ import annotations

__all__ = ["LossChecks"]


class LossChecks:
    """Of one lane, and of the cluster that it is bound to."""

    __slots__ = ("_epochs", "_unproven")

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        """Leader epoch by destination, when it was last looked whether the log still holds what was acknowledged."""
        self._unproven: dict[int, int] = {}
        """Last acknowledged offset by destination, when it was last reported that nothing proves it any more."""

    def see_leader(self, destination: int, epoch: int) -> bool:
        """A partition has this leader epoch. Returns whether the log is to be looked at: a newer one than before."""
        before = self._epochs.get(destination)
        self._epochs[destination] = epoch
        return before is None or epoch > before

    def forget_leader(self, destination: int) -> None:
        """The log could not be looked at: the next metadata are a reason to do so."""
        self._epochs.pop(destination, None)

    def report_unproven(self, destination: int, last_acked_offset: int) -> bool:
        """Nothing proves that this offset is in the log. Returns whether that is to be reported: once."""
        if self._unproven.get(destination) == last_acked_offset:
            return False
        self._unproven[destination] = last_acked_offset
        return True

    def clear(self) -> None:
        """Another cluster answers."""
        self._epochs.clear()
        self._unproven.clear()

"""The results of a lane's checks for losses, so that no check asks twice."""

from __future__ import annotations

__all__ = ["LossChecks"]


class LossChecks:
    """The results for one lane, and the cluster that it is bound to."""

    __slots__ = ("_epochs", "_unproven")

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        """By destination, the leader epoch at the last check whether the log still holds all acknowledged records."""
        self._unproven: dict[int, int] = {}
        """By destination, the last acknowledged offset that was reported as unproven."""

    def see_leader(self, destination: int, epoch: int) -> bool:
        """Note a partition's leader epoch. Returns whether to check the log, because the epoch is newer than before."""
        before = self._epochs.get(destination)
        self._epochs[destination] = epoch
        return before is None or epoch > before

    def forget_leader(self, destination: int) -> None:
        """Forget the epoch after a failed check, so that the next metadata cause another check."""
        self._epochs.pop(destination, None)

    def report_unproven(self, destination: int, last_acked_offset: int) -> bool:
        """Record that nothing proves that this offset is in the log. Returns whether to report it: once per offset."""
        if self._unproven.get(destination) == last_acked_offset:
            return False
        self._unproven[destination] = last_acked_offset
        return True

    def clear(self) -> None:
        """Forget all results, because another cluster answers."""
        self._epochs.clear()
        self._unproven.clear()

"""Groups of one lane that are not on disk yet, because the disk takes no writes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from kafkasafe import journal as j

__all__ = ["WriteBacklog"]


class WriteBacklog:
    """The groups in the order in which they are written, and when a failing disk is tried again.

    Attributes:
        attempt: Number of consecutive failures to write.
    """

    __slots__ = ("_groups", "_retry_at", "attempt")

    def __init__(self) -> None:
        self._groups: collections.deque[j.Persist] = collections.deque()
        self.attempt = 0
        self._retry_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def has_decision(self) -> bool:
        """Whether a decision of the journal is not on disk yet."""
        return any(_decides(group) for group in self._groups)

    def extend(self, groups: Iterable[j.Persist]) -> None:
        """Add groups after all others."""
        self._groups.extend(groups)

    def take(self) -> tuple[int, j.Persist]:
        """Take the group to write next: decisions first. Returns its place as well."""
        index = next((i for i, group in enumerate(self._groups) if _decides(group)), 0)
        group = self._groups[index]
        del self._groups[index]
        return index, group

    def restore(self, index: int, groups: Sequence[j.Persist]) -> None:
        """Put a group that could not be written in its place again, divided into these groups."""
        for group in reversed(groups):
            self._groups.insert(index, group)

    def fail(self) -> int:
        """Note a failed write. Returns the number of consecutive failures."""
        self.attempt += 1
        return self.attempt

    def succeed(self) -> None:
        """Note a successful write."""
        self.attempt = 0

    def has_retry(self, now: float) -> bool:
        """Whether a pause is under way, after which the engine tries again."""
        return self._retry_at > now

    def pause(self, until: float) -> None:
        """Note a pause that ends at this time, monotonic seconds."""
        self._retry_at = until

    def end_pause(self) -> None:
        """Record that the pause is over."""
        self._retry_at = 0.0


def _decides(group: j.Persist) -> bool:
    return bool(group.marks or group.after)

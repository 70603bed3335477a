"""The failed fetches of one partition, and the pause after them."""

from __future__ import annotations

__all__ = ["Failures"]


class Failures:
    """Consecutive failed fetches of a partition. Times are monotonic seconds.

    Attributes:
        count: Number of consecutive failed fetches.
        since: When the first of these fetches failed.
        code: Error code of the last of them.
        reason: The meaning of this code.
        reported_code: Error code in the latest event about failures; 0 without such an event.
        overdue_since: When fetches began to fail, or when `poll` last raised an error about it.
        remote: Whether the position is in remote storage; None: not known yet. The consumer asks only after a failed
            fetch.
        rest_until: The partition is not fetched before this time.
    """

    __slots__ = ("code", "count", "overdue_since", "reason", "remote", "reported_code", "rest_until", "since")

    def __init__(self) -> None:
        self.count = 0
        self.since = self.overdue_since = self.rest_until = 0.0
        self.code = self.reported_code = 0
        self.reason = ""
        self.remote: bool | None = None

    def failed(self, code: int, reason: str, now: float) -> None:
        """Record that a fetch has failed."""
        if self.count == 0:
            self.since = self.overdue_since = now
        self.count += 1
        self.code, self.reason = code, reason

    def ended(self) -> None:
        """Record that a fetch has succeeded. The pause after failures ends."""
        self.count = self.reported_code = 0
        self.remote = None
        self.rest_until = 0.0

    def rest(self, until: float) -> None:
        """Do not fetch the partition before this time."""
        self.rest_until = until

    def reported(self) -> None:
        """Record that an event has reported the present failures."""
        self.reported_code = self.code

    def raised(self, now: float) -> None:
        """Record that `poll` raises an error about the present failures."""
        self.overdue_since = now

    def located(self, *, remote: bool) -> None:
        """Note the leader's answer: whether the position is in remote storage."""
        self.remote = remote

    def moved(self) -> None:
        """Note a new position. It may or may not be in remote storage."""
        self.remote = None

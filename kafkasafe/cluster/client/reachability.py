"""Whether the cluster answers metadata requests."""

from __future__ import annotations

from typing import Final

from kafkasafe.cluster.api import in_words
from kafkasafe.logs import EventLog

_LOG_EVERY_S: Final = 30.0


class Reachability:
    """Tracks whether the cluster answers, and logs when an outage begins and ends.

    Attributes:
        connected: Whether the cluster is reachable. True after a metadata request was answered. False after a metadata
            request failed and no broker was usable.
        last_error: Why the latest attempt found no usable broker; None while the cluster answers, and before the first
            attempt.
        answered: Whether the cluster has answered at least once.
        failed: Number of metadata requests that failed since the last answer.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.failed = 0
        self.connected = False
        self.last_error: BaseException | None = None
        self.answered = False
        self._logged_at = -1e9
        self._unreachable_since: float | None = None
        """When the first warning about the present outage was logged; None if no outage has been logged."""

    def request_failed(self, error: BaseException, now: float, *, alive: bool) -> None:
        """Counts a metadata request that failed. Unless `alive` is true, marks the cluster as unreachable.

        Args:
            error: Why the request failed.
            now: Time of the failure.
            alive: Whether the client still has a usable connection to a broker that it does not suspect to hang.
        """
        self.failed += 1
        if not alive:
            self.connected = False
            self.last_error = error
            self._log_unreachable(error, now)

    def request_answered(self, now: float) -> None:
        """Marks the cluster as reachable, because it answered a metadata request."""
        if self.failed and not self.connected:
            if self._unreachable_since is not None:
                self._log.warning(
                    "The cluster answers again, after %.0f s",
                    now - self._unreachable_since,
                    outage_s=round(now - self._unreachable_since, 1),
                    event="cluster_reachable",
                )
            self._unreachable_since = None
            self._logged_at = -1e9
        self.failed = 0
        self.connected = True
        self.last_error = None
        self.answered = True

    def end(self) -> None:
        """Marks the cluster as unreachable, because the client ends."""
        self.connected = False

    def _log_unreachable(self, error: BaseException, now: float) -> None:
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            if self._unreachable_since is None:
                self._unreachable_since = now
            self._log.warning(
                "Brokers cannot be used yet (%s); trying again until they can",
                in_words(error),
                error=type(error).__name__,
                event="cluster_unreachable",
            )

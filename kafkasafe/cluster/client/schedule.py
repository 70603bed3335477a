"""The time of the next metadata request. The module `refresher` chooses the broker and the topics of the request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.network import Network

_LONG_AGO: Final = -1e9


class RefreshSchedule:
    """One timer for the next metadata request. At most one metadata request is in progress.

    Args:
        retry_backoff_s: Shortest time between the last metadata request and a request about all topics. Urgent requests
            do not wait.
    """

    def __init__(self, network: Network, mailbox: Mailbox, retry_backoff_s: float) -> None:
        self._network = network
        self._mailbox = mailbox
        self._retry_backoff_s = retry_backoff_s
        self._on_due: Callable[[], None] = lambda: None
        self._under_way = False
        self._begun_at = _LONG_AGO
        self._all_due = math.inf
        """When a request about all watched topics is due."""
        self._timer: Any = None
        self._timer_at = 0.0

    def on_due(self, callback: Callable[[], None]) -> None:
        """Sets the function to call when a request is due and no other request is in progress."""
        self._on_due = callback

    def want(self, *, urgent: bool = False) -> None:
        """Schedules a request about all topics. An `urgent` request begins at once. Any other request begins when at
        least `retry_backoff_ms` have passed since the last metadata request began.
        """
        if self._mailbox.closing:
            return
        now = self._network.now()
        self.all_no_later(now if urgent else max(now, self._begun_at + self._retry_backoff_s))
        if not self._under_way:
            self.no_later(self._all_due)

    def want_new(self) -> None:
        """Schedules a metadata request about the new topics, to be sent as soon as possible.

        The request does not include the other topics (KIP-526): a program may begin to use thousands of topics, one
        after the other. For each of them, it would otherwise parse the metadata of all topics.
        """
        if not self._mailbox.closing and not self._under_way:
            self.no_later(self._network.now())

    def all_no_later(self, at: float) -> None:
        """Sets the time of the next request about all topics to `at`, unless an earlier time is set. Does not set the
        timer.
        """
        self._all_due = min(self._all_due, at)

    def all_overdue(self, now: float) -> bool:
        """Whether a request about all topics is due."""
        return now >= self._all_due

    def resume(self) -> None:
        """Sets the timer for the next request about all topics."""
        self.no_later(self._all_due)

    def no_later(self, at: float) -> None:
        """Sets the timer to the time `at`, unless the timer is set to an earlier time."""
        if self._timer is not None:
            if self._timer_at <= at:
                return
            self._network.cancel(self._timer)
        self._timer_at = at
        self._timer = self._network.call_at(at, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._under_way and not self._mailbox.closing:
            self._on_due()

    def begun(self, now: float, *, of_all: bool) -> None:
        """Marks a metadata request as in progress."""
        self._begun_at = now
        self._under_way = True
        if of_all:
            self._all_due = math.inf

    def over(self) -> None:
        """Marks the metadata request as ended: it was answered, or it failed."""
        self._under_way = False

    def begin_anew(self) -> None:
        """Prepares for a new event loop: forgets the timer and the request in progress."""
        self._timer = None
        self._begun_at = _LONG_AGO
        self._all_due = math.inf

"""Measures how long no leader decided about a batch, so that the producer can log an outage's end and length."""

from __future__ import annotations

from typing import Final

from kafkasafe.codes.verdicts import AnswerAction, ProduceVerdict, Scope

_SHORT_S: Final = 10.0
"""Outages shorter than this many seconds are not logged: an election or the restart of a broker may cause them."""


class Outage:
    """The time from the first failed request until a leader decides about a batch. All partitions share one `Outage`.

    A leader has decided about a batch if it acknowledges or rejects the batch, or if its log contains a batch in doubt.
    An error about the topic (missing, forbidden) or about the sequence number does not begin or end an outage.

    Args:
        now: The current time, in seconds. If a producer starts during an outage, it can send no request, so no request
            fails. The outage then counts from `now`, or from the time at which the first acknowledged batch was
            submitted, whichever is later.
    """

    def __init__(self, now: float) -> None:
        self._began: float | None = None
        self._start: float | None = now

    def failed(self, now: float) -> None:
        """Note that a request had no answer, or that the cluster was not ready for it."""
        if self._began is None:
            self._began = now

    def refused(self, verdict: ProduceVerdict, now: float) -> float:
        """Note a refusal. A final rejection ends an outage as an acknowledgement does, so the method returns the same
        value as `acked`.
        """
        if verdict.action is AnswerAction.REJECT_BATCH:
            return self.decided(now)
        if verdict.action is AnswerAction.RETRY and verdict.scope is not Scope.DESTINATION:
            self.failed(now)
        return 0.0

    def decided(self, now: float) -> float:
        """Note that a leader rejected a batch, or that the leader's log contains a batch in doubt. Returns the same
        value as `acked`.
        """
        return 0.0 if self._began is None else self.acked(now, now)

    def acked(self, now: float, sealed_at: float) -> float:
        """Note an acknowledgement. Returns the length of the outage in seconds; 0 if the outage is too short to report.

        Args:
            now: Seconds.
            sealed_at: Time at which the batch was submitted, in seconds, by the clock of `now`.
        """
        began = self._began
        if began is None and self._start is not None:
            began = max(self._start, sealed_at)
        self._began = self._start = None
        return 0.0 if began is None or now - began < _SHORT_S else now - began

"""The flow of a partition, and why it does not progress. Each change of the flow is one method here.

`machine` decides what follows from a flow.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Flow", "Progress"]


class Flow(enum.Enum):
    """The current activity of a partition."""

    NEW = "new"
    """The lane never sent to the partition: the journal asks for the end offset first."""
    FLOWING = "flowing"
    SETTLING = "settling"
    """A request failed: the journal sends nothing until every request in flight has an outcome."""
    WAITING = "waiting"
    """For `retry()`."""
    ASKING = "asking"
    """For `judged()` or `baseline()`."""
    SURVEYING = "surveying"
    """For `surveyed()`: the log may have lost acknowledged batches."""
    PROBING = "probing"
    """The journal sends the newest batch that the leader has once more, to learn that replicas have it."""
    UNDECIDABLE = "undecidable"
    """Blocked by an undecidable batch, until `decide()`."""
    REJECTING = "rejecting"
    """For `set_aside()`: rejected batches must first be durable in `rejected/`."""


@dataclass(slots=True)
class Progress:
    """The flow of one partition, and the reason for a delay.

    Attributes:
        flow: The current activity.
        rested: While it settles: no pause is needed, so that the journal decides as soon as nothing is in flight.
        attempt: How many pauses there were without an acknowledgement in between.
        refresh: The next pause requests new metadata: the leader may have moved.
        reason: Why the partition does not progress, human-readable; empty once it does.
    """

    flow: Flow = Flow.NEW
    rested: bool = False
    attempt: int = 0
    refresh: bool = False
    reason: str = ""

    def begin(self) -> None:
        """Start over: the log is not known to have any batch of this lane, so the journal asks for the end offset."""
        self.flow = Flow.NEW

    def go_on(self) -> None:
        """Begin to send batches."""
        self.flow = Flow.FLOWING

    def settle(self, reason: str) -> None:
        """Stop sending after a failed request, until every request in flight has an outcome and a pause is over."""
        if self.flow in {Flow.FLOWING, Flow.PROBING}:
            self.flow = Flow.SETTLING
            self.rested = False
        self.reason = reason

    def settle_again(self) -> None:
        """Settle after an answer; whether a pause is due stays as it was."""
        self.flow = Flow.SETTLING

    def decide(self) -> None:
        """Let the journal decide the next step as soon as nothing is in flight, without a pause."""
        self.flow = Flow.SETTLING
        self.rested = True

    def end_pause(self) -> None:
        """Note that no pause is needed, without changing the flow."""
        self.rested = True

    def leave_settling(self) -> None:
        """Use up the pause: the partition now sends or asks."""
        self.rested = False

    def wait(self) -> bool:
        """Begin a pause. Returns whether to refresh the metadata during it."""
        self.flow = Flow.WAITING
        self.attempt += 1
        refresh, self.refresh = self.refresh, False
        return refresh

    def ask(self) -> None:
        """Note that a question is pending."""
        self.flow = Flow.ASKING

    def survey(self) -> None:
        """Note that a survey of the log runs."""
        self.flow = Flow.SURVEYING

    def probe(self) -> None:
        """Note that the journal sends the newest batch that the leader has once more."""
        self.flow = Flow.PROBING

    def undecidable(self) -> None:
        """Block the partition until the user decides."""
        self.flow = Flow.UNDECIDABLE

    def reject(self) -> None:
        """Note that rejected batches are being made durable in `rejected/`."""
        self.flow = Flow.REJECTING

    def want_metadata(self, *, wanted: bool = True) -> None:
        """Request new metadata with the next pause: the leader may have moved."""
        self.refresh = self.refresh or wanted

    def explain(self, reason: str) -> None:
        """Set why the partition does not progress."""
        self.reason = reason

    def clear_reason(self) -> None:
        """Clear the reason: the partition progresses."""
        self.reason = ""

    def recover(self) -> None:
        """Reset the count of pauses, so that the next pause is short."""
        self.attempt = 0

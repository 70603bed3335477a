"""What a partition is doing, and why it does not go on: each change of it is one method here.

What follows from a flow is decided in `machine`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["Flow", "Progress"]


class Flow(enum.Enum):
    """What a partition is doing."""

    NEW = "new"
    """Nothing was ever sent: the end offset is asked first."""
    FLOWING = "flowing"
    SETTLING = "settling"
    """Something failed: nothing is sent until everything in flight has an outcome."""
    WAITING = "waiting"
    """For `retry()`."""
    ASKING = "asking"
    """For `judged()` or `baseline()`."""
    SURVEYING = "surveying"
    """For `surveyed()`: acknowledged batches may be gone from the log."""
    PROBING = "probing"
    """The newest batch that the leader has is sent once more, to learn that replicas have it."""
    UNDECIDABLE = "undecidable"
    """Behind an undecidable batch, until `decide()`."""
    REJECTING = "rejecting"
    """For `set_aside()`: what is rejected must first be durable elsewhere."""


@dataclass(slots=True)
class Progress:
    """The flow of one partition, and the trouble it is in.

    Attributes:
        flow: What it is doing.
        rested: While it settles: no pause is needed, so that it decides as soon as nothing is in flight.
        attempt: How many pauses there were without an acknowledgement in between.
        refresh: The next pause asks for new metadata: the leader may have moved.
        reason: Why it does not go on, human-readable; empty once it does.
    """

    flow: Flow = Flow.NEW
    rested: bool = False
    attempt: int = 0
    refresh: bool = False
    reason: str = ""

    def begin(self) -> None:
        """Nothing was sent, as far as anything is known: the end offset is asked for before anything is."""
        self.flow = Flow.NEW

    def go_on(self) -> None:
        """Batches are sent."""
        self.flow = Flow.FLOWING

    def settle(self, reason: str) -> None:
        """A request failed: nothing is sent until all that is in flight has an outcome, and after a pause."""
        if self.flow in {Flow.FLOWING, Flow.PROBING}:
            self.flow = Flow.SETTLING
            self.rested = False
        self.reason = reason

    def settle_again(self) -> None:
        """An answer is there: it settles as before, with or without a pause."""
        self.flow = Flow.SETTLING

    def decide(self) -> None:
        """What is next is decided as soon as nothing is in flight, without a pause."""
        self.flow = Flow.SETTLING
        self.rested = True

    def end_pause(self) -> None:
        """It needs no pause before it goes on, whatever it is doing."""
        self.rested = True

    def leave_settling(self) -> None:
        """The pause, if there was one, is used up: it goes on, or asks."""
        self.rested = False

    def wait(self) -> bool:
        """A pause begins. Whether metadata are to be refreshed in it."""
        self.flow = Flow.WAITING
        self.attempt += 1
        refresh, self.refresh = self.refresh, False
        return refresh

    def ask(self) -> None:
        """A question is under way."""
        self.flow = Flow.ASKING

    def survey(self) -> None:
        """The log is searched for what was acknowledged."""
        self.flow = Flow.SURVEYING

    def probe(self) -> None:
        """The newest batch that the leader has is sent once more."""
        self.flow = Flow.PROBING

    def undecidable(self) -> None:
        """The user has to decide."""
        self.flow = Flow.UNDECIDABLE

    def reject(self) -> None:
        """What is rejected is made durable elsewhere."""
        self.flow = Flow.REJECTING

    def want_metadata(self, *, wanted: bool = True) -> None:
        """The leader may have moved."""
        self.refresh = self.refresh or wanted

    def explain(self, reason: str) -> None:
        """Why it does not go on."""
        self.reason = reason

    def clear_reason(self) -> None:
        """It goes on."""
        self.reason = ""

    def recover(self) -> None:
        """The first pause after this is a short one."""
        self.attempt = 0

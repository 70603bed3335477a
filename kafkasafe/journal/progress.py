"""The flow of a partition, and why it does not progress.

`flow` has the flow that follows each event, and `machine` decides what follows from a flow. An illegal event is a bug,
and raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kafkasafe.journal.flow import FLOW, Flow, FlowEvent
from kafkasafe.journal.lifecycle import IllegalMoveError

__all__ = ["Progress"]


@dataclass(slots=True)
class Progress:
    """The flow of one destination, and the reason for a delay.

    Attributes:
        flow: The current activity.
        attempt: How many pauses there were without an acknowledgement in between.
        refresh: The next pause requests new metadata: the leader may have moved.
        reason: Why the partition does not progress, human-readable; empty once it does.
        table: The flow that follows each event.
    """

    flow: Flow = Flow.NEW
    attempt: int = 0
    refresh: bool = False
    reason: str = ""
    table: Mapping[Flow, Mapping[FlowEvent, Flow]] = field(default_factory=lambda: FLOW, repr=False)

    def on(self, event: FlowEvent) -> None:
        """Take an event; raises IllegalMoveError if it is not possible in the partition's flow."""
        to = self.table[self.flow].get(event)
        if to is None:
            raise IllegalMoveError(
                f"{event.name} cannot happen to a partition that is {self.flow.name}: {self}"
            )
        self.flow = to

    @property
    def is_settling(self) -> bool:
        """Whether the journal decides the next step once no request is in flight."""
        return self.flow is Flow.SETTLING or self.flow is Flow.DECIDING

    @property
    def is_confirming(self) -> bool:
        """Whether the journal compares a refusal with the broker's producer state."""
        return self.flow is Flow.CONFIRMING or self.flow is Flow.RECONFIRMING

    @property
    def is_asking(self) -> bool:
        """Whether an `Ask` is pending."""
        return self.flow is Flow.ASKING or self.flow is Flow.ASKING_BASELINE or self.is_confirming

    def wait(self, event: FlowEvent) -> bool:
        """Take an event that begins a pause. Returns whether to refresh the metadata during the pause."""
        self.on(event)
        self.attempt += 1
        refresh, self.refresh = self.refresh, False
        return refresh

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

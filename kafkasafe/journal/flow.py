"""The states (*flows*) of a destination, their events, the transition tables `FLOW` and `UNASSIGNED_FLOW`, and
`Progress`.

`machine` decides what a partition does next in each flow. An event for which the table has no entry is a bug, and
raises IllegalMoveError.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.journal.batch import IllegalMoveError


class Flow(enum.Enum):
    """The current activity of a partition."""

    NEW = "new"
    """The lane has never sent to the partition, so the journal asks for the end offset before it sends anything."""
    ASKING_BASELINE = "asking for the baseline"
    """The journal waits until the engine reports the log's end offset (`baseline()`), and then until this offset is
    durable in the spool.
    """
    FLOWING = "flowing"
    PROBING = "probing"
    """The leader has at least the first batch in doubt. The journal sends the newest batch that the leader has again,
    to find out whether the replicas have it.
    """
    SETTLING = "settling"
    """A request failed, so the journal sends nothing until every request in flight has an outcome and a pause is over.
    """
    DECIDING = "deciding"
    """Like SETTLING, but without a pause: the journal decides as soon as no request is in flight."""
    WAITING = "waiting"
    """The partition pauses until `retry()`."""
    CONFIRMING = "confirming"
    """The journal waits for `confirmed()`, to compare a refusal with the broker's producer state. Then the partition
    settles.
    """
    RECONFIRMING = "confirming again"
    """Like CONFIRMING, but no pause follows: the partition has already paused, or the division of the refused batch
    cancelled the pause.
    """
    ASKING = "asking"
    """Batches are in doubt, and the journal waits for `judged()`."""
    SURVEYING = "surveying"
    """The log may have lost acknowledged batches, and the journal waits for `surveyed()`."""
    UNDECIDABLE = "undecidable"
    """An undecidable batch blocks the partition until `decide()`."""
    REJECTING = "rejecting"
    """The journal waits for `set_aside()`, because rejected batches must be durable in `rejected/` before they are
    finished.
    """

    __hash__ = object.__hash__  # Enum's own __hash__ is Python code, too slow to run at each event


class FlowEvent(enum.Enum):
    """The events of a partition."""

    RECOVERED = "recovered"
    """Recovery has read the spool. An earlier run of the producer used the partition, and left no batch in doubt."""
    RECOVERED_IN_DOUBT = "recovered in doubt"
    """Recovery has read the spool. An earlier run of the producer may have sent batches that are not finished."""
    MARKS_LOST = "marks lost"
    """Damage on disk destroyed marks (log entries) about the next batch, so the journal cannot determine whether the
    batch was sent.
    """
    BATCH_QUEUED = "batch queued"
    """A batch waits, but the baseline is not known: the offset at which the log ended before this lane sent its first
    batch.
    """
    BASELINE_DURABLE = "baseline durable"
    """The baseline (the log's end offset before this lane's first batch) is durable in the spool."""
    BASELINE_DURABLE_SUSPECTED = "baseline durable but suspected"
    """Like BASELINE_DURABLE, but the log may already have lost acknowledged batches of units (atomic batches). Only
    batches of units are sent before the baseline (the log's end offset before this lane's first batch) is durable.
    """
    FAILED = "failed"
    """A request ended without an acknowledgement."""
    PROBED = "probed"
    """The probe was acknowledged."""
    SUSPECTED = "suspected"
    """The log may have lost acknowledged batches."""
    OLD_HEAD = "old head"
    """The next batch is so old that the leader may forget this producer right after appending it, so the journal first
    finds out whether the log already has the batch.
    """
    LATE_REQUEST = "late request"
    """The journal waits until no broker can append a request whose answer was lost."""
    PAUSE_DUE = "pause due"
    """No request is in flight any more. At least one request failed, and no pause has followed yet."""
    PAUSE_OVER = "pause over"
    """The pause is over, or ends early because the partition is proven not to exist."""
    SURVEYS = "surveys"
    """A survey of the log begins."""
    JUDGED_EARLY = "judged early"
    """Batches are in doubt again: the journal asked about them while a broker could still append a request with them.
    """
    CONFIRMS = "confirms"
    """The journal has to compare a broker's refusal with the broker's producer state."""
    DECIDED = "decided"
    """The journal knows for each batch whether the log has it."""
    DECIDED_UNBEGUN = "decided without a baseline"
    """Like DECIDED, and the lane has never sent to the partition."""
    IN_DOUBT = "in doubt"
    """Batches are in doubt, so the journal asks the cluster about them."""
    CONFIRMED = "confirmed"
    """The broker's producer state does not contradict the refusal."""
    CONTRADICTED = "contradicted"
    """The broker's producer state contains the refused batch."""
    NOT_ANSWERED = "not answered"
    """The cluster did not answer the question."""
    REFUSED_IN_MEMORY = "refused in memory"
    """The cluster permanently refuses the destination. The destination's batches are only in memory, so the journal
    writes them to disk before it rejects them.
    """
    STALE = "stale"
    """The answer about batches in doubt is incomplete, or no longer valid."""
    UNSTABLE = "unstable"
    """Batches in doubt are in the leader's log, but a change of leader may still remove them."""
    UNKNOWABLE = "unknowable"
    """The journal cannot determine whether a batch in doubt is in the log."""
    JUDGED = "judged"
    """The journal now knows, for each batch that it asked about, whether the log has it."""
    SURVEYED = "surveyed"
    """The survey has a result."""
    USER_DECIDED = "user decided"
    """The user decided about the undecidable batch."""
    REJECTS = "rejects"
    """The journal begins to reject batches whose refusal is final."""
    DAMAGED = "damaged"
    """The bytes of a batch that is not in flight are damaged on disk, so the batch can only be rejected."""
    KEPT = "kept"
    """Copies of all rejected batches are durable in `rejected/`. In an unassigned topic, the event also occurs if the
    engine could not write some copies. The journal then tries again later.
    """
    NOT_KEPT = "not kept"
    """A copy could not be written."""
    NOTHING_TO_KEEP = "nothing to keep"
    """The topic was created before the engine copied the next portion of rejected batches."""
    DIVIDED = "divided"
    """A batch was divided."""
    FORGOTTEN = "forgotten"
    """The lane now writes to the log of another cluster or another topic."""

    __hash__ = object.__hash__


_ROWS: Final[dict[Flow, dict[FlowEvent, Flow]]] = {
    Flow.NEW: {
        FlowEvent.RECOVERED: Flow.FLOWING,
        FlowEvent.RECOVERED_IN_DOUBT: Flow.DECIDING,
        FlowEvent.MARKS_LOST: Flow.UNDECIDABLE,
        FlowEvent.BATCH_QUEUED: Flow.ASKING_BASELINE,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
    },
    Flow.ASKING_BASELINE: {
        FlowEvent.BASELINE_DURABLE: Flow.FLOWING,
        FlowEvent.BASELINE_DURABLE_SUSPECTED: Flow.DECIDING,
        FlowEvent.NOT_ANSWERED: Flow.WAITING,
        FlowEvent.REFUSED_IN_MEMORY: Flow.WAITING,
        FlowEvent.REJECTS: Flow.REJECTING,
    },
    Flow.FLOWING: {
        FlowEvent.MARKS_LOST: Flow.UNDECIDABLE,
        FlowEvent.FAILED: Flow.SETTLING,
        FlowEvent.SUSPECTED: Flow.DECIDING,
        FlowEvent.OLD_HEAD: Flow.DECIDING,
        FlowEvent.LATE_REQUEST: Flow.WAITING,
        FlowEvent.REJECTS: Flow.REJECTING,
    },
    Flow.PROBING: {
        FlowEvent.PROBED: Flow.DECIDING,
        FlowEvent.FAILED: Flow.SETTLING,
        FlowEvent.DAMAGED: Flow.REJECTING,
    },
    Flow.SETTLING: {
        FlowEvent.FAILED: Flow.SETTLING,
        FlowEvent.SURVEYS: Flow.SURVEYING,
        FlowEvent.LATE_REQUEST: Flow.WAITING,
        FlowEvent.JUDGED_EARLY: Flow.DECIDING,
        FlowEvent.CONFIRMS: Flow.CONFIRMING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
        FlowEvent.PAUSE_DUE: Flow.WAITING,
        FlowEvent.DIVIDED: Flow.DECIDING,
    },
    Flow.DECIDING: {
        FlowEvent.MARKS_LOST: Flow.UNDECIDABLE,
        FlowEvent.FAILED: Flow.DECIDING,
        FlowEvent.SURVEYS: Flow.SURVEYING,
        FlowEvent.LATE_REQUEST: Flow.WAITING,
        FlowEvent.JUDGED_EARLY: Flow.DECIDING,
        FlowEvent.CONFIRMS: Flow.RECONFIRMING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
        FlowEvent.DECIDED: Flow.FLOWING,
        FlowEvent.DECIDED_UNBEGUN: Flow.NEW,
        FlowEvent.IN_DOUBT: Flow.ASKING,
    },
    Flow.WAITING: {
        FlowEvent.FAILED: Flow.WAITING,
        FlowEvent.DAMAGED: Flow.REJECTING,
        FlowEvent.PAUSE_OVER: Flow.DECIDING,
    },
    Flow.CONFIRMING: {
        FlowEvent.CONFIRMED: Flow.SETTLING,
        FlowEvent.CONTRADICTED: Flow.DECIDING,
        FlowEvent.NOT_ANSWERED: Flow.WAITING,
        FlowEvent.REFUSED_IN_MEMORY: Flow.WAITING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
        FlowEvent.DIVIDED: Flow.RECONFIRMING,
    },
    Flow.RECONFIRMING: {
        FlowEvent.CONFIRMED: Flow.DECIDING,
        FlowEvent.CONTRADICTED: Flow.DECIDING,
        FlowEvent.NOT_ANSWERED: Flow.WAITING,
        FlowEvent.REFUSED_IN_MEMORY: Flow.WAITING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
    },
    Flow.ASKING: {
        FlowEvent.STALE: Flow.DECIDING,
        FlowEvent.UNSTABLE: Flow.PROBING,
        FlowEvent.UNKNOWABLE: Flow.UNDECIDABLE,
        FlowEvent.LATE_REQUEST: Flow.WAITING,
        FlowEvent.JUDGED: Flow.DECIDING,
        FlowEvent.NOT_ANSWERED: Flow.WAITING,
        FlowEvent.REFUSED_IN_MEMORY: Flow.WAITING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
    },
    Flow.SURVEYING: {
        FlowEvent.LATE_REQUEST: Flow.WAITING,
        FlowEvent.NOT_ANSWERED: Flow.WAITING,
        FlowEvent.SURVEYED: Flow.DECIDING,
        FlowEvent.DAMAGED: Flow.REJECTING,
    },
    Flow.UNDECIDABLE: {
        FlowEvent.MARKS_LOST: Flow.UNDECIDABLE,
        FlowEvent.USER_DECIDED: Flow.DECIDING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
    },
    Flow.REJECTING: {
        FlowEvent.MARKS_LOST: Flow.UNDECIDABLE,
        FlowEvent.FAILED: Flow.REJECTING,
        FlowEvent.REJECTS: Flow.REJECTING,
        FlowEvent.DAMAGED: Flow.REJECTING,
        FlowEvent.KEPT: Flow.DECIDING,
        FlowEvent.NOT_KEPT: Flow.WAITING,
        FlowEvent.NOTHING_TO_KEEP: Flow.NEW,
    },
}
FLOW: Final[dict[Flow, dict[FlowEvent, Flow]]] = {
    flow: {FlowEvent.DIVIDED: flow, **follows, FlowEvent.FORGOTTEN: Flow.NEW}
    for flow, follows in _ROWS.items()
}
"""The next flow for each flow and event. FORGOTTEN and DIVIDED may occur in any flow. DIVIDED changes only the flows
SETTLING and CONFIRMING, where it cancels the pause after a failure.
"""
_UNASSIGNED: Final = {
    FlowEvent.MARKS_LOST: Flow.UNDECIDABLE,
    FlowEvent.USER_DECIDED: Flow.NEW,
    FlowEvent.REJECTS: Flow.REJECTING,
    FlowEvent.DAMAGED: Flow.REJECTING,
    FlowEvent.FORGOTTEN: Flow.NEW,
}
UNASSIGNED_FLOW: Final[dict[Flow, dict[FlowEvent, Flow]]] = {
    Flow.NEW: {FlowEvent.DIVIDED: Flow.NEW, **_UNASSIGNED},
    Flow.UNDECIDABLE: {FlowEvent.DIVIDED: Flow.UNDECIDABLE, **_UNASSIGNED},
    Flow.REJECTING: {
        FlowEvent.DIVIDED: Flow.REJECTING,
        **_UNASSIGNED,
        FlowEvent.KEPT: Flow.NEW,
        FlowEvent.NOTHING_TO_KEEP: Flow.NEW,
    },
}
"""The next flow for each flow and event of a topic with unknown partitions. The flow is NEW while batches wait."""


@dataclass(slots=True)
class Progress:
    """The flow of one destination, and the reason for a delay.

    Attributes:
        flow: The current activity.
        attempt: The number of pauses since the last acknowledgement.
        refresh: The next pause requests new metadata, because the leader may have moved.
        reason: Why the partition makes no progress, as human-readable text; empty when it makes progress.
        table: The next flow for each flow and event.
    """

    flow: Flow = Flow.NEW
    attempt: int = 0
    refresh: bool = False
    reason: str = ""
    table: Mapping[Flow, Mapping[FlowEvent, Flow]] = field(default_factory=lambda: FLOW, repr=False)

    def on(self, event: FlowEvent) -> None:
        """Change the flow as the table says for this event. Raises IllegalMoveError if the table has no entry for the
        event.
        """
        to = self.table[self.flow].get(event)
        if to is None:
            raise IllegalMoveError(
                f"{event.name} cannot happen to a partition that is {self.flow.name}: {self}"
            )
        self.flow = to

    @property
    def is_confirming(self) -> bool:
        """Whether the journal is comparing a refusal with the broker's producer state."""
        return self.flow is Flow.CONFIRMING or self.flow is Flow.RECONFIRMING

    @property
    def is_asking(self) -> bool:
        """Whether an `OutcomeAsk` is pending."""
        return self.flow is Flow.ASKING or self.flow is Flow.ASKING_BASELINE or self.is_confirming

    def wait(self, event: FlowEvent) -> bool:
        """Take an event that begins a pause. Returns whether to refresh the metadata during the pause."""
        self.on(event)
        self.attempt += 1
        refresh, self.refresh = self.refresh, False
        return refresh

    def fail(self, reason: str, *, refresh: bool) -> None:
        """Note that a request was not acknowledged, for this `reason`. `refresh`: the leader may have moved, so the
        next pause requests new metadata.
        """
        self.on(FlowEvent.FAILED)
        self.reason = reason
        self.refresh = self.refresh or refresh

    def want_metadata(self) -> None:
        """Request new metadata with the next pause, because the leader may have moved."""
        self.refresh = True

    def explain(self, reason: str) -> None:
        """Set the reason why the partition makes no progress."""
        self.reason = reason

    def clear_reason(self) -> None:
        """Clear the reason for a delay, because the partition makes progress."""
        self.reason = ""

    def succeed(self) -> None:
        """Note an acknowledgement: clear the reason for a delay, and make the next pause short."""
        self.attempt, self.reason = 0, ""

    def recover(self) -> None:
        """Reset the count of pauses, so that the next pause is short."""
        self.attempt = 0

"""The states and events of a batch, and the table of transitions: `STATE`.

This module decides nothing. An event that `STATE` does not have in a state is a bug, and raises.
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = ["STATE", "BatchEvent", "BatchState", "IllegalMoveError"]


class IllegalMoveError(RuntimeError):
    """A bug in kafkasafe: an event that is not possible in the state of a batch, or in the flow of a partition."""


class BatchState(enum.Enum):
    """The state of a batch between `send()` and its end."""

    SEALED = "sealed"
    JOINED = "joined"
    """The batch is part of a unit (an atomic batch), and `units` delivers it."""
    PREPARED = "prepared"
    """The batch has an id and may be sent. Batch and id are durable, unless `durable_first` is off."""
    SENT = "sent"
    IN_DOUBT = "in_doubt"
    ACKED = "acked"
    COMMITTED = "committed"
    """The mark that the batch is acknowledged is durable."""
    REFUSED = "refused"
    """The broker refused the batch. It waits until all batches that were in flight with it have their answers."""
    REJECTED = "rejected"
    REPLACED = "replaced"
    UNDECIDABLE = "undecidable"
    """The user decides."""

    __hash__ = object.__hash__  # Enum's own method is Python code, which would run at each event


class BatchEvent(enum.Enum):
    """The events of a batch."""

    DURABLE = "durable"
    """The batch is on disk, with an id."""
    ID_DURABLE = "id durable"
    """The batch was on disk, and the mark that gives it an id is durable."""
    ID_IN_MEMORY = "id in memory"
    """The batch got an id, and need not be on disk before it is sent."""
    ID_TAKEN_BACK = "id taken back"
    """The batch was not appended under its id, and gets another one."""
    SENDS = "sends"
    """A request with the batch begins. For a batch in doubt, the request only probes whether replicas have it."""
    ACKNOWLEDGED = "acknowledged"
    NOT_APPENDED = "not appended"
    """The answer proves that the batch was not appended, for a temporary reason."""
    UNCERTAIN = "uncertain"
    """No answer came, or the answer does not show whether the batch was appended."""
    REFUSED = "refused"
    """The batch was not appended, for a permanent reason."""
    PASSED_BY = "passed by"
    """A refused batch is sent again in its turn: the refusal was about another id, or about a gap before the batch."""
    MAY_BE_THERE = "may be there"
    """A broker may have appended a request with the batch, from this or an earlier incarnation."""
    FOUND = "found"
    """It is in the log."""
    ABSENT = "absent"
    """It is not in the log."""
    ABSENT_CONDEMNED = "absent and condemned"
    """The batch is not in the log. The journal searched for the batch only to reject it if the log does not have it."""
    UNKNOWABLE = "unknowable"
    """Whether the batch is in the log cannot be determined."""
    RESENT = "resent"
    """The user wants an undecidable batch sent."""
    RESENT_UNCHOSEN = "resent without a partition"
    """The user wants an undecidable batch sent whose partition was not chosen yet."""
    SKIPPED = "skipped"
    """The user takes an undecidable batch as delivered."""
    COMMITTED = "committed"
    """The mark that the batch is acknowledged is durable, or not needed."""
    LOST = "lost"
    """The cluster lost the acknowledged batch, and the journal sends it again."""
    KEPT = "kept"
    """A copy of the batch is durable in `rejected/`."""
    DIVIDED = "divided"
    MERGED = "merged"
    """The batch is merged with its neighbours into one batch."""
    UNIT_COMMITTED = "unit committed"
    UNIT_ENDED = "unit ended"
    """Its unit was given up."""

    __hash__ = object.__hash__


STATE: Final[dict[BatchState, dict[BatchEvent, BatchState]]] = {
    BatchState.SEALED: {
        BatchEvent.DURABLE: BatchState.PREPARED,
        BatchEvent.ID_DURABLE: BatchState.PREPARED,
        BatchEvent.ID_IN_MEMORY: BatchState.PREPARED,
        BatchEvent.DIVIDED: BatchState.REPLACED,
        BatchEvent.KEPT: BatchState.REJECTED,
        BatchEvent.UNKNOWABLE: BatchState.UNDECIDABLE,
    },
    BatchState.JOINED: {
        BatchEvent.UNIT_COMMITTED: BatchState.ACKED,
        BatchEvent.UNIT_ENDED: BatchState.REJECTED,
        BatchEvent.DIVIDED: BatchState.REPLACED,
        BatchEvent.KEPT: BatchState.REJECTED,
    },
    BatchState.PREPARED: {
        BatchEvent.SENDS: BatchState.SENT,
        BatchEvent.MAY_BE_THERE: BatchState.IN_DOUBT,
        BatchEvent.ID_TAKEN_BACK: BatchState.SEALED,
        BatchEvent.DIVIDED: BatchState.REPLACED,
        BatchEvent.MERGED: BatchState.REPLACED,
        BatchEvent.KEPT: BatchState.REJECTED,
        BatchEvent.UNKNOWABLE: BatchState.UNDECIDABLE,
    },
    BatchState.SENT: {
        BatchEvent.ACKNOWLEDGED: BatchState.ACKED,
        BatchEvent.NOT_APPENDED: BatchState.PREPARED,
        BatchEvent.UNCERTAIN: BatchState.IN_DOUBT,
        BatchEvent.REFUSED: BatchState.REFUSED,
    },
    BatchState.IN_DOUBT: {
        BatchEvent.SENDS: BatchState.SENT,
        BatchEvent.FOUND: BatchState.ACKED,
        BatchEvent.ABSENT: BatchState.PREPARED,
        BatchEvent.ABSENT_CONDEMNED: BatchState.REFUSED,
        BatchEvent.UNKNOWABLE: BatchState.UNDECIDABLE,
        BatchEvent.KEPT: BatchState.REJECTED,
    },
    BatchState.ACKED: {BatchEvent.COMMITTED: BatchState.COMMITTED},
    BatchState.REFUSED: {
        BatchEvent.PASSED_BY: BatchState.PREPARED,
        BatchEvent.MAY_BE_THERE: BatchState.IN_DOUBT,
        BatchEvent.DIVIDED: BatchState.REPLACED,
        BatchEvent.KEPT: BatchState.REJECTED,
    },
    BatchState.UNDECIDABLE: {
        BatchEvent.RESENT: BatchState.PREPARED,
        BatchEvent.RESENT_UNCHOSEN: BatchState.SEALED,
        BatchEvent.SKIPPED: BatchState.ACKED,
    },
    BatchState.COMMITTED: {BatchEvent.LOST: BatchState.SEALED},
    BatchState.REJECTED: {},
    BatchState.REPLACED: {},
}

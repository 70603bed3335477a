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
    """Part of a unit, which delivers it (`units`)."""
    PREPARED = "prepared"
    """It may be sent. It has an id, and is durable with it, unless `durable_first` is off."""
    SENT = "sent"
    IN_DOUBT = "in_doubt"
    ACKED = "acked"
    COMMITTED = "committed"
    """The mark that it is acknowledged is durable."""
    REFUSED = "refused"
    """It waits until all batches that were in flight with it have their answers."""
    REJECTED = "rejected"
    REPLACED = "replaced"
    UNDECIDABLE = "undecidable"
    """The user decides."""

    __hash__ = object.__hash__  # Enum's is Python, and runs at each event


class BatchEvent(enum.Enum):
    """The events of a batch."""

    DURABLE = "durable"
    """It is on disk, with an id."""
    ID_DURABLE = "id durable"
    """It was on disk, and the mark that gives it an id is durable."""
    ID_IN_MEMORY = "id in memory"
    """It got an id, and need not be on disk before it is sent."""
    ID_TAKEN_BACK = "id taken back"
    """It was not appended under its id, and gets another one."""
    SENDS = "sends"
    """A request with it begins; for a batch in doubt, a probe whether replicas have it."""
    ACKNOWLEDGED = "acknowledged"
    NOT_APPENDED = "not appended"
    """The answer proves that it was not appended, for a temporary reason."""
    UNCERTAIN = "uncertain"
    """No answer came, or one that does not show whether it was appended."""
    REFUSED = "refused"
    """It was not appended, for a permanent reason."""
    PASSED_BY = "passed by"
    """It was refused, and is sent again in its turn: the answer was about another id, or a gap before it."""
    MAY_BE_THERE = "may be there"
    """A request with it, of this or an earlier incarnation, may have been appended."""
    FOUND = "found"
    """It is in the log."""
    ABSENT = "absent"
    """It is not in the log."""
    ABSENT_CONDEMNED = "absent and condemned"
    """It is not in the log, and the journal searched for it only before rejecting it."""
    UNKNOWABLE = "unknowable"
    """Whether it is in the log cannot be determined."""
    RESENT = "resent"
    """The user wants an undecidable batch sent."""
    RESENT_UNCHOSEN = "resent without a partition"
    """The same, of one whose partition was not even chosen."""
    SKIPPED = "skipped"
    """The user takes an undecidable batch as delivered."""
    COMMITTED = "committed"
    """The mark that it is acknowledged is durable, or not needed."""
    LOST = "lost"
    """The cluster lost it after all, and it is sent again."""
    KEPT = "kept"
    """A copy of it is durable in `rejected/`."""
    DIVIDED = "divided"
    MERGED = "merged"
    """It becomes one with the batches around it."""
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

"""A batch from `seal` to its fate: what is known of it, its states, and which moves between them are legal.

Nothing is decided in here. An illegal move is a bug and raises.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kafkasafe._core import units as u
from kafkasafe._core.identity import BatchId, sequence_distance
from kafkasafe._core.order import NEVER

__all__ = [
    "DAMAGED",
    "TOO_SLOW",
    "TRANSITIONS",
    "Batch",
    "Fate",
    "IllegalMoveError",
    "State",
    "follows",
    "id_fields",
]

DAMAGED: Final = -3
"""The code of a batch whose bytes are damaged in the spool: none of Kafka's."""

TOO_SLOW: Final = -4
"""The code of a batch that timed out too often, and is to be divided: none of Kafka's."""


class State(enum.Enum):
    """Where a batch is between `send()` and the end."""

    SEALED = "sealed"
    JOINED = "joined"
    """Part of a unit, which delivers it (`units`)."""
    PREPARED = "prepared"
    SENT = "sent"
    IN_DOUBT = "in_doubt"
    ACKED = "acked"
    COMMITTED = "committed"
    REFUSED = "refused"
    REJECTED = "rejected"
    REPLACED = "replaced"
    UNDECIDABLE = "undecidable"

    __hash__ = object.__hash__  # Enum's is Python, and runs at each move


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    # Durable with an id (or, for an id given later, once its mark is durable).
    State.SEALED: frozenset({State.PREPARED, State.REPLACED, State.REJECTED, State.UNDECIDABLE}),
    # Its unit is committed, or was given up.
    State.JOINED: frozenset({State.ACKED, State.REPLACED, State.REJECTED}),
    # Only a durable batch is ever sent. In doubt: a former life may have sent it. Sealed: its id was taken back.
    # Replaced: what waits becomes one batch with those around it.
    State.PREPARED: frozenset({State.SENT, State.IN_DOUBT, State.SEALED, State.REJECTED, State.REPLACED}),
    # Prepared again: the answer proves that it was not appended.
    State.SENT: frozenset({State.ACKED, State.PREPARED, State.IN_DOUBT, State.REFUSED}),
    # Sent: as a probe, under the same id, of what the leader says it has.
    # Refused: the broker failed on it for too long, and it is not in the log.
    State.IN_DOUBT: frozenset(
        {State.ACKED, State.PREPARED, State.UNDECIDABLE, State.SENT, State.REFUSED, State.REJECTED}
    ),
    # Committed: its mark is durable.
    State.ACKED: frozenset({State.COMMITTED}),
    # What the broker refused waits until everything sent beside it has its answer. In doubt: its state says otherwise.
    State.REFUSED: frozenset({State.PREPARED, State.REJECTED, State.REPLACED, State.IN_DOUBT}),
    # The user decides. Sealed again: its partition was not even chosen.
    State.UNDECIDABLE: frozenset({State.PREPARED, State.ACKED, State.SEALED}),
    # The cluster lost it after all.
    State.COMMITTED: frozenset({State.SEALED}),
    State.REJECTED: frozenset(),
    State.REPLACED: frozenset(),
}


class IllegalMoveError(RuntimeError):
    """A bug in kafkasafe: a batch was about to do what its state does not allow."""


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of one destination.

    Attributes:
        handle: Number of the batch in this life, ascending.
        destination: Destination number.
        count: Records in it, ≥ 1.
        size_bytes: Size of the whole batch.
        max_timestamp: Largest timestamp in it, ms since the epoch.
        position: In the spool; -1 while it is not there.
        identity: Its id, None while it has none.
        state: See `TRANSITIONS`.
        tries: How often it was sent in this life.
        durable: It, and the mark that gives it its id, are on disk.
        writing: It is on its way to the disk: it stays what it is until it has its position there.
        acked_early: It was acknowledged meanwhile; its commit mark needs that position.
        owed: Its records are on disk as part of another batch, which comes back until this one is durable.
        former_life: It was recovered: an earlier life may have sent it.
        unanswered: A request with it under its id may still be on its way, or have been appended unnoticed.
        base_offset: In the partition, -1 while unknown.
        place: The same once it is committed, or, where that was never learned, what it is not before.
        code: Why it was refused, Kafka's error code.
        message: The same for people.
        bad_records: (index, message) of the records that the broker named.
        doomed: The broker named every record in it as bad: rejected when its turn comes, without another try.
        overdue: It was refused for longer than anything is waited for, for a reason that might have passed.
        condemned: Refused as soon as it is proven that it is not in the log.
        unconfirmed: The broker says that it was not appended; its state was not looked at yet.
        parent: The refused batch it is a part of: it stands in the parent's place.
        rank: Sorts durable batches of a partition as their records were accepted.
        heirs: Its own parts that are not finished.
        revived: The cluster lost it after acknowledging it: it is sent again.
        origin: Where in the spool its records stood before partitions were chosen for them; -1 if nowhere else.
        unit: What it is a part of: delivered together, or not at all.
        given: Of a batch whose partitions are to be chosen, the runs of records whose partition was given (see
            `marks.Given`); None where no mark is needed, or there.
        timeouts: How often in a row a request with it timed out.
        gathered: It was made of several, which had waited.
    """

    handle: int
    destination: int
    count: int
    size_bytes: int
    max_timestamp: int
    position: int = -1
    identity: BatchId | None = None
    state: State = State.SEALED
    tries: int = 0
    durable: bool = False
    writing: bool = False
    acked_early: bool = False
    owed: bool = False
    former_life: bool = False
    unanswered: bool = False
    base_offset: int = -1
    place: int = -1
    code: int = 0
    message: str = ""
    bad_records: tuple[tuple[int, str], ...] = ()
    doomed: bool = False
    overdue: bool = False
    condemned: bool = False
    unconfirmed: bool = False
    parent: Batch | None = None
    rank: tuple[int, ...] = ()
    heirs: int = 0
    revived: bool = False
    origin: int = -1
    unit: u.Unit | None = None
    given: tuple[tuple[int, int, int], ...] | None = None
    timeouts: int = 0
    gathered: bool = False

    def settle_at(self, position: int) -> None:
        """It is in the spool."""
        self.position = position
        self.rank = (position,) if self.parent is None else (*self.parent.rank, position)

    @property
    def written_at(self) -> int:
        """Where its records stood first in the spool; `order.NEVER` while they are only in memory."""
        if self.origin >= 0:
            return self.origin
        return self.rank[0] if self.rank else NEVER

    def move(self, to: State) -> None:
        """Change state; raises IllegalMoveError if `TRANSITIONS` does not allow it."""
        if to not in TRANSITIONS[self.state]:
            raise IllegalMoveError(f"{self} cannot become {to.value}")
        self.state = to
        if to is State.IN_DOUBT:
            self.unanswered = True


class Fate(enum.Enum):
    """How a batch ended."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    REPLACED = "replaced"
    DROPPED = "dropped"
    """With its unit, which nobody wants any more."""


def follows(later: BatchId, earlier: BatchId) -> bool:
    """The leader took `later` behind `earlier`, or they are the same."""
    same = (later.producer_id, later.producer_epoch) == (earlier.producer_id, earlier.producer_epoch)
    return same and sequence_distance(earlier.last_sequence, later.last_sequence) >= 0


def id_fields(identity: BatchId) -> tuple[int, int, int]:
    return identity.producer_id, identity.producer_epoch, identity.base_sequence

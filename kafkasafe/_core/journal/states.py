"""A batch from `seal` to its fate: what is known of it, and what changes that.

What it is after an event is in `lifecycle`. Nothing is decided in here. An illegal event is a bug, and raises.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kafkasafe._core import units as u
from kafkasafe._core.identity import BatchId, sequence_distance
from kafkasafe._core.journal.lifecycle import STATE, BatchEvent, State
from kafkasafe._core.order import NEVER

__all__ = [
    "DAMAGED",
    "TOO_SLOW",
    "Batch",
    "Fate",
    "IllegalMoveError",
    "State",
    "batches_of",
    "follows",
    "id_fields",
]

DAMAGED: Final = -3
"""The code of a batch whose bytes are damaged in the spool: none of Kafka's."""

TOO_SLOW: Final = -4
"""The code of a batch that timed out too often, and is to be divided: none of Kafka's."""


class IllegalMoveError(RuntimeError):
    """A bug in kafkasafe: something happened to a batch that cannot happen in its state."""


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
        state: See `lifecycle.STATE`.
        tries: How often it was sent in this life.
        durable: It, and the mark that gives it its id, are on disk.
        writing: It is on its way to the disk: it stays what it is until it has its position there.
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

    # -- its place in the spool ----------------------------------------------------------------------------------------

    @property
    def written_at(self) -> int:
        """Where its records were first written in the spool; `order.NEVER` while they are only in memory."""
        if self.origin >= 0:
            return self.origin
        return self.rank[0] if self.rank else NEVER

    def write(self) -> None:
        """It is passed to the disk."""
        self.writing = True

    def written(self, position: int) -> None:
        """It is durable at this position."""
        self.settle_at(position)
        self.durable = True
        self.writing = False

    def settle_at(self, position: int) -> None:
        """It is in the spool at this position, and is as old as that, or as its parent."""
        self.position = position
        self.rank = (position,) if self.parent is None else (*self.parent.rank, position)

    def copied(self, position: int) -> None:
        """A copy at this position replaces it. Its rank stays, so that it is as old as before."""
        self.parent = None
        self.position = position

    def read_place(self, rank: tuple[int, ...], origin: int) -> None:
        """A mark says how old it is, and where its records were first written."""
        self.rank, self.origin = rank, origin

    def come_from(self, position: int) -> None:
        """Its records were first written there, before partitions were chosen for them; -1: nowhere else."""
        self.origin = position

    # -- what it is a part of ------------------------------------------------------------------------------------------

    def join(self, unit: u.Unit) -> None:
        """It is delivered with this unit."""
        self.unit, self.state = unit, State.JOINED

    def choose(self, given: tuple[tuple[int, int, int], ...] | None) -> None:
        """Of these records the partition was given."""
        self.given = given

    def stand_for(self, parent: Batch) -> None:
        """It is a part of this batch, and stands in its place."""
        self.parent = parent
        parent.add_heir()

    def inherit(self, parent: Batch, *, doomed: bool) -> None:
        """It is a part of this batch, which was refused: only the parent's position tells recovery where it stands."""
        self.doomed = doomed
        self.blame(parent.code, parent.message)
        self.overdue = parent.overdue
        self.stand_for(parent)

    def gather(self, first: Batch, identity: BatchId) -> None:
        """It is made of several batches, of which this is the first, and has their sequences."""
        self.identity = identity
        self.gathered = self.owed = True
        self.stand_for(first)

    def owe(self, *, owed: bool) -> None:
        """Its records are on disk as part of another batch, or not."""
        self.owed = owed

    def add_heir(self) -> None:
        """It has another part."""
        self.heirs += 1

    def lose_heir(self) -> int:
        """One of its parts is finished. How many are not."""
        self.heirs -= 1
        return self.heirs

    # -- requests ------------------------------------------------------------------------------------------------------

    def identify(self, identity: BatchId | None) -> None:
        """It gets an id, or has none any more."""
        self.identity = identity

    def take_back_id(self) -> None:
        """It has no id any more, and no request with it under that id can be appended."""
        self.identity = None
        self.unanswered = False

    def send(self) -> None:
        """A request with it begins."""
        self.on(BatchEvent.SENDS)
        self.tries += 1

    def may_arrive(self, *, possible: bool) -> None:
        """Whether a request with it under its id may still be appended, or have been appended unnoticed."""
        self.unanswered = possible

    def time_out(self) -> None:
        """A request with it timed out."""
        self.timeouts += 1

    def locate(self, base_offset: int) -> None:
        """It is at this offset; -1: somewhere."""
        self.base_offset = base_offset

    def place_at(self, offset: int) -> None:
        """It is at this offset, or behind it."""
        self.place = offset

    def relocate(self, base_offset: int) -> None:
        """It was found at another offset than that of its acknowledgement."""
        self.base_offset = self.place = base_offset

    def revive(self) -> None:
        """The cluster lost it: it is sent again as a new batch."""
        self.on(BatchEvent.LOST)
        self.take_back_id()
        self.base_offset = -1
        self.parent = None
        self.unit = None
        self.revived = True

    def revive_part(self) -> None:
        """It is a part of a batch that is sent again after a loss."""
        self.revived = True

    # -- refusals ------------------------------------------------------------------------------------------------------

    def blame(self, code: int, message: str) -> None:
        """Why it was refused, or is to be."""
        self.code, self.message = code, message

    def blame_records(self, bad_records: tuple[tuple[int, str], ...]) -> None:
        """The broker named these records of it."""
        self.bad_records = bad_records

    def refuse_for_long(self, *, overdue: bool) -> None:
        """Whether it was refused for longer than anything is waited for."""
        self.overdue = overdue

    def check_absence(self, *, wanted: bool) -> None:
        """Whether its absence is to be compared with the state that the leader has of it."""
        self.unconfirmed = wanted

    def condemn(self, code: int, message: str) -> None:
        """It is refused as soon as it is proven that it is not in the log."""
        self.condemned = True
        self.blame(code, message)

    def pardon(self) -> None:
        """It is not: what was to be proven is decided."""
        self.condemned = False

    # -- its state -----------------------------------------------------------------------------------------------------

    def on(self, event: BatchEvent) -> None:
        """Something happened to it; raises IllegalMoveError if that cannot happen in its state."""
        to = STATE[self.state].get(event)
        if to is None:
            raise IllegalMoveError(f"{event.name} cannot happen to a batch that is {self.state.name}: {self}")
        self.state = to
        if to is State.IN_DOUBT:
            self.unanswered = True

    def read_id(self, identity: BatchId | None) -> None:
        """The log says which id it has."""
        self.identity = identity
        self.state = State.SEALED if identity is None else State.PREPARED

    def read_fate(self, state: State) -> None:
        """The log says how it ended."""
        self.state = state


class Fate(enum.Enum):
    """How a batch ended."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    REPLACED = "replaced"
    DROPPED = "dropped"
    """With its unit, which nobody wants any more."""


def batches_of(unit: u.Unit) -> list[Batch]:
    """The batches of a unit, in the order in which they were accepted."""
    return [batch for batch in unit.batches if isinstance(batch, Batch)]


def follows(later: BatchId, earlier: BatchId) -> bool:
    """The leader took `later` behind `earlier`, or they are the same."""
    same = (later.producer_id, later.producer_epoch) == (earlier.producer_id, earlier.producer_epoch)
    return same and sequence_distance(earlier.last_sequence, later.last_sequence) >= 0


def id_fields(identity: BatchId) -> tuple[int, int, int]:
    return identity.producer_id, identity.producer_epoch, identity.base_sequence

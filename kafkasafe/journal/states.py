"""The data of a batch, from `seal` to its fate, with the methods that change it. It decides nothing.

`lifecycle` has the state that follows each event. An illegal event is a bug, and raises.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from kafkasafe import units as u
from kafkasafe.history.identity import BatchId, sequence_distance
from kafkasafe.journal.lifecycle import STATE, BatchEvent, BatchState, IllegalMoveError
from kafkasafe.journal.order import NEVER

__all__ = [
    "DAMAGED",
    "TOO_SLOW",
    "Batch",
    "BatchState",
    "Fate",
    "batches_of",
    "follows",
    "id_fields",
]

DAMAGED: Final = -3
"""The code of a batch whose bytes are damaged in the spool; not one of Kafka's."""

TOO_SLOW: Final = -4
"""The code of a batch that timed out too often and will be divided; not one of Kafka's."""


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of one destination.

    Attributes:
        handle: Number of the batch in this incarnation, ascending.
        destination: Destination number.
        count: Records in it, ≥ 1.
        size_bytes: Size of the whole batch.
        max_timestamp: Largest timestamp in it, ms since the epoch.
        position: In the spool; -1 while it is not there.
        identity: Its id, None while it has none.
        state: See `lifecycle.STATE`.
        tries: How often the batch was sent in this incarnation.
        durable: The batch and the mark with its id are on disk.
        writing: The disk is writing the batch, which must not change until it has its position.
        owed: The records are also on disk in another batch. Until this batch is durable, recovery would restore that
            other one.
        former_life: Recovery read the batch: an earlier incarnation may have sent it.
        unanswered: A broker may still append a request with this batch and id, or may have appended one unnoticed.
        base_offset: In the partition, -1 while unknown.
        place: `base_offset` once the batch is committed, or a lower bound if that offset is unknown.
        code: Why it was refused, Kafka's error code.
        message: The same as human-readable text.
        bad_records: (index, message) of the records that the broker named.
        doomed: The broker named every record as bad: the journal rejects the batch in its turn, without another try.
        overdue: The cluster refused the batch for longer than the limit, for a reason that might have been temporary.
        condemned: The journal rejects the batch as soon as the cluster proves that it is not in the log.
        unconfirmed: The broker says that it did not append the batch; the producer state was not checked yet.
        parent: The divided batch that this one is a part of. The part takes its parent's place in the order.
        rank: Sorts durable batches of a partition in the order in which their records were accepted.
        heirs: Number of its own unfinished parts.
        revived: The cluster acknowledged and then lost the batch, so it is sent again.
        origin: Spool position where its records were first written, if that was in another batch, which this one
            replaces; otherwise -1 (see `written_at`).
        unit: The unit to which the batch belongs. A unit is delivered as a whole or not at all.
        given: For a batch whose partitions are not chosen yet: for which runs of records the caller gave the partition
            (see `marks.Given`). None if the batch needs no mark, or the mark is durable.
        timeouts: How often in a row a request with the batch timed out.
        gathered: The batch was merged from several waiting batches.
    """

    handle: int
    destination: int
    count: int
    size_bytes: int
    max_timestamp: int
    position: int = -1
    identity: BatchId | None = None
    state: BatchState = BatchState.SEALED
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
        """Spool position where its records were first written; `order.NEVER` while they are only in memory."""
        if self.origin >= 0:
            return self.origin
        return self.rank[0] if self.rank else NEVER

    def write(self) -> None:
        """Note that the disk begins to write it."""
        self.writing = True

    def written(self, position: int) -> None:
        """Note that the batch is durable at this position."""
        self.settle_at(position)
        self.durable = True
        self.writing = False

    def settle_at(self, position: int) -> None:
        """Set the batch's position in the spool, and derive its rank from that, or from its parent's rank."""
        self.position = position
        self.rank = (position,) if self.parent is None else (*self.parent.rank, position)

    def copied(self, position: int) -> None:
        """Note that a copy at this position replaces the batch. Its rank, and so its place in the order, stays the
        same.
        """
        self.parent = None
        self.position = position

    def read_place(self, rank: tuple[int, ...], origin: int) -> None:
        """Take from a mark the batch's rank, and the position where its records were first written."""
        self.rank, self.origin = rank, origin

    def come_from(self, position: int) -> None:
        """Set the position where its records were first written, in a batch that this one replaces; -1: in none."""
        self.origin = position

    # -- units, parents and parts --------------------------------------------------------------------------------------

    def join(self, unit: u.Unit) -> None:
        """Make it a batch of this unit."""
        self.unit, self.state = unit, BatchState.JOINED

    def choose(self, given: tuple[tuple[int, int, int], ...] | None) -> None:
        """Set for which runs of records the caller gave the partition."""
        self.given = given

    def stand_for(self, parent: Batch) -> None:
        """Make the batch a part of `parent`, which takes the parent's place."""
        self.parent = parent
        parent.add_heir()

    def inherit(self, parent: Batch, *, doomed: bool) -> None:
        """Make it a part of this refused batch. Recovery derives the part's place from the parent's position alone."""
        self.doomed = doomed
        self.blame(parent.code, parent.message)
        self.overdue = parent.overdue
        self.stand_for(parent)

    def gather(self, first: Batch, identity: BatchId) -> None:
        """Make this the result of merging several batches, whose first is `first`. It has the sequences
        of all of them.
        """
        self.identity = identity
        self.gathered = self.owed = True
        self.stand_for(first)

    def owe(self, *, owed: bool) -> None:
        """Set whether the batch's records are also on disk in another batch."""
        self.owed = owed

    def add_heir(self) -> None:
        """Count another part."""
        self.heirs += 1

    def lose_heir(self) -> int:
        """Note that one of its parts is finished. Returns how many are not."""
        self.heirs -= 1
        return self.heirs

    # -- requests ------------------------------------------------------------------------------------------------------

    def identify(self, identity: BatchId | None) -> None:
        """Set or remove its id."""
        self.identity = identity

    def take_back_id(self) -> None:
        """Remove the batch's id: no broker can append a request under that id any more, and none has."""
        self.identity = None
        self.unanswered = self.unconfirmed = False

    def send(self) -> None:
        """Note that a request with it begins."""
        self.on(BatchEvent.SENDS)
        self.tries += 1

    def send_in_unit(self) -> None:
        """Note that a request with the batch begins, in the transaction of its unit."""
        self.tries += 1

    def may_arrive(self, *, possible: bool) -> None:
        """Set whether a broker may still append a request with this batch and id, or may have appended
        one unnoticed.
        """
        self.unanswered = possible

    def time_out(self) -> None:
        """Note that a request with it timed out."""
        self.timeouts += 1

    def locate(self, base_offset: int) -> None:
        """Set its offset; -1: unknown."""
        self.base_offset = base_offset

    def place_at(self, offset: int) -> None:
        """Set its offset, or a lower bound of it."""
        self.place = offset

    def relocate(self, base_offset: int) -> None:
        """Set the batch's offset, which differs from the offset in the acknowledgement."""
        self.base_offset = self.place = base_offset

    def revive(self) -> None:
        """Prepare the batch to be sent again as a new one: the cluster lost it."""
        self.on(BatchEvent.LOST)
        self.take_back_id()
        self.base_offset = -1
        self.parent = None
        self.unit = None
        self.revived = True

    def revive_part(self) -> None:
        """Note that this is a part of a batch that is sent again after a loss."""
        self.revived = True

    # -- refusals ------------------------------------------------------------------------------------------------------

    def blame(self, code: int, message: str) -> None:
        """Set why the cluster refused the batch, or why the journal will reject it."""
        self.code, self.message = code, message

    def blame_records(self, bad_records: tuple[tuple[int, str], ...]) -> None:
        """Set the records that the broker named as bad."""
        self.bad_records = bad_records

    def refuse_for_long(self, *, overdue: bool) -> None:
        """Set whether the cluster refused the batch for longer than the limit."""
        self.overdue = overdue

    def check_absence(self, *, wanted: bool) -> None:
        """Set whether the batch's absence has yet to be compared with the leader's producer state."""
        self.unconfirmed = wanted

    def condemn(self, code: int, message: str) -> None:
        """Reject the batch as soon as the cluster proves that it is not in the log."""
        self.condemned = True
        self.blame(code, message)

    def pardon(self) -> None:
        """Revoke `condemn`: the journal knows by now whether the log has the batch."""
        self.condemned = False

    # -- its state -----------------------------------------------------------------------------------------------------

    def on(self, event: BatchEvent) -> None:
        """Take an event; raises IllegalMoveError if it is not possible in the batch's state."""
        to = STATE[self.state].get(event)
        if to is None:
            raise IllegalMoveError(f"{event.name} cannot happen to a batch that is {self.state.name}: {self}")
        self.state = to
        if to is BatchState.IN_DOUBT:
            self.unanswered = True
            self.bad_records = ()  # the refusal that named them is contradicted
        elif to is BatchState.ACKED:
            self.condemned = False
        elif event is BatchEvent.PASSED_BY:
            self.unconfirmed, self.bad_records = False, ()

    def read_id(self, identity: BatchId | None) -> None:
        """Take its id from the spool."""
        self.identity = identity
        self.state = BatchState.SEALED if identity is None else BatchState.PREPARED

    def read_fate(self, state: BatchState) -> None:
        """Take its fate from the spool."""
        self.state = state


class Fate(enum.Enum):
    """How a batch ended."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    REPLACED = "replaced"
    DROPPED = "dropped"
    """The batch was dropped together with its unit."""


def batches_of(unit: u.Unit) -> list[Batch]:
    """The batches of a unit, in the order in which they were accepted."""
    return [batch for batch in unit.batches if isinstance(batch, Batch)]


def follows(later: BatchId, earlier: BatchId) -> bool:
    """Whether both have the same producer id and epoch, and `later` is not before `earlier`."""
    same = (later.producer_id, later.producer_epoch) == (earlier.producer_id, earlier.producer_epoch)
    return same and sequence_distance(earlier.last_sequence, later.last_sequence) >= 0


def id_fields(identity: BatchId) -> tuple[int, int, int]:
    return identity.producer_id, identity.producer_epoch, identity.base_sequence

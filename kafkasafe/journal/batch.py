"""A batch from `seal` to its end: its states and events, the table of transitions `STATE`, and its data.

This module decides nothing. An event for which `STATE` has no entry is a bug, and raises IllegalMoveError.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.order import NEVER


class IllegalMoveError(RuntimeError):
    """A bug in kafkasafe: an event that is not possible in the state of a batch, or in the flow of a partition."""


class BatchState(enum.Enum):
    """The state of a batch between `send()` and its end."""

    SEALED = "sealed"
    JOINED = "joined"
    """The batch is part of a unit (an atomic batch), and `units` delivers it."""
    PREPARED = "prepared"
    """The batch has an id and may be sent. The batch and its id are durable if `durable_first` is on."""
    SENT = "sent"
    IN_DOUBT = "in_doubt"
    ACKED = "acked"
    COMMITTED = "committed"
    """The mark that records the acknowledgement is durable."""
    REFUSED = "refused"
    """The broker refused the batch. The batch waits until all batches that were in flight with it have their answers.
    """
    REJECTED = "rejected"
    REPLACED = "replaced"
    UNDECIDABLE = "undecidable"
    """The journal cannot determine whether the batch is in the log, so the user decides whether to send it again."""

    __hash__ = object.__hash__  # Enum's own __hash__ is Python code, too slow to run at each event


class BatchEvent(enum.Enum):
    """The events of a batch."""

    DURABLE = "durable"
    """The batch is on disk, with an id."""
    ID_DURABLE = "id durable"
    """The batch was already on disk, and now the mark that gives it an id is durable."""
    ID_IN_MEMORY = "id in memory"
    """The batch got an id, and the journal may send it before it is on disk."""
    ID_TAKEN_BACK = "id taken back"
    """The broker did not append the batch under its id, so the batch will get another id."""
    SENDS = "sends"
    """The journal sends a request with the batch. If the batch is in doubt, the request is a probe, which shows whether
    the replicas have the batch.
    """
    ACKNOWLEDGED = "acknowledged"
    NOT_APPENDED = "not appended"
    """The answer proves that the broker did not append the batch, and the reason is temporary."""
    UNCERTAIN = "uncertain"
    """No answer came, or the answer does not show whether the batch was appended."""
    REFUSED = "refused"
    """The broker did not append the batch, and the reason is permanent."""
    PASSED_BY = "passed by"
    """The journal will send the refused batch again when its turn comes. The broker refused the batch's old id, a gap
    before the batch, or the destination.
    """
    MAY_BE_THERE = "may be there"
    """A broker may have appended the batch, because this or an earlier incarnation may have sent it."""
    FOUND = "found"
    """The batch is in the log."""
    ABSENT = "absent"
    """The batch is not in the log."""
    ABSENT_CONDEMNED = "absent and condemned"
    """The log does not have the batch, and the journal wants to reject or divide the batch."""
    UNKNOWABLE = "unknowable"
    """The journal cannot determine whether the batch is in the log."""
    RESENT = "resent"
    """The user decided to send an undecidable batch."""
    RESENT_UNCHOSEN = "resent without a partition"
    """The user decided to send an undecidable batch whose partition has not been chosen yet."""
    SKIPPED = "skipped"
    """The user decided to treat an undecidable batch as delivered."""
    COMMITTED = "committed"
    """The mark that records the acknowledgement is durable, or the batch was never on disk and needs no mark."""
    LOST = "lost"
    """The cluster lost the acknowledged batch, and the journal sends it again."""
    KEPT = "kept"
    """A copy of the batch is durable in `rejected/`."""
    DIVIDED = "divided"
    MERGED = "merged"
    """The batch is merged with its neighbours into one batch."""
    UNIT_COMMITTED = "unit committed"
    UNIT_ENDED = "unit ended"
    """The unit (atomic batch) to which the batch belongs was given up."""

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


DAMAGED: Final = -3
"""The code of a batch whose bytes are damaged in the spool; not a Kafka error code."""
TOO_SLOW: Final = -4
"""The code of a batch that timed out too often and will be divided; not a Kafka error code."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why the cluster refused a batch, or why the journal will reject it. Nearly all batches have `NO_FAULT`. A batch
    keeps its fault when it is sent again. The journal does not pack or merge a batch whose `code` is not 0.
    """

    code: int = 0
    """Kafka's error code, or DAMAGED, TOO_SLOW, or a code from `kafkasafe.units`. Invariant: set in REFUSED."""
    message: str = ""
    """The reason for `code` as human-readable text; in UNDECIDABLE, the evidence instead. Invariant: not
    empty if the batch is UNDECIDABLE, or if `code` is not 0.
    """
    bad_records: tuple[tuple[int, str], ...] = ()
    """(index, message) of the records that the broker named as bad, for the division of a REFUSED batch. Invariant:
    set only in REFUSED and the final states, and only if `code` is set. The broker may name records that do not exist.
    """
    unconfirmed: bool = False
    """The broker says (by a refusal, or by error 59) that it did not append the batch, and the journal has not checked
    the broker's producer state yet. Invariant: true only in REFUSED, PREPARED and IN_DOUBT, and only if the batch has
    an id.
    """
    condemned: bool = False
    """The journal rejects or divides the batch as soon as the cluster proves that the batch is not in the log. The
    proof makes the batch REFUSED. Invariant: if true, `code` is not 0, and the batch is IN_DOUBT, is SENT as a probe,
    or went directly from IN_DOUBT to UNDECIDABLE or REJECTED.
    """
    overdue: bool = False
    """The cluster refused the batch for longer than the limit, for a reason that might have been temporary. `overdue`
    stays set, and the parts of a divided batch inherit it.
    """
    doomed: bool = False
    """The broker named every record of the batch as bad, so the journal will reject the batch in its turn, without
    sending it. Invariant: the batch is REJECTED, or it is SEALED and has no id.
    """

    def after(self, event: BatchEvent, to: BatchState) -> Fault:
        """The new fault of a batch whose state `event` has changed to `to`."""
        if to is BatchState.ACKED:
            return replace(self, condemned=False)
        if to is BatchState.IN_DOUBT:
            return replace(self, bad_records=())  # a broker may have appended the batch, despite the refusal
        if event is BatchEvent.PASSED_BY:
            return replace(self, unconfirmed=False, bad_records=())
        if event is BatchEvent.ID_TAKEN_BACK:
            return replace(self, unconfirmed=False)
        return self


NO_FAULT: Final = Fault()


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of one destination.

    The docstring of each field says in which states the field is set. After recovery, the invariants hold between any
    two calls of the journal. tests/journal/test_batch_invariants.py checks each invariant on seeded histories.
    """

    handle: int
    """Number of the batch in this incarnation (run of the producer), ascending."""
    destination: int
    """Destination number."""
    count: int
    """Number of records, at least 1."""
    size_bytes: int
    """Size of the whole batch."""
    max_timestamp: int
    """Largest timestamp of the records, ms since the epoch."""

    # -- its place in the spool

    position: int = -1
    """Position in the spool; -1 while the batch is not on disk."""
    identity: BatchId | None = None
    """Id of the batch, None while it has none.

    Invariant: set in PREPARED, SENT, IN_DOUBT and REFUSED; the id then covers `count` records. Never set in JOINED,
    because the batches of a unit (an atomic batch) get their sequences in the unit's transaction. A SEALED batch may
    have an id that is not durable yet.
    """
    state: BatchState = BatchState.SEALED
    """See `STATE`."""
    tries: int = 0
    """How many times this run of the producer has sent the batch. Invariant: positive in SENT."""
    durable: bool = False
    """The batch is on disk, even if its id is not. Invariant: set iff `position` >= 0."""
    writing: bool = False
    """The disk is writing the batch, which must not change until its position is known. Invariant: not set while
    durable.
    """
    owed: bool = False
    """This batch replaces other batches with the same records. The replaced batches are on disk: if the process ends
    before this batch is durable, recovery restores them. Invariant: never true for a batch that recovery read.
    """
    former_life: bool = False
    """Recovery read the batch from the lane's log, so an earlier run of the producer may have sent it. Never changes.
    """

    # -- requests

    unanswered: bool = False
    """A request with this batch, under its present id, got no answer, so a broker may have appended the batch, or may
    still append it.

    Invariant: set in IN_DOUBT; not set in SEALED, JOINED and REFUSED. In SEALED, JOINED and REFUSED, the journal may
    give the batch another id, or copy it to `rejected/`. If a broker then appended the unanswered request, the batch
    would be in the log twice, or both in the log and in `rejected/`.
    """
    timeouts: int = 0
    """How many requests with the batch timed out while the batch was the first of its queue. Invariant: at most
    `tries`.
    """
    base_offset: int = -1
    """Base offset of the batch in the partition, -1 while unknown. Invariant: -1 unless ACKED or COMMITTED."""
    place: int = -1
    """`base_offset`, or a lower bound of it. A batch that is sent again after a loss keeps the value from before the
    loss. Invariant: in COMMITTED, set iff the batch has an id; in other states, set only if `revived` is true.
    """
    revived: bool = False
    """The cluster acknowledged and then lost the batch, so the journal sends the batch again. Invariant: if set, `unit`
    is None.
    """

    fault: Fault = NO_FAULT
    """Why the batch was or will be refused."""

    # -- other batches

    parent: Batch | None = None
    """The divided batch of which this batch is a part, or the first of the batches that were merged into this batch.
    This batch takes the parent's place in the order. Invariant: the parent is REPLACED.
    """
    rank: tuple[int, ...] = ()
    """Sort key of a partition's durable batches: the order in which the journal accepted their records. Invariant:
    empty iff `position` is -1.
    """
    heirs: int = 0
    """Number of unfinished batches whose `parent` is this batch. Invariant: 0 unless REPLACED."""
    origin: int = -1
    """Spool position where the batch's records were first written; -1 if `rank` begins with that position, or if the
    records are only in memory (see `written_at`). Invariant: lower than `position`, unless `position` is -1.
    """
    gathered: bool = False
    """The batch was merged from several waiting batches. Invariant: if set, `owed` is set."""
    unit: u.Unit | None = None
    """The unit (atomic batch) to which the batch belongs. Invariant: always set in JOINED, sometimes in ACKED and the
    final states, never in other states.
    """
    given: tuple[tuple[int, int, int], ...] | None = None
    """Ranges of records for which the caller gave the partition, in the form of `marks.Given`. The partitions of the
    batch's other records are not chosen yet. None if the batch needs no GIVEN mark. Invariant: if `given` is set, the
    batch has no id.
    """

    # -- its place in the spool ----------------------------------------------------------------------------------------

    @property
    def written_at(self) -> int:
        """Spool position where the batch's records were first written (`order.NEVER`: only in memory)."""
        if self.origin >= 0:
            return self.origin
        return self.rank[0] if self.rank else NEVER

    @property
    def is_copy(self) -> bool:
        """Whether the batch was copied forward."""
        return bool(self.rank) and self.rank[-1] != self.position

    def write(self) -> None:
        """Note that the write of this batch to the disk begins."""
        self.writing = True

    def written(self, position: int) -> None:
        """Note that the batch is durable at this position, with its id if it has one."""
        self.settle_at(position)
        self.durable = True
        self.writing = False
        if self.state is BatchState.SEALED and self.identity is not None:
            self.on(BatchEvent.DURABLE)

    def settle_at(self, position: int) -> None:
        """Set the batch's position in the spool, and derive its rank from the position. The rank of a part begins with
        its parent's rank.
        """
        self.position = position
        self.rank = (position,) if self.parent is None else (*self.parent.rank, position)

    def copied(self, position: int) -> None:
        """Note that a copy at this position replaces the batch. The batch keeps its rank, and therefore its place in
        the order.
        """
        self.parent = None
        self.position = position

    def read_place(self, rank: tuple[int, ...], origin: int) -> None:
        """Take over, from a mark, the batch's rank and the position where its records were first written."""
        self.rank, self.origin = rank, origin

    # -- units, parents and parts --------------------------------------------------------------------------------------

    def join(self, unit: u.Unit) -> None:
        """Note that the batch belongs to this unit (atomic batch)."""
        self.unit, self.state = unit, BatchState.JOINED

    def stand_for(self, parent: Batch) -> None:
        """Make the batch a part of `parent`. The part takes the parent's place."""
        self.parent = parent
        parent.add_heir()

    def inherit(self, parent: Batch, *, doomed: bool) -> None:
        """Make the batch a part of the refused batch `parent`. Recovery derives the part's place from the parent's
        position alone.
        """
        blame = parent.fault
        self.fault = Fault(blame.code, blame.message, overdue=blame.overdue, doomed=doomed)
        self.stand_for(parent)

    def gather(self, first: Batch, identity: BatchId) -> None:
        """Merge several batches into this batch, which gets the sequences of all of them, and the place of the first
        one, `first`, in the queue.
        """
        self.identity = identity
        self.gathered = self.owed = True
        self.stand_for(first)

    def add_heir(self) -> None:
        """Count another part."""
        self.heirs += 1

    def lose_heir(self) -> int:
        """Note that one of the batch's parts is finished. Returns how many parts are still unfinished."""
        self.heirs -= 1
        return self.heirs

    # -- requests ------------------------------------------------------------------------------------------------------

    def identify(self, identity: BatchId | None) -> None:
        """Set the batch's id, or remove it."""
        self.identity = identity

    def take_back_id(self) -> None:
        """Remove the batch's id. No broker has appended a request under this id, and none can any more."""
        self.identity = None
        self.unanswered = False

    def send(self) -> None:
        """Note that the journal sends a request with the batch."""
        self.on(BatchEvent.SENDS)
        self.tries += 1

    def send_in_unit(self) -> None:
        """Note that the batch is sent in the transaction of its unit (atomic batch)."""
        self.tries += 1

    def may_arrive(self, *, possible: bool) -> None:
        """Set `unanswered`: whether an unanswered request may have put, or may still put, this batch into the log under
        its present id.
        """
        self.unanswered = possible

    def time_out(self) -> None:
        """Note that a request with the batch timed out."""
        self.timeouts += 1

    def locate(self, base_offset: int) -> None:
        """Set the batch's base offset; -1: unknown."""
        self.base_offset = base_offset

    def place_at(self, offset: int) -> None:
        """Set `place`: the batch's base offset, or a lower bound of it."""
        self.place = offset

    def relocate(self, base_offset: int) -> None:
        """Set the base offset at which a survey found the batch, although the acknowledgement named another offset."""
        self.base_offset = self.place = base_offset

    def revive(self) -> None:
        """Prepare the batch to be sent again as a new one, because the cluster lost it."""
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
        """Set the reason why the cluster refused the batch, or why the journal will reject it."""
        self.fault = replace(self.fault, code=code, message=message)

    def refuse(
        self,
        code: int,
        message: str,
        bad_records: tuple[tuple[int, str], ...] = (),
        *,
        unconfirmed: bool = False,
    ) -> None:
        """Note a permanent refusal, which may name bad records. `unconfirmed`: the journal still has to confirm the
        refusal.
        """
        self.on(BatchEvent.REFUSED)
        self.fault = replace(
            self.fault,
            code=code,
            message=message,
            bad_records=bad_records,
            unconfirmed=unconfirmed or self.fault.unconfirmed,
        )

    def refuse_for_long(self, *, overdue: bool) -> None:
        """Set whether the cluster has refused the batch for longer than the limit."""
        if overdue != self.fault.overdue:
            self.fault = replace(self.fault, overdue=overdue)

    def check_absence(self, *, wanted: bool) -> None:
        """Set whether the leader's producer state must still confirm that the batch is absent."""
        if wanted != self.fault.unconfirmed:
            self.fault = replace(self.fault, unconfirmed=wanted)

    def condemn(self, code: int, message: str) -> None:
        """Make the journal reject or divide the batch as soon as the cluster proves that the log does not have the
        batch.
        """
        self.fault = replace(self.fault, code=code, message=message, condemned=True)

    def pardon(self) -> None:
        """Revoke `condemn`, because the journal now knows whether the log has the batch."""
        if self.fault.condemned:
            self.fault = replace(self.fault, condemned=False)

    # -- its state -----------------------------------------------------------------------------------------------------

    def on(self, event: BatchEvent) -> None:
        """Change the state as `STATE` says for this event. Raises IllegalMoveError if `STATE` has no entry for the
        event.
        """
        to = STATE[self.state].get(event)
        if to is None:
            raise IllegalMoveError(f"{event.name} cannot happen to a batch that is {self.state.name}: {self}")
        self.state = to
        if to is BatchState.IN_DOUBT:
            self.unanswered = True
        if self.fault is not NO_FAULT:
            self.fault = self.fault.after(event, to)

    def read_id(self, identity: BatchId | None) -> None:
        """Set the id that the spool has for the batch."""
        self.identity = identity
        self.state = BatchState.SEALED if identity is None else BatchState.PREPARED

    def read_commit(self, base_offset: int) -> None:
        """Note that the spool has a commit mark for the batch, with this offset (-1: unknown)."""
        self.state, self.base_offset = BatchState.COMMITTED, base_offset

    def read_fate(self, state: BatchState) -> None:
        """Set the final state that the spool's marks give for the batch."""
        self.state = state


class Fate(enum.Enum):
    """How a batch ended."""

    COMMITTED = "committed"
    REJECTED = "rejected"
    REPLACED = "replaced"
    DROPPED = "dropped"
    """The batch was dropped together with its unit."""


def batches_of(unit: u.Unit) -> list[Batch]:
    """The batches of a unit (atomic batch), in the order in which they were accepted."""
    return [batch for batch in unit.batches if isinstance(batch, Batch)]

"""Units, the transactions in which they are committed, and the transactional ids of those."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kafkasafe import marks as m
from kafkasafe.history.identity import add_sequence
from kafkasafe.units.content import Content, lines_of
from kafkasafe.units.terms import (
    OLDEST,
    TRANSITIONS,
    Grant,
    GroupPartition,
    IllegalStepError,
    Member,
    Phase,
    Reading,
)

__all__ = ["Entry", "Transaction", "TransactionalId", "Unit"]


@dataclass(slots=True, eq=False)
class Unit(Content):
    """What is delivered together.

    Attributes:
        number: Ascending within this incarnation: the order in which they were accepted.
        unit_id: 16 bytes.
        transactional_id: Given by the user; empty: one of the lane's own.
        offsets: Of consumer groups.
        readings: Of which readings of consumers the offsets are.
        recorded: The same as its READ mark has it; empty: it has none.
        batches: In order; what one is divided into takes its place.
        durable: It is on disk.
        position: Of the group that holds it, or before it.
        accepted_at: Of the group that held it first.
        phase: See `TRANSITIONS`.
        grant: Of its last try.
        sequences: By handle, what the batch is or was appended under.
        places: By handle, the offset where it is, -1 where the broker did not say.
        epochs: By handle, the leader epoch under which it was appended, -1 when unknown.
        tries: How often it went back to the line.
        resting: It waits for the end of a pause.
        code: Why it was refused, Kafka's error code.
        reason: The same for people.
        dropped: Its fate is REFUSED without being kept: its consumers read the same records again.
        ended: Its fate is decided.
        transaction: In which it is, perhaps with others; None: it waits in line, or was refused.
        group_lines: The offsets of groups that it moves.
    """

    number: int
    unit_id: bytes
    transactional_id: str
    offsets: tuple[m.GroupOffsets, ...]
    readings: dict[GroupPartition, Reading] = field(default_factory=dict)
    recorded: tuple[tuple[int, int], ...] = ()
    batches: list[Member] = field(default_factory=list)
    durable: bool = False
    position: int = -1
    accepted_at: int = -1
    phase: Phase = Phase.WAITING
    grant: Grant | None = None
    sequences: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    tries: int = 0
    resting: bool = False
    code: int = 0
    reason: str = ""
    dropped: bool = False
    ended: bool = False
    transaction: Transaction | None = None
    group_lines: tuple[GroupPartition, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.group_lines = lines_of(self.offsets)

    def __repr__(self) -> str:
        return f"<Unit {self.unit_id.hex()[:8]} {self.phase.value}>"

    # -- what it is ------------------------------------------------------------------------------------------------

    def note_readings(self) -> None:
        """Its READ mark has the readings of its offsets."""
        mine = map(self.reading, self.group_lines)
        self.recorded = tuple((each.number, each.start) for each in mine)

    def write(self, position: int) -> None:
        """It is durable."""
        self.durable, self.position = True, position

    def read(self, position: int, accepted_at: int) -> None:
        """It was read back: an earlier incarnation wrote it."""
        self.readings = dict.fromkeys(self.group_lines, Reading(OLDEST))
        self.durable, self.position, self.accepted_at = True, position, accepted_at

    def read_readings(
        self, entries: tuple[tuple[int, int], ...], readings: Mapping[GroupPartition, Reading]
    ) -> None:
        """Its READ mark was read back."""
        self.recorded = entries
        self.readings.update(readings)

    def renumber(self, number: int) -> None:
        """Its place among those that were read back."""
        self.number = number

    # -- its batches -----------------------------------------------------------------------------------------------

    def add(self, batch: Member) -> None:
        """Add a batch after the others."""
        self.batches.append(batch)

    def add_part(self, parent: Member, part: Member) -> None:
        """Add a part of a batch that is being divided, before that batch."""
        self.batches.insert(self.batches.index(parent), part)

    def remove(self, batch: Member) -> None:
        """Remove a batch whose parts are all added."""
        self.batches.remove(batch)

    def divide(self, batch: Member, parts: Sequence[Member]) -> None:
        """Replace a batch by its parts."""
        at = self.batches.index(batch)
        self.batches[at : at + 1] = parts

    # -- in a transaction ------------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> None:
        """Another try."""
        self.enter(transaction)
        self.grant = transaction.grant
        self.sequences.clear()
        self.places.clear()
        self.epochs.clear()

    def enter(self, transaction: Transaction) -> None:
        """It is in a transaction, which stands for it in the lines."""
        self.transaction = transaction

    def leave(self) -> None:
        """It stands for itself again."""
        self.transaction = None

    @property
    def peers(self) -> tuple[Unit, ...]:
        """Those in its transaction, itself included. From any thread."""
        transaction = self.transaction
        return (self,) if transaction is None else transaction.units

    def send(self, handle: int, sequence: int) -> None:
        """A batch is given out to be appended under this sequence."""
        self.sequences[handle] = sequence

    def append(self, handle: int, base_offset: int, leader_epoch: int) -> None:
        """A batch is in its log."""
        self.places[handle] = base_offset
        self.epochs[handle] = leader_epoch

    def read_epoch(self, handle: int, leader_epoch: int) -> None:
        """Its group names the leader epoch under which a batch was appended, unless that is known already."""
        self.epochs.setdefault(handle, leader_epoch)

    @property
    def placed(self) -> tuple[m.Placed, ...]:
        """Where its batches are, for its STAGED mark."""
        return tuple(
            m.Placed(
                batch.destination,
                batch.position,
                batch.count,
                self.sequences[batch.handle],
                self.places[batch.handle],
            )
            for batch in self.batches
        )

    def read_staged(self, grant: Grant, places: Sequence[m.Placed]) -> None:
        """An earlier incarnation staged it."""
        handles = {batch.position: batch.handle for batch in self.batches}
        # As they were: the first one says where the marker is.
        order = {place.position: index for index, place in enumerate(places)}
        self.batches.sort(key=lambda batch: order.get(batch.position, len(order)))
        for place in places:
            handle = handles.get(place.position)
            if handle is not None:
                self.sequences[handle] = place.base_sequence
                self.places[handle] = place.base_offset
        self.grant = grant
        self.phase = Phase.STAGED

    def read_begun(self) -> None:
        """A BEGUN mark was read back: what an earlier STAGED mark says is void."""
        self.sequences.clear()
        self.places.clear()

    def read_void(self) -> None:
        """Its transaction is not committed any more: it is prepared again."""
        self.phase = Phase.WAITING

    # -- its tries, and its fate -----------------------------------------------------------------------------------

    def count_try(self, reason: str) -> None:
        """It goes back to the line."""
        self.tries += 1
        self.code, self.reason = 0, reason

    def fail(self) -> None:
        """Its transaction is known to be aborted."""
        self.tries += 1

    def forget_tries(self) -> None:
        """What is divided is nearer to its end."""
        self.tries = 0

    def rest(self) -> None:
        """It waits for the end of a pause."""
        self.resting = True

    def wake(self) -> None:
        """The pause is over."""
        self.resting = False

    def blame(self, code: int, reason: str) -> None:
        """Why it is not delivered."""
        self.code, self.reason = code, reason

    def explain(self, reason: str) -> None:
        """Why a request of it failed."""
        self.reason = reason

    def drop(self, *, dropped: bool = True) -> None:
        """If it is refused, it is not kept: its consumers read the same records again."""
        self.dropped = dropped

    def pass_transaction(self) -> None:
        """It has nothing to deliver, so it is committed without a transaction."""
        self.phase = Phase.COMMITTED

    def read_over(self) -> None:
        """Its ENDED mark was read back."""
        self.phase = Phase.OVER

    def end(self) -> None:
        """Its fate is decided."""
        self.ended = True

    def move(self, to: Phase) -> None:
        """Change the phase; raises IllegalStepError if `TRANSITIONS` does not allow it."""
        if to not in TRANSITIONS[self.phase]:
            raise IllegalStepError(f"{self} cannot become {to.value}")
        self.phase = to

    @property
    def void(self) -> bool:
        """It has ended before it was written, and is not to be written any more."""
        return self.ended and not self.durable


@dataclass(slots=True, eq=False)
class Transaction(Content):
    """One try to commit units together. In the lines it stands for all of them, in their places.

    Attributes:
        units: In order; the marker is the first one's id.
        tid: The transactional id under which it goes; None: it is over, or aborted.
        grant: Under which it is written.
        offsets: Of consumer groups: of each group and partition, where the last unit moves it.
        readings: Of which readings of consumers the offsets are.
        batches: Of all units, in order.
        phase: See `TRANSITIONS`; its units go along.
        placed: How many batches are in their logs.
        issued: All its batches were given out to be appended.
        alone: Everything before it was committed when they were.
        notes_left: How many groups' offsets (the marker is one) are not written yet.
        next_note: Index of the group whose offsets are written as soon as it stands first; -1: none.
        end_refused: Its end was refused because of its epoch.
        group_lines: The offsets of groups that it moves.
    """

    units: tuple[Unit, ...]
    tid: TransactionalId | None
    grant: Grant
    offsets: tuple[m.GroupOffsets, ...]
    readings: Mapping[GroupPartition, Reading]
    batches: list[Member]
    phase: Phase = Phase.WAITING
    placed: int = 0
    issued: bool = False
    alone: bool = False
    notes_left: int = 0
    next_note: int = -1
    end_refused: bool = False
    group_lines: tuple[GroupPartition, ...] = field(init=False)
    _owners: dict[int, Unit] = field(init=False)

    def __post_init__(self) -> None:
        self.group_lines = lines_of(self.offsets)
        self._owners = {batch.handle: each for each in self.units for batch in each.batches}

    def __repr__(self) -> str:
        return f"<Transaction {self.unit_id.hex()[:8]} of {len(self.units)} {self.phase.value}>"

    # -- what it stands for ----------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Its turn: that of its first unit."""
        return self.units[0].number

    @property
    def unit_id(self) -> bytes:
        """Of its first unit: the marker."""
        return self.units[0].unit_id

    @property
    def transactional_id(self) -> str:
        """Given by the user; empty: one of the lane's own."""
        return self.units[0].transactional_id

    @property
    def is_shared(self) -> bool:
        """Several units are in it."""
        return len(self.units) > 1

    @property
    def sequences(self) -> dict[int, int]:
        """By handle, what each batch is appended under."""
        return {handle: at for each in self.units for handle, at in each.sequences.items()}

    @property
    def places(self) -> dict[int, int]:
        """By handle, the offset where the batch is, -1 where the broker did not say."""
        return {handle: at for each in self.units for handle, at in each.places.items()}

    # -- its course ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Its units are in it from here on."""
        for each in self.units:
            each.begin(self)
        self.notes_left = 1 + len(self.offsets)
        self.move(Phase.BEGUN)

    def restore(self) -> None:
        """An earlier incarnation staged it."""
        for each in self.units:
            each.enter(self)
        self.issued = True

    def move(self, to: Phase) -> None:
        """Change the phase; raises IllegalStepError if `TRANSITIONS` does not allow it."""
        if to not in TRANSITIONS[self.phase]:
            raise IllegalStepError(f"{self} cannot become {to.value}")
        self.phase = to
        for each in self.units:
            each.move(to)

    def issue(self, *, alone: bool) -> None:
        """All its batches are given out to be appended."""
        self.issued, self.alone = True, alone

    def send(self, batch: Member, sequence: int) -> None:
        """A batch is given out to be appended under this sequence."""
        self._owner(batch).send(batch.handle, sequence)

    def append(self, batch: Member, base_offset: int, leader_epoch: int) -> bool:
        """A batch is in its log. Returns whether it is the first."""
        self._owner(batch).append(batch.handle, base_offset, leader_epoch)
        self.placed += 1
        return self.placed == 1

    def _owner(self, batch: Member) -> Unit:
        # A unit that is divided meanwhile is alone.
        return self._owners.get(batch.handle, self.units[0])

    def take_note(self) -> int:
        """The index of the group whose offsets are written now."""
        index, self.next_note = self.next_note, -1
        return index

    def note(self, index: int) -> bool:
        """Offsets of a group are in the transaction. Returns whether those of another one are to be written."""
        self.notes_left -= 1
        more = index + 1 < len(self.offsets)
        if more:
            self.next_note = index + 1
        return more

    @property
    def is_whole(self) -> bool:
        """All of it is appended."""
        return not self.notes_left and self.placed >= len(self.batches)

    def explain(self, reason: str) -> None:
        """Why a request of it failed; of several units it is not known whose fault that is."""
        if not self.is_shared:
            self.units[0].explain(reason)

    def refuse_end(self) -> None:
        """Its end was refused because of its epoch."""
        self.end_refused = True

    def forget_refused_end(self) -> None:
        """The log does not say whether it was committed before its end was refused."""
        self.end_refused = False

    def leave_id(self) -> TransactionalId | None:
        """It is over, or aborted. Returns the transactional id that it had."""
        tid, self.tid = self.tid, None
        self.issued = False
        self.next_note = -1
        return tid

    def part(self) -> None:
        """Its units stand for themselves again."""
        for each in self.units:
            each.leave()


Entry: TypeAlias = Unit | Transaction
"""What stands in a line."""


@dataclass(slots=True, eq=False)
class TransactionalId:
    """A transactional id.

    Attributes:
        name: What Kafka knows it by.
        grant: None until it is fenced, and while that is being done.
        transaction: Whose it is.
        turn: Answers to requests of an earlier turn mean nothing.
        sequences: By destination, the next one under this grant.
        fencing: InitProducerId is under way.
        fresh: Only a new grant may be used for the next unit.
        former: The latest grant that it had.
        opened: Of a transaction under that grant something was acknowledged, so the coordinator had it open; EndTxn was
            never sent for it.
        unsure: An InitProducerId of this turn was not answered, and may have been carried out.
        alone: In this turn, no other producer had taken it over a while ago.
        aborting: Destinations of the transaction that is being aborted: it may be open as long as that is not answered.
        attempts: Of this turn's requests, how often each has failed.
    """

    name: str
    grant: Grant | None = None
    transaction: Transaction | None = None
    turn: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    fencing: bool = False
    fresh: bool = False
    former: Grant | None = None
    opened: bool = False
    unsure: bool = False
    alone: bool = False
    aborting: frozenset[int] = frozenset()
    attempts: dict[Hashable, int] = field(default_factory=dict)

    def next_turn(self) -> None:
        """Whatever is under way is void."""
        self.turn += 1
        self.unsure = self.alone = False
        self.attempts.clear()

    @property
    def is_free(self) -> bool:
        """A transaction may be begun under it, now or when it has another grant."""
        return self.transaction is None and not self.fencing

    # -- the grant -------------------------------------------------------------------------------------------------

    def begin_fencing(self) -> None:
        """InitProducerId is asked for."""
        self.next_turn()
        self.fencing = True
        self.grant = None

    def give(self, grant: Grant) -> None:
        """InitProducerId was answered: nothing is open."""
        self.fencing = False
        self.aborting = frozenset()
        self.grant = self.former = grant
        self.opened = False
        self.fresh = False
        self.sequences.clear()
        self.next_turn()

    def expire(self) -> None:
        """The next transaction has a new grant."""
        self.fresh = True

    def lose_grant(self) -> None:
        """Another producer has it now."""
        self.grant = self.former = None

    def taken_over(self) -> None:
        """Another producer has it now, as the answer to InitProducerId shows."""
        self.fencing = False
        self.former = None
        self.aborting = frozenset()

    def forget_former(self) -> None:
        """It is taken over, whatever its epoch is by now."""
        self.former = None

    def read_grant(self, grant: Grant) -> None:
        """A STAGED mark has it."""
        self.grant = self.former = grant
        self.fresh = True

    def begin_again(self, *, staged: bool) -> None:
        """The log is read: a new incarnation takes names over, whatever epochs earlier ones came to."""
        self.former = None
        if not staged:
            self.grant = None

    # -- its transaction -------------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> None:
        """A transaction is begun."""
        self.transaction = transaction
        self.opened = False
        self.next_turn()

    def restore(self, transaction: Transaction) -> None:
        """An earlier incarnation staged a transaction."""
        self.transaction = transaction

    def note_open(self) -> None:
        """Something of the transaction was acknowledged."""
        self.opened = True

    def take_sequence(self, destination: int, count: int) -> int:
        """The sequence of the next batch there."""
        sequence = self.sequences.get(destination, 0)
        self.sequences[destination] = add_sequence(sequence, count)
        return sequence

    def send_end(self) -> None:
        """EndTxn is sent: from here on its transaction is not open for sure."""
        self.opened = False

    def end(self, grant: Grant | None, *, sure: bool) -> None:
        """EndTxn was answered. The grant, if known, is for the next transaction, unless an answer was lost before."""
        if self.fresh or grant is None or not sure:
            self.fresh = True
        elif self.grant is not None and grant != self.grant:
            self.grant = self.former = grant
            self.sequences.clear()

    def abort(self, destinations: Iterable[int]) -> None:
        """Its transaction is to be aborted."""
        self.transaction = None
        self.aborting = self.aborting.union(destinations)

    def leave(self) -> None:
        """Its transaction is over, or aborted."""
        self.transaction = None

    def release(self) -> None:
        """The outcome of its transaction is durable, or known: it is free."""
        self.transaction = None
        self.next_turn()

    # -- answers ---------------------------------------------------------------------------------------------------

    def note_unanswered(self) -> None:
        """InitProducerId may have been carried out, and no answer came."""
        self.unsure = True

    def note_end(self, *, timed_out: bool) -> None:
        """What was open is ended, or may be. With `timed_out`, that was the epoch which a time-out gives."""
        self.opened = self.opened and timed_out

    def note_alone(self) -> None:
        """No other producer has taken it over."""
        self.alone = True

    def count_failure(self, action: Hashable) -> int:
        """How often this request has failed, in this turn."""
        self.attempts[action] = self.attempts.get(action, 0) + 1
        return self.attempts[action]

    def forget_failures(self, action: Hashable) -> None:
        """It never reached a broker."""
        self.attempts.pop(action)

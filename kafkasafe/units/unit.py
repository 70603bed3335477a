"""Units, the transactions that commit them, and the transactional ids of these transactions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kafkasafe import marks as m
from kafkasafe.history.identity import add_sequence
from kafkasafe.units.content import UnitContent, lines_of
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


@dataclass(slots=True, eq=False)
class Unit(UnitContent):
    """An atomic batch: batches and offsets that are delivered together.

    Attributes:
        number: Within an incarnation, a unit that was accepted later has a larger number.
        unit_id: Id of the unit, 16 bytes.
        transactional_id: The transactional id that the user chose; empty: the unit gets one of the lane's own ids.
        offsets: The offsets of consumer groups.
        readings: For each partition of a group: the consumer's run (`Reading`) from which the offset comes.
        recorded: The entries of the unit's READ mark; empty if the unit has no READ mark.
        batches: The batches, in order. The parts of a divided batch replace the batch.
        durable: The unit is on disk.
        position: A lower bound for the positions of the unit's records in the spool; -1: the unit is not on disk.
        accepted_at: Position of the unit's first spool group; -1 if this incarnation accepted the unit.
        phase: See `TRANSITIONS`.
        grant: The grant of the unit's last attempt; None before the first attempt.
        sequences: Maps a batch's handle to the batch's base sequence in the last attempt.
        places: Maps a batch's handle to the batch's base offset; -1 if the broker did not report it.
        epochs: Maps a batch's handle to the leader epoch under which the batch was appended; -1 if unknown.
        tries: How many times the unit was requeued, plus how many times its records could not be saved.
        resting: The unit waits for the end of a pause.
        code: The code of the refusal: Kafka's error code, `GIVEN_UP` or `SUPERSEDED`.
        reason: Why the unit was refused, or why its last attempt failed, human-readable.
        dropped: The unit was refused, and its records are not kept, because consumers read its input again.
        ended: The unit's fate is decided.
        transaction: The unit's transaction. None if the unit waits for its turn, or was refused.
        group_lines: The group partitions whose offsets the unit moves.
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

    # -- the spool --------------------------------------------------------------------------------------------------

    def note_readings(self) -> None:
        """Record, for the unit's READ mark, from which readings (runs of a consumer) its offsets come."""
        mine = map(self.reading, self.group_lines)
        self.recorded = tuple((each.number, each.start) for each in mine)

    def write(self, position: int) -> None:
        """Note that the unit is durable."""
        self.durable, self.position = True, position

    def read(self, position: int, accepted_at: int) -> None:
        """Note that an earlier incarnation (run of the producer) wrote the unit."""
        self.readings = dict.fromkeys(self.group_lines, Reading(OLDEST))
        self.durable, self.position, self.accepted_at = True, position, accepted_at

    def read_readings(
        self, entries: tuple[tuple[int, int], ...], readings: Mapping[GroupPartition, Reading]
    ) -> None:
        """Take from the unit's READ mark to which readings (runs of a consumer) its offsets belong."""
        self.recorded = entries
        self.readings.update(readings)

    def renumber(self, number: int) -> None:
        """Set the unit's place among the recovered units."""
        self.number = number

    # -- batches ---------------------------------------------------------------------------------------------------

    def add(self, batch: Member) -> None:
        """Add a batch after the others."""
        self.batches.append(batch)

    def add_part(self, parent: Member, part: Member) -> None:
        """Insert a part right before the batch that is being divided."""
        self.batches.insert(self.batches.index(parent), part)

    def remove(self, batch: Member) -> None:
        """Remove a batch whose parts are all added."""
        self.batches.remove(batch)

    def divide(self, batch: Member, parts: Sequence[Member]) -> None:
        """Replace a batch with its parts."""
        at = self.batches.index(batch)
        self.batches[at : at + 1] = parts

    # -- in a transaction ------------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> None:
        """Begin another attempt."""
        self.enter(transaction)
        self.grant = transaction.grant
        self.sequences.clear()
        self.places.clear()
        self.epochs.clear()

    def enter(self, transaction: Transaction) -> None:
        """Note the unit's transaction, which replaces the unit in the lines."""
        self.transaction = transaction

    def leave(self) -> None:
        """Note that the unit has no transaction."""
        self.transaction = None

    @property
    def peers(self) -> tuple[Unit, ...]:
        """The units of this unit's transaction, including this unit. Any thread may call it."""
        transaction = self.transaction
        return (self,) if transaction is None else transaction.units

    def send(self, handle: int, sequence: int) -> None:
        """Note the base sequence under which a batch will be appended."""
        self.sequences[handle] = sequence

    def append(self, handle: int, base_offset: int, leader_epoch: int) -> None:
        """Note that a batch was appended."""
        self.places[handle] = base_offset
        self.epochs[handle] = leader_epoch

    def read_epoch(self, handle: int, leader_epoch: int) -> None:
        """Note a batch's leader epoch from a mark (log entry) in the spool, unless the epoch is known already."""
        self.epochs.setdefault(handle, leader_epoch)

    @property
    def placed(self) -> tuple[m.Placed, ...]:
        """The positions and offsets of the unit's batches, for the unit's STAGED mark."""
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
        """Apply a STAGED mark (log entry) of an earlier incarnation (run of the producer)."""
        handles = {batch.position: batch.handle for batch in self.batches}
        # Keep the batches in the order of the STAGED mark, because the first batch decides to which partition the
        # transaction's marker (a committed offset) belongs.
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
        """Apply a BEGUN mark. An earlier STAGED mark no longer counts."""
        self.sequences.clear()
        self.places.clear()

    def read_void(self) -> None:
        """Note that the unit's transaction will not be committed, so the unit is prepared again."""
        self.phase = Phase.WAITING

    # -- tries and fate --------------------------------------------------------------------------------------------

    def count_try(self, reason: str) -> None:
        """Note a failed attempt, after which the unit is requeued."""
        self.tries += 1
        self.code, self.reason = 0, reason

    def fail(self) -> None:
        """Note a failed attempt: the transaction was aborted or, for a refused unit, saving the records failed."""
        self.tries += 1

    def forget_tries(self) -> None:
        """Forget failed attempts, because dividing a batch is progress."""
        self.tries = 0

    def rest(self) -> None:
        """Let the unit wait for the end of a pause."""
        self.resting = True

    def wake(self) -> None:
        """Note the end of the pause."""
        self.resting = False

    def blame(self, code: int, reason: str) -> None:
        """Note why the unit is not delivered."""
        self.code, self.reason = code, reason

    def explain(self, reason: str) -> None:
        """Note why a request for the unit failed."""
        self.reason = reason

    def drop(self, *, dropped: bool = True) -> None:
        """Note whether the unit is dropped. The records of a dropped unit are not kept, because consumers read its
        input again.
        """
        self.dropped = dropped

    def pass_transaction(self) -> None:
        """Commit the unit without a transaction, because it has no batches and offsets."""
        self.phase = Phase.COMMITTED

    def read_over(self) -> None:
        """Apply the unit's ENDED mark."""
        self.phase = Phase.OVER

    def end(self) -> None:
        """Note that the unit's fate is decided."""
        self.ended = True

    def move(self, to: Phase) -> None:
        """Change the phase; raises IllegalStepError if `TRANSITIONS` does not allow it."""
        if to not in TRANSITIONS[self.phase]:
            raise IllegalStepError(f"{self} cannot become {to.value}")
        self.phase = to

    @property
    def void(self) -> bool:
        """Whether the unit ended before it was written to the spool. Such a unit must not be written any more."""
        return self.ended and not self.durable


@dataclass(slots=True, eq=False)
class Transaction(UnitContent):
    """One attempt to commit units together. The transaction replaces its units in the lines.

    Attributes:
        units: The units, in order. The marker contains the id of the first unit.
        tid: The transactional id; None once the transaction has ended or is being aborted.
        grant: The grant under which the transaction was begun.
        offsets: The offsets of consumer groups. If several units move the same offset, the last unit's value counts.
        readings: For each partition of a group, the reading (`Reading`) from which the offset comes.
        batches: The batches of all units, in order.
        phase: See `TRANSITIONS`. All units of the transaction have the same phase.
        placed: The number of appended batches.
        issued: Whether the engine got all batches to send.
        alone: All earlier entries for the destinations were committed or refused before the engine got the batches.
        notes_left: The number of consumer groups whose offsets are not written yet. The marker (a committed offset)
            counts as a group.
        next_note: Index, in `offsets`, of the group whose offsets are written next; -1: none.
        end_refused: Whether the coordinator refused EndTxn because of the epoch.
        group_lines: The group partitions whose offsets the transaction moves.
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

    # -- its units -------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the first unit. This number decides the transaction's place among units and transactions."""
        return self.units[0].number

    @property
    def unit_id(self) -> bytes:
        """The id of the first unit. The transaction's marker (a committed offset) contains this id."""
        return self.units[0].unit_id

    @property
    def transactional_id(self) -> str:
        """The user's transactional id; empty: the transaction has one of the lane's own ids."""
        return self.units[0].transactional_id

    @property
    def is_shared(self) -> bool:
        """Whether the transaction has several units."""
        return len(self.units) > 1

    @property
    def sequences(self) -> dict[int, int]:
        """The base sequence of each batch, by the batch's handle."""
        return {handle: at for each in self.units for handle, at in each.sequences.items()}

    @property
    def places(self) -> dict[int, int]:
        """The base offset of each batch, by the batch's handle; -1 if the broker did not report it."""
        return {handle: at for each in self.units for handle, at in each.places.items()}

    # -- progress --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the transaction, and all of its units."""
        for each in self.units:
            each.begin(self)
        self.notes_left = 1 + len(self.offsets)
        self.move(Phase.BEGUN)

    def restore(self) -> None:
        """Restore a transaction as an earlier incarnation staged it."""
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
        """Note that the engine got all batches to send."""
        self.issued, self.alone = True, alone

    def send(self, batch: Member, sequence: int) -> None:
        """Note the base sequence under which a batch will be appended."""
        self._owner(batch).send(batch.handle, sequence)

    def append(self, batch: Member, base_offset: int, leader_epoch: int) -> bool:
        """Note an appended batch. Returns whether it is the transaction's first appended batch."""
        self._owner(batch).append(batch.handle, base_offset, leader_epoch)
        self.placed += 1
        return self.placed == 1

    def _owner(self, batch: Member) -> Unit:
        # `_owners` lacks the parts of divided batches, but a unit with a divided batch is alone in its transaction.
        return self._owners.get(batch.handle, self.units[0])

    def take_note(self) -> int:
        """Return `next_note`, and reset it to -1."""
        index, self.next_note = self.next_note, -1
        return index

    def note(self, index: int) -> bool:
        """Note that the offsets of a group are written. Returns whether the offsets of another group follow."""
        self.notes_left -= 1
        more = index + 1 < len(self.offsets)
        if more:
            self.next_note = index + 1
        return more

    @property
    def is_whole(self) -> bool:
        """Whether all batches and offsets are in the transaction."""
        return not self.notes_left and self.placed >= len(self.batches)

    def explain(self, reason: str) -> None:
        """Note why a request failed, unless several units share the transaction: any may be the cause."""
        if not self.is_shared:
            self.units[0].explain(reason)

    def refuse_end(self) -> None:
        """Note that the coordinator refused EndTxn because of the epoch."""
        self.end_refused = True

    def forget_refused_end(self) -> None:
        """Forget the refusal of EndTxn. The log does not show the outcome, so the marker (an offset) must show it."""
        self.end_refused = False

    def leave_id(self) -> TransactionalId | None:
        """Note that the transaction has ended or is being aborted. Returns its former transactional id."""
        tid, self.tid = self.tid, None
        self.issued = False
        self.next_note = -1
        return tid

    def part(self) -> None:
        """Note that the units have no transaction any more."""
        for each in self.units:
            each.leave()


Entry: TypeAlias = Unit | Transaction
"""An entry of a line."""


@dataclass(slots=True, eq=False)
class TransactionalId:
    """A transactional id.

    Attributes:
        name: The transactional id as text, as in Kafka's requests.
        grant: The current grant of the id; None before and during InitProducerId.
        transaction: The current transaction under the id; None if none exists.
        turn: Number of the current turn. Answers to requests of an earlier turn are ignored.
        sequences: Maps a destination to the next base sequence under the current grant.
        fencing: InitProducerId is in progress.
        fresh: The next transaction needs a new grant.
        former: The latest grant of the id. Unlike `grant`, `former` keeps its value during InitProducerId. None: the
            next InitProducerId takes over the id from any other producer.
        opened: The cluster acknowledged a request of a transaction under the latest grant, and EndTxn was not sent.
        unsure: An InitProducerId request of this turn got no answer. The coordinator may have carried it out.
        alone: Whether an answer in this turn showed that no other producer had taken over the id.
        aborts: A transaction is being aborted. It may be open until the coordinator answers the request to abort it.
        aborting: Destinations of the transaction that is being aborted. Empty if it has only offsets.
        attempts: How often each request of this turn has failed.
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
    aborts: bool = False
    aborting: frozenset[int] = frozenset()
    attempts: dict[Hashable, int] = field(default_factory=dict)

    def next_turn(self) -> None:
        """Begin another turn of the id, so that answers to earlier requests are ignored."""
        self.turn += 1
        self.unsure = self.alone = False
        self.attempts.clear()

    @property
    def is_free(self) -> bool:
        """Whether a transaction can begin under this id, now or with the next grant."""
        return self.transaction is None and not self.fencing

    # -- the grant -------------------------------------------------------------------------------------------------

    def begin_fencing(self) -> None:
        """Note that InitProducerId is being sent."""
        self.next_turn()
        self.fencing = True
        self.grant = None

    def give(self, grant: Grant) -> None:
        """Handle the answer to InitProducerId. Afterwards, the id has no open transaction."""
        self.fencing = False
        self.aborts, self.aborting = False, frozenset()
        self.grant = self.former = grant
        self.opened = False
        self.fresh = False
        self.sequences.clear()
        self.next_turn()

    def expire(self) -> None:
        """Require a new grant for the next transaction."""
        self.fresh = True

    def lose_grant(self) -> None:
        """Note that another producer has the id."""
        self.grant = self.former = None

    def taken_over(self) -> None:
        """Note that the answer to InitProducerId shows that another producer has the id."""
        self.fencing = False
        self.former = None
        self.aborts, self.aborting = False, frozenset()

    def forget_former(self) -> None:
        """Let the next InitProducerId take over the id, even if another producer has raised the id's epoch."""
        self.former = None

    def read_grant(self, grant: Grant) -> None:
        """Take the grant of a STAGED mark."""
        self.grant = self.former = grant
        self.fresh = True

    def begin_again(self, *, staged: bool) -> None:
        """Finish recovery. This incarnation may now take over an id whose epoch another producer has raised."""
        self.former = None
        if not staged:
            self.grant = None

    # -- transaction -----------------------------------------------------------------------------------------------

    def begin(self, transaction: Transaction) -> None:
        """Begin a transaction."""
        self.transaction = transaction
        self.opened = False
        self.next_turn()

    def restore(self, transaction: Transaction) -> None:
        """Restore a transaction that an earlier incarnation (run of the producer) staged."""
        self.transaction = transaction

    def note_open(self) -> None:
        """Note that the cluster acknowledged a request of the transaction."""
        self.opened = True

    def take_sequence(self, destination: int, count: int) -> int:
        """Reserve sequence numbers for the next batch of this destination, and return the base sequence."""
        sequence = self.sequences.get(destination, 0)
        self.sequences[destination] = add_sequence(sequence, count)
        return sequence

    def send_end(self) -> None:
        """Note that EndTxn is being sent, after which the transaction may have ended."""
        self.opened = False

    def end(self, grant: Grant | None, *, sure: bool) -> None:
        """Note the answer to EndTxn.

        The next transaction uses `grant`, unless `grant` is None or an earlier attempt of EndTxn failed (`sure` is
        False).
        """
        if self.fresh or grant is None or not sure:
            self.fresh = True
        elif self.grant is not None and grant != self.grant:
            self.grant = self.former = grant
            self.sequences.clear()

    def abort(self, destinations: Iterable[int]) -> None:
        """Note that the id's transaction is being aborted."""
        self.transaction = None
        self.aborts, self.aborting = True, self.aborting.union(destinations)

    def leave(self) -> None:
        """Note that the id's transaction has ended: it was committed or aborted."""
        self.transaction = None

    def release(self) -> None:
        """Release the id, because the outcome of its transaction is known."""
        self.transaction = None
        self.next_turn()

    # -- answers ---------------------------------------------------------------------------------------------------

    def note_unanswered(self) -> None:
        """Note that InitProducerId got no answer, so the coordinator may have carried it out."""
        self.unsure = True

    def note_end(self, *, timed_out: bool) -> None:
        """Note that the id's transaction may no longer be open. `timed_out`: see `InitProducerId`."""
        self.opened = self.opened and timed_out

    def note_alone(self) -> None:
        """Note that no other producer has taken the id over."""
        self.alone = True

    def count_failure(self, action: Hashable) -> int:
        """Count a failure of this request. Returns how often the request has failed in this turn."""
        self.attempts[action] = self.attempts.get(action, 0) + 1
        return self.attempts[action]

    def forget_failures(self, action: Hashable) -> None:
        """Forget the failures of a request that never reached a broker."""
        self.attempts.pop(action)

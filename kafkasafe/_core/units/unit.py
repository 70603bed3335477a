"""A unit, and the transactional id under which it goes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafkasafe._core import marks as m
from kafkasafe._core.identity import add_sequence
from kafkasafe._core.units.terms import (
    NO_READING,
    OLDEST,
    TRANSITIONS,
    Grant,
    GroupPartition,
    IllegalStepError,
    Line,
    Member,
    Phase,
    Reading,
)

__all__ = ["Slot", "Unit"]


@dataclass(slots=True, eq=False)
class Unit:
    """What is delivered together.

    Attributes:
        number: In this life, ascending: the order in which they were accepted.
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
        slot: The transactional id under which it goes, while it does.
        grant: Of its last try.
        sequences: By handle, what the batch is or was appended under.
        places: By handle, the offset where it is, -1 where the broker did not say.
        epochs: By handle, the leader epoch under which it was appended, -1 when unknown.
        issued: All its batches were given out to be appended, in this try.
        alone: Everything before it was committed when they were.
        notes_left: How many groups' offsets (the marker is one) are not written yet.
        next_note: Index of the group whose offsets are written as soon as it stands first; -1: none.
        tries: How often it went back to the line.
        resting: It waits for the end of a pause.
        code: Why it was refused, Kafka's error code.
        reason: The same for people.
        lapsed: Its end was refused, in this try, because of its epoch.
        dropped: Its fate is REFUSED without being kept: its consumers read the same records again.
        ended: Its fate is decided.
        together: The units that share its transaction; it stands for all of them, and has their batches. Empty: it is
            a unit itself.
        within: What stands for it in the lines, while it shares a transaction.
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
    slot: Slot | None = None
    grant: Grant | None = None
    sequences: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    issued: bool = False
    alone: bool = False
    notes_left: int = 0
    next_note: int = -1
    tries: int = 0
    resting: bool = False
    code: int = 0
    reason: str = ""
    lapsed: bool = False
    dropped: bool = False
    ended: bool = False
    together: tuple[Unit, ...] = ()
    within: Unit | None = None
    group_lines: tuple[GroupPartition, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.group_lines = tuple(
            (each.group, at.topic, at.partition) for each in self.offsets for at in each.positions
        )

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

    # -- in a transaction ------------------------------------------------------------------------------------------

    def share(self, whole: Unit) -> None:
        """It shares the transaction of what stands for it from here on."""
        self.within = whole
        for mine, all_of_them in (
            (self.sequences, whole.sequences),
            (self.places, whole.places),
            (self.epochs, whole.epochs),
        ):
            all_of_them.update(mine)
        self.sequences, self.places, self.epochs = whole.sequences, whole.places, whole.epochs

    def part(self) -> None:
        """Those that share its transaction go by themselves again."""
        for each in self.together:
            each.stand_alone()

    def stand_alone(self) -> None:
        """It shares no transaction any more."""
        self.within = None
        self.sequences, self.places, self.epochs = {}, {}, {}

    def begin(self, slot: Slot, grant: Grant) -> None:
        """A transactional id is its own: another try."""
        self.slot = slot
        self.sequences.clear()
        self.places.clear()
        self.epochs.clear()
        self.issued = self.lapsed = False
        self.notes_left = 1 + len(self.offsets)
        self.next_note = -1
        self.move(Phase.BEGUN)
        self.take_grant(grant)

    def take_grant(self, grant: Grant) -> None:
        """What this try is written under."""
        self.grant = grant
        for each in self.together:
            each.take_grant(grant)

    def issue(self, *, alone: bool) -> None:
        """All its batches are given out to be appended."""
        self.issued, self.alone = True, alone

    def append(self, handle: int, base_offset: int, leader_epoch: int) -> bool:
        """A batch is in its log. Returns whether it is the first of this try."""
        first = not self.places
        self.places[handle] = base_offset
        self.epochs[handle] = leader_epoch
        return first

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
        return not self.notes_left and len(self.places) >= len(self.batches)

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

    def lapse(self, reason: str) -> None:
        """Its end was refused because of its epoch."""
        self.lapsed, self.reason = True, reason

    def doubt_lapse(self) -> None:
        """The log does not say whether it was committed before its end was refused."""
        self.lapsed = False

    def leave_slot(self) -> Slot | None:
        """Its transaction is over, or aborted. Returns the transactional id that it had."""
        slot, self.slot = self.slot, None
        self.issued = False
        self.next_note = -1
        return slot

    def read_staged(self, slot: Slot, grant: Grant, places: Sequence[m.Placed]) -> None:
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
        self.phase, self.slot = Phase.STAGED, slot

    def read_begun(self) -> None:
        """A BEGUN mark was read back: what an earlier STAGED mark says is void."""
        self.sequences.clear()
        self.places.clear()

    def read_void(self) -> None:
        """Its transaction is not committed any more: it is prepared again."""
        self.phase, self.slot = Phase.WAITING, None

    def restore(self, slot: Slot) -> None:
        """It is staged under this id, by an earlier incarnation."""
        self.slot, self.grant, self.issued = slot, slot.grant, True

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
        for each in self.together:
            each.move(to)

    @property
    def each(self) -> tuple[Unit, ...]:
        """Those that share its transaction, or itself."""
        return self.together or (self,)

    @property
    def destinations(self) -> dict[int, None]:
        """Of its batches, each once, in order."""
        return dict.fromkeys(batch.destination for batch in self.batches)

    @property
    def lines(self) -> dict[Line, None]:
        """Its destinations, and the offsets of groups that it moves."""
        lines: dict[Line, None] = dict.fromkeys(batch.destination for batch in self.batches)
        if self.group_lines:
            lines.update(dict.fromkeys(self.group_lines))
        return lines

    def reading(self, line: GroupPartition) -> Reading:
        """Of which reading its offset is."""
        return self.readings.get(line, NO_READING)

    @property
    def void(self) -> bool:
        """It has ended before it was written, and is not to be written any more."""
        return self.ended and not self.durable


@dataclass(slots=True, eq=False)
class Slot:
    """A transactional id.

    Attributes:
        transactional_id: Its name.
        grant: None until it is fenced, and while that is being done.
        unit: Whose it is.
        turn: Answers to requests of an earlier turn mean nothing.
        sequences: By destination, the next one under this grant.
        fencing: InitProducerId is under way.
        fresh: Only a new grant may be used for the next unit.
        former: The latest grant that it had.
        opened: Of a transaction under that grant something was acknowledged, so the coordinator had it open; EndTxn was
            never sent for it.
        unsure: An InitProducerId of this turn was not answered, and may have been carried out.
        alone: In this turn, nobody had taken it over a while ago.
        aborting: Destinations of the transaction that is being aborted: it may be open as long as that is not answered.
        attempts: Of this turn's requests, how often each has failed.
    """

    transactional_id: str
    grant: Grant | None = None
    unit: Unit | None = None
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
        """A unit may be begun under it, now or when it has another grant."""
        return self.unit is None and not self.fencing

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

    def begin(self, unit: Unit) -> None:
        """A unit's transaction is begun."""
        self.unit = unit
        self.opened = False
        self.next_turn()

    def restore(self, unit: Unit) -> None:
        """An earlier incarnation staged a unit in its transaction."""
        self.unit = unit

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
        self.unit = None
        self.aborting = self.aborting.union(destinations)

    def leave(self) -> None:
        """Its unit is over, or goes back to the line."""
        self.unit = None

    def release(self) -> None:
        """Its unit's outcome is durable, or known: it is free."""
        self.unit = None
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

"""Units: batches of any partitions, and offsets of consumer groups, that Kafka gets in one transaction or not at all.

Without I/O. The shell says what happened, takes `advance()` and carries it out; an action that failed comes back by
`failed`, and is given once more, as an `Again`, after a pause.

The order is the proof (docs/staged.md has the crash table):

    prepared               the unit is one atomic group of the spool, durable, before anything of it is sent
    begun                  a transactional id is its own; partitions are added where the brokers want that
    appended               its batches, and its marker in a group's offset, are in the transaction
    prepare acknowledged   the STAGED mark is durable: from here on, and not before, EndTxn may be sent
    committed              EndTxn, the same one until it is answered, by this life, the next, or another process
    commit acknowledged    the ENDED mark is durable: futures resolve, and the transactional id is free again

Trouble before the STAGED mark leads back to the line: InitProducerId aborts what was written, and fences whatever is
late. After it only the outcome decides, and it is asked for, never assumed: InitProducerId ends what is open, and then
the marker says.

Order. On each partition units are appended in the order in which they were accepted, and one is committed only when all
before it are, and stand before it in the log. So several may be under way at once.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kafkasafe._core import marks as m
from kafkasafe._core.codes import Action as Produce
from kafkasafe._core.codes import Scope, classify_produce
from kafkasafe._core.identity import add_sequence

__all__ = [
    "GIVEN_UP",
    "POOL",
    "TRANSITIONS",
    "Action",
    "Again",
    "Append",
    "Ask",
    "End",
    "Fence",
    "Grant",
    "IllegalStepError",
    "Join",
    "Note",
    "Phase",
    "Refuse",
    "Rest",
    "Slot",
    "Unit",
    "Units",
]

GIVEN_UP: Final = -4
"""The code of what an operator gave up: none of Kafka's."""

POOL: Final = 4
"""Transactional ids of a lane: so many of its units are under way at once."""

_PATIENCE: Final = 8
"""How often a request inside a transaction is tried before that is aborted: an open one holds readers up."""
_LOST: Final = frozenset({47, 48, 49, 90})
"""This transaction is over, or was never there: it timed out, or a newer epoch took over."""
_FENCED: Final = frozenset({47, 90})
_NOT_A_MEMBER: Final = frozenset({22, 25, 82})
_PLACE: Final = frozenset({3, 17, 29, 100})
"""Of a topic, and may pass."""


class IllegalStepError(RuntimeError):
    """A bug in kafkasafe: a unit was about to do what its phase does not allow."""


class Phase(enum.Enum):
    """Where a unit is between the spool and the end."""

    WAITING = "waiting"
    """In line, or on its way to the disk."""
    BEGUN = "begun"
    """A transactional id is its own."""
    APPENDING = "appending"
    """Its batches and its marker are under way."""
    STAGING = "staging"
    """All of it is appended; the mark that says so is on its way to the disk."""
    STAGED = "staged"
    """It may be committed when its turn comes."""
    ENDING = "ending"
    """EndTxn was, or may have been, sent."""
    ASKING = "asking"
    """The outcome is not known."""
    COMMITTED = "committed"
    """The mark that says so is on its way to the disk."""
    REFUSED = "refused"
    """For good; nothing of it can be seen by readers. Its mark is on its way, or what it holds is being put aside."""
    OVER = "over"


TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.BEGUN, Phase.REFUSED}),
    Phase.BEGUN: frozenset({Phase.APPENDING, Phase.WAITING, Phase.REFUSED}),
    Phase.APPENDING: frozenset({Phase.STAGING, Phase.WAITING, Phase.REFUSED}),
    # Waiting: one before it has to be prepared again, and this one after it. No EndTxn was sent.
    Phase.STAGING: frozenset({Phase.STAGED, Phase.WAITING}),
    Phase.STAGED: frozenset({Phase.ENDING, Phase.WAITING, Phase.ASKING}),
    Phase.ENDING: frozenset({Phase.COMMITTED, Phase.ASKING}),
    Phase.ASKING: frozenset({Phase.COMMITTED, Phase.WAITING, Phase.REFUSED}),
    Phase.COMMITTED: frozenset({Phase.OVER}),
    Phase.REFUSED: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}


class Member(Protocol):
    """A batch, as far as a unit needs to know it."""

    handle: int
    destination: int
    count: int
    position: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Under what a transaction is written.

    Attributes:
        producer_id: Granted by the coordinator.
        epoch: Granted by the coordinator.
        protocol: 1, or 2 (KIP-890): each transaction has its own epoch, and partitions add themselves.
    """

    producer_id: int
    epoch: int
    protocol: int


@dataclass(slots=True, eq=False)
class Unit:
    """What is delivered together.

    Attributes:
        number: In this life, ascending: the order in which they were accepted.
        unit_id: 16 bytes.
        transactional_id: Given by the user; empty: one of the lane's own.
        offsets: Of consumer groups.
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
        tries: How often it went back to the line.
        resting: It waits for the end of a pause.
        code: Why it was refused, Kafka's error code.
        reason: The same for people.
        dropped: Its fate is REFUSED without being kept: the group's offsets are another member's by now.
    """

    number: int
    unit_id: bytes
    transactional_id: str
    offsets: tuple[m.GroupOffsets, ...]
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
    tries: int = 0
    resting: bool = False
    code: int = 0
    reason: str = ""
    dropped: bool = False

    def __repr__(self) -> str:
        return f"<Unit {self.unit_id.hex()[:8]} {self.phase.value}>"

    def move(self, to: Phase) -> None:
        """Change the phase; raises IllegalStepError if `TRANSITIONS` does not allow it."""
        if to not in TRANSITIONS[self.phase]:
            raise IllegalStepError(f"{self} cannot become {to.value}")
        self.phase = to

    @property
    def destinations(self) -> dict[int, None]:
        """Of its batches, each once, in order."""
        return dict.fromkeys(batch.destination for batch in self.batches)


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
    attempts: dict[Request, int] = field(default_factory=dict)

    def next_turn(self) -> None:
        """Whatever is under way is void."""
        self.turn += 1
        self.attempts.clear()


@dataclass(frozen=True, slots=True)
class Fence:
    """InitProducerId: `fenced`. With `keep`: not if anybody else has taken it over since."""

    slot: Slot
    turn: int
    keep: Grant | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """Add its partitions to the transaction: `joined`."""

    slot: Slot
    turn: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Append:
    """Append a batch: `appended`. Those of a partition go out in the order in which they are given."""

    slot: Slot
    turn: int
    unit: Unit
    batch: Member
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Note:
    """Write offsets of a group inside the transaction: `noted`.

    `index` -1 is the marker: the group is called as the transactional id, and the text is the unit's id.
    """

    slot: Slot
    turn: int
    unit: Unit
    index: int


@dataclass(frozen=True, slots=True)
class End:
    """EndTxn with commit, under the slot's grant: `ended`."""

    slot: Slot
    turn: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Ask:
    """Does the marker, or the log, say that it was committed? `told`."""

    slot: Slot
    turn: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is to be made durable in `rejected/`: `put_aside`."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Rest:
    """It goes on after a pause: `rested`."""

    unit: Unit


Request = Fence | Join | Append | Note | End | Ask


@dataclass(frozen=True, slots=True)
class Again:
    """The same once more, after a pause: `again`."""

    action: Request | Rest
    attempt: int
    code: int | None
    reason: str
    slow: bool = False


Action = Request | Refuse | Again


class Units:
    """The units of one lane.

    Args:
        front: Whether nothing but batches of units stands before this one in the queue of its partition.
        pool: How many of the lane's own transactional ids there are.
    """

    def __init__(self, front: Callable[[Member], bool], *, pool: int = POOL) -> None:
        self._front = front
        self._pool = [""] * pool
        self._slots: dict[str, Slot] = {}
        self._numbers = 0
        self._units: dict[bytes, Unit] = {}
        self._lines: dict[int, deque[Unit]] = {}
        """By destination, units in order, until they are known to be committed, or refused."""
        self._bare: deque[Unit] = deque()
        """Those without a batch."""
        self._floor: dict[int, int] = {}
        """By destination, the last offset of what is committed (inclusive)."""
        self._actions: list[Action] = []
        self._dirty = False
        self.earlier: dict[str, tuple[Unit, m.Ended]] = {}
        """Of each transactional id that a user gave, the unit that earlier lives ended last."""
        self._marks: list[m.Mark] = []
        self._begun_marks: list[m.Mark] = []
        """Nobody waits for them: they go to the disk with what somebody waits for."""
        self.staging: list[Unit] = []
        """Those whose STAGED mark is among them."""
        self.ending: list[Unit] = []
        """Those whose ENDED mark is among them."""
        self._only: frozenset[bytes] | None = None
        """Ids of those that may be committed; None: all."""
        self.paused = False
        """Nothing new is begun: what is staged is brought to its end, and no more."""

    def name(self, prefix: str) -> None:
        """What the lane's own transactional ids begin with."""
        self._pool = [f"{prefix}-{number}" for number in range(len(self._pool))]

    def take_marks(self) -> list[m.Mark]:
        """What is to be persisted now."""
        if not self._marks:
            return []
        marks = self._begun_marks + self._marks
        self._marks, self._begun_marks = [], []
        return marks

    # -- what is there ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._units)

    @property
    def bare(self) -> int:
        """How many have no batch."""
        return sum(not unit.batches for unit in list(self._units.values()))

    @property
    def unfinished(self) -> list[Unit]:
        """All of them, in the order in which they were accepted. From any thread."""
        return list(self._units.values())

    @property
    def pinned(self) -> Iterable[int]:
        """Spool positions that are still needed for units without a batch."""
        return (unit.position for unit in self._units.values() if not unit.batches)

    def get(self, unit_id: bytes) -> Unit | None:
        """A unit without a fate."""
        return self._units.get(unit_id)

    # -- recovery --------------------------------------------------------------------------------------------------

    def recover(self, mark: m.Unit, position: int, accepted_at: int) -> Unit:
        """A UNIT mark; its batches follow."""
        unit = self._make(mark.unit_id, mark.transactional_id, mark.offsets)
        unit.durable, unit.position, unit.accepted_at = True, position, accepted_at
        return unit

    def recover_begun(self, mark: m.Begun) -> None:
        """A BEGUN mark: what an earlier STAGED mark says is void."""
        unit = self._units.get(mark.unit_id)
        if unit is not None:
            unit.phase, unit.slot = Phase.WAITING, None
            unit.sequences.clear()
            unit.places.clear()

    def recover_staged(self, mark: m.Staged) -> None:
        """A STAGED mark."""
        begun = mark.begun
        unit = self._units.get(begun.unit_id)
        if unit is None:
            # Released since, but it says where its batches are.
            for place in mark.places:
                if place.base_offset >= 0:
                    self._raise_floor(place.destination, place.base_offset + place.count - 1)
            return
        slot = self._slot(begun.transactional_id)
        if slot.unit is not None and slot.unit is not unit:
            # It went back to the line before the slot was another's.
            slot.unit.phase, slot.unit.slot = Phase.WAITING, None
        slot.grant = slot.former = Grant(begun.producer_id, begun.producer_epoch, begun.protocol)
        slot.unit, slot.fresh, unit.grant = unit, True, slot.grant
        handles = {batch.position: batch.handle for batch in unit.batches}
        # As they were: the first one says where the marker is.
        order = {place.position: index for index, place in enumerate(mark.places)}
        unit.batches.sort(key=lambda batch: order.get(batch.position, len(order)))
        for place in mark.places:
            handle = handles.get(place.position)
            if handle is not None:
                unit.sequences[handle] = place.base_sequence
                unit.places[handle] = place.base_offset
        unit.phase, unit.slot, unit.issued = Phase.STAGED, slot, True

    def recover_ended(self, mark: m.Ended) -> Unit | None:
        """An ENDED mark; the unit, if it is still there."""
        unit = self._units.pop(mark.unit_id, None)
        if unit is None:
            return None
        if unit.transactional_id:
            self.earlier[unit.transactional_id] = (unit, mark)
        if mark.outcome is m.UnitOutcome.COMMITTED:
            self._raise_floors(unit)
        self._leave(unit)
        if unit.slot is not None:
            unit.slot.unit = None
            unit.slot.grant = None
        unit.phase = Phase.OVER
        return unit

    def decide(self, commit: frozenset[bytes] | None, abort: frozenset[bytes]) -> None:
        """Nothing is prepared. What is staged is committed, if it is among these (None: all); others are given up."""
        self.paused, self._only = True, commit
        for unit_id in abort & self._units.keys():
            self._units[unit_id].code = GIVEN_UP
            self._units[unit_id].reason = "given up by kafkasafe spool abort"

    def recovered(self) -> None:
        """The log is read. Whatever an earlier life may have left open is ended before anything new is begun."""
        for slot in self._slots.values():
            # A new life takes names over, whatever epochs earlier ones came to.
            slot.former = None
            if slot.unit is not None and slot.unit.slot is not slot:
                slot.unit = None
            if slot.unit is None:
                slot.grant = None
        if not self._units:
            self._slots.clear()
            return
        # What was divided may be in the log behind what was accepted later.
        ordered = sorted(self._units.values(), key=lambda unit: unit.accepted_at)
        self._units = {unit.unit_id: unit for unit in ordered}
        for number, unit in enumerate(ordered, 1):
            unit.number = number
        for unit in self._units.values():
            for destination in unit.destinations:
                self._line(destination).append(unit)
            if not unit.batches:
                self._bare.append(unit)
        # Its BEGUN mark may not be durable: whatever its ids are, a transaction of theirs may be open.
        for name in (*self._pool, *(unit.transactional_id for unit in self._units.values())):
            if name:
                slot = self._slot(name)
                if slot.unit is None and not self.paused:
                    self._fence(slot)
        for unit in list(self._units.values()):
            if unit.code and unit.phase is Phase.WAITING:
                self._refuse(unit)
            elif unit.code and unit.phase is Phase.STAGED:
                self._doubt(unit)
        self._dirty = True

    # -- events ----------------------------------------------------------------------------------------------------

    def seal(self, unit_id: bytes, transactional_id: str, offsets: tuple[m.GroupOffsets, ...]) -> Unit:
        """A new unit, behind all earlier ones; `closed` says that its batches are there."""
        return self._make(unit_id, transactional_id, offsets)

    def closed(self, unit: Unit) -> None:
        """All its batches are in the queues of their partitions."""
        for destination in unit.destinations:
            self._line(destination).append(unit)
        if not unit.batches:
            self._bare.append(unit)

    def written(self, unit: Unit, position: int) -> None:
        """It is durable."""
        unit.durable, unit.position = True, position
        self._dirty = True

    def divided(self, unit: Unit, batch: Member, parts: Sequence[Member]) -> None:
        """One of its batches was divided, by partition."""
        at = unit.batches.index(batch)
        before = unit.destinations
        unit.batches[at : at + 1] = parts
        after = unit.destinations
        for destination in before:
            if destination not in after:
                self._lines[destination].remove(unit)
        for destination in after:
            if destination not in before:
                line = self._line(destination)
                later = sum(1 for other in line if other.number > unit.number)
                line.insert(len(line) - later, unit)
        self._dirty = True

    def look(self) -> None:
        """What stood in front of a batch of a unit is gone."""
        self._dirty = bool(self._units)

    def fenced(self, action: Fence, grant: Grant) -> None:
        """InitProducerId was answered: the id is ours, and nothing of it is open."""
        slot = action.slot
        if not self._valid(action):
            return
        slot.fencing = False
        slot.grant = slot.former = grant
        slot.fresh = False
        slot.sequences.clear()
        slot.next_turn()
        unit = slot.unit
        if unit is not None and unit.phase is Phase.ASKING:
            self._actions.append(Ask(slot, slot.turn, unit))
        else:
            slot.unit = None
        self._dirty = True

    def joined(self, action: Join) -> None:
        """The partitions are part of the transaction."""
        if self._valid(action):
            action.unit.move(Phase.APPENDING)
            self._dirty = True

    def appended(self, action: Append, base_offset: int, leader_epoch: int) -> None:
        """A batch is in its log."""
        if not self._valid(action):
            return
        unit = action.unit
        first = not unit.places
        unit.places[action.batch.handle] = base_offset
        unit.epochs[action.batch.handle] = leader_epoch
        if first and self._by_itself(unit):
            self._note(unit)
        self._whole(unit)

    def noted(self, action: Note) -> None:
        """Offsets of a group are in the transaction."""
        if not self._valid(action):
            return
        unit = action.unit
        unit.notes_left -= 1
        following = action.index + 1
        if following < len(unit.offsets):
            self._actions.append(Note(action.slot, action.turn, unit, following))
        self._whole(unit)

    def staged(self, unit: Unit) -> None:
        """Its STAGED mark is durable."""
        if unit.phase is Phase.STAGING:
            unit.move(Phase.STAGED)
            self._dirty = True

    def ended(self, action: End, grant: Grant | None) -> None:
        """EndTxn was answered: it is committed.

        Args:
            action: What was asked for.
            grant: For the next transaction; None: not known.
        """
        if not self._valid(action):
            return
        slot = action.slot
        if slot.fresh or grant is None or action in slot.attempts:
            slot.fresh = True
        elif slot.grant is not None and grant != slot.grant:
            slot.grant = slot.former = grant
            slot.sequences.clear()
        self._commit(action.unit)

    def told(self, action: Ask, *, committed: bool) -> None:
        """The outcome of a unit, asked for after a fence: nothing can change it any more."""
        if not self._valid(action):
            return
        unit = action.unit
        if committed:
            self._commit(unit)
            return
        self._free(unit)
        if unit.code:
            self._refuse(unit)
            return
        unit.move(Phase.WAITING)
        unit.tries += 1
        self._dirty = True

    def over(self, unit: Unit) -> None:
        """Its ENDED mark is durable."""
        unit.move(Phase.OVER)
        self._units.pop(unit.unit_id, None)
        slot = unit.slot
        if slot is not None and slot.unit is unit:
            slot.unit = None
            slot.next_turn()
            unit.slot = None
        self._dirty = True

    def put_aside(self, unit: Unit, *, kept: bool, reason: str = "") -> None:
        """What it holds is durable in `rejected/`, or could not be kept, and is tried again after a pause."""
        if not kept:
            self._actions.append(Again(Rest(unit), unit.tries + 1, unit.code, reason, slow=True))
            return
        self._end(unit, m.UnitOutcome.DROPPED, unit.reason)

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """It is not to be delivered any more. Whether it was in time for that: what is committed already is."""
        unit.code, unit.reason = code, reason
        match unit.phase:
            case Phase.WAITING:
                self._refuse(unit)
            case Phase.BEGUN | Phase.APPENDING:
                self._break(unit)
                self._refuse(unit)
            case Phase.STAGING | Phase.STAGED | Phase.ENDING:
                if unit.phase is Phase.STAGING:
                    unit.phase = Phase.STAGED
                self._doubt(unit)
            case Phase.ASKING:
                pass
            case _:
                return False
        return True

    def failed(
        self, action: Request, code: int | None, reason: str, *, sent: bool = True, lasting: bool = False
    ) -> None:
        """A request failed.

        Args:
            action: What was asked for.
            code: Kafka's error code, None: no answer came.
            reason: For people.
            sent: It may have reached a broker.
            lasting: It was answered so for as long as anything is waited for.
        """
        if not self._valid(action):
            return
        attempt = action.slot.attempts[action] = action.slot.attempts.get(action, 0) + 1
        if isinstance(action, Fence):
            if action.keep is not None and code in _FENCED and action.slot.unit is None:
                self._taken_over(action.slot, reason)
            else:
                self._actions.append(Again(action, attempt, code, reason, slow=code is not None))
            return
        unit = action.unit
        unit.reason = reason
        if isinstance(action, Ask):
            self._actions.append(Again(action, attempt, code, reason))
            return
        if isinstance(action, End):
            if code in _FENCED and self._is_anothers(action.slot):
                self._ask_unfenced(unit, action.slot, reason)
                return
            if code in _LOST:
                self._doubt(unit)
                return
            if code is None and not sent:
                action.slot.attempts.pop(action)
                attempt = 1
            self._actions.append(
                Again(action, attempt, code, reason, slow=code is not None and code not in {14, 15, 16, 51})
            )
            return
        if isinstance(action, Note) and action.index >= 0 and code in _NOT_A_MEMBER:
            unit.code, unit.dropped = code or 0, True
            self._break(unit)
            self._refuse(unit)
            return
        if isinstance(action, Append) and code is not None:
            verdict = classify_produce(code)
            if verdict.action is Produce.REJECT_BATCH and verdict.scope is Scope.NONE:
                lasting = True
            elif verdict.action is not Produce.RETRY and code != 51:
                self._redo(unit, code, reason)
                return
        if lasting:
            unit.code = code or 0
            self._break(unit)
            self._refuse(unit)
        elif code in _LOST or code in _PLACE or attempt >= _PATIENCE:
            self._redo(unit, code, reason)
        else:
            self._actions.append(Again(action, attempt, code, reason))

    def again(self, action: Request | Rest) -> None:
        """The pause that an Again asked for is over."""
        if isinstance(action, Rest):
            if action.unit.phase is Phase.REFUSED:
                self._actions.append(Refuse(action.unit))
            action.unit.resting = False
            self._dirty = True
        elif self._valid(action):
            self._actions.append(action)

    # -- what to do now --------------------------------------------------------------------------------------------

    def advance(self) -> list[Action]:
        """Everything that must be done now; each thing is given once."""
        while self._dirty:
            self._dirty = False
            self._begin()
            self._go_on()
        actions, self._actions = self._actions, []
        return actions

    def _begin(self) -> None:
        if self.paused:
            return
        coming = sum(slot.fencing and slot.unit is None for slot in self._slots.values())
        for unit in self._next():
            slot = self._choose(unit)
            if slot is None:
                continue
            grant = slot.grant
            if grant is None or slot.fresh:
                if not coming or unit.transactional_id:
                    self._fence(slot)
                else:
                    coming -= 1
                continue
            slot.unit, unit.slot, unit.grant = unit, slot, grant
            slot.next_turn()
            unit.sequences.clear()
            unit.places.clear()
            unit.epochs.clear()
            unit.issued = False
            unit.notes_left = 1 + len(unit.offsets)
            unit.move(Phase.BEGUN)
            self._begun_marks.append(self._begun(unit, slot, grant))
            if unit.batches and not self._by_itself(unit):
                self._actions.append(Join(slot, slot.turn, unit))
            else:
                unit.move(Phase.APPENDING)

    def _next(self) -> list[Unit]:
        """Units whose turn it is to be begun, in order."""
        found: dict[int, Unit] = {}
        for line in self._lines.values():
            for unit in line:
                if unit.phase is Phase.WAITING:
                    found[unit.number] = unit
                    break
                if unit.phase in {Phase.ASKING, Phase.REFUSED}:
                    break
        for unit in self._bare:
            if unit.phase is Phase.WAITING:
                found[unit.number] = unit
        return [
            unit
            for _, unit in sorted(found.items())
            if unit.durable
            and not unit.resting
            and all(batch.position >= 0 for batch in unit.batches)
            and all(self._is_next(unit, destination) for destination in unit.destinations)
            and all(map(self._front, unit.batches))
        ]

    def _is_next(self, unit: Unit, destination: int) -> bool:
        for other in self._lines[destination]:
            if other is unit:
                return True
            if other.phase in {Phase.WAITING, Phase.ASKING, Phase.REFUSED}:
                return False
        return False

    def _choose(self, unit: Unit) -> Slot | None:
        if unit.transactional_id:
            slot = self._slot(unit.transactional_id)
            return slot if slot.unit is None and not slot.fencing else None
        free = [slot for name in self._pool if (slot := self._slot(name)).unit is None and not slot.fencing]
        ready = (slot for slot in free if slot.grant is not None and not slot.fresh)
        return next(ready, free[0] if free else None)

    def _go_on(self) -> None:
        """What is under way: appended when those before it are, committed when they are."""
        for unit in sorted(
            (slot.unit for slot in self._slots.values() if slot.unit is not None),
            key=lambda unit: unit.number,
        ):
            slot = unit.slot
            if slot is None:
                continue
            if unit.phase is Phase.APPENDING and not unit.issued:
                if all(self._issued_before(unit, destination) for destination in unit.destinations):
                    self._append(unit, slot)
            elif unit.phase is Phase.STAGED and self._may_end(unit):
                if unit.alone or self._in_order(unit):
                    unit.move(Phase.ENDING)
                    self._actions.append(End(slot, slot.turn, unit))
                elif slot.fresh:
                    # Of an earlier life, which knew more: whether it sent EndTxn is asked.
                    self._doubt(unit)
                else:
                    self._redo(unit, None, "it stands before what was accepted earlier")

    def _may_end(self, unit: Unit) -> bool:
        if self._only is not None and unit.unit_id not in self._only:
            return False
        return all(self._lines[destination][0] is unit for destination in unit.destinations)

    def _issued_before(self, unit: Unit, destination: int) -> bool:
        for other in self._lines[destination]:
            if other is unit:
                return True
            if not other.issued:
                return False
        return True

    def _append(self, unit: Unit, slot: Slot) -> None:
        unit.issued = True
        unit.alone = all(self._lines[destination][0] is unit for destination in unit.destinations)
        for batch in unit.batches:
            sequence = slot.sequences.get(batch.destination, 0)
            slot.sequences[batch.destination] = add_sequence(sequence, batch.count)
            unit.sequences[batch.handle] = sequence
            self._actions.append(Append(slot, slot.turn, unit, batch, sequence))
        if not (unit.batches and self._by_itself(unit)):
            self._note(unit)
        self._dirty = True

    def _note(self, unit: Unit) -> None:
        slot = unit.slot
        if slot is not None:
            self._actions.append(Note(slot, slot.turn, unit, -1))

    @staticmethod
    def _by_itself(unit: Unit) -> bool:
        """Its one partition adds itself. Several at once would be in each other's way."""
        grant = unit.grant
        return grant is not None and grant.protocol >= 2 and len(unit.destinations) == 1

    def _in_order(self, unit: Unit) -> bool:
        """Everything that was accepted before it stands before it in the logs."""
        for batch in unit.batches:
            place = unit.places.get(batch.handle, -1)
            if 0 <= place <= self._floor.get(batch.destination, -1):
                return False
        return True

    def _whole(self, unit: Unit) -> None:
        """All of it may be appended."""
        slot, grant = unit.slot, unit.grant
        if slot is None or grant is None or unit.notes_left or len(unit.places) < len(unit.batches):
            return
        unit.move(Phase.STAGING)
        places = tuple(
            m.Placed(
                batch.destination,
                batch.position,
                batch.count,
                unit.sequences[batch.handle],
                unit.places[batch.handle],
            )
            for batch in unit.batches
        )
        self._marks.append(m.Staged(self._begun(unit, slot, grant), places))
        self.staging.append(unit)

    @staticmethod
    def _begun(unit: Unit, slot: Slot, grant: Grant) -> m.Begun:
        return m.Begun(unit.unit_id, slot.transactional_id, grant.producer_id, grant.epoch, grant.protocol)

    def _commit(self, unit: Unit) -> None:
        self._raise_floors(unit)
        unit.move(Phase.COMMITTED)
        self._end(unit, m.UnitOutcome.COMMITTED, "")

    def _end(self, unit: Unit, outcome: m.UnitOutcome, reason: str) -> None:
        self._leave(unit)
        self._marks.append(m.Ended(unit.unit_id, outcome, reason))
        self.ending.append(unit)
        self._dirty = True

    def _redo(self, unit: Unit, code: int | None, reason: str) -> None:
        """Back to the line; what was written is aborted. What stands behind it in a log has to go back as well."""
        self._break(unit)
        unit.move(Phase.WAITING)
        unit.tries += 1
        unit.resting = True
        for destination in unit.destinations:
            behind = False
            for other in list(self._lines[destination]):
                if behind and other.phase in {Phase.APPENDING, Phase.STAGING, Phase.STAGED} and other.issued:
                    if other.slot is not None and other.slot.fresh:
                        self._doubt(other)
                    else:
                        self._break(other)
                        other.move(Phase.WAITING)
                behind = behind or other is unit
        unit.code = 0
        unit.reason = reason
        self._actions.append(Again(Rest(unit), unit.tries, code, reason, slow=code in _PLACE))

    def _break(self, unit: Unit) -> None:
        """The transaction is to be aborted: InitProducerId does it, and shuts out whatever is late."""
        slot, unit.slot = unit.slot, None
        unit.issued = False
        if slot is not None:
            slot.unit = None
            self._fence(slot)
        self._dirty = True

    def _doubt(self, unit: Unit) -> None:
        """Was it committed? Nothing of it can be after the fence."""
        slot = unit.slot
        unit.move(Phase.ASKING)
        if slot is None:
            raise IllegalStepError(f"{unit} has no transactional id")
        self._fence(slot)

    def _free(self, unit: Unit) -> None:
        slot, unit.slot = unit.slot, None
        unit.issued = False
        if slot is not None:
            slot.unit = None
            slot.next_turn()

    def _is_anothers(self, slot: Slot) -> bool:
        """Whether a refused epoch says that somebody else has the id now; with protocol 1 a time-out looks the same.

        What an earlier life staged is this life's all the same, which takes over what it finds.
        """
        return (
            slot.transactional_id not in self._pool
            and not slot.fresh
            and slot.grant is not None
            and slot.grant.protocol >= 2
        )

    def _ask_unfenced(self, unit: Unit, slot: Slot, reason: str) -> None:
        """Was it committed before? Who took over has ended it, and is not to be fenced in turn."""
        unit.move(Phase.ASKING)
        unit.code, unit.reason, unit.dropped = 90, reason, bool(unit.offsets)
        slot.grant = slot.former = None
        slot.next_turn()
        self._actions.append(Ask(slot, slot.turn, unit))

    def _fence(self, slot: Slot) -> None:
        slot.next_turn()
        slot.fencing = True
        # Of a name that the user gave: who has taken it over since is not to be fenced in turn.
        keep = slot.former if slot.transactional_id not in self._pool and slot.unit is None else None
        slot.grant = None
        self._actions.append(Fence(slot, slot.turn, keep))

    def moved(self) -> None:
        """Another cluster is spoken to from now on: what this one granted means nothing there."""
        self._slots.clear()
        self._floor.clear()

    def take_over(self, transactional_id: str) -> None:
        """A name that the user gave becomes ours: whoever had it is fenced, and what he left open is aborted."""
        slot = self._slot(transactional_id)
        if slot.unit is None and not slot.fencing:
            slot.former = None
            self._fence(slot)

    def granted(self, transactional_id: str) -> Grant | None:
        """What the id's holder has; None while it is not ours."""
        slot = self._slots.get(transactional_id)
        return None if slot is None else slot.grant

    def _taken_over(self, slot: Slot, reason: str) -> None:
        """Somebody else has the name now: what waits under it is his to do, or nobody's."""
        slot.fencing = False
        slot.former = None
        for unit in list(self._units.values()):
            if unit.transactional_id == slot.transactional_id and unit.phase is Phase.WAITING:
                # Where it moves a group's offsets, whoever has the name reads the same records again.
                unit.code, unit.reason, unit.dropped = 90, reason, bool(unit.offsets)
                self._refuse(unit)

    def _refuse(self, unit: Unit) -> None:
        unit.move(Phase.REFUSED)
        if unit.dropped:
            self._end(unit, m.UnitOutcome.DROPPED, unit.reason)
        else:
            self._actions.append(Refuse(unit))
        self._dirty = True

    # -- bits ------------------------------------------------------------------------------------------------------

    def _valid(self, action: Request) -> bool:
        return action.turn == action.slot.turn

    def _make(self, unit_id: bytes, transactional_id: str, offsets: tuple[m.GroupOffsets, ...]) -> Unit:
        self._numbers += 1
        unit = Unit(self._numbers, unit_id, transactional_id, offsets)
        self._units[unit_id] = unit
        return unit

    def _slot(self, name: str) -> Slot:
        return self._slots.setdefault(name, Slot(name))

    def _line(self, destination: int) -> deque[Unit]:
        return self._lines.setdefault(destination, deque())

    def _leave(self, unit: Unit) -> None:
        for destination in unit.destinations:
            line = self._lines.get(destination)
            if line is not None and unit in line:
                line.remove(unit)
                if not line:
                    del self._lines[destination]
        if unit in self._bare:
            self._bare.remove(unit)

    def _raise_floors(self, unit: Unit) -> None:
        for batch in unit.batches:
            place = unit.places.get(batch.handle, -1)
            if place >= 0 and unit.alone:
                # Whatever was known before: a log may have been cut since.
                self._floor[batch.destination] = place + batch.count - 1
            elif place >= 0:
                self._raise_floor(batch.destination, place + batch.count - 1)

    def _raise_floor(self, destination: int, offset: int) -> None:
        self._floor[destination] = max(self._floor.get(destination, -1), offset)

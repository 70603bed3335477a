"""What a unit is and what it may become; transactional ids and what is done under them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from kafkasafe._core import marks as m

__all__ = [
    "GIVEN_UP",
    "NO_READING",
    "OLDEST",
    "POOL",
    "SUPERSEDED",
    "TRANSITIONS",
    "Action",
    "Again",
    "Append",
    "Ask",
    "End",
    "Fence",
    "Grant",
    "GroupPartition",
    "IllegalStepError",
    "Join",
    "Line",
    "Look",
    "Member",
    "Note",
    "Phase",
    "Reading",
    "Refuse",
    "Request",
    "Rest",
    "Slot",
    "Unit",
]

GIVEN_UP: Final = -4
"""The code of what an operator gave up: none of Kafka's."""

SUPERSEDED: Final = -5
"""The code of a unit whose consumer did not start from the group's offset: none of Kafka's."""

GroupPartition: TypeAlias = tuple[str, str, int]
"""(group, topic, partition): where a consumer group's offset of one partition is."""

Line: TypeAlias = int | GroupPartition
"""What units have an order on: a destination, or a group's offset of a partition."""

POOL: Final = 4
"""Transactional ids of a lane: so many of its units are under way at once."""


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
    size_bytes: int


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


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of a consumer through a partition: units of one reading go on from one another.

    A consumer that is moved back, or is assigned the partition again, begins another reading.

    Attributes:
        number: Ascending in the order in which readings began; below 0: in an earlier incarnation.
        start: The group's offset when it began, -1 when that is not known.
    """

    number: int
    start: int = -1


NO_READING: Final = Reading(0)
"""Of a unit whose consumer is not known."""
OLDEST: Final = -(1 << 62)
"""The number of readings that earlier versions did not tell apart."""


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

    def blame(self, code: int, reason: str) -> None:
        """Why it is not delivered."""
        self.code, self.reason = code, reason

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
        staged: Read back: units that are staged in its transaction.
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
    attempts: dict[Request, int] = field(default_factory=dict)
    staged: list[Unit] = field(default_factory=list)

    def next_turn(self) -> None:
        """Whatever is under way is void."""
        self.turn += 1
        self.unsure = self.alone = False
        self.attempts.clear()


@dataclass(frozen=True, slots=True)
class Fence:
    """InitProducerId: `fenced`. With `keep`: not if anybody else has taken it over since.

    With `timed_out` that is the epoch which the coordinator gives when it aborts what is open for too long.
    """

    slot: Slot
    turn: int
    keep: Grant | None = None
    timed_out: bool = False


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
class Look:
    """How does the coordinator describe the transaction? `described`."""

    slot: Slot
    turn: int
    unit: Unit


@dataclass(frozen=True, slots=True)
class Ask:
    """Does the marker, or the log, say that it was committed? `told`.

    With `by_log` the log alone: who has taken the id over may have the marker of ours in a transaction of his own.
    """

    slot: Slot
    turn: int
    unit: Unit
    by_log: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is to be made durable in `rejected/`: `put_aside`."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Rest:
    """It goes on after a pause: `rested`."""

    unit: Unit


Request = Fence | Join | Append | Note | End | Look | Ask


@dataclass(frozen=True, slots=True)
class Again:
    """The same once more, after a pause: `again`."""

    action: Request | Rest
    attempt: int
    code: int | None
    reason: str
    slow: bool = False


Action = Request | Refuse | Again

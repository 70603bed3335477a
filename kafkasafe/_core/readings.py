"""Compares a consumer's position with the offsets to which atomic batches moved its group, and decides when to go back.

A *reading* is one run of a consumer through a partition: from the position where it is placed until it is moved away.
Each atomic batch with the consumer's offsets continues the one before. If one of them is dropped, `units` drops the
later ones of the reading as well, and the consumer has to return to the group's offset: another reading begins.

A consumer keeps its position through a rebalance, although another member may have had the partition in between. So
after a rebalance, the group's offset is compared with the offsets that the reading's own batches committed
(`Readings.goes_on`).
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kafkasafe._core.units import Reading

__all__ = ["NONE", "Claim", "Fate", "Numbers", "Readings", "Run"]

NONE: Final = -1
"""The group has no offset for the partition."""

_Partition = TypeVar("_Partition", bound=Hashable)


class Fate(enum.Enum):
    """The fate of a batch with a consumer's offsets, as far as its process knows."""

    OPEN = "open"
    """The program has not committed it yet."""
    FORGOTTEN = "forgotten"
    """The program dropped it before it was committed."""
    WAITING = "waiting"
    """The producer accepted it, and its outcome is open."""
    COMMITTED = "committed"
    REJECTED = "rejected"
    """The producer gave it up and kept its records. It did not move the group, and its consumer continues."""
    DROPPED = "dropped"
    """The producer gave it up without keeping its records: the consumer has to read them again."""
    LEFT = "left"
    """The program closed its producer before its outcome: another producer may deliver it."""


_UNDECIDED: Final = frozenset({Fate.OPEN, Fate.WAITING, Fate.LEFT})
_UNMOVED: Final = frozenset({Fate.FORGOTTEN, Fate.REJECTED})
"""It did not move the group, and its reading continues."""


class Numbers:
    """Numbers of the readings of a process, ascending.

    Args:
        first: The first one, at least 1. No other process whose batches may be in the same spool begins with it.
    """

    def __init__(self, first: int) -> None:
        self._next = itertools.count(first)
        self.newest = 0
        """The last number that was drawn."""

    def draw(self) -> int:
        """Draw the number of a new reading. Call it before asking the group for its offset."""
        self.newest = max(self.newest, number := next(self._next))
        return number


@dataclass(slots=True, eq=False)
class Claim:
    """A batch moves the group to an offset.

    Attributes:
        offset: Of the next record to be read.
        fate: Returns the fate of the batch. From any thread.
        void: The consumer was moved back: the batch must not be committed any more.
    """

    offset: int
    fate: Callable[[], Fate]
    void: bool = False


class Run:
    """One reading of a partition, and the batches with its offsets, in the order in which they were made.

    Attributes:
        reading: The number and start that batches record for it.
        reached: The group's offset, as far as this reading moved it; None: not known.
        sent: The last accepted offset; None: no offset was accepted, and the reading's start is not known.
        first: The position where it began, if the group's offset does not give it; None: not known.
        broken: A batch of it was dropped, or left undecided.
        left: The program closed the producer of one of its batches before the outcome.
    """

    def __init__(self, number: int, start: int | None) -> None:
        self.reading = Reading(number, NONE if start is None else start)
        self.reached = start
        self.sent = None if start == NONE else start
        self.first: int | None = None
        self.broken = False
        self.left = False
        self._claims: deque[Claim] = deque()

    def place(self, first: int) -> None:
        """Set the position where it begins, which differs from the group's offset."""
        self.first = first

    def claim(self, claim: Claim) -> None:
        """Add a batch that is about to move the group to an offset."""
        self._claims.append(claim)

    def look(self) -> None:
        """Evaluate the fates of the batches, in order, up to the first without a final one."""
        while self._claims:
            claim = self._claims[0]
            match claim.fate():
                case Fate.OPEN | Fate.WAITING:
                    break
                case Fate.COMMITTED:
                    self.reached = self.sent = claim.offset
                case Fate.REJECTED:
                    self.sent = claim.offset
                case (Fate.DROPPED | Fate.LEFT) as fate:
                    self.sent = claim.offset
                    self.broken = True
                    self.left |= fate is Fate.LEFT
                case Fate.FORGOTTEN:
                    pass
            self._claims.popleft()

    @property
    def waits(self) -> bool:
        """Whether an accepted batch has no outcome yet."""
        return any(claim.fate() is Fate.WAITING for claim in self._claims)

    @property
    def is_open(self) -> bool:
        """Whether the program still has a batch with its offsets that it has not committed."""
        return any(claim.fate() is Fate.OPEN for claim in self._claims)

    @property
    def is_undecided(self) -> bool:
        """Whether a batch may still move the group, now or when another producer delivers what its own one left."""
        return self.left or any(claim.fate() in _UNDECIDED for claim in self._claims)

    @property
    def is_unused(self) -> bool:
        """Whether the group's offset gave its position, and no batch of it has moved the group or may still do so.

        Rejected batches do not move it. So if all were rejected, a batch of an earlier reading may still come first.
        """
        return (
            self.reached is not None
            and self.reached == self.reading.start
            and all(claim.fate() in _UNMOVED for claim in self._claims)
        )

    @property
    def handed(self) -> int | None:
        """The offset to which all batches, also uncommitted ones, would move the group; None: not known."""
        taken = (claim.offset for claim in self._claims if claim.fate() is not Fate.FORGOTTEN)
        return max(taken, default=self.sent)

    @property
    def accepted(self) -> int | None:
        """As `handed`, without batches that the program has not committed yet."""
        taken = (claim.offset for claim in self._claims if claim.fate() not in {Fate.FORGOTTEN, Fate.OPEN})
        return max(taken, default=self.sent)

    def in_no_batch(self, consumed: int) -> bool:
        """Whether the program may hold records that are in no batch.

        Args:
            consumed: Up to which offset records were handed out.
        """
        handed = self.handed
        return consumed != (self.first if handed is None else handed)

    def step_back(self) -> None:
        """Void batches that the program has not committed: the consumer continues from `accepted` again."""
        for claim in self._claims:
            if claim.fate() is Fate.OPEN:
                claim.void = True
        self._claims = deque(claim for claim in self._claims if not claim.void)

    def end(self) -> None:
        """Void the batches of the reading: the consumer is moved away."""
        for claim in self._claims:
            claim.void = True


class Readings(Generic[_Partition]):
    """The readings of one consumer."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._runs: dict[_Partition, Run] = {}
        self._suspects: set[_Partition] = set()
        self.used = False
        """Whether an atomic batch ever had the consumer's offsets. Other consumers move their groups themselves."""

    def use(self) -> None:
        """Note that a batch with the consumer's offsets is made."""
        self.used = True

    def get(self, partition: _Partition) -> Run | None:
        """The current reading of a partition."""
        return self._runs.get(partition)

    def draw(self) -> int:
        """Draw a number for `begin`. Call it before asking the group for its offset."""
        return self._numbers.draw()

    def begin(self, partition: _Partition, number: int, start: int | None) -> Run:
        """Begin another reading.

        Args:
            partition: The partition.
            number: From `draw`.
            start: The group's offset, NONE if it has no offset; None: not known.
        """
        self.end(partition)
        run = self._runs[partition] = Run(number, start)
        return run

    def end(self, partition: _Partition) -> None:
        """End the reading of a partition."""
        self._suspects.discard(partition)
        run = self._runs.pop(partition, None)
        if run is not None:
            run.end()

    def suspect(self) -> None:
        """Suspect all readings after a rebalance: other members may have had the consumer's partitions meanwhile."""
        self._suspects.update(self._runs)

    def look(self, assigned: Iterable[_Partition]) -> list[_Partition]:
        """The partitions whose positions have to be compared with the group's offsets."""
        found = []
        for partition in assigned if self.used else ():
            run = self._runs.get(partition)
            if run is not None:
                run.look()
                if run.broken or partition in self._suspects:
                    found.append(partition)
        return found

    def waits(self, partition: _Partition) -> bool:
        """Whether the group's offset may still change, because a batch with the consumer's offsets has no outcome."""
        run = self._runs.get(partition)
        return run is not None and run.waits

    def goes_on(self, partition: _Partition, group_offset: int) -> bool:
        """Whether the reading continues: no batch of it was dropped, and nothing else has moved the group.

        Otherwise another one begins at the group's offset, even if the consumer is already there: other members have
        processed the records that it handed out and that are in no batch.

        Args:
            partition: The partition. No batch of it waits.
            group_offset: The group's final offset; NONE if it has no offset.
        """
        run = self._runs[partition]
        run.look()
        if run.broken or run.reached != group_offset:
            return False
        self._suspects.discard(partition)
        return True

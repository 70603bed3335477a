"""Where a consumer is, and where atomic batches have moved its group to: when it has to be moved back.

A *reading* is one run of a consumer through a partition: from where it is placed to where it is moved away. Each atomic
batch with the consumer's offsets goes on from the one before. When one of them is dropped the later ones of the reading
are dropped with it (`units`), and the consumer has to be moved back to the group's offset: another reading begins.

A consumer keeps its position through a rebalance, though another member may have had the partition in between. So after
one the group's offset is compared with what the reading's own batches have committed (`Readings.goes_on`).
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
    """What became of a batch with a consumer's offsets, as far as its process knows."""

    OPEN = "open"
    """It is not committed yet by the program."""
    FORGOTTEN = "forgotten"
    """The program dropped it before it was committed."""
    WAITING = "waiting"
    """It was accepted, and is not decided."""
    COMMITTED = "committed"
    REJECTED = "rejected"
    """It was given up, and its records are kept: the group was not moved by it, and its consumer goes on."""
    DROPPED = "dropped"
    """It was given up, and its records are nowhere: they are to be read again."""
    LEFT = "left"
    """Its producer was closed before it was decided: another one may deliver it."""


class Numbers:
    """Numbers of the readings of a process, ascending.

    Args:
        first: The first one, at least 1. No other process whose batches may be in the same spool begins with it.
    """

    def __init__(self, first: int) -> None:
        self._next = itertools.count(first)
        self.newest = 0
        """The number that was drawn last."""

    def draw(self) -> int:
        """One for a reading that begins. Before the group is asked for its offset."""
        self.newest = max(self.newest, number := next(self._next))
        return number


@dataclass(slots=True, eq=False)
class Claim:
    """A batch moves the group to an offset.

    Attributes:
        offset: Of the next record to be read.
        fate: What became of the batch. From any thread.
        void: The consumer was moved back: the batch must not be committed any more.
    """

    offset: int
    fate: Callable[[], Fate]
    void: bool = False


class Run:
    """One reading of a partition, and the batches with its offsets, in the order in which they were made.

    Attributes:
        reading: What batches say of it.
        reached: The group's offset, as far as this reading moved it; None: not known.
        sent: The offset that was accepted last; None: none, and it is not known where the reading began.
        first: The position where it began, where the group's offset does not say it; None: not known.
        broken: A batch of it was dropped, or left undecided.
    """

    def __init__(self, number: int, start: int | None) -> None:
        self.reading = Reading(number, NONE if start is None else start)
        self.reached = start
        self.sent = None if start == NONE else start
        self.first: int | None = None
        self.broken = False
        self._claims: deque[Claim] = deque()

    def place(self, first: int) -> None:
        """It begins at this position, which the group's offset does not say."""
        self.first = first

    def claim(self, claim: Claim) -> None:
        """A batch is about to move the group to this offset."""
        self._claims.append(claim)

    def look(self) -> None:
        """What became of the batches."""
        while self._claims:
            claim = self._claims[0]
            match claim.fate():
                case Fate.OPEN | Fate.WAITING:
                    break
                case Fate.COMMITTED:
                    self.reached = self.sent = claim.offset
                case Fate.REJECTED:
                    self.sent = claim.offset
                case Fate.DROPPED | Fate.LEFT:
                    self.sent = claim.offset
                    self.broken = True
                case Fate.FORGOTTEN:
                    pass
            self._claims.popleft()

    @property
    def waits(self) -> bool:
        """Whether a batch was accepted and is not decided."""
        return any(claim.fate() is Fate.WAITING for claim in self._claims)

    @property
    def is_open(self) -> bool:
        """Whether the program still has a batch with its offsets that it has not committed."""
        return any(claim.fate() is Fate.OPEN for claim in self._claims)

    @property
    def handed(self) -> int | None:
        """Up to where batches that were accepted take the group; None: not known."""
        taken = (claim.offset for claim in self._claims if claim.fate() is not Fate.FORGOTTEN)
        return max(taken, default=self.sent)

    @property
    def accepted(self) -> int | None:
        """As `handed`, without what the program has not committed yet."""
        taken = (claim.offset for claim in self._claims if claim.fate() not in {Fate.FORGOTTEN, Fate.OPEN})
        return max(taken, default=self.sent)

    def in_no_batch(self, consumed: int) -> bool:
        """Whether the program may hold records that are in no batch.

        Args:
            consumed: Up to where records were handed out.
        """
        handed = self.handed
        return consumed != (self.first if handed is None else handed)

    def step_back(self) -> None:
        """The consumer goes on from `accepted` once more: what the program has not committed is void."""
        for claim in self._claims:
            if claim.fate() is Fate.OPEN:
                claim.void = True
        self._claims = deque(claim for claim in self._claims if not claim.void)

    def end(self) -> None:
        """The consumer is moved away: what the program has not committed is void."""
        for claim in self._claims:
            claim.void = True


class Readings(Generic[_Partition]):
    """The readings of one consumer."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._runs: dict[_Partition, Run] = {}
        self._suspects: set[_Partition] = set()
        self.used = False
        """A batch with its offsets is made, or was. Other consumers move their groups themselves."""

    def use(self) -> None:
        """A batch with the consumer's offsets is made."""
        self.used = True

    def get(self, partition: _Partition) -> Run | None:
        """The present one."""
        return self._runs.get(partition)

    def draw(self) -> int:
        """A number for `begin`. Before the group is asked for its offset."""
        return self._numbers.draw()

    def begin(self, partition: _Partition, number: int, start: int | None) -> Run:
        """Another reading begins.

        Args:
            partition: Whose.
            number: From `draw`.
            start: The group's offset, NONE where it has none; None: not known.
        """
        self.end(partition)
        run = self._runs[partition] = Run(number, start)
        return run

    def end(self, partition: _Partition) -> None:
        """The consumer does not read it any more."""
        self._suspects.discard(partition)
        run = self._runs.pop(partition, None)
        if run is not None:
            run.end()

    def suspect(self) -> None:
        """The group was rebalanced: others may have had what this consumer has kept."""
        self._suspects.update(self._runs)

    def look(self, assigned: Iterable[_Partition]) -> list[_Partition]:
        """Those whose positions are to be compared with the group's offsets."""
        found = []
        for partition in assigned if self.used else ():
            run = self._runs.get(partition)
            if run is not None:
                run.look()
                if run.broken or partition in self._suspects:
                    found.append(partition)
        return found

    def waits(self, partition: _Partition) -> bool:
        """What the group has is not final: a batch with the consumer's offset is not decided."""
        run = self._runs.get(partition)
        return run is not None and run.waits

    def goes_on(self, partition: _Partition, group_offset: int) -> bool:
        """Whether the reading goes on: nothing of it was dropped, and nothing else has moved the group.

        Else another one begins, at the group's offset; also where the consumer is there already, since what it has
        handed out and is in no batch was processed by others.

        Args:
            partition: Which. Nothing of it waits.
            group_offset: As the group has it, none pending; NONE for none.
        """
        run = self._runs[partition]
        run.look()
        if run.broken or run.reached != group_offset:
            return False
        self._suspects.discard(partition)
        return True

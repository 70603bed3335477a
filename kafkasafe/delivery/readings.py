"""Decides when a consumer must move back to its group's offset: when an atomic batch with the consumer's offsets was
dropped or left undecided, or when anything else has moved the group's offset.

A *reading* is one run of a consumer through a partition: from the position where the run begins until the consumer
moves to another position. Within a reading, each atomic batch with the consumer's offsets begins at the offset where
the previous batch ended. If a batch is dropped, the package `kafkasafe.units` also drops the later batches of the
reading. The consumer then has to return to the group's offset, where a new reading begins.

A consumer that gets a partition back in a rebalance keeps its position. But another member may have owned the partition
meanwhile, and moved the group's offset. So after a rebalance, `Readings.goes_on` compares the group's offset with the
offsets that the reading's own batches committed.

A batch may be committed after the end of its reading: if the program closed the batch's producer, another process may
deliver the batch from the spool at any time. `kafkasafe.units.ReadingOrder` decides which batches of a lane to drop,
but does not know the batches of other lanes. So before a consumer commits a batch through another lane, it makes sure
that no undecided batch of a closed producer can still be committed (`Earlier`).
"""

from __future__ import annotations

import enum
import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from kafkasafe.units import Reading

NONE: Final = -1
"""The group has no offset for the partition."""

Member: TypeAlias = tuple[int, str]
"""The group's generation id, and the consumer's member id."""

_Partition = TypeVar("_Partition", bound=Hashable)


class OffsetsFate(enum.Enum):
    """The outcome of an atomic batch with a consumer's offsets, as far as the consumer's process knows it."""

    OPEN = "open"
    """The program has not committed the batch yet."""
    FORGOTTEN = "forgotten"
    """The program dropped the batch before committing it."""
    WAITING = "waiting"
    """The producer accepted the batch, and the batch has no outcome yet."""
    COMMITTED = "committed"
    REJECTED = "rejected"
    """The producer gave up the batch and kept its records. The group's offset did not move, and the
    consumer continues.
    """
    DROPPED = "dropped"
    """The producer gave up the batch without keeping its records, so the consumer has to read its input again."""
    LEFT = "left"
    """The program closed the batch's producer before the batch had an outcome. Another producer may deliver the batch.
    """


_UNDECIDED: Final = frozenset({OffsetsFate.OPEN, OffsetsFate.WAITING, OffsetsFate.LEFT})
_UNMOVED: Final = frozenset({OffsetsFate.FORGOTTEN, OffsetsFate.REJECTED})
"""Outcomes that do not move the group's offset, and do not end the reading."""


class Numbers:
    """Draws ascending numbers for the readings (runs of consumers through partitions) in a process.

    Args:
        first: The first number, at least 1. Processes whose batches may be in the same spool need different first
            numbers.
    """

    def __init__(self, first: int) -> None:
        self._next = itertools.count(first)
        self.newest = 0
        """The last number that was drawn."""

    def draw(self) -> int:
        """Draw the number of a new reading. Call this method before asking the group for its offset."""
        self.newest = max(self.newest, number := next(self._next))
        return number


class ProducerLane(Protocol):
    """The lane of a producer. Two `ProducerLane` objects are equal if they stand for the same lane of a spool, even if
    they belong to different producers.
    """

    @property
    def in_memory(self) -> bool:
        """Whether the lane exists only in memory. Such a lane ends with its producer."""

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Carrier:
    """The lane that delivers a batch, and the group member in whose name the batch commits offsets.

    Attributes:
        lane: The lane of the batch's producer. Each producer has its own `ProducerLane` object.
        member: The consumer as a member of its group. None if the consumer uses `assign`, and so is not a member: the
            group cannot refuse its offsets.
    """

    lane: ProducerLane
    member: Member | None

    def is_refused(self, now: Member | None) -> bool:
        """Whether the group now refuses the batch's offsets because they come from a former generation or member.

        Source: GroupCoordinator.validateOffsetCommit in brokers (KIP-447; KIP-345 for static members).

        Args:
            now: The consumer's current membership. None if the consumer is not a member at the moment; the group may
                then still accept offsets that are committed with the former generation id and member id.
        """
        return self.member is not None and now is not None and now != self.member


@dataclass(slots=True, eq=False)
class OffsetClaim:
    """The offset that becomes the group's offset if a batch is committed.

    Attributes:
        offset: Offset of the next record to be read.
        fate: Returns the outcome of the batch. Callable from any thread.
        carrier: The batch's lane and group member; None if unknown.
        void: Whether the consumer was moved back. If so, the batch must not be committed any more.
    """

    offset: int
    fate: Callable[[], OffsetsFate]
    carrier: Carrier | None = None
    void: bool = False

    def revoke(self) -> None:
        """Note that the consumer was moved back."""
        self.void = True


class ReadingRun:
    """One reading: a consumer's run through a partition. Holds the atomic batches that commit offsets of this run, in
    the order in which they were made.

    Attributes:
        reading: The reading's number and start, as batches store them.
        reached: The group's offset after the committed batches of this run that `look` has evaluated. Before the first
            one, the group's offset at the reading's start; None if unknown.
        sent: The offset of the last accepted batch that `look` has evaluated. Before the first accepted batch, `sent`
            is the group's offset at the reading's start; None if the group has no offset or the offset is unknown.
        first: The position where the reading began, if `place` has set one; otherwise None.
        broken: Whether a batch of the reading was dropped, or left undecided.
    """

    def __init__(self, number: int, start: int | None) -> None:
        self.reading = Reading(number, NONE if start is None else start)
        self.reached = start
        self.sent = None if start == NONE else start
        self.first: int | None = None
        self.broken = False
        self._claims: deque[OffsetClaim] = deque()
        self._left: list[OffsetClaim] = []
        """Batches that had no outcome yet when the program closed their producer."""

    def place(self, first: int) -> None:
        """Set the position where the reading begins. Called only if this position is not a committed offset of the
        group.
        """
        self.first = first

    def claim(self, claim: OffsetClaim) -> None:
        """Add a batch that will commit an offset of the group."""
        self._claims.append(claim)

    def look(self) -> None:
        """Evaluate the batches in the order in which they were made, up to the first batch without an outcome."""
        while self._claims:
            claim = self._claims[0]
            match claim.fate():
                case OffsetsFate.OPEN | OffsetsFate.WAITING:
                    break
                case OffsetsFate.COMMITTED:
                    self.reached = self.sent = claim.offset
                case OffsetsFate.REJECTED:
                    self.sent = claim.offset
                case (OffsetsFate.DROPPED | OffsetsFate.LEFT) as fate:
                    self.sent = claim.offset
                    self.broken = True
                    if fate is OffsetsFate.LEFT:
                        self._left.append(claim)
                case OffsetsFate.FORGOTTEN:
                    pass
            self._claims.popleft()

    @property
    def waits(self) -> bool:
        """Whether an accepted batch has no outcome yet."""
        return any(claim.fate() is OffsetsFate.WAITING for claim in self._claims)

    @property
    def is_open(self) -> bool:
        """True if the reading has a batch that the program has neither committed nor dropped yet."""
        return any(claim.fate() is OffsetsFate.OPEN for claim in self._claims)

    @property
    def undecided(self) -> list[OffsetClaim]:
        """The batches that may still move the group's offset. A batch may be delivered by its own producer or, after
        the end of this producer, by another producer.
        """
        return [*self._left, *(claim for claim in self._claims if claim.fate() in _UNDECIDED)]

    def elsewhere(self, mine: Carrier) -> list[OffsetClaim]:
        """Return the undecided batches of other producers, that is, those whose lane is not `mine.lane`."""
        return [
            claim
            for claim in self._claims
            if claim.carrier is not None
            and claim.carrier.lane is not mine.lane
            and claim.fate() in _UNDECIDED
        ]

    @property
    def is_unused(self) -> bool:
        """True if the reading (the consumer's run) began at the group's offset, and none of its batches has changed
        this offset or can still change it.

        Rejected batches do not move the group's offset. So if all batches of this reading were rejected, the group's
        offset is still this reading's start. But an undecided batch of an earlier reading may move the offset later.
        """
        return (
            self.reached is not None
            and self.reached == self.reading.start
            and all(claim.fate() in _UNMOVED for claim in self._claims)
        )

    @property
    def handed(self) -> int | None:
        """The largest offset in the batches of this run, including those that the program has not committed yet, but
        not those that the program dropped. Without batches, the group's offset at the start of the run; None if
        unknown.
        """
        taken = (claim.offset for claim in self._claims if claim.fate() is not OffsetsFate.FORGOTTEN)
        return max(taken, default=self.sent)

    @property
    def accepted(self) -> int | None:
        """The largest offset in the batches that the program has committed. Without such batches, the group's offset at
        the reading's start; None if unknown.
        """
        taken = (
            claim.offset
            for claim in self._claims
            if claim.fate() not in {OffsetsFate.FORGOTTEN, OffsetsFate.OPEN}
        )
        return max(taken, default=self.sent)

    def in_no_batch(self, consumed: int) -> bool:
        """Whether the program may have received records that are in no batch.

        Args:
            consumed: Offset after the last record that the program received.
        """
        handed = self.handed
        return consumed != (self.first if handed is None else handed)

    def step_back(self) -> None:
        """Revoke the offsets in the batches that the program has not committed, because the consumer moves back to
        `accepted`.
        """
        for claim in self._claims:
            if claim.fate() is OffsetsFate.OPEN:
                claim.revoke()
        self._claims = deque(claim for claim in self._claims if not claim.void)

    def end(self) -> None:
        """Revoke the offsets in the reading's batches, because the consumer moves to another position."""
        for claim in self._claims:
            claim.revoke()


class Readings(Generic[_Partition]):
    """The readings of one consumer."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._runs: dict[_Partition, ReadingRun] = {}
        self._suspects: set[_Partition] = set()
        self.used = False
        """Whether any atomic batch has contained the consumer's offsets so far. Before the first atomic batch, the
        consumer itself commits its group's offsets.
        """

    def use(self) -> None:
        """Note that a batch with the consumer's offsets is being made."""
        self.used = True

    def get(self, partition: _Partition) -> ReadingRun | None:
        """The current reading of a partition."""
        return self._runs.get(partition)

    def draw(self) -> int:
        """Draw a number for `begin`. Call `draw` before asking the group for its offset."""
        return self._numbers.draw()

    def begin(self, partition: _Partition, number: int, start: int | None) -> ReadingRun:
        """Begin a new reading.

        Args:
            partition: The partition.
            number: A number from `draw`.
            start: The group's offset; NONE if the group has no offset; None if the offset is not known.
        """
        self.end(partition)
        run = self._runs[partition] = ReadingRun(number, start)
        return run

    def end(self, partition: _Partition) -> None:
        """End the reading of a partition."""
        self._suspects.discard(partition)
        run = self._runs.pop(partition, None)
        if run is not None:
            run.end()

    def suspect(self) -> None:
        """Note that all readings may be out of date after a rebalance, because other members may have owned the
        partitions in between.
        """
        self._suspects.update(self._runs)

    def look(self, assigned: Iterable[_Partition]) -> list[_Partition]:
        """The assigned partitions whose reading may have to end: a batch was dropped or left undecided, or other
        members may have owned the partition since the reading began.
        """
        found = []
        for partition in assigned if self.used else ():
            run = self._runs.get(partition)
            if run is not None:
                run.look()
                if run.broken or partition in self._suspects:
                    found.append(partition)
        return found

    def waits(self, partition: _Partition) -> bool:
        """Whether an accepted batch with the consumer's offsets has no outcome yet. Such a batch may still change
        the group's offset.
        """
        run = self._runs.get(partition)
        return run is not None and run.waits

    def goes_on(self, partition: _Partition, group_offset: int) -> bool:
        """Whether the reading continues. It does if none of its batches was dropped or left undecided, and if only its
        own batches have moved the group's offset.

        If the reading does not continue, a new reading has to begin at the group's offset, even if the consumer's
        position is already this offset. The consumer may have returned records that are in no batch, and other members
        may have processed these records in the meantime.

        Args:
            partition: The partition. Call this method only while no batch with the partition's offsets waits for an
                outcome.
            group_offset: The group's final offset; NONE if the group has no offset.
        """
        run = self._runs[partition]
        run.look()
        if run.broken or run.reached != group_offset:
            return False
        self._suspects.discard(partition)
        return True


class Earlier(Generic[_Partition]):
    """The undecided batches of a consumer's ended readings (runs through partitions). These batches may still move the
    group's offset.
    """

    def __init__(self) -> None:
        self._claims: dict[_Partition, list[OffsetClaim]] = {}

    def add(self, partition: _Partition, claims: Iterable[OffsetClaim]) -> None:
        """Note the undecided batches of a reading that has ended."""
        self._claims[partition] = [*self._claims.pop(partition, ()), *claims]
        self._tidy(partition)

    def elsewhere(self, partition: _Partition, mine: Carrier) -> list[OffsetClaim]:
        """Return the batches of other lanes that may still be committed.

        The result leaves out:

        - batches of the lane in `mine`: the lane's producer itself decides which of its batches to drop.
        - batches of former members: the group refuses these batches.
        - batches that a closed producer had only in memory: these batches are lost. If such a batch has begun a
          transaction, brokers report the group's offset as unstable until the transaction ends.

        Args:
            partition: The partition.
            mine: Lane and group member of the next batch.
        """
        self._tidy(partition, mine.member)
        return [
            claim
            for claim in self._claims.get(partition, ())
            if claim.carrier is not None
            and claim.carrier.lane != mine.lane
            and not claim.carrier.is_refused(mine.member)
        ]

    def forget(self, partition: _Partition, claim: OffsetClaim) -> None:
        """Forget a decided batch. Also forget all other batches with the outcome `OffsetsFate.LEFT` and the same
        carrier (lane and group member), because they are decided together.
        """
        self._claims[partition] = [
            each
            for each in self._claims.pop(partition, ())
            if each is not claim and (each.carrier != claim.carrier or each.fate() is not OffsetsFate.LEFT)
        ]

    def _tidy(self, partition: _Partition, now: Member | None = None) -> None:
        """Drop batches that can no longer be committed. If several batches with the same carrier (lane and group
        member) have the outcome LEFT, keep only the first one.
        """
        found: list[OffsetClaim] = []
        left: set[Carrier] = set()
        for claim in self._claims.pop(partition, ()):
            fate, carrier = claim.fate(), claim.carrier
            if fate not in _UNDECIDED:
                continue
            if fate is OffsetsFate.LEFT and carrier is not None:
                if carrier in left or carrier.lane.in_memory or carrier.is_refused(now):
                    continue
                left.add(carrier)
            found.append(claim)
        if found:
            self._claims[partition] = found

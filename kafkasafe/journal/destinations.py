"""Destinations: partitions, and topics whose partitions are not known yet. Also the table of a lane's destinations.

A destination holds the batches for one address (topic and partition) in delivery order, and other state of the address,
for example refusals. (The module `kafkasafe.record.partition` has another purpose: to choose the partition for a key.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kafkasafe import marks as m
from kafkasafe.journal.acked import AckedLog, LossCase
from kafkasafe.journal.batch import Batch, BatchState
from kafkasafe.journal.doubt import Doubt
from kafkasafe.journal.flow import UNASSIGNED_FLOW, Flow, Progress
from kafkasafe.journal.home import IdSequence
from kafkasafe.journal.queue import PartitionQueue
from kafkasafe.journal.refusal import RefusalTimer, Rejection
from kafkasafe.journal.window import SendWindow

UNCHOSEN: Final = -1
"""Partition number in the address of a topic whose partitions are not known yet."""


@dataclass(slots=True, eq=False)
class Destination:
    """The batches for one address, in delivery order. A destination is a `Partition` or an `UnassignedTopic`."""

    number: int
    topic: str
    partition: int
    progress: Progress = field(default_factory=Progress)
    queue: PartitionQueue = field(default_factory=PartitionQueue)
    log: AckedLog = field(default_factory=AckedLog)
    """In an unassigned topic, `log` has only the topic's id, and commits of batches that the user decided to treat as
    delivered.
    """
    refusal: RefusalTimer = field(default_factory=RefusalTimer)
    rejection: Rejection = field(default_factory=Rejection)
    unsure_before: int = -1
    """Damage destroyed marks (log entries) about batches before this position, so the journal cannot determine which of
    the batches were sent.
    """

    def dequeue(self, batch: Batch) -> None:
        """Remove a batch with a durable commit mark from the queue."""
        if self.queue.remove(batch):
            self.log.clear(batch.base_offset, batch.count)

    def lose_marks(self, before_position: int) -> None:
        """Handle the loss of all marks (log entries) before this position."""
        self.unsure_before = before_position

    def end_unsure(self) -> None:
        """Note that the user decided to send a batch again, and therefore accepts duplicates.

        After this decision, the journal no longer needs to know whether an earlier incarnation sent the other batches.
        """
        self.unsure_before = -1


WINDOW: Final = 5
"""A broker remembers the last five batches of a producer id per partition (`ProducerStateEntry`)."""


@dataclass(slots=True, eq=False)
class Partition(Destination):
    """One partition of a topic."""

    doubt: Doubt = field(default_factory=Doubt)
    ids: IdSequence = field(default_factory=IdSequence)
    window: SendWindow = field(default_factory=SendWindow)
    loss: LossCase = field(default_factory=LossCase)
    gathers: bool = True
    """Whether small batches are merged. Merging ends when a merged batch is refused, or when the batches to merge
    cannot be read.
    """

    def keep_apart(self) -> None:
        """Stop merging small batches."""
        self.gathers = False

    def forget_acknowledged(self) -> None:
        """Forget acknowledged batches, because the lane now writes to the log of another cluster or another topic.

        Waiting batches stay in the queue and keep their ids, because no other batch ever gets the same ids.
        """
        self.log.forget()
        self.doubt.forget_cut()
        self.window.forget()
        self.loss.forget()


_DIVIDE_BYTES: Final = 1024 * 1024
"""In one step, the journal divides batches with about this many bytes in total. After a long outage, all waiting
batches together may not fit in memory, and the disk may have no room for a second copy of them.
"""
_DIVISIBLE: Final = frozenset({BatchState.SEALED, BatchState.JOINED})


@dataclass(slots=True, eq=False)
class UnassignedTopic(Destination):
    """Batches of one topic that wait until its partitions are known. `partition` is UNCHOSEN."""

    progress: Progress = field(default_factory=lambda: Progress(table=UNASSIGNED_FLOW))

    @property
    def may_divide(self) -> bool:
        """Whether the topic's batches may be divided once the partitions are known. None of the topic's batches may be
        divided while one of them is being rejected or is undecidable.
        """
        return self.progress.flow is Flow.NEW

    def divisible(self) -> Iterator[Batch]:
        """The batches to divide next, in queue order. The caller must stop at the first batch that is not on disk, so
        that no later batch overtakes that batch.
        """
        size = 0
        for batch in self.queue.near:
            if size >= _DIVIDE_BYTES or batch.state not in _DIVISIBLE:
                return
            yield batch
            size += batch.size_bytes


class Destinations:
    """All destinations of a lane by number and by address, and the known topics.

    The number of a destination does not change while the lane's log names the destination.

    Attributes:
        all: The destinations by number, in the order in which they were declared.
        partitions: The destinations that are partitions, by number.
        unassigned: The destinations that are topics with unknown partitions, by topic name.
    """

    __slots__ = ("_last_number", "_numbers", "_topics", "all", "partitions", "unassigned")

    def __init__(self) -> None:
        self.all: dict[int, Destination] = {}
        self.partitions: dict[int, Partition] = {}
        self.unassigned: dict[str, UnassignedTopic] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._last_number = 0
        self._topics: dict[str, m.Topic] = {}

    # -- destinations --------------------------------------------------------------------------------------------------

    def declare(self, number: int, topic: str, partition: int) -> None:
        """Add a destination with this number."""
        if partition == UNCHOSEN:
            self.all[number] = self.unassigned[topic] = UnassignedTopic(number, topic, UNCHOSEN)
        else:
            self.all[number] = self.partitions[number] = Partition(number, topic, partition)
        self._numbers[topic, partition] = number
        self._last_number = max(self._last_number, number)

    def add(self, topic: str, partition: int) -> int:
        """Add a new destination. Returns its number."""
        number = self._last_number + 1
        self.declare(number, topic, partition)
        return number

    def number(self, topic: str, partition: int) -> int | None:
        """The number of a destination, None if it is not declared."""
        return self._numbers.get((topic, partition))

    def find(self, topic: str, partition: int) -> Partition | None:
        """The partition with this address, None if it is not declared."""
        number = self._numbers.get((topic, partition))
        return None if number is None else self.partitions.get(number)

    def declared(self, number: int) -> Destination:
        """The destination that a mark names. Raises MarkError if no destination has this number."""
        if number not in self.all:
            raise m.MarkError(f"A mark names destination {number}, which was never declared")
        return self.all[number]

    def declared_partition(self, number: int) -> Partition:
        """The partition that a mark names. Raises MarkError if no partition has this number."""
        if number not in self.partitions:
            raise m.MarkError(f"A mark names partition {number}, which was never declared")
        return self.partitions[number]

    # -- topics --------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, m.Topic]:
        """All known topics by name."""
        return self._topics

    def learn(self, topic: m.Topic) -> None:
        """Set the id and partition count of a topic."""
        self._topics[topic.topic] = topic

"""Collects decided actions until `ready` takes them, and the partitions to re-evaluate before that."""

from __future__ import annotations

from kafkasafe import marks as m
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.flow import FlowEvent
from kafkasafe.journal.groups import Persist
from kafkasafe.journal.messages import Ready, Wait
from kafkasafe.journal.partition import Destination, Partition

__all__ = ["Outbox"]


class Outbox:
    """Actions as data, in the order in which the journal decided them.

    Attributes:
        ready: The actions decided since the last `take`.
        touched: Numbers of partitions that changed, in this order: the next `ready` evaluates each of them.
        committing: Partitions with acknowledged batches that no mark names yet, by number.
    """

    __slots__ = ("committing", "ready", "touched")

    def __init__(self) -> None:
        self.ready = _nothing()
        self.touched: dict[int, None] = {}
        self.committing: dict[int, Destination] = {}

    @property
    def is_empty(self) -> bool:
        """Whether there are neither decided actions nor partitions to evaluate."""
        return not (self.touched or self.committing or self.ready)

    @property
    def is_writing(self) -> bool:
        """Whether marks or batches are about to be written. They may name positions in the spool."""
        return bool(self.ready.persist or self.committing)

    def take(self, *, wants_producer_id: bool) -> Ready:
        """Take the actions decided since the last call. A division is written alone; the rest follows next time."""
        ready, self.ready = self.ready, _nothing()
        ready.want_producer_id(wanted=wants_producer_id)
        if ready.persist.atomic:
            ready.persist.leave_to(self.ready.persist)
        for number, partition in self.committing.items():
            ready.persist.marks.append(
                m.Committed(number, partition.log.leader_epoch, partition.log.take_commits())
            )
        self.committing.clear()
        return ready

    def send(self, partition: Partition, batch: Batch) -> None:
        """Send this batch."""
        self.ready.gathers.pop(partition.number, None)
        batch.send()
        self.ready.sends.append(batch)

    def pause(
        self, partition: Destination, event: FlowEvent, reason: str, *, at_least_s: float = 0.0
    ) -> None:
        """Let the partition wait for `retry`.

        Args:
            partition: The partition.
            event: What the pause follows.
            reason: Human-readable.
            at_least_s: The shortest pause.
        """
        refresh = partition.progress.wait(event)
        denial = partition.refusal.denial
        refused = denial is not None and denial.counted_from >= 0
        attempt = denial.answers if denial is not None and refused else partition.progress.attempt
        self.ready.waits.append(Wait(partition.number, attempt, refresh, at_least_s, reason, refused))


def _nothing() -> Ready:
    return Ready(Persist(), [], [], [], [], [], [], [], [], [], [], [], wants_producer_id=False)

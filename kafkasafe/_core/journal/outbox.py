"""What is decided, until `ready` takes it, and which partitions have to be looked at before that."""

from __future__ import annotations

from kafkasafe._core import marks as m
from kafkasafe._core.journal.groups import Persist
from kafkasafe._core.journal.messages import Ready, Wait
from kafkasafe._core.journal.partition import Partition
from kafkasafe._core.journal.states import Batch

__all__ = ["Outbox"]


class Outbox:
    """Effects as data, in the order in which they were decided.

    Attributes:
        ready: What was decided since the last time.
        touched: Numbers of partitions that changed, in this order: each is looked at in the next `ready`.
        committing: Partitions of which something is acknowledged and not in a mark yet, by number.
    """

    __slots__ = ("committing", "ready", "touched")

    def __init__(self) -> None:
        self.ready = _nothing()
        self.touched: dict[int, None] = {}
        self.committing: dict[int, Partition] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nothing is decided, and nothing has to be looked at."""
        return not (self.touched or self.committing or self.ready)

    @property
    def is_writing(self) -> bool:
        """Whether something is about to be written, which may speak of positions in the spool."""
        return bool(self.ready.persist or self.committing)

    def take(self, *, wants_producer_id: bool) -> Ready:
        """What was decided since the last time, in the order of effects: a division is written alone, then the rest."""
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
        """A request with this batch begins."""
        self.ready.gathers.pop(partition.number, None)
        partition.queue.send(batch)
        self.ready.sends.append(batch)

    def pause(self, partition: Partition, reason: str, *, at_least_s: float = 0.0) -> None:
        """The partition waits for `retry`.

        Args:
            partition: Which one.
            reason: Human-readable.
            at_least_s: The shortest pause.
        """
        refresh = partition.progress.wait()
        denial = partition.refusal.denial
        refused = denial is not None and denial.counted_from >= 0
        attempt = denial.answers if denial is not None and refused else partition.progress.attempt
        self.ready.waits.append(Wait(partition.number, attempt, refresh, at_least_s, reason, refused))


def _nothing() -> Ready:
    return Ready(Persist(), [], [], [], [], [], [], [], [], [], [], [], wants_producer_id=False)

"""What partitions and topics without known partitions have in common: batches that wait in a queue. Only data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kafkasafe.journal.acked import AckedLog
from kafkasafe.journal.flow import Flow
from kafkasafe.journal.progress import Progress
from kafkasafe.journal.queue import PartitionQueue
from kafkasafe.journal.refusal import RefusalTimer
from kafkasafe.journal.rejection import Rejection

__all__ = ["UNCHOSEN", "Destination"]

UNCHOSEN: Final = -1
"""Partition number in the address of a topic whose partitions are not known yet."""


@dataclass(slots=True, eq=False)
class Destination:
    """The batches for one address, in order. It is a `Partition` or an `UnassignedTopic`."""

    number: int
    topic: str
    partition: int
    progress: Progress = field(default_factory=Progress)
    queue: PartitionQueue = field(default_factory=PartitionQueue)
    log: AckedLog = field(default_factory=AckedLog)
    """For an unassigned topic, `log` has only the topic's id, and the marks of batches that the user
    took as delivered.
    """
    refusal: RefusalTimer = field(default_factory=RefusalTimer)
    rejection: Rejection = field(default_factory=Rejection)
    unsure_before: int = -1
    """Damage destroyed marks about batches before this position: whether those were sent cannot be determined."""

    @property
    def flow(self) -> Flow:
        """The current activity."""
        return self.progress.flow

    def lose_marks(self, before_position: int) -> None:
        """Note that marks before this position are lost."""
        self.unsure_before = before_position

    def end_unsure(self) -> None:
        """Note that the user decided to send a batch again: whether the others were sent no longer matters."""
        self.unsure_before = -1

"""The state of one destination, a partition of a topic: its queue, and the objects that own the rest. Only data.

(`kafkasafe._core.partition` chooses the partition for a key.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kafkasafe._core.journal.acked import ANYWHERE, AckedLog
from kafkasafe._core.journal.doubt import Doubt
from kafkasafe._core.journal.flow import Flow
from kafkasafe._core.journal.loss_case import LossCase, Suspicion
from kafkasafe._core.journal.progress import Progress
from kafkasafe._core.journal.queue import PartitionQueue
from kafkasafe._core.journal.refusal import RefusalTimer
from kafkasafe._core.journal.rejection import Rejection
from kafkasafe._core.journal.sequences import IdSequence
from kafkasafe._core.journal.window import SendWindow

__all__ = ["ANYWHERE", "UNCHOSEN", "WINDOW", "Partition", "Suspicion"]

WINDOW: Final = 5
"""A broker remembers the last five batches of a producer id per partition (`ProducerStateEntry`)."""

UNCHOSEN: Final = -1
"""Partition number of a destination whose topic's partitions are not known yet."""


@dataclass(slots=True, eq=False)
class Partition:
    """One destination."""

    number: int
    topic: str
    partition: int
    progress: Progress = field(default_factory=Progress)
    queue: PartitionQueue = field(default_factory=PartitionQueue)
    doubt: Doubt = field(default_factory=Doubt)
    ids: IdSequence = field(default_factory=IdSequence)
    log: AckedLog = field(default_factory=AckedLog)
    window: SendWindow = field(default_factory=SendWindow)
    refusal: RefusalTimer = field(default_factory=RefusalTimer)
    rejection: Rejection = field(default_factory=Rejection)
    loss: LossCase = field(default_factory=LossCase)
    gathers: bool = True
    """Whether small batches are merged: until a merged one is refused, or the batches to merge cannot be read."""
    unsure_before: int = -1
    """Damage destroyed marks about batches before this position: whether those were sent cannot be determined."""

    @property
    def flow(self) -> Flow:
        """The current activity."""
        return self.progress.flow

    def keep_apart(self) -> None:
        """Stop merging small batches."""
        self.gathers = False

    def lose_marks(self, before_position: int) -> None:
        """Note that marks before this position are lost."""
        self.unsure_before = before_position

    def end_unsure(self) -> None:
        """Note that the user decided to send a batch again: whether the others were sent no longer matters."""
        self.unsure_before = -1

    def forget_acknowledged(self) -> None:
        """Forget acknowledged batches: from here on, the log is that of another cluster or another topic.

        Waiting batches and their ids stay: an id is never reused.
        """
        self.log.forget()
        self.doubt.forget_cut()
        self.loss.forget()

"""One destination, a partition of a topic: its queue, and what is known of it. Only data.

(Which partition a key goes to is decided in `kafkasafe._core.partition`.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kafkasafe._core.journal.acked import ANYWHERE, AckedLog
from kafkasafe._core.journal.doubt import Doubt
from kafkasafe._core.journal.loss_case import LossCase, Suspicion
from kafkasafe._core.journal.progress import Flow, Progress
from kafkasafe._core.journal.queue import PartitionQueue
from kafkasafe._core.journal.refusal import RefusalTimer
from kafkasafe._core.journal.rejection import Rejection
from kafkasafe._core.journal.sequences import IdSequence
from kafkasafe._core.journal.window import SendWindow

__all__ = ["ANYWHERE", "UNCHOSEN", "WINDOW", "Flow", "Partition", "Suspicion"]

WINDOW: Final = 5
"""A broker remembers the last five batches of a producer id per partition (`ProducerStateEntry`)."""

UNCHOSEN: Final = -1
"""Partition of a destination whose partitions are not known yet."""


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
    """Small batches become one: until one of those is refused, or those cannot be read."""
    unsure_before: int = -1
    """Marks are lost that may have spoken of the batches before this position: nobody knows what was sent of them."""

    @property
    def flow(self) -> Flow:
        """What it is doing."""
        return self.progress.flow

    def keep_apart(self) -> None:
        """Small batches go as they are."""
        self.gathers = False

    def lose_marks(self, before_position: int) -> None:
        """The log is read, and marks before this position are lost."""
        self.unsure_before = before_position

    def end_unsure(self) -> None:
        """The user decided to send a batch again: what was sent of the others does not matter any more."""
        self.unsure_before = -1

    def forget_acknowledged(self) -> None:
        """Nothing is known to be in the log: it is the log of another cluster, or of another topic, from here on.

        Batches and their ids stay: an id is never given twice.
        """
        self.log.forget()
        self.doubt.forget_cut()
        self.loss.forget()

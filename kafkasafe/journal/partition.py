"""The state of one partition of a topic: its queue, and the objects that own the rest. Only data.

(`kafkasafe.record.partition` chooses the partition for a key.)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kafkasafe.journal.acked import ANYWHERE
from kafkasafe.journal.destination import Destination
from kafkasafe.journal.doubt import Doubt
from kafkasafe.journal.loss_case import LossCase, Suspicion
from kafkasafe.journal.sequences import IdSequence
from kafkasafe.journal.window import SendWindow

__all__ = ["ANYWHERE", "WINDOW", "Partition", "Suspicion"]

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
    """Whether small batches are merged. Merging ends when a merged batch is refused, or batches to merge cannot be
    read.
    """

    def keep_apart(self) -> None:
        """Stop merging small batches."""
        self.gathers = False

    def forget_acknowledged(self) -> None:
        """Forget acknowledged batches: from here on, the log belongs to another cluster or another topic.

        Waiting batches and their ids stay: an id is never reused.
        """
        self.log.forget()
        self.doubt.forget_cut()
        self.loss.forget()

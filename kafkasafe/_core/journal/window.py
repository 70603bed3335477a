"""How many batches of a partition may be on their way at once: more than one only to a leader that surely knows us."""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe._core.identity import BatchId

__all__ = ["SendWindow"]


@dataclass(slots=True)
class SendWindow:
    """What the leader is known to remember of us.

    1. A broker without state of a producer id accepts any base sequence.
    2. Batches 1 and 2 are sent. Batch 1 fails, batch 2 arrives at a leader that forgot us, and is appended.
    3. Batch 1 is sent again, behind batch 2.

    So the first batch under an id goes alone, and so does the first one after a pause.

    Attributes:
        confirmed: The (producer id, epoch) that the leader remembers, and
        until: until when (seconds) it surely does.
        answered: The leader acknowledged something just now: what still waits, waits for its turn.
    """

    confirmed: tuple[int, int] = (-1, -1)
    until: float = 0.0
    answered: bool = False

    def is_open(self, identity: BatchId, now: float) -> bool:
        """Whether this batch may be sent beside others."""
        return self.confirmed == (identity.producer_id, identity.producer_epoch) and now < self.until

    def open(self, identity: BatchId, until: float) -> None:
        """The leader acknowledged a batch: until then it remembers its producer id and epoch."""
        self.confirmed, self.until = (identity.producer_id, identity.producer_epoch), until

    def close(self) -> None:
        """Something failed: the next batch goes alone."""
        self.until = 0.0
        self.answered = False

    def forget(self) -> None:
        """Another cluster is written to: nobody there remembers us."""
        self.confirmed, self.until = (-1, -1), 0.0

    def note_answer(self) -> None:
        """The leader acknowledged a batch, while others were on their way."""
        self.answered = True

    def use_answer(self) -> None:
        """What follows from the answer is done, or nothing waits any more."""
        self.answered = False

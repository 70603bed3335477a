"""Batches of one partition on their way to `rejected/`: in portions, so that other partitions are served in between.

`rejecting` decides which batches are rejected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.journal.batch import Batch

__all__ = ["Rejection"]

_PORTION_BYTES: Final = 1024 * 1024
"""The largest portion, unless a single batch is larger: other partitions are delivered in between."""


@dataclass(slots=True)
class Rejection:
    """The batches that one partition still has to reject.

    Attributes:
        waiting: The batches after the portion that is being written, in the order of the queue.
    """

    waiting: deque[Batch] = field(default_factory=deque)

    @property
    def is_done(self) -> bool:
        """Whether no portion is left."""
        return not self.waiting

    def begin(self, batches: Iterable[Batch]) -> None:
        """Begin to reject these batches, in this order."""
        self.waiting = deque(batches)

    def stop(self) -> None:
        """Stop rejecting the rest for now: a copy could not be written, or the topic exists after all."""
        self.waiting.clear()

    def take_portion(self, most_batches: int) -> tuple[Batch, ...]:
        """Take the next batches to copy: at least one, at most `most_batches`."""
        portion: list[Batch] = []
        size = 0
        while self.waiting and len(portion) < most_batches:
            size += self.waiting[0].size_bytes
            if portion and size > _PORTION_BYTES:
                break
            portion.append(self.waiting.popleft())
        return tuple(portion)

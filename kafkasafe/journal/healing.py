"""Lost batches that are sent again. `losses` decides which batches are lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafkasafe.journal.batch import Batch, BatchState
from kafkasafe.journal.notices import Healed


@dataclass(slots=True)
class Healing:
    """The batches that are sent again after a loss, tracked until the last batch is finished.

    Attributes:
        keep_from: Spool position of the first batch. The spool keeps everything from this position on until the last
            batch is finished: if the cluster loses the batches once more, the next incarnation must find them in the
            spool.
        left: How many of the batches are not finished.
        records: How many records of finished batches are in the log again.
        first_offset: Offset of the first record that is in the log again, -1 when not known.
        last_offset: Offset of the last record that is in the log again (inclusive), -1 when not known.
    """

    keep_from: int
    left: int = 0
    records: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def add(self, batches: int, keep_from: int) -> None:
        """Add batches that are sent again. From now on, the spool keeps everything from `keep_from` on."""
        self.keep_from = min(self.keep_from, keep_from)
        self.left += batches

    def finish(self, batch: Batch) -> bool:
        """Note that one of the batches is finished. Returns whether this batch was the last one."""
        self.left -= 1
        if batch.state is BatchState.COMMITTED:
            self.records += batch.count
            if batch.base_offset >= 0:
                if self.first_offset < 0:
                    self.first_offset = batch.base_offset
                self.last_offset = batch.base_offset + batch.count - 1
        return not self.left

    def report(self, destination: int) -> Healed | None:
        """The notice about the records that are in the log again; None if all were rejected."""
        if not self.records:
            return None
        return Healed(destination, self.records, self.first_offset, self.last_offset)


class Revivals:
    """Lost batches that are sent again.

    Attributes:
        by_destination: Maps a destination to its lost batches that are sent again.
    """

    __slots__ = ("by_destination",)

    def __init__(self) -> None:
        self.by_destination: dict[int, Healing] = {}

    def add(self, destination: int, batches: Sequence[Batch]) -> None:
        """Add one or more batches that are sent again."""
        keep_from = min(batch.position for batch in batches)
        self.by_destination.setdefault(destination, Healing(keep_from)).add(len(batches), keep_from)

    def divide(self, parent: Batch, parts: Sequence[Batch]) -> None:
        """Note that a batch was divided. If the batch was sent again after a loss, track its parts instead."""
        healing = self.by_destination.get(parent.destination) if parent.revived else None
        if healing is not None:
            healing.add(len(parts), healing.keep_from)  # the division finishes the batch itself
            for part in parts:
                part.revive_part()

    def finish(self, batch: Batch) -> Healed | None:
        """Note that a batch is finished. Returns the notice if this was the last batch that was sent again after a
        loss.
        """
        healing = self.by_destination.get(batch.destination) if batch.revived else None
        if healing is None or not healing.finish(batch):
            return None
        del self.by_destination[batch.destination]
        return healing.report(batch.destination)

    def forget(self, destination: int) -> None:
        """Stop tracking the lost batches of this destination, because the lane now writes to another log."""
        self.by_destination.pop(destination, None)

"""Lost batches of one partition on their way back into the log.

Which batches are lost is decided in `losses`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe._core.journal.notices import Healed
from kafkasafe._core.journal.states import Batch, State

__all__ = ["Healing"]


@dataclass(slots=True)
class Healing:
    """Batches that are sent again after a loss, until the last of them is finished.

    Attributes:
        keep_from: Spool position of the first of them. Nothing from there on is released before the last one is back:
            batches that are in the log again may be lost again, and the next incarnation has to know all of them.
        left: How many are not finished.
        records: How many records are in the log again.
        first_offset: Where the first of them is, -1 when not known.
        last_offset: Where the last of them is (inclusive), -1 when not known.
    """

    keep_from: int
    left: int = 0
    records: int = 0
    first_offset: int = -1
    last_offset: int = -1

    def add(self, batches: int, keep_from: int) -> None:
        """So many batches are sent again; the first of them is at this position."""
        self.keep_from = min(self.keep_from, keep_from)
        self.left += batches

    def divide(self, parts: int) -> None:
        """One of them is sent in parts, and finished when it is divided."""
        self.left += parts

    def finish(self, batch: Batch) -> bool:
        """One of them is finished. Whether it was the last one."""
        self.left -= 1
        if batch.state is State.COMMITTED:
            self.records += batch.count
            if batch.base_offset >= 0:
                if self.first_offset < 0:
                    self.first_offset = batch.base_offset
                self.last_offset = batch.base_offset + batch.count - 1
        return not self.left

    def report(self, destination: int) -> Healed | None:
        """What is in the log again; None where nothing is."""
        if not self.records:
            return None
        return Healed(destination, self.records, self.first_offset, self.last_offset)

"""The id of the next batch: each partition's sequence under the producer id of this incarnation.

`ids` decides when to give ids, and when to take them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.history.identity import BatchId, add_sequence
from kafkasafe.journal.home import Home

__all__ = ["IdSequence"]

_MAX_EPOCH: Final = 2**15 - 2


@dataclass(slots=True)
class IdSequence:
    """The ids of one partition's batches, in the order in which they are given.

    Attributes:
        producer_id: Producer id of the last batch that got an id, -1 before the first one.
        epoch: The same.
        next_sequence: Sequence of the next batch under it.
        stale: The batches that are not in the log need new ids once no broker can append requests under the old ones.
    """

    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    stale: bool = False

    def take(self, home: Home, count: int) -> BatchId:
        """Take the id for the next batch, which has `count` records."""
        if self.producer_id != home.producer_id:
            self.producer_id, self.epoch, self.next_sequence = home.producer_id, home.epoch, 0
        identity = BatchId(self.producer_id, self.epoch, self.next_sequence, count)
        self.next_sequence = add_sequence(self.next_sequence, count)
        return identity

    def expire(self) -> None:
        """Record that batches that are not in the log need new ids."""
        self.stale = True

    def renew(self, home: Home) -> None:
        """Start the next epoch at sequence 0. Batches that are not in the log have no id any more.

        The epoch of an earlier incarnation's id is not bumped: two copies of a spool must never make the same new id.
        """
        self.stale = False
        if self.producer_id != home.producer_id:
            return
        self.next_sequence = 0
        if self.epoch >= _MAX_EPOCH:
            home.withdraw()
        else:
            self.epoch += 1

    def forget(self) -> None:
        """Start over: the lane writes to another cluster, where no batch has an id yet."""
        self.producer_id = self.epoch = -1
        self.stale = False

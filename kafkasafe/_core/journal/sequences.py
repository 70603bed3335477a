"""Which id the next batch gets: the producer id of this incarnation, and each partition's sequence under it.

When ids are given, and when they are taken back, is decided in `ids`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe._core.identity import BatchId, add_sequence

__all__ = ["IdSequence", "IdSource"]

_MAX_EPOCH: Final = 2**15 - 2


@dataclass(slots=True)
class IdSource:
    """The producer id that was granted to this incarnation.

    Attributes:
        producer_id: The id, -1 while another one is wanted.
        epoch: Its first epoch.
    """

    producer_id: int = -1
    epoch: int = -1

    @property
    def is_granted(self) -> bool:
        """Whether batches can get ids."""
        return self.producer_id >= 0

    def grant(self, producer_id: int, epoch: int) -> None:
        """The cluster granted an id."""
        self.producer_id, self.epoch = producer_id, epoch

    def withdraw(self) -> None:
        """No batch gets this id any more: another one is wanted."""
        self.producer_id = -1


@dataclass(slots=True)
class IdSequence:
    """The ids of one partition's batches, in the order in which they are given.

    Attributes:
        producer_id: Of the batch that got an id last, -1 before the first one.
        epoch: The same.
        next_sequence: Of the next batch under it.
        stale: The batches that are not in the log need new ids, as soon as nothing can be appended under the old ones.
    """

    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    stale: bool = False

    def take(self, source: IdSource, count: int) -> BatchId:
        """The id of the next batch, which has so many records."""
        if self.producer_id != source.producer_id:
            self.producer_id, self.epoch, self.next_sequence = source.producer_id, source.epoch, 0
        identity = BatchId(self.producer_id, self.epoch, self.next_sequence, count)
        self.next_sequence = add_sequence(self.next_sequence, count)
        return identity

    def expire(self) -> None:
        """The ids of batches that are not in the log have to be replaced."""
        self.stale = True

    def renew(self, source: IdSource) -> None:
        """All ids that are not in the log were taken back: the next one has sequence 0 of the next epoch.

        Ids of earlier incarnations are not bumped but left: two copies of a spool must never make the same new id.
        """
        self.stale = False
        if self.producer_id != source.producer_id:
            return
        self.next_sequence = 0
        if self.epoch >= _MAX_EPOCH:
            source.withdraw()
        else:
            self.epoch += 1

    def forget(self) -> None:
        """Another cluster is written to: no id was given there."""
        self.producer_id = self.epoch = -1
        self.stale = False

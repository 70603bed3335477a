"""The backlogs of the partitions while recovery reads the log: long ones are packed as far as they are read.

A mark may refer to a packed batch. So before recovery takes a mark about a batch, it *reaches* the batch: it unpacks
the backlog up to there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kafkasafe.journal.batch import Batch
from kafkasafe.journal.outbox import Outbox
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.partition import WINDOW, Destination
from kafkasafe.journal.spool_index import SpoolIndex

__all__ = ["RereadBacklogs"]


class RereadBacklogs:
    """See the module.

    Args:
        destinations: All destinations, by number.
        index: Where the batches are in the spool.
        packer: Packs and unpacks.
        out: Its list of unpacked batches stays empty: the shell does not know the batches yet.
        window: How many batches of a partition may be in flight.
    """

    def __init__(
        self,
        destinations: Mapping[int, Destination],
        index: SpoolIndex,
        packer: Packer,
        out: Outbox,
        *,
        window: int,
    ) -> None:
        self._all = destinations
        self._index = index
        self._packer = packer
        self._out = out
        self.near = max(window, WINDOW)
        """How many batches of a queue may have been sent: the first ones that have an id."""

    def pack(self, numbers: Iterator[int]) -> None:
        """Pack long backlogs. Each packed batch takes the next number."""
        for partition in self._all.values():
            rows = [(next(numbers), 0.0) for _ in self._packable_next(partition)]
            if rows:
                self._packer.pack(partition.number, rows)

    def _packable_next(self, partition: Destination) -> Iterator[Batch]:
        """The `packable` batches up to the first that has an id although a batch before it has none.

        A mark that voids ids voids the ids of all packed batches, while later batches may have new ids.
        """
        queue = partition.queue
        without = queue.packed > 0 and not queue.packed_identified
        for batch in self._packer.packable(partition.number):
            if without and batch.identity is not None:
                return
            without = batch.identity is None
            yield batch

    def reach(self, partition: Destination, position: int = -1) -> None:
        """Unpack the batches up to this position: the next mark refers to one of them.

        While batches are packed, more than `WINDOW` others are unpacked.
        """
        queue = partition.queue
        while (row := queue.first_packed) is not None:
            if row.position > position and queue.unpacked > WINDOW:
                break
            self._packer.unpack(partition, 1)
        # The shell does not know these batches yet.
        self._out.ready.unpacked.clear()

    def reach_any(self, position: int) -> None:
        """Unpack up to this position in the partition that holds it; the mark does not name the partition."""
        if position in self._index:
            return
        for number, first in self._index.packed_from.items():
            partition = self._all[number]
            if first <= position and partition.queue.has_packed(position):
                self.reach(partition, position)
                return

    def reach_sent(self, partition: Destination) -> None:
        """Unpack the first batches with an id: they may have been sent, even if others without an id precede them."""
        queue = partition.queue
        sent = sum(batch.identity is not None for batch in queue)
        while queue.packed_with_id and sent < self.near:
            self._packer.unpack(partition, 1)
            sent += queue[-1].identity is not None
        self._out.ready.unpacked.clear()

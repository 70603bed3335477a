"""Merges consecutive small batches that were never sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId, add_sequence
from kafkasafe.journal.batch import Batch, BatchEvent, BatchState, Fate
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.outbox import BatchEnded
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.sealing import Sealer
from kafkasafe.journal.state import JournalState

GATHER_LEAST: Final = 8
"""The journal merges batches only if at least this many wait after the batches in flight. For fewer batches, a merge
costs more than it saves, because it writes a group of its own to the spool.
"""
_GATHER_MOST: Final = 256
_GATHERED_SHARE: Final = 8
"""A batch is merged only if its size is at most 1/8 of the size limit for merged batches."""


class Gatherer:
    """Selects small batches to merge, and makes the merged batch."""

    def __init__(self, state: JournalState, packer: Packer, sealer: Sealer) -> None:
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._packer = packer
        self._sealer = sealer
        self._revivals = state.revivals
        self._clock = state.clock
        self._precedence = state.precedence
        self._gather_bytes = state.settings.gather_bytes

    def gathered(self, batches: Sequence[Batch], size_bytes: int) -> Batch:
        """Merge waiting batches (see `Ready.gathers`) into one batch with the same records and sequences, in the same
        place.

        The journal has never sent the original batches, and sends only the merged batch, as soon as it is durable.

        Args:
            batches: The batches, in queue order.
            size_bytes: Size of the merged batch.

        Returns:
            The merged batch.
        """
        first = batches[0]
        if first.identity is None:
            raise AssertionError("A prepared batch has an id")
        partition = self._partitions[first.destination]
        persist = self._out.ready.persist
        count = sum(batch.count for batch in batches)
        made = self._sealer.make(
            first.destination, count, size_bytes, max(batch.max_timestamp for batch in batches)
        )
        # Recovery derives the place of the merged batch from the first batch's position, as it does for the parts of a
        # refused batch.
        made.gather(first, BatchId(*first.identity.fields, count))
        partition.queue.insert(partition.queue.near.index(first), made)
        place = len(persist.batches)
        self._sealer.write(made)
        persist.keep_whole()
        for batch in batches:
            persist.marks.append(m.Replaced(batch.position, place, 1))
            batch.on(BatchEvent.MERGED)
            partition.queue.remove(batch)
            persist.after.append(BatchEnded(batch, Fate.REPLACED, kept=batch is first))
        self._packer.touch(partition)
        return made

    def gather(self, partition: Partition, now_ms: int) -> None:
        """Select batches to merge. Each batch costs the leader time, so the leader acknowledges the same records sooner
        if they are in fewer batches.
        """
        if not (self._gather_bytes and partition.gathers):
            return
        queue = partition.queue
        while (
            (row := queue.packed.first())
            and len(queue.near) < _GATHER_MOST
            and self._is_small(row.size_bytes)
        ):
            self._packer.unpack(partition, 1)
        run: list[Batch] = []
        room = self._gather_bytes
        for batch in queue.near:
            if not run and batch.state in {BatchState.SENT, BatchState.ACKED}:
                continue
            room -= batch.size_bytes
            if room < 0 or len(run) == _GATHER_MOST or not self._may_gather(partition, batch, now_ms):
                break
            if run and not _goes_on(run[-1], batch):
                break
            run.append(batch)
        if len(run) >= GATHER_LEAST:
            self._out.ready.gathers[partition.number] = run

    def _may_gather(self, partition: Partition, batch: Batch, now_ms: int) -> bool:
        """Whether the batch may be merged. Such a batch waits on disk with an id, was never sent, and is not linked to
        an atomic batch or to other batches.
        """
        return (
            batch.state is BatchState.PREPARED
            and batch.durable
            and not (batch.writing or batch.former_life or batch.revived)
            and not (batch.tries or batch.unanswered or batch.fault.code)
            and not (batch.heirs or batch.origin >= 0)
            and batch.rank == (batch.position,)
            and batch.unit is None
            and self._is_small(batch.size_bytes)
            and partition.number not in self._revivals.by_destination
            and not self._clock.is_old(batch, now_ms)
            and not self._precedence.is_held(partition, batch)
        )

    def _is_small(self, size_bytes: int) -> bool:
        return size_bytes * _GATHERED_SHARE <= self._gather_bytes


def _goes_on(batch: Batch, following: Batch) -> bool:
    """Whether the sequences of `following` begin where those of `batch` end."""
    a, b = batch.identity, following.identity
    return (
        a is not None
        and b is not None
        and b.fields == (a.producer_id, a.producer_epoch, add_sequence(a.last_sequence, 1))
    )

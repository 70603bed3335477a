"""Batch ids: given in the order of the queue, taken back when each batch that has one is known not to be in the log.

What the cluster's answers prove about them is in `kafkasafe._core.identity`.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.backlog import Backlog
from kafkasafe._core.identity import BatchId, add_sequence
from kafkasafe._core.journal.forward import Forward
from kafkasafe._core.journal.groups import Identified
from kafkasafe._core.journal.partition import Partition
from kafkasafe._core.journal.states import Batch, State, id_fields

__all__ = ["Ids"]

_PREPARE_AHEAD: Final = 64
"""How many waiting batches get their id with one mark."""

_MAX_EPOCH: Final = 2**15 - 2


class Ids(Forward):
    """Part of `Journal`: producer ids, epochs and sequences."""

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """A producer id of this life's own."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._home.granted(producer_id)
        self._ready.persist.marks.append(m.Granted(producer_id, producer_epoch))
        for partition in self._partitions.values():
            if partition.queue:
                self._touch(partition)

    def _identify(self, partition: Partition, batch: Batch) -> None:
        if partition.producer_id != self._producer_id:
            partition.producer_id = self._producer_id
            partition.producer_epoch = self._producer_epoch
            partition.next_sequence = 0
        batch.identity = BatchId(
            partition.producer_id, partition.producer_epoch, partition.next_sequence, batch.count
        )
        partition.next_sequence = add_sequence(partition.next_sequence, batch.count)

    @staticmethod
    def _last_has_id(queue: Backlog[Batch]) -> bool:
        last = queue.last
        return queue.packed_identified if last is None else last.identity is not None

    def _prepare(self, partition: Partition) -> None:
        """Give ids to the next batches that have none; they may be sent when the mark is durable."""
        if self._producer_id < 0 or partition.renew:
            # Sequences ascend in queue order: what stands behind still has ids that are to be given back.
            return
        near = list(islice(partition.queue, self._window))
        if all(batch.identity is not None for batch in near):
            return
        entries: list[m.Identity] = []
        moved: list[tuple[Batch, BatchId]] = []
        for batch in islice(partition.queue, _PREPARE_AHEAD):
            if batch.identity is not None:
                continue
            if (
                batch.unit is not None
                or batch.doomed
                or ((self._durable_first or batch.owed) and not batch.durable)
            ):
                break
            self._identify(partition, batch)
            if batch.durable and batch.identity is not None:
                entries.append(m.Identity(batch.position, *id_fields(batch.identity)))
                moved.append((batch, batch.identity))
            else:
                batch.move(State.PREPARED)
        if not entries:
            return
        self._ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.FIRST, -1, tuple(entries))
        )
        self._ready.persist.after.append(Identified(partition.number, tuple(moved)))

    def _reidentify(self, partition: Partition) -> None:
        """Every waiting batch gives its id back: each is proven absent, or was never sent.

        What takes their place begins at sequence 0 of the next epoch, which fences this epoch (47) at the broker. Ids
        of former lives are not bumped but left: two copies of a spool must never make the same new id.
        """
        partition.renew = False
        kept = []
        partition.queue.forget_identities()
        for batch in partition.queue.all():
            if batch.state in {State.PREPARED, State.REFUSED}:
                # A refused one is refused again in its turn, or not: the answer was to another id.
                if batch.state is State.REFUSED:
                    batch.move(State.PREPARED)
                batch.move(State.SEALED)
                batch.identity = None
                batch.unanswered = False
            elif batch.state is State.SEALED:
                batch.identity = None
            elif batch.identity is not None and batch.position >= 0:
                # Acknowledged ones too: their commit mark comes behind this one, and they may have to be found again.
                kept.append(m.Identity(batch.position, *id_fields(batch.identity)))
        self._ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.REIDENTIFIED, 0, tuple(kept))
        )
        if partition.producer_id != self._producer_id:
            return
        partition.next_sequence = 0
        if partition.producer_epoch >= _MAX_EPOCH:
            self._producer_id = -1
        else:
            partition.producer_epoch += 1

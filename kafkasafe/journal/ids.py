"""Gives batch ids in queue order, and takes them back once every batch that has one is proven absent from the log.

`kafkasafe.history.identity` decides what the cluster's answers prove about them.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch, BatchEvent, BatchState
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.outbox import Identified
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.state import JournalState

__all__ = ["Identities"]

_PREPARE_AHEAD: Final = 64
"""How many waiting batches get their id with one mark."""


class Identities:
    """Producer ids, epochs and sequences."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._out = state.out
        self._packer = packer
        self._home = state.home
        self._durable_first = state.settings.durable_first
        self._window = state.settings.window

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """Note the producer id that the cluster granted to this incarnation."""
        self._home.grant(producer_id, producer_epoch)
        self._out.ready.persist.marks.append(m.Granted(producer_id, producer_epoch))
        for partition in self._all.values():
            if partition.queue:
                self._packer.touch(partition)

    def prepare(self, partition: Partition) -> None:
        """Give ids to the next batches that have none; they may be sent when the mark is durable."""
        if self._home.producer_id < 0 or partition.ids.stale:
            # Sequences ascend in queue order, and later batches still have ids that are about to be taken back.
            return
        near = list(islice(partition.queue.near, self._window))
        if all(batch.identity is not None for batch in near):
            return
        entries: list[m.Identity] = []
        moved: list[tuple[Batch, BatchId]] = []
        for batch in islice(partition.queue.near, _PREPARE_AHEAD):
            if batch.identity is not None:
                continue
            if (
                batch.unit is not None
                or batch.fault.doomed
                or ((self._durable_first or batch.owed) and not batch.durable)
            ):
                break
            identity = partition.ids.take(self._home, batch.count)
            batch.identify(identity)
            if batch.durable:
                entries.append(m.Identity(batch.position, *identity.fields))
                moved.append((batch, identity))
            else:
                batch.on(BatchEvent.ID_IN_MEMORY)
        if not entries:
            return
        self._out.ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.FIRST, -1, tuple(entries))
        )
        self._out.ready.persist.after.append(Identified(partition.number, tuple(moved)))

    def reidentify(self, partition: Partition) -> None:
        """Take back the ids of all waiting batches: each batch is proven absent, or was never sent.

        The next ids begin at sequence 0 of the next epoch. A broker that has seen that epoch fences the present one
        (error 47).
        """
        partition.ids.renew(self._home)
        kept = []
        partition.queue.packed.forget_identities()
        for batch in partition.queue.all():
            if batch.state in {BatchState.PREPARED, BatchState.REFUSED}:
                # The broker judges a refused batch again in its turn: its answer was for the old id.
                if batch.state is BatchState.REFUSED:
                    batch.on(BatchEvent.PASSED_BY)
                batch.on(BatchEvent.ID_TAKEN_BACK)
                batch.take_back_id()
            elif batch.state is BatchState.SEALED:
                batch.identify(None)
            elif batch.identity is not None and batch.position >= 0:
                # Include acknowledged batches: their commit mark follows this one, and recovery may have to find them.
                kept.append(m.Identity(batch.position, *batch.identity.fields))
        self._out.ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.REIDENTIFIED, 0, tuple(kept))
        )

"""Divides one batch into several batches that take its place. The journal writes all parts in one separate spool group.

`machine`, `rejecting` and `members` decide when a batch has to be divided.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe import marks as m
from kafkasafe.journal.batch import Batch, BatchEvent, BatchState, Fate
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.flow import FlowEvent
from kafkasafe.journal.outbox import BatchEnded, unit_marks
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.sealing import Identities, Sealer
from kafkasafe.journal.state import JournalState


class Divider:
    """Replaces a divided batch with its parts."""

    def __init__(self, state: JournalState, packer: Packer, sealer: Sealer, identities: Identities) -> None:
        self._all = state.destinations.all
        self._out = state.out
        self._packer = packer
        self._sealer = sealer
        self._identities = identities
        self._revivals = state.revivals
        self._units = state.units

    def replaced(self, batch: Batch, children: Sequence[tuple[int, int, int, int, bool]]) -> list[Batch]:
        """Note that a batch was divided (see `Divide`). The children replace the batch together: the spool gets all
        children or none.

        Args:
            batch: The divided batch.
            children: (destination, count, size_bytes, max_timestamp, doomed) of each child, in order; at least one
                child.

        Returns:
            The children as batches, in order.
        """
        partition = self._all[batch.destination]
        persist = self._out.ready.persist
        made = []
        first = len(persist.batches)
        refused = batch.state is BatchState.REFUSED
        place = partition.queue.near.index(batch)
        for index, (destination, count, size_bytes, max_timestamp, doomed) in enumerate(children):
            origin = batch.origin if refused else batch.written_at if batch.rank else -1
            child = self._sealer.make(
                destination, count, size_bytes, max_timestamp, owed=batch.durable, origin=origin
            )
            if refused:
                # The parts take their parent's place, before all later batches.
                child.inherit(batch, doomed=doomed)
                partition.queue.insert(place + index, child)
                if batch.durable:
                    self._sealer.write(child)
            elif batch.unit is None:
                self._sealer.enqueue(child)
            else:
                if destination == batch.destination:
                    # The batch is too large. The parts take the batch's place, like the parts of a refused batch.
                    child.join(batch.unit)
                    child.stand_for(batch)
                    partition.queue.insert(place + index, child)
                else:
                    self._sealer.join(batch.unit, child)
                self._sealer.write(child)
            made.append(child)
        if batch.unit is not None:
            self._units.divided(batch.unit, batch, made)
        self._revivals.divide(batch, made)
        self._revivals.finish(batch)
        kept = refused or batch.heirs > 0
        if batch.position >= 0:
            persist.keep_whole()
            if batch.is_copy and not kept:
                # The segment that contains the MOVED mark can be deleted while the spool still contains the children.
                # An additional REPLACED mark says where the records of the children (the parts) were first written.
                # Readers use the position in the first of the two REPLACED marks.
                persist.marks.append(m.Replaced(batch.written_at, first, len(made)))
            persist.marks.append(m.Replaced(batch.position, first, len(made)))
            if batch.unit is not None:
                # Repeat the UNIT mark, which declares the atomic batch: the spool can delete the segment with the first
                # UNIT mark before it deletes these batches.
                persist.marks.extend(unit_marks(batch.unit, first, len(made)))
        batch.on(BatchEvent.DIVIDED)
        partition.queue.remove(batch)
        persist.after.append(BatchEnded(batch, Fate.REPLACED, kept=kept))
        if refused and isinstance(partition, Partition):
            self._identities.reidentify(partition)
        partition.progress.on(FlowEvent.DIVIDED)
        self._packer.touch(partition)
        return made

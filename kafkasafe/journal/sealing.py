"""Passes new batches from the caller to the queue and to the disk, and gives batches their ids in queue order.

A new batch gets its id when it is sealed, if all earlier batches have an id. Otherwise the batch gets its id later, in
queue order. The journal takes back the ids of waiting batches only if each waiting batch was never sent, or is proven
absent from the log. `kafkasafe.history.identity` decides what the cluster's answers prove.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from typing import Final

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch, BatchEvent, BatchState, batches_of
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.outbox import BatchesIdentified, UnitGroup
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.state import JournalState

_PREPARE_AHEAD: Final = 64
"""One mark gives ids to at most this many waiting batches."""


class Sealer:
    """Makes new batches, appends them to their queues, and lists the batches to write in `Ready.persist`."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._out = state.out
        self._packer = packer
        self._home = state.home
        self._units = state.units
        self._handles = state.handles
        self._durable_first = state.settings.durable_first

    def seal(
        self,
        destination: int,
        *,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        given: tuple[tuple[int, int, int], ...] | None = None,
        unit: u.Unit | None = None,
    ) -> Batch:
        """Add a new batch at the end of its destination's queue.

        Args:
            destination: Destination number.
            count: Number of records.
            size_bytes: Size of the whole batch.
            max_timestamp: Largest timestamp, ms since the epoch.
            given: See `Batch`.
            unit: The unit (atomic batch, made by `Units.seal`) to which the batch belongs. The caller calls
                `close_unit` after the unit's last batch.

        Returns:
            The batch. If its `identity` is set when the engine writes the batch, the engine puts the id into the
            written bytes.
        """
        batch = self.make(destination, count, size_bytes, max_timestamp, given=given)
        if unit is not None:
            self.join(unit, batch)
            unit.add(batch)
            batch.write()
            return batch
        return self.enqueue(batch)

    def close_unit(self, unit: u.Unit) -> None:
        """Close a new unit (atomic batch) after all its batches are sealed. The unit is written as one spool group, and
        delivered as a whole.
        """
        self._units.closed(unit)
        group = UnitGroup(unit, tuple(batches_of(unit)), next(self._handles))
        self._out.ready.persist.units.append(group)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Write these batches, and all batches before them in their queues, to disk if they are only in memory
        (`durable_first=False`).
        """
        for batch in batches:
            if batch.durable or batch.state in {
                BatchState.COMMITTED,
                BatchState.REJECTED,
                BatchState.REPLACED,
            }:
                continue
            for earlier in self._all[batch.destination].queue.all():
                if not (earlier.durable or earlier.writing):
                    self.write(earlier)
                if earlier is batch:
                    break

    def make(
        self,
        destination: int,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        *,
        owed: bool = False,
        origin: int = -1,
        given: tuple[tuple[int, int, int], ...] | None = None,
    ) -> Batch:
        self._packer.touch(self._all[destination])
        return Batch(
            next(self._handles),
            destination,
            count,
            size_bytes,
            max_timestamp,
            owed=owed,
            origin=origin,
            given=given,
        )

    def enqueue(self, batch: Batch) -> Batch:
        partition = self._all[batch.destination]
        # Sequences must ascend in queue order, so a batch gets no id while an earlier batch has none.
        if self._home.producer_id >= 0 and isinstance(partition, Partition) and partition.queue.ids_reach_end:
            batch.identify(partition.ids.take(self._home, batch.count))
        partition.queue.append(batch)
        if self._durable_first or batch.owed:
            self.write(batch)
        elif batch.identity is not None:
            batch.on(BatchEvent.ID_IN_MEMORY)
        return batch

    def join(self, unit: u.Unit, batch: Batch) -> None:
        # Recovery uses the order on disk, so write earlier batches that are only in memory first.
        queue = self._all[batch.destination].queue
        if not self._durable_first:
            # Look back only as far as the last batch that belongs to an earlier unit (atomic batch). The journal wrote
            # all batches before that one when it sealed the earlier unit.
            plain = takewhile(lambda other: other.unit is None, queue.backwards())
            last = next((other for other in plain if not self._rests_on_disk(other)), None)
            self.spill([] if last is None else [last])
        batch.join(unit)
        self._all[batch.destination].queue.append(batch)

    def write(self, batch: Batch) -> None:
        batch.write()
        self._out.ready.persist.batches.append(batch)

    def rests(self, batch: Batch) -> bool:
        """Whether the journal can handle the batch now, without waiting for the disk. True if the batch is on disk.
        Without `durable_first`, also true if the disk is not writing the batch.
        """
        return batch.durable or not (self._durable_first or batch.writing)

    @staticmethod
    def _rests_on_disk(batch: Batch) -> bool:
        return batch.durable or batch.writing


class Identities:
    """Gives ids to waiting batches, and takes ids back."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._out = state.out
        self._packer = packer
        self._home = state.home
        self._durable_first = state.settings.durable_first

    def granted(self, producer_id: int, producer_epoch: int) -> None:
        """Note the producer id that the cluster granted to this run of the producer."""
        self._home.grant(producer_id, producer_epoch)
        self._out.ready.persist.marks.append(m.Granted(producer_id, producer_epoch))
        for partition in self._all.values():
            if partition.queue:
                self._packer.touch(partition)

    def prepare(self, partition: Partition) -> None:
        """Give ids to the next batches that have none. The journal sends a batch on disk only when the mark with the
        new id is durable. A batch that is only in memory does not wait for a mark.
        """
        if self._home.producer_id < 0 or partition.ids.stale:
            # `ids.stale`: the journal will soon take back the ids of waiting batches. Sequences must ascend in queue
            # order, but a batch that got an id now would have a higher sequence than later batches with old ids.
            return
        entries: list[m.Identity] = []
        moved: list[tuple[Batch, BatchId]] = []
        for batch in islice(partition.queue.near, _PREPARE_AHEAD):
            if batch.identity is not None:
                continue
            if (
                batch.unit is not None
                or batch.fault.doomed
                or batch.writing  # a failed write may have left a copy without an id, which the next process would send
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
        self._out.ready.persist.after.append(BatchesIdentified(partition.number, tuple(moved)))

    def reidentify(self, partition: Partition) -> None:
        """Take back the ids of all waiting batches, each of which was never sent, or is proven absent from the log.

        The next ids begin at sequence 0 of the next epoch. A broker that has seen the next epoch refuses requests with
        the current epoch (error 47).
        """
        partition.ids.renew(self._home)
        kept = []
        partition.queue.packed.forget_identities()
        for batch in partition.queue.all():
            if batch.state in {BatchState.PREPARED, BatchState.REFUSED}:
                # The broker refused the batch under its old id. The journal will send the batch under a new id, in its
                # turn.
                if batch.state is BatchState.REFUSED:
                    batch.on(BatchEvent.PASSED_BY)
                batch.on(BatchEvent.ID_TAKEN_BACK)
                batch.take_back_id()
            elif batch.state is BatchState.SEALED:
                batch.identify(None)
            elif batch.identity is not None and batch.position >= 0:
                # The IDENTIFIED mark below also repeats the ids of acknowledged batches, because recovery may have to
                # search the log for an acknowledged batch whose commit mark is not durable yet.
                kept.append(m.Identity(batch.position, *batch.identity.fields))
        self._out.ready.persist.marks.append(
            m.Identified(partition.number, m.IdentityReason.REIDENTIFIED, 0, tuple(kept))
        )

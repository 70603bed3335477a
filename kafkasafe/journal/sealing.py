"""Passes new batches from the caller to the queue, and to the disk. It sends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from kafkasafe import units as u
from kafkasafe.journal.batch import Batch, BatchEvent, BatchState, batches_of
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.outbox import UnitGroup
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.state import JournalState

__all__ = ["Sealer"]


class Sealer:
    """Makes batches, queues them, and requests their writing."""

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
        """Add a new batch, after all earlier ones of its destination.

        Args:
            destination: Its number.
            count: Records.
            size_bytes: Total size.
            max_timestamp: Newest, ms since the epoch.
            given: See `Batch`.
            unit: The unit (made by `units.seal`) that the batch belongs to. The caller completes it with `close_unit`.

        Returns:
            The batch. If it has an `identity` when the shell writes it, the shell puts this id into the written bytes.
        """
        batch = self.make(destination, count, size_bytes, max_timestamp, given=given)
        if unit is not None:
            self.join(unit, batch)
            unit.add(batch)
            batch.write()
            return batch
        return self.enqueue(batch)

    def close_unit(self, unit: u.Unit) -> None:
        """Close a new unit, all of whose batches are sealed: it is written as one group, and delivered as a whole."""
        self._units.closed(unit)
        group = UnitGroup(unit, tuple(batches_of(unit)), next(self._handles))
        self._out.ready.persist.units.append(group)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Write batches to disk that are only in memory (`durable_first=False`), with all batches before them."""
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
        # Recovery uses the order on disk, so earlier batches that are only in memory are written first.
        queue = self._all[batch.destination].queue
        if not self._durable_first:
            # Batches that precede an earlier unit were written together with that unit.
            plain = takewhile(lambda other: other.unit is None, queue.backwards())
            last = next((other for other in plain if not self._rests_on_disk(other)), None)
            self.spill([] if last is None else [last])
        batch.join(unit)
        self._all[batch.destination].queue.append(batch)

    def write(self, batch: Batch) -> None:
        batch.write()
        self._out.ready.persist.batches.append(batch)

    def rests(self, batch: Batch) -> bool:
        """Whether the disk is not writing the batch, and the batch is on disk or may be only in memory."""
        return batch.durable or not (self._durable_first or batch.writing)

    @staticmethod
    def _rests_on_disk(batch: Batch) -> bool:
        return batch.durable or batch.writing

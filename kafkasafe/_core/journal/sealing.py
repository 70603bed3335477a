"""From the caller to the queue, and to the disk: nothing is sent in here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from kafkasafe._core import units as u
from kafkasafe._core.journal.destinations import Destinations
from kafkasafe._core.journal.groups import UnitGroup
from kafkasafe._core.journal.lifecycle import BatchEvent
from kafkasafe._core.journal.outbox import Outbox
from kafkasafe._core.journal.packing import Packer
from kafkasafe._core.journal.partition import UNCHOSEN
from kafkasafe._core.journal.sequences import IdSource
from kafkasafe._core.journal.states import Batch, State, batches_of

__all__ = ["Sealer"]


class Sealer:
    """New batches, and those that are to be written."""

    def __init__(
        self,
        destinations: Destinations,
        out: Outbox,
        packer: Packer,
        ids: IdSource,
        units: u.Units,
        handles: Iterator[int],
        *,
        durable_first: bool,
    ) -> None:
        self._partitions = destinations.partitions
        self._out = out
        self._packer = packer
        self._ids = ids
        self._units = units
        self._handles = handles
        self._durable_first = durable_first

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
        """A new batch, behind all earlier ones of its destination.

        Args:
            destination: Its number.
            count: Records.
            size_bytes: Of all of it.
            max_timestamp: Newest, ms since the epoch.
            given: See `Batch`.
            unit: Made by `units.seal`: the batch is a part of it. It ends with `close_unit`.

        Returns:
            The batch. The shell stamps its `identity`, if it has one by then, into the bytes when it writes them.
        """
        batch = self.make(destination, count, size_bytes, max_timestamp)
        batch.choose(given)
        if unit is not None:
            self.join(unit, batch)
            unit.batches.append(batch)
            batch.write()
            return batch
        return self.enqueue(batch)

    def close_unit(self, unit: u.Unit) -> None:
        """All batches of a new unit are sealed: it is written as one group, and delivered as one."""
        self._units.closed(unit)
        group = UnitGroup(unit, tuple(batches_of(unit)), next(self._handles))
        self._out.ready.persist.units.append(group)

    def spill(self, batches: Iterable[Batch]) -> None:
        """Put batches on disk that are not (`durable_first=False`), and with each all that are before it."""
        for batch in batches:
            if batch.durable or batch.state in {State.COMMITTED, State.REJECTED, State.REPLACED}:
                continue
            for earlier in self._partitions[batch.destination].queue.all():
                if not (earlier.durable or earlier.writing):
                    self.write(earlier)
                if earlier is batch:
                    break

    def make(self, destination: int, count: int, size_bytes: int, max_timestamp: int) -> Batch:
        self._packer.touch(self._partitions[destination])
        return Batch(next(self._handles), destination, count, size_bytes, max_timestamp)

    def enqueue(self, batch: Batch) -> Batch:
        partition = self._partitions[batch.destination]
        # Sequences ascend in queue order: behind a batch without an id there is none with one.
        if (
            self._ids.is_granted
            and partition.partition != UNCHOSEN
            and (not partition.queue or partition.queue.last_has_id)
        ):
            batch.identify(partition.ids.take(self._ids, batch.count))
        partition.queue.append(batch)
        if self._durable_first or batch.owed:
            self.write(batch)
        elif batch.identity is not None:
            batch.on(BatchEvent.ID_IN_MEMORY)
        return batch

    def join(self, unit: u.Unit, batch: Batch) -> None:
        # The next life goes by the order on the disk: what is only in memory and stands before it goes there first.
        queue = self._partitions[batch.destination].queue
        if not self._durable_first:
            # What stands before another unit went there with that one.
            plain = takewhile(lambda other: other.unit is None, queue.backwards())
            last = next((other for other in plain if not self._rests_on_disk(other)), None)
            self.spill([] if last is None else [last])
        batch.join(unit)
        self._partitions[batch.destination].queue.append(batch)

    def write(self, batch: Batch) -> None:
        batch.write()
        self._out.ready.persist.batches.append(batch)

    def rests(self, batch: Batch) -> bool:
        """On disk, or only in memory where that is allowed, and not on its way between the two."""
        return batch.durable or not (self._durable_first or batch.writing)

    @staticmethod
    def _rests_on_disk(batch: Batch) -> bool:
        return batch.durable or batch.writing

"""Packs the later batches of a long backlog, which then take a few bytes each in memory, and unpacks each batch before
it is sent. Recovery uses this module, too.

Call `touch` after changing a partition: the next `ready` then evaluates the partition. If the queue has packed batches,
and only a few batches that are objects, `touch` unpacks more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch, BatchState
from kafkasafe.journal.destinations import WINDOW, Destination
from kafkasafe.journal.flow import Flow
from kafkasafe.journal.outbox import Unpacked
from kafkasafe.journal.queue import BacklogRow
from kafkasafe.journal.state import JournalState

UNPACKED: Final = 10
"""The journal never packs the first `UNPACKED` batches of a partition. The number is greater than `WINDOW`."""


class Packer:
    """Packs and unpacks batches of the queues."""

    def __init__(self, state: JournalState) -> None:
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._index = state.index
        self._replay = state.replay
        self._handles = state.handles

    def touch(self, partition: Destination) -> None:
        if partition.queue.packed.count and len(partition.queue.near) <= WINDOW:
            self.unpack(partition, UNPACKED - WINDOW)
        self._out.touched[partition.number] = None

    def packable(self, destination: int) -> Iterator[Batch]:
        """Batches that may be packed next, in queue order. The caller may pass any number of these batches, from the
        first one on, to `pack`.
        """
        partition = self._partitions.get(destination)
        if partition is None or partition.progress.flow is Flow.REJECTING:
            return
        if any(each.batch.destination == destination for each in self._out.ready.unpacked):
            return  # the engine must first take the unpacked batches
        blind = self._replay.is_blind
        queue = partition.queue
        for batch in queue.candidates(UNPACKED):
            # Pack a batch with an id only after the mark that gives the batch its id is durable.
            named = batch.state is BatchState.PREPARED and not partition.ids.stale
            if not (
                batch.durable
                and (named or (batch.state is BatchState.SEALED and batch.identity is None))
                and not (batch.tries or batch.unanswered or batch.fault.code or batch.revived)
                and not (batch.former_life and blind)
                and not (batch.heirs or batch.origin >= 0)
                and batch.rank == (batch.position,)
                and batch.parent is None
                and batch.given is None
                and batch.unit is None
            ):
                return
            yield batch

    def pack(self, destination: int, shells: Sequence[tuple[int, float]]) -> None:
        """Reduce the first batches of `packable` to the data that the journal needs to send them later.

        When the journal unpacks the batches, they come back in `Ready.unpacked` as new objects.

        Args:
            destination: Destination number.
            shells: The engine's data for each batch to pack: an ascending number, and the time at which the engine
                accepted the batch.
        """
        partition = self._partitions[destination]
        queue = partition.queue
        rows = []
        for batch, (number, sealed_at) in zip(queue.candidates(UNPACKED), shells, strict=False):
            identity = None if batch.identity is None else batch.identity.fields
            rows.append(
                BacklogRow(
                    number,
                    batch.position,
                    batch.max_timestamp,
                    batch.count,
                    batch.size_bytes,
                    identity,
                    sealed_at,
                    batch.former_life,
                )
            )
            self._index.pack(batch)
        queue.pack(rows, min(len(queue), UNPACKED))
        self._note_packed(partition)

    def _note_packed(self, partition: Destination) -> None:
        row = partition.queue.packed.first()
        self._index.note_packed(partition.number, None if row is None else row.position)

    def unpack(self, partition: Destination, count: int) -> None:
        queue = partition.queue
        for _ in range(min(count, queue.packed.count)):
            row = queue.packed.shift()
            batch = Batch(
                next(self._handles),
                partition.number,
                row.count,
                row.size_bytes,
                row.max_timestamp,
                identity=None if row.identity is None else BatchId(*row.identity, row.count),
                state=BatchState.SEALED if row.identity is None else BatchState.PREPARED,
                durable=True,
                former_life=row.former_life,
            )
            batch.settle_at(row.position)
            self._index.place(batch)
            queue.put_back(batch)
            first = queue.packed.first()
            self._out.ready.unpacked.append(
                Unpacked(batch, row.number, row.sealed_at, -1 if first is None else first.number)
            )
        self._note_packed(partition)


class RereadBacklogs:
    """Packs long backlogs (a packed batch is a compact row of numbers), as far as recovery has read them. If a later
    mark refers to a packed batch, this class unpacks the batch again.

    Before recovery applies a mark about a batch that may be packed, it *reaches* the batch: it turns all rows up to
    this batch into objects. `Ready.unpacked` stays empty, because the engine does not know these batches yet.
    """

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._index = state.index
        self._packer = packer
        self._out = state.out
        self.sent_at_most = max(state.settings.window, WINDOW)
        """An earlier incarnation can have sent at most this many of a queue's batches: the first batches with an id."""

    def pack(self, numbers: Iterator[int]) -> None:
        """Pack long backlogs. Each batch that is packed gets the next number."""
        for partition in self._all.values():
            rows = [(next(numbers), 0.0) for _ in self._packable_next(partition)]
            if rows:
                self._packer.pack(partition.number, rows)

    def _packable_next(self, partition: Destination) -> Iterator[Batch]:
        """The `packable` batches in queue order. Stops before a batch with an id if the batch before it has none.

        A mark that voids ids takes effect on all packed batches together, so a batch with an id must not be packed
        after a batch without an id.
        """
        queue = partition.queue
        without = queue.packed.count > 0 and not queue.packed.identified
        for batch in self._packer.packable(partition.number):
            if without and batch.identity is not None:
                return
            without = batch.identity is None
            yield batch

    def reach(self, partition: Destination, position: int = -1) -> None:
        """Unpack the batches up to this position, because the next mark refers to one of these batches.

        Afterwards, more than `WINDOW` batches at the front of the queue are objects, or no batch is packed any more: if
        necessary, this method also unpacks later batches.
        """
        queue = partition.queue
        if not queue.packed.count:
            return
        while (row := queue.packed.first()) is not None:
            if row.position > position and len(queue.near) > WINDOW:
                break
            self._packer.unpack(partition, 1)
        self._out.ready.unpacked.clear()

    def reach_one(self, partition: Destination, position: int) -> None:
        """If the batch at this position is packed, turn it and all earlier batches into objects."""
        if partition.queue.packed.count:
            self.reach(partition, position if partition.queue.packed.has(position) else -1)

    def reach_any(self, position: int) -> None:
        """If a batch at this position is packed, turn it and all earlier batches of its partition into objects.
        Recovery calls this for marks that do not name the partition.
        """
        if position in self._index:
            return
        for number, first in self._index.packed_from.items():
            partition = self._all[number]
            if first <= position and partition.queue.packed.has(position):
                self.reach(partition, position)
                return

    def reach_sent(self, partition: Destination) -> None:
        """Unpack the batches up to the last batch that can have been sent. This is the `sent_at_most`-th batch with an
        id; batches without an id may be before it.
        """
        self.reach(partition)
        queue = partition.queue
        sent = sum(batch.identity is not None for batch in queue.near)
        while queue.packed.with_id and sent < self.sent_at_most:
            self._packer.unpack(partition, 1)
            sent += queue.near[-1].identity is not None
        self._out.ready.unpacked.clear()

"""Packs the far part of long backlogs, and unpacks batches shortly before their turn.

Call `touch` after changing a partition: the next `ready` evaluates it, and its first batches are unpacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kafkasafe.history.identity import BatchId
from kafkasafe.journal.backlog import BacklogRow
from kafkasafe.journal.batch import Batch, BatchState, id_fields
from kafkasafe.journal.destinations import Destinations
from kafkasafe.journal.flow import Flow
from kafkasafe.journal.messages import Unpacked
from kafkasafe.journal.outbox import Outbox
from kafkasafe.journal.partition import WINDOW, Destination
from kafkasafe.journal.replay import Replay
from kafkasafe.journal.spool_index import SpoolIndex

__all__ = ["UNPACKED", "Packer"]

UNPACKED: Final = 10
"""How many of a partition's first batches are never packed; more than `WINDOW`."""


class Packer:
    """Packs and unpacks batches of the queues."""

    def __init__(
        self,
        destinations: Destinations,
        out: Outbox,
        index: SpoolIndex,
        replay: Replay,
        handles: Iterator[int],
    ) -> None:
        self._partitions = destinations.partitions
        self._out = out
        self._index = index
        self._replay = replay
        self._handles = handles

    def touch(self, partition: Destination) -> None:
        if partition.queue.packed and partition.queue.unpacked <= WINDOW:
            self.unpack(partition, UNPACKED - WINDOW)
        self._out.touched[partition.number] = None

    def packable(self, destination: int) -> Iterator[Batch]:
        """Batches that may be packed next, in order; the first ones may be given to `pack`."""
        partition = self._partitions.get(destination)
        if partition is None or partition.flow is Flow.REJECTING:
            return
        if any(each.batch.destination == destination for each in self._out.ready.unpacked):
            return  # the shell must first learn of the batches that were unpacked
        blind = self._replay.is_blind
        queue = partition.queue
        for batch in queue.candidates(UNPACKED):
            # If the batch has an id, the id must be durable. If it has none, no mark that gives it an id may be
            # pending.
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
        """Reduce the first batches of `packable` to the data that is needed to send them later.

        Later, they come back in `Ready.unpacked` as new objects.

        Args:
            destination: Its number.
            shells: The shell's data of each: an ascending number, and the time at which it was accepted.
        """
        partition = self._partitions[destination]
        queue = partition.queue
        rows = []
        for batch, (number, sealed_at) in zip(queue.candidates(UNPACKED), shells, strict=False):
            identity = None if batch.identity is None else id_fields(batch.identity)
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
        row = partition.queue.first_packed
        self._index.note_packed(partition.number, None if row is None else row.position)

    def unpack(self, partition: Destination, count: int) -> None:
        queue = partition.queue
        for _ in range(min(count, queue.packed)):
            row = queue.unpack()
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
            first = queue.first_packed
            self._out.ready.unpacked.append(
                Unpacked(batch, row.number, row.sealed_at, -1 if first is None else first.number)
            )
        self._note_packed(partition)

"""Joins small pending batches. A partition leader handles a producer's requests one after another, so many small
batches would take a long time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final

from kafkasafe import journal as j
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.intake import Intake
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.errors import SpoolError
from kafkasafe.limits.capacity import FREE_BYTES
from kafkasafe.record import batch as codec

_GATHER_BYTES: Final = 64 * 1024


def gather_bytes(config: ProducerConfig) -> int:
    """Maximum size of a joined batch; 0 if batches are not joined.

    The engine does not join batches with `delivery_timeout_ms`, because each batch then has its own deadline. If
    batches may be sent before they are on disk, the engine joins no batches either.
    """
    if config.spool != "always" or config.delivery_timeout_s is not None:
        return 0
    return min(_GATHER_BYTES, config.batch_bytes)


class Gathering:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter, intake: Intake) -> None:
        self._context = context
        self._ledger = ledger
        self._disk = disk
        self._intake = intake

    def gather_all(self, lane: Lane, runs: Iterable[Sequence[j.Batch]]) -> bool:
        """Join batches. Returns whether any were joined. Needs disk space for the originals and the joined batches."""
        if not self._has_room(lane):
            return False
        gathered = [self._gather(lane, run) for run in runs]
        return any(gathered)

    def _has_room(self, lane: Lane) -> bool:
        ledger, config = self._ledger, self._context.config
        return (
            not (lane.write_backlog.attempt or lane.write_backlog)
            and ledger.room.used < config.spool_max_bytes // 2
            and ledger.room.free > 4 * FREE_BYTES
        )

    def _gather(self, lane: Lane, run: Sequence[j.Batch]) -> bool:
        parents = [lane.parcels[batch.handle] for batch in run if batch.handle in lane.parcels]
        waiting = all(batch.state is j.BatchState.PREPARED and not batch.tries for batch in run)
        if not waiting or len(parents) < len(run) or any(each.done or each.error for each in parents):
            return False
        try:
            columns = self._decoded(lane, parents, run)
        except SpoolError:
            columns = []
        if len(columns) < j.GATHER_LEAST:
            # Do not try to join these batches again: they are too large when uncompressed, or one of them cannot be
            # read. The sender will report the unreadable batch.
            lane.journal.keep_apart(run[0].destination)
            return False
        run, parents = run[: len(columns)], parents[: len(columns)]
        data = joined(columns)
        first = parents[0]
        child = Parcel(
            first.topic,
            first.partition,
            data,
            len(data),
            sum(parcel.count for parcel in parents),
            max(parcel.max_timestamp for parcel in parents),
            sealed_at=first.sealed_at,
            durable=True,
            parent=first,
            parents=parents,
        )
        made = lane.journal.gathered(run, len(data))
        shift = 0
        for parcel, batch in zip(parents, run, strict=True):
            del lane.parcels[batch.handle]
            parcel.join(child, shift)
            shift += parcel.count
            self._disk.drop(parcel)
        self._intake.register(lane, child, made)
        self._context.stats.gathered_batches.add(len(run))
        return True

    def _decoded(self, lane: Lane, parents: Sequence[Parcel], run: Sequence[j.Batch]) -> list[codec.Columns]:
        """Decode batches while their total uncompressed size stays within `batch_bytes`.

        The limit applies to the uncompressed size, because consumers decompress a batch as a whole.
        """
        columns: list[codec.Columns] = []
        room = self._context.config.batch_bytes
        for parcel, batch in zip(parents, run, strict=True):
            found = codec.decode(self._disk.bytes_of(lane, parcel, batch))
            room -= sum(len(item) for item in itertools.chain(found.keys, found.values) if item)
            room -= sum(len(value) for headers in found.headers.values() for _, value in headers if value)
            if room < 0:
                break
            columns.append(found)
        return columns


def joined(columns: Sequence[codec.Columns]) -> bytearray:
    """Return one batch with the records of all these batches."""
    headers = {}
    count = 0
    for each in columns:
        headers.update({count + index: found for index, found in each.headers.items()})
        count += each.header.count
    return codec.encode(
        list(itertools.chain.from_iterable(each.keys for each in columns)),
        list(itertools.chain.from_iterable(each.values for each in columns)),
        timestamps=list(itertools.chain.from_iterable(each.timestamps for each in columns)),
        headers=headers or None,
        compression=max(each.header.compression for each in columns),
    )

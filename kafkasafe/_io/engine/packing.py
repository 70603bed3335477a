"""Long backlogs: what callers see of batches that are far from their turn is kept only where somebody looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from kafkasafe._core import journal as j
from kafkasafe._io.engine.disk import DiskWriter
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.ledger import Ledger
from kafkasafe._io.engine.parcels import Parcel

__all__ = ["Packing"]

_PARCELS: Final = 4096
"""Up to so many batches nothing is packed."""


class Packing:
    """See the module. Where futures time out by themselves (`delivery_timeout_ms`), or in memory, nothing is packed."""

    def __init__(self, ground: Ground, ledger: Ledger, disk: DiskWriter) -> None:
        self._ground = ground
        self._ledger = ledger
        self._disk = disk
        config = ground.config
        self._packs = not config.in_memory and config.delivery_timeout_s is None

    def pack(self, lane: Lane, batches: Iterable[j.Batch]) -> None:
        """These came to disk: it may be that some of their partitions have a long backlog now."""
        if not self._packs or not lane.own or len(lane.parcels) < _PARCELS:
            return
        for destination in {batch.destination for batch in batches}:
            packed: list[tuple[j.Batch, Parcel]] = []
            for batch in lane.journal.packable(destination):
                parcel = lane.parcels.get(batch.handle)
                if parcel is None or not _fits(parcel):
                    break
                packed.append((batch, parcel))
            if not packed:
                continue
            lane.journal.pack(destination, [(parcel.number, parcel.sealed_at) for _, parcel in packed])
            for batch, parcel in packed:
                self._disk.drop(parcel)
                del lane.parcels[batch.handle]
            self._ledger.pack(destination, [parcel for _, parcel in packed])

    def unpack(self, lane: Lane, unpacked: Sequence[j.Unpacked]) -> None:
        """The journal needs these again."""
        for each in unpacked:
            batch = each.batch
            topic, partition = lane.journal.address(batch.destination)
            parcel = self._ledger.unpack(each.number)
            if parcel is None:
                parcel = Parcel(
                    topic,
                    partition,
                    None,
                    batch.size_bytes,
                    batch.count,
                    batch.max_timestamp,
                    sealed_at=each.sealed_at,
                    number=each.number,
                    taken=True,
                    durable=True,
                )
            parcel.batch = batch
            lane.parcels[batch.handle] = parcel
            self._ledger.unpacked(batch.destination, parcel, each.next_number)


def _fits(parcel: Parcel) -> bool:
    return (
        parcel.durable
        and parcel.number > 0
        and not parcel.done
        and parcel.parent is None
        and parcel.children is None
        and parcel.error is None
    )

"""Long backlogs: what callers see of batches that are far from their turn is kept only where somebody looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kafkasafe._core import journal as j
from kafkasafe._io.engine.disk import DiskWriter
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.ledger import Ledger
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.recovery import BatchEntry, Entry, LostEntry, MarksEntry, replay_one
from kafkasafe.config import ProducerConfig

__all__ = ["Packing", "Rereading", "packs"]

_PARCELS: Final = 4096
"""Up to so many batches nothing is packed."""


def packs(config: ProducerConfig) -> bool:
    """Whether anything is packed: not where futures time out by themselves, or in memory."""
    return not config.in_memory and config.delivery_timeout_s is None


class Rereading:
    """Gives the entries of a lane's log to its journal while the log is read, and has long backlogs packed meanwhile.

    Args:
        journal: A new one.
        numbers: Of parcels; None: nothing is packed.
    """

    def __init__(self, journal: j.Journal, numbers: Iterator[int] | None) -> None:
        self._journal = journal
        self._numbers = numbers
        self._unpacked = 0
        self.lost = 0
        """How many entries are damaged."""

    def take(self, entry: Entry) -> None:
        """The next entry of the log."""
        if isinstance(entry, MarksEntry):
            self._pack()
        elif isinstance(entry, BatchEntry):
            self._unpacked += 1
        elif isinstance(entry, LostEntry):
            self.lost += 1
        replay_one(entry, self._journal)

    def end(self) -> None:
        """That was all."""
        self._pack()
        self._journal.recovered_log()

    def _pack(self) -> None:
        """Between two groups."""
        if self._numbers is not None and self._unpacked > _PARCELS:
            self._journal.pack_recovered(self._numbers)
            self._unpacked = 0


class Packing:
    """See the module. Where futures time out by themselves (`delivery_timeout_ms`), or in memory, nothing is packed."""

    def __init__(self, ground: Ground, ledger: Ledger, disk: DiskWriter) -> None:
        self._ground = ground
        self._ledger = ledger
        self._disk = disk
        self._packs = packs(ground.config)

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
            topic, partition = lane.journal.views.address(batch.destination)
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

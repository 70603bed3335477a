"""Packs long backlogs: frees the objects of batches that are sent much later, unless callers hold these objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kafkasafe import journal as j
from kafkasafe.config import ProducerConfig
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.parcels import Parcel
from kafkasafe.spool.log_content import BatchEntry, Entry, LostEntry, MarksEntry
from kafkasafe.spool.recovery import replay_one

_PARCELS: Final = 4096
"""The engine packs batches of a lane only if the lane has at least this many batches."""


def packs(config: ProducerConfig) -> bool:
    """Whether the engine packs batches. It packs none if batches are only in memory, or if each future has a timeout
    (`delivery_timeout_ms`).
    """
    return not config.in_memory and config.delivery_timeout_s is None


class LogReplay:
    """Passes the entries of a lane's log to the lane's journal while the log is read, and packs long backlogs.

    Args:
        journal: A new journal.
        numbers: Numbers for the parcels; None: nothing is packed.
    """

    def __init__(self, journal: j.Journal, numbers: Iterator[int] | None) -> None:
        self._journal = journal
        self._numbers = numbers
        self._unpacked = 0
        self.lost = 0
        """Number of damaged entries."""

    def take(self, entry: Entry) -> None:
        """Handle the next entry of the lane's log."""
        if isinstance(entry, MarksEntry):
            self._pack()
        elif isinstance(entry, BatchEntry):
            self._unpacked += 1
        elif isinstance(entry, LostEntry):
            self.lost += 1
        replay_one(entry, self._journal)

    def end(self) -> None:
        """Finish after the last entry."""
        self._pack()
        self._journal.recovery.recovered_log()

    def _pack(self) -> None:
        """Pack the batches that were read from the log so far. Called between two groups of the log."""
        if self._numbers is not None and self._unpacked > _PARCELS:
            self._journal.recovery.pack_recovered(self._numbers)
            self._unpacked = 0


class Packing:
    """See the module, and `packs`."""

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter) -> None:
        self._context = context
        self._ledger = ledger
        self._disk = disk
        self._packs = packs(context.config)

    def pack(self, lane: Lane, batches: Iterable[j.Batch]) -> None:
        """Pack long backlogs of the partitions to which these batches belong. Called after the batches were written."""
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
            self._ledger.parcels.pack(destination, [parcel for _, parcel in packed])

    def unpack(self, lane: Lane, unpacked: Sequence[j.Unpacked]) -> None:
        """Create or take back the parcels (objects) of batches that the journal has unpacked because it needs them
        again.
        """
        for each in unpacked:
            batch = each.batch
            topic, partition = lane.journal.views.address(batch.destination)
            parcel = self._ledger.parcels.unpack(each.number)
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
            parcel.assign(batch)
            lane.parcels[batch.handle] = parcel
            self._ledger.parcels.unpacked(batch.destination, parcel, each.next_number)


def _fits(parcel: Parcel) -> bool:
    return (
        parcel.durable
        and parcel.number > 0
        and not parcel.done
        and parcel.parent is None
        and parcel.children is None
        and parcel.error is None
    )

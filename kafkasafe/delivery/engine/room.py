"""Makes space in the spool: copies old pending batches to the end of the lane's log, so that old segments can be
deleted.
"""

from __future__ import annotations

import itertools
import logging
from typing import Final

from kafkasafe import journal as j
from kafkasafe.delivery import forward
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue
from kafkasafe.delivery.engine.places import PlaceKeeper
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.limits.capacity import FREE_BYTES
from kafkasafe.spool.refusals import counted

_PORTION_BYTES: Final = 1024 * 1024
"""Number of bytes to copy with one fsync. After each such portion, the engine does other work."""
_LOOK_EVERY_S: Final = 1.0
_AFTER_FAILURE_S: Final = 60.0


class RoomKeeper:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, disk: DiskWriter, places: PlaceKeeper) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._disk = disk
        self._places = places
        self._lost: list[tuple[int, int]] = []
        """Ranges of positions (first, end) that the log of the producer's own lane has lost. The engine removes a range
        once it has written the range's batches again from memory.
        """

    def keep(self, lane: Lane) -> None:
        """Copy a portion to the log's end, if the lane needs space and copying is worthwhile. The caller must call
        `DiskWriter.release` afterwards.
        """
        if not lane.own or lane.write_backlog:
            return
        self._rescue(lane)
        if not self._needs_room(lane):
            return
        batches = lane.journal.to_move(
            lane.copying.before, min(_PORTION_BYTES, self._config.spool_segment_bytes // 2)
        )
        size = sum(batch.size_bytes for batch in batches)
        if (
            not batches
            or lane.spool.used_bytes + size > self._config.spool_max_bytes
            or self._ledger.room.free < size + FREE_BYTES
        ):
            lane.copying.stop()
            return
        if not self._copy(lane, batches):
            lane.copying.fail(self._context.clock.monotonic() + _AFTER_FAILURE_S)
        elif lane.journal.views.release_position >= lane.copying.before:
            lane.copying.stop()
        else:
            self._context.timer(0.0, ChoreDue(Chore.LOOK_AGAIN))

    def _rescue(self, lane: Lane) -> None:
        """After another process has deleted or cut files of the log, write the batches of these files again, if the
        batches are still in memory.
        """
        self._lost += self._places.take_lost(lane)
        while self._lost:
            first, end = self._lost[0]
            batches = lane.journal.to_rescue(first, end)
            if batches is None:
                return
            # Copy only batches whose bytes are in memory. A batch that was recovered or unpacked may have its bytes
            # only on disk.
            batches = [
                batch
                for batch in batches
                if (parcel := lane.parcels.get(batch.handle)) is not None and parcel.data is not None
            ]
            portion: list[j.Batch] = []
            for batch in batches:
                portion.append(batch)
                if sum(each.size_bytes for each in portion) >= _PORTION_BYTES:
                    break
            if portion and not self._copy(lane, portion):
                return
            if len(portion) == len(batches):
                del self._lost[0]

    def _needs_room(self, lane: Lane) -> bool:
        """Whether to copy batches. Checks again only after many bytes were written, or after a second."""
        if lane.copying.is_under_way:
            return True
        used = lane.spool.used_bytes
        segment = self._config.spool_segment_bytes
        limit = self._config.spool_max_bytes - segment
        now = self._context.clock.monotonic()
        if 2 * used <= limit:
            lane.copying.forget_size()
            return False
        if not lane.copying.is_due(now, used, segment // 8):
            return False
        lane.copying.look(used, now + _LOOK_EVERY_S)
        segments = lane.spool.segments
        held = lane.journal.views.held_position
        closed = [
            forward.Segment(following[1], segment[2])
            for segment, following in itertools.pairwise(segments)
            if following[1] <= held
        ]
        lane.copying.begin(
            forward.copy_before(closed, lane.journal.views.pinned(), used_bytes=used, limit_bytes=limit)
        )
        return lane.copying.is_under_way

    def _copy(self, lane: Lane, batches: list[j.Batch]) -> bool:
        """Write copies of the batches durably to the log's end. Returns whether the write succeeded."""
        copies: list[tuple[int, bytearray]] = []
        try:
            for batch in batches:
                try:
                    copies.append((batch.destination, self._disk.copy_of(lane, batch)))
                except SpoolCorruptError:
                    # Leave the damaged batch to the sender, which will find the damage too.
                    if not copies:
                        raise
                    break
            done = batches[: len(copies)]
            positions = lane.spool.write_group(lane.journal.move_marks(done), copies, atomic=True)
            lane.spool.sync(always=True)
        except SpoolError as error:
            lane.journal.not_moved()
            self._log.limited(
                logging.WARNING,
                "not_copied_forward",
                lane.name,
                "%s: no space can be freed, because pending records that lie before delivered ones cannot be copied:"
                " %s",
                lane.name,
                error,
                lane=lane.name,
                error=type(error).__name__,
            )
            return False
        size = sum(len(data) for _, data in copies)
        self._context.stats.spool_copied_bytes.add(size)
        lane.journal.moved(done, positions, lane.spool.next_position)
        self._log.limited(
            logging.INFO,
            "copied_forward",
            lane.name,
            "%s: %s (%d bytes) that are not delivered were copied forward, so that delivered records can be deleted",
            lane.name,
            counted(sum(batch.count for batch in done), "record"),
            size,
            lane=lane.name,
            batches=len(done),
        )
        self._disk.publish_used()
        return True

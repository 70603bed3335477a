"""Lanes: opened, adopted when their owner died, closed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from kafkasafe import events
from kafkasafe._core import journal as j
from kafkasafe._io.engine.disk import DiskWriter
from kafkasafe._io.engine.endings import Endings
from kafkasafe._io.engine.ground import Ground
from kafkasafe._io.engine.intake import Intake
from kafkasafe._io.engine.lane import Lane
from kafkasafe._io.engine.ledger import Ledger
from kafkasafe._io.engine.messages import Chore, ChoreDue
from kafkasafe._io.engine.parcels import Parcel
from kafkasafe._io.lanes import LaneLock
from kafkasafe._io.recovery import LostEntry, replay
from kafkasafe._io.rejected import RejectedStore, retire, waits_of
from kafkasafe._io.spool import Spool
from kafkasafe.errors import SpoolError

__all__ = ["LaneKeeper"]

_ADOPT_EVERY_S: Final = 2.0
_MISSING_GRACE_S: Final = 60.0
"""For so long a topic that is missing may only be new: brokers that just came up know none."""
_LAST_WRITES: Final = 4
"""How often a failing disk is tried at the very end."""


class LaneKeeper:
    """See the module."""

    def __init__(
        self, ground: Ground, ledger: Ledger, disk: DiskWriter, intake: Intake, endings: Endings
    ) -> None:
        self._ground = ground
        self._log = ground.log
        self._config = ground.config
        self._ledger = ledger
        self._disk = disk
        self._intake = intake
        self._endings = endings

    def open_lane(self, lock: LaneLock, *, own: bool) -> Lane:
        """Read a lane back: its spool, its journal, and a parcel for each unfinished batch.

        Raises:
            SpoolError: It cannot be opened; the lock is released.
        """
        config = self._config
        journal = j.Journal(
            durable_first=config.spool == "always" or not own,
            window=config.window,
            state_age_s=config.state_age_s,
            request_timeout_s=config.request_timeout_s,
            refused_timeout_s=config.refused_timeout_s,
            missing_grace_s=_MISSING_GRACE_S,
            heal=config.on_acked_loss == "heal",
            heal_recreated=config.heal_recreated_topics,
        )
        try:
            spool, entries = Spool.open(
                lock.path,
                files=self._ground.files,
                segment_bytes=config.spool_segment_bytes,
                sync=config.spool_sync,
                snapshot=journal.snapshot,
                on_corrupt=config.on_corrupt,
                clock_ms=self._ground.clock.wall_ms,
            )
        except BaseException:
            lock.release()
            raise
        name = self._lane_name(lock.path)
        lane = Lane(
            name, lock, spool, journal, own, RejectedStore(self._ground.files, lock.path, spool.lane_id)
        )
        self._ground.stats.corrupt += sum(isinstance(entry, LostEntry) for entry in entries)
        replay(entries, journal)
        journal.released(spool.first_position)
        journal.recovered(self._ground.now(), self._ground.moment())
        self._open_rejected(lane)
        waiting = list(journal.batches())
        for topic, partition, batch in waiting:
            parcel = Parcel(
                topic, partition, None, batch.size_bytes, batch.count, batch.max_timestamp, durable=True
            )
            parcel.batch = batch
            self._intake.register(lane, parcel, batch)
            if own:
                with self._ledger.lock:
                    parcel.number = next(self._ledger.numbers)
                    self._ledger.open[parcel.number] = parcel
        if waiting:
            records = sum(batch.count for _, _, batch in waiting)
            doubt = sum(batch.identity is not None for _, _, batch in waiting)
            self._ground.stats.replayed_records += records
            self._log.info(
                "%s: %d batches (%d records) of an earlier life",
                lane.name,
                len(waiting),
                records,
                lane=lane.name,
                batches=len(waiting),
                records=records,
                event="spool_recovered",
            )
            if own:
                self._ground.emit(events.SpoolRecovered(lane.name, len(waiting), records, doubt))
            else:
                self._ground.emit(events.LaneAdopted(lane.name, len(waiting), records))
            self._ground.refresh_topics(topic for topic, _, _ in waiting)
        return lane

    def _open_rejected(self, lane: Lane) -> None:
        """What is in `rejected/` never keeps a lane from being opened."""
        self._retire(lane)
        try:
            troubles = lane.rejected.open(waits_of(lane.journal), lane.journal.resent)
        except OSError as error:
            troubles = [f"{lane.name}/rejected: {error}"]
        lane.disown()
        for trouble in troubles:
            self._log.warning(
                "Rejected records cannot be read: %s", trouble, lane=lane.name, event="rejected_unreadable"
            )
        if lane.rejected.records:
            self._log.warning(
                "%s: %d rejected record%s kept in %s; `kafkasafe spool resend` sends them again",
                lane.name,
                lane.rejected.records,
                " is" if lane.rejected.records == 1 else "s are",
                lane.lock.path / "rejected",
                lane=lane.name,
                records=lane.rejected.records,
                event="rejected_kept",
            )

    def _retire(self, lane: Lane) -> None:
        """Files whose records were put back into this lane are deleted; until then no segment with their mark goes."""
        for mark in lane.journal.resent:
            try:
                retire(self._ground.files, lane.lock.path.parent, mark)
            except OSError as error:
                self._log.seldom(
                    logging.WARNING,
                    "resent_not_deleted",
                    lane.name,
                    "%s/rejected/%s was resent and cannot be deleted: %s",
                    mark.lane,
                    mark.file,
                    error,
                    lane=lane.name,
                    error=type(error).__name__,
                )
                return
            lane.journal.retired(mark)

    def adopt(self) -> None:
        """Take lanes whose owner died, and let go of those that are drained."""
        for lane in self._ground.lanes:
            self._retire(lane)
            lane.rejected.refresh()
        for lane in [lane for lane in self._ground.lanes if not lane.own]:
            if not lane.journal.unfinished and not lane.journal.doubted:
                self._ground.lanes.remove(lane)
                self._endings.publish_refused()
                self.close_lane(lane)
        if self._ground.closing:
            return
        try:
            found = self._ground.directory.dead_lanes()
        except SpoolError as error:
            # Too many open files, a directory that cannot be read for a moment: the own lane works all the same.
            self._log.seldom(
                logging.WARNING,
                "lanes_unreadable",
                "",
                "Lanes left behind cannot be looked for: %s",
                error,
                error=type(error).__name__,
            )
            found = []
        for lock in found:
            try:
                lane = self.open_lane(lock, own=False)
            except SpoolError as error:
                self._log.seldom(
                    logging.WARNING,
                    "lane_not_adopted",
                    lock.path.name,
                    "%s was left behind and cannot be adopted: %s",
                    lock.path.name,
                    error,
                    lane=lock.path.name,
                    error=type(error).__name__,
                )
                continue
            self._ground.lanes.append(lane)
        self._disk.publish_used()
        self._ground.timer(_ADOPT_EVERY_S, ChoreDue(Chore.ADOPT))

    def _lane_name(self, path: Path) -> str:
        """With its directory, where that is another one than this producer's."""
        return path.name if path.parent == self._ground.directory.path else f"{path.parent.name}/{path.name}"

    def close_lane(self, lane: Lane) -> None:
        """Write what is left, release what is done, and let go of the lock. Does not raise."""
        for attempt in range(1, _LAST_WRITES):
            if self._disk.write_out(lane):
                break
            self._ground.sleep(self._ground.backoff.pause_s(attempt))
        try:
            position = lane.journal.release_position
            lane.spool.release(position, self._config.retain_acked_bytes, self._disk.retain_since_ms())
            quiet = None
            if self._ground.cluster.closed and self._config.spool_sync != "os":
                quiet = lane.journal.quiet(self._ground.now(), self._ground.moment())
            lane.spool.close(closed_mark=True, marks=() if quiet is None else (quiet,))
        except SpoolError as error:
            self._log.warning(
                "%s could not be closed in order; nothing is lost: %s",
                lane.name,
                error,
                lane=lane.name,
                error=type(error).__name__,
                event="lane_not_closed",
            )
        finally:
            lane.lock.release()

"""Opens lanes, adopts lanes whose owners died, and closes lanes."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe.delivery.engine.context import EngineContext, text
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.endings import Endings
from kafkasafe.delivery.engine.gathering import gather_bytes
from kafkasafe.delivery.engine.intake import Intake
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue, LaneRead
from kafkasafe.delivery.engine.order import LaneOrder
from kafkasafe.delivery.engine.packing import LogReplay, packs
from kafkasafe.delivery.engine.parcels import Parcel, UnitHandle
from kafkasafe.errors import SpoolCorruptError, SpoolError, SpoolFormatError
from kafkasafe.process.locks import new_lock
from kafkasafe.spool.lanes import LaneLock
from kafkasafe.spool.log_content import Entry
from kafkasafe.spool.refusals import counted
from kafkasafe.spool.rejected import RejectedStore, retire, waits_of
from kafkasafe.spool.spool import Spool

_ADOPT_EVERY_S: Final = 1.0
_GRACE_S: Final = 3.0
"""The engine adopts a lane only after the lane has had no owner for this many seconds, so that a restarted producer can
get its own lane back.
"""
_ADOPTED_EVERY_S: Final = 0.1
_SLOW_FROM: Final = 3
"""The length of a pause grows with the number of failures. The engine adds this constant to the number of failures, so
that even the first pause is long.
"""
_MISSING_GRACE_S: Final = 60.0
"""How many seconds a topic may be missing before the producer reports it: brokers that have just started know no
topics.
"""
_LAST_WRITES: Final = 3
"""How many times to try to write the last records to a failing disk, before closing the lane without these records."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A lane that was read back.

    Attributes:
        lane: The lane. Each unfinished batch has a parcel, for which callers can wait.
        lost: Number of damaged entries in the lane's log.
        waiting: The unfinished batches that the journal has not packed into compact rows, each with its topic and
            partition.
    """

    lane: Lane
    lost: int
    waiting: Sequence[tuple[str, int, j.Batch]]


class LaneKeeper:
    """See the module."""

    def __init__(
        self,
        context: EngineContext,
        ledger: Ledger,
        disk: DiskWriter,
        intake: Intake,
        endings: Endings,
        order: LaneOrder,
        *,
        newest_reading: Callable[[], int],
    ) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._disk = disk
        self._intake = intake
        self._endings = endings
        self._order = order
        self._newest_reading = newest_reading
        self._hurried = False
        self._watching = False
        self._reading: set[Path] = set()
        self._failures: dict[int, int] = {}
        self._lane_ids: dict[bytes, Path] = {}
        """By the lane's id: the path of each lane that this producer delivers or has delivered."""
        self._again: dict[int, float] = {}
        """For each lane that could not be adopted, by its number: when the engine tries again."""
        self._lock = new_lock()
        self._over = False
        self._results: dict[Path, _Read | SpoolError] = {}

    def open_lane(self, lock: LaneLock, *, own: bool) -> Lane:
        """Read a lane's log into a new journal, and create a parcel (what callers wait for) for each unfinished batch.

        Raises:
            SpoolError: The lane cannot be opened; the lock is released.
        """
        return self._opened(self._read(lock, own=own))

    def _read(self, lock: LaneLock, *, own: bool) -> _Read:
        """Read a lane back, which may take long. Any thread may call this method, because no other thread uses the lane
        yet.

        Raises:
            SpoolError: The lane cannot be opened; the lock is released.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(lock.release, drained=False)
            read = self._read_locked(lock, undo, own=own)
            undo.pop_all()
        return read

    def _read_locked(self, lock: LaneLock, undo: contextlib.ExitStack, *, own: bool) -> _Read:
        """Like `_read`. After an error, `undo` closes all files and releases the lock."""
        config = self._config
        settings = j.Settings(
            durable_first=config.spool == "always" or not own,
            window=config.window,
            state_age_s=config.state_age_s,
            request_timeout_s=config.request_timeout_s,
            blocked_timeout_s=config.blocked_timeout_s,
            missing_grace_s=_MISSING_GRACE_S,
            heal=config.on_data_loss == "restore",
            heal_recreated=config.restore_recreated_topics,
            gather_bytes=gather_bytes(config) if own else 0,
            newest_reading=self._newest_reading,
        )
        journal = j.Journal(settings)
        rereading = LogReplay(journal, self._ledger.parcels.numbers if own and packs(config) else None)
        spool, entries = Spool.open(
            lock.path,
            files=lock.files,
            segment_bytes=config.spool_segment_bytes,
            sync=config.spool_sync,
            snapshot=journal.snapshot,
            on_corrupt=config.on_corrupt,
            clock_ms=self._context.clock.wall_ms,
            each=rereading.take,
        )
        undo.callback(spool.abandon)
        for entry in _taken(entries):
            rereading.take(entry)
        rereading.end()
        journal.released(spool.first_position)
        lane = Lane(
            self._lane_name(lock.path),
            lock,
            spool,
            journal,
            own,
            RejectedStore(lock.files, lock.path, spool.lane_id),
        )
        journal.units.name(f"kafkasafe-{spool.lane_id.hex()}")
        if config.decide is not None:
            journal.halt(halted=True)
            journal.units.decide(config.decide.commit, config.decide.abort)
        # First create the parcels that stay in memory, then those that are freed immediately because the journal packs
        # their batches into compact rows. Mixing the two kinds would fragment memory.
        waiting = [*journal.views.batches(far=False), *journal.views.batches(far=True)]
        for topic, partition, batch in waiting:
            parcel = Parcel(
                topic, partition, None, batch.size_bytes, batch.count, batch.max_timestamp, durable=True
            )
            self._intake.register(lane, parcel, batch)
        return _Read(lane, rereading.lost, waiting)

    def _opened(self, read: _Read) -> Lane:
        """Start to use a lane that was read back."""
        lane, waiting = read.lane, read.waiting
        self._lane_ids[lane.spool.lane_id] = lane.lock.path
        self._context.stats.corrupt.add(read.lost)
        lane.journal.recovery.recovered(self._context.now(), self._context.moment())
        if self._context.own_cluster.cluster_id is not None:
            lane.bind(self._context.own_cluster.cluster_id, self._context.own_cluster.cluster_id)
        self._open_rejected(lane)
        self._disk.count_to_divide(lane)
        if lane.own:
            self._ledger.parcels.add_recovered(lane.parcels.values())
        packed = list(lane.journal.views.packed())
        for each in packed:
            self._ledger.parcels.pack_unseen(each)
        for unit in lane.journal.units.unfinished if lane.own else ():
            unit_handle = UnitHandle(unit.unit_id, unit.transactional_id, unit.offsets)
            head = Parcel("", -1, None, 0, 0, 0, durable=True, unit_handle=unit_handle)
            lane.heads[unit.unit_id] = [head]
            self._ledger.parcels.add_recovered([head])
        if waiting:
            batches = len(waiting) + sum(each.batches for each in packed)
            records = sum(batch.count for _, _, batch in waiting) + sum(each.records for each in packed)
            doubt = sum(batch.identity is not None for _, _, batch in waiting)
            doubt += sum(each.with_id for each in packed)
            self._context.stats.replayed_records.add(records)
            self._log.info(
                "%s: %s (%s) of an earlier incarnation will be delivered",
                lane.name,
                counted(records, "record"),
                counted(batches, "batch", "batches"),
                lane=lane.name,
                batches=batches,
                records=records,
                event="spool_recovered",
            )
            if lane.own:
                self._context.emit(events.SpoolRecovered(lane.name, batches, records, doubt))
            else:
                self._context.emit(events.LaneAdopted(lane.name, batches, records))
            self._context.refresh_topics(topic for topic, _, _ in waiting)
        return lane

    def _open_rejected(self, lane: Lane) -> None:
        """Open the lane's `rejected/`. The method only logs errors in `rejected/`, so that the lane can open."""
        self._retire(lane)
        try:
            troubles = lane.rejected.open(waits_of(lane.journal), lane.journal.views.resent)
        except OSError as error:
            troubles = [f"{lane.name}/rejected: {error}"]
        lane.disown()
        for trouble in troubles:
            self._log.warning(
                "Rejected records cannot be read: %s", trouble, lane=lane.name, event="rejected_unreadable"
            )
        if lane.rejected.records:
            self._log.warning(
                "%s: %d rejected record%s in %s; `kafkasafe spool resend` sends them again",
                lane.name,
                lane.rejected.records,
                " is" if lane.rejected.records == 1 else "s are",
                lane.lock.path / "rejected",
                lane=lane.name,
                records=lane.rejected.records,
                event="rejected_kept",
            )

    def _retire(self, lane: Lane) -> None:
        """Delete files in `rejected/` whose records were resent through this lane. Until a file is deleted, the lane's
        log keeps the mark (entry) that names the file.
        """
        for mark in lane.journal.views.resent:
            try:
                retire(lane.lock.files, lane.lock.path.parent, mark)
            except OSError as error:
                self._log.limited(
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

    def expect(self, numbers: Sequence[int]) -> None:
        """Make `flush` and `close` wait for these lanes of earlier producers."""
        self._ledger.lanes.expect(numbers)

    def adopt_now(self) -> None:
        """Look for lanes of dead producers immediately, because a caller waits for these lanes."""
        self._hurried = True
        self._look_for_dead()

    def adopt(self) -> None:
        """Adopt lanes whose owners died, and release lanes that are drained."""
        self._disk.look_at_places()
        for lane in [lane for lane in self._context.lanes if lane.lock.lost]:
            self._release(lane)
        for lane in self._context.lanes:
            self._retire(lane)
            lane.rejected.refresh()
        self._release_drained()
        if self._context.close_state.closing:
            return
        self._look_for_dead()
        self._disk.publish_used()
        self._context.timer(_ADOPT_EVERY_S, ChoreDue(Chore.ADOPT))

    def _release_drained(self) -> None:
        for lane in [lane for lane in self._context.lanes if not lane.own]:
            if lane.journal.views.unfinished or lane.journal.views.doubted:
                continue
            if lane.journal.units.aborts:
                # The next owner does not know of this transaction. So keep the lane, to repeat a request that fails.
                self._settle(lane)
            else:
                self._release(lane)

    def _settle(self, lane: Lane) -> None:
        """Let `flush` no longer wait for this lane."""
        if lane.lock.path.parent == self._context.directory.path:
            self._ledger.lanes.settle(lane.lock.number)

    def _release(self, lane: Lane) -> None:
        self._context.lanes.remove(lane)
        self._context.own_cluster.forget(lane)
        self._ledger.errors.hand_over(lane)
        self._endings.publish_refused()
        self.close_lane(lane)
        self._ledger.lanes.forget(lane.lock.path)
        self._settle(lane)

    def _look_for_dead(self) -> None:
        directory = self._context.directory
        now = self._context.clock.monotonic()
        for number in [each for each, at in self._again.items() if at <= now]:
            del self._again[number]
            directory.offer_again(number)
        hurried = self._hurried and self._ledger.lanes.left_behind
        try:
            there = set(directory.lanes())
            gone = [
                n for n in self._ledger.lanes.left_behind if n not in there or directory.owners.is_owned(n)
            ]
            # Call `dead_lanes` last: an error after this call would lose the locks that the call returns.
            found = directory.dead_lanes(now=now, grace_s=0.0 if hurried else _GRACE_S)
        except (OSError, SpoolError) as error:
            # Only log the error (for example, too many open files), because the producer's own lane still works.
            self._log.limited(
                logging.WARNING,
                "lanes_unreadable",
                "",
                "Lanes without an owner cannot be listed: %s",
                error,
                error=type(error).__name__,
            )
            return
        for number, reason in directory.strange.items():
            name = directory.lane_path(number).name
            self._log.limited(
                logging.WARNING, "lane_not_adopted", name, "%s is not adopted: %s", name, reason, lane=name
            )
        directory.strange.clear()
        ours = (
            {lock.path for lock in found} | self._reading | {lane.lock.path for lane in self._context.lanes}
        )
        for number in gone:
            if directory.lane_path(number) not in ours:
                self._ledger.lanes.settle(number)
        for lock in found:
            self.adopt_lane(lock)

    def adopt_lane(self, lock: LaneLock) -> None:
        """Start a thread that reads a lane back. Afterwards, the engine drains the lane. The lane may be in another
        spool directory.
        """
        self._reading.add(lock.path)
        self._ledger.lanes.adopt(lock.path)
        self._context.beside(functools.partial(self._read_beside, lock))

    def _read_beside(self, lock: LaneLock) -> None:
        """Read a lane on a thread of its own, because a long read on the engine's thread would keep callers waiting."""
        result: _Read | SpoolError
        try:
            result = self._read(lock, own=False)
        except SpoolError as error:
            result = error
        except Exception as error:
            result = SpoolError(f"it cannot be read back: {text(error)}")
        with self._lock:
            if not self._over:
                self._results[lock.path] = result
                self._context.post(LaneRead(lock.path))
                return
        if isinstance(result, _Read):
            _give_back(result.lane)

    def reads(self, directory: Path | None = None) -> bool:
        """Whether a lane is being read. If `directory` is given, only this directory's lanes count. Any thread may call
        this method.
        """
        reading = self._reading.copy()
        return bool(reading) if directory is None else any(path.parent == directory for path in reading)

    def reading(self) -> Collection[Path]:
        """Paths of the lanes that are being read."""
        return self._reading.copy()  # other threads change the set

    def read(self, path: Path) -> SpoolError | None:
        """Take a lane that was read back, to drain it. Returns the error if the lane is in another directory and could
        not be read.
        """
        with self._lock:
            result = self._results.pop(path, None)
        self._reading.discard(path)
        if result is None:
            return None
        self._context.progress.note()
        self._ledger.waiters.notify_all()
        own = path.parent == self._context.directory.path
        if isinstance(result, _Read):
            result = self._refuse_copy(result)
        if isinstance(result, SpoolError):
            self._ledger.lanes.forget(path)
            if not own:
                return result
            self._failed(self._context.directory.number_of(path.name), result)
            return None
        lane = self._opened(result)
        if own:
            self._failures.pop(lane.lock.number, None)
        self._context.lanes.append(lane)
        self._disk.publish_used()
        self._order.look()
        if not self._watching:
            self._watching = True
            self._context.timer(_ADOPTED_EVERY_S, ChoreDue(Chore.ADOPTED))
        return None

    def _refuse_copy(self, read: _Read) -> _Read | SpoolCorruptError:
        """Close a lane that is a copy of another lane, because the copy's records would be delivered a second time."""
        lane = read.lane
        original = self._lane_ids.get(lane.spool.lane_id, lane.lock.path)
        if lane.lock.path == original:
            return read
        _give_back(lane)
        return SpoolCorruptError(
            f"it is a copy of {original}: both have the same lane id, so the records of the copy would be delivered a"
            " second time. Nothing was changed. Move the copy out of the spool directory"
        )

    def _failed(self, number: int, error: SpoolError) -> None:
        failures = self._failures[number] = self._failures.get(number, 0) + 1
        pause_s = self._context.slow_backoff.pause_s(failures + _SLOW_FROM)
        self._again[number] = self._context.clock.monotonic() + pause_s
        path = self._context.directory.lane_path(number)
        self._log.limited(
            logging.WARNING,
            "lane_not_adopted",
            path.name,
            "%s has no owner and cannot be adopted: %s. kafkasafe tries again",
            path.name,
            error,
            lane=path.name,
            attempt=failures,
            error=type(error).__name__,
        )
        self._ledger.lanes.settle(number)
        if isinstance(error, (SpoolCorruptError, SpoolFormatError)):
            self._order.give_up(path, error)

    def look_at_adopted(self) -> None:
        """Release drained lanes. Returns a lane to a producer that wants it, once none of its batches is in flight."""
        self._release_drained()
        adopted = [lane for lane in self._context.lanes if not lane.own]
        self._watching = bool(adopted) and not self._context.close_state.closing
        if not self._watching:
            return
        for lane in adopted:
            if lane.lock.path.parent != self._context.directory.path:
                continue
            wanted = self._context.directory.wanted(lane.lock.number)
            lane.journal.halt(halted=wanted or self._config.decide is not None)
            idle = wanted and not lane.journal.views.in_flight and not lane.write_backlog
            if lane.handover.look(idle=idle):
                self._hand_over(lane)
        self._context.timer(_ADOPTED_EVERY_S, ChoreDue(Chore.ADOPTED))

    def _hand_over(self, lane: Lane) -> None:
        left = lane.journal.views.unfinished
        self._release(lane)
        # The restarted owner may die before it writes anything, and then the lane is unchanged. `dead_lanes` returns an
        # unchanged lane again only after this call.
        self._context.directory.offer_again(lane.lock.number)
        self._log.info(
            "%s: returned to its restarted owner with %d undelivered batches",
            lane.name,
            left,
            lane=lane.name,
            batches=left,
            event="lane_returned",
        )
        self._context.emit(events.LaneReturned(lane.name, left))

    def end(self) -> None:
        """Release lanes that were read but not opened. A read that is still under way releases its lane when the read
        ends.
        """
        with self._lock:
            self._over = True
            results, self._results = self._results, {}
        for result in results.values():
            if isinstance(result, _Read):
                _give_back(result.lane)

    def _lane_name(self, path: Path) -> str:
        """The lane's name, which begins with the directory's name if the lane is in another spool directory."""
        return path.name if path.parent == self._context.directory.path else f"{path.parent.name}/{path.name}"

    def abandon_lane(self, lane: Lane) -> None:
        """Release the lock, and write nothing. The next owner finds the lane in the same state as after a kill."""
        try:
            _give_back(lane)
        finally:
            self._disk.forget(lane)

    def close_lane(self, lane: Lane) -> None:
        """Write pending spool groups, delete segments that are done, and release the lock. Does not raise."""
        if lane.lock.lost:
            self.abandon_lane(lane)
            return
        with contextlib.suppress(SpoolError):
            self._disk.look_at_place(lane)
        for attempt in range(1, _LAST_WRITES + 1):
            if (
                self._disk.write_out(lane)
                or self._context.clock.monotonic() >= self._context.close_state.close_by
            ):
                break
            self._context.sleep(self._context.backoff.pause_s(attempt))
        try:
            position = lane.journal.views.release_position
            self._disk.tell_newest(lane, position)
            lane.spool.release(position, self._config.retain_acked_bytes, self._disk.retain_since_ms())
            quiet = None
            if self._context.cluster.closed and self._config.spool_sync != "os":
                quiet = lane.journal.quiet(self._context.now(), self._context.moment())
            lane.spool.close(closed_mark=True, marks=() if quiet is None else (quiet,))
        except SpoolError as error:
            self._log.warning(
                "%s could not be closed in an orderly way. Nothing is lost: %s",
                lane.name,
                error,
                lane=lane.name,
                error=type(error).__name__,
                event="lane_not_closed",
            )
        finally:
            self._disk.forget(lane)
            left = bool(lane.journal.views.unfinished)
            if left:
                # Once the lock is released, another process can rename the lane, and this producer may adopt it again
                # under its new name. If `_lane_ids` still had the former path, the producer would refuse the renamed
                # lane as a copy.
                self._lane_ids.pop(lane.spool.lane_id, None)
            lane.lock.release(drained=not left)


def _give_back(lane: Lane) -> None:
    """Release a lane without changing its files.

    The usual way to close a lane writes to the log and deletes segments. But if a lane was only read, its journal does
    not know enough for this: which requests of the former owner may still reach a broker, and which segments a check
    for losses needs.
    """
    try:
        lane.spool.abandon()
    finally:
        lane.lock.release(drained=False)


def _taken(entries: list[Entry]) -> Iterator[Entry]:
    """Yield entries in order of position. Yielding an entry removes it from the list, to free memory for the batches
    that the caller makes from the entries.
    """
    entries.reverse()
    while entries:
        yield entries.pop()

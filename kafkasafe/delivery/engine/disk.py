"""Writes spool groups to disk with one fsync each, retries on a failing disk, and deletes segments that are done."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Sequence
from typing import Final

from kafkasafe import events
from kafkasafe import journal as j
from kafkasafe import marks as m
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue, WriteDue
from kafkasafe.delivery.engine.parcels import Parcel, leaves
from kafkasafe.delivery.engine.places import PlaceKeeper
from kafkasafe.delivery.engine.spool_room import BACKLOG_BYTES
from kafkasafe.errors import SpoolError, SpoolWriteError
from kafkasafe.history.identity import BatchId
from kafkasafe.limits.run_ahead import PATIENCE_S, RUN_AHEAD_BYTES
from kafkasafe.limits.uplink import MEMORY_BYTES
from kafkasafe.record import batch as codec
from kafkasafe.spool.refusals import counted
from kafkasafe.spool.reserve import REMEDIES

_MEMORY_BYTES: Final = MEMORY_BYTES // 4 * 3
"""At most this many bytes of durable, unfinished batches stay in memory (more if `run_ahead_bytes` is above its
default). To send other batches, the engine reads them back from disk. The limit is above the default of
`run_ahead_bytes` by the largest room of an open batch: a sender that is just below `run_ahead_bytes` may add an open
batch that has such a room, and these batches should not be read back.
"""
_MANY_TO_DIVIDE_BYTES: Final = 256 * 1024
"""If the batches without chosen partitions have more bytes than this, an outage is the likely cause. With fewer bytes,
perhaps only the first metadata of a topic has not arrived yet.
"""
SPILL_EVERY_S: Final = 0.05
_AGAIN_S: Final = 1.0
"""Time from a failed attempt to delete segments to the next attempt."""


class DiskWriter:
    """See the module."""

    def __init__(self, context: EngineContext, ledger: Ledger, places: PlaceKeeper) -> None:
        self._context = context
        self._log = context.log
        self._config = context.config
        self._ledger = ledger
        self._places = places
        self._withheld: dict[Lane, list[Parcel]] = {}
        """Batches that are on disk but do not count as durable yet, because their lane's directory is displaced."""
        self.memory = 0
        """Bytes of the durable, unfinished batches that are still in memory. Batches that were read back from disk do
        not count.
        """
        more_bytes = max(0, (context.config.run_ahead_bytes or 0) - RUN_AHEAD_BYTES)
        self.more_memory_bytes = more_bytes + more_bytes // 4
        """How much more memory batches may take because `run_ahead_bytes` is above its default."""
        self._memory_bytes = _MEMORY_BYTES + self.more_memory_bytes
        self._looked_at = self._scarce_until = 0.0
        self.keeps = True
        """Whether durable batches may stay in memory. False while no broker can be reached."""
        self._spill_due = False

    def persist(self, lane: Lane, persist: j.Persist) -> None:
        """Write one spool group and make it durable, now or when the disk works again."""
        backlog = lane.write_backlog
        backlog.extend(_apart(persist) if backlog else (persist,))
        if backlog.attempt == 0 or persist.marks or persist.after:
            self.write_out(lane)

    def write_out(self, lane: Lane) -> bool:
        """Write all pending spool groups. Groups with decisions of the journal are written first: once they are on
        disk, segments can be deleted, which frees space on a full disk. Returns False if a write failed.
        """
        looked = False
        backlog = lane.write_backlog
        while backlog and not lane.lock.lost:
            index, unit = backlog.take()
            try:
                self._write_unit(lane, unit)
            except SpoolWriteError as error:
                backlog.restore(index, _apart(unit, smaller=True))
                if not looked and self._was_displaced(lane):
                    looked = True
                    continue
                self._stall(lane, error)
                return False
            backlog.succeed()
        return not backlog

    def _was_displaced(self, lane: Lane) -> bool:
        """Whether to write again: the write failed because the lane's directory was displaced, and the directory is now
        restored.
        """
        return self._places.is_displaced(lane) and self.look_at_place(lane)

    def look_at_places(self) -> None:
        """Check that each lane's directory is in its place, and restore displaced directories."""
        for lane in list(self._context.lanes):
            self.look_at_place(lane)
        self._places.look_at_link()

    def look_at_place(self, lane: Lane) -> bool:
        """Check that a lane's directory is in its place, and restore it if not. Returns whether it is there now."""
        try:
            stands = self._places.look(lane)
        except SpoolWriteError as error:
            # Another process owns this adopted lane now.
            self._stall(lane, error)
            return False
        if stands:
            self._promise(self._withheld.pop(lane, []))
        return stands

    def forget(self, lane: Lane) -> None:
        """Drop the state of a lane that is closed."""
        self._withheld.pop(lane, None)
        self._places.forget(lane)

    def _stall(self, lane: Lane, error: SpoolWriteError) -> None:
        attempt = lane.write_backlog.fail()
        lane.journal.write_failed(lane.write_backlog.batches)
        lane.write_backlog.leave_out_void()
        if lane.own and not self._places.in_trouble(lane):
            self._ledger.room.disk_failed(str(error), full=error.full)
        self._context.stats.spool_write_errors.add()
        self._log.limited(
            logging.WARNING,
            "spool_write_failed",
            lane.name,
            "%s: a write failed (%s). Durable records are safe; kafkasafe tries again%s",
            lane.name,
            error,
            _advice(error),
            lane=lane.name,
            attempt=attempt,
            error=type(error).__name__,
        )
        self._context.emit(events.SpoolWriteFailed(lane.name, str(error), attempt))
        now = self._context.clock.monotonic()
        if not lane.write_backlog.has_retry(now):
            pause_s = self._context.backoff.pause_s(attempt)
            lane.write_backlog.pause(now + pause_s)
            self._context.timer(pause_s, WriteDue(lane))

    def has_no_room(self, lane: Lane, why: str, attempt: int) -> None:
        """Report that a division waits for space."""
        if lane.own:
            self._ledger.room.disk_failed(why, full=True)
        self._log.limited(
            logging.WARNING,
            "division_waits_for_room",
            lane.name,
            "%s: %s. Nothing is lost, and other partitions continue",
            lane.name,
            why,
            lane=lane.name,
            attempt=attempt,
        )
        self._context.emit(events.SpoolWriteFailed(lane.name, why, attempt))

    def retry_write(self, lane: Lane) -> None:
        """Try to write again, after the pause that followed a failed write."""
        lane.write_backlog.end_pause()
        if lane in self._context.lanes:
            self.write_out(lane)

    def _write_unit(self, lane: Lane, persist: j.Persist) -> None:
        persist.leave_out_void()
        if self._config.spool_sync == "each" and len(persist.everything) > 1 and persist.units:
            parts = _apart(persist)
            while parts:
                self._write_unit(lane, parts[0])
                parts.pop(0)
                # If the next write fails, `persist` holds only the parts that are not durable yet.
                persist.keep_rest(parts)
            return
        if self._config.spool_sync != "each" or len(persist.batches) < 2 or persist.atomic:
            self._write_group(lane, persist)
            return
        # One fsync for each batch. If a write fails, `persist` holds only the batches that are not durable yet.
        while persist:
            first = j.Persist(persist.batches[:1], persist.marks, after=persist.after)
            self._write_group(lane, first)
            persist.keep_batches(1)

    def _write_group(self, lane: Lane, persist: j.Persist) -> None:
        runs = persist.runs
        batches = [batch for _, run in runs for batch in run]
        in_memory = self._config.in_memory
        promised = True
        parcels = [lane.parcels[batch.handle] for batch in batches]
        positions: list[int] = []
        probes = not persist and lane.write_backlog.attempt > 0
        if parcels or persist.marks or persist.units or probes:
            data = [
                (batch.destination, self._stamped(parcel, batch))
                for parcel, batch in zip(parcels, batches, strict=True)
            ]
            started = self._context.clock.monotonic()
            waits = self._keep_room(lane, batches)
            try:
                groups = _groups(persist, runs, data)
                for number, (marks, part, atomic) in enumerate(groups, 1):
                    positions += lane.spool.write_group(
                        marks,
                        part,
                        atomic=atomic,
                        makes_room=atomic and not persist.units,
                        divisible=waits > _MANY_TO_DIVIDE_BYTES,
                        more=number < len(groups),
                    )
                lane.spool.sync()
            finally:
                # `write_group` wrote each batch's spool position and destination into the batch's header. Reset both
                # fields even if the write failed: with spool="on_error", the engine may send these bytes next, and a
                # broker refuses a batch that contains a position.
                for parcel in parcels:
                    if parcel.data is not None:
                        codec.stamp_address(parcel.data, 0, -1)
            if not in_memory:
                promised = self._places.confirm(lane)
                if promised and lane.own:
                    self._ledger.room.disk_works()
                self._context.stats.fsync.observe(self._context.clock.monotonic() - started)
            lane.divisions.count_waiting(waits or lane.divisions.waiting_bytes)
        if persist.atomic:
            lane.divisions.written()
        # Publish the new spool size first. Only then do the written batches stop counting as waiting. In the reverse
        # order, callers would see too much free space in between.
        self.publish_used()
        lane.journal.persisted(persist, positions, lane.spool.next_position)
        # If the lane's log is only in memory, nothing becomes durable, and the batches keep their bytes.
        if in_memory:
            return
        if persist.units:
            heads = [lane.heads.get(group.unit.unit_id, ()) for group in persist.units]
            parcels = [*itertools.chain(*heads), *parcels]
        if promised:
            self._promise([*self._withheld.pop(lane, []), *parcels])
        else:
            # If a divided batch was durable, its parts count as durable from the start.
            self._promise([parcel for parcel in parcels if parcel.durable])
            self._withheld.setdefault(lane, []).extend(parcel for parcel in parcels if not parcel.durable)
        if self.keeps and not self._is_over():
            # These batches will be sent from memory.
            lane.spool.drop_cache()

    @staticmethod
    def _keep_room(lane: Lane, batches: Sequence[j.Batch]) -> int:
        """Before batches without partitions are written, reserve the space that dividing them will need.

        Returns:
            Total size of all batches that wait to be divided, including those in `batches`; 0 if no batch in `batches`
            has to be divided.
        """
        size = sum(batch.size_bytes for batch in batches if lane.journal.views.chooses(batch.destination))
        if size:
            size += lane.divisions.waiting_bytes
            lane.spool.keep_room(size)
        return size

    def count_to_divide(self, lane: Lane) -> None:
        """Recount the bytes of batches without chosen partitions. They may have changed, other than by a write."""
        if lane.divisions.waiting_bytes or lane.journal.views.has_unchosen:
            lane.divisions.count_waiting(lane.journal.views.unchosen_bytes)
            lane.spool.keep_room(lane.divisions.waiting_bytes)

    def _promise(self, parcels: Sequence[Parcel]) -> None:
        """Mark these batches as durable: the next start would find them on disk. Wakes callers that wait for them."""
        if not parcels:
            return
        self.memory += sum(parcel.size_bytes for parcel in parcels if parcel.data is not None)
        self._ledger.made_durable(parcels)
        if self._is_over():
            self._drop_silent()
        if self._is_over() or not self.keeps:
            for parcel in parcels:
                self.drop(parcel)

    def _is_over(self) -> bool:
        """Whether batches in memory have too many bytes; the limit is lower while reads lack room (`leave_room`)."""
        scarce = self._context.clock.monotonic() < self._scarce_until
        return self.memory > self._memory_bytes - (MEMORY_BYTES // 4 if scarce else 0)

    def leave_room(self) -> None:
        """Drop the bytes of the newest batches, which are sent last: batches on disk have to be read first."""
        if (now := self._context.clock.monotonic()) < self._scarce_until - PATIENCE_S:
            return
        self._scarce_until = now + 2 * PATIENCE_S
        for parcel in reversed(self._context.own.parcels.values()):
            if not self._is_over():
                return
            if parcel.is_written and not parcel.loose:
                self.drop(parcel)

    def _drop_silent(self) -> None:
        """Drop the bytes of batches whose leaders do not answer, to free memory for batches that are sent sooner."""
        now = self._context.clock.monotonic()
        if now < self._looked_at:
            return
        self._looked_at = now + PATIENCE_S
        with self._ledger.lock:
            self._ledger.ahead.expire()
            silent = self._ledger.ahead.silent
        for lane in self._context.lanes if silent else ():
            for parcel in lane.parcels.values():
                if parcel.is_written and (parcel.topic, parcel.partition) in silent:
                    self.drop(parcel)

    def _stamped(self, parcel: Parcel, batch: j.Batch) -> bytearray:
        """The batch's bytes as the spool writes them, with the batch's id in the header."""
        data = parcel.writable()
        if data is None:
            raise AssertionError(f"The bytes of {batch} were released before they were written")
        _stamp(data, batch.identity)
        return data

    def drop(self, parcel: Parcel) -> None:
        """Drop the parcel's bytes from memory. The spool has them."""
        if parcel.data is not None:
            if parcel.durable:
                self.memory -= parcel.size_bytes
            parcel.drop()

    def can_send(self) -> None:
        """Keep durable batches in memory again, because a broker can be reached."""
        self.keeps = True

    def cannot_send(self) -> None:
        """Drop the bytes of durable batches from memory, because no broker can be reached. The spool has the bytes."""
        self.keeps = False
        if self.memory and not self._config.in_memory:
            for lane in self._context.lanes:
                for parcel in lane.parcels.values():
                    if parcel.is_written:
                        self.drop(parcel)

    def bytes_of(self, lane: Lane, parcel: Parcel, batch: j.Batch) -> bytearray:
        """The batch's bytes as they are sent to the broker."""
        data = parcel.data
        if data is None:
            data = lane.spool.read(batch.position)
            parcel.reread()
            codec.stamp_address(data, 0, -1)
        if _differs(data, batch.identity):
            if parcel.loose:
                data = bytearray(data)
            _stamp(data, batch.identity)
            if parcel.data is not None:
                parcel.replace(data)
        return data

    def copy_of(self, lane: Lane, batch: j.Batch) -> bytearray:
        """A copy of the batch's bytes with its current id, to be written to the spool again.

        Raises:
            SpoolError: The batch cannot be read, or is damaged.
        """
        parcel = lane.parcels.get(batch.handle)
        if parcel is not None and parcel.data is not None:
            data = bytearray(parcel.data)
        else:
            data = lane.spool.read(batch.position)
        _stamp(data, batch.identity)
        return data

    def release(self, lane: Lane) -> None:
        """Delete segments in which all batches are done. If space is short, delete even segments that `retain_acked_*`
        would keep.
        """
        if lane.lock.lost:
            return
        position = lane.journal.views.release_position
        excess = lane.spool.used_bytes - self._config.spool_max_bytes // 2
        more = self._config.spool_segment_bytes // 8
        now = self._context.clock.monotonic()
        if not lane.release.is_due(position, excess, more, now):
            return
        self.tell_newest(lane, position)
        lane.release.note(position, excess)
        try:
            freed = lane.spool.release(position, self._config.retain_acked_bytes, self.retain_since_ms())
            lane.journal.released(lane.spool.first_position)
            if excess > freed:
                # Delete delivered batches to make space for pending ones: delivered batches are kept only in case the
                # cluster loses them.
                freed += self._give_way(lane, position, excess - freed)
        except SpoolError as error:
            lane.release.fail(now + _AGAIN_S)
            self._log.limited(
                logging.WARNING,
                "segments_not_deleted",
                lane.name,
                "%s: old segments cannot be deleted: %s",
                lane.name,
                error,
                lane=lane.name,
                error=type(error).__name__,
            )
            return
        if freed:
            lane.divisions.end_pause()
            if lane.divisions.pending:
                self._context.timer(0.0, ChoreDue(Chore.LOOK_AGAIN))
            self.count_to_divide(lane)
            lane.release.freed(freed)
            lane.journal.released(lane.spool.first_position)
            self.publish_used()

    def tell_newest(self, lane: Lane, position: int) -> None:
        """Before segments up to `position` are deleted, write the marks (log entries) about the newest acknowledged
        batches again.

        While writes fail, this method writes nothing: if the disk is full, a write may succeed only after the deletion.
        """
        starts = [first for _, first, _ in lane.spool.segments[1:] if first <= position]
        if starts and not lane.write_backlog.attempt:
            marks = lane.journal.tell_newest(starts[-1])
            if marks:
                self.persist(lane, j.Persist(marks=marks))

    def _give_way(self, lane: Lane, position: int, excess: int) -> int:
        """Delete segments that only `retain_acked_*` keeps, the oldest first. Returns the number of freed bytes."""
        freed = lane.spool.release(position, at_most_bytes=excess)
        gone = lane.journal.delivered_before(lane.spool.first_position)
        records = sum(each.records for each in gone)
        if not records:
            return freed
        first = gone[0]
        self._log.limited(
            logging.WARNING,
            "retained_records_deleted",
            lane.name,
            "%s: the spool is more than half full, so the producer deleted %s that retain_acked_bytes or"
            " retain_acked_ms kept (%d bytes). If the cluster loses what was deleted, it cannot be sent again."
            " Affected: %s; the first is %s-%d, offsets %d to %d",
            lane.name,
            counted(records, "delivered record"),
            freed,
            counted(len(gone), "partition"),
            first.topic,
            first.partition,
            first.first_offset,
            first.last_offset,
            lane=lane.name,
            records=records,
            bytes=freed,
        )
        for each in gone:
            self._context.emit(
                events.RetainedRecordsDeleted(
                    each.topic, each.partition, each.first_offset, each.last_offset, each.records
                )
            )
        return freed

    def retain_since_ms(self) -> int:
        """The spool keeps records that were acknowledged at or after this time (ms since the epoch)."""
        retain_s = self._config.retain_acked_s
        if not retain_s:
            return 1 << 62
        return self._context.clock.wall_ms() - int(retain_s * 1000)

    def publish_used(self) -> None:
        """Publish the size of the producer's own lane and the disk's free bytes, and wake callers that wait for space.

        Adopted lanes do not count: they get no new records.
        """
        more_room = self._measure()
        self._ledger.room.publish_used(self._context.own.spool.used_bytes, more_room=more_room)

    def _measure(self) -> bool:
        """Measure the disk's free bytes. Returns whether they grew. Holds no lock that callers need."""
        if self._config.in_memory:
            return False
        free = float("inf")
        with contextlib.suppress(OSError):
            free = self._context.files.free_bytes(self._context.directory.path)
        return self._ledger.room.measure_free(free)

    def watch_undurable(self) -> None:
        """`spool="on_error"`: check regularly which batches are only in memory, until all are on disk or delivered."""
        if self._config.spool == "on_error" and not self._spill_due:
            self._spill_due = True
            self._context.timer(SPILL_EVERY_S, ChoreDue(Chore.SPILL))

    def spill_late(self) -> None:
        """`spool="on_error"`: write to disk the batches that have waited for `spool_after_ms`."""
        self._spill_due = False
        self.spill(self._config.spool_after_s)
        # If a caller hands over a batch after this check, the `Submitted` message about that batch starts the timer.
        if self._ledger.undurable:
            self.watch_undurable()

    def spill(self, age_s: float) -> None:
        """Write batches that were only in memory for at least `age_s` seconds; all, if they have too many bytes."""
        with self._ledger.lock:
            late = self._late(self._context.clock.monotonic() - age_s)
        parts = (leaf for parcel in late for leaf in leaves(parcel))
        self._context.own.journal.spill(leaf.batch for leaf in parts if leaf.batch is not None)

    def _late(self, before: float) -> list[Parcel]:
        undurable = self._ledger.undurable
        return [
            parcel
            for parcel in undurable.values()
            if parcel.sealed_at <= before or undurable.size_bytes > BACKLOG_BYTES // 2
        ]


def _differs(data: bytearray, identity: BatchId | None) -> bool:
    wanted = (-1, -1, -1)
    if identity is not None:
        wanted = (identity.producer_id, identity.producer_epoch, identity.base_sequence)
    return codec.identity_of(data) != wanted


def _stamp(data: bytearray, identity: BatchId | None) -> None:
    if not _differs(data, identity):
        return
    if identity is None:
        codec.stamp_identity(data, -1, -1, -1)
    else:
        codec.stamp_identity(data, identity.producer_id, identity.producer_epoch, identity.base_sequence)


def _groups(
    persist: j.Persist,
    runs: Sequence[tuple[j.UnitGroup | None, Sequence[j.Batch]]],
    data: Sequence[tuple[int, bytearray]],
) -> list[tuple[list[m.Mark], list[tuple[int, bytearray]], bool]]:
    """Divides `persist` into the spool groups to write. Returns one tuple (marks, batches, atomic) for each spool
    group.

    If callers chose partitions for some records of a batch, a mark names these partitions. The mark must be written
    together with the batch. Even if the spool splits a large group, it writes all marks of the spool group together
    with the group's first batch. So a batch with a mark of its own begins a new spool group. A unit is always one
    group. If `persist` is empty, the result is one empty spool group. `data` has one tuple (destination, bytes) for
    each batch in `runs`.
    """
    groups: list[tuple[list[m.Mark], list[tuple[int, bytearray]], bool]] = []
    if persist.marks or not runs:
        groups.append((list(persist.marks), [], persist.atomic))
    contents = iter(data)
    for unit, batches in runs:
        if unit is not None:
            given = [m.Given(i, b.given) for i, b in enumerate(batches) if b.given is not None]
            groups.append(([*unit.marks, *given], list(itertools.islice(contents, len(batches))), True))
            continue
        # Each unit (atomic batch) has its own spool group, even if it contains no batch.
        if not groups or groups[-1][1] or groups[-1][2] != persist.atomic:
            groups.append(([], [], persist.atomic))
        for batch in batches:
            if batch.given is not None:
                if groups[-1][1]:
                    groups.append(([], [], persist.atomic))
                groups[-1][0].append(m.Given(0, batch.given))
            groups[-1][1].append(next(contents))
    return groups


def _advice(error: SpoolWriteError) -> str:
    """The remedy to append to a message about the error; empty if the error's own text contains the remedy."""
    if error.full:
        return ". Free space (df -h) or inodes (df -i)"
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in REMEDIES:
        return ""
    return ". Check the permissions, the disk (dmesg), and whether the file system is mounted read-only"


def _apart(persist: j.Persist, *, smaller: bool = False) -> list[j.Persist]:
    """Split a spool group that could not be written as a whole into smaller groups: first the decisions, then the
    batches.

    If `smaller` is true, a spool group that has only batches is split into halves: the disk may never have space for
    the whole group.
    """
    if persist.units:
        if persist.atomic:
            decisions = [j.Persist(persist.batches, persist.marks, True, persist.after)]
            return decisions + [j.Persist(units=[unit]) for unit in persist.units]
        decisions = [j.Persist(marks=persist.marks, after=persist.after)]
        runs = [
            j.Persist(batches) if unit is None else j.Persist(units=[unit]) for unit, batches in persist.runs
        ]
        return (decisions if decisions[0] else []) + runs
    if persist.atomic or not persist.batches:
        return [persist]
    if not (persist.marks or persist.after):
        half = len(persist.batches) // 2
        if not smaller or not half:
            return [persist]
        return [j.Persist(persist.batches[:half]), j.Persist(persist.batches[half:])]
    return [j.Persist(marks=persist.marks, after=persist.after), j.Persist(persist.batches)]

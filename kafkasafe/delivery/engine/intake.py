"""Puts the callers' batches (parcels) into the journal, and divides batches whose partitions are now known, or that
brokers refuse.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kafkasafe import journal as j
from kafkasafe import units as u
from kafkasafe.delivery.engine.context import EngineContext
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.delivery.engine.lane import Lane
from kafkasafe.delivery.engine.ledger import Ledger
from kafkasafe.delivery.engine.messages import Chore, ChoreDue
from kafkasafe.delivery.engine.parcels import (
    UNCHOSEN,
    Choose,
    Indexes,
    Parcel,
    UnitHandle,
    given_partitions,
    pieces,
)
from kafkasafe.delivery.engine.rejects import Rejects
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.record import batch as codec
from kafkasafe.spool.refusals import counted, place_of

_MOST_JOINED: Final = 5
"""Maximum number of `delivery="transactional"` batches in a unit (atomic batch). In each partition, brokers remember a
producer's last five batches.
"""
_MOST_JOINED_BYTES: Final = 4 * 1024 * 1024
_MARKS_BYTES: Final = 1024 * 1024
"""Approximate disk space, in bytes, that marks (log entries) and the spool's reserve need while batches are divided."""
_PART_BYTES: Final = 256
"""Maximum size, in bytes, of the spool's control records for one part of a divided batch."""


@dataclass(slots=True, eq=False)
class _Growing:
    """The newest unit (batches that are delivered together or not at all). Further batches may join the unit until the
    journal decides what to write.

    Attributes:
        lane: The unit's lane.
        unit: The unit with the batches taken so far.
        topic: The topic whose batches may still join the unit (atomic batch); empty if no batch may.
        left: How many more batches may join.
        room: How many more bytes may join.
    """

    lane: Lane
    unit: u.Unit
    topic: str
    left: int
    room: int = _MOST_JOINED_BYTES

    def takes(self, unit_handle: UnitHandle, size: int) -> bool:
        return bool(self.topic) and self.topic == unit_handle.joins and self.left > 0 and size <= self.room

    def add(self, size: int) -> None:
        self.left -= 1
        self.room -= size


class Intake:
    """See the module."""

    def __init__(
        self, context: EngineContext, ledger: Ledger, disk: DiskWriter, rejects: Rejects, *, choose: Choose
    ) -> None:
        self._context = context
        self._log = context.log
        self._ledger = ledger
        self._disk = disk
        self._rejects = rejects
        self._choose = choose
        self._growing: _Growing | None = None
        # With `spool_sync="each"`, each batch has its own fsync, so each batch is a unit (atomic batch) of its own.
        self._most_joined = 1 if context.config.spool_sync == "each" else _MOST_JOINED

    def take(self, parcels: Sequence[Parcel]) -> None:
        """Take batches (parcels) from callers, and put each into the queue of its partition."""
        lane = self._context.own
        parcels = self._ledger.take(parcels)
        self._disk.watch_undurable()
        for unit_handle, some in itertools.groupby(parcels, lambda parcel: parcel.unit_handle):
            if unit_handle is None:
                self.settle()
                self._take_all(lane, some)
            else:
                self._take_unit(lane, unit_handle, list(some))

    def settle(self) -> None:
        """Close the newest unit (atomic batch), so that no further batch joins it. Call this method before the journal
        decides anything.
        """
        growing, self._growing = self._growing, None
        if growing is not None:
            growing.lane.journal.close_unit(growing.unit)

    def _take_all(self, lane: Lane, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            for part in self._parts(lane, parcel):
                self._seal(lane, part)

    def _take_unit(self, lane: Lane, unit_handle: UnitHandle, parcels: Sequence[Parcel]) -> None:
        """Take the parcels of a unit (atomic batch). The first parcel is the unit's head: it has no records, and
        carries the outcome of the whole unit.
        """
        size = sum(parcel.size_bytes for parcel in parcels)
        growing = self._growing
        if growing is None or not growing.takes(unit_handle, size):
            self.settle()
            unit = lane.journal.units.seal(
                unit_handle.unit_id, unit_handle.transactional_id, unit_handle.offsets, unit_handle.readings
            )
            growing = self._growing = _Growing(lane, unit, unit_handle.joins, self._most_joined)
        growing.add(size)
        lane.heads.setdefault(growing.unit.unit_id, []).append(parcels[0])
        for parcel in parcels[1:]:
            for part in self._parts(lane, parcel):
                self._seal(lane, part, growing.unit)

    def _parts(self, lane: Lane, parcel: Parcel) -> list[Parcel]:
        """The parcel (encoded batch) itself, or its parts if the parcel is divided immediately."""
        if parcel.count:
            self._context.stats.records[parcel.topic, "accepted"] += parcel.count
        topic = lane.journal.views.topic(parcel.topic)
        if parcel.partition == UNCHOSEN:
            if topic is None or topic.partition_count < 1:
                self._context.refresh_topics([parcel.topic])
            elif not lane.journal.views.waiting(parcel.topic):
                # The batch was encoded just before the topic became known. Divide it immediately to keep the order of
                # records.
                return self._divide_in_memory(parcel, topic.partition_count)
        return [parcel]

    def _seal(self, lane: Lane, parcel: Parcel, unit: u.Unit | None = None) -> None:
        destination = lane.journal.destination(parcel.topic, parcel.partition)
        batch = lane.journal.seal(
            destination,
            count=parcel.count,
            size_bytes=parcel.size_bytes,
            max_timestamp=parcel.max_timestamp,
            given=parcel.given,
            unit=unit,
        )
        self.register(lane, parcel, batch)

    def register(self, lane: Lane, parcel: Parcel, batch: j.Batch) -> None:
        """Assign a batch to a parcel."""
        parcel.assign(batch)
        lane.parcels[batch.handle] = parcel

    def _divide_in_memory(self, parcel: Parcel, partitions: int) -> list[Parcel]:
        data = parcel.data
        if data is None:
            raise AssertionError("A parcel that was just accepted has its bytes")
        columns = codec.decode(data)
        given = given_partitions(columns, parcel.given)
        children = self._split_by_partition(parcel, columns, given, partitions)
        parcel.adopt(children)
        parcel.drop()
        return [child for child, _ in children]

    def _split_by_partition(
        self, parcel: Parcel, columns: codec.Columns, given: Mapping[int, int], partitions: int
    ) -> list[tuple[Parcel, Indexes]]:
        rest = [i for i in range(columns.header.count) if i not in given]
        chosen = np.empty(columns.header.count, np.int64)
        if rest:
            keys, values = [columns.keys[i] for i in rest], [columns.values[i] for i in rest]
            chosen[rest] = self._choose(parcel.topic, partitions, keys, values)
        for index, partition in given.items():
            chosen[index] = partition
        return [
            (self._reencode(parcel, columns, indexes, int(partition)), indexes)
            for partition in np.unique(chosen)
            if (indexes := np.flatnonzero(chosen == partition)).size
        ]

    def _reencode(self, parcel: Parcel, columns: codec.Columns, indexes: Indexes, partition: int) -> Parcel:
        order = indexes.tolist()
        headers = {at: columns.headers[i] for at, i in enumerate(order) if i in columns.headers}
        data = codec.encode(
            [columns.keys[i] for i in order],
            [columns.values[i] for i in order],
            timestamps=[columns.timestamps[i] for i in order],
            headers=headers or None,
            compression=columns.header.compression,
        )
        stamp = max(columns.timestamps[i] for i in order)
        return Parcel(parcel.topic, partition, data, len(data), len(order), stamp, sealed_at=parcel.sealed_at)

    def divide_all(self, lane: Lane, divides: Sequence[j.Divide]) -> bool:
        """Divide batches in order. If the spool is temporarily unreadable (too many open files), the lane pauses.

        1. A disk is full of batches that were accepted before the partitions of their topics were known.
        2. The engine divides the batches in portions, while there is space for a portion (`Spool.has_room`).
        3. When all batches of a segment are divided, the engine deletes the segment (`Engine.drive`). The deletion
           makes space for the next portion.
        4. If the disk has no space for the next portion, only the remaining divisions wait.
        """
        # Take each batch only once, because a batch that an earlier call left undivided may be in `divides` again. A
        # batch in `divides` may no longer need division, because the journal has sent it again or given it up.
        unique = {divide.batch.handle: divide for divide in (*lane.divisions.take(), *divides)}
        todo = [divide for handle, divide in unique.items() if handle in lane.parcels and divide.is_due]
        stuck: list[j.Divide] = []
        if lane.divisions.is_blocked(self._context.clock.monotonic()):
            lane.divisions.leave(todo)
            return False
        stopped = lane.rejections.stopped(self._context.clock.monotonic())
        progress = False
        for index, divide in enumerate(todo):
            # No batch may overtake a damaged batch of its partition. A batch must not be divided while it waits to be
            # copied to `rejected/`.
            if divide.batch.destination in stopped or lane.journal.views.rejects(divide.batch.destination):
                stuck.append(divide)
                continue
            try:
                missing = self._divide(lane, divide)
                if missing:
                    stuck += todo[index:]
                    # Once the parts of the batches divided so far are on disk, segments with the original batches may
                    # be deleted, which makes space.
                    if not lane.divisions.unwritten_bytes:
                        self._wait_for_room(lane, divide.batch, missing)
                    break
                progress = True
                if self._ledger.errors.damaged:
                    self._ledger.errors.unblock(lane, lane.journal.views.address(divide.batch.destination))
            except SpoolCorruptError as error:
                if self._rejects.damaged(lane, divide.batch, error):
                    lane.journal.damaged(divide.batch, str(error))
                    progress = True
                else:
                    stopped.add(divide.batch.destination)
                    stuck.append(divide)
                continue
            except SpoolError as error:
                stuck += todo[index:]
                attempt = lane.divisions.fail()
                pause_s = self._context.backoff.pause_s(attempt)
                lane.divisions.wait(self._context.clock.monotonic() + pause_s)
                self._context.timer(pause_s, ChoreDue(Chore.LOOK_AGAIN))
                self._log.limited(
                    logging.WARNING,
                    "spool_read_failed",
                    lane.name,
                    "%s: a read failed, kafkasafe tries again: %s",
                    lane.name,
                    error,
                    lane=lane.name,
                    attempt=attempt,
                    error=type(error).__name__,
                )
                break
            lane.divisions.succeed()
        lane.divisions.leave(stuck)
        if progress:
            lane.divisions.find_room()
            if lane.divisions.waiting_bytes and not lane.journal.views.has_unchosen:
                self._disk.count_to_divide(lane)
        return progress

    def _wait_for_room(self, lane: Lane, batch: j.Batch, missing: int) -> None:
        """Wait for space to divide this batch: the engine tries again after a pause, or when a segment is deleted."""
        attempt = lane.divisions.miss_room()
        pause_s = self._context.backoff.pause_s(attempt)
        lane.divisions.pause(self._context.clock.monotonic() + pause_s)
        self._context.timer(pause_s, ChoreDue(Chore.LOOK_AGAIN))
        topic, partition = lane.journal.views.address(batch.destination)
        if partition == UNCHOSEN:
            views = lane.journal.views
            enough = -(-views.unchosen_bytes * missing // batch.size_bytes) + _MARKS_BYTES
            why = (
                f"{views.waiting(topic)} batches for {topic} were spooled before its partitions were known, and"
                f" the volume has no room to write the next batch again, divided by partition ({missing:,} bytes)."
                f" Free {missing:,} bytes, and the producer continues; about {enough:,} are enough for all waiting"
                " batches"
            )
        else:
            why = (
                f"a batch for {place_of(topic, partition)} has to be divided ({batch.fault.message}), and"
                f" the volume has no room for its parts. Free {missing:,} bytes, and the producer continues"
            )
        self._disk.has_no_room(lane, why, attempt)

    def _divide(self, lane: Lane, divide: j.Divide) -> int:
        """Divide one batch and return 0. If space is missing, divide nothing, and return how many bytes the division
        needs.
        """
        parent = lane.parcels[divide.batch.handle]
        columns = codec.decode(self._disk.bytes_of(lane, parent, divide.batch))
        if divide.refused:
            topic, partition = lane.journal.views.address(divide.batch.destination)
            bad = {index for index, _ in divide.batch.fault.bad_records if 0 <= index < parent.count}
            children = [
                (self._reencode(parent, columns, indexes, partition), indexes)
                for indexes in pieces(parent.count, bad, halves=divide.batch.fault.code != j.TOO_SLOW)
            ]
        else:
            known = lane.journal.views.topic(parent.topic)
            given = given_partitions(columns, divide.batch.given)
            partitions = known.partition_count if known else 1
            children = self._split_by_partition(parent, columns, given, partitions)
            bad = set()
        size = sum(child.size_bytes + _PART_BYTES for child, _ in children)
        if divide.batch.durable and not lane.spool.has_room(lane.divisions.unwritten_bytes + size):
            return lane.divisions.unwritten_bytes + size
        if divide.refused:
            topic, partition = lane.journal.views.address(divide.batch.destination)
            self._log.limited(
                logging.INFO,
                "batch_divided",
                f"{topic}-{partition}",
                "%s: a batch of %s is divided: %s",
                place_of(topic, partition),
                counted(parent.count, "record"),
                divide.batch.fault.message,
                lane=lane.name,
                topic=topic,
                partition=partition,
                records=parent.count,
                code=divide.batch.fault.code,
            )
        described = [
            (
                lane.journal.destination(child.topic, child.partition),
                child.count,
                child.size_bytes,
                child.max_timestamp,
                bool(bad) and int(indexes[0]) in bad,
            )
            for child, indexes in children
        ]
        self._context.progress.note()
        del lane.parcels[divide.batch.handle]
        made = lane.journal.replaced(divide.batch, described)
        parent.adopt(children)
        for (child, _), batch in zip(children, made, strict=True):
            if parent.durable:
                child.be_durable()
            self.register(lane, child, batch)
        self._disk.drop(parent)
        if divide.batch.durable:
            lane.divisions.add_unwritten(size)
        return 0

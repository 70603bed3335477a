"""Returns rejected records to the spool, and sets aside a batch that blocks others.

A file of `rejected/` is written into a lane in one atomic spool group, together with a mark that names the file. The
file is deleted once the group is durable. So after a crash, the file's records count either in `rejected/` or in the
lane (docs/spool-format.md, Rejected batches).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kafkasafe import marks as m
from kafkasafe.errors import SpoolCorruptError, SpoolError, SpoolWriteError, UsageError
from kafkasafe.journal import Journal
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import Files, opened, read_file
from kafkasafe.spool.inspection import read_lane, resent_in
from kafkasafe.spool.lanes import LaneLock, SpoolDirectory
from kafkasafe.spool.log_content import Log
from kafkasafe.spool.quarantine import already_quarantined
from kafkasafe.spool.recovery import journal_of, replay
from kafkasafe.spool.rejected import KeptFile, RejectedStore, read_rejected, rejected_names, retire, waits_of
from kafkasafe.spool.rejected_format import OPERATOR, SET_ASIDE, Refused, marks_to_set_aside
from kafkasafe.spool.spool import Spool

SEGMENT_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Resendable:
    """A file of `rejected/` that can be resent.

    Attributes:
        topic: Topic of all records in the file.
        partition: Partition of all records in the file; -1 if it was never chosen.
    """

    lane: str
    kept: KeptFile
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class ResendResult:
    """The result of a resend, or of a search for resendable files.

    Attributes:
        files: The files, in the order of the resend.
        left: One sentence for each file that cannot be resent.
        lane: Name of the lane that has the records now; empty if nothing was written.
    """

    files: list[Resendable] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    lane: str = ""

    @property
    def records(self) -> int:
        return sum(each.kept.records for each in self.files)


def find_rejected(directory: SpoolDirectory, topics: Collection[str] = ()) -> ResendResult:
    """Finds the files that a resend would return to the spool. Changes nothing.

    Args:
        directory: The spool directory. Producers may be using it.
        topics: Only these topics; empty: all.

    Raises:
        SpoolCorruptError: Damage may hide an earlier resend.
        SpoolError: A lane cannot be read.
    """
    files = directory.files
    numbers = directory.lanes()
    cluster_id = directory.cluster_id()
    try:
        # List the files before reading the logs. A batch was in the lane's log before its file in `rejected/` was
        # written. So a log that is read after the listing shows the outcome of every batch in the listed files. The
        # mark (log entry) about a resent file stays in the log until the file is deleted.
        names = {number: rejected_names(files, directory.lane_path(number)) for number in numbers}
        logs = {number: read_lane(directory.lane_path(number), files=files) for number in numbers}
        resent = [mark for log in logs.values() for mark in resent_in(log)]
        found = ResendResult()
        for number in numbers:
            lane = directory.lane_path(number)
            _refuse_blind(files, lane, logs[number])
            if names[number]:
                _make_durable(files, logs[number])
            journal = journal_of(logs[number])
            for kept in read_rejected(
                files, lane, lane_id=logs[number].lane_id, waits=waits_of(journal), resent=resent
            ):
                if kept.path.name not in names[number]:
                    continue  # the file was added since then
                topic, partition = kept.address(journal)
                if kept.error:
                    found.left.append(f"{kept.path}: it cannot be read: {kept.error}")
                elif topics and topic not in topics:
                    continue
                elif kept.content is not None and kept.content.cluster_id not in {"", cluster_id}:
                    found.left.append(
                        f"{kept.path}: its records are for cluster {kept.content.cluster_id}, not {cluster_id}"
                    )
                elif topic == "?":
                    found.left.append(
                        f"{kept.path}: the spool does not know any more to which topic it belongs"
                    )
                else:
                    found.files.append(Resendable(lane.name, kept, topic, partition))
    except OSError as error:
        raise SpoolError(f"{directory.path} cannot be read: {error}. Nothing was changed") from error
    # A file's name begins with the time of the rejection.
    found.files.sort(key=lambda each: each.kept.path.name)
    return found


def bring_back(
    directory: SpoolDirectory,
    topics: Collection[str] = (),
    *,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> ResendResult:
    """Returns rejected records to a lane without an owner, in the order of their rejection.

    On return, the records are durable in the lane, and deleted from `rejected/`. The producer that adopts or drains the
    lane delivers the records.

    Args:
        directory: The spool directory. Producers may be using it.
        topics: Only these topics; empty: all.
        progress: Called repeatedly with (number of files done, number of all files).
        clock_ms: Returns ms since the epoch.

    Raises:
        LaneBusyError: Another resend is running, or no lane is free.
        SpoolCorruptError: The lane is damaged, or damage may hide an earlier resend.
        SpoolError: A file cannot be read or written. Nothing is lost, and records already returned stay in the lane.
    """
    with directory.resending():
        found = find_rejected(directory, topics)
        if not found.files:
            return found
        with contextlib.ExitStack() as stack:
            try:
                own, spool, journal = stack.enter_context(_own_lane(directory.take_lane(), clock_ms))
            except SpoolCorruptError:
                # The lane is damaged, and a resend does not repair damage. Write to a new lane.
                lock = directory.take_lane(max(directory.lanes()) + 1)
                own, spool, journal = stack.enter_context(_own_lane(lock, clock_ms))
            found = replace(found, lane=own.path.name)
            for done, each in enumerate(found.files):
                progress(done, len(found.files))
                _write(directory, spool, journal, each)
    return found


def set_aside(
    directory: SpoolDirectory,
    number: int,
    position: int,
    absent: Callable[[str, int, Sequence[int]], Collection[int]],
    *,
    clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> tuple[Path, str, int, int]:
    """Moves an unfinished batch into `rejected/`, so that later batches can be delivered. Durable on return.

    Args:
        directory: The spool directory.
        number: Number of the lane, which must have no owner.
        position: Position of the batch.
        absent: Called with topic, partition and positions if the batch may have been sent. Returns the positions of
            batches that are not in the cluster's log and cannot get there any more.
        clock_ms: Returns ms since the epoch.

    Returns:
        (file, topic, partition, records).

    Raises:
        LaneBusyError: A process owns the lane.
        UsageError: The lane has no unfinished batch at `position`.
        SpoolError: The batch may be in the cluster's log, or belongs to an atomic batch, or the lane cannot be read or
            written. The batch stays in the lane.
    """
    with _own_lane(directory.take_lane(number), clock_ms) as (lock, spool, journal):
        lane = lock.path
        places = [(topic, partition, batch) for topic, partition, batch in journal.views.batches()]
        place = next((place for place in places if place[2].position == position), None)
        if place is None:
            raise UsageError(
                f"{lane.name} has no unfinished batch at position {position}; kafkasafe spool show lists them"
            )
        topic, partition, batch = place
        if batch.unit is not None:
            raise SpoolError(
                f"The batch at position {position} of {lane.name} stays where it is: it belongs to an atomic batch,"
                " which is delivered as a whole or not at all. kafkasafe spool abort --batch"
                f" {batch.unit.unit_id.hex()} gives the atomic batch up"
            )
        queue = [other for _, _, other in places if other.destination == batch.destination]
        identified = [other.position for other in queue if other.identity is not None]
        proven: Collection[int] = ()
        if batch.identity is not None:
            # If nothing was sent to the partition yet, no request is needed.
            proven = absent(topic, partition, identified) if journal.views.may_be_sent(batch) else identified
        marks = marks_to_set_aside(queue, position, proven)
        if isinstance(marks, str):
            raise SpoolError(
                f"The batch at position {position} of {lane.name} stays where it is: {marks}. A producer, or `kafkasafe"
                " spool drain`, determines the outcome and finishes the batch; see kafkasafe doctor"
            )
        store = RejectedStore(lock.files, lane, spool.lane_id)
        refused = Refused(position, spool.read(position), OPERATOR, SET_ASIDE, batch.given)
        to = m.Destination(batch.destination, topic, partition)
        try:
            store.open(waits_of(journal))
            path = store.keep([refused], to, cluster_id=directory.cluster_id() or "", now_ms=clock_ms())
        except OSError as error:
            raise SpoolError(
                f"{lane.name}/rejected cannot be written: {error}. Nothing was changed"
            ) from error
        spool.write_group(marks, ())
        spool.sync()
        return path, topic, partition, batch.count


@contextlib.contextmanager
def _own_lane(lock: LaneLock, clock_ms: Callable[[], int]) -> Iterator[tuple[LaneLock, Spool, Journal]]:
    """Context with (lock, log, journal) of a lane whose lock the caller has. Closes the lane in an orderly way."""
    journal = Journal()
    try:
        spool, entries = Spool.open(
            lock.path,
            files=lock.files,
            segment_bytes=SEGMENT_BYTES,
            sync="group",
            snapshot=journal.snapshot,
            clock_ms=clock_ms,
        )
        try:
            replay(entries, journal)
            journal.recovery.recovered(0.0)
            yield lock, spool, journal
        finally:
            spool.close()
    finally:
        lock.release()


def _write(directory: SpoolDirectory, spool: Spool, journal: Journal, each: Resendable) -> None:
    path = each.kept.path
    mark = m.Resent(each.lane, path.name)
    try:
        raw = read_file(directory.files, path)
        marks: list[m.Mark] = []
        known = (each.topic, each.partition) in {journal.views.address(n) for n in journal.views.destinations}
        number = journal.destination(each.topic, each.partition)
        if not known:
            marks.append(m.Destination(number, each.topic, each.partition))
        batches = []
        for index, entry in enumerate(each.kept.entries):
            if entry.given is not None:
                marks.append(m.Given(index, entry.given))
            data = bytearray(raw[entry.at : entry.at + entry.header.size_bytes])
            # The batch gets a new id later; the outcome under the old id no longer matters.
            codec.stamp_identity(data, -1, -1, -1)
            batches.append((number, data))
        spool.write_group([*marks, mark], batches, atomic=True)
        spool.sync()
        retire(directory.files, directory.path, mark)
    except (OSError, SpoolWriteError) as error:
        raise SpoolError(
            f"{path} could not be resent: {error}. Nothing is lost, and nothing is in the spool twice: resend again"
        ) from error


def _make_durable(files: Files, log: Log) -> None:
    """Syncs a log that was read. Some marks (log entries) may still be only in the page cache, and a mark must be
    durable before the caller relies on it.
    """
    if log.segments:
        with opened(files, log.segments[-1].path) as handle:
            files.sync_data(handle)


def _refuse_blind(files: Files, lane: Path, log: Log) -> None:
    lost = [
        damage
        for damage in log.damage
        if not damage.destination and not already_quarantined(files, lane, damage)
    ]
    if lost:
        raise SpoolCorruptError(
            f"{lane} is damaged. The damage may have destroyed a mark that records an earlier resend: {lost[0]}."
            " Nothing was changed; see kafkasafe spool repair",
            damage=tuple(map(str, lost)),
        )

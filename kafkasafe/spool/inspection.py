"""Inspects a lane. Takes no lock, and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe import marks as m
from kafkasafe.errors import SpoolError
from kafkasafe.journal import Journal
from kafkasafe.spool.extent import EXTENT_NAME, extent_trouble
from kafkasafe.spool.files import Files, read_whole, size_of
from kafkasafe.spool.log_content import BatchEntry, Damage, Log, LostEntry, MarksEntry, TornEntry
from kafkasafe.spool.quarantine import already_quarantined, quarantine_damage
from kafkasafe.spool.recovery import journal_of, scan
from kafkasafe.spool.refusals import counted
from kafkasafe.spool.rejected import (
    KeptFile,
    RejectedRecords,
    read_rejected,
    summed_up,
    waits_of,
)
from kafkasafe.spool.rejected_notes import Notes, read_notes
from kafkasafe.spool.steps import BatchTimes, UnitLog, steps_of, undecidable_in

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class UndeliveredRecords:
    """The undelivered records of one partition.

    Attributes:
        partition: The partition; -1 while no partition is chosen.
        batches: Number of batches.
        records: Number of records in the undelivered batches.
        in_doubt_batches: Number of batches that may have been sent.
    """

    topic: str
    partition: int
    batches: int
    records: int
    in_doubt_batches: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """What `inspect` found in a lane.

    Attributes:
        lane_id: Id of the lane; None if no file shows it.
        segments: Number of segments.
        groups: Number of intact groups.
        batches: Number of intact data batches.
        size_bytes: Size of all segments.
        next_position: Position after the last record.
        damage: One sentence per damaged range.
        untold: The sentences of `damage` that no producer has reported yet. A copy in `quarantine/` proves that a range
            was reported.
        torn_bytes: Number of bytes in the torn tail. These bytes were never reported as durable, and recovery would cut
            them off.
        closed: Whether the last owner closed the lane in an orderly way.
        unfinished: Number of batches and atomic batches without an outcome.
        doubted: Number of partitions whose acknowledged records the cluster may have lost. The next producer checks
            these partitions.
        waiting: Undelivered records, by partition.
        rejected_bytes: Size of the files in `rejected/`.
        rejected_unreadable: One sentence per damaged file in `rejected/`.
        rejected_missing: One sentence per file of `rejected/` that was deleted, although its records were neither
            resent nor discarded.
        rejected_discarded: Number of records that `kafkasafe spool discard` has discarded.
        extent: The problem with the lane's `extent` (see `extent_of`); empty if the extent is valid.
        oldest_ms: When the oldest undelivered batch was written (ms since the epoch); -1 if none exists.
        undecidable: Maps the position of each undelivered batch that waits for an operator's decision to the position
            of the spool group with the batch's mark `Undecidable`.
    """

    lane_id: bytes | None
    segments: int
    groups: int
    batches: int
    records: int
    size_bytes: int
    next_position: int
    damage: tuple[str, ...]
    untold: tuple[str, ...]
    torn_bytes: int
    closed: bool
    unfinished: int
    doubted: int
    waiting: tuple[UndeliveredRecords, ...]
    rejected: tuple[RejectedRecords, ...]
    rejected_bytes: int
    rejected_unreadable: tuple[str, ...]
    rejected_missing: tuple[str, ...]
    rejected_discarded: int
    extent: str
    oldest_ms: int
    undecidable: tuple[int, ...]


def extent_of(files: Files, lane: Path, found: Log) -> str:
    """One sentence about the problem with a lane's `extent`; empty if the extent is valid.

    An invalid `extent` is not damage, but recovery with an invalid `extent` does not notice if the first or last
    segments of the log vanish.

    Raises:
        SpoolError: The file cannot be read.
    """
    try:
        content = read_whole(files, lane / EXTENT_NAME)
        if content is None and not found.segments and "reserve" not in files.list(lane):
            return ""  # the lane has never had content
    except OSError as error:
        raise SpoolError(f"{lane} cannot be read: {error}") from error
    trouble = extent_trouble(content, found.lane_id)
    if not trouble:
        return ""
    return (
        f"{trouble}: if the first or last segments of the log are missing, this is not noticed. The file is made again"
        " with the next segment"
    )


def resent_in(log: Log) -> list[m.Resent]:
    """Returns all marks `Resent` of this lane's log. Each mark names a file of `rejected/` in this or another lane. The
    records of the file were moved into this lane.
    """
    return [
        mark
        for entry in log.entries
        if isinstance(entry, MarksEntry)
        for mark in entry.marks
        if isinstance(mark, m.Resent)
    ]


def unreadable(kept: Sequence[KeptFile]) -> tuple[str, ...]:
    """One sentence for each damaged file."""
    return tuple(f"rejected/{file.path.name}: {file.error}" for file in kept if file.error)


def missing(files: Files, lane: Path, notes: Notes, resent: Collection[m.Resent]) -> tuple[str, ...]:
    """Names of files that were deleted from `rejected/`, although their records were neither resent nor discarded.

    Args:
        files: The disk.
        lane: The lane's directory.
        notes: The lane's notes, read before the files are listed.
        resent: The marks (log entries) about resent files, from the logs of all lanes.
    """
    try:
        there = {*files.list(lane / "rejected"), *(mark.file for mark in resent if mark.lane == lane.name)}
    except FileNotFoundError:
        there = {mark.file for mark in resent if mark.lane == lane.name}
    except OSError:
        return ()  # `read_rejected` reports this error
    gone = [name for name in sorted(notes.kept) if name not in there]
    if gone:
        # If a file was resent since the notes were read, its note no longer exists.
        notes = read_notes(files, lane)
    return tuple(name for name in gone if name in notes.kept)


def with_same_id(lane_ids: Mapping[str, bytes | None]) -> dict[str, list[str]]:
    """Maps the name of each lane to the names of the other lanes with the same id. Lanes with the same id are copies of
    one original lane.

    Args:
        lane_ids: The ids of all lanes of a directory, by name of the lane; None if the id is not known.
    """
    return {
        name: [other for other, its_id in lane_ids.items() if other != name and its_id == lane_id is not None]
        for name, lane_id in lane_ids.items()
    }


def missing_text(name: str, records: int) -> str:
    """The message about a deleted file that `missing` has found."""
    return f"rejected/{name}: {counted(records, 'record')} deleted, neither resent nor discarded"


def steps(log: Log) -> tuple[dict[int, BatchTimes], list[UnitLog]]:
    """Returns the times of the steps of each batch and each atomic batch in a lane's log (see `spool/steps.py`)."""
    return steps_of((entry.written_ms, entry.marks, batches) for entry, batches in _groups(log))


def dropped_in(units: Sequence[UnitLog]) -> dict[int, str]:
    """Maps the position of each dropped batch to the reason why its atomic batch was dropped."""
    return {position: unit.reason for unit in units if unit.is_dropped for position in unit.positions}


def _groups(log: Log) -> list[tuple[MarksEntry, list[tuple[int, bool]]]]:
    """Returns a pair for each spool group: its marks (entries about decisions), and (position, whether the batch has an
    id) for each batch.
    """
    groups: list[tuple[MarksEntry, list[tuple[int, bool]]]] = []
    for entry in log.entries:
        match entry:
            case MarksEntry():
                groups.append((entry, []))
            case BatchEntry(position, _, header) if groups:
                groups[-1][1].append((position, header.producer_id >= 0))
            case LostEntry(position) | TornEntry(position) if groups:
                groups[-1][1].append((position, False))
            case _:
                pass
    return groups


def read_lane(lane: Path, *, files: Files) -> Log:
    """Reads a lane, without changing anything or taking its lock.

    If the lane's owner writes or deletes segments at the same time and disturbs the reading, `read_lane` reads the lane
    again.

    Raises:
        SpoolFormatError: A newer kafkasafe has written the lane.
        SpoolError: A file cannot be read.
    """
    seen: list[Damage] = []
    for tries in range(1, _TRIES + 1):
        try:
            found = scan(files, lane)
        except FileNotFoundError as error:
            if not lane.is_dir():
                raise SpoolError(f"{lane} is not a directory") from error
            if tries == _TRIES:
                raise SpoolError(f"{lane} cannot be read, its segments keep changing: {error}") from error
            continue
        except OSError as error:
            raise SpoolError(f"{lane} cannot be read: {error}") from error
        if not found.damage or found.damage == seen:
            break
        seen = found.damage
    return found


def start_error(lane: Path, *, files: Files) -> SpoolError | None:
    """Returns the error that a producer with `on_corrupt="raise"` would raise if it started on this lane now; None if
    the producer would start.

    Changes nothing and takes no lock. The lane must not have an owner. Like a starting producer, this function does not
    read the content of large batches: a producer finds damage in a large batch only when it sends the batch.
    """
    try:
        quarantine_damage(files, lane, scan(files, lane, lambda _: None), "raise")
    except SpoolError as error:
        return error
    except OSError as error:
        return SpoolError(f"{lane} cannot be opened: {error}")
    return None


def inspect(lane: Path, *, files: Files, resent: Collection[m.Resent] = ()) -> Inspected:
    """Reads a whole lane and checks every byte, without changing anything or taking its lock.

    While the lane's owner writes, the end of the log may look torn.

    Args:
        lane: The lane's directory.
        files: The disk.
        resent: The marks (log entries) about resent files, from the logs of the other lanes.

    Raises:
        SpoolFormatError: A newer kafkasafe has written the lane.
        SpoolError: A file cannot be read.
    """
    found = read_lane(lane, files=files)
    try:
        torn = 0
        if found.torn is not None:
            torn = size_of(files, found.torn[0]) - found.torn[1]
            torn += sum(size_of(files, path) for path in found.doomed)
        untold = tuple(str(damage) for damage in found.damage if not already_quarantined(files, lane, damage))
    except OSError as error:
        raise SpoolError(f"{lane} cannot be read: {error}") from error
    batches = [entry for entry in found.entries if isinstance(entry, BatchEntry)]
    journal = journal_of(found)
    resent = (*resent, *resent_in(found))
    try:
        # Read the notes before the files. If a file is resent in between, `missing` reads the notes again. The file's
        # note is gone then, because a resend removes the note before the file.
        notes = read_notes(files, lane)
    except OSError as error:
        raise SpoolError(f"{lane} cannot be read: {error}") from error
    kept = read_rejected(files, lane, lane_id=found.lane_id, waits=waits_of(journal), resent=resent)
    return Inspected(
        lane_id=found.lane_id,
        segments=len(found.segments) + len(found.doomed),
        groups=found.groups,
        batches=len(batches),
        records=sum(entry.header.count for entry in batches),
        size_bytes=sum(segment.size_bytes for segment in found.segments) + torn,
        next_position=found.next_position,
        damage=tuple(map(str, found.damage)),
        untold=untold,
        torn_bytes=torn,
        closed=found.closed,
        unfinished=journal.views.unfinished,
        doubted=len(journal.views.doubted),
        waiting=_waiting(journal),
        rejected=summed_up(kept, journal),
        rejected_bytes=sum(file.size_bytes for file in kept),
        rejected_unreadable=unreadable(kept),
        rejected_missing=tuple(
            missing_text(name, notes.kept[name]) for name in missing(files, lane, notes, resent)
        ),
        rejected_discarded=sum(notes.discarded.values()),
        extent=extent_of(files, lane, found),
        oldest_ms=_oldest_ms(found, journal),
        undecidable=_undecidable(found, journal),
    )


def _oldest_ms(log: Log, journal: Journal) -> int:
    """When the oldest unfinished batch was written; -1 if none exists."""
    times, units = steps(log)
    written = {position: each.prepared_ms for position, each in times.items()}
    written |= {position: unit.prepared_ms for unit in units for position in unit.positions}
    waiting = (
        at if (at := written.get(batch.position, -1)) >= 0 else batch.max_timestamp
        for _, _, batch in journal.views.batches()
    )
    return min(waiting, default=-1)


def _undecidable(log: Log, journal: Journal) -> tuple[int, ...]:
    waiting = {batch.position for _, _, batch in journal.views.batches()}
    found = undecidable_in((entry.position, entry.marks, batches) for entry, batches in _groups(log))
    return tuple(at for position, at in found.items() if position in waiting)


def _waiting(journal: Journal) -> tuple[UndeliveredRecords, ...]:
    counts: dict[tuple[str, int], list[int]] = {}
    for topic, partition, batch in journal.views.batches():
        count = counts.setdefault((topic, partition), [0, 0, 0])
        count[0] += 1
        count[1] += batch.count
        count[2] += journal.views.may_be_sent(batch)
    return tuple(UndeliveredRecords(*address, *count) for address, count in sorted(counts.items()))

"""Looking into a lane without owning or changing it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.extent import extent_trouble
from kafkasafe._core.journal import Journal
from kafkasafe._core.steps import BatchTimes, UnitLog, steps_of, undecidable_in
from kafkasafe._io.files import Files, read_whole, size_of
from kafkasafe._io.quarantine import already_quarantined
from kafkasafe._io.recovery import (
    EXTENT_NAME,
    BatchEntry,
    Damage,
    Log,
    LostEntry,
    MarksEntry,
    TornEntry,
    replay,
    scan,
)
from kafkasafe._io.refusals import counted
from kafkasafe._io.rejected import (
    KeptFile,
    RejectedRecords,
    read_rejected,
    summed_up,
    waits_of,
)
from kafkasafe._io.rejected_notes import Notes, read_notes
from kafkasafe.errors import SpoolError

__all__ = ["Inspected", "Waiting", "extent_of", "inspect", "missing", "read_lane", "resent_in", "steps"]

_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is not delivered yet, for one partition.

    Attributes:
        topic: Topic name.
        partition: -1 while it is not chosen.
        batches: Number of batches.
        records: Number of records in them.
        in_doubt_batches: How many may have been sent.
    """

    topic: str
    partition: int
    batches: int
    records: int
    in_doubt_batches: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """What is in a lane.

    Attributes:
        segments: Number of segments.
        groups: Number of intact groups.
        batches: Number of intact data batches.
        records: Number of records in them.
        size_bytes: Size of all segments.
        next_position: Behind the last record.
        damage: One sentence per damaged range.
        untold: Those of them that nobody gave up yet: `quarantine/` has no copy of the bytes.
        torn_bytes: Bytes a recovery would cut off; nothing in them was promised.
        closed: The last owner closed it in order.
        unfinished: Number of batches, and of atomic batches, without a fate.
        doubted: Number of partitions where acknowledged records may be gone: the next producer asks the cluster.
        waiting: What is not delivered yet.
        rejected: What is kept in `rejected/`.
        rejected_bytes: Size of its files.
        rejected_unreadable: One sentence per file there that is not whole.
        rejected_missing: One sentence per file that was deleted, and neither resent nor discarded.
        rejected_discarded: Records that `kafkasafe spool discard` gave up.
        extent: What is wrong with the lane's `extent`, empty if nothing is: see `extent_of`.
        oldest_ms: When the oldest batch that waits was written, ms since the epoch; -1 where none waits.
        undecidable: Of each batch that waits for a decision, the position of the group that says so.
    """

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
    waiting: tuple[Waiting, ...]
    rejected: tuple[RejectedRecords, ...]
    rejected_bytes: int
    rejected_unreadable: tuple[str, ...]
    rejected_missing: tuple[str, ...]
    rejected_discarded: int
    extent: str
    oldest_ms: int
    undecidable: tuple[int, ...]


def extent_of(files: Files, lane: Path, found: Log) -> str:
    """What is wrong with a lane's `extent`, one sentence; empty if nothing is.

    It is no damage, and nothing is refused for it; but segments that vanish at either end would not be noticed.

    Raises:
        SpoolError: It cannot be read.
    """
    try:
        content = read_whole(files, lane / EXTENT_NAME)
        if content is None and not found.segments and "reserve" not in files.list(lane):
            return ""  # nothing was ever in it
    except OSError as error:
        raise SpoolError(f"{lane} cannot be read: {error}") from error
    trouble = extent_trouble(content, found.lane_id)
    if not trouble:
        return ""
    return f"{trouble}: segments missing at either end of the log would not be noticed. The next segment makes it again"


def resent_in(log: Log) -> list[m.Resent]:
    """Files of `rejected/`, of any lane, whose records are batches of this one."""
    return [
        mark
        for entry in log.entries
        if isinstance(entry, MarksEntry)
        for mark in entry.marks
        if isinstance(mark, m.Resent)
    ]


def unreadable(kept: Sequence[KeptFile]) -> tuple[str, ...]:
    """One sentence for each file that is not whole."""
    return tuple(f"rejected/{file.path.name}: {file.error}" for file in kept if file.error)


def missing(files: Files, lane: Path, notes: Notes, resent: Collection[m.Resent]) -> tuple[str, ...]:
    """Names of the files of `rejected/` that were deleted, and neither resent nor discarded.

    Args:
        files: The disk.
        lane: The lane's directory.
        notes: Read before the files were.
        resent: Marks of files that were resent, of all lanes.
    """
    try:
        there = {*files.list(lane / "rejected"), *(mark.file for mark in resent if mark.lane == lane.name)}
    except FileNotFoundError:
        there = {mark.file for mark in resent if mark.lane == lane.name}
    except OSError:
        return ()  # said by `read_rejected`
    gone = [name for name in sorted(notes.kept) if name not in there]
    if gone:
        # What was resent since has no note any more.
        notes = read_notes(files, lane)
    return tuple(name for name in gone if name in notes.kept)


def steps(log: Log) -> tuple[dict[int, BatchTimes], list[UnitLog]]:
    """The steps of KAFKA-156 that a lane's log tells of; see `_core/steps.py`."""
    return steps_of((entry.written_ms, entry.marks, batches) for entry, batches in _groups(log))


def _groups(log: Log) -> list[tuple[MarksEntry, list[tuple[int, bool]]]]:
    """Each group's marks, and (position, has an id) of its batches."""
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
    """Read a lane, without changing anything or taking its lock.

    Its owner may write and delete segments meanwhile: what is seen in between is looked at again.

    Raises:
        SpoolFormatError: Written by a newer kafkasafe.
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


def inspect(lane: Path, *, files: Files, resent: Collection[m.Resent] = ()) -> Inspected:
    """Read all of a lane and check every byte, without changing anything or taking its lock.

    While its owner writes, the end of the log may look torn.

    Args:
        lane: Its directory.
        files: The disk.
        resent: Files of `rejected/` that other lanes name as resent.

    Raises:
        SpoolFormatError: Written by a newer kafkasafe.
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
    journal = Journal()
    replay(found.entries, journal)
    journal.recovered(0.0)
    resent = (*resent, *resent_in(found))
    try:
        # Before the files: one that is resent meanwhile loses its note first.
        notes = read_notes(files, lane)
    except OSError as error:
        raise SpoolError(f"{lane} cannot be read: {error}") from error
    kept = read_rejected(files, lane, lane_id=found.lane_id, waits=waits_of(journal), resent=resent)
    return Inspected(
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
            f"rejected/{name}: {counted(notes.kept[name], 'record')} deleted, neither resent nor discarded"
            for name in missing(files, lane, notes, resent)
        ),
        rejected_discarded=sum(notes.discarded.values()),
        extent=extent_of(files, lane, found),
        oldest_ms=_oldest_ms(found, journal),
        undecidable=_undecidable(found, journal),
    )


def _oldest_ms(log: Log, journal: Journal) -> int:
    """When the oldest unfinished batch was written; -1 if there is none."""
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


def _waiting(journal: Journal) -> tuple[Waiting, ...]:
    counts: dict[tuple[str, int], list[int]] = {}
    for topic, partition, batch in journal.views.batches():
        count = counts.setdefault((topic, partition), [0, 0, 0])
        count[0] += 1
        count[1] += batch.count
        count[2] += journal.views.may_be_sent(batch)
    return tuple(Waiting(*address, *count) for address, count in sorted(counts.items()))

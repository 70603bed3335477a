"""Discards rejected records, and notes in the spool that they were discarded. Without such a note, the deleted files
would be reported as missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafkasafe.errors import SpoolError
from kafkasafe.spool.inspection import missing, read_lane, resent_in
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.recovery import journal_of
from kafkasafe.spool.rejected import read_rejected, rejected_names, waits_of
from kafkasafe.spool.rejected_notes import mark_discarded, read_notes


@dataclass(frozen=True, slots=True)
class Discardable:
    """A file of `rejected/` that can be discarded.

    Attributes:
        lane: Directory of the lane.
        topic: Topic of the records; "?" if unknown.
        partition: Partition of the records; -1 if it was never chosen, or is unknown.
        records: Number of records; 0 if the file cannot be read.
        error: Why the file cannot be read; empty if it can be read.
        missing: Whether the file was already deleted by hand.
    """

    lane: Path
    name: str
    topic: str
    partition: int
    records: int
    error: str = ""
    missing: bool = False


def find_discardable(
    directory: SpoolDirectory, numbers: Sequence[int], topics: Collection[str] = ()
) -> list[Discardable]:
    """Lists the files of each lane's `rejected/`, in the order of rejection, then the files that were deleted by hand.
    Changes nothing.

    Two kinds of batches do not count as rejected: those that are unfinished in the lane's log, and those that a resend
    has returned to a log.

    Args:
        directory: The spool directory. Producers may be using it.
        numbers: Numbers of the lanes.
        topics: If given, returns only files of these topics, and no file whose topic is unknown.

    Raises:
        SpoolError: A lane cannot be read.
    """
    files = directory.files
    found: list[Discardable] = []
    try:
        # List the files before reading the logs. `resend.find_rejected` says why.
        names = {number: rejected_names(files, directory.lane_path(number)) for number in numbers}
        notes = {number: read_notes(files, directory.lane_path(number)) for number in numbers}
        logs = {number: read_lane(directory.lane_path(number), files=files) for number in directory.lanes()}
        resent = [mark for log in logs.values() for mark in resent_in(log)]
        for number in numbers:
            if number not in logs:
                continue  # another process has pruned the lane
            lane = directory.lane_path(number)
            journal = journal_of(logs[number])
            rejected = read_rejected(
                files, lane, lane_id=logs[number].lane_id, waits=waits_of(journal), resent=resent
            )
            found += [
                Discardable(lane, kept.path.name, *kept.address(journal), kept.records, kept.error)
                for kept in rejected
                if kept.path.name in names[number]  # ignore batches that were rejected after the listing
            ]
            found += [
                Discardable(lane, name, "?", -1, notes[number].kept[name], missing=True)
                for name in missing(files, lane, notes[number], resent)
            ]
    except OSError as error:
        raise SpoolError(f"{directory.path} cannot be read: {error}. Nothing was changed") from error
    return [each for each in found if not topics or each.topic in topics]


def discard(directory: SpoolDirectory, wanted: Collection[Discardable]) -> None:
    """Discards files. Durable on return. After a crash, some files may be unchanged: call this function again.

    Args:
        directory: The spool directory. Producers may be using it.
        wanted: The result of `find_discardable`, called while the caller holds the lock `directory.resending()`.

    Raises:
        SpoolError: A file cannot be written. The remaining files are kept.
    """
    files = directory.files
    for each in wanted:
        path = each.lane / "rejected" / each.name
        try:
            mark_discarded(files, each.lane, each.name, each.records)
            with contextlib.suppress(FileNotFoundError):
                files.unlink(path)
                files.sync_directory(path.parent)
        except OSError as error:
            raise SpoolError(f"{path} cannot be discarded: {error}. The remaining files are kept") from error

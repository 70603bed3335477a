"""Gives up rejected records on purpose, and notes that: then they do not look as if something had deleted them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from kafkasafe._core.journal import Journal
from kafkasafe._io.inspection import missing, read_lane, resent_in
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe._io.recovery import replay
from kafkasafe._io.rejected import read_rejected, rejected_names, waits_of
from kafkasafe._io.rejected_notes import mark_discarded, read_notes
from kafkasafe.errors import SpoolError

__all__ = ["Discardable", "discard", "find_discardable"]


@dataclass(frozen=True, slots=True)
class Discardable:
    """A file of `rejected/` that a discard gives up.

    Attributes:
        lane: Directory of the lane.
        name: Of the file.
        topic: Of its records; "?" where that is not known.
        partition: -1 when it was never chosen, or is not known.
        records: How many, as far as is known.
        error: Why it cannot be read, empty where it can.
        missing: It was deleted before, by hand.
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
    """What counts as rejected, in the order of rejection, and what was deleted by hand. Changes nothing.

    What the log of a lane has as unfinished is not rejected, and what a resend has put back into a log is not any more.

    Args:
        directory: The spool directory; producers may be at work in it.
        numbers: Of the lanes.
        topics: Only these, and nothing whose topic is not known; empty: all.

    Raises:
        SpoolError: A lane cannot be read.
    """
    files = directory.files
    found: list[Discardable] = []
    # In this order, as a resend reads: what is listed was in its lane's log before.
    names = {number: rejected_names(files, directory.lane_path(number)) for number in numbers}
    notes = {number: read_notes(files, directory.lane_path(number)) for number in numbers}
    logs = {number: read_lane(directory.lane_path(number), files=files) for number in directory.lanes()}
    resent = [mark for log in logs.values() for mark in resent_in(log)]
    for number in numbers:
        lane = directory.lane_path(number)
        journal = Journal()
        replay(logs[number].entries, journal)
        journal.recovered(0.0)
        rejected = read_rejected(
            files, lane, lane_id=logs[number].lane_id, waits=waits_of(journal), resent=resent
        )
        found += [
            Discardable(lane, kept.path.name, *kept.address(journal), kept.records, kept.error)
            for kept in rejected
            if kept.path.name in names[number]  # not what was rejected since
        ]
        found += [
            Discardable(lane, name, "?", -1, notes[number].kept[name], missing=True)
            for name in missing(files, lane, notes[number], resent)
        ]
    return [each for each in found if not topics or each.topic in topics]


def discard(directory: SpoolDirectory, wanted: Collection[Discardable]) -> None:
    """Give them up. Durable on return; a crash in the middle leaves the rest as it was: call it again.

    Args:
        directory: The spool directory; producers may be at work in it.
        wanted: What `find_discardable` found, while `directory.resending()` is held.

    Raises:
        SpoolError: Something cannot be written. What was not discarded is kept.
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
            raise SpoolError(f"{path} cannot be discarded: {error}. What is left is kept") from error

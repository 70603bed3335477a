"""Deletes empty lanes, and spool directories without lanes. Client ids that are no longer used, and workers that have
ended, leave empty lanes behind.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe import marks as m
from kafkasafe.errors import LaneBusyError, SpoolError
from kafkasafe.spool.inspection import Inspected, inspect, read_lane, resent_in
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.lanes.format import FORMAT_NAME
from kafkasafe.spool.refusals import counted
from kafkasafe.spool.rejected_notes import read_notes

_DOOMED: Final = ".pruned-"
"""Prefix of the name that a lane gets before its files are deleted. So after a crash, the remaining files do not count
as a damaged lane.
"""
_OURS: Final = frozenset({FORMAT_NAME, "CLUSTER", "RESEND"})


@dataclass(frozen=True, slots=True)
class Prunable:
    """A lane, and whether it may be deleted.

    Attributes:
        bytes: Size of all files in the lane.
        kept: Why the lane is kept; empty if it may be deleted.
        is_unread: Whether the lane is kept because it cannot be read.
    """

    number: int
    bytes: int
    kept: str
    is_unread: bool = False


def find_prunable(directory: SpoolDirectory, older_than_s: float) -> Iterator[Prunable]:
    """Yields each lane. Changes nothing, and takes no lock.

    Args:
        directory: The spool directory. Producers may be using it.
        older_than_s: A lane in which a file has changed within this time is kept.
    """
    resent = _resent(directory)
    for number in directory.lanes():
        lane = directory.lane_path(number)
        if pid := directory.owners.seems_owned(number):
            yield Prunable(number, _bytes(lane), f"in use by process {pid}")
        else:
            is_unread = False
            try:
                kept = _content(directory, lane, resent) or _age(lane, older_than_s)
            except (SpoolError, OSError) as error:
                if not lane.exists():
                    continue  # another process has deleted it
                kept, is_unread = f"it cannot be read: {error}", True
            yield Prunable(number, _bytes(lane), kept, is_unread)


def _resent(directory: SpoolDirectory) -> list[m.Resent]:
    """Marks that name resent files. The marks (log entries) in unreadable lanes are unknown. So `kafkasafe spool prune`
    keeps some lanes that it could otherwise delete.
    """
    resent: list[m.Resent] = []
    for number in directory.lanes():
        with contextlib.suppress(SpoolError):
            resent += resent_in(read_lane(directory.lane_path(number), files=directory.files))
    return resent


def _content(directory: SpoolDirectory, lane: Path, resent: Collection[m.Resent]) -> str:
    """Why a lane is needed; empty if it is not.

    Raises:
        SpoolError: It cannot be read.
    """
    files = directory.files
    found = inspect(lane, files=files, resent=resent)
    for mark in resent_in(read_lane(lane, files=files)):
        other = directory.path / mark.lane
        if mark.file in read_notes(files, other).kept or (other / "rejected" / mark.file).exists():
            return f"it says what was resent of {mark.lane}"
    if any((lane / "quarantine").glob("*")):
        return "quarantine/ holds damaged bytes"
    return _needed(found)


def _needed(found: Inspected) -> str:
    waiting = sum(each.records for each in found.waiting)
    rejected = sum(each.records for each in found.rejected)
    if waiting or found.unfinished:
        return f"{counted(waiting, 'record')} not delivered"
    if found.doubted:
        return "acknowledged records may be gone: the next producer asks the cluster"
    if rejected or found.rejected_unreadable or found.rejected_missing:
        return f"{counted(rejected, 'record')} rejected" if rejected else "rejected/ is not whole"
    if found.damage or found.extent:
        return "it is damaged"
    return ""


def _age(lane: Path, older_than_s: float) -> str:
    newest = max((path.stat().st_mtime for path in _files(lane)), default=0.0)
    return "it was used lately" if time.time() - newest < older_than_s else ""


def _files(lane: Path) -> Iterator[Path]:
    for path, _, names in os.walk(lane):
        yield from (Path(path) / name for name in names)


def _bytes(lane: Path) -> int:
    total = 0
    for path in _files(lane):
        with contextlib.suppress(FileNotFoundError):  # the owner has released the segment
            total += path.stat().st_size
    return total


def prune_lane(directory: SpoolDirectory, number: int) -> str:
    """Deletes a lane, unless a process has taken the lane, or the lane is needed (`_content`).

    Returns:
        Why the lane was kept; empty if it was deleted.

    Raises:
        SpoolError: The lane cannot be deleted.
    """
    lane = directory.lane_path(number)
    try:
        lock = directory.take_lane(number)
    except LaneBusyError as error:
        return f"in use by process {error.pid}"
    try:
        # While this process holds the lock, no other process writes to the lane. So this function deletes exactly the
        # content that it checks.
        if kept := _content(directory, lane, _resent(directory)):
            return kept
        doomed = directory.path / f"{_DOOMED}{lane.name}-{os.getpid()}"
        lane.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise SpoolError(f"{lane} cannot be deleted: {error}") from error
    finally:
        lock.release()
    return ""


def prune_directory(directory: SpoolDirectory) -> bool:
    """Deletes a spool directory without lanes, and returns whether it did so. Keeps a directory that contains anything
    else.

    Raises:
        SpoolError: The directory cannot be deleted.
    """
    path = directory.path
    try:
        with directory.births():
            names = directory.files.list(path)
            left = [name for name in names if name.startswith(_DOOMED)]
            if set(names) - set(left) - _OURS:
                return False
            for name in left:
                shutil.rmtree(path / name)
            # Delete FORMAT last: this process may die before the end, and a directory with other files, but without
            # FORMAT, looks as if FORMAT had been removed by mistake.
            for name in sorted(set(names) & _OURS, key=FORMAT_NAME.__eq__):
                (path / name).unlink()
            path.rmdir()
    except OSError as error:
        raise SpoolError(f"{path} cannot be deleted: {error}") from error
    return True

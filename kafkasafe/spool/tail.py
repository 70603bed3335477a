"""Prepares a lane's files for use: cuts off a torn tail, and makes the rest of the log durable."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from kafkasafe.logs import EventLog
from kafkasafe.spool.files import Files, opened, write_all
from kafkasafe.spool.log_content import Log

log = EventLog("spool")

_DRAFT: Final = re.compile(r"\d{20}\.new")
"""Pattern for the names of incomplete copies of segments."""


def cut_tail(files: Files, lane: Path, found: Log) -> None:
    """Remove a torn tail. After a crash in between, the next recovery still judges the log in the same way."""
    doomed = list(found.doomed)
    last = found.segments[-1] if found.segments else None
    if last is not None and last.size_bytes == 0 and last.first_position == found.next_position:
        doomed.insert(0, found.segments.pop().path)  # the next segment will have the same name
    if found.segments:
        last = found.segments[-1]
        with opened(files, last.path, write=True) as handle:
            # Truncate before deleting later segments: a reader ignores abandoned bytes after the end of this segment
            # only while a later segment exists. Truncate even if nothing is torn, to free the space that a dead owner
            # had reserved.
            cut = files.size(handle) - last.size_bytes
            files.truncate(handle, last.size_bytes)
            if cut:
                log.info(
                    "%s: %d bytes of a torn tail were cut off %s",
                    lane,
                    cut,
                    last.path.name,
                    lane=lane.name,
                    path=str(last.path),
                    event="torn_tail_cut",
                )
            # 1. The sync of a spool group fails. The owner cuts the group off, begins a new segment, and dies.
            # 2. The next owner finds the file already cut, deletes the new segment, and relies on the content of the
            # cut file.
            # 3. Power fails. Without this sync, the cut may not be durable, and the spool group is in the file again.
            files.sync_data(handle)
    for path in reversed(doomed):
        files.unlink(path)
        files.sync_directory(lane)


def remove_drafts(files: Files, lane: Path) -> None:
    """Delete incomplete copies of segments. An owner that crashes while it restores a segment leaves such a copy."""
    for name in files.list(lane):
        if _DRAFT.fullmatch(name):
            files.unlink(lane / name)


def make_durable(files: Files, lane: Path, found: Log) -> None:
    """Durably rewrite the content that recovery has read, because this content may be only in the page cache.

    An fsync alone is not enough: if an fsync of a dead owner failed, the kernel regards the pages as clean, so a later
    successful fsync proves nothing.
    """
    for segment in found.segments:
        if segment.proven_bytes < segment.size_bytes:
            with opened(files, segment.path, write=True) as handle:
                rest = files.read(handle, segment.proven_bytes, segment.size_bytes - segment.proven_bytes)
                write_all(files, handle, [rest], segment.proven_bytes)
                files.sync_data(handle)
    files.sync_directory(lane)

"""Which files a lane's `rejected/` should hold: for each of them a note beside it, an empty file.

A file of `rejected/` that is deleted by hand, or by a cleaner of `*.log`, leaves its note. A resend removes both.
`kafkasafe spool discard` marks the note, which then says what was given up on purpose.

1. The file is durable in `rejected/`; then its note is made. A crash between the two: the lane's next owner makes it.
2. A resend removes the note, then the file, then the note once more: an owner that opens the lane between the first two
   makes the note again. A crash before the end: the mark of the resend is still in a log, and the next owner of that
   lane does all of it again.
3. A discard marks the note, then removes the file. A crash between the two: the file counts as rejected until the
   discard is repeated.

A note is a courtesy: records that are kept without one are safe, and their deletion by hand goes unnoticed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe._io.files import Files

__all__ = ["FOLDER", "Notes", "forget", "mark_discarded", "note", "read_notes"]

FOLDER: Final = "rejected-notes"
_NAME: Final = re.compile(r"(\d{20}\.log)-(\d+)(\.discarded)?")


@dataclass(frozen=True, slots=True)
class Notes:
    """All notes of a lane.

    Attributes:
        kept: Records by name of the file that should be in `rejected/`.
        discarded: Records by name of the file that was discarded.
    """

    kept: Mapping[str, int]
    discarded: Mapping[str, int]


def read_notes(files: Files, lane: Path) -> Notes:
    """The notes of a lane.

    Raises:
        OSError: They cannot be listed.
    """
    kept: dict[str, int] = {}
    discarded: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in files.list(lane / FOLDER):
            if found := _NAME.fullmatch(name):
                (discarded if found[3] else kept)[found[1]] = int(found[2])
    # A crash while it was marked may leave both names.
    return Notes({name: records for name, records in kept.items() if name not in discarded}, discarded)


def note(files: Files, lane: Path, name: str, records: int) -> None:
    """Make the note of a file that is durable in `rejected/`. Does not raise."""
    with contextlib.suppress(OSError):
        files.make_directory(lane / FOLDER)
        files.close(files.open(lane / FOLDER / f"{name}-{records}", write=True, create=True))
        files.sync_directory(lane / FOLDER)


def forget(files: Files, lane: Path, name: str) -> None:
    """Remove the notes of a file; durable on return.

    Raises:
        OSError: One may be there still.
    """
    try:
        names = [each for each in files.list(lane / FOLDER) if each.startswith(f"{name}-")]
    except FileNotFoundError:
        return
    for each in names:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(lane / FOLDER / each)
    # Also where none is there: the process that removed it may have died before that was durable.
    files.sync_directory(lane / FOLDER)


def mark_discarded(files: Files, lane: Path, name: str, records: int) -> None:
    """Say that a file of `rejected/` is given up on purpose; durable on return.

    Raises:
        OSError: It may not be said.
    """
    files.make_directory(lane / FOLDER)
    for each in files.list(lane / FOLDER):
        if each.startswith(f"{name}-") and not each.endswith(".discarded"):
            with contextlib.suppress(FileNotFoundError):
                files.rename(lane / FOLDER / each, lane / FOLDER / f"{each}.discarded")
    if name not in read_notes(files, lane).discarded:
        # Of an earlier version, or the note could not be made.
        handle = files.open(lane / FOLDER / f"{name}-{records}.discarded", write=True, create=True)
        files.close(handle)
    files.sync_directory(lane / FOLDER)

"""The notes about the files that a lane's `rejected/` should contain. Each note is an empty file in `rejected-notes/`.

If a user, or a program that deletes `*.log`, deletes a file of `rejected/`, the file's note remains. A resend removes
the file and the note. `kafkasafe spool discard` marks the note, to show that the records were discarded on purpose.

1. The owner makes the note when the file is durable in `rejected/`. After a crash in between, the lane's next owner
   makes the note.
2. A resend removes the note, then the file, and then the note again. The last step is necessary because an owner that
   opens the lane between the first two steps finds a file without a note, and makes a new note. A crash may interrupt a
   resend. The lane that got the records then contains the mark of the resend, and the next owner of this lane repeats
   the removal.
3. A discard marks the note, then removes the file. After a crash in between, the file counts as rejected until the
   discard is repeated.

Notes are optional: without a note the records are safe, but kafkasafe does not notice if a user deletes the file.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe.spool.files import Files

FOLDER: Final = "rejected-notes"
_NAME: Final = re.compile(r"(\d{20}\.log)-(\d+)(\.discarded)?")


@dataclass(frozen=True, slots=True)
class Notes:
    """All notes of a lane.

    Attributes:
        kept: Maps the name of each file that should be in `rejected/` to the number of its records.
        discarded: Maps the name of each discarded file to the number of its records.
    """

    kept: Mapping[str, int]
    discarded: Mapping[str, int]


def read_notes(files: Files, lane: Path) -> Notes:
    """Reads the notes of a lane.

    Raises:
        OSError: The notes cannot be listed.
    """
    kept: dict[str, int] = {}
    discarded: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in files.list(lane / FOLDER):
            if found := _NAME.fullmatch(name):
                (discarded if found[3] else kept)[found[1]] = int(found[2])
    # A crash during the renaming of a note may leave the note under both names.
    return Notes({name: records for name, records in kept.items() if name not in discarded}, discarded)


def note(files: Files, lane: Path, name: str, records: int) -> None:
    """Makes the note of a file that is already durable in `rejected/`. Never raises."""
    with contextlib.suppress(OSError):
        files.make_directory(lane / FOLDER)
        files.close(files.open(lane / FOLDER / f"{name}-{records}", write=True, create=True))
        files.sync_directory(lane / FOLDER)


def forget(files: Files, lane: Path, name: str) -> None:
    """Removes the notes of a file, durably.

    Raises:
        OSError: A note may still exist.
    """
    try:
        names = [each for each in files.list(lane / FOLDER) if each.startswith(f"{name}-")]
    except FileNotFoundError:
        return
    for each in names:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(lane / FOLDER / each)
    # Sync even if the note did not exist: the process that removed the note may have died before the removal was
    # durable.
    files.sync_directory(lane / FOLDER)


def mark_discarded(files: Files, lane: Path, name: str, records: int) -> None:
    """Renames the note of a file in `rejected/`, to show that the file's records were discarded on purpose. Durable on
    return.

    Raises:
        OSError: The note may be missing.
    """
    files.make_directory(lane / FOLDER)
    for each in files.list(lane / FOLDER):
        if each.startswith(f"{name}-") and not each.endswith(".discarded"):
            with contextlib.suppress(FileNotFoundError):
                files.rename(lane / FOLDER / each, lane / FOLDER / f"{each}.discarded")
    if name not in read_notes(files, lane).discarded:
        # The file has no note: an earlier version wrote the file, or the note could not be made.
        files.close(files.open(lane / FOLDER / f"{name}-{records}.discarded", write=True, create=True))
    files.sync_directory(lane / FOLDER)

"""The directory `rejected/` of a lane: batches that the cluster rejected, kept with the reason until they are resent.

A damaged file is reported, and does not prevent the reading of the other files.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafkasafe import marks as m
from kafkasafe.journal import Journal
from kafkasafe.record import batch as codec
from kafkasafe.spool import rejected_format as pure
from kafkasafe.spool.files import Files, read_file, write_all
from kafkasafe.spool.rejected_notes import forget, note, read_notes

_FOLDER: Final = "rejected"
_NAME: Final = re.compile(r"\d{20}\.log")
_DRAFT: Final = re.compile(r"\d{20}\.new")
_STEP: Final = 1 << 40
"""Maximum random step between file numbers, in ns (18 minutes). A file's number is the time in ns or, if the clock was
set back, the highest earlier number plus a random step.
"""


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of `rejected/`.

    Attributes:
        content: The file's content; None if the file cannot be read.
        entries: The entries that count as rejected.
        error: Why the file cannot be read; empty if the file can be read.
    """

    path: Path
    size_bytes: int = 0
    content: pure.RejectedContent | None = None
    entries: tuple[pure.Entry, ...] = ()
    error: str = ""

    def is_of(self, lane_id: bytes | None) -> bool:
        """Whether the file's positions belong to the lane with this id, and not to an earlier lane at the same path."""
        return self.content is not None and self.content.lane_id in {b"", lane_id}

    @property
    def records(self) -> int:
        """Number of records that count as rejected."""
        return sum(entry.header.count for entry in self.entries)

    def address(self, journal: Journal) -> tuple[str, int]:
        """Topic and partition of the file's records; topic "?" if the topic is not known any more."""
        if self.content is not None and self.content.topic:
            return self.content.topic, self.content.partition
        if self.content is not None and self.content.number in journal.views.destinations:
            return journal.views.address(self.content.number)
        return "?", -1

    @property
    def void(self) -> bool:
        """Whether the file can be read, but no entry counts as rejected, because all of its batches are unfinished in
        the log.
        """
        return self.content is not None and not self.entries


@dataclass(frozen=True, slots=True)
class RejectedRecords:
    """The records of one partition that were rejected for the same reason.

    Attributes:
        partition: Partition; -1 if it was never chosen.
        code: Kafka's error code; `OPERATOR` if an operator set the batch aside; -1 if unknown.
        reason: Human-readable text.
    """

    topic: str
    partition: int
    code: int
    reason: str
    batches: int
    records: int


def summed_up(kept: Sequence[KeptFile], journal: Journal) -> tuple[RejectedRecords, ...]:
    """Sums up files by partition and reason, in the order of rejection."""
    counts: dict[tuple[str, int, int, str], list[int]] = {}
    for file in kept:
        for entry in file.entries:
            count = counts.setdefault((*file.address(journal), entry.code, entry.reason), [0, 0])
            count[0] += 1
            count[1] += entry.header.count
    return tuple(RejectedRecords(*what, *count) for what, count in counts.items())


class JournalWaits:
    """The unfinished batches of a lane. Packed batches may be very many, so `get` looks up one batch at a time."""

    __slots__ = ("_unpacked", "_views")

    def __init__(self, journal: Journal) -> None:
        self._views = journal.views
        self._unpacked = {
            batch.position: (batch.count, batch.size_bytes, batch.max_timestamp)
            for _, _, batch in journal.views.batches()
            if batch.position >= 0
        }

    def get(self, position: int, /) -> tuple[int, int, int] | None:
        """See `rejected_format.Waits`."""
        found = self._unpacked.get(position)
        if found is not None:
            return found
        row = self._views.packed_at(position)
        return None if row is None else (row.count, row.size_bytes, row.max_timestamp)


def waits_of(journal: Journal) -> pure.Waits:
    """The unfinished batches of a lane. The result is valid only until the journal changes."""
    return JournalWaits(journal)


def read_rejected(
    files: Files,
    lane: Path,
    *,
    lane_id: bytes | None,
    waits: pure.Waits,
    resent: Collection[m.Resent] = (),
) -> list[KeptFile]:
    """Returns the files in a lane's `rejected/` that still hold rejected batches or that cannot be read, in the order
    of rejection.

    Args:
        files: The disk.
        lane: The lane's directory.
        lane_id: Id of the lane; None if unknown.
        waits: The unfinished batches of the lane's log, see `waits_of`.
        resent: Marks that name resent files. The result lacks these files, because their records are in a lane's log
            again.
    """
    folder = lane / _FOLDER
    try:
        names = rejected_names(files, lane)
    except OSError as error:
        return [KeptFile(folder, error=_why(error))]
    gone = {mark.file for mark in resent if mark.lane == lane.name}
    found = []
    for name in names:
        if name in gone:
            continue
        with contextlib.suppress(FileNotFoundError):  # it was resent meanwhile
            kept = _read(files, folder / name, lane_id, waits)
            if not kept.void:
                found.append(kept)
    return found


def _read(files: Files, path: Path, lane_id: bytes | None, waits: pure.Waits) -> KeptFile:
    """Reads one file.

    Raises:
        FileNotFoundError: The file does not exist any more.
    """
    size = 0
    try:
        raw = read_file(files, path)
        size = len(raw)
        content = pure.decode(raw, int(path.name[:20]))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        return KeptFile(path, size, error=_why(error))
    return KeptFile(path, size, content, pure.still_rejected(content, lane_id, waits))


def rejected_names(files: Files, lane: Path) -> list[str]:
    """Names of the files in a lane's `rejected/`, in the order of rejection; empty if the directory does not exist.

    Raises:
        OSError: The directory cannot be listed.
    """
    try:
        return sorted(name for name in files.list(lane / _FOLDER) if _NAME.fullmatch(name))
    except FileNotFoundError:
        return []


def data_of(files: Files, path: Path, position: int) -> bytearray:
    """The bytes of one batch as they are in the file. The batch's header contains its spool position and destination
    number.

    Raises:
        OSError: The file cannot be read.
        ValueError: The batch is damaged.
    """
    raw = read_file(files, path)
    for entry in pure.decode(raw, int(path.name[:20])).entries:
        if entry.position == position:
            return bytearray(raw[entry.at : entry.at + entry.header.size_bytes])
    raise ValueError(f"no batch of position {position} is in it")


def retire(files: Files, directory: Path, mark: m.Resent) -> None:
    """Durably deletes a file whose records were resent.

    Args:
        files: The disk.
        directory: The spool directory.
        mark: The mark that names the file. It is already durable in the lane to which the records were moved.

    Raises:
        OSError: The file may still exist.
    """
    lane = directory / mark.lane
    path = lane / _FOLDER / mark.file
    forget(files, lane, mark.file)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)
    # Sync even if the file does not exist: the process that deleted the file may have died before the deletion was
    # durable.
    with contextlib.suppress(FileNotFoundError):
        files.sync_directory(path.parent)
    forget(files, lane, mark.file)


@dataclass(slots=True)
class RejectedStore:
    """A lane's `rejected/`, for the lane's owner. Not thread-safe.

    Attributes:
        lane: The lane's directory.
    """

    files: Files
    lane: Path
    lane_id: bytes
    _known: dict[str, tuple[int, int]] = field(default_factory=dict)
    _number: int = 0
    """Number of the file that is being written, kept for retries until the file is written."""
    _used: int = 0
    """The highest number that a file had. A new file must not use this number, because a log entry (mark) may say that
    the file with this number was resent.
    """
    _stale: Path | None = None
    """A file that a failed `keep` may have left under a valid name."""
    _undeleted: list[str] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(size for _, size in list(self._known.values()))

    @property
    def records(self) -> int:
        return sum(records for records, _ in list(self._known.values()))

    def open(self, waits: pure.Waits, resent: Collection[m.Resent] = ()) -> list[str]:
        """Reads the directory. Deletes drafts that a crash left, and files in which no entry counts as rejected.

        Returns:
            A message for each file that cannot be read or deleted.

        Raises:
            OSError: The directory cannot be listed.
        """
        folder = self.lane / _FOLDER
        try:
            names = sorted(self.files.list(folder))
        except FileNotFoundError:
            return []
        gone = {mark.file for mark in resent if mark.lane == self.lane.name}
        self._used = max((int(name[:20]) for name in (*names, *gone) if _NAME.fullmatch(name)), default=0)
        troubles = []
        void: list[str] = []
        for name in names:
            if _DRAFT.fullmatch(name):
                try:
                    self.files.unlink(folder / name)
                except OSError as error:
                    troubles.append(f"{folder / name}: an incomplete file cannot be deleted: {error}")
            elif _NAME.fullmatch(name) and name not in gone:
                try:
                    kept = _read(self.files, folder / name, self.lane_id, waits)
                except FileNotFoundError:
                    continue
                if kept.void:
                    void.append(name)
                    continue
                self._known[name] = (kept.records, kept.size_bytes)
                if kept.error:
                    troubles.append(f"{kept.path}: {kept.error}")
        try:
            for name in void:
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(folder / name)
                forget(self.files, self.lane, name)
            if void:
                self.files.sync_directory(folder)
        except OSError as error:
            self._undeleted += void
            troubles.append(f"{folder}: what counts for nothing cannot be deleted: {error}")
        self._take_notes()
        return troubles

    def _take_notes(self) -> None:
        """Makes notes for files without a note, which a crash or an earlier version left."""
        with contextlib.suppress(OSError):
            notes = read_notes(self.files, self.lane)
            for name in self._known.keys() - notes.kept.keys() - notes.discarded.keys():
                note(self.files, self.lane, name, self._known[name][0])
                if name not in self.files.list(self.lane / _FOLDER):
                    forget(self.files, self.lane, name)  # it was resent meanwhile

    def keep(
        self, batches: Sequence[pure.Refused], destination: m.Destination, *, cluster_id: str, now_ms: int
    ) -> Path:
        """Writes rejected batches of one destination into a new file, which is durable on return.

        Raises:
            OSError: The batches are not kept yet. Call `keep` again.
        """
        folder = self.lane / _FOLDER
        self.files.make_directory(folder)
        if not self._number:
            newest = max((int(name[:20]) for name in rejected_names(self.files, self.lane)), default=0)
            number, least = time.time_ns(), max(newest, self._used) + 1
            if number < least:
                # The clock was set back. Files that were resent and deleted may have had higher numbers. A random step
                # makes it unlikely that the new file gets one of these numbers.
                number = least + secrets.randbelow(_STEP)
            self._number = self._used = number
        path = folder / f"{self._number:020d}.log"
        draft = path.with_suffix(".new")
        pieces = pure.encode(batches, destination, lane_id=self.lane_id, cluster_id=cluster_id, now_ms=now_ms)
        try:
            with contextlib.suppress(FileNotFoundError):
                self.files.unlink(draft)
            handle = self.files.create(draft)
            try:
                write_all(self.files, handle, pieces, 0)
                self.files.sync_data(handle)
            finally:
                self.files.close(handle)
            self._stale = path
            self.files.rename(draft, path)
            self.files.sync_directory(folder)
        except OSError:
            with contextlib.suppress(OSError):
                self.files.unlink(draft)
            self.tidy()
            raise
        self._stale = None
        self._number = 0
        records = sum(codec.read_header(batch.data).count for batch in batches)
        self._known[path.name] = (records, sum(map(len, pieces)))
        note(self.files, self.lane, path.name, records)
        return path

    def stands_at(self, lane: Path) -> None:
        self.lane = lane
        if self._stale is not None:
            self._stale = lane / _FOLDER / self._stale.name

    def tidy(self) -> None:
        """Deletes the file that a failed `keep` left. The batches in it do not count as rejected, and may still be
        delivered. If the deletion fails, the next call tries again.
        """
        if self._stale is not None:
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileNotFoundError):
                    self.files.unlink(self._stale)
                self.files.sync_directory(self._stale.parent)
                self._stale = None

    def undeleted(self) -> list[str]:
        """Returns the names of files that could not be deleted, and forgets the names. The batches in these files do
        not count as rejected, so the caller has to write the name of each file into the lane's log (as a mark).
        """
        names, self._undeleted = self._undeleted, []
        if self._stale is not None:
            names.append(self._stale.name)
            self._stale = None
            self._number = 0
        return names

    def refresh(self) -> None:
        """Forgets files that were resent, or deleted by hand."""
        self.tidy()
        if not self._known:
            return
        with contextlib.suppress(OSError):
            for name in self._known.keys() - rejected_names(self.files, self.lane):
                del self._known[name]


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

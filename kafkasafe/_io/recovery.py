"""Reading a lane back: what is in its segments, what a crash tore, what is damaged.

Nothing is changed here. `scan` reads all segments and says what they hold and where a torn tail would be cut; the
spool carries that out. The rules are those of `docs/spool-format.md`, section Recovery.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from kafkasafe._core import batch as codec
from kafkasafe._core import marks as m
from kafkasafe._core.batch import Compression
from kafkasafe._core.identity import BatchId
from kafkasafe._core.journal import Journal
from kafkasafe._io.files import Files, read_file
from kafkasafe.errors import SpoolFormatError

__all__ = [
    "BatchEntry",
    "Damage",
    "Entry",
    "Log",
    "LostEntry",
    "MarksEntry",
    "Stored",
    "StoredSegment",
    "replay",
    "scan",
    "segment_name",
]

_SEGMENT: Final = re.compile(r"\d{20}\.log")

_GROUP_KEY: Final = b"\x00\x00\x00\x08\x00\x00\x4b\x00"
"""How every GROUP record begins behind its length: attributes, two deltas, length of the key, the key."""
_LENGTH_BYTES: Final = range(1, 6)  # of a varint
_ADDRESS_BYTES: Final = 21  # position, size, destination, magic and CRC
_SECTOR_BYTES: Final = 512
_ZEROS: Final = 4  # so many at the end of a sector are taken for bytes that were not written
# Zeros that a batch ends with by its nature. Plain: no headers of the last record; lz4: the frame's end.
_LAST_ZEROS: Final[dict[int, int]] = {Compression.NONE: 1, Compression.LZ4: 5}


@dataclass(frozen=True, slots=True)
class MarksEntry:
    """The marks of one group, at the position of its control batch."""

    position: int
    marks: Sequence[m.Mark]


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """A data batch, whole and proven."""

    position: int
    destination: int
    header: codec.BatchHeader
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LostEntry:
    """What was here is damaged.

    Attributes:
        position: Where it began.
        destination: Of the damaged data batch; 0 when a whole group, with marks nobody knows, is gone.
    """

    position: int
    destination: int


Entry: TypeAlias = MarksEntry | BatchEntry | LostEntry


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a data batch is: byte offset in its segment, size, and what proves it."""

    at: int
    size_bytes: int
    crc: int
    destination: int


@dataclass(slots=True)
class StoredSegment:
    """One segment file.

    Attributes:
        path: The file.
        first_position: Of its first record, which is also its name.
        size_bytes: Bytes that count; what stands behind them was abandoned.
        batches: Its data batches, by position.
        proven_bytes: In front of this, a later group says that all of it was durable.
        written_ms: When its last group was written, ms since the epoch; 0 when that is not known.
    """

    path: Path
    first_position: int
    size_bytes: int = 0
    batches: dict[int, Stored] = field(default_factory=dict)
    proven_bytes: int = 0
    written_ms: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """A byte range that is not what was written.

    Attributes:
        path: The segment.
        start: First byte.
        end: Behind the last byte; equal to `start` where bytes are missing.
        position: Position of what was there.
        destination: Of the data batch, 0 for a group.
    """

    path: Path
    start: int
    end: int
    position: int
    destination: int

    def __str__(self) -> str:
        what = f"a batch of destination {self.destination}" if self.destination else "a group"
        if self.start == self.end:
            return f"{self.path.name}: ends at byte {self.end}, where {what} at position {self.position} should follow"
        return f"{self.path.name}: bytes {self.start} to {self.end}, {what} at position {self.position}"


@dataclass(frozen=True, slots=True)
class Log:
    """All that is in a lane.

    Attributes:
        segments: In order, without those behind a torn tail.
        entries: What they hold, in log order.
        damage: Real damage, in log order; a torn tail is none.
        torn: (segment, byte offset) where a torn tail begins, None without one.
        doomed: Segments behind a torn tail.
        next_position: Behind the last record.
        synced_position: Behind the last record that is proven to have been durable.
        lane_id: None in a lane without a group.
        groups: Number of intact groups.
        closed: The last group was written by an orderly close.
        manifest: By (segment, byte offset), what a group says of a data batch that is damaged.
    """

    segments: list[StoredSegment]
    entries: list[Entry]
    damage: list[Damage]
    torn: tuple[Path, int] | None
    doomed: list[Path]
    next_position: int
    synced_position: int
    lane_id: bytes | None
    groups: int
    closed: bool
    manifest: dict[tuple[Path, int], m.ManifestEntry] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Group:
    """An intact control batch, with the data batches that follow it: None where one is damaged.

    `torn`: where a crash may have left it so.
    """

    segment: int
    at: int
    group: m.Group
    marks: list[m.Mark]
    batches: list[tuple[int, m.ManifestEntry, codec.BatchHeader | None]]
    torn: list[tuple[int, m.ManifestEntry]]
    end: int
    end_position: int


@dataclass(frozen=True, slots=True)
class _Bad:
    """Bytes between groups that are none; `torn`: a crash may have left them so."""

    segment: int
    at: int
    end: int
    position: int
    torn: bool


def replay(entries: Iterable[Entry], journal: Journal) -> None:
    """Tell a journal what was found. The caller ends with `journal.recovered()`."""
    for entry in entries:
        match entry:
            case MarksEntry(position, marks):
                journal.recover_marks(position, marks)
            case BatchEntry(position, destination, header, size_bytes):
                identity = None
                if header.producer_id >= 0:
                    identity = BatchId(
                        header.producer_id, header.producer_epoch, header.base_sequence, header.count
                    )
                journal.recover_batch(
                    position,
                    destination,
                    count=header.count,
                    size_bytes=size_bytes,
                    max_timestamp=header.max_timestamp,
                    identity=identity,
                )
            case LostEntry(position, destination):
                journal.recover_lost(position, destination)


def segment_name(first_position: int) -> str:
    """The file name of the segment that begins at a position."""
    return f"{first_position:020d}.log"


def scan(files: Files, lane: Path) -> Log:
    """Read a lane.

    Raises:
        SpoolFormatError: It was written by a newer kafkasafe.
        OSError: A file cannot be read.
    """
    names = sorted(name for name in files.list(lane) if _SEGMENT.fullmatch(name))
    segments = [StoredSegment(lane / name, int(name[:20])) for name in names]
    reader = _Reader()
    found: list[_Group | _Bad] = []
    for index, segment in enumerate(segments):
        limit = segments[index + 1].first_position if index + 1 < len(segments) else None
        found += reader.segment(index, segment, read_file(files, segment.path), limit)
    first_position = segments[0].first_position if segments else 0
    synced = max(
        (item.group.synced_position for item in found if isinstance(item, _Group)), default=first_position
    )
    return _judge(segments, found, reader.lane_id, max(synced, first_position))


class _Reader:
    """Walks segments, group by group."""

    def __init__(self) -> None:
        self.lane_id: bytes | None = None

    def segment(
        self, index: int, segment: StoredSegment, content: bytes, limit: int | None
    ) -> Iterator[_Group | _Bad]:
        at, position, exact, more = 0, segment.first_position, True, False
        while at < len(content) and (limit is None or position < limit):
            read = self._group_at(content, at)
            if read is None or not self._follows(read[0], position, exact=exact):
                bad_at = at
                at, read = self._resync(content, at + 1, position)
                if read is not None and limit is not None and read[0].position >= limit:
                    at, read = len(content), None
                yield _Bad(index, bad_at, at, position, _group_may_be_torn(content, bad_at, at))
                exact = more = False
                if read is None:
                    break
            group, marks, size = read
            if limit is not None and group.position >= limit:
                break  # abandoned: the next segment begins there
            item = self._batches(index, content, at, group, marks, size, limit)
            segment.written_ms = max(segment.written_ms, codec.read_header(content, at).max_timestamp)
            yield item
            at, position = item.end, item.end_position
            exact = not item.batches or item.batches[-1][2] is not None
            more = not exact and _may_miss_more(content, item.batches[-1], limit)
        segment.size_bytes = at
        if limit is not None and position < limit and (exact or more):
            yield _Bad(index, at, at, position, torn=True)

    @staticmethod
    def _follows(group: m.Group, position: int, *, exact: bool) -> bool:
        return group.position == position if exact else group.position >= position

    def _batches(
        self,
        index: int,
        content: bytes,
        at: int,
        group: m.Group,
        marks: list[m.Mark],
        size: int,
        limit: int | None,
    ) -> _Group:
        start, at = at, at + size
        position = group.position + 1 + len(marks)
        batches: list[tuple[int, m.ManifestEntry, codec.BatchHeader | None]] = []
        torn: list[tuple[int, m.ManifestEntry]] = []
        for number, entry in enumerate(group.manifest):
            if limit is not None and entry.position >= limit:
                break  # cut off by an earlier recovery; the next segment begins here
            header = _batch_at(content, at, entry)
            position = entry.position + (header.count if header is not None else 1)
            if header is not None and number + 1 < len(group.manifest):
                follows = group.manifest[number + 1].position
                if position != follows:
                    header = None
            batches.append((at, entry, header))
            if header is None and _may_be_torn(content, at, at + entry.size_bytes):
                torn.append((at, entry))
            at = min(at + entry.size_bytes, len(content))
        return _Group(index, start, group, marks, batches, torn, at, position)

    def _group_at(self, content: bytes, at: int) -> tuple[m.Group, list[m.Mark], int] | None:
        try:
            header = codec.read_header(content, at)
            if not header.is_control:
                return None
            group, marks = m.decode_group(memoryview(content)[at : at + header.size_bytes])
        except m.UnknownFormatError as error:
            raise SpoolFormatError(f"{error}. Nothing was changed") from error
        except (m.MarkError, codec.CorruptBatchError):
            return None
        if self.lane_id is None:
            self.lane_id = group.lane_id
        return (group, marks, header.size_bytes) if group.lane_id == self.lane_id else None

    def _resync(
        self, content: bytes, at: int, position: int
    ) -> tuple[int, tuple[m.Group, list[m.Mark], int] | None]:
        """The next intact group from a byte on, and where it begins: (end of the segment, None) without one."""
        earliest = at
        found = content.find(_GROUP_KEY, at)
        while found >= 0:
            for length in _LENGTH_BYTES:
                start = found - codec.HEADER_BYTES - length
                if start < earliest:
                    break
                read = self._group_at(content, start)
                if read is not None and read[0].position >= position:
                    return start, read
            found = content.find(_GROUP_KEY, found + 1)
        return len(content), None


def _may_miss_more(
    content: bytes, last: tuple[int, m.ManifestEntry, codec.BatchHeader | None], limit: int | None
) -> bool:
    """The file ends inside the group's last batch, and that does not say that the segment ends with it.

    Groups with marks may have followed. Whoever reads the log must know that, and not only of the batch.
    """
    at, entry, _ = last
    if at + entry.size_bytes <= len(content):
        return False
    try:
        return entry.position + codec.read_header(content, at).count != limit
    except codec.CorruptBatchError:
        return True


def _group_may_be_torn(content: bytes, at: int, end: int) -> bool:
    """Whether a crash may have left these bytes where a group was being written.

    Args:
        content: Of the segment.
        at: Where the group should begin.
        end: Where the next intact group begins, else the end of the segment.
    """
    head = content[at : min(at + codec.HEADER_BYTES, end)]
    # A crash leaves a byte as it was meant, or 0. Of these it is known how they were meant.
    for start, meant in ((12, b"\x00\x00\x00\x00\x02"), (21, b"\x00\x20")):
        if any(byte not in {0, wanted} for byte, wanted in zip(head[start:], meant, strict=False)):
            return False
    if not any(head[:_ADDRESS_BYTES]):
        return True
    if len(head) < codec.HEADER_BYTES:
        return end == len(content)
    size = 12 + int.from_bytes(head[8:12], "big", signed=True)
    return _may_be_torn(content, at, end if size < codec.HEADER_BYTES else at + size)


def _may_be_torn(content: bytes, start: int, end: int) -> bool:
    """Whether a crash may have left this of a batch; if not, it was whole once, and was changed.

    Disks write sectors: one that is missing is zeros, from its beginning or, where it was written to while it was on
    its way, from somewhere in it. What a file system did not come to is missing at the end of the file. etcd's
    write-ahead log judges by its sectors too.
    """
    if end > len(content):
        return True
    first = start - start % _SECTOR_BYTES
    for boundary in range(first + _SECTOR_BYTES, end, _SECTOR_BYTES):
        if not any(content[max(start, boundary - _ZEROS) : boundary]):
            return True
    part = content[start:end]
    compression = part[22] & 7 if len(part) > 22 else Compression.NONE
    return len(part) - len(part.rstrip(b"\x00")) > _LAST_ZEROS.get(compression, 0)


def _batch_at(content: bytes, at: int, entry: m.ManifestEntry) -> codec.BatchHeader | None:
    """The data batch that a manifest promises, None unless every byte of it is proven."""
    body = memoryview(content)[at : at + entry.size_bytes]
    if len(body) < entry.size_bytes:
        return None
    try:
        header = codec.verify(body)
    except codec.CorruptBatchError:
        return None
    promised = (entry.position, entry.destination, entry.size_bytes, entry.crc)
    found = (header.base_offset, header.partition_leader_epoch, header.size_bytes, header.crc)
    return header if found == promised and header.count > 0 and not header.is_control else None


def _judge(
    segments: list[StoredSegment], found: list[_Group | _Bad], lane_id: bytes | None, synced: int
) -> Log:
    """Tell a torn tail from damage, and keep what is in front of it."""
    entries: list[Entry] = []
    damage: list[Damage] = []
    declared: set[int] = set()
    manifest: dict[tuple[Path, int], m.ManifestEntry] = {}
    torn: tuple[int, int] | None = None
    next_position = segments[0].first_position if segments else 0
    groups = 0
    closed = False
    for item in found:
        if isinstance(item, _Bad):
            if item.position >= synced and item.torn:
                torn, next_position = (item.segment, item.at), item.position
                break
            damage.append(Damage(segments[item.segment].path, item.at, item.end, item.position, 0))
            entries.append(LostEntry(item.position, 0))
            # Its position is taken, also where nothing follows: the next life has to find it damaged again.
            next_position = item.position + 1
            continue
        cut = next(((at, e) for at, e in item.torn if e.position >= synced), None)
        if cut is not None and item.group.atomic:
            torn, next_position = (item.segment, item.at), item.group.position
            break
        groups += 1
        if item.end_position <= synced:
            segments[item.segment].proven_bytes = item.end
        closed = item.group.closed
        declared.update(mark.number for mark in item.marks if isinstance(mark, m.Destination))
        entries.append(MarksEntry(item.group.position, item.marks))
        segment = segments[item.segment]
        for at, entry, header in item.batches:
            if cut is not None and at >= cut[0]:
                break
            if header is None or entry.destination not in declared:
                end = min(at + entry.size_bytes, item.end)
                damage.append(Damage(segment.path, at, end, entry.position, entry.destination))
                manifest[segment.path, at] = entry
                entries.append(LostEntry(entry.position, entry.destination))
                continue
            segment.batches[entry.position] = Stored(at, entry.size_bytes, entry.crc, entry.destination)
            entries.append(BatchEntry(entry.position, entry.destination, header, entry.size_bytes))
        if cut is not None:
            torn, next_position = (item.segment, cut[0]), cut[1].position
            break
        next_position = item.end_position
    doomed: list[Path] = []
    tail = None
    if torn is not None:
        tail = (segments[torn[0]].path, torn[1])
        segments[torn[0]].size_bytes = torn[1]
        doomed = [segment.path for segment in segments[torn[0] + 1 :]]
        segments = segments[: torn[0] + 1]
    elif segments:
        next_position = max(next_position, segments[-1].first_position)
    return Log(
        segments, entries, damage, tail, doomed, next_position, synced, lane_id, groups, closed, manifest
    )

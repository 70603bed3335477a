"""Reads one segment of a lane, group by group, and decides what damaged its bytes: a crash or something else.

The pattern of damaged bytes shows whether a crash during a write may be the cause, or whether complete bytes were
changed later. `docs/spool-format.md`, section Recovery, has the rules.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafkasafe import marks as m
from kafkasafe.errors import SpoolFormatError
from kafkasafe.record import batch as codec
from kafkasafe.record.batch import Compression
from kafkasafe.spool.extent import LogEndClaim
from kafkasafe.spool.segment import StoredSegment

_GROUP_KEY: Final = b"\x00\x00\x00\x08\x00\x00\x4b\x00"
"""The beginning of every GROUP record, after the length: attributes, two deltas, length of the key, the key."""
_LENGTH_BYTES: Final = range(1, 6)  # of a varint
_ADDRESS: Final = struct.Struct(">qiibI")
_ADDRESS_BYTES: Final = _ADDRESS.size
OVERHEAD_BYTES: Final = 12  # bytes of a batch that its length field does not count
_SECTOR_BYTES: Final = 512
# This many zeros at the end of a sector count as bytes that were not written.
_ZEROS: Final = 4
# A complete batch may itself end with this many zeros, depending on the compression:
# - none: the last byte is the last record's number of headers, which may be 0;
# - lz4: the end mark of the frame consists of zeros;
# - gzip: the last bytes are the size of the content, which may end with zeros;
# - snappy and zstd: content that could not be compressed is stored as it is, and may end with zeros.
_LAST_ZEROS: Final[dict[int, int]] = {Compression.NONE: 1, Compression.LZ4: 5}
_LAST_ZEROS_COMPRESSED: Final = 3

Content: TypeAlias = bytes | bytearray


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """An intact control batch, with its data batches. A damaged data batch has the header None.

    `torn` contains the damaged batches whose damage may come from a crash.
    """

    segment: int
    at: int
    group: m.Group
    marks: list[m.Mark]
    batches: list[tuple[int, m.ManifestEntry, codec.BatchHeader | None]]
    torn: list[tuple[int, m.ManifestEntry]]
    end: int
    end_position: int
    written_ms: int = -1


@dataclass(frozen=True, slots=True)
class Bad:
    """Bytes that are not an intact spool group, although a group should begin there. `torn` says whether a crash may be
    the cause.
    """

    segment: int
    at: int
    end: int
    position: int
    torn: bool
    end_position: int = -1


def address_bytes(entry: m.ManifestEntry) -> bytes:
    """Bytes 0 to 20 of a data batch as they were written. The batch's own CRC does not cover these bytes."""
    return _ADDRESS.pack(entry.position, entry.size_bytes - OVERHEAD_BYTES, entry.destination, 2, entry.crc)


class SegmentReader:
    """Iterates over segments, group by group."""

    def __init__(self, lane_id: bytes | None) -> None:
        self.lane_id = lane_id

    def segment(
        self,
        index: int,
        segment: StoredSegment,
        content: Content,
        limit: int | None,
        end: LogEndClaim | None,
    ) -> Iterator[ReadGroup | Bad]:
        at, position, exact, more = 0, segment.first_position, True, False
        while at < len(content) and (limit is None or position < limit):
            read = self._group_at(content, at)
            if read is None or not self._follows(read[0], position, exact=exact):
                bad_at = at
                at, read = self._resync(content, at + 1, position)
                if read is not None and limit is not None and read[0].position >= limit:
                    at, read = len(content), None
                follows = -1 if read is None else read[0].position
                torn = group_at(content, bad_at) is None and _group_may_be_torn(content, bad_at, at)
                yield Bad(index, bad_at, at, position, torn, follows)
                exact = more = False
                if read is None:
                    break
            group, marks, size = read
            if limit is not None and group.position >= limit:
                break  # abandoned bytes: the next segment begins here
            item = self._batches(index, content, at, group, marks, size, limit)
            segment.note_written(codec.read_header(content, at).max_timestamp)
            yield item
            at, position = item.end, item.end_position
            exact = not item.batches or item.batches[-1][2] is not None
            bound = self._bound(limit, end)
            more = not exact and _may_miss_more(content, item.batches[-1], bound)
        segment.ends_at(at)
        bound = self._bound(limit, end)
        if bound is not None and position < bound and (exact or more):
            yield Bad(index, at, at, position, torn=True, end_position=bound)

    def _bound(self, limit: int | None, end: LogEndClaim | None) -> int | None:
        """The position that the segment must reach: the beginning of the next segment or, for the last segment, the end
        that `extent` claims.
        """
        if limit is not None or end is None:
            return limit
        return end.position if self.lane_id in {None, end.lane_id} else None

    @staticmethod
    def _follows(group: m.Group, position: int, *, exact: bool) -> bool:
        return group.position == position if exact else group.position >= position

    def _batches(
        self,
        index: int,
        content: Content,
        at: int,
        group: m.Group,
        marks: list[m.Mark],
        size: int,
        limit: int | None,
    ) -> ReadGroup:
        start, at = at, at + size
        position = group.position + 1 + len(marks)
        batches: list[tuple[int, m.ManifestEntry, codec.BatchHeader | None]] = []
        torn: list[tuple[int, m.ManifestEntry]] = []
        for number, entry in enumerate(group.manifest):
            if limit is not None and entry.position >= limit:
                break  # an earlier recovery cut off the rest; the next segment begins here
            header = _batch_at(content, at, entry)
            position = entry.position + (header.count if header is not None else 1)
            if header is not None and number + 1 < len(group.manifest):
                follows = group.manifest[number + 1].position
                if position != follows:
                    header = None
            batches.append((at, entry, header))
            if header is None and _batch_may_be_torn(content, at, entry):
                torn.append((at, entry))
            at = min(at + entry.size_bytes, len(content))
        written_ms = codec.read_header(content, start).max_timestamp
        return ReadGroup(index, start, group, marks, batches, torn, at, position, written_ms)

    def _group_at(self, content: Content, at: int) -> tuple[m.Group, list[m.Mark], int] | None:
        read = group_at(content, at)
        if read is not None and self.lane_id is None:
            self.lane_id = read[0].lane_id
        return read if read is not None and read[0].lane_id == self.lane_id else None

    def _resync(
        self, content: Content, at: int, position: int
    ) -> tuple[int, tuple[m.Group, list[m.Mark], int] | None]:
        """Finds the first intact spool group at or after the byte `at` with a position of at least `position`. Returns
        (byte offset, group), or (end of the segment, None) if no such group exists.
        """
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


def group_at(content: Content, at: int) -> tuple[m.Group, list[m.Mark], int] | None:
    """Decodes the control batch at the byte `at`, of this or another lane. Returns the spool group, the marks and the
    size; None if the control batch is not intact.
    """
    try:
        header = codec.read_header(content, at)
        if not header.is_control:
            return None
        group, marks = m.decode_group(memoryview(content)[at : at + header.size_bytes])
    except m.UnknownFormatError as error:
        raise SpoolFormatError(f"{error}. Nothing was changed") from error
    except (m.MarkError, codec.CorruptBatchError):
        return None
    return group, marks, header.size_bytes


def _may_miss_more(
    content: Content, last: tuple[int, m.ManifestEntry, codec.BatchHeader | None], limit: int | None
) -> bool:
    """Whether spool groups after this one may also be missing, because the file ends inside this group's last batch.

    The missing groups may have contained marks, so the reader must not assume that only one batch is missing.
    """
    at, entry, _ = last
    if at + entry.size_bytes <= len(content):
        return False
    try:
        return entry.position + codec.read_header(content, at).count != limit
    except codec.CorruptBatchError:
        return True


def _group_may_be_torn(content: Content, at: int, end: int) -> bool:
    """Whether these bytes may come from a crash during the writing of a spool group."""
    head = content[at : min(at + codec.HEADER_BYTES, end)]
    # After a crash, each byte has its intended value or 0. Compare only bytes that are the same in all intact control
    # batches.
    for start, meant in ((12, b"\x00\x00\x00\x00\x02"), (21, b"\x00\x20")):
        if any(byte not in {0, wanted} for byte, wanted in zip(head[start:], meant, strict=False)):
            return False
    if not any(head[:_ADDRESS_BYTES]):
        return True
    if len(head) < codec.HEADER_BYTES:
        return end == len(content)
    size = 12 + int.from_bytes(head[8:12], "big", signed=True)
    return _may_be_torn(content, at, end if size < codec.HEADER_BYTES else at + size)


def _may_be_torn(content: Content, start: int, end: int) -> bool:
    """Whether a crash may have left the batch in this state. False means that a complete batch was changed later.

    Disks write whole sectors, so a sector that was never written is all zeros. If a sector was written before the
    process had filled it, only the end of the sector is zeros. Data that the file system had not written yet is missing
    at the end of the file. etcd's write-ahead log has a similar rule: an entry with a sector of zeros counts as torn.
    """
    if end > len(content):
        return True
    first = start - start % _SECTOR_BYTES
    for boundary in range(first + _SECTOR_BYTES, end, _SECTOR_BYTES):
        if not any(content[max(start, boundary - _ZEROS) : boundary]):
            return True
    part = content[start:end]
    compression = part[22] & 7 if len(part) > 22 else Compression.NONE
    zeros = len(part) - len(part.rstrip(b"\x00"))
    last = min(len(part), (end - 1) % _SECTOR_BYTES + 1)  # bytes in the last sector
    return zeros > _LAST_ZEROS.get(compression, _LAST_ZEROS_COMPRESSED) or (zeros >= last and last < _ZEROS)


def _batch_may_be_torn(content: Content, at: int, entry: m.ManifestEntry) -> bool:
    """Whether a crash may have left the data batch in this state. The manifest entry makes the answer more precise,
    because it repeats some of the bytes that were written.
    """
    end = at + entry.size_bytes
    if end <= len(content):
        meant = address_bytes(entry)
        restored = bytearray(meant + content[at + _ADDRESS_BYTES : end])
        try:
            codec.verify(restored)
        except codec.CorruptBatchError:
            pass
        else:
            return _address_may_be_torn(content, meant, at)
    return _may_be_torn(content, at, end)


def _address_may_be_torn(content: Content, meant: bytes, at: int) -> bool:
    """Whether a crash may be the reason that bytes 0 to 20 of a batch (the fields from the base offset to the CRC) are
    damaged, although the rest of the batch is complete. A crash may be the reason if all bytes from the first damaged
    byte to the next sector boundary are zeros, and all later bytes are intact.
    """
    found = content[at : at + len(meant)]
    boundary = _SECTOR_BYTES - at % _SECTOR_BYTES
    if found[boundary:] != meant[boundary:]:
        return False
    kept = next((i for i, (is_, was) in enumerate(zip(found, meant, strict=True)) if is_ != was), len(meant))
    return not any(content[at + kept : at + boundary])


def _batch_at(content: Content, at: int, entry: m.ManifestEntry) -> codec.BatchHeader | None:
    """The header of the data batch that a manifest entry describes; None if the bytes do not match the batch's CRC or
    the manifest entry.
    """
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

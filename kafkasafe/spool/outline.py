"""Reads a segment without the content of its large batches, so that a producer with large batches in its lane starts
almost as fast as a producer with small batches.

Kafka's brokers also trust the segments before their recovery point, and check a batch only when they read it.

When a producer starts, it needs only the headers of the batches. Without the content, the CRC of a batch cannot be
checked, so other data must confirm the header. The manifest of the spool group confirms bytes 0 to 20, and the
positions of the batches confirm the number of records. The batch's id is confirmed if its sequence numbers continue
those of the previous batch with the same destination, producer id and epoch. `OutlineReader` reads the content of a
batch whose id is not confirmed. It also reads the content of copies: if a copy is damaged, recovery uses the original,
which the log may still contain. So skipping the content of a batch does not change how recovery handles other batches.
Before a batch is sent, `Spool.read` checks all of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafkasafe import marks as m
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import Files, opened
from kafkasafe.spool.segment import StoredSegment
from kafkasafe.spool.segment_reader import ReadGroup, address_bytes, group_at

LARGE_BYTES: Final = 65_536
"""`OutlineReader` skips the content of batches of at least this size. For smaller batches, skipping saves hardly any
time.
"""
_NEAR_BYTES: Final = 4096
_FAR_BYTES: Final = 1 << 20
_NO_ID: Final = (-1, -1, -1)
_SEQUENCES: Final = 1 << 31  # a sequence continues with 0 after 2,147,483,647


class OutlineReader:
    """Reads segments that are known to be durable and complete.

    Args:
        lane_id: Id of the lane. Segments of other lanes are not accepted.
    """

    def __init__(self, files: Files, lane_id: bytes) -> None:
        self._files = files
        self._lane_id = lane_id
        self._next: dict[tuple[int, int, int], int] = {}
        """For each (destination, producer id, epoch): the base sequence that the next batch must have, according to the
        batches read so far.
        """

    def read(self, index: int, segment: StoredSegment, limit: int) -> list[ReadGroup] | None:
        """The groups of a segment.

        Args:
            index: Number of the segment.
            segment: The segment. This method sets the segment's size and the time of its last spool group.
            limit: First position of the next segment.

        Returns:
            The groups. None if a byte differs from its expected value: the segment object is then unchanged, and the
            whole segment must be read.

        Raises:
            SpoolFormatError: A newer kafkasafe has written the segment.
            OSError: The file cannot be read.
        """
        with opened(self._files, segment.path) as handle:
            window = _Window(lambda at, size: self._files.read(handle, at, size), self._files.size(handle))
            groups = self._groups(index, segment.first_position, limit, window)
        if groups is None:
            # This reader stopped inside the segment, which another reader will read as a whole. So this reader's
            # expected base sequences may now be wrong.
            self._next.clear()
            return None
        segment.ends_at(groups[-1].end if groups else 0)
        for group in groups:
            segment.note_written(group.written_ms)
        return groups

    def _groups(self, index: int, position: int, limit: int, window: _Window) -> list[ReadGroup] | None:
        groups: list[ReadGroup] = []
        at = 0
        while position < limit:
            group = self._group(index, at, position, window)
            if group is None or group.end > window.size_bytes or group.end_position > limit:
                return None
            groups.append(group)
            at, position = group.end, group.end_position
        return groups

    def _group(self, index: int, at: int, position: int, window: _Window) -> ReadGroup | None:
        head = _header(window, at)
        if head is None:
            return None
        read = group_at(window.get(at, head.size_bytes), 0)
        if read is None:
            return None
        group, marks, size_bytes = read
        if group.lane_id != self._lane_id or group.position != position:
            return None
        batches: list[tuple[int, m.ManifestEntry, codec.BatchHeader | None]] = []
        start, at, position = at, at + size_bytes, position + 1 + len(marks)
        copies = any(isinstance(mark, m.Moved) for mark in marks)
        for entry in group.manifest:
            header = self._batch(at, entry, window, whole=copies)
            if header is None or entry.position != position:
                return None
            batches.append((at, entry, header))
            at, position = at + entry.size_bytes, position + header.count
        return ReadGroup(index, start, group, marks, batches, [], at, position, head.max_timestamp)

    def _batch(
        self, at: int, entry: m.ManifestEntry, window: _Window, *, whole: bool
    ) -> codec.BatchHeader | None:
        header = _header(window, at)
        if header is None or window.get(at, codec.HEADER_BYTES)[:21] != address_bytes(entry):
            return None
        if header.is_control or header.count <= 0 or header.last_offset_delta != header.count - 1:
            return None
        id_ = (header.producer_id, header.producer_epoch, header.base_sequence)
        sequence = (entry.destination, *id_[:2])
        # -1 in all three fields means that the batch has no id; one damaged byte cannot cause this.
        expected = id_ == _NO_ID or self._next.get(sequence) == header.base_sequence
        if whole or entry.size_bytes < LARGE_BYTES or not expected:
            try:
                codec.verify(window.get(at, entry.size_bytes))
            except codec.CorruptBatchError:
                return None
        if id_ != _NO_ID:
            self._next[sequence] = (header.base_sequence + header.count) % _SEQUENCES
        return header


def _header(window: _Window, at: int) -> codec.BatchHeader | None:
    try:
        return codec.read_header(window.get(at, codec.HEADER_BYTES))
    except codec.CorruptBatchError:
        return None


class _Window:
    """A read buffer, small after a seek, and larger with each sequential read.

    A damaged length field may state a size of up to 2 GB, so `_Window` never tries to read beyond the end of the file.

    Attributes:
        size_bytes: Size of the file.
    """

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._read = read
        self._at = 0
        self._content = b""
        self._ahead_bytes = _NEAR_BYTES

    def get(self, at: int, size: int) -> bytes:
        """Returns the `size` bytes that start at the byte offset `at`, or fewer at the end of the file."""
        start = at - self._at
        if not 0 <= start <= len(self._content) - size:
            continues = 0 <= start <= len(self._content)
            self._ahead_bytes = min(2 * self._ahead_bytes, _FAR_BYTES) if continues else _NEAR_BYTES
            self._at, start = at, 0
            left = max(0, self.size_bytes - at)
            self._content = self._read(at, min(max(size, self._ahead_bytes), left))
        return self._content[start : start + size]

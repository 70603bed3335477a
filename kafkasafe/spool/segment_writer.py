"""Writes spool groups to the last segment of a lane. After a failure, cuts off everything that was written since the
last sync.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Final

from kafkasafe import marks as m
from kafkasafe.spool.files import Files, opened, write_all
from kafkasafe.spool.segment_list import SegmentList

_PREALLOCATED_BYTES: Final = 16 * 1024 * 1024
"""The spool reserves disk space for a segment in steps of this size, so that a lane with few records does not occupy
the space of a whole segment.
"""
_NEVER_PREALLOCATED: Final = 1 << 62
_CACHED_BYTES: Final = 256 * 1024
"""The page cache of a segment may grow by this many bytes before `drop_cache` makes a system call to drop it."""


class SegmentWriter:
    """The file of the last segment, while it is being written. Not thread-safe."""

    def __init__(self, files: Files, segments: SegmentList) -> None:
        self._files = files
        self._segments = segments
        self._handle = -1
        self._preallocated = 0
        self._uncached_bytes = 0
        """How many bytes, from the beginning of the last segment, were dropped from the page cache."""
        self._unwritten: list[bytearray] = []
        """Spool groups that were added to the last segment, but are not written yet."""
        self._unwritten_at = 0
        self._continued: tuple[int, int] | None = None
        """First position and handle of the segment that the spool continues after the repair. The spool continues a
        segment only if the write failed because the disk was full.
        """
        self._promised_bytes = 0
        self._promised_records = 0
        self.promise()

    @property
    def is_open(self) -> bool:
        """Whether the last segment can be written to."""
        return self._handle >= 0

    @property
    def has_unwritten(self) -> bool:
        """Whether spool groups were added to the last segment, but are not written yet."""
        return bool(self._unwritten)

    def has_reserved(self, size_bytes: int, segment_bytes: int) -> bool:
        """Whether enough disk space is reserved to append `size_bytes` to the last segment. A segment may have at most
        `segment_bytes`.
        """
        if self._handle < 0 or self._preallocated >= _NEVER_PREALLOCATED:
            return False
        left = min(self._preallocated, segment_bytes) - self._segments[-1].size_bytes
        return left >= size_bytes

    def promise(self) -> None:
        """Note the current end of the log. After a failure, `put_back` cuts off all bytes that are written after this
        call.
        """
        self._promised_bytes = self._segments[-1].size_bytes if self._segments else 0
        self._promised_records = self._segments[-1].records if self._segments else 0

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin(self, position: int) -> None:
        """Begin a segment at `position`. The segment's name is not durable yet."""
        self._handle = self._segments.create(position)
        self._preallocated = 0
        self._uncached_bytes = 0

    def append(
        self,
        control: bytearray,
        batches: Sequence[tuple[int, bytearray]],
        manifest: Sequence[m.ManifestEntry],
        end_position: int,
        written_ms: int,
    ) -> None:
        """Add a group to the last segment. `write_out` writes it to the file."""
        if not self._unwritten:
            self._unwritten_at = self._segments[-1].size_bytes
        self._unwritten.append(control)
        self._unwritten += [data for _, data in batches]
        self._segments.append(len(control), manifest, end_position, written_ms)

    def write_out(self, limit: int) -> None:
        """Write all pending groups at once."""
        if not self._unwritten:
            return
        segment = self._segments[-1]
        if self._files.size(self._handle) != self._unwritten_at:
            # 1. Another process cuts the file (logrotate with copytruncate).
            # 2. A write past the file's new end would fill the gap with zeros, so the size would look right again.
            raise OSError(errno.EIO, "It was cut or written to by somebody else", str(segment.path))
        self._preallocate(segment.size_bytes, limit)
        write_all(self._files, self._handle, list(self._unwritten), self._unwritten_at)
        self._unwritten = []

    def _preallocate(self, end: int, limit: int) -> None:
        if end <= self._preallocated:
            return
        wanted = max(end, min(limit, self._preallocated + _PREALLOCATED_BYTES))
        # If space cannot be reserved, the spool does not try again for this segment.
        self._preallocated = wanted if self._files.preallocate(self._handle, wanted) else _NEVER_PREALLOCATED

    def sync(self) -> None:
        """Sync the last segment, so that everything written to it so far is durable on return."""
        self._files.sync_data(self._handle)

    def drop_cache(self) -> None:
        """Drop the last segment from the system's page cache. The segment must be synced completely.

        Without this call, a system with much free memory keeps gigabytes of delivered records in its page cache. Each
        write then gets memory that was unused for a long time, and filling such memory takes longer.
        """
        size = self._segments[-1].size_bytes if self._handle >= 0 else 0
        if size - self._uncached_bytes >= _CACHED_BYTES:
            self._files.drop_cache(self._handle, size)
            self._uncached_bytes = size

    def leave(self) -> None:
        """End the last segment, and free the space that was reserved for more records."""
        if self._handle < 0:
            return
        handle, self._handle = self._handle, -1
        size = self._segments[-1].size_bytes
        with contextlib.suppress(OSError):
            # If another process cut the file, `truncate` must not extend it again.
            if self._files.size(handle) >= size:
                self._files.truncate(handle, size)
        self._segments.leave_last()

    def let_go(self) -> None:
        """Do not write to the last segment any more."""
        self._handle = -1

    # -- failure ---------------------------------------------------------------------------------------------------

    def fail(self, *, may_continue: bool) -> None:
        """Forget the spool groups that were not written, and do not write to the file until `put_back` is called."""
        if self._unwritten:
            # Do not count spool groups that never reached the file, or the file would look as if another process had
            # cut it.
            self._segments.shorten(self._unwritten_at)
            self._unwritten = []
        if may_continue and self._handle >= 0:
            self._continued = self._segments[-1].first_position, self._handle
        self._handle = -1

    def put_back(self, position: int) -> None:
        """Remove everything from `position` on. The log ended at `position` when `promise` was last called.

        The spool never continues a segment whose fsync failed. After a write that failed only because the disk was
        full, the spool continues the segment, because new segments could use up the disk:

        1. The disk has room for marks, but not for the next batch.
        2. Each attempt to write the batch fails, and is followed by a mark.
        3. A new segment for each mark would use up the remaining space.
        """
        while self._segments and self._segments[-1].first_position >= position:
            self._segments.delete_last()
        if self._segments:
            self._segments.cut(position, self._promised_bytes, self._promised_records)
            segment = self._segments[-1]
            continued, kept = self._continued or (-1, -1)
            continues = continued == segment.first_position
            # If the bytes cannot be cut off, they are abandoned: the next segment starts at the position of the first
            # abandoned byte.
            with contextlib.suppress(OSError):
                if self._segments.has_file(segment):
                    with opened(self._files, segment.path, write=True) as handle:
                        self._files.truncate(handle, segment.size_bytes)
                        if continues:
                            # 1. Half of a batch was written, and is cut off.
                            # 2. A mark is written where the half batch was. Power fails before the mark is synced.
                            # 3. Without this sync, the cut may not be durable: recovery could find remains of the half
                            # batch after the mark, and report damage.
                            self._files.sync_data(handle)
                    if continues:
                        self._handle = kept
                        self._preallocated = segment.size_bytes
                        self._uncached_bytes = 0
        self._continued = None

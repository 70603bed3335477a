"""The segments of an open lane: their files, their sizes, and the batches in them."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

from kafkasafe import marks as m
from kafkasafe.errors import SpoolCorruptError, SpoolError
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import Files
from kafkasafe.spool.log_content import Damage
from kafkasafe.spool.quarantine import copy_aside, copy_of
from kafkasafe.spool.segment import Stored, StoredSegment, segment_name
from kafkasafe.spool.segment_files import SegmentFiles


class SegmentList(Sequence[StoredSegment]):
    """The segments of one lane, in order. Not thread-safe.

    `Spool` and `StoredSegment` describe the methods without a docstring, under the same names.
    """

    def __init__(self, lane: Path, files: Files, segments: Sequence[StoredSegment]) -> None:
        self._lane = lane
        self._files = files
        self._segments = list(segments)
        self.used_bytes = sum(segment.size_bytes for segment in self._segments)
        self._held = SegmentFiles(files)
        for segment in self._segments:
            self._held.open(segment)
        self._lost: set[int] = set()
        """First positions of the segments whose content was lost while this process owned the lane."""
        self._deletions_undurable = False

    @overload
    def __getitem__(self, index: int) -> StoredSegment: ...

    @overload
    def __getitem__(self, index: slice) -> list[StoredSegment]: ...

    def __getitem__(self, index: int | slice) -> StoredSegment | list[StoredSegment]:
        return self._segments[index]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[StoredSegment]:
        return iter(self._segments)

    def close(self) -> None:
        self._held.close()

    # -- batches -----------------------------------------------------------------------------------------------------

    def read(self, position: int) -> bytearray:
        segment, stored = self._stored(position)
        if segment.first_position in self._lost:
            damage = _damage(segment, stored, position)
            raise SpoolCorruptError(
                f"The file of a spooled batch was deleted or cut by somebody else: {damage}",
                damage=(str(damage),),
            )
        try:
            data = bytearray(self._files.read(self._held.handle(segment), stored.at, stored.size_bytes))
        except OSError as error:
            raise SpoolError(f"{segment.path} cannot be read at byte {stored.at}: {error}") from error
        try:
            header = codec.verify(data)
        except codec.CorruptBatchError:
            header = None
        wanted = (position, stored.destination, stored.size_bytes, stored.crc)
        if header is None or wanted != (
            header.base_offset,
            header.partition_leader_epoch,
            header.size_bytes,
            header.crc,
        ):
            damage = _damage(segment, stored, position)
            raise SpoolCorruptError(f"A spooled batch is damaged on disk: {damage}", damage=(str(damage),))
        return data

    def quarantine(self, position: int) -> Path:
        damage = _damage(*self._stored(position), position)
        if self._stored(position)[0].first_position in self._lost:
            damage = replace(damage, start=damage.end)  # nothing of it is left
        try:
            copy_aside(self._files, self._lane, [damage])
        except OSError as error:
            raise SpoolError(f"{copy_of(self._lane, damage)} cannot be written: {error}") from error
        return copy_of(self._lane, damage)

    def _stored(self, position: int) -> tuple[StoredSegment, Stored]:
        segment = next((s for s in self._segments if position in s.batches), None)
        if segment is None:
            raise SpoolError(f"{self._lane} has no batch at position {position}")
        return segment, segment.batches[position]

    # -- the first segments ------------------------------------------------------------------------------------------

    def delete_first(self) -> StoredSegment:
        """Delete the first segment. Call `sync_deletions` to make the deletion durable.

        Raises:
            OSError: The file cannot be deleted, or an earlier deletion cannot be made durable. Nothing was changed.
        """
        self.sync_deletions()
        segment = self._segments[0]
        self._unlink(segment)
        # The file is deleted, even if the deletion is not durable yet. Remove the segment from the list, or the spool
        # would report the segment as missing.
        self._deletions_undurable = True
        del self._segments[0]
        self.used_bytes -= segment.size_bytes
        return segment

    def sync_deletions(self) -> None:
        """Make the last deletion durable. `delete_first` calls this method before the next deletion, so that a crash
        cannot leave a hole in the middle of the log.
        """
        if self._deletions_undurable:
            self._files.sync_directory(self._lane)
            self._deletions_undurable = False

    def _unlink(self, segment: StoredSegment) -> None:
        self._lost.discard(segment.first_position)
        self._held.unlink(segment)

    # -- the last segment --------------------------------------------------------------------------------------------

    def create(self, position: int) -> int:
        """Begin a segment at `position`. The segment's name is not durable yet.

        Returns:
            The handle of the segment's file, for writing.
        """
        segment = StoredSegment(self._lane / segment_name(position), position)
        try:
            handle = self._files.create(segment.path)
        except FileExistsError:
            self._held.clear_name(segment.path)
            handle = self._files.create(segment.path)
        self._held.add(segment, handle)
        self._segments.append(segment)
        return handle

    def append(
        self, control_bytes: int, manifest: Sequence[m.ManifestEntry], end_position: int, written_ms: int
    ) -> None:
        segment = self._segments[-1]
        before = segment.size_bytes
        segment.append(control_bytes, manifest, end_position, written_ms)
        self.used_bytes += segment.size_bytes - before

    def shorten(self, size_bytes: int) -> None:
        """End the last segment at the byte `size_bytes`. The segment still lists the batches after this byte."""
        segment = self._segments[-1]
        self.used_bytes -= segment.size_bytes - size_bytes
        segment.ends_at(size_bytes)

    def cut(self, position: int, size_bytes: int, records: int) -> None:
        segment = self._segments[-1]
        self.used_bytes -= segment.size_bytes - size_bytes
        segment.cut(position, size_bytes, records)

    def delete_last(self) -> None:
        """Delete the last segment. The deletion is durable on return."""
        segment = self._segments[-1]
        self._unlink(segment)
        self._files.sync_directory(self._lane)
        self.used_bytes -= segment.size_bytes
        del self._segments[-1]

    def leave_last(self) -> None:
        """Note that the last segment gets no more records."""
        self._held.limit()

    # -- where the files are -----------------------------------------------------------------------------------------

    def stands_at(self, lane: Path) -> None:
        self._lane = lane
        for segment in self._segments:
            segment.stands_at(lane)

    def has_file(self, segment: StoredSegment) -> bool:
        """Whether the segment's file still has its name, and all bytes that were written to it.

        Raises:
            OSError: This cannot be determined.
        """
        return self._held.is_whole(segment)

    def is_whole(self, segment: StoredSegment) -> bool:
        """Like `has_file`, but also true if the segment's content is known to be lost and cannot be restored."""
        return segment.first_position in self._lost or self.has_file(segment)

    def see_written(self, synced_position: int) -> None:
        """Check that the file of every segment still has its name, and that each file with records after
        `synced_position` still has all written bytes.

        Raises:
            FileNotFoundError: A check failed. The caller must not report the records as durable.
        """
        names: set[str] | None = None
        for segment, following in itertools.zip_longest(self._segments, self._segments[1:]):
            written = following is None or following.first_position > synced_position
            if written:
                whole = self.is_whole(segment)
            else:
                # Listing the directory once is faster than checking each name. A lane with one segment needs no list.
                names = set(self._files.list(self._lane)) if names is None else names
                whole = segment.path.name in names or segment.first_position in self._lost
            if not whole:
                raise FileNotFoundError(errno.ENOENT, "It was deleted, moved or cut", str(segment.path))

    def write_again(self, segment: StoredSegment) -> bool:
        """Write a segment again from the file that is held open. Return False if the content is lost.

        Raises:
            OSError: The segment is not restored yet.
        """
        if self._held.write_again(segment):
            return True
        self._lost.add(segment.first_position)
        return False


def _damage(segment: StoredSegment, stored: Stored, position: int) -> Damage:
    end = stored.at + stored.size_bytes
    return Damage(segment.path, stored.at, end, position, stored.destination)

"""The spool: one lane's write-ahead log of Kafka batches, as `docs/spool-format.md` describes it.

One thread owns a `Spool`. Only `sync()` makes written spool groups durable. A failed write or sync resets the log to
its state after the last successful `sync()`, so that the owner can write the same data again. The journal decides which
batches are finished, and which ids batches have. The spool only stores and reads marks and batches.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from kafkasafe import marks as m
from kafkasafe.errors import SpoolError, SpoolWriteError
from kafkasafe.record import batch as codec
from kafkasafe.spool.extent import EXTENT_NAME
from kafkasafe.spool.extent_file import ExtentFile
from kafkasafe.spool.files import Files, opened
from kafkasafe.spool.log_content import Entry, Log
from kafkasafe.spool.quarantine import keep_torn, quarantine_damage
from kafkasafe.spool.recovery import scan
from kafkasafe.spool.reserve import NO_ROOM, REMEDIES, Reserve
from kafkasafe.spool.segment_list import SegmentList
from kafkasafe.spool.segment_writer import SegmentWriter
from kafkasafe.spool.tail import cut_tail, make_durable, remove_drafts

Sync = Literal["group", "each", "os"]

_MOST_BATCHES: Final = 1 << 14
"""Maximum number of batches in a segment. Data about a batch stay in memory until its segment is deleted: up to 2.6 kB
for an atomic batch, even if the batch takes only a few hundred bytes on disk.
"""
_DIVIDED_SEGMENT_BYTES: Final = 1024 * 1024
"""Maximum size of a segment whose batches must be divided.

In a large log, a segment whose batches must be divided may have up to 1/512 of the log's size (`_DIVIDED_SEGMENTS`). A
maximum is necessary:

1. The spool divides a batch by writing its records once more, at the end of the log.
2. The spool deletes a segment when all batches of the segment are divided.
3. So dividing the first segment needs as much free space as the segment occupies. Dividing the next segment uses the
space that the first segment has freed.
"""
_DIVIDED_SEGMENTS: Final = 512


class Spool:
    """The log of one lane. `open` creates this object. Not thread-safe.

    Attributes:
        next_position: The position that the next record gets.
        synced_position: All records before this position are durable, unless the option `sync` is "os": `open` has
            recovered them, or a call of `sync` has returned since they were written.
    """

    def __init__(
        self,
        lane: Path,
        found: Log,
        *,
        files: Files,
        segment_bytes: int,
        sync: Sync,
        snapshot: Callable[[], Sequence[m.Mark]],
        clock_ms: Callable[[], int],
    ) -> None:
        self._lane = lane
        self._files = files
        self._segment_bytes = segment_bytes
        self._sync = sync
        self._snapshot = snapshot
        self._clock_ms = clock_ms
        self._lane_id = found.lane_id or os.urandom(m.LANE_ID_BYTES)
        self._segments = SegmentList(lane, files, found.segments)
        self._writer = SegmentWriter(files, self._segments)
        self._repair = False
        self._sync_failed = False
        """Whether an fsync has failed since the last repair. If so, the last segment must not be continued."""
        self._reserve = Reserve(lane, files)
        self._to_divide = 0
        self._torn = found.skipped
        self._extent = ExtentFile(lane, files, found, self._lane_id)
        self._closed = False
        self.next_position = found.next_position
        self.synced_position = found.next_position
        # fdatasync has returned for all records before this position.
        self._disk_position = found.synced_position if sync == "os" else found.next_position

    @classmethod
    def open(
        cls,
        lane: Path,
        *,
        files: Files,
        segment_bytes: int,
        sync: Sync,
        snapshot: Callable[[], Sequence[m.Mark]],
        on_corrupt: Literal["raise", "quarantine"] = "raise",
        clock_ms: Callable[[], int],
        each: Callable[[Entry], None] | None = None,
    ) -> tuple[Spool, list[Entry]]:
        """Open a lane whose lock the caller holds.

        Args:
            lane: The lane's directory.
            files: The disk.
            segment_bytes: Maximum size of a segment (a segment with a single larger spool group may exceed it). A
                segment also ends when it has 16,384 batches.
            sync: With "group" and "each", the method `sync` calls fdatasync. With "os", the operating system decides
                when to write.
            snapshot: Returns the marks with which a new segment begins.
            on_corrupt: "raise": damage is an error. "quarantine": copy damaged bytes to quarantine/, and keep the later
                batches.
            clock_ms: Returns ms since the epoch, for the timestamps of control batches.
            each: Called, while `open` reads the log, with each entry before the first torn or damaged entry, in log
                order. Only afterwards does `open` change files and report damage.

        Returns:
            The spool, and the log's entries in order, without the entries that `each` received. The log is durable on
            return (unless sync is "os").

        Raises:
            SpoolCorruptError: The log has damage other than a torn tail. Nothing was changed.
            SpoolFormatError: A newer kafkasafe has written the lane. Nothing was changed.
            SpoolError: A file cannot be read or written. The message contains the cause.
        """
        try:
            found = scan(files, lane, each)
            quarantine_damage(files, lane, found, on_corrupt)
            keep_torn(files, lane, found)
            cut_tail(files, lane, found)
            remove_drafts(files, lane)
            if sync != "os":
                make_durable(files, lane, found)
        except OSError as error:
            raise SpoolError(f"{lane} cannot be opened: {error}. Nothing in it was lost") from error
        spool = cls(
            lane,
            found,
            files=files,
            segment_bytes=segment_bytes,
            sync=sync,
            snapshot=snapshot,
            clock_ms=clock_ms,
        )
        return spool, found.entries

    @property
    def used_bytes(self) -> int:
        """Size of all segments."""
        return self._segments.used_bytes

    @property
    def lane_id(self) -> bytes:
        """The lane's id: random bytes that were chosen when the lane was created."""
        return self._lane_id

    @property
    def segments(self) -> list[tuple[Path, int, int]]:
        """(file, first position, number of bytes) of each segment."""
        return [(segment.path, segment.first_position, segment.size_bytes) for segment in self._segments]

    def write_group(
        self,
        marks: Sequence[m.Mark],
        batches: Sequence[tuple[int, bytearray]],
        *,
        atomic: bool = False,
        closed: bool = False,
        makes_room: bool = False,
        divisible: bool = False,
        more: bool = False,
    ) -> list[int]:
        """Write marks, then data batches. Only `sync` makes them durable.

        Args:
            marks: The marks, in the order in which they were decided.
            batches: (destination, bytes) of each batch. This method writes the batch's position and destination into
                the bytes.
            atomic: Whether recovery must keep either the whole spool group or nothing of it.
            closed: Whether the spool group is the last one before an orderly close, and says so.
            makes_room: Whether the batches replace other batches. The space of the other batches can then be freed, so
                the new batches may use the reserve.
            divisible: Whether the batches will have to be divided. Such batches are written to small segments.
            more: Whether the caller writes another spool group before it calls `sync`. Both groups then go to the disk
                in one write, and the caller must not change the batches before that write.

        Returns:
            The position of each batch.

        Raises:
            SpoolWriteError: The log was reset to `synced_position`. The caller must write everything after this
                position again.
        """
        if self._closed:
            raise SpoolError(f"{self._lane} is closed")
        positions: list[int] = []
        limit = self._limit(divisible=divisible)
        self._reserve.end_loan()
        if batches and not atomic and not self._reserve.ensure(self._wanted_reserve()):
            # The remaining space is for marks.
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if self.next_position == self.synced_position:
                # Nothing needs to be undone, so do not call `_failed`, which might end the segment. Each later mark
                # would then begin a new segment, and the new segments would use up the remaining space.
                raise self._error("written to", error)
            raise self._failed("written to", error)
        try:
            if self._repair:
                self._put_back()
            for some_marks, some in self._portions(marks, batches, limit, atomic=atomic):
                positions += self._write(some_marks, some, limit, atomic=atomic, closed=closed)
            if not more:
                self._writer.write_out(limit)
        except OSError as error:
            if makes_room or not batches:
                self._reserve.give_up(error)
            raise self._failed("written to", error) from error
        return positions

    def sync(self, *, always: bool = False) -> int:
        """Make everything written so far durable, unless the option `sync` is "os".

        Args:
            always: Whether to make the data durable even if the option `sync` is "os".

        Returns:
            `synced_position`, which is now the end of the log.

        Raises:
            SpoolWriteError: The log was reset to `synced_position`. The caller must write everything after this
                position again.
        """
        if self.synced_position < self.next_position:
            if self._repair:
                raise SpoolError(f"{self._lane}: what failed was not written again")
            if self._writer.has_unwritten:
                raise SpoolError(f"{self._lane}: the group that was to follow was not written")
            if self._sync != "os" or always:
                try:
                    self._to_disk()
                    self._segments.see_written(self.synced_position)
                except OSError as error:
                    # Some file systems allocate space only at writeback, so the sync may be the first to find the disk
                    # full.
                    self._reserve.give_up(error)
                    raise self._failed("synced", error) from error
            self.synced_position = self.next_position
            self._writer.promise()
            if self._sync != "os":
                self._extent.ends(self.synced_position, self._segments)
        return self.synced_position

    def drop_cache(self) -> None:
        """Tell the system that it may drop the newest batches from its page cache. This process also has these batches
        in memory, and will probably not read them from the disk.
        """
        if self._disk_position == self.next_position:
            self._writer.drop_cache()

    def read(self, position: int) -> bytearray:
        """Returns the data batch at a position, after checking every byte. The batch's header contains the position and
        the destination number.

        Raises:
            SpoolCorruptError: The bytes differ from those written, or their file was lost.
            SpoolError: The file cannot be read.
        """
        return self._segments.read(position)

    def quarantine(self, position: int) -> Path:
        """Copy the damaged data batch that begins at `position` to quarantine/. The copy is durable on return.

        Raises:
            SpoolError: The batch cannot be read, or its copy cannot be written.
        """
        return self._segments.quarantine(position)

    @property
    def first_position(self) -> int:
        """Position of the first record that the log still contains."""
        return self._segments[0].first_position if self._segments else self.next_position

    def release(
        self,
        before_position: int,
        retain_bytes: int = 0,
        retain_since_ms: int = 1 << 62,
        *,
        at_most_bytes: int = 1 << 62,
    ) -> int:
        """Delete the oldest segments whose batches are all finished; never the last segment.

        Args:
            before_position: All batches before this position are finished.
            retain_bytes: Keep at least this many bytes of segments, even if all their batches are finished.
            retain_since_ms: Keep segments that were written at or after this time (ms since the epoch), even if all
                their batches are finished.
            at_most_bytes: Stop once at least this many bytes are freed. Only whole segments are deleted.

        Returns:
            Bytes freed.

        Raises:
            SpoolError: A file cannot be deleted, or its deletion is not durable. The log is still complete.
        """
        # A segment's snapshot replaces all earlier marks, so it must be durable before earlier segments are deleted.
        bound = min(before_position, self.synced_position - 1)
        done = [
            segment
            for segment, following in zip(self._segments, self._segments[1:], strict=False)
            if following.first_position <= bound
        ]
        total = kept = sum(segment.size_bytes for segment in done)
        freed = 0
        going = 0
        for segment in done:
            if total - kept >= at_most_bytes:
                break
            kept -= segment.size_bytes
            if kept < retain_bytes or segment.written_ms >= retain_since_ms:
                break
            going += 1
        if going:
            # Before the deletion, write the claim about the new beginning. Otherwise recovery would report the deleted
            # segments as missing.
            try:
                self._extent.begins(self._segments, going)
            except OSError as error:
                raise SpoolError(f"{self._lane / EXTENT_NAME} cannot be written: {error}") from error
        for segment in done[:going]:
            try:
                self._segments.delete_first()
                self._extent.gone(segment)
                freed += segment.size_bytes
                self._segments.sync_deletions()
            except OSError as error:
                raise SpoolError(f"{segment.path} cannot be deleted: {error}") from error
        if freed:
            self._reserve.restore_after_release(self._wanted_reserve())
        return freed

    def close(self, *, closed_mark: bool = True, marks: Sequence[m.Mark] = ()) -> None:
        """Close the files.

        Args:
            closed_mark: Whether to note in the lane's log that this close was orderly (unless this owner wrote nothing,
                and `marks` is empty).
            marks: Marks to write before the files are closed, if `closed_mark` is true.

        Raises:
            SpoolWriteError: The last group could not be written. The files are closed, and records before
                `synced_position` are safe.
        """
        if self._closed:
            return
        try:
            if closed_mark and (marks or self._writer.is_open):
                self.write_group(marks, (), closed=True)
                self.sync()
        finally:
            self._closed = True
            self._writer.leave()
            self._extent.close()
            self._segments.close()

    def abandon(self) -> None:
        """Close the files without changing them, because another process owns them now."""
        self._closed = True
        with contextlib.ExitStack() as closing:  # close the others even if one of them raises an error
            for close in (self._segments.close, self._extent.close, self._writer.let_go):
                closing.callback(close)

    # -- where it stands ---------------------------------------------------------------------------------------------

    def stands_at(self, lane: Path) -> None:
        """Note the new path of the directory, which the caller has already moved on the disk."""
        self._lane = lane
        self._segments.stands_at(lane)
        self._extent.stands_at(lane)
        self._reserve.stands_at(lane)

    @property
    def in_place(self) -> bool:
        """Whether each file still has its name and all written bytes. Makes a few system calls.

        Raises:
            OSError: This cannot be determined.
        """
        return all(map(self._segments.is_whole, self._segments)) and self._extent.in_place

    def restore(self) -> list[tuple[int, int]]:
        """Restore deleted, renamed and cut files from the files that are held open. The new files are durable on
        return.

        Call this method only when everything written so far has been synced.

        Returns:
            (first position, end position) of each segment whose content is lost.

        Raises:
            SpoolWriteError: Some files are not restored yet; call this method again.
        """
        if self.synced_position < self.next_position:
            raise SpoolError(f"{self._lane}: something is written and not synced")
        lost = []
        try:
            if self._repair:
                self._put_back()
            if self._segments:
                # Restore the file `extent` before the segments, so that after a crash in between, the next owner sees
                # which segments are missing. With `sync="os"`, it is unknown how far the log is durable, so the file
                # claims no end.
                self._extent.restore(self._segments, None if self._sync == "os" else self.synced_position)
            for index, segment in enumerate(self._segments):
                if self._segments.is_whole(segment):
                    continue
                if index == len(self._segments) - 1:
                    self._writer.let_go()
                if not self._segments.write_again(segment):
                    following = self._segments[index + 1 : index + 2]
                    end = following[0].first_position if following else self.next_position
                    lost.append((segment.first_position, end))
            self._files.sync_directory(self._lane)
        except OSError as error:
            raise self._failed("restored", error) from error
        self._reserve.forget()
        return lost

    # -- writing ---------------------------------------------------------------------------------------------------

    def _limit(self, *, divisible: bool) -> int:
        """Maximum size of a segment, bytes."""
        if not divisible:
            return self._segment_bytes
        return min(
            self._segment_bytes, max(_DIVIDED_SEGMENT_BYTES, self._segments.used_bytes // _DIVIDED_SEGMENTS)
        )

    def _portions(
        self, marks: Sequence[m.Mark], batches: Sequence[tuple[int, bytearray]], limit: int, *, atomic: bool
    ) -> Iterator[tuple[Sequence[m.Mark], Sequence[tuple[int, bytearray]]]]:
        """Split a spool group that is larger than half a segment into several groups, unless it is atomic."""
        start, size = 0, 0
        for index, (_, data) in enumerate(batches):
            if not atomic and size and size + len(data) > limit // 2:
                yield (marks if start == 0 else ()), batches[start:index]
                start, size = index, 0
            size += len(data)
        yield (marks if start == 0 else ()), batches[start:]

    def _write(
        self,
        marks: Sequence[m.Mark],
        batches: Sequence[tuple[int, bytearray]],
        limit: int,
        *,
        atomic: bool,
        closed: bool,
    ) -> list[int]:
        control, manifest, end_position = self._group(marks, batches, atomic=atomic, closed=closed)
        size = len(control) + sum(entry.size_bytes for entry in manifest)
        if (
            not self._writer.is_open
            or self._segments[-1].size_bytes + size > limit
            or len(self._segments[-1].batches) >= _MOST_BATCHES
        ):
            self._roll(limit)
            control, manifest, end_position = self._group(marks, batches, atomic=atomic, closed=closed)
        self._append(control, batches, manifest, end_position)
        return [entry.position for entry in manifest]

    def _group(
        self,
        marks: Sequence[m.Mark],
        batches: Sequence[tuple[int, bytearray]],
        *,
        atomic: bool = False,
        closed: bool = False,
        snapshot: bool = False,
    ) -> tuple[bytearray, list[m.ManifestEntry], int]:
        """Encode the control batch, and write the position and destination number of each batch into its header."""
        position = self.next_position + 1 + len(marks)
        manifest = []
        for destination, data in batches:
            codec.stamp_address(data, position, destination)
            crc, count = codec.crc_and_count(data)
            manifest.append(m.ManifestEntry(position, destination, len(data), crc))
            position += count
        group = m.Group(
            m.FORMAT_VERSION,
            self._lane_id,
            self.next_position,
            self._disk_position,
            atomic,
            snapshot,
            closed,
            tuple(manifest),
        )
        return m.encode_group(group, marks, self._clock_ms()), manifest, position

    def _append(
        self,
        control: bytearray,
        batches: Sequence[tuple[int, bytearray]],
        manifest: Sequence[m.ManifestEntry],
        end_position: int,
    ) -> None:
        self._writer.append(control, batches, manifest, end_position, self._clock_ms())
        self.next_position = end_position

    def _roll(self, limit: int) -> None:
        """Start a segment with a snapshot, so that earlier segments can be deleted."""
        self._writer.write_out(limit)
        if self._writer.is_open:
            # The new segment's first spool group will state that all earlier groups are durable, so sync them now.
            if self._sync != "os":
                self._to_disk()
            self._writer.leave()
        self._writer.begin(self.next_position)
        self._files.sync_directory(self._lane)
        marks = list(self._snapshot())
        if self._torn:
            # This spool group states that all earlier records were durable, so a mark must name the exceptions: the
            # torn batches that recovery skipped.
            marks.append(m.Torn(self._torn))
        control, _, end_position = self._group(marks, (), snapshot=True)
        self._append(control, (), (), end_position)
        self._writer.write_out(limit)
        self._extent.keep(self._segments)

    def _to_disk(self) -> None:
        if self._disk_position < self.next_position:
            self._sync_failed = True  # stays true until all syncs have returned
            for segment, following in zip(self._segments, self._segments[1:], strict=False):
                # With the option "os", earlier segments may not have been synced yet.
                if following.first_position > self._disk_position:
                    with opened(self._files, segment.path, write=True) as handle:
                        self._files.sync_data(handle)
            self._writer.sync()
            self._sync_failed = False
            self._disk_position = self.next_position

    # -- failure ---------------------------------------------------------------------------------------------------

    def _failed(self, what: str, error: OSError) -> SpoolWriteError:
        """Reset the log to `synced_position`. The next write, or recovery, repairs the files."""
        self._writer.fail(may_continue=error.errno in NO_ROOM and not self._sync_failed)
        self._repair = True
        self.next_position = self.synced_position
        self._disk_position = min(self._disk_position, self.synced_position)
        return self._error(what, error)

    def _error(self, what: str, error: OSError) -> SpoolWriteError:
        remedy = REMEDIES.get(error.errno or 0)
        hint = "" if remedy is None else f"; {remedy}"
        return SpoolWriteError(f"{self._lane} cannot be {what}: {error}{hint}", full=error.errno in NO_ROOM)

    def _put_back(self) -> None:
        """Remove everything after `synced_position` from the files."""
        self._writer.put_back(self.next_position)
        self._sync_failed = False
        self._repair = False

    # -- the reserve -------------------------------------------------------------------------------------------------

    def keep_room(self, to_divide: int) -> None:
        """Adapt the size of the reserve to `to_divide`, the total size of the batches that must be divided, in bytes. A
        reserve that is too large shrinks now; a reserve that is too small grows when the next batches are written.
        """
        self._to_divide = to_divide
        self._reserve.shrink_to(self._wanted_reserve())

    def has_room(self, size_bytes: int) -> bool:
        """Whether there is room for a spool group of `size_bytes` that replaces earlier batches, and for marks (log
        entries) after it.

        The group may use the reserve. This method enlarges a reserve that is too small, because other programs could
        use free space outside the reserve before the spool group is written. The next `write_group` shrinks the reserve
        again.
        """
        return self._writer.has_reserved(size_bytes, self._segment_bytes) or self._reserve.lend(size_bytes)

    def give_room(self, error: OSError) -> None:
        """Free a part of the reserve, or all of it, because the disk has no room for a small file beside the log."""
        self._reserve.give_step(error)

    def _wanted_reserve(self) -> int:
        return Reserve.wanted(self._to_divide, self._limit(divisible=True))

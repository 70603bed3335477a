"""The file `extent` of a lane: where its log must begin and end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from kafkasafe._core.extent import BEGIN_SLOTS, END_SLOT, EXTENT_BYTES, Claim, encode_claim
from kafkasafe._io.files import Files, write_all
from kafkasafe._io.recovery import EXTENT_NAME, Log, StoredSegment

__all__ = ["ExtentFile"]


class ExtentFile:
    """The lane's `extent`: says where the log must begin and end.

    It is evidence only. Whatever cannot be written is left unsaid; what would become wrong is withdrawn.
    """

    def __init__(self, lane: Path, files: Files, found: Log, lane_id: bytes) -> None:
        self._path = lane / EXTENT_NAME
        self._files = files
        self._lane_id = lane_id
        self._handle = -1
        self._begin = found.extent.begin
        self._end = found.extent.end
        # Records in front of the first segment, as they are counted here. Those that are missing count as well.
        self._before = 0
        if self._end is not None:
            self._before = (
                self._end.records
                + found.records_after_end
                - sum(segment.records for segment in found.segments)
            )
        elif self._begin is not None:
            self._before = self._begin.records
        self._before = max(0, self._before)

    def keep(self, segments: Sequence[StoredSegment]) -> None:
        """See that there is a file: without one nothing is said, and nothing else is different."""
        if self._handle >= 0:
            return
        try:
            self._handle = self._files.open(self._path, write=True, create=True)
            if self._begin is None:
                self._write_begin(segments[0].first_position, self._before)
        except OSError:
            self._drop()

    def begins(self, segments: Sequence[StoredSegment], going: int) -> None:
        """So many segments in front are about to be deleted; durable on return.

        Raises:
            OSError: It could be neither said, nor what was said be withdrawn.
        """
        try:
            if self._handle < 0:
                self._handle = self._files.open(self._path, write=True, create=True)
            records = self._before + sum(segment.records for segment in segments[:going])
            self._write_begin(segments[going].first_position, records)
        except OSError:
            self._drop()
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._path)
            self._files.sync_directory(self._path.parent)
            self._begin = self._end = None

    def gone(self, segment: StoredSegment) -> None:
        """The first segment was deleted."""
        self._before += segment.records

    def ends(self, position: int, segments: Sequence[StoredSegment]) -> None:
        """Everything before this position is durable. What a crash leaves of this claim is no matter."""
        if self._handle < 0:
            return
        records = self._before + sum(segment.records for segment in segments)
        claim = Claim(self._lane_id, 0, position, records)
        try:
            write_all(self._files, self._handle, [encode_claim(claim)], END_SLOT)
            self._end = claim
        except OSError:
            self._drop()

    def close(self) -> None:
        """Close the file."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._files.close(handle)

    def stands_at(self, lane: Path) -> None:
        """The lane has another path now."""
        self._path = lane / EXTENT_NAME

    @property
    def in_place(self) -> bool:
        """Whether the file is there under its name, if something is said in it."""
        return self._handle < 0 or self._files.identity_of(self._path) == self._files.identity(self._handle)

    def restore(self, segments: Sequence[StoredSegment], position: int) -> None:
        """Say again where the log begins and ends, in one write: durable on return, if it can be said at all."""
        try:
            if self._handle < 0 or not self.in_place:
                self.close()
                self._handle = self._files.open(self._path, write=True, create=True)
            records = self._before + sum(segment.records for segment in segments)
            begin = Claim(self._lane_id, 0, segments[0].first_position, self._before)
            end = Claim(self._lane_id, 0, position, records)
            content = encode_claim(begin).ljust(END_SLOT, b"\0") + encode_claim(end)
            write_all(self._files, self._handle, [content.ljust(EXTENT_BYTES, b"\0")], 0)
            self._files.sync_data(self._handle)
            self._begin, self._end = begin, end
        except OSError:
            self._drop()

    def _write_begin(self, position: int, records: int) -> None:
        number = 0 if self._begin is None else self._begin.number + 1
        claim = Claim(self._lane_id, number, position, records)
        content = encode_claim(claim)
        # The older of two claims is written over: a torn write leaves the newer. The first time all of the file is, so
        # that no claim needs room on the disk later.
        at = BEGIN_SLOTS[number % len(BEGIN_SLOTS)]
        if self._begin is None:
            self._files.truncate(self._handle, 0)
            at, content = 0, content.ljust(EXTENT_BYTES, b"\0")
        write_all(self._files, self._handle, [content], at)
        self._files.sync_data(self._handle)
        self._begin = claim

    def _drop(self) -> None:
        with contextlib.suppress(OSError):
            self.close()

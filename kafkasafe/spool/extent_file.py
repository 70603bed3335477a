"""The file `extent` of a lane: where the lane's log must begin and end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from kafkasafe.spool.extent import BEGIN_SLOTS, END_SLOT, EXTENT_BYTES, EXTENT_NAME, LogEndClaim, encode_claim
from kafkasafe.spool.files import Files, write_all
from kafkasafe.spool.log_content import Log
from kafkasafe.spool.segment import StoredSegment


class ExtentFile:
    """Writes the lane's file `extent`, which claims where the lane's log begins and ends.

    The claims are only evidence, so the lane also works without them. `ExtentFile` deletes the file if it would
    otherwise contain a wrong claim.
    """

    def __init__(self, lane: Path, files: Files, found: Log, lane_id: bytes) -> None:
        self._path = lane / EXTENT_NAME
        self._files = files
        self._lane_id = lane_id
        self._handle = -1
        self._begin = found.extent.begin
        self._end = found.extent.end
        # Number of records before the first segment, counted as in `LogEndClaim.records`, including missing records.
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
        """Create the file if it does not exist. If the file cannot be created, the lane works without claims."""
        if self._handle >= 0:
            return
        try:
            self._open()
            if self._begin is None:
                self._write_begin(segments[0].first_position, self._before)
        except OSError:
            self._drop()

    def begins(self, segments: Sequence[StoredSegment], going: int) -> None:
        """Write the claim that the log begins after the first `going` segments, which the caller will delete next. The
        claim is durable on return.

        Raises:
            OSError: The claim could not be written, and the file with the old claim could not be deleted.
        """
        try:
            if self._handle < 0:
                self._open()
            records = self._before + sum(segment.records for segment in segments[:going])
            self._write_begin(segments[going].first_position, records)
        except OSError:
            self._drop()
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(self._path)
            self._files.sync_directory(self._path.parent)
            self._begin = self._end = None

    def gone(self, segment: StoredSegment) -> None:
        """Note that the log's first segment was deleted, and count its records as deleted."""
        self._before += segment.records

    def ends(self, position: int, segments: Sequence[StoredSegment]) -> None:
        """Write the claim that everything before `position` is durable, without syncing the claim itself."""
        if self._handle < 0:
            return
        claim = self._end_at(position, segments)
        try:
            write_all(self._files, self._handle, [encode_claim(claim)], END_SLOT)
            self._end = claim
        except OSError:
            self._drop()

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            self._files.close(handle)

    def stands_at(self, lane: Path) -> None:
        self._path = lane / EXTENT_NAME

    @property
    def in_place(self) -> bool:
        """Whether the open file is still the lane's `extent`. Also true if no file is open."""
        return self._handle < 0 or self._files.identity_of(self._path) == self._files.identity(self._handle)

    def restore(self, segments: Sequence[StoredSegment], position: int | None) -> None:
        """Write both claims (where the log begins and ends) again. They are durable on return, unless the file cannot
        be written.

        The claim about the beginning keeps its number. The disk may still contain a claim with a larger number, and
        that claim must stay valid.

        Args:
            segments: All segments of the log.
            position: Everything before this position is durable. None: keep the claim about the end.
        """
        try:
            if self._handle < 0 or not self.in_place:
                self.close()
                # Do not call `_open`, which would sync the old claims: `_write_claims` below makes all claims durable.
                self._handle = self._files.open(self._path, write=True, create=True)
            if self._begin is None:
                self._write_begin(segments[0].first_position, self._before)
            if position is not None:
                self._end = self._end_at(position, segments)
            self._write_claims()
        except OSError:
            self._drop()

    def _open(self) -> None:
        """Open the file, or create it, and make durable what it claims about the log. Otherwise a claim could be lost:

        1. The sync of a claim fails, and the owner dies before it deletes the file.
        2. The next owner reads the claim of step 1 from the page cache, and overwrites the older claim, the only
           durable one.
        3. Power fails while the new claim is being written. The claim that remains on the disk names a deleted segment
           as the first one. So the claim of step 1 must become durable before step 2.
        """
        self._handle = self._files.open(self._path, write=True, create=True)
        if self._begin is not None:
            self._write_claims()

    def _end_at(self, position: int, segments: Sequence[StoredSegment]) -> LogEndClaim:
        records = self._before + sum(segment.records for segment in segments)
        return LogEndClaim(self._lane_id, 0, position, records)

    def _write_claims(self) -> None:
        """Write the whole file, with the current claims of this process."""
        content = bytearray(self._files.read(self._handle, 0, EXTENT_BYTES).ljust(EXTENT_BYTES, b"\0"))
        for claim, slots in (self._begin, BEGIN_SLOTS), (self._end, (END_SLOT,)):
            if claim is not None:
                at, encoded = slots[claim.number % len(slots)], encode_claim(claim)
                content[at : at + len(encoded)] = encoded
        write_all(self._files, self._handle, [content], 0)
        self._files.sync_data(self._handle)

    def _write_begin(self, position: int, records: int) -> None:
        number = 0 if self._begin is None else self._begin.number + 1
        claim = LogEndClaim(self._lane_id, number, position, records)
        content = encode_claim(claim)
        # Overwrite the older of the two claims, so that the newer claim stays intact even if the write is torn. With
        # the first claim, write the file in its full size, so that later claims need no more space on the disk.
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

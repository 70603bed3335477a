"""A file in a lane's directory that reserves room on the disk for marks (log entries about decisions) and for the
division of batches.

On a full disk, writing a mark frees more room than the mark takes, because segments can be deleted afterwards. So the
lane reserves room that only marks may use. On a full disk, the reserve works like this:

1. Other programs fill the disk. New batches cannot be written, and wait in memory.
2. The cluster acknowledges the batches of the oldest segment. The disk has no room for the marks about the
   acknowledgements.
3. The spool deletes the reserve, writes the marks, and deletes the segment, so that batches have room again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kafkasafe.logs import EventLog
from kafkasafe.spool.files import Files, opened, size_of, write_all

log = EventLog("spool")

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk, and of a full quota."""
_HANDLES: Final = "raise the limit of open files (ulimit -n), or close some; the producer then continues"
REMEDIES: Final[Mapping[int, str]] = {
    **dict.fromkeys(NO_ROOM, "make room; the producer then continues"),
    errno.EMFILE: _HANDLES,
    errno.ENFILE: _HANDLES,
    errno.EFBIG: "raise the limit of file sizes (ulimit -f); the producer then continues",
    errno.EROFS: "mount the file system read-write; the producer then continues. If the disk has failed, replace it"
    " first",
}
"""What to do if a write fails, by error number."""
_NAME: Final = "reserve"
_MARKS_BYTES: Final = 64 * 1024
"""Size of the reserve's part for marks. The rest of the reserve is for the division of batches whose partitions are not
known yet.
"""
_STEP_BYTES: Final = 64 * 1024
"""The size of the reserve's part for divisions is a multiple of this."""
_LENT_STEP_BYTES: Final = 256 * 1024
_DIVIDED_SHARE: Final = 16
"""The parts of a divided batch may together be larger than the batch, by at most one sixteenth."""


class Reserve:
    """The reserve of one lane. Not thread-safe."""

    def __init__(self, lane: Path, files: Files) -> None:
        self._lane = lane
        self._files = files
        self._size: int | None = None
        """The size of the file in bytes; None before the first reading."""
        self._size_before_loan = 0
        """The size of the reserve before `lend` was called; 0 after `end_loan`."""

    def stands_at(self, lane: Path) -> None:
        self._lane = lane

    def forget(self) -> None:
        """Forget the reserve's size, because the lane's files were restored. The next use reads the size again."""
        self._size = None

    @staticmethod
    def wanted(to_divide_bytes: int, segment_bytes: int) -> int:
        """Return the necessary size of the reserve, in bytes."""
        if not to_divide_bytes:
            return _MARKS_BYTES
        # 1. Twice the size of a segment, because the parts of one segment's batches may need a second segment.
        # 2. The parts of the batches may need up to one sixteenth more space than the batches.
        extra = 2 * min(to_divide_bytes, segment_bytes) + to_divide_bytes // _DIVIDED_SHARE
        return _MARKS_BYTES + -(-extra // _STEP_BYTES) * _STEP_BYTES

    def ensure(self, wanted: int) -> bool:
        """Make the reserve at least `wanted` bytes large.

        Returns:
            False if the disk has no room for the reserve. The disk then counts as full for batches, too.
        """
        if self._size is not None and self._size >= wanted:
            return True
        there = 0
        try:
            there = self._measure()
            if there >= wanted:
                return True
            with opened(self._files, self._path, write=True, create=True) as handle:
                self._files.truncate(handle, there)
                # Write more than `wanted` bytes, then cut off the surplus: so the disk certainly has room for marks
                # afterwards. Write random bytes, because file systems that compress would reserve less space for other
                # content.
                write_all(self._files, handle, [os.urandom(wanted + _MARKS_BYTES - there)], there)
                self._files.sync_data(handle)
                self._files.truncate(handle, wanted)
        except OSError as error:
            self._shrink(there)
            # The next write of a batch will report any problem other than a full disk.
            return error.errno not in NO_ROOM
        self._size = wanted
        return True

    def shrink_to(self, wanted: int) -> None:
        """Free the part of the reserve that exceeds `wanted` bytes."""
        if self._size is not None and self._size > wanted:
            self._shrink(wanted)

    def lend(self, size_bytes: int) -> bool:
        """Ensure that there is room for a spool group of `size_bytes`, and for marks (log entries) after it. The group
        may use the reserve.

        The reserve grows if necessary, until `end_loan` shrinks it again. The volume's free bytes do not count, because
        another program may use them before the spool group is written.

        Returns:
            False if the disk has no room.
        """
        wanted = _MARKS_BYTES + size_bytes
        if self._size is not None and self._size >= wanted:
            return True
        if not self._size_before_loan:
            try:
                self._size_before_loan = max(self._measure(), _MARKS_BYTES)
            except OSError:
                # The write will report the error.
                return True
        # Grow in larger steps, because more spool groups are likely to follow.
        return self.ensure(wanted + _LENT_STEP_BYTES) or self.ensure(wanted)

    def end_loan(self) -> None:
        """Shrink the reserve to its size before `lend`."""
        before, self._size_before_loan = self._size_before_loan, 0
        if before:
            self.shrink_to(before)

    def give_step(self, error: OSError) -> None:
        """Free some space, because the disk has no room for a small file beside the log. If the reserve includes room
        for dividing batches among partitions, free 64 KiB of this room. Otherwise free the whole reserve.
        """
        if error.errno in NO_ROOM and self._size is not None and self._size > _MARKS_BYTES:
            self._shrink(self._size - _STEP_BYTES)
        else:
            self.give_up(error)

    def give_up(self, error: OSError) -> None:
        """Delete the reserve if `error` means that the disk is full, because a mark (log entry) needs the room."""
        if error.errno not in NO_ROOM or self._size == 0:
            return
        self._size = 0
        with contextlib.suppress(OSError):
            self._files.unlink(self._path)
            # The room is free only when the deletion is durable.
            self._files.sync_directory(self._lane)
            log.limited(
                logging.WARNING,
                "reserve_given_up",
                str(self._lane),
                "%s: the disk is full; the reserve was deleted to make room for marks",
                self._lane,
                lane=self._lane.name,
            )

    def restore_after_release(self, wanted: int) -> None:
        """If the reserve was deleted, create it again with `wanted` bytes or, without room for so many bytes, only for
        marks.
        """
        if self._size == 0 and not self.ensure(wanted):
            self.ensure(_MARKS_BYTES)

    @property
    def _path(self) -> Path:
        return self._lane / _NAME

    def _measure(self) -> int:
        """The size of the file. Only the first call asks the disk."""
        if self._size is None:
            self._size = 0
            if _NAME in self._files.list(self._lane):
                size = size_of(self._files, self._path)
                # A reserve that is too small for marks counts as missing.
                self._size = size if size >= _MARKS_BYTES else 0
        return self._size

    def _shrink(self, size: int) -> None:
        self._size = 0
        with contextlib.suppress(OSError):
            if size:
                with opened(self._files, self._path, write=True) as handle:
                    self._files.truncate(handle, size)
                    self._size = size
            else:
                self._files.unlink(self._path)

"""File access for reading lanes that another process uses. Once a segment was opened, it stays readable even after the
lane's owner deletes it.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final, Self

from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes.format import LANE
from kafkasafe.spool.segment import SEGMENT_NAME

_MOST: Final = 256
_TOO_MANY_OPEN: Final = frozenset({errno.EMFILE, errno.ENFILE})


class HeldSegments(OsFiles):
    """The operating system's files. Keeps the segments of lanes open after they were first read. Not thread-safe.

    The owner of a lane deletes its oldest segments first, and a reader of the lane opens them first. If there are too
    many segments, only the segments that were opened first are held. The end of the context closes all held segments.
    """

    __slots__ = ("_handles", "_most")

    def __init__(self) -> None:
        self._handles: dict[Path, int] = {}
        self._most = _MOST

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            super().close(self._handles.popitem()[1])

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """Opens a file. Opens a held segment again only if the name now belongs to another file."""
        if write or create or at is not None or not _is_segment(path):
            return self._open(path, write=write, create=create, at=at)
        handle = self._handles.get(path, -1)
        if handle >= 0:
            if self.identity_of(path) in {None, self.identity(handle)}:
                return handle
            super().close(self._handles.pop(path))
        handle = self._open(path)
        if len(self._handles) < self._most:
            self._handles[path] = handle
        return handle

    def _open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        while True:
            try:
                return super().open(path, write=write, create=create, at=at)
            except OSError as error:
                if error.errno not in _TOO_MANY_OPEN or not self._handles:
                    raise
            # Too many files are open, so close one of the held segments.
            super().close(self._handles.popitem()[1])
            self._most = len(self._handles)

    def close(self, handle: int) -> None:
        """Closes a handle, unless it is the handle of a held segment."""
        if handle not in self._handles.values():
            super().close(handle)


def _is_segment(path: Path) -> bool:
    return SEGMENT_NAME.fullmatch(path.name) is not None and LANE.fullmatch(path.parent.name) is not None

"""Holds the files of a lane's segments open, so that their content stays readable after the files are deleted or
renamed.

If the name of a segment no longer refers to the segment's file, the owner of the lane can write the content again, from
the open file.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Final

from kafkasafe.spool.files import Files, Identity, size_of, write_all
from kafkasafe.spool.segment import StoredSegment

_HELD: Final = 64
"""Maximum number of segments whose files are held open. If the file of any other segment is deleted or renamed, its
content may be lost.
"""
_READERS: Final = 16
"""Maximum number of further segments that stay open after they were read: the segments that were opened last."""
_COPY_BYTES: Final = 1024 * 1024
_UNREADABLE: Final = frozenset({errno.ENOENT, errno.EIO, errno.ESTALE})


class SegmentFiles:
    """Keeps the segment files of a lane open. Not thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: dict[int, int] = {}
        """The segments that are held open: first position → handle, in the order of opening."""
        self._readers: dict[int, int] = {}
        self._identities: dict[int, Identity] = {}

    def add(self, segment: StoredSegment, handle: int) -> None:
        """Adds a segment that was just created. `SegmentFiles` will close the handle.

        Raises:
            OSError: The file's identity cannot be determined. The handle is closed.
        """
        self._identities[segment.first_position] = self._identity(handle)
        self._held[segment.first_position] = handle

    def open(self, segment: StoredSegment) -> None:
        """Opens an existing segment. If too many files are open, the segment is not held open."""
        with contextlib.suppress(OSError):
            handle = self._files.open(segment.path)
            self._identities[segment.first_position] = self._identity(handle)
            if len(self._held) < _HELD:
                self._held[segment.first_position] = handle
            else:
                self._files.close(handle)

    def limit(self) -> None:
        """Note that the newest segment gets no more records. Closes the segment's file if too many files are open."""
        if len(self._held) > _HELD:
            at = next(reversed(self._held))
            self._files.close(self._held.pop(at))

    def handle(self, segment: StoredSegment) -> int:
        """Returns a handle for reading a segment.

        Raises:
            OSError: The segment cannot be opened, or another file has the segment's name.
        """
        at = segment.first_position
        handle = self._held.get(at, self._readers.get(at, -1))
        if handle >= 0:
            return handle
        while len(self._readers) >= _READERS:
            self._files.close(self._readers.pop(next(iter(self._readers))))
        handle = self._files.open(segment.path)
        identity = self._identity(handle)
        if self._identities.setdefault(at, identity) != identity:
            self._files.close(handle)
            raise FileNotFoundError(errno.ENOENT, "Another file has its name", str(segment.path))
        self._readers[at] = handle
        return handle

    def is_whole(self, segment: StoredSegment) -> bool:
        """Whether the segment's path still refers to the segment's file, and the file (if it is held open) was not cut.

        Raises:
            OSError: This cannot be determined.
        """
        if not self._is_named(segment):
            return False
        handle = self._held.get(segment.first_position, -1)
        return handle < 0 or self._files.size(handle) >= segment.size_bytes

    def write_again(self, segment: StoredSegment) -> bool:
        """Copies the content of the open file to a new file with the segment's name. Syncs the content, but not the
        name. Returns False if the content cannot be read.

        Raises:
            OSError: The content is not available under the name yet.
        """
        draft = segment.path.with_suffix(".new")
        handle = self._files.open(draft, write=True, create=True)
        try:
            self._files.truncate(handle, 0)
            for at in range(0, segment.size_bytes, _COPY_BYTES):
                content = self._content(segment, at, min(_COPY_BYTES, segment.size_bytes - at))
                if not content:
                    self._files.unlink(draft)
                    return False
                write_all(self._files, handle, [content], at)
            self._files.sync_data(handle)
            self.clear_name(segment.path)
            self._files.rename(draft, segment.path)
            identity = self._files.identity(handle)
            self._close(segment)
            self._identities[segment.first_position] = identity
            self._held[segment.first_position], handle = handle, -1
        finally:
            if handle >= 0:
                self._files.close(handle)
        return True

    def _content(self, segment: StoredSegment, at: int, size: int) -> bytes:
        """Reads `size` bytes from the byte `at`. The result is empty if the file has fewer bytes, or cannot be read.

        Raises:
            OSError: The bytes may be readable later.
        """
        try:
            content = self._files.read(self.handle(segment), at, size)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return b""
        return content if len(content) == size else b""

    def clear_name(self, path: Path) -> None:
        """Makes a segment's name free: moves a file with this name to quarantine/, or deletes it if it is empty.

        Raises:
            OSError: The file may still have the name.
        """
        try:
            if not size_of(self._files, path):
                self._files.unlink(path)
                return
        except FileNotFoundError:
            return
        folder = path.parent / "quarantine"
        self._files.make_directory(folder)
        number = sum(name.startswith(path.stem) for name in self._files.list(folder))
        self._files.rename(path, folder / f"{path.stem}-{number}.found")
        self._files.sync_directory(folder)

    def unlink(self, segment: StoredSegment) -> None:
        """Deletes a segment, but not another file that has the segment's name.

        Raises:
            OSError: The segment may still exist.
        """
        named = self._is_named(segment)
        self._close(segment)
        self._identities.pop(segment.first_position, None)
        if named:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(segment.path)

    def close(self) -> None:
        for handle in (*self._held.values(), *self._readers.values()):
            with contextlib.suppress(OSError):
                self._files.close(handle)
        self._held.clear()
        self._readers.clear()

    def _identity(self, handle: int) -> Identity:
        try:
            return self._files.identity(handle)
        except OSError:
            self._files.close(handle)
            raise

    def _is_named(self, segment: StoredSegment) -> bool:
        named = self._files.identity_of(segment.path)
        return named is not None and named == self._identities.get(segment.first_position, named)

    def _close(self, segment: StoredSegment) -> None:
        for handles in (self._held, self._readers):
            handle = handles.pop(segment.first_position, -1)
            if handle >= 0:
                with contextlib.suppress(OSError):
                    self._files.close(handle)

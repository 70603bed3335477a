"""The files of a lane's segments, held open: what is in them can be read, whatever becomes of their names.

A file that somebody deletes or renames stays what it is for the process that has it open. So the owner of a lane can
see that a name leads elsewhere, and write the file again from the one that it holds.
"""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import Final

from kafkasafe._io.files import Files, Identity, size_of, write_all
from kafkasafe._io.recovery import StoredSegment

__all__ = ["SegmentFiles"]

_HELD: Final = 64
"""So many segments are held open. The content of others is lost with their names."""
_READERS: Final = 16
"""So many of the others are open, those that were read last."""
_COPY_BYTES: Final = 1024 * 1024
_UNREADABLE: Final = frozenset({errno.ENOENT, errno.EIO, errno.ESTALE})


class SegmentFiles:
    """See the module. Not thread-safe."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._held: dict[int, int] = {}
        """By first position, in the order of opening."""
        self._readers: dict[int, int] = {}
        self._identities: dict[int, Identity] = {}

    def add(self, segment: StoredSegment, handle: int) -> None:
        """It was just created; the handle is ours from now on.

        Raises:
            OSError: Which file it is cannot be seen; it is closed.
        """
        self._identities[segment.first_position] = self._identity(handle)
        self._held[segment.first_position] = handle

    def open(self, segment: StoredSegment) -> None:
        """It was found. It is not held where too many files are open."""
        with contextlib.suppress(OSError):
            handle = self._files.open(segment.path)
            self._identities[segment.first_position] = self._identity(handle)
            if len(self._held) < _HELD:
                self._held[segment.first_position] = handle
            else:
                self._files.close(handle)

    def limit(self) -> None:
        """The newest one gets no more records: it is held as well, unless too many are."""
        if len(self._held) > _HELD:
            at = next(reversed(self._held))
            self._files.close(self._held.pop(at))

    def handle(self, segment: StoredSegment) -> int:
        """To read from.

        Raises:
            OSError: It cannot be opened, or another file has its name.
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
        """Whether its name leads to it, and it is not shorter than it was written.

        Raises:
            OSError: It cannot be seen.
        """
        if not self._is_named(segment):
            return False
        handle = self._held.get(segment.first_position, -1)
        return handle < 0 or self._files.size(handle) >= segment.size_bytes

    def write_again(self, segment: StoredSegment) -> bool:
        """Give it its name again, with what it holds, synced; the name is not. False where that cannot be read.

        Raises:
            OSError: It is not there under its name yet.
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
        """So many bytes; none where there are fewer, or none can be read.

        Raises:
            OSError: They may be read later.
        """
        try:
            content = self._files.read(self.handle(segment), at, size)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return b""
        return content if len(content) == size else b""

    def clear_name(self, path: Path) -> None:
        """What has the name of a segment and is none of ours gives way; it is kept unless it is empty.

        Raises:
            OSError: It may have the name still.
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
        """Delete a segment. What has its name stays if it is another file.

        Raises:
            OSError: It may be there still.
        """
        named = self._is_named(segment)
        self._close(segment)
        self._identities.pop(segment.first_position, None)
        if named:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(segment.path)

    def close(self) -> None:
        """Close them all."""
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

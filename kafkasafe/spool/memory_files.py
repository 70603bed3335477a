"""Files in memory, for `spool="never"`: lost when the process ends, and without system calls.

The journal needs a log for its marks, even with `spool="never"`. kafkasafe never reports data in memory files as
durable.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kafkasafe.spool.files import Buffer, Identity

_FREE_BYTES: Final = 1 << 60
"""Free space in bytes, practically unlimited, because `Pump.room` limits the amount of waiting data."""


class MemoryFiles:
    """Implements `kafkasafe.spool.files.Files` for one process. A file has at most one handle."""

    __slots__ = ("_directories", "_files", "_folders", "_handles", "_locked", "_next", "_numbers")

    def __init__(self) -> None:
        self._files: dict[Path, bytearray] = {}
        self._directories: set[Path] = set()
        self._handles: dict[int, tuple[bytearray, bool]] = {}
        self._folders: dict[int, Path] = {}
        """Open directories. Directories are never moved or removed."""
        self._locked: dict[int, bytearray] = {}
        self._numbers: dict[Path, int] = {}
        self._next = 0

    def create(self, path: Path, *, at: int | None = None) -> int:
        path = self._place(path, at)
        if path in self._files or path in self._directories:
            raise _error(errno.EEXIST, path)
        return self.open(path, write=True, create=True)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        path = self._place(path, at)
        if path in self._directories:
            raise _error(errno.EISDIR, path)
        if create and path not in self._files:
            self._see(path.parent)
            self._files[path] = bytearray()
        if path not in self._files:
            raise _error(errno.ENOENT, path)
        self._next += 1
        self._handles[self._next] = self._files[path], write
        return self._next

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        path = self._place(path, at)
        self._see(path)
        self._next += 1
        self._folders[self._next] = path
        return self._next

    def close(self, handle: int) -> None:
        self._locked.pop(handle, None)
        self._handles.pop(handle, None)
        self._folders.pop(handle, None)

    def identity(self, handle: int) -> Identity:
        path = self._folders.get(handle)
        return (0, id(self._handles[handle][0])) if path is None else self._identity(path)

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        path = self._place(path, at)
        if path in self._directories:
            return self._identity(path)
        content = self._files.get(path)
        return None if content is None else (0, id(content))

    def path_of(self, handle: int) -> Path | None:
        return self._folders.get(handle)

    def _identity(self, directory: Path) -> Identity:
        return 1, self._numbers.setdefault(directory, len(self._numbers))

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        content = self._writable(handle)
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        at = offset
        for buffer in buffers:
            content[at : at + len(buffer)] = buffer
            at += len(buffer)
        return at - offset

    def read(self, handle: int, offset: int, size: int) -> bytes:
        return bytes(self._handles[handle][0][offset : offset + size])

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        content = self.read(handle, offset, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def sync_data(self, handle: int) -> None:
        """Makes nothing durable."""

    def truncate(self, handle: int, size: int) -> None:
        content = self._writable(handle)
        del content[size:]
        content.extend(bytes(size - len(content)))

    def preallocate(self, handle: int, size: int) -> bool:  # noqa: ARG002
        return True

    def drop_cache(self, handle: int, size: int) -> None:
        """Does nothing, because these files are not on a disk."""

    def size(self, handle: int) -> int:
        return len(self._handles[handle][0])

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        directory = self._place(directory, at)
        self._see(directory)
        return [path.name for path in (*self._files, *self._directories) if path.parent == directory]

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        path = self._place(path, at)
        made = path not in self._directories
        self._directories.update((path, *path.parents))
        return made

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        self._see(self._place(path, at))

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        path = self._place(path, at)
        if self._files.pop(path, None) is None:
            raise _error(errno.ENOENT, path)

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """Only for files."""
        source = self._place(source, at)
        if source not in self._files:
            raise _error(errno.ENOENT, source)
        self._files[self._place(target, to)] = self._files.pop(source)

    def lock(self, handle: int) -> bool:
        content = self._handles[handle][0]
        if any(other is content for at, other in self._locked.items() if at != handle):
            return False
        self._locked[handle] = content
        return True

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:  # noqa: ARG002
        return _FREE_BYTES

    def _place(self, path: Path, at: int | None) -> Path:
        return path if at is None else self._folders[at] / path

    def _writable(self, handle: int) -> bytearray:
        content, writable = self._handles[handle]
        if not writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return content

    def _see(self, directory: Path) -> None:
        if directory not in self._directories:
            raise _error(errno.ENOENT, directory)


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))

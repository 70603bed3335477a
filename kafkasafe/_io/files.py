"""The seam between the spool and the disk: one small protocol, and the real thing behind it.

Everything a spool does to a disk goes through `Files`, so that tests can swap the disk for one that loses power,
runs full or lies (`kafkasafe.testing.disk`). Errors are `OSError`s; what they mean is decided by the spool.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

__all__ = [
    "IOV_MAX",
    "Buffer",
    "DirectoryFiles",
    "Files",
    "Identity",
    "OsFiles",
    "WholeFiles",
    "read_file",
    "read_whole",
    "replace_whole",
    "size_of",
    "write_all",
    "write_whole",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
Identity: TypeAlias = tuple[int, int]
"""Of a file or directory: (device, inode). Given again only when it was deleted and no process has it open."""

IOV_MAX: Final = 1024
"""Most buffers in one `writev`: Linux's limit, and what POSIX systems in use have at least."""

_FILE_MODE: Final = 0o600  # records are nobody else's business
_DIRECTORY_MODE: Final = 0o700
_FALLOC_FL_KEEP_SIZE: Final = 1
_HERE: Final = Path()


class Files(Protocol):
    """A disk. A handle is an int; all sizes and offsets are bytes. Not thread-safe per handle.

    Nothing is durable before the `sync_data` of the file, and no name before the `sync_directory` of its
    directory. After a failed `sync_data` what was written since the last good one is in an unknown state for
    ever: the kernel marks the pages clean, so a later success proves nothing about them.

    `at` is the handle of a directory (`open_directory`), to which a path that is not absolute is relative, as in
    openat(2). A handle stands for the directory itself: it stays with it when the directory is moved, and nothing can
    be created in it once it was removed.
    """

    def create(self, path: Path, *, at: int | None = None) -> int:
        """A new, empty file, open for reading and writing. FileExistsError if there is one."""

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """An existing file (with `create`: or a new one). FileNotFoundError if there is none."""

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        """An existing directory. NotADirectoryError where a file has the name."""

    def close(self, handle: int) -> None:
        """Close; releases the handle's lock."""

    def identity(self, handle: int) -> Identity:
        """Which file or directory this is: the same number for as long as it is open, whatever its name."""

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        """Which file or directory has this name; None if none has."""

    def path_of(self, handle: int) -> Path | None:
        """Where a directory is now, for people; None where it was deleted, or the system does not tell."""

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most `IOV_MAX` buffers at an offset, as one system call; how much was written, maybe less."""

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Up to `size` bytes from an offset: fewer only at the end of the file."""

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        """Fill a buffer with the bytes from an offset; how many there were: fewer only at the end of the file."""

    def sync_data(self, handle: int) -> None:
        """fdatasync: contents and size are durable on return."""

    def truncate(self, handle: int, size: int) -> None:
        """Cut at `size`; also gives back space reserved behind it."""

    def preallocate(self, handle: int, size: int) -> bool:
        """Reserve space without changing the file's size; False where that cannot be done. Never raises."""

    def size(self, handle: int) -> int:
        """Size of an open file."""

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        """Names in a directory, in no order."""

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        """Make a directory and its parents; False if it was there. Its name is durable on return in any case."""

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        """Makes the names in a directory durable."""

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        """Delete a file."""

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """Rename a file or directory; replaces the target, a file or an empty directory, atomically.

        Args:
            source: Its name until now.
            target: Its name from now on, in the same file system: OSError (EXDEV) elsewhere.
            at: Directory of `source`.
            to: Directory of `target`.
        """

    def lock(self, handle: int) -> bool:
        """flock(2), exclusive, without waiting; False if somebody else has it."""

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        """Space that is left for us on the file system of `path`."""


class OsFiles:
    """The operating system's files."""

    __slots__ = ()

    def create(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE, dir_fd=at)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """See `Files`."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        # A pipe in the place of a file is not waited for.
        handle = os.open(path, flags | os.O_NONBLOCK, _FILE_MODE, dir_fd=at)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        return handle

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)

    def close(self, handle: int) -> None:
        """See `Files`."""
        os.close(handle)

    def identity(self, handle: int) -> Identity:
        """See `Files`."""
        found = os.fstat(handle)
        return found.st_dev, found.st_ino

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        """See `Files`."""
        try:
            found = os.stat(path, dir_fd=at)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def path_of(self, handle: int) -> Path | None:
        """See `Files`."""
        try:
            path = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
            same = self.identity_of(Path(path)) == self.identity(handle)
        except OSError:
            return None
        return Path(path) if same else None

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See `Files`."""
        return os.pwritev(handle, buffers, offset)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """See `Files`."""
        content = os.pread(handle, size, offset)
        if len(content) in {0, size}:
            return content
        pieces = [content]
        missing = size - len(content)
        while missing and (content := os.pread(handle, missing, offset + size - missing)):
            pieces.append(content)
            missing -= len(content)
        return b"".join(pieces)

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        """See `Files`."""
        done = 0
        with memoryview(buffer) as view:
            while done < len(view):
                with view[done:] as missing:
                    more = os.preadv(handle, [missing], offset + done)
                if not more:
                    break
                done += more
        return done

    def sync_data(self, handle: int) -> None:
        """See `Files`."""
        _fdatasync(handle)

    def truncate(self, handle: int, size: int) -> None:
        """See `Files`."""
        os.ftruncate(handle, size)

    def preallocate(self, handle: int, size: int) -> bool:
        """See `Files`. 1 MB writes with fdatasync are 10–20 % faster into reserved space (ext4, measured).

        posix_fallocate() cannot be used: it changes the size, and Kafka's tools stop at a tail of zeros.
        """
        if _fallocate is None:
            return False
        while _fallocate(handle, _FALLOC_FL_KEEP_SIZE, 0, size):
            code = ctypes.get_errno()
            if code == errno.EINTR:
                continue
            if code == errno.ENOSPC:
                # What was reserved before space ran out would be missing elsewhere.
                os.ftruncate(handle, os.fstat(handle).st_size)
            return False
        return True

    def size(self, handle: int) -> int:
        """See `Files`."""
        return os.fstat(handle).st_size

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        """See `Files`."""
        if at is None:
            return os.listdir(directory)  # noqa: PTH208
        handle = self.open_directory(directory, at=at)
        try:
            return os.listdir(handle)  # noqa: PTH208
        finally:
            os.close(handle)

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        """See `Files`."""
        missing = []
        there = path
        while not _is_directory(there, at):
            missing.append(there)
            there = there.parent
        # Whoever made this one may have died before its name was durable. Where its parent is closed to us, somebody
        # else made it, long ago.
        with contextlib.suppress(PermissionError):
            self.sync_directory(there.parent, at=at)
        made = False
        for directory in reversed(missing):
            try:
                os.mkdir(directory, _DIRECTORY_MODE, dir_fd=at)
                made = True
            except FileExistsError:
                if not _is_directory(directory, at):
                    raise
            self.sync_directory(directory.parent, at=at)
        return made

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        handle = self.open_directory(path, at=at)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        os.unlink(path, dir_fd=at)

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """See `Files`."""
        os.rename(source, target, src_dir_fd=at, dst_dir_fd=to)

    def lock(self, handle: int) -> bool:
        """See `Files`."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        if at is None:
            status = os.statvfs(path)
        else:
            handle = self.open_directory(path, at=at)
            try:
                status = os.fstatvfs(handle)
            finally:
                os.close(handle)
        return status.f_bavail * status.f_frsize


def _is_directory(path: Path, at: int | None) -> bool:
    """As `Path.is_dir`. The end of a relative path, `.`, is one, or its parents would be looked for for ever."""
    try:
        return stat.S_ISDIR(os.stat(path, dir_fd=at).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        if path == path.parent:
            raise
        return False


class DirectoryFiles:
    """A disk on which one directory is held by its handle: its path leads to it wherever it is moved.

    The other paths are those of the disk. Implements `Files`; paths below `path` resolve relative to the handle.

    Attributes:
        path: The directory's path when it was opened, or as `now_at` says.
    """

    __slots__ = ("_below", "_files", "_handle", "path")

    def __init__(self, files: Files, path: Path, handle: int) -> None:
        self._files = files
        self.now_at(path, handle)

    def now_at(self, path: Path, handle: int) -> None:
        """Another path, or another directory, from now on. The caller closes the former handle."""
        self.path = path
        self._handle = handle
        self._below = f"{path}/"

    def _place(self, path: Path) -> tuple[Path, int | None]:
        text = str(path)
        if text.startswith(self._below):
            return Path(text[len(self._below) :]), self._handle
        if path == self.path:
            return _HERE, self._handle
        return path, None

    def create(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        return self._files.create(path, at=at)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        return self._files.open(path, write=write, create=create, at=at)

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        return self._files.open_directory(path, at=at)

    def close(self, handle: int) -> None:
        """See `Files`."""
        self._files.close(handle)

    def identity(self, handle: int) -> Identity:
        """See `Files`."""
        return self._files.identity(handle)

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        return self._files.identity_of(path, at=at)

    def path_of(self, handle: int) -> Path | None:
        """See `Files`."""
        return self._files.path_of(handle)

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See `Files`."""
        return self._files.writev(handle, buffers, offset)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """See `Files`."""
        return self._files.read(handle, offset, size)

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        """See `Files`."""
        return self._files.read_into(handle, offset, buffer)

    def sync_data(self, handle: int) -> None:
        """See `Files`."""
        self._files.sync_data(handle)

    def truncate(self, handle: int, size: int) -> None:
        """See `Files`."""
        self._files.truncate(handle, size)

    def preallocate(self, handle: int, size: int) -> bool:
        """See `Files`."""
        return self._files.preallocate(handle, size)

    def size(self, handle: int) -> int:
        """See `Files`."""
        return self._files.size(handle)

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        """See `Files`."""
        if at is None:
            directory, at = self._place(directory)
        return self._files.list(directory, at=at)

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        return self._files.make_directory(path, at=at)

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        self._files.sync_directory(path, at=at)

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        self._files.unlink(path, at=at)

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """See `Files`."""
        if at is None:
            source, at = self._place(source)
        if to is None:
            target, to = self._place(target)
        self._files.rename(source, target, at=at, to=to)

    def lock(self, handle: int) -> bool:
        """See `Files`."""
        return self._files.lock(handle)

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        if at is None:
            path, at = self._place(path)
        return self._files.free_bytes(path, at=at)


def read_file(files: Files, path: Path, start: int = 0, end: int | None = None) -> bytes:
    """A file's bytes from `start` to `end` (default: its end).

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
    """
    handle = files.open(path)
    try:
        return files.read(handle, start, (files.size(handle) if end is None else end) - start)
    finally:
        files.close(handle)


class WholeFiles:
    """Reads one file after the other into the same memory.

    The memory of a large file is new to the process, and the kernel clears each page of it when it is touched first.
    That takes longer than to copy the bytes.
    """

    __slots__ = ("_buffer", "_files")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._buffer = bytearray()

    def read(self, path: Path) -> bytearray:
        """A file's bytes, until the next call.

        Raises:
            FileNotFoundError: There is none.
            OSError: It cannot be read.
        """
        handle = self._files.open(path)
        try:
            size = self._files.size(handle)
            buffer = self._sized(size)
            done = self._files.read_into(handle, 0, buffer)
        finally:
            self._files.close(handle)
        del buffer[done:]
        return buffer

    def _sized(self, size: int) -> bytearray:
        try:
            self._buffer.append(0)
            del self._buffer[size:]
        except BufferError:
            # A memoryview of the file before still exists: its bytes stay as they are.
            self._buffer = bytearray()
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return self._buffer


def read_whole(files: Files, path: Path) -> bytes | None:
    """A small file's content; None if there is none.

    Raises:
        OSError: It cannot be read.
    """
    try:
        return read_file(files, path)
    except FileNotFoundError:
        return None


def size_of(files: Files, path: Path) -> int:
    """Bytes in a file.

    Raises:
        OSError: There is none, or it cannot be opened.
    """
    handle = files.open(path)
    try:
        return files.size(handle)
    finally:
        files.close(handle)


def write_all(files: Files, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
    """All of it, in as few system calls as the system allows. Nothing is durable before `sync_data`.

    Raises:
        OSError: A part of it may have been written.
    """
    rest: list[Buffer] = [buffer for buffer in buffers if len(buffer)]
    while rest:
        written = files.writev(handle, rest[:IOV_MAX], offset)
        if written <= 0:
            raise OSError(errno.EIO, "nothing was written")
        offset += written
        done = 0
        while done < len(rest) and written >= len(rest[done]):
            written -= len(rest[done])
            done += 1
        rest = rest[done:]
        if written:
            rest[0] = memoryview(rest[0])[written:]


def write_whole(files: Files, path: Path, content: bytes) -> None:
    """Makes a file, or writes it anew. What is in it is durable on return; its name is once its directory is synced.

    Raises:
        OSError: It could not be written; of the old content nothing may be left.
    """
    handle = files.open(path, write=True, create=True)
    try:
        files.truncate(handle, 0)
        write_all(files, handle, [content], 0)
        files.sync_data(handle)
    finally:
        files.close(handle)


def replace_whole(files: Files, path: Path, content: bytes) -> None:
    """Gives a small file another content; durable on return. Whatever happens, it has the old one or the new one.

    Raises:
        OSError: It could not be written; the old content stands, or the new one does and may not survive a power cut.
    """
    beside = path.with_name(path.name + ".new")
    write_whole(files, beside, content)
    files.rename(beside, path)
    files.sync_directory(path.parent)


# macOS has no fdatasync; its fsync is at least as strong.
_fdatasync = getattr(os, "fdatasync", os.fsync)


def _load_fallocate() -> Any:
    """Glibc's fallocate(2), None where there is none (musl has it, macOS has not)."""
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function


_fallocate: Final = _load_fallocate()

"""The interface between the spool and the disk (`Files`, a `typing.Protocol`), and its implementation on the real disk.

The spool accesses the disk only through `Files`, so tests can replace the real disk with a disk that loses power, fills
up or lies (`kafkasafe.testing.disk`). A failed operation raises an OSError, and the spool decides what the error means.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Identity: TypeAlias = tuple[int, int]
"""(device, inode) of a file or directory. The system reuses an identity only after the file was deleted and no process
has the file open any more.
"""

IOV_MAX: Final = 1024
"""Maximum number of buffers in one `writev` on Linux; other POSIX systems in use allow at least as many."""

_FILE_MODE: Final = 0o600  # other users must not read records
_DIRECTORY_MODE: Final = 0o700
_FALLOC_FL_KEEP_SIZE: Final = 1
_HERE: Final = Path()
_PLACES: Final = 64
"""Maximum number of resolved paths that `DirectoryFiles` keeps: writing a spool group uses the same few paths each
time.
"""


class Files(Protocol):
    """A disk. A handle is an int; all sizes and offsets are in bytes. A handle must not be used by two threads at once.

    A file's content is durable only after `sync_data` of the file. A name is durable only after `sync_directory` of its
    directory. After a failed `sync_data`, data written since the last successful `sync_data` may not be durable. The
    kernel has marked the pages of these data as clean, so even a later successful `sync_data` proves nothing about
    them.

    `at` is the handle of a directory (`open_directory`). Relative paths start from this directory, as in openat(2). The
    handle refers to the directory itself, even after the directory is moved. After the directory was removed, no file
    can be created in it.
    """

    def create(self, path: Path, *, at: int | None = None) -> int:
        """Creates an empty file, open for reading and writing. FileExistsError if it exists."""

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """Opens an existing file; with `create`, creates it if necessary. FileNotFoundError if it does not exist."""

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        """Opens an existing directory. NotADirectoryError if the path is a file."""

    def close(self, handle: int) -> None:
        """Closes a handle, and releases its lock."""

    def identity(self, handle: int) -> Identity:
        """The identity of an open file or directory, which a rename does not change."""

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        """The identity of the file or directory with this name; None if the name does not exist."""

    def path_of(self, handle: int) -> Path | None:
        """A directory's current path, for messages; None if the directory was deleted, or the system does not report
        the path.
        """

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Writes at most `IOV_MAX` buffers at an offset in one system call. Returns how many bytes were written."""

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """Reads up to `size` bytes from an offset. Returns fewer bytes only at the end of the file."""

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        """Fills `buffer` from `offset`. Returns the number of bytes read: fewer than the size of `buffer` only at the
        end of the file.
        """

    def sync_data(self, handle: int) -> None:
        """fdatasync: contents and size are durable on return."""

    def truncate(self, handle: int, size: int) -> None:
        """Truncates the file to `size` bytes, and frees space that was reserved after its end."""

    def preallocate(self, handle: int, size: int) -> bool:
        """Reserves space without changing the file's size. Returns False if this fails. Never raises."""

    def drop_cache(self, handle: int, size: int) -> None:
        """Tells the system that the first `size` bytes of a file will probably not be read soon.

        These bytes must be durable, because the system may drop them from its page cache. Never raises.
        """

    def size(self, handle: int) -> int:
        """Size of an open file."""

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        """The names of the entries of a directory, in no particular order."""

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        """Creates a directory and its parents, with durable names. Returns False if the directory existed."""

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        """Makes the names in a directory durable."""

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        """Deletes a file."""

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """Renames a file or directory. If `target` is a file or an empty directory, replaces it atomically.

        Args:
            source: The old name.
            target: The new name, in the same file system; otherwise OSError (EXDEV).
            at: Handle of the directory to which the path `source` is relative.
            to: Handle of the directory to which the path `target` is relative.
        """

    def lock(self, handle: int) -> bool:
        """Takes an exclusive flock(2) without waiting. Returns False if the file is already locked."""

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        """Space available to this user on the file system of `path`."""


class OsFiles:
    """The operating system's files. `Files` documents the methods."""

    __slots__ = ()

    def create(self, path: Path, *, at: int | None = None) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _FILE_MODE, dir_fd=at)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        # With O_NONBLOCK, opening does not wait if the path is a pipe.
        handle = os.open(path, flags | os.O_NONBLOCK, _FILE_MODE, dir_fd=at)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        return handle

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)

    def close(self, handle: int) -> None:
        os.close(handle)

    def identity(self, handle: int) -> Identity:
        found = os.fstat(handle)
        return found.st_dev, found.st_ino

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        try:
            found = os.stat(path, dir_fd=at)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino

    def path_of(self, handle: int) -> Path | None:
        try:
            path = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
            same = self.identity_of(Path(path)) == self.identity(handle)
        except OSError:
            return None
        return Path(path) if same else None

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return os.pwritev(handle, buffers, offset)

    def read(self, handle: int, offset: int, size: int) -> bytes:
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
        _fdatasync(handle)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def preallocate(self, handle: int, size: int) -> bool:
        """With reserved space, 1 MB writes with fdatasync are 10–20 % faster (measured on ext4).

        posix_fallocate() is not an option: it extends the file with zeros, and Kafka's tools cannot read past these
        zeros.
        """
        if _fallocate is None:
            return False
        while _fallocate(handle, _FALLOC_FL_KEEP_SIZE, 0, size):
            code = ctypes.get_errno()
            if code == errno.EINTR:
                continue
            if code in {errno.ENOSPC, errno.EDQUOT}:
                # The disk or the quota became full before all of the space was reserved. Free the reserved part for
                # other files.
                os.ftruncate(handle, os.fstat(handle).st_size)
            return False
        return True

    def drop_cache(self, handle: int, size: int) -> None:
        # Keep the last page. Otherwise the next write would have to read this page from the disk, to complete it.
        size -= size % mmap.PAGESIZE
        if _fadvise is not None and size:
            with contextlib.suppress(OSError):
                _fadvise(handle, 0, size, _DONTNEED)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        if at is None:
            return os.listdir(directory)  # noqa: PTH208
        handle = self.open_directory(directory, at=at)
        try:
            return os.listdir(handle)  # noqa: PTH208
        finally:
            os.close(handle)

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        missing = []
        there = path
        while not _is_directory(there, at):
            missing.append(there)
            there = there.parent
        # The process that created this directory may have died before the directory's name was durable. Without
        # permission to read the parent, this process cannot sync it, but then another user probably created the
        # directory long ago.
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
        handle = self.open_directory(path, at=at)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        os.unlink(path, dir_fd=at)

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        os.rename(source, target, src_dir_fd=at, dst_dir_fd=to)

    def lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
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
    """Like `Path.is_dir`, but raises if `path` does not exist and has no parent (`/` or `.`), so that a search for
    existing parents ends.
    """
    try:
        return stat.S_ISDIR(os.stat(path, dir_fd=at).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        if path == path.parent:
            raise
        return False


class DirectoryFiles:
    """A disk on which one path always refers to the same open directory, even after the directory was moved.

    `DirectoryFiles` resolves paths below `path` relative to the handle of the directory, and passes on all other paths
    unchanged. Implements `Files`.

    Attributes:
        path: The path that refers to the open directory.
    """

    __slots__ = ("_below", "_files", "_handle", "_places", "path")

    def __init__(self, files: Files, path: Path, handle: int) -> None:
        self._files = files
        self.now_at(path, handle)

    def now_at(self, path: Path, handle: int) -> None:
        """From now on, resolve paths below `path` relative to the open directory `handle`. The caller must close the
        former handle.
        """
        self.path = path
        self._handle = handle
        self._below = f"{path}/"
        self._places: dict[Path, tuple[Path, int | None]] = {}

    def _place(self, path: Path, at: int | None) -> tuple[Path, int | None]:
        if at is not None:
            return path, at
        places = self._places  # keep this dict: `now_at` replaces the attribute
        place = places.get(path)
        if place is None:
            if len(places) >= _PLACES:
                places.clear()
            place = places[path] = self._find_place(path)
        return place

    def _find_place(self, path: Path) -> tuple[Path, int | None]:
        text = str(path)
        if text.startswith(self._below):
            return Path(text[len(self._below) :]), self._handle
        if path == self.path:
            return _HERE, self._handle
        return path, None

    def create(self, path: Path, *, at: int | None = None) -> int:
        path, at = self._place(path, at)
        return self._files.create(path, at=at)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        path, at = self._place(path, at)
        return self._files.open(path, write=write, create=create, at=at)

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        path, at = self._place(path, at)
        return self._files.open_directory(path, at=at)

    def close(self, handle: int) -> None:
        self._files.close(handle)

    def identity(self, handle: int) -> Identity:
        return self._files.identity(handle)

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        path, at = self._place(path, at)
        return self._files.identity_of(path, at=at)

    def path_of(self, handle: int) -> Path | None:
        return self._files.path_of(handle)

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        return self._files.writev(handle, buffers, offset)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        return self._files.read(handle, offset, size)

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        return self._files.read_into(handle, offset, buffer)

    def sync_data(self, handle: int) -> None:
        self._files.sync_data(handle)

    def truncate(self, handle: int, size: int) -> None:
        self._files.truncate(handle, size)

    def preallocate(self, handle: int, size: int) -> bool:
        return self._files.preallocate(handle, size)

    def drop_cache(self, handle: int, size: int) -> None:
        self._files.drop_cache(handle, size)

    def size(self, handle: int) -> int:
        return self._files.size(handle)

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        directory, at = self._place(directory, at)
        return self._files.list(directory, at=at)

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        path, at = self._place(path, at)
        return self._files.make_directory(path, at=at)

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        path, at = self._place(path, at)
        self._files.sync_directory(path, at=at)

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        path, at = self._place(path, at)
        self._files.unlink(path, at=at)

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        source, at = self._place(source, at)
        target, to = self._place(target, to)
        self._files.rename(source, target, at=at, to=to)

    def lock(self, handle: int) -> bool:
        return self._files.lock(handle)

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        path, at = self._place(path, at)
        return self._files.free_bytes(path, at=at)


@contextlib.contextmanager
def opened(files: Files, path: Path, *, write: bool = False, create: bool = False) -> Iterator[int]:
    """Context manager: opens a file, yields its handle, and closes the file at the end.

    Raises:
        FileNotFoundError: The file does not exist, and `create` is false.
        OSError: The file cannot be opened.
    """
    handle = files.open(path, write=write, create=create)
    try:
        yield handle
    finally:
        files.close(handle)


def read_file(files: Files, path: Path, start: int = 0, end: int | None = None) -> bytes:
    """Reads a file's bytes from `start` to `end` (default: the end of the file).

    Raises:
        FileNotFoundError: The file does not exist.
        OSError: The file cannot be read.
    """
    with opened(files, path) as handle:
        return files.read(handle, start, (files.size(handle) if end is None else end) - start)


class WholeFiles:
    """Reads files one after another into the same memory.

    New memory for a large file is slow: the kernel clears each new page, which takes longer than copying the bytes.
    """

    __slots__ = ("_buffer", "_files")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._buffer = bytearray()

    def read(self, path: Path) -> bytearray:
        """Returns a file's bytes, which are valid until the next call.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: The file cannot be read.
        """
        with opened(self._files, path) as handle:
            size = self._files.size(handle)
            buffer = self._sized(size)
            done = self._files.read_into(handle, 0, buffer)
        del buffer[done:]
        return buffer

    def _sized(self, size: int) -> bytearray:
        try:
            self._buffer.append(0)
            del self._buffer[size:]
        except BufferError:
            # A memoryview of the previous file's bytes still exists, so these bytes must not change. Use new memory.
            self._buffer = bytearray()
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        return self._buffer


def read_whole(files: Files, path: Path) -> bytes | None:
    """Returns a small file's content; None if the file does not exist.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        return read_file(files, path)
    except FileNotFoundError:
        return None


def size_of(files: Files, path: Path) -> int:
    """Returns the size of a file in bytes.

    Raises:
        OSError: The file does not exist, or cannot be opened.
    """
    with opened(files, path) as handle:
        return files.size(handle)


def write_all(files: Files, handle: int, buffers: Sequence[Buffer], offset: int) -> None:
    """Writes all buffers, with as few system calls as possible. The data are durable only after `sync_data`.

    Raises:
        OSError: Some bytes could not be written. Other bytes may have been written.
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
    """Creates or overwrites a file. The content is durable on return, the name only after its directory is synced.

    Raises:
        OSError: The content could not be written. The old content may be lost.
    """
    with opened(files, path, write=True, create=True) as handle:
        files.truncate(handle, 0)
        write_all(files, handle, [content], 0)
        files.sync_data(handle)


def replace_whole(files: Files, path: Path, content: bytes) -> None:
    """Atomically replaces a small file's content. Durable on return.

    Raises:
        OSError: An operation failed. The file has either the old or the new content; the new content may be undone by a
            power failure.
    """
    beside = path.with_name(path.name + ".new")
    write_whole(files, beside, content)
    files.rename(beside, path)
    files.sync_directory(path.parent)


# macOS has no posix_fadvise.
_fadvise = getattr(os, "posix_fadvise", None)
_DONTNEED: Final[int] = getattr(os, "POSIX_FADV_DONTNEED", 0)
# macOS has no fdatasync; its fsync is at least as strong.
_fdatasync = getattr(os, "fdatasync", os.fsync)


def _load_fallocate() -> Any:
    """Returns the C library's function fallocate(2), or None if the C library has no such function (as on macOS)."""
    try:
        function = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function


_fallocate: Final = _load_fallocate()

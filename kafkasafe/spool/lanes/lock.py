"""The lock of a lane, whose holder owns the lane. The lock stays valid when the directory is moved. A forked child does
not inherit the lock.
"""

from __future__ import annotations

import contextlib
import enum
import os
import weakref
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from kafkasafe.errors import LaneBusyError
from kafkasafe.process.locks import new_rlock
from kafkasafe.spool.files import DirectoryFiles, Files

LOCK_NAME: Final = Path("lock")


class LockedDirectory(Protocol):
    """The methods of a spool directory that a lane's lock calls."""

    files: Files

    @property
    def whole(self) -> bool:
        """Whether the spool directory's files outside the lanes exist, and FORMAT is intact."""

    def lane_path(self, number: int) -> Path:
        """Returns the directory of a lane."""

    def owner(self, number: int) -> tuple[int, str]:
        """(pid, text) of a lane's lock file; (0, "") if the file has no text."""

    def restore(self, lock: LaneLock | None = None) -> None:
        """Creates the missing parts of the directory, and puts a lane at its path."""


_held: weakref.WeakSet[LaneLock] = weakref.WeakSet()
_lockable: set[tuple[Files, int]] = set()
"""Every open file that is locked or about to be locked."""
_forking = new_rlock()
"""Held during a fork, and while `_lockable` changes. A flock belongs to the open file, not to the process. So a forked
child must close all inherited lock files, which are in `_lockable`. Otherwise the locks would stay held until the child
ends, even after the parent has released them.
"""


def open_lockable(files: Files, path: Path, *, create: bool = False, at: int | None = None) -> int:
    with _forking:
        handle = files.open(path, write=True, create=create, at=at)
        _lockable.add((files, handle))
    return handle


def close_lockable(files: Files, handle: int) -> None:
    with _forking:
        _lockable.discard((files, handle))
        files.close(handle)


class DirectoryStanding(enum.Enum):
    """Where the directory of a locked lane is now."""

    HERE = "here"
    """The lane's path refers to the locked directory, and the directory's entry `lock` is the locked file."""
    UNLOCKED = "unlocked"
    """The lane's path refers to the locked directory, but the directory's entry `lock` is not the locked file. Another
    process may own the lane.
    """
    MOVED = "moved"
    """The locked directory was moved, with its lock file. The lane's path does not exist, or refers to another
    directory.
    """
    DELETED = "deleted"
    """The lock file was deleted. The lane's path does not exist, or refers to another directory."""


class LaneLock:
    """The ownership of one lane, until `release` or the end of the process.

    A `LaneLock` keeps the locked directory open, and so stays valid when the directory is moved.

    Attributes:
        path: The lane's directory.
        number: The lane's number.
        client: Client id of the producer that wrote the lane's records; empty if unknown.
        files: The disk. Paths below `path` are resolved inside the locked directory.
        home: The spool directory that the lane belongs to.
        lost: Whether the lock was deleted and another process owns the lane. If so, this process must not write any
            more.
    """

    __slots__ = (
        "__weakref__",
        "_directory",
        "_handle",
        "_identities",
        "_on",
        "_said",
        "_text",
        "client",
        "files",
        "home",
        "lost",
        "number",
        "path",
    )

    def __init__(
        self,
        home: LockedDirectory,
        number: int,
        *,
        directory: int,
        handle: int,
        text: str,
        client: str,
    ) -> None:
        self.home = home
        self._on = home.files
        self.lost = False
        self._text = text
        self._said = ""
        self.client = client
        self.files = DirectoryFiles(self._on, home.lane_path(number), directory)
        self._stands(number, directory, handle)
        _held.add(self)

    def _stands(self, number: int, directory: int, handle: int) -> None:
        """Sets the lane's new number, directory and lock."""
        self.number = number
        self.path = self.home.lane_path(number)
        self._directory = directory
        self._handle = handle
        self._identities = self._on.identity(directory), self._on.identity(handle)
        self.files.now_at(self.path, directory)

    @property
    def held(self) -> bool:
        """Whether this process holds the lock: false after `release`, and in a forked child."""
        return self._handle >= 0

    @property
    def standing(self) -> DirectoryStanding:
        """Where the locked directory is now. Takes two system calls.

        Raises:
            OSError: The place cannot be determined.
        """
        directory, lock = self._identities
        named = self._on.identity_of(self.path) == directory
        locked = self._on.identity_of(LOCK_NAME, at=self._directory) == lock
        if named:
            return DirectoryStanding.HERE if locked else DirectoryStanding.UNLOCKED
        return DirectoryStanding.MOVED if locked else DirectoryStanding.DELETED

    @property
    def directory(self) -> int:
        """Handle of the directory that was locked, wherever it is now."""
        return self._directory

    def is_directory(self, identity: tuple[int, int] | None) -> bool:
        """Whether a file with this identity is the directory that was locked."""
        return identity == self._identities[0]

    def fetched(self, number: int) -> None:
        """Note that the directory was moved back into the spool directory, as the lane with this number."""
        self._stands(number, self._directory, self._handle)

    @property
    def found_at(self) -> Path | None:
        """The directory's current path, for messages; None if the directory was deleted, or the system does not report
        the path.
        """
        return self._on.path_of(self._directory)

    def announce(self, position: int) -> None:
        """Writes the position where this incarnation begins into the lock file. Records at lower positions belong to
        earlier incarnations.
        """
        self.write(f"{self._text} from {position}\n")

    def release(self, *, drained: bool = True) -> None:
        """Releases the lane, so that other processes can own it.

        Args:
            drained: Whether no record waits in the lane. If records wait, the lock file gets the client id, so that a
                producer with this client id prefers the lane.
        """
        if self._handle < 0:
            return
        if not self.lost:
            self.write("" if drained or not self.client else f"client {quote(self.client)}\n")
        handle, self._handle = self._handle, -1
        give_up(self._on, self._directory, handle)

    def write(self, text: str) -> None:
        """Replaces the text in the lock file, unless the disk is full."""
        self._said = text
        # The lock also works without the text, for example on a full disk.
        with contextlib.suppress(OSError):
            if self._handle >= 0:
                self._on.truncate(self._handle, 0)
                if text:
                    self._on.writev(self._handle, [text.encode()], 0)

    def lock_again(self) -> None:
        """After the locked file was deleted or replaced, creates the file `lock` if necessary, and locks it.

        Raises:
            LaneBusyError: Another process has locked the file first.
            OSError: The lock file cannot be created.
        """
        handle = open_lockable(self._on, LOCK_NAME, create=True, at=self._directory)
        if not self._on.lock(handle):
            close_lockable(self._on, handle)
            self.lost = True
            pid, _ = self.home.owner(self.number)
            raise LaneBusyError(
                f"The lock of {self.path} was deleted, and {f'process {pid}' if pid else 'another process'} took the"
                " lane: it delivers the records on disk. This producer ends. No record that was promised is lost",
                pid=pid,
            )
        with contextlib.suppress(OSError):
            close_lockable(self._on, self._handle)
        self._stands(self.number, self._directory, handle)
        self.write(self._said)

    def replace(self, number: int, directory: int, handle: int) -> None:
        """Replaces the deleted directory: `directory` is a new, empty directory, and `handle` is its lock."""
        give_up(self._on, self._directory, self._handle)
        self._stands(number, directory, handle)
        self.write(self._said)

    def leave_to_parent(self) -> None:
        """In a forked child, forgets the lock file. The parent still owns the lane."""
        self._handle = -1


def give_up(files: Files, directory: int, handle: int) -> None:
    """Closes the handles of a lane's directory and lock."""
    with contextlib.suppress(OSError):
        close_lockable(files, handle)
    with contextlib.suppress(OSError):
        files.close(directory)


def _after_fork() -> None:
    """In a forked child, closes the parent's locks. The child must not unlock the files, which would release the
    parent's locks, too.
    """
    for lock in list(_held):
        lock.leave_to_parent()
    while _lockable:
        files, handle = _lockable.pop()
        # Whatever error a disk raises, continue with the next lock.
        with contextlib.suppress(BaseException):
            files.close(handle)
    _forking.release()


if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork)

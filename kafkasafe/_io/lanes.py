"""A spool directory and its lanes, and their owners.

The process that holds the flock(2) on a lane's lock file owns the lane. The kernel releases the lock when the process
dies, for whatever reason. So a dead process never owns a lane, and two running ones never own the same. A forked child
inherits the open lock file. It closes its copy at once, which does not release the parent's lock.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import platform
import re
import shlex
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from kafkasafe._io.files import DirectoryFiles, Files
from kafkasafe.errors import LaneBusyError, SpoolCorruptError, SpoolError, SpoolFormatError

__all__ = ["LaneLock", "SpoolDirectory", "Standing", "format_lost", "lane_name"]

_FORMAT: Final = re.compile(rb"kafkasafe-spool (\d+)\n")
_VERSION: Final = 1
_LANE: Final = re.compile(r"lane-(\d{3,})")
_CLUSTER: Final = re.compile(r"[!-~]{1,200}")
"""The id of a cluster: in all current versions a UUID in base64, in old ones any printable characters."""
_MAX_LANES: Final = 1000
_BIRTH_TRIES: Final = 250  # 5 s
_TAKE_TRIES: Final = 10
_BACK_S: Final = 3.0
_BACK_BY_NUMBER_S: Final = 20.0
"""How long to wait for a lane that a sibling has adopted: any of them, or the requested one."""
_BACK_PAUSE_S: Final = 0.02
_LOCK: Final = Path("lock")
_NOBODY: Final = "-"
_NO_LANE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EISDIR})
"""Errors that mean that a path is not a lane, or that a lane has no segments."""
_BIND_TRIES: Final = 250  # 5 s
_OURS: Final = frozenset({"lost+found", "CLUSTER", "RESEND"})
"""What a directory may contain, apart from lanes, to become a spool directory. A file system's root has the first."""

_held: weakref.WeakSet[LaneLock] = weakref.WeakSet()
_lockable: set[tuple[Files, int]] = set()
"""Every open file that is locked or about to be locked."""
_forking = threading.RLock()
"""Held during a fork, and while `_lockable` changes. A lock belongs to the open file, not to the process. So a
child that inherited an unknown one would hold the lock until the child ends."""


def _open_lockable(files: Files, path: Path, *, create: bool = False, at: int | None = None) -> int:
    with _forking:
        handle = files.open(path, write=True, create=create, at=at)
        _lockable.add((files, handle))
    return handle


def _close_lockable(files: Files, handle: int) -> None:
    with _forking:
        _lockable.discard((files, handle))
        files.close(handle)


class Standing(enum.Enum):
    """Where the directory of a locked lane is now."""

    HERE = "here"
    """The lane's path leads to it, and its name `lock` leads to the locked file."""
    UNLOCKED = "unlocked"
    """The lane's path leads to it, but its name `lock` does not lead to the locked file. Another process may own it."""
    MOVED = "moved"
    """The lane's path leads nowhere, or to another directory. The directory and its lock have been moved."""
    DELETED = "deleted"
    """The lane's path leads nowhere, or to another directory, and the lock file was deleted."""


class LaneLock:
    """The ownership of one lane, until `release` or the end of the process.

    The lane is the directory that was locked, even after it is moved: `files` keeps it open.

    Attributes:
        path: The lane's directory.
        number: The lane's number.
        client: Client id of the producer that wrote the lane's records; empty if unknown.
        files: The disk, on which paths below `path` lead into the locked directory.
        home: The spool directory that the lane belongs to.
        lost: The lock was deleted, and another process owns the lane. Nothing may be written any more.
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
        home: SpoolDirectory,
        number: int,
        *,
        directory: int,
        handle: int,
        text: str = "",
        client: str = "",
    ) -> None:
        self.home = home
        self._on = home.files
        self.lost = False
        self._text = text
        self._said = ""
        self.client = client
        self.path = home.lane_path(number)
        self.files = DirectoryFiles(self._on, self.path, directory)
        self._stands(number, directory, handle)
        _held.add(self)

    def _stands(self, number: int, directory: int, handle: int) -> None:
        """Notes the lane's number, directory and lock from now on."""
        self.number = number
        self.path = self.home.lane_path(number)
        self._directory = directory
        self._handle = handle
        self._identities = self._on.identity(directory), self._on.identity(handle)
        self.files.now_at(self.path, directory)

    @property
    def held(self) -> bool:
        """False after `release`, and in a forked child."""
        return self._handle >= 0

    @property
    def standing(self) -> Standing:
        """Where the directory is now. Takes two system calls.

        Raises:
            OSError: It cannot be determined.
        """
        directory, lock = self._identities
        named = self._on.identity_of(self.path) == directory
        locked = self._on.identity_of(_LOCK, at=self._directory) == lock
        if named:
            return Standing.HERE if locked else Standing.UNLOCKED
        return Standing.MOVED if locked else Standing.DELETED

    @property
    def found_at(self) -> Path | None:
        """The directory's current path, for messages; None if it was deleted, or if the system does not report it."""
        return self._on.path_of(self._directory)

    def announce(self, position: int) -> None:
        """Writes into the lock file where this incarnation begins. Earlier positions belong to earlier incarnations."""
        self._write(f"{self._text} from {position}\n")

    def release(self, *, drained: bool = True) -> None:
        """Releases the lane, so that other processes can own it.

        Args:
            drained: Whether no record waits in it. Otherwise the lock file gets the client id, so that a producer with
                this client id takes the lane first.
        """
        if self._handle < 0:
            return
        if not self.lost:
            self._write("" if drained or not self.client else f"client {quote(self.client)}\n")
        self._close()

    def _write(self, text: str) -> None:
        self._said = text
        # The text is optional: on a full disk the lock works without it.
        with contextlib.suppress(OSError):
            if self._handle >= 0:
                self._on.truncate(self._handle, 0)
                if text:
                    self._on.writev(self._handle, [text.encode()], 0)

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            _give_up(self._on, self._directory, handle)

    def _lock_again(self) -> None:
        """Locks the file that now has the name `lock`, because another file or none has it.

        Raises:
            LaneBusyError: Another process has locked it first.
            OSError: The lock file cannot be created.
        """
        handle = _open_lockable(self._on, _LOCK, create=True, at=self._directory)
        if not self._on.lock(handle):
            _close_lockable(self._on, handle)
            self.lost = True
            pid, _ = self.home.owner(self.number)
            raise LaneBusyError(
                f"The lock of {self.path} was deleted, and {f'process {pid}' if pid else 'another process'} took the"
                " lane: it delivers the records on disk. This producer ends. No record that was promised is lost",
                pid=pid,
            )
        with contextlib.suppress(OSError):
            _close_lockable(self._on, self._handle)
        self._stands(self.number, self._directory, handle)
        self._write(self._said)

    def _replace(self, number: int, directory: int, handle: int) -> None:
        """Replaces a directory that was deleted by a new, empty one that is locked."""
        _give_up(self._on, self._directory, self._handle)
        self._stands(number, directory, handle)
        self._write(self._said)


def _give_up(files: Files, directory: int, handle: int) -> None:
    """Closes a lane's directory and its lock."""
    with contextlib.suppress(OSError):
        _close_lockable(files, handle)
    with contextlib.suppress(OSError):
        files.close(directory)


def _after_fork() -> None:
    """In a forked child, closes the parent's locks. Unlocking them would unlock them for the parent too."""
    for lock in list(_held):
        lock._handle = -1
    while _lockable:
        files, handle = _lockable.pop()
        # Close the next one whatever a disk raises. (A simulated one may raise that its process is dead.)
        with contextlib.suppress(BaseException):
            files.close(handle)
    _forking.release()


if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork)


class SpoolDirectory:
    """A directory of lanes, made by `open`.

    Attributes:
        path: The directory.
        files: The disk.
        strange: By lane number, why an entry with a lane's name is not a lane, as far as `dead_lanes` has found.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = self._files = files
        self._offered: dict[int, tuple[tuple[str, int], ...]] = {}
        self.strange: dict[int, str] = {}
        self._free_since: dict[int, float] = {}
        self._taken: dict[int, LaneLock] = {}
        self._cluster = ""
        """Id of the cluster, as last read or written."""
        self._paths: dict[int, Path] = {}

    @classmethod
    def open(cls, path: Path, *, files: Files) -> SpoolDirectory:
        """Opens a spool directory. Creates it if it does not exist.

        Raises:
            SpoolFormatError: It contains something else, or a newer kafkasafe has written it. Nothing was changed.
            SpoolError: It cannot be created, read or written.
        """
        try:
            _make_format(path, files)
        except OSError as error:
            raise SpoolError(
                f"The spool directory {path} cannot be used: {error}. It must be writable by this user; choose another"
                " with spool_dir= or KAFKASAFE_SPOOL_DIR. No record was accepted, none was lost"
            ) from error
        return cls(path, files)

    @classmethod
    def look(cls, path: Path, *, files: Files) -> SpoolDirectory:
        """Opens an existing spool directory read-only.

        Raises:
            SpoolFormatError: It contains something else, or a newer kafkasafe has written it.
            SpoolError: It cannot be read.
        """
        try:
            _check_format(path, files)
        except OSError as error:
            raise SpoolError(f"{path} cannot be read: {error}") from error
        return cls(path, files)

    def cluster_id(self) -> str | None:
        """Id of the cluster to which the records belong; None before the first contact.

        Raises:
            SpoolCorruptError: Its file does not contain an id.
            SpoolError: Its file cannot be read.
        """
        try:
            return self._cluster_id()
        except OSError as error:
            raise SpoolError(f"{self.path / 'CLUSTER'} cannot be read: {error}") from error

    def bind_cluster(self, cluster_id: str, *, drained: Callable[[], bool]) -> tuple[str | None, bool]:
        """Writes durably to which cluster the records in this directory belong. No other cluster may get them.

        Args:
            cluster_id: Id of the cluster that answers.
            drained: Returns whether no record waits in any lane. In this case the directory may change to this cluster.

        Returns:
            (id of the cluster it belonged to before, None before the first contact; whether it now belongs to this
            cluster).

        Raises:
            SpoolCorruptError: Its file does not contain an id, and records wait.
            SpoolError: Its file cannot be read or written.
        """
        try:
            handle = _open_lockable(self._files, self.path / "FORMAT")
            try:
                # Two processes may make their first contact with different clusters. One must see the other's id.
                for _ in range(_BIND_TRIES):
                    if self._files.lock(handle):
                        break
                    time.sleep(0.02)
                else:
                    raise SpoolError(f"{self.path / 'FORMAT'} stays locked by another process")
                try:
                    bound = self._cluster_id()
                except SpoolCorruptError:
                    if not drained():
                        raise
                    bound = None
                if bound not in {None, cluster_id} and not drained():
                    return bound, False
                if bound != cluster_id:
                    _write_whole(self.path, "CLUSTER", f"{cluster_id}\n".encode(), self._files)
                self._cluster = cluster_id
            finally:
                _close_lockable(self._files, handle)
        except OSError as error:
            raise SpoolError(f"{self.path / 'CLUSTER'} cannot be read or written: {error}") from error
        return bound, True

    def _cluster_id(self) -> str | None:
        try:
            handle = self._files.open(self.path / "CLUSTER")
        except FileNotFoundError:
            return None
        try:
            raw = self._files.read(handle, 0, 1024)
        finally:
            self._files.close(handle)
        found = raw.decode(errors="replace").strip()
        # The file is always written as a whole. An empty one was truncated later, and may have named another cluster.
        if not _CLUSTER.fullmatch(found):
            raise SpoolCorruptError(
                f"{self.path / 'CLUSTER'} is damaged: it holds {found[:40]!a}, and not the id of the cluster that"
                " the records are for. Restore it from a copy, or write the id into it (kafka-cluster.sh cluster-id"
                " prints it)"
            )
        self._cluster = found
        return found

    def lanes(self) -> list[int]:
        """Numbers of the existing lanes, ascending."""
        found = (_LANE.fullmatch(name) for name in self._files.list(self.path))
        return sorted(int(match[1]) for match in found if match)

    def lane_path(self, number: int) -> Path:
        """Returns the directory of a lane."""
        path = self._paths.get(number)
        if path is None:
            path = self._paths[number] = self.path / lane_name(number)
        return path

    def number_of(self, name: str) -> int:
        """The number of the lane with this directory name; -1 if it is not a lane's name."""
        match = _LANE.fullmatch(name)
        return int(match[1]) if match else -1

    def take_lane(
        self,
        number: int | None = None,
        *,
        client: str = "",
        wait: Callable[[float], None] | None = None,
    ) -> LaneLock:
        """Takes ownership of a lane: the requested one, or a free one.

        With `client`, it prefers the lowest free lane whose last owner had this client id, or drained the lane. Its
        second choice is such a lane that another process has adopted: it asks that process to hand the lane back. Its
        last choice is a new lane.

        Args:
            number: Number of the requested lane.
            client: Client id of the producer that takes the lane.
            wait: Waits this many seconds for a lane to be handed back. None: do not wait for any.

        Raises:
            LaneBusyError: Another running process owns the requested lane, or others own all lanes.
            SpoolError: The lane cannot be created or locked.
        """
        try:
            if number is not None:
                with self._taking():
                    lock = self._try(number, client)
                if lock is None and wait is not None and self.adopted(number):
                    lock = self._ask_back(number, client, wait, _BACK_BY_NUMBER_S)
                if lock is None:
                    raise self._busy(number)
                return lock
            with self._taking():
                lock = self._take_any(client)
            if lock is not None:
                return lock
            for candidate in self._mine(client) if wait is not None else ():
                if self.adopted(candidate):
                    lock = self._ask_back(candidate, client, wait, _BACK_S)
                    if lock is not None:
                        return lock
            with self._taking():
                there = set(self.lanes())
                for candidate in sorted(range(_MAX_LANES), key=there.__contains__):
                    with contextlib.suppress(FileExistsError, NotADirectoryError):
                        lock = self._try(candidate, client)
                        if lock is not None:
                            return lock
        except OSError as error:
            raise SpoolError(
                f"No lane of {self.path} can be used: {error}. No record was accepted, none was lost"
            ) from error
        raise LaneBusyError(f"All {_MAX_LANES} lanes of {self.path} belong to live processes")

    def _busy(self, number: int) -> LaneBusyError:
        pid, text = self.owner(number)
        who = f"process {pid}" if pid else "another process"
        return LaneBusyError(
            f"Lane {number} of {self.path} belongs to {who}{f' ({text})' if text else ''}. Leave spool_lane"
            " out to get a free lane, or end that process: its records stay in the lane",
            pid=pid,
        )

    def _mine(self, client: str) -> list[int]:
        """Lanes of this client id, and those without a client id."""
        if not client:
            return self.lanes()
        return [number for number in self.lanes() if self._client(number) in {"", client}]

    def _take_any(self, client: str) -> LaneLock | None:
        """The lowest suitable free lane. A new one, unless a sibling has adopted one of this client."""
        mine = self._mine(client)
        for candidate in mine if client else range(_MAX_LANES):
            # `kafkasafe spool ls` reports an entry that is not a directory. It must not prevent a start.
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                lock = self._try(candidate, client)
                if lock is not None:
                    return lock
        if client and any(self.adopted(candidate) for candidate in mine):
            return None
        there = set(self.lanes())
        return next(
            (
                lock
                for candidate in range(_MAX_LANES)
                if candidate not in there and (lock := self._try(candidate, client)) is not None
            ),
            None,
        )

    def _ask_back(
        self, number: int, client: str, wait: Callable[[float], None] | None, patience_s: float
    ) -> LaneLock | None:
        """Asks the process that adopted a lane to hand it back. None: it did not, or another process asks already."""
        path = self.lane_path(number) / "wanted"
        handle = _open_lockable(self._files, path, create=True)
        try:
            if wait is None or not self._files.lock(handle):
                return None
            for _ in range(int(patience_s / _BACK_PAUSE_S)):
                lock = self._try(number, client)
                if lock is not None or not self.adopted(number):
                    return lock
                wait(_BACK_PAUSE_S)
            return None
        finally:
            with contextlib.suppress(OSError):
                self._files.unlink(path)
            _close_lockable(self._files, handle)

    def wanted(self, number: int) -> bool:
        """Whether a producer waits for this lane to be handed back."""
        lane = self.lane_path(number)
        try:
            return "wanted" in self._files.list(lane) and self._is_locked(lane / "wanted")
        except OSError:
            return False

    @contextlib.contextmanager
    def births(self) -> Iterator[None]:
        """Context for taking lanes and for finding out their owners, which locks each lane for a moment.

        Raises:
            OSError: The lock cannot be opened.
        """
        handle = _open_lockable(self._files, self.path / "FORMAT")
        try:
            for _ in range(_BIRTH_TRIES):
                if self._files.lock(handle):
                    break
                time.sleep(0.02)
            yield
        finally:
            _close_lockable(self._files, handle)

    @contextlib.contextmanager
    def _taking(self) -> Iterator[None]:
        """Like `births`, for taking a lane. `kafkasafe spool prune` may have deleted the directory meanwhile."""
        with self.births():
            if self._files.identity_of(self.path / "FORMAT") is None:
                _make_format(self.path, self._files)
            yield

    @contextlib.contextmanager
    def resending(self) -> Iterator[None]:
        """Context for returning rejected records to lanes: only one process at a time.

        Raises:
            LaneBusyError: Another process does this now.
            SpoolError: The lock file cannot be locked.
        """
        path = self.path / "RESEND"
        try:
            handle = _open_lockable(self._files, path, create=True)
        except OSError as error:
            raise SpoolError(f"{path} cannot be made: {error}. Nothing was changed") from error
        try:
            if not self._files.lock(handle):
                raise LaneBusyError(
                    f"Another process resends rejected records of {self.path}. Nothing was changed"
                )
            yield
        finally:
            _close_lockable(self._files, handle)

    def dead_lanes(self, *, now: float = 0.0, grace_s: float = 0.0) -> list[LaneLock]:
        """Takes ownership of lanes that have content but no owner, and returns them.

        A lane that was offered before and has not changed since is offered again only after `offer_again`.

        Args:
            now: The time in seconds.
            grace_s: How long a lane must have been seen without an owner. So a producer that restarts gets its own lane
                back.

        Raises:
            SpoolError: The directory cannot be read.
        """
        taken: list[LaneLock] = []
        free: dict[int, float] = {}
        try:
            for number in self.lanes():
                mine = self._taken.get(number)
                if mine is not None and mine.held:
                    continue
                try:
                    content = self.content(number)
                except OSError as error:
                    if error.errno not in _NO_LANE:
                        raise
                    self.strange[number] = str(error)
                    continue
                if not content or self._offered.get(number) == content:
                    continue
                if grace_s and self.is_owned(number):
                    continue
                free[number] = self._free_since.get(number, now)
                if now - free[number] < grace_s or self.wanted(number):
                    continue
                lock = self._try(number)
                if lock is not None:
                    del free[number]
                    self._offered[number] = self.content(number)
                    taken.append(lock)
        except OSError as error:
            for lock in taken:
                lock.release(drained=False)
            raise SpoolError(f"{self.path} cannot be searched for lanes left behind: {error}") from error
        self._free_since = free
        return taken

    def offer_again(self, number: int) -> None:
        """Notes that a lane could not be adopted, so that `dead_lanes` offers it again."""
        self._offered.pop(number, None)

    @property
    def whole(self) -> bool:
        """Whether the directory's own files exist. Takes two system calls.

        Raises:
            OSError: It cannot be determined.
        """
        needed = ("FORMAT", "CLUSTER") if self._cluster else ("FORMAT",)
        return all(self._files.identity_of(self.path / name) is not None for name in needed)

    def restore(self, lock: LaneLock | None = None) -> None:
        """Creates the missing parts of the directory, and puts a lane at its path.

        If the lane was moved, this moves it back as a whole, in one step; it may get another number. If the lane was
        deleted, an empty one replaces it, so its content has to be written again.

        Raises:
            LaneBusyError: The lane's lock was deleted and another process has the lane, or others own all lanes.
            SpoolError: This is not possible now. A part may have been done.
        """
        try:
            self._make_again()
            if lock is None or lock.standing is Standing.HERE:
                return
            with self.births():
                number = lock.number
                match lock.standing:
                    case Standing.HERE:
                        return
                    case Standing.UNLOCKED:
                        lock._lock_again()
                    case Standing.MOVED:
                        self._fetch(lock)
                    case Standing.DELETED:
                        self._begin_again(lock)
                if self._taken.get(number) is lock:
                    del self._taken[number]
                self._taken[lock.number] = lock
        except OSError as error:
            raise SpoolError(f"{self.path} cannot be made again: {error}") from error

    def _make_again(self) -> None:
        _make_format(self.path, self._files)
        cluster = self._cluster
        if not cluster:
            return
        with self.births():
            found = self._cluster_id()
            self._cluster = cluster
            if found is None:
                _write_whole(self.path, "CLUSTER", f"{cluster}\n".encode(), self._files)
            elif found != cluster:
                raise SpoolError(
                    f"{self.path} leads to the spool of another cluster now ({found}), and the records of this producer"
                    f" are for cluster {cluster}"
                )

    def _fetch(self, lock: LaneLock) -> None:
        """Renames a lane that was moved. Copies nothing, so after a crash the lane is in exactly one place."""
        there = set(self.lanes())
        number = next(n for n in (lock.number, *range(_MAX_LANES)) if n not in there)
        parent = self._files.open_directory(Path(".."), at=lock._directory)
        try:
            inside = map(Path, self._files.list(Path(), at=parent))
            lane = lock._identities[0]
            name = next((each for each in inside if self._files.identity_of(each, at=parent) == lane), None)
            if name is None:
                raise FileNotFoundError(errno.ENOENT, "It has no name any more", str(lock.path))
            self._files.rename(name, self.lane_path(number), at=parent)
            self._files.sync_directory(self.path)
            self._files.sync_directory(Path(), at=parent)
        finally:
            self._files.close(parent)
        lock._stands(number, lock._directory, lock._handle)

    def _begin_again(self, lock: LaneLock) -> None:
        """Replaces a deleted lane by an empty one."""
        there = set(self.lanes())
        for number in (lock.number, *(n for n in range(_MAX_LANES) if n not in there)):
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                taken = self._take(self.lane_path(number))
                if taken is None:
                    continue
                if set(self._files.list(self.lane_path(number))) <= {_LOCK.name}:
                    lock._replace(number, *taken)
                    return
                _give_up(self._files, *taken)  # it belongs to another owner, which has died
        raise LaneBusyError(f"All {_MAX_LANES} lanes of {self.path} belong to live processes")

    def owner(self, number: int) -> tuple[int, str]:
        """(pid, text) of a lane's lock file; (0, "") if it has none."""
        text = self._lock_text(number).strip()
        match = re.match(r"pid (\d+)\b", text)
        return (int(match[1]) if match else 0), text

    def _lock_text(self, number: int) -> str:
        try:
            handle = self._files.open(self.lane_path(number) / "lock")
            try:
                return self._files.read(handle, 0, 1024).decode(errors="replace")
            finally:
                self._files.close(handle)
        except OSError:
            return ""

    def adopted(self, number: int) -> bool:
        """Whether the lane's owner has written that it only drains the lane."""
        return " adopts " in self.owner(number)[1]

    def begun(self, number: int) -> int:
        """Position at which the owner's incarnation begins; -1 if it is not written, or if the owner only drains it."""
        match = re.search(r" from (\d+)$", self.owner(number)[1])
        return int(match[1]) if match else -1

    def _client(self, number: int) -> str:
        """Client id of the producer that wrote a lane's records; empty if unknown."""
        # Require a separator after the name: a power failure may leave only the beginning of an unsynced text.
        match = re.search(r"\b(?:client|adopts) (\S+)\s", self._lock_text(number))
        return unquote(match[1]) if match and match[1] != _NOBODY else ""

    def is_owned(self, number: int) -> bool:
        """Whether a process owns the lane now."""
        return self._is_locked(self.lane_path(number) / "lock")

    def _is_locked(self, path: Path) -> bool:
        try:
            handle = _open_lockable(self._files, path)
        except OSError:
            return False
        try:
            return not self._files.lock(handle)
        finally:
            _close_lockable(self._files, handle)

    def seems_owned(self, number: int) -> int:
        """Pid of the process that seems to own the lane, 0 if none does. For messages; does not touch the lock.

        Uses the owner's text in the lock file, and the kernel's list of locks if there is one. `is_owned` is certain,
        but it takes the lock for a moment. A producer that starts at this moment would choose another lane.
        """
        pid, text = self.owner(number)
        if not pid or f"host {platform.node()} " not in text:
            return pid
        try:
            inode = (self.lane_path(number) / "lock").stat().st_ino
            locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return pid if _lives(pid) else 0
        held = any(
            len(fields) > 5 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode)
            for fields in map(str.split, locks)
        )
        return pid if held else 0

    def strays_to(self, number: int) -> Path | None:
        """Where the process named in the lane's lock file has this lane open, if that is not here.

        In this case the directory was moved or replaced while its producer runs. Works as far as the system shows it:
        it shows nothing of another user's process, or of one on another host.
        """
        pid, text = self.owner(number)
        if not pid or f"host {platform.node()} " not in text or self.seems_owned(number):
            return None
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    path = handle.readlink()
                    # Compare the text, because the pid may have been reused.
                    if (
                        path.name == _LOCK.name
                        and handle.read_bytes().decode(errors="replace").strip() == text
                    ):
                        return path.parent
        return None

    def content(self, number: int) -> tuple[tuple[str, int], ...]:
        """Segments of a lane with their sizes, which change when the lane does. Without segments, its extent.

        Raises:
            OSError: The lane cannot be read.
        """
        lane = self.lane_path(number)
        content = []
        names = sorted(self._files.list(lane))
        segments = [name for name in names if name.endswith(".log")]
        for name in segments or names:
            if name.endswith(".log") or name == "extent":
                try:
                    handle = self._files.open(lane / name)
                except FileNotFoundError:
                    continue  # the lane's owner has just released this segment
                try:
                    content.append((name, self._files.size(handle)))
                finally:
                    self._files.close(handle)
        return tuple(content)

    def _try(self, number: int, client: str | None = None) -> LaneLock | None:
        """Takes ownership of a lane if it has no owner. Without `client`, only to drain it."""
        lane = self.lane_path(number)
        taken = self._take(lane)
        if taken is None:
            return None
        directory, handle = taken
        former = self._client(number)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = f"pid {os.getpid()} host {platform.node()} since {started}"
        if client is None:
            text += f" adopts {quote(former) or _NOBODY}"
        elif client:
            text += f" client {quote(client)}"
        try:
            # Remove an earlier owner's text, which no longer applies.
            self._files.truncate(handle, 0)
            lock = LaneLock(
                self,
                number,
                directory=directory,
                handle=handle,
                text=text,
                client=former if client is None else client,
            )
        except OSError:
            _give_up(self._files, directory, handle)
            raise
        self._taken[number] = lock
        lock._write(f"{text}\n")
        return lock

    def _take(self, lane: Path) -> tuple[int, int] | None:
        """Locks a lane. Returns handles of its directory and its lock; None if another process owns it."""
        for _ in range(_TAKE_TRIES):
            self._files.make_directory(lane)
            with contextlib.ExitStack() as opened:
                try:
                    directory = self._files.open_directory(lane)
                    opened.callback(self._files.close, directory)
                    handle = _open_lockable(self._files, _LOCK, create=True, at=directory)
                    opened.callback(_close_lockable, self._files, handle)
                except FileNotFoundError:
                    continue  # it has just been deleted
                if not self._files.lock(handle):
                    return None
                there = self._files.identity_of(lane), self._files.identity_of(_LOCK, at=directory)
                if there == (self._files.identity(directory), self._files.identity(handle)):
                    opened.pop_all()
                    return directory, handle
                # It has just been moved or deleted. The lock says nothing about the directory that now has the name.
        raise OSError(errno.ESTALE, "It is moved or deleted again and again", str(lane))


def lane_name(number: int) -> str:
    """The name of a lane's directory."""
    return f"lane-{number:03d}"


def format_lost(path: Path, names: Collection[str]) -> tuple[str, str] | None:
    """Describes a spool directory that has lost its file FORMAT.

    Args:
        path: The directory.
        names: Its content.

    Returns:
        (what is wrong, what to do); None if FORMAT is not missing.
    """
    lanes = [name for name in names if _LANE.fullmatch(name)]
    if "FORMAT" in names or not lanes:
        return None
    wrong = (
        f"{path} holds {min(lanes)}{f' and {len(lanes) - 1} more' if len(lanes) > 1 else ''}, but no file FORMAT, which"
        " a copy or a clean-up may have left out. The next producer on it writes it again"
    )
    remedy = f"Restore it: echo 'kafkasafe-spool {_VERSION}' > {shlex.quote(str(path / 'FORMAT'))}"
    if "CLUSTER" not in names:
        wrong += (
            ". CLUSTER is missing as well: without the id of the cluster that the records are for, they go to the first"
            " one that answers"
        )
        place = shlex.quote(str(path / "CLUSTER"))
        remedy = f"Write the cluster's id into {place} (kafka-cluster.sh cluster-id prints it). {remedy}"
    return wrong, remedy


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return True


def _write_whole(path: Path, name: str, content: bytes, files: Files) -> None:
    """Writes a small file atomically."""
    draft = path / f"{name}.{os.getpid()}.{time.monotonic_ns()}"
    handle = files.open(draft, write=True, create=True)
    try:
        if files.writev(handle, [content], 0) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        files.sync_data(handle)
    finally:
        files.close(handle)
    files.rename(draft, path / name)
    files.sync_directory(path)


def _make_format(path: Path, files: Files) -> None:
    """Ensures that this is a spool directory of this format. Makes a new one if it is empty.

    A directory with lanes but without FORMAT is valid, because the content of a lane names its own format.
    """
    files.make_directory(path)
    names = files.list(path)
    if "FORMAT" in names:
        _check_format(path, files)
        return
    strange = [
        name
        for name in names
        if not (name.startswith((".", "FORMAT.", "CLUSTER.")) or _LANE.fullmatch(name) or name in _OURS)
    ]
    if strange:
        raise SpoolFormatError(
            f"{path} is not empty and not a spool directory (it holds {min(strange)!r}): give spool_dir a directory of"
            " its own. Nothing was changed"
        )
    _write_whole(path, "FORMAT", b"kafkasafe-spool %d\n" % _VERSION, files)


def _check_format(path: Path, files: Files) -> None:
    handle = files.open(path / "FORMAT")
    try:
        content = files.read(handle, 0, 1024)
    finally:
        files.close(handle)
    match = _FORMAT.fullmatch(content)
    if match is None:
        raise SpoolFormatError(
            f"{path / 'FORMAT'} is not that of a spool directory: give spool_dir a directory of its own. Nothing was"
            " changed"
        )
    if int(match[1]) > _VERSION:
        raise SpoolFormatError(
            f"{path} has spool format {int(match[1])}, this kafkasafe knows up to {_VERSION}: upgrade kafkasafe."
            " Nothing was changed"
        )

"""A spool directory and its lanes: who owns which.

A lane belongs to whoever holds the flock(2) on its lock file. The kernel lets go of it when the owner dies, however
it dies, so a lane is never owned by a dead process and never by two living ones. A forked child inherits the lock's
file: it closes its copy at once, which does not unlock the parent's.
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
"""The id of a cluster: a UUID in base64 in all clusters of today, and anything that can be printed in old ones."""
_MAX_LANES: Final = 1000
_BIRTH_TRIES: Final = 250  # 5 s
_TAKE_TRIES: Final = 10
_BACK_S: Final = 3.0
_BACK_BY_NUMBER_S: Final = 20.0
"""How long a lane is waited for that a sibling has adopted: any of them, or the one that was asked for."""
_BACK_PAUSE_S: Final = 0.02
_LOCK: Final = Path("lock")
_NOBODY: Final = "-"
_NO_LANE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EISDIR})
"""What something says that is no lane, or has no segments in it."""
_BIND_TRIES: Final = 250  # 5 s
_OURS: Final = frozenset({"lost+found", "CLUSTER", "RESEND"})
"""What a directory may hold, beside lanes, that is to become a spool directory: a file system's root has the first."""

_held: weakref.WeakSet[LaneLock] = weakref.WeakSet()
_lockable: set[tuple[Files, int]] = set()
"""Every open file that is locked, or may be any moment."""
_forking = threading.RLock()
"""Held over a fork, and while `_lockable` changes: a lock belongs to the open file, not to a process. A child that
inherited one without knowing would hold the lock for as long as it lives."""


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
    """Where the directory of a lane is that was locked."""

    HERE = "here"
    """Its path leads to it, and the name `lock` in it to the file that is locked."""
    UNLOCKED = "unlocked"
    """Its path leads to it, and its lock is not there under its name: another process may own it."""
    MOVED = "moved"
    """Its path leads nowhere, or to another directory. It is elsewhere, with its lock."""
    DELETED = "deleted"
    """Its path leads nowhere, or to another directory; and its lock has no name any more."""


class LaneLock:
    """The ownership of one lane, until `release` or the end of the process.

    The lane is the directory that was locked, wherever it is moved: `files` holds it open.

    Attributes:
        path: The lane's directory.
        number: The lane's number.
        client: Client id of the producer whose records are in it, empty where that is not known.
        files: The disk, on which paths below `path` lead into the directory that was locked.
        home: The spool directory that it was taken from.
        lost: The lock was deleted, and another process has the lane: nothing may be written any more.
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
        """Under this number from now on, in this directory and with this lock."""
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
        """Where the directory is now. Two system calls.

        Raises:
            OSError: It cannot be seen.
        """
        directory, lock = self._identities
        named = self._on.identity_of(self.path) == directory
        locked = self._on.identity_of(_LOCK, at=self._directory) == lock
        if named:
            return Standing.HERE if locked else Standing.UNLOCKED
        return Standing.MOVED if locked else Standing.DELETED

    @property
    def found_at(self) -> Path | None:
        """Where the directory is now, for people; None: it was deleted, or the system does not tell."""
        return self._on.path_of(self._directory)

    def announce(self, position: int) -> None:
        """Say where in the lane this owner's life begins: what stands before it is of lives that are over."""
        self._write(f"{self._text} from {position}\n")

    def release(self, *, drained: bool = True) -> None:
        """Let others have the lane.

        Args:
            drained: Nothing waits in it. Otherwise it says whose records those are: a producer of the same client id
                takes it first.
        """
        if self._handle < 0:
            return
        if not self.lost:
            self._write("" if drained or not self.client else f"client {quote(self.client)}\n")
        self._close()

    def _write(self, text: str) -> None:
        self._said = text
        # Only a courtesy: on a full disk the lock holds without it.
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
        """The name `lock` leads to another file, or to none: lock what it leads to.

        Raises:
            LaneBusyError: Another process did that first.
            OSError: It cannot be made.
        """
        handle = _open_lockable(self._on, _LOCK, create=True, at=self._directory)
        if not self._on.lock(handle):
            _close_lockable(self._on, handle)
            self.lost = True
            pid, _ = self.home.owner(self.number)
            raise LaneBusyError(
                f"The lock of {self.path} was deleted, and {f'process {pid}' if pid else 'another process'} took the"
                " lane: it delivers what is on disk there. This producer ends. Nothing that was promised is lost",
                pid=pid,
            )
        with contextlib.suppress(OSError):
            _close_lockable(self._on, self._handle)
        self._stands(self.number, self._directory, handle)
        self._write(self._said)

    def _replace(self, number: int, directory: int, handle: int) -> None:
        """The directory was deleted: another one takes its place, which is empty and locked."""
        _give_up(self._on, self._directory, self._handle)
        self._stands(number, directory, handle)
        self._write(self._said)


def _give_up(files: Files, directory: int, handle: int) -> None:
    """Close a lane's directory and its lock."""
    with contextlib.suppress(OSError):
        _close_lockable(files, handle)
    with contextlib.suppress(OSError):
        files.close(directory)


def _after_fork() -> None:
    """In the child: the lanes are the parent's. Closing is enough; unlocking would unlock the parent's as well."""
    for lock in list(_held):
        lock._handle = -1
    while _lockable:
        files, handle = _lockable.pop()
        # Whatever a disk raises (a double of one: that its process is dead), the next one is closed as well.
        with contextlib.suppress(BaseException):
            files.close(handle)
    _forking.release()


if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_after_fork)


class SpoolDirectory:
    """A directory of lanes. Made by `open`.

    Attributes:
        path: The directory.
        files: The disk.
        strange: By number, why what has a lane's name is none, as far as `dead_lanes` met it.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = self._files = files
        self._offered: dict[int, tuple[tuple[str, int], ...]] = {}
        self.strange: dict[int, str] = {}
        self._free_since: dict[int, float] = {}
        self._taken: dict[int, LaneLock] = {}
        self._cluster = ""
        """Id of the cluster, as it was read or written last."""
        self._paths: dict[int, Path] = {}

    @classmethod
    def open(cls, path: Path, *, files: Files) -> SpoolDirectory:
        """Open a spool directory, make it if it is not there.

        Raises:
            SpoolFormatError: It holds something else, or was written by a newer kafkasafe. Nothing was changed.
            SpoolError: It cannot be made, read or written.
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
        """Open a spool directory that is there, to look at it only: nothing is made or written.

        Raises:
            SpoolFormatError: It holds something else, or was written by a newer kafkasafe.
            SpoolError: It cannot be read.
        """
        try:
            _check_format(path, files)
        except OSError as error:
            raise SpoolError(f"{path} cannot be read: {error}") from error
        return cls(path, files)

    def cluster_id(self) -> str | None:
        """Id of the cluster that the records are for, None before the first contact.

        Raises:
            SpoolCorruptError: What its file holds is no id.
            SpoolError: It cannot be read.
        """
        try:
            return self._cluster_id()
        except OSError as error:
            raise SpoolError(f"{self.path / 'CLUSTER'} cannot be read: {error}") from error

    def bind_cluster(self, cluster_id: str, *, drained: Callable[[], bool]) -> tuple[str | None, bool]:
        """Write down, durably, which cluster the records in here are for: no other one must get them.

        Args:
            cluster_id: Of the cluster that answers.
            drained: Whether nothing waits in any lane: then the directory may change to another cluster.

        Returns:
            (id of the cluster it belonged to until now, None before the first contact; whether it is now this
            cluster's).

        Raises:
            SpoolCorruptError: What its file holds is no id, and something waits.
            SpoolError: It cannot be read or written.
        """
        try:
            handle = _open_lockable(self._files, self.path / "FORMAT")
            try:
                # Two processes at their first contact, with different clusters: one of them must see the other's.
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
        # It is written as a whole: an empty one was cut later, and may have been another cluster's.
        if not _CLUSTER.fullmatch(found):
            raise SpoolCorruptError(
                f"{self.path / 'CLUSTER'} is damaged: it holds {found[:40]!a}, and not the id of the cluster that"
                " the records are for. Restore it from a copy, or write the id into it (kafka-cluster.sh cluster-id"
                " prints it)"
            )
        self._cluster = found
        return found

    def lanes(self) -> list[int]:
        """Numbers of the lanes that are there, ascending."""
        found = (_LANE.fullmatch(name) for name in self._files.list(self.path))
        return sorted(int(match[1]) for match in found if match)

    def lane_path(self, number: int) -> Path:
        """The directory of a lane."""
        path = self._paths.get(number)
        if path is None:
            path = self._paths[number] = self.path / lane_name(number)
        return path

    def number_of(self, name: str) -> int:
        """The number of the lane with this directory's name; -1 if no lane has it."""
        match = _LANE.fullmatch(name)
        return int(match[1]) if match else -1

    def take_lane(
        self,
        number: int | None = None,
        *,
        client: str = "",
        wait: Callable[[float], None] | None = None,
    ) -> LaneLock:
        """Own a lane: the one asked for, or one that nobody owns.

        With `client` that is the lowest whose last owner was of this client id, or drained it. Next comes one that
        another process adopted from such an owner: it is asked to hand it back. Then a new one.

        Args:
            number: Of the lane.
            client: Client id of the producer that is to own it.
            wait: Waits for so many seconds, for a lane that is handed back; None: nothing is waited for.

        Raises:
            LaneBusyError: The lane asked for belongs to another live process, or all lanes do.
            SpoolError: It cannot be made or locked.
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
        """Lanes of this client id, and those of nobody in particular."""
        if not client:
            return self.lanes()
        return [number for number in self.lanes() if self._client(number) in {"", client}]

    def _take_any(self, client: str) -> LaneLock | None:
        """The lowest free lane that suits; a new one unless a sibling has one that was this client's."""
        mine = self._mine(client)
        for candidate in mine if client else range(_MAX_LANES):
            # What is no directory is said by `kafkasafe spool ls`; it does not keep anybody from starting.
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
        """Ask the process that adopted a lane for it; None if it did not come, or somebody else asks already."""
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
        """While lanes are taken, or it is looked who owns which: looking takes each lock for a moment.

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
        """As `births`, for a lane that is taken: `kafkasafe spool prune` may have deleted the directory meanwhile."""
        with self.births():
            if self._files.identity_of(self.path / "FORMAT") is None:
                _make_format(self.path, self._files)
            yield

    @contextlib.contextmanager
    def resending(self) -> Iterator[None]:
        """While rejected records are put back into lanes: one process at a time.

        Raises:
            LaneBusyError: Another one does.
            SpoolError: It cannot be locked.
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
        """Lanes with content that nobody owns; they are ours on return.

        A lane that was offered before, and has not changed since, is not offered again, unless `offer_again` says so.

        Args:
            now: Seconds.
            grace_s: How long a lane must have been without an owner, as far as was seen here: a producer that is about
                to start again gets its own lane back.

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
        """A lane could not be adopted."""
        self._offered.pop(number, None)

    @property
    def whole(self) -> bool:
        """Whether its own files are there. Two system calls.

        Raises:
            OSError: It cannot be seen.
        """
        needed = ("FORMAT", "CLUSTER") if self._cluster else ("FORMAT",)
        return all(self._files.identity_of(self.path / name) is not None for name in needed)

    def restore(self, lock: LaneLock | None = None) -> None:
        """Make the directory again, as far as it is not there, and have a lane of it where its path leads.

        A lane that was moved is fetched, as a whole and in one step; its number may be another one then. In the place
        of one that was deleted there is an empty one: its content has to be written again.

        Raises:
            LaneBusyError: The lane's lock was deleted and another process has it; or all lanes belong to others.
            SpoolError: It cannot be done for now, and something may have been.
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
        """Rename a lane that was moved: nothing of it is copied, and a crash leaves it in one place."""
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
        """An empty lane in the place of one that was deleted."""
        there = set(self.lanes())
        for number in (lock.number, *(n for n in range(_MAX_LANES) if n not in there)):
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                taken = self._take(self.lane_path(number))
                if taken is None:
                    continue
                if set(self._files.list(self.lane_path(number))) <= {_LOCK.name}:
                    lock._replace(number, *taken)
                    return
                _give_up(self._files, *taken)  # it is another owner's, who died
        raise LaneBusyError(f"All {_MAX_LANES} lanes of {self.path} belong to live processes")

    def owner(self, number: int) -> tuple[int, str]:
        """(pid, text) of a lane's lock file; (0, "") where it does not say."""
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
        """Whether the lane's owner says that it only drains it."""
        return " adopts " in self.owner(number)[1]

    def begun(self, number: int) -> int:
        """Where the life of a lane's owner begins; -1 where it does not say, or only drains the lane."""
        match = re.search(r" from (\d+)$", self.owner(number)[1])
        return int(match[1]) if match else -1

    def _client(self, number: int) -> str:
        """Client id of the producer whose records are in a lane, empty where that is not known."""
        # With what follows the name: of a text that was not synced a power cut may leave the beginning of one.
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
        """Pid of the process that owns the lane, 0 if none seems to: without touching the lock, for people to read.

        By what the owner wrote, and the kernel's list of locks where there is one. `is_owned` is certain, but takes the
        lock for a moment, which would make a starting producer choose another lane.
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
        """Where the process that the lane's lock file names has this lane open, if that is not here.

        The directory was moved or replaced while its producer works. As far as the system tells: another user's process
        shows nothing, nor does one of another host.
        """
        pid, text = self.owner(number)
        if not pid or f"host {platform.node()} " not in text or self.seems_owned(number):
            return None
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    path = handle.readlink()
                    # The same text: a number of a process may have been given again.
                    if (
                        path.name == _LOCK.name
                        and handle.read_bytes().decode(errors="replace").strip() == text
                    ):
                        return path.parent
        return None

    def content(self, number: int) -> tuple[tuple[str, int], ...]:
        """Segments of a lane with their sizes: what changes when it does. Of one that lost all of them, its extent.

        Raises:
            OSError: It cannot be read.
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
                    continue  # its owner just released it
                try:
                    content.append((name, self._files.size(handle)))
                finally:
                    self._files.close(handle)
        return tuple(content)

    def _try(self, number: int, client: str | None = None) -> LaneLock | None:
        """Own a lane if nobody does; without `client` only to drain it."""
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
            # What an earlier owner says here is no longer true.
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
        """Handles of a lane's directory and of its lock, which is ours; None if another process has it."""
        for _ in range(_TAKE_TRIES):
            self._files.make_directory(lane)
            with contextlib.ExitStack() as opened:
                try:
                    directory = self._files.open_directory(lane)
                    opened.callback(self._files.close, directory)
                    handle = _open_lockable(self._files, _LOCK, create=True, at=directory)
                    opened.callback(_close_lockable, self._files, handle)
                except FileNotFoundError:
                    continue  # it was deleted just now
                if not self._files.lock(handle):
                    return None
                there = self._files.identity_of(lane), self._files.identity_of(_LOCK, at=directory)
                if there == (self._files.identity(directory), self._files.identity(handle)):
                    opened.pop_all()
                    return directory, handle
                # It was moved or deleted just now: the lock says nothing of what has the name since.
        raise OSError(errno.ESTALE, "It is moved or deleted again and again", str(lane))


def lane_name(number: int) -> str:
    """Of the lane's directory."""
    return f"lane-{number:03d}"


def format_lost(path: Path, names: Collection[str]) -> tuple[str, str] | None:
    """(what is wrong, what to do) with a spool directory that lost its file FORMAT; None if that is not so.

    Args:
        path: The directory.
        names: What is in it.
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
        pass  # somebody else's
    return True


def _write_whole(path: Path, name: str, content: bytes, files: Files) -> None:
    """A small file, all of it or nothing."""
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
    """See that there is a spool directory of this format: a new one, unless there is one.

    A directory of lanes whose FORMAT was deleted is one: what is in a lane names its format itself.
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

"""A spool directory: takes lanes, finds lanes without an owner, and restores moved or deleted files."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from kafkasafe.errors import LaneBusyError, SpoolError
from kafkasafe.spool.files import Files, size_of
from kafkasafe.spool.lanes.cluster_file import ClusterFile
from kafkasafe.spool.lanes.format import (
    FORMAT_NAME,
    LANE,
    check_format,
    has_format,
    lane_name,
    make_format,
    restore_format,
)
from kafkasafe.spool.lanes.lock import (
    LOCK_NAME,
    DirectoryStanding,
    LaneLock,
    close_lockable,
    give_up,
    open_lockable,
)
from kafkasafe.spool.lanes.owners import NO_CLIENT, Owners
from kafkasafe.spool.reserve import NO_ROOM

_MAX_LANES: Final = 1000
_BIRTH_TRIES: Final = 250  # 5 s
_TAKE_TRIES: Final = 10
_BACK_S: Final = 3.0
_BACK_BY_NUMBER_S: Final = 20.0
"""Maximum number of seconds to wait until another producer hands back a lane that it has adopted. The longer time
applies if the caller requested the lane by its number.
"""
_BACK_PAUSE_S: Final = 0.02
_GLANCE_TRIES: Final = 4
_GLANCE_S: Final = 0.02
_NO_LANE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.EISDIR})
"""Errors that mean that a path is not a lane, or that a lane has no segments."""

_REMEDIES: Final = {
    **dict.fromkeys(NO_ROOM, "Make room, or free inodes"),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit of open files (ulimit -n)"),
}
"""What to do if a spool directory cannot be created, by error number."""


class SpoolDirectory:
    """A spool directory, which contains lanes.

    Attributes:
        path: The directory.
        owners: Finds out which processes own the lanes.
        strange: Entries that are named like lanes, but are not lanes: maps the number in the name to the reason.
            `dead_lanes` fills this map.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = self._files = files
        self._offered: dict[int, tuple[tuple[str, int], ...]] = {}
        self.strange: dict[int, str] = {}
        self._free_since: dict[int, float] = {}
        self._taken: dict[int, LaneLock] = {}
        self._cluster = ClusterFile(path, files)
        self.owners = Owners(files, self.lane_path)
        self._paths: dict[int, Path] = {}

    @classmethod
    def open(cls, path: Path, *, files: Files) -> SpoolDirectory:
        """Opens a spool directory, and creates it if necessary.

        Raises:
            SpoolFormatError: The directory has other content, or a newer kafkasafe has written it. Nothing was changed.
            SpoolError: The directory cannot be created, read or written.
        """
        try:
            make_format(path, files)
        except OSError as error:
            is_file = isinstance(error, (FileExistsError, NotADirectoryError))
            must = "The path, or a part of it, is a file" if is_file else "It must be writable by this user"
            raise SpoolError(
                f"The spool directory {path} cannot be used: {error}. {_REMEDIES.get(error.errno or 0, must)}; choose"
                " another with spool_dir= or KAFKASAFE_SPOOL_DIR. No record was accepted, none was lost"
            ) from error
        return cls(path, files)

    @classmethod
    def look(cls, path: Path, *, files: Files) -> SpoolDirectory:
        """Opens an existing spool directory read-only.

        Raises:
            SpoolFormatError: The directory has other content, or a newer kafkasafe has written it.
            SpoolError: The directory cannot be read.
        """
        try:
            check_format(path, files)
        except OSError as error:
            raise SpoolError(f"{path} cannot be read: {error}") from error
        return cls(path, files)

    def cluster_id(self) -> str | None:
        """Id of the cluster to which the records belong; None before the first contact.

        Raises:
            SpoolCorruptError: The directory's file CLUSTER does not contain an id.
            SpoolError: The directory's file CLUSTER cannot be read.
        """
        try:
            return self._cluster.read()
        except OSError as error:
            raise SpoolError(f"{self.path / 'CLUSTER'} cannot be read: {error}") from error

    def bind_cluster(self, cluster_id: str, *, drained: Callable[[], bool]) -> tuple[str | None, bool]:
        """Durably stores the id of the cluster to which this directory's records belong: see `ClusterFile.bind`."""
        return self._cluster.bind(cluster_id, drained=drained)

    def lanes(self) -> list[int]:
        """Numbers of the existing lanes, ascending."""
        found = (LANE.fullmatch(name) for name in self._files.list(self.path))
        return sorted(int(match[1]) for match in found if match)

    def lane_path(self, number: int) -> Path:
        path = self._paths.get(number)
        if path is None:
            path = self._paths[number] = self.path / lane_name(number)
        return path

    def number_of(self, name: str) -> int:
        """The number of the lane with this directory name; -1 if the name is not a lane's name."""
        match = LANE.fullmatch(name)
        return int(match[1]) if match else -1

    def take_lane(
        self,
        number: int | None = None,
        *,
        client: str = "",
        wait: Callable[[float], None] | None = None,
    ) -> LaneLock:
        """Takes ownership of a lane: the requested one, or a free one.

        With `client`, this method prefers the lowest free lane whose last owner had this client id or drained the lane.
        If all of these lanes have owners, this method asks processes that have adopted such lanes to hand a lane back.
        The last choice is a new lane.

        Args:
            number: Number of the requested lane.
            client: Client id of the producer that takes the lane.
            wait: Function that sleeps for a given number of seconds, called repeatedly until another process hands its
                lane back. If `wait` is None, this method asks no process for a lane.

        Raises:
            LaneBusyError: Another running process owns the requested lane, or running processes own all lanes.
            SpoolError: The lane cannot be created or locked.
        """
        try:
            if number is not None:
                lock = self._take_number(number, client)
                if lock is None and wait is not None and self.owners.adopted(number):
                    lock = self._ask_back(number, client, wait, _BACK_BY_NUMBER_S)
                if lock is None:
                    raise self._busy(number)
                return lock
            with self._taking():
                lock = self._take_any(client)
            if lock is not None:
                return lock
            for candidate in self._mine(client) if wait is not None else ():
                if self.owners.adopted(candidate):
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
            remedy = " The directory and all in it must be writable by this user."
            raise SpoolError(
                f"No lane of {self.path} can be used: {error}."
                f"{remedy if isinstance(error, PermissionError) else ''} No record was accepted, none was lost"
            ) from error
        raise LaneBusyError(f"All {_MAX_LANES} lanes of {self.path} belong to live processes")

    def _take_number(self, number: int, client: str) -> LaneLock | None:
        """Takes a lane if it has no owner. If another process has locked the lane, tries again after a moment: a
        process that looks for lanes to adopt may lock the lane briefly, without holding the lock `births`.
        """
        for tries in range(_GLANCE_TRIES):
            if tries:
                time.sleep(_GLANCE_S)
            with self._taking():
                lock = self._try(number, client)
            if lock is not None or self.owners.adopted(number):
                return lock
        return None

    def _busy(self, number: int) -> LaneBusyError:
        pid, text = self.owners.owner(number)
        who = f"process {pid}" if pid else "another process"
        return LaneBusyError(
            f"Lane {number} of {self.path} belongs to {who}{f' ({text})' if text else ''}. Leave spool_lane"
            " out to get a free lane, or end that process. Its records then stay in the lane",
            pid=pid,
        )

    def _mine(self, client: str) -> list[int]:
        """Numbers of the lanes with this client id, and of the lanes without a client id. All lanes if `client` is
        empty.
        """
        if not client:
            return self.lanes()
        return [number for number in self.lanes() if self.owners.client(number) in {"", client}]

    def _take_any(self, client: str) -> LaneLock | None:
        """Takes the lowest free lane of `_mine`, or else a new lane. But if another process has adopted a lane of
        `_mine`, takes no new lane, so that the caller can ask the other process to hand the adopted lane back.
        """
        mine = self._mine(client)
        for candidate in mine if client else range(_MAX_LANES):
            # An entry that is not a directory must not prevent a start; `kafkasafe spool ls` reports the entry.
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                lock = self._try(candidate, client)
                if lock is not None:
                    return lock
        if client and any(self.owners.adopted(candidate) for candidate in mine):
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
        """Asks the process that adopted a lane to hand the lane back. Returns None if the process takes too long, or if
        another process is already asking for the lane.
        """
        path = self.lane_path(number) / "wanted"
        handle = open_lockable(self._files, path, create=True)
        asks = False
        try:
            asks = wait is not None and self._files.lock(handle)
            if wait is None or not asks:
                return None
            for _ in range(int(patience_s / _BACK_PAUSE_S)):
                lock = self._try(number, client)
                if lock is not None or not self.owners.adopted(number):
                    return lock
                wait(_BACK_PAUSE_S)
            return None
        finally:
            if asks:  # otherwise the file is another process's request
                with contextlib.suppress(OSError):
                    self._files.unlink(path)
            close_lockable(self._files, handle)

    def wanted(self, number: int) -> bool:
        """Whether a producer waits for this lane to be handed back."""
        lane = self.lane_path(number)
        try:
            return "wanted" in self._files.list(lane) and self.owners.is_locked(lane / "wanted")
        except OSError:
            return False

    @contextlib.contextmanager
    def births(self) -> Iterator[None]:
        """Context manager for taking a lane, and for finding out whether a lane has an owner. To find out whether a
        lane has an owner, a process locks the lane for a moment, and another process could mistake this process for the
        owner. So only one process at a time enters the context, except that a process that has waited for 5 s enters
        anyway.

        Raises:
            OSError: The lock cannot be opened.
        """
        handle = open_lockable(self._files, self.path / FORMAT_NAME)
        try:
            for _ in range(_BIRTH_TRIES):
                if self._files.lock(handle):
                    break
                time.sleep(0.02)
            yield
        finally:
            close_lockable(self._files, handle)

    @contextlib.contextmanager
    def _taking(self) -> Iterator[None]:
        """Like `births`. Creates the spool directory again if `kafkasafe spool prune` has deleted it."""
        with self.births():
            if self._files.identity_of(self.path / FORMAT_NAME) is None:
                make_format(self.path, self._files)
            yield

    @contextlib.contextmanager
    def resending(self) -> Iterator[None]:
        """Context for moving rejected records back into lanes. Only one process at a time can enter it.

        Raises:
            LaneBusyError: Another process is resending records now.
            SpoolError: The lock file cannot be locked.
        """
        path = self.path / "RESEND"
        try:
            handle = open_lockable(self._files, path, create=True)
        except OSError as error:
            raise SpoolError(f"{path} cannot be made: {error}. Nothing was changed") from error
        try:
            if not self._files.lock(handle):
                raise LaneBusyError(
                    f"Another process resends rejected records of {self.path}. Nothing was changed"
                )
            yield
        finally:
            close_lockable(self._files, handle)

    def dead_lanes(self, *, now: float = 0.0, grace_s: float = 0.0) -> list[LaneLock]:
        """Takes ownership of lanes with content but without an owner, and returns these lanes.

        If a lane was returned before and has not changed since, it is returned again only after `offer_again`.

        Args:
            now: The time in seconds.
            grace_s: How long a lane must have been without an owner before it is taken, so that a producer that
                restarts gets its own lane back.

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
                if grace_s and self.owners.is_owned(number):
                    continue
                free[number] = self._free_since.get(number, now)
                if now - free[number] < grace_s or self.wanted(number):
                    continue
                lock = self._try(number)
                if lock is not None:
                    taken.append(lock)
                    del free[number]
                    self._offered[number] = self.content(number)
        except OSError as error:
            for lock in taken:
                lock.release(drained=False)
                self.offer_again(lock.number)
            raise SpoolError(
                f"{self.path} cannot be searched for lanes of earlier processes: {error}"
            ) from error
        self._free_since = free
        return taken

    def offer_again(self, number: int) -> None:
        """Makes `dead_lanes` return a lane again, because the lane could not be adopted."""
        self._offered.pop(number, None)

    @property
    def whole(self) -> bool:
        """Whether the directory's files outside the lanes exist, and FORMAT is intact.

        Raises:
            OSError: This cannot be determined.
        """
        if not has_format(self.path, self._files):
            return False
        return not self._cluster.known or self._files.identity_of(self.path / "CLUSTER") is not None

    def restore(self, lock: LaneLock | None = None) -> None:
        """Creates the missing parts of the directory, and puts back the lane of `lock`.

        A moved lane is moved back as a whole, in one step, perhaps under another number. An empty lane replaces a
        deleted lane, and the caller has to write the content again.

        Raises:
            LaneBusyError: Either the lane's lock was deleted and another process has taken the lane, or running
                processes own all lanes of the directory.
            SpoolError: The directory cannot be restored at the moment. A part of it may have been restored.
        """
        try:
            self._make_again()
            if lock is None or lock.standing is DirectoryStanding.HERE:
                return
            with self.births():
                number = lock.number
                match lock.standing:
                    case DirectoryStanding.HERE:
                        return
                    case DirectoryStanding.UNLOCKED:
                        lock.lock_again()
                    case DirectoryStanding.MOVED:
                        self._fetch(lock)
                    case DirectoryStanding.DELETED:
                        self._begin_again(lock)
                if self._taken.get(number) is lock:
                    del self._taken[number]
                self._taken[lock.number] = lock
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise SpoolError(
                    f"another volume is mounted at {self.path} or above it, or the spool's volume was unmounted there,"
                    " so files cannot be moved there. Unmount the other volume, or mount the spool's volume again. If"
                    " you want to use the other volume, stop the producer afterwards, and move the spool there before"
                    " the next start"
                ) from error
            raise SpoolError(f"{self.path} cannot be made again: {error}") from error

    def _make_again(self) -> None:
        restore_format(self.path, self._files)
        cluster = self._cluster.known
        if not cluster:
            return
        with self.births():
            found = self._cluster.read()
            self._cluster.keep(cluster)
            if found is None:
                self._cluster.write(cluster)
            elif found != cluster:
                raise SpoolError(
                    f"{self.path} now contains the spool of another cluster ({found}), but this producer's records"
                    f" belong to cluster {cluster}"
                )

    def _fetch(self, lock: LaneLock) -> None:
        """Moves a lane back by renaming its directory. No file is copied, so after a crash the lane is in exactly one
        place.
        """
        there = set(self.lanes())
        number = next(n for n in (lock.number, *range(_MAX_LANES)) if n not in there)
        parent = self._files.open_directory(Path(".."), at=lock.directory)
        try:
            inside = map(Path, self._files.list(Path(), at=parent))
            identity_of = self._files.identity_of
            name = next((each for each in inside if lock.is_directory(identity_of(each, at=parent))), None)
            if name is None:
                raise FileNotFoundError(errno.ENOENT, "It has no name any more", str(lock.path))
            self._files.rename(name, self.lane_path(number), at=parent)
            self._files.sync_directory(self.path)
            self._files.sync_directory(Path(), at=parent)
        finally:
            self._files.close(parent)
        lock.fetched(number)

    def _begin_again(self, lock: LaneLock) -> None:
        """Replaces a deleted lane with an empty one."""
        there = set(self.lanes())
        for number in (lock.number, *(n for n in range(_MAX_LANES) if n not in there)):
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                taken = self._take(self.lane_path(number))
                if taken is None:
                    continue
                with contextlib.ExitStack() as unused:
                    unused.callback(give_up, self._files, *taken)
                    # A directory with more than the lock file is the lane of a process that has died, and must not be
                    # used here.
                    if set(self._files.list(self.lane_path(number))) <= {LOCK_NAME.name}:
                        unused.pop_all()
                        lock.replace(number, *taken)
                        return
        raise LaneBusyError(f"All {_MAX_LANES} lanes of {self.path} belong to live processes")

    def owner(self, number: int) -> tuple[int, str]:
        """(pid, text) of a lane's lock file; (0, "") if the file has no text."""
        return self.owners.owner(number)

    def starting_lanes(self) -> dict[int, str]:
        """Returns the lanes without an owner that new producers would take: lane number → client id of such a producer.

        An empty client id means that any producer would take the lane. The result may be wrong, because this method
        does not test the locks. A caller must take the lock before it changes a lane.

        Raises:
            OSError: The directory cannot be read.
        """
        found: dict[int, str] = {}
        for number in self.lanes():
            client = self.owners.client(number)
            if not {"", client}.isdisjoint(found.values()) or self.owners.seems_owned(number):
                continue
            try:
                self._files.list(self.lane_path(number))
            except (FileNotFoundError, NotADirectoryError):
                continue  # `take_lane` skips this lane
            except PermissionError:
                pass
            found[number] = client
        return found

    def content(self, number: int) -> tuple[tuple[str, int], ...]:
        """Names and sizes of a lane's segments, to recognise that the lane has changed. For a lane without segments:
        name and size of the file `extent`.

        Raises:
            OSError: The lane cannot be read.
        """
        lane = self.lane_path(number)
        content = []
        names = sorted(self._files.list(lane))
        segments = [name for name in names if name.endswith(".log")]
        for name in segments or names:
            if name.endswith(".log") or name == "extent":
                # If the file does not exist, the lane's owner has just deleted the segment.
                with contextlib.suppress(FileNotFoundError):
                    content.append((name, size_of(self._files, lane / name)))
        return tuple(content)

    def _try(self, number: int, client: str | None = None) -> LaneLock | None:
        """Takes ownership of a lane if it has no owner. If `client` is None, the new owner only drains the lane."""
        lane = self.lane_path(number)
        taken = self._take(lane)
        if taken is None:
            return None
        directory, handle = taken
        former = self.owners.client(number)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = f"pid {os.getpid()} host {platform.node()} since {started}"
        if client is None:
            text += f" adopts {quote(former) or NO_CLIENT}"
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
            give_up(self._files, directory, handle)
            raise
        self._taken[number] = lock
        lock.write(f"{text}\n")
        return lock

    def _take(self, lane: Path) -> tuple[int, int] | None:
        """Locks a lane. Returns the handles of the lane's directory and of its lock file; None if another process owns
        the lane.
        """
        for _ in range(_TAKE_TRIES):
            self._files.make_directory(lane)
            with contextlib.ExitStack() as opened:
                try:
                    directory = self._files.open_directory(lane)
                    opened.callback(self._files.close, directory)
                    handle = open_lockable(self._files, LOCK_NAME, create=True, at=directory)
                    opened.callback(close_lockable, self._files, handle)
                except FileNotFoundError:
                    continue  # the lane has just been deleted
                if not self._files.lock(handle):
                    return None
                there = self._files.identity_of(lane), self._files.identity_of(LOCK_NAME, at=directory)
                if there == (self._files.identity(directory), self._files.identity(handle)):
                    opened.pop_all()
                    return directory, handle
                # The directory has just been moved or deleted, so this lock does not protect the directory that has the
                # name now.
        raise OSError(errno.ESTALE, "It is moved or deleted again and again", str(lane))

"""A disk in memory that loses power, lies, runs full and is damaged, for tests of whatever keeps data on a disk.

`Disk` is the machine's disk, `DiskFiles` what one process does with it: an implementation of the spool's seam to
the disk (`kafkasafe._io.files.Files`). Several processes can share a disk, as they do a real one.

    disk = Disk()
    write_something(disk.process())
    for state in disk.crash_states():
        recover(state.disk.process())

What a process sees is always the newest state, as through a page cache. What a crash leaves is something else:

* **Data.** Until the `sync_data` of a file, each 512-byte sector of what was written since the last one is there or
  not, in any combination, or torn at a byte, four bytes or more before its end. The file's size is updated or not,
  whatever the data does: bytes are missing, or zeros stand where data should. What was cut off may be back.
* **Names.** Until the `sync_directory` of a directory, each name that was made, deleted or renamed in it is in its
  old or its new state, in any combination. A rename is atomic; from one directory into another it is durable when
  one of them was synced.
* **A failed `sync_data`** leaves what was written since the last good one in such a state for ever: later ones do
  not mend it, only writing it again does. A process still reads what it wrote. (Linux marks the pages clean. That
  PostgreSQL relied on the contrary was found in 2018 and is known as fsyncgate.) Names are journalled in every
  file system in use: a `sync_directory` that succeeds after one that failed is good.

A crash of the process alone (`Fault.kill`, `DiskFiles.kill`) loses nothing of this: the next process sees all of it,
and a later loss of power can still take what was not synced.

What others do to a disk that a process uses: `Disk.remove` is `rm -rf`, `Disk.move` is `mv`, `Disk.mount` and
`Disk.unmount` put another volume in the place of a directory. A process that has a file or a directory open keeps it.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from kafkasafe._io.files import Buffer, Identity

__all__ = [
    "SECTOR_BYTES",
    "CrashState",
    "Disk",
    "DiskFiles",
    "Fault",
    "Link",
    "Operation",
    "ProcessKilled",
    "Rename",
    "SyncData",
    "SyncDirectory",
    "Truncate",
    "Unlink",
    "Write",
]

SECTOR_BYTES: Final = 512
_LEAST_MISSING_BYTES: Final = 4
"""What a disk writes at once. Larger ones exist; whoever survives these survives those."""

_UNLIMITED: Final = 1 << 60
_ROOT: Final = 0
"""The node of `/`."""
_DEVICE: Final = 1


class ProcessKilled(BaseException):
    """The process that made this call is dead, as after kill -9: none of its code should run from here on."""


# -- what is recorded ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written to a file (named by its node, which renaming does not change)."""

    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """The size of a file was set."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class SyncData:
    """A file was synced, or that failed."""

    node: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A file or directory was made. The directory with its name is named by its node, too."""

    directory: int
    name: str
    node: int
    is_directory: bool = False


@dataclass(frozen=True, slots=True)
class Unlink:
    """A file or an empty directory was deleted."""

    directory: int
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A file or directory got another name; `into` is the directory with the new one."""

    directory: int
    name: str
    into: int
    target: str
    node: int


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """The names in a directory were synced, or that failed."""

    directory: int
    ok: bool


Operation: TypeAlias = Write | Truncate | SyncData | Link | Unlink | Rename | SyncDirectory
_Names: TypeAlias = dict[str, int]


@dataclass(slots=True)
class Fault:
    """What goes wrong, and when. Armed by `Disk.fail`; counts from then on.

    Attributes:
        call: How many of the calls it is meant for go well before.
        operation: Which calls those are: the name of a method of `Files`; None for all of them.
        error: errno of the OSError that is raised. 0: none, the write is only short (for `writev` alone).
        times: How many calls fail, None for all from then on.
        partial: Which part of a write gets done before it fails or ends short, 0.0 to 1.0 (a short one: ≥ 1 byte).
        kill: Instead of an error: the process dies there.
        hits: How often it struck so far.
    """

    call: int = 0
    operation: str | None = None
    error: int = errno.EIO
    times: int | None = 1
    partial: float = 0.5
    kill: bool = False
    hits: int = 0

    def _strikes(self, operation: str) -> bool:
        if self.operation not in {None, operation} or (self.times is not None and self.hits >= self.times):
            return False
        if self.call > 0:
            self.call -= 1
            return False
        self.hits += 1
        return True


@dataclass(frozen=True, slots=True)
class CrashState:
    """What a loss of power can leave.

    Attributes:
        disk: The disk as it is afterwards. Nobody has it open, all of it is durable, no fault is armed.
        at: How many of `Disk.operations` had begun.
        how: What became of those that were not durable, for the message of a failed test.
    """

    disk: Disk
    at: int
    how: str


# -- the disk --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    reserved: int = 0
    handles: int = 0
    locked_by: object | None = None


class Disk:
    """A disk in memory. Not thread-safe.

    Attributes:
        operations: All that changed it or was to make a change durable, in order.
        calls: How often each method of `Files` was called, by its name.
        capacity_bytes: Room for data, None for no limit; may be changed at any time.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.operations: list[Operation] = []
        self.calls: Counter[str] = Counter()
        self.capacity_bytes = capacity_bytes
        self._faults: list[Fault] = []
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Names] = {_ROOT: {}}
        self._parents: dict[int, int] = {_ROOT: _ROOT}
        """Of directories; one that was deleted has none."""
        self._devices: dict[int, int] = {}
        """Of directories on other volumes than the first."""
        self._mounts: dict[int, int] = {}
        """By directory, the root of the volume that is mounted there."""
        # Directories by path as text: each call comes with a new path, and their hashes cost more than all the rest.
        self._texts: dict[str, int] = {}
        self._nodes = _ROOT
        # What was there, durably, before the first of `operations`.
        self._origin = _Durable({}, {_ROOT: {}})

    def process(self) -> DiskFiles:
        """A process that uses this disk: its handles, and with them its locks, are its own."""
        return DiskFiles(self)

    def fail(
        self,
        operation: str | None = None,
        *,
        call: int = 0,
        error: int = errno.EIO,
        times: int | None = 1,
        partial: float = 0.5,
        kill: bool = False,
    ) -> Fault:
        """Arm a fault, see `Fault`."""
        if error == 0 and operation != "writev":
            raise ValueError("Only a writev can be short")
        fault = Fault(call, operation, error, times, partial, kill)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """No more faults. What they did stays."""
        self._faults.clear()

    @property
    def used_bytes(self) -> int:
        """Room that is taken: by files with a name or a handle, reserved space included."""
        named = {node for names in self._directories.values() for node in names.values()}
        return sum(
            max(len(file.content), file.reserved)
            for node, file in self._files.items()
            if file.handles or node in named
        )

    def files(self) -> dict[Path, bytes]:
        """All files, as a process sees them."""
        return {
            path / name: bytes(self._files[node].content)
            for path, names in self._tree()
            for name, node in names.items()
            if node in self._files
        }

    def _tree(self) -> Iterator[tuple[Path, _Names]]:
        """Each directory that a path leads to, with the names in it."""
        return ((path, self._directories[node]) for path, node in self._tree_nodes())

    def _tree_nodes(self) -> Iterator[tuple[Path, int]]:
        todo = [(Path("/"), _ROOT)]
        for path, directory in todo:
            node = self._mounts.get(directory, directory)
            names = self._directories[node]
            yield path, node
            todo += [(path / name, node) for name, node in names.items() if node in self._directories]

    def put(self, path: Path, content: bytes) -> None:
        """Replace a file by other means than a process: for setting up and for damage.

        The whole disk is durable then, and `operations` begins anew.
        """
        directory = _ROOT
        for name in path.parent.parts[1:]:
            names = self._directories[self._mounts.get(directory, directory)]
            directory = names[name] if name in names else self._new_directory(directory, name)
        names = self._directories[self._mounts.get(directory, directory)]
        node = names.get(path.name)
        if node is None:
            self._nodes += 1
            node = names[path.name] = self._nodes
            self._files[node] = _File()
        self._files[node].content[:] = content
        self._freeze()

    def remove(self, path: Path) -> None:
        """`rm -rf`: a file, or a directory with all that is in it. Not durable before directories are synced."""
        names, name, above = self._place(path)
        node = names.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if node in self._directories:
            for each in list(self._directories[node]):
                self.remove(path / each)
            self._removed(node)
        del names[name]
        self.operations.append(Unlink(above, name))

    def move(self, source: Path, target: Path) -> None:
        """`mv` within a volume: a file or a directory gets another name, `target`."""
        self._rename(source, target, None, None)

    def mount(self, path: Path) -> None:
        """Another volume, an empty one, hides a directory. What a process has open of it is there as before.

        The whole disk is durable then, as after `put`.
        """
        self._nodes += 1
        root = self._nodes
        covered = self._directory(path, None)
        self._directories[root] = {}
        self._parents[root] = self._parents[covered]
        self._devices[root] = _DEVICE + root
        self._mounts[covered] = root
        self._texts.clear()
        self._freeze()

    def unmount(self, path: Path) -> None:
        """What a volume hid is there again."""
        root = self._directory(path, None)
        covered = next(node for node, mounted in self._mounts.items() if mounted == root)
        del self._mounts[covered]
        self._texts.clear()

    def flip(self, path: Path, byte: int, mask: int = 1) -> None:
        """Damage one byte of a file, see `put`."""
        content = bytearray(self.files()[path])
        content[byte] ^= mask
        self.put(path, bytes(content))

    def copy(self) -> Disk:
        """The disk after an orderly shutdown: all is durable, nobody has it open."""
        return Disk._of(
            {node: bytes(file.content) for node, file in self._files.items()},
            {node: dict(names) for node, names in self._directories.items()},
            self,
        )

    def crash_states(
        self,
        *,
        start: int = 0,
        stop: int | None = None,
        samples: int = 4,
        seed: int = 0,
    ) -> Iterator[CrashState]:
        """What a loss of power may leave, at each moment of the recorded history.

        At each moment: what a process would see (nothing is lost), what is durable (everything else is lost), and
        `samples` random states in between, as the module's documentation describes them. Where nothing is in doubt
        those are one.

        Args:
            start: First moment: how many operations had been begun.
            stop: Last moment (inclusive); None for the end of the history.
            samples: Random states for each moment.
            seed: The same seed gives the same states.

        Yields:
            Disks that are independent of this one and of each other.
        """
        rng = random.Random(seed)
        last = len(self.operations) if stop is None else stop
        durable = self._origin.copy()
        for at in range(last + 1):
            if at:
                durable.add(at - 1, self.operations[at - 1])
            if at >= start:
                for choice in durable.choices(rng, samples):
                    yield CrashState(Disk._of(*durable.settle(choice, rng), self), at, str(choice))

    def crash(self, *, seed: int = 0) -> Disk:
        """One random state that a loss of power may leave now."""
        states = list(self.crash_states(start=len(self.operations), samples=1, seed=seed))
        return states[-1].disk

    # -- for DiskFiles -------------------------------------------------------------------------------------------------

    @classmethod
    def _of(cls, files: dict[int, bytes], directories: dict[int, _Names], before: Disk) -> Disk:
        """A disk with this content. What cannot be reached from a volume's root is left out."""
        disk = cls(capacity_bytes=before.capacity_bytes)
        disk._mounts = dict(before._mounts)
        todo = [_ROOT, *disk._mounts.values()]
        for root in disk._mounts.values():
            disk._parents[root] = before._parents[root]
            disk._devices[root] = before._devices[root]
        for directory in todo:
            names = disk._directories[directory] = directories[directory]
            for node in names.values():
                if node in directories:
                    disk._parents[node] = directory
                    if directory in disk._devices:
                        disk._devices[node] = disk._devices[directory]
                    todo.append(node)
                else:
                    disk._files[node] = _File(bytearray(files[node]))
        disk._nodes = before._nodes
        disk._freeze()
        return disk

    def _freeze(self) -> None:
        self.operations.clear()
        self._origin = _Durable(
            {node: _Data(bytes(file.content)) for node, file in self._files.items()},
            {node: dict(names) for node, names in self._directories.items()},
        )

    def _strike(self, operation: str) -> Fault | None:
        self.calls[operation] += 1
        if not self._faults:
            return None
        return next((fault for fault in self._faults if fault._strikes(operation)), None)

    def _directory(self, path: Path, at: int | None) -> int:
        """The node of a directory; `at` is the node of the one to which a relative path is relative."""
        text = str(path)
        relative = at is not None and not text.startswith("/")
        if not relative:
            known = self._texts.get(text)
            if known is not None:
                return known
        node = at if relative and at is not None else _ROOT
        for name in () if text == "." else text.strip("/").split("/") if text != "/" else ():
            if name == "..":
                node = self._parents.get(node, node)
                continue
            found = self._directories[node].get(name)
            if found is None:
                raise _error(errno.ENOENT, path)
            if found not in self._directories:
                raise _error(errno.ENOTDIR, path)
            node = self._mounts.get(found, found)
        if not relative:
            self._texts[text] = node
        return node

    def _place(self, path: Path, at: int | None = None) -> tuple[_Names, str, int]:
        """The names in its directory, its own, and the directory."""
        above, slash, name = str(path).rpartition("/")
        if not slash and at is not None:
            return self._directories[at], name, at
        node = self._texts.get(above) if at is None or above.startswith("/") else None
        if node is None:
            node = self._directory(path.parent, at)
        return self._directories[node], name, node

    def _node(self, path: Path, at: int | None = None) -> int:
        names, name, _ = self._place(path, at)
        node = names.get(name)
        if node is None:
            raise _error(errno.ENOENT, path)
        if node in self._directories:
            raise _error(errno.EISDIR, path)
        return node

    def _link(self, path: Path, at: int | None) -> int:
        names, name, directory = self._place(path, at)
        if directory not in self._parents:
            raise _error(errno.ENOENT, path)  # it was deleted
        self._nodes += 1
        names[name] = self._nodes
        self._files[self._nodes] = _File()
        self.operations.append(Link(directory, name, self._nodes))
        return self._nodes

    def _new_directory(self, directory: int, name: str) -> int:
        directory = self._mounts.get(directory, directory)
        if directory not in self._parents:
            raise _error(errno.ENOENT, Path(name))
        self._nodes += 1
        self._directories[directory][name] = self._nodes
        self._directories[self._nodes] = {}
        self._parents[self._nodes] = directory
        if directory in self._devices:
            self._devices[self._nodes] = self._devices[directory]
        self.operations.append(Link(directory, name, self._nodes, is_directory=True))
        return self._nodes

    def _removed(self, directory: int) -> None:
        del self._parents[directory]
        self._texts.clear()

    def _device(self, directory: int) -> int:
        return self._devices.get(directory, _DEVICE)

    def _rename(self, source: Path, target: Path, at: int | None, to: int | None) -> None:
        names, name, above = self._place(source, at)
        node = names.get(name)
        if node is None:
            raise _error(errno.ENOENT, source)
        others, new, into = self._place(target, to)
        if self._device(above) != self._device(into):
            raise _error(errno.EXDEV, source)
        if into not in self._parents:
            raise _error(errno.ENOENT, target)
        there = others.get(new)
        if there == node:
            return
        if node in self._directories:
            inside = into
            while inside not in {_ROOT, node}:
                inside = self._parents[inside]
            if inside == node:
                raise _error(errno.EINVAL, source)
            if there is not None and there not in self._directories:
                raise _error(errno.ENOTDIR, target)
            if there is not None and self._directories[there]:
                raise _error(errno.ENOTEMPTY, target)
            if there is not None:
                self._removed(there)
            self._parents[node] = into
            self._texts.clear()
        elif there in self._directories:
            raise _error(errno.EISDIR, target)
        del names[name]
        others[new] = node
        self.operations.append(Rename(above, name, into, new, node))

    def _room(self) -> int:
        return _UNLIMITED if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes)

    def _write(self, node: int, offset: int, data: bytes) -> int:
        file = self._files[node]
        if self.capacity_bytes is not None:
            room = max(len(file.content), file.reserved) + self._room() - offset
            if room <= 0 < len(data):
                raise _error(errno.ENOSPC)
            data = data[:room]
        _put(file.content, offset, data)
        self.operations.append(Write(node, offset, data))
        return len(data)


class DiskFiles:
    """One process's use of a `Disk`: implements `kafkasafe._io.files.Files`, whose documentation holds here.

    Attributes:
        disk: The disk.
    """

    __slots__ = ("_dead", "_handles", "_next", "disk")

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._handles: dict[int, tuple[int, bool]] = {}
        self._next = 3
        self._dead = False

    @property
    def open_handles(self) -> int:
        """How many handles are open: a program that closes all of its files ends with 0."""
        return len(self._handles)

    def kill(self) -> None:
        """The process dies: its handles are closed, its locks are free, every further call raises."""
        for handle in list(self._handles):
            self._close(handle)
        self._dead = True

    def create(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        self._call("create")
        folder = self._folder(at)
        names, name, _ = self.disk._place(path, folder)
        if name in names:
            raise _error(errno.EEXIST, path)
        return self._open(self.disk._link(path, folder), write=True)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """See `Files`."""
        self._call("open")
        folder = self._folder(at)
        if create:
            names, name, _ = self.disk._place(path, folder)
            if name not in names:
                return self._open(self.disk._link(path, folder), write=write)
        return self._open(self.disk._node(path, folder), write=write)

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        self._call("open_directory")
        node = self.disk._directory(path, self._folder(at))
        self._next += 1
        self._handles[self._next] = (node, False)
        return self._next

    def identity(self, handle: int) -> Identity:
        """See `Files`."""
        self._call("identity")
        if handle not in self._handles:
            raise _error(errno.EBADF)
        return self._identity(self._handles[handle][0])

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        """See `Files`."""
        self._call("identity_of")
        folder = self._folder(at)
        try:
            if str(path) in {".", "/"}:
                return self._identity(self.disk._directory(path, folder))
            names, name, _ = self.disk._place(path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        node = names.get(name)
        return None if node is None else self._identity(self.disk._mounts.get(node, node))

    def path_of(self, handle: int) -> Path | None:
        """See `Files`."""
        wanted = self._handles[handle][0]
        return next((path for path, node in self.disk._tree_nodes() if node == wanted), None)

    def _identity(self, node: int) -> Identity:
        return self.disk._device(node), node

    def _folder(self, at: int | None) -> int | None:
        """The node of the directory that a handle stands for."""
        if at is None:
            return None
        if at not in self._handles:
            raise _error(errno.EBADF)
        node = self._handles[at][0]
        if node not in self.disk._directories:
            raise _error(errno.ENOTDIR)
        return node

    def close(self, handle: int) -> None:
        """See `Files`. Never fails."""
        if self._dead:
            raise ProcessKilled
        self._close(handle)

    def writev(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See `Files`."""
        data = b"".join(buffers)
        node = self._writable(handle)
        fault = self._strike("writev")
        if fault is None:
            return self.disk._write(node, offset, data)
        done = int(len(data) * fault.partial)
        if fault.error == 0 and not fault.kill:
            return self.disk._write(node, offset, data[: max(1, done)])
        if done:
            self.disk._write(node, offset, data[:done])
        raise self._failure(fault)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        """See `Files`."""
        self._call("read")
        return bytes(self._file(handle).content[offset : offset + size])

    def read_into(self, handle: int, offset: int, buffer: bytearray) -> int:
        """See `Files`."""
        content = self.read(handle, offset, len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def sync_data(self, handle: int) -> None:
        """See `Files`."""
        fault = self._strike("sync_data")
        self._file(handle)
        node = self._handles[handle][0]
        if fault is None or not fault.kill:
            self.disk.operations.append(SyncData(node, ok=fault is None))
        if fault is not None:
            raise self._failure(fault)

    def truncate(self, handle: int, size: int) -> None:
        """See `Files`."""
        node = self._writable(handle)
        self._call("truncate")
        file = self._file(handle)
        file.reserved = 0
        if size != len(file.content):
            _resize(file.content, size)
            self.disk.operations.append(Truncate(node, size))

    def preallocate(self, handle: int, size: int) -> bool:
        """See `Files`. A fault makes it False."""
        self._writable(handle)
        fault = self._strike("preallocate")
        if fault is not None and fault.kill:
            raise self._failure(fault)
        file = self._file(handle)
        taken = max(len(file.content), file.reserved)
        if fault is not None or size - taken > self.disk._room():
            return False
        file.reserved = max(file.reserved, size)
        return True

    def size(self, handle: int) -> int:
        """See `Files`."""
        self._call("size")
        return len(self._file(handle).content)

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        """See `Files`."""
        self._call("list")
        return list(self.disk._directories[self.disk._directory(directory, self._folder(at))])

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        """See `Files`."""
        self._call("make_directory")
        folder = self._folder(at)
        missing: list[Path] = []
        there = path
        while not self._is_directory(there, folder):
            missing.append(there)
            there = there.parent
        # Whoever made this one may have died before its name was durable.
        self.sync_directory(there.parent, at=at)
        for directory in reversed(missing):
            names, name, above = self.disk._place(directory, folder)
            if name in names:
                raise _error(errno.ENOTDIR, directory)
            self.disk._new_directory(above, name)
            self.sync_directory(directory.parent, at=at)
        return bool(missing)

    def _is_directory(self, path: Path, folder: int | None) -> bool:
        try:
            self.disk._directory(path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        node = self.disk._directory(path, self._folder(at))
        fault = self._strike("sync_directory")
        if fault is None or not fault.kill:
            self.disk.operations.append(SyncDirectory(node, ok=fault is None))
        if fault is not None:
            raise self._failure(fault)

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        self._call("unlink")
        folder = self._folder(at)
        self.disk._node(path, folder)
        names, name, directory = self.disk._place(path, folder)
        del names[name]
        self.disk.operations.append(Unlink(directory, name))

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """See `Files`."""
        self._call("rename")
        self.disk._rename(source, target, self._folder(at), self._folder(to))

    def lock(self, handle: int) -> bool:
        """See `Files`. As flock(2): another handle of the same process is somebody else."""
        self._call("lock")
        file = self._file(handle)
        owner = (self, handle)
        if file.locked_by is None:
            file.locked_by = owner
        return file.locked_by == owner

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        self._call("free_bytes")
        self.disk._directory(path, self._folder(at))
        return self.disk._room()

    def _strike(self, operation: str) -> Fault | None:
        if self._dead:
            raise ProcessKilled
        return self.disk._strike(operation)

    def _call(self, operation: str) -> None:
        fault = self._strike(operation)
        if fault is not None:
            raise self._failure(fault)

    def _failure(self, fault: Fault) -> BaseException:
        if fault.kill:
            self.kill()
            return ProcessKilled()
        return _error(fault.error)

    def _open(self, node: int, *, write: bool) -> int:
        self._next += 1
        self._handles[self._next] = (node, write)
        self.disk._files[node].handles += 1
        return self._next

    def _close(self, handle: int) -> None:
        if handle not in self._handles:
            raise _error(errno.EBADF)
        file = self.disk._files.get(self._handles.pop(handle)[0])
        if file is not None:
            if file.locked_by == (self, handle):
                file.locked_by = None
            file.handles -= 1

    def _file(self, handle: int) -> _File:
        if handle not in self._handles:
            raise _error(errno.EBADF)
        file = self.disk._files.get(self._handles[handle][0])
        if file is None:
            raise _error(errno.EISDIR)
        return file

    def _writable(self, handle: int) -> int:
        node, writable = self._handles.get(handle, (0, False))
        if not writable:
            raise ProcessKilled if self._dead else _error(errno.EBADF)
        return node


# -- what survives ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Layer:
    """A change of a file on top of what is durable. Certain: durable too, but on top of one that is not."""

    at: int
    change: Write | Truncate
    certain: bool = False
    doubtful: bool = False


@dataclass(slots=True)
class _Data:
    """What is known of a file on the disk.

    Attributes:
        base: Durable.
        layers: Changes since, in order.
        size: The size that processes see.
    """

    base: bytes = b""
    layers: list[_Layer] = field(default_factory=list)
    size: int = -1

    def __post_init__(self) -> None:
        if self.size < 0:
            self.size = len(self.base)

    def add(self, at: int, change: Write | Truncate) -> None:
        self.layers.append(_Layer(at, change))
        if isinstance(change, Truncate):
            self.size = change.size
        elif change.data:
            self.size = max(self.size, change.offset + len(change.data))

    def sync(self, at: int, node: int, *, ok: bool) -> None:
        for layer in self.layers:
            if not layer.doubtful and not layer.certain:
                layer.certain, layer.doubtful = ok, not ok
        if not ok:
            return
        # The size is not written by the pages that were lost, so it is good.
        self.layers.append(_Layer(at, Truncate(node, self.size), certain=True))
        if all(layer.certain for layer in self.layers):
            self.base = self.settle(_ALL, random.Random(0))
            self.layers.clear()

    def settle(self, choice: _Choice, rng: random.Random) -> bytes:
        """One of the contents that a crash may leave."""
        content = bytearray(self.base)
        size = len(content)
        open_layers = sum(not layer.certain for layer in self.layers)
        sizes = choice.how_many_sizes(open_layers, rng)
        for layer in self.layers:
            done = 1 << 60 if layer.certain else choice.bytes_done(layer)
            counts = layer.certain or (sizes > 0 if done is None else done > 0)
            if not layer.certain:
                sizes -= 1
            match layer.change:
                case Truncate(_, new_size) if counts:
                    _resize(content, new_size)
                    size = new_size
                case Write(_, offset, data) if done is not None:
                    data = data[:done]
                    _put(content, offset, data)
                    size = max(size, offset + len(data)) if data else size
                case Write(_, offset, data):
                    for start, end in _sectors(offset, len(data)):
                        if rng.random() < choice.data:
                            torn = rng.randint(start, end) if rng.random() < choice.torn else end
                            # Memory is read in larger pieces than this when a sector is written.
                            torn = end if end - torn < _LEAST_MISSING_BYTES else torn
                            _put(content, start, data[start - offset : torn - offset])
                    if counts:
                        size = max(size, offset + len(data))
                case _:
                    pass
        _resize(content, size)
        return bytes(content)


@dataclass(frozen=True, slots=True)
class _Choice:
    """How a random state is made: the probabilities that what is not durable is there all the same.

    Attributes:
        data: That of a sector.
        sizes: 0: no new size, 1: the newest, in between: any in between (they are journalled, so in order).
        names: That of a change of a directory.
        torn: That of a sector that is there being torn.
        cut: Instead of all that: everything up to this (operation, byte), nothing behind it.
    """

    data: float = 1
    sizes: float = 1
    names: float = 1
    torn: float = 0
    cut: tuple[int, int] | None = None

    def __str__(self) -> str:
        if self.cut is not None:
            return f"all before byte {self.cut[1]} of operation {self.cut[0]}"
        return f"data {self.data} sizes {self.sizes} names {self.names} torn {self.torn}"

    def how_many_sizes(self, changes: int, rng: random.Random) -> int:
        if self.sizes in {0, 1}:
            return changes * int(self.sizes)
        return rng.randint(0, changes)

    def bytes_done(self, layer: _Layer) -> int | None:
        """None: by the probabilities."""
        if self == _ALL:
            return 1 << 60
        if self.cut is None or layer.doubtful:
            return None
        at, byte = self.cut
        return 1 << 60 if layer.at < at else byte if layer.at == at else 0

    def name_done(self, at: int, rng: random.Random) -> bool:
        return at < self.cut[0] if self.cut is not None else rng.random() < self.names


_ALL: Final = _Choice()
_NONE: Final = _Choice(data=0, sizes=0, names=0)


@dataclass(slots=True)
class _Durable:
    """What is durable at one moment of the history, and what is on top of it."""

    files: dict[int, _Data]
    directories: dict[int, _Names]
    names: list[tuple[int, Link | Unlink | Rename]] = field(default_factory=list)

    def copy(self) -> _Durable:
        return _Durable(
            {node: _Data(data.base) for node, data in self.files.items()},
            {node: dict(names) for node, names in self.directories.items()},
        )

    def add(self, at: int, operation: Operation) -> None:
        match operation:
            case Write() | Truncate():
                self.files[operation.node].add(at, operation)
            case SyncData(node, ok):
                self.files[node].sync(at, node, ok=ok)
            case SyncDirectory(directory, ok):
                if ok:
                    self._sync(directory)
            case Link(_, _, node, is_directory):
                self.names.append((at, operation))
                if is_directory:
                    self.directories[node] = {}
                else:
                    self.files[node] = _Data()
            case Unlink() | Rename():
                self.names.append((at, operation))

    def _sync(self, directory: int) -> None:
        left = []
        for at, change in self.names:
            if directory == change.directory or (isinstance(change, Rename) and directory == change.into):
                _apply(self.directories, change)
            else:
                left.append((at, change))
        self.names = left

    def choices(self, rng: random.Random, samples: int) -> Iterator[_Choice]:
        yield _ALL
        open_layers = [layer for data in self.files.values() for layer in data.layers if not layer.certain]
        if not open_layers and not self.names:
            return
        yield _NONE
        for _ in range(samples):
            if rng.random() < 0.4:
                cuts: list[tuple[int, Write | Truncate | Link | Unlink | Rename]] = [
                    (layer.at, layer.change) for layer in open_layers if not layer.doubtful
                ]
                cuts += self.names
                if cuts:
                    at, change = rng.choice(cuts)
                    length = len(change.data) if isinstance(change, Write) else 1
                    byte = rng.randint(0, length)
                    if rng.random() < 0.3:
                        byte -= byte % SECTOR_BYTES
                    doubtful = rng.choice((0, 0.5, 1))
                    yield _Choice(doubtful, doubtful, cut=(at, byte))
                    continue
            yield _Choice(
                data=rng.choice((0, 0.1, 0.5, 0.9, 1)),
                sizes=rng.choice((0, 0.5, 1)),
                names=rng.choice((0, 0.5, 1)),
                torn=rng.choice((0, 0.1)),
            )

    def settle(self, choice: _Choice, rng: random.Random) -> tuple[dict[int, bytes], dict[int, _Names]]:
        """Files and directories, by node."""
        directories = {node: dict(names) for node, names in self.directories.items()}
        for at, change in self.names:
            if choice.name_done(at, rng):
                _apply(directories, change)
        return {node: data.settle(choice, rng) for node, data in self.files.items()}, directories


def _apply(directories: dict[int, _Names], change: Link | Unlink | Rename) -> None:
    """Also where an earlier change is missing: names are changed one by one."""
    names = directories[change.directory]
    match change:
        case Link(_, name, node):
            names[name] = node
        case Unlink(_, name):
            names.pop(name, None)
        case Rename(_, name, into, target, node):
            if names.get(name) == node:
                del names[name]
            directories[into][target] = node


def _sectors(offset: int, size: int) -> Iterator[tuple[int, int]]:
    end = offset + size
    while offset < end:
        following = min(end, offset - offset % SECTOR_BYTES + SECTOR_BYTES)
        yield offset, following
        offset = following


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if data:
        if offset > len(content):
            _resize(content, offset)
        content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _error(code: int, path: Path | None = None) -> OSError:
    return OSError(code, os.strerror(code), *(() if path is None else (str(path),)))

"""A simulated disk for tests of programs that store data: it loses power, lies, fills up and gets damaged.

`Disk` is the machine's disk. `DiskFiles` is one process's use of it, and implements the spool's seam to the disk
(`kafkasafe.spool.files.Files`). Several processes can share a disk, like a real one.

    disk = Disk()
    write_something(disk.process())
    for state in disk.crash_states():
        recover(state.disk.process())

Processes always see the newest state, as through a page cache. A crash leaves another state:

* **Data.** Consider the data written to a file since its last `sync_data`. Each 512-byte sector of it survives or not,
  in any combination. A surviving sector may be torn at any byte, but then at least its last four bytes are missing. The
  file's size may or may not be updated, independently of the data. So bytes may be missing, or zeros may replace data.
  Bytes that were cut off may reappear.
* **Names.** Consider the names that were created, deleted or renamed in a directory since its last `sync_directory`.
  Each has its old or its new state, in any combination. A rename is atomic. A rename from one directory into another is
  durable as soon as either of them was synced.
* **A failed `sync_data`** leaves the data written since the last successful one in such a state permanently: a later
  `sync_data` does not repair it, only writing it again does. Processes still read what they wrote. (Linux marks the
  pages as clean. PostgreSQL had relied on the contrary until 2018; this is known as fsyncgate.) All file systems in use
  journal names, so a `sync_directory` that succeeds after a failed one is valid.

A crash of only the process (`Fault.kill`, `DiskFiles.kill`) loses none of this. The next process sees everything, and a
later loss of power can still lose unsynced data.

Other programs can change a disk that a process uses: `Disk.remove` is `rm -rf`, `Disk.move` is `mv`, `Disk.mount` and
`Disk.unmount` replace a directory by another volume and back. A process keeps what it has open.
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

from kafkasafe.spool.files import Buffer, Identity

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
"""The smallest unit that a disk writes. Real units may be larger; a program that survives these survives those."""

_UNLIMITED: Final = 1 << 60
_ROOT: Final = 0
"""The node of `/`."""
_DEVICE: Final = 1


class ProcessKilled(BaseException):
    """The process that made this call has died, as after kill -9. None of its code should run from here on."""


# -- recorded operations ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written to a file. `node` identifies the file; a rename does not change it."""

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
    """A file was synced, or the sync failed."""

    node: int
    ok: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A file or directory was created. `directory` is the node of the directory that contains its name."""

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
    """A file or directory was renamed. `into` is the directory that contains the new name."""

    directory: int
    name: str
    into: int
    target: str
    node: int


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """The names in a directory were synced, or the sync failed."""

    directory: int
    ok: bool


Operation: TypeAlias = Write | Truncate | SyncData | Link | Unlink | Rename | SyncDirectory
_Names: TypeAlias = dict[str, int]


@dataclass(slots=True)
class Fault:
    """A fault and its time. `Disk.fail` arms it; its counts begin there.

    Attributes:
        call: Number of matching calls that succeed first.
        operation: Name of the method of `Files` that the fault matches; None: all methods.
        error: errno of the OSError to raise. 0: raise nothing, but write only a part (only for `writev`).
        times: Number of calls that fail; None: all further ones.
        partial: Part of a write that is done before it fails or ends short, 0.0 to 1.0 (a short one: ≥ 1 byte).
        kill: The process dies at this call; no error is raised.
        hits: How often the fault has occurred so far.
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
    """A state in which a loss of power can leave the disk.

    Attributes:
        disk: The disk after the crash. No process has it open, all its content is durable, and no fault is armed.
        at: How many of `Disk.operations` had begun.
        how: Which of the operations that were not durable survived; for the message of a failed test.
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
        operations: All operations that changed the disk or should have made a change durable, in order.
        calls: How often each method of `Files` was called, by name.
        capacity_bytes: Room for data; None for no limit. May be changed at any time.
    """

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self.operations: list[Operation] = []
        self.calls: Counter[str] = Counter()
        self.capacity_bytes = capacity_bytes
        self._faults: list[Fault] = []
        self._files: dict[int, _File] = {}
        self._directories: dict[int, _Names] = {_ROOT: {}}
        self._parents: dict[int, int] = {_ROOT: _ROOT}
        """Parents of directories. A deleted directory has none."""
        self._devices: dict[int, int] = {}
        """Devices of directories that are not on the first volume."""
        self._mounts: dict[int, int] = {}
        """The root of the volume that is mounted on a directory."""
        # Directories by path as text. Each call has a new `Path`, and hashing it would cost more than everything else.
        self._texts: dict[str, int] = {}
        self._nodes = _ROOT
        # The durable content before the first of `operations`.
        self._origin = _Durable({}, {_ROOT: {}})

    def process(self) -> DiskFiles:
        """Returns a new process that uses this disk. It has its own handles, and so its own locks."""
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
        """Arms a fault, see `Fault`."""
        if error == 0 and operation != "writev":
            raise ValueError("Only a writev can be short")
        fault = Fault(call, operation, error, times, partial, kill)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Removes all faults. Damage that they have done remains."""
        self._faults.clear()

    @property
    def used_bytes(self) -> int:
        """Room taken by files that have a name or a handle, including reserved space."""
        named = {node for names in self._directories.values() for node in names.values()}
        return sum(
            max(len(file.content), file.reserved)
            for node, file in self._files.items()
            if file.handles or node in named
        )

    def files(self) -> dict[Path, bytes]:
        """All files with their content, as a process sees them."""
        return {
            path / name: bytes(self._files[node].content)
            for path, names in self._tree()
            for name, node in names.items()
            if node in self._files
        }

    def _tree(self) -> Iterator[tuple[Path, _Names]]:
        """Each directory that has a path, with the names in it."""
        return ((path, self._directories[node]) for path, node in self._tree_nodes())

    def _tree_nodes(self) -> Iterator[tuple[Path, int]]:
        todo = [(Path("/"), _ROOT)]
        for path, directory in todo:
            node = self._mounts.get(directory, directory)
            names = self._directories[node]
            yield path, node
            todo += [(path / name, node) for name, node in names.items() if node in self._directories]

    def put(self, path: Path, content: bytes) -> None:
        """Replaces a file's content without a process: to prepare a test, or to damage the file.

        Makes the whole disk durable, and clears `operations`.
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
        """`rm -rf`: removes a file, or a directory with its content. Not durable before the directories are synced."""
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
        """`mv` within a volume: renames a file or a directory to `target`."""
        self._rename(source, target, None, None)

    def mount(self, path: Path) -> None:
        """Mounts an empty volume on a directory, and so hides it. Processes keep what they have open in it.

        Makes the whole disk durable, like `put`.
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
        """Unmounts the volume. The directory that it hid is visible again."""
        root = self._directory(path, None)
        covered = next(node for node, mounted in self._mounts.items() if mounted == root)
        del self._mounts[covered]
        self._texts.clear()

    def flip(self, path: Path, byte: int, mask: int = 1) -> None:
        """Damages one byte of a file. Makes the disk durable, like `put`."""
        content = bytearray(self.files()[path])
        content[byte] ^= mask
        self.put(path, bytes(content))

    def copy(self) -> Disk:
        """The disk after an orderly shutdown: all content is durable, and no process has it open."""
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
        """Yields the states that a loss of power may leave, at each moment of the recorded history.

        For each moment there is the state that a process would see (nothing is lost), the durable state (everything
        else is lost), and `samples` random states in between, as the module's docstring describes them. If everything
        is durable, there is only one state.

        Args:
            start: First moment, as the number of operations that had begun.
            stop: Last moment (inclusive); None: the end of the history.
            samples: Number of random states for each moment.
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
        """A disk with this content. Leaves out what has no path from a volume's root."""
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
        """The node of a directory. `at` is the node that a relative path starts from."""
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
        """Returns the names in the path's directory, the path's own name, and the directory."""
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
    """One process's use of a `Disk`: implements `kafkasafe.spool.files.Files`, whose docstrings apply here.

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
        """Number of open handles. It is 0 at the end of a program that closes all its files."""
        return len(self._handles)

    def kill(self) -> None:
        """Kills the process: its handles are closed, its locks are released, and every further call raises."""
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
        """The node of the directory that a handle refers to."""
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
        # The process that created this directory may have died before the name was durable.
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
        """See `Files`. Like flock(2), the lock belongs to one handle; the same process can hold it only once."""
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


# -- what survives a crash -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Layer:
    """A change of a file since the durable state. Certain: itself durable, but applied to a change that is not."""

    at: int
    change: Write | Truncate
    certain: bool = False
    doubtful: bool = False


@dataclass(slots=True)
class _Data:
    """The durable content of a file, and its changes since then.

    Attributes:
        base: The durable content.
        layers: Later changes, in order.
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
        # A failed sync loses pages with data, but not the size. So the size is certain now.
        self.layers.append(_Layer(at, Truncate(node, self.size), certain=True))
        if all(layer.certain for layer in self.layers):
            self.base = self.settle(_ALL, random.Random(0))
            self.layers.clear()

    def settle(self, choice: _Choice, rng: random.Random) -> bytes:
        """Returns one of the contents that a crash may leave."""
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
                            # To write a sector, the kernel reads memory in units larger than this.
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
    """The probabilities with which changes survive in a random state although they are not durable.

    Attributes:
        data: Probability for each sector.
        sizes: 0: no new size survives; 1: the newest does; in between: any earlier one (sizes are journalled in order).
        names: Probability for each change of a directory.
        torn: Probability that a surviving sector is torn.
        cut: Replaces the probabilities: everything before this (operation, byte) survives, and nothing after it.
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
        """How many bytes of a change survive. None: the probabilities decide."""
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
    """The durable state at one moment of the history, and the changes since then."""

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
        """Returns the files and directories, by node."""
        directories = {node: dict(names) for node, names in self.directories.items()}
        for at, change in self.names:
            if choice.name_done(at, rng):
                _apply(directories, change)
        return {node: data.settle(choice, rng) for node, data in self.files.items()}, directories


def _apply(directories: dict[int, _Names], change: Link | Unlink | Rename) -> None:
    """Applies a change, even if an earlier one is missing, because names change independently of each other."""
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

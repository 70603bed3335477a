"""The disk of a simulated machine, and a process's access to this disk."""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kafkasafe.spool.files import Buffer, Identity
from kafkasafe.testing.disk.contents import failure, put, resize
from kafkasafe.testing.disk.durability import DurableData, DurableState
from kafkasafe.testing.disk.faults import Fault, ProcessKilled, striking
from kafkasafe.testing.disk.operations import Names, Operation, SyncData, SyncDirectory, Truncate, Write
from kafkasafe.testing.disk.tree import ROOT, File, FileTree

_UNLIMITED: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class CrashState:
    """One of the states that the disk can have after a loss of power.

    Attributes:
        disk: The disk after the crash. No process has a file open, all content is durable, and no fault is armed.
        at: Number of `Disk.operations` that had begun at the moment of the crash.
        how: Which changes survived, as text for the message of a failed test.
    """

    disk: Disk
    at: int
    how: str


class Medium:
    """The storage of a disk: its files, its capacity and its faults. Several processes use it.

    Attributes:
        capacity_bytes: Room for data; None for no limit.
        tree: The files and directories.
        operations: All changes of the tree, and all syncs (even failed ones), in order.
        calls: How often each method of `Files` was called, by name.
        faults: The faults that are armed.
    """

    def __init__(self, capacity_bytes: int | None, tree: FileTree) -> None:
        self.capacity_bytes = capacity_bytes
        self.tree = tree
        self.operations = tree.operations
        self.calls: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def resize(self, capacity_bytes: int | None) -> None:
        """Changes the room for data."""
        self.capacity_bytes = capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Number of bytes that all files with a name or a handle take up, including reserved room."""
        named = {node for names in self.tree.directories.values() for node in names.values()}
        return sum(file.room_bytes for node, file in self.tree.files.items() if file.handles or node in named)

    @property
    def room_bytes(self) -> int:
        """Room for more data."""
        return _UNLIMITED if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes)

    def strike(self, operation: str) -> Fault | None:
        """Counts a call of `Files`. Returns the fault that occurs at this call, if any."""
        self.calls[operation] += 1
        if not self.faults:
            return None
        return striking(self.faults, operation)

    def write(self, node: int, offset: int, data: bytes) -> int:
        """Writes as much of the data as fits. Returns the number of bytes."""
        file = self.tree.files[node]
        if self.capacity_bytes is not None:
            room = file.room_bytes + self.room_bytes - offset
            if room <= 0 < len(data):
                raise failure(errno.ENOSPC)
            data = data[:room]
        put(file.content, offset, data)
        self.operations.append(Write(node, offset, data))
        return len(data)


class Disk:
    """A disk in memory. Not thread-safe."""

    def __init__(self, *, capacity_bytes: int | None = None) -> None:
        self._medium = Medium(capacity_bytes, FileTree([]))
        # The durable content of the disk before the first of `operations` was done.
        self._origin = DurableState({}, {ROOT: {}})

    @property
    def operations(self) -> list[Operation]:
        """All changes of the disk, and all syncs (even failed ones), in order."""
        return self._medium.operations

    @property
    def calls(self) -> Counter[str]:
        """How often each method of `Files` was called, by name."""
        return self._medium.calls

    @property
    def capacity_bytes(self) -> int | None:
        """Room for data; None for no limit. May be changed at any time."""
        return self._medium.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity_bytes: int | None) -> None:
        self._medium.resize(capacity_bytes)

    @property
    def _tree(self) -> FileTree:
        return self._medium.tree

    def process(self) -> DiskFiles:
        """Returns a new process that uses this disk. The process has its own handles, and so its own locks."""
        return DiskFiles(self, self._medium)

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
        self._medium.faults.append(fault)
        return fault

    def heal(self) -> None:
        """Removes all faults. Damage that they have done remains."""
        self._medium.faults.clear()

    @property
    def used_bytes(self) -> int:
        """Number of bytes that all files with a name or a handle take up, including reserved room."""
        return self._medium.used_bytes

    def files(self) -> dict[Path, bytes]:
        """All files with their content, as a process sees them."""
        return {path: bytes(file.content) for path, _, file in self._tree.named()}

    def put(self, path: Path, content: bytes) -> None:
        """Replaces a file's content without a simulated process, to prepare a test or to damage the file.

        Makes the whole disk durable, and clears `operations`.
        """
        self._tree.put(path, content)
        self._freeze()

    def remove(self, path: Path) -> None:
        """`rm -rf`: removes a file, or a directory with its content. The removal is not durable before the directories
        are synced.
        """
        self._tree.remove(path)

    def move(self, source: Path, target: Path) -> None:
        """`mv` within a volume: renames a file or a directory to `target`."""
        self._tree.rename(source, target, None, None)

    def mount(self, path: Path) -> None:
        """Mounts an empty volume on a directory, and so hides the directory. Open files in it stay open.

        Makes the whole disk durable, like `put`.
        """
        self._tree.mount(path)
        self._freeze()

    def unmount(self, path: Path) -> None:
        """Unmounts the volume. The directory that the volume hid is visible again."""
        self._tree.unmount(path)

    def flip(self, path: Path, byte: int, mask: int = 1) -> None:
        """Damages one byte of a file. Makes the disk durable, like `put`."""
        content = bytearray(self.files()[path])
        content[byte] ^= mask
        self.put(path, bytes(content))

    def copy(self) -> Disk:
        """Returns a copy of the disk, as after an orderly shutdown: all content is durable, and no process has a file
        open.
        """
        return Disk._of(
            {node: bytes(file.content) for node, file in self._tree.files.items()},
            {node: dict(names) for node, names in self._tree.directories.items()},
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

        For each moment, yields the state that a process would see (nothing is lost), the durable state (everything else
        is lost), and `samples` random states in between. The package's docstring describes the states. If everything is
        durable at a moment, yields only one state for this moment.

        Args:
            start: First moment, as the number of operations that had begun before this moment.
            stop: Last moment (inclusive); None: the end of the history.
            samples: Number of random states for each moment.
            seed: The same seed gives the same states.

        Yields:
            States whose disks are independent of this disk and of each other.
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
        """Returns the disk as a loss of power at this moment may leave it: one of the possible states, at random."""
        states = list(self.crash_states(start=len(self.operations), samples=1, seed=seed))
        return states[-1].disk

    @classmethod
    def _of(cls, files: dict[int, bytes], directories: dict[int, Names], before: Disk) -> Disk:
        """Makes a disk with this content. Leaves out files and directories without a path from the root of a volume."""
        disk = cls()
        disk._medium = Medium(before.capacity_bytes, before._tree.restored(files, directories, []))
        disk._freeze()
        return disk

    def _freeze(self) -> None:
        self.operations.clear()
        self._origin = DurableState(
            {node: DurableData(bytes(file.content)) for node, file in self._tree.files.items()},
            {node: dict(names) for node, names in self._tree.directories.items()},
        )


class DiskFiles:
    """One process's access to a `Disk`. Implements `kafkasafe.spool.files.Files`, which describes the methods.

    Attributes:
        disk: The disk.
    """

    __slots__ = ("_dead", "_handles", "_medium", "_next", "_tree", "disk")

    def __init__(self, disk: Disk, medium: Medium) -> None:
        self.disk = disk
        self._medium = medium
        self._tree = medium.tree
        self._handles: dict[int, tuple[int, bool]] = {}
        self._next = 3
        self._dead = False

    @property
    def open_handles(self) -> int:
        """Number of open handles; 0 at the end of a program that closes all its files."""
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
        names, name, _ = self._tree.place(path, folder)
        if name in names:
            raise failure(errno.EEXIST, path)
        return self._open(self._tree.link(path, folder), write=True)

    def open(self, path: Path, *, write: bool = False, create: bool = False, at: int | None = None) -> int:
        """See `Files`."""
        self._call("open")
        folder = self._folder(at)
        if create:
            names, name, _ = self._tree.place(path, folder)
            if name not in names:
                return self._open(self._tree.link(path, folder), write=write)
        return self._open(self._tree.file(path, folder), write=write)

    def open_directory(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        self._call("open_directory")
        node = self._tree.directory(path, self._folder(at))
        self._next += 1
        self._handles[self._next] = (node, False)
        return self._next

    def identity(self, handle: int) -> Identity:
        """See `Files`."""
        self._call("identity")
        if handle not in self._handles:
            raise failure(errno.EBADF)
        return self._identity(self._handles[handle][0])

    def identity_of(self, path: Path, *, at: int | None = None) -> Identity | None:
        """See `Files`."""
        self._call("identity_of")
        folder = self._folder(at)
        try:
            if str(path) in {".", "/"}:
                return self._identity(self._tree.directory(path, folder))
            names, name, _ = self._tree.place(path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return None
        node = names.get(name)
        return None if node is None else self._identity(self._tree.top(node))

    def path_of(self, handle: int) -> Path | None:
        """See `Files`."""
        wanted = self._handles[handle][0]
        return next((path for path, node in self._tree.walk() if node == wanted), None)

    def _identity(self, node: int) -> Identity:
        return self._tree.device(node), node

    def _folder(self, at: int | None) -> int | None:
        """The node of the directory that is open under this handle; None if `at` is None."""
        if at is None:
            return None
        if at not in self._handles:
            raise failure(errno.EBADF)
        node = self._handles[at][0]
        if node not in self._tree.directories:
            raise failure(errno.ENOTDIR)
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
            return self._medium.write(node, offset, data)
        done = int(len(data) * fault.partial)
        if fault.error == 0 and not fault.kill:
            return self._medium.write(node, offset, data[: max(1, done)])
        if done:
            self._medium.write(node, offset, data[:done])
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
            self._medium.operations.append(SyncData(node, ok=fault is None))
        if fault is not None:
            raise self._failure(fault)

    def truncate(self, handle: int, size: int) -> None:
        """See `Files`."""
        node = self._writable(handle)
        self._call("truncate")
        file = self._file(handle)
        file.release()
        if size != len(file.content):
            resize(file.content, size)
            self._medium.operations.append(Truncate(node, size))

    def preallocate(self, handle: int, size: int) -> bool:
        """See `Files`. With a fault, the result is False."""
        self._writable(handle)
        fault = self._strike("preallocate")
        if fault is not None and fault.kill:
            raise self._failure(fault)
        file = self._file(handle)
        if fault is not None or size - file.room_bytes > self._medium.room_bytes:
            return False
        file.reserve(size)
        return True

    def drop_cache(self, handle: int, size: int) -> None:
        """See `Files`. Does nothing, because the simulated disk has no page cache."""

    def size(self, handle: int) -> int:
        """See `Files`."""
        self._call("size")
        return len(self._file(handle).content)

    def list(self, directory: Path, *, at: int | None = None) -> list[str]:
        """See `Files`."""
        self._call("list")
        return list(self._tree.directories[self._tree.directory(directory, self._folder(at))])

    def make_directory(self, path: Path, *, at: int | None = None) -> bool:
        """See `Files`."""
        self._call("make_directory")
        folder = self._folder(at)
        missing: list[Path] = []
        there = path
        while not self._is_directory(there, folder):
            missing.append(there)
            there = there.parent
        # The process that created this directory may have died before it synced the directory's name.
        self.sync_directory(there.parent, at=at)
        for directory in reversed(missing):
            names, name, above = self._tree.place(directory, folder)
            if name in names:
                raise failure(errno.ENOTDIR, directory)
            self._tree.new_directory(above, name)
            self.sync_directory(directory.parent, at=at)
        return bool(missing)

    def _is_directory(self, path: Path, folder: int | None) -> bool:
        try:
            self._tree.directory(path, folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def sync_directory(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        node = self._tree.directory(path, self._folder(at))
        fault = self._strike("sync_directory")
        if fault is None or not fault.kill:
            self._medium.operations.append(SyncDirectory(node, ok=fault is None))
        if fault is not None:
            raise self._failure(fault)

    def unlink(self, path: Path, *, at: int | None = None) -> None:
        """See `Files`."""
        self._call("unlink")
        folder = self._folder(at)
        self._tree.unlink(path, folder)

    def rename(self, source: Path, target: Path, *, at: int | None = None, to: int | None = None) -> None:
        """See `Files`."""
        self._call("rename")
        self._tree.rename(source, target, self._folder(at), self._folder(to))

    def lock(self, handle: int) -> bool:
        """See `Files`. As with flock(2), the lock belongs to one handle. For other handles of the same process, the
        result is False.
        """
        self._call("lock")
        return self._file(handle).lock((self, handle))

    def free_bytes(self, path: Path, *, at: int | None = None) -> int:
        """See `Files`."""
        self._call("free_bytes")
        self._tree.directory(path, self._folder(at))
        return self._medium.room_bytes

    def _strike(self, operation: str) -> Fault | None:
        if self._dead:
            raise ProcessKilled
        return self._medium.strike(operation)

    def _call(self, operation: str) -> None:
        fault = self._strike(operation)
        if fault is not None:
            raise self._failure(fault)

    def _failure(self, fault: Fault) -> BaseException:
        if fault.kill:
            self.kill()
            return ProcessKilled()
        return failure(fault.error)

    def _open(self, node: int, *, write: bool) -> int:
        self._next += 1
        self._handles[self._next] = (node, write)
        self._tree.files[node].open()
        return self._next

    def _close(self, handle: int) -> None:
        if handle not in self._handles:
            raise failure(errno.EBADF)
        file = self._tree.files.get(self._handles.pop(handle)[0])
        if file is not None:
            file.close((self, handle))

    def _file(self, handle: int) -> File:
        if handle not in self._handles:
            raise failure(errno.EBADF)
        file = self._tree.files.get(self._handles[handle][0])
        if file is None:
            raise failure(errno.EISDIR)
        return file

    def _writable(self, handle: int) -> int:
        node, writable = self._handles.get(handle, (0, False))
        if not writable:
            raise ProcessKilled if self._dead else failure(errno.EBADF)
        return node

"""The files and directories of a disk, as processes see them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kafkasafe.testing.disk.contents import failure
from kafkasafe.testing.disk.operations import Link, Names, Operation, Rename, Unlink

ROOT: Final = 0
"""The node of `/`."""
_DEVICE: Final = 1


@dataclass(slots=True)
class File:
    """A file as processes see it.

    Attributes:
        reserved: Number of bytes reserved for the file.
        locked_by: The process and handle that hold the lock.
    """

    content: bytearray = field(default_factory=bytearray)
    reserved: int = 0
    handles: int = 0
    locked_by: object | None = None

    @property
    def room_bytes(self) -> int:
        """Room that the file takes."""
        return max(len(self.content), self.reserved)

    def open(self) -> None:
        """Counts a handle."""
        self.handles += 1

    def close(self, owner: object) -> None:
        """Ends a handle, and its lock."""
        self.handles -= 1
        if self.locked_by == owner:
            self.locked_by = None

    def lock(self, owner: object) -> bool:
        """Locks the file for a handle. Returns whether the handle has the lock."""
        if self.locked_by is None:
            self.locked_by = owner
        return self.locked_by == owner

    def reserve(self, size: int) -> None:
        """Reserves room up to this size."""
        self.reserved = max(self.reserved, size)

    def release(self) -> None:
        """Gives up the reserved room."""
        self.reserved = 0


class FileTree:
    """The directories and their names, the files and their content, and the mounted volumes. A node is the number of a
    file or directory, like an inode number.

    Args:
        operations: List to which each change of a directory entry is appended.

    Attributes:
        files: Files by node, including files without a name.
        directories: The names in each directory, by node.
    """

    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations
        self.files: dict[int, File] = {}
        self.directories: dict[int, Names] = {ROOT: {}}
        self._parents: dict[int, int] = {ROOT: ROOT}
        """Parents of directories. A deleted directory has none."""
        self._devices: dict[int, int] = {}
        """Devices of directories that are not on the first volume."""
        self._mounts: dict[int, int] = {}
        """The root of the volume that is mounted on a directory."""
        # Directories by path. The keys are strings, because each call passes a new `Path` without a cached hash.
        # Computing the hash of a `Path` would cost more than the rest of the call.
        self._texts: dict[str, int] = {}
        self._nodes = ROOT

    def restored(
        self, files: dict[int, bytes], directories: dict[int, Names], operations: list[Operation]
    ) -> FileTree:
        """Returns a tree with other content on the same volumes. Leaves out nodes without a path from a root."""
        tree = FileTree(operations)
        tree._mounts = dict(self._mounts)
        todo = [ROOT, *tree._mounts.values()]
        for root in tree._mounts.values():
            tree._parents[root] = self._parents[root]
            tree._devices[root] = self._devices[root]
        for directory in todo:
            names = tree.directories[directory] = directories[directory]
            for node in names.values():
                if node in directories:
                    tree._parents[node] = directory
                    if directory in tree._devices:
                        tree._devices[node] = tree._devices[directory]
                    todo.append(node)
                else:
                    tree.files[node] = File(bytearray(files[node]))
        tree._nodes = self._nodes
        return tree

    def named(self) -> Iterator[tuple[Path, int, File]]:
        """Yields the path, the node and the content of each file that has a name."""
        for path, directory in self.walk():
            for name, node in self.directories[directory].items():
                if node in self.files:
                    yield path / name, node, self.files[node]

    def put(self, path: Path, content: bytes) -> None:
        """Replaces a file's content. Creates the file and its directories if they do not exist."""
        directory = ROOT
        for name in path.parent.parts[1:]:
            names = self.directories[self.top(directory)]
            directory = names[name] if name in names else self.new_directory(directory, name)
        names = self.directories[self.top(directory)]
        node = names.get(path.name)
        if node is None:
            self._nodes += 1
            node = names[path.name] = self._nodes
            self.files[node] = File()
        self.files[node].content[:] = content

    def remove(self, path: Path) -> None:
        """Deletes a file, or a directory with its content."""
        names, name, above = self.place(path)
        node = names.get(name)
        if node is None:
            raise failure(errno.ENOENT, path)
        if node in self.directories:
            for each in list(self.directories[node]):
                self.remove(path / each)
            self._forget(node)
        del names[name]
        self.operations.append(Unlink(above, name))

    def unlink(self, path: Path, at: int | None) -> None:
        self.file(path, at)
        names, name, directory = self.place(path, at)
        del names[name]
        self.operations.append(Unlink(directory, name))

    def mount(self, path: Path) -> None:
        """Mounts an empty volume on a directory."""
        self._nodes += 1
        root = self._nodes
        covered = self.directory(path, None)
        self.directories[root] = {}
        self._parents[root] = self._parents[covered]
        self._devices[root] = _DEVICE + root
        self._mounts[covered] = root
        self._texts.clear()

    def unmount(self, path: Path) -> None:
        """Unmounts the volume whose root has this path."""
        root = self.directory(path, None)
        covered = next(node for node, mounted in self._mounts.items() if mounted == root)
        del self._mounts[covered]
        self._texts.clear()

    def top(self, directory: int) -> int:
        """Returns the root of the volume that is mounted on a directory. Without a volume, returns the directory
        itself.
        """
        return self._mounts.get(directory, directory)

    def walk(self) -> Iterator[tuple[Path, int]]:
        """Yields the path and the node of each directory that can be reached from the root."""
        todo = [(Path("/"), ROOT)]
        for path, directory in todo:
            node = self._mounts.get(directory, directory)
            names = self.directories[node]
            yield path, node
            todo += [(path / name, node) for name, node in names.items() if node in self.directories]

    def directory(self, path: Path, at: int | None) -> int:
        """Returns the node of a directory. A relative path starts from the node `at`."""
        text = str(path)
        relative = at is not None and not text.startswith("/")
        if not relative:
            known = self._texts.get(text)
            if known is not None:
                return known
        node = at if relative and at is not None else ROOT
        for name in () if text == "." else text.strip("/").split("/") if text != "/" else ():
            if name == "..":
                node = self._parents.get(node, node)
                continue
            found = self.directories[node].get(name)
            if found is None:
                raise failure(errno.ENOENT, path)
            if found not in self.directories:
                raise failure(errno.ENOTDIR, path)
            node = self._mounts.get(found, found)
        if not relative:
            self._texts[text] = node
        return node

    def place(self, path: Path, at: int | None = None) -> tuple[Names, str, int]:
        """Returns (names in the parent directory of `path`, last part of `path`, node of the parent directory)."""
        above, slash, name = str(path).rpartition("/")
        if not slash and at is not None:
            return self.directories[at], name, at
        node = self._texts.get(above) if at is None or above.startswith("/") else None
        if node is None:
            node = self.directory(path.parent, at)
        return self.directories[node], name, node

    def file(self, path: Path, at: int | None = None) -> int:
        names, name, _ = self.place(path, at)
        node = names.get(name)
        if node is None:
            raise failure(errno.ENOENT, path)
        if node in self.directories:
            raise failure(errno.EISDIR, path)
        return node

    def link(self, path: Path, at: int | None) -> int:
        """Creates an empty file."""
        names, name, directory = self.place(path, at)
        if directory not in self._parents:
            raise failure(errno.ENOENT, path)  # the directory was deleted
        self._nodes += 1
        names[name] = self._nodes
        self.files[self._nodes] = File()
        self.operations.append(Link(directory, name, self._nodes))
        return self._nodes

    def new_directory(self, directory: int, name: str) -> int:
        """Creates a directory in another one."""
        directory = self._mounts.get(directory, directory)
        if directory not in self._parents:
            raise failure(errno.ENOENT, Path(name))
        self._nodes += 1
        self.directories[directory][name] = self._nodes
        self.directories[self._nodes] = {}
        self._parents[self._nodes] = directory
        if directory in self._devices:
            self._devices[self._nodes] = self._devices[directory]
        self.operations.append(Link(directory, name, self._nodes, is_directory=True))
        return self._nodes

    def _forget(self, directory: int) -> None:
        """Forgets where a deleted directory was."""
        del self._parents[directory]
        self._texts.clear()

    def device(self, directory: int) -> int:
        """Returns the number of the volume that a directory is on."""
        return self._devices.get(directory, _DEVICE)

    def rename(self, source: Path, target: Path, at: int | None, to: int | None) -> None:
        """Renames a file or a directory. A relative `source` starts from the node `at`, and a relative `target` from
        the node `to`.
        """
        names, name, above = self.place(source, at)
        node = names.get(name)
        if node is None:
            raise failure(errno.ENOENT, source)
        others, new, into = self.place(target, to)
        if self.device(above) != self.device(into):
            raise failure(errno.EXDEV, source)
        if into not in self._parents:
            raise failure(errno.ENOENT, target)
        there = others.get(new)
        if there == node:
            return
        if node in self.directories:
            inside = into
            while inside not in {ROOT, node}:
                inside = self._parents[inside]
            if inside == node:
                raise failure(errno.EINVAL, source)
            if there is not None and there not in self.directories:
                raise failure(errno.ENOTDIR, target)
            if there is not None and self.directories[there]:
                raise failure(errno.ENOTEMPTY, target)
            if there is not None:
                self._forget(there)
            self._parents[node] = into
            self._texts.clear()
        elif there in self.directories:
            raise failure(errno.EISDIR, target)
        del names[name]
        others[new] = node
        self.operations.append(Rename(above, name, into, new, node))

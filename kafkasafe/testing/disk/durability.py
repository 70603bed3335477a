"""The durable content of a disk, and the contents that a loss of power may leave."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.testing.disk.contents import put, resize
from kafkasafe.testing.disk.operations import (
    Link,
    Names,
    Operation,
    Rename,
    SyncData,
    SyncDirectory,
    Truncate,
    Unlink,
    Write,
)

SECTOR_BYTES: Final = 512
_LEAST_MISSING_BYTES: Final = 4
"""Minimum number of bytes that a torn sector lacks. On real machines, more bytes may be missing. A program that copes
with four missing bytes also copes with more.
"""


@dataclass(slots=True)
class _Layer:
    """A change of a file that is not part of the file's durable content yet. If the sync of a change fails, the change
    is *doubtful*. If the sync succeeds, the change is *certain*: it survives a crash. If all earlier changes are
    certain, too, the change becomes part of the durable content, and its layer is removed.
    """

    at: int
    change: Write | Truncate
    certain: bool = False
    doubtful: bool = False

    def sync(self, *, ok: bool) -> None:
        """The first sync after a change decides: if the sync succeeds, the change is certain; if the sync fails, the
        change is doubtful. Later syncs have no effect on the change.
        """
        if not self.doubtful and not self.certain:
            self.certain, self.doubtful = ok, not ok


@dataclass(slots=True)
class DurableData:
    """The durable content of a file, and the changes that are not part of this content yet.

    Attributes:
        base: The durable content.
        layers: The changes that are not part of `base` yet, in order.
        size: The size that processes see.
    """

    base: bytes = b""
    layers: list[_Layer] = field(default_factory=list)
    size: int = -1

    def __post_init__(self) -> None:
        if self.size < 0:
            self.size = len(self.base)

    def add(self, at: int, change: Write | Truncate) -> None:
        """Adds a change of the file."""
        self.layers.append(_Layer(at, change))
        if isinstance(change, Truncate):
            self.size = change.size
        elif change.data:
            self.size = max(self.size, change.offset + len(change.data))

    def sync(self, at: int, node: int, *, ok: bool) -> None:
        """Marks the changes so far as durable or, if the sync failed, as doubtful: they may be lost."""
        for layer in self.layers:
            layer.sync(ok=ok)
        if not ok:
            return
        # A failed sync may have lost the file's data, but not its size. So a later successful sync makes the size
        # certain.
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
                    resize(content, new_size)
                    size = new_size
                case Write(_, offset, data) if done is not None:
                    data = data[:done]
                    put(content, offset, data)
                    size = max(size, offset + len(data)) if data else size
                case Write(_, offset, data):
                    for start, end in _sectors(offset, len(data)):
                        if rng.random() < choice.data:
                            torn = rng.randint(start, end) if rng.random() < choice.torn else end
                            # The kernel copies a sector from memory in units of several bytes. So a torn sector lacks
                            # several bytes.
                            torn = end if end - torn < _LEAST_MISSING_BYTES else torn
                            put(content, start, data[start - offset : torn - offset])
                    if counts:
                        size = max(size, offset + len(data))
                case _:
                    pass
        resize(content, size)
        return bytes(content)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Decides which of the changes that are not durable survive a crash: by probabilities, or by a cut.

    Attributes:
        data: For each sector, the probability that it survives.
        sizes: Which changes of a file's size survive. 0: none; 1: all; a number in between: a random number of the
            earliest changes (sizes are journalled in order).
        names: For each change of a directory, the probability that it survives.
        torn: Probability that a surviving sector is torn.
        cut: (operation, byte): everything before this byte of this operation survives, and nothing after it. If the
            sync of a change failed, the probabilities decide whether the change survives.
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
class DurableState:
    """The durable state of the disk at one moment, and the changes that are not durable at this moment."""

    files: dict[int, DurableData]
    directories: dict[int, Names]
    names: list[tuple[int, Link | Unlink | Rename]] = field(default_factory=list)

    def copy(self) -> DurableState:
        """Returns a copy of only the durable state. The other changes are left out."""
        return DurableState(
            {node: DurableData(data.base) for node, data in self.files.items()},
            {node: dict(names) for node, names in self.directories.items()},
        )

    def add(self, at: int, operation: Operation) -> None:
        """Adds an operation."""
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
                    self.files[node] = DurableData()
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
        """Yields choices in which all changes survive, none survives, or random ones survive."""
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

    def settle(self, choice: _Choice, rng: random.Random) -> tuple[dict[int, bytes], dict[int, Names]]:
        """Returns (contents of the files by node, names in the directories by node) after a crash with this
        `choice`.
        """
        directories = {node: dict(names) for node, names in self.directories.items()}
        for at, change in self.names:
            if choice.name_done(at, rng):
                _apply(directories, change)
        return {node: data.settle(choice, rng) for node, data in self.files.items()}, directories


def _apply(directories: dict[int, Names], change: Link | Unlink | Rename) -> None:
    """Applies a change of a directory entry. An earlier change may be missing, because the changes become durable
    independently of each other.
    """
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

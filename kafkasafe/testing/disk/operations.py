"""The operations that change a disk, in the form in which the disk stores its history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Names: TypeAlias = dict[str, int]
"""The names in a directory, each with its node."""


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
    """A file or directory was created. `directory` is the node of the directory that contains the new name."""

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

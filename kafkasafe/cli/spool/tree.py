"""`kafkasafe spool ls --tree`: lists all spool directories below a directory, with sums.

A user's default spool directories are all below one directory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from kafkasafe.cli.common import cluster_trouble, counted, inspected, is_gone
from kafkasafe.cli.report import EXIT_BROKEN, Report
from kafkasafe.errors import SpoolError
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory, format_lost
from kafkasafe.spool.lanes.format import FORMAT_NAME, LANE


@dataclass(slots=True)
class _Sums:
    """Sums over the lanes of one directory, or of all directories.

    Attributes:
        bytes: Size of the lanes' logs and of their rejected records.
        troubles: A sentence for each part that is unreadable or missing.
        owner_pids: Ids of the processes that own lanes.
    """

    lanes: int = 0
    bytes: int = 0
    waiting_records: int = 0
    rejected_records: int = 0
    damaged_ranges: int = 0
    troubles: list[str] = field(default_factory=list)
    owner_pids: list[int] = field(default_factory=list)

    def add(self, other: _Sums) -> None:
        """Adds the sums of another directory."""
        self.lanes += other.lanes
        self.bytes += other.bytes
        self.waiting_records += other.waiting_records
        self.rejected_records += other.rejected_records
        self.damaged_ranges += other.damaged_ranges
        self.troubles += other.troubles
        self.owner_pids += other.owner_pids


def root_of(directory: Path | None) -> Path:
    """Returns the root of the tree. The default is the directory above this user's default spool directories.

    Raises:
        BadParameter: The path is not a directory.
    """
    if directory is None:
        import platformdirs

        return platformdirs.user_state_path("kafkasafe")
    if not directory.is_dir():
        what = "it is a file" if directory.exists() else "it does not exist"
        raise typer.BadParameter(f"{directory} is not a directory: {what}", param_hint="DIR")
    return directory


def spools_below(root: Path, troubles: list[str]) -> Iterator[Path]:
    """Yields the spool directories at and below `root`, sorted by path. Does not follow symbolic links.

    Also yields directories whose file FORMAT is missing or damaged, if their other content shows that they are spool
    directories.

    Args:
        root: The directory to begin with.
        troubles: Receives a sentence for each directory that cannot be listed.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # the directory was removed meanwhile
            troubles.append(f"{error.filename} cannot be read: {error.strerror}")

    for path, folders, files in os.walk(root, onerror=failed):
        folders.sort()
        if _is_spool(Path(path), files, folders):
            folders.clear()
            yield Path(path)


def _is_spool(path: Path, files: Sequence[str], folders: Sequence[str]) -> bool:
    file = path / FORMAT_NAME
    try:
        # If the name FORMAT belongs to a pipe, do not read it: the command would wait for the pipe's writer.
        if FORMAT_NAME not in files or (file.exists() and not file.is_file()):
            return format_lost(path, folders) is not None
        known = file.read_bytes().startswith(b"kafkasafe-spool ")
        return known or any(LANE.fullmatch(name) for name in folders)
    except OSError:
        return True  # `_sums` reports the reason


def _sums(path: Path) -> tuple[_Sums, str | None]:
    """The totals over all lanes of a spool directory, and the directory's cluster id."""
    sums = _Sums()
    files = OsFiles()
    if lost := format_lost(path, files.list(path)):
        sums.troubles.append(". ".join(lost))
    try:
        lanes = SpoolDirectory(path, files) if lost else SpoolDirectory.look(path, files=files)
    except SpoolError as error:
        sums.troubles.append(str(error))
        return sums, None
    unread = cluster_trouble(lanes)
    for _, number, found in inspected(lanes, unread):
        sums.lanes += 1
        sums.bytes += found.size_bytes + found.rejected_bytes
        sums.waiting_records += sum(each.records for each in found.waiting)
        sums.rejected_records += sum(each.records for each in found.rejected)
        sums.damaged_ranges += len(found.damage)
        name = lanes.lane_path(number).name
        sums.troubles += [f"{name}: {text}" for text in (*found.rejected_unreadable, *found.rejected_missing)]
        if pid := lanes.owners.seems_owned(number):
            sums.owner_pids.append(pid)
    sums.troubles += [f"{name}: {reason}" for name, reason in unread]
    return sums, None if any(name == "CLUSTER" for name, _ in unread) else lanes.cluster_id()


def tree_below(root: Path) -> Report:
    """The spool directories at and below a directory."""
    unread: list[str] = []
    found: list[tuple[Path, str | None, _Sums]] = []
    total = _Sums()
    for path in spools_below(root, unread):
        try:
            sums, cluster_id = _sums(path)
        except FileNotFoundError:
            if is_gone(path):
                continue
            raise
        if is_gone(path):
            continue
        found.append((path, cluster_id, sums))
        total.add(sums)
    total.troubles += unread
    rows = [
        {"directory": str(path), "cluster_id": cluster_id, **dataclasses.asdict(sums)}
        for path, cluster_id, sums in found
    ]
    totals = {"directories": len(rows), **dataclasses.asdict(total)}
    lines = [line for path, _, sums in found for line in _lines(path, sums)]
    holding = sum(bool(sums.waiting_records) for _, _, sums in found)
    sum_line = (
        f"{counted(len(found), 'directory', 'directories')}, {counted(total.lanes, 'lane')},"
        f" {counted(total.bytes, 'byte')}: {counted(total.waiting_records, 'record')} waiting in"
        f" {counted(holding, 'directory', 'directories')}, {total.rejected_records:,} rejected,"
        f" {counted(total.damaged_ranges, 'damaged range')}"
    )
    lines += [*unread, sum_line if found else f"No spool directory below {root}"]
    # Waiting records need no operator.
    broken = total.rejected_records or total.damaged_ranges or total.troubles
    return Report({"directories": rows, "totals": totals}, lines, EXIT_BROKEN if broken else 0)


def _lines(path: Path, sums: _Sums) -> Iterator[str]:
    owners = sorted(set(sums.owner_pids))
    yield (
        f"{path}: {counted(sums.lanes, 'lane')}, {counted(sums.bytes, 'byte')};"
        f" {counted(sums.waiting_records, 'record')} waiting"
        + (f"; {counted(sums.rejected_records, 'record')} REJECTED" if sums.rejected_records else "")
        + (
            f"; {counted(sums.damaged_ranges, 'DAMAGED RANGE', 'DAMAGED RANGES')}"
            if sums.damaged_ranges
            else ""
        )
        + (f"; in use by {', '.join(f'process {pid}' for pid in owners)}" if owners else "")
    )
    for text in sums.troubles:
        yield f"  {text}"

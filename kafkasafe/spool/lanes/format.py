"""The file FORMAT and the names of lanes. FORMAT marks a directory as a spool directory."""

from __future__ import annotations

import errno
import os
import re
import shlex
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from kafkasafe.errors import SpoolFormatError
from kafkasafe.spool.files import Files

FORMAT_NAME: Final = "FORMAT"
LANE: Final = re.compile(r"lane-(\d{3,})")
_FORMAT: Final = re.compile(rb"kafkasafe-spool (\d+)\n")
_VERSION: Final = 1
_NEW: Final = b"kafkasafe-spool %d\n" % _VERSION
_OURS: Final = frozenset({"lost+found", "CLUSTER", "RESEND"})
"""Entries that do not prevent a directory from becoming a spool directory. `lost+found` is in the root of a file
system.
"""


def lane_name(number: int) -> str:
    return f"lane-{number:03d}"


def format_lost(path: Path, names: Collection[str]) -> tuple[str, str] | None:
    """Describes the problem of a spool directory that has lost its file FORMAT.

    Returns:
        (the problem, the remedy); None if FORMAT exists, or if there are no lanes.
    """
    lanes = [name for name in names if LANE.fullmatch(name)]
    if FORMAT_NAME in names or not lanes:
        return None
    wrong = (
        f"{path} holds {_first_of(lanes)}, but no file FORMAT. A copy or a clean-up may have omitted FORMAT. The next"
        " producer in this directory writes FORMAT again"
    )
    remedy = _restore(path)
    if "CLUSTER" not in names:
        wrong += (
            ". CLUSTER is missing as well: without the cluster's id, the records go to the first cluster"
            " that answers"
        )
        place = shlex.quote(str(path / "CLUSTER"))
        remedy = f"Write the cluster's id into {place} (kafka-cluster.sh cluster-id prints it). {remedy}"
    return wrong, remedy


def _first_of(lanes: Sequence[str]) -> str:
    return f"{min(lanes)}{f' and {len(lanes) - 1} more' if len(lanes) > 1 else ''}"


def _restore(path: Path) -> str:
    return f"Restore it: echo 'kafkasafe-spool {_VERSION}' > {shlex.quote(str(path / FORMAT_NAME))}"


def make_format(path: Path, files: Files) -> None:
    """Makes `path` a spool directory of this format, unless it already is one.

    Writes FORMAT if the directory is empty, or has lanes but no FORMAT. Writing FORMAT beside lanes is safe, because
    each lane's content names the lane's format.
    """
    files.make_directory(path)
    names = files.list(path)
    if FORMAT_NAME in names:
        check_format(path, files)
        return
    strange = [
        name
        for name in names
        if not (name.startswith((".", "FORMAT.", "CLUSTER.")) or LANE.fullmatch(name) or name in _OURS)
    ]
    if strange:
        raise SpoolFormatError(
            f"{path} is not empty and not a spool directory (it holds {min(strange)!r}): give spool_dir a directory of"
            " its own. Nothing was changed"
        )
    write_whole(path, FORMAT_NAME, _NEW, files)


def has_format(path: Path, files: Files) -> bool:
    """Whether the directory has a file FORMAT with valid content. A file that cannot be read counts as valid, because
    the process may have too many open files.

    Raises:
        OSError: It cannot be determined whether the file exists.
    """
    if files.identity_of(path / FORMAT_NAME) is None:
        return False
    try:
        return _FORMAT.fullmatch(_content(path, files)) is not None
    except OSError:
        return True


def restore_format(path: Path, files: Files) -> None:
    """Like `make_format`, but also replaces a damaged FORMAT. Call this only in a process that has already found FORMAT
    intact.
    """
    if files.identity_of(path / FORMAT_NAME) is None or has_format(path, files):
        make_format(path, files)
    else:
        write_whole(path, FORMAT_NAME, _NEW, files)


def _content(path: Path, files: Files) -> bytes:
    handle = files.open(path / FORMAT_NAME)
    try:
        return files.read(handle, 0, 1024)
    finally:
        files.close(handle)


def check_format(path: Path, files: Files) -> None:
    match = _FORMAT.fullmatch(_content(path, files))
    if match is None and (lanes := [name for name in files.list(path) if LANE.fullmatch(name)]):
        raise SpoolFormatError(
            f"{path / FORMAT_NAME} does not have the content of a spool directory's FORMAT, but {path} holds"
            f" {_first_of(lanes)}, so the file is damaged. Nothing was changed. {_restore(path)}"
        )
    if match is None:
        raise SpoolFormatError(
            f"{path / FORMAT_NAME} does not have the content of a spool directory's FORMAT: give spool_dir a directory"
            " of its own. Nothing was changed"
        )
    if int(match[1]) > _VERSION:
        raise SpoolFormatError(
            f"{path} has spool format {int(match[1])}, this kafkasafe knows up to {_VERSION}: upgrade kafkasafe."
            " Nothing was changed"
        )


def write_whole(path: Path, name: str, content: bytes, files: Files) -> None:
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

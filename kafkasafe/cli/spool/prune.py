"""`kafkasafe spool prune`: deletes empty lanes and directories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    NOT_APPLIED,
    Json,
    counted,
    duration_s,
    open_directory,
)
from kafkasafe.cli.report import show
from kafkasafe.cli.spool.tree import root_of, spools_below
from kafkasafe.errors import SpoolError
from kafkasafe.maintenance.prune import find_prunable, prune_directory, prune_lane
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory

__all__ = ["PRUNE_CODES", "spool_prune"]

PRUNE_CODES: Final = CODES.format(broken="something cannot be read or deleted")


def spool_prune(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A spool directory; with --tree a directory above several."),
    ] = None,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree", help="All directories at and below DIR. Without DIR: this user's default directories."
        ),
    ] = False,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than", metavar="TIME", help="Delete only lanes that have not been used for this long."
        ),
    ] = "7d",
    apply: Annotated[
        bool, typer.Option("--apply", help="Delete them. Without it, only print what would be deleted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete lanes that hold nothing and that no process owns, and spool directories without lanes.

    Such lanes and directories belong to client ids that are not used any more, and to workers that have ended. The
    command never deletes waiting or rejected records, damaged data, or data in quarantine. A lane also remembers the
    records that were acknowledged last. Without the lane, their loss in the cluster would not be noticed, and records
    kept by `retain_acked_*` could not be sent again.
    """
    age_s = duration_s(older_than, "--older-than")
    if directory is None and not tree:
        raise typer.BadParameter("give a spool directory, or use --tree", param_hint="DIR")
    troubles: list[str] = []
    if tree:
        found = [SpoolDirectory(path, OsFiles()) for path in spools_below(root_of(directory), troubles)]
    else:
        found = [open_directory(Path(str(directory)))]
    rows = [row for lanes in found for row in _pruned(lanes, age_s, troubles, apply=apply)]
    show(Pruned(rows, troubles, apply), as_json=as_json)


def _pruned(lanes: SpoolDirectory, age_s: float, troubles: list[str], *, apply: bool) -> list[dict[str, Any]]:
    """A row for each lane of a directory, and a row for the directory itself if no lane is left."""
    rows = []
    left = False
    for each in find_prunable(lanes, age_s):
        kept = each.kept
        try:
            if apply and not kept:
                kept = prune_lane(lanes, each.number)
        except SpoolError as error:
            kept = str(error)
            troubles.append(kept)
        left = left or bool(kept)
        name = lanes.lane_path(each.number).name
        rows.append({"directory": str(lanes.path), "lane": name, "bytes": each.bytes, "kept": kept})
    if left:
        return rows
    kept = ""
    try:
        if apply and not prune_directory(lanes):
            kept = "it holds other files"
    except SpoolError as error:
        kept = str(error)
        troubles.append(kept)
    rows.append({"directory": str(lanes.path), "lane": None, "bytes": 0, "kept": kept})
    return rows


@dataclass(frozen=True, slots=True)
class Pruned:
    """Lanes and directories that were deleted, or would be.

    Attributes:
        rows: The JSON output for each lane and directory. Those with a reason in "kept" stay.
        troubles: A sentence for each lane or directory that could not be read or deleted.
        apply: Whether the command deletes them. If not, it only shows what it would delete.
    """

    rows: Sequence[dict[str, Any]]
    troubles: Sequence[str]
    apply: bool

    @property
    def gone(self) -> list[dict[str, Any]]:
        """Rows of the lanes and directories that were deleted, or would be."""
        return [row for row in self.rows if not row["kept"]]

    @property
    def freed_bytes(self) -> int:
        """Total size of the deleted lanes and directories, or of those that would be deleted."""
        return sum(row["bytes"] for row in self.gone)

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "applied": self.apply,
            "freed_bytes": self.freed_bytes,
            "found": self.rows,
            "troubles": self.troubles,
        }

    @property
    def exit_code(self) -> int:
        return EXIT_BROKEN if self.troubles else 0

    def lines(self) -> Iterator[str]:
        for row in self.rows:
            where = row["directory"] if row["lane"] is None else f"{row['directory']}/{row['lane']}"
            yield f"{where}: {'kept: ' + row['kept'] if row['kept'] else 'nothing in it'}"
        yield from self.troubles
        lanes = sum(row["lane"] is not None for row in self.gone)
        yield (
            f"{counted(lanes, 'lane')} and {counted(len(self.gone) - lanes, 'directory', 'directories')},"
            f" {counted(self.freed_bytes, 'byte')}, {'' if self.apply else 'would be '}deleted"
        )
        if self.gone and not self.apply:
            yield NOT_APPLIED

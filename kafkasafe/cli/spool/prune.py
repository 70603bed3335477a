"""`kafkasafe spool prune`: deletes empty lanes and directories."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    NOT_APPLIED,
    Json,
    counted,
    duration_s,
    is_gone,
    open_directory,
)
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.cli.spool.tree import root_of, spools_below
from kafkasafe.errors import SpoolError
from kafkasafe.maintenance.prune import find_prunable, prune_directory, prune_lane
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory

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
        bool,
        typer.Option("--apply", help="Delete the lanes. Without --apply, only print what would be deleted."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete lanes that hold nothing and that no process owns, and spool directories without lanes.

    Client ids that are no longer used, and workers that have ended, leave empty lanes and directories behind. The
    command never deletes waiting or rejected records, damaged data, or data in quarantine. A lane also remembers the
    records that were acknowledged last. Once the lane is deleted, no producer notices if the cluster loses these
    records, and records that `retain_acked_*` kept cannot be sent again.
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
    gone = [row for row in rows if not row["kept"]]
    freed_bytes = sum(row["bytes"] for row in gone)
    lines = [
        f"{row['directory']}{'' if row['lane'] is None else '/' + row['lane']}:"
        f" {'kept: ' + row['kept'] if row['kept'] else 'nothing in it'}"
        for row in rows
    ]
    number = sum(row["lane"] is not None for row in gone)
    lines += [
        *troubles,
        (
            f"{counted(number, 'lane')} and {counted(len(gone) - number, 'directory', 'directories')},"
            f" {counted(freed_bytes, 'byte')}, {'' if apply else 'would be '}deleted"
        ),
    ]
    if gone and not apply:
        lines.append(NOT_APPLIED)
    fields = {"applied": apply, "freed_bytes": freed_bytes, "found": rows, "troubles": troubles}
    show(Report(fields, lines, EXIT_BROKEN if troubles else 0), as_json=as_json)


def _pruned(lanes: SpoolDirectory, age_s: float, troubles: list[str], *, apply: bool) -> list[dict[str, Any]]:
    """A row for each lane of a directory, and a row for the directory itself if no lane is left. If another command
    deletes the directory meanwhile, there are no rows for the remaining lanes.
    """
    rows = []
    left = False
    try:
        for each in find_prunable(lanes, age_s):
            kept = each.kept
            try:
                if apply and not kept:
                    kept = prune_lane(lanes, each.number)
            except SpoolError as error:
                kept = str(error)
                troubles.append(kept)
            left = left or bool(kept)
            if each.is_unread:
                troubles.append(f"{lanes.lane_path(each.number)}: {kept}")
            name = lanes.lane_path(each.number).name
            rows.append({"directory": str(lanes.path), "lane": name, "bytes": each.bytes, "kept": kept})
    except FileNotFoundError:
        if is_gone(lanes.path):
            return rows
        raise
    if left:
        return rows
    kept = ""
    try:
        if apply and not prune_directory(lanes):
            kept = "it holds other files"
    except SpoolError as error:
        if is_gone(lanes.path):
            return rows
        kept = str(error)
        troubles.append(kept)
    rows.append({"directory": str(lanes.path), "lane": None, "bytes": 0, "kept": kept})
    return rows

"""`kafkasafe spool discard` and `spool prune`: delete rejected records, and delete empty lanes and directories."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe._io.discard import discard, find_discardable
from kafkasafe._io.files import OsFiles
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe._io.prune import find_prunable, prune_directory, prune_lane
from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    Directory,
    Json,
    address_of,
    counted,
    duration_s,
    lanes_of,
    open_directory,
)
from kafkasafe.cli.spool.tree import root_of, spools_below
from kafkasafe.errors import SpoolError

__all__ = ["DISCARD_CODES", "PRUNE_CODES", "spool_discard", "spool_prune"]

DISCARD_CODES: Final = CODES.format(broken="an unreadable file is left")
PRUNE_CODES: Final = CODES.format(broken="something cannot be read or deleted")
_UNDONE: Final = "Nothing was changed. Add --apply to carry this out"


def spool_discard(
    directory: Directory,
    lane: Annotated[
        str | None, typer.Option("--lane", metavar="LANE", help="Only this lane: lane-003, or 3.")
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only records of this topic. May be repeated."),
    ] = None,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="Also discard files of rejected/ that cannot be read.")
    ] = False,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Discard them. Without it, only print what would be discarded."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete rejected records for good, and record that in the spool.

    Export them first if you may need them: kafkasafe spool export --status rejected. If files were deleted by hand
    before, the command records that too. Until then, ls and verify report these files as MISSING. Producers may run at
    the same time.
    """
    lanes = open_directory(directory)
    numbers = [number for _, number in lanes_of(directory, lane)]
    with lanes.resending() if apply else contextlib.nullcontext():
        found = find_discardable(lanes, numbers, topic or ())
        wanted = [each for each in found if unreadable or not each.error]
        if apply:
            discard(lanes, wanted)
    left = [each for each in found if each not in wanted]
    records = sum(each.records for each in wanted if not each.missing)
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "lane": each.lane.name,
                "file": each.name,
                "topic": None if each.topic == "?" else each.topic,
                "partition": each.partition,
                "records": each.records,
                "missing": each.missing,
                "error": each.error or None,
                "discarded": apply and each in wanted,
            }
            for each in found
        ]
        print(json.dumps({"applied": apply, "discarded_records": records, "files": rows}, indent=1))
    else:
        for each in wanted:
            what = "deleted by hand" if each.missing else each.error and f"UNREADABLE ({each.error})"
            where = "" if each.topic == "?" else f" of {address_of(each.topic, each.partition)}"
            print(
                f"{each.lane.name}: {each.name}: {counted(each.records, 'record')}{where}{what and f', {what}'}"
            )
        for each in left:
            print(
                f"{each.lane.name}: {each.name}: LEFT, it cannot be read: {each.error}; --unreadable discards it"
            )
        print(f"{counted(records, 'record')} {'' if apply else 'would be '}discarded")
        if wanted and not apply:
            print(_UNDONE)
    if left:
        raise typer.Exit(EXIT_BROKEN)


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

    Client ids that are no longer used, and workers that have ended, leave such lanes and directories. The command never
    deletes waiting or rejected records, damaged data, or data in quarantine. A lane also remembers the records that
    were acknowledged last. Without the lane, their loss in the cluster would not be noticed, and records kept by
    `retain_acked_*` could not be sent again.
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
    lanes_gone = sum(row["lane"] is not None for row in gone)
    freed = sum(row["bytes"] for row in gone)
    if as_json:
        print(
            json.dumps(
                {"applied": apply, "freed_bytes": freed, "found": rows, "troubles": troubles}, indent=1
            )
        )
    else:
        for row in rows:
            where = row["directory"] if row["lane"] is None else f"{row['directory']}/{row['lane']}"
            print(f"{where}: {'kept: ' + row['kept'] if row['kept'] else 'nothing in it'}")
        for text in troubles:
            print(text)
        print(
            f"{counted(lanes_gone, 'lane')} and {counted(len(gone) - lanes_gone, 'directory', 'directories')},"
            f" {counted(freed, 'byte')}, {'' if apply else 'would be '}deleted"
        )
        if gone and not apply:
            print(_UNDONE)
    if troubles:
        raise typer.Exit(EXIT_BROKEN)


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

"""`kafkasafe spool ls`: lists the lanes of a spool directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import (
    RESEND_HINT,
    Json,
    cluster_trouble,
    counted,
    inspected,
    missing_lines,
    open_directory,
    rejected_lines,
    unreadable_lines,
)
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.cli.spool.atomic_batches import unit_line, unit_rows
from kafkasafe.cli.spool.contents import unread_rows
from kafkasafe.cli.spool.tree import root_of, tree_below
from kafkasafe.maintenance.examination import read_content
from kafkasafe.spool.inspection import Inspected

_UNITS: Final = 20
_BAD: Final = ("damaged_ranges", "rejected_records", "rejected_unreadable", "rejected_missing")


def spool_ls(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A spool directory; with --tree, the top of a directory tree."),
    ] = None,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree",
            help="List all spool directories at and below DIR, one line each, and their sums. Without DIR: the default"
            " directories of this user.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """List the lanes of a spool directory: owner, size, undelivered records and rejected records."""
    if tree:
        show(tree_below(root_of(directory)), as_json=as_json)
        return
    if directory is None:
        raise typer.BadParameter("name a spool directory, or use --tree", param_hint="DIR")
    rows: list[dict[str, Any]] = []
    lanes_found: list[Inspected] = []
    troubles = cluster_trouble(open_directory(directory))
    for lanes, number, found in inspected(directory, troubles):
        units = unit_rows(read_content(lanes.lane_path(number), files=lanes.files))
        rows.append(
            {
                "lane": lanes.lane_path(number).name,
                "error": None,
                "owner_pid": lanes.owners.seems_owned(number) or None,
                "segments": found.segments,
                "bytes": found.size_bytes,
                "waiting_batches": sum(waiting.batches for waiting in found.waiting),
                "waiting_records": sum(waiting.records for waiting in found.waiting),
                "waiting": [dataclasses.asdict(waiting) for waiting in found.waiting],
                "atomic_batches": units,
                "damaged_ranges": len(found.damage),
                "rejected_batches": sum(rejected.batches for rejected in found.rejected),
                "rejected_records": sum(rejected.records for rejected in found.rejected),
                "rejected_bytes": found.rejected_bytes,
                "rejected": [dataclasses.asdict(rejected) for rejected in found.rejected],
                "rejected_unreadable": list(found.rejected_unreadable),
                "rejected_missing": list(found.rejected_missing),
                "rejected_discarded_records": found.rejected_discarded,
                "extent": found.extent,
            }
        )
        lanes_found.append(found)
    lines = [line for row, found in zip(rows, lanes_found, strict=True) for line in _lane_lines(row, found)]
    if not rows and not troubles:
        lines.append(f"{directory} has no lanes")
    lines += unreadable_lines(troubles)
    if any(row["rejected_records"] for row in rows):
        lines.append(RESEND_HINT)
    broken = troubles or any(row[name] for row in rows for name in _BAD)
    show(Report([*rows, *unread_rows(troubles)], lines, EXIT_BROKEN if broken else 0), as_json=as_json)


def _lane_lines(row: dict[str, Any], found: Inspected) -> Iterator[str]:
    owner = f"owned by process {row['owner_pid']}" if row["owner_pid"] is not None else "not owned"
    rejected = f"; {counted(row['rejected_records'], 'record')} REJECTED" if row["rejected_records"] else ""
    yield (
        f"{row['lane']}: {owner}; {counted(row['segments'], 'segment')}, {counted(row['bytes'], 'byte')};"
        f" {counted(row['waiting_records'], 'record')} in {counted(row['waiting_batches'], 'batch')} waiting{rejected}"
    )
    for waiting in found.waiting:
        partition = "no partition yet" if waiting.partition < 0 else f"partition {waiting.partition}"
        yield (
            f"  {waiting.topic}, {partition}: {counted(waiting.records, 'record')} in"
            f" {counted(waiting.batches, 'batch')}, {waiting.in_doubt_batches:,} of them may have been sent"
        )
    for unit in row["atomic_batches"][:_UNITS]:
        yield unit_line(unit)
    if len(row["atomic_batches"]) > _UNITS:
        yield f"  and {len(row['atomic_batches']) - _UNITS:,} more atomic batches: see kafkasafe spool show"
    if row["damaged_ranges"]:
        yield f"  {counted(row['damaged_ranges'], 'damaged range')}: see kafkasafe spool verify"
    if found.extent:
        yield f"  note: {found.extent}"
    yield from rejected_lines(found.rejected, found.rejected_unreadable)
    yield from missing_lines(found.rejected_missing)
    if found.rejected_discarded:
        yield f"  {counted(found.rejected_discarded, 'rejected record')} discarded"

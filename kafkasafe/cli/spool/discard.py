"""`kafkasafe spool discard`: deletes rejected records."""

from __future__ import annotations

import contextlib
from typing import Annotated, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    NOT_APPLIED,
    Directory,
    Json,
    address_of,
    counted,
    lanes_of,
    open_directory,
    refuse_as_root,
)
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.cli.spool.contents import LaneName
from kafkasafe.maintenance.discard import Discardable, discard, find_discardable

DISCARD_CODES: Final = CODES.format(broken="an unreadable file is left")


def spool_discard(
    directory: Directory,
    lane: LaneName = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only records of this topic. May be repeated."),
    ] = None,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="Also discard files of rejected/ that cannot be read.")
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Discard the records. Without --apply, only print what would be discarded."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Delete rejected records for good, and note their deletion in the spool.

    Export the records first if you may need them: kafkasafe spool export --status rejected. If files were deleted by
    hand before, the command notes this too. Until the deletion is noted, ls and verify report the files as MISSING.
    Producers may run at the same time.
    """
    lanes = open_directory(directory)
    if apply:
        refuse_as_root(directory)
    numbers = [number for _, number in lanes_of(directory, lane)]
    with lanes.resending() if apply else contextlib.nullcontext():
        found = find_discardable(lanes, numbers, topic or ())
        wanted = [each for each in found if unreadable or not each.error]
        if apply:
            discard(lanes, wanted)
    left = [each for each in found if each not in wanted]
    records = sum(each.records for each in wanted if not each.missing)
    rows = [
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
    lines = [
        *map(_line, wanted),
        *(
            f"{each.lane.name}: {each.name}: LEFT, it cannot be read: {each.error}; --unreadable discards it"
            for each in left
        ),
        f"{counted(records, 'record')} {'' if apply else 'would be '}discarded",
    ]
    if wanted and not apply:
        lines.append(NOT_APPLIED)
    fields = {"applied": apply, "discarded_records": records, "files": rows}
    show(Report(fields, lines, EXIT_BROKEN if left else 0), as_json=as_json)


def _line(each: Discardable) -> str:
    """The line of a file that is discarded."""
    what = "deleted by hand" if each.missing else each.error and f"UNREADABLE ({each.error})"
    where = "" if each.topic == "?" else f" of {address_of(each.topic, each.partition)}"
    return f"{each.lane.name}: {each.name}: {counted(each.records, 'record')}{where}{what and f', {what}'}"

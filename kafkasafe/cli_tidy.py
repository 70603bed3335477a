"""`kafkasafe spool discard` and `spool prune`: what nobody wants any more, and what nobody needs."""

from __future__ import annotations

import contextlib
import json
from typing import Annotated, Any, Final

import typer

from kafkasafe._io.discard import discard, find_discardable
from kafkasafe.cli_common import (
    CODES,
    EXIT_BROKEN,
    Directory,
    Json,
    address_of,
    counted,
    lanes_of,
    open_directory,
)

__all__ = ["DISCARD_CODES", "spool_discard"]

DISCARD_CODES: Final = CODES.format(broken="a file that cannot be read is left")
_UNDONE: Final = "Nothing was changed: --apply does it"


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
        bool, typer.Option("--unreadable", help="Also files of rejected/ that cannot be read.")
    ] = False,
    apply: Annotated[
        bool, typer.Option("--apply", help="Discard them. Without it, only say what would be discarded.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Give up rejected records: they are deleted, and that is noted.

    Export them first (kafkasafe spool export --status rejected) if anything may ask for them. Records that were deleted
    by hand before are noted as well; until then ls and verify name them. Producers may be at work meanwhile.
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

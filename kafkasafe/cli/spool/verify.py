"""`kafkasafe spool verify`: checks every byte of a spool directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Final

from kafkasafe.cli.common import (
    Directory,
    Json,
    cluster_trouble,
    copy_lines,
    counted,
    inspected,
    missing_lines,
    open_directory,
    unreadable_lines,
)
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.cli.spool.contents import unread_rows
from kafkasafe.spool.inspection import with_same_id

_BAD: Final = ("damage", "rejected_unreadable", "rejected_missing", "same_lane_id")


def spool_verify(directory: Directory, as_json: Json = False) -> None:
    """Check every byte of a spool directory.

    A crash may leave a torn tail: an incomplete write at the end of a file. A torn tail does not count as damage,
    because nothing proves that its bytes were ever reported as durable. While a producer runs, its lane may also seem
    to have a torn tail. A missing segment is damage.

    If a lane is a copy of another lane in the directory, the command reports this, too.
    """
    rows = []
    lane_ids = {}
    troubles = cluster_trouble(open_directory(directory))
    for lanes, number, found in inspected(directory, troubles):
        row = dataclasses.asdict(found)
        # Leave out the fields that have nothing to do with the check of the bytes.
        del row["waiting"], row["oldest_ms"], row["undecidable"], row["lane_id"]
        name = lanes.lane_path(number).name
        lane_ids[name] = found.lane_id
        rows.append({"lane": name, "error": None, **row})
    same = with_same_id(lane_ids)
    rows = [{**row, "same_lane_id": same[row["lane"]]} for row in rows]
    broken = troubles or any(row[name] for row in rows for name in _BAD)
    report = Report([*rows, *unread_rows(troubles)], _lines(rows, troubles), EXIT_BROKEN if broken else 0)
    show(report, as_json=as_json)


def _lines(rows: Sequence[dict[str, Any]], troubles: Sequence[tuple[str, str]]) -> Iterator[str]:
    for row in rows:
        torn = ""
        if row["torn_bytes"]:
            torn = f", torn tail of {row['torn_bytes']:,} bytes after the last bytes that are proven durable"
        yield (
            f"{row['lane']}: {counted(row['segments'], 'segment')}, {counted(row['size_bytes'], 'byte')},"
            f" {counted(row['groups'], 'group')}, {counted(row['batches'], 'batch')},"
            f" {counted(row['records'], 'record')}{torn}: "
            + (counted(len(row["damage"]), "DAMAGED RANGE", "DAMAGED RANGES") if row["damage"] else "ok")
        )
        for damage in row["damage"]:
            yield f"  {damage}"
        for unreadable in row["rejected_unreadable"]:
            yield f"  UNREADABLE {unreadable}"
        yield from missing_lines(row["rejected_missing"])
        yield from copy_lines(row["same_lane_id"])
        if row["extent"]:
            yield f"  note: {row['extent']}"
    yield from unreadable_lines(troubles)

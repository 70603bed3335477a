"""`kafkasafe spool show`: shows the batches of a spool directory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import Directory, Json, counted, id_as_json, one_line, unreadable_lines
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.cli.spool.atomic_batches import times_row, unit_line, unit_rows
from kafkasafe.cli.spool.contents import LaneName, contents_of, records_of
from kafkasafe.maintenance.examination import SpooledBatch
from kafkasafe.spool.examine import SpoolOutcome

_DONE: Final = frozenset(
    {SpoolOutcome.COMMITTED, SpoolOutcome.REPLACED, SpoolOutcome.RESENT, SpoolOutcome.DROPPED}
)


def spool_show(
    directory: Directory,
    lane: LaneName = None,
    position: Annotated[
        int | None,
        typer.Option(min=0, help="Show only the batch that begins at this position, with its records."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show delivered and replaced batches too.")] = False,
    as_json: Json = False,
) -> None:
    """Show the batches of a spool directory, each with its ids, its status and its last completed step.

    Steps (as in Kafka's ticket KAFKA-156): 1 prepared (on disk), 2 prepare acknowledged (durable on disk with its batch
    id, so it may have been sent), 3 committed (in the cluster's log), 4 commit acknowledged (its offset is known).
    """
    rows: list[dict[str, Any]] = []
    units: list[dict[str, Any]] = []
    damaged = False
    unreadable: list[str] = []
    troubles: list[tuple[str, str]] = []
    with contents_of(directory, lane, troubles) as contents:
        for content in contents:
            damaged = damaged or bool(content.damage)
            unreadable += [f"{content.name}: {text}" for text in content.rejected_unreadable]
            atomic = unit_rows(content, every=every or position is not None)
            part_of = {at: unit["batch_id"] for unit in atomic for at in unit["positions"]}
            units += [unit for unit in atomic if position is None or position in unit["positions"]]
            for batch in content.batches:
                if position is not None and batch.position != position:
                    continue
                if not (every or position is not None) and batch.known.fate in _DONE:
                    continue
                row = _batch_row(batch)
                row["atomic_batch"] = part_of.get(batch.position)
                row["times"] = times_row(content.times.get(batch.position))
                if position is not None:
                    row["content"] = list(records_of(content, batch))
                rows.append(row)
    if position is not None and not rows:
        raise typer.BadParameter(f"no batch begins at position {position}", param_hint="--position")
    if as_json:
        # The JSON output is a list of batches, without a place for unreadable lanes.
        for line in unreadable_lines(troubles):
            print(line, file=sys.stderr)
    lines = [*_batch_lines(rows), *map(unit_line, units)]
    if not (rows or units):
        elsewhere = " in the other lanes" if troubles else ""
        lines.append(f"No undelivered batches{elsewhere}; --all shows delivered ones")
    lines += [*unreadable_lines(troubles), *(f"UNREADABLE {text}" for text in unreadable)]
    if damaged:
        lines.append("Damaged ranges are not shown: see kafkasafe spool verify")
    rejected = any(row["status"] == SpoolOutcome.REJECTED.value for row in rows)
    broken = damaged or unreadable or troubles or rejected
    show(Report(rows, lines, EXIT_BROKEN if broken else 0), as_json=as_json, ensure_ascii=False)


def _batch_lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        yield _batch_line(row)
        for record in row.get("content", ()):
            shown = {name: record[name] for name in ("timestamp_ms", "key", "value", "headers")}
            yield f"  {one_line(shown)}"


def _batch_line(row: dict[str, Any]) -> str:
    where = f"{row['topic']}-{row['partition']}" if row["partition"] >= 0 else f"{row['topic']}, no partition"
    identity = (
        f"producer id {row['producer_id']}, epoch {row['producer_epoch']}, sequence {row['base_sequence']}"
    )
    return (
        f"{row['lane']} {row['position']}: {where}, {counted(row['records'], 'record')},"
        f" {counted(row['bytes'], 'byte')},"
        f" {'no id' if row['producer_id'] is None else identity}: {row['status'].replace('_', ' ')}"
        + (f" at offset {row['offset']}" if row["offset"] is not None else "")
        + (f" ({row['note']})" if row["note"] else "")
        + (f"; part of atomic batch {row['atomic_batch']}" if row["atomic_batch"] else "")
        + (f"; step {row['step']} of 4, {row['step_name'].replace('_', ' ')}" if row["step"] else "")
        + "".join(f"; {name.replace('_', ' ')} {at}" for name, at in row["times"].items() if at)
    )


def _batch_row(batch: SpooledBatch) -> dict[str, Any]:
    step = batch.known.step
    return {
        "lane": batch.lane,
        "position": batch.position,
        "topic": batch.topic,
        "partition": batch.partition,
        "records": batch.records,
        "bytes": batch.size_bytes,
        **id_as_json(batch.identity),
        "status": batch.known.fate.value,
        "offset": batch.known.base_offset if batch.known.base_offset >= 0 else None,
        "note": batch.known.note,
        "step": None if step is None else step.number,
        "step_name": None if step is None else step.value,
    }

"""`kafkasafe spool`: inspect, export and repair a spool directory, and deliver what it holds."""

from __future__ import annotations

import base64
import collections
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from kafka.errors import KafkaTimeoutError

from kafkasafe._core import batch as codec
from kafkasafe._core.examine import Fate, Finding
from kafkasafe._core.identity import add_sequence
from kafkasafe._io.engine.parcels import given_partitions
from kafkasafe._io.examination import LaneContent, SpooledBatch, read_content
from kafkasafe._io.inspection import Inspected, inspect, resent_in, steps
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe._io.repair import Plan, carry_out, plan_repair
from kafkasafe._io.resend import bring_back, find_rejected, set_aside
from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    EXIT_FAILED,
    RESEND_HINT,
    ConfigFile,
    Directory,
    Json,
    Servers,
    address_of,
    cluster_trouble,
    connection,
    counted,
    duration_s,
    inspected,
    lanes_of,
    one_line,
    open_directory,
    print_rejected,
    print_unreadable,
    progress,
)
from kafkasafe.cli.doctor import ask
from kafkasafe.cli.spool.tidy import DISCARD_CODES, PRUNE_CODES, spool_discard, spool_prune
from kafkasafe.cli.spool.tree import print_tree, root_of
from kafkasafe.cli.spool.units import EPILOG, print_unit, spool_abort, spool_commit, times_row, unit_rows
from kafkasafe.cluster.api import in_words
from kafkasafe.config import validate
from kafkasafe.errors import (
    DataLossError,
    SpoolCorruptError,
    SpoolError,
    UndecidableError,
    UsageError,
)
from kafkasafe.events import DeliveryRetried, RecordsCommitted, TopicBlocked, TopicUnblocked
from kafkasafe.producer import SafeProducer

__all__ = ["app"]

_pa: Any = pa  # pyarrow ships no types

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Inspect, repair and drain spool directories. Only repair, drain, commit, abort, resend,"
    " set-aside, discard and prune change anything.",
)

app.command("commit", epilog=EPILOG)(spool_commit)
app.command("abort", epilog=EPILOG)(spool_abort)
app.command("discard", epilog=DISCARD_CODES)(spool_discard)
app.command("prune", epilog=PRUNE_CODES)(spool_prune)

_REASONS: Final = 3
_UNITS: Final = 20
_DAMAGED: Final = CODES.format(broken="something is damaged")
_DAMAGED_OR_REJECTED: Final = CODES.format(broken="something is damaged, or was rejected")

LaneName = Annotated[
    str | None, typer.Option("--lane", metavar="LANE", help="Only this lane: lane-003, or 3.")
]


@app.command("ls", epilog=_DAMAGED_OR_REJECTED)
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
        print_tree(root_of(directory), as_json=as_json)
        return
    if directory is None:
        raise typer.BadParameter("name a spool directory, or use --tree", param_hint="DIR")
    rows: list[dict[str, Any]] = []
    troubles = cluster_trouble(open_directory(directory))
    for lanes, number, found in inspected(directory, troubles):
        units = unit_rows(read_content(lanes.lane_path(number), files=lanes.files))
        rows.append(
            {
                "lane": lanes.lane_path(number).name,
                "error": None,
                "owner_pid": lanes.seems_owned(number) or None,
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
        if not as_json:
            _print_lane(rows[-1], found)
    if as_json:
        print(json.dumps([*rows, *_unread(troubles)], indent=1))
    elif not rows and not troubles:
        print(f"{directory} has no lanes")
    else:
        print_unreadable(troubles)
        if any(row["rejected_records"] for row in rows):
            print(RESEND_HINT)
    bad = ("damaged_ranges", "rejected_records", "rejected_unreadable", "rejected_missing")
    _end(rows, *bad, troubles=troubles)


def _print_lane(row: dict[str, Any], found: Inspected) -> None:
    owner = f"owned by process {row['owner_pid']}" if row["owner_pid"] is not None else "not owned"
    rejected = f"; {counted(row['rejected_records'], 'record')} REJECTED" if row["rejected_records"] else ""
    print(
        f"{row['lane']}: {owner}; {counted(row['segments'], 'segment')}, {counted(row['bytes'], 'byte')};"
        f" {counted(row['waiting_records'], 'record')} in {counted(row['waiting_batches'], 'batch')} waiting{rejected}"
    )
    for waiting in found.waiting:
        partition = "no partition yet" if waiting.partition < 0 else f"partition {waiting.partition}"
        print(
            f"  {waiting.topic}, {partition}: {counted(waiting.records, 'record')} in"
            f" {counted(waiting.batches, 'batch')}, {waiting.in_doubt_batches:,} of them may have been sent"
        )
    for unit in row["atomic_batches"][:_UNITS]:
        print_unit(unit)
    if len(row["atomic_batches"]) > _UNITS:
        print(f"  and {len(row['atomic_batches']) - _UNITS:,} more atomic batches: see kafkasafe spool show")
    if row["damaged_ranges"]:
        print(f"  {counted(row['damaged_ranges'], 'damaged range')}: see kafkasafe spool verify")
    if found.extent:
        print(f"  note: {found.extent}")
    print_rejected(found.rejected, found.rejected_unreadable)
    _print_missing(found.rejected_missing)
    if found.rejected_discarded:
        print(f"  {counted(found.rejected_discarded, 'rejected record')} discarded")


def _print_missing(missing: Sequence[str]) -> None:
    for text in missing:
        print(f"  MISSING {text}")
    if missing:
        print(
            "  If you do not need these records, run kafkasafe spool discard: then they are no longer reported"
        )


@app.command("verify", epilog=_DAMAGED)
def spool_verify(directory: Directory, as_json: Json = False) -> None:
    """Check every byte of a spool directory.

    A crash may leave a torn tail: incomplete bytes at the end, without proof that they were reported durable. A torn
    tail is not damage. The lane of a running producer may seem to have a torn tail, too. A missing segment is damage.
    """
    rows = []
    troubles = cluster_trouble(open_directory(directory))
    for lanes, number, found in inspected(directory, troubles):
        row = dataclasses.asdict(found)
        # Leave out the fields that have nothing to do with this check of bytes.
        del row["waiting"], row["oldest_ms"], row["undecidable"]
        rows.append({"lane": lanes.lane_path(number).name, "error": None, **row})
    if as_json:
        print(json.dumps([*rows, *_unread(troubles)], indent=1))
    for row in rows if not as_json else ():
        torn = ""
        if row["torn_bytes"]:
            torn = f", torn tail of {row['torn_bytes']:,} bytes after the last bytes that are proven durable"
        print(
            f"{row['lane']}: {counted(row['segments'], 'segment')}, {counted(row['size_bytes'], 'byte')},"
            f" {counted(row['groups'], 'group')}, {counted(row['batches'], 'batch')},"
            f" {counted(row['records'], 'record')}{torn}: "
            + (counted(len(row["damage"]), "DAMAGED RANGE", "DAMAGED RANGES") if row["damage"] else "ok")
        )
        for damage in row["damage"]:
            print(f"  {damage}")
        for unreadable in row["rejected_unreadable"]:
            print(f"  UNREADABLE {unreadable}")
        _print_missing(row["rejected_missing"])
        if row["extent"]:
            print(f"  note: {row['extent']}")
    if not as_json:
        print_unreadable(troubles)
    _end(rows, "damage", "rejected_unreadable", "rejected_missing", troubles=troubles)


# -- show, export ------------------------------------------------------------------------------------------------------


@app.command("show", epilog=_DAMAGED_OR_REJECTED)
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
    """Show the batches of a spool directory, each with its ids, its status and its step of KAFKA-156.

    Steps: 1 prepared (on disk), 2 prepare acknowledged (durable on disk with its batch id, so it may have been sent),
    3 committed (in the cluster's log), 4 commit acknowledged (its offset is known).
    """
    rows = []
    units: list[dict[str, Any]] = []
    damaged = False
    unreadable: list[str] = []
    troubles: list[tuple[str, str]] = []
    for content in _contents(directory, lane, troubles):
        damaged = damaged or bool(content.damage)
        unreadable += [f"{content.name}: {text}" for text in content.rejected_unreadable]
        times, _ = steps(content.log)
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
            row["times"] = times_row(times.get(batch.position))
            if position is not None:
                row["content"] = list(_records(content, batch))
            rows.append(row)
    if position is not None and not rows:
        raise typer.BadParameter(f"no batch begins at position {position}", param_hint="--position")
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
    for row in rows if not as_json else ():
        where = (
            f"{row['topic']}-{row['partition']}" if row["partition"] >= 0 else f"{row['topic']}, no partition"
        )
        identity = f"producer id {row['producer_id']}, epoch {row['producer_epoch']}, sequence {row['base_sequence']}"
        print(
            f"{row['lane']} {row['position']}: {where}, {counted(row['records'], 'record')},"
            f" {counted(row['bytes'], 'byte')},"
            f" {'no id' if row['producer_id'] is None else identity}: {row['status'].replace('_', ' ')}"
            + (f" at offset {row['offset']}" if row["offset"] is not None else "")
            + (f" ({row['note']})" if row["note"] else "")
            + (f"; part of atomic batch {row['atomic_batch']}" if row["atomic_batch"] else "")
            + (f"; step {row['step']} of 4, {row['step_name'].replace('_', ' ')}" if row["step"] else "")
            + "".join(f"; {name.replace('_', ' ')} {at}" for name, at in row["times"].items() if at)
        )
        for record in row.get("content", ()):
            print(
                f"  {one_line({name: record[name] for name in ('timestamp_ms', 'key', 'value', 'headers')})}"
            )
    for unit in units if not as_json else ():
        print_unit(unit)
    if not (rows or units) and not as_json:
        print(
            f"No undelivered batches{' in the other lanes' if troubles else ''}; --all shows delivered ones"
        )
    print_unreadable(troubles, to_stderr=as_json)
    for text in unreadable if not as_json else ():
        print(f"UNREADABLE {text}")
    if damaged and not as_json:
        print("Damaged ranges are not shown: see kafkasafe spool verify")
    if damaged or unreadable or troubles or any(row["status"] == Fate.REJECTED.value for row in rows):
        raise typer.Exit(EXIT_BROKEN)


def _batch_row(batch: SpooledBatch) -> dict[str, Any]:
    identity, step = batch.identity, batch.known.step
    return {
        "lane": batch.lane,
        "position": batch.position,
        "topic": batch.topic,
        "partition": batch.partition,
        "records": batch.records,
        "bytes": batch.size_bytes,
        "producer_id": None if identity is None else identity.producer_id,
        "producer_epoch": None if identity is None else identity.producer_epoch,
        "base_sequence": None if identity is None else identity.base_sequence,
        "status": batch.known.fate.value,
        "offset": batch.known.base_offset if batch.known.base_offset >= 0 else None,
        "note": batch.known.note,
        "step": None if step is None else step.number,
        "step_name": None if step is None else step.value,
    }


_DONE: Final = frozenset({Fate.COMMITTED, Fate.REPLACED, Fate.RESENT, Fate.DROPPED})

_STATUSES: Final = tuple(fate.value for fate in Fate if fate is not Fate.REPLACED)

_SCHEMA: Final = _pa.schema(
    [
        ("lane", _pa.string()),
        ("position", _pa.int64()),
        ("topic", _pa.string()),
        ("partition", _pa.int32()),
        ("offset", _pa.int64()),
        ("status", _pa.string()),
        ("producer_id", _pa.int64()),
        ("producer_epoch", _pa.int16()),
        ("sequence", _pa.int32()),
        ("timestamp_ms", _pa.int64()),
        ("key", _pa.binary()),
        ("value", _pa.binary()),
        ("headers", _pa.list_(_pa.struct([("name", _pa.string()), ("value", _pa.binary())]))),
    ]
)
_PAGE_RECORDS: Final = 10_000
_FORMS: Final[dict[str, Literal["jsonl", "parquet"]]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
}


@app.command("export", epilog=_DAMAGED)
def spool_export(
    directory: Directory,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="A new file, or - for standard output."),
    ],
    form: Annotated[
        Literal["jsonl", "parquet"] | None,
        typer.Option("--format", help="Default: by the file name's extension."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help=f"Only this status: {', '.join(_STATUSES)}. May be repeated."),
    ] = None,
    lane: LaneName = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the counts as JSON; with -o - on standard error.")
    ] = False,
) -> None:
    """Write the records of a spool directory, each with its status, to JSON lines or Parquet. The spool stays as it is.

    JSON lines show a key or value that is not UTF-8 as {"base64": ...}. For a divided batch, only its parts are
    written. The status is what the spool knows; kafkasafe doctor finds out whether a record in doubt is in the
    cluster's log.
    """
    if unknown := [name for name in status or () if name not in _STATUSES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not one of {', '.join(_STATUSES)}", param_hint="--status"
        )
    open_directory(directory)
    to_stdout = str(output) == "-"
    if form is None:
        form = "jsonl" if to_stdout else _FORMS.get(output.suffix.lower())
    if form is None:
        raise typer.BadParameter(
            f"{output} must end in {', '.join(_FORMS)}; otherwise use --format jsonl or --format parquet",
            param_hint="--output",
        )
    if to_stdout and form == "parquet":
        raise typer.BadParameter("Parquet needs a file", param_hint="--output")
    if not to_stdout and output.exists():
        raise typer.BadParameter(f"{output} exists already", param_hint="--output")
    wanted = set(status or _STATUSES)
    counts: dict[str, int] = dict.fromkeys(_STATUSES, 0)
    damage: list[str] = []
    troubles: list[tuple[str, str]] = []
    contents = list(_contents(directory, lane, troubles))
    damage += [f"{name}: {reason}" for name, reason in troubles]
    total = sum(len(content.batches) for content in contents)

    def rows() -> Iterator[dict[str, Any]]:
        done = 0
        for content in contents:
            damage.extend(
                f"{content.name}: {each}" for each in (*content.damage, *content.rejected_unreadable)
            )
            for batch in content.batches:
                done += 1
                told(done, total)
                if batch.known.fate.value in wanted:
                    for record in _records(content, batch, raw=form == "parquet"):
                        counts[record["status"]] += 1
                        yield record

    with progress("exporting", "batches") as told:
        if form == "parquet":
            _write_parquet(output, rows())
        elif to_stdout:
            for row in rows():
                print(one_line(row))
        else:
            with _new_file(output) as file:
                for row in rows():
                    file.write((one_line(row) + "\n").encode())
    result = {"output": str(output), "records": counts, "damage": damage}
    stream = sys.stderr if to_stdout else sys.stdout
    if as_json:
        print(json.dumps(result), file=stream)
    else:
        parts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
        print(f"{counted(sum(counts.values()), 'record')}{f': {parts}' if parts else ''}", file=stream)
        for each in damage:
            print(f"DAMAGE, not exported: {each}", file=stream)
    if damage:
        raise typer.Exit(EXIT_BROKEN)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[Any]:
    """Yield a new file, and delete it after an error: no partial file is ever left."""
    try:
        # Only the owner may read the spool, so only the owner may read what was copied from it.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
    except BaseException as error:
        if not isinstance(error, FileExistsError):
            path.unlink(missing_ok=True)
        raise


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    with _new_file(path) as file, pq.ParquetWriter(file, _SCHEMA) as writer:
        page: list[dict[str, Any]] = []
        for row in rows:
            page.append(row)
            if len(page) >= _PAGE_RECORDS:
                writer.write_table(_pa.Table.from_pylist(page, schema=_SCHEMA))
                page.clear()
        if page:
            writer.write_table(_pa.Table.from_pylist(page, schema=_SCHEMA))


def _records(content: LaneContent, batch: SpooledBatch, *, raw: bool = False) -> Iterator[dict[str, Any]]:
    columns = codec.decode(content.data(batch))
    given = given_partitions(columns, batch.given) if batch.partition < 0 else {}
    identity = batch.identity
    as_value = _as_is if raw else _as_text
    for index in range(batch.records):
        offset = batch.known.base_offset
        headers = columns.headers.get(index, [])
        yield {
            "lane": batch.lane,
            "position": batch.position + index,
            "topic": batch.topic,
            "partition": given.get(index, batch.partition),
            "offset": offset + index if offset >= 0 else None,
            "status": batch.known.fate.value,
            "producer_id": None if identity is None else identity.producer_id,
            "producer_epoch": None if identity is None else identity.producer_epoch,
            "sequence": None if identity is None else add_sequence(identity.base_sequence, index),
            "timestamp_ms": columns.timestamps[index],
            "key": as_value(columns.keys[index]),
            "value": as_value(columns.values[index]),
            "headers": [
                {"name": name, "value": as_value(value)} if raw else [name, as_value(value)]
                for name, value in headers
            ],
        }


def _as_is(data: bytes | None) -> bytes | None:
    return data


def _as_text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


# -- repair ------------------------------------------------------------------------------------------------------------


@app.command(
    "repair",
    epilog=CODES.format(broken="some damage cannot be repaired without a loss (nothing is skipped)"),
)
def spool_repair(
    directory: Directory,
    lane: LaneName = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the plan. Without it, only print the plan.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repair what can be repaired without losing a record that was reported durable, and report the rest.

    A torn tail (incomplete bytes at the end) is cut, unless a later group shows that it was durable. If the first 21
    bytes of a batch are damaged but the rest is intact, they are restored from the manifest of its group. If a damaged
    batch is delivered, rejected or divided already, its damaged bytes are copied to quarantine/, and the lane opens
    again. Any other damaged batch stays as it is: restore the file from a copy, or give the batch up with
    on_corrupt="quarantine".
    Before any change, the affected files are copied to repair-TIME/ in the lane. A lane that a process owns is not
    changed.
    """
    plans: list[tuple[str, Plan, Path | None]] = []
    for lanes, number in lanes_of(directory, lane):
        path = lanes.lane_path(number)
        if not apply:
            owner = lanes.seems_owned(number)
            try:
                plan = (
                    Plan(f"it belongs to process {owner}") if owner else plan_repair(path, files=lanes.files)
                )
            except SpoolError as error:
                plan = Plan(str(error))
            plans.append((path.name, plan, None))
            continue
        try:
            lock = lanes.take_lane(number)
        except SpoolError as error:
            plans.append((path.name, Plan(str(error)), None))
            continue
        try:
            plan = plan_repair(path, files=lock.files)
            kept = carry_out(path, plan, files=lock.files) if plan.steps else None
            plans.append((path.name, plan, kept))
        except SpoolError as error:
            plans.append((path.name, Plan(str(error)), None))
        finally:
            lock.release(drained=False)
    unreadable = {
        lanes.lane_path(number).name: found.rejected_unreadable
        for lanes, number, found in inspected(directory, [])
    }
    plans = [
        (name, dataclasses.replace(plan, left=(*plan.left, *map(_restore, unreadable.get(name, ())))), kept)
        for name, plan, kept in plans
    ]
    if as_json:
        rows = [
            {
                "lane": name,
                "refused": plan.refused,
                "steps": [dataclasses.asdict(step) for step in plan.steps],
                "left": list(plan.left),
                "applied": kept is not None,
                "copies": None if kept is None else str(kept),
            }
            for name, plan, kept in plans
        ]
        print(json.dumps(rows, indent=1))
    else:
        for name, plan, kept in plans:
            _print_plan(name, plan, kept)
        if not apply and any(plan.steps for _, plan, _ in plans):
            print("Nothing was changed; --apply applies the plan")
    if any(plan.refused for _, plan, _ in plans):
        raise typer.Exit(EXIT_FAILED)
    if any(plan.left for _, plan, _ in plans):
        raise typer.Exit(EXIT_BROKEN)


def _restore(unreadable: str) -> str:
    return f"{unreadable}; restore it from a copy, or give it up with kafkasafe spool discard --unreadable"


def _print_plan(name: str, plan: Plan, kept: Path | None) -> None:
    if plan.refused:
        print(f"{name}: not touched: {plan.refused}")
        return
    if not plan.steps and not plan.left:
        print(f"{name}: nothing to repair")
    for step in plan.steps:
        print(f"{name}: {step.what}: {step.segment}, bytes {step.start} to {step.end}: {step.reason}")
    for left in plan.left:
        print(f"{name}: LEFT AS IT IS: {left}")
    if kept is not None:
        print(f"{name}: repaired; copies of the original files are in {kept}")


# -- drain -------------------------------------------------------------------------------------------------------------


@app.command(
    "drain",
    epilog=CODES.format(broken="something is left: not delivered in time, undecidable, rejected, or damaged"),
)
def spool_drain(
    directory: Directory,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Give up after this time: 90s, 10m, 1h.")
    ] = "5m",
    on_undecidable: Annotated[
        Literal["raise", "resend", "skip"],
        typer.Option(
            help="What to do with a batch if nothing proves whether it is in the log; see SafeProducer."
        ),
    ] = "raise",
    on_corrupt: Annotated[
        Literal["raise", "quarantine"],
        typer.Option(
            help="What to do with a damaged lane: leave it as it is, or quarantine the damage and deliver the rest."
        ),
    ] = "raise",
    ignore_rejected: Annotated[
        bool,
        typer.Option(
            "--ignore-rejected",
            help="For the exit code, ignore records that were in rejected/ before this run.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Deliver what producers left in a spool directory, and end when nothing is left.

    The command skips lanes that a running process owns, and does not wait for that process. A SafeProducer on the
    directory delivers the records as at the application's next start: in order, exactly once.
    """
    limit_s = duration_s(timeout, "--timeout")
    options = connection(servers, config)
    lanes = open_directory(directory)
    done = _deliver(lanes, options, limit_s, on_undecidable, on_corrupt)
    if as_json:
        print(json.dumps(done.fields, indent=1))
    else:
        done.print()
    if done.unreachable:
        raise typer.Exit(EXIT_FAILED)
    if done.broken_now if ignore_rejected else done.broken:
        raise typer.Exit(EXIT_BROKEN)


@dataclasses.dataclass(frozen=True, slots=True)
class _Delivery:
    """What a drain delivered, and what the directory holds afterwards."""

    delivered: int
    left: int
    rejected: list[Inspected]
    foreign: list[str]
    trouble: str
    seconds: float
    unreachable: bool = False
    """No broker could be used."""
    lost: str = ""
    """A message about lost acknowledged records that cannot be sent again; empty if there are none."""
    dropped: int = 0
    """Number of records of atomic batches that were neither delivered nor kept: the group's members read the input
    again."""
    rejected_now: int = 0
    """Number of records that this drain added to rejected/."""

    @property
    def rejected_records(self) -> int:
        """Number of records in rejected/ of all lanes."""
        return sum(each.records for found in self.rejected for each in found.rejected)

    @property
    def broken(self) -> bool:
        """Whether anything is undelivered, damaged, rejected or lost."""
        return bool(self.left or self.trouble or self.rejected or self.lost)

    @property
    def broken_now(self) -> bool:
        """Like `broken`, but of rejected/ only newly added records and unreadable files count."""
        unreadable = any(found.rejected_unreadable for found in self.rejected)
        return bool(self.left or self.trouble or self.rejected_now or unreadable or self.lost)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the JSON output."""
        return {
            "delivered_records": self.delivered,
            "left_records": self.left,
            "rejected_records": self.rejected_records,
            "newly_rejected_records": self.rejected_now,
            "dropped_records": self.dropped,
            "lanes_of_others": self.foreign,
            "trouble": self.trouble or self.lost,
            "seconds": round(self.seconds, 1),
        }

    def print(self) -> None:
        """Print a summary for people."""
        print(
            f"{counted(self.delivered, 'record')} delivered, "
            + (
                f"{self.left:,} left"
                if self.left or not self.trouble
                else "but not all records could be read"
            )
            + (f": {self.trouble}" if self.trouble else "")
        )
        if self.dropped:
            print(
                f"{counted(self.dropped, 'record')} of atomic batches dropped: their group no longer accepts their"
                " offsets, so its members read the same records again"
            )
        if self.lost:
            print(f"LOST by the cluster: {self.lost}")
        if self.rejected:
            print(f"{counted(self.rejected_records, 'record')} in rejected/, not delivered:")
        for found in self.rejected:
            print_rejected(found.rejected, found.rejected_unreadable)
        if self.rejected_records:
            print(RESEND_HINT)
        for name in self.foreign:
            print(f"{name} belongs to a running process, which delivers it")


def _deliver(
    lanes: SpoolDirectory,
    options: dict[str, Any],
    limit_s: float,
    on_undecidable: str,
    on_corrupt: str | None = None,
) -> _Delivery:
    began = time.monotonic()
    there = _left(lanes, set())
    before = there.records
    if not there.work:
        # Nothing is undelivered, so no broker is needed.
        return _Delivery(0, 0, _all_rejected(lanes), there.foreign, "", time.monotonic() - began)
    refused_before = _rejected(lanes)
    deadline = began + limit_s
    trouble, unreachable, lost = "", False, ""
    drain: SafeDrain | None = None
    if on_corrupt is not None and on_corrupt != "raise":
        options = {**options, "on_corrupt": on_corrupt}
    try:
        with (
            SafeDrain(options, lanes.path, on_undecidable) as producer,
            progress("delivering", "records") as told,
        ):
            drain = producer
            while True:
                try:
                    producer.flush(min(1.0, max(0.0, deadline - time.monotonic())))
                    flushed = True
                except KafkaTimeoutError:
                    flushed = False
                except DataLossError as error:
                    # The cluster lost records that were delivered earlier. The drain still delivers the pending
                    # records.
                    lost = lost or str(error)
                    flushed = False
                except UndecidableError as error:
                    trouble = str(error)
                    break
                waiting = producer.unfinished_records
                told(max(0, before - waiting), before)
                if flushed and not waiting:
                    there = _left(lanes, producer.lanes)
                    if there.damaged and options.get("on_corrupt") != "quarantine":
                        trouble = there.damaged
                        break
                    if not (there.records or there.damaged):
                        break
                if time.monotonic() >= deadline:
                    network = producer.last_network_error
                    unreachable = network is not None and not producer.bootstrap_connected()
                    why = f"no broker can be used: {in_words(network)}" if network else producer.reasons
                    trouble = f"not everything was delivered within {limit_s:g} s" + (why and f" ({why})")
                    break
                time.sleep(0.1 if flushed else 0)
    except SpoolCorruptError as error:
        trouble = str(error)
    except DataLossError as error:
        lost = lost or str(error)
    there = _left(lanes, set())
    left = there.records
    refused = max(0, _rejected(lanes) - refused_before)
    dropped = 0 if drain is None else drain.dropped_records
    delivered = max(0, before - left - refused - dropped)
    return _Delivery(
        delivered,
        left,
        _all_rejected(lanes),
        there.foreign,
        trouble or there.damaged,
        time.monotonic() - began,
        unreachable,
        lost,
        dropped,
        refused,
    )


def _all_rejected(lanes: SpoolDirectory) -> list[Inspected]:
    """Lanes with records or unreadable files in rejected/."""
    return [found for _, _, found in inspected(lanes.path, []) if found.rejected or found.rejected_unreadable]


def _rejected(lanes: SpoolDirectory) -> int:
    """Number of records in rejected/ of all lanes."""
    return sum(each.records for _, _, found in inspected(lanes.path, []) for each in found.rejected)


class SafeDrain(SafeProducer):
    """A SafeProducer that only delivers what the spool already holds."""

    def __init__(self, options: dict[str, Any], directory: Path, on_undecidable: str) -> None:
        mine = {"spool_dir": directory, "on_undecidable": on_undecidable, "client_id": "kafkasafe-drain"}
        self._reasons: dict[str, str] = {}
        super().__init__(**{**options, **mine, "on_event": self._note})

    def _note(self, event: object) -> None:
        match event:
            case DeliveryRetried(topic, partition, _, _, reason):
                self._reasons[address_of(topic, partition)] = reason
            case TopicBlocked(topic, partition, _, reason):
                self._reasons[address_of(topic, partition)] = reason
            case RecordsCommitted(topic, partition) | TopicUnblocked(topic, partition):
                self._reasons.pop(address_of(topic, partition), None)
            case _:
                pass

    @property
    def reasons(self) -> str:
        """Why the last attempts failed, for some of the partitions that are still retried."""
        found = sorted(self._reasons.copy().items())
        more = f"; and {len(found) - _REASONS} more partitions" if len(found) > _REASONS else ""
        return "; ".join(f"{where}: {reason}" for where, reason in found[:_REASONS]) + more

    @property
    def lanes(self) -> set[str]:
        """Names of the lanes that this producer holds."""
        return {lane.name for lane in self._pump.lanes}

    @property
    def unfinished_records(self) -> int:
        """Number of undelivered records in those lanes."""
        return sum(lane.journal.views.spooled_records for lane in self._pump.lanes)

    @property
    def dropped_records(self) -> int:
        """Number of records of atomic batches that were neither delivered nor kept in rejected/."""
        ended = self._pump.stats.records.copy()
        return sum(count for (_, how), count in ended.items() if how == "dropped")


# -- rejected ----------------------------------------------------------------------------------------------------------


@app.command(
    "resend",
    epilog=CODES.format(broken="something is left: not resent, not delivered in time, or rejected again"),
)
def spool_resend(
    directory: Directory,
    servers: Servers = None,
    config: ConfigFile = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="Only records of this topic. May be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be resent.")] = False,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Give up after this time: 90s, 10m, 1h.")
    ] = "5m",
    as_json: Json = False,
) -> None:
    """Send rejected records again, after a permission was granted, a topic created or a limit raised.

    The records move from rejected/ back into the spool, in the order in which they were rejected. Each record moves
    exactly once, even if this command is killed and run again. With --bootstrap-servers (or --config) the command then
    delivers them, as kafkasafe spool drain does; otherwise the next producer on the directory delivers them. Producers
    may use the directory meanwhile.
    """
    limit_s = duration_s(timeout, "--timeout")
    options = None if servers is None and config is None else connection(servers, config)
    directory = directory.resolve()
    lanes = open_directory(directory)
    topics = topic or ()
    done = None
    if dry_run:
        found = find_rejected(lanes, topics)
    else:
        with progress("moving back", "files") as told:
            found = bring_back(lanes, topics, progress=told)
        if options is not None:
            # Deliver even if no file was moved: an earlier resend may have died before it delivered.
            done = _deliver(lanes, options, limit_s, "raise")
            if topics:
                mine = [found for found in done.rejected if any(r.topic in topics for r in found.rejected)]
                done = dataclasses.replace(done, rejected=mine)
    counts: dict[tuple[str, int], int] = collections.Counter()
    for each in found.files:
        counts[each.topic, each.partition] += each.kept.records
    if as_json:
        told_fields: dict[str, Any] = {
            "dry_run": dry_run,
            "resent_records": found.records,
            "resent": [
                {"topic": name, "partition": partition, "records": records}
                for (name, partition), records in counts.items()
            ],
            "lane": found.lane or None,
            "not_resent": found.left,
        }
        print(json.dumps(told_fields | ({} if done is None else done.fields), indent=1))
    else:
        for (name, partition), records in counts.items():
            print(f"  {address_of(name, partition)}: {counted(records, 'record')}")
        verb = "would be" if dry_run else "were" if found.records != 1 else "was"
        print(
            f"{counted(found.records, 'record')} {verb} moved back into the spool{found.lane and f' ({found.lane})'}"
        )
        for text in found.left:
            print(f"NOT RESENT {text}")
        if done is not None:
            done.print()
        elif found.files and not dry_run:
            print("The next producer on this directory, or kafkasafe spool drain, delivers them")
    if done is not None and done.unreachable:
        raise typer.Exit(EXIT_FAILED)
    if found.left or (done is not None and done.broken):
        raise typer.Exit(EXIT_BROKEN)


@app.command(
    "set-aside",
    epilog="Exit codes: 0 all is well; 2 the command line is wrong; 3 the command could not be carried out: a process"
    " owns the lane, or the batch may be in the cluster's log and so stays where it is.",
)
def spool_set_aside(
    directory: Directory,
    position: Annotated[
        int, typer.Option(min=0, help="Position of the batch; kafkasafe spool show prints it.")
    ],
    lane: Annotated[str, typer.Option("--lane", metavar="LANE", help="Lane of the batch: lane-003, or 3.")],
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Limit for all requests to the cluster.")
    ] = "60s",
    as_json: Json = False,
) -> None:
    """Move one batch into rejected/ if it holds up later batches because a broker fails on it each time.

    No process may own the lane. A batch with an id may have been sent. It needs --bootstrap-servers (or --config), and
    is moved only if it is proven not to be in the cluster's log. A request of the last owner could still be on its way,
    so the command first waits for request_timeout_ms (30 s). kafkasafe spool resend sends the batch again.
    """
    timeout_s = duration_s(timeout, "--timeout")
    options = None if servers is None and config is None else connection(servers, config)
    directory = directory.resolve()
    ((lanes, number),) = lanes_of(directory, lane)

    def absent(topic: str, partition: int, positions: Sequence[int]) -> set[int]:
        if options is None:
            raise typer.BadParameter(
                "the batch may have been sent: name the brokers, so that this command can ask them",
                param_hint="--bootstrap-servers",
            )
        pause_s = validate(options).request_timeout_s
        print(
            f"Waiting {pause_s:g} s: a request of the lane's last owner may still be on its way",
            file=sys.stderr,
        )
        time.sleep(pause_s)
        content = read_content(lanes.lane_path(number), files=lanes.files)
        found, _ = ask([content], options, timeout_s, lanes.cluster_id(), directory)
        mine = [each for each in found if each.batch.position in positions]
        for each in mine:
            print(
                f"  {address_of(topic, partition)}, position {each.batch.position}: {each.verdict.evidence}",
                file=sys.stderr,
            )
        return {each.batch.position for each in mine if each.verdict.finding is Finding.ABSENT}

    try:
        path, topic, partition, records = set_aside(lanes, number, position, absent)
    except UsageError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--position") from None
    if as_json:
        fields = {"file": str(path), "topic": topic, "partition": partition, "records": records}
        print(json.dumps(fields, indent=1))
    else:
        print(f"{address_of(topic, partition)}: {counted(records, 'record')} set aside into {path}")
        print(RESEND_HINT)


@dataclasses.dataclass(frozen=True, slots=True)
class _Left:
    """What is left in lanes without an owner, and in some lanes that this process owns.

    Attributes:
        records: Number of undelivered records.
        damaged: A description of the damage; empty if there is none.
        foreign: Names of the lanes that other processes own.
        work: Whether a producer that held these lanes would have work to do.
    """

    records: int
    damaged: str
    foreign: list[str]
    work: bool


def _left(lanes: SpoolDirectory, mine: set[str]) -> _Left:
    """Examine the lanes without an owner and the lanes `mine`, which this process holds."""
    records, damaged, foreign, work = 0, "", [], False
    for number in lanes.lanes():
        path = lanes.lane_path(number)
        # A lane that this process has locked but not opened yet is its own, too.
        if path.name not in mine and lanes.seems_owned(number) not in {0, os.getpid()}:
            foreign.append(path.name)
            continue
        try:
            found = inspect(path, files=lanes.files)
        except SpoolError as error:
            damaged = str(error)
            work = True
            continue
        work = work or bool(found.unfinished or found.doubted or found.damage)
        records += sum(waiting.records for waiting in found.waiting)
        if found.untold and path.name not in mine:
            damaged = f"{path.name} is damaged: {found.untold[0]}; see kafkasafe spool repair"
    return _Left(records, damaged, foreign, work)


# ----------------------------------------------------------------------------------------------------------------------


def _end(rows: Sequence[dict[str, Any]], *bad: str, troubles: Sequence[tuple[str, str]]) -> None:
    if troubles or any(row[name] for row in rows for name in bad):
        raise typer.Exit(EXIT_BROKEN)


def _unread(troubles: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """JSON rows for the lanes that cannot be read."""
    return [{"lane": name, "error": reason} for name, reason in troubles]


def _contents(directory: Path, lane: str | None, troubles: list[tuple[str, str]]) -> Iterator[LaneContent]:
    contents = []
    for lanes, number in lanes_of(directory, lane):
        path = lanes.lane_path(number)
        try:
            contents.append(read_content(path, files=lanes.files))
        except SpoolError as error:
            troubles.append((path.name, str(error)))
    resent = [mark for content in contents for mark in resent_in(content.log)]
    yield from (content.without(resent) for content in contents)

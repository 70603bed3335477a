"""`kafkasafe spool`: what is in a spool directory, out of it, and back in order."""

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
from kafkasafe.cli_common import (
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
from kafkasafe.cli_doctor import ask
from kafkasafe.cli_tidy import DISCARD_CODES, PRUNE_CODES, spool_discard, spool_prune
from kafkasafe.cli_tree import print_tree, root_of
from kafkasafe.cli_units import EPILOG, print_unit, spool_abort, spool_commit, times_row, unit_rows
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

__all__ = ["spool_app"]

_pa: Any = pa  # it ships no types

spool_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into spool directories, and bring them in order. Only repair, drain, commit, abort, resend,"
    " set-aside, discard and prune change anything.",
)

spool_app.command("commit", epilog=EPILOG)(spool_commit)
spool_app.command("abort", epilog=EPILOG)(spool_abort)
spool_app.command("discard", epilog=DISCARD_CODES)(spool_discard)
spool_app.command("prune", epilog=PRUNE_CODES)(spool_prune)

_REASONS: Final = 3
_UNITS: Final = 20
_DAMAGED: Final = CODES.format(broken="something is damaged")
_DAMAGED_OR_REJECTED: Final = CODES.format(broken="something is damaged, or was rejected")

LaneName = Annotated[
    str | None, typer.Option("--lane", metavar="LANE", help="Only this lane: lane-003, or 3.")
]


@spool_app.command("ls", epilog=_DAMAGED_OR_REJECTED)
def spool_ls(
    directory: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A spool directory; with --tree a directory above some."),
    ] = None,
    tree: Annotated[
        bool,
        typer.Option(
            "--tree",
            help="All spool directories at and below DIR, a line for each, and their sums. Without DIR: the default"
            " ones of this user.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Lanes of a spool directory: whose they are, how large, what waits in them, and what was rejected."""
    if tree:
        print_tree(root_of(directory), as_json=as_json)
        return
    if directory is None:
        raise typer.BadParameter("name a spool directory, or say --tree", param_hint="DIR")
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
        print(f"  and {len(row['atomic_batches']) - _UNITS:,} atomic batches more: see kafkasafe spool show")
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
        print("  kafkasafe spool discard notes that they are not wanted")


@spool_app.command("verify", epilog=_DAMAGED)
def spool_verify(directory: Directory, as_json: Json = False) -> None:
    """Check every byte of a spool directory.

    A torn tail is what a crash leaves: nothing proves that anything in it was promised. While a producer is running,
    the end of its lane may look torn. A segment that is missing is damage.
    """
    rows = []
    troubles = cluster_trouble(open_directory(directory))
    for lanes, number, found in inspected(directory, troubles):
        row = dataclasses.asdict(found)
        # Not about bytes.
        del row["waiting"], row["oldest_ms"], row["undecidable"]
        rows.append({"lane": lanes.lane_path(number).name, "error": None, **row})
    if as_json:
        print(json.dumps([*rows, *_unread(troubles)], indent=1))
    for row in rows if not as_json else ():
        torn = ""
        if row["torn_bytes"]:
            torn = f", torn tail of {row['torn_bytes']:,} bytes behind what is proven to have been durable"
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


@spool_app.command("show", epilog=_DAMAGED_OR_REJECTED)
def spool_show(
    directory: Directory,
    lane: LaneName = None,
    position: Annotated[
        int | None, typer.Option(min=0, help="Only the batch that begins there, with its records.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also what is delivered or replaced.")] = False,
    as_json: Json = False,
) -> None:
    """Batches of a spool directory with their ids, what the spool knows of each, and its step of KAFKA-156.

    Steps: 1 prepared (on disk), 2 prepare acknowledged (on disk, durable, with its batch id: it may have been sent), 3
    committed (in the cluster's log), 4 commit acknowledged (its offset is known).
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
        print(f"Nothing waits{' in the others' if troubles else ''}; --all shows what is delivered")
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


_DONE: Final = frozenset({Fate.COMMITTED, Fate.REPLACED, Fate.RESENT})

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


@spool_app.command("export", epilog=_DAMAGED)
def spool_export(
    directory: Directory,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to: a new file, or - for standard output."
        ),
    ],
    form: Annotated[
        Literal["jsonl", "parquet"] | None,
        typer.Option("--format", help="Default: by the file's name."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(metavar="STATUS", help=f"Only these: {', '.join(_STATUSES)}. May be repeated."),
    ] = None,
    lane: LaneName = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="What was written as JSON, on standard error with -o -.")
    ] = False,
) -> None:
    """Write the records of a spool directory, each with its status, to JSON lines or Parquet. Nothing is changed.

    In JSON lines a key or value that is not UTF-8 is {"base64": ...}. A batch that was divided is not written, its
    parts are. The status is what the spool knows; whether a record in doubt is in the cluster says kafkasafe doctor.
    """
    if unknown := [name for name in status or () if name not in _STATUSES]:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_STATUSES)}", param_hint="--status")
    open_directory(directory)
    to_stdout = str(output) == "-"
    if form is None:
        form = "jsonl" if to_stdout else _FORMS.get(output.suffix.lower())
    if form is None:
        raise typer.BadParameter(
            f"{output} must end in {', '.join(_FORMS)}, or say --format jsonl or --format parquet",
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
    """A file that is there as a whole or, after an error, not at all."""
    try:
        # What only its owner could read stays so.
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


@spool_app.command(
    "repair",
    epilog=CODES.format(
        broken="something is damaged that cannot be repaired without a loss (nothing is skipped)"
    ),
)
def spool_repair(
    directory: Directory,
    lane: LaneName = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the plan. Without it, only print the plan.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repair what can be repaired without losing anything that was promised; tell the rest.

    That is: a torn tail, which no group behind it says was durable, is cut; address bytes of a batch whose body is
    whole are restored from the manifest that protects them; damage in a batch that is delivered, refused or divided is
    put in quarantine, so that the lane opens again. A damaged batch that is not delivered stays as it is: restore the
    file from a copy, or give it up with on_corrupt="quarantine". Before anything is changed the files concerned are
    copied to repair-TIME/ in the lane. A lane that a process owns is left alone.
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
            print("Nothing was changed: --apply does it")
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
        print(f"{name}: repaired; the files as they were are in {kept}")


# -- drain -------------------------------------------------------------------------------------------------------------


@spool_app.command(
    "drain",
    epilog=CODES.format(broken="something is left: not delivered in time, undecidable, rejected, or damaged"),
)
def spool_drain(
    directory: Directory,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="When to give up: 90s, 10m, 1h.")] = "5m",
    on_undecidable: Annotated[
        Literal["raise", "resend", "skip"],
        typer.Option(help="A batch whose presence in the log cannot be determined; see SafeProducer."),
    ] = "raise",
    on_corrupt: Annotated[
        Literal["raise", "quarantine"],
        typer.Option(
            help="A damaged lane: leave it as it is, or put what is damaged aside and deliver everything else."
        ),
    ] = "raise",
    as_json: Json = False,
) -> None:
    """Deliver what producers left in a spool directory, and end when nothing is left.

    Lanes that a living process owns are that one's to deliver, and are not waited for. Everything is done by a
    SafeProducer on the directory, as the application's next start would do it: in order, exactly once.
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
    if done.broken:
        raise typer.Exit(EXIT_BROKEN)


@dataclasses.dataclass(frozen=True, slots=True)
class _Delivery:
    """What a drain did, and what is there after it."""

    delivered: int
    left: int
    rejected: list[Inspected]
    foreign: list[str]
    trouble: str
    seconds: float
    unreachable: bool = False
    """No broker could be used."""
    lost: str = ""
    """What the cluster lost after acknowledging it, and cannot be sent again."""
    dropped: int = 0
    """Records of atomic batches that are not delivered, and kept nowhere: whoever has the offsets reads again."""

    @property
    def rejected_records(self) -> int:
        """In rejected/ of all lanes."""
        return sum(each.records for found in self.rejected for each in found.rejected)

    @property
    def broken(self) -> bool:
        """Whether something is left."""
        return bool(self.left or self.trouble or self.rejected or self.lost)

    @property
    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "delivered_records": self.delivered,
            "left_records": self.left,
            "rejected_records": self.rejected_records,
            "dropped_records": self.dropped,
            "lanes_of_others": self.foreign,
            "trouble": self.trouble or self.lost,
            "seconds": round(self.seconds, 1),
        }

    def print(self) -> None:
        """For people."""
        print(
            f"{counted(self.delivered, 'record')} delivered, "
            + (f"{self.left:,} left" if self.left or not self.trouble else "but not all could be read")
            + (f": {self.trouble}" if self.trouble else "")
        )
        if self.dropped:
            print(
                f"{counted(self.dropped, 'record')} of atomic batches dropped, with offsets that their group does not"
                " take any more: its members read the same again"
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
            print(f"{name} belongs to a living process, which delivers it")


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
        # No broker is asked: whichever cluster this would be, nothing waits for it.
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
                    # Of earlier deliveries; what waits is delivered all the same.
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
                    trouble = f"not everything within {limit_s:g} s" + (why and f" ({why})")
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
    )


def _all_rejected(lanes: SpoolDirectory) -> list[Inspected]:
    """Lanes in which something is kept that was rejected."""
    return [found for _, _, found in inspected(lanes.path, []) if found.rejected or found.rejected_unreadable]


def _rejected(lanes: SpoolDirectory) -> int:
    """Records in rejected/ of all lanes."""
    return sum(each.records for _, _, found in inspected(lanes.path, []) for each in found.rejected)


class SafeDrain(SafeProducer):
    """A SafeProducer that sends nothing of its own."""

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
        """Why partitions were tried again when they were tried last: some of them."""
        found = sorted(self._reasons.copy().items())
        more = f"; and {len(found) - _REASONS} more partitions" if len(found) > _REASONS else ""
        return "; ".join(f"{where}: {reason}" for where, reason in found[:_REASONS]) + more

    @property
    def lanes(self) -> set[str]:
        """Names of the lanes that it has."""
        return {lane.name for lane in self._pump.lanes}

    @property
    def unfinished_records(self) -> int:
        """In those lanes."""
        return sum(lane.journal.spooled_records for lane in self._pump.lanes)

    @property
    def dropped_records(self) -> int:
        """Of atomic batches that are not delivered, and not in rejected/ either."""
        ended = self._pump.stats.records.copy()
        return sum(count for (_, how), count in ended.items() if how == "dropped")


# -- rejected ----------------------------------------------------------------------------------------------------------


@spool_app.command(
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say what would be resent.")
    ] = False,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="When to give up: 90s, 10m, 1h.")] = "5m",
    as_json: Json = False,
) -> None:
    """Send rejected records again: after a right was granted, a topic created, a limit raised.

    They are moved back into the spool in the order in which they were rejected, and are not in rejected/ any more:
    exactly once, also if this is killed and called again. With --bootstrap-servers (or --config) they are then
    delivered, as kafkasafe spool drain does it; without, by the next producer on the directory. Producers may be at
    work meanwhile.
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
        with progress("putting back", "files") as told:
            found = bring_back(lanes, topics, progress=told)
        if options is not None:
            # Also where nothing is to be put back: the one before may have died in delivering.
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
            print("They are delivered by the next producer on this directory, or by kafkasafe spool drain")
    if done is not None and done.unreachable:
        raise typer.Exit(EXIT_FAILED)
    if found.left or (done is not None and done.broken):
        raise typer.Exit(EXIT_BROKEN)


@spool_app.command(
    "set-aside",
    epilog="Exit codes: 0 all is well; 2 the command line is wrong; 3 it could not be carried out: a process owns the"
    " lane, or the batch may be in the cluster's log, and stays where it is.",
)
def spool_set_aside(
    directory: Directory,
    position: Annotated[
        int, typer.Option(min=0, help="Where the batch begins; kafkasafe spool show says it.")
    ],
    lane: Annotated[str, typer.Option("--lane", metavar="LANE", help="Its lane: lane-003, or 3.")],
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="For all questions to the cluster.")] = "60s",
    as_json: Json = False,
) -> None:
    """Move one batch into rejected/ that holds up those after it, since a broker fails on it each time.

    Only in a lane that no process owns. A batch that has an id may have been sent: then --bootstrap-servers (or
    --config) is needed, and it is moved only if it is proven not to be in the cluster's log. For that no request of its
    last owner may be on its way, so request_timeout_ms (30 s) pass first. kafkasafe spool resend brings it back.
    """
    timeout_s = duration_s(timeout, "--timeout")
    options = None if servers is None and config is None else connection(servers, config)
    directory = directory.resolve()
    ((lanes, number),) = lanes_of(directory, lane)

    def absent(topic: str, partition: int, positions: Sequence[int]) -> set[int]:
        if options is None:
            raise typer.BadParameter(
                "the batch may have been sent: say where the brokers are, to ask them",
                param_hint="--bootstrap-servers",
            )
        pause_s = validate(options).request_timeout_s
        print(f"Waiting {pause_s:g} s, for requests of the lane's last owner to be over", file=sys.stderr)
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
    """What is in the lanes that no process owns, and in some that this one does.

    Attributes:
        records: That are not delivered.
        damaged: What is damaged, empty where nothing is.
        foreign: Names of the lanes of other processes.
        work: A producer that had these lanes would do anything.
    """

    records: int
    damaged: str
    foreign: list[str]
    work: bool


def _left(lanes: SpoolDirectory, mine: set[str]) -> _Left:
    """Also of the lanes `mine`, which this process has."""
    records, damaged, foreign, work = 0, "", [], False
    for number in lanes.lanes():
        path = lanes.lane_path(number)
        # What this process has locked and not opened yet is its own as well.
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
    """Rows of lanes that cannot be read, for JSON."""
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

"""`kafkasafe health`: whether a producer could accept records in a spool directory, and what needs an operator."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    Directory,
    Json,
    app_of_command,
    cluster_trouble,
    counted,
    duration_s,
    inspected,
    open_directory,
)
from kafkasafe.cli.report import EXIT_BROKEN, Report, show
from kafkasafe.config import validate
from kafkasafe.errors import ConfigError, SpoolError
from kafkasafe.health.spool import LaneSeen, SpoolHealth, SpoolSeen, spool_health
from kafkasafe.spool.inspection import Inspected, start_error, with_same_id
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.spool.lanes.format import FORMAT_NAME
from kafkasafe.spool.lanes.lock import LOCK_NAME

HEALTH_CODES: Final = CODES.format(
    broken="a producer could not accept records, or something needs an operator: damage, rejected records, records that"
    " no process delivers, or a record older than --max-age"
)


app = app_of_command()


@app.command("health", epilog=HEALTH_CODES)
def health(
    directory: Directory,
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="TIME", help="Maximum age of a waiting record: 30s, 5m, 12h."),
    ] = None,
    spool_max_bytes: Annotated[
        int | None,
        typer.Option(
            "--spool-max-bytes",
            metavar="BYTES",
            help="The producers' option of that name. If not given, only the volume's free space is the limit.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say whether a producer could accept records in a spool directory, and what needs an operator there.

    Run this command as the producers' user: if the user may not write to the directory, the result is NOT READY. A user
    with only read permission can list the waiting records with kafkasafe spool ls. The command only reads, so producers
    may run at the same time. It reads the whole spool. In a program, or for probes every few seconds, use
    producer.health() instead, which reads no files, and also reports whether the cluster answers.
    """
    max_age_s = None if max_age is None else duration_s(max_age, "--max-age")
    limit = None if spool_max_bytes is None else _limit(spool_max_bytes)
    lanes = open_directory(directory)
    troubles = cluster_trouble(lanes)
    seen_lanes = []
    damaged = []
    lane_ids = {}
    for _, number, found in inspected(lanes, troubles):
        seen_lanes.append(_seen(lanes, number, found))
        lane_ids[lanes.lane_path(number).name] = found.lane_id
        if found.untold:
            damaged.append(number)
    same = with_same_id(lane_ids)
    seen_lanes = [dataclasses.replace(lane, same_lane_id=same[lane.name]) for lane in seen_lanes]
    unreadable = [lanes.number_of(name) for name, _ in troubles]
    free, read_only = _volume(lanes)
    verdict = spool_health(
        SpoolSeen(
            seen_lanes,
            [f"{name}: {reason}" for name, reason in troubles],
            _failing_starts(lanes, {*damaged, *unreadable}),
            free_bytes=free,
            read_only=read_only,
            not_writable=_not_writable(lanes),
            limit_bytes=limit,
            max_age_s=max_age_s,
        )
    )
    is_ok = verdict.ready and not verdict.warnings
    fields = {
        "directory": str(lanes.path),
        "ok": is_ok,
        **dataclasses.asdict(verdict),
        "free_bytes": free,
        "lanes": [_row(lane) for lane in seen_lanes],
    }
    show(Report(fields, _lines(verdict, seen_lanes), 0 if is_ok else EXIT_BROKEN), as_json=as_json)


def _limit(spool_max_bytes: int) -> int:
    """Maximum size of a lane's log."""
    try:
        config = validate({"spool_dir": ".", "spool_max_bytes": spool_max_bytes})
    except ConfigError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--spool-max-bytes") from None
    return config.spool_max_bytes - config.spool_segment_bytes


def _volume(lanes: SpoolDirectory) -> tuple[int, bool]:
    """Returns (free bytes of the volume, whether the volume is mounted read-only).

    Raises:
        SpoolError: The volume cannot be read.
    """
    try:
        return lanes.files.free_bytes(lanes.path), bool(os.statvfs(lanes.path).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise SpoolError(f"{lanes.path} cannot be read: {error}") from error


def _not_writable(lanes: SpoolDirectory) -> str:
    """Returns a path that a producer has to write, but to which this user has no write permission; empty if there is
    none.
    """
    starting = [lanes.lane_path(number) for number in lanes.starting_lanes()]
    # If no lane is free, a producer makes a new one in the directory.
    paths = [lanes.path / FORMAT_NAME, *(starting or [lanes.path]), *(lane / LOCK_NAME for lane in starting)]
    for path in paths:
        needed = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
        # A lane whose lock is missing is not an error: the producer creates the lock.
        if not os.access(path, needed, effective_ids=True) and os.access(path, os.F_OK, effective_ids=True):
            return str(path)
    return ""


def _failing_starts(lanes: SpoolDirectory, suspects: Collection[int]) -> list[str]:
    """Returns an error message for each lane in `suspects` that would make a new producer fail at its start."""
    texts = []
    for number, client in lanes.starting_lanes().items():
        if number not in suspects:
            continue
        lane = lanes.lane_path(number)
        error = start_error(lane, files=lanes.files)
        if error is not None:
            who = f"a producer with client_id={client!r}" if client else "a producer"
            raised = type(error).__name__
            texts.append(f"{lane.name}: {who} would start on this lane, and raise {raised}: {error}")
    return texts


def _seen(lanes: SpoolDirectory, number: int, found: Inspected) -> LaneSeen:
    begun = lanes.owners.begun(number)
    strays_to = lanes.owners.strays_to(number)
    return LaneSeen(
        name=lanes.lane_path(number).name,
        owner_pid=lanes.owners.seems_owned(number),
        strays_to="" if strays_to is None else str(strays_to),
        size_bytes=found.size_bytes,
        waiting_records=sum(each.records for each in found.waiting),
        oldest_s=0.0 if found.oldest_ms < 0 else max(0.0, time.time() - found.oldest_ms / 1000),
        in_doubt_batches=sum(each.in_doubt_batches for each in found.waiting),
        # Count only batches that the current owner found undecidable. If an earlier owner found a batch undecidable,
        # the current owner asks the cluster about it again.
        undecidable_batches=sum(at >= begun for at in found.undecidable),
        rejected_records=sum(each.records for each in found.rejected),
        damaged=len(found.damage) + len(found.rejected_unreadable) + len(found.rejected_missing),
    )


def _row(lane: LaneSeen) -> dict[str, Any]:
    row = dataclasses.asdict(lane)
    row["lane"] = row.pop("name")
    row["owner_pid"] = lane.owner_pid or None
    row["strays_to"] = lane.strays_to or None
    row["oldest_record_age_s"] = row.pop("oldest_s")
    return row


def _lines(found: SpoolHealth, lanes: Sequence[LaneSeen]) -> Iterator[str]:
    yield (
        "READY: a producer can accept records"
        if found.ready
        else "NOT READY: a producer cannot accept records"
    )
    for reason in found.reasons:
        yield f"  {reason}"
    for warning in found.warnings:
        yield f"  warning: {warning}"
    for lane in lanes:
        owner = f"owned by process {lane.owner_pid}" if lane.owner_pid else "not owned"
        age = f", the oldest for {lane.oldest_s:.0f} s" if lane.waiting_records else ""
        doubt = (
            f"; {counted(lane.in_doubt_batches, 'batch')} may have been sent" if lane.in_doubt_batches else ""
        )
        yield (
            f"{lane.name}: {owner}; {counted(lane.size_bytes, 'byte')}; {counted(lane.waiting_records, 'record')}"
            f" waiting{age}{doubt}"
        )

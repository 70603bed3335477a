"""`kafkasafe spool commit` and `spool abort`: decide atomic batches that another process staged."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe._core import units as u
from kafkasafe._core.examine import Step
from kafkasafe._core.steps import BatchTimes, UnitLog
from kafkasafe._io.examination import LaneContent, read_content
from kafkasafe._io.inspection import steps
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    EXIT_FAILED,
    RESEND_HINT,
    ConfigFile,
    Directory,
    Json,
    Servers,
    connection,
    counted,
    duration_s,
    open_directory,
)
from kafkasafe.cluster.api import in_words
from kafkasafe.config import Decide, ProducerConfig, validate
from kafkasafe.events import AtomicBatchCommitted, AtomicBatchDropped
from kafkasafe.producer import SafeProducer

__all__ = ["print_unit", "spool_abort", "spool_commit", "times_row", "unit_rows"]

_POLL_S: Final = 0.05
_OVER: Final = "its transaction timed out or was fenced: the next producer prepares the batch again"
_BEHIND: Final = (
    "an earlier atomic batch of the same partitions must be committed or aborted first; or this batch shares its"
    " transaction with a batch that is not to be committed now"
)
_STAGED: Final = frozenset({u.Phase.STAGED, u.Phase.ENDING, u.Phase.ASKING, u.Phase.COMMITTED})

BatchIds = Annotated[
    list[str] | None,
    typer.Option(
        "--batch", metavar="ID", help="Only this batch id; its first digits suffice. May be repeated."
    ),
]
Patience = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="Give up after this time: 90s, 10m, 1h.")
]


# -- the log of the steps ----------------------------------------------------------------------------------------------


def unit_rows(content: LaneContent, *, every: bool = False) -> list[dict[str, Any]]:
    """The atomic batches of a lane, with their steps and times; finished ones only with `every`."""
    by_position = {batch.position: batch for batch in content.batches}
    _, logs = steps(content.log)
    return [_row(content, log, by_position) for log in logs if every or log.outcome is None]


def _row(content: LaneContent, log: UnitLog, by_position: Mapping[int, Any]) -> dict[str, Any]:
    members = [by_position[position] for position in log.positions if position in by_position]
    return {
        "lane": content.name,
        "batch_id": log.batch_id,
        "positions": [position for position in log.positions if position in by_position],
        "partitions": sorted({(batch.topic, batch.partition) for batch in members}),
        "groups": list(log.groups),
        "records": sum(batch.records for batch in members),
        "bytes": sum(batch.size_bytes for batch in members),
        "transactional_id": log.transactional_id,
        "producer_id": log.producer_id if log.producer_id >= 0 else None,
        "producer_epoch": log.producer_epoch if log.producer_id >= 0 else None,
        "step": None if log.step is None else log.step.number,
        "step_name": "dropped" if log.step is None else log.step.value,
        "reason": log.reason,
        "times": {
            Step.PREPARED.value: _time(log.prepared_ms),
            Step.PREPARE_ACKNOWLEDGED.value: _time(log.prepare_acknowledged_ms),
            ("dropped" if log.is_dropped else Step.COMMIT_ACKNOWLEDGED.value): _time(log.ended_ms),
        },
    }


def _time(ms: int) -> str | None:
    return None if ms < 0 else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def times_row(times: BatchTimes | None) -> dict[str, str | None]:
    """The times at which the spool recorded the steps of a batch that is not atomic."""
    if times is None:
        return {}
    return {
        Step.PREPARED.value: _time(times.prepared_ms),
        Step.PREPARE_ACKNOWLEDGED.value: _time(times.prepare_acknowledged_ms),
        Step.COMMIT_ACKNOWLEDGED.value: _time(times.commit_acknowledged_ms),
    }


def print_unit(row: Mapping[str, Any]) -> None:
    """Print an atomic batch on one line."""
    partitions = ", ".join(
        f"{topic}-{partition}" if partition >= 0 else f"{topic} (no partition yet)"
        for topic, partition in row["partitions"]
    )
    groups = "".join(f", offsets of {group}" for group in row["groups"])
    step = f"step {row['step']} of 4, " if row["step"] else ""
    times = "; ".join(f"{name.replace('_', ' ')} {at}" for name, at in row["times"].items() if at)
    print(
        f"  atomic batch {row['batch_id']}: {partitions}{groups}, {counted(row['records'], 'record')},"
        f" {counted(row['bytes'], 'byte')}; {step}{row['step_name'].replace('_', ' ')}; {times}"
    )


# -- commit and abort --------------------------------------------------------------------------------------------------


class _Decider(SafeProducer):
    """A SafeProducer that delivers nothing: it only commits or aborts staged atomic batches."""

    def __init__(self, options: Mapping[str, Any], directory: Path, decide: Decide) -> None:
        self._decide = decide
        self.outcomes: dict[str, AtomicBatchCommitted | AtomicBatchDropped] = {}
        mine = {"spool_dir": directory, "client_id": "kafkasafe-decide", "on_event": self._note}
        super().__init__(**{**options, **mine})

    def _note(self, event: object) -> None:
        if isinstance(event, (AtomicBatchCommitted, AtomicBatchDropped)):
            self.outcomes[event.batch_id] = event

    def _validated(self, options: Mapping[str, Any]) -> ProducerConfig:
        return replace(validate(options), decide=self._decide)

    @property
    def lanes(self) -> set[str]:
        """Names of the lanes that this producer holds."""
        return {lane.name for lane in self._pump.lanes}

    def unit(self, unit_id: bytes) -> tuple[u.Phase, bool] | None:
        """The phase of an undecided unit (an atomic batch), and whether a unit that is left undecided holds it up.

        None if none of this producer's lanes has the unit.
        """
        for lane in self._pump.lanes:
            unit = lane.journal.units.get(unit_id)
            if unit is not None:
                return unit.phase, unit.phase is u.Phase.STAGED and lane.journal.units.held_up(unit)
        return None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An undecided atomic batch (a unit) in a lane that no process owns."""

    lane: str
    unit_id: bytes
    staged: bool


def _wanted(directory: Path, given: Sequence[str] | None) -> tuple[SpoolDirectory, list[_Wanted], list[str]]:
    """The undecided atomic batches of lanes without an owner, and the names of the owned lanes, which are skipped."""
    lanes = open_directory(directory)
    found: list[_Wanted] = []
    foreign: list[str] = []
    for number in lanes.lanes():
        path = lanes.lane_path(number)
        if lanes.seems_owned(number):
            foreign.append(path.name)
            continue
        content = read_content(path, files=lanes.files)
        _, logs = steps(content.log)
        found += [
            _Wanted(path.name, log.unit_id, log.step is Step.PREPARE_ACKNOWLEDGED)
            for log in logs
            if log.outcome is None
        ]
    if given:
        prefixes = [each.lower() for each in given]
        for prefix in prefixes:
            named = [each for each in found if each.unit_id.hex().startswith(prefix)]
            if len(named) != 1:
                problem = "no unfinished atomic batch" if not named else f"{len(named)} atomic batches"
                where = (
                    f"; not searched, because a process owns them: {', '.join(foreign)}" if foreign else ""
                )
                raise typer.BadParameter(
                    f"{problem} with an id that begins with {prefix}{where}", param_hint="--batch"
                )
        found = [each for each in found if any(each.unit_id.hex().startswith(prefix) for prefix in prefixes)]
    return lanes, found, foreign


def _decide(
    directory: Path, options: Mapping[str, Any], wanted: Sequence[_Wanted], decide: Decide, limit_s: float
) -> tuple[list[dict[str, Any]], bool]:
    """The outcome of each unit, and whether the command gave up because no broker could be used."""
    files = open_directory(directory).files
    ids = {each.unit_id.hex() for each in wanted}
    contents = [
        read_content(directory / name, files=files) for name in sorted({each.lane for each in wanted})
    ]
    before = [row for content in contents for row in unit_rows(content) if row["batch_id"] in ids]
    deadline = time.monotonic() + limit_s
    unreachable = False
    phases: dict[str, tuple[u.Phase, bool] | None] = {}
    with _Decider(options, directory, decide) as producer:
        names = {each.lane for each in wanted}
        while True:
            there = names <= producer.lanes
            phases = {each.unit_id.hex(): producer.unit(each.unit_id) for each in wanted}
            busy = _STAGED if not decide.abort else _STAGED | {u.Phase.REFUSED}
            if there and not any(at is not None and at[0] in busy and not at[1] for at in phases.values()):
                break
            if time.monotonic() >= deadline:
                network = producer.last_network_error
                unreachable = network is not None and not producer.bootstrap_connected()
                if network is not None:
                    typer.echo(f"No broker can be used: {in_words(network)}", err=True)
                break
            time.sleep(_POLL_S)
        producer.close(0)
        outcomes = producer.outcomes
    # The log may no longer hold a finished batch, so `before` was read first.
    rows = []
    for row in before:
        match outcomes.get(row["batch_id"]):
            case AtomicBatchCommitted():
                step = Step.COMMIT_ACKNOWLEDGED
                rows.append({**row, "step": step.number, "step_name": step.value})
            case AtomicBatchDropped(reason=reason):
                rows.append({**row, "step": None, "step_name": "dropped", "reason": reason})
            case _:
                at = phases.get(row["batch_id"])
                if at is not None and at[1]:
                    row = {**row, "reason": _BEHIND}
                elif (
                    at is not None
                    and at[0] is u.Phase.WAITING
                    and row["step"] == Step.PREPARE_ACKNOWLEDGED.number
                ):
                    row = {**row, "reason": _OVER}
                rows.append(row)
    return rows, unreachable


def _end(left: int, *, unreachable: bool) -> None:
    if unreachable:
        raise typer.Exit(EXIT_FAILED)
    if left:
        raise typer.Exit(EXIT_BROKEN)


def _print_all(rows: Sequence[dict[str, Any]], foreign: Sequence[str]) -> None:
    for row in rows:
        print_unit(row)
    for name in foreign:
        print(f"{name} belongs to a running process, which decides its atomic batches")


def spool_commit(
    directory: Directory,
    batch: BatchIds = None,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Patience = "60s",
    as_json: Json = False,
) -> None:
    """Commit the atomic batches that are staged in lanes that no process owns, and do nothing else.

    EndTxn is sent with the transactional id, producer id and epoch from the spool. The producer that staged the batch
    would send the same request, so the request changes nothing about a batch that is already committed. The command
    leaves a batch to the next producer, or to kafkasafe spool drain, in these cases: it is not staged; it comes after
    such a batch on a partition; its transaction timed out; or it shares its transaction with a batch that was not
    named.
    """
    limit_s = duration_s(timeout, "--timeout")
    options = connection(servers, config)
    directory = directory.resolve()
    _, wanted, foreign = _wanted(directory, batch)
    staged = [each for each in wanted if each.staged]
    rows: list[dict[str, Any]] = []
    unreachable = False
    if staged:
        chosen = frozenset(each.unit_id for each in staged)
        rows, unreachable = _decide(directory, options, staged, Decide(commit=chosen), limit_s)
    done = sum(row["step"] == Step.COMMIT_ACKNOWLEDGED.number for row in rows)
    left = len(wanted) - done
    if as_json:
        fields = {"committed": done, "left": left, "lanes_of_others": foreign, "batches": rows}
        print(json.dumps(fields, indent=1))
    else:
        print(f"{counted(done, 'atomic batch')} committed, {left:,} left")
        _print_all(rows, foreign)
        if left:
            print(
                "A batch is left if it is not staged, if its transaction is over, or if it comes after a batch that is"
                " left or shares a transaction with one. kafkasafe spool drain delivers these batches"
            )
    _end(left, unreachable=unreachable)


def spool_abort(
    directory: Directory,
    batch: BatchIds = None,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Patience = "60s",
    as_json: Json = False,
) -> None:
    """Give up atomic batches in lanes that no process owns, and abort their transactions.

    Their records move into rejected/. A batch that turns out to be committed stays committed; its records do not move.
    """
    limit_s = duration_s(timeout, "--timeout")
    options = connection(servers, config)
    directory = directory.resolve()
    _, wanted, foreign = _wanted(directory, batch)
    rows: list[dict[str, Any]] = []
    unreachable = False
    if wanted:
        decide = Decide(abort=frozenset(each.unit_id for each in wanted))
        rows, unreachable = _decide(directory, options, wanted, decide, limit_s)
    aborted = sum(row["step_name"] == "dropped" for row in rows)
    committed = sum(row["step"] == Step.COMMIT_ACKNOWLEDGED.number for row in rows)
    left = len(wanted) - aborted - committed
    if as_json:
        fields = {
            "aborted": aborted,
            "committed": committed,
            "left": left,
            "lanes_of_others": foreign,
            "batches": rows,
        }
        print(json.dumps(fields, indent=1))
    else:
        print(f"{counted(aborted, 'atomic batch')} given up, {committed:,} found committed, {left:,} left")
        _print_all(rows, foreign)
        if aborted:
            print(RESEND_HINT)
    _end(left, unreachable=unreachable)


EPILOG: Final = CODES.format(broken="something is left")

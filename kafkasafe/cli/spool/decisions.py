"""`kafkasafe spool commit` and `spool abort`: decide atomic batches that another process staged."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe import units as u
from kafkasafe.cli.common import (
    CODES,
    RESEND_HINT,
    ConfigFile,
    Directory,
    Json,
    Servers,
    connection,
    counted,
    duration_s,
    open_directory,
    refuse_as_root,
    resolved,
)
from kafkasafe.cli.report import EXIT_BROKEN, EXIT_FAILED, Report, show
from kafkasafe.cli.spool.atomic_batches import unit_line, unit_rows
from kafkasafe.cli.spool.opened import OpenSpool
from kafkasafe.cluster.api import in_words
from kafkasafe.config import Decide
from kafkasafe.events import AtomicBatchCommitted, AtomicBatchDropped
from kafkasafe.maintenance.examination import read_content
from kafkasafe.spool.examine import ExchangeStep

DECISION_CODES: Final = CODES.format(broken="something is left")
_POLL_S: Final = 0.05
_OVER: Final = "its transaction timed out or was fenced: the next producer prepares the batch again"
_BEHIND: Final = (
    "either an earlier atomic batch of the same partitions must be committed or aborted first, or this batch shares its"
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


def spool_commit(
    directory: Directory,
    batch: BatchIds = None,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Patience = "60s",
    as_json: Json = False,
) -> None:
    """Commit the staged atomic batches of lanes that no process owns, and do nothing else.

    EndTxn is sent with the transactional id, producer id and epoch from the spool. The producer that staged the batch
    would send the same request. So if the batch is already committed, EndTxn changes nothing. The command does not
    commit a batch in four cases: the batch is not staged; an earlier batch on one of its partitions is not committed
    either; its transaction timed out; or it shares its transaction with a batch that was not named. If this command
    does not commit a batch, the next producer or kafkasafe spool drain delivers it.
    """
    _decide_and_show(directory, batch, servers, config, timeout, aborts=False, as_json=as_json)


def spool_abort(
    directory: Directory,
    batch: BatchIds = None,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Patience = "60s",
    as_json: Json = False,
) -> None:
    """Give up atomic batches in lanes that no process owns, and abort their transactions.

    Their records move into rejected/. If a batch turns out to be committed already, it stays committed, and its records
    do not move.
    """
    _decide_and_show(directory, batch, servers, config, timeout, aborts=True, as_json=as_json)


def _decide_and_show(
    directory: Path,
    batch: Sequence[str] | None,
    servers: Servers,
    config: ConfigFile,
    timeout: str,
    *,
    aborts: bool,
    as_json: bool,
) -> None:
    """Commits or aborts the undecided atomic batches in lanes without an owner, and prints the report."""
    limit_s = duration_s(timeout, "--timeout")
    options = connection(servers, config)
    directory = resolved(directory)
    wanted, foreign, damaged = _wanted(directory, batch)
    chosen = [each for each in wanted if aborts or each.staged]
    ids = frozenset(each.unit_id for each in chosen)
    decision = Decide(abort=ids) if aborts else Decide(commit=ids)
    rows: list[dict[str, Any]] = []
    unreachable = False
    if chosen:
        rows, unreachable = _decide(directory, options, chosen, decision, limit_s)
    done = DecisionReport(rows, len(wanted), foreign, damaged, unreachable, aborts)
    show(Report(done.fields, done.lines(), done.exit_code), as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An undecided atomic batch (a unit) in a lane that no process owns."""

    lane: str
    unit_id: bytes
    staged: bool


def _wanted(directory: Path, given: Sequence[str] | None) -> tuple[list[_Wanted], list[str], list[str]]:
    """Finds the undecided atomic batches of lanes without an owner.

    Returns:
        A tuple of the batches, the names of skipped lanes, and the names of damaged lanes. A lane is skipped if a
        process owns it. A damaged lane may have contained more atomic batches. With `given`, the result names no
        damaged lanes, because all given batches were found.
    """
    lanes = open_directory(directory)
    refuse_as_root(directory)
    found: list[_Wanted] = []
    foreign: list[str] = []
    damaged: list[str] = []
    for number in lanes.lanes():
        path = lanes.lane_path(number)
        if lanes.owners.seems_owned(number):
            foreign.append(path.name)
            continue
        content = read_content(path, files=lanes.files)
        if content.log.damage:
            damaged.append(path.name)
        found += [
            _Wanted(path.name, log.unit_id, log.step is ExchangeStep.PREPARE_ACKNOWLEDGED)
            for log in content.units
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
    return found, foreign, [] if given else damaged


def _decide(
    directory: Path, options: Mapping[str, Any], wanted: Sequence[_Wanted], decide: Decide, limit_s: float
) -> tuple[list[dict[str, Any]], bool]:
    """Commits or aborts the batches. Returns the row of each batch, and whether the command gave up because no broker
    could be used.
    """
    files = open_directory(directory).files
    ids = {each.unit_id.hex() for each in wanted}
    contents = [
        read_content(directory / name, files=files) for name in sorted({each.lane for each in wanted})
    ]
    before = [row for content in contents for row in unit_rows(content) if row["batch_id"] in ids]
    deadline = time.monotonic() + limit_s
    unreachable = False
    phases: dict[str, tuple[u.Phase, bool] | None] = {}
    outcomes: dict[str, AtomicBatchCommitted | AtomicBatchDropped] = {}

    def note(event: object) -> None:
        if isinstance(event, (AtomicBatchCommitted, AtomicBatchDropped)):
            outcomes[event.batch_id] = event

    with OpenSpool(options, directory, "kafkasafe-decide", note, deadline, decide) as spool:
        names = {each.lane for each in wanted}
        while True:
            if spool.has_failed:
                break  # `close` raises the error
            there = names <= spool.lanes
            phases = {each.unit_id.hex(): spool.unit(each.unit_id) for each in wanted}
            busy = _STAGED if not decide.abort else _STAGED | {u.Phase.REFUSED}
            if there and not any(at is not None and at[0] in busy and not at[1] for at in phases.values()):
                break
            if time.monotonic() >= deadline:
                network = spool.last_network_error
                unreachable = network is not None and not spool.connected
                if network is not None:
                    typer.echo(f"No broker can be used: {in_words(network)}", err=True)
                break
            time.sleep(_POLL_S)
        spool.close(0)
    # A finished batch may have been deleted from the lane's log. So use the rows that were read before.
    rows = []
    for row in before:
        match outcomes.get(row["batch_id"]):
            case AtomicBatchCommitted():
                step = ExchangeStep.COMMIT_ACKNOWLEDGED
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
                    and row["step"] == ExchangeStep.PREPARE_ACKNOWLEDGED.number
                ):
                    row = {**row, "reason": _OVER}
                rows.append(row)
    return rows, unreachable


@dataclass(frozen=True, slots=True)
class DecisionReport:
    """The outcomes of atomic batches.

    Attributes:
        rows: The atomic batches to decide, as `unit_rows` returns them.
        wanted: Number of undecided batches found.
        foreign: Names of lanes that were skipped, because a process owns them.
        damaged: Names of damaged lanes, whose lost parts may have contained further batches.
        unreachable: Whether no broker could be used.
        aborts: Whether the command aborts batches. If it does, dropped batches have the intended outcome, and `left`
            does not count them.
    """

    rows: Sequence[dict[str, Any]]
    wanted: int
    foreign: Sequence[str]
    damaged: Sequence[str]
    unreachable: bool
    aborts: bool

    @property
    def committed(self) -> int:
        return sum(row["step"] == ExchangeStep.COMMIT_ACKNOWLEDGED.number for row in self.rows)

    @property
    def aborted(self) -> int:
        return sum(row["step_name"] == "dropped" for row in self.rows)

    @property
    def left(self) -> int:
        """Number of batches that did not get the intended outcome."""
        return self.wanted - self.committed - (self.aborted if self.aborts else 0)

    @property
    def exit_code(self) -> int:
        return EXIT_FAILED if self.unreachable else EXIT_BROKEN if self.left or self.damaged else 0

    @property
    def fields(self) -> dict[str, Any]:
        return {
            **({"aborted": self.aborted} if self.aborts else {}),
            "committed": self.committed,
            "left": self.left,
            "lanes_of_others": self.foreign,
            "damaged_lanes": self.damaged,
            "batches": self.rows,
        }

    def lines(self) -> Iterator[str]:
        if self.aborts:
            yield (
                f"{counted(self.aborted, 'atomic batch')} given up, {self.committed:,} found committed,"
                f" {self.left:,} left"
            )
        else:
            yield f"{counted(self.committed, 'atomic batch')} committed, {self.left:,} left"
        yield from map(unit_line, self.rows)
        for name in self.foreign:
            yield f"{name} belongs to a running process, which decides its atomic batches"
        for name in self.damaged:
            yield f"{name} is DAMAGED, and may have held more atomic batches: see kafkasafe spool verify"
        if self.aborts and self.aborted:
            yield RESEND_HINT
        if self.left and not self.aborts:
            yield (
                "A batch is left in four cases: it is not staged; its transaction is over; an earlier batch of the same"
                " partitions is left; or it shares its transaction with a batch that is left. kafkasafe spool drain"
                " delivers these batches"
            )

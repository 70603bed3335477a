"""The common code of `kafkasafe spool commit` and `spool abort`, which decide atomic batches that another process
staged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from kafkasafe import units as u
from kafkasafe.cli.common import CODES, EXIT_BROKEN, EXIT_FAILED, open_directory
from kafkasafe.cli.spool.atomic_batches import unit_line, unit_rows
from kafkasafe.cli.spool.opened import OpenSpool
from kafkasafe.cluster.api import in_words
from kafkasafe.config import Decide
from kafkasafe.events import AtomicBatchCommitted, AtomicBatchDropped
from kafkasafe.maintenance.examination import read_content
from kafkasafe.spool.examine import ExchangeStep

__all__ = ["DECISION_CODES", "BatchIds", "DecisionReport", "Patience", "Wanted", "decide_staged"]

DECISION_CODES: Final = CODES.format(broken="something is left")
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


class _Outcomes:
    """The outcomes of atomic batches, by their ids."""

    def __init__(self) -> None:
        self.known: dict[str, AtomicBatchCommitted | AtomicBatchDropped] = {}

    def note(self, event: object) -> None:
        """Note the outcome that an event of the producer reports."""
        if isinstance(event, (AtomicBatchCommitted, AtomicBatchDropped)):
            self.known[event.batch_id] = event


@dataclass(frozen=True, slots=True)
class Wanted:
    """An undecided atomic batch (a unit) in a lane that no process owns."""

    lane: str
    unit_id: bytes
    staged: bool


def _wanted(directory: Path, given: Sequence[str] | None) -> tuple[list[Wanted], list[str], list[str]]:
    """The undecided atomic batches of lanes without an owner, the names of the owned lanes, which are skipped, and the
    names of damaged lanes, which may have had more atomic batches. If all batches are named, damage does not matter.
    """
    lanes = open_directory(directory)
    found: list[Wanted] = []
    foreign: list[str] = []
    damaged: list[str] = []
    for number in lanes.lanes():
        path = lanes.lane_path(number)
        if lanes.seems_owned(number):
            foreign.append(path.name)
            continue
        content = read_content(path, files=lanes.files)
        if content.log.damage:
            damaged.append(path.name)
        found += [
            Wanted(path.name, log.unit_id, log.step is ExchangeStep.PREPARE_ACKNOWLEDGED)
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
    directory: Path, options: Mapping[str, Any], wanted: Sequence[Wanted], decide: Decide, limit_s: float
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
    outcomes = _Outcomes()
    with OpenSpool(options, directory, "kafkasafe-decide", outcomes.note, decide) as spool:
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
    # The log may no longer hold a finished batch. That is why `before` was read first.
    rows = []
    for row in before:
        match outcomes.known.get(row["batch_id"]):
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
        wanted: Number of undecided batches that were found.
        foreign: Names of lanes that were skipped, because a process owns them.
        damaged: Names of damaged lanes. Their lost parts may have held further batches.
        unreachable: Whether no broker could be used.
        aborts: Whether the command aborts batches. If it commits them, a dropped batch counts as left.
    """

    rows: Sequence[dict[str, Any]]
    wanted: int
    foreign: Sequence[str]
    damaged: Sequence[str]
    unreachable: bool
    aborts: bool

    @property
    def committed(self) -> int:
        """Number of committed batches."""
        return sum(row["step"] == ExchangeStep.COMMIT_ACKNOWLEDGED.number for row in self.rows)

    @property
    def aborted(self) -> int:
        """Number of aborted batches."""
        return sum(row["step_name"] == "dropped" for row in self.rows)

    @property
    def left(self) -> int:
        """Number of batches that did not get the intended outcome."""
        return self.wanted - self.committed - (self.aborted if self.aborts else 0)

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        return EXIT_FAILED if self.unreachable else EXIT_BROKEN if self.left or self.damaged else 0

    @property
    def fields(self) -> dict[str, Any]:
        """The part of the JSON output that both commands have."""
        return {
            "left": self.left,
            "lanes_of_others": self.foreign,
            "damaged_lanes": self.damaged,
            "batches": self.rows,
        }

    def lines(self) -> Iterator[str]:
        """Yields a line for each atomic batch, and one for each lane that was skipped."""
        yield from map(unit_line, self.rows)
        for name in self.foreign:
            yield f"{name} belongs to a running process, which decides its atomic batches"
        for name in self.damaged:
            yield f"{name} is DAMAGED, and may have held more atomic batches: see kafkasafe spool verify"


def decide_staged(
    directory: Path,
    batch: Sequence[str] | None,
    options: Mapping[str, Any],
    limit_s: float,
    choose: Callable[[Sequence[Wanted]], tuple[Sequence[Wanted], Decide]],
) -> DecisionReport:
    """Decides the undecided atomic batches of lanes without an owner.

    Args:
        directory: The spool directory.
        batch: Beginnings of the ids of the only batches to decide; None or empty decides all of them.
        options: Options of a producer, for the connection.
        limit_s: Time after which to give up, seconds.
        choose: Selects the batches to decide, with their outcomes.
    """
    directory = directory.resolve()
    wanted, foreign, damaged = _wanted(directory, batch)
    chosen, decision = choose(wanted)
    rows: list[dict[str, Any]] = []
    unreachable = False
    if chosen:
        rows, unreachable = _decide(directory, options, chosen, decision, limit_s)
    return DecisionReport(rows, len(wanted), foreign, damaged, unreachable, bool(decision.abort))

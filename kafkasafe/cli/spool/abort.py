"""`kafkasafe spool abort`: aborts atomic batches that another process staged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafkasafe._core.examine import Step
from kafkasafe.cli.common import (
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
)
from kafkasafe.cli.report import show
from kafkasafe.cli.spool.decisions import BatchIds, Patience, batch_lines, decide_batches, find_wanted
from kafkasafe.config import Decide

__all__ = ["spool_abort"]


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
    wanted, foreign = find_wanted(directory, batch)
    rows: list[dict[str, Any]] = []
    unreachable = False
    if wanted:
        decide = Decide(abort=frozenset(each.unit_id for each in wanted))
        rows, unreachable = decide_batches(directory, options, wanted, decide, limit_s)
    show(AbortedBatches(rows, len(wanted), foreign, unreachable), as_json=as_json)


@dataclass(frozen=True, slots=True)
class AbortedBatches:
    """What became of the atomic batches. The attributes are those of `CommittedBatches`."""

    rows: Sequence[dict[str, Any]]
    wanted: int
    foreign: Sequence[str]
    unreachable: bool

    @property
    def aborted(self) -> int:
        """Number of aborted batches."""
        return sum(row["step_name"] == "dropped" for row in self.rows)

    @property
    def committed(self) -> int:
        """Number of batches that turned out to be committed."""
        return sum(row["step"] == Step.COMMIT_ACKNOWLEDGED.number for row in self.rows)

    @property
    def left(self) -> int:
        """Number of batches that are still undecided."""
        return self.wanted - self.aborted - self.committed

    @property
    def fields(self) -> dict[str, Any]:
        """See `Report`."""
        return {
            "aborted": self.aborted,
            "committed": self.committed,
            "left": self.left,
            "lanes_of_others": self.foreign,
            "batches": self.rows,
        }

    @property
    def exit_code(self) -> int:
        """See `Report`."""
        return EXIT_FAILED if self.unreachable else EXIT_BROKEN if self.left else 0

    def lines(self) -> Iterator[str]:
        """See `Report`."""
        yield (
            f"{counted(self.aborted, 'atomic batch')} given up, {self.committed:,} found committed,"
            f" {self.left:,} left"
        )
        yield from batch_lines(self.rows, self.foreign)
        if self.aborted:
            yield RESEND_HINT

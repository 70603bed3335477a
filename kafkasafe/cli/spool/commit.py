"""`kafkasafe spool commit`: commits atomic batches that another process staged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafkasafe._core.examine import Step
from kafkasafe.cli.common import (
    EXIT_BROKEN,
    EXIT_FAILED,
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

__all__ = ["spool_commit"]


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
    wanted, foreign = find_wanted(directory, batch)
    staged = [each for each in wanted if each.staged]
    rows: list[dict[str, Any]] = []
    unreachable = False
    if staged:
        chosen = frozenset(each.unit_id for each in staged)
        rows, unreachable = decide_batches(directory, options, staged, Decide(commit=chosen), limit_s)
    show(CommittedBatches(rows, len(wanted), foreign, unreachable), as_json=as_json)


@dataclass(frozen=True, slots=True)
class CommittedBatches:
    """What became of the atomic batches.

    Attributes:
        rows: Those that were to be committed, as `unit_rows` returns them.
        wanted: Number of undecided batches.
        foreign: Names of lanes that were skipped, because a process owns them.
        unreachable: Whether no broker could be used.
    """

    rows: Sequence[dict[str, Any]]
    wanted: int
    foreign: Sequence[str]
    unreachable: bool

    @property
    def done(self) -> int:
        """Number of committed batches."""
        return sum(row["step"] == Step.COMMIT_ACKNOWLEDGED.number for row in self.rows)

    @property
    def left(self) -> int:
        """Number of batches that are still undecided."""
        return self.wanted - self.done

    @property
    def fields(self) -> dict[str, Any]:
        """See `Report`."""
        return {
            "committed": self.done,
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
        yield f"{counted(self.done, 'atomic batch')} committed, {self.left:,} left"
        yield from batch_lines(self.rows, self.foreign)
        if self.left:
            yield (
                "A batch is left if it is not staged, if its transaction is over, or if it comes after a batch that is"
                " left or shares a transaction with one. kafkasafe spool drain delivers these batches"
            )

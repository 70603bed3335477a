"""`kafkasafe spool commit`: commits atomic batches that another process staged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafkasafe.cli.common import (
    ConfigFile,
    Directory,
    Json,
    Servers,
    connection,
    counted,
    duration_s,
)
from kafkasafe.cli.report import show
from kafkasafe.cli.spool.decisions import BatchIds, DecisionReport, Patience, Wanted, decide_staged
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
    found = decide_staged(directory, batch, options, limit_s, _staged)
    show(CommittedBatches(found), as_json=as_json)


def _staged(wanted: Sequence[Wanted]) -> tuple[Sequence[Wanted], Decide]:
    staged = [each for each in wanted if each.staged]
    return staged, Decide(commit=frozenset(each.unit_id for each in staged))


@dataclass(frozen=True, slots=True)
class CommittedBatches:
    """The report of this command."""

    decided: DecisionReport

    @property
    def exit_code(self) -> int:
        return self.decided.exit_code

    @property
    def fields(self) -> dict[str, Any]:
        return {"committed": self.decided.committed, **self.decided.fields}

    def lines(self) -> Iterator[str]:
        decided = self.decided
        yield f"{counted(decided.committed, 'atomic batch')} committed, {decided.left:,} left"
        yield from decided.lines()
        if decided.left:
            yield (
                "A batch is left if it is not staged, if its transaction is over, or if it comes after a batch that is"
                " left or shares a transaction with one. kafkasafe spool drain delivers these batches"
            )

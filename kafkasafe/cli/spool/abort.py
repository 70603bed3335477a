"""`kafkasafe spool abort`: aborts atomic batches that another process staged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kafkasafe.cli.common import (
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
from kafkasafe.cli.spool.decisions import BatchIds, DecisionReport, Patience, Wanted, decide_staged
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
    found = decide_staged(directory, batch, options, limit_s, _all)
    show(AbortedBatches(found), as_json=as_json)


def _all(wanted: Sequence[Wanted]) -> tuple[Sequence[Wanted], Decide]:
    return wanted, Decide(abort=frozenset(each.unit_id for each in wanted))


@dataclass(frozen=True, slots=True)
class AbortedBatches:
    """The report of this command."""

    decided: DecisionReport

    @property
    def exit_code(self) -> int:
        return self.decided.exit_code

    @property
    def fields(self) -> dict[str, Any]:
        counts = {"aborted": self.decided.aborted, "committed": self.decided.committed}
        return {**counts, **self.decided.fields}

    def lines(self) -> Iterator[str]:
        decided = self.decided
        yield (
            f"{counted(decided.aborted, 'atomic batch')} given up, {decided.committed:,} found committed,"
            f" {decided.left:,} left"
        )
        yield from decided.lines()
        if decided.aborted:
            yield RESEND_HINT

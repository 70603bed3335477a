"""`kafkasafe spool resend`: sends rejected records again."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    EXIT_FAILED,
    ConfigFile,
    Directory,
    Json,
    Servers,
    address_of,
    connection,
    counted,
    duration_s,
    open_directory,
    progress,
)
from kafkasafe.cli.report import show
from kafkasafe.cli.spool.delivery import DeliveryReport, deliver
from kafkasafe.maintenance.resend import ResendResult, bring_back, find_rejected

__all__ = ["RESEND_CODES", "spool_resend"]

RESEND_CODES: Final = CODES.format(
    broken="something is left: not resent, not delivered in time, or rejected again"
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
        with progress("moving back", "files") as report:
            found = bring_back(lanes, topics, progress=report)
        if options is not None:
            # Deliver even if no file was moved: an earlier resend may have died before the delivery.
            done = deliver(lanes, options, limit_s, "raise")
            if topics:
                mine = [found for found in done.rejected if any(r.topic in topics for r in found.rejected)]
                done = dataclasses.replace(done, rejected=mine)
    show(ResendReport(found, done, dry_run), as_json=as_json)


@dataclass(frozen=True, slots=True)
class ResendReport:
    """The records that were moved back into the spool, and those that were then delivered.

    Attributes:
        found: The records that were moved, or would be.
        done: The delivery; None if this command does not deliver.
        dry_run: Whether the command only shows what it would do.
    """

    found: ResendResult
    done: DeliveryReport | None
    dry_run: bool

    @property
    def counts(self) -> dict[tuple[str, int], int]:
        """Number of records by topic and partition."""
        counts: dict[tuple[str, int], int] = collections.Counter()
        for each in self.found.files:
            counts[each.topic, each.partition] += each.kept.records
        return counts

    @property
    def fields(self) -> dict[str, Any]:
        found = {
            "dry_run": self.dry_run,
            "resent_records": self.found.records,
            "resent": [
                {"topic": name, "partition": partition, "records": records}
                for (name, partition), records in self.counts.items()
            ],
            "lane": self.found.lane or None,
            "not_resent": self.found.left,
        }
        return found | ({} if self.done is None else self.done.fields)

    @property
    def exit_code(self) -> int:
        delivered = 0 if self.done is None else self.done.exit_code
        if delivered == EXIT_FAILED:
            return EXIT_FAILED
        return EXIT_BROKEN if self.found.left or delivered else 0

    def lines(self) -> Iterator[str]:
        for (name, partition), records in self.counts.items():
            yield f"  {address_of(name, partition)}: {counted(records, 'record')}"
        verb = "would be" if self.dry_run else "were" if self.found.records != 1 else "was"
        lane = self.found.lane and f" ({self.found.lane})"
        yield f"{counted(self.found.records, 'record')} {verb} moved back into the spool{lane}"
        for text in self.found.left:
            yield f"NOT RESENT {text}"
        if self.done is not None:
            yield from self.done.lines()
        elif self.found.files and not self.dry_run:
            yield "The next producer on this directory, or kafkasafe spool drain, delivers them"

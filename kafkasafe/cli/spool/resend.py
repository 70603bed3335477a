"""`kafkasafe spool resend`: sends rejected records again."""

from __future__ import annotations

import collections
import dataclasses
import time
from typing import Annotated, Final

import typer

from kafkasafe.cli.common import (
    CODES,
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
    refuse_as_root,
    resolved,
)
from kafkasafe.cli.report import EXIT_BROKEN, EXIT_FAILED, Report, show
from kafkasafe.cli.spool.delivery import deliver
from kafkasafe.maintenance.resend import bring_back, find_rejected

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
    delivers the records, as kafkasafe spool drain does. Without a cluster, the next producer that uses the directory
    delivers the records. Producers may use the directory while this command runs.
    """
    began = time.monotonic()
    limit_s = duration_s(timeout, "--timeout")
    options = None if servers is None and config is None else connection(servers, config)
    directory = resolved(directory)
    lanes = open_directory(directory)
    topics = topic or ()
    done = None
    if dry_run:
        found = find_rejected(lanes, topics)
    else:
        refuse_as_root(directory)
        with progress("moving back", "files") as report:
            found = bring_back(lanes, topics, progress=report)
        if options is not None:
            # Deliver even if no file was moved: an earlier resend may have died before the delivery.
            done = deliver(lanes, options, began, limit_s, "raise")
            if topics:
                mine = [found for found in done.rejected if any(r.topic in topics for r in found.rejected)]
                done = dataclasses.replace(done, rejected=mine)
    counts: dict[tuple[str, int], int] = collections.Counter()
    for each in found.files:
        counts[each.topic, each.partition] += each.kept.records
    fields = {
        "dry_run": dry_run,
        "resent_records": found.records,
        "resent": [
            {"topic": name, "partition": partition, "records": records}
            for (name, partition), records in counts.items()
        ],
        "lane": found.lane or None,
        "not_resent": found.left,
        **({} if done is None else done.fields),
    }
    verb = "would be" if dry_run else "were" if found.records != 1 else "was"
    lines = [
        *(f"  {address_of(*where)}: {counted(records, 'record')}" for where, records in counts.items()),
        f"{counted(found.records, 'record')} {verb} moved back into the spool{found.lane and f' ({found.lane})'}",
        *(f"NOT RESENT {text}" for text in found.left),
    ]
    if done is not None:
        lines += done.lines()
    elif found.files and not dry_run:
        lines.append("The next producer on this directory, or kafkasafe spool drain, delivers them")
    exit_code = 0 if done is None else done.exit_code
    if found.left and exit_code != EXIT_FAILED:
        exit_code = EXIT_BROKEN
    show(Report(fields, lines, exit_code), as_json=as_json)

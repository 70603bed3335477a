"""`kafkasafe spool drain`: delivers the records in a spool directory."""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated, Final, Literal

import typer

from kafkasafe.cli.common import (
    CODES,
    ConfigFile,
    Directory,
    Json,
    Servers,
    connection,
    duration_s,
    open_directory,
    refuse_as_root,
)
from kafkasafe.cli.report import Report, show
from kafkasafe.cli.spool.delivery import deliver

DRAIN_CODES: Final = CODES.format(
    broken="something is left: not delivered in time, undecidable, rejected, or damaged"
)


def spool_drain(
    directory: Directory,
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Give up after this time: 90s, 10m, 1h.")
    ] = "5m",
    on_undecidable: Annotated[
        Literal["raise", "resend", "skip"],
        typer.Option(
            help="What to do with a batch if nothing proves whether it is in the log; see SafeProducer."
        ),
    ] = "raise",
    on_corrupt: Annotated[
        Literal["raise", "quarantine"],
        typer.Option(
            help="What to do with a damaged lane: leave it as it is, or quarantine the damage and deliver the rest."
        ),
    ] = "raise",
    ignore_rejected: Annotated[
        bool,
        typer.Option(
            "--ignore-rejected",
            help="For the exit code, ignore records that were in rejected/ before this run.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Deliver what producers left in a spool directory, and end when nothing is left.

    If a running process owns a lane, the command skips the lane, and does not wait for that process. The command
    delivers the records as a SafeProducer does at the application's next start: in order, exactly once.
    """
    began = time.monotonic()
    limit_s = duration_s(timeout, "--timeout")
    options = connection(servers, config)
    lanes = open_directory(directory)
    refuse_as_root(directory)
    done = deliver(lanes, options, began, limit_s, on_undecidable, on_corrupt)
    done = dataclasses.replace(done, ignore_rejected=ignore_rejected)
    show(Report(done.fields, done.lines(), done.exit_code), as_json=as_json)

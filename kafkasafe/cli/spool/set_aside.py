"""`kafkasafe spool set-aside`: moves one batch into rejected/."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer

from kafkasafe.cli.asking import limits_of, timeout_option
from kafkasafe.cli.common import (
    RESEND_HINT,
    ConfigFile,
    Directory,
    Json,
    Servers,
    address_of,
    connection,
    counted,
    lanes_of,
    refuse_as_root,
    resolved,
)
from kafkasafe.cli.doctor import ask
from kafkasafe.cli.report import Report, show
from kafkasafe.config import validate
from kafkasafe.errors import UsageError
from kafkasafe.maintenance.examination import read_content
from kafkasafe.maintenance.resend import set_aside
from kafkasafe.spool.examine import Finding

_TIMEOUT: Final = "60s"
SET_ASIDE_CODES: Final = (
    "Exit codes: 0 all is well; 2 the command line is wrong; 3 the command could not be carried out: a process"
    " owns the lane, or the batch stays where it is, because it may be in the cluster's log, or belongs to an atomic"
    " batch."
)


def spool_set_aside(
    directory: Directory,
    position: Annotated[
        int, typer.Option(min=0, help="Position of the batch; kafkasafe spool show prints it.")
    ],
    lane: Annotated[str, typer.Option("--lane", metavar="LANE", help="Lane of the batch: lane-003, or 3.")],
    servers: Servers = None,
    config: ConfigFile = None,
    timeout: Annotated[
        str | None, timeout_option("Maximum time for all requests to the cluster.", _TIMEOUT)
    ] = None,
    as_json: Json = False,
) -> None:
    """Move one batch into rejected/ if it holds up later batches because a broker fails on it each time.

    No process may own the lane. A batch with an id may have been sent. So for a batch with an id, --bootstrap-servers
    (or --config) is needed, and the command moves the batch only after a proof that it is not in the cluster's log. A
    request of the lane's last owner could still arrive, so the command first waits for request_timeout_ms (30 s).
    kafkasafe spool resend sends the batch again.
    """
    limits = limits_of(timeout, _TIMEOUT)
    options = None if servers is None and config is None else connection(servers, config)
    directory = resolved(directory)
    ((lanes, number),) = lanes_of(directory, lane)
    refuse_as_root(directory)

    def absent(topic: str, partition: int, positions: Sequence[int]) -> set[int]:
        if options is None:
            raise typer.BadParameter(
                "the batch may have been sent: name the brokers, so that this command can ask them",
                param_hint="--bootstrap-servers",
            )
        pause_s = validate(options).request_timeout_s
        print(
            f"Waiting {pause_s:g} s: a request of the lane's last owner may still be on its way",
            file=sys.stderr,
        )
        time.sleep(pause_s)
        content = read_content(lanes.lane_path(number), files=lanes.files)
        found, _ = ask([content], options, limits, lanes.cluster_id(), directory)
        mine = [each for each in found if each.batch.position in positions]
        for each in mine:
            print(
                f"  {address_of(topic, partition)}, position {each.batch.position}: {each.verdict.evidence}",
                file=sys.stderr,
            )
        return {each.batch.position for each in mine if each.verdict.finding is Finding.ABSENT}

    try:
        path, topic, partition, records = set_aside(lanes, number, position, absent)
    except UsageError as error:
        raise typer.BadParameter(str(error.args[0]), param_hint="--position") from None
    line = f"{address_of(topic, partition)}: {counted(records, 'record')} set aside into {path}"
    fields = {"file": str(path), "topic": topic, "partition": partition, "records": records}
    show(Report(fields, [line, RESEND_HINT]), as_json=as_json)

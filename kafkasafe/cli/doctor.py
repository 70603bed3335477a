"""`kafkasafe doctor`: finds where each batch of a spool is, and what is wrong with the spool or with its topics."""

from __future__ import annotations

import collections
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from kafka.errors import KafkaError

from kafkasafe._core.concerns import Concern, concerns_of
from kafkasafe._core.examine import Finding
from kafkasafe._io.connect import connect
from kafkasafe._io.examination import Examined, LaneContent, examine, read_content
from kafkasafe._io.inspection import resent_in
from kafkasafe._io.lanes import SpoolDirectory
from kafkasafe.cli.common import (
    CODES,
    EXIT_BROKEN,
    EXIT_FAILED,
    RESEND_HINT,
    ConfigFile,
    Directory,
    Json,
    Servers,
    address_of,
    app_of_command,
    connection,
    counted,
    duration_s,
    open_directory,
    print_rejected,
    print_unreadable,
    progress,
)
from kafkasafe.cluster.api import in_words
from kafkasafe.errors import SpoolError, WrongClusterError
from kafkasafe.kafkapython.admin import open_admin, settings_of

__all__ = ["app", "ask"]

DOCTOR_CODES: Final = CODES.format(
    broken="something is wrong: damage, rejected records, a batch whose outcome cannot be determined, or a setting that"
    " breaks a promise (waiting records are not wrong)"
)

_FEW: Final = 10
_WORDS: Final = {
    Finding.COMMITTED: "COMMITTED",
    Finding.APPENDED: "APPENDED, NOT REPLICATED YET",
    Finding.ABSENT: "NOT IN THE LOG",
    Finding.UNDECIDABLE: "UNDECIDABLE",
    Finding.NOT_ANSWERED: "NOT KNOWN",
    Finding.NOT_SENT: "NEVER SENT",
}


app = app_of_command()


@app.command("doctor", epilog=DOCTOR_CODES)
def doctor(
    directory: Directory,
    servers: Servers = None,
    config: ConfigFile = None,
    outage: Annotated[
        str, typer.Option(metavar="TIME", help="Length of an outage that must be survived: 30m, 12h, 7d.")
    ] = "1d",
    expiration: Annotated[
        str,
        typer.Option(
            "--producer-id-expiration",
            metavar="TIME",
            help="How long brokers remember an idle producer: producer_id_expiration_ms of your producers.",
        ),
    ] = "1d",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Maximum time for all requests to the cluster.")
    ] = "60s",
    every: Annotated[
        bool, typer.Option("--all", help=f"Show each batch, even if a lane has more than {_FEW}.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show whether each undelivered batch is in the log, with proof, and which topic settings break a promise.

    The command only reads the directory and the cluster, so producers may run at the same time. Without
    --bootstrap-servers (or --config) it reads only the spool. A batch that may have been sent is then NOT KNOWN.

    COMMITTED: the log has a batch header with the batch's id at the offset shown, or that part of the log was trimmed
    and the leader still remembers the sequence. NOT IN THE LOG: the command read every part of the log where the batch
    could be, or the last sequence that the leader remembers is lower than the batch's. NEVER SENT: the batch has no
    id. The result for a batch that a running producer is sending may change.
    """
    outage_ms = int(duration_s(outage, "--outage") * 1000)
    expiration_ms = int(duration_s(expiration, "--producer-id-expiration") * 1000)
    if not expiration_ms:
        raise typer.BadParameter("must be 1ms or more", param_hint="--producer-id-expiration")
    timeout_s = duration_s(timeout, "--timeout")
    options = None if servers is None and config is None else connection(servers, config)
    lanes = open_directory(directory)
    troubles: list[tuple[str, str]] = []
    contents = _read(lanes, troubles)
    bound = None
    try:
        bound = lanes.cluster_id()
    except SpoolError as error:
        if options is not None:
            raise
        troubles.append(("CLUSTER", str(error)))
    topics = sorted({batch.topic for content in contents for batch in content.batches})
    settings: list[tuple[str, Concern]] = []
    cluster_id = None
    if options is None:
        found = examine(contents, None, timeout_s=timeout_s)
    else:
        deadline = time.monotonic() + timeout_s
        found, cluster_id = ask(contents, options, timeout_s, bound, directory)
        settings = _settings(options, topics, deadline, outage_ms, expiration_ms)
    damage = [(content.name, str(each)) for content in contents for each in content.damage]
    counts = collections.Counter(examined.verdict.finding for examined in found)
    rejected = any(content.rejected for content in contents)
    bad = bool(
        troubles
        or damage
        or rejected
        or counts[Finding.UNDECIDABLE]
        or any(c.level == "breaks" for _, c in settings)
    )
    unanswered = options is not None and counts[Finding.NOT_ANSWERED] > 0
    if as_json:
        _print_json(directory, lanes, contents, found, settings, (bound, cluster_id), bad, troubles)
    else:
        _print(lanes, contents, found, settings, every=every, troubles=troubles)
    if unanswered:
        raise typer.Exit(EXIT_FAILED)
    if bad:
        raise typer.Exit(EXIT_BROKEN)


def _read(lanes: SpoolDirectory, troubles: list[tuple[str, str]]) -> list[LaneContent]:
    numbers = lanes.lanes()
    contents = []
    with progress("reading", "lanes") as told:
        for number in numbers:
            path = lanes.lane_path(number)
            try:
                contents.append(read_content(path, files=lanes.files))
            except SpoolError as error:
                troubles.append((path.name, str(error)))
            told(len(contents), len(numbers))
    resent = [mark for content in contents for mark in resent_in(content.log)]
    return [content.without(resent) for content in contents]


def ask(
    contents: Sequence[LaneContent],
    options: dict[str, Any],
    timeout_s: float,
    bound: str | None,
    directory: Path,
) -> tuple[list[Examined], str | None]:
    """Asks the cluster. Returns the finding for each undelivered batch, and the id of the cluster."""
    # A request about a topic must not create it.
    transport = connect({**options, "allow_auto_create_topics": False})
    transport.start()
    deadline = time.monotonic() + timeout_s
    try:
        with progress("asking the cluster", "partitions") as told:
            while not transport.connected and time.monotonic() < deadline:
                time.sleep(0.02)
            cluster_id = transport.cluster_id
            if bound is not None and cluster_id is not None and bound != cluster_id:
                raise WrongClusterError(
                    f"{directory} holds records for cluster {bound}, but these brokers are cluster {cluster_id}, whose"
                    f" answers say nothing about these records. Nothing was changed. Give brokers of cluster {bound}"
                )
            if not transport.connected:
                raise SpoolError(f"No broker answered within {timeout_s:g} s. Nothing was changed")
            left = max(0.0, deadline - time.monotonic())
            return examine(contents, transport, timeout_s=left, told=told), cluster_id
    finally:
        transport.close(5.0)


def _settings(
    options: dict[str, Any], topics: Sequence[str], deadline: float, outage_ms: int, expiration_ms: int
) -> list[tuple[str, Concern]]:
    if not topics:
        return []
    limit_ms = int(max(5.0, deadline - time.monotonic()) * 1000)
    try:
        with open_admin(
            {**options, "bootstrap_timeout_ms": limit_ms, "request_timeout_ms": limit_ms}
        ) as admin:
            by_topic, broker, replicas = settings_of(admin, topics)
    except KafkaError as error:
        # A user may be allowed to produce but not to read settings.
        why = f"they cannot be read: {in_words(error)}"
        return [("", Concern("note", "settings", "", why, "the permission DESCRIBE_CONFIGS"))]
    found = []
    for name in topics:
        if name not in replicas:
            concern = Concern(
                "note", "topic", name, "the cluster does not have it", "create it, or wait for it"
            )
            found.append((name, concern))
            continue
        found += [
            (name, concern)
            for concern in concerns_of(
                by_topic.get(name, {}),
                broker,
                replicas=replicas[name],
                outage_ms=outage_ms,
                assumed_expiration_ms=expiration_ms,
            )
        ]
    return found


def _print(
    lanes: SpoolDirectory,
    contents: Sequence[LaneContent],
    found: Sequence[Examined],
    settings: Sequence[tuple[str, Concern]],
    *,
    every: bool,
    troubles: Sequence[tuple[str, str]],
) -> None:
    for content in contents:
        mine = [examined for examined in found if examined.batch.lane == content.name]
        records = sum(examined.batch.records for examined in mine)
        pid = lanes.seems_owned(lanes.number_of(content.name))
        owner = f"owned by process {pid}, batches in flight may change" if pid else "not owned"
        print(
            f"{content.name}: {owner}; not delivered: {counted(records, 'record')} in {counted(len(mine), 'batch')}"
        )
        for damage in content.damage:
            print(f"  DAMAGE {damage}: see kafkasafe spool repair")
        if content.extent:
            print(f"  note: {content.extent}")
        print_rejected(content.rejected_records, content.rejected_unreadable)
        _print_sums(mine)
        if len(mine) > _FEW and not every:
            print(f"  --all shows each of the {counted(len(mine), 'batch')}, with the proof")
            continue
        for examined in mine:
            batch, verdict = examined.batch, examined.verdict
            at = f" at offset {verdict.offsets[0]}" if verdict.offsets else ""
            print(
                f"  {address_of(batch.topic, batch.partition)}, {counted(batch.records, 'record')} at position"
                f" {batch.position}: {_WORDS[verdict.finding]}{at}"
            )
            print(f"    {verdict.evidence}")
    if any(content.rejected_records for content in contents):
        print(RESEND_HINT)
    print_unreadable(troubles)
    if not contents and not troubles:
        print(f"{lanes.path} has no lanes")
    for topic, concern in settings:
        head = "BREAKS A PROMISE" if concern.level == "breaks" else "note"
        value = f"={concern.value}" if concern.value else ""
        print(
            f"{topic or 'settings'}: {head}: {concern.setting}{value}: {concern.reason}. Better: {concern.fix}"
        )


def _print_sums(found: Sequence[Examined]) -> None:
    """Prints the sums by destination and finding. Findings that need an operator come first."""
    sums: dict[tuple[Finding, str], list[int]] = {}
    for examined in found:
        where = address_of(examined.batch.topic, examined.batch.partition)
        counts = sums.setdefault((examined.verdict.finding, where), [0, 0])
        counts[0] += examined.batch.records
        counts[1] += 1
    order = list(_WORDS)
    for (finding, where), (records, batches) in sorted(
        sums.items(), key=lambda item: (_rank(item[0][0], order), item[0][1])
    ):
        print(f"  {where}: {_WORDS[finding]}: {counted(records, 'record')} in {counted(batches, 'batch')}")


def _rank(finding: Finding, order: Sequence[Finding]) -> tuple[bool, int]:
    """Sort key of a finding: undecidable batches first, then in the order given."""
    return finding is not Finding.UNDECIDABLE, order.index(finding)


def _print_json(
    directory: Path,
    lanes: SpoolDirectory,
    contents: Sequence[LaneContent],
    found: Sequence[Examined],
    settings: Sequence[tuple[str, Concern]],
    clusters: tuple[str | None, str | None],
    bad: bool,
    troubles: Sequence[tuple[str, str]],
) -> None:
    rows = []
    for examined in found:
        batch, verdict = examined.batch, examined.verdict
        identity = batch.identity
        rows.append(
            {
                "lane": batch.lane,
                "position": batch.position,
                "topic": batch.topic,
                "partition": batch.partition,
                "records": batch.records,
                "producer_id": None if identity is None else identity.producer_id,
                "producer_epoch": None if identity is None else identity.producer_epoch,
                "base_sequence": None if identity is None else identity.base_sequence,
                "finding": verdict.finding.value,
                "offsets": list(verdict.offsets),
                "evidence": verdict.evidence,
            }
        )
    told = {
        "directory": str(directory),
        "spool_cluster_id": clusters[0],
        "cluster_id": clusters[1],
        "ok": not bad,
        "lanes": [
            {
                "lane": content.name,
                "error": None,
                "owner_pid": lanes.seems_owned(lanes.number_of(content.name)) or None,
                "damage": [str(damage) for damage in content.damage],
                "extent": content.extent,
                "rejected": [dataclasses.asdict(rejected) for rejected in content.rejected_records],
                "rejected_unreadable": list(content.rejected_unreadable),
            }
            for content in contents
        ]
        + [{"lane": name, "error": reason} for name, reason in troubles],
        "batches": rows,
        "settings": [{"topic": topic, **dataclasses.asdict(concern)} for topic, concern in settings],
    }
    print(json.dumps(told, indent=1))

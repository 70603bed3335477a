"""`kafkasafe doctor`: finds out whether each batch of a spool is in the cluster's log, and finds problems of the spool
and its topics.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from kafka.errors import KafkaError

from kafkasafe.cli.asking import Limits, connected, limits_of, timeout_option
from kafkasafe.cli.common import (
    CODES,
    RESEND_HINT,
    ConfigFile,
    Directory,
    Json,
    Servers,
    address_of,
    app_of_command,
    cluster_trouble,
    connection,
    copy_lines,
    counted,
    duration_s,
    id_as_json,
    missing_lines,
    note_trouble,
    open_directory,
    progress,
    rejected_lines,
    unreadable_lines,
)
from kafkasafe.cli.concerns import Concern, concerns_of
from kafkasafe.cli.report import EXIT_BROKEN, EXIT_FAILED, Report, show
from kafkasafe.cluster.api import in_words
from kafkasafe.errors import SpoolError, WrongClusterError
from kafkasafe.kafkapython.admin import open_admin, settings_of
from kafkasafe.maintenance.examination import Examined, LaneContent, examine, read_content
from kafkasafe.spool.examine import Finding
from kafkasafe.spool.inspection import resent_in, with_same_id
from kafkasafe.spool.lanes import SpoolDirectory

DOCTOR_CODES: Final = CODES.format(
    broken="something is wrong: damage, rejected records, a lane that is a copy of another one, a batch whose outcome"
    " cannot be determined, or a setting that breaks a promise (waiting records are not wrong)"
)

_FEW: Final = 10
_TIMEOUT: Final = "60s"
_WORDS: Final = {
    Finding.COMMITTED: "COMMITTED",
    Finding.APPENDED: "APPENDED, NOT REPLICATED YET",
    Finding.ABSENT: "NOT IN THE LOG",
    Finding.UNDECIDABLE: "UNDECIDABLE",
    Finding.NOT_ANSWERED: "NOT KNOWN",
    Finding.NOT_SENT: "NEVER SENT",
}
_WITHOUT_OUTCOME: Final = frozenset({Finding.UNDECIDABLE, Finding.NOT_ANSWERED})


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
        str | None, timeout_option("Maximum time for all requests to the cluster.", _TIMEOUT)
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help=f"Show each batch, even if a lane has more than {_FEW}.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show whether each undelivered batch is in the log, with proof, and which topic settings break a promise.

    The command changes nothing, so producers may run at the same time. Without --bootstrap-servers (or --config) it
    reads only the spool, and a batch that may have been sent is NOT KNOWN.

    COMMITTED: the log contains a batch header with the batch's id, at the offset that is shown. A batch is also
    COMMITTED if its part of the log was deleted, but the leader still remembers the batch's sequence. NOT IN THE LOG:
    the command has read every part of the log where the batch could be, and did not find it. A batch is also NOT IN THE
    LOG if the last sequence that the leader remembers is lower than the batch's sequence. NEVER SENT: the batch has no
    id. If a running producer is sending a batch, the result for this batch may change.
    """
    outage_ms = int(duration_s(outage, "--outage") * 1000)
    expiration_ms = int(duration_s(expiration, "--producer-id-expiration") * 1000)
    if not expiration_ms:
        raise typer.BadParameter("must be 1ms or more", param_hint="--producer-id-expiration")
    limits = limits_of(timeout, _TIMEOUT)
    options = None if servers is None and config is None else connection(servers, config)
    lanes = open_directory(directory)
    troubles: list[tuple[str, str]] = []
    contents = _read(lanes, troubles)
    unread = cluster_trouble(lanes) if options is None else []
    troubles += unread
    bound = None if unread else lanes.cluster_id()
    topics = sorted({batch.topic for content in contents for batch in content.batches})
    settings: list[tuple[str, Concern]] = []
    cluster_id = None
    if options is None:
        found = examine(contents, None, timeout_s=limits.all_s)
    else:
        deadline = time.monotonic() + limits.all_s
        found, cluster_id = ask(contents, options, limits, bound, directory)
        settings = _settings(options, topics, deadline, outage_ms, expiration_ms)
    same = with_same_id({content.name: content.log.lane_id for content in contents})
    diagnosed = [_lane(lanes, content, found, same[content.name]) for content in contents]
    findings = {examined.verdict.finding for examined in found}
    is_bad = bool(
        troubles
        or any(same.values())
        or any(content.damage or content.rejected or content.missing for content in contents)
        or Finding.UNDECIDABLE in findings
        or any(concern.level == "breaks" for _, concern in settings)
    )
    fields = {
        "directory": str(directory),
        "spool_cluster_id": bound,
        "cluster_id": cluster_id,
        "ok": not is_bad,
        "lanes": [
            *(lane.fields for lane in diagnosed),
            *({"lane": name, "error": reason} for name, reason in troubles),
        ],
        "batches": [_row(examined) for examined in found],
        "settings": [{"topic": topic, **dataclasses.asdict(concern)} for topic, concern in settings],
    }
    lines = [line for lane in diagnosed for line in lane.lines(every=every)]
    if any(content.rejected_records for content in contents):
        lines.append(RESEND_HINT)
    lines += unreadable_lines(troubles)
    if not diagnosed and not troubles:
        lines.append(f"{directory.resolve()} has no lanes")
    lines += [_setting_line(topic, concern) for topic, concern in settings]
    exit_code = EXIT_BROKEN if is_bad else 0
    if options is not None and Finding.NOT_ANSWERED in findings:
        exit_code = EXIT_FAILED
    show(Report(fields, lines, exit_code), as_json=as_json)


def _read(lanes: SpoolDirectory, troubles: list[tuple[str, str]]) -> list[LaneContent]:
    numbers = lanes.lanes()
    contents = []
    with progress("reading", "lanes") as report:
        for number in numbers:
            path = lanes.lane_path(number)
            try:
                contents.append(read_content(path, files=lanes.files))
            except SpoolError as error:
                note_trouble(path, error, troubles)
            report(len(contents), len(numbers))
    resent = [mark for content in contents for mark in resent_in(content.log)]
    return [content.without(resent) for content in contents]


def _lane(
    lanes: SpoolDirectory, content: LaneContent, found: Sequence[Examined], same: Sequence[str]
) -> DiagnosedLane:
    return DiagnosedLane(
        content,
        [examined for examined in found if examined.batch.lane == content.name],
        lanes.owners.seems_owned(lanes.number_of(content.name)),
        same,
    )


def ask(
    contents: Sequence[LaneContent],
    options: dict[str, Any],
    limits: Limits,
    bound: str | None,
    directory: Path,
) -> tuple[list[Examined], str | None]:
    """Asks the cluster about each undelivered batch. Returns the findings, and the id of the cluster.

    Raises:
        WrongClusterError: The directory is bound to another cluster.
        KafkaSafeError: No broker answered in time.
    """
    deadline = time.monotonic() + limits.all_s
    with (
        progress("asking the cluster", "partitions") as report,
        connected(options, limits.first_answer_s) as cluster,
    ):
        cluster_id = cluster.cluster_id
        if bound is not None and cluster_id is not None and bound != cluster_id:
            raise WrongClusterError(
                f"{directory} holds records for cluster {bound}, but these brokers are cluster {cluster_id}, whose"
                f" answers say nothing about these records. Nothing was changed. Give brokers of cluster {bound}"
            )
        left = max(0.0, deadline - time.monotonic())
        return examine(contents, cluster, timeout_s=left, report=report), cluster_id


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
        return [("", _unreadable(in_words(error), "the permission DESCRIBE_CONFIGS"))]
    found = []
    if replicas and not broker:
        fix = "the permission DESCRIBE_CONFIGS on the cluster"
        found.append(("", _unreadable("the cluster does not show those of brokers to this user", fix)))
    for name in topics:
        if name not in replicas:
            reason = "the cluster does not have it, or does not show it to this user"
            fix = "create it, grant DESCRIBE on it, or wait for it"
            concern = Concern("note", "topic", name, reason, fix)
            found.append((name, concern))
            continue
        if not by_topic.get(name):
            fix = "the permission DESCRIBE_CONFIGS on the topic"
            found.append((name, _unreadable("the cluster does not show them to this user", fix)))
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


def _unreadable(why: str, fix: str) -> Concern:
    """A note about settings that cannot be read. A user with the permission to produce may lack the permission to read
    settings.
    """
    return Concern("note", "settings", "", f"they cannot be read: {why}", fix)


@dataclass(frozen=True, slots=True)
class DiagnosedLane:
    """A lane: its content, the findings for its undelivered batches, the process id of its owner (0: none), and the
    names of other lanes with the same lane id.
    """

    content: LaneContent
    batches: Sequence[Examined]
    owner_pid: int
    same_lane_id: Sequence[str]

    def lines(self, *, every: bool) -> Iterator[str]:
        """Yield the text output about the lane. If the lane has many batches, the batches are shown one by one only
        with `every`.
        """
        content, batches = self.content, self.batches
        records = sum(examined.batch.records for examined in batches)
        owner = (
            f"owned by process {self.owner_pid}, batches in flight may change"
            if self.owner_pid
            else "not owned"
        )
        yield (
            f"{content.name}: {owner}; not delivered: {counted(records, 'record')} in"
            f" {counted(len(batches), 'batch')}"
        )
        for damage in content.damage:
            yield f"  DAMAGE {damage}: see kafkasafe spool repair"
        if content.extent:
            yield f"  note: {content.extent}"
        yield from rejected_lines(content.rejected_records, content.rejected_unreadable)
        yield from missing_lines(content.rejected_missing)
        yield from copy_lines(self.same_lane_id)
        sums_only = len(batches) > _FEW and not every
        yield from _sum_lines(batches, with_reasons=sums_only)
        if sums_only:
            yield f"  --all shows each of the {counted(len(batches), 'batch')}, with the proof"
            return
        for examined in batches:
            batch, verdict = examined.batch, examined.verdict
            at = f" at offset {verdict.offsets[0]}" if verdict.offsets else ""
            yield (
                f"  {address_of(batch.topic, batch.partition)}, {counted(batch.records, 'record')} at position"
                f" {batch.position}: {_WORDS[verdict.finding]}{at}"
            )
            yield f"    {verdict.evidence}"

    @property
    def fields(self) -> dict[str, Any]:
        """The JSON output of the lane, without its batches."""
        content = self.content
        return {
            "lane": content.name,
            "error": None,
            "owner_pid": self.owner_pid or None,
            "damage": [str(damage) for damage in content.damage],
            "extent": content.extent,
            "rejected": [dataclasses.asdict(rejected) for rejected in content.rejected_records],
            "rejected_unreadable": list(content.rejected_unreadable),
            "rejected_missing": list(content.rejected_missing),
            "same_lane_id": list(self.same_lane_id),
        }


def _setting_line(topic: str, concern: Concern) -> str:
    head = "BREAKS A PROMISE" if concern.level == "breaks" else "note"
    value = f"={concern.value}" if concern.value else ""
    return f"{topic or 'settings'}: {head}: {concern.setting}{value}: {concern.reason}. Better: {concern.fix}"


def _row(examined: Examined) -> dict[str, Any]:
    batch, verdict = examined.batch, examined.verdict
    return {
        "lane": batch.lane,
        "position": batch.position,
        "topic": batch.topic,
        "partition": batch.partition,
        "records": batch.records,
        **id_as_json(batch.identity),
        "finding": verdict.finding.value,
        "offsets": list(verdict.offsets),
        "evidence": verdict.evidence,
    }


def _sum_lines(found: Sequence[Examined], *, with_reasons: bool) -> Iterator[str]:
    """Yields a line for each destination and finding, with the numbers of records and batches. Findings that need an
    operator come first. With `with_reasons`, the line about batches without a known outcome ends with the reason,
    unless the reasons of the batches differ.
    """
    sums: dict[tuple[Finding, str], list[Examined]] = {}
    for examined in found:
        where = address_of(examined.batch.topic, examined.batch.partition)
        sums.setdefault((examined.verdict.finding, where), []).append(examined)
    order = list(_WORDS)

    def rank(item: tuple[tuple[Finding, str], list[Examined]]) -> tuple[bool, int, str]:
        (finding, where), _ = item
        return finding is not Finding.UNDECIDABLE, order.index(finding), where

    for (finding, where), alike in sorted(sums.items(), key=rank):
        records = sum(examined.batch.records for examined in alike)
        reasons = {examined.verdict.evidence for examined in alike}
        reason = ""
        if with_reasons and finding in _WITHOUT_OUTCOME and len(reasons) == 1:
            reason = f": {reasons.pop()}"
        yield f"  {where}: {_WORDS[finding]}: {counted(records, 'record')} in {counted(len(alike), 'batch')}{reason}"

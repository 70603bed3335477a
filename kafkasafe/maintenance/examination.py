"""Reads a spool directory and the cluster without a producer, and determines the outcome of each batch.

Writes nothing to the directory or the cluster, and takes no lock. Producers may own the lanes.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kafka.errors import KafkaError, TopicAuthorizationFailedError, UnsupportedVersionError

from kafkasafe import marks as m
from kafkasafe.cluster.absence import Absence
from kafkasafe.cluster.api import Cluster, Failure, Reply, TopicInfo
from kafkasafe.cluster.inquiry import ProcedureRunner, RunningProcedure, ask_until_answered
from kafkasafe.cluster.procedures import Ask, Pause, Procedure
from kafkasafe.codes.sets import MISSING_CODES
from kafkasafe.errors import SpoolError
from kafkasafe.history.identity import BatchId, ProducerView
from kafkasafe.journal import UNCHOSEN, Batch, Journal
from kafkasafe.record import batch as codec
from kafkasafe.spool.examine import Examination, ExaminedBatch, Finding, SpoolFate, SpoolOutcome, fates
from kafkasafe.spool.files import Files, opened
from kafkasafe.spool.inspection import (
    dropped_in,
    extent_of,
    missing,
    missing_text,
    read_lane,
    resent_in,
    steps,
    unreadable,
)
from kafkasafe.spool.log_content import BatchEntry, Log, LostEntry, MarksEntry
from kafkasafe.spool.recovery import journal_of
from kafkasafe.spool.refusals import read_needed
from kafkasafe.spool.rejected import (
    KeptFile,
    RejectedRecords,
    data_of,
    read_rejected,
    summed_up,
    waits_of,
)
from kafkasafe.spool.rejected_notes import read_notes
from kafkasafe.spool.segment import Stored, StoredSegment
from kafkasafe.spool.steps import BatchTimes, UnitLog
from kafkasafe.stats import ConsumerStats
from kafkasafe.units import Phase

_PAGE_BYTES: Final = 1024 * 1024
_POLL_S: Final = 0.25
_ABSENT_S: Final = 20.0
"""If only one of several brokers answers, a partition is proven not to exist only after it has been missing for this
many seconds.
"""
_PATIENCE: Final = 12
"""How many times a log is polled while its replicas lag, before it is judged by its current state."""
_LEADERS: Final = 3
"""If another leader is elected while a log is read, the log is read again, but at most this many times in all."""


@dataclass(frozen=True, slots=True)
class SpooledBatch:
    """One batch in a lane.

    Attributes:
        position: Spool position of the batch's first record.
        partition: Partition; -1 while it is not chosen.
        identity: Batch id; None while the batch has none.
        max_timestamp: Newest timestamp, ms since the epoch.
        known: The outcome according to the spool.
        file: The batch's file in `rejected/`; None if none exists.
        given: If the batch's partition is not chosen yet: the partitions that callers gave for some of its records (see
            `journal.Batch`).
    """

    lane: str
    position: int
    topic: str
    partition: int
    records: int
    size_bytes: int
    identity: BatchId | None
    max_timestamp: int
    known: SpoolFate
    file: Path | None = None
    given: tuple[tuple[int, int, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class LaneContent:
    """The content of a lane.

    Attributes:
        log: The log, as it was read.
        journal: The journal, with the unfinished batches.
        batches: The batches, in the order of their positions.
        rejected: The files in `rejected/`, including those that cannot be read.
        missing: The files of `rejected/` that were deleted, but not by `spool resend` or `spool discard`: by the file's
            name, its number of records.
        extent: The problem with the lane's `extent`; empty if the extent is valid.
        times: By a batch's position: when the batch reached each step of its delivery. Batches that belong to atomic
            batches are left out.
        units: The atomic batches with their steps, in the order of the log.
    """

    name: str
    log: Log
    journal: Journal
    batches: tuple[SpooledBatch, ...]
    rejected: tuple[KeptFile, ...]
    missing: Mapping[str, int]
    extent: str
    times: Mapping[int, BatchTimes]
    units: tuple[UnitLog, ...]
    _files: Files
    _path: Path

    @property
    def rejected_records(self) -> tuple[RejectedRecords, ...]:
        """The records in `rejected/`, by partition and reason."""
        return summed_up(self.rejected, self.journal)

    @property
    def rejected_unreadable(self) -> tuple[str, ...]:
        """One sentence for each damaged file in `rejected/`."""
        return unreadable(self.rejected)

    @property
    def rejected_missing(self) -> tuple[str, ...]:
        """One sentence for each file of `rejected/` that was deleted, but neither resent nor discarded."""
        return tuple(missing_text(name, records) for name, records in self.missing.items())

    def without(self, resent: Collection[m.Resent]) -> LaneContent:
        """Returns the lane's content without the resent files of `rejected/`. Marks in another lane's log show which
        files were resent.
        """
        gone = {mark.file for mark in resent if mark.lane == self.name}
        if not any(name in gone for name in (*self.missing, *(kept.path.name for kept in self.rejected))):
            return self
        return replace(
            self,
            batches=tuple(b for b in self.batches if b.file is None or b.file.name not in gone),
            rejected=tuple(kept for kept in self.rejected if kept.path.name not in gone),
            missing={name: records for name, records in self.missing.items() if name not in gone},
        )

    @property
    def damage(self) -> tuple[str, ...]:
        """One sentence per damaged range, and one sentence if the log has bytes, but no intact spool group."""
        texts = tuple(map(str, self.log.damage))
        if self.log.torn is not None and self.log.torn[1] == 0 and not self.log.groups:
            texts += (f"{self.log.torn[0].name} has no intact group",)
        return texts

    def data(self, batch: SpooledBatch) -> bytearray:
        """Returns a batch's bytes, after checking them.

        Raises:
            SpoolError: The bytes do not exist any more, or are damaged.
        """
        if batch.file is not None:
            try:
                return data_of(self._files, batch.file, batch.position)
            except (OSError, ValueError) as error:
                raise SpoolError(f"{batch.file} cannot be read: {error}") from error
        segment, stored = self._stored(batch.position)
        try:
            with opened(self._files, segment.path) as handle:
                data = bytearray(self._files.read(handle, stored.at, stored.size_bytes))
            header = codec.verify(data)
        except (OSError, codec.CorruptBatchError) as error:
            raise SpoolError(f"{segment.path} cannot be read at byte {stored.at}: {error}") from error
        if (header.base_offset, header.crc) != (batch.position, stored.crc):
            raise SpoolError(f"{segment.path} has another batch at byte {stored.at} by now")
        return data

    def _stored(self, position: int) -> tuple[StoredSegment, Stored]:
        for segment in self.log.segments:
            if position in segment.batches:
                return segment, segment.batches[position]
        raise SpoolError(f"{self._path} has no batch at position {position}")


def _may_be_sent(journal: Journal, batch: Batch) -> bool:
    """Whether the batch may be in a partition's log. Also true if the brokers have the whole atomic batch that contains
    this batch.
    """
    return journal.views.may_be_sent(batch) or (batch.unit is not None and batch.unit.phase is Phase.STAGED)


def read_content(lane: Path, *, files: Files) -> LaneContent:
    """Reads a lane.

    Raises:
        SpoolFormatError: A newer kafkasafe has written the lane.
        SpoolError: A file cannot be read.
    """
    log = read_lane(lane, files=files)
    journal = journal_of(log)
    times, units = steps(log)
    resent = resent_in(log)
    try:
        notes = read_notes(files, lane)  # before the files: see `missing`
    except OSError as error:
        raise SpoolError(f"{lane} cannot be read: {error}") from error
    kept = read_rejected(files, lane, lane_id=log.lane_id, waits=waits_of(journal), resent=resent)
    batches = [
        *_rejected_batches(lane.name, log, journal, kept),
        *_logged_batches(lane.name, log, journal, kept, units),
    ]
    batches.sort(key=lambda batch: batch.position)
    return LaneContent(
        lane.name,
        log,
        journal,
        tuple(batches),
        tuple(kept),
        {name: notes.kept[name] for name in missing(files, lane, notes, resent)},
        extent_of(files, lane, log),
        times,
        tuple(units),
        files,
        lane,
    )


def _rejected_batches(
    lane: str, log: Log, journal: Journal, kept: Sequence[KeptFile]
) -> Iterator[SpooledBatch]:
    """The batches in `rejected/`, without those that are still in the log."""
    there = {entry.position for entry in log.entries if isinstance(entry, BatchEntry)}
    for file in kept:
        for entry in file.entries:
            # If the spool's log still has the batch, the log's marks (entries about decisions) determine its outcome.
            if file.is_of(log.lane_id) and entry.position in there:
                continue
            note = f"{entry.reason or 'rejected'} ({entry.code})" if entry.code != -1 else ""
            yield SpooledBatch(
                lane,
                entry.position,
                *file.address(journal),
                entry.header.count,
                entry.header.size_bytes,
                _identity(entry.header),
                entry.header.max_timestamp,
                SpoolFate(SpoolOutcome.REJECTED, note=note),
                file.path,
                entry.given,
            )


def _logged_batches(
    lane: str, log: Log, journal: Journal, kept: Sequence[KeptFile], units: Sequence[UnitLog]
) -> Iterator[SpooledBatch]:
    """The batches in the log, with their outcomes."""
    unfinished = {batch.position: batch for _, _, batch in journal.views.batches()}
    known = fates(
        [(entry.position, entry.marks) for entry in log.entries if isinstance(entry, MarksEntry)],
        {position: _may_be_sent(journal, batch) for position, batch in unfinished.items()},
        max((e.position for e in log.entries if isinstance(e, LostEntry) and not e.destination), default=-1),
        dropped_in(units),
    )
    held = {entry.position: file.path for file in kept if file.is_of(log.lane_id) for entry in file.entries}
    given = _given(log)
    for entry in log.entries:
        if not isinstance(entry, BatchEntry) or entry.destination not in journal.views.destinations:
            continue
        topic, partition = journal.views.address(entry.destination)
        header = entry.header
        waiting = unfinished.get(entry.position)
        identity = _identity(header) if waiting is None else waiting.identity
        # A batch that no mark names is finished. The mark (log entry) with the batch's outcome existed once, but was
        # deleted together with its segment.
        fate = known.get(entry.position, SpoolFate(SpoolOutcome.COMMITTED))
        fate = _completed(fate, identity, is_held=entry.position in held)
        yield SpooledBatch(
            lane,
            entry.position,
            topic,
            partition,
            header.count,
            entry.size_bytes,
            identity,
            header.max_timestamp,
            fate,
            held.get(entry.position) if fate.fate is SpoolOutcome.REJECTED else None,
            given.get(entry.position),
        )


def _completed(fate: SpoolFate, identity: BatchId | None, *, is_held: bool) -> SpoolFate:
    """Adjusts an outcome that was found in the marks (log entries). The result also depends on the batch's id, and on
    whether `rejected/` contains the batch.
    """
    if fate.fate is SpoolOutcome.NOT_SENT:
        return replace(fate, identified=identity is not None)
    if fate.fate is SpoolOutcome.REJECTED and not is_held:
        return SpoolFate(SpoolOutcome.RESENT, note=fate.note)
    if fate.fate is SpoolOutcome.DROPPED and is_held:
        return SpoolFate(SpoolOutcome.REJECTED, note=fate.note)
    return fate


def _given(log: Log) -> dict[int, tuple[tuple[int, int, int], ...]]:
    """The GIVEN marks, by position of the batch."""
    found = {}
    runs: dict[int, tuple[tuple[int, int, int], ...]] = {}
    index = 0
    for entry in log.entries:
        if isinstance(entry, MarksEntry):
            runs = {mark.index: mark.runs for mark in entry.marks if isinstance(mark, m.Given)}
            index = 0
            continue
        if isinstance(entry, BatchEntry) and index in runs:
            found[entry.position] = runs[index]
        index += bool(entry.destination)
    return found


def _identity(header: codec.BatchHeader) -> BatchId | None:
    if header.producer_id < 0:
        return None
    return BatchId(header.producer_id, header.producer_epoch, header.base_sequence, header.count)


@dataclass(frozen=True, slots=True)
class Examined:
    """One unfinished batch, and its outcome.

    Attributes:
        verdict: The outcome of the batch.
    """

    batch: SpooledBatch
    verdict: ExaminedBatch


@dataclass(frozen=True, slots=True)
class _LaneDestination:
    """A destination of a lane, with the batches for this destination that may have been sent."""

    content: LaneContent
    topic: str
    partition: int
    batches: tuple[SpooledBatch, ...]


def examine(
    contents: Sequence[LaneContent],
    transport: Cluster | None,
    *,
    timeout_s: float,
    report: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[Examined]:
    """Determines the outcome of every unfinished batch.

    Args:
        contents: The lanes.
        transport: The started cluster; None: do not ask a cluster.
        timeout_s: Time limit for all requests together.
        report: Called repeatedly with (number of partitions done, number of all partitions).
    """
    found: list[Examined] = []
    asked: list[_LaneDestination] = []
    for content in contents:
        places: dict[tuple[str, int], list[SpooledBatch]] = {}
        order = {
            batch.position: number for number, (_, _, batch) in enumerate(content.journal.views.batches())
        }
        waiting = sorted((b for b in content.batches if b.position in order), key=lambda b: order[b.position])
        for batch in waiting:
            if batch.known.fate is SpoolOutcome.NOT_SENT and batch.identity is not None:
                evidence = "nothing was sent to its partition yet"
                found.append(Examined(batch, ExaminedBatch(Finding.NOT_SENT, evidence)))
            elif batch.identity is not None and batch.partition != UNCHOSEN:
                places.setdefault((batch.topic, batch.partition), []).append(batch)
            elif batch.known.fate is SpoolOutcome.UNKNOWN:
                evidence = (
                    "damage in the spool destroyed marks, and one of them may have given the batch an id"
                )
                found.append(Examined(batch, ExaminedBatch(Finding.UNDECIDABLE, evidence)))
            else:
                evidence = "it has no batch id, and nothing is sent without one"
                found.append(Examined(batch, ExaminedBatch(Finding.NOT_SENT, evidence)))
        asked += [_LaneDestination(content, *address, tuple(batches)) for address, batches in places.items()]
    if transport is None:
        evidence = "the cluster was not asked"
        for place in asked:
            found += [Examined(b, ExaminedBatch(Finding.NOT_ANSWERED, evidence)) for b in place.batches]
        return _sorted(found)
    runner = ProcedureRunner()
    troubles: dict[int, Exception] = {}
    running = runner.begin_all(
        _examined(transport, place, functools.partial(troubles.__setitem__, number))
        for number, place in enumerate(asked)
    )
    _wait(runner, running, time.monotonic() + timeout_s, report)
    for number, (place, inquiry) in enumerate(zip(asked, running, strict=True)):
        if inquiry.done and inquiry.error is None:
            found += inquiry.result or ()
            continue
        reason = f"not within {timeout_s:g} s"
        if inquiry.error is not None:
            reason = f"{type(inquiry.error).__name__}: {inquiry.error}"
            if isinstance(inquiry.error, TopicAuthorizationFailedError):
                reason = read_needed(place.topic, len(place.batches), reason)
        elif number in troubles:
            reason += f": {type(troubles[number]).__name__}: {troubles[number]}"
        inquiry.cancel()
        found += [Examined(b, ExaminedBatch(Finding.NOT_ANSWERED, reason)) for b in place.batches]
    return _sorted(found)


def _sorted(found: list[Examined]) -> list[Examined]:
    return sorted(found, key=lambda examined: (examined.batch.lane, examined.batch.position))


def _wait(
    runner: ProcedureRunner,
    running: Sequence[RunningProcedure[Any]],
    deadline: float,
    report: Callable[[int, int], None],
) -> None:
    while True:
        runner.work()
        done = sum(inquiry.done for inquiry in running)
        report(done, len(running))
        left = deadline - time.monotonic()
        if done == len(running) or left <= 0:
            return
        runner.wait(min(left, 0.25))


def _examined(
    transport: Cluster, place: _LaneDestination, note: Callable[[Exception], None]
) -> Procedure[list[Examined]]:
    """Examines one partition. If another leader was elected meanwhile, examines the partition again, because the new
    leader's log may differ.
    """
    for _ in range(_LEADERS):
        before = _leader(transport, place)
        found = yield from _read(transport, place, note)
        after = _leader(transport, place)
        if before in {after, (-1, -1)}:
            break
    return found


def _leader(transport: Cluster, place: _LaneDestination) -> tuple[int, int]:
    info = transport.topic(place.topic)
    known = None if info is None else info.partitions.get(place.partition)
    return (-1, -1) if known is None else (known.leader, known.leader_epoch)


def _read(
    transport: Cluster, place: _LaneDestination, note: Callable[[Exception], None]
) -> Procedure[list[Examined]]:
    topic, partition, journal = place.topic, place.partition, place.content.journal
    stats = ConsumerStats()

    def asked(api: str, send: Callable[[Reply[Any]], None]) -> Procedure[Any]:
        return ask_until_answered(transport, topic, api, send, lambda error, _: note(error), stats=stats)

    views: Mapping[int, ProducerView] = {}
    described = yield Ask(lambda reply: transport.describe_producers(topic, partition, reply))
    if not _too_old(described):
        if isinstance(described, Failure) or described.error_code:
            if _code(described) in MISSING_CODES:
                reason = yield from _why_not_there(transport, topic, partition)
                if reason:
                    absent = ExaminedBatch(Finding.ABSENT, reason)
                    return [Examined(batch, _doubted(batch, absent, "")) for batch in place.batches]
            described = yield from asked(
                "describe_producers", lambda reply: transport.describe_producers(topic, partition, reply)
            )
        views = {
            number: ProducerView(state.epoch, state.last_sequence, state.last_timestamp)
            for number, state in described.producers.items()
        }
    destination = journal.destination(topic, partition)
    begin, epoch = journal.views.reach(destination), journal.views.leader_epoch(destination)
    start = yield from asked("list_offsets", lambda reply: transport.list_offset(topic, partition, -2, reply))
    cut_at = -1
    if epoch >= 0 and begin > 0:
        ended = yield Ask(lambda reply: transport.offset_for_leader_epoch(topic, partition, epoch, reply))
        if not _too_old(ended):
            if isinstance(ended, Failure) or ended.error_code:
                ended = yield from asked(
                    "offset_for_leader_epoch",
                    lambda reply: transport.offset_for_leader_epoch(topic, partition, epoch, reply),
                )
            # If the leader does not know the epoch although its log begins before `begin`, this log is not the log in
            # which the cluster acknowledged the records. `cut_at` then makes the condition below true, so the whole log
            # is read.
            cut_at = ended.end_offset if ended.end_offset >= 0 else start.offset
    end = yield from asked("list_offsets", lambda reply: transport.log_end_offset(topic, partition, reply))
    if begin > (end.offset if cut_at < 0 else min(cut_at, end.offset)):
        # The log ends before records that the cluster had acknowledged. Read the whole remaining log.
        begin = start.offset
    identities = [batch.identity for batch in place.batches if batch.identity is not None]
    examination = Examination(identities, max(begin, 0), end.offset, max(start.offset, 0))
    polls = 0
    while not examination.done and polls <= _PATIENCE:
        at = examination.next_offset

        def fetch(reply: Reply[Any], at: int = at) -> None:
            transport.fetch_headers(topic, partition, at, _PAGE_BYTES, reply)

        page = yield from asked("fetch", fetch)
        examination.page(
            [
                (h.base_offset, h.last_offset, h.producer_id, h.producer_epoch, h.base_sequence, h.count)
                for h in page.headers
            ],
            next_offset=page.next_offset,
            log_start_offset=page.log_start_offset,
        )
        if examination.next_offset <= at:
            polls += 1
            yield Pause(_POLL_S)
    verdicts = examination.verdicts(views)
    changed = _recreated(transport, place, journal.views.topic_id(destination))
    return [
        Examined(batch, _doubted(batch, verdict, changed))
        for batch, verdict in zip(place.batches, verdicts, strict=True)
    ]


def _why_not_there(transport: Cluster, topic: str, partition: int) -> Procedure[str]:
    """Returns the proof that the topic does not have the partition; empty without proof."""
    case = Absence(partition, time.monotonic(), _ABSENT_S)
    while True:
        info = transport.topic(topic)
        if info is None or info.error_code or partition in info.partitions:
            return ""
        brokers = [broker.node_id for broker in transport.brokers()]
        proof = case.proven(brokers, time.monotonic())
        if proof:
            return f"{topic} has no partition {partition}: {proof}"
        for node in case.due(brokers, time.monotonic()):
            seen = yield Ask(functools.partial(transport.topic_at, node, topic))
            if isinstance(seen, TopicInfo) and not seen.error_code and seen.partitions:
                case.answered(node, seen.topic_id, max(seen.partitions) + 1, time.monotonic())
        yield Pause(_POLL_S)


def _doubted(batch: SpooledBatch, verdict: ExaminedBatch, changed: str) -> ExaminedBatch:
    if verdict.finding is Finding.ABSENT and batch.known.fate is SpoolOutcome.UNKNOWN:
        evidence = (
            f"damage in the spool destroyed marks, so the batch may have another id; {verdict.evidence}"
        )
        return ExaminedBatch(Finding.UNDECIDABLE, evidence)
    return replace(verdict, evidence=verdict.evidence + changed)


def _recreated(transport: Cluster, place: _LaneDestination, known: bytes) -> str:
    info = transport.topic(place.topic)
    if info is None or not any(known) or not any(info.topic_id) or known == info.topic_id:
        return ""
    return f"; the topic was deleted and created again: its id was {known.hex()} and is {info.topic_id.hex()}"


def _code(answer: Any) -> int:
    """Kafka's error code; 0 without one."""
    return (answer.code or 0) if isinstance(answer, Failure) else int(answer.error_code)


def _too_old(answer: Any) -> bool:
    error: KafkaError | Any = answer.error if isinstance(answer, Failure) else None
    return isinstance(error, UnsupportedVersionError)

"""Finds missing and repeated sequences of a log, from batch headers.

Brokers do not assign sequences: an idempotent producer gives each record of a partition the next sequence, and starts
again at 0 with each epoch. So for one (partition, producer id, epoch), the sequences in the log ascend without gaps. A
gap means that the log lost a record, or that a record never arrived although later records arrived. A repeated sequence
means that a record was written twice.

A log is read in parts, in any order: `runs` groups a part's headers into contiguous runs, and `judge` joins the runs of
all parts. If compaction has removed whole batches, the result shows a gap without a loss. Records that retention has
removed leave no gap, because the log begins after these records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from kafkasafe.record.batch import BatchHeader

_SEQUENCES: Final = 2**31  # 0 follows the last sequence


@dataclass(frozen=True, slots=True)
class SequenceRun:
    """Batches of one producer in one partition, with contiguous sequences.

    Attributes:
        producer_id: -1 for records of producers without idempotence, which have no sequences.
        epoch: Producer epoch.
        first_sequence: Sequence of the first record.
        last_sequence: Sequence of the last record (inclusive).
        first_offset: Offset of the first record.
        last_offset: Offset of the last record (inclusive).
        batches: Number of batches.
        records: How many records the batches hold now. After compaction, a batch may have fewer records than sequences.
        transactional: Whether the batches belong to transactions.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    batches: int
    records: int
    transactional: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap: the log lacks the sequences `first` to `last` (inclusive). The next record is at `before_offset`."""

    epoch: int
    first: int
    last: int
    before_offset: int

    @property
    def records(self) -> int:
        """How many records are missing."""
        return (self.last - self.first) % _SEQUENCES + 1


@dataclass(frozen=True, slots=True)
class Repeat:
    """Sequences that appear in the log again, `first` to `last` (inclusive), at `at_offset`."""

    epoch: int
    first: int
    last: int
    at_offset: int

    @property
    def records(self) -> int:
        """How many records are repeated."""
        return (self.last - self.first) % _SEQUENCES + 1


@dataclass(frozen=True, slots=True)
class IdCount:
    """Statistics of the ids in the records.

    Attributes:
        source: Where the ids are.
        records: How many records have an id.
        without_id: How many records have no id.
        distinct: How many different ids there are.
        missing: How many whole numbers between the lowest and the highest id are missing; None if ids are not numbers.
        examples: Ids that occur more than once, with their counts; the most frequent id first.
    """

    source: str
    records: int
    without_id: int
    distinct: int
    missing: int | None
    examples: list[tuple[str, int]] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """How many records have the id of an earlier record."""
        return self.records - self.distinct


@dataclass(slots=True)
class Producer:
    """The records of one producer in a partition's log.

    Attributes:
        producer_id: Id of the producer. -1 stands for all producers without idempotence.
        epochs: Producer epochs, oldest first.
        trimmed: Retention removed the producer's first records, so the log begins in the middle of the producer's
            sequences.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    batches: int = 0
    records: int = 0
    transactional: bool = False
    trimmed: bool = False
    epochs: list[int] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)

    @property
    def missing_records(self) -> int:
        """How many records are missing, summed over all gaps."""
        return sum(gap.records for gap in self.gaps)

    @property
    def repeated_records(self) -> int:
        """Total number of repeated records in the log."""
        return sum(repeat.records for repeat in self.repeats)

    def add(self, run: SequenceRun) -> None:
        """Count the records of the next run, in offset order."""
        self.last_offset = max(self.last_offset, run.last_offset)
        self.batches += run.batches
        self.records += run.records
        self.transactional = self.transactional or run.transactional
        if run.producer_id >= 0 and run.epoch not in self.epochs:
            self.epochs.append(run.epoch)

    def note_trimmed(self) -> None:
        """Note that the log begins in the middle of the producer's sequences."""
        self.trimmed = True


def runs(headers: Iterable[BatchHeader]) -> list[SequenceRun]:
    """The runs (batches with contiguous sequences) in a part of a log, in the order in which they begin.

    Args:
        headers: Headers of the part's batches, in offset order. Control batches are skipped.
    """
    found: list[SequenceRun] = []
    latest: dict[int, int] = {}
    for header in headers:
        if header.is_control:
            continue
        numbered = header.producer_id >= 0 and header.base_sequence >= 0
        run = SequenceRun(
            producer_id=header.producer_id if numbered else -1,
            epoch=header.producer_epoch if numbered else -1,
            first_sequence=header.base_sequence if numbered else -1,
            last_sequence=header.last_sequence if numbered else -1,
            first_offset=header.base_offset,
            last_offset=header.last_offset,
            batches=1,
            records=header.count,
            transactional=header.is_transactional,
        )
        at = latest.get(run.producer_id)
        if at is not None and _follows(found[at], run):
            found[at] = _joined(found[at], run)
        else:
            latest[run.producer_id] = len(found)
            found.append(run)
    return found


def judge(found: Iterable[SequenceRun], log_start: int = 0) -> dict[int, Producer]:
    """Judge the runs (batches with contiguous sequences) of a partition. Return the result by producer id.

    Args:
        found: The runs from all parts of the log, in any order.
        log_start: First offset of the log. Retention removed the records before this offset.
    """
    producers: dict[int, Producer] = {}
    # Maps (producer id, epoch) to the sequence that the next record must have.
    expected: dict[tuple[int, int], int] = {}
    for run in sorted(found, key=lambda run: run.first_offset):
        producer = producers.get(run.producer_id)
        is_first = producer is None
        if producer is None:
            producer = Producer(run.producer_id, run.first_offset, run.last_offset)
            producers[run.producer_id] = producer
        producer.add(run)
        if run.producer_id < 0:
            continue
        key = run.producer_id, run.epoch
        if key not in expected:
            expected[key] = 0
            if is_first and run.first_sequence and log_start > 0:
                producer.note_trimmed()
                expected[key] = run.first_sequence
        _compare(producer, run, expected)
    return producers


def _compare(producer: Producer, run: SequenceRun, expected: dict[tuple[int, int], int]) -> None:
    key = run.producer_id, run.epoch
    due = expected[key]
    ahead = (run.first_sequence - due) % _SEQUENCES
    below = (due - run.first_sequence) % _SEQUENCES
    length = (run.last_sequence - run.first_sequence) % _SEQUENCES + 1
    if ahead == 0:
        pass
    elif ahead < below:
        producer.gaps.append(Gap(run.epoch, due, (run.first_sequence - 1) % _SEQUENCES, run.first_offset))
    else:
        again = min(below, length)
        last = (run.first_sequence + again - 1) % _SEQUENCES
        producer.repeats.append(Repeat(run.epoch, run.first_sequence, last, run.first_offset))
        if length <= below:
            # The whole run repeats earlier sequences, so the next expected sequence does not advance.
            return
    expected[key] = (run.last_sequence + 1) % _SEQUENCES


def _follows(run: SequenceRun, following: SequenceRun) -> bool:
    if run.producer_id < 0:
        return True
    return run.epoch == following.epoch and following.first_sequence == (run.last_sequence + 1) % _SEQUENCES


def _joined(run: SequenceRun, following: SequenceRun) -> SequenceRun:
    return replace(
        run,
        last_sequence=following.last_sequence,
        last_offset=following.last_offset,
        batches=run.batches + following.batches,
        records=run.records + following.records,
        transactional=run.transactional or following.transactional,
    )

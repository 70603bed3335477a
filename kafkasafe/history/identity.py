"""Decides from the cluster's answers whether a batch is in the log.

There are two sources: the leader's producer state (DescribeProducers, KIP-664: the last sequence that the leader has of
a producer id) and the log itself (batch headers from our last acknowledged offset up to the high watermark). The caller
first asks for the producer state, which is cheap. The state expires, so a missing entry proves nothing, and the caller
must read the log. If the log was trimmed or compacted past the offset where the batch could be, the result is
UNDECIDABLE.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

MAX_SEQUENCE: Final = 2**31 - 1


def add_sequence(sequence: int, count: int) -> int:
    """Return `sequence` plus `count`. As in Kafka, 0 follows 2³¹−1."""
    return (sequence + count) & MAX_SEQUENCE


def sequence_distance(start: int, end: int) -> int:
    """The distance from `start` to `end`, from −2³⁰ to 2³⁰−1; negative if `end` is before `start`. Sequences wrap
    around, so there are two distances, forwards and backwards. The result is the shorter distance, because compared
    sequences are always close together.
    """
    distance = (end - start) & MAX_SEQUENCE
    return distance if distance <= MAX_SEQUENCE // 2 else distance - MAX_SEQUENCE - 1


@dataclass(frozen=True, slots=True)
class BatchId:
    """The permanent identity of a batch on its partition."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (inclusive)."""
        return add_sequence(self.base_sequence, self.count - 1)

    @property
    def fields(self) -> tuple[int, int, int]:
        """Producer id, epoch and base sequence, as in the marks (decisions) in the lane's log."""
        return self.producer_id, self.producer_epoch, self.base_sequence

    @property
    def producer(self) -> tuple[int, int]:
        """Producer id and epoch."""
        return self.producer_id, self.producer_epoch

    def follows(self, earlier: BatchId) -> bool:
        """Whether `earlier` has the same producer id and epoch as this batch, and ends at or before this batch's last
        sequence.
        """
        same = self.producer == earlier.producer
        return same and sequence_distance(earlier.last_sequence, self.last_sequence) >= 0


class BatchKind(enum.Enum):
    """The role of a batch of the log in a transaction."""

    PLAIN = enum.auto()
    """The batch belongs to no transaction."""
    TRANSACTIONAL = enum.auto()
    """The batch belongs to a transaction, which the next marker with the same producer id commits or aborts."""
    COMMIT = enum.auto()
    """A commit marker."""
    ABORT = enum.auto()
    """An abort marker."""


class LogBatch(NamedTuple):
    """Fields of the header of a batch in the log.

    Attributes:
        base_offset: Offset of the first record.
        last_offset: Offset of the last record (inclusive).
        producer_id: Producer id, -1 if the batch has none.
        producer_epoch: Producer epoch, -1 if the batch has none.
        base_sequence: Sequence of the first record; -1 if the batch has no sequences, like a marker.
        kind: The batch's role in a transaction.
    """

    base_offset: int
    last_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    kind: BatchKind = BatchKind.PLAIN


@dataclass(frozen=True, slots=True)
class ProducerView:
    """The leader's state of one producer id on one partition."""

    producer_epoch: int
    last_sequence: int
    last_timestamp: int


class IdentityVerdict(enum.Enum):
    """The conclusion about all batches in doubt together."""

    DECIDED = "decided"
    """Of the batches in doubt, the first ones (`present` says how many) are in the leader's log; the others are not."""
    GAP = "gap"
    """Like DECIDED. In addition, the leader lacks records that were sent before the first absent batch, so the absent
    batches need new ids.
    """
    READ_LOG = "read_log"
    """The producer state does not decide; read the log."""
    UNDECIDABLE = "undecidable"
    """The log has the first batches (`present` says how many). It cannot be determined whether the log has the next
    batch.
    """


@dataclass(frozen=True, slots=True)
class Judgement:
    """The conclusion about batches in doubt, with its evidence.

    Attributes:
        verdict: The conclusion.
        present: Number of batches at the beginning of the sequence that are in the log.
        evidence: The observations, as human-readable text.
        offsets: Base offsets of batches that were found in the log itself, by index.
        missing: Number of records that are missing between the producer's last record at the leader and the first
            absent batch, if the verdict is GAP.
        of_state: Whether the judgement is based on the leader's producer state. This state also shows whether the
            leader lacks a batch.
    """

    verdict: IdentityVerdict
    present: int
    evidence: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    missing: int = 0
    of_state: bool = False


def shows(view: ProducerView | None, identity: BatchId) -> bool:
    """Whether the leader's producer state contains the batch."""
    return (
        view is not None
        and view.producer_epoch == identity.producer_epoch
        and view.last_sequence >= 0
        and sequence_distance(identity.base_sequence, view.last_sequence) >= 0
    )


def judge_by_state(doubt: Sequence[BatchId], view: ProducerView | None, *, acked_before: bool) -> Judgement:
    """Judge batches of one producer id and epoch by the leader's producer state.

    Args:
        doubt: The batches in doubt, in sequence order, all of one producer id and epoch.
        view: The leader's state of this producer id; None if the leader has no such state, or if the broker cannot be
            asked.
        acked_before: Whether an earlier batch of this id and epoch was acknowledged on the partition.

    Returns:
        DECIDED, GAP, READ_LOG or UNDECIDABLE.
    """
    first = doubt[0]
    if view is None:
        return Judgement(
            IdentityVerdict.READ_LOG, 0, f"the leader has no state of producer id {first.producer_id}"
        )
    seen = (
        f"the leader has producer id {first.producer_id} up to epoch {view.producer_epoch},"
        f" sequence {view.last_sequence}"
    )
    if view.producer_epoch > first.producer_epoch:
        return Judgement(IdentityVerdict.READ_LOG, 0, f"{seen}: newer than our epoch {first.producer_epoch}")
    if view.producer_epoch < first.producer_epoch:
        # An epoch begins at sequence 0. So if the base sequence is not 0, the epoch has earlier batches, which the
        # leader lacks.
        verdict = IdentityVerdict.GAP if acked_before or first.base_sequence else IdentityVerdict.DECIDED
        nothing = f"{seen}: nothing of our epoch {first.producer_epoch}"
        return Judgement(verdict, 0, nothing, missing=first.base_sequence)
    if view.last_sequence < 0:
        return Judgement(IdentityVerdict.READ_LOG, 0, f"{seen}: no data batch remembered")
    present = 0
    for batch in doubt:
        if sequence_distance(batch.last_sequence, view.last_sequence) < 0:
            break
        present += 1
    if present == len(doubt):
        return Judgement(IdentityVerdict.DECIDED, present, seen)
    missing = sequence_distance(add_sequence(view.last_sequence, 1), doubt[present].base_sequence)
    if missing < 0:
        # The leader's last batch is not one of ours, because it ends in the middle of our batch.
        return Judgement(IdentityVerdict.UNDECIDABLE, present, f"{seen}: inside our batch {doubt[present]}")
    return Judgement(
        IdentityVerdict.GAP if missing else IdentityVerdict.DECIDED, present, seen, missing=missing
    )


@dataclass(slots=True)
class Scan:
    """Searches the log's batch headers for our batches, page by page.

    Attributes:
        doubt: The batches to find.
        next_offset: Where the next page starts.
        end_offset: The leader's log end when the scan began (exclusive). The scan must read up to this offset.
        found: Base offset of each batch found, by index.
        trimmed_to: The log start offset, if a page showed that retention removed unread records; otherwise -1.
        hidden_before: Before this offset, retention or compaction may have removed batches that the scan searches for.
            A gap in the offsets shows that compaction removed a batch. -1 if the scan read everything.
    """

    doubt: Sequence[BatchId]
    next_offset: int
    end_offset: int
    found: dict[int, int] = field(default_factory=dict)
    trimmed_to: int = -1
    hidden_before: int = -1

    def page(
        self,
        batches: Iterable[LogBatch],
        *,
        next_offset: int,
        log_start_offset: int,
    ) -> None:
        """Take one page.

        Args:
            batches: The page's batches, in offset order.
            next_offset: Where the page ends (exclusive).
            log_start_offset: The log start offset when the page was read.
        """
        if log_start_offset > self.next_offset:
            self.trimmed_to = self.hidden_before = self.next_offset = log_start_offset
        wanted = {(b.producer_id, b.producer_epoch, b.base_sequence): i for i, b in enumerate(self.doubt)}
        for base_offset, last_offset, producer_id, epoch, base_sequence, _ in batches:
            if last_offset < self.next_offset:
                continue
            if base_offset > self.next_offset:
                self.hidden_before = base_offset
            index = wanted.get((producer_id, epoch, base_sequence))
            if index is not None:
                self.found.setdefault(index, base_offset)
            self.next_offset = last_offset + 1
        self.next_offset = max(self.next_offset, next_offset)

    @property
    def done(self) -> bool:
        """True if the scan has reached `end_offset` or has found all batches."""
        return self.next_offset >= self.end_offset or len(self.found) == len(self.doubt)


def judge_by_log(scan: Scan) -> Judgement:
    """Judge by a finished scan: found batches are committed; the other batches are absent if no part of the log was
    hidden.

    The leader appends batches in order. So a missing batch before a found batch must have been in the hidden part. A
    batch that is newer than all found batches is absent if the scan read everything after the newest found batch. In
    every other case, the result is UNDECIDABLE.
    """
    seen = f"the log up to offset {scan.next_offset} holds {len(scan.found)} of {len(scan.doubt)} batches"
    if scan.trimmed_to >= 0:
        seen += f"; it was trimmed to {scan.trimmed_to}"
    newest = max(scan.found, default=-1)
    before = -1
    for index in range(newest + 1):
        if index not in scan.found and before >= scan.hidden_before:
            # The scan read the part of the log where this batch would be, and found only a later batch. Either the log
            # lost this batch, or a leader without producer state appended the later batch out of order.
            return Judgement(
                IdentityVerdict.UNDECIDABLE, index, f"{seen}; a later batch is there", dict(scan.found)
            )
        before = scan.found.get(index, before)
    present = newest + 1
    if present == len(scan.doubt) or before >= scan.hidden_before:
        return Judgement(IdentityVerdict.DECIDED, present, seen, dict(scan.found))
    return Judgement(
        IdentityVerdict.UNDECIDABLE, present, f"{seen}; the log before that is not readable", dict(scan.found)
    )


def judge_by_both(scan: Scan, view: ProducerView | None, *, acked_before: bool, whole: bool) -> Judgement:
    """Judge by the leader's producer state and by a scan that began after the state was read.

    The producer state may include a batch that was appended, but that the log no longer has. The leader derives the
    state from its log, and only this run of the producer uses the producer id. So the leader has appended all batches
    that the state includes. A missing entry proves nothing. When the scan is finished, all batches that the state
    includes are below the high watermark, because the caller looked up the scan's end after it read the state, and a
    scan reads only batches below the high watermark.

    Args:
        scan: A finished scan.
        view: The leader's state of the batches' producer id; None if the leader has no such state, or if the leader
            cannot be asked.
        acked_before: As for `judge_by_state`.
        whole: False if the log was truncated after the last acknowledgement. After a truncation, the leader may have
            appended a late request although earlier batches are missing. The leader's state then wrongly includes the
            missing batches.
    """
    judgement = judge_by_log(scan)
    rest = scan.doubt[judgement.present :]
    if view is None or not rest:
        return judgement
    by_state = judge_by_state(rest, view, acked_before=acked_before)
    if judgement.verdict is IdentityVerdict.DECIDED:
        if by_state.verdict is not IdentityVerdict.GAP:
            return judgement
        return Judgement(IdentityVerdict.GAP, judgement.present, by_state.evidence, judgement.offsets)
    overtaken = any(index >= judgement.present for index in judgement.offsets)
    if (
        not whole
        or overtaken
        or by_state.verdict not in {IdentityVerdict.DECIDED, IdentityVerdict.GAP}
        or not by_state.present
    ):
        return judgement
    present = judgement.present + by_state.present
    verdict = IdentityVerdict.DECIDED if present == len(scan.doubt) else IdentityVerdict.UNDECIDABLE
    return Judgement(verdict, present, f"{judgement.evidence}; {by_state.evidence}", judgement.offsets)


def judge_located(by_state: Judgement, scan: Scan) -> tuple[Judgement, bool]:
    """Combine a judgement by the producer state with the offsets that a finished scan found.

    Args:
        by_state: DECIDED or GAP.
        scan: A finished scan. The scan searched only for the batches that `by_state` counts as present.

    Returns:
        (judgement, whether to trust the judgement). Do not trust the judgement if the scan read the whole log but did
        not find all batches that the state counts as present. The judgement is wrong if the leader appended a late
        request to an empty log: the leader's state then also counts the earlier batches, which the log lacks.
    """
    by_log = judge_by_log(scan)
    judgement = Judgement(
        by_state.verdict, by_state.present, by_state.evidence, by_log.offsets, by_state.missing, of_state=True
    )
    # If every found batch comes before the missing batches, the missing batches may be in the unreadable part of the
    # log.
    hidden = by_log.verdict is IdentityVerdict.UNDECIDABLE and all(
        index < by_log.present for index in by_log.offsets
    )
    return judgement, hidden or (
        by_log.verdict is IdentityVerdict.DECIDED and by_log.present == by_state.present
    )

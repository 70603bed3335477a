"""Is a batch in the log? The decision, from what the cluster answered.

Two witnesses: the leader's producer state (DescribeProducers, KIP-664: up to which sequence it has batches of a
producer id) and the log itself (batch headers from our last acknowledged offset up to the high watermark). The
state is asked first; it is cheap. It forgets, so that its silence proves nothing: then the log is read. Where the
log has been trimmed or compacted past the place where the batch could sit, nobody knows, and that is the answer.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "MAX_SEQUENCE",
    "BatchId",
    "Judgement",
    "ProducerView",
    "Scan",
    "Verdict",
    "add_sequence",
    "judge_by_both",
    "judge_by_log",
    "judge_by_state",
    "judge_located",
    "sequence_distance",
    "shows",
]

MAX_SEQUENCE: Final = 2**31 - 1


def add_sequence(sequence: int, count: int) -> int:
    """The sequence `count` behind `sequence`; after 2³¹−1 comes 0, as in Kafka."""
    return (sequence + count) & MAX_SEQUENCE


def sequence_distance(start: int, end: int) -> int:
    """How far `end` is behind `start`, in −2³⁰ … 2³⁰: sequences wrap, windows are small."""
    distance = (end - start) & MAX_SEQUENCE
    return distance if distance <= MAX_SEQUENCE // 2 else distance - MAX_SEQUENCE - 1


@dataclass(frozen=True, slots=True)
class BatchId:
    """What names a batch for ever, on its partition."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (inclusive)."""
        return add_sequence(self.base_sequence, self.count - 1)


@dataclass(frozen=True, slots=True)
class ProducerView:
    """What the leader remembers of one producer id on one partition."""

    producer_epoch: int
    last_sequence: int
    last_timestamp: int


class Verdict(enum.Enum):
    """What is known of the batches in doubt, all together."""

    DECIDED = "decided"
    """The first `present` of them are in the leader's log, the others are not."""
    GAP = "gap"
    """As DECIDED, and the leader misses a batch before the first absent one: the absent ones need a new id."""
    READ_LOG = "read_log"
    """The state does not tell; the log must."""
    UNDECIDABLE = "undecidable"
    """Nobody knows about the batch after the first `present` ones."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The answer.

    Attributes:
        verdict: What is known.
        present: How many of the batches, from the first, are in the log.
        evidence: For people: what was seen.
        offsets: Base offsets of batches that were found in the log itself, by index.
        missing: With GAP: how many records stand between the leader's last one and the first absent batch.
        of_state: The leader's producer state was asked: it knows whether it misses a batch.
    """

    verdict: Verdict
    present: int
    evidence: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    missing: int = 0
    of_state: bool = False


def shows(view: ProducerView | None, identity: BatchId) -> bool:
    """The leader's state has the batch, whatever an answer said of it."""
    return (
        view is not None
        and view.producer_epoch == identity.producer_epoch
        and view.last_sequence >= 0
        and sequence_distance(identity.base_sequence, view.last_sequence) >= 0
    )


def judge_by_state(doubt: Sequence[BatchId], view: ProducerView | None, *, acked_before: bool) -> Judgement:
    """Judge batches of one producer id and epoch, in order, by the leader's producer state.

    Args:
        doubt: The batches in doubt, in sequence order, all of one producer id and epoch.
        view: The leader's state of that id; None when it has none, or when the broker cannot be asked.
        acked_before: A batch of this id and epoch was acknowledged on the partition before.

    Returns:
        DECIDED, GAP, READ_LOG or UNDECIDABLE.
    """
    first = doubt[0]
    if view is None:
        return Judgement(Verdict.READ_LOG, 0, f"the leader has no state of producer id {first.producer_id}")
    seen = (
        f"the leader has producer id {first.producer_id} up to epoch {view.producer_epoch},"
        f" sequence {view.last_sequence}"
    )
    if view.producer_epoch > first.producer_epoch:
        return Judgement(Verdict.READ_LOG, 0, f"{seen}: newer than our epoch {first.producer_epoch}")
    if view.producer_epoch < first.producer_epoch:
        # An epoch begins at sequence 0; what does not begin there follows something.
        verdict = Verdict.GAP if acked_before or first.base_sequence else Verdict.DECIDED
        nothing = f"{seen}: nothing of our epoch {first.producer_epoch}"
        return Judgement(verdict, 0, nothing, missing=first.base_sequence)
    if view.last_sequence < 0:
        return Judgement(Verdict.READ_LOG, 0, f"{seen}: no data batch remembered")
    present = 0
    for batch in doubt:
        if sequence_distance(batch.last_sequence, view.last_sequence) < 0:
            break
        present += 1
    if present == len(doubt):
        return Judgement(Verdict.DECIDED, present, seen)
    missing = sequence_distance(add_sequence(view.last_sequence, 1), doubt[present].base_sequence)
    if missing < 0:
        # It has the beginning of a batch but not its end: boundaries are part of the identity, so this is not ours.
        return Judgement(Verdict.UNDECIDABLE, present, f"{seen}: inside our batch {doubt[present]}")
    return Judgement(Verdict.GAP if missing else Verdict.DECIDED, present, seen, missing=missing)


@dataclass(slots=True)
class Scan:
    """Reads the log's batch headers for our batches, page by page.

    Attributes:
        doubt: The batches looked for.
        next_offset: Where the next page starts.
        end_offset: The leader's log end when the scan began: it must get this far (exclusive).
        found: Base offset of each batch found, by index.
        trimmed_to: Log start offset, where it was behind the place of the scan; else -1.
        hidden_before: Offset (exclusive) up to which part of the range could not be seen: trimmed, or compacted (a
            hole between offsets); -1 when all was seen.
    """

    doubt: Sequence[BatchId]
    next_offset: int
    end_offset: int
    found: dict[int, int] = field(default_factory=dict)
    trimmed_to: int = -1
    hidden_before: int = -1

    def page(
        self,
        headers: Iterable[tuple[int, int, int, int, int]],
        *,
        next_offset: int,
        log_start_offset: int,
    ) -> None:
        """Take one page.

        Args:
            headers: (base offset, last offset, producer id, epoch, base sequence) of each batch, ascending.
            next_offset: Where the page ends (exclusive).
            log_start_offset: The log's start when it was read.
        """
        if log_start_offset > self.next_offset:
            self.trimmed_to = self.hidden_before = self.next_offset = log_start_offset
        wanted = {(b.producer_id, b.producer_epoch, b.base_sequence): i for i, b in enumerate(self.doubt)}
        for base_offset, last_offset, producer_id, epoch, base_sequence in headers:
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
        """The scan has seen everything up to the log end it was given, or found all it looked for."""
        return self.next_offset >= self.end_offset or len(self.found) == len(self.doubt)


def judge_by_log(scan: Scan) -> Judgement:
    """Judge by what a finished scan saw: found is committed; not found is absent if nothing was hidden.

    Batches are appended in order. So one that was not seen, before one that was found, sat in the part that could
    not be seen; and one behind the newest found one is absent if everything from there on was seen. Anything else
    means that part of the log is gone.
    """
    seen = f"the log up to offset {scan.next_offset} holds {len(scan.found)} of {len(scan.doubt)} batches"
    if scan.trimmed_to >= 0:
        seen += f"; it was trimmed to {scan.trimmed_to}"
    newest = max(scan.found, default=-1)
    before = -1
    for index in range(newest + 1):
        if index not in scan.found and before >= scan.hidden_before:
            # A later batch is there, this one is not, and its place was seen: it is gone, or a state-less leader
            # took the later one out of order.
            return Judgement(Verdict.UNDECIDABLE, index, f"{seen}; a later batch is there", dict(scan.found))
        before = scan.found.get(index, before)
    present = newest + 1
    if present == len(scan.doubt) or before >= scan.hidden_before:
        return Judgement(Verdict.DECIDED, present, seen, dict(scan.found))
    return Judgement(
        Verdict.UNDECIDABLE, present, f"{seen}; what was before is not readable", dict(scan.found)
    )


def judge_by_both(scan: Scan, view: ProducerView | None, *, acked_before: bool, whole: bool) -> Judgement:
    """Judge by a finished scan and by the leader's producer state, as it was before the scan began.

    What the log does not show any more the state may: an id belongs to one life, and the state comes from the log, so
    what it has was appended, however old it is. Only its silence proves nothing. And since the scan went up to where
    the log ended after the state was asked for, all of that is below the high watermark.

    Args:
        scan: A finished scan.
        view: The leader's state of the batches' producer id; None when it has none, or when it cannot be asked.
        acked_before: As for `judge_by_state`.
        whole: The log was not cut since the last acknowledgement. One that was may have taken a late request alone, and
            the state would speak for those before it.
    """
    judgement = judge_by_log(scan)
    rest = scan.doubt[judgement.present :]
    if view is None or not rest:
        return judgement
    by_state = judge_by_state(rest, view, acked_before=acked_before)
    if judgement.verdict is Verdict.DECIDED:
        if by_state.verdict is not Verdict.GAP:
            return judgement
        return Judgement(Verdict.GAP, judgement.present, by_state.evidence, judgement.offsets)
    overtaken = any(index >= judgement.present for index in judgement.offsets)
    if (
        not whole
        or overtaken
        or by_state.verdict not in {Verdict.DECIDED, Verdict.GAP}
        or not by_state.present
    ):
        return judgement
    present = judgement.present + by_state.present
    verdict = Verdict.DECIDED if present == len(scan.doubt) else Verdict.UNDECIDABLE
    return Judgement(verdict, present, f"{judgement.evidence}; {by_state.evidence}", judgement.offsets)


def judge_located(by_state: Judgement, scan: Scan) -> tuple[Judgement, bool]:
    """What the producer state said, with the offsets that a finished scan for the present batches has found.

    Args:
        by_state: DECIDED or GAP.
        scan: For its present batches only.

    Returns:
        (judgement, whether the log has the present ones). Where it does not, though all of it was read, the state is
        of a late request that an empty log took alone, and is not to be believed.
    """
    by_log = judge_by_log(scan)
    judgement = Judgement(
        by_state.verdict, by_state.present, by_state.evidence, by_log.offsets, by_state.missing, of_state=True
    )
    # What was not found may be where the log is not readable any more; nothing that was found comes after it.
    hidden = by_log.verdict is Verdict.UNDECIDABLE and all(index < by_log.present for index in by_log.offsets)
    return judgement, hidden or (by_log.verdict is Verdict.DECIDED and by_log.present == by_state.present)

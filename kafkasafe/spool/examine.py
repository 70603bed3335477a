"""Reports the outcome of each batch in a spool, with the evidence, without changing or sending anything.

`fates` reports the outcomes that are stored in the spool. For batches that may have been sent, `Examination` judges the
cluster's answers, as the journal does. The best evidence is a batch header in the partition's log, because users can
verify the header later at its offset. If the partition's log cannot be read, the evidence is the leader's producer
state. Without a batch header and without producer state, the batch is undecidable.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId, ProducerView, sequence_distance


class SpoolOutcome(enum.Enum):
    """The outcome of a batch according to the spool."""

    COMMITTED = "committed"
    """The cluster acknowledged the batch, as a durable mark in the spool says."""
    IN_DOUBT = "in_doubt"
    """The batch has a batch id and may have been sent. The spool does not contain its outcome."""
    NOT_SENT = "not_sent"
    """The batch was never sent: it has no batch id, or nothing was sent to its partition yet."""
    REJECTED = "rejected"
    """The cluster refused the batch for good."""
    RESENT = "resent"
    """The cluster rejected the batch, and `rejected/` does not contain it any more: a user resent or deleted it."""
    DROPPED = "dropped"
    """The batch belongs to an atomic batch that was dropped, so it is not delivered. `rejected/` does not contain the
    batch. Either a user resent, discarded or deleted it, or the atomic batch contains a consumer's offsets. In the
    second case, the consumer reads the same input again.
    """
    REPLACED = "replaced"
    """The records of the batch are in other batches now."""
    LOST = "lost"
    """The cluster acknowledged the batch and then lost it. The producer does not send it again."""
    UNKNOWN = "unknown"
    """Damage in the spool destroyed marks about the batch."""


class ExchangeStep(enum.Enum):
    """The last completed step of a batch's delivery, of the four steps in Kafka's ticket KAFKA-156.

    KAFKA-156 describes two phases: a batch is prepared in a staging area (here the spool), then it is committed.
    """

    PREPARED = "prepared"
    """1: the batch is staged without a batch id, so it cannot have been sent."""
    PREPARE_ACKNOWLEDGED = "prepare_acknowledged"
    """2: the batch is staged under its id. If the batch was sent, only the cluster knows whether step 3 has happened,
    because nothing is written to the spool at step 3.
    """
    COMMITTED = "committed"
    """3: the cluster has the batch, according to a query, at an unknown offset."""
    COMMIT_ACKNOWLEDGED = "commit_acknowledged"
    """4: the cluster has the batch, at a known offset."""

    @property
    def number(self) -> int:
        """1 to 4, as KAFKA-156 counts."""
        return list(ExchangeStep).index(self) + 1


@dataclass(frozen=True, slots=True)
class SpoolFate:
    """The outcome of one batch according to the spool.

    Attributes:
        base_offset: The base offset that the cluster acknowledged; -1 if unknown.
        note: Human-readable reason why the cluster refused the batch, or why its atomic batch was dropped; empty for
            other outcomes.
        identified: Whether the batch already has a batch id. Set only for a batch that was not sent.
    """

    fate: SpoolOutcome
    base_offset: int = -1
    note: str = ""
    identified: bool = False

    @property
    def step(self) -> ExchangeStep | None:
        """The last known step of KAFKA-156; None if the batch was rejected, dropped or divided, or if marks about it
        are lost.
        """
        match self.fate:
            case SpoolOutcome.NOT_SENT:
                return ExchangeStep.PREPARE_ACKNOWLEDGED if self.identified else ExchangeStep.PREPARED
            case SpoolOutcome.IN_DOUBT:
                return ExchangeStep.PREPARE_ACKNOWLEDGED
            case SpoolOutcome.COMMITTED:
                return ExchangeStep.COMMIT_ACKNOWLEDGED if self.base_offset >= 0 else ExchangeStep.COMMITTED
            case SpoolOutcome.LOST:
                return ExchangeStep.COMMIT_ACKNOWLEDGED
            case (
                SpoolOutcome.REJECTED
                | SpoolOutcome.RESENT
                | SpoolOutcome.DROPPED
                | SpoolOutcome.REPLACED
                | SpoolOutcome.UNKNOWN
            ):
                return None


def fates(
    marks: Iterable[tuple[int, Sequence[m.Mark]]],
    unfinished: Mapping[int, bool],
    blind_before: int = -1,
    dropped: Mapping[int, str] | None = None,
) -> dict[int, SpoolFate]:
    """Returns the outcomes of all unfinished batches, and of all batches that the spool's marks name, by the batch's
    position.

    Args:
        marks: (position, marks) of each group, in the order of the lane's log.
        unfinished: The unfinished batches according to the journal: position → whether the batch may have been sent.
        blind_before: Damage destroyed marks (log entries) about batches before this position; -1 if no marks were
            destroyed.
        dropped: Maps the position of each dropped batch to the reason why its atomic batch was dropped. The mark about
            a dropped atomic batch does not name the batches that belong to it, so `marks` alone is not enough.
    """
    fates_found = {
        position: SpoolFate(SpoolOutcome.DROPPED, note=reason) for position, reason in (dropped or {}).items()
    }
    staged: dict[bytes, tuple[m.Placed, ...]] = {}
    for _, group in marks:
        for mark in group:
            match mark:
                case m.Staged(begun, places):
                    staged[begun.unit_id] = places
                case m.Ended(unit_id, m.UnitOutcome.COMMITTED):
                    fates_found |= {
                        each.position: SpoolFate(SpoolOutcome.COMMITTED, each.base_offset)
                        for each in staged.pop(unit_id, ())
                    }
                case m.Committed(_, _, entries):
                    fates_found |= {
                        position: SpoolFate(SpoolOutcome.COMMITTED, offset) for position, offset in entries
                    }
                case m.Rejected(position, code, message):
                    fates_found[position] = SpoolFate(
                        SpoolOutcome.REJECTED, note=f"{message or 'rejected'} ({code})"
                    )
                case m.Replaced(position):
                    fates_found[position] = SpoolFate(SpoolOutcome.REPLACED)
                case m.Moved(moves):
                    fates_found |= {move.position: SpoolFate(SpoolOutcome.REPLACED) for move in moves}
                case m.Revived(_, _, positions, given_up, moved):
                    for position in positions:
                        fates_found.pop(position, None)
                    fates_found |= {position: SpoolFate(SpoolOutcome.LOST) for position in given_up}
                    fates_found |= {
                        position: SpoolFate(SpoolOutcome.COMMITTED, offset) for position, offset in moved
                    }
                case (
                    m.After()
                    | m.Begun()
                    | m.Cluster()
                    | m.Destination()
                    | m.Ended()
                    | m.Given()
                    | m.Granted()
                    | m.Identified()
                    | m.Quiet()
                    | m.Read()
                    | m.Resent()
                    | m.Resolved()
                    | m.State()
                    | m.Topic()
                    | m.Torn()
                    | m.Undecidable()
                    | m.Unit()
                ):
                    pass  # marks that do not decide the outcome of a batch
    for position, may_be_sent in unfinished.items():
        fate = SpoolOutcome.IN_DOUBT if may_be_sent else SpoolOutcome.NOT_SENT
        fates_found[position] = SpoolFate(SpoolOutcome.UNKNOWN if position < blind_before else fate)
    return fates_found


class Finding(enum.Enum):
    """The outcome, according to the cluster, of a batch that may have been sent."""

    COMMITTED = "committed"
    """The batch is in the partition's log, and replicated."""
    APPENDED = "appended"
    """The leader has the batch, but its followers have not confirmed it yet, so a change of leaders may remove the
    batch.
    """
    ABSENT = "absent"
    """The batch is not in the partition's log."""
    UNDECIDABLE = "undecidable"
    """The outcome cannot be determined. `ExaminedBatch.evidence` says why."""
    NOT_ANSWERED = "not_answered"
    """The cluster did not answer."""
    NOT_SENT = "not_sent"
    """The batch was never sent."""


@dataclass(frozen=True, slots=True)
class ExaminedBatch:
    """The outcome of one batch, with the evidence.

    Attributes:
        evidence: Human-readable text: the observations that led to `finding`.
        offsets: Base offsets of all copies of the batch in the partition's log, normally at most one.
    """

    finding: Finding
    evidence: str
    offsets: tuple[int, ...] = ()


@dataclass(slots=True)
class Examination:
    """Takes a partition's batch headers, page by page, and decides for each of `batches` whether the log contains it.

    Attributes:
        batches: The batches, in delivery order.
        start_offset: The lowest offset that the first of `batches` can have.
        end_offset: The leader's log end, including records above the high watermark.
        next_offset: The offset where the next page of headers starts.
        hidden_before: Retention or compaction had removed a part of the log before this offset; -1 if everything could
            be read.
        log_start_offset: The partition's log start offset when it was last read.
    """

    batches: Sequence[BatchId]
    start_offset: int
    end_offset: int
    log_start_offset: int
    next_offset: int = field(init=False)
    hidden_before: int = field(init=False)
    _found: dict[int, list[int]] = field(default_factory=dict)
    _strange: dict[int, str] = field(default_factory=dict)
    _wanted: dict[tuple[int, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin at `start_offset`, or at the log's start, whichever is later."""
        self.next_offset = self.start_offset
        self.hidden_before = -1
        self._trim(self.log_start_offset)
        for index, batch in enumerate(self.batches):
            self._wanted[batch.producer_id, batch.producer_epoch, batch.base_sequence] = index

    def _trim(self, log_start_offset: int) -> None:
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        if log_start_offset > self.next_offset:
            self.hidden_before = self.next_offset = log_start_offset

    @property
    def done(self) -> bool:
        """Whether everything up to the log's end was read."""
        return self.next_offset >= self.end_offset

    def page(
        self,
        headers: Iterable[tuple[int, int, int, int, int, int]],
        *,
        next_offset: int,
        log_start_offset: int,
    ) -> None:
        """Process one page of batch headers.

        Args:
            headers: (base offset, last offset, producer id, epoch, base sequence, records) of each batch, ascending.
            next_offset: The offset after the page.
            log_start_offset: The log start offset when the page was read.
        """
        self._trim(log_start_offset)
        for base_offset, last_offset, producer_id, epoch, base_sequence, count in headers:
            if last_offset < self.next_offset:
                continue
            if base_offset > self.next_offset:
                self.hidden_before = base_offset
            index = self._wanted.get((producer_id, epoch, base_sequence))
            if index is not None:
                # Compaction removes records from a batch, but does not change the batch's first and last offset.
                if last_offset - base_offset + 1 == self.batches[index].count:
                    self._found.setdefault(index, []).append(base_offset)
                else:
                    noun = "record" if count == 1 else "records"
                    self._strange[index] = f"its id belongs to {count} {noun} at offset {base_offset}"
            self.next_offset = last_offset + 1
        self.next_offset = max(self.next_offset, next_offset)

    def verdicts(self, views: Mapping[int, ProducerView]) -> list[ExaminedBatch]:
        """Returns the verdict on each batch, in the order of `batches`.

        Args:
            views: The leader's producer state, by producer id. Empty if the leader cannot be asked.
        """
        return [
            self._verdict(index, views.get(batch.producer_id)) for index, batch in enumerate(self.batches)
        ]

    def _verdict(self, index: int, view: ProducerView | None) -> ExaminedBatch:
        batch = self.batches[index]
        offsets = tuple(self._found.get(index, ()))
        if offsets:
            name = f"(producer id {batch.producer_id}, epoch {batch.producer_epoch}, sequence {batch.base_sequence})"
            twice = f", and {len(offsets) - 1} more times: DUPLICATED" if len(offsets) > 1 else ""
            evidence = f"the batch header at offset {offsets[0]} has its id {name}{twice}"
            return ExaminedBatch(Finding.COMMITTED, evidence, offsets)
        if index in self._strange:
            return ExaminedBatch(
                Finding.UNDECIDABLE, f"{self._strange[index]}, {batch.count} were to be there"
            )
        where = f"the log was read from offset {self.start_offset} to {self.next_offset}, it is not there"
        hidden = self.hidden_before > self.start_offset
        if hidden:
            gap = (
                f"begins at {self.log_start_offset}"
                if self.hidden_before == self.log_start_offset
                else f"was compacted before {self.hidden_before}"
            )
            where = (
                f"the log {gap}, the batch could be from {self.start_offset} on; after that it is not there"
            )
        seen = _seen(batch, view)
        if seen is not None and view is not None:
            state = (
                f"the leader remembers producer id {batch.producer_id} up to sequence {view.last_sequence}"
            )
            if not seen:
                return ExaminedBatch(
                    Finding.ABSENT, f"{state}, before its own {batch.base_sequence}; {where}"
                )
            if not self.done:
                unread = f"offsets {self.next_offset} to {self.end_offset - 1} are not replicated yet"
                or_gone = f", or it is hidden: {where}" if hidden else ""
                return ExaminedBatch(Finding.APPENDED, f"{state}; {unread}{or_gone}")
            if hidden:
                return ExaminedBatch(
                    Finding.COMMITTED, f"{state}; where it was is trimmed or compacted: {where}"
                )
            return ExaminedBatch(Finding.UNDECIDABLE, f"{state}, which includes it, but {where}")
        forgot = f"the leader does not remember producer id {batch.producer_id}"
        if view is not None:
            forgot = f"the leader remembers epoch {view.producer_epoch} of producer id {batch.producer_id}"
        if not self.done:
            unread = f"offsets {self.next_offset} to {self.end_offset - 1} cannot be read yet"
            return ExaminedBatch(Finding.NOT_ANSWERED, f"{forgot}; {unread}")
        before, after = self._neighbours(index)
        if hidden and after >= 0 and before < self.hidden_before:
            return ExaminedBatch(
                Finding.COMMITTED, f"a later batch of the same id is at offset {after}: it was there; {where}"
            )
        if hidden and before < self.hidden_before:
            return ExaminedBatch(Finding.UNDECIDABLE, f"{forgot}; {where}")
        later = f"; a later batch of the same id is at offset {after}" if after >= 0 else ""
        return ExaminedBatch(Finding.ABSENT, f"{where}{later}")

    def _neighbours(self, index: int) -> tuple[int, int]:
        """Finds the nearest batch before this batch, and the nearest batch after it, that are in the partition's log
        and have the same producer id and epoch. Returns the two base offsets; -1 if there is no such batch. The search
        ends at a batch with another producer id or epoch.
        """
        batch = self.batches[index]

        def nearest(order: Iterable[int]) -> int:
            for other in order:
                same = self.batches[other]
                if (same.producer_id, same.producer_epoch) != (batch.producer_id, batch.producer_epoch):
                    return -1
                if other in self._found:
                    return self._found[other][0]
            return -1

        return nearest(range(index - 1, -1, -1)), nearest(range(index + 1, len(self.batches)))


def _seen(batch: BatchId, view: ProducerView | None) -> bool | None:
    """Whether the leader's producer state includes a batch; None if the state does not show this."""
    if view is None or view.producer_epoch != batch.producer_epoch or view.last_sequence < 0:
        return None
    if sequence_distance(batch.last_sequence, view.last_sequence) >= 0:
        return True
    # If the leader's last sequence is inside the batch, the leader has appended another batch, with other boundaries,
    # so the producer state proves nothing about this batch.
    return False if sequence_distance(batch.base_sequence, view.last_sequence) < 0 else None

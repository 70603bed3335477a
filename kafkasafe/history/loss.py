"""Finds acknowledged batches that the log has lost, by means of the batch headers that the log holds now.

An acknowledged batch can vanish after an unclean election, or with a wiped disk or a recreated topic. Brokers do not
report such a loss: in KAFKA-7190 and similar cases, brokers acknowledge later batches at lower offsets than earlier
batches. So the journal suspects a loss from other signs (`Cause`), and a survey then compares the batch headers of the
log with the acknowledged batches.

A batch is **lost** when it is not in the log, and either another batch covers its offset, or its offset is at or after
the log's end. If the exact offset of a batch was never known, the batch counts as lost only if the survey saw the whole
log, without a gap, from the batch's lowest possible offset on. Deletions that the topic's configuration asks for are no
losses. If the offset of a batch is before the log's start, retention deleted the batch. If the offset is within the
log, and no other batch covers it, compaction deleted the batch.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.history.identity import BatchId, BatchKind, LogBatch, add_sequence, sequence_distance

_RELEASED: Final = 1 << 15
"""At least this many offsets of released batches are kept."""

_BEYOND: Final = 2**63 - 1
"""An offset after every other offset."""


class Cause(enum.Enum):
    """The sign that raised a suspicion."""

    ACK = "ack"
    """A broker acknowledged a batch at an offset that is not above the offset of an earlier acknowledged batch."""
    SEQUENCE = "sequence"
    """The leader lacks sequences that were acknowledged."""
    UNKNOWN_PRODUCER = "unknown producer"
    """The broker forgot the producer, and retention is not the cause (KAFKA-5793)."""
    LOG_END = "log end"
    """The log ends before an acknowledged batch."""
    TOPIC_ID = "topic id"
    """The topic was recreated."""


@dataclass(frozen=True, slots=True)
class AckedBatch:
    """A batch that the cluster acknowledged.

    Attributes:
        identity: Id of the batch.
        base_offset: First offset of the batch, or a lower bound of this offset.
        exact: Whether `base_offset` is exact, and not only a lower bound.
    """

    identity: BatchId
    base_offset: int
    exact: bool = True

    @property
    def next_offset(self) -> int:
        """Offset after the batch's last record."""
        return self.base_offset + self.identity.count


class Released:
    """Offsets of released batches: acknowledged batches that the spool has deleted. The spool has kept their marks.

    Attributes:
        complete_from: This object has all released batches at or after this offset. `_BEYOND`: at any offset, the
            object may lack released batches.
    """

    __slots__ = ("_offsets", "complete_from")

    def __init__(self) -> None:
        self.complete_from = _BEYOND
        self._offsets = array("q")

    def note(self, base_offset: int, forgotten_offset: int) -> None:
        """Remember the offset of a released batch. The offset comes from the mark (log entry) about the batch in the
        spool.

        Args:
            base_offset: Base offset of the batch.
            forgotten_offset: Before this offset, the partition's log may have batches for which the spool has no mark
                (log entry).
        """
        offsets = self._offsets
        if not offsets:
            self.complete_from = forgotten_offset if forgotten_offset >= 0 else _BEYOND
        while offsets and offsets[-1] >= base_offset:
            offsets.pop()  # the log lost these batches in a truncation that a survey has examined
        offsets.append(base_offset)
        if len(offsets) > 2 * _RELEASED:
            del offsets[:_RELEASED]
            self.complete_from = max(self.complete_from, offsets[0])

    def since(self, offset: int) -> Sequence[int] | None:
        """The offsets of released batches from `offset` on, ascending; None if this object may lack some of them."""
        if offset < self.complete_from:
            return None
        return self._offsets[bisect_left(self._offsets, offset) :]

    def cut(self, end_offset: int) -> None:
        """Drop the offsets at and after `end_offset`. The batches at these offsets are lost, because the log once ended
        at `end_offset`.
        """
        while self._offsets and self._offsets[-1] >= end_offset:
            self._offsets.pop()

    def forget(self) -> None:
        """Drop all offsets."""
        self.complete_from = _BEYOND
        del self._offsets[:]


@dataclass(frozen=True, slots=True)
class Loss:
    """The result of a survey.

    Attributes:
        indexes: Indexes of the acknowledged batches that are lost, ascending.
        first_offset: First lost offset, -1 when nothing is lost.
        last_offset: Last lost offset (inclusive), -1 when nothing is lost.
        records: Number of records in the lost batches, and in older batches whose loss follows from the sequences.
        moved: The batches that are in the log, but not at their acknowledged offset. Maps each batch's index to its
            offset in the log.
        oldest_known: Whether the loss may include batches older than any that the survey searched for. This is so if
            the oldest of them is lost, and nothing shows how many records before it are lost, too.
        released_there: Whether the log has a batch of this lane (this producer) at each offset in `Survey.released`.
            Offsets before the log's start do not count.
        ours_until: End (exclusive) of the offsets that batches of this lane cover without a gap, beginning at
            `Survey.doubted_from`. -1 if the survey did not check this, or if no batch of this lane covers
            `Survey.doubted_from`.
    """

    indexes: tuple[int, ...]
    first_offset: int
    last_offset: int
    records: int
    moved: dict[int, int]
    oldest_known: bool
    ours_until: int = -1
    released_there: bool = False


@dataclass(slots=True)
class Survey:
    """Finds out from the log's batch headers which acknowledged batches are in the log.

    Attributes:
        acked: The acknowledged batches, in the order of their acknowledgement.
        next_offset: Where the next page starts.
        end_offset: End of the log (exclusive), which may be above the high watermark.
        log_start_offset: The log's start.
        from_offset: First offset at which the log may have changed; -1 when unknown. Lost batches may have been
            appended a second time at or after this offset. This offset may be lower than the offset of the oldest
            acknowledged batch.
        ours: Producer ids that only batches of this lane (the producer's log in the spool) have. A transactional batch
            with an id in `ours` counts only if the commit marker of its transaction is in the log.
        doubted_from: From this offset on, the survey checks whether batches with a producer id in `ours` cover every
            offset. -1: no check.
        released: Base offsets, in ascending order, of the batches of this lane that the spool has deleted and that
            begin at or after `doubted_from`. None if some of the offsets are unknown.
        complete: Whether the survey saw no gap between batches. If so, compaction has removed no batch.
    """

    acked: Sequence[AckedBatch]
    end_offset: int
    log_start_offset: int
    from_offset: int = -1
    ours: frozenset[int] = frozenset()
    doubted_from: int = -1
    released: Sequence[int] | None = None
    complete: bool = True
    next_offset: int = field(init=False)
    _found: dict[int, int] = field(default_factory=dict)
    _taken: set[int] = field(default_factory=set)
    _wanted: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _places: list[tuple[int, int]] = field(default_factory=list)
    _begin: int = field(init=False)
    _ours_until: int = field(init=False)
    _checked: int = 0
    _misses: bool = False
    _before: _Before | None = None
    _open: _Transactions = field(init=False)

    def __post_init__(self) -> None:
        """Begin right before the oldest batch, or at the log's start if the log begins later."""
        oldest = min((batch.base_offset for batch in self.acked), default=self.end_offset)
        if self.from_offset >= 0:
            oldest = min(oldest, self.from_offset)
        self._begin = max(self.log_start_offset, min(oldest, self.end_offset))
        # Include the batch before the oldest batch. Its sequences show how many records are missing between the two
        # batches.
        self.next_offset = max(self.log_start_offset, self._begin - 1)
        self._ours_until = self.doubted_from
        self._open = _Transactions()
        if self.acked:
            self._before = _Before(self.acked, self._begin)
        self._places = sorted((batch.base_offset, index) for index, batch in enumerate(self.acked))
        for index, batch in enumerate(self.acked):
            identity = batch.identity
            self._wanted[identity.producer_id, identity.producer_epoch, identity.base_sequence] = index

    @property
    def done(self) -> bool:
        """Whether the survey has seen the log up to its end."""
        return self.next_offset >= self.end_offset

    def page(self, batches: Iterable[LogBatch], *, next_offset: int, log_start_offset: int) -> None:
        """Take one page.

        Args:
            batches: The page's batches, in offset order.
            next_offset: Where the page ends (exclusive).
            log_start_offset: The log start offset when the page was read.
        """
        self.log_start_offset = max(self.log_start_offset, log_start_offset)
        for base_offset, last_offset, producer_id, epoch, base_sequence, kind in batches:
            if last_offset < self.next_offset:
                continue
            self.complete = self.complete and base_offset <= max(self.next_offset, self._begin)
            if self._before is not None:
                count = last_offset - base_offset + 1
                self._before.see(BatchId(producer_id, epoch, base_sequence, count), base_offset)
            ours = producer_id in self.ours
            if ours:
                self._open.see(producer_id, base_offset, kind)
                if base_offset <= self._ours_until:
                    self._ours_until = max(self._ours_until, last_offset + 1)
            self._check_released(base_offset if ours else -1, last_offset)
            index = self._wanted.get((producer_id, epoch, base_sequence))
            if index is not None:
                self._found.setdefault(index, base_offset)
            first = bisect_left(self._places, (base_offset, -1))
            end = bisect_left(self._places, (last_offset + 1, -1))
            self._taken.update(number for _, number in self._places[first:end] if number != index)
            self.next_offset = last_offset + 1
        self.next_offset = max(self.next_offset, next_offset, self.log_start_offset)

    def _check_released(self, base_offset: int, last_offset: int) -> None:
        """Compare a batch of the log with the next released batches (deleted from the spool), up to `last_offset`. Each
        of them must begin where the batch of the log begins.

        `base_offset` is the base offset of the batch of the log; -1 if another producer wrote the batch.
        """
        released = self.released or ()
        while self._checked < len(released) and released[self._checked] <= last_offset:
            self._misses |= self.log_start_offset <= released[self._checked] != base_offset
            self._checked += 1

    def _is_released(self, base_offset: int) -> bool:
        """Whether a released batch begins at this offset."""
        released = self.released or ()
        at = bisect_left(released, base_offset)
        return at < len(released) and released[at] == base_offset

    def _is_gone(self, index: int, batch: AckedBatch) -> bool:
        if not batch.exact:
            # The batch was at `base_offset` or at a later offset. So the batch counts as lost only if the survey saw
            # the whole log from `base_offset` on.
            return self.complete and batch.base_offset >= self.log_start_offset
        if batch.next_offset <= self.log_start_offset:
            return False
        return index in self._taken or batch.base_offset >= self.end_offset

    @property
    def any_left(self) -> bool:
        """Whether a batch from before the loss is still at its offset. If so, the topic was not recreated."""
        end = 0
        for index, batch in enumerate(self.acked):
            if batch.base_offset < end:
                break  # acknowledged after the loss
            if batch.exact and self._found.get(index) == batch.base_offset:
                return True
            end = batch.next_offset
        return False

    def loss(self) -> Loss:
        """The result, once the survey is done."""
        lost = [
            index
            for index, batch in enumerate(self.acked)
            if index not in self._found and self._is_gone(index, batch)
        ]
        moved = {i: at for i, at in self._found.items() if at != self.acked[i].base_offset}
        first_offset = min((self.acked[i].base_offset for i in lost), default=-1)
        records = sum(self.acked[i].identity.count for i in lost)
        oldest_known = bool(lost) and lost[0] == 0
        before = self._before
        missing = None if before is None or not oldest_known else before.missing()
        not_committed = self._open.not_committed
        ours_until = min((self._ours_until, *(at for at in not_committed if at >= self.doubted_from)))
        misses = self._misses or any(self._is_released(at) for at in not_committed)
        if before is not None and missing is not None:
            oldest_known = False
            if missing > 0:
                first_offset = min(first_offset, before.end_offset)
                records += missing
        return Loss(
            tuple(lost),
            first_offset,
            max((self.acked[i].next_offset - 1 for i in lost), default=-1),
            records,
            moved,
            oldest_known,
            ours_until if ours_until > self.doubted_from else -1,
            self.released is not None and self._checked == len(self.released) and not misses,
        )


class _Transactions:
    """Finds the batches whose transactions have no commit marker in the log. Only this lane's transactions count.

    The survey must not mistake a batch of an aborted transaction for the acknowledged batch that was at the same
    offset:

    1. The cluster commits a transaction of producer id 5 with a batch at offset 16, and the spool deletes the batch.
    2. An unclean election loses the batch. The next transaction of producer id 5 appends another batch at offset 16,
       then the client is killed.
    3. The client's successor aborts the second transaction. The log has a batch of producer id 5 at offset 16, but not
       the acknowledged batch.

    A transaction without a marker also counts as not committed, because it may still be aborted.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[int]] = {}
        self._aborted: list[int] = []

    def see(self, producer_id: int, base_offset: int, kind: BatchKind) -> None:
        """Take a batch of the log, in log order."""
        match kind:
            case BatchKind.TRANSACTIONAL:
                self._open.setdefault(producer_id, []).append(base_offset)
            case BatchKind.COMMIT:
                self._open.pop(producer_id, None)
            case BatchKind.ABORT:
                self._aborted += self._open.pop(producer_id, ())
            case BatchKind.PLAIN:
                pass

    @property
    def not_committed(self) -> list[int]:
        """Base offsets of the batches whose transactions were aborted, or have no marker yet."""
        return [*self._aborted, *(at for offsets in self._open.values() for at in offsets)]


class _Before:
    """Counts how many of the records that were acknowledged before the oldest remembered batch are lost.

    Sequences have no gaps. So if the log still has an older batch of the same producer id, its sequences show how many
    records are missing.
    """

    def __init__(self, acked: Sequence[AckedBatch], begin: int) -> None:
        self._oldest = acked[0]
        self._begin = begin
        self._remembered = {
            batch.identity.base_sequence: batch for batch in acked if self._ours(batch.identity)
        }
        self._last_sequence: int | None = None
        self._elsewhere: dict[int, int] = {}
        self.end_offset = -1
        """End (exclusive) of the newest batch that is older than `_oldest` and still at its offset; -1 if none exists.
        """

    def _ours(self, identity: BatchId) -> bool:
        oldest = self._oldest.identity
        return (identity.producer_id, identity.producer_epoch) == (oldest.producer_id, oldest.producer_epoch)

    def _stands_before(self, base_sequence: int) -> bool:
        return sequence_distance(base_sequence, self._oldest.identity.base_sequence) > 0

    def see(self, identity: BatchId, base_offset: int) -> None:
        """Take a batch of the log, in log order."""
        if not self._ours(identity) or not self._stands_before(identity.base_sequence):
            return
        end_offset = base_offset + identity.count
        last = self._last_sequence
        if end_offset <= self._begin or (
            last is not None
            and identity.base_sequence == add_sequence(last, 1)
            and end_offset <= self._oldest.base_offset
        ):
            self._last_sequence, self.end_offset = identity.last_sequence, end_offset
        elif identity.base_sequence not in self._remembered:
            self._elsewhere[identity.base_sequence] = identity.count

    def missing(self) -> int | None:
        """The number of missing records; None if the log has no older batch of the same producer id."""
        last = self._last_sequence
        if last is None:
            return None
        others = {
            **self._elsewhere,
            **{s: b.identity.count for s, b in self._remembered.items() if self._stands_before(s)},
        }
        accounted = sum(count for s, count in others.items() if sequence_distance(last, s) > 0)
        return sequence_distance(last, self._oldest.identity.base_sequence) - 1 - accounted

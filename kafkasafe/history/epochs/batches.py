"""Compares logs without epochs, by the CRCs of the batches that were read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kafkasafe.history.epochs.lineage import DEFAULT_LIMIT, LineageError
from kafkasafe.history.epochs.walk import Diverged, Outcome, Same, Unknown

# --- without epochs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The offsets and checksum of a batch that was read.

    Attributes:
        last_offset: Offset of the last record (inclusive).
        crc: CRC32C of the batch. The CRC covers neither the offset nor the leader epoch.
    """

    base_offset: int
    last_offset: int
    crc: int


class BatchMemory:
    """The newest batches that were read, oldest first. Bounded; not thread-safe."""

    __slots__ = ("_marks",)

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._marks: deque[BatchMark] = deque(maxlen=limit)

    @property
    def marks(self) -> tuple[BatchMark, ...]:
        """The remembered batches, oldest first."""
        return tuple(self._marks)

    def observe(self, mark: BatchMark) -> None:
        """Note a batch that was read. Drop remembered batches that overlap the new batch or come after it."""
        self.truncate(mark.base_offset)
        self._marks.append(mark)

    def truncate(self, offset: int) -> None:
        """Drop batches that end at or after `offset`."""
        while self._marks and self._marks[-1].last_offset >= offset:
            self._marks.pop()


def first_difference(
    ours: Sequence[BatchMark], theirs: Sequence[BatchMark], *, theirs_start: int, theirs_end: int
) -> Outcome:
    """Compare remembered batches with the leader's batches.

    Args:
        ours: The batches that were read, in offset order.
        theirs: The headers of all of the leader's batches in the range, in offset order.
        theirs_start: First offset of the range: the log start, or the offset where the caller began reading `theirs`.
        theirs_end: End of the range (exclusive): the log end, or the offset where the caller stopped reading `theirs`.

    Returns:
        Same, up to the last compared batch. Diverged at the first batch that the leader does not have with the same
        offsets and CRC. The divergent offset is exact if the leader's log ends at this offset, or if the batch has one
        record. Otherwise, the offset is inexact: the leader may still have the batch's first records. Unknown if no
        batch of `ours` starts at or after `theirs_start`. A batch that compaction rewrote, or that the broker
        recompressed with another codec, counts as different.
    """
    standing = {mark.base_offset: mark for mark in theirs}
    compared = [mark for mark in ours if mark.base_offset >= theirs_start]
    if not compared:
        return Unknown("no batch that was read is in the range to compare")
    last = compared[-1].last_offset
    for mark in compared:
        if standing.get(mark.base_offset) == mark:
            continue
        at = mark.base_offset
        # The divergent offset is exact if the leader's log ends at this offset, or if the batch has a single record.
        exact = theirs_end <= at or mark.last_offset == at
        known = min(theirs_end - 1, last)
        return Diverged(at, (at, last), (at, known) if known >= at else None, None, (), exact)
    return Same(last + 1)


MAX_REWRITTEN: Final = 16
"""The search (a `BatchWalk`) ends with `Unknown` after it has found more than this many batches that compaction
rewrote.
"""

_COMPACTED: Final = "the log was compacted: what was read cannot be compared"


class BatchWalk:
    """Fetches single batches to find the first batch that was read but is not in the leader's log.

    The caller fetches the batch that contains the offset `query()` and passes the batch to `answer()`, until `query()`
    returns None. The walk starts with the newest batch. If the leader has the newest batch, the walk assumes that the
    leader also has the earlier batches. The assumption fails only if other batches replaced the earlier batches, and
    then a writer sent the bytes of the newest batch again, at the same offset. If the leader lacks the newest batch, a
    binary search finds the first batch that the leader lacks. A walk takes at most 2 + log2(number of remembered
    batches) rounds, plus one round for each batch that compaction rewrote.
    """

    __slots__ = ("_bad", "_good", "_log_end", "_marks", "_position", "_skipped", "outcome", "round_trips")

    def __init__(
        self, marks: Iterable[BatchMark], *, position: int, log_start_offset: int, log_end_offset: int
    ) -> None:
        """Begin a walk.

        Args:
            marks: The batches that were read, in offset order.
            position: Next offset to read; the outcome covers only records before this offset.
            log_start_offset: The leader's log start; the walk does not compare batches before this offset.
            log_end_offset: The leader's log end; batches that end after this offset are missing.
        """
        self._marks = [m for m in marks if m.base_offset >= log_start_offset and m.base_offset < position]
        self._position, self._log_end = position, log_end_offset
        self._good = -1
        """Invariant: the leader has the batches up to this index (inclusive), and lacks the batches from index `_bad`
        on.
        """
        self._bad = next(
            (at for at, mark in enumerate(self._marks) if mark.last_offset >= log_end_offset),
            len(self._marks),
        )
        self._skipped = 0
        self.round_trips = 0
        self.outcome: Outcome | None = None
        if not self._marks:
            self.outcome = Unknown("no batch that was read is remembered and still in the log")
        self._conclude()

    def query(self) -> int | None:
        """An offset in the batch to fetch; None once `outcome` is set."""
        return None if self.outcome is not None else self._marks[self._asked].last_offset

    @property
    def _asked(self) -> int:
        newest = self._bad - 1
        return newest if self._good < 0 and self._bad == len(self._marks) else (self._good + self._bad) // 2

    def answer(self, last_offset: int, crc: int, *, rewritten: bool = False) -> Outcome | None:
        """Take the leader's batch that contains the queried offset; if no batch contains this offset, the next batch.

        Args:
            last_offset: Offset of the leader's batch's last record.
            crc: CRC of the leader's batch.
            rewritten: Whether compaction rewrote the batch. A rewritten batch cannot be compared.

        Raises:
            LineageError: The walk already has its outcome.
        """
        if self.outcome is not None:
            raise LineageError("an answer, but nothing was asked: the walk has its outcome")
        self.round_trips += 1
        at = self._asked
        mark = self._marks[at]
        if (mark.last_offset, mark.crc) == (last_offset, crc):
            self._good = at
        elif rewritten:
            del self._marks[at]
            self._bad -= 1
            self._skipped += 1
        else:
            self._bad = at
        self._conclude()
        return self.outcome

    def _conclude(self) -> None:
        if self.outcome is not None:
            return
        if self._skipped > MAX_REWRITTEN:
            self.outcome = Unknown(_COMPACTED)
            return
        if self._bad - self._good > 1:
            return
        if self._bad < len(self._marks):
            mark = self._marks[self._bad]
            at = mark.base_offset
            # The divergent offset is exact only if two conditions hold: the walk has compared the previous batch, and
            # the leader certainly does not have this batch's first record.
            adjoining = at == 0 or (self._good >= 0 and self._marks[self._good].last_offset + 1 == at)
            exact = adjoining and not self._skipped and (self._log_end <= at or mark.last_offset == at)
            last = self._position - 1
            standing = min(self._log_end - 1, last)
            self.outcome = Diverged(
                at, (at, last), (at, standing) if standing >= at else None, None, (), exact
            )
        elif self._marks:
            self.outcome = Same(min(self._marks[-1].last_offset + 1, self._position))
        else:
            self.outcome = Unknown(_COMPACTED)

    def __repr__(self) -> str:
        return f"<BatchWalk of {len(self._marks)} batches after {self.round_trips} rounds: {self.outcome or 'asking'}>"

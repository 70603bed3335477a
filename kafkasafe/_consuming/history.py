"""The history of the records that were read from one partition, made from the headers of fetched batches. The consumer
compares the leader's log with this history.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from kafkasafe.history.epochs import (
    UNDEFINED,
    BatchMark,
    BatchMemory,
    Lineage,
    LineageError,
    decode_topic_id,
)
from kafkasafe.history.memory import Remembered
from kafkasafe.history.remembered_offsets import FORMER_TOPIC_S
from kafkasafe.process.locks import new_lock

# Base offset, length, leader epoch, magic, CRC, attributes, last offset's delta.
_HEADER: Final = struct.Struct(">qiibIhi")
_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
_LOG_OVERHEAD: Final = 12
_MAGIC_2: Final = 2
# For a message in a format before 2: offset, length, CRC, magic, attributes.
_OLD_HEADER: Final = struct.Struct(">qiIbb")
_HAS_DELETE_HORIZON: Final = 0x40
_MOST_SKIPPED: Final = 100
"""Limit for the number of skipped ranges that are remembered. The newest ones are kept."""


class _Header(NamedTuple):
    """Fields of the header of a batch, or of a message in a format before 2.

    Attributes:
        base_offset: First offset. Exception: for a compressed message in a format before 2, the last offset, which is
            the only offset in the header.
        last_offset: Last offset (inclusive).
        epoch: Leader epoch, or -1.
        crc: Checksum.
        wrapped: Whether this is a compressed message in a format before 2, which may contain several records.
        rewritten: Whether compaction has rewritten the batch.
    """

    base_offset: int
    last_offset: int
    epoch: int
    crc: int
    wrapped: bool
    rewritten: bool


def headers(records: Any) -> Iterator[_Header]:
    """Yield the headers of all complete batches, without decoding records."""
    view = memoryview(records)
    at, size = 0, len(view)
    while size - at >= _OLD_HEADER.size:
        base, length, crc, magic, attributes = _OLD_HEADER.unpack_from(view, at)
        end = at + _LOG_OVERHEAD + length
        if length <= 0 or end > size:
            return
        if magic < _MAGIC_2:
            yield _Header(base, base, UNDEFINED, crc, wrapped=bool(attributes & 7), rewritten=False)
        elif length + _LOG_OVERHEAD >= _COUNT_AT + _COUNT.size:
            base, _, epoch, _, crc, attributes, last_delta = _HEADER.unpack_from(view, at)
            (count,) = _COUNT.unpack_from(view, at + _COUNT_AT)
            rewritten = count != last_delta + 1 or bool(attributes & _HAS_DELETE_HORIZON)
            yield _Header(base, base + last_delta, epoch, crc, wrapped=False, rewritten=rewritten)
        at = end


class FormerTopics:
    """The ids of deleted topics of one name. Metadata with the id of a deleted topic are outdated.

    But ids do not show which of two topics is newer:

    1. The topic with id B is deleted and created again with id C. Another member of the group reads C, and commits an
       offset.
    2. All metadata of this consumer still contain id B. So the consumer concludes that topic B replaced topic C, and
       that C was deleted.
    3. All later metadata contain id C. If topic C still counted as deleted, the consumer would never read the partition
       again.

    So if the metadata contain the same former id for `FORMER_TOPIC_S` seconds without a break, the topic with this id
    counts as existing again.

    Attributes:
        ids: The ids.
    """

    __slots__ = ("_named", "_since", "ids")

    def __init__(self, ids: frozenset[bytes] = frozenset()) -> None:
        self.ids = ids
        self._named: bytes | None = None
        """The former topic id that all metadata have contained since the time `_since` (monotonic seconds)."""
        self._since = 0.0

    def copy(self) -> FormerTopics:
        return FormerTopics(self.ids)

    def succeeded(self, former: bytes, by: bytes) -> None:
        """Note that the topic with the id `by` has replaced the topic with the id `former`."""
        self.ids = (self.ids | {former}) - {by}

    def name(self, topic_id: bytes | None, now: float) -> bool:
        """Note the topic id in the metadata; None: not known, or several ids. Return whether it is the id of a former
        topic.
        """
        if topic_id not in self.ids:
            self._named = None
            return False
        if topic_id != self._named:
            self._named, self._since = topic_id, now
        if now - self._since < FORMER_TOPIC_S:
            return True
        self.ids -= {topic_id}
        return False


class HistoryCopy(NamedTuple):
    """A copy of a history, for a procedure that runs while the history may change.

    Attributes:
        lineage: Leader epochs with their first offsets.
        marks: The latest batches that were read.
        topic_id: Id of the topic that was read.
        former: Deleted topics with the same name.
    """

    lineage: Lineage
    marks: tuple[BatchMark, ...]
    topic_id: bytes | None
    former: FormerTopics


class History:
    """Describes the records that were read from one partition.

    The polling thread changes the history. For commits, kafka-python's I/O thread copies the history (`copied`), so the
    polling thread holds a lock while it changes `lineage`.

    Attributes:
        lineage: Leader epochs of the records that were read.
        marks: The latest batches that were read, for logs that cannot be compared by leader epochs alone.
        topic_id: Id of the topic that was read. If the topic is recreated, the attribute keeps the old id until the
            application has decided where to continue.
        former: Deleted topics with the same name. kafka-python's metadata may still contain their ids.
    """

    __slots__ = ("_lock", "_skipped", "former", "lineage", "marks", "topic_id")

    def __init__(self, known: Remembered | None = None) -> None:
        self._lock = new_lock()
        self.lineage = Lineage() if known is None else known.lineage.copy()
        self.marks = BatchMemory()
        self.topic_id: bytes | None = None if known is None else known.topic_id
        self.former = FormerTopics()
        self._skipped: list[tuple[int, int]] = [] if known is None else list(known.skipped)
        """Ranges of offsets that a seek has skipped. The consumer does not know the leader epochs in skipped ranges."""
        for mark in () if known is None else known.marks:
            self.marks.observe(mark)

    def copied(self, end: int | None = None) -> tuple[Lineage, bytes | None]:
        """Return a copy of the lineage, and the topic id. Any thread may call it.

        Args:
            end: Leave out records from this offset on; None: keep everything.
        """
        with self._lock:
            return self._copy(end), self.topic_id

    def _copy(self, end: int | None) -> Lineage:
        lineage = self.lineage.copy()
        if end is not None:
            lineage.truncate(self._read_before(end))
        return lineage

    def for_commit(self, end: int) -> tuple[Lineage, bytes | None]:
        """Return two values for a commit of this offset: the lineage and the topic id. Any thread may call it.

        The text format of a lineage has no skipped ranges. So if a new epoch begins directly after a skipped range, the
        lineage gets an entry without an epoch for the skipped range.
        """
        with self._lock:
            lineage = self._copy(end)
            if self._skipped:
                lineage = _without_skipped(lineage, self._skipped)
            return lineage, self.topic_id

    def read(self, position: int) -> HistoryCopy:
        lineage, topic_id = self.copied(position)
        return HistoryCopy(lineage, self.marks.marks, topic_id, self.former.copy())

    def _read_before(self, offset: int) -> int:
        """Return where the records that were read before `offset` end. If a seek has skipped the records directly below
        `offset`, the result is the start of the skipped range; otherwise the result is `offset` itself. Example:

        1. The consumer reads up to offset 10, seeks to 35 and reads on. In the log, the leader epoch changes at offsets
           20 and 30.
        2. In the lineage, the first epoch ends at 35, because the consumer has read no record of a newer epoch at a
           lower offset.
        3. The consumer seeks to 25. Records 20 to 24 have the second epoch in the log, but the first epoch in the
           lineage. The difference is no loss, because the consumer has read none of the records 20 to 24.
        """
        return next((start for start, end in self._skipped if start < offset <= end), offset)

    def _note_read(self, start: int, end: int, former_end: int | None) -> None:
        """Note that this range was read, so it no longer counts as skipped. If the range begins after the end of the
        lineage, the gap before the range counts as skipped from now on.

        Args:
            start: Offset that was fetched.
            end: Offset after the last record.
            former_end: Where the lineage ended; None if it was empty.
        """
        if former_end is not None and former_end < start:
            self._skipped = [*self._skipped[1 - _MOST_SKIPPED :], (former_end, start)]
        elif self._skipped:
            left = [part for s, e in self._skipped for part in ((s, min(e, start)), (max(s, end), e))]
            self._skipped = [(s, e) for s, e in left if s < e]

    def remembered(self, end: int | None) -> Remembered:
        """Return the history in the form that the consumer keeps for a later assignment.

        Args:
            end: Leave out records at and after this offset; None: keep everything.
        """
        lineage, topic_id = self.copied(end)
        marks = tuple(mark for mark in self.marks.marks if mark.base_offset < lineage.end_offset)
        skipped = tuple(self._skipped_before(lineage.end_offset))
        return Remembered(topic_id, lineage, marks, skipped)

    def reaches_below(self, position: int) -> bool:
        """Return whether records before this position were read."""
        return bool(self.lineage.entries) and self.lineage.start_offset < position

    def is_of_another(self, topic_id: bytes | None) -> bool:
        """Return whether this is the history of a topic with another id; False if one of the two ids is unknown."""
        return None not in {topic_id, self.topic_id} and topic_id != self.topic_id

    def adopt(self, topic_id: bytes | None) -> None:
        """Note the id of the present topic of this name; None if the brokers do not report ids."""
        if topic_id is None:
            return
        if self.topic_id is not None and self.topic_id != topic_id:
            self.former.succeeded(self.topic_id, by=topic_id)
        with self._lock:
            self.topic_id = topic_id

    def cut(self, end: int) -> None:
        """Forget the records at and after offset `end`."""
        with self._lock:
            self.lineage.truncate(self._read_before(end))
            self.marks.truncate(end)
            self._skipped = self._skipped_before(end)

    def _skipped_before(self, end: int) -> list[tuple[int, int]]:
        return [each for each in self._skipped if each[1] < end]

    def forget_before(self, start: int) -> None:
        """Forget the leader epochs before offset `start`, because the log begins there now."""
        with self._lock:
            self.lineage.forget_before(start)

    def restart(self, start: int) -> None:
        """Forget the leader epochs. The consumer reads on at offset `start`."""
        with self._lock:
            self.lineage, self._skipped = Lineage((), start), []

    def forget(self) -> None:
        """Forget everything but the topic."""
        with self._lock:
            self.lineage, self.marks, self._skipped = Lineage(), BatchMemory(), []

    def forget_unread_topic(self) -> None:
        """If no record was read, forget the topic's id. Without a topic id, the position belongs to whichever topic now
        has the name.
        """
        if not self.lineage.entries:
            with self._lock:
                self.topic_id = None

    def restore(self, metadata: str | None, epoch: int, offset: int) -> None:
        """Replace the history with the history that a committed offset carries. `_restored` describes when the present
        history is kept instead.
        """
        with self._lock:
            lineage, topic_id = _restored(metadata, epoch, offset, self.lineage)
            if lineage is not self.lineage:
                # The member that committed the offset may have read another topic of this name, or another log.
                self.lineage, self.topic_id, self.marks = lineage, topic_id, BatchMemory()
                self._skipped = []

    def observe(self, records: Any, fetched: int, *, marked: bool) -> bool:
        """Note the leader epochs of fetched batches. Return False if the epochs contradict the records that were read
        before.

        Args:
            records: Bytes of the batches.
            fetched: The offset that was fetched. The first batch in `records` may begin at a lower offset.
            marked: Whether to remember the batches' offsets and checksums, too.
        """
        with self._lock:
            return self._observe(records, fetched, marked=marked)

    def _observe(self, records: Any, fetched: int, *, marked: bool) -> bool:
        run_epoch, run_start, run_end = UNDEFINED, -1, -1
        expected = fetched
        former_end = self.lineage.end_offset if self.lineage.entries else None
        for batch in headers(records):
            start, end = max(batch.base_offset, fetched), batch.last_offset + 1
            if end <= start:
                continue
            if marked or batch.epoch < 0:
                # The header of an old compressed message contains only the message's last offset. Assume that the
                # message begins directly after the preceding message.
                base = expected if batch.wrapped else batch.base_offset
                self.marks.observe(BatchMark(min(base, batch.last_offset), batch.last_offset, batch.crc))
            expected = end
            if batch.wrapped:
                start = max(min(base, batch.last_offset), fetched)
            if batch.epoch == run_epoch and run_start >= 0:
                run_end = end
                continue
            if run_start >= 0 and not self.lineage.observe(max(run_epoch, UNDEFINED), run_start, run_end):
                return False
            run_epoch, run_start, run_end = batch.epoch, start, end
        if expected > fetched:
            self._note_read(fetched, expected, former_end)
        return run_start < 0 or self.lineage.observe(max(run_epoch, UNDEFINED), run_start, run_end)


def _without_skipped(lineage: Lineage, skipped: list[tuple[int, int]]) -> Lineage:
    """Return a copy of the lineage. If a new epoch begins directly after a skipped range, the copy names no epoch for
    the skipped range, because the new epoch may have begun within the range.
    """
    begins = {end: start for start, end in skipped}
    entries: list[tuple[int, int]] = []
    for epoch, start in lineage.entries:
        begin = begins.get(start)
        if begin is not None and entries and UNDEFINED not in {epoch, entries[-1][0]}:
            entries.append((UNDEFINED, max(begin, entries[-1][1])))
        entries.append((epoch, start))
    return Lineage(entries, lineage.end_offset)


def _restored(
    metadata: str | None, epoch: int, offset: int, remembered: Lineage
) -> tuple[Lineage, bytes | None]:
    """Return the history that a committed offset carries, and the topic id (None if the offset carries none).

    If the offset carries no history, but fits `remembered`, return the object `remembered`, not a copy.
    """
    try:
        lineage, topic_id = Lineage.decode(metadata or ""), decode_topic_id(metadata or "")
    except LineageError:
        pass  # the commit metadata are the application's, or empty
    else:
        lineage.truncate(offset)
        return lineage, topic_id
    if remembered.entries and (
        remembered.epoch_at(offset - 1) == epoch or (epoch == UNDEFINED and offset <= remembered.end_offset)
    ):
        return remembered, None
    # Other members have read the partition since the remembered history ended.
    return Lineage.resumed(epoch, offset), None

"""The log of one replica of a partition: batches, leader epochs, producers, transactions. Pure.

This module uses one replica only; `partition` uses several. End offsets are exclusive.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kafkasafe.record.batch import decode, encode_control, stamp_identity
from kafkasafe.testing.fake.checks import StoredBatch, store
from kafkasafe.testing.fake.producers import Producers

_ABORT: Final = 0
_COMMIT: Final = 1
_MARKER: Final = bytes(6)  # version 0, coordinator epoch 0
_UNKNOWN: Final = (-1, -1)


@dataclass(frozen=True, slots=True)
class Aborted:
    """An aborted transaction: its producer, its first offset, and the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class ReplicaLog:
    """One replica's log.

    Attributes:
        batches: The batches, in the order of their offsets.
        epochs: (leader epoch, its first offset), ascending.
        producers: The remembered state of producers.
        start_offset: First readable offset.
        high_watermark: The high watermark of this replica.
    """

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.epochs: list[tuple[int, int]] = []
        self.producers = Producers()
        self.aborted: list[Aborted] = []
        self.start_offset = 0
        self.high_watermark = 0
        self._end_offset = 0
        # First offset of a transaction -> offset of its marker, or None. Contains transactions whose end
        # `read_committed` readers may not see yet.
        self._unstable: dict[int, int | None] = {}

    @property
    def end_offset(self) -> int:
        """The offset after the last record. The next record is appended at this offset."""
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        return sum(len(batch.data) for batch in self.batches)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction whose marker is not replicated; without such a transaction, the
        high watermark. The result is never before the log start offset.
        """
        undecided = [
            first
            for first, marker in self._unstable.items()
            if marker is None or marker >= self.high_watermark
        ]
        return max(self.start_offset, min([self.high_watermark, *undecided]))

    def has(self, offset: int) -> bool:
        """Whether a reader can start at this offset. A reader can also start at the end of the log."""
        return self.start_offset <= offset <= self._end_offset

    def segments(self, most_bytes: int) -> list[list[StoredBatch]]:
        """The batches, grouped by segment as in a broker: a batch that does not fit begins a new segment."""
        found: list[list[StoredBatch]] = []
        size = 0
        for batch in self.batches:
            if not found or size + len(batch.data) > most_bytes:
                found.append([])
                size = 0
            found[-1].append(batch)
            size += len(batch.data)
        return found

    # -- Writing -----------------------------------------------------------------------------------------------------

    def append(self, data: bytes, leader_epoch: int, append_time_ms: int | None) -> StoredBatch:
        """Appends a client's batch that was already checked."""
        batch = store(data, self._end_offset, leader_epoch, append_time_ms=append_time_ms)
        self._take(batch)
        return batch

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        leader_epoch: int,
        now_ms: int,
    ) -> StoredBatch:
        """Appends the marker that ends a producer's transaction."""
        key = (0).to_bytes(2, "big") + (_COMMIT if commit else _ABORT).to_bytes(2, "big")
        made = encode_control([(key, _MARKER)], timestamp=now_ms)
        stamp_identity(made, producer_id, producer_epoch, -1, transactional=True)
        batch = store(bytes(made), self._end_offset, leader_epoch)
        self._take(batch)
        return batch

    def copy_from(self, leader: ReplicaLog) -> None:
        """Replicates: copies the leader's batches that this follower lacks."""
        if self._end_offset < leader.start_offset:
            self._reset(leader.start_offset)
            self.producers = leader.producers.copy()
            # A broker would get the producers' state from a snapshot, or from the leader's remaining batches.
            self.producers.restarted()
        for batch in leader.batches[self._index(leader.batches, self._end_offset) :]:
            self._take(batch)
        self.advance_high_watermark(leader.high_watermark)
        self.advance_start(leader.start_offset)

    def advance_high_watermark(self, offset: int) -> None:
        """Advances the high watermark to this offset, because all in-sync replicas have the records before it."""
        self.high_watermark = max(self.high_watermark, min(offset, self._end_offset))

    def _take(self, batch: StoredBatch) -> None:
        header = batch.header
        if header.base_offset < self._end_offset:
            raise AssertionError(f"{header.base_offset} is before the log's end, {self._end_offset}")
        self.batches.append(batch)
        self._end_offset = batch.end_offset
        self.assign_epoch(header.partition_leader_epoch, header.base_offset)
        if not header.is_control:
            self.producers.appended(header)
            if header.is_transactional:
                known = self.producers.get(header.producer_id)
                if known is not None and known.txn_first_offset is not None:
                    self._unstable.setdefault(known.txn_first_offset, None)
            return
        columns = decode(batch.data)
        key, value = columns.keys[0] or b"", columns.values[0] or b""
        first = self.producers.marked(header, int.from_bytes(value[2:6], "big", signed=True))
        if first is None:
            return
        self._unstable[first] = header.base_offset
        if int.from_bytes(key[2:4], "big") == _ABORT:
            self.aborted.append(Aborted(header.producer_id, first, header.base_offset))

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Begins a leader epoch at this offset, unless it has begun already."""
        if self.epochs and self.epochs[-1][0] >= epoch:
            return
        while self.epochs and self.epochs[-1][1] >= start_offset:
            self.epochs.pop()
        self.epochs.append((epoch, start_offset))

    def truncate(self, offset: int) -> None:
        """Removes the records at `offset` and after it, and the state derived from these records."""
        # The method is called whenever a follower appends records, so a call that removes nothing must be cheap.
        kept = (
            self.batches[: self._index(self.batches, offset)] if offset < self._end_offset else self.batches
        )
        if len(kept) < len(self.batches):
            old_start, old_high = self.start_offset, self.high_watermark
            before, old_producers = self.epochs, self.producers
            self._reset(kept[0].base_offset if kept else min(offset, self._end_offset))
            for batch in kept:
                self._take(batch)
            self.producers.recall(old_producers, self._end_offset)
            self.start_offset = min(old_start, self._end_offset)
            self.high_watermark = min(old_high, self._end_offset)
            self.epochs = before
        self.epochs = [entry for entry in self.epochs if entry[1] < self._end_offset]

    def advance_start(self, offset: int) -> None:
        """Moves the log start offset forward, so that records before it cannot be read. The state of producers is
        kept.
        """
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self.batches = [batch for batch in self.batches if batch.end_offset > offset]
        self._end_offset = max(self._end_offset, offset)
        self.high_watermark = max(self.high_watermark, offset)
        self.aborted = [one for one in self.aborted if one.last_offset >= offset]
        older = [epoch for epoch, start in self.epochs if start <= offset]
        self.epochs = [entry for entry in self.epochs if entry[1] > offset]
        if older:
            self.epochs.insert(0, (older[-1], offset))

    def _reset(self, offset: int) -> None:
        self.batches = []
        self.producers = Producers()
        self.aborted = []
        self._unstable = {}
        self.epochs = []
        self.start_offset = self._end_offset = offset
        self.high_watermark = min(self.high_watermark, offset)

    # -- Reading -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _index(batches: list[StoredBatch], offset: int) -> int:
        """Index of the first batch that ends after an offset."""
        return bisect_right(batches, offset, key=lambda batch: batch.header.last_offset + 1)

    def read(self, offset: int, below: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Returns complete batches that end at or before `below`, beginning with the batch that contains `offset`."""
        parts: list[bytes] = []
        size = 0
        for batch in self.batches[self._index(self.batches, offset) :]:
            if batch.end_offset > below:
                break
            if size + len(batch.data) > max_bytes and not (at_least_one and not parts):
                break
            parts.append(batch.data)
            size += len(batch.data)
        return b"".join(parts)

    def aborted_between(self, first: int, end: int) -> list[Aborted]:
        """The aborted transactions that overlap the offsets from `first` to `end` (exclusive)."""
        return [one for one in self.aborted if one.last_offset >= first and one.first_offset < end]

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, its end offset) of the largest leader epoch up to the given one; (-1, -1) if unknown."""
        if epoch < 0 or not self.epochs:
            return _UNKNOWN
        if epoch == self.epochs[-1][0]:
            return epoch, self._end_offset
        if epoch > self.epochs[-1][0]:
            return _UNKNOWN
        if epoch < self.epochs[0][0]:
            return epoch, self.epochs[0][1]
        at = bisect_right(self.epochs, epoch, key=lambda entry: entry[0])
        return self.epochs[at - 1][0], self.epochs[at][1]

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record at an offset; -1 if unknown."""
        found = -1
        for epoch, start in self.epochs:
            if start <= offset:
                found = epoch
        return found

    @property
    def latest_epoch(self) -> int:
        """The newest epoch in the log, or -1."""
        return self.epochs[-1][0] if self.epochs else -1

    def first_since(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record whose timestamp is `timestamp` or later, or None."""
        return self._search(lambda stamp: stamp >= timestamp)

    def latest_record(self) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record with the largest timestamp."""
        newest = max((batch.header.max_timestamp for batch in self.batches), default=-1)
        return self._search(lambda stamp: stamp == newest) if newest >= 0 else None

    def _search(self, fits: Callable[[int], bool]) -> tuple[int, int, int] | None:
        for batch in self.batches:
            columns = decode(batch.data)
            for offset, stamp in zip(columns.offsets, columns.timestamps, strict=True):
                if offset >= self.start_offset and fits(stamp):
                    return offset, stamp, batch.header.partition_leader_epoch
        return None

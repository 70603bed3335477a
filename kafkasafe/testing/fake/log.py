"""The log of one replica of a partition: batches, leader epochs, producers, transactions. Pure.

Nothing here knows of other replicas; `partition` does. Offsets are exclusive at the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kafkasafe._core.batch import decode, encode_control, stamp_identity
from kafkasafe.testing.fake.checks import StoredBatch, store
from kafkasafe.testing.fake.producers import Producers

__all__ = ["Aborted", "ReplicaLog"]

_ABORT: Final = 0
_COMMIT: Final = 1
_UNKNOWN: Final = (-1, -1)


@dataclass(frozen=True, slots=True)
class Aborted:
    """A transaction that was aborted: its producer, its first offset, and that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class ReplicaLog:
    """One replica's log.

    Attributes:
        batches: In the order of their offsets.
        epochs: (leader epoch, its first offset), ascending.
        producers: What is remembered of producers.
        aborted: Aborted transactions.
        start_offset: First offset that may be read.
        high_watermark: As this replica knows it.
    """

    def __init__(self) -> None:
        self.batches: list[StoredBatch] = []
        self.epochs: list[tuple[int, int]] = []
        self.producers = Producers()
        self.aborted: list[Aborted] = []
        self.start_offset = 0
        self.high_watermark = 0
        self._end_offset = 0
        # Transactions whose end may not be known to readers yet: first offset -> offset of the marker, if it is there.
        self._unstable: dict[int, int | None] = {}

    @property
    def end_offset(self) -> int:
        """The offset after the last record: where the next one goes."""
        return self._end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(len(batch.data) for batch in self.batches)

    @property
    def last_stable_offset(self) -> int:
        """Where the first transaction begins whose end is not decided and replicated; else the high watermark."""
        undecided = [
            first
            for first, marker in self._unstable.items()
            if marker is None or marker >= self.high_watermark
        ]
        return min([self.high_watermark, *undecided])

    def has(self, offset: int) -> bool:
        """Whether it can be read from there on, be it at its end."""
        return self.start_offset <= offset <= self._end_offset

    def segments(self, most_bytes: int) -> list[list[StoredBatch]]:
        """The batches by segment, as a broker files them: a new one begins where the next batch has no room."""
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
        """Appends a batch of a client, which was checked."""
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
        coordinator_epoch: int,
        now_ms: int,
    ) -> StoredBatch:
        """Appends the marker that ends a producer's transaction."""
        key = (0).to_bytes(2, "big") + (_COMMIT if commit else _ABORT).to_bytes(2, "big")
        value = (0).to_bytes(2, "big") + coordinator_epoch.to_bytes(4, "big", signed=True)
        made = encode_control([(key, value)], timestamp=now_ms)
        stamp_identity(made, producer_id, producer_epoch, -1, transactional=True)
        batch = store(bytes(made), self._end_offset, leader_epoch)
        self._take(batch)
        return batch

    def copy_from(self, leader: ReplicaLog) -> None:
        """Takes what the leader has and this follower has not, as replication does."""
        if self._end_offset < leader.start_offset:
            self._reset(leader.start_offset)
            self.producers = leader.producers.copy()
            self.producers.restarted()  # it comes with a snapshot, or is read from what the leader has left
        for batch in leader.batches[self._index(leader.batches, self._end_offset) :]:
            self._take(batch)
        self.high_watermark = max(self.high_watermark, min(leader.high_watermark, self._end_offset))
        self.advance_start(leader.start_offset)

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
        """A leader epoch begins here, unless it has begun already."""
        if self.epochs and self.epochs[-1][0] >= epoch:
            return
        while self.epochs and self.epochs[-1][1] >= start_offset:
            self.epochs.pop()
        self.epochs.append((epoch, start_offset))

    def truncate(self, offset: int) -> None:
        """Drops everything from an offset on, and what was known from it."""
        # A follower is asked at each append: only what goes may cost something.
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
        """Records before an offset can no longer be read. Producers stay known."""
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

    def restart(self) -> None:
        """The broker was started again and has read its files."""
        self.producers.restarted()

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
        """Of the first batch that ends after an offset."""
        return bisect_right(batches, offset, key=lambda batch: batch.header.last_offset + 1)

    def read(self, offset: int, below: int, max_bytes: int, *, at_least_one: bool) -> bytes:
        """Whole batches from the one that holds `offset` on, those that end at or before `below`.

        Args:
            offset: Where to begin.
            below: Batches that end after it are left out.
            max_bytes: At most so many bytes.
            at_least_one: The first batch comes even if it is larger.
        """
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
        """Aborted transactions that records in a range may belong to."""
        return [one for one in self.aborted if one.last_offset >= first and one.first_offset < end]

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(largest epoch up to the one asked for, its end offset), or (-1, -1) for unknown."""
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
        """Leader epoch of the record at an offset, -1 if unknown."""
        found = -1
        for epoch, start in self.epochs:
            if start <= offset:
                found = epoch
        return found

    @property
    def latest_epoch(self) -> int:
        """The newest epoch in the log, -1 if there is none."""
        return self.epochs[-1][0] if self.epochs else -1

    def first_since(self, timestamp: int) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record that is not older; None if there is none."""
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

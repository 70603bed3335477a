"""Packs rows of many partitions into record batches for each partition, one Arrow batch at a time.

Calls into numpy and Arrow take most of the time, so the packer makes as few calls as possible. The packer sorts the
rows of an Arrow batch by partition, and computes each row's offset delta in the record batch of its partition. Then the
packer encodes all rows in one pass, and gives each record batch its piece of the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkasafe.packages import pyarrow_for
from kafkasafe.record import arrow_encode, batch
from kafkasafe.record.arrow_encode import Rows
from kafkasafe.record.batch import Compression

_INT16_MAX: Final = 0x7FFF

_arrow: Any = pyarrow_for("An Arrow table")
_HEADERS: Final = _arrow.list_(_arrow.struct([("key", _arrow.string()), ("value", _arrow.binary())]))


class PackedBatch(NamedTuple):
    """A whole batch, as `batch.frame` makes it.

    Attributes:
        place: Topic and partition.
        rows: Number of rows in the batch.
    """

    place: tuple[str, int]
    rows: int
    data: bytearray


@dataclass(slots=True)
class _Open:
    """A batch that is not full yet.

    While rows are planned, `rows` and `bytes` also count rows that `body` does not contain yet. `body` begins with room
    for the header.
    """

    place: tuple[str, int]
    timestamp: int
    rows: int = 0
    bytes: int = 0  # upper bound of the size before compression
    body: bytearray = field(default_factory=lambda: bytearray(batch.HEADER_BYTES))

    def plan(self, rows: int, size: int, now: int) -> None:
        """Counts rows that `put` adds later. The first planned rows determine the timestamp."""
        if not self.rows:
            self.timestamp = now
        self.rows += rows
        self.bytes += size

    def put(self, encoded: memoryview) -> None:
        self.body += encoded


class _Piece(NamedTuple):
    """The sorted rows from `at` to `end` go into `batch`. `full` says whether these rows fill the batch."""

    batch: _Open
    at: int
    end: int
    full: bool


class ArrowPacker:
    """Collects rows by partition, and yields batches in each partition's order.

    Args:
        batch_bytes: Largest size of a batch before compression; a larger record gets a batch of its own.
        held_bytes: Approximate limit for the bytes of all held rows. Above this limit, the packer also yields batches
            that are not full.
        head_rows: Largest number of rows in the first batch of a partition, the *head*. The sender reads the head back
            from the log. See `head_from`.
        head_from: `head_rows` applies only to a partition that gets more than this many rows in its first `add`.
        head_base: Function that computes the base timestamp of a head from the timestamp of the head's records. All
            other batches (and, if `head_base` is None, heads too) have the records' timestamp as their base timestamp.
        compression: How to compress batches.
        compression_level: Level in the codec's own scale; None for the codec's default.
    """

    def __init__(
        self,
        *,
        batch_bytes: int,
        held_bytes: int,
        head_rows: int,
        head_from: int = 0,
        head_base: Callable[[int], int] | None = None,
        compression: Compression = Compression.NONE,
        compression_level: int | None = None,
    ) -> None:
        self._batch_bytes = batch_bytes
        self._held_bytes = held_bytes
        self._head_rows = head_rows
        self._head_from = head_from
        self._head_base = head_base
        self._compression = compression
        self._level = compression_level
        self._open: dict[tuple[str, int], _Open] = {}
        self._held = 0

    def add(
        self, topic: str, partitions: int | npt.NDArray[np.int64], rows: Rows, now: int
    ) -> Iterator[PackedBatch]:
        """Take rows. `now` is the records' timestamp, in ms since the epoch. Yields the batches that are full."""
        if not len(rows):
            return
        groups: list[tuple[int, int, int]]
        if isinstance(partitions, int) or (partitions == partitions[0]).all():
            groups = [(int(partitions if isinstance(partitions, int) else partitions[0]), 0, len(rows))]
        else:
            # Sorting 16-bit numbers takes a fifth of the time of sorting larger numbers.
            small = partitions.astype(np.int16) if partitions.max() <= _INT16_MAX else partitions
            order = np.argsort(small, kind="stable")
            rows, partitions = rows.take(order), partitions[order]
            cuts = np.flatnonzero(np.diff(partitions)) + 1
            starts = [0, *cuts.tolist()]
            groups = list(zip(partitions[starts].tolist(), starts, [*starts[1:], len(rows)], strict=True))

        total = np.concatenate(([0], np.cumsum(rows.sizes())))
        pieces: list[_Piece] = []
        offsets = np.arange(len(rows))
        for partition, start, end in groups:
            place, at = (topic, partition), start
            if place not in self._open:
                if end - start > self._head_from:
                    most = min(start + self._head_rows, end)
                    at = max(start + 1, _fit(total, start, most, self._batch_bytes))
                    yield self._head(place, rows[start:at], now)
                self._open[place] = _Open(place, now)
            pieces += self._plan(place, at, end, total, offsets, now)
        body, ends = arrow_encode.records(rows, offsets)
        edges = np.concatenate(([0], ends))
        for piece in pieces:
            piece.batch.put(body[int(edges[piece.at]) : int(edges[piece.end])])
            if piece.full:
                yield self._close(piece.batch)
        del body
        if self._held > self._held_bytes:
            yield from self.rest()

    def rest(self) -> Iterator[PackedBatch]:
        """Yield all held rows as batches."""
        for place, opened in list(self._open.items()):
            if opened.rows:
                self._held -= opened.bytes
                self._open[place] = _Open(place, 0)
                yield self._close(opened)

    def _plan(
        self,
        place: tuple[str, int],
        at: int,
        end: int,
        total: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        now: int,
    ) -> Iterator[_Piece]:
        """Cuts a partition's rows into batches, and sets the offset delta of each row."""
        opened = self._open[place]
        while at < end:
            upto = _fit(total, at, end, self._batch_bytes - opened.bytes)
            upto = max(upto, at if opened.rows else at + 1)
            offsets[at:upto] += opened.rows - at
            size = int(total[upto] - total[at])
            opened.plan(upto - at, size, now)
            self._held += size
            yield _Piece(opened, at, upto, upto < end)
            if upto < end:
                self._held -= opened.bytes
                opened = self._open[place] = _Open(place, now)
            at = upto

    def _head(self, place: tuple[str, int], rows: Rows, now: int) -> PackedBatch:
        base = now if self._head_base is None else self._head_base(now)
        body, _ = arrow_encode.records(rows, np.arange(len(rows)), timestamp_delta=now - base)
        return PackedBatch(place, len(rows), self._frame(body, len(rows), base, now))

    def _close(self, opened: _Open) -> PackedBatch:
        place, rows, now = opened.place, opened.rows, opened.timestamp
        if self._compression is Compression.NONE:
            return PackedBatch(
                place, rows, batch.fill_header(opened.body, rows, base_timestamp=now, max_timestamp=now)
            )
        with memoryview(opened.body) as whole, whole[batch.HEADER_BYTES :] as body:
            return PackedBatch(place, rows, self._frame(body, rows, now, now))

    def _frame(self, body: memoryview, rows: int, base: int, now: int) -> bytearray:
        return batch.frame(
            body,
            rows,
            base_timestamp=base,
            max_timestamp=now,
            compression=self._compression,
            compression_level=self._level,
        )


def _fit(total: npt.NDArray[np.int64], at: int, end: int, room: int) -> int:
    """The largest index *i*, at most `end`, such that the rows `at` to *i* - 1 take at most `room` bytes. `total[i]` is
    the size of all rows before row *i*.
    """
    return min(end, int(np.searchsorted(total, total[at] + room, side="right")) - 1)


def unpack(data: bytearray) -> tuple[batch.Columns, Rows]:
    """The records of a batch, in two forms: the decoded columns, and rows that can be encoded again.

    Raises:
        CorruptBatchError: `data` is not an intact batch.
    """
    old = batch.decode(data)
    headers = None
    if old.headers:
        lists = [
            [{"key": key, "value": value} for key, value in old.headers.get(index, ())]
            for index in range(len(old.values))
        ]
        headers = _arrow.array(lists, _HEADERS)
    keys = _arrow.array(old.keys, _arrow.binary()) if any(key is not None for key in old.keys) else None
    return old, Rows.of(keys, _arrow.array(old.values, _arrow.binary()), headers)


def divide(data: bytearray, parts: int) -> list[bytearray]:
    """Divide a batch of an `ArrowPacker` into several smaller batches with the same records in the same order.

    Args:
        data: One batch, whose records all have the same timestamp. The parts keep the batch's base timestamp, but not
            its producer id, epoch and sequence.
        parts: Largest number of parts to make. The parts have about the same number of records.

    Raises:
        ValueError: The records have different timestamps.
        CorruptBatchError: `data` is not an intact batch.
    """
    old, rows = unpack(data)
    stamp, base = old.header.max_timestamp, old.header.base_timestamp
    if set(old.timestamps) != {stamp}:
        raise ValueError("A batch whose records have different timestamps")
    made = []
    for numbers in np.array_split(np.arange(len(rows)), min(parts, len(rows))):
        part = rows[int(numbers[0]) : int(numbers[-1]) + 1]
        body, _ = arrow_encode.records(part, np.arange(len(part)), timestamp_delta=stamp - base)
        made.append(
            batch.frame(
                body,
                len(part),
                base_timestamp=base,
                max_timestamp=stamp,
                compression=old.header.compression,
            )
        )
    return made

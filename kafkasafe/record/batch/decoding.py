"""Decodes the bytes of a batch into columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from kafkasafe.record.batch.compression import decompress
from kafkasafe.record.batch.fields import (
    Bytes,
    Numbers,
    read_field,
    read_varint,
    run_of_equal_lengths,
    varints,
)
from kafkasafe.record.batch.header import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    verify,
)

_PADDING: Final = 64  # zero bytes after the body: up to five numbers (50 bytes) are read beyond its end
_STEP: Final = 64  # records to read one by one, before looking for more records of the same length
_ROW_BYTES: Final = 1024  # up to this size of a field, copying rows is faster than slicing
_MIN_RECORD_BYTES: Final = 7  # seven fields, one byte each, when key, value and headers are empty


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded batch, column by column: item *i* of each column belongs to record *i*.

    Attributes:
        header: The batch's header.
        keys: Keys, None for null.
        values: Values, None for null.
        headers: Headers of the records, by record index. Records without headers are left out.
        timestamps: Timestamps in ms since the epoch. If the broker set them, all are equal to the header's
            `max_timestamp`.
        offsets: Offsets. Consecutive numbers (a `range`), unless the log was compacted.
    """

    header: BatchHeader
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: dict[int, list[tuple[str, bytes | None]]]
    timestamps: list[int]
    offsets: Sequence[int]


def decode(buf: Buffer, at: int = 0, *, max_body_bytes: int = MAX_BODY_BYTES) -> Columns:
    """Verifies the batch at byte `at`, decompresses it, and decodes its columns.

    Args:
        buf: Bytes with the batch; other bytes may follow.
        at: Where the batch begins.
        max_body_bytes: Largest permitted size of the decompressed records.

    Raises:
        CorruptBatchError: As for `verify`, and if the records cannot be decompressed within `max_body_bytes`, or
            contradict the header.
    """
    header = verify(buf, at)
    with memoryview(buf) as view:
        stored = bytes(view[at + HEADER_BYTES : at + header.size_bytes])
    body = decompress(stored, header.compression, max_body_bytes)
    if header.count * _MIN_RECORD_BYTES > len(body):
        raise CorruptBatchError(f"{header.count} records claimed in {len(body)} bytes")
    parse = _parse_few if header.count < _MANY else _parse_many
    keys, values, headers, deltas, offset_deltas = parse(body, header.count)
    base = header.base_offset
    offsets: Sequence[int]
    if offset_deltas == range(header.count):
        offsets = range(base, base + header.count)
    else:
        # Compaction leaves gaps between offsets, but deltas must ascend, or two records would have the same offset.
        if offset_deltas[0] < 0 or offset_deltas[-1] > header.last_offset_delta:
            raise CorruptBatchError(f"Offset deltas outside 0 … {header.last_offset_delta}")
        if any(offset >= following for offset, following in pairwise(offset_deltas)):
            raise CorruptBatchError("Offset deltas that do not ascend")
        offsets = [base + delta for delta in offset_deltas]
    if header.is_log_append_time:
        timestamps = [header.max_timestamp] * header.count
    else:
        timestamps = [header.base_timestamp + delta for delta in deltas]
    return Columns(header, keys, values, headers, timestamps, offsets)


_Parsed: TypeAlias = tuple[
    list[bytes | None],
    list[bytes | None],
    dict[int, list[tuple[str, bytes | None]]],
    Sequence[int],
    Sequence[int],
]
"""Keys, values, headers, timestamp deltas, offset deltas."""

_MANY: Final = 64
"""From this number of records on, numpy is cheaper, despite its fixed cost of about 100 µs per batch."""


def _parse_few(body: bytes, count: int) -> _Parsed:
    """Read record by record. Reading this function is the simplest way to learn the format of records."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    deltas: list[int] = []
    offsets: list[int] = []
    position = 0
    try:
        for index in range(count):
            length, position = read_varint(body, position)
            end = position + length
            delta, position = read_varint(body, position + 1)
            offset, position = read_varint(body, position)
            key, position = read_field(body, position, end)
            value, position = read_field(body, position, end)
            header_count, position = read_varint(body, position)
            if header_count:
                headers[index], position = _read_headers(body, position, end, header_count)
            if position != end:
                raise CorruptBatchError(
                    f"Record {index} claims {length} bytes and does not fill them exactly"
                )
            deltas.append(delta)
            offsets.append(offset)
            keys.append(key)
            values.append(value)
    except IndexError:
        raise CorruptBatchError("The last record runs over the end of the batch") from None
    if position != len(body):
        raise CorruptBatchError(f"{len(body) - position} bytes after the last record")
    return keys, values, headers, deltas, range(count) if offsets == list(range(count)) else offsets


def _read_headers(body: bytes, at: int, end: int, count: int) -> tuple[list[tuple[str, bytes | None]], int]:
    if not 0 <= count <= end - at:
        raise CorruptBatchError(f"A record with {count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = read_field(body, at, end)
        if name is None:
            raise CorruptBatchError("A header without a name")
        value, at = read_field(body, at, end)
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise CorruptBatchError("A header name that is not UTF-8") from None
    return headers, at


def _parse_many(body: bytes, count: int) -> _Parsed:
    """Read one field after the other, each field for all records at once. Returns the same as `_parse_few`."""
    size = len(body)
    # A field that runs over the end is read as zeros. Later checks find that its record does not end at the right
    # place.
    body += bytes(_PADDING)
    data = np.frombuffer(body, np.uint8)
    lengths, at = varints(data, _record_starts(body, size, count))
    ends = at + lengths
    if lengths.min() < _MIN_RECORD_BYTES - 1 or ends[-1] != size:
        raise CorruptBatchError(f"{count} records end at byte {ends[-1]} of {size}")
    deltas, at = varints(data, at + 1)
    offsets, at = varints(data, at)
    keys, at = _fields(body, data, at, ends)
    values, at = _fields(body, data, at, ends)
    header_counts, at = varints(data, at)
    headers = {}
    for index in np.flatnonzero(header_counts).tolist():
        header_count = int(header_counts[index])
        headers[index], at[index] = _read_headers(body, int(at[index]), int(ends[index]), header_count)
    if not np.array_equal(at, ends):
        raise CorruptBatchError(f"Record {np.argmax(at != ends)} does not fill its length exactly")
    no_holes = np.array_equal(offsets, np.arange(count))
    return keys, values, headers, deltas.tolist(), range(count) if no_holes else offsets.tolist()


def _record_starts(body: bytes, size: int, count: int) -> Numbers:
    """Where each record begins: a record's length shows where the next record begins. In a run of records of equal
    length, the function does not decode each length.

    This function reads a negative length as a positive length. The caller reads all lengths again, and detects negative
    lengths.

    Raises:
        CorruptBatchError: A record begins after the end.
    """
    found: list[Numbers] = []
    left = count
    position = 0
    while left:
        starts: list[int] = []
        try:
            for _ in range(min(left, _STEP)):
                starts.append(position)
                # Lengths of one and two bytes are decoded inline: this loop dominates the cost of decoding.
                first = body[position]
                if first < 0x80:
                    position += 1 + (first >> 1)
                else:
                    second = body[position + 1]
                    if second < 0x80:
                        position += 2 + ((first & 0x7F) >> 1) + (second << 6)
                    else:
                        length, after = read_varint(body, position)
                        position = after + length
        except IndexError:
            raise CorruptBatchError("Records run over the end of the batch") from None
        found.append(np.array(starts, np.int64))
        left -= len(starts)
        stride = position - starts[-1]
        if left and stride > 0 and starts[0] + stride * len(starts) == position:
            run = run_of_equal_lengths(body, starts[-1], stride, min(left, (size - position) // stride))
            found.append(np.arange(position, position + run * stride, stride))
            left -= run
            position += run * stride
    return np.concatenate(found)


def _fields(body: bytes, data: Bytes, at: Numbers, ends: Numbers) -> tuple[list[bytes | None], Numbers]:
    """The keys (or the values) of all records, and where the next field of each record begins."""
    lengths, at = varints(data, at)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < -1 or longest > len(body):
        raise CorruptBatchError(f"A field of {shortest if shortest < -1 else longest} bytes")
    if longest == -1:
        return [None] * len(lengths), at
    after = at + np.maximum(lengths, 0)
    if (after > ends).any():
        raise CorruptBatchError(f"A field of record {np.argmax(after > ends)} runs over the record's end")
    fields: list[bytes | None]
    if 0 < shortest == longest <= _ROW_BYTES:
        rows = np.lib.stride_tricks.sliding_window_view(data, longest)[at]
        fields = rows.view(f"V{longest}").ravel().tolist()
    else:
        fields = [body[start:end] for start, end in zip(at.tolist(), after.tolist(), strict=True)]
        if shortest == -1:
            for index in np.flatnonzero(lengths == -1).tolist():
                fields[index] = None
    return fields, after

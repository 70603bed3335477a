"""Decodes the records of a RecordBatch v2 into rows of Python objects, many records at once and without I/O.

This module reads only records that are encoded exactly as Kafka encodes them, and returns a piece only if all of its
records have passed all checks. All other bytes go to another reader, which takes them record by record. That reader
decides which records precede the damage, and which error it raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Numbers: TypeAlias = npt.NDArray[np.int64]
_Header: TypeAlias = tuple[str, bytes | None]
Row: TypeAlias = tuple[Any, ...]

_MANY: Final = 64  # from this number of records on, numpy is cheaper, despite its fixed cost
_SAFE: Final = 1 << 61  # numbers below this can be added without an overflow
_LAST_SHIFT: Final = 56  # shift of a varint's ninth byte, the last byte that this module reads
_FRONT: Final = 64  # a record's key begins within this many bytes, even after the longest varints
_ZIGZAG: Final = np.array([(number >> 1) ^ -(number & 1) for number in range(128)], np.int64)


class _NoHeaders(list[_Header]):
    """An empty list that cannot be changed, because all records without headers share it."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("Records without headers share this list. Change a copy: list(headers)")

    append = extend = insert = __iadd__ = __setitem__ = _refuse


NO_HEADERS: Final[list[_Header]] = _NoHeaders()
"""The list of headers of all records without headers."""


class _IrregularError(ValueError):
    """The bytes are not encoded as Kafka encodes records."""


@dataclass(slots=True)  # creating a frozen object costs more than decoding a record
class Place:
    """The values that the records of a batch have in common.

    Attributes:
        topic: Topic of the records.
        partition: Partition of the records.
        leader_epoch: Leader epoch of the batch.
        timestamp_type: 0: the producer's time; 1: the broker's.
        base_offset: Base offset of the batch.
        base_timestamp: Base timestamp of the batch, ms since the epoch.
        append_timestamp: The broker's time, which applies to all records, ms since the epoch; None: each record has its
            own time.
    """

    topic: str
    partition: int
    leader_epoch: int
    timestamp_type: int
    base_offset: int
    base_timestamp: int
    append_timestamp: int | None


@dataclass(slots=True)
class Piece:
    """Consecutive records of one batch.

    Attributes:
        end: Position in the body at which the record after this piece begins.
        sizes: Size of each record in bytes, without the varint of its length.
        rows: An iterator of the records' fields in the order of kafka-python's ConsumerRecord: topic, partition, leader
            epoch, offset, timestamp (ms since the epoch), timestamp type, key, value, headers (a new list, or
            `NO_HEADERS`), None for the checksum, and the sizes in bytes of key, value (-1 for null) and headers (-1
            without headers).
    """

    end: int
    sizes: list[int]
    rows: Iterator[Row]

    def put_back(self, row: Row) -> None:
        """Puts a row back before the others in `rows`. It is then the next row again."""
        self.rows = chain((row,), self.rows)


def read(body: bytes, at: int, count: int, place: Place) -> Piece | None:
    """Reads `count` records of a batch, from byte `at` of `body` on.

    Returns:
        The records; None if any record is not encoded exactly as Kafka encodes records.
    """
    if abs(place.base_offset) > _SAFE or abs(place.base_timestamp) > _SAFE:
        return None
    try:
        return (_read_few if count < _MANY else _read_many)(body, at, count, place)
    except (IndexError, ValueError):
        return None


def read_alike(body: bytes | memoryview, at: int, count: int, place: Place) -> Piece | None:
    """Reads records with the layout of the first record: each field has the same size as in the first record, and no
    record has headers.

    The bytes at the same place of all records form a column, so the function handles all records at once, without
    copying `body`. The function compares each record's length, and all other bytes that define the layout, with the
    first record.

    Returns:
        At least `_MANY` and at most `count` records; None if fewer than `_MANY` records have this layout, so that
        `read` has to read them.
    """
    if count < _MANY or abs(place.base_offset) > _SAFE or abs(place.base_timestamp) > _SAFE:
        return None
    try:
        return _read_alike(body, at, count, place)
    except (IndexError, ValueError):
        return None


def _read_alike(body: bytes | memoryview, at: int, count: int, place: Place) -> Piece | None:
    front = bytes(body[at : at + _FRONT])
    size, after_size = _varint(front, 0)
    _, after_time = _varint(front, after_size + 1)
    _, after_offset = _varint(front, after_time)
    key_size, key_at = _varint(front, after_offset)
    value_size_at = key_at + max(key_size, 0)
    back = bytes(body[at + value_size_at : at + value_size_at + 10])
    value_size, length = _varint(back, 0)
    value_at = value_size_at + length
    headers_at = value_at + max(value_size, 0)
    step = after_size + size
    if size < 0 or key_size < -1 or value_size < -1 or headers_at + 1 != step:
        return None
    count = min(count, (len(body) - at) // step)
    if count < _MANY:
        return None
    # The timestamp delta and the offset delta of a record may differ from the first record's deltas, but the
    # continuation bits of these varints must be equal, byte for byte.
    mask = np.full(key_at, 0xFF, np.uint8)
    mask[after_size + 1 : after_offset] = 0x80
    wanted = np.frombuffer(front, np.uint8, key_at) & mask
    wanted[after_size] = 0  # the attributes: no version of Kafka sets any
    fronts = np.ndarray((count, key_at), np.uint8, body, at, (step, 1))
    backs = np.ndarray((count, length), np.uint8, body, at + value_size_at, (step, 1))
    ends = np.ndarray((count,), np.uint8, body, at + headers_at, (step,))
    same = (fronts & mask) == wanted
    same_backs = backs == np.frombuffer(back, np.uint8, length)
    if not (same.all() and same_backs.all()) or ends.any():
        alike = same.all(axis=1) & same_backs.all(axis=1) & (ends == 0)
        if not alike.all():
            count = int(alike.argmin())
            if count < _MANY:
                return None
    rows = _rows(
        place,
        _column(fronts[:count, after_time:after_offset]),
        _column(fronts[:count, after_size + 1 : after_time]),
        (_copies(body, at + key_at, step, key_size, count), repeat(key_size)),
        (_copies(body, at + value_at, step, value_size, count), repeat(value_size)),
        (repeat(NO_HEADERS), repeat(-1)),
    )
    return Piece(at + step * count, [size] * count, rows)


def _rows(
    place: Place,
    offset_deltas: _Numbers,
    time_deltas: _Numbers,
    keys: tuple[Iterable[Any], Iterable[int]],
    values: tuple[Iterable[Any], Iterable[int]],
    headers: tuple[Iterable[Any], Iterable[int]],
) -> Iterator[Row]:
    """Make rows from columns. `keys`, `values` and `headers` are pairs: the contents of a column, and their sizes."""
    timestamps: Iterable[int]
    if place.append_timestamp is None:
        timestamps = (time_deltas + place.base_timestamp).tolist()
    else:
        timestamps = repeat(place.append_timestamp)
    return zip(
        repeat(place.topic),
        repeat(place.partition),
        repeat(place.leader_epoch),
        (offset_deltas + place.base_offset).tolist(),
        timestamps,
        repeat(place.timestamp_type),
        keys[0],
        values[0],
        headers[0],
        repeat(None),
        keys[1],
        values[1],
        headers[1],
        strict=False,
    )


def _column(varints: _Bytes) -> _Numbers:
    """Decode one varint from each row of bytes. All varints have the same length."""
    number = (varints[:, 0] & 0x7F).astype(np.int64)
    for index in range(1, varints.shape[1]):
        number |= (varints[:, index] & 0x7F).astype(np.int64) << (7 * index)
    return (number >> 1) ^ -(number & 1)


def _copies(body: bytes | memoryview, at: int, step: int, size: int, count: int) -> Iterable[bytes | None]:
    """`count` fields of this size (-1: null). Each field begins `step` bytes after the start of the previous field."""
    if size <= 0:
        return repeat(None if size < 0 else b"")
    # numpy converts untyped items ("void") to bytes faster than slicing does.
    copies: list[bytes | None] = np.ndarray((count,), np.dtype((np.void, size)), body, at, (step,)).tolist()
    return copies


def _read_few(body: bytes, at: int, count: int, place: Place) -> Piece:
    """Read record by record. Numbers of one byte are decoded inline, because nearly all numbers have one byte."""
    topic, partition, epoch = place.topic, place.partition, place.leader_epoch
    base_offset, base_timestamp = place.base_offset, place.base_timestamp
    timestamp_type, append_timestamp = place.timestamp_type, place.append_timestamp
    rows: list[Row] = []
    sizes = []
    key: bytes | None
    value: bytes | None
    names: dict[bytes, str] = {}
    for _ in range(count):
        number = body[at]
        if number < 0x80:
            size, at = (number >> 1) ^ -(number & 1), at + 1
        else:
            size, at = _varint(body, at)
        end = at + size
        if body[at]:
            raise _IrregularError  # attributes are not 0; no version of Kafka sets any
        number = body[at + 1]
        if number < 0x80:
            delta, at = (number >> 1) ^ -(number & 1), at + 2
        else:
            delta, at = _varint(body, at + 1)
        number = body[at]
        if number < 0x80:
            offset_delta, at = (number >> 1) ^ -(number & 1), at + 1
        else:
            offset_delta, at = _varint(body, at)
        number = body[at]
        if number < 0x80:
            key_size, at = (number >> 1) ^ -(number & 1), at + 1
        else:
            key_size, at = _varint(body, at)
        if key_size >= 0:
            key = body[at : at + key_size]
            at += key_size
        else:
            key = None
        number = body[at]
        if number < 0x80:
            value_size, at = (number >> 1) ^ -(number & 1), at + 1
        else:
            value_size, at = _varint(body, at)
        if value_size >= 0:
            value = body[at : at + value_size]
            at += value_size
        else:
            value = None
        number = body[at]
        at += 1
        headers = NO_HEADERS
        header_size = -1
        if number:
            number, at = _varint(body, at - 1)
            headers, header_size, at = _headers(body, at, end, number, names)
        if at != end or at > len(body) or key_size < -1 or value_size < -1:
            raise _IrregularError
        sizes.append(size)
        rows.append(
            (
                topic,
                partition,
                epoch,
                base_offset + offset_delta,
                base_timestamp + delta if append_timestamp is None else append_timestamp,
                timestamp_type,
                key,
                value,
                headers,
                None,
                key_size,
                value_size,
                header_size,
            )
        )
    return Piece(at, sizes, iter(rows))


def _read_many(body: bytes, at: int, count: int, place: Place) -> Piece:
    """Read one field after the other, each field for all records at once. Returns the same as `_read_few`."""
    begins, end = _starts(body, at, count)
    data = np.frombuffer(body, np.uint8)
    starts = np.array(begins, np.int64)
    lengths, places = _numbers(data, starts)
    ends = places + lengths
    # Each record must end where the next record begins.
    if ends[-1] != end or end > len(body) or not np.array_equal(ends[:-1], starts[1:]):
        raise _IrregularError
    if data[places].any():
        raise _IrregularError
    deltas, places = _numbers(data, places + 1)
    offset_deltas, places = _numbers(data, places)
    keys, key_sizes, places = _fields(body, data, places, ends)
    values, value_sizes, places = _fields(body, data, places, ends)
    header_counts, places = _numbers(data, places)
    headers = [NO_HEADERS] * count
    header_sizes: Iterable[int] = repeat(-1)
    if header_counts.any():
        names: dict[bytes, str] = {}
        header_sizes = made = [-1] * count
        after = places.tolist()
        limits, counts = ends.tolist(), header_counts.tolist()
        for index in np.flatnonzero(header_counts).tolist():
            headers[index], made[index], after[index] = _headers(
                body, after[index], limits[index], counts[index], names
            )
        if after != limits:
            raise _IrregularError
    elif not np.array_equal(places, ends):
        raise _IrregularError
    rows = _rows(
        place, offset_deltas, deltas, (keys, key_sizes), (values, value_sizes), (headers, header_sizes)
    )
    return Piece(end, lengths.tolist(), rows)


def _starts(body: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Where each record begins, and where the last record ends. A record's length shows where the next record begins.

    If the varint of a negative length has one or two bytes, this function reads a positive length. The caller reads all
    lengths again, and detects negative lengths.
    """
    starts: list[int] = []
    append = starts.append
    for _ in range(count):
        append(at)
        first = body[at]
        if first < 0x80:
            at += 1 + (first >> 1)
        else:
            second = body[at + 1]
            if second < 0x80:
                at += 2 + ((first & 0x7F) >> 1) + (second << 6)
            else:
                size, after = _varint(body, at)
                if size < 0:
                    raise _IrregularError
                at = after + size
    return starts, at


def _fields(
    body: bytes, data: _Bytes, at: _Numbers, ends: _Numbers
) -> tuple[list[bytes | None], list[int], _Numbers]:
    """Keys or values, their lengths, and where the next field of each record begins."""
    lengths, at = _numbers(data, at)
    shortest = int(lengths.min())
    if shortest < -1 or (lengths > ends - at).any():
        raise _IrregularError
    sizes = lengths.tolist()
    if shortest > 0 and shortest == lengths.max():
        # All fields have the length `shortest`. View the body as overlapping items of this length (item *i* begins at
        # byte *i*), and select the items that are fields.
        every = np.ndarray((len(body) - shortest + 1,), np.dtype((np.void, shortest)), body, 0, (1,))
        return every[at].tolist(), sizes, at + lengths
    after = at + lengths if shortest >= 0 else at + np.maximum(lengths, 0)
    fields: list[bytes | None]
    fields = [body[start:end] for start, end in zip(at.tolist(), after.tolist(), strict=True)]
    if shortest < 0:
        for index in np.flatnonzero(lengths < 0).tolist():
            fields[index] = None
    return fields, sizes, after


def _headers(
    body: bytes, at: int, end: int, count: int, names: dict[bytes, str]
) -> tuple[list[_Header], int, int]:
    """A record's headers, the total size of their names and values (-1 without headers), and where the headers end."""
    if not 0 <= count <= end - at:
        raise _IrregularError
    headers: list[_Header] = []
    total = 0
    for _ in range(count):
        length, at = _varint(body, at)
        if length < 0 or at + length > end:
            raise _IrregularError
        raw = body[at : at + length]
        name = names.get(raw)
        if name is None:
            name = names[raw] = raw.decode()
        at += length
        total += length
        length, at = _varint(body, at)
        if length >= 0:
            headers.append((name, body[at : at + length]))
            at += length
            total += length
        elif length == -1:
            headers.append((name, None))
        else:
            raise _IrregularError
    return headers, total if headers else -1, at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Decode the number at this place. Also return where the next field begins."""
    number = body[at]
    at += 1
    if number > 0x7F:
        number &= 0x7F
        shift = 7
        while True:
            byte = body[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > _LAST_SHIFT:
                raise _IrregularError
    return (number >> 1) ^ -(number & 1), at


def _numbers(data: _Bytes, at: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Decode the numbers at these places. Also return where the field after each number begins."""
    first = data[at]
    longer = np.flatnonzero(first > 0x7F)
    if not longer.size:
        return _ZIGZAG[first], at + 1
    number = first.astype(np.int64)
    at = at + 1
    shift = 7
    while longer.size:
        if shift > _LAST_SHIFT:
            raise _IrregularError
        byte = data[at[longer]].astype(np.int64)
        # `number` still contains the continuation bit of the previous byte, where this byte's lowest bit belongs.
        # Subtracting one removes that bit.
        number[longer] += (byte - 1) << shift
        at[longer] += 1
        longer = longer[byte > 0x7F]
        shift += 7
    return (number >> 1) ^ -(number & 1), at

"""Encodes columns as the bytes of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper, lru_cache, partial
from itertools import pairwise
from operator import add
from typing import Final, TypeVar, cast

from kafkasafe.record.batch.compression import compress
from kafkasafe.record.batch.header import (
    ATTRIBUTES_AT,
    CONTROL,
    HEADER_BYTES,
    Buffer,
    Compression,
    Headers,
    finish,
    stamp_crc,
)

_T = TypeVar("_T")
Sizes = int | Sequence[int]
"""Sizes, in bytes, of the keys or values of several records; -1 for null; a single number if all sizes are equal."""
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


def encode(
    keys: Sequence[Buffer | None] | None,
    values: Sequence[Buffer | None],
    *,
    timestamps: int | Sequence[int],
    headers: Headers | None = None,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
    sizes: tuple[Sizes | None, Sizes | None] = (None, None),
) -> bytearray:
    """Encodes one whole batch, with base offset 0, leader epoch -1, no batch id and a valid CRC.

    The same arguments always give the same bytes.

    Args:
        keys: One key per value, None for a null key. `keys` itself may be None if no record has a key.
        values: At least one, None for a null value.
        timestamps: Timestamps in ms since the epoch: one for all records (the fast case), or one per value.
        headers: Headers of the records, by record index. Records without headers need no entry.
        compression: How to compress the records.
        compression_level: Level in the codec's own scale; None for the codec's default. NONE and SNAPPY have no levels.
        sizes: (sizes of the keys, sizes of the values). Each item is None if the caller does not know the sizes, or if
            any key (or value) is neither bytes nor None. Wrong sizes make an invalid batch.

    Returns:
        The batch, ready for `stamp_identity` and `stamp_address`.

    Raises:
        TypeError: A key or value is not bytes, bytearray, memoryview or None.
        ValueError: `values` is empty; there are not as many keys or timestamps as values; `headers` has the index of a
            record that does not exist; a timestamp is not an int64; the codec does not have the level; the batch is
            larger than 2 GiB.
    """
    count = len(values)
    if not count:
        raise ValueError("A batch needs at least one record")
    if keys is not None and len(keys) != count:
        raise ValueError(f"{len(keys)} keys for {count} values")
    deltas: list[int] | None = None
    if isinstance(timestamps, int):
        base_timestamp = max_timestamp = timestamps
    else:
        if len(timestamps) != count:
            raise ValueError(f"{len(timestamps)} timestamps for {count} values")
        if not isinstance(timestamps, (list, tuple, range)):
            timestamps = list(map(int, timestamps))  # differences of numpy's integers could overflow
        base_timestamp, max_timestamp = timestamps[0], max(timestamps)
        if base_timestamp != max_timestamp or base_timestamp != min(timestamps):
            deltas = [timestamp - base_timestamp for timestamp in timestamps]
    min_timestamp = base_timestamp + min(deltas or (0,))
    if min_timestamp < _INT64_MIN or max_timestamp > _INT64_MAX:
        raise ValueError("A timestamp is not an int64 of milliseconds")
    tails: list[bytes] | None = None
    if headers and any(headers.values()):
        if not all(0 <= index < count for index in headers):
            raise ValueError(f"Headers for a record that is not among the {count} of the batch")
        tails = [_EMPTY_HEADERS] * count
        for index, record_headers in headers.items():
            tails[index] = _encode_headers(record_headers, index)

    key_sizes, value_sizes = sizes
    key_column = None if keys is None else _Column.of(keys, "key", key_sizes)
    value_column = _Column.of(values, "value", value_sizes)
    if key_column is not None and key_column.uniform_length == -1:
        key_column = None
    pieces = _pieces(key_column, value_column, deltas, tails)

    if compression is Compression.NONE:
        # The first piece makes room for the header, so that the body is written only once, in its final place.
        pieces[0] = _BLANK_HEADER + pieces[0]
        buf = bytearray().join(pieces)
    else:
        buf = bytearray(_BLANK_HEADER)
        buf += compress(b"".join(pieces), compression, compression_level)
    return finish(buf, count, base_timestamp, max_timestamp, compression)


def frame(
    body: Buffer,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
) -> bytearray:
    """Makes one whole batch from an existing records section, as `encode` does from columns.

    Args:
        body: The records section, not compressed.
        count: Number of records in `body`, ≥ 1.
        base_timestamp: The time to which the records' timestamp deltas are relative, ms since the epoch.
        max_timestamp: The records' largest timestamp, ms since the epoch.
        compression: How to compress the records.
        compression_level: As for `encode`.

    Raises:
        ValueError: The codec does not have the level, or the batch is above 2 GiB.
    """
    buf = bytearray(_BLANK_HEADER)
    buf += body if compression is Compression.NONE else compress(body, compression, compression_level)
    return finish(buf, count, base_timestamp, max_timestamp, compression)


def encode_control(records: Sequence[tuple[bytes, bytes]], *, timestamp: int) -> bytearray:
    """Makes one whole control batch: like `encode`, but with the control bit set.

    Args:
        records: Key and value of each control record. In Kafka, the key of a control record is an int16 version and an
            int16 type.
        timestamp: Ms since the epoch, for all records.

    Raises:
        ValueError: As `encode`.
    """
    if len(records) <= _FEW_RECORDS and not any(None in record for record in records):
        return _encode_few(records, timestamp)
    buf = encode([key for key, _ in records], [value for _, value in records], timestamps=timestamp)
    buf[ATTRIBUTES_AT + 1] |= CONTROL
    stamp_crc(buf)
    return buf


def _encode_few(records: Sequence[tuple[bytes, bytes]], timestamp: int) -> bytearray:
    """Does the same as `encode_control`, record by record, which is cheaper for a few records."""
    buf = bytearray(_BLANK_HEADER)
    lengths = _VARINTS
    for index, (key, value) in enumerate(records):
        # The attributes and the timestamp delta are 0, and there are no headers.
        body = b"".join(
            (b"\0\0", lengths[index], lengths[len(key)], key, lengths[len(value)], value, _EMPTY_HEADERS)
        )
        buf += lengths[len(body)]
        buf += body
    if not records or not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise ValueError("A batch needs at least one record, and an int64 of milliseconds")
    return finish(buf, len(records), timestamp, timestamp, CONTROL)


_FEW_RECORDS: Final = 8
_BLANK_HEADER: Final = bytes(HEADER_BYTES)
_EMPTY_HEADERS: Final = b"\0"
_CACHED: Final = 1 << 14
_BYTES_TYPES: Final = frozenset({bytes, bytearray, type(None)})


def varint(number: int) -> bytes:
    """Zigzag varint of an int64."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class _Cache(dict[int, _T]):
    """Caches a value for each small number. In a hot loop, a subclass of dict is cheaper than an `lru_cache`.

    The size of the cache is limited: for numbers of 16,384 or more (long records), the value is computed each time.
    """

    def __init__(self, compute: Callable[[int], _T]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, number: int) -> _T:
        made = self._compute(number)
        if -_CACHED < number < _CACHED:
            self[number] = made
        return made


_VARINTS: Final = _Cache(varint)


def _field_bytes(length: int) -> int:
    """Size of a key or value of this length (-1: null) in bytes, including the varint of the length."""
    return len(_VARINTS[length]) + max(0, length)


_FIELD_BYTES: Final = _Cache(_field_bytes)


def sizes_of(items: Sequence[object]) -> Sizes:
    """Returns the sizes of keys or values that are bytes; -1 for anything else. Returns -1 if there are no items."""
    if not items:
        return -1
    try:
        sizes = list(map(len, cast("Sequence[bytes]", items)))  # raises for None
    except TypeError:
        sizes = [len(item) if isinstance(item, bytes) else -1 for item in items]
    only = _only(sizes)
    return sizes if only is None else only


@dataclass(frozen=True, slots=True)
class _Column:
    """The keys or the values of a batch.

    Attributes:
        items: The keys or values, with empty bytes in place of null.
        lengths: Length of each item, -1 for null.
        uniform_length: The common length of all items; None if their lengths differ.
    """

    items: Sequence[Buffer]
    lengths: Sequence[int]
    uniform_length: int | None

    @classmethod
    def of(cls, items: Sequence[Buffer | None], what: str, sizes: Sizes | None) -> _Column:
        if sizes is not None:
            return cls._of_sizes(items, sizes)
        types = set(map(type, items))
        if not types <= _BYTES_TYPES:
            # `join` accepts any buffer, but the len() of a buffer with items wider than a byte is not its size in
            # bytes.
            items = [_as_bytes(item, what, index) for index, item in enumerate(items)]
        if type(None) in types:
            lengths = [-1 if item is None else len(item) for item in items]
            items = [b"" if item is None else item for item in items]
        else:
            lengths = list(map(len, cast("Sequence[Buffer]", items)))
        return cls(cast("Sequence[Buffer]", items), lengths, _only(lengths))

    @classmethod
    def _of_sizes(cls, items: Sequence[Buffer | None], sizes: Sizes) -> _Column:
        """Makes a column of bytes and None from known sizes, without looking at each item."""
        lengths, only = ([sizes] * len(items), sizes) if isinstance(sizes, int) else (sizes, _only(sizes))
        if only == -1 or (only is None and -1 in lengths):
            items = [b"" if item is None else item for item in items]
        return cls(cast("Sequence[Buffer]", items), lengths, only)


def _only(lengths: Sequence[int]) -> int | None:
    """Returns the common length of all items; None if the lengths differ."""
    first = lengths[0]
    # First compare the first length with the last: if any lengths differ, these two nearly always differ, and `count`
    # is not called.
    return first if first == lengths[-1] and lengths.count(first) == len(lengths) else None


def _as_bytes(item: object, what: str, index: int) -> bytes | bytearray | None:
    if item is None or type(item) is bytes or type(item) is bytearray:
        return item
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(
        f"The {what} of record {index} is {type(item).__name__}, not bytes, bytearray, memoryview or None"
    )


# At each of these offset deltas, the delta's varint, and so the record, becomes one byte longer.
_OFFSET_STEPS: Final = (0, 1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 34)


def _offset_ranges(count: int) -> list[tuple[int, int, int]]:
    """The ranges of records whose offset deltas have the same number of bytes: (number of bytes, first index, end
    index).
    """
    steps = enumerate(pairwise(_OFFSET_STEPS), start=1)
    return [(size, start, min(end, count)) for size, (start, end) in steps if start < count]


def _head(fields: int, fixed: int, end: bytes) -> bytes:
    """The bytes where one record ends and the next record begins: the `end` of the former, then the length and the
    attributes of the latter.
    """
    return end + _VARINTS[fields + fixed] + b"\0"


def _head_of_value(value_length: int, fixed: int) -> bytes:
    """The same as `_head`, for records in which only the length of the value varies."""
    return _head(_FIELD_BYTES[value_length], fixed, _EMPTY_HEADERS)


# The attributes and the offset delta have a fixed size. So do a zero timestamp delta, a null key and missing headers,
# which take one byte each. Each tuple has one cache for each total size of the fields with a fixed size. A cache's key
# is the total size of the other fields or, in `_HEADS_OF_VALUE`, the length of the value.
_FIXED: Final = range(4 + len(_OFFSET_STEPS))
_HEADS: Final = tuple(_Cache(partial(_head, fixed=fixed, end=_EMPTY_HEADERS)) for fixed in _FIXED)
_HEADS_BEHIND_HEADERS: Final = tuple(_Cache(partial(_head, fixed=fixed, end=b"")) for fixed in _FIXED)
_HEADS_OF_VALUE: Final = tuple(_Cache(partial(_head_of_value, fixed=fixed)) for fixed in _FIXED)

_ZERO: Final = _VARINTS[0]
_NULL: Final = _VARINTS[-1]
_CACHED_COUNT: Final = 1 << 16


def _make_offsets(count: int, before: bytes, after: bytes) -> list[bytes]:
    """For each record: the bytes `before`, then the encoded offset delta, then the bytes `after`."""
    return [before + varint(index) + after for index in range(count)]


def _make_prefixes(count: int, fields: int, after: bytes) -> list[bytes]:
    """For each record, the bytes that follow the previous record's value and precede this record's key. If the record
    has no key, they precede its value.
    """
    offsets = _table(_offsets_cached, count, _ZERO, after)
    prefixes: list[bytes] = []
    for offset_bytes, start, end in _offset_ranges(count):
        head = _head(fields, 3 + offset_bytes, _EMPTY_HEADERS)
        prefixes += [head + offset for offset in offsets[start:end]]
    return prefixes


# A few cached tables of each kind are enough, because a producer's batches have similar sizes. A full table takes 3 MB.
_offsets_cached = lru_cache(maxsize=6)(_make_offsets)
_prefixes_cached = lru_cache(maxsize=6)(_make_prefixes)


def _table(cached: _lru_cache_wrapper[list[bytes]], count: int, *key: int | bytes) -> list[bytes]:
    """The first `count` entries of a table of size 64, or `count` rounded up to a power of two. The table is cached
    unless it is huge.
    """
    if count > _CACHED_COUNT:
        return cached.__wrapped__(count, *key)
    return cached(max(64, 1 << (count - 1).bit_length()), *key)[:count]


def _pieces(
    keys: _Column | None, values: _Column, deltas: list[int] | None, tails: list[bytes] | None
) -> list[Buffer]:
    """The records section in pieces, made column by column, each column in C loops over all records."""
    count = len(values.lengths)
    key_length = -1 if keys is None else keys.uniform_length
    columns: list[Sequence[Buffer]] = []
    if (
        deltas is None
        and tails is None
        and key_length is not None
        and (value_length := values.uniform_length) is not None
    ):
        fields = _FIELD_BYTES[key_length] + _FIELD_BYTES[value_length]
        between = _VARINTS[value_length]
        if keys is None:
            columns = [_table(_prefixes_cached, count, fields, _NULL + between), values.items]
        else:
            prefixes = _table(_prefixes_cached, count, fields, _VARINTS[key_length])
            columns = [prefixes, keys.items, [between] * count, values.items]
    else:
        lookup, size_of = _VARINTS.__getitem__, _FIELD_BYTES.__getitem__
        before = after = b""
        fixed = 1
        heads_by = _HEADS
        variable: Iterable[int] = map(size_of, values.lengths)
        if deltas is None:
            before = _ZERO
            fixed += 1
        else:
            times = list(map(lookup, deltas))
            variable = map(add, variable, map(len, times))
            columns.append(times)
        if tails is None:
            fixed += 1
        else:
            heads_by = _HEADS_BEHIND_HEADERS
            variable = map(add, variable, map(len, tails))
        if keys is None:
            after = _NULL
            fixed += 1
        else:
            variable = map(add, variable, map(size_of, keys.lengths))
        if fixed == 4:
            heads_by, variable = _HEADS_OF_VALUE, values.lengths
        variable = list(variable)
        heads: list[bytes] = []
        for offset_bytes, start, end in _offset_ranges(count):
            heads += map(heads_by[fixed + offset_bytes].__getitem__, variable[start:end])
        columns.insert(0, heads)
        columns.append(_table(_offsets_cached, count, before, after))
        if keys is not None:
            columns += (list(map(lookup, keys.lengths)), keys.items)
        columns += (list(map(lookup, values.lengths)), values.items)
        if tails is not None:
            columns.append(tails)
    width = len(columns)
    pieces: list[Buffer] = [_EMPTY_HEADERS] * (width * count + 1)
    for index, column in enumerate(columns):
        pieces[index:-1:width] = column
    if tails is None:
        pieces[0] = pieces[0][1:]
    else:
        pieces.pop()
    return pieces


@lru_cache(maxsize=1024)
def _header_name(name: str) -> bytes:
    encoded = name.encode()
    return _VARINTS[len(encoded)] + encoded


def _encode_headers(headers: Sequence[tuple[str, Buffer | None]], index: int) -> bytes:
    pieces: list[Buffer] = [_VARINTS[len(headers)]]
    for name, value in headers:
        content = value if type(value) is bytes else _as_bytes(value, f"header {name!r}", index)
        pieces += (_header_name(name),)
        pieces += (_NULL,) if content is None else (_VARINTS[len(content)], content)
    return b"".join(pieces)

"""RecordBatch v2 (KIP-98) ⇄ columns, without I/O.

A batch is encoded once, into one bytearray, and its bytes never change afterwards, except in two places:
`stamp_identity` fills the producer id, epoch and sequence (and computes the CRC again), `stamp_address` fills
the two fields that Kafka's CRC leaves out. Layout of the 61-byte header, big-endian:

    0 baseOffset int64 | 8 batchLength int32 | 12 partitionLeaderEpoch int32 | 16 magic int8 | 17 crc uint32
    21 attributes int16 | 23 lastOffsetDelta int32 | 27 baseTimestamp int64 | 35 maxTimestamp int64
    43 producerId int64 | 51 producerEpoch int16 | 53 baseSequence int32 | 57 count int32

The CRC32C covers everything from byte 21. Records follow, compressed as one block or not; each is

    length | attributes 0 | timestampDelta | offsetDelta | key | value | headers

with zigzag varints for all numbers, and -1 as the length of a null key or value.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import _lru_cache_wrapper, lru_cache, partial
from itertools import pairwise
from operator import add
from typing import Any, Final, TypeAlias, TypeVar, cast

import crc32c
import numpy as np
import numpy.typing as npt

__all__ = [
    "HEADER_BYTES",
    "MAX_BODY_BYTES",
    "RECORD_OVERHEAD",
    "BatchHeader",
    "Columns",
    "Compression",
    "CorruptBatchError",
    "crc_and_count",
    "decode",
    "encode",
    "encode_control",
    "frame",
    "identity_of",
    "iter_headers",
    "load_codec",
    "read_header",
    "stamp_address",
    "stamp_identity",
    "varint",
    "verify",
]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""The types from which this module reads bytes."""

Headers: TypeAlias = Mapping[int, Sequence[tuple[str, Buffer | None]]]
"""Record headers by record index; records without headers are left out."""

_T = TypeVar("_T")

HEADER_BYTES: Final = 61
MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""Default bound of a batch's decompressed records."""
RECORD_OVERHEAD: Final = 16
"""The most that a record without headers and timestamp takes beside its key and value."""

MAGIC: Final = 2

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_IDENTITY: Final = struct.Struct(">qhi")
_LENGTH: Final = struct.Struct(">i")
_EPOCH: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")

_LENGTH_AT: Final = 8
_LEADER_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_IDENTITY_AT: Final = 43
_COUNT_AT: Final = 57

_LOG_OVERHEAD: Final = 12  # baseOffset and batchLength, which batchLength does not count
_COMPRESSION_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20

_INT32_MAX: Final = 2**31 - 1
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_UINT64_MAX: Final = 2**64 - 1
_PADDING: Final = 64  # more than the five numbers that can be read after the end of a record
_STEP: Final = 64  # records that are read one by one before a run of equal lengths is tried
_ROW_BYTES: Final = 1024  # up to here copying rows beats slicing
_MIN_READ_BYTES: Final = 64 * 1024
_MIN_RECORD_BYTES: Final = 7  # seven fields, one byte each, when key, value and headers are empty


class Compression(enum.IntEnum):
    """How the records of a batch are compressed: the low three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptBatchError(ValueError):
    """The bytes are not a whole, undamaged RecordBatch v2. The message says what is wrong."""


def _add_sequence(sequence: int, increment: int) -> int:
    """Kafka's sequence arithmetic: after 2**31 - 1 comes 0."""
    return (sequence + increment) & _INT32_MAX


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes before the records.

    Attributes:
        base_offset: Offset of the first record; in a spool, its position.
        batch_length: Bytes after this field, as Kafka counts them; `size_bytes` is the whole batch.
        partition_leader_epoch: Leader epoch; in a spool, the destination number.
        magic: Format of the batch, always 2.
        crc: CRC32C of everything from byte 21.
        attributes: Compression, timestamp type and kind of batch.
        last_offset_delta: Offset of the last record, relative to `base_offset`. After compaction it may be
            more than `count` - 1.
        base_timestamp: The time to which the records' timestamps are relative, in ms since the epoch.
        max_timestamp: Largest timestamp, in ms since the epoch.
        producer_id: -1 when the batch has none.
        producer_epoch: -1 when the batch has none.
        base_sequence: Sequence of the first record, -1 when the batch has none.
        count: Number of records.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return _LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Offset of the last record (inclusive)."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record (inclusive), -1 when the batch has no identity."""
        return -1 if self.base_sequence < 0 else _add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def next_sequence(self) -> int:
        """Base sequence of the batch after this one, -1 when this one has no identity."""
        return -1 if self.base_sequence < 0 else _add_sequence(self.base_sequence, self.last_offset_delta + 1)

    @property
    def is_control(self) -> bool:
        """Whether the records are control records (transaction markers, or a spool's marks)."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker replaced the records' timestamps by `max_timestamp`."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def compression(self) -> Compression:
        """How the records are compressed."""
        return Compression(self.attributes & _COMPRESSION_MASK)


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded batch, column by column: index *i* of each is record *i*.

    Attributes:
        header: The batch's header.
        keys: Keys, None for null.
        values: Values, None for null.
        headers: Record headers by record index; records without headers are left out.
        timestamps: Ms since the epoch; all `max_timestamp` when the broker set them.
        offsets: Offsets. Without holes (a `range`), unless the log was compacted.
    """

    header: BatchHeader
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: dict[int, list[tuple[str, bytes | None]]]
    timestamps: list[int]
    offsets: Sequence[int]


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch that begins at byte `at`.

    Neither the CRC nor the presence of the records is checked: `verify` does that.

    Args:
        buf: Bytes that hold at least the batch's first 61 bytes.
        at: Where the batch begins.

    Raises:
        CorruptBatchError: These bytes cannot be a RecordBatch v2's header, or end inside it.
    """
    if len(buf) - at < HEADER_BYTES:
        raise CorruptBatchError(
            f"Truncated batch: {max(0, len(buf) - at)} bytes at {at}, the header alone has {HEADER_BYTES}"
        )
    header = BatchHeader(*_HEADER.unpack_from(buf, at))
    if header.magic != MAGIC:
        raise CorruptBatchError(f"Not a RecordBatch v2: magic {header.magic} at {at}")
    if header.batch_length < HEADER_BYTES - _LOG_OVERHEAD:
        raise CorruptBatchError(
            f"Batch at {at} claims a length of {header.batch_length} bytes, less than its header has"
        )
    if header.attributes & _COMPRESSION_MASK > Compression.ZSTD:
        raise CorruptBatchError(
            f"Batch at {at} claims unknown compression {header.attributes & _COMPRESSION_MASK}"
        )
    if header.count < 0 or header.last_offset_delta < header.count - 1:
        raise CorruptBatchError(
            f"Batch at {at} claims {header.count} records up to offset delta {header.last_offset_delta}"
        )
    return header


def verify(buf: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch at byte `at`, after checking that the batch is complete and its CRC is right.

    Bytes 0–20 are outside the CRC: a spool protects them by its own manifest.

    Args:
        buf: Bytes that hold the batch; others may follow it.
        at: Where the batch begins.

    Raises:
        CorruptBatchError: As `read_header`; or the batch is cut short, or its CRC differs.
    """
    header = read_header(buf, at)
    if header.size_bytes > len(buf) - at:
        raise CorruptBatchError(
            f"Truncated batch: {len(buf) - at} bytes at {at}, the header claims {header.size_bytes}"
        )
    crc = _crc_of(buf, at, header.size_bytes)
    if crc != header.crc:
        raise CorruptBatchError(
            f"CRC of the batch at {at} is {crc:#010x}, its header says {header.crc:#010x}"
        )
    return header


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Walks concatenated batches, as in a Fetch response, and yields where each begins and its header.

    An incomplete batch ends the iteration: a broker truncates its response at its byte limit. Messages of formats
    before v2 are skipped. CRCs are not checked.

    Raises:
        CorruptBatchError: The bytes after the last yielded batch are not a batch.
    """
    at = 0
    while len(buf) - at > _MAGIC_AT:
        (length,) = _LENGTH.unpack_from(buf, at + _LENGTH_AT)
        # The smallest message of the oldest format has 14 bytes after its length.
        if length < 14:
            raise CorruptBatchError(f"Batch at {at} claims a length of {length} bytes")
        if length > len(buf) - at - _LOG_OVERHEAD:
            return
        if buf[at + _MAGIC_AT] > 1:
            yield at, read_header(buf, at)
        at += _LOG_OVERHEAD + length


def stamp_identity(
    buf: bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Writes the batch id into a whole batch, in place, and computes its CRC again.

    Args:
        buf: Exactly one batch.
        producer_id: Producer id, -1 for none.
        producer_epoch: Its epoch, -1 for none.
        base_sequence: Sequence of the first record, -1 for none.
        transactional: The batch belongs to a transaction; else its attributes stay as they are.

    Raises:
        CorruptBatchError: `buf` is not exactly one batch. It is unchanged.
    """
    _check_whole(buf)
    if transactional:
        buf[_ATTRIBUTES_AT + 1] |= _TRANSACTIONAL
    _IDENTITY.pack_into(buf, _IDENTITY_AT, producer_id, producer_epoch, base_sequence)
    _stamp_crc(buf)


def stamp_address(buf: bytearray, base_offset: int, partition_leader_epoch: int) -> None:
    """Writes the two fields outside the CRC into a whole batch, in place: cheap, whatever its size.

    Args:
        buf: Exactly one batch.
        base_offset: Spool position; 0 on the wire (a broker refuses anything else).
        partition_leader_epoch: Destination number; -1 on the wire.

    Raises:
        CorruptBatchError: `buf` is not exactly one batch. It is unchanged.
    """
    _check_whole(buf)
    _OFFSET.pack_into(buf, 0, base_offset)
    _EPOCH.pack_into(buf, _LEADER_EPOCH_AT, partition_leader_epoch)


def identity_of(buf: Buffer) -> tuple[int, int, int]:
    """(producer id, epoch, base sequence) of a batch that is whole: cheaper than its header."""
    return _IDENTITY.unpack_from(buf, _IDENTITY_AT)


def crc_and_count(buf: Buffer) -> tuple[int, int]:
    """CRC and number of records of a batch that is whole: cheaper than its header."""
    return _CRC.unpack_from(buf, _CRC_AT)[0], _LENGTH.unpack_from(buf, _COUNT_AT)[0]


def _check_whole(buf: bytearray) -> None:
    if len(buf) >= HEADER_BYTES:
        # A header object costs ten times as much.
        _, length, _, magic, _, attributes, last_delta, _, _, _, _, _, count = _HEADER.unpack_from(buf)
        if (
            magic == MAGIC
            and length + _LOG_OVERHEAD == len(buf)
            and attributes & _COMPRESSION_MASK <= Compression.ZSTD
            and 0 <= count <= last_delta + 1
        ):
            return
    size = read_header(buf).size_bytes
    if size != len(buf):
        raise CorruptBatchError(f"{len(buf)} bytes are not exactly one batch: its header claims {size}")


def _crc_of(buf: Buffer, at: int, size: int) -> int:
    with memoryview(buf) as view, view[at + _ATTRIBUTES_AT : at + size] as covered:
        return crc32c.crc32c(covered)


def _stamp_crc(buf: bytearray) -> None:
    _CRC.pack_into(buf, _CRC_AT, _crc_of(buf, 0, len(buf)))


def encode(
    keys: Sequence[Buffer | None] | None,
    values: Sequence[Buffer | None],
    *,
    timestamps: int | Sequence[int],
    headers: Headers | None = None,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
) -> bytearray:
    """One whole batch: base offset 0, leader epoch -1, no identity, CRC right.

    The same arguments give the same bytes, always.

    Args:
        keys: One per value, None for a null key; or None when no record has a key.
        values: At least one, None for a null value.
        timestamps: Ms since the epoch: one for all records (the fast case), or one per value.
        headers: Record headers by record index; sparse.
        compression: How to compress the records.
        compression_level: The codec's own level, None for its default. Without meaning for NONE and SNAPPY.

    Returns:
        The batch, ready for `stamp_identity` and `stamp_address`.

    Raises:
        TypeError: A key or value is not bytes, bytearray, memoryview or None.
        ValueError: No values; another number of keys or timestamps than values; headers for a record that is
            not there; a timestamp that is not an int64; a level the codec does not have; a batch above 2 GiB.
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
            timestamps = list(map(int, timestamps))  # numpy's integers would overflow in the differences
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

    key_column = None if keys is None else _Column.of(keys, "key")
    value_column = _Column.of(values, "value")
    if key_column is not None and key_column.uniform_length == -1:
        key_column = None
    pieces = _pieces(key_column, value_column, deltas, tails)

    if compression is Compression.NONE:
        # The header's room is the first piece, so that the body is written once, where it stays.
        pieces[0] = _BLANK_HEADER + pieces[0]
        buf = bytearray().join(pieces)
    else:
        buf = bytearray(_BLANK_HEADER)
        buf += _compress(b"".join(pieces), compression, compression_level)
    return _finish(buf, count, base_timestamp, max_timestamp, compression)


def frame(
    body: Buffer,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    compression: Compression = Compression.NONE,
    compression_level: int | None = None,
) -> bytearray:
    """One whole batch around a records section that is there already: as `encode`.

    Args:
        body: The records section, not compressed.
        count: Number of its records, ≥ 1.
        base_timestamp: The time to which their timestamp deltas are relative, ms since the epoch.
        max_timestamp: Their largest timestamp.
        compression: How to compress them.
        compression_level: As for `encode`.

    Raises:
        ValueError: A level that the codec does not have; a batch above 2 GiB.
    """
    buf = bytearray(_BLANK_HEADER)
    buf += body if compression is Compression.NONE else _compress(body, compression, compression_level)
    return _finish(buf, count, base_timestamp, max_timestamp, compression)


def fill_header(buf: bytearray, count: int, *, base_timestamp: int, max_timestamp: int) -> bytearray:
    """As `frame` without compression, in place: `buf` is room for a header (`HEADER_BYTES`) and the records section.

    Raises:
        ValueError: A batch above 2 GiB.
    """
    return _finish(buf, count, base_timestamp, max_timestamp, Compression.NONE)


def _finish(
    buf: bytearray, count: int, base_timestamp: int, max_timestamp: int, attributes: int
) -> bytearray:
    """Fill the header before the records."""
    if len(buf) - _LOG_OVERHEAD > _INT32_MAX:
        raise ValueError(f"A batch of {len(buf)} bytes: its length does not fit into an int32")
    _HEADER.pack_into(
        buf,
        0,
        0,
        len(buf) - _LOG_OVERHEAD,
        -1,
        MAGIC,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        -1,
        -1,
        -1,
        count,
    )
    _stamp_crc(buf)
    return buf


def encode_control(records: Sequence[tuple[bytes, bytes]], *, timestamp: int) -> bytearray:
    """One whole control batch: as `encode`, with the control bit set.

    Args:
        records: Key and value of each control record; Kafka wants a key of int16 version and int16 type.
        timestamp: Ms since the epoch, for all records.

    Raises:
        ValueError: As `encode`.
    """
    if len(records) <= _FEW_RECORDS and not any(None in record for record in records):
        return _encode_few(records, timestamp)
    buf = encode([key for key, _ in records], [value for _, value in records], timestamps=timestamp)
    buf[_ATTRIBUTES_AT + 1] |= _CONTROL
    _stamp_crc(buf)
    return buf


def _encode_few(records: Sequence[tuple[bytes, bytes]], timestamp: int) -> bytearray:
    """As `encode_control`, record by record: cheaper for a few."""
    buf = bytearray(_BLANK_HEADER)
    lengths = _VARINTS
    for index, (key, value) in enumerate(records):
        # Attributes and timestamp delta 0, no headers.
        body = b"".join(
            (b"\0\0", lengths[index], lengths[len(key)], key, lengths[len(value)], value, _EMPTY_HEADERS)
        )
        buf += lengths[len(body)]
        buf += body
    if not records or not _INT64_MIN <= timestamp <= _INT64_MAX:
        raise ValueError("A batch needs at least one record, and an int64 of milliseconds")
    return _finish(buf, len(records), timestamp, timestamp, _CONTROL)


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
    """Something by a small number, computed at the first look-up: cheaper than an `lru_cache` in a hot loop.

    Bounded: numbers from 16,384 (long records, where it matters least) are computed each time.
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
    """Bytes that a key or value takes, with its length in front (-1: null)."""
    return len(_VARINTS[length]) + max(0, length)


_FIELD_BYTES: Final = _Cache(_field_bytes)


@dataclass(frozen=True, slots=True)
class _Column:
    """The keys or the values of a batch, nulls as length -1 and empty bytes.

    Attributes:
        items: The encoded items.
        lengths: Their lengths, -1 for null.
        uniform_length: The one length that all have, or None.
    """

    items: Sequence[Buffer]
    lengths: list[int]
    uniform_length: int | None

    @classmethod
    def of(cls, items: Sequence[Buffer | None], what: str) -> _Column:
        types = set(map(type, items))
        if not types <= _BYTES_TYPES:
            # Joining takes any buffer, and len() of one with wider items is not its size in bytes.
            items = [_as_bytes(item, what, index) for index, item in enumerate(items)]
        if type(None) in types:
            lengths = [-1 if item is None else len(item) for item in items]
            items = [b"" if item is None else item for item in items]
        else:
            lengths = list(map(len, cast("Sequence[Buffer]", items)))
        first = lengths[0]
        # The comparison in front spares columns of many lengths the count.
        uniform = first == lengths[-1] and lengths.count(first) == len(lengths)
        return cls(cast("Sequence[Buffer]", items), lengths, first if uniform else None)


def _as_bytes(item: object, what: str, index: int) -> bytes | bytearray | None:
    if item is None or type(item) is bytes or type(item) is bytearray:
        return item
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(
        f"The {what} of record {index} is {type(item).__name__}, not bytes, bytearray, memoryview or None"
    )


# Where the offset delta's varint grows by a byte, and with it the record.
_OFFSET_STEPS: Final = (0, 1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 34)


def _offset_ranges(count: int) -> list[tuple[int, int, int]]:
    """(bytes of the offset delta's varint, first index, end index) for each size that occurs."""
    steps = enumerate(pairwise(_OFFSET_STEPS), start=1)
    return [(size, start, min(end, count)) for size, (start, end) in steps if start < count]


def _head(fields: int, fixed: int, end: bytes) -> bytes:
    """The end of the previous record, and a record's length and attributes."""
    return end + _VARINTS[fields + fixed] + b"\0"


def _head_of_value(value_length: int, fixed: int) -> bytes:
    """`_head` by the length of the value, where nothing else varies."""
    return _head(_FIELD_BYTES[value_length], fixed, _EMPTY_HEADERS)


# By the bytes that are the same for all records: attributes, offset delta, one each for no timestamp delta,
# no key and no headers. Inside by the bytes of the other fields (or by the length of the value alone).
_FIXED: Final = range(4 + len(_OFFSET_STEPS))
_HEADS: Final = tuple(_Cache(partial(_head, fixed=fixed, end=_EMPTY_HEADERS)) for fixed in _FIXED)
_HEADS_BEHIND_HEADERS: Final = tuple(_Cache(partial(_head, fixed=fixed, end=b"")) for fixed in _FIXED)
_HEADS_OF_VALUE: Final = tuple(_Cache(partial(_head_of_value, fixed=fixed)) for fixed in _FIXED)

_ZERO: Final = _VARINTS[0]
_NULL: Final = _VARINTS[-1]
_CACHED_COUNT: Final = 1 << 16


def _make_offsets(count: int, before: bytes, after: bytes) -> list[bytes]:
    """The offset delta of each record, between two constants."""
    return [before + varint(index) + after for index in range(count)]


def _make_prefixes(count: int, fields: int, after: bytes) -> list[bytes]:
    """All bytes between the previous record's value and the first variable bytes of a record."""
    offsets = _table(_offsets_cached, count, _ZERO, after)
    prefixes: list[bytes] = []
    for offset_bytes, start, end in _offset_ranges(count):
        head = _head(fields, 3 + offset_bytes, _EMPTY_HEADERS)
        prefixes += [head + offset for offset in offsets[start:end]]
    return prefixes


# A few tables of each kind stay: a producer's batches have similar sizes. 3 MB for a full one.
_offsets_cached = lru_cache(maxsize=6)(_make_offsets)
_prefixes_cached = lru_cache(maxsize=6)(_make_prefixes)


def _table(cached: _lru_cache_wrapper[list[bytes]], count: int, *key: int | bytes) -> list[bytes]:
    """The first `count` entries of a table, made for the next power of two and kept unless it is huge."""
    if count > _CACHED_COUNT:
        return cached.__wrapped__(count, *key)
    return cached(max(64, 1 << (count - 1).bit_length()), *key)[:count]


def _pieces(
    keys: _Column | None, values: _Column, deltas: list[int] | None, tails: list[bytes] | None
) -> list[Buffer]:
    """The records section in pieces: column by column, each look-up a C loop over all records.

    Args:
        keys: None when all are null.
        values: The values.
        deltas: Timestamp deltas, None when all are 0.
        tails: Encoded headers, None if no record has headers.
    """
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


def decode(buf: Buffer, at: int = 0, *, max_body_bytes: int = MAX_BODY_BYTES) -> Columns:
    """The batch at byte `at`, verified, decompressed and column by column.

    Args:
        buf: Bytes that hold the batch; others may follow it.
        at: Where the batch begins.
        max_body_bytes: Bound for the decompressed records.

    Raises:
        CorruptBatchError: As `verify`; or the records cannot be decompressed within the bound, or are not
            what the header says.
    """
    header = verify(buf, at)
    with memoryview(buf) as view:
        stored = bytes(view[at + HEADER_BYTES : at + header.size_bytes])
    body = _decompress(stored, header.compression, max_body_bytes)
    if header.count * _MIN_RECORD_BYTES > len(body):
        raise CorruptBatchError(f"{header.count} records claimed in {len(body)} bytes")
    parse = _parse_few if header.count < _MANY else _parse_many
    keys, values, headers, deltas, offset_deltas = parse(body, header.count)
    base = header.base_offset
    offsets: Sequence[int]
    if offset_deltas == range(header.count):
        offsets = range(base, base + header.count)
    else:
        # Compaction leaves holes; anything else would send two records to one offset.
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


_Bytes: TypeAlias = npt.NDArray[np.uint8]
_Numbers: TypeAlias = npt.NDArray[np.int64]
_Parsed: TypeAlias = tuple[
    list[bytes | None],
    list[bytes | None],
    dict[int, list[tuple[str, bytes | None]]],
    Sequence[int],
    Sequence[int],
]
"""Keys, values, headers, timestamp deltas, offset deltas."""

_MANY: Final = 64  # from here on numpy's fixed cost per batch (about 100 µs) is the smaller one


def _parse_few(body: bytes, count: int) -> _Parsed:
    """Record by record: the whole format in one place."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: dict[int, list[tuple[str, bytes | None]]] = {}
    deltas: list[int] = []
    offsets: list[int] = []
    position = 0
    try:
        for index in range(count):
            length, position = _read_varint(body, position)
            end = position + length
            delta, position = _read_varint(body, position + 1)
            offset, position = _read_varint(body, position)
            key, position = _read_field(body, position, end)
            value, position = _read_field(body, position, end)
            header_count, position = _read_varint(body, position)
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
        raise CorruptBatchError(f"{len(body) - position} bytes behind the last record")
    return keys, values, headers, deltas, range(count) if offsets == list(range(count)) else offsets


def _read_varint(body: Buffer, at: int) -> tuple[int, int]:
    """A zigzag varint of 64 bits and where the next field begins; IndexError at the end of the body."""
    number = shift = 0
    while True:
        byte = body[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            number &= _UINT64_MAX
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > 63:
            raise CorruptBatchError(f"A number of more than 64 bits at byte {at} of the records")


def _read_field(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(body, at)
    if length == -1:
        return None, at
    if length < 0 or at + length > end:
        raise CorruptBatchError(f"A field of {length} bytes at byte {at}, in a record that ends at {end}")
    return body[at : at + length], at + length


def _read_headers(body: bytes, at: int, end: int, count: int) -> tuple[list[tuple[str, bytes | None]], int]:
    if not 0 <= count <= end - at:
        raise CorruptBatchError(f"A record with {count} headers in {end - at} bytes")
    headers = []
    for _ in range(count):
        name, at = _read_field(body, at, end)
        if name is None:
            raise CorruptBatchError("A header without a name")
        value, at = _read_field(body, at, end)
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise CorruptBatchError("A header name that is not UTF-8") from None
    return headers, at


def _parse_many(body: bytes, count: int) -> _Parsed:
    """Field by field, for all records at once. The same result as `_parse_few`."""
    size = len(body)
    # A field that runs over the end reads zeros, and is found by where it ends.
    body += bytes(_PADDING)
    data = np.frombuffer(body, np.uint8)
    lengths, at = _varints(data, _record_starts(body, size, count))
    ends = at + lengths
    if lengths.min() < _MIN_RECORD_BYTES - 1 or ends[-1] != size:
        raise CorruptBatchError(f"{count} records end at byte {ends[-1]} of {size}")
    deltas, at = _varints(data, at + 1)
    offsets, at = _varints(data, at)
    keys, at = _fields(body, data, at, ends)
    values, at = _fields(body, data, at, ends)
    header_counts, at = _varints(data, at)
    headers = {}
    for index in np.flatnonzero(header_counts).tolist():
        header_count = int(header_counts[index])
        headers[index], at[index] = _read_headers(body, int(at[index]), int(ends[index]), header_count)
    if not np.array_equal(at, ends):
        raise CorruptBatchError(f"Record {np.argmax(at != ends)} does not fill its length exactly")
    no_holes = np.array_equal(offsets, np.arange(count))
    return keys, values, headers, deltas.tolist(), range(count) if no_holes else offsets.tolist()


def _record_starts(body: bytes, size: int, count: int) -> _Numbers:
    """Where each record begins. Each length locates the next record, except in a run of equal lengths.

    This function reads a negative length as a positive one: the caller reads all lengths again and detects it.

    Raises:
        CorruptBatchError: A record begins after the end.
    """
    found: list[_Numbers] = []
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
                        length, after = _read_varint(body, position)
                        position = after + length
        except IndexError:
            raise CorruptBatchError("Records run over the end of the batch") from None
        found.append(np.array(starts, np.int64))
        left -= len(starts)
        stride = position - starts[-1]
        if left and stride > 0 and starts[0] + stride * len(starts) == position:
            run = _run_of_equal_lengths(body, starts[-1], stride, min(left, (size - position) // stride))
            found.append(np.arange(position, position + run * stride, stride))
            left -= run
            position += run * stride
    return np.concatenate(found)


def _run_of_equal_lengths(body: Buffer, start: int, stride: int, most: int) -> int:
    """How many records after this one have its length; exact, since each proves where the next begins."""
    prefix = body[start : _read_varint(body, start)[1]]
    data = np.frombuffer(body, np.uint8)
    same = np.ones(max(0, most), np.bool_)
    for index, byte in enumerate(prefix, start=start + stride):
        same &= data[index : index + len(same) * stride : stride] == byte
    return len(same) if same.all() else int(same.argmin())


def _varints(data: _Bytes, at: _Numbers) -> tuple[_Numbers, _Numbers]:
    """The zigzag varints at these positions, and where the next field of each begins."""
    number = data[at].astype(np.uint64)
    at = at + 1
    rest = np.flatnonzero(number > 0x7F)
    shift = 7
    while rest.size:
        if shift > 63:
            raise CorruptBatchError(f"A number of more than 64 bits at byte {at[rest[0]]} of the records")
        byte = data[at[rest]].astype(np.uint64)
        # Minus one: takes away the bit that said that this byte follows.
        number[rest] += (byte - np.uint64(1)) << np.uint64(shift)
        at[rest] += 1
        rest = rest[byte > 0x7F]
        shift += 7
    return (number >> np.uint64(1)).astype(np.int64) ^ -(number & np.uint64(1)).astype(np.int64), at


def _fields(body: bytes, data: _Bytes, at: _Numbers, ends: _Numbers) -> tuple[list[bytes | None], _Numbers]:
    """The keys, or the values, of all records, and where the next field of each begins."""
    lengths, at = _varints(data, at)
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


_XERIAL_HEADER: Final = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
_XERIAL_MAGIC_BYTES: Final = 8
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_MAX_RATIO: Final = 32  # the densest element, 64 bytes out of 3, stays below

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
# Version 01, independent blocks: Kafka's reader refuses linked ones. Then the block size, and the header's
# checksum, a constant for each. The smallest block that takes the batch is used: readers allocate it.
_LZ4_FRAMES: Final = (
    (1 << 16, _LZ4_MAGIC + b"\x60\x40\x82"),
    (1 << 18, _LZ4_MAGIC + b"\x60\x50\xfb"),
    (1 << 20, _LZ4_MAGIC + b"\x60\x60\x51"),
    (1 << 22, _LZ4_MAGIC + b"\x60\x70\x73"),
)
_LZ4_BLOCK: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = bytes(4)

_CODECS: Final = {
    Compression.GZIP: "gzip",
    Compression.SNAPPY: "snappy",
    Compression.LZ4: "lz4_raw",
    Compression.ZSTD: "zstd",
}
# Kafka's default for zstd; pyarrow's would be 1.
_DEFAULT_LEVELS: Final = {Compression.ZSTD: 3}
_GZIP_WINDOW: Final = 31  # the largest window, with gzip's header and trailer


def load_codec(compression: Compression) -> None:
    """Import what `encode` needs for a compression.

    Otherwise the first compressed batch does, on the thread that happens to encode it. A producer calls this before its
    threads start.
    """
    if compression not in {Compression.NONE, Compression.GZIP}:
        _arrow()


def _arrow() -> Any:
    """pyarrow, which has the codecs. Importing it takes 22 MB, so it is imported only for compressed batches."""
    import pyarrow as pa

    return pa


def _compress(body: Buffer, compression: Compression, level: int | None) -> bytes:
    name = _CODECS[compression]
    level = _DEFAULT_LEVELS.get(compression) if level is None else level
    if level is not None and compression is not Compression.SNAPPY:
        lowest = _arrow().Codec.minimum_compression_level(name)
        highest = _arrow().Codec.maximum_compression_level(name)
        if not lowest <= level <= highest:
            raise ValueError(f"Compression level {level} of {compression.name}: it has {lowest} … {highest}")
    match compression:
        case Compression.GZIP:
            gzip = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WINDOW)
            return gzip.compress(body) + gzip.flush()
        case Compression.SNAPPY:
            return _compress_snappy(body)
        case Compression.LZ4:
            return _compress_lz4(body, _arrow().Codec(name, compression_level=level))
        case _:
            # Without asbytes, len() of a view of the result is not the compressed size.
            return cast("bytes", _arrow().Codec(name, compression_level=level).compress(body, asbytes=True))


def _compress_snappy(body: Buffer) -> bytes:
    """Xerial's framing, which Kafka's Java clients write: they take a raw block too, but others do not."""
    codec = _arrow().Codec("snappy")
    pieces: list[Buffer] = [_XERIAL_HEADER]
    for start in range(0, len(body), _XERIAL_BLOCK_BYTES):
        block = codec.compress(body[start : start + _XERIAL_BLOCK_BYTES], asbytes=True)
        pieces += (_LENGTH.pack(len(block)), block)
    return b"".join(pieces)


def _compress_lz4(body: Buffer, codec: Any) -> bytes:
    """An LZ4 frame of independent blocks: pyarrow's own frames link them."""
    block_bytes, frame_header = next((f for f in _LZ4_FRAMES if len(body) <= f[0]), _LZ4_FRAMES[-1])
    pieces: list[Buffer] = [frame_header]
    for start in range(0, len(body), block_bytes):
        plain = body[start : start + block_bytes]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            pieces += (_LZ4_BLOCK.pack(len(block)), block)
        else:
            pieces += (_LZ4_BLOCK.pack(len(plain) | _LZ4_STORED), plain)
    pieces.append(_LZ4_END)
    return b"".join(pieces)


def _decompress(stored: bytes, compression: Compression, limit: int) -> bytes:
    """The records section, at most `limit` bytes of it, whatever the stored bytes claim."""
    if not stored:
        return b""  # all that compaction leaves of a batch without records
    try:
        match compression:
            case Compression.NONE:
                body = stored
            case Compression.GZIP:
                body = _decompress_gzip(stored, limit)
            case Compression.SNAPPY:
                body = _decompress_snappy(stored, limit)
            case _:
                body = _decompress_stream(stored, compression.name.lower(), limit)
    except _codec_errors(compression) as error:
        raise CorruptBatchError(
            f"The records cannot be decompressed ({compression.name}): {error}"
        ) from error
    if len(body) > limit:
        raise CorruptBatchError(f"The records are larger than {limit} bytes when decompressed")
    return body


def _codec_errors(compression: Compression) -> tuple[type[Exception], ...]:
    if compression in {Compression.NONE, Compression.GZIP}:
        return (zlib.error,)
    return (OSError, _arrow().ArrowException)


def _decompress_gzip(stored: bytes, limit: int) -> bytes:
    pieces = []
    rest = stored
    left = limit + 1
    while rest and left:
        member = zlib.decompressobj(_GZIP_WINDOW)
        pieces.append(member.decompress(rest, left))
        left -= len(pieces[-1])
        if left and not member.eof:
            raise CorruptBatchError("The records cannot be decompressed (GZIP): truncated")
        rest = member.unused_data
    return b"".join(pieces)


def _decompress_stream(stored: bytes, codec: str, limit: int) -> bytes:
    pieces = []
    left = limit + 1
    step = max(_MIN_READ_BYTES, 4 * len(stored))
    with _arrow().CompressedInputStream(_arrow().BufferReader(stored), codec) as stream:
        while left and (piece := stream.read(min(step, left))):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces)


def _decompress_snappy(stored: bytes, limit: int) -> bytes:
    if stored[:_XERIAL_MAGIC_BYTES] != _XERIAL_HEADER[:_XERIAL_MAGIC_BYTES]:
        return _decompress_snappy_block(stored, limit)
    pieces = []
    left = limit
    at = len(_XERIAL_HEADER)
    while at < len(stored):
        size = int.from_bytes(stored[at : at + _LENGTH.size], "big")
        at += _LENGTH.size
        if size > len(stored) - at:
            raise CorruptBatchError(f"A snappy block of {size} bytes, {max(0, len(stored) - at)} are there")
        pieces.append(_decompress_snappy_block(stored[at : at + size], left))
        left -= len(pieces[-1])
        at += size
    return b"".join(pieces)


def _decompress_snappy_block(block: bytes, limit: int) -> bytes:
    """One raw block, which begins with a varint of its size."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if size > min(limit, len(block) * _SNAPPY_MAX_RATIO):
        raise CorruptBatchError(f"A snappy block of {len(block)} bytes that claims to hold {size}")
    return cast("bytes", _arrow().Codec("snappy").decompress(block, size, asbytes=True))

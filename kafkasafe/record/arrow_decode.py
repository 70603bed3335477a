"""Decodes the records of a Fetch response into Arrow columns, for many batches at once and without I/O.

A response holds many batches, most of them small, and decoding one batch with numpy has a fixed cost of about 100 µs.
So the decoder does only a few steps batch by batch: it reads headers, checks CRCs, chooses the batches to deliver,
decompresses them, and finds the start of each record. Then the decoder reads the records' fields for all batches
together.

To collect keys or values, the decoder makes an Arrow array whose data buffer is the unchanged records. The array's
offsets alternate: the start of a field, the end of this field, the start of the next field, and so on. So the items
with even indices are the fields, and the items with odd indices are the bytes between fields. Arrow's `take` copies the
fields. For views (Arrow's `binary_view`), the bytes stay in place, and the column holds only their positions.

The decoder delivers the same batches as Kafka's consumer. It never delivers control batches. With `read_committed`, the
decoder also leaves out the aborted transactions that the broker lists: the producer's batches from the transaction's
first offset to the abort marker.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kafkasafe.packages import pyarrow_for
from kafkasafe.record.batch import (
    HEADER_BYTES,
    MAX_BODY_BYTES,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    read_header,
)
from kafkasafe.record.batch.compression import decompress
from kafkasafe.record.batch.fields import field_places, read_varint, run_of_equal_lengths, varints
from kafkasafe.record.batch.header import crc_of
from kafkasafe.record.batch.markers import is_abort

_arrow: Any = pyarrow_for("An Arrow table")
_Numbers: TypeAlias = npt.NDArray[np.int64]
_Parsed: TypeAlias = tuple[Any, _Numbers, npt.NDArray[np.int32]]
"""A pyarrow.RecordBatch, with the offsets and the leader epochs of its records."""

HEADERS: Final = _arrow.list_(_arrow.struct([("key", _arrow.string()), ("value", _arrow.binary())]))
"""Arrow type of a record's list of headers. A name may occur more than once. A value may be null; a list may not."""

SCHEMA: Final = _arrow.schema(
    [
        _arrow.field("offset", _arrow.int64(), nullable=False),
        _arrow.field("timestamp", _arrow.timestamp("ms", "UTC"), nullable=False),
        _arrow.field("timestamp_type", _arrow.int8(), nullable=False),
        _arrow.field("leader_epoch", _arrow.int32(), nullable=False),
        _arrow.field("key", _arrow.binary()),
        _arrow.field("value", _arrow.binary()),
        _arrow.field("headers", HEADERS, nullable=False),
    ]
)
"""All columns. A timestamp of -1 ms means that the record has no timestamp; `timestamp_type` is 0 for the producer's
time and 1 for the broker's time; `leader_epoch` is -1 where the log has no leader epoch.
"""

COLUMNS: Final[tuple[str, ...]] = tuple(SCHEMA.names)

_VIEW: Final = _arrow.binary_view()
_INLINE: Final = 12  # values of up to this many bytes are in the view itself

_LOG_OVERHEAD: Final = 12
_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT: Final = 8
_MAGIC_AT: Final = 16
_OLDEST_MESSAGE: Final = 14  # bytes after the length field in the smallest message of the oldest format
_COMPRESSED: Final = 0x07
_INT32_MAX: Final = 2**31 - 1
_MIN_RECORD_BYTES: Final = 7

_CHUNK_BYTES: Final = 64 * 1024 * 1024
_STEP: Final = 16  # number of records between two attempts to find a run of equal lengths
_LONG_RUN: Final = 256  # with fewer records left, looking for a run of equal lengths costs more than it saves
_FEW: Final = 16  # up to this many records, reading one by one is cheaper


def schema_of(columns: Iterable[str], *, views: bool = False) -> Any:
    """The schema of these columns, in the order of `SCHEMA`. With `views`, keys and values are `binary_view`."""
    wanted = set(columns)
    fields = [field for field in SCHEMA if field.name in wanted]
    if views:
        fields = [field.with_type(_VIEW) if field.name in {"key", "value"} else field for field in fields]
    return _arrow.schema(fields)


class OldFormatError(ValueError):
    """A message of a format before v2 (Kafka 0.10 and older), which has other fields and no epochs."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A batch to deliver.

    Attributes:
        at: Where the batch begins in the buffer.
        body: The decompressed records; None if the batch is not compressed.
    """

    at: int
    header: BatchHeader
    body: bytes | None


class Decoder:
    """Reads a buffer of batches piece by piece, and decompresses each batch only when it is needed.

    Args:
        buffer: The batches of one partition in a Fetch response, the last of which may be truncated. The decoder does
            not change the buffer. Without views, the results of `read` have their own memory, so the buffer is not
            needed after the last `read`.
        from_offset: The requested offset. The first batch may begin before this offset; the decoder leaves out the
            earlier records.
        aborted: (producer id, first offset) of the aborted transactions that the response lists.
        read_committed: Whether to leave out the records of aborted transactions.
        columns: Names of the columns to make, default all of `SCHEMA`. Omitted columns cost little.
        check_crcs: Whether to check each batch's CRC.
        max_body_bytes: Largest permitted size of one batch's decompressed records.
        views: Whether keys and values are views instead of copies. The views of compressed batches refer to the
            decompressed records. All other views refer to `buffer`, so `buffer` must not change any more.

    Attributes:
        schema: Schema of the batches that `read` returns.
        next_offset: Offset after the last returned record, or after the last skipped batch.
        leader_epoch: Leader epoch of the record or batch right before `next_offset`, -1 when unknown.

    Raises:
        ValueError: A column has an unknown name, or the buffer has 2 GiB or more. (No response is so large.)
    """

    def __init__(
        self,
        buffer: Buffer,
        *,
        from_offset: int = 0,
        aborted: Iterable[tuple[int, int]] = (),
        read_committed: bool = False,
        columns: Iterable[str] | None = None,
        check_crcs: bool = True,
        max_body_bytes: int = MAX_BODY_BYTES,
        views: bool = False,
    ) -> None:
        wanted = set(COLUMNS if columns is None else columns)
        if unknown := wanted - set(COLUMNS):
            raise ValueError(f"No columns {sorted(unknown)}; there are {', '.join(COLUMNS)}")
        if len(buffer) > _INT32_MAX:
            raise ValueError(f"A buffer of {len(buffer)} bytes; a response has less than 2 GiB")
        self.schema = schema_of(wanted, views=views)
        self.next_offset = from_offset
        self.leader_epoch = -1
        self._buffer = buffer
        self._at = 0
        self._end = 0
        self._ended = False
        self._from_offset = from_offset
        self._aborted = deque(
            sorted(((first, producer) for producer, first in aborted) if read_committed else ())
        )
        self._aborting: set[int] = set()
        self._check_crcs = check_crcs
        self._max_body_bytes = max_body_bytes
        self._error: CorruptBatchError | OldFormatError | None = None
        self._rest: Any = None
        self._after_rest = from_offset, -1

    def own_buffer(self) -> Buffer:
        """Return the buffer, or a copy if the buffer may be part of a larger piece of memory."""
        if isinstance(self._buffer, memoryview):
            self._buffer = bytes(self._buffer)
        return self._buffer

    def read(self, max_records: int | None = None, max_bytes: int = _CHUNK_BYTES) -> Any:
        """Return the next records.

        Args:
            max_records: Largest number of records; None: only `max_bytes` limits the number.
            max_bytes: `read` decompresses no further batch once the records of this call have this many bytes.

        Returns:
            A non-empty pyarrow.RecordBatch; None at the end of the buffer, when `next_offset` is the offset after the
            last batch.

        Raises:
            CorruptBatchError: The next batch is damaged. All records before this batch were returned, and `next_offset`
                stays unchanged. Each further call raises the error again.
            OldFormatError: The next message has an old format. As after CorruptBatchError, `next_offset` stays
                unchanged, and further calls raise the error again.
            ValueError: `max_records` is not positive.
        """
        if max_records is not None and max_records <= 0:
            raise ValueError(f"max_records is {max_records}, not positive")
        while self._rest is None:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            self._advance(max_records, max_bytes)
        records, offsets, epochs = self._rest
        if max_records is None or records.num_rows <= max_records:
            self._rest = None
            self.next_offset, self.leader_epoch = self._after_rest
            return records
        self._rest = records.slice(max_records), offsets[max_records:], epochs[max_records:]
        self.next_offset = int(offsets[max_records - 1]) + 1
        self.leader_epoch = int(epochs[max_records - 1])
        return records.slice(0, max_records)

    @property
    def is_at_end(self) -> bool:
        """Whether `read` would return None."""
        return self._ended and self._rest is None and self._error is None

    def _advance(self, max_records: int | None, max_bytes: int) -> None:
        """Decode some batches into `_rest`. On reaching a damaged batch, set `_error`. On reaching the end of the
        buffer, set `_ended`.
        """
        found: list[_Found] = []
        count = size = 0
        after = self.next_offset, self.leader_epoch
        while size < max_bytes and (max_records is None or count < max_records):
            try:
                header = self._next_header()
                if header is None:
                    self._ended = True
                    break
                if self._passes(header):
                    # Decompress one batch at a time, because only decompression shows the size of its records.
                    body = self._body(self._at, header) if header.attributes & _COMPRESSED else None
                    if header.count or body != b"":
                        found.append(_Found(self._at, header, body))
                    count += header.count
                    size += header.size_bytes if body is None else len(body)
            except (CorruptBatchError, OldFormatError) as error:
                self._error = error
                break
            self._at += header.size_bytes
            self._end = header.last_offset + 1
            after = max(after[0], self._end), header.partition_leader_epoch
        try:
            decoded = self._decode(found)
        except CorruptBatchError:
            after, decoded = self._before_damage(found)
        if decoded[0].num_rows:
            self._rest, self._after_rest = decoded, after
        else:
            self.next_offset, self.leader_epoch = after

    def _before_damage(self, found: Sequence[_Found]) -> tuple[tuple[int, int], _Parsed]:
        """Decode the intact batches that precede the first batch whose records contradict its header."""
        good, error = next(
            (index, its) for index, its in enumerate(map(self._damage, found)) if its is not None
        )
        header = found[good].header
        self._error = CorruptBatchError(f"Offsets {header.base_offset} to {header.last_offset}: {error}")
        # All batches before the damaged batch were returned or skipped.
        epoch = found[good - 1].header.partition_leader_epoch if good else self.leader_epoch
        return (max(self.next_offset, header.base_offset), epoch), self._decode(found[:good])

    def _damage(self, batch: _Found) -> CorruptBatchError | None:
        try:
            self._decode([batch])
        except CorruptBatchError as error:
            return error
        return None

    def _next_header(self) -> BatchHeader | None:
        left = len(self._buffer) - self._at
        if left < _MAGIC_AT + 1:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._at + _LENGTH_AT)
        if length < _OLDEST_MESSAGE:
            raise CorruptBatchError(f"Batch at {self._at} claims a length of {length} bytes")
        if length > left - _LOG_OVERHEAD:
            return None
        magic = self._buffer[self._at + _MAGIC_AT]
        if magic < 2:
            raise OldFormatError(f"A message of format {magic} at byte {self._at}")
        header = read_header(self._buffer, self._at)
        if header.base_offset < self._end:
            raise CorruptBatchError(
                f"Offsets {header.base_offset} to {header.last_offset}: the batch before it ends at {self._end - 1}"
            )
        if self._check_crcs:
            crc = crc_of(self._buffer, self._at, _LOG_OVERHEAD + length)
            if crc != header.crc:
                raise CorruptBatchError(
                    f"Offsets {header.base_offset} to {header.last_offset}: their CRC is {crc:#010x}, the header of"
                    f" their batch says {header.crc:#010x}"
                )
        return header

    def _passes(self, header: BatchHeader) -> bool:
        """Whether to deliver the batch's records. Call this method for every batch, in order."""
        if self._aborted or self._aborting:
            while self._aborted and self._aborted[0][0] <= header.last_offset:
                self._aborting.add(self._aborted.popleft()[1])
            if header.is_control:
                if header.producer_id in self._aborting and self._is_abort(header):
                    self._aborting.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in self._aborting:
                return False
        # Compaction may leave only the header of a batch.
        has_body = header.count > 0 or header.size_bytes > HEADER_BYTES
        return has_body and not header.is_control and header.last_offset >= self._from_offset

    def _is_abort(self, header: BatchHeader) -> bool:
        if header.count == 0:
            return False  # compaction has already removed the transaction's records
        return is_abort(self._body(self._at, header), header.base_offset)

    def _body(self, at: int, header: BatchHeader) -> bytes:
        stored = bytes(memoryview(self._buffer)[at + HEADER_BYTES : at + header.size_bytes])
        try:
            return decompress(stored, header.compression, self._max_body_bytes)
        except CorruptBatchError as error:
            raise CorruptBatchError(
                f"Offsets {header.base_offset} to {header.last_offset}: {error}"
            ) from error

    def _decode(self, found: Sequence[_Found]) -> _Parsed:
        """Decode the records of these batches together."""
        if not found:
            return _empty(self.schema), np.empty(0, np.int64), np.empty(0, np.int32)
        source: Buffer
        if all(batch.body is None for batch in found):
            source = self._buffer
            areas = [(batch.at + HEADER_BYTES, batch.at + batch.header.size_bytes) for batch in found]
        else:
            bodies = [
                self._body(batch.at, batch.header) if batch.body is None else batch.body for batch in found
            ]
            source = bodies[0] if len(bodies) == 1 else b"".join(bodies)
            areas, end = [], 0
            for body in bodies:
                areas.append((end, end + len(body)))
                end += len(body)
        try:
            return _parse(source, areas, [batch.header for batch in found], self._from_offset, self.schema)
        except IndexError:
            raise CorruptBatchError("The last record runs over the end of its batch") from None


def _empty(schema: Any) -> Any:
    return _arrow.RecordBatch.from_arrays([_arrow.nulls(0, field.type) for field in schema], schema=schema)


def _parse(
    source: Buffer,
    areas: Sequence[tuple[int, int]],
    headers: Sequence[BatchHeader],
    from_offset: int,
    schema: Any,
) -> _Parsed:
    """Read field by field: each step reads one field of all records of all batches.

    Returns:
        The records.

    Raises:
        CorruptBatchError: The records contradict the headers.
        IndexError: A record runs over the end of `source`.
    """
    counts = np.array([header.count for header in headers])
    data = np.frombuffer(source, np.uint8)
    starts = _starts(source, areas, [header.count for header in headers])
    lengths, at = varints(data, starts)
    ends = at + lengths
    expected = np.append(starts[1:], 0)
    expected[np.cumsum(counts) - 1] = [end for _, end in areas]
    # Each record must end where the next record begins. This check also detects a field that runs over the end of its
    # batch.
    if not np.array_equal(ends, expected):
        raise CorruptBatchError("A record does not end where the next one begins")
    deltas, at = varints(data, at + 1)
    offset_deltas, at = varints(data, at)
    keys, at = field_places(data, at, ends)
    values, at = field_places(data, at, ends)
    header_counts, at = varints(data, at)
    headed = header_counts.any()
    if not headed:
        if not np.array_equal(at, ends):
            raise CorruptBatchError("A record does not fill its length exactly")
    elif (header_counts < 0).any() or (header_counts > ends - at).any():
        raise CorruptBatchError("An impossible number of headers")

    offsets = np.repeat(np.array([header.base_offset for header in headers]), counts) + offset_deltas
    last = np.repeat(np.array([header.last_offset_delta for header in headers]), counts)
    if (offset_deltas < 0).any() or (offset_deltas > last).any() or (offsets[1:] <= offsets[:-1]).any():
        raise CorruptBatchError("Offsets that do not ascend, or are outside of their batch")
    first = int(np.searchsorted(offsets, from_offset))

    epochs = np.repeat(np.array([h.partition_leader_epoch for h in headers], np.int32), counts)[first:]
    appended = [header.is_log_append_time for header in headers]
    made: dict[str, Any] = {}
    for name in schema.names:
        match name:
            case "offset":
                made[name] = _arrow.array(offsets[first:])
            case "timestamp":
                # With LogAppendTime, all records of a batch have the time of the broker.
                pairs = zip(headers, appended, strict=True)
                times = np.repeat(
                    np.array([h.max_timestamp if a else h.base_timestamp for h, a in pairs]), counts
                )
                if any(appended):
                    deltas *= np.repeat(~np.array(appended), counts)
                made[name] = _arrow.array((times + deltas)[first:]).view(_arrow.timestamp("ms", "UTC"))
            case "timestamp_type":
                made[name] = _arrow.array(np.repeat(np.array(appended, np.int8), counts)[first:])
            case "leader_epoch":
                made[name] = _arrow.array(epochs)
            case "key" | "value":
                starts, lengths = keys if name == "key" else values
                column = _views if schema.field(name).type == _VIEW else _gather
                made[name] = column(source, starts[first:], lengths[first:])
            case _ if headed:
                made[name] = _headers(source, header_counts[first:], at[first:], ends[first:])
            case _:
                made[name] = _no_headers(len(offsets) - first)
    return _arrow.RecordBatch.from_arrays(list(made.values()), schema=schema), offsets[first:], epochs


def _starts(source: Buffer, areas: Sequence[tuple[int, int]], counts: Sequence[int]) -> _Numbers:
    """Where each record begins: a record's length shows where the next record begins. In a run of records of equal
    length, the function does not decode each length.

    This function reads a negative length as a positive length. The caller reads all lengths again, and detects negative
    lengths.

    Raises:
        CorruptBatchError: The last record of a batch does not end where the batch ends.
        IndexError: A record begins after the end of `source`.
    """
    found: list[_Numbers] = []
    starts: list[int] = []
    append = starts.append
    for (position, end), count in zip(areas, counts, strict=True):
        if count * _MIN_RECORD_BYTES > end - position:
            raise CorruptBatchError(f"{count} records claimed in {end - position} bytes")
        left = count
        while left:
            step = left if left < _LONG_RUN else _STEP
            begin = position
            previous = position
            for _ in range(step):
                append(position)
                previous = position
                # Lengths of one and two bytes are decoded inline: this loop dominates the cost of decoding.
                first = source[position]
                if first < 0x80:
                    position += 1 + (first >> 1)
                else:
                    second = source[position + 1]
                    if second < 0x80:
                        position += 2 + ((first & 0x7F) >> 1) + (second << 6)
                    else:
                        length, after = read_varint(source, position)
                        position = after + length
            left -= step
            stride = position - previous
            if left and stride > 0 and begin + stride * step == position:
                run = run_of_equal_lengths(
                    source,
                    previous,
                    stride,
                    min(left, (end - position) // stride),
                )
                if run:
                    found += (
                        np.array(starts, np.int64),
                        np.arange(position, position + run * stride, stride),
                    )
                    starts.clear()
                    left -= run
                    position += run * stride
        if position != end:
            raise CorruptBatchError(f"{count} records end at byte {position}, their batch at {end}")
    found.append(np.array(starts, np.int64))
    return np.concatenate(found)


def _gather(source: Buffer, starts: _Numbers, lengths: _Numbers) -> Any:
    """Make a binary column from the fields at these starts. A length of -1 means null. See the top of this file."""
    count = len(starts)
    null = lengths < 0
    nulls = bool(null.any())
    if not count or (nulls and null.all()):
        return _arrow.nulls(count, _arrow.binary())
    bounds = np.empty(2 * count, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + np.maximum(lengths, 0) if nulls else starts + lengths
    over = _arrow.Array.from_buffers(
        _arrow.binary(), 2 * count - 1, [None, _arrow.py_buffer(bounds), _arrow.py_buffer(source)]
    )
    return over.take(_arrow.array(np.arange(0, 2 * count, 2), mask=null if nulls else None))


def _views(source: Buffer, starts: _Numbers, lengths: _Numbers) -> Any:
    """A `binary_view` column: for each value, its length, its first 4 bytes, and where it is in `source`.

    Values of up to 12 bytes are in the view itself.
    """
    count = len(starts)
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = np.maximum(lengths, 0)
    large = np.flatnonzero(lengths > _INLINE)
    buffers = []
    if large.size:
        buffers.append(_arrow.py_buffer(source))
        views[large, 1] = _overlapping(source, np.dtype(np.int32))[starts[large]]
        views[large, 3] = starts[large]
    if large.size < count:
        small = np.flatnonzero(lengths <= _INLINE)
        sizes, at = views[small, 0], starts[small]
        inline = np.zeros((small.size, _INLINE), np.uint8)
        # Near the end of the source, fewer than 12 bytes follow the start of a value.
        near = at > len(source) - _INLINE
        if not near.all():
            pieces = _overlapping(source, np.dtype((np.void, _INLINE)))[at[~near]]
            inline[~near] = pieces.view(np.uint8).reshape(-1, _INLINE)
        data = np.frombuffer(source, np.uint8)
        for index in np.flatnonzero(near).tolist():
            inline[index, : sizes[index]] = data[at[index] : at[index] + sizes[index]]
        inline[np.arange(_INLINE) >= sizes[:, None]] = 0
        views.view(np.uint8).reshape(count, 16)[small, 4:] = inline
    null = lengths < 0
    valid = _arrow.array(~null).buffers()[1] if null.any() else None
    return _arrow.Array.from_buffers(_VIEW, count, [valid, _arrow.py_buffer(views), *buffers])


def _overlapping(source: Buffer, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of overlapping items: item *i* begins at byte *i* of the source."""
    return np.ndarray((len(source) - kind.itemsize + 1,), kind, source, strides=(1,))


def _no_headers(count: int) -> Any:
    """The headers column of records without headers."""
    zeros = _arrow.py_buffer(np.zeros(count + 1, np.int32))
    return _arrow.Array.from_buffers(
        HEADERS, count, [None, zeros], children=[_arrow.nulls(0, HEADERS.value_type)]
    )


def _headers(source: Buffer, counts: _Numbers, at: _Numbers, ends: _Numbers) -> Any:
    """The headers column. Decodes the first header of all records at once, then the second header of all records, and
    so on.
    """
    before = np.concatenate(([0], np.cumsum(counts)))
    total = int(before[-1])
    names = np.empty((2, total), np.int64)
    values = np.empty((2, total), np.int64)
    data = np.frombuffer(source, np.uint8)
    records = np.flatnonzero(counts)
    at = at[records]
    nth = 0
    while records.size > _FEW:
        name, at = field_places(data, at, ends[records])
        value, at = field_places(data, at, ends[records])
        index = before[records] + nth
        names[:, index] = name
        values[:, index] = value
        nth += 1
        over = counts[records] == nth
        if (at[over] != ends[records][over]).any():
            raise CorruptBatchError("A record does not fill its length exactly")
        records, at = records[~over], at[~over]
    for record, position in zip(records.tolist(), at.tolist(), strict=True):
        end = int(ends[record])
        for slot in range(int(before[record]) + nth, int(before[record + 1])):
            for column in (names, values):
                length, position = read_varint(source, position)
                if length < -1 or length > end - position:
                    raise CorruptBatchError("A header that runs over the end of its record")
                column[:, slot] = position, length
                position += max(0, length)
        if position != end:
            raise CorruptBatchError("A record does not fill its length exactly")
    if (names[1] < 0).any():
        raise CorruptBatchError("A header without a name")
    try:
        keys = _gather(source, *names).cast(_arrow.string())
    except _arrow.ArrowInvalid:
        raise CorruptBatchError("A header name that is not UTF-8") from None
    pairs = _arrow.StructArray.from_arrays([keys, _gather(source, *values)], fields=list(HEADERS.value_type))
    return _arrow.ListArray.from_arrays(_arrow.array(before.astype(np.int32)), pairs, type=HEADERS)

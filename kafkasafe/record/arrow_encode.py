"""Encodes Arrow columns as a RecordBatch v2, without a Python object for any record.

numpy encodes the varints before the keys and values, for all records at once. Then a single Arrow join concatenates
varints, keys and values: the data buffer of the joined array *is* the records section of the batch.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kafkasafe.packages import pyarrow_for
from kafkasafe.record import batch
from kafkasafe.record.partition import partitions_for_buffer

# pyarrow ships no types.
_arrow: Any = pyarrow_for("An Arrow table")
_compute: Any = importlib.import_module("pyarrow.compute")
_Numbers = npt.NDArray[np.int64]

_BINARY: Final = _arrow.binary()
_NOTHING: Final = _arrow.scalar(b"", _BINARY)
_MAX_VARINT: Final = 10
# Maximum number of bytes that a record needs in addition to its contents: length (≤ 5), attributes, timestamp delta (≤
# 10), offset delta (≤ 5), lengths of key and value (≤ 5 each), number of headers (≤ 5).
_OVERHEAD_BYTES: Final = 36
_NO_HEADERS: Final = _arrow.scalar(b"\0", _BINARY)
_NULL: Final = b"\1"  # the length of a key that is null
_PLAIN: Final = b"\0\0"  # no attributes, no timestamp delta
_TABLE_SIZE: Final = 1 << 16


def as_binary(column: Any) -> Any:
    """A column of strings or bytes as one array of bytes with 32-bit offsets.

    Raises:
        TypeError: The column has another type.
        ValueError: The column has more than 2 GiB. Pass fewer rows.
    """
    if isinstance(column, _arrow.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if kind == _BINARY:
        return column
    types = _arrow.types
    if types.is_null(kind):
        return _arrow.nulls(len(column), _BINARY)
    if types.is_string(kind):
        return column.view(_BINARY)
    known = (types.is_large_string, types.is_large_binary, types.is_fixed_size_binary)
    if not any(is_kind(kind) for is_kind in known) and str(kind) not in {"string_view", "binary_view"}:
        raise TypeError(f"A column of {kind}: keys and values are strings or bytes")
    try:
        return column.cast(_BINARY)
    except _arrow.ArrowInvalid as error:
        raise ValueError(str(error)) from error


def _lengths(column: Any) -> _Numbers:
    """Bytes of each entry, -1 for null."""
    lengths = _compute.binary_length(column)
    if lengths.null_count:
        lengths = lengths.fill_null(-1)
    return np.asarray(lengths, dtype=np.int64)


def _varints(numbers: _Numbers) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The numbers as zigzag varints, one varint in each row, and a mask of the bytes that each varint uses."""
    rest = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // 7))
    shifts = (7 * np.arange(width)).astype(np.uint64)
    shifted = rest[:, None] >> shifts
    more = shifted > 0x7F
    digits: npt.NDArray[np.uint8] = (shifted & np.uint64(0x7F)).astype(np.uint8)
    digits |= more.view(np.uint8) << np.uint8(7)
    used = np.ones((len(numbers), width), np.bool_)
    used[:, 1:] = shifted[:, 1:] > 0
    return digits, used


def _varint_sizes(numbers: _Numbers) -> _Numbers:
    rest = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    sizes = np.ones(len(numbers), np.int64)
    for shift in range(7, 7 * _MAX_VARINT, 7):
        longer = rest >> np.uint64(shift) > 0
        if not longer.any():
            break
        sizes += longer
    return sizes


def _binary(data: npt.NDArray[np.uint8], ends: _Numbers) -> Any:
    """An Arrow array of these bytes. Entry *i* ends at `ends[i]`."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, _arrow.py_buffer(offsets), _arrow.py_buffer(data)]
    return _arrow.Array.from_buffers(_BINARY, len(ends), buffers)


def _row_bytes(*parts: tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]) -> Any:
    """An Arrow array with one entry for each row: the concatenated used bytes of the row's parts."""
    digits = parts[0][0] if len(parts) == 1 else np.concatenate([part[0] for part in parts], axis=1)
    used = parts[0][1] if len(parts) == 1 else np.concatenate([part[1] for part in parts], axis=1)
    return _binary(digits[used], np.cumsum(used.sum(axis=1)))


def _join(*columns: Any) -> Any:
    return _compute.binary_join_element_wise(
        *columns, _NOTHING, null_handling="replace", null_replacement=b""
    )


def _header_fields(headers: Any) -> tuple[Any, _Numbers] | None:
    """The encoded headers of each record and their number; None if no record has headers.

    Raises:
        TypeError: The column does not consist of lists of structs with `key` and `value`.
        ValueError: A header without a key.
    """
    if isinstance(headers, _arrow.ChunkedArray):
        headers = headers.combine_chunks()
    kind = headers.type
    types = _arrow.types
    if types.is_null(kind):
        return None
    is_list = types.is_list(kind) or types.is_large_list(kind)
    if not is_list or not types.is_struct(kind.value_type):
        raise TypeError(f"Headers of {kind}: they are array<struct<key: string, value: binary>>")
    counts = _compute.list_value_length(headers).fill_null(0)
    counts = np.asarray(counts, dtype=np.int64)
    if not counts.any():
        return None
    flat = headers.flatten()  # in Arrow, a null list may have items; `flatten` skips them
    if flat.null_count:
        raise ValueError("A header that is null")
    names = {flat.type.field(index).name for index in range(flat.type.num_fields)}
    if names != {"key", "value"}:
        raise TypeError(f"Headers of {kind}: they are array<struct<key: string, value: binary>>")
    keys, values = (as_binary(_compute.struct_field(flat, name)) for name in ("key", "value"))
    if keys.null_count:
        raise ValueError("A header without a key")
    joined = _join(_row_bytes(_varints(_lengths(keys))), keys, _row_bytes(_varints(_lengths(values))), values)
    # The headers of one record are adjacent in the joined bytes, so cut the bytes at each record's end.
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + len(joined) + 1]
    ends = offsets[np.cumsum(counts)].astype(np.int64)
    return _binary(np.frombuffer(joined.buffers()[2], np.uint8), ends), counts


@dataclass(frozen=True, slots=True)
class Rows:
    """Records as columns of bytes. All columns have the same length.

    Attributes:
        keys: An Arrow array of bytes; None if no record has a key.
        values: An Arrow array of bytes.
        tails: The last bytes of each record (the number of its headers, then the encoded headers); None if no record
            has headers.
    """

    keys: Any | None
    values: Any
    tails: Any | None = None

    @classmethod
    def of(cls, keys: Any | None, values: Any, headers: Any | None = None) -> Rows:
        """Make rows from columns of the same length.

        Args:
            keys: Strings or bytes; None when no record has a key.
            values: Strings or bytes.
            headers: For each value, a list of (key, value) structs; None when no record has headers.

        Raises:
            TypeError: A column has another type.
            ValueError: The columns have different lengths, a header has no key, or a column has more than 2 GiB.
        """
        values = as_binary(values)
        keys = None if keys is None else as_binary(keys)
        for what, column in (("keys", keys), ("headers", headers)):
            if column is not None and len(column) != len(values):
                raise ValueError(f"{len(column)} {what} for {len(values)} values")
        if keys is not None and keys.null_count == len(keys):
            keys = None
        fields = None if headers is None else _header_fields(headers)
        tails = None if fields is None else _join(_row_bytes(_varints(fields[1])), fields[0])
        return cls(keys, values, tails)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> Rows:
        """Consecutive rows; nothing is copied."""
        return Rows(*(None if column is None else column[part] for column in self._columns()))

    def take(self, indices: npt.NDArray[np.integer[Any]]) -> Rows:
        """The rows with these indices, in this order."""
        wanted = _arrow.array(indices)
        return Rows(*(None if column is None else column.take(wanted) for column in self._columns()))

    def sizes(self) -> _Numbers:
        """Upper bound of each record's size in a batch before compression, in bytes."""
        sizes = _OVERHEAD_BYTES + np.maximum(_lengths(self.values), 0)
        for column in (self.keys, self.tails):
            if column is not None:
                sizes += np.maximum(_lengths(column), 0)
        return sizes

    def _columns(self) -> tuple[Any, Any, Any]:
        return self.keys, self.values, self.tails


def partitions_of(keys: Any, n: int) -> _Numbers:
    """The partition of each key by Kafka's murmur2, -1 where the key is null.

    Args:
        keys: A column of strings or bytes.
        n: Number of partitions of the topic, ≥ 1.
    """
    keys = as_binary(keys)
    if keys.null_count == len(keys):
        return np.full(len(keys), -1, np.int64)
    _, offsets, data = keys.buffers()
    ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    found = partitions_for_buffer(b"" if data is None else data, ends, n)
    if keys.null_count:
        found[np.asarray(keys.is_null())] = -1
    return found


@functools.cache
def _table(before: bytes) -> Any:
    """A table whose entry *i* is `before`, followed by the varint of *i* - 1. Taking an entry costs less than encoding
    a number.
    """
    return _behind(before, np.arange(-1, _TABLE_SIZE - 1))


def _behind(before: bytes, numbers: _Numbers) -> Any:
    constant = np.broadcast_to(np.frombuffer(before, np.uint8), (len(numbers), len(before)))
    return _row_bytes((constant, np.ones(constant.shape, np.bool_)), _varints(numbers))


def _column(numbers: _Numbers, before: bytes = b"") -> Any:
    """The varints of numbers ≥ -1, each preceded by the bytes `before`. An Arrow array; a scalar if all numbers are
    equal.
    """
    lowest, highest = int(numbers.min()), int(numbers.max())
    if lowest == highest:
        return _arrow.scalar(before + batch.varint(lowest), _BINARY)
    if highest < _TABLE_SIZE - 1 and len(before) <= len(_PLAIN):
        return _table(before).take(_arrow.array(numbers + 1))
    return _behind(before, numbers)


def records(rows: Rows, offsets: _Numbers, *, timestamp_delta: int = 0) -> tuple[memoryview, _Numbers]:
    """Encode records one after the other, as in a batch.

    Args:
        rows: The records, at least one.
        offsets: The offset delta of each record, which is the record's index in its batch.
        timestamp_delta: Timestamp of all records, relative to their batch's base timestamp, ms.

    Returns:
        The bytes, and where each record ends in these bytes.
    """
    before = b"\0" + batch.varint(timestamp_delta)  # no attributes
    value_lengths = _lengths(rows.values)
    sizes = len(before) + _varint_sizes(offsets)
    sizes += _varint_sizes(value_lengths) + np.maximum(value_lengths, 0)
    middle = [_column(offsets, before)]
    if rows.keys is None:
        sizes += len(_NULL)
        middle.append(_arrow.scalar(_NULL, _BINARY))
    else:
        key_lengths = _lengths(rows.keys)
        sizes += _varint_sizes(key_lengths) + np.maximum(key_lengths, 0)
        middle += [_column(key_lengths), rows.keys]
    sizes += 1 if rows.tails is None else _lengths(rows.tails)
    tails = _NO_HEADERS if rows.tails is None else rows.tails
    joined = _join(_column(sizes), *middle, _column(value_lengths), rows.values, tails)
    # Arrow has just made this array, so it begins at 0, and its data contains only the records.
    ends = np.frombuffer(joined.buffers()[1], np.int32)[1 : len(rows) + 1].astype(np.int64)
    return memoryview(joined.buffers()[2])[: int(ends[-1])], ends

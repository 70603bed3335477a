"""Reads the numbers and fields of records, one by one or in columns."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from kafkasafe.record.batch.header import Buffer, CorruptBatchError

_UINT64_MAX: Final = 2**64 - 1


Bytes: TypeAlias = npt.NDArray[np.uint8]
Numbers: TypeAlias = npt.NDArray[np.int64]


def read_varint(body: Buffer, at: int) -> tuple[int, int]:
    """Reads a zigzag varint of at most 64 bits. Returns the number and the position of the next field.

    Raises:
        IndexError: The body ends before the varint does.
        CorruptBatchError: The number has more than 64 bits.
    """
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


def read_field(body: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = read_varint(body, at)
    if length == -1:
        return None, at
    if length < 0 or at + length > end:
        raise CorruptBatchError(f"A field of {length} bytes at byte {at}, in a record that ends at {end}")
    return body[at : at + length], at + length


def run_of_equal_lengths(body: Buffer, start: int, stride: int, most: int) -> int:
    """How many consecutive records after the record at byte `start` have the same length as this record.

    Records of equal length begin `stride` bytes apart, so the function compares only the bytes at these places with the
    first record's length. The result is exact: as long as all earlier records have this length, a record does begin at
    each such place.

    Args:
        body: The records.
        start: Where the first record begins.
        stride: Size of the first record, including the varint of its length.
        most: Largest number of records to compare.
    """
    prefix = body[start : read_varint(body, start)[1]]
    data = np.frombuffer(body, np.uint8)
    same = np.ones(max(0, most), np.bool_)
    for index, byte in enumerate(prefix, start=start + stride):
        same &= data[index : index + len(same) * stride : stride] == byte
    return len(same) if same.all() else int(same.argmin())


def varints(data: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag varints at these positions, and where the field after each varint begins."""
    number = data[at].astype(np.uint64)
    at = at + 1
    rest = np.flatnonzero(number > 0x7F)
    shift = 7
    while rest.size:
        if shift > 63:
            raise CorruptBatchError(f"A number of more than 64 bits at byte {at[rest[0]]} of the records")
        byte = data[at[rest]].astype(np.uint64)
        # `number` still contains the previous byte's continuation bit, at the place of this byte's lowest bit.
        # Subtracting one removes the continuation bit.
        number[rest] += (byte - np.uint64(1)) << np.uint64(shift)
        at[rest] += 1
        rest = rest[byte > 0x7F]
        shift += 7
    return (number >> np.uint64(1)).astype(np.int64) ^ -(number & np.uint64(1)).astype(np.int64), at


def field_places(data: Bytes, at: Numbers, ends: Numbers) -> tuple[tuple[Numbers, Numbers], Numbers]:
    """Starts and lengths (-1: null) of the keys or values at these positions, and where the next field of each record
    begins.
    """
    lengths, at = varints(data, at)
    if (lengths < -1).any() or (lengths > ends - at).any():
        raise CorruptBatchError("A key or value that runs over the end of its record")
    return (at, lengths), at + np.maximum(lengths, 0)

"""Reads, checks and changes the header of a batch, without touching the batch's records."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import crc32c

Buffer: TypeAlias = bytes | bytearray | memoryview
"""The types from which this module reads bytes."""

Headers: TypeAlias = Mapping[int, Sequence[tuple[str, Buffer | None]]]
"""Record headers by record index; records without headers are left out."""

HEADER_BYTES: Final = 61
MAX_BODY_BYTES: Final = 256 * 1024 * 1024
"""Default for the largest permitted size of a batch's decompressed records."""
RECORD_OVERHEAD: Final = 16
"""Maximum number of bytes that a record without headers and timestamp takes in addition to its key and value."""

MAGIC: Final = 2

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC: Final = struct.Struct(">I")
_IDENTITY: Final = struct.Struct(">qhi")
LENGTH: Final = struct.Struct(">i")
_EPOCH: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")

_LENGTH_AT: Final = 8
_LEADER_EPOCH_AT: Final = 12
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
_IDENTITY_AT: Final = 43
_COUNT_AT: Final = 57

_LOG_OVERHEAD: Final = 12  # size of baseOffset and batchLength; batchLength does not count these bytes
_COMPRESSION_MASK: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_INT32_MAX: Final = 2**31 - 1


class Compression(enum.IntEnum):
    """The compression of a batch's records, in the low three bits of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptBatchError(ValueError):
    """The bytes are not a complete, intact RecordBatch v2. The message gives the reason."""


def _add_sequence(sequence: int, increment: int) -> int:
    """Adds as Kafka does for sequence numbers: the number after 2**31 - 1 is 0."""
    return (sequence + increment) & _INT32_MAX


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of a batch: the 61 bytes before the records.

    Attributes:
        base_offset: Offset of the first record; in a spool, the position of the first record.
        batch_length: Number of the batch's bytes after the field batchLength.
        partition_leader_epoch: Leader epoch; in a spool, the number of the destination.
        magic: Format of the batch, always 2.
        crc: CRC32C of all bytes from byte 21 on.
        attributes: Compression, timestamp type and kind of batch.
        last_offset_delta: Offset of the last record, relative to `base_offset`. After compaction, this offset may be
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
        """Sequence of the last record (inclusive), -1 when the batch has no batch id."""
        return -1 if self.base_sequence < 0 else _add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def next_sequence(self) -> int:
        """Base sequence of the next batch, -1 when this batch has no batch id."""
        return -1 if self.base_sequence < 0 else _add_sequence(self.base_sequence, self.last_offset_delta + 1)

    @property
    def is_control(self) -> bool:
        """Whether the records are control records (transaction markers, or a spool's marks)."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker replaced the records' timestamps by `max_timestamp`."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & _COMPRESSION_MASK)


def read_header(buf: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch that begins at byte `at`.

    This function does not check the CRC and the presence of the records; `verify` does.

    Args:
        buf: A buffer with at least the first 61 bytes of the batch.
        at: Where the batch begins.

    Raises:
        CorruptBatchError: The bytes are not the header of a RecordBatch v2, or end inside the header.
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

    The CRC does not cover bytes 0–20; in a spool, the group's manifest protects them.

    Args:
        buf: Bytes with the batch; other bytes may follow.
        at: Where the batch begins.

    Raises:
        CorruptBatchError: As for `read_header`, and if the batch is cut short or its CRC differs.
    """
    header = read_header(buf, at)
    if header.size_bytes > len(buf) - at:
        raise CorruptBatchError(
            f"Truncated batch: {len(buf) - at} bytes at {at}, the header claims {header.size_bytes}"
        )
    crc = crc_of(buf, at, header.size_bytes)
    if crc != header.crc:
        raise CorruptBatchError(
            f"CRC of the batch at {at} is {crc:#010x}, its header says {header.crc:#010x}"
        )
    return header


def iter_headers(buf: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yields the position and the header of each of several concatenated batches, as in a Fetch response.

    An incomplete batch ends the iteration: a broker truncates its response at its byte limit. Messages of formats
    before v2 are skipped. CRCs are not checked.

    Raises:
        CorruptBatchError: The bytes after the last yielded batch are not a batch.
    """
    for at in _whole_batches(buf):
        if buf[at + _MAGIC_AT] > 1:
            yield at, read_header(buf, at)


def last_header(buf: Buffer) -> BatchHeader | None:
    """The header of the last whole batch of a Fetch response. Does not parse earlier headers.

    Returns:
        The header; None if the response contains no whole batch, or ends with a message of a format before v2 or with
        bytes that are not a batch. CRCs are not checked.
    """
    last = None
    try:
        for at in _whole_batches(buf):
            last = at
        return None if last is None or buf[last + _MAGIC_AT] != MAGIC else read_header(buf, last)
    except CorruptBatchError:
        return None


def _whole_batches(buf: Buffer) -> Iterator[int]:
    """Yields the positions of concatenated batches, in any message format. Ends before an incomplete batch."""
    at = 0
    while len(buf) - at > _MAGIC_AT:
        (length,) = LENGTH.unpack_from(buf, at + _LENGTH_AT)
        # The smallest message of the oldest format has 14 bytes after its length field.
        if length < 14:
            raise CorruptBatchError(f"Batch at {at} claims a length of {length} bytes")
        if length > len(buf) - at - _LOG_OVERHEAD:
            return
        yield at
        at += _LOG_OVERHEAD + length


def stamp_identity(
    buf: bytearray,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    *,
    transactional: bool = False,
) -> None:
    """Writes the batch id into a whole batch, in place, and computes the batch's CRC again.

    Args:
        buf: Exactly one batch.
        producer_id: Producer id, -1 for none.
        producer_epoch: Producer epoch, -1 for none.
        base_sequence: Sequence of the first record, -1 for none.
        transactional: Whether to mark the batch as part of a transaction. False leaves the attributes unchanged.

    Raises:
        CorruptBatchError: `buf` is not exactly one batch. `buf` is unchanged.
    """
    _check_whole(buf)
    if transactional:
        buf[ATTRIBUTES_AT + 1] |= _TRANSACTIONAL
    _IDENTITY.pack_into(buf, _IDENTITY_AT, producer_id, producer_epoch, base_sequence)
    stamp_crc(buf)


def stamp_address(buf: bytearray, base_offset: int, partition_leader_epoch: int) -> None:
    """Writes the two fields outside the CRC into a whole batch, in place, which is cheap for a batch of any size.

    Args:
        buf: Exactly one batch.
        base_offset: Spool position; 0 on the wire (a broker refuses anything else).
        partition_leader_epoch: Destination number; -1 on the wire.

    Raises:
        CorruptBatchError: `buf` is not exactly one batch. `buf` is unchanged.
    """
    _check_whole(buf)
    _OFFSET.pack_into(buf, 0, base_offset)
    _EPOCH.pack_into(buf, _LEADER_EPOCH_AT, partition_leader_epoch)


def identity_of(buf: Buffer) -> tuple[int, int, int]:
    """(producer id, epoch, base sequence) of a complete batch. Cheaper than reading the whole header."""
    return _IDENTITY.unpack_from(buf, _IDENTITY_AT)


def crc_and_count(buf: Buffer) -> tuple[int, int]:
    """CRC and number of records of a complete batch. Cheaper than reading the whole header."""
    return _CRC.unpack_from(buf, _CRC_AT)[0], LENGTH.unpack_from(buf, _COUNT_AT)[0]


def _check_whole(buf: bytearray) -> None:
    if len(buf) >= HEADER_BYTES:
        # Check the fields here, because creating a header object would cost ten times as much.
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


def crc_of(buf: Buffer, at: int, size: int) -> int:
    with memoryview(buf) as view, view[at + ATTRIBUTES_AT : at + size] as covered:
        return crc32c.crc32c(covered)


def stamp_crc(buf: bytearray) -> None:
    _CRC.pack_into(buf, _CRC_AT, crc_of(buf, 0, len(buf)))


def fill_header(buf: bytearray, count: int, *, base_timestamp: int, max_timestamp: int) -> bytearray:
    """Makes an uncompressed batch in place: `buf` consists of room for a header (`HEADER_BYTES`) and the records
    section.

    Raises:
        ValueError: The batch is above 2 GiB.
    """
    return finish(buf, count, base_timestamp, max_timestamp, Compression.NONE)


def finish(buf: bytearray, count: int, base_timestamp: int, max_timestamp: int, attributes: int) -> bytearray:
    """Fill in the header of a batch. `buf` begins with `HEADER_BYTES` bytes for the header; the records follow."""
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
    stamp_crc(buf)
    return buf

"""A broker's checks of a batch. `producers` checks the sequence numbers later. Pure.

The checks run in the same order as in a broker: base offset, size, checksum, then the records (count, kind,
timestamps). The first check that fails determines the error code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.errors import KafkaSafeError
from kafkasafe.record.batch import (
    HEADER_BYTES,
    BatchHeader,
    Columns,
    CorruptBatchError,
    decode,
    read_header,
    stamp_address,
    stamp_identity,
    verify,
)

CORRUPT_MESSAGE: Final = 2
MESSAGE_TOO_LARGE: Final = 10
INVALID_TIMESTAMP: Final = 32
INVALID_RECORD: Final = 87

_MAGIC_AT: Final = 16
_LENGTH_AT: Final = 8
_ATTRIBUTES_AT: Final = 22  # the low byte: compression, timestamp type, kind
_MAX_TIMESTAMP_AT: Final = 35
_LOG_OVERHEAD: Final = 12
_LOG_APPEND_TIME: Final = 0x08
_NO_LIMIT_MS: Final = 2**63 - 1
_MAX_LISTED: Final = 10  # maximum number of faulty records in an answer


class NotModelledError(KafkaSafeError, NotImplementedError):
    """A client uses a feature that the fake does not have. The client gets no answer, because a guessed answer could be
    wrong.
    """


class RefusedError(KafkaSafeError):
    """A broker answers a request, or a part of it, with an error code.

    Attributes:
        message: The broker's message; None if the broker sends no message.
        record_errors: (index in the batch, message) of the faulty records.
        early: Whether the broker refused the batch without reading the partition's log.
    """

    def __init__(
        self,
        code: int,
        message: str | None = None,
        record_errors: tuple[tuple[int, str], ...] = (),
        *,
        early: bool = False,
    ) -> None:
        super().__init__(f"error code {code}: {message}")
        self.code = code
        self.message = message
        self.record_errors = record_errors
        self.early = early


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch as it is stored in a log: its bytes, and the decoded header."""

    data: bytes
    header: BatchHeader

    @property
    def base_offset(self) -> int:
        """Offset of the first record."""
        return self.header.base_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.header.last_offset + 1


def admit(
    data: bytes,
    *,
    now_ms: int,
    max_bytes: int,
    log_append_time: bool,
    keys_needed: bool,
    ahead_ms: int | None,
    behind_ms: int | None,
) -> BatchHeader:
    """Checks a batch that a client appends, and returns its header.

    Args:
        data: The request's bytes for one partition.
        now_ms: The broker's clock.
        max_bytes: The topic's `max.message.bytes`.
        log_append_time: Whether the broker will replace the timestamps. If so, they are not checked.
        keys_needed: Whether the topic is compacted. If so, each record needs a key.
        ahead_ms: How many ms a timestamp may be ahead of the clock; None: no limit.
        behind_ms: How many ms a timestamp may be older than the clock; None: no limit.

    Raises:
        RefusedError: With the code of a broker's answer.
    """
    if len(data) < _MAGIC_AT + 1:
        raise RefusedError(CORRUPT_MESSAGE, "The record batch is cut short")
    if data[_MAGIC_AT] != 2:
        raise RefusedError(
            INVALID_RECORD,
            "Produce requests of this version may only hold record batches of magic 2",
            early=True,
        )
    size = _LOG_OVERHEAD + int.from_bytes(data[_LENGTH_AT : _LENGTH_AT + 4], "big", signed=True)
    if _LOG_OVERHEAD < size < len(data):
        raise RefusedError(
            INVALID_RECORD, "A produce request holds exactly one record batch per partition", early=True
        )
    try:
        header = read_header(data)
    except CorruptBatchError as error:
        raise RefusedError(_code_of_bad_header(data), str(error)) from error
    if header.base_offset != 0:
        raise RefusedError(
            INVALID_RECORD, f"The base offset of an appended batch is 0, not {header.base_offset}"
        )
    if size > max_bytes:
        raise RefusedError(
            MESSAGE_TOO_LARGE, f"The record batch has {size} bytes, the topic takes {max_bytes}"
        )
    try:
        verify(data)
    except CorruptBatchError as error:
        raise RefusedError(CORRUPT_MESSAGE, str(error)) from error
    columns = _check_records(data, header)
    if keys_needed and (missing := [index for index, key in enumerate(columns.keys) if key is None]):
        raise RefusedError(
            INVALID_RECORD,
            "One or more records have been rejected",
            tuple((index, "Compacted topic cannot accept message without key") for index in missing),
        )
    if not log_append_time and (ahead_ms is not None or behind_ms is not None):
        _check_timestamps(columns.timestamps, now_ms, ahead_ms, behind_ms)
    return header


def _code_of_bad_header(data: bytes) -> int:
    """Returns the code for a bad header. A broker has different codes for bytes that were damaged in transit and for a
    batch that was built incorrectly.
    """
    if len(data) < HEADER_BYTES:
        return CORRUPT_MESSAGE
    count = int.from_bytes(data[57:61], "big", signed=True)
    delta = int.from_bytes(data[23:27], "big", signed=True)
    return INVALID_RECORD if count < 0 or delta < count - 1 else CORRUPT_MESSAGE


def _check_records(data: bytes, header: BatchHeader) -> Columns:
    if header.count <= 0 or header.last_offset_delta != header.count - 1:
        raise RefusedError(
            INVALID_RECORD, f"{header.count} records up to offset delta {header.last_offset_delta}"
        )
    if header.is_control:
        raise RefusedError(INVALID_RECORD, "Clients are not allowed to write control records")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise RefusedError(
            INVALID_RECORD, f"Invalid sequence {header.base_sequence} of an idempotent producer"
        )
    if header.is_log_append_time:
        raise RefusedError(INVALID_TIMESTAMP, "Clients do not choose the timestamp type LogAppendTime")
    try:
        return decode(data)
    except CorruptBatchError as error:
        raise RefusedError(INVALID_RECORD, str(error)) from error


def _check_timestamps(
    timestamps: list[int], now_ms: int, ahead_ms: int | None, behind_ms: int | None
) -> None:
    earliest = now_ms - (_NO_LIMIT_MS if behind_ms is None else behind_ms)
    latest = _NO_LIMIT_MS if ahead_ms is None else now_ms + ahead_ms
    accepted = f"The timestamp should be within [{earliest}, {latest}]"
    wrong = [
        (index, f"Timestamp {stamp} of message with offset {index} is out of range. {accepted}")
        for index, stamp in enumerate(timestamps)
        if (ahead_ms is not None and stamp - now_ms > ahead_ms)
        or (behind_ms is not None and now_ms - stamp > behind_ms)
    ]
    if wrong:
        raise RefusedError(
            INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            tuple(wrong[:_MAX_LISTED]),
        )


def store(
    data: bytes, base_offset: int, leader_epoch: int, *, append_time_ms: int | None = None
) -> StoredBatch:
    """Returns the batch as the leader stores it: with an offset and a leader epoch, and with `append_time_ms` as the
    timestamp if it is given.
    """
    batch = bytearray(data)
    if append_time_ms is not None:
        header = read_header(data)
        batch[_ATTRIBUTES_AT] |= _LOG_APPEND_TIME
        batch[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8] = append_time_ms.to_bytes(8, "big", signed=True)
        stamp_identity(batch, header.producer_id, header.producer_epoch, header.base_sequence)
    stamp_address(batch, base_offset, leader_epoch)
    stored = bytes(batch)
    return StoredBatch(stored, read_header(stored))

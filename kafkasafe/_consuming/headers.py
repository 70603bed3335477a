"""Parse the headers of fetched record batches, and of messages in formats before 2, without decoding records."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from kafkasafe.history.epochs import UNDEFINED

__all__ = ["headers"]

# Base offset, length, leader epoch, magic, CRC, attributes, last offset's delta.
_HEADER: Final = struct.Struct(">qiibIhi")
_COUNT: Final = struct.Struct(">i")
_COUNT_AT: Final = 57
_LOG_OVERHEAD: Final = 12
_MAGIC_2: Final = 2
# Offset, length, CRC, magic, attributes of messages before format 2.
_OLD_HEADER: Final = struct.Struct(">qiIbb")
_HAS_DELETE_HORIZON: Final = 0x40


class _Header:
    """Fields of the header of a batch, or of a message in a format before 2.

    Attributes:
        base_offset: First offset. For an old compressed message: its last offset, the only one in its header.
        last_offset: Last offset (inclusive).
        epoch: Leader epoch; -1 if there is none.
        crc: Checksum.
        wrapped: Whether it is an old compressed message with several records.
        rewritten: Whether compaction has rewritten the batch.
    """

    __slots__ = ("base_offset", "crc", "epoch", "last_offset", "rewritten", "wrapped")

    def __init__(
        self, base_offset: int, last_offset: int, epoch: int, crc: int, *, wrapped: bool, rewritten: bool
    ) -> None:
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.epoch = epoch
        self.crc = crc
        self.wrapped = wrapped
        self.rewritten = rewritten


def headers(records: Any) -> Iterator[_Header]:
    """Yield the headers of all complete batches."""
    view = memoryview(records)
    at, size = 0, len(view)
    while size - at >= _OLD_HEADER.size:
        base, length, crc, magic, attributes = _OLD_HEADER.unpack_from(view, at)
        end = at + _LOG_OVERHEAD + length
        if length <= 0 or end > size:
            return
        if magic < _MAGIC_2:
            yield _Header(base, base, UNDEFINED, crc, wrapped=bool(attributes & 7), rewritten=False)
        elif length + _LOG_OVERHEAD >= _COUNT_AT + _COUNT.size:
            base, _, epoch, _, crc, attributes, last_delta = _HEADER.unpack_from(view, at)
            (count,) = _COUNT.unpack_from(view, at + _COUNT_AT)
            rewritten = count != last_delta + 1 or bool(attributes & _HAS_DELETE_HORIZON)
            yield _Header(base, base + last_delta, epoch, crc, wrapped=False, rewritten=rewritten)
        at = end

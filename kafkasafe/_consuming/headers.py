"""The headers of what was fetched: of record batches, and of messages from before format 2. Nothing is decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from kafkasafe._core.epochs import UNDEFINED

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
    """What is looked at of a batch, or of a message from before format 2.

    Attributes:
        base_offset: First offset; of an old compressed message its last one, which is all it says.
        last_offset: Inclusive.
        epoch: Leader epoch, -1: none.
        crc: Its checksum.
        wrapped: An old compressed message, of several records.
        rewritten: Compaction has been there.
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
    """Of all whole batches."""
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

"""Transaction markers: control batches of one record, whose key is a version and a type (KIP-98, ControlRecordType)."""

from __future__ import annotations

import struct
from typing import Final

from kafkasafe.record.batch.fields import read_field, read_varint
from kafkasafe.record.batch.header import CorruptBatchError

_KEY: Final = struct.Struct(">hh")
_ABORT: Final = 0


def is_abort(body: bytes, base_offset: int) -> bool:
    """Whether a transaction marker is an abort marker, not a commit marker.

    Args:
        body: The bytes after the header of the marker's batch, uncompressed.
        base_offset: Offset of the marker, for the error message.

    Raises:
        CorruptBatchError: The body is not a control record.
    """
    try:
        length, at = read_varint(body, 0)
        end = at + length
        at = read_varint(body, at + 1)[1]
        key = read_field(body, read_varint(body, at)[1], end)[0]
    except IndexError:
        key = None
    if key is None or len(key) < _KEY.size:
        raise CorruptBatchError(f"Offset {base_offset}: a control record without a type")
    return bool(_KEY.unpack_from(key)[1] == _ABORT)

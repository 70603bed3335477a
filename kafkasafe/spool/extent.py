"""The file `extent` (see `docs/spool-format.md`): claims about where a lane's log begins and ends, each with a
checksum.

Segment files can vanish, and the remaining segments do not show that the first or the last segments are missing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import crc32c

EXTENT_NAME: Final = "extent"

_SLOT_BYTES: Final = 512  # a sector, so that one torn write never damages two claims
BEGIN_SLOTS: Final = (0, _SLOT_BYTES)
"""Byte offsets of the two slots for claims about the log's beginning. The owner writes to the slots alternately, so a
torn write to one slot leaves the claim in the other slot intact.
"""
END_SLOT: Final = 2 * _SLOT_BYTES
EXTENT_BYTES: Final = 3 * _SLOT_BYTES
_MAGIC: Final = b"KSX1"
_CLAIM: Final = struct.Struct(">4s16sqqq")
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class LogEndClaim:
    """A claim about the beginning or the end of a log.

    Attributes:
        lane_id: The lane's id, 16 bytes.
        number: Of two claims about the beginning, the claim with the larger number is valid. A claim about the end
            always has the number 0.
        position: In a claim about the beginning, the log's first position: every record from this position on must
            exist. In a claim about the end, the position after the log's last record: everything before it was durable
            when the claim was written.
        records: Number of data records before `position`, counted since the file `extent` was created.
    """

    lane_id: bytes
    number: int
    position: int
    records: int


@dataclass(frozen=True, slots=True)
class Extent:
    """The claims about a lane; None where a claim is missing."""

    begin: LogEndClaim | None = None
    end: LogEndClaim | None = None

    @property
    def lane_id(self) -> bytes | None:
        """Id of the lane; None without claims."""
        claim = self.begin or self.end
        return None if claim is None else claim.lane_id

    def of(self, lane_id: bytes | None) -> Extent:
        """The claims about the lane with the id `lane_id`; all claims if `lane_id` is None."""
        if lane_id is None:
            return self
        begin, end = (c if c is not None and c.lane_id == lane_id else None for c in (self.begin, self.end))
        return Extent(begin, end)


def encode_claim(claim: LogEndClaim) -> bytes:
    """Encode a claim for one of the slots."""
    body = _CLAIM.pack(_MAGIC, claim.lane_id, claim.number, claim.position, claim.records)
    return body + _CRC.pack(crc32c.crc32c(body))


def decode_extent(content: bytes) -> Extent:
    """Decode the claims in the content of the file `extent`. A torn or damaged claim counts as missing."""
    begins = [claim for slot in BEGIN_SLOTS if (claim := _decode(content, slot)) is not None]
    begin = max(begins, key=lambda claim: claim.number, default=None)
    end = _decode(content, END_SLOT)
    if begin is not None and end is not None and begin.lane_id != end.lane_id:
        return Extent()
    return Extent(begin, end)


def extent_trouble(content: bytes | None, lane_id: bytes | None) -> str:
    """Describes what is wrong with a lane's `extent`; empty if the file is complete.

    Args:
        content: Content of the file, None if the file is missing.
        lane_id: Id of the lane according to its log; None if unknown.
    """
    if content is None:
        return "the file extent is missing"
    slots = (*BEGIN_SLOTS, END_SLOT)
    written = [slot for slot in slots if any(content[slot : slot + _SLOT_BYTES])]
    claims = [_decode(content, slot) for slot in written]
    if len(content) < EXTENT_BYTES or None in claims or not any(slot in written for slot in BEGIN_SLOTS):
        return "the file extent is damaged"
    if any(claim.lane_id != (lane_id or claims[0].lane_id) for claim in claims if claim):  # type: ignore[union-attr]
        return "the file extent is of another lane"
    return ""


def _decode(content: bytes, slot: int) -> LogEndClaim | None:
    body = content[slot : slot + _CLAIM.size]
    crc = content[slot + _CLAIM.size : slot + _CLAIM.size + _CRC.size]
    if len(crc) < _CRC.size or _CRC.unpack(crc)[0] != crc32c.crc32c(body):
        return None
    magic, lane_id, number, position, records = _CLAIM.unpack(body)
    return (
        LogEndClaim(lane_id, number, position, records)
        if magic == _MAGIC and min(position, records) >= 0
        else None
    )

"""Encodes ListOffsets requests for many partitions, and decodes their answers.

kafka-python makes an object for each partition of a request and of a response. With 1,000 partitions, kafka-python's
objects cost more than all other work. So this module packs and unpacks the bytes of the rows directly. If a response
has another layout, kafka-python decodes it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from kafkasafe.cluster.network import OffsetRow
from kafkasafe.kafkapython.wire import uvarint

# For each field of ListOffsets, and for the flexible encoding, the first version that has it.
_ISOLATION: Final = 2
_THROTTLE: Final = 2
_EPOCH: Final = 4
_FLEXIBLE: Final = 6
_TIMEOUT: Final = 10

_ANY_EPOCH: Final = b"\xff\xff\xff\xff"

_INT32: Final = struct.Struct(">i")
# A row: partition, error code, timestamp, offset; in later versions the leader epoch; then the number of tagged fields.
_ROW: Final = struct.Struct(">ihqq")
_EPOCH_ROW: Final = struct.Struct(">ihqqi")
_FLEXIBLE_ROW: Final = struct.Struct(">ihqqib")


def encode_offsets(
    version: int,
    correlation_id: int,
    client_id: str,
    topics: Mapping[str, Sequence[int]],
    timestamp: int,
    isolation_level: int,
    timeout_ms: int,
) -> bytes:
    """Encodes a consumer's ListOffsets request, with the same timestamp for all partitions.

    Returns:
        The frame, including its size field. kafka-python's `ListOffsetsRequest` would have the same bytes.
    """
    flexible = version >= _FLEXIBLE
    name = client_id.encode()
    parts = [
        struct.pack(">hhih", ListOffsetsRequest.API_KEY, version, correlation_id, len(name)),
        name,
        b"\0" if flexible else b"",
        _INT32.pack(-1),
        struct.pack(">b", isolation_level) if version >= _ISOLATION else b"",
        _count(len(topics), flexible=flexible),
    ]
    row_end = (_ANY_EPOCH if version >= _EPOCH else b"") + struct.pack(">q", timestamp)
    row_end += b"\0" if flexible else b""
    for topic, numbers in topics.items():
        encoded = topic.encode()
        size = uvarint(len(encoded) + 1) if flexible else struct.pack(">h", len(encoded))
        parts += (size, encoded, _count(len(numbers), flexible=flexible))
        parts += [part for number in numbers for part in (_INT32.pack(number), row_end)]
        parts.append(b"\0" if flexible else b"")
    if version >= _TIMEOUT:
        parts.append(_INT32.pack(timeout_ms))
    parts.append(b"\0" if flexible else b"")
    body = b"".join(parts)
    return _INT32.pack(len(body)) + body


@dataclass(frozen=True, slots=True)
class OffsetRows:
    """A ListOffsets response.

    Attributes:
        rows: Pairs of (topic, rows of its partitions).
        throttle_time_ms: As in kafka-python's response.
    """

    rows: Sequence[tuple[str, Sequence[OffsetRow]]]
    throttle_time_ms: int


class OffsetsHeader:
    """The header of a ListOffsets request, which kafka-python also uses as the class of the response."""

    __slots__ = ("api_key", "api_version", "correlation_id")

    def __init__(self, api_version: int, correlation_id: int) -> None:
        self.api_key = ListOffsetsRequest.API_KEY
        self.api_version = api_version
        self.correlation_id = correlation_id

    def get_response_class(self) -> OffsetsHeader:
        """Return this object, which decodes the response."""
        return self

    def parse_header(self, buffer: Any) -> Any:
        return ListOffsetsResponse[self.api_version].parse_header(buffer)

    def decode(self, buffer: Any) -> OffsetRows:
        at = buffer.tell()
        found = decode_offsets(self.api_version, bytes(buffer), at)
        if found is not None:
            return found
        buffer.seek(at)
        response = ListOffsetsResponse[self.api_version].decode(buffer)
        rows = [
            (
                topic.name,
                [
                    (
                        each.partition_index,
                        each.error_code,
                        each.timestamp,
                        each.offset,
                        -1 if each.leader_epoch is None else each.leader_epoch,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in response.topics
        ]
        return OffsetRows(rows, response.throttle_time_ms or 0)


def decode_offsets(version: int, data: bytes, at: int) -> OffsetRows | None:
    """Decodes a ListOffsets response of version 1 to 10.

    Args:
        version: Version of the request.
        data: The response with its header.
        at: Where the header ends.

    Returns:
        The response; None if the response has tagged fields, or is incomplete.
    """
    flexible = version >= _FLEXIBLE
    kind = _FLEXIBLE_ROW if flexible else _EPOCH_ROW if version >= _EPOCH else _ROW
    found: list[tuple[str, list[OffsetRow]]] = []
    throttled_ms = 0
    try:
        if version >= _THROTTLE:
            (throttled_ms,) = _INT32.unpack_from(data, at)
            at += _INT32.size
        topics, at = _counted(data, at, flexible=flexible)
        for _ in range(topics):
            if flexible:
                size, at = _counted(data, at, flexible=True)
            else:
                (size,) = struct.unpack_from(">h", data, at)
                at += 2
            if size < 0:
                return None
            name = data[at : at + size].decode()
            count, at = _counted(data, at + size, flexible=flexible)
            end = at + count * kind.size
            if count < 0 or end > len(data):
                return None
            rows: list[Any] = list(kind.iter_unpack(memoryview(data)[at:end]))
            if flexible:
                if any(row[5] for row in rows) or data[end]:
                    return None
                rows = [row[:5] for row in rows]
                end += 1
            elif version < _EPOCH:
                rows = [(*row, -1) for row in rows]
            found.append((name, rows))
            at = end
        if flexible:
            if data[at]:
                return None
            at += 1
    except (IndexError, ValueError, struct.error):
        return None
    return OffsetRows(found, throttled_ms) if at == len(data) else None


def _count(number: int, *, flexible: bool) -> bytes:
    return uvarint(number + 1) if flexible else _INT32.pack(number)


def _counted(data: bytes, at: int, *, flexible: bool) -> tuple[int, int]:
    """Returns the length of an array or a compact string (-1 for null), and the position after the length."""
    if not flexible:
        (number,) = _INT32.unpack_from(data, at)
        return number, at + _INT32.size
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # the last byte
            return number - 1, at
        shift += 7

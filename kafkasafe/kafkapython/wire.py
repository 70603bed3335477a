"""Encodes Produce requests and decodes their answers, faster than kafka-python.

Pure, except for `Frame`, whose state changes when a connection writes it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from kafka.protocol.producer import ProduceRequest as KafkaProduceRequest
from kafka.protocol.producer import ProduceResponse

from kafkasafe.cluster.api import Buffer, ProduceReply
from kafkasafe.cluster.network import PRODUCE_BY_ID, AllAppended
from kafkasafe.cluster.terms import MAX_OFFSET, TopicPartition, plausible

_FLEXIBLE_PRODUCE: Final = 9

_INT32: Final = struct.Struct(">i")
_APPENDED: Final = struct.Struct(
    ">ihqqq"
)  # of a Produce response: partition, error code, offset, time, start of the log
_NO_MORE: Final = b"\1\0\0"  # no record errors, no error message, no tagged fields
_ONE_BYTE: Final = 0x7F
_TOPIC_ID_BYTES: Final = 16


def uvarint(number: int) -> bytes:
    """Encodes an unsigned number with seven bits in each byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_produce(
    version: int,
    correlation_id: int,
    client_id: str,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[str, int, Buffer]],
    transactional_id: str | None = None,
    topic_ids: Mapping[str, bytes] = MappingProxyType({}),
) -> list[Buffer]:
    """Encodes a Produce request as a list of buffers. The batches are not copied. Requests of version 13 and later
    contain topic ids instead of names.

    Returns:
        The frame, including its size field. Joined together, the buffers have the same bytes as kafka-python's
        `ProduceRequest`.
    """
    flexible = version >= _FLEXIBLE_PRODUCE
    topics: dict[str, list[tuple[int, Buffer]]] = {}
    for topic, partition, data in batches:
        topics.setdefault(topic, []).append((partition, data))
    name = client_id.encode()
    head = bytearray(4)  # the frame's size, which is set at the end
    head += struct.pack(">hhih", KafkaProduceRequest.API_KEY, version, correlation_id, len(name)) + name
    if flexible:
        head += b"\x00"  # no tagged fields
        transaction = b"" if transactional_id is None else transactional_id.encode()
        head += (b"\x00" if transactional_id is None else uvarint(len(transaction) + 1)) + transaction
        head += struct.pack(">hi", acks, timeout_ms) + uvarint(len(topics) + 1)
    else:
        transaction = b"" if transactional_id is None else transactional_id.encode()
        head += struct.pack(">h", -1 if transactional_id is None else len(transaction)) + transaction
        head += struct.pack(">hii", acks, timeout_ms, len(topics))
    parts: list[Buffer] = []
    for topic, partitions in topics.items():
        encoded = topic.encode()
        if version >= PRODUCE_BY_ID:
            head += topic_ids[topic] + uvarint(len(partitions) + 1)
        elif flexible:
            head += uvarint(len(encoded) + 1) + encoded + uvarint(len(partitions) + 1)
        else:
            head += struct.pack(">h", len(encoded)) + encoded + struct.pack(">i", len(partitions))
        for partition, data in partitions:
            head += struct.pack(">i", partition)
            head += uvarint(len(data) + 1) if flexible else struct.pack(">i", len(data))
            parts += (head, data)
            head = bytearray(b"\x00" if flexible else b"")
        if flexible:
            head += b"\x00"
    if flexible:
        head += b"\x00"
    parts.append(head)
    first = parts[0]
    assert isinstance(first, bytearray)  # noqa: S101  # the head comes first
    struct.pack_into(">i", first, 0, sum(map(len, parts)) - 4)
    return [part for part in parts if len(part)]


@dataclass(frozen=True, slots=True)
class _ResponseHeader:
    correlation_id: int


class ProduceHeader:
    """The header of a Produce request, which kafka-python also uses as the class of the response.

    If an answer is malformed, or reports anything besides appended batches, kafka-python decodes it.

    Args:
        topic_ids: The ids of the request's topics.
    """

    __slots__ = ("_topic_ids", "api_key", "api_version", "correlation_id")

    def __init__(
        self, api_version: int, correlation_id: int, topic_ids: Mapping[str, bytes] = MappingProxyType({})
    ) -> None:
        self._topic_ids = topic_ids
        self.api_key = KafkaProduceRequest.API_KEY
        self.api_version = api_version
        self.correlation_id = correlation_id

    def get_response_class(self) -> ProduceHeader:
        """Return this object, which decodes the response."""
        return self

    def parse_header(self, buffer: Any) -> _ResponseHeader:
        data = bytes(buffer)
        if self.api_version < _FLEXIBLE_PRODUCE or data[4:5] != b"\0":
            header: _ResponseHeader = self._theirs.parse_header(buffer)
            return header
        buffer.seek(5)
        return _ResponseHeader(_INT32.unpack_from(data)[0])

    def decode(self, buffer: Any) -> Any:
        at = buffer.tell()
        if self.api_version >= _FLEXIBLE_PRODUCE:
            by_id = self.api_version >= PRODUCE_BY_ID
            names = {topic_id: name for name, topic_id in self._topic_ids.items()} if by_id else None
            appended = decode_appended(bytes(buffer), at, names)
            if appended is not None:
                return appended
        return self._theirs.decode(buffer)

    @property
    def _theirs(self) -> Any:
        return ProduceResponse[self.api_version]


def decode_appended(data: bytes, at: int, names: Mapping[bytes, str] | None = None) -> AllAppended | None:
    """Decodes a Produce response of version 9 to 13.

    Args:
        data: The response with its header.
        at: Where the header ends.
        names: The names of the request's topics, by id. Needed if the answer contains topic ids (version 13).

    Returns:
        The answer; None if the answer is incomplete, or reports anything besides appended batches.
    """
    replies: dict[TopicPartition, ProduceReply] = {}
    try:
        topics = data[at]
        at += 1
        for _ in range(topics - 1):
            if names is None:
                size = data[at]
                name = data[at + 1 : at + size].decode()
                at += size
            else:
                size = 0
                name = names[data[at : at + _TOPIC_ID_BYTES]]
                at += _TOPIC_ID_BYTES
            partitions = data[at]
            at += 1
            if max(topics, size, partitions) > _ONE_BYTE:
                return None
            for _ in range(partitions - 1):
                index, code, base_offset, append_time, start = _APPENDED.unpack_from(data, at)
                at += _APPENDED.size
                if code or data[at : at + 3] != _NO_MORE:
                    return None
                at += 3
                replies[name, index] = ProduceReply(
                    error_code=0,
                    base_offset=base_offset,
                    log_append_time=append_time,
                    log_start_offset=plausible(start, MAX_OFFSET),
                    record_errors=(),
                    error_message=None,
                    leader_hint=None,
                )
            if data[at]:
                return None
            at += 1
        (throttled_ms,) = _INT32.unpack_from(data, at)
    except (LookupError, ValueError, struct.error):
        return None
    return AllAppended(replies, throttled_ms) if data[at + 4 :] == b"\0" else None


class Frame:
    """An encoded request that `KafkaConnection.send_request` accepts.

    `KafkaConnection` writes only the frame's first buffer, which `encode` returns. After the first buffer,
    `DirectConnection` writes the `rest` without copying it. `encoded` becomes true when the connection takes the first
    buffer. After this moment, bytes may have been sent.
    """

    __slots__ = ("API_VERSION", "encoded", "encoder", "header", "rest", "what")

    def __init__(
        self, what: str, version: int, encoder: Callable[[int, str], tuple[Any, list[Buffer]]]
    ) -> None:
        self.what = what
        self.API_VERSION = version
        self.encoder = encoder
        self.encoded = False
        self.header: Any = None
        self.rest: list[Buffer] = []

    def __str__(self) -> str:
        return f"{self.what} v{self.API_VERSION}"

    def expect_response(self) -> bool:
        """Return true: each request is answered."""
        return True

    def with_header(self, correlation_id: int, client_id: str) -> None:
        """Encode the request with this header."""
        self.header, self.rest = self.encoder(correlation_id, client_id)

    def encode(self, *, framed: bool, header: bool) -> Buffer:  # noqa: ARG002  # kafka-python's signature
        """Return the first buffer, and leave the other buffers in `rest`."""
        self.encoded = True
        return self.rest.pop(0)

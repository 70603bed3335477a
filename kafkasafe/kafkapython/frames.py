"""Converts Kafka frames to kafka-python's protocol classes and back, and finds topics and partitions in them.

Apart from a few names, the module has no code for particular APIs. The module searches a message for arrays of topics
(structs with a `name`, `topic` or `topic_id`), and each topic for arrays of partitions. So it also supports APIs that a
new release of kafka-python adds.
"""

from __future__ import annotations

import functools
import struct
import types
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage

from kafkasafe.errors import UsageError

Level: TypeAlias = Literal["top", "topic", "partition"]

SIZE_BYTES: Final = 4
_CORRELATION_BYTES: Final = 4

_TOPIC_ARRAYS: Final = ("topic", "responses", "results")
_TOPIC_NAMES: Final = ("name", "topic", "topic_name")
_PARTITION_NAMES: Final = frozenset({"index", "partition", "partition_index", "partition_id"})
_PARTITION_LISTS: Final = frozenset({"partitions", "partition_indexes"})
_NODE_NAMES: Final = ("node_id", "broker_id")
_ERROR_CODES: Final = ("error_code", "partition_error_code")

# If a broker's answer has an error code, its other fields have these values.
_BESIDE_ERRORS: Final[Mapping[str, Mapping[str, Any]]] = types.MappingProxyType(
    {
        "Produce": {"base_offset": -1, "log_append_time_ms": -1, "log_start_offset": -1},
        "Fetch": {
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": -1,
            "aborted_transactions": [],
            "records": b"",
        },
        "ListOffsets": {"offset": -1, "timestamp": -1, "leader_epoch": -1, "old_style_offsets": []},
        "OffsetForLeaderEpoch": {"leader_epoch": -1, "end_offset": -1},
        "InitProducerId": {"producer_id": -1, "producer_epoch": -1},
        "DescribeProducers": {"active_producers": []},
        "Metadata": {"partitions": []},
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """One of Kafka's APIs.

    Attributes:
        name: The API's name, such as `Produce`.
        request: kafka-python's class of the request.
        response: kafka-python's class of the response.
    """

    key: int
    name: str
    request: Any
    response: Any

    def knows(self, version: int) -> bool:
        """Whether kafka-python can decode this version."""
        newest: int = min(self.request.max_version, self.response.max_version)
        return 0 <= version <= newest

    def flexible(self, version: int) -> bool:
        """Whether this version has tagged fields."""
        return bool(self.response.flexible_version_q(version))

    def level_of(self, field: str) -> Level:
        """The level (top, topic or partition) of a field in a response; the deepest one if several have the field.

        Raises:
            UsageError: No version has the field.
        """
        found: Level | None = None
        for level, names in _levels(self.response):
            if field in names:
                found = level
        if found is None:
            raise UsageError(f"No {self.name} response has a field {field!r}")
        return found

    def has(self, level: Level, field: str) -> bool:
        """Whether some version of the response has the field at this level."""
        return any(field in names for at, names in _levels(self.response) if at == level)

    def error_field(self, level: Level) -> str | None:
        """Name of the field with the error code at a level of a response; None if the level has no such field."""
        return next((name for name in _ERROR_CODES if self.has(level, name)), None)

    def beside_error(self, level: Level) -> dict[str, Any]:
        """Returns the values that a broker gives to a level's other fields if the level's error code is set."""
        fields = _BESIDE_ERRORS.get(self.name, {})
        return {name: value for name, value in fields.items() if self.has(level, name)}


@functools.cache
def _registry() -> dict[int, Api]:
    requests: dict[int, Any] = {}
    responses: dict[int, Any] = {}
    for module in (admin, consumer, metadata, producer, sasl):
        for name in module.__all__:
            found: Any = getattr(module, name)
            if isinstance(found, type) and issubclass(found, ApiMessage):
                message: Any = found
                (requests if message.is_request() else responses)[message.API_KEY] = message
    return {
        key: Api(key, requests[key].name.removesuffix("Request"), requests[key], responses[key])
        for key in sorted(requests.keys() & responses.keys())
    }


@functools.cache
def _by_name() -> dict[object, Api]:
    return {
        name: known
        for known in _registry().values()
        for name in (known.key, known.name, f"{known.name}Request", f"{known.name}Response")
    }


def apis() -> list[Api]:
    """All APIs that kafka-python knows."""
    return list(_registry().values())


def api(which: object) -> Api:
    """Finds an API by its name (`"Produce"`), its number, or one of its kafka-python classes.

    Raises:
        UsageError: kafka-python does not know the API.
    """
    name = getattr(which, "name", which) if isinstance(which, type) else which
    known = _by_name().get(name)
    if known is not None:
        return known
    raise UsageError(f"kafka-python knows no API {which!r}; it knows {', '.join(a.name for a in apis())}")


# -- Frames ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class RequestFrame:
    """A request frame.

    Attributes:
        correlation_id: Chosen by the client.
        header: The header's bytes.
        api: The API; None if kafka-python does not know the API or the version, or cannot decode the frame.
        message: The body; None if `api` is None.
    """

    key: int
    version: int
    correlation_id: int
    client_id: str
    header: bytes
    api: Api | None
    message: Any

    def encode(self) -> bytes:
        """Returns the frame, including its size."""
        return _frame(self.header, self.message)


@dataclass(slots=True, eq=False)
class Response:
    """A decoded response frame."""

    header: bytes
    message: Any

    def encode(self) -> bytes:
        """Returns the frame, including its size."""
        return _frame(self.header, self.message)


def _frame(header: bytes, message: Any) -> bytes:
    body = bytes(message.encode())
    return struct.pack(">i", len(header) + len(body)) + header + body


def parse_request(frame: bytes) -> RequestFrame:
    """Decodes a request.

    Args:
        frame: The frame without its size.

    Raises:
        ValueError: The frame has no header.
    """
    try:
        key, version, correlation_id, size = struct.unpack_from(">hhih", frame)
        at = 10 + max(size, 0)
        client_id = frame[10:at].decode(errors="replace")
        known = _registry().get(key)
        if known is None or not known.knows(version):
            return RequestFrame(key, version, correlation_id, client_id, frame[:at], None, None)
        if known.request.flexible_version_q(version):
            at = _skip_tags(frame, at)
    except (struct.error, IndexError) as error:
        raise ValueError("The frame is not a Kafka request") from error
    header = frame[:at]
    try:
        message = _decoded(known.request, frame[at:], version)
    except Exception:
        # A client may send anything. Let the broker handle it.
        return RequestFrame(key, version, correlation_id, client_id, header, None, None)
    return RequestFrame(key, version, correlation_id, client_id, header, known, message)


def correlation_id(frame: bytes) -> int:
    """The correlation id of a response frame. The frame must not contain its size field."""
    found: int = struct.unpack_from(">i", frame)[0]
    return found


def parse_response(known: Api, version: int, frame: bytes) -> Response:
    """Decodes a response. For a malformed response, raises the same error as kafka-python.

    Args:
        known: The API of the request.
        version: Version of the request.
        frame: The frame without its size.
    """
    at = _CORRELATION_BYTES
    if _tagged_header(known, version):
        at = _skip_tags(frame, at)
    return Response(frame[:at], _decoded(known.response, frame[at:], version))


def _decoded(kind: Any, body: bytes, version: int) -> Any:
    message = kind.decode(body, version=version)
    message._header = None  # some of kafka-python's classes read this field when they encode
    return message


def empty_response(request: RequestFrame) -> Response:
    """Returns an answer without content and without an error."""
    known = request.api
    if known is None:
        raise AssertionError("Only what can be decoded is answered")
    header = struct.pack(">i", request.correlation_id)
    if _tagged_header(known, request.version):
        header += b"\0"
    return Response(header, _made(known.response, request.version))


def _made(data_class: Any, version: int, **values: Any) -> Any:
    """Returns a struct with its own lists, whereas kafka-python shares one empty list among all structs."""
    made = data_class(version=version, **values)
    for field in made._struct.fields.values():
        value = getattr(made, field.name)
        if isinstance(value, list):
            setattr(made, field.name, list(value))
    return made


def _tagged_header(known: Api, version: int) -> bool:
    # Even a client that is newer than the broker must understand the answer to its first request (KIP-511).
    return known.flexible(version) and known.name != "ApiVersions"


def _skip_tags(frame: bytes, at: int) -> int:
    count, at = _uvarint(frame, at)
    for _ in range(count):
        _, at = _uvarint(frame, at)
        size, at = _uvarint(frame, at)
        at += size
    return at


def _uvarint(frame: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


# -- Topics and partitions ---------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Spot:
    """One topic in a message.

    Attributes:
        container: The array that contains the topic.
        topic: The topic's struct; a string if the message contains only names of topics.
        name: The topic's name; its id as text if the name is unknown.
        partitions: Array of the topic's partitions (structs or numbers); None if the message contains no partitions.
        number: Name of the field with a partition's number; None if the partitions are numbers.
    """

    container: list[Any]
    topic: Any
    name: str
    partitions: list[Any] | None
    number: str | None

    def number_of(self, partition: Any) -> int:
        found: int = partition if self.number is None else getattr(partition, self.number)
        return found

    def numbers(self) -> list[int]:
        return [self.number_of(partition) for partition in self.partitions or ()]


def spots(message: Any, names: Mapping[uuid.UUID, str]) -> list[Spot]:
    """All topics in a message."""
    return list(_spots(message, names))


def _spots(message: Any, names: Mapping[uuid.UUID, str]) -> Iterator[Spot]:
    for field in message._struct.fields.values():
        if field.is_struct_array():
            values = getattr(message, field.name)
            if not values:
                continue
            if not _is_topics(field):
                for value in values:
                    yield from _spots(value, names)
                continue
            partitions, number = _partitions_of(field)
            for value in values:
                yield Spot(
                    values,
                    value,
                    _topic_name(value, names),
                    None if partitions is None else getattr(value, partitions),
                    number,
                )
        elif field.is_struct():
            value = getattr(message, field.name)
            if value is not None:
                yield from _spots(value, names)


def topic_ids(message: Any) -> dict[uuid.UUID, str]:
    """The topics' names by topic id, from a response that contains names and ids."""
    found = {}
    for spot in spots(message, {}):
        topic_id = getattr(spot.topic, "topic_id", None)
        name = getattr(spot.topic, "name", None)
        if topic_id is not None and topic_id.int and name:
            found[topic_id] = name
    return found


def _topic_name(topic: Any, names: Mapping[uuid.UUID, str]) -> str:
    fields = topic._struct.fields
    for field in _TOPIC_NAMES:
        name = getattr(topic, field, None) if field in fields else None
        if name:
            return str(name)
    topic_id = getattr(topic, "topic_id", None) if "topic_id" in fields else None
    return "" if topic_id is None else names.get(topic_id, str(topic_id))


def _is_topics(field: Any) -> bool:
    return any(part in field.name for part in _TOPIC_ARRAYS) and any(
        name in field.fields for name in (*_TOPIC_NAMES, "topic_id")
    )


def _partitions_of(topics: Any) -> tuple[str | None, str | None]:
    """Returns the names of two fields of an array of topics: the field with a topic's partitions, and the field with a
    partition's number.
    """
    for field in topics.fields.values():
        if field.is_struct_array():
            number = next((name for name in field.fields if name in _PARTITION_NAMES), None)
            if number is not None:
                return field.name, number
        elif field.is_array() and field.name in _PARTITION_LISTS:
            return field.name, None
    return None, None


@functools.cache
def _levels(message: Any) -> list[tuple[Level, frozenset[str]]]:
    """The names of a message's fields at each level: top, topic, partition."""
    top: set[str] = set()
    topic: set[str] = set()
    partition: set[str] = set()

    def visit(fields: Mapping[str, Any]) -> None:
        for field in fields.values():
            if field.is_struct_array() and _is_topics(field):
                topic.update(field.fields)
                inner, number = _partitions_of(field)
                if inner is not None and number is not None:
                    partition.update(field.fields[inner].fields)
            elif field.is_struct_array():
                visit(field.fields)
            else:
                top.add(field.name)

    visit(message._struct.fields)
    return [("top", frozenset(top)), ("topic", frozenset(topic)), ("partition", frozenset(partition))]


def assign(target: Any, fields: Mapping[str, Any]) -> None:
    """Sets fields of a struct. Dicts become structs. Fields that the struct's version does not have are ignored."""
    for name, value in fields.items():
        field = target._struct.fields.get(name)
        if field is not None and field.for_version_q(target._version):
            setattr(target, name, _built(field, value, target._version))


def assign_outside(message: Any, fields: Mapping[str, Any]) -> None:
    """Sets fields of a message everywhere except in its topics: at the top, and in each group or coordinator."""
    assign(message, fields)
    for field in message._struct.fields.values():
        if field.is_struct_array() and not _is_topics(field):
            for value in getattr(message, field.name) or ():
                assign_outside(value, fields)


def _built(field: Any, value: Any, version: int) -> Any:
    if isinstance(value, Mapping) and field.is_struct():
        return _made(field.data_class, version, **value)
    if isinstance(value, list) and field.is_struct_array():
        return [
            _made(field.data_class, version, **entry) if isinstance(entry, Mapping) else entry
            for entry in value
        ]
    return value


def put(
    response: Response,
    names: Mapping[uuid.UUID, str],
    topic: str,
    partition: int | None,
    topic_id: uuid.UUID | None = None,
) -> Any:
    """Adds a topic or a partition to a response. If the response contains the topic already, adds only the partition.

    Args:
        response: The response.
        names: Names of topics by their ids.
        topic: Name of the topic.
        partition: Partition number; None for a topic only.
        topic_id: Id of the topic. Default: the topic's last id in `names`. (A topic that was created again may have
            several ids in `names`.)

    Returns:
        The struct that was added for the partition, or for the topic if `partition` is None.

    Raises:
        UsageError: Responses of this API and version have no topics, or no partitions.
    """
    message = response.message
    version = message._version
    field = next(
        (
            field
            for field in message._struct.fields.values()
            if field.is_struct_array() and _is_topics(field) and field.for_version_q(version)
        ),
        None,
    )
    if field is None:
        raise UsageError(f"{message.name} v{version} has no list of topics")
    inner, number = _partitions_of(field)
    if partition is not None and (inner is None or number is None):
        raise UsageError(f"{message.name} v{version} has no partitions")
    topics = getattr(message, field.name)
    if topics is None:
        topics = []
        setattr(message, field.name, topics)
    known = topic_id or next((key for key in reversed(list(names)) if names[key] == topic), None)
    found = next((value for value in topics if _is_topic(value, names, topic, known)), None)
    if found is None or partition is None:
        found = _made(field.data_class, version)
        for name in _TOPIC_NAMES:
            if name in field.fields:
                setattr(found, name, topic)
        if "topic_id" in field.fields:
            found.topic_id = known or uuid.UUID(int=0)
        if inner is not None:
            setattr(found, inner, [])
        topics.append(found)
    if partition is None or inner is None or number is None:
        return found
    entry = _made(field.fields[inner].data_class, version)
    setattr(entry, number, partition)
    getattr(found, inner).append(entry)
    return entry


def _is_topic(value: Any, names: Mapping[uuid.UUID, str], topic: str, topic_id: uuid.UUID | None) -> bool:
    found = id_of(value)
    return _topic_name(value, names) == topic if found is None or topic_id is None else found == topic_id


def id_of(topic: Any) -> uuid.UUID | None:
    """The id of a topic in a message; None if the message contains the topic's name instead."""
    found: uuid.UUID | None = getattr(topic, "topic_id", None)
    return found if found is not None and found.int else None


# -- Brokers -----------------------------------------------------------------------------------------------------------


def endpoints(message: Any) -> Iterator[tuple[int, Any]]:
    """(node id, struct with `host` and `port`) of every broker that a response names."""
    fields = message._struct.fields
    if "host" in fields and "port" in fields:
        number = next((name for name in _NODE_NAMES if name in fields), None)
        if number is not None and message.host:
            yield getattr(message, number), message
    for field in fields.values():
        value = getattr(message, field.name) if field.is_struct_array() or field.is_struct() else None
        if isinstance(value, list):
            for entry in value:
                yield from endpoints(entry)
        elif value is not None:
            yield from endpoints(value)


# -- Answers -----------------------------------------------------------------------------------------------------------


def fill(message: Any, fields: Mapping[str, Any]) -> None:
    """Sets fields of a message, at any depth. Dicts and lists of dicts become structs.

    Ignores fields that the message's version does not have.

    Raises:
        UsageError: No version has a field with this name.
    """
    for name, value in fields.items():
        field = message._struct.fields.get(name)
        if field is None:
            raise UsageError(f"{message._struct.name} has no field {name!r}")
        if not field.for_version_q(message._version):
            continue
        setattr(message, name, _filled(field, value, message._version))
        if field._tag is not None:
            message.tags = (message.tags or set()) | {name}


def _filled(field: Any, value: Any, version: int) -> Any:
    if field.is_struct_array() and value is not None:
        return [_filled_struct(field.data_class, entry, version) for entry in value]
    if field.is_struct() and value is not None:
        return _filled_struct(field.data_class, value, version)
    return value


def _filled_struct(data_class: Any, fields: Any, version: int) -> Any:
    made = _made(data_class, version)
    fill(made, fields)
    return made


def request_frame(known: Api, version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes:
    """Encodes a request for the wire, including its size."""
    message = _made(known.request, version)
    message._header = None
    fill(message, fields)
    client_id = b"kafkasafe"
    header = struct.pack(">hhih", known.key, version, correlation_id, len(client_id)) + client_id
    if known.request.flexible_version_q(version):
        header += b"\0"
    return _frame(header, message)

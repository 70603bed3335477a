"""Serializes records, checks the arguments of `send`, and computes each record's size for the size limits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sized
from typing import Any, Final

from kafkasafe._producing.admission import Admission
from kafkasafe._producing.lifecycle import Lifecycle
from kafkasafe._producing.open_batch import Headers, Special, headers_bytes
from kafkasafe._producing.partitioning import Partitioning, as_int, takes
from kafkasafe.config import ProducerConfig
from kafkasafe.record.batch import RECORD_OVERHEAD

_Serializer = Callable[[str, Any, Any], Any]
Serializers = tuple[_Serializer | None, _Serializer | None]
"""The serializers of keys and of values."""

_MAX_TIMESTAMP: Final = 2**63 - 1


class RecordForm:
    """Turns the arguments of a `send` into the values that an open batch stores. Immutable.

    Args:
        serializers: The result of `serializers_of`.

    Attributes:
        plain: True if the application has neither serializers nor its own partitioner. If true, `send` needs `prepare`
            only for records with headers, a partition or a timestamp.
    """

    __slots__ = (
        "_admission",
        "_key_serializer",
        "_lifecycle",
        "_partitioning",
        "_serializes",
        "_value_serializer",
        "plain",
    )

    def __init__(
        self, serializers: Serializers, lifecycle: Lifecycle, partitioning: Partitioning, admission: Admission
    ) -> None:
        self._lifecycle = lifecycle
        self._partitioning = partitioning
        self._admission = admission
        self._key_serializer, self._value_serializer = serializers
        self._serializes = self._key_serializer is not None or self._value_serializer is not None
        self.plain = not self._serializes and not partitioning.asks

    def prepare(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> tuple[bytes | None, bytes | None, Special | None, int]:
        """Check and serialize a record. Return its key and value as bytes, its special fields, and its size."""
        self._lifecycle.raise_closed()  # first: a closed producer calls neither serializers nor the partitioner
        given_key, given_value = key, value
        if self._serializes:
            if value is None and key is None:
                # Check before serializing: a serializer may turn None into bytes such as `null`.
                raise ValueError("Need at least one: key or value")
            _check_headers(headers)  # serializers get only well-formed headers
            headers = headers if isinstance(headers, list) else []  # a serializer may add headers
            key, value = self._serialize(topic, headers, key, value)
        size = RECORD_OVERHEAD
        if value is not None:
            value = _as_bytes(value, "value", "value_serializer")
            size += len(value)
        elif key is None:
            raise ValueError("Need at least one: key or value")
        if key is not None:
            key = _as_bytes(key, "key", "key_serializer")
            size += len(key)
        checked_headers = _check_headers(headers)
        if self._partitioning.asks and partition is None:
            partition = self._partitioning.ask(topic, given_key, key, given_value, value)
        special: Special | None = None
        if checked_headers or partition is not None or timestamp_ms is not None:
            if timestamp_ms is not None:
                timestamp_ms = as_int(timestamp_ms, "timestamp_ms", _MAX_TIMESTAMP)
            if partition is not None:
                partition = self._admission.checked_partition(topic, partition)
            special = (partition, checked_headers, timestamp_ms)
            size += headers_bytes(checked_headers)
        return key, value, special, size

    def _serialize(self, topic: str, headers: Any, key: Any, value: Any) -> tuple[Any, Any]:
        if self._key_serializer is not None:
            key = self._key_serializer(topic, headers, key)
        if self._value_serializer is not None:
            value = self._value_serializer(topic, headers, value)
        return key, value


def serializers_of(config: ProducerConfig) -> Serializers:
    """Return the application's serializers of keys and of values, as functions (topic, headers, object) → bytes; None
    for a serializer that the application did not give.
    """
    return _serializer(config.key_serializer), _serializer(config.value_serializer)


def _serializer(given: Any) -> _Serializer | None:
    if given is None:
        return None
    if hasattr(given, "serialize"):
        serialize = given.serialize
        if not takes(serialize, 3) and takes(serialize, 2):
            warnings.warn(
                "serializer does not implement serialize(topic, headers, data)",
                DeprecationWarning,
                stacklevel=5,
            )
            return lambda topic, _headers, data: serialize(topic, data)
        return serialize  # type: ignore[no-any-return]
    return lambda _topic, _headers, data: given(data)


def _as_bytes(item: Any, what: str, option: str) -> bytes:
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    raise TypeError(f"Unsupported type for serialized {what}: {type(item)}; pass bytes, or set {option}")


def _check_headers(headers: Any) -> Headers:
    if headers is None:
        return ()
    if not isinstance(headers, list):
        if isinstance(headers, Sized) and not headers:
            return ()  # KafkaProducer refuses `()` and `{}`
        raise TypeError(f"headers must be a list of (str, bytes) tuples, not {headers!r}")
    for index, item in enumerate(headers):
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], str)
            and (item[1] is None or isinstance(item[1], bytes))
        ):
            raise TypeError(f"headers[{index}] must be a tuple (str, bytes) or (str, None), not {item!r}")
    return tuple(headers)

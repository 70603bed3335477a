"""Hints for names of aiokafka that kafkasafe does not have, and adapters for arguments in aiokafka's form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

UNIT: Final = (
    "records and offsets are delivered together or not at all by `async with producer.batch() as batch:"
    " batch.send(...); await batch.send_offsets(consumer)`, then `await batch.outcome` (docs/staged.md)"
)
BLOCK: Final = (
    "`async with producer.batch() as batch` is such a block, and only what `batch.send(...)` adds is part of it, not"
    " what `producer.send(...)` sends meanwhile; offsets by `await batch.send_offsets(consumer)`; then"
    " `await batch.outcome` (docs/staged.md)"
)
BATCHES: Final = (
    "the producer makes batches by time and size (linger_ms, batch_size): use `await producer.send(topic, value,"
    " partition=...)` for each record, then `await producer.flush()`"
)

LAST_STABLE_OFFSET: Final = (
    'use `await consumer.end_offsets([partition])` with isolation_level="read_committed"'
)


class FunctionPartitioner:
    """Adapts a partitioner in aiokafka's form, which is a function of three arguments.

    Args:
        function: `function(key_bytes, all_partitions, available_partitions)`.
    """

    def __init__(self, function: Callable[[bytes | None, list[int], list[int]], int]) -> None:
        self._function = function

    def partition(
        self,
        topic: str,
        key: Any,  # noqa: ARG002
        key_bytes: bytes | None,
        value: Any,  # noqa: ARG002
        value_bytes: bytes | None,  # noqa: ARG002
        cluster: Any,
    ) -> int:
        """Choose a partition. The method has the signature of kafka-python's partitioners."""
        known = sorted(cluster.partitions_for_topic(topic))
        available = sorted(cluster.available_partitions_for_topic(topic))
        return self._function(key_bytes, known, available)


def headers_of(given: Any) -> list[Any] | None:
    """Convert headers, in any form that aiokafka accepts, to the list that `send` needs.

    Raises:
        TypeError: The argument is not iterable, or is a string or a mapping.
    """
    if given is None or isinstance(given, list):
        return given
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise TypeError(f"headers must be a list of (str, bytes) tuples, not {given!r}")
    return list(given)

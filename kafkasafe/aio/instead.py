"""What of aiokafka is another thing here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

__all__ = ["OF_CONSUMER", "OF_PRODUCER", "FunctionPartitioner", "missing"]

_UNIT: Final = (
    "records and offsets are delivered together or not at all by `async with producer.batch() as batch:"
    " batch.send(...); await batch.send_offsets(consumer)`, then `await batch.outcome` (docs/staged.md)"
)
_BATCHES: Final = (
    "batches are made by time and size (linger_ms, batch_size): use `await producer.send(topic, value,"
    " partition=...)` for each record, then `await producer.flush()`"
)
OF_PRODUCER: Final = {
    "create_batch": _BATCHES,
    "send_batch": _BATCHES,
    "transaction": _UNIT,
    "begin_transaction": _UNIT,
    "commit_transaction": _UNIT,
    "abort_transaction": _UNIT,
    "send_offsets_to_transaction": _UNIT,
}
OF_CONSUMER: Final = {
    "last_stable_offset": 'with isolation_level="read_committed", `await consumer.end_offsets([partition])` is it'
}


def missing(owner: object, name: str, instead: dict[str, str]) -> AttributeError:
    """The error for an attribute that is not there."""
    said = f"{type(owner).__name__!r} object has no attribute {name!r}"
    hint = instead.get(name)
    return AttributeError(said if hint is None else f"{said}: {hint}", name=name, obj=owner)


class FunctionPartitioner:
    """A partitioner as aiokafka takes it: a function of the key's bytes and two lists of partitions.

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
        """kafka-python's."""
        known = sorted(cluster.partitions_for_topic(topic))
        available = sorted(cluster.available_partitions_for_topic(topic))
        return self._function(key_bytes, known, available)

"""What of aiokafka is another thing here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kafkasafe._io.spelling import Absent, Tidy, tidy_dir

__all__ = ["FunctionPartitioner", "NotOfConsumer", "NotOfProducer", "headers_of"]

_UNIT: Final = (
    "records and offsets are delivered together or not at all by `async with producer.batch() as batch:"
    " batch.send(...); await batch.send_offsets(consumer)`, then `await batch.outcome` (docs/staged.md)"
)
_BATCHES: Final = (
    "batches are made by time and size (linger_ms, batch_size): use `await producer.send(topic, value,"
    " partition=...)` for each record, then `await producer.flush()`"
)


class NotOfProducer(metaclass=Tidy):
    """aiokafka's producer has these."""

    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        create_batch = Absent(_BATCHES)
        send_batch = Absent(_BATCHES)
        transaction = Absent(_UNIT)
        begin_transaction = Absent(_UNIT)
        commit_transaction = Absent(_UNIT)
        abort_transaction = Absent(_UNIT)
        send_offsets_to_transaction = Absent(_UNIT)


class NotOfConsumer(metaclass=Tidy):
    """aiokafka's consumer has these."""

    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        last_stable_offset = Absent(
            'with isolation_level="read_committed", `await consumer.end_offsets([partition])` is it'
        )


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


def headers_of(given: Any) -> list[Any] | None:
    """A list, as `send` takes it, of whatever aiokafka takes.

    Raises:
        TypeError: Nothing can be listed there, or it is a text.
    """
    if given is None or isinstance(given, list):
        return given
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise TypeError(f"headers must be a list of (str, bytes) tuples, not {given!r}")
    return list(given)

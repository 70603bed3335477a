"""Converts offsets and partitions to kafka-python's form. A program may pass offsets and partitions to a consumer in
any form that aiokafka accepts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.consumer import check_offset


def as_offset(given: Any) -> Any:
    """Convert an offset given to `commit`: a number, (number, metadata) or OffsetAndMetadata.

    Raises:
        ValueError: The argument has none of these forms.
        TypeError: The metadata is not a string.
    """
    if isinstance(given, OffsetAndMetadata):
        check_offset(given.offset)
        return given
    pair = given if isinstance(given, tuple) else (given, "")
    if len(pair) != 2:
        raise ValueError(f"Not an offset: {given!r}. Give a number from 0 on, or (number, metadata)")
    offset, metadata = pair
    check_offset(offset)
    if not isinstance(metadata, str):
        raise TypeError(f"The metadata of an offset must be a string, not {metadata!r}")
    return OffsetAndMetadata(offset, metadata, -1)


def as_partition(given: Any) -> TopicPartition:
    """Convert a partition to kafka-python's TopicPartition. The argument may be kafka-python's or aiokafka's
    TopicPartition, or another tuple of a topic and a partition number.

    Raises:
        TypeError: The argument has none of these forms.
    """
    if isinstance(given, TopicPartition):
        return given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and type(given[1]) is int:
        return TopicPartition(*given)
    raise TypeError(f"{given!r} is not a TopicPartition: TopicPartition(topic, partition)")


def as_partitions(given: Iterable[Any]) -> frozenset[TopicPartition]:
    """Convert several TopicPartitions.

    Raises:
        TypeError: An item is not a TopicPartition, or the argument is not iterable.
    """
    if not isinstance(given, Iterable):
        raise TypeError(f"{given!r} is not a list of TopicPartitions")
    return frozenset(map(as_partition, given))

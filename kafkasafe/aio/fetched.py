"""Records that a consumer has fetched, and the offsets that may be committed for them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.consumer import check_offset
from kafkasafe.errors import UsageError

if TYPE_CHECKING:
    from kafkasafe.aio.consumer import SafeConsumer

__all__ = [
    "Fetched",
    "Handed",
    "UnassignedError",
    "as_offset",
    "as_partition",
    "as_partitions",
    "not_in_children",
]


class UnassignedError(UsageError, kafka_errors.IllegalStateError, ValueError):
    """The partition is not assigned. The class derives from what aiokafka and kafka-python raise in this case."""


class Fetched:
    """Records of one partition that were fetched together. Some may already have been returned to the program."""

    __slots__ = ("at", "records", "tp")

    def __init__(self, tp: TopicPartition, records: list[Any]) -> None:
        self.tp = tp
        self.records = records
        self.at = 0

    @property
    def next_offset(self) -> int:
        """Offset of the first record that has not been returned yet."""
        return int(self.records[self.at].offset)


class Handed:
    """The offsets that commits take (`Subscription.commit_from`).

    It refers to its owner only weakly, so that a dropped consumer can be garbage-collected.
    """

    __slots__ = ("_consumer", "_owner")

    def __init__(self, owner: SafeConsumer, consumer: Any) -> None:
        self._owner = weakref.ref(owner)
        self._consumer = consumer

    def __call__(self) -> dict[TopicPartition, Any]:
        """Return the offsets to commit: those of the first records that were not returned to the program.

        The result is empty if the owner no longer exists.

        Called on the consumer's thread or the network thread.
        """
        owner = self._owner()
        if owner is None:
            return {}
        found: dict[TopicPartition, Any] = self._consumer._reading.commits.committable(owner._polls.unhanded)
        return found

    def unhanded(self) -> Mapping[TopicPartition, int]:
        """Return, by partition, the first offset that is fetched but not handed out.

        Called on the consumer's thread.
        """
        owner = self._owner()
        return {} if owner is None else owner._polls.unhanded


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
    """Convert a TopicPartition, which may be aiokafka's, to kafka-python's.

    Raises:
        TypeError: The argument is something else.
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


def first_unhanded(
    in_hand: Mapping[TopicPartition, int], fetched: Iterable[Fetched]
) -> dict[TopicPartition, int]:
    """Return, by partition, the first offset that the program is still processing or has not received yet."""
    first = dict(in_hand)
    for each in fetched:
        first[each.tp] = min(first.get(each.tp, each.next_offset), each.next_offset)
    return first


_started: weakref.WeakSet[SafeConsumer] = weakref.WeakSet()


def not_in_children(consumer: SafeConsumer) -> None:
    """Make sure that a forked child does not return the parent's fetched records."""
    _started.add(consumer)


def _forked() -> None:
    for consumer in list(_started):
        # Ends the fast path. The slow path raises, because the loop does not run in the child.
        consumer._attend_at = 0.0


os.register_at_fork(after_in_child=_forked)

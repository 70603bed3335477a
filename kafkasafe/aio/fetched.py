"""What a consumer has fetched, and what of it may be committed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
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
    "fetch_again",
    "has_joined",
    "has_settled",
    "not_in_children",
    "polled_without",
]

_CREATED_S: Final = 1.0


class UnassignedError(UsageError, kafka_errors.IllegalStateError, ValueError):
    """What aiokafka raises for a partition that is not assigned, and what kafka-python does."""


class Fetched:
    """Records of one partition that were fetched together, of which some may be handed out."""

    __slots__ = ("at", "records", "tp")

    def __init__(self, tp: TopicPartition, records: list[Any]) -> None:
        self.tp = tp
        self.records = records
        self.at = 0

    @property
    def next_offset(self) -> int:
        """Of the first that is not handed out."""
        return int(self.records[self.at].offset)


class Handed:
    """In place of `all_consumed_offsets`. It knows the consumer weakly, or a dropped one would never be collected."""

    __slots__ = ("_consumer", "_owner")

    def __init__(self, owner: SafeConsumer, consumer: Any) -> None:
        self._owner = weakref.ref(owner)
        self._consumer = consumer

    def __call__(self) -> dict[TopicPartition, Any]:
        """What may be committed, up to what was not handed out; nothing once the owner is gone.

        On the consumer's thread or the network thread.
        """
        owner = self._owner()
        return {} if owner is None else self._consumer._committable(owner._unhanded)


def as_offset(given: Any) -> Any:
    """What may be given to `commit`: a number, (number, metadata) or OffsetAndMetadata.

    Raises:
        ValueError: It is something else.
        TypeError: The metadata is not a string.
    """
    if isinstance(given, OffsetAndMetadata):
        check_offset(given.offset)
        return given
    pair = given if isinstance(given, tuple) else (given, "")
    if len(pair) != 2:
        raise ValueError(f"Not an offset: {given!r}. It is a number from 0 on, or (number, metadata)")
    offset, metadata = pair
    check_offset(offset)
    if not isinstance(metadata, str):
        raise TypeError(f"The metadata of an offset is a text, not {metadata!r}")
    return OffsetAndMetadata(offset, metadata, -1)


def as_partition(given: Any) -> TopicPartition:
    """A TopicPartition, also of aiokafka's class.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(given, TopicPartition):
        return given
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and type(given[1]) is int:
        return TopicPartition(*given)
    raise TypeError(f"{given!r} is not a TopicPartition: TopicPartition(topic, partition)")


def as_partitions(given: Iterable[Any]) -> frozenset[TopicPartition]:
    """Some of them.

    Raises:
        TypeError: One is something else, or it is not an iterable.
    """
    if not isinstance(given, Iterable):
        raise TypeError(f"{given!r} is not a list of TopicPartitions")
    return frozenset(map(as_partition, given))


def polled_without(
    consumer: Any, left_out: Iterable[TopicPartition], kept: set[TopicPartition], timeout_ms: float
) -> Any:
    """`poll`, on the consumer's thread, of all partitions but these. What is paused meanwhile (`kept`) stays so."""
    paused = [tp for tp in left_out if tp in consumer._subscription.assignment]
    consumer.pause(*paused)
    try:
        return consumer.poll(timeout_ms)
    finally:
        known = consumer._subscription.assignment
        consumer.resume(*(tp for tp in paused if tp in known and tp not in kept))


def first_unhanded(
    in_hand: Mapping[TopicPartition, int], fetched: Iterable[Fetched]
) -> dict[TopicPartition, int]:
    """First offset by partition that the program did not get, or has in hand."""
    first = dict(in_hand)
    for each in fetched:
        first[each.tp] = min(first.get(each.tp, each.next_offset), each.next_offset)
    return first


def fetch_again(
    consumer: Any, partitions: Iterable[TopicPartition], *firsts: Mapping[TopicPartition, int]
) -> None:
    """On the consumer's thread: go back to what was fetched of these partitions and will not be handed out.

    Args:
        consumer: The one underneath.
        partitions: Which, as far as they are assigned.
        firsts: First offsets by partition, of earlier fetches before those of later ones.
    """
    for tp in partitions:
        found = [first[tp] for first in firsts if tp in first]
        if found and tp in consumer._subscription.assignment:
            KafkaConsumer.seek(consumer, tp, found[0])


def has_joined(consumer: Any) -> bool:
    """On the consumer's thread: whether what is assigned is what it subscribed to, and it need not join its group."""
    known, coordinator = consumer._subscription, consumer._coordinator
    if not known.partitions_auto_assigned():
        return True
    if coordinator.group_id is not None:
        return not coordinator.need_rejoin()
    with known._lock:
        return {tp.topic for tp in known.assignment} <= set(known.subscription or ())


def has_settled(consumer: Any, began: float) -> bool:
    """Whether it has joined its group, and knows where to begin in all that is assigned.

    Brokers that make topics by themselves know one a moment after they were asked for it. What they do not know
    `_CREATED_S` after `began` (monotonic seconds) is not there.
    """
    known, coordinator = consumer._subscription, consumer._coordinator
    states = list(known.assignment.values())
    if known.partitions_auto_assigned() and not states:
        # Others may have all; but kafka-python also assigns nothing of a topic that it does not know yet.
        cluster = coordinator._cluster
        unknown = coordinator.group_id is None or not all(
            map(cluster.partitions_for_topic, known.subscription)
        )
        if unknown and cluster._last_successful_refresh_ms / 1000 < began + _CREATED_S:
            return False
    joined = coordinator.group_id is None or not known.partitions_auto_assigned()
    return (joined or not coordinator.need_rejoin()) and all(state.has_valid_position for state in states)


_started: weakref.WeakSet[SafeConsumer] = weakref.WeakSet()


def not_in_children(consumer: SafeConsumer) -> None:
    """What it fetches is not handed out in a forked child."""
    _started.add(consumer)


def _forked() -> None:
    for consumer in list(_started):
        consumer._attend_at = 0.0  # it asks for its loop first, which does not run there


os.register_at_fork(after_in_child=_forked)

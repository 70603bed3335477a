"""Functions for `kafkasafe.aio` that read and change a KafkaConsumer, and use private names of kafka-python.

All functions except `states_of` are called on the consumer's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

_CREATED_S: Final = 1.0


def commit_from(consumer: Any, committable: Callable[[], dict[TopicPartition, Any]]) -> None:
    """Commits without explicit offsets will use the result of `committable`; see `Subscription.commit_from`."""
    consumer._subscription.commit_from(committable)


def keep_membership(consumer: Any, timeout_ms: float) -> None:
    """Maintain the group membership like a poll, but fetch nothing."""
    consumer._coordinator.poll(timeout_ms=timeout_ms)


def loop_of(consumer: Any) -> Any:
    return consumer._coordinator._net


def states_of(consumer: Any) -> dict[TopicPartition, Any]:
    """Return a copy of the assignment: a dict from partition to kafka-python's state of the partition."""
    return dict(consumer._subscription.assignment)


def polled_without(
    consumer: Any, left_out: Iterable[TopicPartition], kept: Collection[TopicPartition], timeout_ms: float
) -> Any:
    """Poll all partitions except `left_out`.

    Partitions in `kept`, which the program has paused during the poll, stay paused.
    """
    paused = [tp for tp in left_out if tp in consumer._subscription.assignment]
    consumer.pause(*paused)
    try:
        return consumer.poll(timeout_ms)
    finally:
        known = consumer._subscription.assignment
        consumer.resume(*(tp for tp in paused if tp in known and tp not in kept))


def fetch_again(
    consumer: Any, partitions: Iterable[TopicPartition], *firsts: Mapping[TopicPartition, int]
) -> None:
    """Seek back to records that were fetched but dropped.

    Args:
        consumer: The inner consumer.
        partitions: Partitions to seek, if they are assigned.
        firsts: One mapping for each fetch, in order: partition -> offset of its first record.
    """
    for tp in partitions:
        found = [first[tp] for first in firsts if tp in first]
        if found and tp in consumer._subscription.assignment:
            KafkaConsumer.seek(consumer, tp, found[0])


def has_joined(consumer: Any) -> bool:
    """Return whether the assignment fits the subscription. If it does, no rejoin is needed."""
    known, coordinator = consumer._subscription, consumer._coordinator
    if not known.partitions_auto_assigned():
        return True
    if coordinator.group_id is not None:
        return not coordinator.need_rejoin()
    with known._lock:
        return {tp.topic for tp in known.assignment} <= set(known.subscription or ())


def has_settled(consumer: Any, began: float) -> bool:
    """Return whether the consumer has joined its group and has a position in each assigned partition.

    If brokers create topics automatically, a new topic appears in the metadata a moment after the first request for it.
    A topic counts as non-existent if it is still missing `_CREATED_S` seconds after `began` (monotonic seconds).
    """
    known, coordinator = consumer._subscription, consumer._coordinator
    states = list(known.assignment.values())
    if known.partitions_auto_assigned() and not states:
        # No partition is assigned: either other members have all partitions, or a topic is not in the metadata yet.
        cluster = coordinator._cluster
        unknown = coordinator.group_id is None or not all(
            map(cluster.partitions_for_topic, known.subscription)
        )
        if unknown and cluster._last_successful_refresh_ms / 1000 < began + _CREATED_S:
            return False
    joined = coordinator.group_id is None or not known.partitions_auto_assigned()
    return (joined or not coordinator.need_rejoin()) and all(state.has_valid_position for state in states)

"""Records that a consumer has fetched, and the offsets that may be committed for them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe.errors import UsageError

if TYPE_CHECKING:
    from kafkasafe.aio.consumer import SafeConsumer

__all__ = [
    "Fetched",
    "Handed",
    "UnassignedError",
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

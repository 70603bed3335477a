"""kafka-python's state of subscriptions and positions, with the offsets that commits take from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.consumer.subscription_state import SubscriptionState
from kafka.structs import TopicPartition

__all__ = ["Subscription"]


class Subscription(SubscriptionState):
    """Commits that name no offsets take those that another object finds.

    In kafka-python 3.0.12 they take the positions, which may be after records that `kafkasafe.aio` has fetched and not
    returned yet.
    """

    _committable: Callable[[], dict[TopicPartition, Any]]

    def commit_from(self, committable: Callable[[], dict[TopicPartition, Any]]) -> None:
        """From now on, commits take the offsets that this function returns; on any thread."""
        self._committable = committable

    def all_consumed_offsets(self) -> dict[TopicPartition, Any]:
        """The offsets of a commit that names none."""
        return self._committable()

"""kafka-python's state of subscriptions and positions, changed so that the owner chooses the offsets to commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.consumer.subscription_state import SubscriptionState
from kafka.structs import OffsetAndMetadata, TopicPartition


class Subscription(SubscriptionState):
    """For commits without explicit offsets, uses the offsets that a function returns (`commit_from`).

    In kafka-python 3.0.12, commits without explicit offsets use the positions. But `kafkasafe.aio` fetches records
    before it returns them, so a position may be ahead of the records that the application has received.
    """

    _committable: Callable[[], dict[TopicPartition, Any]]
    _joined: int = -1
    _assigned_in: int = -1

    def commit_from(self, committable: Callable[[], dict[TopicPartition, Any]]) -> None:
        """Makes commits without explicit offsets use the result of `committable`, which any thread may call."""
        self._committable = committable

    def all_consumed_offsets(self) -> dict[TopicPartition, Any]:
        """Return the offsets for a commit without explicit offsets."""
        return self._committable()

    def states(self) -> dict[TopicPartition, Any]:
        """Return a copy of the assignment: states by partition. Any thread may call this method.

        The copy is made under kafka-python's lock, because kafka-python's I/O thread changes the assignment.
        """
        me: Any = self
        with me._lock:
            return dict(me.assignment)

    def renew(self, tp: TopicPartition, state: Any) -> bool:
        """If `state` is the current state of the partition, treat the partition as newly assigned, and return True."""
        me: Any = self
        with me._lock:
            if me.assignment.get(tp) is not state:
                return False
            fresh = type(state)()
            if state.paused:
                fresh.pause()
            me.assignment[tp] = fresh
        return True

    def joined(self, generation: int) -> bool:
        """Stores the group's new generation, before the new assignment is applied. Returns whether the consumer missed
        a generation of the group since its current assignment.
        """
        self._joined = generation
        return generation not in {self._assigned_in, self._assigned_in + 1}

    def assign_from_subscribed(self, assignments: Any) -> None:
        """See kafka-python's method."""
        parent: Any = super()
        parent.assign_from_subscribed(assignments)
        self._assigned_in = self._joined

    def place(self, state: Any, position: OffsetAndMetadata) -> None:
        """Moves a position forward past records that the application gets, or back to records that the application did
        not get.
        """
        state.position = position

"""The interface to the client that fetches, for decisions about positions. `kafkasafe.kafkapython.adapter` implements
it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from kafka.structs import TopicPartition

from kafkasafe._consuming.partition import Leadership
from kafkasafe.history.epochs import UNDEFINED

__all__ = ["Port"]


class Port(Protocol):
    """The client that fetches. A *state* is kafka-python's object for one assignment of a partition."""

    @property
    def strategy(self) -> int:
        """The option `auto_offset_reset`, as a timestamp for ListOffsets (-1 or -2). Any other number: no reset is
        allowed.
        """

    def assigned(self) -> dict[TopicPartition, Any]:
        """Return a copy of the assignment: states by partition. Any thread may call it."""

    def state(self, tp: TopicPartition) -> Any:
        """Return the state of a partition; None if it is not assigned."""

    def place(self, tp: TopicPartition, offset: int, epoch: int = UNDEFINED) -> None:
        """Set the position of a partition, and end its reset."""

    def hold(self, state: Any) -> None:
        """Fetch nothing for this assignment until `release`, or until it gets another position."""

    def release(self, state: Any) -> None:
        """Fetch from this assignment again."""

    def reposition(self, state: Any, offset: int) -> None:
        """Set the position of this assignment, without a leader epoch. A held assignment stays held."""

    def reset(self, tp: TopicPartition, strategy: int) -> None:
        """Drop the position of a partition. `resetting` returns the partition until `place` is called."""

    def resetting(self) -> Collection[TopicPartition]:
        """Return the partitions that need a reset."""

    def missing(self) -> Collection[TopicPartition]:
        """Return the partitions without a position for which no reset was requested."""

    def reset_missing(self) -> bool:
        """Request resets of these partitions. Return whether all assigned partitions have a position.

        Raises:
            NoOffsetForPartitionError: No reset is allowed.
        """

    def is_placed(self) -> bool:
        """Return whether all partitions have a position."""

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None
    ) -> Mapping[Any, Any]:
        """Fetch the group's offsets.

        Raises:
            KafkaTimeoutError: The coordinator did not answer in time.
        """

    def forget_committed(self) -> None:
        """Ignore answers to earlier requests for the group's offsets: the next `committed` sends a new request."""

    def leadership(self, tp: TopicPartition) -> Leadership | None:
        """Return a partition's leadership in the metadata; None without a leader. Any thread may call this."""

    def request_metadata(self) -> None:
        """Request fresh metadata."""

    def learn_leader(self, tp: TopicPartition, data: Any) -> None:
        """Store the leader that a fetch response names (KIP-951)."""

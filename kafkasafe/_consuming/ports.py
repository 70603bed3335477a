"""The interfaces through which a consumer's decisions use kafka-python's state: the assigned partitions, the group and
the metadata. Each interface is a `typing.Protocol`; `kafkasafe.kafkapython.adapter` implements all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeAlias

from kafka.structs import OffsetAndMetadata, TopicPartition

from kafkasafe.history.epochs import UNDEFINED
from kafkasafe.offsets import IsolationLevel

Leadership: TypeAlias = tuple[bytes | None, int, int]
"""Topic id, leader and leader epoch, from the metadata."""


class AssignmentState(Protocol):
    """kafka-python's object for one assignment of a partition. A new object means a new assignment."""

    @property
    def position(self) -> Any:
        """The next offset to return, as an OffsetAndMetadata; None if it is not known yet."""

    @property
    def paused(self) -> bool:
        """Whether the application has paused the partition."""

    @property
    def highwater(self) -> int | None:
        """The high watermark of the last response."""

    @property
    def awaiting_reset(self) -> bool:
        """Whether a reset is requested."""

    @property
    def awaiting_validation(self) -> bool:
        """Whether the assignment is held (`Assignments.hold`)."""

    @property
    def reset_strategy(self) -> Any:
        """The strategy of the requested reset, a number; None if no reset is requested."""

    @property
    def has_valid_position(self) -> bool:
        """Whether the position is known."""

    def is_missing_position(self) -> bool:
        """Return whether there is neither a position nor a requested reset."""

    def is_reset_allowed(self) -> bool:
        """Return whether a requested reset may begin now."""

    def is_fetchable(self) -> bool:
        """Return whether the partition may be fetched."""

    def mark_pending_revocation(self, val: bool = True) -> None:
        """Set the mark, or remove it if `val` is False. While the mark is set, nothing is fetched from the partition.
        kafka-python removes the mark in a rebalance.
        """

    def clear_preferred_read_replica(self) -> int | None:
        """Fetch from the leader. Return the follower from which the partition was fetched, or None."""


class Assignments(Protocol):
    """The assigned partitions and their positions."""

    @property
    def strategy(self) -> int:
        """The option `auto_offset_reset`, as a timestamp for ListOffsets (-1 or -2). Any other number means that resets
        are forbidden.
        """

    def is_subscribed(self) -> bool:
        """Return whether the group assigns the partitions."""

    def assigned(self) -> dict[TopicPartition, AssignmentState]:
        """Return a copy of the assignment. Any thread may call this method."""

    def state(self, tp: TopicPartition) -> AssignmentState | None:
        """Return the state of a partition; None if it is not assigned."""

    def renew(self, tp: TopicPartition, state: AssignmentState) -> bool:
        """If `state` is the partition's current state, treat the partition as newly assigned and return True. Otherwise
        return False.
        """

    def place(self, tp: TopicPartition, offset: int, epoch: int = UNDEFINED) -> None:
        """Set the position of a partition, and end its reset. If Ctrl-C interrupts this poll, the position is kept."""

    def reposition(self, state: AssignmentState, offset: int) -> None:
        """Set the position of this assignment, without a leader epoch. A held assignment stays held."""

    def hold(self, state: AssignmentState) -> None:
        """Fetch nothing for this assignment until `release`, or until the assignment gets another position."""

    def release(self, state: AssignmentState) -> None:
        """Fetch for this assignment again."""

    def reset(self, tp: TopicPartition, strategy: int) -> None:
        """Drop the position of a partition, and request a reset."""

    def reset_missing(self) -> None:
        """Request a reset of each partition that has neither a position nor a requested reset.

        Raises:
            NoOffsetForPartitionError: No reset is allowed.
        """

    def consumed(
        self, unhanded: Mapping[TopicPartition, int], is_allowed: Callable[[TopicPartition, int], bool]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return positions for a commit. Any thread may call this method.

        Args:
            unhanded: For some partitions, the first offset that the commit must not cover.
            is_allowed: Returns whether the offset of a partition may be committed. No `seek` can change the position
                between the call of this function and the choice of the offset.
        """

    def committable(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets for a commit without explicit offsets. A client that buffers fetched records may choose
        lower offsets than `Commits.committable`.
        """


class Group(Protocol):
    """The consumer's group."""

    def committed(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Fetch the group's committed offsets of these partitions.

        Raises:
            KafkaTimeoutError: The coordinator did not answer in time.
        """

    def forget_committed(self) -> None:
        """Ignore answers to earlier requests for the group's offsets, so that the next `committed` sends a new request.
        kafka-python would otherwise keep a timed-out request, and use the late answer.
        """

    def generation(self) -> tuple[int, str]:
        """Return the id of the group's generation, and the consumer's member id in this generation."""

    def leave(self, reason: str, timeout_ms: float) -> None:
        """Leave the group, and join it again as another member with the next poll. The consumer loses its partitions.

        A static member sends no LeaveGroup request. When the member joins again with the same instance id, the group
        replaces the former member, and the member id changes (KIP-345).

        Args:
            reason: For the broker's log (KIP-800).
            timeout_ms: How long to wait for the answer. Without an answer, the group may keep the former member until
                its session times out. The new join cannot complete before the former member is removed.
        """


class Metadata(Protocol):
    """kafka-python's metadata and connections. `Connections` has separate metadata and connections."""

    def leadership(self, tp: TopicPartition) -> Leadership | None:
        """Return a partition's leadership; None if the partition has no leader. Any thread may call this method."""

    def learn_leader(self, tp: TopicPartition, data: object) -> None:
        """Store the leader that a fetch response names (KIP-951)."""

    def request(self) -> None:
        """Request new metadata."""

    def may_create(self, topic: str) -> bool:
        """Return whether the brokers may create a missing topic that the consumer needs. Any thread may call this."""

    def is_connected(self) -> bool:
        """Return whether a connection to a broker is open. Any thread may call this method."""


class Port(Protocol):
    """kafka-python, for one consumer."""

    @property
    def assignments(self) -> Assignments:
        """The assigned partitions."""

    @property
    def group(self) -> Group:
        """The group."""

    @property
    def metadata(self) -> Metadata:
        """The metadata."""

    @property
    def isolation(self) -> IsolationLevel:
        """The option `isolation_level`."""

    def wake(self) -> None:
        """Wake `poll`. Any thread may call this method."""

"""The order of batches on their partitions: stops batches that would overtake others.

Only the network thread uses it. It uses no link, request or clock.
"""

from __future__ import annotations

from kafkasafe.cluster.terms import NodeId, TopicPartition

__all__ = ["RequestOrder"]


class RequestOrder:
    """The fences of all partitions, and the brokers that have unanswered batches."""

    __slots__ = ("_fences", "_pending")

    def __init__(self) -> None:
        self._fences: dict[TopicPartition, int] = {}
        # For each partition, the node that has its unanswered batches, and how many. Invariant: all unanswered batches
        # of a partition are at one node.
        self._pending: dict[TopicPartition, tuple[NodeId, int]] = {}

    def fence(self, target: TopicPartition) -> int:
        """How many of the partition's batches have failed so far; see `ProduceRequest.fence`."""
        return self._fences.get(target, 0)

    def raise_fence(self, target: TopicPartition) -> int:
        """Notes a failed batch. Batches that a thread submits before it learns of the failure must not be sent."""
        fence = self._fences.get(target, 0) + 1
        self._fences[target] = fence
        return fence

    def owing(self, target: TopicPartition) -> NodeId | None:
        """The node that has unanswered batches of the partition; None if no batch is unanswered."""
        pending = self._pending.get(target)
        return None if pending is None else pending[0]

    def enter(self, target: TopicPartition, node_id: NodeId) -> None:
        """Record that a batch is being sent to a node."""
        self._pending[target] = (node_id, self._pending.get(target, (node_id, 0))[1] + 1)

    def leave(self, target: TopicPartition) -> None:
        """Record that a batch was answered or failed."""
        node_id, count = self._pending[target]
        if count == 1:
            del self._pending[target]
        else:
            self._pending[target] = (node_id, count - 1)

    def begin_anew(self) -> None:
        """Forgets the unanswered batches, because all connections have ended. Fences keep their values."""
        self._pending = {}

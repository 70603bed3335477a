"""The order of batches on their partitions: what holds those off that would overtake others.

State of the network thread, and nothing else: no link, no request and no clock is known here.
"""

from __future__ import annotations

from kafkasafe.cluster.terms import NodeId, TopicPartition

__all__ = ["Order"]


class Order:
    """Of all partitions: their fences, and where the batches went that are not answered yet."""

    __slots__ = ("_fences", "_pending")

    def __init__(self) -> None:
        self._fences: dict[TopicPartition, int] = {}
        # Where the unanswered batches of a partition went, and how many. Invariant: all to one node.
        self._pending: dict[TopicPartition, tuple[NodeId, int]] = {}

    def fence(self, target: TopicPartition) -> int:
        """How often batches of the partition failed; see `ProduceRequest.fence`."""
        return self._fences.get(target, 0)

    def raise_fence(self, target: TopicPartition) -> int:
        """A batch of the partition failed: what was submitted before that is heard of must not go out."""
        fence = self._fences.get(target, 0) + 1
        self._fences[target] = fence
        return fence

    def owing(self, target: TopicPartition) -> NodeId | None:
        """The node that unanswered batches of the partition went to; None: there are none."""
        pending = self._pending.get(target)
        return None if pending is None else pending[0]

    def enter(self, target: TopicPartition, node_id: NodeId) -> None:
        """A batch goes to a node."""
        self._pending[target] = (node_id, self._pending.get(target, (node_id, 0))[1] + 1)

    def leave(self, target: TopicPartition) -> None:
        """A batch was answered, or failed."""
        node_id, count = self._pending[target]
        if count == 1:
            del self._pending[target]
        else:
            self._pending[target] = (node_id, count - 1)

    def begin_anew(self) -> None:
        """All connections are gone, and so is what was under way on them. Fences stay as high as they are."""
        self._pending = {}

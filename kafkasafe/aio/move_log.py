"""Recognises fetched records that are outdated because of a later move or subscription."""

from __future__ import annotations

from collections.abc import Iterable

from kafka.structs import TopicPartition

__all__ = ["MoveLog"]


class MoveLog:
    """Numbers the program's moves, so that records fetched before a move can be recognised.

    Attributes:
        count: Number of the latest move or subscription.
    """

    def __init__(self) -> None:
        self.count = 0
        self._moved: dict[TopicPartition, int] = {}
        self._subscribed = 0
        self._restarted = 0

    def move(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the positions of these partitions move."""
        self.count += 1
        self._moved.update(dict.fromkeys(partitions, self.count))

    def subscribe(self) -> None:
        """Note a new subscription."""
        self.count += 1
        self._subscribed = self.count

    def restart(self) -> None:
        """Record that everything that was fetched before is outdated."""
        self.count += 1
        self._restarted = self.count

    def has_moved(self, partition: TopicPartition, since: int) -> bool:
        """Return whether the position of a partition has moved after move number `since`."""
        return self._moved.get(partition, 0) > since

    def has_subscribed(self, since: int) -> bool:
        """Return whether the program has subscribed after move number `since`."""
        return self._subscribed > since

    def has_restarted(self, since: int) -> bool:
        """Return whether everything that was fetched at move number `since` is outdated."""
        return self._restarted > since

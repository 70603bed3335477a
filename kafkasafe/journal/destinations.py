"""All destinations of a lane by number and by address, and the known topics."""

from __future__ import annotations

from collections.abc import Mapping

from kafkasafe import marks as m
from kafkasafe.journal.partition import UNCHOSEN, Destination, Partition, UnassignedTopic

__all__ = ["Destinations"]


class Destinations:
    """Each destination keeps its number as long as the lane's log names it.

    Attributes:
        all: The destinations by number, in the order in which they were declared.
        partitions: The destinations that are partitions, by number.
        unassigned: The destinations that are topics with unknown partitions, by topic name.
    """

    __slots__ = ("_last_number", "_numbers", "_topics", "all", "partitions", "unassigned")

    def __init__(self) -> None:
        self.all: dict[int, Destination] = {}
        self.partitions: dict[int, Partition] = {}
        self.unassigned: dict[str, UnassignedTopic] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._last_number = 0
        self._topics: dict[str, m.Topic] = {}

    # -- destinations --------------------------------------------------------------------------------------------------

    def declare(self, number: int, topic: str, partition: int) -> None:
        """Add a destination with this number."""
        if partition == UNCHOSEN:
            self.all[number] = self.unassigned[topic] = UnassignedTopic(number, topic, UNCHOSEN)
        else:
            self.all[number] = self.partitions[number] = Partition(number, topic, partition)
        self._numbers[topic, partition] = number
        self._last_number = max(self._last_number, number)

    def add(self, topic: str, partition: int) -> int:
        """Add a new destination. Returns its number."""
        number = self._last_number + 1
        self.declare(number, topic, partition)
        return number

    def number(self, topic: str, partition: int) -> int | None:
        """The number of a destination, None if it is not declared."""
        return self._numbers.get((topic, partition))

    def find(self, topic: str, partition: int) -> Partition | None:
        """The partition with this address, None if it is not declared."""
        number = self._numbers.get((topic, partition))
        return None if number is None else self.partitions.get(number)

    def declared(self, number: int) -> Destination:
        """The destination that a mark names. Raises MarkError if no destination has this number."""
        if number not in self.all:
            raise m.MarkError(f"A mark speaks of destination {number}, never declared")
        return self.all[number]

    def declared_partition(self, number: int) -> Partition:
        """The partition that a mark names. Raises MarkError if no partition has this number."""
        if number not in self.partitions:
            raise m.MarkError(f"A mark speaks of partition {number}, never declared")
        return self.partitions[number]

    # -- topics --------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, m.Topic]:
        """All known topics by name."""
        return self._topics

    def learn(self, topic: m.Topic) -> None:
        """Set the id and partition count of a topic."""
        self._topics[topic.topic] = topic

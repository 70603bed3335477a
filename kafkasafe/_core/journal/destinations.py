"""All destinations of a lane by number and by address, and the known topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafkasafe._core import marks as m
from kafkasafe._core.journal.partition import UNCHOSEN, Partition

__all__ = ["Destinations"]


class Destinations:
    """Each destination keeps its number as long as the lane's log names it.

    Attributes:
        partitions: By number, in the order in which they were declared.
    """

    __slots__ = ("_last_number", "_numbers", "_topics", "_unchosen", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[int, Partition] = {}
        self._numbers: dict[tuple[str, int], int] = {}
        self._last_number = 0
        self._unchosen: list[Partition] = []
        self._topics: dict[str, m.Topic] = {}

    # -- destinations --------------------------------------------------------------------------------------------------

    def declare(self, number: int, topic: str, partition: int) -> None:
        """Add a destination with this number."""
        made = self.partitions[number] = Partition(number, topic, partition)
        self._numbers[topic, partition] = number
        self._last_number = max(self._last_number, number)
        if partition == UNCHOSEN:
            self._unchosen.append(made)

    def add(self, topic: str, partition: int) -> int:
        """Add a new destination. Returns its number."""
        number = self._last_number + 1
        self.declare(number, topic, partition)
        return number

    def number(self, topic: str, partition: int) -> int | None:
        """The number of a destination, None if it is not declared."""
        return self._numbers.get((topic, partition))

    def at(self, topic: str, partition: int) -> Partition:
        """The destination with this address; raises KeyError if it is not declared."""
        return self.partitions[self._numbers[topic, partition]]

    def find(self, topic: str, partition: int) -> Partition | None:
        """The destination with this address, None if it is not declared."""
        number = self._numbers.get((topic, partition))
        return None if number is None else self.partitions[number]

    def declared(self, number: int) -> Partition:
        """The destination that a mark names. Raises MarkError if no destination has this number."""
        if number not in self.partitions:
            raise m.MarkError(f"A mark speaks of destination {number}, never declared")
        return self.partitions[number]

    @property
    def unchosen(self) -> Sequence[Partition]:
        """The destinations of batches whose partitions are not chosen yet."""
        return self._unchosen

    # -- topics --------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Mapping[str, m.Topic]:
        """All known topics by name."""
        return self._topics

    def learn(self, topic: m.Topic) -> None:
        """Set the id and partition count of a topic."""
        self._topics[topic.topic] = topic

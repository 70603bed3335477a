"""Notes what the program does with partitions while a poll runs on the consumer's thread.

1. A task polls. The consumer's thread asks the group coordinator, which takes a few milliseconds.
2. Another task receives records of `orders-0` that an earlier poll had fetched.
3. The poll ends: `orders-0` was revoked, or its position was moved back.
4. So the program holds records whose offsets it must not send.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka.structs import TopicPartition

from kafkasafe.aio.fetched import Fetched, first_unhanded

__all__ = ["Meanwhile"]


class Meanwhile:
    """Shows what the program has done since the running poll was requested.

    Attributes:
        paused: Partitions that the program has paused since the request.
    """

    def __init__(self) -> None:
        self.paused: set[TopicPartition] = set()
        self._before: dict[TopicPartition, int] = {}

    def begin(self, fetched: Iterable[Fetched]) -> None:
        """Record that a poll is requested."""
        self.paused = set()
        self.compare_with(fetched)

    def compare_with(self, fetched: Iterable[Fetched]) -> None:
        """Make `handed` compare with this moment from now on."""
        self._before = first_unhanded({}, fetched)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Record that the program pauses partitions."""
        self.paused.update(partitions)

    def handed(self, fetched: Iterable[Fetched]) -> set[TopicPartition]:
        """Return the partitions from which the program has received records since that moment."""
        now = first_unhanded({}, fetched)
        return {tp for tp, offset in self._before.items() if now.get(tp) != offset}

    def forget(self, partition: TopicPartition) -> None:
        """Leave out a partition, because its fetched records are dropped."""
        self._before.pop(partition, None)

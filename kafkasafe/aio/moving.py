"""How a program moves a consumer, and has it leave partitions out."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from kafka.structs import TopicPartition

from kafkasafe.aio.fetched import UnassignedError, as_partition, as_partitions

__all__ = ["Moving"]

T = TypeVar("T")


class Moving(ABC):
    """Part of `SafeConsumer`."""

    _consumer: Any
    _assigned: frozenset[TopicPartition]
    _paused: set[TopicPartition]

    @abstractmethod
    def _later(
        self, job: Callable[[Any], T], moved: Iterable[TopicPartition] = (), *, early: bool = False
    ) -> asyncio.Future[T]: ...

    def seek(self, partition: TopicPartition, offset: int) -> asyncio.Future[None]:
        """Go on from an offset. Takes effect before the next record; may be awaited, for its error.

        Raises:
            ValueError: The partition is not assigned (which is an IllegalStateError, too); the offset is no number from
                0 on.
        """
        partition = as_partition(partition)
        if type(offset) is not int or offset < 0:
            raise ValueError(f"Not an offset: {offset!r}")
        if self._consumer is not None:
            self._check_assigned([partition])
        return self._later(lambda consumer: consumer.seek(partition, offset), [partition])

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Go on from the first offset of these, or of all that are assigned."""
        moved = as_partitions(partitions) or self._assigned
        await self._later(lambda consumer: consumer.seek_to_beginning(*moved), moved)
        return True

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Go on with what comes from now on."""
        moved = as_partitions(partitions) or self._assigned
        await self._later(lambda consumer: consumer.seek_to_end(*moved), moved)
        return True

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Go on from the committed offsets of these, or of all that are assigned; where there is none it stays."""
        moved = as_partitions(partitions) or self._assigned

        def seek(consumer: Any) -> dict[TopicPartition, int | None]:
            found: dict[TopicPartition, int | None] = {}
            for tp in moved:
                found[tp] = consumer.committed(tp)
                if found[tp] is not None:
                    consumer.seek(tp, found[tp])
            return found

        return await self._later(seek, moved)

    def pause(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Hand out nothing of these until `resume`, or until they are given to this consumer anew.

        Raises:
            ValueError: One is not assigned (which is an IllegalStateError, too).
        """
        given = self._check_assigned(as_partitions(partitions))
        self._paused.update(given)
        return self._later(lambda consumer: consumer.pause(*given))

    def resume(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Hand out records of these again.

        Raises:
            ValueError: As of `pause`.
        """
        given = self._check_assigned(as_partitions(partitions))
        self._paused.difference_update(given)
        return self._later(lambda consumer: consumer.resume(*given))

    def paused(self) -> set[TopicPartition]:
        """Those that are paused."""
        return set(self._paused)

    def _check_assigned(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        for partition in partitions:
            if partition not in self._assigned:
                raise UnassignedError(
                    f"Unassigned partition {partition}. Assigned are, as of the last request for records:"
                    f" {sorted(self._assigned)}"
                )
        return partitions

"""Look-ups of a consumer: requests that move no position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kafka.structs import TopicPartition

from kafkasafe.aio.arguments import as_partition, as_partitions
from kafkasafe.aio.thread_calls import ThreadCalls
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import call_in_thread

__all__ = ["LookUps"]

T = TypeVar("T")


class LookUps:
    """Requests to the cluster, by the inner consumer. See the methods with the same names in `SafeConsumer`."""

    def __init__(self, thread: ThreadSide, calls: ThreadCalls) -> None:
        self._thread, self._calls = thread, calls

    async def committed(self, partition: TopicPartition) -> int | None:
        """Ask the group coordinator for the last committed offset."""
        consumer, partition = self._thread.consumer, as_partition(partition)
        found = await self._calls.do(lambda: consumer.committed(partition))
        return None if found is None else int(found)

    async def topics(self) -> set[str]:
        """Ask for all topics."""
        consumer = self._thread.consumer
        return set(await self._calls.do(consumer.topics))

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Ask for the partitions of a topic."""
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {topic!r}")
        consumer = self._thread.consumer
        found = await self._calls.do(lambda: consumer.partitions_for_topic(topic))
        return set(found) if found else None

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], options: dict[str, Any]
    ) -> dict[TopicPartition, int]:
        """Ask the leaders for the end offsets."""
        consumer, asked = self._thread.consumer, list(as_partitions(partitions))
        return dict(await self._beside(lambda: consumer.end_offsets(asked, **options)))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], options: dict[str, Any]
    ) -> dict[TopicPartition, int]:
        """Ask the leaders for the first offsets."""
        consumer, asked = self._thread.consumer, list(as_partitions(partitions))
        return dict(await self._beside(lambda: consumer.beginning_offsets(asked, **options)))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], options: dict[str, Any]
    ) -> dict[TopicPartition, Any]:
        """Ask the leaders for the first offsets at or after these times."""
        consumer = self._thread.consumer
        if not isinstance(timestamps, Mapping):
            raise TypeError(
                f"timestamps must be a dict, such as {{TopicPartition('orders', 0): 1700000000000}}, not {timestamps!r}"
            )
        asked = {as_partition(tp): timestamp for tp, timestamp in timestamps.items()}
        return dict(await self._beside(lambda: consumer.offsets_for_times(asked, **options)))

    async def _beside(self, look: Callable[[], T]) -> T:
        """Run a look-up on a separate thread, so that it does not delay a poll. Look-ups are thread-safe."""
        return await call_in_thread("kafkasafe-aio-look", look)

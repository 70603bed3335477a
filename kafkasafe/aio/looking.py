"""What a consumer looks up: it moves nothing."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kafka.structs import TopicPartition

from kafkasafe._core.health import ConsumerHealth, unopened_consumer
from kafkasafe.aio.fetched import as_partition, as_partitions
from kafkasafe.aio.instead import NotOfConsumer
from kafkasafe.aio.threads import call_in_thread
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import UsageError

__all__ = ["Looking"]

T = TypeVar("T")


class Looking(NotOfConsumer, ABC):
    """Part of `SafeConsumer`."""

    _loop: asyncio.AbstractEventLoop | None
    _closing: asyncio.Task[None] | None
    _consumer: SafeConsumer | None
    _polled_at: float

    @property
    @abstractmethod
    def _opened(self) -> Any: ...

    @abstractmethod
    async def _do(self, job: Callable[[], T]) -> T: ...

    async def committed(self, partition: TopicPartition) -> int | None:
        """The last committed offset, None if there is none."""
        consumer, partition = self._opened, as_partition(partition)
        found = await self._do(lambda: consumer.committed(partition))
        return None if found is None else int(found)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Of the last fetch; None before there was one."""
        found = self._opened.highwater(as_partition(partition))
        return None if found is None else int(found)

    def health(self) -> ConsumerHealth:
        """As of `kafkasafe.SafeConsumer`. It never waits, and any thread may call it, also before `start`."""
        if self._consumer is None:
            return unopened_consumer(closed=self._closing is not None)
        return self._consumer.health()

    def metrics(self, raw: bool = False) -> Any:
        """As of `kafkasafe.SafeConsumer`."""
        return self._opened.metrics(raw)

    async def topics(self) -> set[str]:
        """All topics that the client may see."""
        consumer = self._opened
        return set(await self._do(consumer.topics))

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partitions of a topic, None if there is no such topic. (aiokafka's is no coroutine, and asks nobody.)

        Raises:
            TypeError: It is no topic's name.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {topic!r}")
        consumer = self._opened
        found = await self._do(lambda: consumer.partitions_for_topic(topic))
        return set(found) if found else None

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], **options: Any
    ) -> dict[TopicPartition, int]:
        """As of `kafkasafe.SafeConsumer`: never back without a proof."""
        consumer, asked = self._opened, list(as_partitions(partitions))
        return dict(await self._beside(lambda: consumer.end_offsets(asked, **options)))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], **options: Any
    ) -> dict[TopicPartition, int]:
        """As of `kafkasafe.SafeConsumer`."""
        consumer, asked = self._opened, list(as_partitions(partitions))
        return dict(await self._beside(lambda: consumer.beginning_offsets(asked, **options)))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], **options: Any
    ) -> dict[TopicPartition, Any]:
        """As of `kafkasafe.SafeConsumer`."""
        consumer = self._opened
        if not isinstance(timestamps, Mapping):
            raise TypeError(
                f"timestamps: a dict, as {{TopicPartition('orders', 0): 1700000000000}}, not {timestamps!r}"
            )
        asked = {as_partition(tp): timestamp for tp, timestamp in timestamps.items()}
        return dict(await self._beside(lambda: consumer.offsets_for_times(asked, **options)))

    def last_poll_timestamp(self, partition: TopicPartition | None = None) -> int:  # noqa: ARG002  # aiokafka's
        """When records were asked for the last time, ms since the epoch: of all partitions at once."""
        return int(self._polled_at * 1000)

    @property
    def client(self) -> SafeConsumer:
        """The consumer underneath, which belongs to another thread: only look at it."""
        found: SafeConsumer = self._opened
        return found

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, which has to be the consumer's: not that of a forked child, either."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise UsageError("The consumer belongs to another event loop: make one for each")
        return loop

    async def _beside(self, look: Callable[[], T]) -> T:
        """Look-ups, which are thread-safe: they hold up no poll."""
        return await call_in_thread("kafkasafe-aio-look", look)

"""The read-only methods of SafeConsumer: look-ups that move no position."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kafka.structs import TopicPartition

from kafkasafe.aio.arguments import as_partition, as_partitions
from kafkasafe.aio.instead import NotOfConsumer
from kafkasafe.aio.threads import call_in_thread, running_loop
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import UsageError
from kafkasafe.health.states import ConsumerHealth, unopened_consumer

__all__ = ["Looking"]

T = TypeVar("T")


class Looking(NotOfConsumer, ABC):
    """Part of `SafeConsumer`: look-ups."""

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
        """Return the last committed offset; None if nothing was committed."""
        consumer, partition = self._opened, as_partition(partition)
        found = await self._do(lambda: consumer.committed(partition))
        return None if found is None else int(found)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last fetch; None before the first fetch."""
        found = self._opened.highwater(as_partition(partition))
        return None if found is None else int(found)

    def health(self) -> ConsumerHealth:
        """Like `kafkasafe.SafeConsumer.health`. It never waits. Any thread may call it, even before `start`."""
        if self._consumer is None:
            return unopened_consumer(closed=self._closing is not None)
        return self._consumer.health()

    def metrics(self, raw: bool = False) -> Any:
        """Like `kafkasafe.SafeConsumer.metrics`."""
        return self._opened.metrics(raw)

    async def topics(self) -> set[str]:
        """Return all topics that the client is allowed to see."""
        consumer = self._opened
        return set(await self._do(consumer.topics))

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic; None if the topic does not exist.

        Unlike aiokafka's method this is a coroutine, because it may ask the cluster.

        Raises:
            TypeError: `topic` is not a string.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {topic!r}")
        consumer = self._opened
        found = await self._do(lambda: consumer.partitions_for_topic(topic))
        return set(found) if found else None

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], **options: Any
    ) -> dict[TopicPartition, int]:
        """Like `kafkasafe.SafeConsumer.end_offsets`: the results never go backwards, unless records are proven lost."""
        consumer, asked = self._opened, list(as_partitions(partitions))
        return dict(await self._beside(lambda: consumer.end_offsets(asked, **options)))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], **options: Any
    ) -> dict[TopicPartition, int]:
        """Like `kafkasafe.SafeConsumer.beginning_offsets`."""
        consumer, asked = self._opened, list(as_partitions(partitions))
        return dict(await self._beside(lambda: consumer.beginning_offsets(asked, **options)))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], **options: Any
    ) -> dict[TopicPartition, Any]:
        """Like `kafkasafe.SafeConsumer.offsets_for_times`."""
        consumer = self._opened
        if not isinstance(timestamps, Mapping):
            raise TypeError(
                f"timestamps must be a dict, such as {{TopicPartition('orders', 0): 1700000000000}}, not {timestamps!r}"
            )
        asked = {as_partition(tp): timestamp for tp, timestamp in timestamps.items()}
        return dict(await self._beside(lambda: consumer.offsets_for_times(asked, **options)))

    def last_poll_timestamp(self, partition: TopicPartition | None = None) -> int:  # noqa: ARG002  # aiokafka's
        """Return the time of the last poll, in ms since the epoch. It is the same for all partitions."""
        return int(self._polled_at * 1000)

    @property
    def client(self) -> SafeConsumer:
        """The inner consumer. It belongs to another thread, so only read from it."""
        found: SafeConsumer = self._opened
        return found

    def _check_loop(self) -> asyncio.AbstractEventLoop:
        """Return the running loop, which must be the consumer's. A forked child cannot run the consumer's loop."""
        loop = running_loop()
        if self._loop is not None and self._loop is not loop:
            raise UsageError("The consumer belongs to another event loop: open one for each loop")
        return loop

    async def _beside(self, look: Callable[[], T]) -> T:
        """Run a look-up on a separate thread, so that it does not delay a poll. Look-ups are thread-safe."""
        return await call_in_thread("kafkasafe-aio-look", look)

"""Positions, pauses and commits of a consumer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe.aio.arguments import as_offset, as_partition, as_partitions
from kafkasafe.aio.lifecycle import Lifecycle
from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.thread_calls import ThreadCalls
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import end_of
from kafkasafe.consumer import check_offset

_SLICE_MS: Final = 50
"""How long the thread looks up a position before it checks for other work."""


class Positions:
    """Moves, pauses and commits the positions of assigned partitions. `SafeConsumer` describes the methods."""

    def __init__(
        self, thread: ThreadSide, records: RecordQueue, lifecycle: Lifecycle, calls: ThreadCalls
    ) -> None:
        self._thread, self._records = thread, records
        self._lifecycle, self._calls = lifecycle, calls

    def seek(self, partition: TopicPartition, offset: int) -> asyncio.Future[None]:
        partition = as_partition(partition)
        check_offset(offset)
        if self._thread.is_open:
            self._records.check_assigned([partition])
        return self._calls.move(lambda consumer: consumer.seek(partition, offset), [partition])

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition]) -> bool:
        moved = self._or_all(partitions)
        await self._calls.move(lambda consumer: consumer.seek_to_beginning(*moved), moved)
        return await self._look_up(moved)

    async def seek_to_end(self, partitions: Iterable[TopicPartition]) -> bool:
        moved = self._or_all(partitions)
        await self._calls.move(lambda consumer: consumer.seek_to_end(*moved), moved)
        return await self._look_up(moved)

    async def _look_up(self, moved: Collection[TopicPartition]) -> bool:
        """Wait until these positions are known. Otherwise records that are appended from now on might be skipped, and a
        commit would leave out the partitions.

        Returns:
            Whether they are known. If not, the next request for records looks them up, and raises any error.
        """
        consumer = self._thread.consumer
        end = end_of(consumer.config["request_timeout_ms"])

        def known() -> bool:
            return all(consumer.position(tp, timeout_ms=_SLICE_MS) is not None for tp in moved)

        try:
            while not await self._calls.do(known):
                if time.monotonic() >= end:
                    return False
        except kafka_errors.KafkaError:
            self._lifecycle.check_open()
            return False
        return True

    async def seek_to_committed(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        consumer = self._thread.consumer
        asked = self._or_all(partitions)
        found = await self._calls.do(lambda: {tp: consumer.committed(tp) for tp in asked})
        sought = {tp: offset for tp, offset in found.items() if offset is not None}

        def seek(consumer: Any) -> None:
            for tp, offset in sought.items():
                consumer.seek(tp, offset)

        # Records fetched from partitions that do not move are still returned to the program.
        await self._calls.move(seek, sought)
        return found

    def pause(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[None]:
        given = self._checked(partitions)
        self._lifecycle.check_open()
        self._records.pause(given)
        return self._calls.move(lambda consumer: consumer.pause(*given))

    def resume(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[None]:
        given = self._checked(partitions)
        self._lifecycle.check_open()
        self._records.resume(given)
        return self._calls.move(lambda consumer: consumer.resume(*given))

    async def position(self, partition: TopicPartition) -> int:
        consumer, partition = self._thread.consumer, as_partition(partition)
        offset = -1
        if self._records.next_offset(partition) is None:
            offset = int(await self._calls.do(lambda: consumer.position(partition)))
        # Look again: a poll for a cancelled request may have fetched records meanwhile.
        fetched = self._records.next_offset(partition)
        return offset if fetched is None else fetched

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None) -> None:
        consumer = self._thread.consumer
        if offsets is None:
            self._records.finish_all()
            await self._calls.do(consumer.commit)
            return
        if not isinstance(offsets, Mapping):
            raise TypeError(
                f"offsets must be a dict, such as {{TopicPartition('orders', 0): 7}}, not {offsets!r}"
            )
        given = {as_partition(tp): as_offset(offset) for tp, offset in offsets.items()}
        self._records.check_assigned(given)
        await self._calls.do(lambda: consumer.commit(given))

    def _checked(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        given = as_partitions(partitions)
        self._records.check_assigned(given)
        return given

    def _or_all(self, partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
        return self._checked(partitions) or self._records.assigned

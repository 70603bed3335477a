"""The program's requests to the consumer's thread, other than requests for records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from kafka.structs import TopicPartition

from kafkasafe.aio.lifecycle import ConsumerLifecycle
from kafkasafe.aio.listeners import Rebalances
from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import running_loop
from kafkasafe.delivery.batch_offsets import check_settings
from kafkasafe.delivery.readings import OffsetsFate, ProducerLane

T = TypeVar("T")


class ThreadCalls:
    """Executes jobs on the thread, in the order of the requests."""

    def __init__(
        self, thread: ThreadSide, records: RecordQueue, rebalances: Rebalances, lifecycle: ConsumerLifecycle
    ) -> None:
        self._thread, self._records = thread, records
        self._rebalances, self._lifecycle = rebalances, lifecycle

    async def do(self, job: Callable[[], T]) -> T:
        """Execute a job on the thread, after all earlier requests.

        Before the job, the thread stores which records have been returned to the program.
        """
        self._lifecycle.check_open()
        return await self._rebalances.submit(self._thread.knowing(self._records.seen(), job))

    def move(self, job: Callable[[Any], T], moved: Iterable[TopicPartition] = ()) -> asyncio.Future[T]:
        """Execute `job(consumer)` on the thread. `moved` contains the partitions whose positions the job may move.

        The consumer drops the records that were fetched from these partitions. If the job fails, the consumer fetches
        the records again.
        """
        self._lifecycle.check_open()
        _ = self._thread.consumer  # raises an error if the consumer is not open
        partitions, kept = set(moved), self._records.kept
        # A poll that waits for a listener has not fetched yet, and will fetch from the new positions.
        dropped = self._records.move(partitions, overtakes_poll=not self._rebalances.is_calling)
        return self._rebalances.submit(self._thread.moving(job, partitions, dropped, kept))

    def move_or_begin(
        self, job: Callable[[Any], T], moved: Iterable[TopicPartition] = ()
    ) -> asyncio.Future[T]:
        """Do the same as `move`. Before `start`, only store the job: `start` will call `job(consumer)`."""
        if self._thread.is_open:
            return self.move(job, moved)
        self._lifecycle.check_open()
        self._thread.at_start(job)
        at_start: asyncio.Future[Any] = running_loop().create_future()
        at_start.set_result(None)
        return at_start

    async def offer_positions(self, fate: Callable[[], OffsetsFate], lane: ProducerLane) -> tuple[Any, ...]:
        """Return the data that an atomic batch of this lane (one producer's log in the spool) needs to commit offsets.
        All returned records count as finished.

        See `kafkasafe._consuming.rereading.Rereading.offer`.
        """
        check_settings(self._thread.consumer)
        return await self.do(self._thread.offering(fate, lane, self._records.hand_over()))

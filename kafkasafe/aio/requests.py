"""Serves the program's requests for records, and polls if no fetched record is left."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any, Final

from kafka.structs import TopicPartition

from kafkasafe.aio.lifecycle import ConsumerLifecycle
from kafkasafe.aio.listeners import Rebalances
from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import end_of, retrieve
from kafkasafe.kafkapython import membership

_SLICE_MS: Final = 50
"""How many milliseconds the consumer's thread waits for records before it checks for other work."""
_SETTLE_S: Final = 5.0
"""`start` waits at most this many seconds for the group. A rebalance may take long, because other members may have to
poll first.
"""


class RecordRequests:
    """Returns fetched records. If there are none, lets the consumer's thread poll. Only one poll runs at a time.

    `SafeConsumer` describes `one` (`getone`) and `many` (`getmany`).
    """

    def __init__(
        self, thread: ThreadSide, records: RecordQueue, rebalances: Rebalances, lifecycle: ConsumerLifecycle
    ) -> None:
        self._thread, self._records = thread, records
        self._rebalances, self._lifecycle = rebalances, lifecycle
        self._asking = asyncio.Lock()
        self._polling: asyncio.Future[None] | None = None
        """The running poll. If the task that waits for this poll is cancelled, the next task waits for the same poll.
        """
        self._failed: Exception | None = None
        """An error of a poll during `settle`. The next request for records raises this error."""

    async def settle(self) -> None:
        """Join the group and find the first positions, so that records appended after `start` are not skipped."""
        consumer = self._thread.consumer
        began = time.monotonic()
        end = began + _SETTLE_S
        while not membership.has_settled(consumer, began) and not self._records and time.monotonic() < end:
            try:
                await self._poll(frozenset(), _SLICE_MS)
            except asyncio.CancelledError:
                self._polling = None  # the next `start` polls another consumer
                raise
            except Exception as error:
                self._failed = error
                return

    def check(self) -> None:
        """Check that records may be requested.

        Raises:
            IllegalStateError: The consumer is closed.
            UsageError: The consumer belongs to another loop, or a rebalance listener makes the request.
        """
        self._lifecycle.check_open()
        self._rebalances.check_not_own("ask for records")

    async def one(self, wanted: frozenset[TopicPartition]) -> Any:
        self.check()
        self._records.finish_all()
        if self._records:
            await self._attend()
        while (fetched := self._records.next(wanted)) is None:
            await self._poll(wanted, _SLICE_MS)
        return self._records.take(fetched, 1)[0]

    async def many(
        self, wanted: frozenset[TopicPartition], timeout_ms: float, max_records: int | None
    ) -> dict[TopicPartition, list[Any]]:
        self.check()
        if max_records is not None and (type(max_records) is not int or max_records < 1):
            raise ValueError(f"max_records must be a positive int, not {max_records!r}")
        end = end_of(timeout_ms)
        self._records.finish_all()
        if self._records and not await self._attend(end):
            return {}
        while self._records.next(wanted) is None:
            left_ms = (end - time.monotonic()) * 1000
            await self._poll(wanted, max(0.0, min(left_ms, _SLICE_MS)))
            if left_ms <= 0:
                break
        found: dict[TopicPartition, list[Any]] = {}
        left = max_records or self._thread.consumer.config["max_poll_records"]
        while left > 0 and (fetched := self._records.next(wanted)) is not None:
            records = self._records.take(fetched, left)
            found.setdefault(fetched.tp, []).extend(records)
            left -= len(records)
        return found

    async def _attend(self, end: float = math.inf) -> bool:
        """Before records are returned, do what the group membership requires, such as joining in a rebalance: the
        program may process the records for a long time.

        Returns:
            Whether the consumer can return records. False during a rebalance, because another member may get the
            partitions.
        """
        wait_ms = 0.0
        while self._records and self._records.must_attend:
            if wait_ms and time.monotonic() >= end:
                return False
            await self._poll(frozenset(), wait_ms, fetch=False)
            wait_ms = _SLICE_MS
        return True

    async def _poll(
        self, wanted: frozenset[TopicPartition], timeout_ms: float, *, fetch: bool = True
    ) -> None:
        """Let the thread poll for a moment. Even if this task is cancelled, the consumer keeps the fetched records."""
        records = self._records
        async with self._asking:
            if records.next(wanted) is not None if fetch else not records.must_attend:
                return  # another task has polled
            _ = self._thread.consumer  # raises an error if the consumer is not open
            self._lifecycle.check_open()
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed
            if self._polling is None:
                # Poll on the consumer's own thread, never on a listener's thread. While a listener runs, the consumer's
                # thread waits, so the new poll begins after the listener has returned.
                request = records.begin_poll()
                self._polling = self._thread.poll(
                    request, records.seen(), timeout_ms, fetch=fetch, keep=records.keep
                )
                self._polling.add_done_callback(retrieve)
            await asyncio.wait([polling := self._polling])
            self._polling = None
            polling.result()

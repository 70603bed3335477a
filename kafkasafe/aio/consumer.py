"""SafeConsumer for asyncio: aiokafka's interface around a kafkasafe.SafeConsumer that one thread owns."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe import consumer as threads
from kafkasafe._producing.spelling import Absent, Tidy, tidy_dir
from kafkasafe.aio.arguments import as_offset, as_partition, as_partitions
from kafkasafe.aio.instead import LAST_STABLE_OFFSET
from kafkasafe.aio.lifecycle import ConsumerLifecycle
from kafkasafe.aio.listeners import Rebalances
from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.requests import RecordRequests
from kafkasafe.aio.selection import Selection
from kafkasafe.aio.thread_calls import ThreadCalls
from kafkasafe.aio.thread_side import ThreadSide
from kafkasafe.aio.threads import call_in_thread, end_of
from kafkasafe.config import check_topics, validate_consumer
from kafkasafe.consumer import check_offset
from kafkasafe.errors import WaitTimeoutError
from kafkasafe.health.states import ConsumerHealth, unopened_consumer
from kafkasafe.limits.patience import closing_timeout
from kafkasafe.options import AsyncConsumerOptions, ConsumerOptions
from kafkasafe.process.one_process import OfOneProcess

_SLICE_MS: Final = 50
"""The consumer's thread looks up a position for this many milliseconds before it checks for other work."""
_LOOK_UP: Final = "kafkasafe-aio-look"
"""Name of the thread of a look-up. Each look-up has its own thread, so that look-ups do not delay polls. Look-ups are
thread-safe.
"""


class SafeConsumer(OfOneProcess, metaclass=Tidy):
    """`kafkasafe.SafeConsumer` for asyncio, with the method names of AIOKafkaConsumer.

    `async with SafeConsumer("orders", ...) as consumer: async for record in consumer: ...`

    **Automatic commits cover only records that the program has finished.** The consumer commits at regular intervals,
    before a rebalance, and at the end, but never the record that the program is processing. A record counts as finished
    once the program asks for the next record, or leaves the consumer's block without an error. `commit()` commits all
    records that were returned to the program.

    The consumer's thread owns the inner consumer and executes requests in order. Deserializers, `on_event` and
    `on_divergence` run on the consumer's thread or on the network thread; a rebalance listener runs on the loop.

    Args:
        topics: Topics to subscribe to.
        loop: Ignored; accepted for compatibility with aiokafka.
        options: The options of `kafkasafe.SafeConsumer`.

    Raises:
        ConfigError: An option is unknown or has a value that cannot work.
        ValueError: A topic cannot have such a name.
    """

    __dir__ = tidy_dir

    if not TYPE_CHECKING:
        last_stable_offset = Absent(LAST_STABLE_OFFSET)

    def __init__(self, *topics: str, loop: Any = None, **options: Unpack[AsyncConsumerOptions]) -> None:  # noqa: ARG002
        check_topics(topics)
        validate_consumer(dict(options))
        self._records = records = RecordQueue()
        self._thread = thread = ThreadSide(topics, cast("ConsumerOptions", options))
        rebalances = Rebalances(thread, records)
        self._lifecycle = lifecycle = ConsumerLifecycle(thread, records, rebalances)
        self._requests = RecordRequests(thread, records, rebalances, lifecycle)
        self._calls = calls = ThreadCalls(thread, records, rebalances, lifecycle)
        self._selection = Selection(topics, records, rebalances, lifecycle, calls)

    # -- start and close -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and join the group.

        The method waits at most 5 s for the group, and 1 s for missing topics. If the call is cancelled, nothing stays
        open. Idempotent.

        Raises:
            KafkaTimeoutError: No broker could be used within `bootstrap_timeout_ms`.
            IllegalStateError: The consumer was closed before.
        """
        await self._lifecycle.start(self._requests.settle)

    async def stop(self) -> None:
        """Do the same as `close()`. `stop` is aiokafka's name for this method."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the producer's
        """Commit all returned records (if `enable_auto_commit` is set), leave the group, and close.

        If the call is cancelled, closing continues in the background. Idempotent.

        Args:
            timeout: Time-out in seconds, once for the commit and once for leaving the group. Default:
                `request_timeout_ms`.

        Raises:
            ValueError: The timeout is negative or nan. Nothing was closed.
            OSError: A file could not be written. The consumer is closed nevertheless.
        """
        await self._lifecycle.close(closing_timeout(timeout), finished=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the consumer. If the block raises an exception, the record that the block was processing is not
        committed, and is read again.
        """
        await self._lifecycle.close(None, finished=error is None)

    def __del__(self) -> None:
        """End the threads of a consumer that was dropped without `close()`. Nothing is committed."""
        lifecycle = getattr(self, "_lifecycle", None)
        if lifecycle is not None and lifecycle.drop():
            warnings.warn(
                f"Unclosed {self!r}: the records that it returned since the last commit will be read again. Use"
                " `async with`, or `await consumer.stop()`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # -- records -------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._lifecycle.is_closing:
            raise StopAsyncIteration
        try:
            return await self.getone()
        except kafka_errors.IllegalStateError:
            if self._lifecycle.is_closing:
                raise StopAsyncIteration from None
            raise

    async def getone(self, *partitions: TopicPartition) -> Any:
        """Return the next record. If the call is cancelled, it takes no record.

        Args:
            partitions: Return a record of these partitions only. Default: of any assigned partition.

        Raises:
            LogDivergedError: See `on_divergence`.
            Exception: As for `kafkasafe.SafeConsumer.poll`.
        """
        if not partitions:
            record = self._records.take_now()
            if record is not None:
                return record
        return await self._requests.one(as_partitions(partitions))

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Any]]:
        """Return fetched records. If there are none, wait up to `timeout_ms` for records. A cancelled call takes no
        record.

        Args:
            partitions: Return records of these partitions only. Default: of all assigned partitions.
            timeout_ms: How long to wait for the first record.
            max_records: Largest number of records to return. Default: `max_poll_records`.

        Raises:
            Exception: As for `getone`.
        """
        return await self._requests.many(as_partitions(partitions), timeout_ms, max_records)

    def last_poll_timestamp(self, partition: TopicPartition | None = None) -> int:  # noqa: ARG002  # aiokafka's
        """Return the time of the last poll, in ms since the epoch. The time is the same for all partitions."""
        return int(self._records.polled_at * 1000)

    # -- subscription --------------------------------------------------------------------------------------------------

    def assign(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[None]:
        """Read these partitions, without an assignment by the group. May be called before `start`.

        Raises:
            IllegalStateError: The consumer is subscribed to topics: call `unsubscribe` first.
            ValueError: A topic cannot have such a name.
        """
        return self._selection.assign(as_partitions(partitions))

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None
    ) -> asyncio.Future[None]:
        """Read topics as a member of the group. May be called before `start`.

        Args:
            topics: Topic names.
            pattern: Instead of names: a regular expression that matches the beginning of topic names.
            listener: The consumer calls its methods `on_partitions_revoked` and `on_partitions_assigned` on the loop,
                and awaits coroutines. These methods may use this consumer, but must not request records.

        Raises:
            TypeError: Neither topics nor a pattern is given, or both are given; or the listener lacks one of the two
                methods.
            ValueError: The pattern is not a regular expression, or a topic cannot have such a name.
            IllegalStateError: The consumer used `assign`, or has subscribed to a pattern instead of names or to names
                instead of a pattern: call `unsubscribe` first.
        """
        return self._selection.subscribe(topics, pattern, listener)

    def unsubscribe(self) -> asyncio.Future[None]:
        """Stop reading, and leave the group. May be called before `start`."""
        return self._selection.unsubscribe()

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions, as of the last request for records."""
        return set(self._records.assigned)

    def subscription(self) -> set[str]:
        """Return the subscribed topics; with a pattern, the matching topics found so far."""
        topics = self._selection.topics
        return set(self._thread.subscription() if topics is None else topics)

    # -- positions and commits -----------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> asyncio.Future[None]:
        """Continue from an offset. The next record is already from the new position. Await the result to get errors.

        Raises:
            ValueError: The partition is not assigned (this error is an IllegalStateError, too), or the offset is
                invalid.
        """
        partition = as_partition(partition)
        check_offset(offset)
        if self._thread.is_open:
            self._records.check_assigned([partition])
        return self._calls.move(lambda consumer: consumer.seek(partition, offset), [partition])

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Continue from the first offset of these partitions, or of all assigned partitions.

        Returns:
            Whether the new positions are known. If no broker answers within `request_timeout_ms`, the consumer looks up
            the positions before it returns the next record.

        Raises:
            ValueError: A partition is not assigned (see `seek`). In this case, no position has moved.
        """
        moved = self._or_all(partitions)
        await self._calls.move(lambda consumer: consumer.seek_to_beginning(*moved), moved)
        return await self._look_up(moved)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Continue from the end of these partitions, or of all assigned partitions.

        Returns:
            As for `seek_to_beginning`. If True, the consumer will read all records that are appended from now on.

        Raises:
            ValueError: As for `seek_to_beginning`.
        """
        moved = self._or_all(partitions)
        await self._calls.move(lambda consumer: consumer.seek_to_end(*moved), moved)
        return await self._look_up(moved)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Continue from the committed offsets of these partitions, or of all assigned partitions.

        A partition without a committed offset keeps its position.

        Raises:
            ValueError: As for `seek_to_beginning`.
        """
        consumer = self._thread.consumer
        asked = self._or_all(partitions)
        found = await self._calls.do(lambda: {tp: consumer.committed(tp) for tp in asked})
        sought = {tp: offset for tp, offset in found.items() if offset is not None}

        def seek(consumer: Any) -> None:
            for tp, offset in sought.items():
                consumer.seek(tp, offset)

        # Only the partitions in `sought` move. The program still gets records that were fetched from other partitions.
        await self._calls.move(seek, sought)
        return found

    def pause(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Return no records of these partitions until `resume`. If a rebalance takes a partition away, the partition is
        no longer paused when it is assigned again.

        Raises:
            ValueError: A partition is not assigned (this error is an IllegalStateError, too).
        """
        given = self._checked(partitions)
        self._lifecycle.check_open()
        self._records.pause(given)
        return self._calls.move(lambda consumer: consumer.pause(*given))

    def resume(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Return records of these partitions again.

        Raises:
            ValueError: As for `pause`.
        """
        given = self._checked(partitions)
        self._lifecycle.check_open()
        self._records.resume(given)
        return self._calls.move(lambda consumer: consumer.resume(*given))

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return set(self._records.paused)

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None = None) -> None:
        """Commit, and wait for the response. If the call is cancelled, the commit may happen nevertheless.

        Args:
            offsets: By partition, the next offset to read: a number, (number, metadata) or OffsetAndMetadata. Default:
                the offsets after all records that were returned to the program.

        Raises:
            CommitFailedError: The partitions belong to another member now.
            ValueError: A partition is not assigned (this error is an IllegalStateError, too), or an offset is invalid.
            Exception: As for `kafkasafe.SafeConsumer.commit`.
        """
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

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that the consumer will return.

        Raises:
            ValueError: The partition is not assigned.
            KafkaTimeoutError: The position was not known within `request_timeout_ms`.
        """
        consumer, partition = self._thread.consumer, as_partition(partition)
        offset = None
        if self._records.next_offset(partition) is None:
            offset = await self._calls.do(lambda: consumer.position(partition))
        # Look again: the poll of a cancelled request may have fetched records meanwhile.
        fetched = self._records.next_offset(partition)
        found = offset if fetched is None else fetched
        if found is None:
            raise WaitTimeoutError(
                f"The position of {partition.topic}-{partition.partition} was not known within request_timeout_ms"
            )
        return int(found)

    async def _look_up(self, moved: Collection[TopicPartition]) -> bool:
        """Wait until these positions are known. A later look-up of the log's end would skip the records that arrive
        meanwhile. And while a position is unknown, commits leave out the partition.

        Returns:
            Whether the positions are known. The next request for records looks up unknown positions, and raises any
            error.
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

    def _checked(self, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        given = as_partitions(partitions)
        self._records.check_assigned(given)
        return given

    def _or_all(self, partitions: Iterable[TopicPartition]) -> Collection[TopicPartition]:
        return self._checked(partitions) or self._records.assigned

    # -- look-ups ------------------------------------------------------------------------------------------------------

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the last committed offset; None if nothing was committed."""
        consumer, partition = self._thread.consumer, as_partition(partition)
        found = await self._calls.do(lambda: consumer.committed(partition))
        return None if found is None else int(found)

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the high watermark of the last fetch; None before the first fetch."""
        found = self._thread.consumer.highwater(as_partition(partition))
        return None if found is None else int(found)

    async def topics(self) -> set[str]:
        """Return all topics that the client is allowed to see."""
        consumer = self._thread.consumer
        return set(await self._calls.do(consumer.topics))

    async def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partitions of a topic; None if the topic does not exist.

        Unlike aiokafka's method, this method is a coroutine, because it may ask the cluster.

        Raises:
            TypeError: `topic` is not a string.
        """
        if not isinstance(topic, str):
            raise TypeError(f"topic must be a string, not {topic!r}")
        consumer = self._thread.consumer
        found = await self._calls.do(lambda: consumer.partitions_for_topic(topic))
        return set(found) if found else None

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], **options: Any
    ) -> dict[TopicPartition, int]:
        """Like `kafkasafe.SafeConsumer.end_offsets`: the results never go backwards, unless records are proven lost."""
        consumer, asked = self._thread.consumer, list(as_partitions(partitions))
        return dict(await call_in_thread(_LOOK_UP, lambda: consumer.end_offsets(asked, **options)))

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], **options: Any
    ) -> dict[TopicPartition, int]:
        """Like `kafkasafe.SafeConsumer.beginning_offsets`."""
        consumer, asked = self._thread.consumer, list(as_partitions(partitions))
        return dict(await call_in_thread(_LOOK_UP, lambda: consumer.beginning_offsets(asked, **options)))

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], **options: Any
    ) -> dict[TopicPartition, Any]:
        """Like `kafkasafe.SafeConsumer.offsets_for_times`."""
        consumer = self._thread.consumer
        if not isinstance(timestamps, Mapping):
            raise TypeError(
                f"timestamps must be a dict, such as {{TopicPartition('orders', 0): 1700000000000}}, not {timestamps!r}"
            )
        asked = {as_partition(tp): timestamp for tp, timestamp in timestamps.items()}
        return dict(await call_in_thread(_LOOK_UP, lambda: consumer.offsets_for_times(asked, **options)))

    def health(self) -> ConsumerHealth:
        """Like `kafkasafe.SafeConsumer.health`. Never waits. Any thread may call this method, even before `start`."""
        if not self._thread.is_open:
            return unopened_consumer(closed=self._lifecycle.is_closing)
        health: ConsumerHealth = self._thread.consumer.health()
        return health

    def metrics(self, raw: bool = False) -> Any:
        """Like `kafkasafe.SafeConsumer.metrics`."""
        return self._thread.consumer.metrics(raw)

    @property
    def client(self) -> threads.SafeConsumer:
        """The inner consumer. The program may only read its attributes, because the inner consumer belongs to another
        thread.
        """
        found: threads.SafeConsumer = self._thread.consumer
        return found

    def __repr__(self) -> str:
        return f"<aio.SafeConsumer {self._thread.consumer if self._thread.is_open else 'not started'}>"


def calls_of(consumer: SafeConsumer) -> ThreadCalls:
    """Return the object through which an atomic batch asks a consumer's thread for offsets."""
    return consumer._calls  # noqa: SLF001  # not for programs

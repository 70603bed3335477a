"""SafeConsumer for asyncio: aiokafka's interface around a kafkasafe.SafeConsumer that one thread owns."""

from __future__ import annotations

import asyncio
import collections
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, cast

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe import consumer as threads
from kafkasafe.aio.arguments import as_offset, as_partition, as_partitions
from kafkasafe.aio.fetched import Fetched, Handed, first_unhanded, not_in_children
from kafkasafe.aio.listeners import ListenerCall
from kafkasafe.aio.looking import Looking
from kafkasafe.aio.meanwhile import Meanwhile
from kafkasafe.aio.moving import Moving
from kafkasafe.aio.polls import Polls
from kafkasafe.aio.threads import Worker, call_in_thread, end_of, place_of, retrieve, running_loop
from kafkasafe.config import validate_consumer
from kafkasafe.delivery.batch_offsets import check_settings
from kafkasafe.delivery.readings import Fate, Lane
from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import membership
from kafkasafe.limits.patience import closing_timeout
from kafkasafe.options import AsyncConsumerOptions, ConsumerOptions
from kafkasafe.process.one_process import OfOneProcess

__all__ = ["SafeConsumer"]

T = TypeVar("T")
Records = Mapping[TopicPartition, list[Any]]
Job = Callable[[], None]

_SLICE_MS: Final = 50
"""How long the thread waits for records before it checks for other work."""
_ATTEND_S: Final = 0.25
"""How long a program may process fetched records before the consumer serves its group membership again."""
_SETTLE_S: Final = 5.0
"""Maximum time that `start` waits for the group. A rebalance may take long: other members may have to poll first."""


class SafeConsumer(Moving, Looking, OfOneProcess):
    """`kafkasafe.SafeConsumer` for asyncio, with the method names of AIOKafkaConsumer.

    `async with SafeConsumer("orders", ...) as consumer: async for record in consumer: ...`

    **Automatic commits cover only records that the program has finished.** They happen at regular intervals, before a
    rebalance, and at the end. They do not include the record that the program is processing. A record counts as
    finished once the program asks for the next one, or leaves the consumer's block without an error. `commit()` commits
    all records that were returned to the program.

    One thread owns the inner consumer and executes requests in order. Deserializers, `on_event` and `on_divergence` run
    on that thread or on the network thread; a rebalance listener runs on the loop.

    Args:
        topics: Topics to subscribe to.
        loop: Ignored; accepted for compatibility with aiokafka.
        options: The options of `kafkasafe.SafeConsumer`.

    Raises:
        ConfigError: An option is unknown or has a value that cannot work.
    """

    def __init__(self, *topics: str, loop: Any = None, **options: Unpack[AsyncConsumerOptions]) -> None:  # noqa: ARG002
        if not all(isinstance(topic, str) for topic in topics):
            raise TypeError(f"Pass topics as names: SafeConsumer('orders', 'audit'), not {topics!r}")
        validate_consumer(dict(options))
        self._topics = topics
        self._reads, self._named = ("topics" if topics else None), frozenset(topics)
        self._options = cast("ConsumerOptions", options)
        self._consumer: threads.SafeConsumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._once = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._listening: ListenerCall | None = None
        self._early: list[Callable[[Any], object]] = []
        """Calls that were made before `start`. `start` executes them."""
        self._failed: Exception | None = None
        """An error of a poll during `start`. The next request for records raises it."""
        self._asking = asyncio.Lock()
        self._polling: asyncio.Future[None] | None = None
        """The running poll; one at a time. If its task is cancelled, the next task waits for the same poll."""
        self._attend_at, self._subscribed_at, self._seeks = 0.0, 0, 0
        self._fetched: collections.deque[Fetched] = collections.deque()
        self._in_hand: dict[TopicPartition, int] = {}
        """First offset, by partition, of the records that the last request returned."""
        self._moved: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._meanwhile = Meanwhile()
        self._handed_late = False
        """Whether records of a partition were handed out during a poll that gave up the partition or moved it back."""
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._polled_at, self._kept = 0.0, 0
        """Number of the latest poll whose records have arrived on the loop."""
        self._polls = Polls()

    # -- start and close -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and join the group.

        It waits at most 5 s for the group, and 1 s for missing topics. If the call is cancelled, nothing stays open.
        Calling it again does nothing.

        Raises:
            KafkaTimeoutError: No broker could be used within `bootstrap_timeout_ms`.
            IllegalStateError: The consumer was closed before.
        """
        if self._closing is not None:
            raise kafka_errors.IllegalStateError("The consumer is closed; open a new one")
        self._loop = self._check_loop()
        self._place = place_of(self._loop)
        if self._listening is not None and self._listening.is_own():
            return  # `start` is waiting for this listener
        async with self._once:
            if self._consumer is not None:
                return
            consumer = await call_in_thread("kafkasafe-aio-start", self._made, undo=lambda made: made.close())
            # All commits ask this object for offsets. It goes by returned records, not by fetched ones.
            membership.commit_from(consumer, handed := Handed(self, consumer))
            consumer._reading.rereading.hand_out_later(handed.unhanded)
            self._consumer = consumer
            not_in_children(self)
            self._worker = Worker(f"kafkasafe-aio-{consumer.client_id}")
            try:
                await self._settle()
            except asyncio.CancelledError:
                self._consumer = None
                self._worker.put(consumer.close)
                self._worker.stop()
                raise

    def _made(self) -> threads.SafeConsumer:
        consumer = threads.SafeConsumer(*self._topics, **self._options)
        try:
            for job in self._early:
                job(consumer)
        except BaseException:
            consumer.close()
            raise
        return consumer

    async def _settle(self) -> None:
        """Join the group and find the first positions, so that records appended after `start` are not skipped."""
        consumer = self._opened
        began = time.monotonic()
        end = began + _SETTLE_S
        while not membership.has_settled(consumer, began) and not self._fetched and time.monotonic() < end:
            try:
                await self._ask(frozenset(), _SLICE_MS)
            except Exception as error:
                self._failed = error
                return

    async def stop(self) -> None:
        """Call `close()`. This is aiokafka's name for it."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the producer's
        """Commit all returned records (if `enable_auto_commit` is set), leave the group, and close.

        If the call is cancelled, closing goes on in the background. Calling it again does nothing.

        Args:
            timeout: Seconds for the commit and for leaving the group. Default: `request_timeout_ms`.

        Raises:
            ValueError: The timeout is negative or nan. Nothing was closed.
            OSError: A file could not be written. The consumer is closed nevertheless.
        """
        await self._end(closing_timeout(timeout), commit=True)

    async def _end(self, timeout: float | None = None, *, commit: bool) -> None:  # noqa: ASYNC109
        self._check_not_listening("close the consumer")
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout, commit=commit))
            self._closing.add_done_callback(retrieve)
        await asyncio.shield(self._closing)

    async def _close(self, timeout: float | None, *, commit: bool) -> None:  # noqa: ASYNC109
        async with self._once:
            consumer = self._consumer
        if consumer is None:
            return
        if commit:
            self._in_hand.clear()
        try:
            await self._worker.run(self._known_to(lambda: consumer.close(timeout=timeout)))
        finally:
            self._worker.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close. If the block raised an exception, its current record is not committed and will be read again."""
        await self._end(commit=error is None)

    def __del__(self) -> None:
        """End the threads of a consumer that was dropped without `close()`. Nothing is committed."""
        consumer = getattr(self, "_consumer", None)
        if consumer is not None and self._closing is None:
            self._worker.put(consumer.close)
            self._worker.stop()
            warnings.warn(
                f"Unclosed {self!r}: the records that it returned since the last commit will be read again. Use"
                " `async with`, or `await consumer.stop()`",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # -- records ---------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._closing is not None:
            raise StopAsyncIteration
        try:
            return await self.getone()
        except kafka_errors.IllegalStateError:
            if self._closing is not None:
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
        queue = self._fetched
        if (
            queue
            and not partitions
            and not self._paused
            and self._closing is None
            and self._listening is None
            and self._place._thread_id == get_ident()
            and time.monotonic() < self._attend_at
        ):
            # Fast path: does the same as the code below if there is nothing to wait for.
            first = queue[0]
            records, at = first.records, first.at
            record = records[at]
            self._in_hand = {first.tp: record.offset}
            first.at = at = at + 1
            if at == len(records):
                queue.popleft()
            return record
        wanted = as_partitions(partitions)
        self._check_asks()
        self._in_hand = {}
        if self._fetched:
            await self._attend()
        while (fetched := self._next(wanted)) is None:
            await self._ask(wanted, _SLICE_MS)
        record = fetched.records[fetched.at]
        self._take(fetched, 1)
        return record

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Any]]:
        """Return fetched records, or else those that arrive within `timeout_ms`. A cancelled call takes no record.

        Args:
            partitions: Return records of these partitions only. Default: of all assigned partitions.
            timeout_ms: How long to wait while there are no records.
            max_records: Largest number of records to return. Default: `max_poll_records`.

        Raises:
            Exception: As for `getone`.
        """
        wanted = as_partitions(partitions)
        self._check_asks()
        if max_records is not None and (type(max_records) is not int or max_records < 1):
            raise ValueError(f"max_records must be a positive int, not {max_records!r}")
        end = end_of(timeout_ms)
        self._in_hand = {}
        if self._fetched and not await self._attend(end):
            return {}
        while self._next(wanted) is None:
            left_ms = (end - time.monotonic()) * 1000
            await self._ask(wanted, max(0.0, min(left_ms, _SLICE_MS)))
            if left_ms <= 0:
                break
        found: dict[TopicPartition, list[Any]] = {}
        left = max_records or self._opened.config["max_poll_records"]
        while left > 0 and (fetched := self._next(wanted)) is not None:
            records = fetched.records[fetched.at : fetched.at + left]
            found.setdefault(fetched.tp, []).extend(records)
            self._take(fetched, len(records))
            left -= len(records)
        return found

    def _next(self, wanted: frozenset[TopicPartition]) -> Fetched | None:
        if self._fetched and not wanted and not self._paused:
            return self._fetched[0]
        for fetched in self._fetched:
            if fetched.tp not in self._paused and (not wanted or fetched.tp in wanted):
                return fetched
        return None

    def _take(self, fetched: Fetched, count: int) -> None:
        self._in_hand.setdefault(fetched.tp, fetched.next_offset)
        fetched.at += count
        if fetched.at == len(fetched.records):
            self._fetched.remove(fetched)

    async def _attend(self, end: float = math.inf) -> bool:
        """Serve the group membership before records are returned, because the program may take long with them.

        Returns:
            Whether the records may be returned. Not during a rebalance: the partitions may go to another member.
        """
        wait_ms = 0.0
        while self._fetched and time.monotonic() >= self._attend_at:
            if wait_ms and time.monotonic() >= end:
                return False
            await self._ask(frozenset(), wait_ms, fetch=False)
            wait_ms = _SLICE_MS
        return True

    async def _ask(self, wanted: frozenset[TopicPartition], timeout_ms: float, *, fetch: bool = True) -> None:
        """Let the thread poll for a moment. The fetched records are kept, even if this task is cancelled meanwhile."""
        async with self._asking:
            if self._next(wanted) is not None if fetch else time.monotonic() < self._attend_at:
                return  # another task has polled
            consumer = self._opened
            self._check_open()
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed
            if self._polling is None:
                # Always on the consumer's own thread: a poll requested during a listener's call comes after that call.
                poll, keep = self._poll(consumer, timeout_ms, fetch)
                self._polling = self._worker.submit(self._known_to(poll), then=keep)
                self._polling.add_done_callback(retrieve)
            await asyncio.wait([polling := self._polling])
            self._polling = None
            polling.result()

    def _poll(self, consumer: Any, timeout_ms: float, fetch: bool) -> tuple[Job, Job]:
        seen: list[Any] = []
        asked = self._seeks
        self._meanwhile.begin(self._fetched)
        # Enough records of these partitions are fetched already.
        left_out = {each.tp for each in self._fetched} - self._paused

        def poll() -> None:
            records: Records = {}
            joined = False
            try:
                if fetch:
                    records = membership.polled_without(consumer, left_out, self._paused, timeout_ms)
                else:
                    with consumer._reading.polls:
                        membership.keep_membership(consumer, timeout_ms)
                joined = membership.has_joined(consumer)
            finally:  # also after an error such as NoOffsetForPartitionError: the program may seek and go on
                states = membership.states_of(consumer)
                # The positions of these partitions are now the committed ones.
                gone = self._polls.ended(states, records)
                paused = {tp for tp in gone if tp in states and states[tp].paused}
                seen.append((self._polls.number, records, frozenset(states), gone, paused, asked, joined))

        # `seen` has an item even after an error.
        return poll, lambda: self._keep(*seen.pop())

    def _keep(
        self,
        number: int,
        records: Records,
        assigned: frozenset[TopicPartition],
        gone: list[TopicPartition],
        paused: set[TopicPartition],
        asked: int,
        settled: bool,
    ) -> None:
        self._kept = number
        settled = settled and self._subscribed_at <= asked
        self._attend_at = time.monotonic() + _ATTEND_S if settled else 0.0
        self._polled_at = time.time()
        self._assigned = assigned
        if gone:
            self._handed_late |= not self._meanwhile.handed(self._fetched).isdisjoint(gone)
            self._drop(gone)
            # Partitions that were assigned again stay paused if they were.
            self._paused.difference_update({*gone} - paused - (self._meanwhile.paused & assigned))
        for tp, found in records.items():
            # Ignore records that were fetched before a concurrent seek.
            if found and tp in assigned and self._moved.get(tp, 0) <= asked:
                self._fetched.append(Fetched(tp, found))

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._fetched = collections.deque(fetched for fetched in self._fetched if fetched.tp not in gone)
        for tp in gone:
            self._in_hand.pop(tp, None)
            self._meanwhile.forget(tp)

    # -- commits ---------------------------------------------------------------------------------------------------

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
        consumer = self._opened
        if offsets is None:
            self._in_hand = {}
            await self._do(consumer.commit)
            return
        if not isinstance(offsets, Mapping):
            raise TypeError(
                f"offsets must be a dict, such as {{TopicPartition('orders', 0): 7}}, not {offsets!r}"
            )
        given = {as_partition(tp): as_offset(offset) for tp, offset in offsets.items()}
        self._check_assigned(given)
        await self._do(lambda: consumer.commit(given))

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that will be returned.

        Raises:
            ValueError: The partition is not assigned.
        """
        consumer, partition = self._opened, as_partition(partition)
        offset = -1
        if not any(each.tp == partition for each in self._fetched):
            offset = int(await self._do(lambda: consumer.position(partition)))
        # Look again: a poll for a cancelled request may have fetched records meanwhile.
        return next((each.next_offset for each in self._fetched if each.tp == partition), offset)

    async def _offer_positions(self, fate: Callable[[], Fate], lane: Lane) -> tuple[Any, ...]:
        """Return what an atomic batch of this lane needs to commit offsets. All returned records count as finished.

        See `kafkasafe.SafeConsumer._offer_positions`.
        """
        consumer = self._opened
        check_settings(consumer)
        self._in_hand, late, self._handed_late = {}, self._handed_late, False
        handed, kept = self._meanwhile.handed(self._fetched), self._kept
        self._meanwhile.compare_with(self._fetched)

        def offer() -> tuple[Any, ...]:
            if late or self._polls.lost_after(kept, handed):
                consumer._reading.rereading.handed_out_late()
            found: tuple[Any, ...] = consumer._offer_positions(fate, lane)
            return found

        return await self._do(offer)

    def __repr__(self) -> str:
        return f"<aio.SafeConsumer {self._consumer or 'not started'}>"

    # -- the thread ------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Any:
        if self._consumer is None:
            raise UsageError(
                "The consumer is not started: use `async with SafeConsumer(...) as consumer`, or"
                " `await consumer.start()`"
            )
        return self._consumer

    def _check_open(self) -> None:
        # A listener is also called while the consumer closes, and may commit then.
        if self._closing is not None and self._listening is None:
            raise kafka_errors.IllegalStateError("The consumer is closed")
        self._check_loop()

    def _check_asks(self) -> None:
        self._check_open()
        self._check_not_listening("ask for records")

    def _check_not_listening(self, what: str) -> None:
        if self._listening is not None and self._listening.is_own():
            raise UsageError(
                f"A rebalance listener cannot {what}: the call would wait for the listener itself"
            )

    async def _hear(self, method: Callable[[Any], Any], partitions: set[TopicPartition]) -> None:
        """Call a listener. Meanwhile the consumer's thread waits, either in a poll or while it closes the consumer."""
        states = membership.states_of(self._opened)
        gone = self._polls.lost(states)
        self._handed_late |= not self._meanwhile.handed(self._fetched).isdisjoint(gone)
        self._drop(gone)
        self._assigned = frozenset(states)
        self._listening = listening = ListenerCall(f"kafkasafe-aio-{self._opened.client_id}-listener")
        try:
            await listening.call(method, partitions)
        finally:
            self._listening = None

    def _submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return (self._listening or self._worker).submit(job)

    def _loop_of(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise UsageError("Not started")
        return self._loop

    async def _do(self, job: Callable[[], T]) -> T:
        """Execute a job on the thread, after all earlier requests."""
        self._check_open()
        return await self._submit(self._known_to(job))

    def _known_to(self, job: Callable[[], T]) -> Callable[[], T]:
        """Wrap a job, so that it knows which records had been returned to the program when the job was requested."""
        unhanded, kept = first_unhanded(self._in_hand, self._fetched), self._kept

        def work() -> T:
            self._polls.know(unhanded, kept)
            return job()

        return work

    def _later(
        self, job: Callable[[Any], T], moved: Iterable[TopicPartition] = (), *, early: bool = False
    ) -> asyncio.Future[T]:
        """Execute a job on the thread. The job may move the positions of the partitions `moved`.

        Records that were fetched from these partitions are no longer returned to the program. The returned records are
        forgotten only after the job, because kafka-python commits within `assign` and `unsubscribe`.
        """
        self._check_open()
        if early and self._consumer is None:
            self._early.append(job)
            at_start: asyncio.Future[Any] = running_loop().create_future()
            at_start.set_result(None)
            return at_start
        consumer = self._opened
        gone, kept = set(moved), self._kept
        dropped: dict[TopicPartition, int] = {}
        if gone:
            if self._listening is None:  # the poll that waits for a listener fetches only after it
                self._seeks += 1
                self._moved.update(dict.fromkeys(gone, self._seeks))
            for fetched in self._fetched:
                if fetched.tp in gone:
                    dropped.setdefault(fetched.tp, fetched.next_offset)
            self._drop(gone)

        def work() -> T:
            try:
                return job(consumer)
            except BaseException:
                # The job failed, so the positions did not move: fetch the dropped records again.
                membership.fetch_again(consumer, gone, dropped, *self._polls.on_their_way(kept))
                raise
            finally:
                self._polls.forget(gone)

        return self._submit(work)

    def _resubscribed(self) -> None:
        """Hold back fetched records until a later poll: the program may no longer be subscribed to their topics."""
        self._seeks += 1
        self._subscribed_at, self._attend_at = self._seeks, 0.0

    def _all(self) -> set[TopicPartition]:
        """Return the partitions from which records may have been fetched."""
        return {*self._assigned, *(fetched.tp for fetched in self._fetched)}

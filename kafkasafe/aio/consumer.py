"""SafeConsumer for asyncio: aiokafka's interface, on a kafkasafe.SafeConsumer that one thread owns."""

from __future__ import annotations

import asyncio
import collections
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe import consumer as threads
from kafkasafe._core.patience import closing_timeout
from kafkasafe._core.readings import Fate
from kafkasafe._io.batch_offsets import check_settings
from kafkasafe._io.one_process import OfOneProcess
from kafkasafe.aio.fetched import (
    Fetched,
    Handed,
    as_offset,
    as_partition,
    as_partitions,
    fetch_again,
    first_unhanded,
    has_joined,
    has_settled,
    not_in_children,
    polled_without,
)
from kafkasafe.aio.listening import Listening
from kafkasafe.aio.looking import Looking
from kafkasafe.aio.moving import Moving
from kafkasafe.aio.threads import Worker, call_in_thread, end_of, place_of, retrieve
from kafkasafe.config import validate_consumer
from kafkasafe.errors import UsageError
from kafkasafe.options import ConsumerOptions

__all__ = ["SafeConsumer"]

T = TypeVar("T")
Records = Mapping[TopicPartition, list[Any]]
Job = Callable[[], None]

_SLICE_MS: Final = 50
"""How long the thread waits for records before it looks for other work."""
_ATTEND_S: Final = 0.25
"""How long a program may work through what was fetched before the group is looked after again."""
_SETTLE_S: Final = 5.0
"""How long `start` waits for the group at most: its other members may have to ask for records first."""


class SafeConsumer(Moving, Looking, OfOneProcess):
    """`kafkasafe.SafeConsumer` for a program with an event loop; the methods are named as AIOKafkaConsumer's.

    `async with SafeConsumer("orders", ...) as consumer: async for record in consumer: ...`

    **Only what was handed to the program is committed.** Automatic commits, on their interval, before a rebalance and
    at the end, go up to the record that the program has in hand, and not past it before it asks for the next one (or
    leaves the consumer's block without an error). `commit()` commits all that was handed over.

    One thread owns the consumer underneath, and does what is asked for in order. Deserializers, `on_event` and
    `on_divergence` run there, or on the network thread; a rebalance listener on the loop.

    Args:
        topics: To subscribe to.
        loop: Ignored; aiokafka's.
        options: Those of `kafkasafe.SafeConsumer`.

    Raises:
        ConfigError: An option is unknown or has a value that cannot work.
    """

    def __init__(self, *topics: str, loop: Any = None, **options: Unpack[ConsumerOptions]) -> None:  # noqa: ARG002
        if not all(isinstance(topic, str) for topic in topics):
            raise TypeError(f"Topics are names: SafeConsumer('orders', 'audit'), not {topics!r}")
        validate_consumer(dict(options))
        self._topics = topics
        self._reads, self._named = ("topics" if topics else None), frozenset(topics)
        self._options = options
        self._consumer: threads.SafeConsumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._once = asyncio.Lock()
        self._closing: asyncio.Task[None] | None = None
        self._listening: Listening | None = None
        self._early: list[Callable[[Any], object]] = []
        """Asked for before `start`."""
        self._failed: Exception | None = None
        """What the polls of `start` raised; for the next request."""
        self._asking = asyncio.Lock()
        self._polling: asyncio.Future[None] | None = None
        """One at a time: who gives up waiting leaves it to the next."""
        self._attend_at, self._subscribed_at = 0.0, 0
        self._fetched: collections.deque[Fetched] = collections.deque()
        self._in_hand: dict[TopicPartition, int] = {}
        """First offset of what the program got at its last request."""
        self._seeks = 0
        self._moved: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._polled_at = 0.0
        self._kept = 0
        """The last of the thread's fetches that came here."""
        # Of the thread:
        self._unhanded: dict[TopicPartition, int] = {}
        """First offset that is fetched and not handed out, by partition."""
        self._sent: collections.deque[tuple[int, dict[TopicPartition, int]]] = collections.deque()
        """Fetches that may be on their way to the loop: number, first offsets."""
        self._polls = 0
        self._states: dict[TopicPartition, object] = {}
        """kafka-python's states of what is assigned, after the last poll."""

    # -- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect, and join the group, for which it waits 5 s at most, and 1 s for topics that are not there.
        Cancelled, it leaves nothing open. Again, it does nothing.

        Raises:
            KafkaTimeoutError: No broker could be used within `bootstrap_timeout_ms`.
            IllegalStateError: It was closed.
        """
        if self._closing is not None:
            raise kafka_errors.IllegalStateError("The consumer is closed; make a new one")
        self._loop = self._check_loop()
        self._place = place_of(self._loop)
        if self._listening is not None and self._listening.is_own():
            return  # it is waited for
        async with self._once:
            if self._consumer is not None:
                return
            consumer = await call_in_thread("kafkasafe-aio-start", self._made, undo=lambda made: made.close())
            # Not what was fetched: what was handed out. Commits of all kinds ask here.
            consumer._subscription.all_consumed_offsets = Handed(self, consumer)
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
        """Join the group, and find out where to begin, so that nothing that comes after `start` is skipped."""
        consumer = self._opened
        began = time.monotonic()
        end = began + _SETTLE_S
        while not has_settled(consumer, began) and not self._fetched and time.monotonic() < end:
            try:
                await self._ask(frozenset(), _SLICE_MS)
            except Exception as error:
                self._failed = error
                return

    async def stop(self) -> None:
        """As `close()`; aiokafka's name."""
        await self.close()

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # as the producer's
        """Commit what was handed out (with `enable_auto_commit`), leave the group, close. Again, it does nothing.

        Cancelled, it goes on by itself.

        Args:
            timeout: Seconds for the commit and for leaving the group. Default: `request_timeout_ms`.

        Raises:
            ValueError: A negative timeout, or nan. Nothing was closed.
            OSError: A file could not be written. Everything is closed all the same.
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
        """Close. After an exception of the block the record in hand is not committed: it comes again."""
        await self._end(commit=error is None)

    def __del__(self) -> None:
        """Dropped without `close()`: nothing is committed, and its threads end."""
        consumer = getattr(self, "_consumer", None)
        if consumer is not None and self._closing is None:
            self._worker.put(consumer.close)
            self._worker.stop()
            warnings.warn(
                f"Unclosed {self!r}: what it handed out since the last commit comes again. Use `async with`, or"
                " `await consumer.stop()`",
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
        """The next record. Cancelled, it takes none.

        Args:
            partitions: Only of these. Default: of all that are assigned.

        Raises:
            LogDivergedError: See `on_divergence`.
            Exception: As of `kafkasafe.SafeConsumer.poll`.
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
            # What is below, where nothing is to be waited for: once a record.
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
        """What is there, or comes within `timeout_ms`. Cancelled, it takes none.

        Args:
            partitions: Only of these. Default: of all that are assigned.
            timeout_ms: How long to wait while there is nothing.
            max_records: At most. Default: `max_poll_records`.

        Raises:
            Exception: As of `getone`.
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
        """Before what was fetched is handed out: the program may take long with it, and the group hears of it by then.

        Returns:
            Whether it may be handed out. Not while the partitions are being distributed: they may be another member's.
        """
        wait_ms = 0.0
        while self._fetched and time.monotonic() >= self._attend_at:
            if wait_ms and time.monotonic() >= end:
                return False
            await self._ask(frozenset(), wait_ms, fetch=False)
            wait_ms = _SLICE_MS
        return True

    async def _ask(self, wanted: frozenset[TopicPartition], timeout_ms: float, *, fetch: bool = True) -> None:
        """Have the thread poll for a moment. What it finds is kept, whoever is cancelled meanwhile."""
        async with self._asking:
            if self._next(wanted) is not None if fetch else time.monotonic() < self._attend_at:
                return  # another task asked
            consumer = self._opened
            self._check_open()
            failed, self._failed = self._failed, None
            if failed is not None:
                raise failed
            if self._polling is None:
                # Also while a listener is called: records are asked for once that is done, and by this thread alone.
                poll, keep = self._poll(consumer, timeout_ms, fetch)
                self._polling = self._worker.submit(self._known_to(poll), then=keep)
                self._polling.add_done_callback(retrieve)
            await asyncio.wait([polling := self._polling])
            self._polling = None
            polling.result()

    def _poll(self, consumer: Any, timeout_ms: float, fetch: bool) -> tuple[Job, Job]:
        seen: list[Any] = []
        asked = self._seeks
        # Of others there is enough.
        left_out = {each.tp for each in self._fetched} - self._paused

        def poll() -> None:
            records: Records = {}
            joined = False
            try:
                if fetch:
                    records = polled_without(consumer, left_out, self._paused, timeout_ms)
                else:
                    with consumer._polls:
                        consumer._coordinator.poll(timeout_ms=timeout_ms)
                joined = has_joined(consumer)
            finally:  # after NoOffsetForPartitionError the program may seek
                self._polls += 1
                states = dict(consumer._subscription.assignment)
                # Given to another member, or given anew: their positions are those that were committed.
                gone = [tp for tp, state in self._states.items() if states.get(tp) is not state]
                self._forget(gone)
                self._states = states
                if records:
                    first = {tp: found[0].offset for tp, found in records.items()}
                    self._sent.append((self._polls, first))
                    self._unhanded = {**first, **self._unhanded}
                seen.append((self._polls, records, frozenset(states), gone, asked, joined))

        # What is seen is there also after an error.
        return poll, lambda: self._keep(*seen.pop())

    def _keep(
        self,
        number: int,
        records: Records,
        assigned: frozenset[TopicPartition],
        gone: list[TopicPartition],
        asked: int,
        settled: bool,
    ) -> None:
        self._kept = number
        settled = settled and self._subscribed_at <= asked
        self._attend_at = time.monotonic() + _ATTEND_S if settled else 0.0
        self._polled_at = time.time()
        self._assigned = assigned
        if gone:
            self._drop(gone)
            self._paused.difference_update(gone)
        for tp, found in records.items():
            # Not what was fetched before a seek that came meanwhile.
            if found and tp in assigned and self._moved.get(tp, 0) <= asked:
                self._fetched.append(Fetched(tp, found))

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        gone = set(partitions)
        self._fetched = collections.deque(fetched for fetched in self._fetched if fetched.tp not in gone)
        for tp in gone:
            self._in_hand.pop(tp, None)

    # -- commits ---------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, Any] | None = None) -> None:
        """Commit, and wait for the answer. Cancelled meanwhile it may have been committed.

        Args:
            offsets: Next offset to read by partition: a number, (number, metadata) or OffsetAndMetadata. Default: all
                that was handed to the program.

        Raises:
            CommitFailedError: The partitions are another member's by now.
            ValueError: A partition is not assigned (which is an IllegalStateError, too), or an offset is not one.
            Exception: As of `kafkasafe.SafeConsumer.commit`.
        """
        consumer = self._opened
        if offsets is None:
            self._in_hand = {}
            await self._do(consumer.commit)
            return
        if not isinstance(offsets, Mapping):
            raise TypeError(f"offsets: a dict, as {{TopicPartition('orders', 0): 7}}, not {offsets!r}")
        given = {as_partition(tp): as_offset(offset) for tp, offset in offsets.items()}
        self._check_assigned(given)
        await self._do(lambda: consumer.commit(given))

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record that will be handed out.

        Raises:
            ValueError: The partition is not assigned.
        """
        consumer, partition = self._opened, as_partition(partition)
        offset = -1
        if not any(each.tp == partition for each in self._fetched):
            offset = int(await self._do(lambda: consumer.position(partition)))
        # Also of what was fetched meanwhile, for a request that was given up.
        return next((each.next_offset for each in self._fetched if each.tp == partition), offset)

    async def _offer_positions(self, fate: Callable[[], Fate]) -> tuple[Any, ...]:
        """For an atomic batch: what was handed out, which counts as done. See the threaded one's."""
        consumer = self._opened
        check_settings(consumer)
        self._in_hand = {}
        offered: tuple[Any, ...] = await self._do(lambda: consumer._offer_positions(fate))
        return offered

    def __repr__(self) -> str:
        return f"<aio.SafeConsumer {self._consumer or 'not started'}>"

    # -- the thread ------------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> Any:
        if self._consumer is None:
            raise UsageError(
                "Not started: `async with SafeConsumer(...) as consumer`, or `await consumer.start()`"
            )
        return self._consumer

    def _check_open(self) -> None:
        # A listener hears of the end as well, and may commit.
        if self._closing is not None and self._listening is None:
            raise kafka_errors.IllegalStateError("The consumer is closed")
        self._check_loop()

    def _check_asks(self) -> None:
        self._check_open()
        self._check_not_listening("ask for records")

    def _check_not_listening(self, what: str) -> None:
        if self._listening is not None and self._listening.is_own():
            raise UsageError(f"A rebalance listener cannot {what}: that would wait for the listener itself")

    async def _hear(self, method: Callable[[Any], Any], partitions: set[TopicPartition]) -> None:
        """A listener's call. The thread waits for it within a poll, or when it closes the consumer."""
        states = dict(self._opened._subscription.assignment)
        self._drop(tp for tp, state in self._states.items() if states.get(tp) is not state)
        self._assigned = frozenset(states)
        self._listening = listening = Listening(f"kafkasafe-aio-{self._opened.client_id}-listener")
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
        """On the thread, after what was asked for before."""
        self._check_open()
        return await self._submit(self._known_to(job))

    def _known_to(self, job: Callable[[], T]) -> Callable[[], T]:
        """The job, which knows what was handed out when it was asked for."""
        unhanded, kept = first_unhanded(self._in_hand, self._fetched), self._kept

        def work() -> T:
            while self._sent and self._sent[0][0] <= kept:
                self._sent.popleft()
            for _, first in self._sent:
                # Fetched since: the loop did not know of it.
                for tp, offset in first.items():
                    unhanded.setdefault(tp, offset)
            self._unhanded = unhanded
            return job()

        return work

    def _later(
        self, job: Callable[[Any], T], moved: Iterable[TopicPartition] = (), *, early: bool = False
    ) -> asyncio.Future[T]:
        """On the thread as well; the positions of partitions may be moved by it.

        What was fetched of those is not handed out from here on. What was handed out is forgotten only after the job:
        kafka-python commits within `assign` and `unsubscribe`.
        """
        self._check_open()
        if early and self._consumer is None:
            self._early.append(job)
            at_start: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            at_start.set_result(None)
            return at_start
        consumer = self._opened
        gone, kept = set(moved), self._kept
        dropped: dict[TopicPartition, int] = {}
        if gone:
            if self._listening is None:  # the poll that waits for a listener fetches after it
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
                # They are where they were: what was dropped is fetched again.
                ways = [first for number, first in self._sent if number > kept]
                fetch_again(consumer, gone, dropped, *ways)
                raise
            finally:
                self._forget(gone)

        return self._submit(work)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        """On the thread: what was fetched of these is not handed out any more."""
        for tp in partitions:
            for first in (self._unhanded, *(first for _, first in self._sent)):
                first.pop(tp, None)

    def _resubscribed(self) -> None:
        """What was fetched before may not be read any more: it waits for a poll that comes after this."""
        self._seeks += 1
        self._subscribed_at, self._attend_at = self._seeks, 0.0

    def _all(self) -> set[TopicPartition]:
        """Partitions of which something may be fetched."""
        return {*self._assigned, *(fetched.tp for fetched in self._fetched)}

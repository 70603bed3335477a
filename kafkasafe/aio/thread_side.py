"""The thread's side of a consumer: the inner consumer, the thread that owns it, and notes about polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from kafka.structs import TopicPartition

from kafkasafe import consumer as threads
from kafkasafe.aio.polls import HandedOut, PollNotes, PollRequest, PollResult, Seen
from kafkasafe.aio.threads import Worker, call_in_thread
from kafkasafe.delivery.readings import OffsetsFate, ProducerLane
from kafkasafe.errors import UsageError
from kafkasafe.kafkapython import membership
from kafkasafe.options import ConsumerOptions

T = TypeVar("T")

_NAME: Final = "kafkasafe-aio"


class ThreadSide:
    """Owns the inner consumer. The loop calls this object's methods, which queue jobs for the consumer's thread."""

    def __init__(self, topics: tuple[str, ...], options: ConsumerOptions) -> None:
        self._topics, self._options = topics, options
        self._early: list[Callable[[Any], object]] = []
        """Calls that were made before `open`. `open` executes them."""
        self._opened: tuple[threads.SafeConsumer, Worker] | None = None
        self._polls = PollNotes()
        self._dropped = False

    # -- open and close ------------------------------------------------------------------------------------------------

    @property
    def consumer(self) -> Any:
        """The inner consumer, even after it was closed.

        Raises:
            UsageError: `open` was not called.
        """
        return self._both()[0]

    def _both(self) -> tuple[Any, Worker]:
        if self._opened is None:
            raise UsageError(
                "The consumer is not started: use `async with SafeConsumer(...) as consumer`, or"
                " `await consumer.start()`"
            )
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether there is an inner consumer; also true after `close`."""
        return self._opened is not None

    @property
    def is_dropped(self) -> bool:
        """Whether the program has dropped the consumer without closing it."""
        return self._dropped

    async def open(self) -> None:
        """Make the inner consumer. If the call is cancelled, nothing stays open."""
        consumer = await call_in_thread(f"{_NAME}-start", self._made, undo=lambda made: made.close())
        # All commits take their offsets from a `PollNotes`, which counts only records that were returned to the
        # program, not records that were only fetched. Do not reuse an earlier `PollNotes`, because the consumer of a
        # cancelled `start` may still use it.
        polls = self._polls = PollNotes()
        membership.commit_from(consumer, lambda: self._committable(consumer, polls))
        threads.objects_of(consumer).parts.hand_out_later(lambda: self._unhanded(polls))
        self._opened = consumer, Worker(f"{_NAME}-{consumer.client_id}")

    def _made(self) -> threads.SafeConsumer:
        consumer = threads.SafeConsumer(*self._topics, **self._options)
        try:
            for job in self._early:
                job(consumer)
        except BaseException:
            consumer.close()
            raise
        return consumer

    async def close(self, timeout: float | None, seen: Seen) -> None:  # noqa: ASYNC109  # as the consumer's
        """Close the inner consumer, and end the thread."""
        consumer, worker = self._both()
        try:
            await worker.run(self.knowing(seen, lambda: consumer.close(timeout=timeout)))
        finally:
            worker.stop()

    def undo_open(self) -> None:
        """Close the inner consumer without waiting for it. `open` may be called again."""
        consumer, worker = self._both()
        self._opened = None
        worker.put(consumer.close)
        worker.stop()

    def drop(self) -> None:
        """Close the inner consumer without waiting for it, and without a commit. The garbage collector may call this
        method.
        """
        consumer, worker = self._both()
        self._dropped = True
        worker.put(consumer.close)
        worker.stop()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def at_start(self, job: Callable[[Any], object]) -> None:
        """Let `open` call `job(consumer)`."""
        self._early.append(job)

    def submit(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Execute a job on the thread, after all earlier jobs. The returned future gets the result."""
        return self._both()[1].submit(job)

    def knowing(self, seen: Seen, job: Callable[[], T]) -> Callable[[], T]:
        """Return a job that first stores `seen`, and then executes `job`. `seen` is the state of the fetched records
        when the program made its request.
        """
        polls = self._polls

        def work() -> T:
            polls.know(seen)
            return job()

        return work

    def poll(
        self,
        request: PollRequest,
        seen: Seen,
        timeout_ms: float,
        *,
        fetch: bool,
        keep: Callable[[PollRequest, PollResult], None],
    ) -> asyncio.Future[None]:
        """Poll on the thread.

        Args:
            request: The input of the poll.
            seen: Which fetched records have arrived on the loop, and which records the program has finished.
            timeout_ms: How long to wait for records.
            fetch: Whether to fetch records, or only to serve the group membership.
            keep: Called on the loop with the result, before the returned future is resolved, even if the poll raises an
                error.
        """
        consumer, worker = self._both()
        objects, polls = threads.objects_of(consumer), self._polls
        results: list[PollResult] = []

        def poll() -> None:
            records: Mapping[TopicPartition, list[Any]] = {}
            joined = False
            try:
                if fetch:
                    records = membership.polled_without(
                        consumer, request.left_out, request.paused, timeout_ms
                    )
                else:
                    with objects.polls:
                        membership.keep_membership(consumer, timeout_ms)
                joined = membership.has_joined(consumer)
            finally:
                # Store the result even after an error, because the program may continue, for example with a seek after
                # a NoOffsetForPartitionError.
                states = membership.states_of(consumer)
                gone = self._leave_revoked(consumer, polls, states)
                # If a partition in `gone` has been assigned again, it now continues from the committed offset.
                polls.ended(states, gone, records)
                paused = frozenset(tp for tp in gone if tp in states and states[tp].paused)
                number = polls.number
                results.append(PollResult(number, records, frozenset(states), gone, paused, joined))

        # `results` has an item even after an error.
        return worker.submit(self.knowing(seen, poll), then=lambda: keep(request, results.pop()))

    def moving(
        self,
        job: Callable[[Any], T],
        partitions: Collection[TopicPartition],
        dropped: Mapping[TopicPartition, int],
        kept: int,
    ) -> Callable[[], T]:
        """Return a function that calls `job(consumer)`. The job moves the positions of these partitions.

        The job may be `assign` or `unsubscribe`, within which kafka-python commits. The commit needs to know which
        records of the partitions the program has received, so `PollNotes` forgets the partitions only after the job.

        Args:
            job: The job.
            partitions: The partitions that the job moves.
            dropped: By partition, the first offset of the records that the loop dropped when the job was requested.
            kept: Number of the latest poll whose records had arrived on the loop.
        """
        consumer, polls = self.consumer, self._polls

        def work() -> T:
            try:
                return job(consumer)
            except BaseException:
                # The job failed, so the positions did not move: fetch the dropped records again.
                membership.fetch_again(consumer, partitions, dropped, *polls.on_their_way(kept))
                raise
            finally:
                polls.stop(partitions, dropped, kept)
                self._leave_revoked(consumer, polls, membership.states_of(consumer))
                polls.forget(partitions)

        return work

    def offering(
        self, fate: Callable[[], OffsetsFate], lane: ProducerLane, handed: HandedOut
    ) -> Callable[[], tuple[Any, ...]]:
        """Return a job that collects the data with which an atomic batch of this lane (one producer's log in the spool)
        can commit offsets.

        See `kafkasafe._consuming.rereading.Rereading.offer`.
        """
        consumer, polls = self.consumer, self._polls
        rereading = threads.objects_of(consumer).rereading

        def offer() -> tuple[Any, ...]:
            if handed.late or polls.lost_after(handed.kept, handed.partitions):
                rereading.handed_out_late()
            return rereading.offer(fate, lane, consumer.group_metadata)

        return offer

    # -- knowledge -----------------------------------------------------------------------------------------------------

    @property
    def polls(self) -> int:
        """Number of polls so far."""
        return self._polls.number

    def subscription(self) -> set[str]:
        """Return the topics of the inner consumer's subscription; empty without an inner consumer."""
        return set() if self._opened is None else set(self.consumer.subscription() or ())

    def lost(self) -> tuple[list[TopicPartition], frozenset[TopicPartition]]:
        """Return the partitions that were revoked since the last poll, and all assigned partitions.

        Called on the loop while the thread waits for a rebalance listener.
        """
        states = membership.states_of(self.consumer)
        return self._polls.lost(states), frozenset(states)

    def _committable(self, consumer: Any, polls: PollNotes) -> dict[TopicPartition, Any]:
        """Return the offsets to commit: for each partition, the offset of the first record that was not returned to the
        program.

        The result is empty if the program has dropped the consumer.

        Called on the consumer's thread or the network thread.
        """
        if self._dropped:
            return {}
        found: dict[TopicPartition, Any] = threads.objects_of(consumer).commits.committable(polls.unhanded)
        return found

    @staticmethod
    def _leave_revoked(
        consumer: Any, polls: PollNotes, states: Mapping[TopicPartition, object]
    ) -> list[TopicPartition]:
        """Return the revoked partitions. For each revoked partition, let the consumer store the offset after the last
        record that the program got.

        Call this method before `polls` forgets which records of the revoked partitions the program did not receive. The
        consumer itself examines its partitions only in a fetch, which may be too late.
        """
        gone = polls.lost(states)
        if gone:
            threads.objects_of(consumer).parts.present()
        return gone

    def _unhanded(self, polls: PollNotes) -> Mapping[TopicPartition, int]:
        """Return, by partition, the offset of the first record that was fetched but not returned to the program.

        Called on the consumer's thread.
        """
        return {} if self._dropped else polls.unhanded

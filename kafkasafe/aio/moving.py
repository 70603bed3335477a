"""Methods of SafeConsumer that choose partitions and positions: subscribe, assign, seek, pause."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe.aio.arguments import as_partition, as_partitions
from kafkasafe.aio.fetched import UnassignedError
from kafkasafe.aio.listeners import Listener, as_listener
from kafkasafe.aio.meanwhile import Meanwhile
from kafkasafe.consumer import check_offset
from kafkasafe.kafkapython.membership import loop_of

if TYPE_CHECKING:
    from kafkasafe.aio.consumer import SafeConsumer

__all__ = ["Moving"]

T = TypeVar("T")


class Moving(ABC):
    """Part of `SafeConsumer`: subscriptions, positions and pauses."""

    _consumer: Any
    _assigned: frozenset[TopicPartition]
    _reads: str | None
    """"topics", "pattern" or "partitions"; None if nothing is chosen."""
    _named: frozenset[str]
    _paused: set[TopicPartition]
    _meanwhile: Meanwhile

    @abstractmethod
    def _later(
        self, job: Callable[[Any], T], moved: Iterable[TopicPartition] = (), *, early: bool = False
    ) -> asyncio.Future[T]: ...

    @abstractmethod
    async def _do(self, job: Callable[[], T]) -> T: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _resubscribed(self) -> None: ...

    @abstractmethod
    def _all(self) -> set[TopicPartition]: ...

    @abstractmethod
    def _loop_of(self) -> asyncio.AbstractEventLoop: ...

    @property
    @abstractmethod
    def _opened(self) -> Any: ...

    def assign(self, partitions: Iterable[TopicPartition]) -> asyncio.Future[None]:
        """Read these partitions, without an assignment by the group. May be called before `start`.

        Raises:
            IllegalStateError: The consumer is subscribed to topics: call `unsubscribe` first.
        """
        wanted = as_partitions(partitions)
        self._check_open()
        self._choose("partitions")
        if not wanted:
            self._reads = None
        # Partitions that stay assigned keep their positions and their fetched records.
        moved, self._assigned = self._all() - wanted, wanted
        return self._later(lambda consumer: consumer.assign(list(wanted)), moved, early=True)

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None
    ) -> asyncio.Future[None]:
        """Read topics as a member of the group. May be called before `start`.

        Args:
            topics: Topic names.
            pattern: Instead of names: a regular expression that matches the beginning of topic names.
            listener: Its methods `on_partitions_revoked` and `on_partitions_assigned` are called on the loop, and
                awaited if they are coroutines. They may use this consumer, but must not ask it for records.

        Raises:
            TypeError: Neither topics nor a pattern is given, or both are; or the listener lacks these methods.
            ValueError: The pattern is not a regular expression.
            IllegalStateError: The consumer used `assign`, or it subscribed in the other way (names or pattern): call
                `unsubscribe` first.
        """
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise TypeError(f"topics must be a list of names, such as ['orders'], not {topics!r}")
        names = list(topics)
        if bool(names) is bool(pattern):
            raise TypeError("subscribe: give either topics or a pattern")
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"pattern: {pattern!r} is not a regular expression: {error}") from error
        given = as_listener(listener)
        self._check_open()
        self._choose("topics" if names else "pattern")
        self._named = frozenset(names)

        def subscribe(consumer: Any) -> None:
            heard = None
            # A consumer without a group never loses partitions, so it needs no listener.
            if given is not None and consumer.config["group_id"] is not None:
                network = loop_of(consumer)
                heard = Listener(cast("SafeConsumer", self), given, self._loop_of(), network)
            consumer.subscribe(names, pattern, heard)

        later = self._later(subscribe, early=True)
        self._resubscribed()
        return later

    def unsubscribe(self) -> asyncio.Future[None]:
        """Stop reading, and leave the group. May be called before `start`."""
        self._check_open()
        self._reads, self._named = None, frozenset()
        moved, self._assigned = self._all(), frozenset[TopicPartition]()
        return self._later(lambda consumer: consumer.unsubscribe(), moved, early=True)

    def assignment(self) -> set[TopicPartition]:
        """Return the assigned partitions, as of the last request for records."""
        return set(self._assigned)

    def subscription(self) -> set[str]:
        """Return the subscribed topics; with a pattern, the matching topics found so far."""
        if self._reads == "pattern" and self._consumer is not None:
            return set(self._consumer.subscription() or ())
        return set(self._named)

    def _choose(self, how: str) -> None:
        if self._reads not in {None, how}:
            raise kafka_errors.IllegalStateError(
                f"The consumer reads {self._reads}: topics, a pattern and partitions exclude each other; call"
                " unsubscribe() first"
            )
        self._reads = how

    def seek(self, partition: TopicPartition, offset: int) -> asyncio.Future[None]:
        """Continue from an offset. This takes effect before the next record. Await the result to get errors.

        Raises:
            ValueError: The partition is not assigned (this error is an IllegalStateError, too), or the offset is
                invalid.
        """
        partition = as_partition(partition)
        check_offset(offset)
        if self._consumer is not None:
            self._check_assigned([partition])
        return self._later(lambda consumer: consumer.seek(partition, offset), [partition])

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Continue from the first offset of these partitions, or of all assigned ones.

        Raises:
            ValueError: As for `seek`; then no position is moved.
        """
        moved = self._check_assigned(as_partitions(partitions)) or self._assigned
        await self._later(lambda consumer: consumer.seek_to_beginning(*moved), moved)
        return True

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Continue from the end of these partitions, or of all assigned ones.

        Raises:
            ValueError: As for `seek_to_beginning`.
        """
        moved = self._check_assigned(as_partitions(partitions)) or self._assigned
        await self._later(lambda consumer: consumer.seek_to_end(*moved), moved)
        return True

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Continue from the committed offsets of these partitions, or of all assigned ones.

        A partition without a committed offset keeps its position.

        Raises:
            ValueError: As for `seek_to_beginning`.
        """
        consumer = self._opened
        asked = self._check_assigned(as_partitions(partitions)) or self._assigned
        found = await self._do(lambda: {tp: consumer.committed(tp) for tp in asked})
        sought = {tp: offset for tp, offset in found.items() if offset is not None}

        def seek(consumer: Any) -> None:
            for tp, offset in sought.items():
                consumer.seek(tp, offset)

        # Records fetched from partitions that do not move are still returned to the program.
        await self._later(seek, sought)
        return found

    def pause(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Return no records of these partitions until `resume`, or until they are revoked and assigned again.

        Raises:
            ValueError: A partition is not assigned (this error is an IllegalStateError, too).
        """
        given = self._check_assigned(as_partitions(partitions))
        self._check_open()
        self._paused.update(given)
        self._meanwhile.paused.update(given)
        return self._later(lambda consumer: consumer.pause(*given))

    def resume(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Return records of these partitions again.

        Raises:
            ValueError: As for `pause`.
        """
        given = self._check_assigned(as_partitions(partitions))
        self._check_open()
        self._paused.difference_update(given)
        return self._later(lambda consumer: consumer.resume(*given))

    def paused(self) -> set[TopicPartition]:
        """Return the paused partitions."""
        return set(self._paused)

    def _check_assigned(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        for partition in partitions:
            if partition not in self._assigned:
                raise UnassignedError(
                    f"Unassigned partition {partition}. Assigned partitions, as of the last request for records:"
                    f" {sorted(self._assigned)}"
                )
        return partitions

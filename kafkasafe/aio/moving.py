"""What a program has a consumer read, from where, and what not for the moment."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe.aio.fetched import UnassignedError, as_partition, as_partitions
from kafkasafe.aio.listening import Listener, as_listener
from kafkasafe.consumer import check_offset

if TYPE_CHECKING:
    from kafkasafe.aio.consumer import SafeConsumer

__all__ = ["Moving"]

T = TypeVar("T")


class Moving(ABC):
    """Part of `SafeConsumer`."""

    _consumer: Any
    _assigned: frozenset[TopicPartition]
    _reads: str | None
    """topics, pattern or partitions."""
    _named: frozenset[str]
    _paused: set[TopicPartition]

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
        """Read these partitions, without a group's assignment. May come before `start`.

        Raises:
            IllegalStateError: It is subscribed to topics: `unsubscribe` first.
        """
        wanted = as_partitions(partitions)
        self._check_open()
        self._choose("partitions")
        if not wanted:
            self._reads = None
        # The others keep their positions, and what was fetched of them.
        moved, self._assigned = self._all() - wanted, wanted
        return self._later(lambda consumer: consumer.assign(list(wanted)), moved, early=True)

    def subscribe(
        self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None
    ) -> asyncio.Future[None]:
        """Read topics, as one of the group. May come before `start`.

        Args:
            topics: Names.
            pattern: Instead of names: a regular expression that they begin with.
            listener: Its methods `on_partitions_revoked` and `on_partitions_assigned` are called on the loop, and
                awaited where they are coroutines. They may use this consumer, but not ask it for records.

        Raises:
            TypeError: Neither topics nor a pattern, or both; a listener without these methods.
            ValueError: No regular expression.
            IllegalStateError: It reads what `assign` gave it, or subscribed in the other way: `unsubscribe` first.
        """
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise TypeError(f"topics: a list of names, as ['orders'], not {topics!r}")
        names = list(topics)
        if bool(names) is bool(pattern):
            raise TypeError("subscribe: either topics or a pattern")
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"pattern: {pattern!r} is no regular expression: {error}") from error
        given = as_listener(listener)
        self._check_open()
        self._choose("topics" if names else "pattern")
        self._named = frozenset(names)

        def subscribe(consumer: Any) -> None:
            heard = None
            # Nobody takes partitions away from a consumer without a group.
            if given is not None and consumer.config["group_id"] is not None:
                network = consumer._coordinator._net
                heard = Listener(cast("SafeConsumer", self), given, self._loop_of(), network)
            consumer.subscribe(names, pattern, heard)

        later = self._later(subscribe, early=True)
        self._resubscribed()
        return later

    def unsubscribe(self) -> asyncio.Future[None]:
        """Read nothing any more, and leave the group. May come before `start`."""
        self._check_open()
        self._reads, self._named = None, frozenset()
        moved, self._assigned = self._all(), frozenset[TopicPartition]()
        return self._later(lambda consumer: consumer.unsubscribe(), moved, early=True)

    def assignment(self) -> set[TopicPartition]:
        """Partitions that are assigned, as of the last request for records."""
        return set(self._assigned)

    def subscription(self) -> set[str]:
        """Topics that are subscribed to; with a pattern, those that were found."""
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
        """Go on from an offset. Takes effect before the next record; may be awaited, for its error.

        Raises:
            ValueError: The partition is not assigned (which is an IllegalStateError, too), or the offset is not one.
        """
        partition = as_partition(partition)
        check_offset(offset)
        if self._consumer is not None:
            self._check_assigned([partition])
        return self._later(lambda consumer: consumer.seek(partition, offset), [partition])

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Go on from the first offset of these, or of all that are assigned.

        Raises:
            ValueError: As of `seek`; then none of them is moved.
        """
        moved = self._check_assigned(as_partitions(partitions)) or self._assigned
        await self._later(lambda consumer: consumer.seek_to_beginning(*moved), moved)
        return True

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Go on with what comes from now on.

        Raises:
            ValueError: As of `seek_to_beginning`.
        """
        moved = self._check_assigned(as_partitions(partitions)) or self._assigned
        await self._later(lambda consumer: consumer.seek_to_end(*moved), moved)
        return True

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Go on from the committed offsets of these, or of all that are assigned; where there is none it stays.

        Raises:
            ValueError: As of `seek_to_beginning`.
        """
        consumer = self._opened
        asked = self._check_assigned(as_partitions(partitions)) or self._assigned
        found = await self._do(lambda: {tp: consumer.committed(tp) for tp in asked})
        sought = {tp: offset for tp, offset in found.items() if offset is not None}

        def seek(consumer: Any) -> None:
            for tp, offset in sought.items():
                consumer.seek(tp, offset)

        # What was fetched of the others is still to be handed out.
        await self._later(seek, sought)
        return found

    def pause(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Hand out nothing of these until `resume`, or until they are given to this consumer anew.

        Raises:
            ValueError: One is not assigned (which is an IllegalStateError, too).
        """
        given = self._check_assigned(as_partitions(partitions))
        self._check_open()
        self._paused.update(given)
        return self._later(lambda consumer: consumer.pause(*given))

    def resume(self, *partitions: TopicPartition) -> asyncio.Future[None]:
        """Hand out records of these again.

        Raises:
            ValueError: As of `pause`.
        """
        given = self._check_assigned(as_partitions(partitions))
        self._check_open()
        self._paused.difference_update(given)
        return self._later(lambda consumer: consumer.resume(*given))

    def paused(self) -> set[TopicPartition]:
        """Those that are paused."""
        return set(self._paused)

    def _check_assigned(self, partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        for partition in partitions:
            if partition not in self._assigned:
                raise UnassignedError(
                    f"Unassigned partition {partition}. Assigned are, as of the last request for records:"
                    f" {sorted(self._assigned)}"
                )
        return partitions

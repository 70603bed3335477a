"""The choice of what a consumer reads: topics, a pattern or partitions."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition
from kafka.util import ensure_valid_topic_name

from kafkasafe.aio.lifecycle import ConsumerLifecycle
from kafkasafe.aio.listeners import Listener, Rebalances, as_listener
from kafkasafe.aio.record_queue import RecordQueue
from kafkasafe.aio.thread_calls import ThreadCalls
from kafkasafe.kafkapython.membership import loop_of


class Selection:
    """What the consumer reads: the program chooses either topics, or a pattern, or partitions.

    `SafeConsumer` describes the methods.

    Args:
        topics: Topics of the consumer's first subscription.

    Raises:
        ValueError: A topic cannot have such a name.
    """

    def __init__(
        self,
        topics: tuple[str, ...],
        records: RecordQueue,
        rebalances: Rebalances,
        lifecycle: ConsumerLifecycle,
        calls: ThreadCalls,
    ) -> None:
        _check_topics(topics)
        self._records, self._rebalances = records, rebalances
        self._lifecycle, self._calls = lifecycle, calls
        self._reads: str | None = "topics" if topics else None
        """"topics", "pattern" or "partitions"; None if nothing is chosen."""
        self._topics = frozenset(topics)

    @property
    def topics(self) -> frozenset[str] | None:
        """The topics that the program has named; None if the program has chosen a pattern."""
        return None if self._reads == "pattern" else self._topics

    def assign(self, wanted: frozenset[TopicPartition]) -> asyncio.Future[None]:
        _check_topics(tp.topic for tp in wanted)
        self._lifecycle.check_open()
        self._choose("partitions")
        if not wanted:
            self._reads = None
        moved = self._records.assign(wanted)
        return self._calls.move_or_begin(lambda consumer: consumer.assign(list(wanted)), moved)

    def subscribe(self, topics: Any, pattern: str | None, listener: Any) -> asyncio.Future[None]:
        if isinstance(topics, str) or not isinstance(topics, Iterable):
            raise TypeError(f"topics must be a list of names, such as ['orders'], not {topics!r}")
        names = list(topics)
        if bool(names) is bool(pattern):
            raise TypeError("subscribe: give either topics or a pattern")
        _check_topics(names)
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"pattern: {pattern!r} is not a regular expression: {error}") from error
        given = as_listener(listener)
        self._lifecycle.check_open()
        self._choose("topics" if names else "pattern")
        self._topics = frozenset(names)

        def subscribe(consumer: Any) -> None:
            heard = None
            # A consumer without a group never loses partitions, so it needs no listener.
            if given is not None and consumer.config["group_id"] is not None:
                heard = Listener(self._rebalances, given, self._lifecycle.loop, loop_of(consumer))
            consumer.subscribe(names, pattern, heard)

        later = self._calls.move_or_begin(subscribe)
        self._records.subscribe()
        return later

    def unsubscribe(self) -> asyncio.Future[None]:
        self._lifecycle.check_open()
        self._reads, self._topics = None, frozenset()
        moved = self._records.assign(frozenset())
        return self._calls.move_or_begin(lambda consumer: consumer.unsubscribe(), moved)

    def _choose(self, how: str) -> None:
        if self._reads not in {None, how}:
            raise kafka_errors.IllegalStateError(
                f"The consumer reads {self._reads}: topics, a pattern and partitions exclude each other; call"
                " unsubscribe() first"
            )
        self._reads = how


def _check_topics(names: Iterable[Any]) -> None:
    """Check topic names as KafkaConsumer does, so that a wrong name raises an error here, not later in `start`.

    Raises:
        TypeError: A name is not a string.
        ValueError: A topic cannot have such a name.
    """
    for name in names:
        ensure_valid_topic_name(name)

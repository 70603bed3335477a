"""A virtual client's metadata about topics and leaders, and how it requests them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace as Message
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
from kafka.util import ensure_valid_topic_name

from kafkasafe.cluster.api import (
    Broker,
    Failure,
    MetadataRefreshed,
    Reply,
    TopicInfo,
)
from kafkasafe.cluster.leaders import check_metadata
from kafkasafe.cluster.terms import (
    LEADERLESS_POLL_MAX_S,
    METADATA_PATIENCE_S,
    MISSING_TOPIC_POLL_MAX_S,
    SILENCE_S,
    UNKNOWN_TOPIC,
    TopicPartition,
    safely,
)
from kafkasafe.testing.fake.asking import Fields
from kafkasafe.testing.fake.virtual_links import Link, Links, namespace

__all__ = ["Metadata"]


class Metadata(Links):
    """A client's links, and the metadata that say which broker leads."""

    # -- metadata ----------------------------------------------------------------------------------------------------

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        """See `Cluster`."""
        self._listeners.append(callback)

    def create_only(self, may_create: Callable[[str], bool]) -> None:
        """See `Cluster`."""
        self._may_create = may_create

    def topic(self, name: str) -> TopicInfo | None:
        """See `Cluster`."""
        return self._leaders.topics.get(name)

    def topics(self) -> Sequence[str]:
        """See `Cluster`."""
        return [name for name, info in self._leaders.topics.items() if info.partitions]

    def brokers(self) -> Sequence[Broker]:
        """See `Cluster`."""
        return list(self._brokers)

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        """See `Cluster`."""
        try:
            for topic in topics:
                ensure_valid_topic_name(topic)
        except (TypeError, ValueError) as error:
            safely(reply, Failure(kafka_errors.InvalidTopicError(str(error)), sent=False))
            return

        def run() -> None:
            self._waiters.append(reply)
            self._watched.update(topics)
            self._want_metadata(urgent=not self._asked.issuperset(topics))

        self._do(run, lambda error: safely(reply, Failure(error, sent=False)))

    def unwatch(self, topic: str) -> None:
        """See `Cluster`."""
        self._watched.discard(topic)
        self._asked.discard(topic)
        self._leaders.forget(topic)

    def _want_metadata(self, *, urgent: bool = False) -> None:
        if self._closed or not self._started:
            return
        self._wanted = True
        if self._attempt is None:
            now = self._time.monotonic()
            self._refresh_no_later(now if urgent else max(now, self._attempted_s + self._retry_s))

    def _refresh_no_later(self, at_s: float) -> None:
        if self._refresh_timer is not None:
            if self._refresh_s <= at_s:
                return
            self._refresh_timer.cancel()
        self._refresh_s = at_s
        self._refresh_timer = self._time.call_at(at_s, self._refresh)

    def _refresh(self) -> None:
        self._refresh_timer = None
        if self._attempt is not None or self._closed:
            return
        now = self._time.monotonic()
        links = [self._link(node) for node in self._cluster.brokers]
        able = [link for link in links if link.not_before_s <= now or link.ready]
        self._wanted = True
        if not able:
            self._refresh_no_later(min(link.not_before_s for link in links))
            return
        self._wanted = False
        self._attempted_s = now
        link = min(able, key=self._preference)
        token = self._attempt = object()
        version = self._version("Metadata")
        waiters, self._waiters = self._waiters, []
        parked, self._parked = self._parked, []
        self._asked = set(self._watched)
        topics = [Message(name=name, topic_id=UUID(int=0)) for name in sorted(self._watched)]
        message = Message(topics=topics, allow_auto_topic_creation=False)

        def over() -> bool:
            if self._attempt is not token:
                return True
            self._attempt = None
            return False

        def succeed(fields: Fields) -> None:
            if over():
                return
            answer = namespace(fields)
            stranger = self._pin.stranger(answer.cluster_id)
            if stranger is not None:
                self._not_refreshed(Failure(stranger, sent=True), waiters, parked)
                self._lost(link, stranger)
                return
            try:
                result = self._parse_metadata(answer, version)
            except Exception as error:
                self._not_refreshed(Failure(error, sent=True), waiters, parked)
                return
            self._refreshed(link, result, waiters, parked)

        def fail(error: BaseException, sent: bool) -> None:
            if not over():
                self._not_refreshed(Failure(error, sent), waiters, parked)

        def slow() -> None:
            link.suspect_until_s = self._time.monotonic() + 2 * SILENCE_S
            fail(kafka_errors.KafkaTimeoutError(f"Node {link.node} did not answer in time"), True)

        self._time.call_later(METADATA_PATIENCE_S, slow)
        self._call(link, "Metadata", message, succeed, fail, most=version)

    def _not_refreshed(self, failure: Failure, waiters: list[Any], parked: list[Any]) -> None:
        later, self._parked = self._parked, []
        if not any(link.ready for link in self._links.values()):
            self._connected = False
            self._last_error = failure.error
        for reply in waiters:
            safely(reply, failure)
        for _, fail in (*parked, *later):
            fail(failure.error)
        self._want_metadata()

    def _refreshed(
        self, link: Link, result: MetadataRefreshed, waiters: list[Any], parked: list[Any]
    ) -> None:
        later, self._parked = self._parked, []
        self._connected, self._last_error, self._known = True, None, True
        for reply in waiters:
            safely(reply, result)
        for route, _ in parked:
            route(True)
        for route, _ in later:
            route(False)
        self._drop_moved()
        for callback in list(self._listeners):
            safely(callback, result)
        self._create_missing(link, result)
        self._plan_refresh()

    def _parse_metadata(self, answer: Any, version: int) -> MetadataRefreshed:
        check_metadata(answer)
        cluster_id = self._pin.answered(answer.cluster_id)
        self._brokers = [Broker(one.node_id, one.host, one.port) for one in answer.brokers]
        told = self._leaders.learn(answer.topics, self._watched, version=version)
        return MetadataRefreshed(cluster_id, tuple(one.node_id for one in self._brokers), told)

    def _create_missing(self, link: Link, result: MetadataRefreshed) -> None:
        missing = [
            name
            for name, info in result.topics.items()
            if info.error_code == UNKNOWN_TOPIC and self._auto_create and self._may_create(name)
        ]
        if missing:
            topics = [Message(name=name, topic_id=UUID(int=0)) for name in sorted(missing)]
            message = Message(topics=topics, allow_auto_topic_creation=True)
            again = self._want_metadata
            self._call(link, "Metadata", message, lambda _: again(), lambda *_: again())

    def _plan_refresh(self) -> None:
        now = self._time.monotonic()
        infos = self._leaders.topics.values()
        leaderless = any(part.leader < 0 for info in infos for part in info.partitions.values())
        self._refresh_no_later(now + self._max_age_s)
        if leaderless or any(info.error_code for info in infos):
            delay_s = self._retry_s * 2.0 ** min(self._bad_refreshes, 20)
            self._bad_refreshes += 1
            self._refresh_no_later(
                now + min(delay_s, LEADERLESS_POLL_MAX_S if leaderless else MISSING_TOPIC_POLL_MAX_S)
            )
        else:
            self._bad_refreshes = 0
        if self._wanted or self._waiters:
            self._want_metadata(urgent=not self._asked.issuperset(self._watched))

    def _watch(self, topic: str) -> None:
        new = topic not in self._watched
        self._watched.add(topic)
        self._want_metadata(urgent=new)

    def _learn_broker(self, endpoint: Fields) -> None:
        if endpoint["node_id"] not in {broker.node_id for broker in self._brokers}:
            self._brokers.append(Broker(endpoint["node_id"], endpoint["host"], endpoint["port"]))

    def _take_hint(self, target: TopicPartition, hint: tuple[int, int]) -> bool:
        return self._leaders.take_hint(target, hint, {broker.node_id for broker in self._brokers})

    def _drop_moved(self) -> None:
        """Fails requests that wait at a node whose partition has another leader, and later ones of that partition."""
        for link in list(self._links.values()):
            moved: set[TopicPartition] = set()
            waiting, link.waiting = link.waiting, deque()
            for call in waiting:
                if any(
                    target in moved or self._leaders.leader(*target) != link.node for target in call.targets
                ):
                    moved.update(call.targets)
                    text = f"Node {link.node} is not the leader any more"
                    call.give_up(kafka_errors.NotLeaderForPartitionError(text), sent=False)
                else:
                    link.waiting.append(call)
            silent = self._time.monotonic() - link.heard_s > SILENCE_S and link.in_flight
            leaders = [self._leaders.leader(*target) for call in link.in_flight for target in call.targets]
            if silent and any(isinstance(one, int) and one != link.node for one in leaders):
                text = f"Node {link.node} is silent and leads no more"
                self._lost(link, kafka_errors.KafkaConnectionError(text))

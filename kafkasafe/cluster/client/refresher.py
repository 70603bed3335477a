"""Sends metadata requests: chooses the topics and the broker, and applies the answer.

A request that cannot be routed yet is "parked" here until the next metadata answer. The callbacks of callers that asked
for metadata are also kept here until the next metadata answer.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Failure, MetadataRefreshed, Reply, TopicInfo
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.cluster.client.calls import QuestionCall
from kafkasafe.cluster.client.link import BrokerLink
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.reachability import Reachability
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.client.watched_topics import WatchedTopics, invalid_topic
from kafkasafe.cluster.coordinators import metadata_question
from kafkasafe.cluster.leaders import Leaders, check_metadata
from kafkasafe.cluster.network import Network
from kafkasafe.cluster.pin import ClusterPin
from kafkasafe.cluster.terms import (
    LEADERLESS_POLL_MAX_S,
    METADATA_PATIENCE_S,
    MISSING_TOPIC_POLL_MAX_S,
    not_sent,
    safely,
)


@dataclass(frozen=True, slots=True)
class _ParkedRequest:
    """A request that can be routed only after the next metadata answer.

    Attributes:
        route: Routes the request again. The argument of `route` says whether this is the last try.
        fail: Called with the reason, instead of `route`, if the request cannot be sent.
    """

    route: Callable[[bool], None]
    fail: Callable[[BaseException], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What waits for one metadata request: callbacks (`reply`) and parked requests.

    Attributes:
        replies: The `reply` of each caller that asked for metadata.
        parked: Requests that could not be routed.
    """

    replies: list[Reply[Any]] = field(default_factory=list)
    parked: list[_ParkedRequest] = field(default_factory=list)


class _AwaitingMetadata:
    """What waits for the next metadata request: callbacks (`reply`) and parked requests."""

    def __init__(self) -> None:
        self._replies: list[Reply[Any]] = []
        self._replies_of_new: list[Reply[Any]] = []
        self._parked: list[_ParkedRequest] = []

    def add(self, reply: Reply[Any], *, of_new: bool) -> None:
        (self._replies_of_new if of_new else self._replies).append(reply)

    def park(self, request: _ParkedRequest) -> None:
        self._parked.append(request)

    def take_parked(self) -> list[_ParkedRequest]:
        parked, self._parked = self._parked, []
        return parked

    def take(self, *, of_new: bool) -> _Waiting:
        """Removes and returns what waits for the metadata request that begins now. If the request asks only about new
        topics, takes only the callbacks that wait for new topics.
        """
        replies, self._replies_of_new = self._replies_of_new, []
        if of_new:
            return _Waiting(replies)
        replies, self._replies = self._replies + replies, []
        return _Waiting(replies, self.take_parked())


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """A metadata request in progress.

    Attributes:
        of_new: Whether the request asks only about topics that no earlier request has named.
        waiting: The callbacks and the parked requests that wait for this metadata request.
    """

    link: BrokerLink
    of_new: bool
    waiting: _Waiting


class Refresher:
    """Sends metadata requests. If a request cannot be routed yet, parks it until the next metadata answer.

    Args:
        options: `retry_backoff_ms`, `allow_auto_create_topics`.
    """

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        pin: ClusterPin,
        leaders: Leaders,
        links: Links,
        reachability: Reachability,
        topics: WatchedTopics,
        *,
        options: Mapping[str, Any],
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._pin = pin
        self._leaders = leaders
        self._links = links
        self._reachability = reachability
        self._topics = topics
        retry_backoff_s: float = options.get("retry_backoff_ms", 100) / 1000
        self._leaderless_backoff = Backoff(retry_backoff_s, LEADERLESS_POLL_MAX_S, least_s=0.0, jitter=0.0)
        self._missing_backoff = Backoff(retry_backoff_s, MISSING_TOPIC_POLL_MAX_S, least_s=0.0, jitter=0.0)
        self._auto_create: bool = options.get("allow_auto_create_topics", True)
        self._listeners: list[Callable[[MetadataRefreshed], None]] = []
        self._awaiting = _AwaitingMetadata()
        self._attempt: _Attempt | None = None
        self._patience: Any = None
        """The timer for a broker that does not answer in time."""
        self._bad_refreshes = 0
        self._schedule.on_due(self._refresh)

    def refresh_metadata(self, topics: Sequence[str], reply: Reply[MetadataRefreshed]) -> None:
        for topic in topics:
            invalid = invalid_topic(topic)
            if invalid is not None:
                safely(reply, Failure(invalid, sent=False))
                return

        def run() -> None:
            for topic in topics:
                self._topics.add(topic)
            new = [topic in self._topics.new for topic in topics]
            of_new = bool(new) and all(new)
            self._awaiting.add(reply, of_new=of_new)
            if of_new:
                self._schedule.want_new()
            else:
                self._schedule.want(urgent=any(new))

        self._mailbox.post(run, not_sent(reply))

    def unwatch(self, topic: str) -> None:
        def run() -> None:
            self._topics.discard(topic)
            self._leaders.forget(topic)

        self._mailbox.post(run, lambda _: None)

    def on_metadata(self, callback: Callable[[MetadataRefreshed], None]) -> None:
        self._listeners.append(callback)

    def watch(self, topic: str) -> BaseException | None:
        """Makes sure that metadata of the topic will be requested. Returns an error if the topic's name is invalid."""
        if topic not in self._topics.names:
            invalid = invalid_topic(topic)
            if invalid is not None:
                return invalid
            self._topics.add(topic)
        if topic in self._topics.new:
            self._schedule.want_new()
        else:
            self._schedule.want()
        return None

    def _refresh(self) -> None:
        now = self._network.now()
        of_new = not self._schedule.all_overdue(now)
        if of_new and not self._topics.new:
            self._schedule.resume()  # nothing watches the new topics any more
            return
        links = [
            self._links.link(node) for node in (*self._network.nodes(), *self._network.bootstrap_nodes())
        ]
        able = [link for link in links if link.not_before <= now or link.ready]
        if not able:
            # All links are still in back-off: wait until the first back-off ends.
            self._schedule.no_later(heapq.nsmallest(1, (link.not_before for link in links))[0])
            return
        link = self._links.best(able, now)
        names = self._topics.take(of_new=of_new)
        attempt = self._attempt = _Attempt(link, of_new, self._awaiting.take(of_new=of_new))
        self._schedule.begun(now, of_all=not of_new)
        self._patience = self._network.call_at(
            now + METADATA_PATIENCE_S, lambda: self._on_slow_metadata(attempt)
        )
        link.submit(
            QuestionCall(
                metadata_question(names, self._parse_metadata),
                functools.partial(self._on_metadata, attempt),
                timeout_s=self._network.request_timeout_s,
                identifies=True,
            )
        )

    def _on_slow_metadata(self, attempt: _Attempt) -> None:
        if attempt is self._attempt:
            self._patience = None
            attempt.link.suspect(self._network.now())
            error = kafka_errors.KafkaTimeoutError(f"Node {attempt.link.node_id} did not answer in time")
            self._on_metadata(attempt, Failure(error, sent=True))

    def _on_metadata(self, attempt: _Attempt, result: MetadataRefreshed | Failure) -> None:
        if attempt is not self._attempt:
            return
        if self._patience is not None:
            self._network.cancel(self._patience)
            self._patience = None
        self._attempt = None
        self._schedule.over()
        now = self._network.now()
        parked = self._awaiting.take_parked()
        if isinstance(result, Failure):
            self._reachability.request_failed(result.error, now, alive=self._links.alive(now))
            for reply in attempt.waiting.replies:
                safely(reply, result)
            # Also fail requests that were parked during the attempt: if sent, they would overtake the older requests,
            # which fail now.
            for request in (*attempt.waiting.parked, *parked):
                request.fail(result.error)
            self._schedule.want()
            return
        self._reachability.request_answered(now)
        for reply in attempt.waiting.replies:
            safely(reply, result)
        for request in attempt.waiting.parked:
            request.route(True)
        for request in parked:
            request.route(False)  # the metadata request may not have named the parked requests' topics
        self._links.ask_gathered()
        self._links.drop_moved()
        self._links.drop_hung()
        for callback in list(self._listeners):
            safely(callback, result)
        self._create_missing(attempt.link, result)
        self._links.drop_bootstrap()
        self._plan_refresh(now, result.topics if attempt.of_new else None)

    def _create_missing(self, link: BrokerLink, result: MetadataRefreshed) -> None:
        """Sends a separate request for only the topics to create, because a broker creates every missing topic in the
        request.
        """
        if not self._auto_create:
            return
        missing = self._topics.to_create(result.topics)
        if missing:
            link.submit(
                QuestionCall(
                    metadata_question(missing, lambda _: None, create=True),
                    lambda _: self._schedule.want(),
                    timeout_s=self._network.request_timeout_s,
                )
            )

    def _plan_refresh(self, now: float, of_new: Mapping[str, TopicInfo] | None) -> None:
        """Plans the next request after an answer. `of_new` has the topics of the answer if the request was about new
        topics only; otherwise it is None.
        """
        infos = (self._leaders.topics if of_new is None else of_new).values()
        missing = any(info.error_code for info in infos)
        leaderless = any(p.leader < 0 for info in infos for p in info.partitions.values())
        if of_new is None:
            self._schedule.all_no_later(now + self._network.metadata_max_age_s)
            self._bad_refreshes = self._bad_refreshes + 1 if missing or leaderless else 0
        if missing or leaderless:
            backoff = self._leaderless_backoff if leaderless else self._missing_backoff
            self._schedule.all_no_later(now + backoff.pause_s(max(1, self._bad_refreshes)))
        if self._topics.new:
            self._schedule.no_later(now)
        else:
            self._schedule.resume()

    def _parse_metadata(self, response: Any) -> MetadataRefreshed:
        check_metadata(response)
        cluster_id = self._pin.answered(response.cluster_id)
        nodes = self._network.learn_brokers(response.brokers)
        learned = self._leaders.learn(response.topics, self._topics.names, version=response.API_VERSION)
        return MetadataRefreshed(cluster_id, nodes, learned)

    def park(self, route: Callable[[bool], None], fail: Callable[[BaseException], None]) -> None:
        """Parks a request until the next metadata request is answered or fails.

        Args:
            route: Called to route the request again. Its argument says whether this is the last try.
            fail: Called with the reason, instead of `route`, if the request cannot be sent.
        """
        self._awaiting.park(_ParkedRequest(route, fail))

    def fail_all(self, error: BaseException) -> None:
        """Fails all parked requests, because the event loop ends."""
        self._reachability.end()
        attempt, self._attempt = self._attempt, None
        self._patience = None
        self._schedule.over()
        waiting = [self._awaiting.take(of_new=False)]
        if attempt is not None:
            waiting.insert(0, attempt.waiting)
        for each in waiting:
            for request in each.parked:
                request.fail(error)
        for each in waiting:
            for reply in each.replies:
                safely(reply, Failure(error, sent=False))

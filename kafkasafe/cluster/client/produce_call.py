"""A Produce request to one broker, its batches, and the result of each. Decides which batches share a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import (
    Buffer,
    Failure,
    ProduceCallback,
    ProduceReply,
    ProduceRequest,
    StaleFenceError,
)
from kafkasafe.cluster.client.calls import Call
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.order import RequestOrder
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.coordinators import highest_produce, lowest_produce
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.network import AllAppended, Connection, Network, ProduceBatches
from kafkasafe.cluster.terms import (
    MAX_OFFSET,
    STALE_METADATA,
    NodeId,
    TopicPartition,
    absurd,
    plausible,
    safely,
)

__all__ = ["ProduceCall", "ProduceGroup", "ProduceShared"]


class ProduceShared:
    """The state that all Produce requests of a transport share.

    Args:
        network: The addresses of brokers.
        schedule: Requests metadata when they are out of date.
        leaders: Take the leader that another broker names.
        links: Fail waiting requests whose partition has a new leader.

    Attributes:
        order: The order of batches on their partitions.
        request_timeout_s: Option `request_timeout_ms`, in seconds.
    """

    __slots__ = ("_leaders", "_links", "_network", "_schedule", "order", "request_timeout_s")

    def __init__(self, network: Network, schedule: RefreshSchedule, leaders: Leaders, links: Links) -> None:
        self._network = network
        self._schedule = schedule
        self._leaders = leaders
        self._links = links
        self.order = RequestOrder()
        self.request_timeout_s = network.request_timeout_s

    def learn_broker(self, endpoint: Any) -> None:
        """Notes a broker that an answer named."""
        self._network.learn_broker(endpoint)

    def take_hint(self, target: TopicPartition, hint: tuple[int, int]) -> bool:
        """Notes a leader and its epoch that an answer named. Returns whether the leader changed."""
        return self._leaders.take_hint(target, hint, self._network.addresses())

    def answered(self, *, stale: bool, moved: bool) -> None:
        """Notes an answer that showed out-of-date metadata, or that named another leader."""
        if stale:
            self._schedule.want()
        if moved:
            self._links.drop_moved()


class ProduceCall(Call):
    """A Produce request: at most one batch for each partition, all of one transaction or of none."""

    __slots__ = (
        "_done", "acks", "reply", "requests", "shared", "timeout_ms", "transaction", "views",
    )  # fmt: skip

    def __init__(
        self,
        shared: ProduceShared,
        node_id: NodeId,
        requests: list[tuple[ProduceRequest[Any], memoryview]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        targets = tuple((request.topic, request.partition) for request, _ in requests)
        # The broker needs time to report slow replicas before this client closes the connection.
        super().__init__(max(shared.request_timeout_s, timeout_ms / 1000 + 1), targets)
        self.timeout_s += max((request.patience_s for request, _ in requests), default=0.0)
        self._done = False
        self.shared = shared
        self.requests = [request for request, _ in requests]
        # A view prevents its bytearray from being resized, so it is released as soon as possible.
        self.views = [view for _, view in requests]
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.reply = reply
        self.transaction = requests[0][0].transaction
        for target in targets:
            shared.order.enter(target, node_id)

    def request(self, conn: Connection) -> ProduceBatches | None:
        transaction = self.transaction
        version = conn.version("Produce", lowest_produce(transaction), highest_produce(transaction))
        order = self.shared.order
        fresh: list[ProduceRequest[Any]] = []
        batches: list[tuple[str, int, Buffer]] = []
        for request, view in zip(self.requests, self.views, strict=True):
            fence = order.fence((request.topic, request.partition))
            if request.fence is None or request.fence == fence:
                fresh.append(request)
                batches.append((request.topic, request.partition, view))
            else:
                error = StaleFenceError(f"fence {request.fence}, now {fence}")
                self._answer(request, Failure(error, sent=False, fence=fence))
        self.requests = fresh
        self.views = []
        if not fresh:
            self._done = True
            return None

        name = None if transaction is None else transaction.transactional_id
        return ProduceBatches(version, self.acks, self.timeout_ms, batches, name)

    def succeed(self, response: Any) -> None:
        if self._done:
            return
        try:
            replies = self._parse(response)
        except Exception as error:  # the caller gets a reply even if the answer is malformed
            self.fail(error, sent=True)
            return
        self._done = True
        shared = self.shared
        stale = moved = False
        for request in self.requests:
            target = request.topic, request.partition
            answer = replies.get(target)
            if answer is None:
                missing = kafka_errors.KafkaProtocolError("The Produce response left this partition out")
                self._answer(request, Failure(missing, sent=True, fence=shared.order.raise_fence(target)))
                continue
            if not answer.error_code and not -1 <= answer.base_offset < MAX_OFFSET:
                self._answer(
                    request, Failure(absurd(answer.base_offset), True, shared.order.raise_fence(target))
                )
                continue
            fence = shared.order.raise_fence(target) if answer.error_code else shared.order.fence(target)
            stale = stale or answer.error_code in STALE_METADATA
            if answer.leader_hint is not None:
                moved = shared.take_hint(target, answer.leader_hint) or moved
            self._answer(request, replace(answer, fence=fence) if fence else answer)
        if stale or moved:
            shared.answered(stale=stale, moved=moved)

    def _parse(self, response: Any) -> Mapping[TopicPartition, ProduceReply]:
        if isinstance(response, AllAppended):
            return response.replies
        replies = {}
        for endpoint in response.node_endpoints or ():
            self.shared.learn_broker(endpoint)
        for topic in response.responses:
            for answer in topic.partition_responses:
                hint = answer.current_leader
                known = hint is not None and hint.leader_id >= 0
                replies[topic.name, answer.index] = ProduceReply(
                    error_code=answer.error_code,
                    base_offset=answer.base_offset,
                    log_append_time=answer.log_append_time_ms,
                    log_start_offset=plausible(answer.log_start_offset, MAX_OFFSET),
                    record_errors=tuple(
                        (record.batch_index, record.batch_index_error_message or "")
                        for record in answer.record_errors or ()
                    ),
                    error_message=answer.error_message,
                    leader_hint=(hint.leader_id, hint.leader_epoch) if known else None,
                )
        return replies

    def fail(self, error: BaseException, *, sent: bool) -> None:
        if self._done:
            return
        self._done = True
        self.views = []
        for request in self.requests:
            fence = self.shared.order.raise_fence((request.topic, request.partition))
            self._answer(request, Failure(error, sent=sent, fence=fence))

    def _answer(self, request: ProduceRequest[Any], result: ProduceReply | Failure) -> None:
        self.shared.order.leave((request.topic, request.partition))
        safely(self.reply, request.token, result)


class ProduceGroup:
    """Splits the batches for one leader into requests: one batch for each partition, one transaction, bounded bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.frames: list[list[tuple[ProduceRequest[Any], memoryview]]] = []
        self._max_bytes = max_bytes
        self._bytes = 0
        self._partitions: set[TopicPartition] = set()

    def add(self, request: ProduceRequest[Any], data: memoryview) -> None:
        target = request.topic, request.partition
        full = target in self._partitions or self._bytes + len(data) > self._max_bytes
        if not self.frames or full or self.frames[-1][0][0].transaction != request.transaction:
            self.frames.append([])
            self._bytes = 0
            self._partitions = set()
        self.frames[-1].append((request, data))
        self._bytes += len(data)
        self._partitions.add(target)

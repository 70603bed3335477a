"""Sends batches, in order, in Produce requests to the leaders of their partitions, and reports each batch's result.

A batch whose leader is unknown is parked until the next metadata answer. With brokers that support topic ids in Produce
(4.1 and newer), a request names its topics by their ids (KIP-516). So a batch that is in flight while its topic is
recreated never gets into the new topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

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
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.coordinators import highest_produce, lowest_produce
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.network import PRODUCE_BY_ID, AllAppended, Connection, Network, ProduceBatches
from kafkasafe.cluster.terms import (
    MAX_OFFSET,
    NodeId,
    TopicPartition,
    absurd,
    error_of,
    plausible,
    safely,
)
from kafkasafe.codes.numbers import LEADER_NOT_AVAILABLE
from kafkasafe.codes.sets import STALE_METADATA_CODES

_Batch: TypeAlias = tuple[ProduceRequest[Any], memoryview]


class ProduceRouter:
    """Combines batches into Produce requests, and sends the requests on the links to the leaders.

    Args:
        max_request_bytes: Upper bound for the total size of several batches in one request.

    Attributes:
        order: The fences and the unanswered batches of all partitions.
        request_timeout_s: Option `request_timeout_ms`, in seconds.
    """

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        leaders: Leaders,
        links: Links,
        refresher: Refresher,
        max_request_bytes: int,
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._leaders = leaders
        self._links = links
        self._refresher = refresher
        self._max_request_bytes = max_request_bytes
        self.order = RequestOrder()
        self.request_timeout_s = network.request_timeout_s

    def produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, not {acks!r}: without acknowledgements nothing is safe")
        batches = list(requests)

        def fail(error: BaseException) -> None:
            for request in batches:
                safely(reply, request.token, Failure(error, sent=False))

        self._mailbox.post(lambda: self._route(batches, acks, timeout_ms, reply, final=False), fail)

    def _route(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        final: bool,
    ) -> None:
        batches: dict[int, list[_Batch]] = {}
        parked: list[ProduceRequest[Any]] = []
        for request in requests:
            leader = self._leaders.leader(request.topic, request.partition)
            if isinstance(leader, int):
                target = request.topic, request.partition
                overtaken = self.order.overtaken(target, leader, self._leaders.topic_id(request.topic))
                if overtaken is not None:
                    self._fail(request, kafka_errors.NotLeaderForPartitionError(overtaken), reply)
                    continue
                try:
                    data = memoryview(request.data).cast("B")
                    if not data:
                        raise ValueError("An empty batch")  # noqa: TRY301
                except Exception as unusable:
                    self._fail(request, unusable, reply)
                    continue
                batches.setdefault(leader, []).append((request, data))
                continue
            invalid = self._refresher.watch(request.topic)
            if invalid is None and leader is None and not final:
                parked.append(request)
                continue
            unknown = error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {request.topic} yet")
            self._fail(request, invalid or leader or unknown, reply)
        for leader, of_leader in batches.items():
            link = self._links.link(leader)
            for entries in shared_requests(of_leader, self._max_request_bytes):
                link.submit(
                    ProduceCall(self, leader, entries, self._topic_ids(entries), acks, timeout_ms, reply)
                )
        if parked:

            def fail(error: BaseException) -> None:
                for request in parked:
                    self._fail(request, error, reply)

            self._refresher.park(
                lambda final: self._route(parked, acks, timeout_ms, reply, final=final), fail
            )

    def _topic_ids(self, batches: Sequence[_Batch]) -> dict[str, bytes]:
        """The id of each topic, or `NO_TOPIC_ID`."""
        return {request.topic: self._leaders.topic_id(request.topic) for request, _ in batches}

    def _fail(self, request: ProduceRequest[Any], error: BaseException, reply: ProduceCallback[Any]) -> None:
        fence = self.order.raise_fence((request.topic, request.partition))
        safely(reply, request.token, Failure(error, sent=False, fence=fence))

    # -- for calls that are answered -----------------------------------------------------------------------------

    def learn_broker(self, endpoint: Any) -> None:
        self._network.learn_broker(endpoint)

    def take_hint(self, target: TopicPartition, topic_id: bytes, hint: tuple[int, int]) -> bool:
        """Stores the leader and the leader epoch that an answer named. `topic_id` is the topic's id in the request.
        Returns whether the leader changed.
        """
        return self._leaders.take_hint(target, topic_id, hint, self._network.addresses())

    def answered(self, *, stale: bool, moved: bool) -> None:
        """Reacts to an answer that showed out-of-date metadata, or that named another leader."""
        if stale:
            self._schedule.want()
        if moved:
            self._links.drop_moved()


class RequestOrder:
    """Finds batches that would overtake others. For each partition, stores the fence. If batches are unanswered, also
    stores the broker to which they were sent, and the topic id in their requests. Pure.
    """

    __slots__ = ("_fences", "_pending")

    def __init__(self) -> None:
        self._fences: dict[TopicPartition, int] = {}
        # For each partition with unanswered batches: the broker to which the batches were sent, their topic id, and
        # their number. Invariant: all unanswered batches of a partition were sent to one broker, with one topic id.
        self._pending: dict[TopicPartition, tuple[NodeId, bytes, int]] = {}

    def fence(self, target: TopicPartition) -> int:
        """How many of the partition's batches have failed so far; see `ProduceRequest.fence`."""
        return self._fences.get(target, 0)

    def raise_fence(self, target: TopicPartition) -> int:
        """Counts a failed batch, and returns the new fence. A thread that does not know of the failure yet submits
        batches with an older fence. These batches must not be sent.
        """
        fence = self._fences.get(target, 0) + 1
        self._fences[target] = fence
        return fence

    def overtaken(self, target: TopicPartition, node_id: NodeId, topic_id: bytes) -> str | None:
        """Describes the unanswered batches that another batch could overtake if it were sent to this node with this
        topic id; None if there are none. After a topic was recreated, a broker may refuse unanswered batches with the
        former id, and yet append a batch with the new id.
        """
        pending = self._pending.get(target)
        if pending is None:
            return None
        node, former_id, _ = pending
        if node != node_id:
            return f"{target[0]}-{target[1]} has requests outstanding at node {node}"
        if former_id != topic_id and any(former_id):
            return f"{target[0]}-{target[1]} has requests outstanding for the topic with the id {former_id.hex()}"
        return None

    def enter(self, target: TopicPartition, node_id: NodeId, topic_id: bytes) -> None:
        """Adds a batch that is being sent to this node to the unanswered batches. `topic_id` is the topic's id when the
        request was made; `NO_TOPIC_ID` if it was unknown.
        """
        count = self._pending[target][2] if target in self._pending else 0
        self._pending[target] = (node_id, topic_id, count + 1)

    def leave(self, target: TopicPartition) -> None:
        """Removes an unanswered batch, because it was answered or failed."""
        node_id, topic_id, count = self._pending[target]
        if count == 1:
            del self._pending[target]
        else:
            self._pending[target] = (node_id, topic_id, count - 1)

    def begin_anew(self) -> None:
        """Forgets the unanswered batches, because all connections have ended. Fences keep their values."""
        self._pending = {}


class ProduceCall(Call):
    """A Produce request with at most one batch for each partition. Either all batches belong to one transaction, or
    none belongs to a transaction.

    Args:
        topic_ids: The id of each topic when the request was made; `NO_TOPIC_ID` if it is unknown.
    """

    __slots__ = (
        "_done", "_router", "_topic_ids", "acks", "reply", "requests", "timeout_ms", "transaction", "views",
    )  # fmt: skip

    def __init__(
        self,
        router: ProduceRouter,
        node_id: NodeId,
        requests: list[_Batch],
        topic_ids: Mapping[str, bytes],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        targets = tuple((request.topic, request.partition) for request, _ in requests)
        # The client's time-out is longer than the broker's, so that the broker can report slow replicas before the
        # client closes the connection.
        super().__init__(max(router.request_timeout_s, timeout_ms / 1000 + 1), targets)
        self.timeout_s += max((request.patience_s for request, _ in requests), default=0.0)
        self._done = False
        self._router = router
        self._topic_ids = topic_ids
        self.requests = [request for request, _ in requests]
        # A memoryview prevents its bytearray from being resized, so the views are released as soon as possible.
        self.views = [view for _, view in requests]
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.reply = reply
        self.transaction = requests[0][0].transaction
        for target in targets:
            router.order.enter(target, node_id, topic_ids[target[0]])

    def request(self, conn: Connection) -> ProduceBatches | None:
        transaction = self.transaction
        by_id = all(map(any, self._topic_ids.values()))
        highest = highest_produce(transaction, by_id=by_id)
        version = conn.version("Produce", lowest_produce(transaction), highest)
        order = self._router.order
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
        return ProduceBatches(version, self.acks, self.timeout_ms, batches, name, self._topic_ids)

    def succeed(self, response: Any) -> None:
        if self._done:
            return
        try:
            replies = self._parse(response)
        except Exception as error:  # the caller gets a reply even if the answer is malformed
            self.fail(error, sent=True)
            return
        self._done = True
        router = self._router
        stale = moved = False
        for request in self.requests:
            target = request.topic, request.partition
            answer = replies.get(target)
            if answer is None:
                missing = kafka_errors.KafkaProtocolError("The Produce response left this partition out")
                self._answer(request, Failure(missing, sent=True, fence=router.order.raise_fence(target)))
                continue
            if not answer.error_code and not -1 <= answer.base_offset < MAX_OFFSET:
                self._answer(
                    request, Failure(absurd(answer.base_offset), True, router.order.raise_fence(target))
                )
                continue
            fence = router.order.raise_fence(target) if answer.error_code else router.order.fence(target)
            stale = stale or answer.error_code in STALE_METADATA_CODES
            if answer.leader_hint is not None:
                topic_id = self._topic_ids[request.topic]
                moved = router.take_hint(target, topic_id, answer.leader_hint) or moved
            self._answer(request, replace(answer, fence=fence) if fence else answer)
        if stale or moved:
            router.answered(stale=stale, moved=moved)

    def _parse(self, response: Any) -> Mapping[TopicPartition, ProduceReply]:
        if isinstance(response, AllAppended):
            return response.replies
        replies = {}
        for endpoint in response.node_endpoints or ():
            self._router.learn_broker(endpoint)
        names = {topic_id: name for name, topic_id in self._topic_ids.items()}
        by_id = response.API_VERSION >= PRODUCE_BY_ID
        for topic in response.responses:
            name: str = names.get(topic.topic_id.bytes, "") if by_id else topic.name
            for answer in topic.partition_responses:
                hint = answer.current_leader
                known = hint is not None and hint.leader_id >= 0
                replies[name, answer.index] = ProduceReply(
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
            fence = self._router.order.raise_fence((request.topic, request.partition))
            self._answer(request, Failure(error, sent=sent, fence=fence))

    def _answer(self, request: ProduceRequest[Any], result: ProduceReply | Failure) -> None:
        self._router.order.leave((request.topic, request.partition))
        safely(self.reply, request.token, result)


def shared_requests(batches: Sequence[_Batch], max_bytes: int) -> list[list[_Batch]]:
    """Splits the batches for one leader into requests. Each request has at most one batch per partition. All batches of
    a request belong to one transaction, or to none. A request has at most `max_bytes`, unless it consists of one larger
    batch.
    """
    found: list[list[_Batch]] = []
    partitions: set[TopicPartition] = set()
    size = 0
    for request, data in batches:
        target = request.topic, request.partition
        full = target in partitions or size + len(data) > max_bytes
        if not found or full or found[-1][0][0].transaction != request.transaction:
            found.append([])
            size = 0
            partitions = set()
        found[-1].append((request, data))
        size += len(data)
        partitions.add(target)
    return found

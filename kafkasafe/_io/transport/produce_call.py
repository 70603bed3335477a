"""A Produce request to one broker: its batches, what the answer makes of each, and how many go into one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors

from kafkasafe._io.transport.calls import Call
from kafkasafe._io.transport.wire import Appended, Frame, ProduceHeader, encode_produce
from kafkasafe.cluster.api import (
    Buffer,
    Failure,
    ProduceCallback,
    ProduceReply,
    ProduceRequest,
    StaleFenceError,
)
from kafkasafe.cluster.terms import (
    MAX_OFFSET,
    STALE_METADATA,
    NodeId,
    TopicPartition,
    absurd,
    plausible,
    safely,
)

if TYPE_CHECKING:
    from kafkasafe._io.transport.routing import Routing

__all__ = ["Group", "ProduceCall"]


class ProduceCall(Call):
    """A Produce request: at most one batch for each partition, all of one transaction or of none."""

    __slots__ = (
        "acks", "hub", "node_id", "reply", "requests", "timeout_ms", "transaction", "views",
    )  # fmt: skip

    def __init__(
        self,
        hub: Routing,
        node_id: NodeId,
        requests: list[tuple[ProduceRequest[Any], memoryview]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        targets = tuple((request.topic, request.partition) for request, _ in requests)
        # The broker must be able to say that its replicas were too slow before the connection is given up.
        super().__init__(max(hub._network.request_timeout_s, timeout_ms / 1000 + 1), targets)
        self.timeout_s += max((request.patience_s for request, _ in requests), default=0.0)
        self.hub = hub
        self.node_id = node_id
        self.requests = [request for request, _ in requests]
        # Views keep a bytearray from being resized, so they are let go of as soon as they can be.
        self.views = [view for _, view in requests]
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.reply = reply
        self.transaction = requests[0][0].transaction
        for target in targets:
            hub._order.enter(target, node_id)

    def frame(self, versions: Any) -> Frame | None:
        version = self.hub._produce_version(self.node_id, versions, self.transaction)
        order = self.hub._order
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
            self.done = True
            return None

        def encoder(correlation_id: int, client_id: str) -> tuple[Any, list[Buffer]]:
            header = ProduceHeader(version, correlation_id)
            parts = encode_produce(
                version,
                correlation_id,
                client_id,
                self.acks,
                self.timeout_ms,
                batches,
                None if self.transaction is None else self.transaction.transactional_id,
            )
            batches.clear()
            return header, parts

        return Frame(f"ProduceRequest({len(fresh)} batches)", version, encoder)

    def succeed(self, response: Any, frame: Frame) -> None:  # noqa: ARG002
        if self.done:
            return
        try:
            replies = self._parse(response)
        except Exception as error:  # whatever a broker sends, the caller hears of it
            self.fail(error, sent=True)
            return
        self.done = True
        hub = self.hub
        stale = moved = False
        for request in self.requests:
            target = request.topic, request.partition
            answer = replies.get(target)
            if answer is None:
                missing = kafka_errors.KafkaProtocolError("The Produce response left this partition out")
                self._answer(request, Failure(missing, sent=True, fence=hub._order.raise_fence(target)))
                continue
            if not answer.error_code and not -1 <= answer.base_offset < MAX_OFFSET:
                self._answer(
                    request, Failure(absurd(answer.base_offset), True, hub._order.raise_fence(target))
                )
                continue
            fence = hub._order.raise_fence(target) if answer.error_code else hub._order.fence(target)
            stale = stale or answer.error_code in STALE_METADATA
            if answer.leader_hint is not None:
                moved = hub._take_hint(target, answer.leader_hint) or moved
            self._answer(request, replace(answer, fence=fence) if fence else answer)
        if stale:
            hub._schedule.want()
        if moved:
            hub._links.drop_moved()

    def _parse(self, response: Any) -> Mapping[TopicPartition, ProduceReply]:
        if isinstance(response, Appended):
            return response.replies
        replies = {}
        for endpoint in response.node_endpoints or ():
            self.hub._network.learn_broker(endpoint)
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
        if self.done:
            return
        self.done = True
        self.views = []
        for request in self.requests:
            fence = self.hub._order.raise_fence((request.topic, request.partition))
            self._answer(request, Failure(error, sent=sent, fence=fence))

    def _answer(self, request: ProduceRequest[Any], result: ProduceReply | Failure) -> None:
        self.hub._order.leave((request.topic, request.partition))
        safely(self.reply, request.token, result)


class Group:
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

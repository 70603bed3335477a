"""Which broker a request goes to: the leader, or the best there is; and how batches become requests.

What does not know its leader yet is put aside until there are metadata.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka.protocol.producer import ProduceRequest as KafkaProduceRequest

from kafkasafe._io.transport.calls import KafkaCall, PartitionQuestion, Wanted
from kafkasafe._io.transport.link import Link
from kafkasafe._io.transport.metadata import Metadata
from kafkasafe._io.transport.order import Order
from kafkasafe._io.transport.produce_call import Group, ProduceCall
from kafkasafe.cluster.api import Failure, ProduceCallback, ProduceRequest, Reply
from kafkasafe.cluster.coordinators import highest_produce, lowest_produce
from kafkasafe.cluster.preference import any_broker
from kafkasafe.cluster.terms import (
    LEADER_NOT_AVAILABLE,
    STALE_METADATA,
    NodeId,
    error_of,
    not_sent,
    safely,
)

__all__ = ["Routing"]

_INT64: Final = struct.Struct(">q")


class Routing(Metadata):
    """Part of `Transport`: from a partition to a link."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._max_request_bytes: int = options.get("max_request_size", 1048576)
        self._order = Order()
        self._produce_versions: dict[tuple[NodeId, int, int], tuple[Any, int]] = {}
        """By node and what will do: what it said it speaks, and which version that makes."""

    def _ask_leader(
        self,
        topic: str,
        partition: int,
        make: Callable[[], tuple[Any, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        fail = not_sent(reply)

        def submit(leader: int) -> None:
            try:
                request, minimum = make()
            except Exception as error:  # values no request can carry
                fail(error)
                return
            self._links.link(leader).submit(
                KafkaCall(
                    request,
                    self._noticing(parse),
                    reply,
                    timeout_s=self._network.request_timeout_s,
                    targets=((topic, partition),),
                    minimum=minimum,
                )
            )

        self._to_leader(topic, partition, submit, fail)

    def _question(
        self,
        topic: str,
        partition: int,
        kind: Wanted,
        wanted: Callable[[], dict[str, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        """As `_ask_leader`, but in one request with others of its kind."""
        fail = not_sent(reply)

        def submit(leader: int) -> None:
            fields = wanted()
            try:
                for number in fields.values():
                    _INT64.pack(number)
            except struct.error as error:  # values no request can carry, which must not cost others theirs
                fail(error)
                return
            self._links.ask(
                leader, kind, PartitionQuestion((topic, partition), fields, self._noticing(parse), reply)
            )

        self._to_leader(topic, partition, submit, fail)

    def _noticing(self, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Asks for metadata where an answer says that they are out of date."""

        def parsed(answer: Any) -> Any:
            result = parse(answer)
            if result.error_code in STALE_METADATA:
                self._schedule.want()
            return result

        return parsed

    def _to_leader(
        self,
        topic: str,
        partition: int,
        submit: Callable[[int], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        """Calls `submit` with the leader's node id on the network thread, or `fail`."""

        def route(final: bool) -> None:
            leader = self._leaders.leader(topic, partition)
            if isinstance(leader, int):
                submit(leader)
                return
            invalid = self._watch(topic)
            if invalid is not None:
                fail(invalid)
            elif leader is None and not final:
                self._parked.append((route, fail))
            else:
                fail(leader or error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        self._mailbox.post(lambda: route(False), fail)

    def _route_any(self, make: Callable[[], KafkaCall], *, final: bool, reply: Reply[Any]) -> None:
        links = [self._links.link(node) for node in self._network.nodes()]
        now = time.monotonic()
        best = any_broker(
            links, lambda link: self._links.preference(link, now), answered=self._known, final=final
        )
        if isinstance(best, Link):
            best.submit(make())
        elif best is not None:
            safely(reply, Failure(best, sent=False))
        else:
            self._parked.append(
                (
                    lambda final: self._route_any(make, final=final, reply=reply),
                    not_sent(reply),
                )
            )
            self._schedule.want()

    def _route_produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        final: bool,
    ) -> None:
        groups: dict[int, Group] = {}
        parked: list[ProduceRequest[Any]] = []
        for request in requests:
            leader = self._leaders.leader(request.topic, request.partition)
            if isinstance(leader, int):
                elsewhere = self._order.owing((request.topic, request.partition))
                if elsewhere is not None and elsewhere != leader:
                    # Batches on their way to the old leader: this one would overtake them.
                    moving = (
                        f"{request.topic}-{request.partition} has requests outstanding at node {elsewhere}"
                    )
                    error: BaseException = kafka_errors.NotLeaderForPartitionError(moving)
                    self._fail_produce(request, error, False, reply)
                    continue
                try:
                    data = memoryview(request.data).cast("B")
                    if not data:
                        raise ValueError("An empty batch")  # noqa: TRY301
                except Exception as unusable:
                    self._fail_produce(request, unusable, False, reply)
                    continue
                group = groups.get(leader)
                if group is None:
                    group = groups[leader] = Group(self._max_request_bytes)
                group.add(request, data)
                continue
            invalid = self._watch(request.topic)
            if invalid is None and leader is None and not final:
                parked.append(request)
                continue
            unknown = error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {request.topic} yet")
            self._fail_produce(request, invalid or leader or unknown, False, reply)
        for leader, group in groups.items():
            link = self._links.link(leader)
            for entries in group.frames:
                link.submit(ProduceCall(self, leader, entries, acks, timeout_ms, reply))
        if parked:

            def fail(error: BaseException) -> None:
                for request in parked:
                    self._fail_produce(request, error, False, reply)

            self._parked.append(
                (
                    lambda final: self._route_produce(parked, acks, timeout_ms, reply, final=final),
                    fail,
                )
            )

    def _fail_produce(
        self, request: ProduceRequest[Any], error: BaseException, sent: bool, reply: ProduceCallback[Any]
    ) -> None:
        fence = self._order.raise_fence((request.topic, request.partition))
        safely(reply, request.token, Failure(error, sent=sent, fence=fence))

    def _produce_version(self, node_id: NodeId, versions: Any, transaction: Any) -> int:
        lowest, highest = lowest_produce(transaction), highest_produce(transaction)
        known = self._produce_versions.get((node_id, lowest, highest))
        if known is None or known[0] is not versions:
            version = versions.api_version(KafkaProduceRequest, min_version=lowest, max_version=highest)
            known = self._produce_versions[node_id, lowest, highest] = versions, version
        return known[1]

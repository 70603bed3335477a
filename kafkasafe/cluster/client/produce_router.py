"""Turns batches into requests to the leaders of their partitions, in order.

A batch whose leader is unknown is parked until the next metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Failure, ProduceCallback, ProduceRequest
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.produce_call import ProduceCall, ProduceGroup, ProduceShared
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.terms import LEADER_NOT_AVAILABLE, error_of, safely

__all__ = ["ProduceRouter"]


class ProduceRouter:
    """Combines batches into Produce requests, and sends these on the links to the leaders.

    Args:
        mailbox: Passes jobs to the network thread.
        leaders: The leaders of partitions, by the latest metadata.
        links: The links to the brokers.
        refresher: Parks batches that wait for metadata.
        shared: The state that all Produce requests share.
        max_request_bytes: Upper bound for the total size of several batches in one request.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        leaders: Leaders,
        links: Links,
        refresher: Refresher,
        shared: ProduceShared,
        max_request_bytes: int,
    ) -> None:
        self._mailbox = mailbox
        self._leaders = leaders
        self._links = links
        self._refresher = refresher
        self._shared = shared
        self._max_request_bytes = max_request_bytes

    def produce(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        """Appends batches to their partitions.

        Batches of one partition reach its leader in the order of the calls, as long as all succeed. After a failure,
        some later ones may already be in flight. `ProduceRequest.fence` stops those that are not.

        Args:
            requests: The batches. Several batches for one partition go into separate requests, which are pipelined.
            acks: -1 (all in-sync replicas) or 1 (the leader).
            timeout_ms: How long the broker may wait for its replicas.
            reply: Gets (token, `ProduceReply`) or (token, `Failure`), once for each request.

        Raises:
            ValueError: `acks` is neither -1 nor 1. Nothing was accepted.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks must be -1 or 1, not {acks!r}: without acknowledgements nothing is safe")
        batches = list(requests)

        def fail(error: BaseException) -> None:
            for request in batches:
                safely(reply, request.token, Failure(error, sent=False))

        self._mailbox.post(
            lambda: self._route(batches, acks, timeout_ms, reply, final=False),
            fail,
        )

    def _route(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        final: bool,
    ) -> None:
        groups: dict[int, ProduceGroup] = {}
        parked: list[ProduceRequest[Any]] = []
        for request in requests:
            leader = self._leaders.leader(request.topic, request.partition)
            if isinstance(leader, int):
                elsewhere = self._shared.order.owing((request.topic, request.partition))
                if elsewhere is not None and elsewhere != leader:
                    # The old leader has unanswered batches, which this batch could overtake.
                    moving = (
                        f"{request.topic}-{request.partition} has requests outstanding at node {elsewhere}"
                    )
                    error: BaseException = kafka_errors.NotLeaderForPartitionError(moving)
                    self._fail(request, error, False, reply)
                    continue
                try:
                    data = memoryview(request.data).cast("B")
                    if not data:
                        raise ValueError("An empty batch")  # noqa: TRY301
                except Exception as unusable:
                    self._fail(request, unusable, False, reply)
                    continue
                group = groups.get(leader)
                if group is None:
                    group = groups[leader] = ProduceGroup(self._max_request_bytes)
                group.add(request, data)
                continue
            invalid = self._refresher.watch(request.topic)
            if invalid is None and leader is None and not final:
                parked.append(request)
                continue
            unknown = error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {request.topic} yet")
            self._fail(request, invalid or leader or unknown, False, reply)
        for leader, group in groups.items():
            link = self._links.link(leader)
            for entries in group.frames:
                link.submit(ProduceCall(self._shared, leader, entries, acks, timeout_ms, reply))
        if parked:

            def fail(error: BaseException) -> None:
                for request in parked:
                    self._fail(request, error, False, reply)

            self._refresher.park(
                lambda final: self._route(parked, acks, timeout_ms, reply, final=final), fail
            )

    def _fail(
        self, request: ProduceRequest[Any], error: BaseException, sent: bool, reply: ProduceCallback[Any]
    ) -> None:
        fence = self._shared.order.raise_fence((request.topic, request.partition))
        safely(reply, request.token, Failure(error, sent=sent, fence=fence))

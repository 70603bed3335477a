"""A client of a `VirtualCluster`: the counterpart of `_io/transport/`, in virtual time and without a thread.

It follows the rules of `kafkasafe.cluster.api`, and behaves like the transport where these leave a choice: each link
has its own back-off, requests that wait for a connection fail with it, requests without a known leader wait for the
next metadata, and no batch is sent to a new leader while one is outstanding at the old one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace as Message
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import kafka.errors as kafka_errors

from kafkasafe._core.batch import iter_headers
from kafkasafe.cluster.api import (
    LIST_OFFSETS_VERSIONS,
    EpochEnd,
    Failure,
    HeadersFetched,
    OffsetListed,
    ProduceCallback,
    ProduceReply,
    ProduceRequest,
    ProducersDescribed,
    ProducerState,
    Reached,
    RecordsFetched,
    Reply,
    StaleFenceError,
    TopicInfo,
    TopicsListed,
)
from kafkasafe.cluster.coordinators import Coordinated, Node, Question, highest_produce
from kafkasafe.cluster.leaders import topic_at, topics_listed
from kafkasafe.cluster.preference import any_broker
from kafkasafe.cluster.terms import (
    LEADER_NOT_AVAILABLE,
    STALE_METADATA,
    TopicPartition,
    error_of,
    safely,
)
from kafkasafe.testing.fake.asking import Fields
from kafkasafe.testing.fake.virtual_links import Call, Link, namespace, parsing
from kafkasafe.testing.fake.virtual_metadata import Metadata

if TYPE_CHECKING:
    from kafkasafe.testing.fake.virtual import VirtualCluster

__all__ = ["VirtualClient"]

_FIRST_WITH_HINTS: Final = 10
"""Version of Produce (KIP-951)."""


class VirtualClient(Coordinated, Metadata):
    """See the module; the methods are explained in `kafkasafe.cluster.api.Cluster`."""

    def __init__(self, cluster: VirtualCluster, options: Mapping[str, Any]) -> None:
        Coordinated.__init__(self)
        Metadata.__init__(self, cluster, options)

    def _ask_coordinator(self, node: Node | None, question: Question, reply: Reply[Any]) -> None:
        def fail(error: BaseException, sent: bool = False) -> None:
            safely(reply, Failure(error, sent))

        message = namespace(question.fields)
        least, most = question.minimum, question.maximum
        succeed = parsing(question.parse, reply)
        if node is None:
            self._ask_any(question.name, message, succeed, reply, least=least, most=most)
            return

        def run() -> None:
            self._call(self._link(node[0]), question.name, message, succeed, fail, least=least, most=most)

        self._do(run, fail)

    def list_topics(self, reply: Reply[TopicsListed]) -> None:
        """See `Cluster`."""
        message = Message(topics=None, allow_auto_topic_creation=False)
        self._ask_any("Metadata", message, parsing(topics_listed, reply), reply)

    def topic_at(self, node: int, topic: str, reply: Reply[TopicInfo]) -> None:
        """See `Cluster`."""

        def fail(error: BaseException, sent: bool = False) -> None:
            safely(reply, Failure(error, sent))

        def run() -> None:
            if node not in {broker.node_id for broker in self._brokers}:
                fail(kafka_errors.NodeNotReadyError(f"Node {node} is not known"))
                return
            message = Message(
                topics=[Message(name=topic, topic_id=UUID(int=0))], allow_auto_topic_creation=False
            )
            version = self._version("Metadata")
            succeed = parsing(functools.partial(topic_at, topic=topic, version=version), reply)
            self._call(self._link(node), "Metadata", message, succeed, fail, most=version)

        self._do(run, fail)

    def _ask_any(
        self,
        name: str,
        message: Any,
        succeed: Callable[[Fields], None],
        reply: Reply[Any],
        *,
        least: int = 0,
        most: int = 32767,
    ) -> None:
        def fail(error: BaseException, sent: bool = False) -> None:
            safely(reply, Failure(error, sent))

        def route(final: bool) -> None:
            links = [self._link(one.node_id) for one in self._brokers]
            link = any_broker(links, self._preference, answered=self._known, final=final)
            if isinstance(link, Link):
                self._call(link, name, message, succeed, fail, least=least, most=most)
            elif link is not None:
                fail(link)
            else:
                self._parked.append((route, fail))
                self._want_metadata()

        self._do(lambda: route(False), fail)

    # -- writing -----------------------------------------------------------------------------------------------------

    def produce(
        self, requests: Sequence[ProduceRequest[Any]], acks: int, timeout_ms: int, reply: ProduceCallback[Any]
    ) -> None:
        """See `Cluster`."""
        if acks not in {-1, 1}:
            raise ValueError(f"acks must be -1 or 1, not {acks!r}: without acknowledgements nothing is safe")
        batches = list(requests)

        def fail(error: BaseException) -> None:
            for request in batches:
                safely(reply, request.token, Failure(error, sent=False))

        self._do(lambda: self._route(batches, acks, timeout_ms, reply, final=False), fail)

    def _route(
        self,
        requests: Sequence[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
        *,
        final: bool,
    ) -> None:
        parked: list[ProduceRequest[Any]] = []
        frames: dict[int, list[list[ProduceRequest[Any]]]] = {}
        for request in requests:
            target = request.topic, request.partition
            leader = self._leaders.leader(*target)
            if isinstance(leader, int):
                elsewhere = self._pending.get(target, (leader, 0))[0]
                if elsewhere != leader:
                    moving = f"{target} has requests outstanding at node {elsewhere}"
                    self._refuse(request, kafka_errors.NotLeaderForPartitionError(moving), reply, sent=False)
                elif not len(request.data):
                    self._refuse(request, ValueError("An empty batch"), reply, sent=False)
                else:
                    self._group(frames.setdefault(leader, []), request)
                continue
            self._watch(request.topic)
            if leader is None and not final:
                parked.append(request)
                continue
            unknown = error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {request.topic} yet")
            self._refuse(request, leader or unknown, reply, sent=False)
        for leader, groups in frames.items():
            for group in groups:
                self._produce(self._link(leader), group, acks, timeout_ms, reply)
        if parked:

            def fail(error: BaseException) -> None:
                for request in parked:
                    self._refuse(request, error, reply, sent=False)

            self._parked.append(
                (lambda final: self._route(parked, acks, timeout_ms, reply, final=final), fail)
            )

    def _group(self, groups: list[list[ProduceRequest[Any]]], request: ProduceRequest[Any]) -> None:
        """Adds a request to a group. A group has one batch for each partition, one transaction, and limited bytes."""
        if groups:
            last = groups[-1]
            size = sum(len(one.data) for one in last) + len(request.data)
            same = any((one.topic, one.partition) == (request.topic, request.partition) for one in last)
            alike = last[0].transaction == request.transaction
            if alike and not same and size <= self._max_request_bytes:
                last.append(request)
                return
        groups.append([request])

    def _refuse(
        self, request: ProduceRequest[Any], error: BaseException, reply: ProduceCallback[Any], *, sent: bool
    ) -> None:
        fence = self._raise_fence((request.topic, request.partition))
        safely(reply, request.token, Failure(error, sent=sent, fence=fence))

    def _raise_fence(self, target: TopicPartition) -> int:
        self._fences[target] = self._fences.get(target, 0) + 1
        return self._fences[target]

    def _leave(self, target: TopicPartition) -> None:
        node, count = self._pending[target]
        if count == 1:
            del self._pending[target]
        else:
            self._pending[target] = node, count - 1

    def _produce(
        self,
        link: Link,
        group: list[ProduceRequest[Any]],
        acks: int,
        timeout_ms: int,
        reply: ProduceCallback[Any],
    ) -> None:
        targets = tuple((request.topic, request.partition) for request in group)
        transaction = group[0].transaction
        name = None if transaction is None else transaction.transactional_id
        for target in targets:
            self._pending[target] = link.node, self._pending.get(target, (link.node, 0))[1] + 1

        def message() -> Any | None:
            for request in list(group):
                fence = self._fences.get((request.topic, request.partition), 0)
                if request.fence is not None and request.fence != fence:
                    group.remove(request)
                    self._leave((request.topic, request.partition))
                    error = StaleFenceError(f"fence {request.fence}, now {fence}")
                    safely(reply, request.token, Failure(error, sent=False, fence=fence))
            rows = [
                Message(
                    name=request.topic,
                    partition_data=[Message(index=request.partition, records=bytes(request.data))],
                )
                for request in group
            ]
            made = Message(transactional_id=name, acks=acks, timeout_ms=timeout_ms, topic_data=rows)
            return made if rows else None

        def succeed(fields: Fields) -> None:
            rows = {
                (topic["name"], part["index"]): part
                for topic in fields["responses"]
                for part in topic["partition_responses"]
            }
            hints = version >= _FIRST_WITH_HINTS
            for endpoint in fields["node_endpoints"] if hints else ():
                self._learn_broker(endpoint)
            for request in group:
                self._answered(request, rows[request.topic, request.partition], reply, hints=hints)

        def fail(error: BaseException, sent: bool) -> None:
            for request in group:
                self._leave((request.topic, request.partition))
                self._refuse(request, error, reply, sent=sent)

        timeout_s = max(self._timeout_s, timeout_ms / 1000 + 1)
        version = self._version("Produce", 0, highest_produce(transaction))
        call = Call(
            "Produce",
            version,
            message,
            succeed,
            fail,
            self._time.monotonic() + timeout_s,
            timeout_s + max(request.patience_s for request in group),
            targets,
        )
        self._submit(link, call)

    def _answered(
        self, request: ProduceRequest[Any], row: Fields, reply: ProduceCallback[Any], *, hints: bool
    ) -> None:
        target = request.topic, request.partition
        code = row["error_code"]
        fence = self._raise_fence(target) if code else self._fences.get(target, 0)
        hint = row.get("current_leader") if hints else None
        leader = (hint["leader_id"], hint["leader_epoch"]) if hint else None
        moved = leader is not None and self._take_hint(target, leader)
        self._leave(target)
        answer = ProduceReply(
            error_code=code,
            base_offset=row["base_offset"],
            log_append_time=row["log_append_time_ms"],
            log_start_offset=row["log_start_offset"],
            record_errors=tuple(
                (one["batch_index"], one["batch_index_error_message"]) for one in row.get("record_errors", ())
            ),
            error_message=row.get("error_message"),
            leader_hint=leader,
            fence=fence,
        )
        safely(reply, request.token, answer)
        if code in STALE_METADATA:
            self._want_metadata()
        if moved:
            self._drop_moved()

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        """See `Cluster`."""

        def fail(error: BaseException, sent: bool = False) -> None:
            safely(reply, Failure(error, sent))

        def route(final: bool) -> None:
            leader = self._leaders.leader(topic, partition)
            if isinstance(leader, int):

                def reached() -> None:
                    safely(reply, Reached(leader))

                deadline_s = self._time.monotonic() + self._timeout_s
                call = Call(
                    "", 0, reached, lambda _: None, fail, deadline_s, self._timeout_s, ((topic, partition),)
                )
                self._submit(self._link(leader), call)
                return
            self._watch(topic)
            if leader is None and not final:
                self._parked.append((route, fail))
                return
            fail(leader or error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        self._do(lambda: route(False), fail)

    # -- questions to a partition's leader ---------------------------------------------------------------------------

    def _ask_leader(
        self,
        name: str,
        topic: str,
        number: int,
        message: Callable[[], Any],
        succeed: Callable[[Fields], None],
        reply: Reply[Any],
        *,
        least: int = 0,
    ) -> None:
        def fail(error: BaseException, sent: bool = False) -> None:
            safely(reply, Failure(error, sent))

        def route(final: bool) -> None:
            leader = self._leaders.leader(topic, number)
            if isinstance(leader, int):
                self._call(
                    self._link(leader),
                    name,
                    message(),
                    answered,
                    fail,
                    least=least,
                    targets=((topic, number),),
                )
                return
            self._watch(topic)
            if leader is None and not final:
                self._parked.append((route, fail))
                return
            fail(leader or error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        def answered(fields: Fields) -> None:
            succeed(fields)

        self._do(lambda: route(False), fail)

    def _stale(self, code: int) -> None:
        if code in STALE_METADATA:
            self._want_metadata()

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        """See `Cluster`."""

        def succeed(fields: Fields) -> None:
            row = fields["topics"][0]["partitions"][0]
            producers = {
                one["producer_id"]: ProducerState(
                    one["producer_epoch"], one["last_sequence"], one["last_timestamp"]
                )
                for one in row["active_producers"]
            }
            self._stale(row["error_code"])
            safely(reply, ProducersDescribed(row["error_code"], producers))

        message = Message(topics=[Message(name=topic, partition_indexes=[partition])])
        self._ask_leader("DescribeProducers", topic, partition, lambda: message, succeed, reply)

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        """See `Cluster`."""

        def got(found: RecordsFetched | Failure) -> None:
            if isinstance(found, Failure):
                safely(reply, found)
                return
            headers = [header for _, header in iter_headers(found.records)]
            known = found.high_watermark, found.last_stable_offset, found.log_start_offset
            safely(reply, HeadersFetched(found.error_code, *known, headers, found.next_offset))

        self.fetch_records(topic, partition, offset, max_bytes, got)

    def fetch_records(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int,
        reply: Reply[RecordsFetched],
        *,
        isolation_level: int = 0,
        max_wait_ms: int = 0,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
    ) -> None:
        """See `Cluster`."""

        def succeed(fields: Fields) -> None:
            if fields["error_code"]:
                safely(reply, RecordsFetched(fields["error_code"], -1, -1, -1, b"", (), offset))
                return
            row = fields["responses"][0]["partitions"][0]
            ends = [header.last_offset + 1 for _, header in iter_headers(row["records"])]
            other = row.get("diverging_epoch")
            self._stale(row["error_code"])
            safely(
                reply,
                RecordsFetched(
                    error_code=row["error_code"],
                    high_watermark=row["high_watermark"],
                    last_stable_offset=row["last_stable_offset"],
                    log_start_offset=row["log_start_offset"],
                    records=row["records"],
                    aborted=tuple(
                        (one["producer_id"], one["first_offset"]) for one in row["aborted_transactions"] or ()
                    ),
                    next_offset=max([offset, *ends]),
                    diverging=None if other is None else (other["epoch"], other["end_offset"]),
                ),
            )

        part = Message(
            partition=partition,
            current_leader_epoch=current_leader_epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=max_bytes,
        )
        message = Message(
            replica_id=-1,
            rack_id="",
            max_wait_ms=max_wait_ms,
            min_bytes=1 if max_wait_ms else 0,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=0,
            topics=[Message(topic=topic, partitions=[part])],
        )
        self._ask_leader("Fetch", topic, partition, lambda: message, succeed, reply)

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        isolation_level: int = 0,
    ) -> None:
        """See `Cluster`."""
        self._list_offset(topic, partition, timestamp, reply, -1, isolation_level)

    def list_offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        timestamp: int,
        reply: Reply[Mapping[tuple[str, int], OffsetListed]],
        *,
        isolation_level: int = 0,
    ) -> None:
        """See `Cluster`. One request for each partition."""
        found: dict[tuple[str, int], OffsetListed] = {}
        left = set(partitions)
        if not left:
            safely(reply, found)

        def answered(at: tuple[str, int], listed: OffsetListed | Failure) -> None:
            left.discard(at)
            if isinstance(listed, OffsetListed) and not listed.error_code and listed.offset >= 0:
                found[at] = listed
            if not left:
                safely(reply, found)

        for at in partitions:
            self._list_offset(*at, timestamp, functools.partial(answered, at), -1, isolation_level)

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        """See `Cluster`."""
        self._list_offset(topic, partition, -1, reply, -2, 0)

    def _list_offset(
        self,
        topic: str,
        number: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        replica_id: int,
        isolation_level: int,
    ) -> None:
        def message() -> Any:
            info = self._leaders.topics.get(topic)
            known = info.partitions.get(number) if info is not None and replica_id == -2 else None
            epoch = -1 if known is None else known.leader_epoch
            part = Message(partition_index=number, current_leader_epoch=epoch, timestamp=timestamp)
            topics = [Message(name=topic, partitions=[part])]
            return Message(replica_id=replica_id, isolation_level=isolation_level, topics=topics)

        def succeed(fields: Fields) -> None:
            row = fields["topics"][0]["partitions"][0]
            self._stale(row["error_code"])
            found = OffsetListed(row["error_code"], row["offset"], row["leader_epoch"], row["timestamp"])
            safely(reply, found)

        least = LIST_OFFSETS_VERSIONS.get(timestamp, 0)
        self._ask_leader("ListOffsets", topic, number, message, succeed, reply, least=least)

    def offset_for_leader_epoch(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        reply: Reply[EpochEnd],
        *,
        current_leader_epoch: int = -1,
    ) -> None:
        """See `Cluster`."""

        def succeed(fields: Fields) -> None:
            row = fields["topics"][0]["partitions"][0]
            self._stale(row["error_code"])
            safely(reply, EpochEnd(row["error_code"], row["leader_epoch"], row["end_offset"]))

        part = Message(
            partition=partition, current_leader_epoch=current_leader_epoch, leader_epoch=leader_epoch
        )
        message = Message(replica_id=-1, topics=[Message(topic=topic, partitions=[part])])
        self._ask_leader("OffsetForLeaderEpoch", topic, partition, lambda: message, succeed, reply)

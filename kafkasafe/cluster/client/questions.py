"""Sends the requests of `kafkasafe.cluster.api` to partitions' leaders, and interprets their answers.

A request whose leader is unknown is parked until the next metadata answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import (
    Buffer,
    EpochEnd,
    HeadersFetched,
    OffsetListed,
    ProducersDescribed,
    ProducerState,
    Reached,
    RecordsFetched,
    Reply,
)
from kafkasafe.cluster.client.calls import (
    EpochsWanted,
    OffsetsCall,
    OffsetsWanted,
    PartitionQuestion,
    QuestionCall,
    ReachCall,
    Wanted,
)
from kafkasafe.cluster.client.links import Links
from kafkasafe.cluster.client.mailbox import Mailbox
from kafkasafe.cluster.client.refresher import Refresher
from kafkasafe.cluster.client.schedule import RefreshSchedule
from kafkasafe.cluster.coordinators import Question
from kafkasafe.cluster.leaders import Leaders
from kafkasafe.cluster.network import Network, OffsetRow
from kafkasafe.cluster.terms import (
    MAX_OFFSET,
    TopicPartition,
    absurd,
    error_of,
    not_sent,
    plausible,
    safely,
)
from kafkasafe.codes.numbers import LEADER_NOT_AVAILABLE
from kafkasafe.codes.sets import STALE_METADATA_CODES
from kafkasafe.record.batch import HEADER_BYTES, Compression, is_abort, iter_headers

_INT64: Final = struct.Struct(">q")

# Oldest version of Fetch that carries RecordBatch v2 (brokers from 0.11).
_MIN_FETCH: Final = 4

# The largest number of partitions in one request.
_MAX_OFFSETS: Final = 500

# Layout of a batch: the number of bytes that its field `length` does not count; the position of the magic byte; the
# position of the last offset delta (v2).
_LOG_OVERHEAD: Final = 12
_MAGIC_AT: Final = 16
_LAST_DELTA_AT: Final = 23


class LeaderQuestions:
    """Sends all requests to leaders, except Produce requests. `Cluster` describes the public methods."""

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        leaders: Leaders,
        links: Links,
        refresher: Refresher,
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._leaders = leaders
        self._links = links
        self._refresher = refresher

    def reach(self, topic: str, partition: int, reply: Reply[Reached]) -> None:
        def submit(leader: int) -> None:
            self._links.link(leader).submit(
                ReachCall(leader, reply, self._network.request_timeout_s, (topic, partition))
            )

        self._to_leader(topic, partition, submit, not_sent(reply))

    def describe_producers(self, topic: str, partition: int, reply: Reply[ProducersDescribed]) -> None:
        def parse(response: Any) -> ProducersDescribed:
            answer = _only(response.topics, "partitions", "partition_index", topic, partition)
            producers = {
                producer.producer_id: ProducerState(
                    producer.producer_epoch, producer.last_sequence, producer.last_timestamp
                )
                for producer in answer.active_producers
            }
            return ProducersDescribed(answer.error_code, producers, answer.error_message)

        fields = {"topics": [{"name": topic, "partition_indexes": [partition]}]}
        self._ask(topic, partition, Question("DescribeProducers", fields, parse), reply)

    def fetch_headers(
        self, topic: str, partition: int, offset: int, max_bytes: int, reply: Reply[HeadersFetched]
    ) -> None:
        def parse(response: Any) -> HeadersFetched:
            if response.error_code:
                return HeadersFetched(response.error_code, -1, -1, -1, [], offset)
            answer = _only(
                response.responses, "partitions", "partition_index", topic, partition, name="topic"
            )
            records = answer.records or b""
            headers, markers = [], {}
            for at, header in iter_headers(records):
                headers.append(header)
                # Compaction may leave only the header of a marker's batch.
                if header.is_control and header.count and header.compression is Compression.NONE:
                    body = bytes(memoryview(records)[at + HEADER_BYTES : at + header.size_bytes])
                    markers[header.base_offset] = not is_abort(body, header.base_offset)
            return HeadersFetched(
                error_code=answer.error_code,
                high_watermark=answer.high_watermark,
                last_stable_offset=answer.last_stable_offset,
                log_start_offset=answer.log_start_offset,
                headers=headers,
                next_offset=_next_offset(records, offset),
                markers=markers,
            )

        fields = _fetch_fields(
            topic,
            max_bytes,
            {"partition": partition, "fetch_offset": offset},
            max_wait_ms=0,
            min_bytes=0,
            isolation_level=0,
        )
        self._ask(topic, partition, Question("Fetch", fields, parse, _MIN_FETCH), reply)

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
        def parse(response: Any) -> RecordsFetched:
            if response.error_code:
                return RecordsFetched(response.error_code, -1, -1, -1, b"", (), offset)
            answer = _only(
                response.responses, "partitions", "partition_index", topic, partition, name="topic"
            )
            records = answer.records or b""
            diverging = answer.diverging_epoch
            diverges = diverging is not None and diverging.end_offset >= 0
            return RecordsFetched(
                error_code=answer.error_code,
                high_watermark=plausible(answer.high_watermark, MAX_OFFSET),
                last_stable_offset=plausible(answer.last_stable_offset, MAX_OFFSET),
                log_start_offset=plausible(answer.log_start_offset, MAX_OFFSET),
                records=records,
                aborted=tuple(
                    (entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions or ()
                ),
                next_offset=_next_offset(records, offset),
                diverging=(diverging.epoch, diverging.end_offset) if diverges else None,
            )

        fields = _fetch_fields(
            topic,
            max_bytes,
            {
                "partition": partition,
                "current_leader_epoch": current_leader_epoch,
                "fetch_offset": offset,
                "last_fetched_epoch": last_fetched_epoch,
            },
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            isolation_level=isolation_level,
        )
        self._ask(topic, partition, Question("Fetch", fields, parse, _MIN_FETCH), reply)

    def list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        isolation_level: int = 0,
    ) -> None:
        self._list_offset(topic, partition, timestamp, reply, replica_id=-1, isolation_level=isolation_level)

    def list_offsets(
        self,
        partitions: Sequence[TopicPartition],
        timestamp: int,
        reply: Reply[Mapping[TopicPartition, OffsetListed]],
        *,
        isolation_level: int = 0,
    ) -> None:
        def run() -> None:
            by_leader: dict[int, list[TopicPartition]] = {}
            for target in partitions:
                leader = self._leaders.leader(*target)
                if isinstance(leader, int):
                    by_leader.setdefault(leader, []).append(target)
            shares = [
                (leader, asked[at : at + _MAX_OFFSETS])
                for leader, asked in by_leader.items()
                for at in range(0, len(asked), _MAX_OFFSETS)
            ]
            gathered = _Offsets(len(shares), reply)
            if not shares:
                safely(reply, {})
            for leader, asked in shares:
                numbers: dict[str, list[int]] = {}
                for topic, number in asked:
                    numbers.setdefault(topic, []).append(number)
                timeout_s = self._network.request_timeout_s
                self._links.link(leader).submit(
                    OffsetsCall(numbers, timestamp, isolation_level, gathered.add, timeout_s=timeout_s)
                )

        self._mailbox.post(run, not_sent(reply))

    def log_end_offset(self, topic: str, partition: int, reply: Reply[OffsetListed]) -> None:
        self._list_offset(topic, partition, -1, reply, replica_id=-2)

    def _list_offset(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        reply: Reply[OffsetListed],
        *,
        replica_id: int,
        isolation_level: int = 0,
    ) -> None:
        def parse(answer: Any) -> OffsetListed:
            if not answer.error_code and not -1 <= answer.offset < MAX_OFFSET:
                raise absurd(answer.offset)
            time_ms = -1 if answer.timestamp is None else answer.timestamp
            return OffsetListed(answer.error_code, answer.offset, plausible(answer.leader_epoch), time_ms)

        def wanted() -> dict[str, int]:
            info = self._leaders.topics.get(topic)
            known = info.partitions.get(partition) if info is not None and replica_id == -2 else None
            return {
                "partition_index": partition,
                "current_leader_epoch": -1 if known is None else known.leader_epoch,
                "timestamp": timestamp,
            }

        kind = OffsetsWanted(replica_id, isolation_level, min(timestamp, 0))
        self._share(topic, partition, kind, wanted, parse, reply)

    def offset_for_leader_epoch(
        self,
        topic: str,
        partition: int,
        leader_epoch: int,
        reply: Reply[EpochEnd],
        *,
        current_leader_epoch: int = -1,
    ) -> None:
        def parse(answer: Any) -> EpochEnd:
            end_offset = plausible(answer.end_offset, MAX_OFFSET)
            return EpochEnd(answer.error_code, plausible(answer.leader_epoch), end_offset)

        def wanted() -> dict[str, int]:
            return {
                "partition": partition,
                "current_leader_epoch": current_leader_epoch,
                "leader_epoch": leader_epoch,
            }

        self._share(topic, partition, EpochsWanted(), wanted, parse, reply)

    # -- the way to the leader ----------------------------------------------------------------------------------

    def _ask(self, topic: str, partition: int, question: Question, reply: Reply[Any]) -> None:
        """Asks the leader of a partition. An exception of `parse` becomes the `Failure`."""
        noticed = replace(question, parse=self._noticing(question.parse))

        def submit(leader: int) -> None:
            self._links.link(leader).submit(
                QuestionCall(
                    noticed,
                    reply,
                    timeout_s=self._network.request_timeout_s,
                    targets=((topic, partition),),
                )
            )

        self._to_leader(topic, partition, submit, not_sent(reply))

    def _share(
        self,
        topic: str,
        partition: int,
        kind: Wanted,
        wanted: Callable[[], dict[str, int]],
        parse: Callable[[Any], Any],
        reply: Reply[Any],
    ) -> None:
        """Like `_ask`, but questions of the same kind share a request."""
        fail = not_sent(reply)

        def submit(leader: int) -> None:
            fields = wanted()
            try:
                for number in fields.values():
                    _INT64.pack(number)
            except struct.error as error:  # fail this question alone, not the whole shared request
                fail(error)
                return
            self._links.ask(
                leader, kind, PartitionQuestion((topic, partition), fields, self._noticing(parse), reply)
            )

        self._to_leader(topic, partition, submit, fail)

    def _noticing(self, parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a function that calls `parse`, and that requests new metadata if the answer shows that the client's
        metadata are out of date.
        """

        def parsed(answer: Any) -> Any:
            result = parse(answer)
            if result.error_code in STALE_METADATA_CODES:
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
        """On the network thread, calls `submit` with the leader's node id, or `fail` with the reason why the partition
        has no leader.
        """

        def route(final: bool) -> None:
            leader = self._leaders.leader(topic, partition)
            if isinstance(leader, int):
                submit(leader)
                return
            invalid = self._refresher.watch(topic)
            if invalid is not None:
                fail(invalid)
            elif leader is None and not final:
                self._refresher.park(route, fail)
            else:
                fail(leader or error_of(LEADER_NOT_AVAILABLE, f"Nothing is known of {topic} yet"))

        self._mailbox.post(lambda: route(False), fail)


def _fetch_fields(
    topic: str,
    max_bytes: int,
    wanted: dict[str, int],
    *,
    max_wait_ms: int,
    min_bytes: int,
    isolation_level: int,
) -> Mapping[str, Any]:
    """The fields of a Fetch request for one partition, without a session."""
    unknown = {"current_leader_epoch": -1, "last_fetched_epoch": -1}
    return {
        "replica_id": -1,
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [unknown | wanted | {"partition_max_bytes": max_bytes}]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


class _Offsets:
    """Gathers the answers of several brokers. The result leaves out partitions without an offset."""

    __slots__ = ("_found", "_left", "_reply")

    def __init__(self, left: int, reply: Reply[Mapping[TopicPartition, OffsetListed]]) -> None:
        self._found: dict[TopicPartition, OffsetListed] = {}
        self._left = left
        self._reply = reply

    def add(self, answered: Sequence[tuple[str, Sequence[OffsetRow]]]) -> None:
        """Adds the answer to one request; an empty answer stands for a failure. After the last answer, calls the
        reply.
        """
        for topic, rows in answered:
            for number, code, time_ms, offset, epoch in rows:
                if not code and 0 <= offset < MAX_OFFSET:
                    self._found[topic, number] = OffsetListed(0, offset, plausible(epoch), time_ms)
        self._left -= 1
        if not self._left:
            safely(self._reply, self._found)


def _next_offset(records: Buffer, offset: int) -> int:
    """Returns the offset after the last complete batch, but never less than `offset`. If no batch is complete, returns
    `offset`. The batches may have old formats.
    """
    at = 0
    while len(records) - at > _MAGIC_AT:
        base, length = struct.unpack_from(">qi", records, at)
        if length < 0 or length > len(records) - at - _LOG_OVERHEAD:
            break
        last_delta = (
            struct.unpack_from(">i", records, at + _LAST_DELTA_AT)[0] if records[at + _MAGIC_AT] > 1 else 0
        )
        offset = max(offset, base + last_delta + 1)
        at += _LOG_OVERHEAD + length
    return offset


def _only(topics: Any, group: str, number: str, topic: str, partition: int, *, name: str = "name") -> Any:
    """Returns the answer for one partition from the topics of a response."""
    for entry in topics:
        if getattr(entry, name) == topic:
            for answer in getattr(entry, group):
                if getattr(answer, number) == partition:
                    return answer
    raise kafka_errors.KafkaProtocolError(f"The response left {topic}-{partition} out")

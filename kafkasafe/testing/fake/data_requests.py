"""Requests about records: Produce, Fetch, and the look-ups. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from kafkasafe.testing.fake.asking import Ask, Fields, Handler, Later, NotModelledError
from kafkasafe.testing.fake.centre import UNKNOWN_TOPIC_ID
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.partition import (
    FENCED_LEADER_EPOCH,
    NOT_LEADER_OR_FOLLOWER,
    Appended,
    Fetched,
    Partition,
)
from kafkasafe.testing.fake.producers import INVALID_TXN_STATE

REQUEST_TIMED_OUT: Final = 7
NOT_ENOUGH_REPLICAS_AFTER_APPEND: Final = 20
FETCH_SESSION_ID_NOT_FOUND: Final = 70

_OF_THE_LOG: Final = frozenset({19, 32, 45, 47, 48, 87})
"""With these error codes, a Produce answer contains the log start offset, unless the broker refused the batch without
reading the log.
"""

_PRODUCE_SECOND_PROTOCOL: Final = 12  # of transactions
_PRODUCE_BY_ID: Final = 13
_FETCH_ANY: Final = 11  # first version in which followers serve consumers (KIP-392)
_FETCH_BY_ID: Final = 13
_FETCH_STATE: Final = 15


def _topics(ask: Ask, topics: list[Any], *, by_id: bool) -> Iterator[tuple[Any, Fields, str | None]]:
    """Yields a tuple for each topic in the request: the topic, the fields that name it in the answer, and its name. The
    name is None if the request has an unknown topic id.
    """
    for topic in topics:
        if not by_id:
            name = topic.topic if hasattr(topic, "topic") else topic.name
            yield topic, {}, name
            continue
        try:
            yield topic, {"topic_id": topic.topic_id}, ask.centre.topic_by_id(topic.topic_id).name
        except RefusedError:
            yield topic, {"topic_id": topic.topic_id}, None


# -- Produce -----------------------------------------------------------------------------------------------------------


class _Produce:
    """One Produce request, whose batches are appended at once, and answered when the in-sync replicas have them."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.acks: int = ask.message.acks
        self.deadline_ms = ask.now_ms + max(0, ask.message.timeout_ms)
        self.answers: list[tuple[Fields, list[Fields]]] = []
        self.waiting: dict[int, tuple[Fields, Partition, Appended, int]] = {}
        self.hinted: set[int] = set()

    def run(self) -> Fields | Later | None:
        ask = self.ask
        transactional_id = ask.message.transactional_id
        for topic, named, name in _topics(ask, ask.message.topic_data, by_id=ask.version >= _PRODUCE_BY_ID):
            rows: list[Fields] = []
            self.answers.append((named or {"name": name}, rows))
            rows.extend(self._append(name, part, transactional_id) for part in topic.partition_data)
        if self.acks == 0:
            return None
        return self.look(ask.now_ms) or Later(self.look, self.deadline_ms)

    def _append(self, name: str | None, part: Any, transactional_id: str | None) -> Fields:
        ask, number = self.ask, part.index
        try:
            if name is None:
                raise RefusedError(UNKNOWN_TOPIC_ID)
            data = bytes(part.records or b"")
            if transactional_id is not None:
                ask.centre.check_allowed("write", "transactional_id", transactional_id)
                second = ask.version >= _PRODUCE_SECOND_PROTOCOL
                ask.transactions.check_batch(transactional_id, name, number, data, second=second)
            appended = ask.centre.append(ask.node, name, number, data, self.acks)
        except RefusedError as refused:
            return self._refused(name, number, refused)
        row = {
            "index": number,
            "error_code": 0,
            "base_offset": appended.base_offset,
            "log_append_time_ms": appended.log_append_time_ms,
            "log_start_offset": appended.log_start_offset,
        }
        if self.acks == -1:
            partition = ask.centre.partition(name, number)
            self.waiting[id(row)] = row, partition, appended, partition.leader_epoch
        return row

    def _refused(self, name: str | None, number: int, refused: RefusedError) -> Fields:
        """The answer's row for a refused batch, with the fields that real brokers set (tests/contract).

        Real brokers send an error message only if individual records are faulty, or if the partition is not in the
        transaction. So the fake sends no other messages.
        """
        start = -1
        if name is not None and refused.code in _OF_THE_LOG and not refused.early:
            start = self.ask.centre.partition(name, number).log.start_offset
        row = {
            "index": number,
            "error_code": refused.code,
            "base_offset": -1,
            "log_append_time_ms": -1,
            "log_start_offset": start,
            "record_errors": [
                {"batch_index": index, "batch_index_error_message": text}
                for index, text in refused.record_errors
            ],
            "error_message": refused.message
            if refused.record_errors or refused.code == INVALID_TXN_STATE
            else None,
        }
        if refused.code == NOT_LEADER_OR_FOLLOWER and name is not None:
            row |= _hint(self.ask.centre.partition(name, number), self.hinted)
        return row

    def look(self, now_ms: int) -> Fields | None:
        """Returns the answer once all partitions have an outcome."""
        for key, (row, partition, appended, epoch) in list(self.waiting.items()):
            code = self._code(partition, appended, epoch, now_ms)
            if code is None:
                continue
            if code:
                row |= {"error_code": code, "base_offset": -1, "log_append_time_ms": -1}
                row["log_start_offset"] = -1
            del self.waiting[key]
        if self.waiting:
            return None
        return {
            "responses": [named | {"partition_responses": rows} for named, rows in self.answers],
            "node_endpoints": [self.ask.endpoint(node) for node in sorted(self.hinted)],
        }

    def _code(self, partition: Partition, appended: Appended, epoch: int, now_ms: int) -> int | None:
        if partition.leader != self.ask.node or partition.leader_epoch != epoch:
            return NOT_LEADER_OR_FOLLOWER
        if partition.log.high_watermark >= appended.end_offset:
            enough = len(partition.in_sync) >= self.ask.centre.least_in_sync(partition)
            return 0 if enough else NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return REQUEST_TIMED_OUT if now_ms >= self.deadline_ms else None


def _hint(partition: Partition, hinted: set[int]) -> Fields:
    if partition.leader < 0:
        return {}
    hinted.add(partition.leader)
    return {"current_leader": {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}}


# -- Fetch -------------------------------------------------------------------------------------------------------------


class _Fetch:
    """One Fetch request, which waits for enough data, an error, or its timeout."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.deadline_ms = ask.now_ms + max(0, ask.message.max_wait_ms)

    def run(self) -> Fields | Later:
        message = self.ask.message
        state = message.replica_state if self.ask.version >= _FETCH_STATE else None
        if message.replica_id >= 0 or (state is not None and state.replica_id >= 0):
            raise NotModelledError("Fetch by a follower: the fake's replicas need no requests")
        if message.session_id:
            # Like a broker whose fetch session cache is full, the fake creates no sessions. So every session id is
            # unknown.
            return {"error_code": FETCH_SESSION_ID_NOT_FOUND, "session_id": 0, "responses": []}
        return self.look(self.ask.now_ms) or Later(self.look, self.deadline_ms)

    def look(self, now_ms: int) -> Fields | None:
        """Returns the answer if the request need not wait any longer."""
        ask, message = self.ask, self.ask.message
        left, size, urgent = message.max_bytes if ask.version >= 3 else 2**31 - 1, 0, not message.topics
        hinted: set[int] = set()
        responses: list[Fields] = []
        for topic, named, name in _topics(ask, message.topics, by_id=ask.version >= _FETCH_BY_ID):
            rows: list[Fields] = []
            responses.append((named or {"topic": name}) | {"partitions": rows})
            for part in topic.partitions:
                row = self._row(name, part, left - size, size == 0, hinted)
                size += len(row["records"])
                urgent = urgent or bool(row["error_code"]) or "diverging_epoch" in row
                urgent = urgent or row["preferred_read_replica"] >= 0
                rows.append(row)
        if size < message.min_bytes and not urgent and now_ms < self.deadline_ms:
            return None
        return {
            "error_code": 0,
            "session_id": 0,
            "responses": responses,
            "node_endpoints": [ask.endpoint(node) for node in sorted(hinted)],
        }

    def _row(self, name: str | None, part: Any, left: int, first: bool, hinted: set[int]) -> Fields:
        ask = self.ask
        row: Fields = {"partition_index": part.partition, "preferred_read_replica": -1}
        committed = ask.message.isolation_level == 1
        try:
            if name is None:
                raise RefusedError(UNKNOWN_TOPIC_ID)
            ask.centre.check_allowed("read", "topic", name)
            partition, any_replica = ask.centre.partition(name, part.partition), ask.version >= _FETCH_ANY
            preferred = (
                ask.centre.preferred_replica(ask.node, partition, part.fetch_offset, ask.message.rack_id)
                if any_replica
                else None
            )
            if preferred is not None:
                log = partition.check_leader(ask.node, part.current_leader_epoch)
                found = Fetched(log.high_watermark, log.last_stable_offset, log.start_offset)
                row["preferred_read_replica"] = preferred
                return row | _answered(found, committed=committed)
            found = partition.fetch(
                ask.node,
                part.fetch_offset,
                max_bytes=max(0, min(part.partition_max_bytes, left)),
                read_committed=committed,
                current_leader_epoch=part.current_leader_epoch,
                last_fetched_epoch=part.last_fetched_epoch,
                at_least_one=first,
                any_replica=any_replica,
            )
        except RefusedError as refused:
            row |= {
                "error_code": refused.code,
                "high_watermark": -1,
                "last_stable_offset": -1,
                "log_start_offset": -1,
                "aborted_transactions": None if not committed else [],
                "records": b"",
            }
            if refused.code in {NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH} and name is not None:
                row |= _hint(ask.centre.partition(name, part.partition), hinted)
            return row
        row |= _answered(found, committed=committed)
        if found.diverging is not None:
            row["diverging_epoch"] = dict(zip(("epoch", "end_offset"), found.diverging, strict=True))
        return row


def _answered(found: Fetched, *, committed: bool) -> Fields:
    return {
        "error_code": 0,
        "high_watermark": found.high_watermark,
        "last_stable_offset": found.last_stable_offset,
        "log_start_offset": found.log_start_offset,
        "aborted_transactions": [
            {"producer_id": one.producer_id, "first_offset": one.first_offset} for one in found.aborted
        ]
        if committed
        else None,
        "records": found.data,
    }


# -- Look-ups ----------------------------------------------------------------------------------------------------------


def _each(
    topics: list[Any], partitions: str, answer: Callable[[str, Any], Fields], name_field: str = "name"
) -> list[Fields]:
    """Returns one row for each partition of a request, grouped by topic."""
    return [
        {
            name_field: getattr(topic, name_field),
            "partitions": [answer(getattr(topic, name_field), part) for part in getattr(topic, partitions)],
        }
        for topic in topics
    ]


def _list_offsets(ask: Ask) -> Fields:
    message = ask.message
    if ask.version == 0:
        raise NotModelledError("ListOffsets v0, with its lists of segments")

    def row(name: str, part: Any) -> Fields:
        fields: Fields = {"partition_index": part.partition_index, "error_code": 0}
        try:
            ask.centre.check_allowed("describe", "topic", name)
            listed = ask.centre.partition(name, part.partition_index).list_offset(
                ask.node,
                part.timestamp,
                version=ask.version,
                replica_id=message.replica_id,
                read_committed=message.isolation_level == 1,
                current_leader_epoch=part.current_leader_epoch,
            )
        except RefusedError as refused:
            return fields | {"error_code": refused.code, "offset": -1, "timestamp": -1, "leader_epoch": -1}
        return fields | {
            "offset": listed.offset,
            "timestamp": listed.timestamp,
            "leader_epoch": listed.leader_epoch,
        }

    return {"topics": _each(message.topics, "partitions", row)}


def _offset_for_leader_epoch(ask: Ask) -> Fields:
    def row(name: str, part: Any) -> Fields:
        fields: Fields = {"partition": part.partition, "leader_epoch": -1, "end_offset": -1}
        try:
            ask.centre.check_allowed("describe", "topic", name)
            partition = ask.centre.partition(name, part.partition)
            log = partition.check_leader(ask.node, part.current_leader_epoch)
        except RefusedError as refused:
            return fields | {"error_code": refused.code}
        epoch, end = log.end_of_epoch(part.leader_epoch)
        return fields | {"error_code": 0, "leader_epoch": epoch, "end_offset": end}

    return {"topics": _each(ask.message.topics, "partitions", row, "topic")}


def _describe_producers(ask: Ask) -> Fields:
    def row(name: str, number: int) -> Fields:
        fields: Fields = {"partition_index": number, "error_code": 0, "active_producers": []}
        try:
            ask.centre.check_allowed("read", "topic", name)
            partition = ask.centre.partition(name, number)
            if ask.node not in partition.logs:
                raise RefusedError(NOT_LEADER_OR_FOLLOWER)
        except RefusedError as refused:
            return fields | {"error_code": refused.code}
        for producer_id, known in partition.logs[ask.node].producers:
            fields["active_producers"].append(
                {
                    "producer_id": producer_id,
                    "producer_epoch": known.epoch,
                    "last_sequence": known.last_sequence,
                    "last_timestamp": known.last_timestamp,
                    "coordinator_epoch": known.coordinator_epoch,
                    "current_txn_start_offset": -1
                    if known.txn_first_offset is None
                    else known.txn_first_offset,
                }
            )
        return fields

    return {"topics": _each(ask.message.topics, "partition_indexes", row)}


def _delete_records(ask: Ask) -> Fields:
    def row(name: str, part: Any) -> Fields:
        fields: Fields = {"partition_index": part.partition_index}
        try:
            ask.centre.check_allowed("delete", "topic", name)
            low = ask.centre.delete_records(ask.node, name, part.partition_index, part.offset)
        except RefusedError as refused:
            return fields | {"error_code": refused.code, "low_watermark": -1}
        return fields | {"error_code": 0, "low_watermark": low}

    return {"topics": _each(ask.message.topics, "partitions", row)}


HANDLERS: Final[dict[str, Handler]] = {
    "Produce": lambda ask: _Produce(ask).run(),
    "Fetch": lambda ask: _Fetch(ask).run(),
    "ListOffsets": _list_offsets,
    "OffsetForLeaderEpoch": _offset_for_leader_epoch,
    "DescribeProducers": _describe_producers,
    "DeleteRecords": _delete_records,
}

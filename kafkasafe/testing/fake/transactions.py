"""Transactions: the state of each transactional id, the partitions of its open transaction, and how it ends. Pure.

Like Kafka's coordinator, it answers EndTxn when the end is decided. The markers are written to the logs a little later.
Until then, requests for the next transaction get the answer 51.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafkasafe.record.batch import BatchHeader, CorruptBatchError, read_header
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.groups import Group, Offset, coordinator, numbered

if TYPE_CHECKING:
    from kafkasafe.testing.fake.asking import Ask, Fields
    from kafkasafe.testing.fake.centre import Centre
    from kafkasafe.testing.fake.groups import Groups
    from kafkasafe.testing.fake.log import ReplicaLog
    from kafkasafe.testing.fake.partition import Partition

__all__ = ["Transactions", "TxnState"]

NOT_COORDINATOR: Final = 16
ILLEGAL_GENERATION: Final = 22
INVALID_PRODUCER_EPOCH: Final = 47
_NOT_ADDED: Final = "Partition was not added to the transaction"
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
PRODUCER_FENCED: Final = 90
TRANSACTIONAL_ID_NOT_FOUND: Final = 105

OFFSETS_TOPIC: Final = "__consumer_offsets"

_LAST_EPOCH: Final = 2**15 - 2
_FENCED_BY_NAME: Final = {"EndTxn": 2, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "InitProducerId": 4}
_MARKERS_AGAIN_MS: Final = 20
_MARKERS_TAKE_MS: Final = 2
_SECOND_PROTOCOL: Final = {"EndTxn": 5, "Produce": 12, "TxnOffsetCommit": 5}


class TxnState(enum.Enum):
    """The state of a transactional id."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMMITTING = "PrepareCommit"
    ABORTING = "PrepareAbort"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


@dataclass(slots=True)
class _Transaction:
    producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState = TxnState.EMPTY
    began_ms: int = -1
    partitions: set[tuple[str, int]] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    previous: tuple[int, int] | None = None
    """(producer id, epoch) of the EndTxn that ended the latest transaction with protocol 2. Another EndTxn with the
    same values is a repetition.
    """
    kept: tuple[int, int] | None = None
    """(producer id, epoch) of the latest InitProducerId, or of an ended transaction. It identifies a repeated
    request."""
    second: bool = False
    """Whether the open transaction uses protocol 2."""
    complete_ms: int = -1
    """When the markers of a decided end are written."""
    markers: dict[tuple[str, int], tuple[Partition, int, int]] = field(default_factory=dict)
    """The markers that were written, by partition: the partition, the leader epoch, and the offset after the marker. A
    marker counts when it is replicated.
    """

    @property
    def ending(self) -> bool:
        """Whether an end is decided but not carried out yet."""
        return self.state is TxnState.COMMITTING or self.state is TxnState.ABORTING


class Transactions:
    """All transactional ids of a cluster.

    Attributes:
        markers_take_ms: Time between the decision of a transaction's end and its markers.
    """

    def __init__(self, centre: Centre, groups: Groups) -> None:
        self._centre = centre
        self._groups = groups
        self._known: dict[str, _Transaction] = {}
        self._epochs_of_offsets: dict[tuple[int, int], int] = {}
        self.markers_take_ms = _MARKERS_TAKE_MS

    def coordinator(self, transactional_id: str) -> int:
        """Node id of the transactional id's coordinator; -1 if there is none."""
        return coordinator(self._centre, transactional_id, "transaction.state.log.num.partitions")

    def advance(self, now_ms: int) -> None:
        """Writes markers that are due. Aborts transactions that have timed out, and fences their producers."""
        for known in self._known.values():
            if known.state is TxnState.ONGOING and now_ms - known.began_ms >= known.timeout_ms:
                ended = known.producer_id, known.epoch
                known.epoch += 1
                self._end(known, commit=False, now_ms=now_ms)
                known.previous = known.kept = ended if known.second else None
            if known.ending and now_ms >= known.complete_ms:
                self._complete(known, now_ms)

    @property
    def ending(self) -> bool:
        """Whether a transaction's end is decided, but some of its markers are not written yet."""
        return any(known.ending for known in self._known.values())

    def next_due_ms(self) -> int | None:
        """When `advance` next has something to do."""
        known = self._known.values()
        due = [one.began_ms + one.timeout_ms for one in known if one.state is TxnState.ONGOING]
        due += [one.complete_ms for one in known if one.ending]
        return min(due, default=None)

    # -- Requests ----------------------------------------------------------------------------------------------------

    def init(self, ask: Ask) -> Fields:
        """InitProducerId with a transactional id: grants a new epoch, and ends the open transaction."""
        message = ask.message
        name: str = message.transactional_id
        try:
            self._check(ask, name)
            most = int(self._centre.settings["transaction.max.timeout.ms"])
            if not 0 < message.transaction_timeout_ms <= most:
                raise RefusedError(INVALID_TRANSACTION_TIMEOUT)
            known = self._known.get(name)
            if known is None:
                known = self._known[name] = _Transaction(
                    self._centre.new_producer_id(), -1, message.transaction_timeout_ms
                )
            self._settled(known)
            named = (message.producer_id, message.producer_epoch) if ask.version >= 3 else (-1, -1)
            if known.state is TxnState.ONGOING and (named[1] < 0 or named[0] == known.producer_id):
                # The epoch in the request does not matter; it is checked only if no transaction is open.
                ended = known.producer_id, known.epoch
                known.epoch += 1
                self._end(known, commit=False, now_ms=ask.now_ms)
                known.previous = known.kept = ended if known.second else None
                self._settled(known)
            if named[1] >= 0:
                if known.kept == named:
                    known.timeout_ms, known.state = message.transaction_timeout_ms, TxnState.EMPTY
                    return {"error_code": 0, "producer_id": known.producer_id, "producer_epoch": known.epoch}
                self._check_identity(ask, "InitProducerId", known, *named)
            if known.epoch >= _LAST_EPOCH:
                known.producer_id, known.epoch = self._centre.new_producer_id(), -1
            known.epoch += 1
            known.timeout_ms = message.transaction_timeout_ms
            known.state = TxnState.EMPTY
            known.previous = None
            known.kept = named if named[1] >= 0 else None
        except RefusedError as refused:
            return {"error_code": refused.code, "producer_id": -1, "producer_epoch": -1}
        return {"error_code": 0, "producer_id": known.producer_id, "producer_epoch": known.epoch}

    def check_batch(self, name: str, topic: str, number: int, data: bytes, version: int) -> None:
        """Checks whether a transaction's batch may be appended. With protocol 2, this adds the partition.

        Raises:
            RefusedError: 47, 48 or 51.
        """
        try:
            header = read_header(data)
        except CorruptBatchError:
            return  # the append reports the fault
        if not header.is_transactional:
            return
        known = self._known.get(name)
        if known is None or known.producer_id != header.producer_id:
            raise RefusedError(INVALID_TXN_STATE, _NOT_ADDED, early=True)
        if header.producer_epoch < known.epoch and self._centre.profile.verifies_transactions:
            raise RefusedError(INVALID_PRODUCER_EPOCH, early=True)
        if version >= _SECOND_PROTOCOL["Produce"] and header.producer_epoch == known.epoch:
            self._settled(known)
            self._open(known, self._centre.now_ms, second=True)
            known.partitions.add((topic, number))
        verified = known.state is TxnState.ONGOING and (topic, number) in known.partitions
        if self._centre.profile.verifies_transactions and not verified:
            raise RefusedError(INVALID_TXN_STATE, _NOT_ADDED, early=True)

    def may_end(self, header: BatchHeader) -> bool:
        """Whether the transaction of a batch in a log is still open."""
        return any(
            (known.producer_id, known.epoch) == (header.producer_id, header.producer_epoch)
            for known in self._known.values()
        )

    @staticmethod
    def _settled(known: _Transaction) -> None:
        if known.ending:
            raise RefusedError(CONCURRENT_TRANSACTIONS)

    @staticmethod
    def _open(known: _Transaction, now_ms: int, *, second: bool = False) -> None:
        if known.state is not TxnState.ONGOING:
            known.state = TxnState.ONGOING
            known.began_ms = now_ms
            known.previous = None
            known.second = second

    def add_partitions(self, ask: Ask) -> Fields:
        """AddPartitionsToTxn as clients send it (up to version 3)."""
        message = ask.message
        code = 0
        wanted = [
            (topic.name, number) for topic in message.v3_and_below_topics for number in topic.partitions
        ]
        try:
            known = self._mine(
                ask,
                "AddPartitionsToTxn",
                message.v3_and_below_transactional_id,
                message.v3_and_below_producer_id,
                message.v3_and_below_producer_epoch,
            )
            self._settled(known)
        except RefusedError as refused:
            code = refused.code
        codes = {place: code or self._code_of(place) for place in wanted}
        if not any(codes.values()):
            self._open(known, ask.now_ms)
            known.partitions |= set(wanted)
        elif not code:
            # If one partition cannot be added, none is.
            codes = {place: found or 55 for place, found in codes.items()}
        return {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": number, "partition_error_code": codes[topic.name, number]}
                        for number in topic.partitions
                    ],
                }
                for topic in message.v3_and_below_topics
            ]
        }

    def _code_of(self, place: tuple[str, int]) -> int:
        try:
            self._centre.check_allowed("write", "topic", place[0])
            self._centre.partition(*place)
        except RefusedError as refused:
            return refused.code
        return 0

    def add_offsets(self, ask: Ask) -> Fields:
        """AddOffsetsToTxn."""
        message = ask.message
        try:
            known = self._mine(
                ask, "AddOffsetsToTxn", message.transactional_id, message.producer_id, message.producer_epoch
            )
            self._settled(known)
        except RefusedError as refused:
            return {"error_code": refused.code}
        self._open(known, ask.now_ms)
        self._add_group(known, message.group_id)
        return {"error_code": 0}

    def _add_group(self, known: _Transaction, name: str) -> None:
        known.groups.add(name)
        number = numbered(self._centre, name, "offsets.topic.num.partitions")
        known.partitions.add((OFFSETS_TOPIC, number))

    def offset_put(self, ask: Ask) -> Callable[[Group, Any, Offset], None]:
        """Keeps an offset of TxnOffsetCommit until its transaction ends."""
        message = ask.message

        def put(group: Group, where: tuple[str, int], offset: Offset) -> None:
            if self._centre.profile.verifies_transactions:
                self._check_offset(ask, group)
            self._check_log_of_offsets(ask, group)
            group.pending.setdefault(message.producer_id, {})[where] = group.append(offset)

        return put

    def _check_log_of_offsets(self, ask: Ask, group: Group) -> None:
        """The only check that old brokers make: the log that stores the offsets has seen no newer epoch."""
        message = ask.message
        number = numbered(self._centre, group.name, "offsets.topic.num.partitions")
        newest = self._epochs_of_offsets.get((number, message.producer_id), -1)
        if message.producer_epoch < newest:
            raise RefusedError(INVALID_PRODUCER_EPOCH)
        self._epochs_of_offsets[number, message.producer_id] = message.producer_epoch

    def _check_offset(self, ask: Ask, group: Group) -> None:
        message = ask.message
        known = self._known.get(message.transactional_id)
        if known is None or known.producer_id != message.producer_id:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        if message.producer_epoch != known.epoch:
            raise RefusedError(INVALID_PRODUCER_EPOCH)
        if ask.version >= _SECOND_PROTOCOL["TxnOffsetCommit"]:
            self._settled(known)
            self._open(known, ask.now_ms, second=True)
            self._add_group(known, group.name)
        elif known.state is not TxnState.ONGOING or group.name not in known.groups:
            raise RefusedError(INVALID_TXN_STATE)

    def end(self, ask: Ask) -> Fields:
        """Handles EndTxn. Version 5 grants a new epoch (KIP-890), and recognises a repetition by the old epoch."""
        message = ask.message
        second = ask.version >= _SECOND_PROTOCOL["EndTxn"]
        result = TxnState.COMMITTED if message.committed else TxnState.ABORTED
        none = {"producer_id": -1, "producer_epoch": -1}
        try:
            name = message.transactional_id
            self._check(ask, name)
            known = self._known.get(name)
            identity = message.producer_id, message.producer_epoch
            if known is not None and (known.producer_id, known.epoch) == identity:
                self._settled(known)
            if known is not None and second and known.previous == identity:
                self._settled(known)
                if known.state is not result:
                    raise RefusedError(INVALID_TXN_STATE)
                return {"error_code": 0, "producer_id": known.producer_id, "producer_epoch": known.epoch}
            known = self._mine(ask, "EndTxn", name, *identity)
            if known.state is TxnState.ONGOING:
                if second:
                    known.epoch += 1
                self._end(known, commit=bool(message.committed), now_ms=ask.now_ms)
                known.previous = known.kept = identity if second else None
            elif known.state is not result and not (second and not message.committed):
                raise RefusedError(INVALID_TXN_STATE)
            elif second and known.state is not result:
                # Aborting is allowed even without an open transaction, because a client may not know whether there is
                # one.
                known.epoch += 1
                self._end(known, commit=False, now_ms=ask.now_ms)
                known.previous = known.kept = identity
        except RefusedError as refused:
            return none | {"error_code": refused.code}
        if not second:
            return {"error_code": 0}
        return {"error_code": 0, "producer_id": known.producer_id, "producer_epoch": known.epoch}

    def describe(self, ask: Ask) -> Fields:
        """DescribeTransactions."""
        rows: list[Fields] = []
        for name in ask.message.transactional_ids:
            row: Fields = {"transactional_id": name, "producer_id": -1, "producer_epoch": -1, "topics": []}
            rows.append(row)
            known = self._known.get(name)
            if self.coordinator(name) != ask.node:
                row["error_code"] = NOT_COORDINATOR
            elif known is None:
                row["error_code"] = TRANSACTIONAL_ID_NOT_FOUND
            else:
                names = sorted({topic for topic, _ in known.partitions})
                row |= {
                    "error_code": 0,
                    "transaction_state": known.state.value,
                    "transaction_timeout_ms": known.timeout_ms,
                    "transaction_start_time_ms": known.began_ms,
                    "producer_id": known.producer_id,
                    "producer_epoch": known.epoch,
                    "topics": [
                        {
                            "topic": name,
                            "partitions": [n for other, n in sorted(known.partitions) if other == name],
                        }
                        for name in names
                    ],
                }
        return {"transaction_states": rows}

    # -- Helpers -----------------------------------------------------------------------------------------------------

    def _check(self, ask: Ask, name: str) -> None:
        self._centre.check_allowed("write", "transactional_id", name)
        if self.coordinator(name) != ask.node:
            raise RefusedError(NOT_COORDINATOR)

    def _mine(self, ask: Ask, api: str, name: str, producer_id: int, epoch: int) -> _Transaction:
        self._check(ask, name)
        known = self._known.get(name)
        if known is None:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        self._check_identity(ask, api, known, producer_id, epoch)
        return known

    @staticmethod
    def _check_identity(ask: Ask, api: str, known: _Transaction, producer_id: int, epoch: int) -> None:
        if producer_id != known.producer_id:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        if epoch != known.epoch:
            newer = ask.version >= _FENCED_BY_NAME[api]
            raise RefusedError(PRODUCER_FENCED if newer else INVALID_PRODUCER_EPOCH)

    def _end(self, known: _Transaction, *, commit: bool, now_ms: int) -> None:
        known.state = TxnState.COMMITTING if commit else TxnState.ABORTING
        known.complete_ms = now_ms + self.markers_take_ms
        if not self.markers_take_ms:
            self._complete(known, now_ms)

    def _complete(self, known: _Transaction, now_ms: int) -> None:
        commit = known.state is TxnState.COMMITTING
        left: set[tuple[str, int]] = set()
        logs: dict[tuple[str, int], ReplicaLog] = {}
        for place in sorted(known.partitions):
            try:
                partition = self._centre.partition(*place)
            except RefusedError:
                continue  # the partition's topic was deleted
            if partition.leader < 0 or not self._centre.serves(partition.leader):
                left.add(place)  # try again until the partition has a leader
                continue
            logs[place] = partition.log
            written = known.markers.get(place)
            if written is None or written[0] is not partition or written[1] != partition.leader_epoch:
                # Write the marker again if another leader was elected meanwhile, which may not have it, or if the topic
                # was created again.
                marker = partition.log.append_marker(
                    known.producer_id,
                    known.epoch,
                    commit=commit,
                    leader_epoch=partition.leader_epoch,
                    coordinator_epoch=0,
                    now_ms=now_ms,
                )
                known.markers[place] = partition, partition.leader_epoch, marker.end_offset
        self._centre.replicate()
        left |= {place for place, log in logs.items() if log.high_watermark < known.markers[place][2]}
        known.partitions = left
        if left:
            known.complete_ms = now_ms + max(self.markers_take_ms, _MARKERS_AGAIN_MS)
            return
        self._groups.end_transaction(known.producer_id, commit=commit)
        known.markers, known.groups = {}, set()
        known.state = TxnState.COMMITTED if commit else TxnState.ABORTED


def _offset_commit(ask: Ask) -> Fields:
    from kafkasafe.testing.fake.group_requests import offsets_of

    message = ask.message

    def check() -> Group:
        if ask.version >= 3 and message.generation_id >= 0:
            if ask.centre.profile.verifies_transactions and ask.groups.known(message.group_id) is None:
                raise RefusedError(ILLEGAL_GENERATION)
            return ask.groups.check_commit(
                message.group_id, message.member_id, message.generation_id, ask.now_ms
            )
        return ask.groups.get(message.group_id)

    return offsets_of(ask, message.topics, check, ask.transactions.offset_put(ask))


HANDLERS: Final = {
    "AddPartitionsToTxn": lambda ask: ask.transactions.add_partitions(ask),
    "AddOffsetsToTxn": lambda ask: ask.transactions.add_offsets(ask),
    "EndTxn": lambda ask: ask.transactions.end(ask),
    "TxnOffsetCommit": _offset_commit,
    "DescribeTransactions": lambda ask: ask.transactions.describe(ask),
}

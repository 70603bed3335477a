"""Transactions: the state of each transactional id, its transaction's partitions, and how the transaction ends. Pure.

Like Kafka's coordinator, the fake answers EndTxn when the end is decided. The markers are written to the logs a little
later. Until all markers are written, requests for the next transaction get error 51.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkasafe.record.batch import BatchHeader, CorruptBatchError, read_header
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.groups import coordinator, numbered
from kafkasafe.testing.fake.producers import INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE

if TYPE_CHECKING:
    from kafkasafe.testing.fake.centre import Centre
    from kafkasafe.testing.fake.groups import Groups
    from kafkasafe.testing.fake.log import ReplicaLog
    from kafkasafe.testing.fake.partition import Partition

_NOT_ADDED: Final = "Partition was not added to the transaction"
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51

OFFSETS_TOPIC: Final = "__consumer_offsets"

_LAST_EPOCH: Final = 2**15 - 2
_MARKERS_AGAIN_MS: Final = 20
_MARKERS_TAKE_MS: Final = 2


class TxnState(enum.Enum):
    """The state of a transactional id."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMMITTING = "PrepareCommit"
    ABORTING = "PrepareAbort"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


@dataclass(slots=True)
class TransactionMetadata:
    """The state of a transactional id, and of its transaction if one is open or ending."""

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
    """(producer id, epoch) in the latest InitProducerId request. After the end of a transaction: the values before the
    end. An InitProducerId request with the same values is a repetition.
    """
    second: bool = False
    """Whether the open transaction uses protocol 2."""
    complete_ms: int = -1
    """When the markers of a decided end are written."""
    markers: dict[tuple[str, int], tuple[Partition, int, int]] = field(default_factory=dict)
    """The written markers: (topic, number) -> the partition, its leader epoch at the write, and the offset after the
    marker. A marker counts when it is replicated.
    """

    @property
    def identity(self) -> tuple[int, int]:
        """(producer id, epoch)."""
        return self.producer_id, self.epoch

    @property
    def ending(self) -> bool:
        """Whether a commit or abort is decided, but its markers are not written yet."""
        return self.state is TxnState.COMMITTING or self.state is TxnState.ABORTING

    @property
    def due_ms(self) -> int | None:
        """Time at which the open transaction times out. For a transaction that is being ended: time at which its
        markers are written.
        """
        if self.state is TxnState.ONGOING:
            return self.began_ms + self.timeout_ms
        return self.complete_ms if self.ending else None

    def check_settled(self) -> None:
        """Raises `RefusedError` with code 51 while `ending` is true."""
        if self.ending:
            raise RefusedError(CONCURRENT_TRANSACTIONS)

    def check_identity(self, identity: tuple[int, int], old_epoch: int) -> None:
        """Raises `RefusedError` if the producer id differs (code 49), or if only the epoch differs (the code in
        `old_epoch`).
        """
        if identity[0] != self.producer_id:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        if identity[1] != self.epoch:
            raise RefusedError(old_epoch)

    def init(
        self, timeout_ms: int, named: tuple[int, int], old_epoch: int, new_producer_id: Callable[[], int]
    ) -> None:
        """Grants the next epoch. A repeated request gets the same epoch again."""
        if self.kept != named:
            begins = named[1] < 0
            if not begins:
                self.check_identity(named, old_epoch)
            if self.epoch >= _LAST_EPOCH:
                self.producer_id, self.epoch = new_producer_id(), -1
            self.epoch += 1
            self.previous = None
            self.kept = None if begins else named
        self.timeout_ms, self.state = timeout_ms, TxnState.EMPTY

    def open(self, now_ms: int, *, second: bool = False) -> None:
        """Begins a transaction, unless one is open."""
        if self.state is not TxnState.ONGOING:
            self.state, self.began_ms = TxnState.ONGOING, now_ms
            self.previous, self.second = None, second

    def add(self, *places: tuple[str, int]) -> None:
        """Adds partitions to the open transaction."""
        self.partitions.update(places)

    def add_group(self, name: str, number: int) -> None:
        """Adds a consumer group, whose offsets are stored in partition `number` of the offsets topic."""
        self.groups.add(name)
        self.add((OFFSETS_TOPIC, number))

    def decide(self, *, commit: bool, bump: bool, repeatable: bool, complete_ms: int) -> None:
        """Decides the end.

        Args:
            commit: Whether the transaction is committed.
            bump: Whether to increase the epoch, so that requests with the old epoch are fenced.
            repeatable: Whether a later EndTxn or InitProducerId request with the old epoch counts as a repetition.
            complete_ms: Time in ms at which the markers are written.
        """
        ended = self.identity
        self.epoch += bump
        self.state = TxnState.COMMITTING if commit else TxnState.ABORTING
        self.complete_ms = complete_ms
        self.previous = self.kept = ended if repeatable else None

    def write_marker(self, place: tuple[str, int], partition: Partition, now_ms: int) -> None:
        """Writes the marker to a partition's log.

        Writes the marker again if the partition has got a new leader since the last call, because the new leader may
        lack it. The same applies if the topic was created again.
        """
        written = self.markers.get(place)
        if written is None or written[0] is not partition or written[1] != partition.leader_epoch:
            marker = partition.log.append_marker(
                self.producer_id,
                self.epoch,
                commit=self.state is TxnState.COMMITTING,
                leader_epoch=partition.leader_epoch,
                now_ms=now_ms,
            )
            self.markers[place] = partition, partition.leader_epoch, marker.end_offset

    def complete(self, left: set[tuple[str, int]], again_ms: int) -> None:
        """Ends the transaction if all markers are replicated. If not, the markers are written again at `again_ms`.

        `left` contains the partitions whose markers are not replicated yet.
        """
        self.partitions = left
        if left:
            self.complete_ms = again_ms
            return
        self.markers, self.groups = {}, set()
        self.state = TxnState.COMMITTED if self.state is TxnState.COMMITTING else TxnState.ABORTED


class Transactions:
    """All transactional ids of a cluster.

    Attributes:
        markers_take_ms: Time in ms between the decision to end a transaction and the writing of its markers.
    """

    def __init__(self, centre: Centre, groups: Groups) -> None:
        self._centre = centre
        self._groups = groups
        self._known: dict[str, TransactionMetadata] = {}
        self._epochs_of_offsets: dict[tuple[int, int], int] = {}
        self.markers_take_ms = _MARKERS_TAKE_MS

    def coordinator(self, transactional_id: str) -> int:
        """Node id of the transactional id's coordinator, or -1."""
        return coordinator(self._centre, transactional_id, "transaction.state.log.num.partitions")

    def advance(self, now_ms: int) -> None:
        """Writes markers that are due. Aborts transactions that have timed out, and fences their producers."""
        for known in self._known.values():
            if known.state is TxnState.ONGOING and now_ms - known.began_ms >= known.timeout_ms:
                self._fence(known, now_ms)
            if known.ending and now_ms >= known.complete_ms:
                self._complete(known, now_ms)

    @property
    def ending(self) -> bool:
        """Whether a transaction's end is decided, but some of its markers are not written yet."""
        return any(known.ending for known in self._known.values())

    def next_due_ms(self) -> int | None:
        return min((due for one in self._known.values() if (due := one.due_ms) is not None), default=None)

    # -- Requests ----------------------------------------------------------------------------------------------------

    def init(
        self, name: str, timeout_ms: int, named: tuple[int, int], *, old_epoch: int, now_ms: int
    ) -> tuple[int, int]:
        """InitProducerId with a transactional id: grants a new epoch, and ends the open transaction.

        `named` is (producer id, epoch) in the request; both are -1 for a new producer. `old_epoch` is the error code to
        answer if the request's epoch is not current.
        """
        most = int(self._centre.settings["transaction.max.timeout.ms"])
        if not 0 < timeout_ms <= most:
            raise RefusedError(INVALID_TRANSACTION_TIMEOUT)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = TransactionMetadata(self._centre.new_producer_id(), -1, timeout_ms)
        known.check_settled()
        if known.state is TxnState.ONGOING and (named[1] < 0 or named[0] == known.producer_id):
            # A transaction is open. So the epoch in the request is not checked.
            self._fence(known, now_ms)
            known.check_settled()
        known.init(timeout_ms, named, old_epoch, self._centre.new_producer_id)
        return known.identity

    def check_batch(self, name: str, topic: str, number: int, data: bytes, *, second: bool) -> None:
        """Checks whether a transaction's batch may be appended. With protocol 2 (`second`), also adds the partition to
        the transaction.

        Raises:
            RefusedError: With code 47, 48 or 51.
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
        if second and header.producer_epoch == known.epoch:
            known.check_settled()
            known.open(self._centre.now_ms, second=True)
            known.add((topic, number))
        verified = known.state is TxnState.ONGOING and (topic, number) in known.partitions
        if self._centre.profile.verifies_transactions and not verified:
            raise RefusedError(INVALID_TXN_STATE, _NOT_ADDED, early=True)

    def may_end(self, header: BatchHeader) -> bool:
        """Whether the transaction of this batch can still end: whether a transactional id still has the batch's
        producer id and epoch.
        """
        return any(
            known.identity == (header.producer_id, header.producer_epoch) for known in self._known.values()
        )

    def number_of(self, group: str) -> int:
        """The partition of the offsets topic that stores a group's offsets."""
        return numbered(self._centre, group, "offsets.topic.num.partitions")

    def check_log_of_offsets(self, group: str, producer_id: int, epoch: int) -> None:
        """Refuses offsets if the producer has already added offsets with a newer epoch. Old brokers make no other
        check.

        Raises:
            RefusedError: With code 47.
        """
        key = self.number_of(group), producer_id
        if epoch < self._epochs_of_offsets.get(key, -1):
            raise RefusedError(INVALID_PRODUCER_EPOCH)
        self._epochs_of_offsets[key] = epoch

    def known(self, name: str) -> TransactionMetadata | None:
        """The state of a transactional id; None if it is unknown."""
        return self._known.get(name)

    # -- Helpers -----------------------------------------------------------------------------------------------------

    def _fence(self, known: TransactionMetadata, now_ms: int) -> None:
        """Aborts the open transaction, and fences its producer."""
        self.end(known, commit=False, bump=True, repeatable=known.second, now_ms=now_ms)

    def end(
        self, known: TransactionMetadata, *, commit: bool, bump: bool, repeatable: bool, now_ms: int
    ) -> None:
        """Decides the end of a transaction. See `TransactionMetadata.decide`."""
        known.decide(
            commit=commit, bump=bump, repeatable=repeatable, complete_ms=now_ms + self.markers_take_ms
        )
        if not self.markers_take_ms:
            self._complete(known, now_ms)

    def _complete(self, known: TransactionMetadata, now_ms: int) -> None:
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
            known.write_marker(place, partition, now_ms)
        self._centre.replicate()
        left |= {place for place, log in logs.items() if log.high_watermark < known.markers[place][2]}
        known.complete(left, now_ms + max(self.markers_take_ms, _MARKERS_AGAIN_MS))
        if not left:
            self._groups.end_transaction(known.producer_id, commit=known.state is TxnState.COMMITTED)

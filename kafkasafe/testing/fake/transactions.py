"""Transactions: the state of each transactional id, the partitions of its open transaction, and how it ends. Pure.

Like Kafka's coordinator, it answers EndTxn when the end is decided. The markers are written to the logs a little later.
Until then, requests for the next transaction get the answer 51.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkasafe.record.batch import BatchHeader, CorruptBatchError, read_header
from kafkasafe.testing.fake.checks import RefusedError
from kafkasafe.testing.fake.groups import Group, Offset, coordinator, numbered

if TYPE_CHECKING:
    from kafkasafe.testing.fake.centre import Centre
    from kafkasafe.testing.fake.groups import Groups
    from kafkasafe.testing.fake.log import ReplicaLog
    from kafkasafe.testing.fake.partition import Partition

__all__ = ["Transactions", "TxnState"]

INVALID_PRODUCER_EPOCH: Final = 47
_NOT_ADDED: Final = "Partition was not added to the transaction"
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
OPERATION_NOT_ATTEMPTED: Final = 55

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

    def init(
        self, name: str, timeout_ms: int, named: tuple[int, int], *, old_epoch: int, now_ms: int
    ) -> tuple[int, int]:
        """InitProducerId with a transactional id: grants a new epoch, and ends the open transaction.

        Args:
            name: The transactional id.
            timeout_ms: The transactions' timeout.
            named: (producer id, epoch) in the request; -1 for a producer that begins.
            old_epoch: Error code for another epoch than the current one.
            now_ms: The current time.

        Raises:
            RefusedError: 47, 49, 50, 51 or 90.
        """
        most = int(self._centre.settings["transaction.max.timeout.ms"])
        if not 0 < timeout_ms <= most:
            raise RefusedError(INVALID_TRANSACTION_TIMEOUT)
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Transaction(self._centre.new_producer_id(), -1, timeout_ms)
        self._settled(known)
        if known.state is TxnState.ONGOING and (named[1] < 0 or named[0] == known.producer_id):
            # The epoch in the request does not matter; it is checked only if no transaction is open.
            ended = known.producer_id, known.epoch
            known.epoch += 1
            self._end(known, commit=False, now_ms=now_ms)
            known.previous = known.kept = ended if known.second else None
            self._settled(known)
        if named[1] >= 0:
            if known.kept == named:
                known.timeout_ms, known.state = timeout_ms, TxnState.EMPTY
                return known.producer_id, known.epoch
            self._check_identity(known, named, old_epoch)
        if known.epoch >= _LAST_EPOCH:
            known.producer_id, known.epoch = self._centre.new_producer_id(), -1
        known.epoch += 1
        known.timeout_ms = timeout_ms
        known.state = TxnState.EMPTY
        known.previous = None
        known.kept = named if named[1] >= 0 else None
        return known.producer_id, known.epoch

    def check_batch(self, name: str, topic: str, number: int, data: bytes, *, second: bool) -> None:
        """Checks whether a transaction's batch may be appended. With protocol 2 (`second`), this adds the partition.

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
        if second and header.producer_epoch == known.epoch:
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

    def add_partitions(
        self,
        name: str,
        identity: tuple[int, int],
        wanted: Sequence[tuple[str, int]],
        *,
        old_epoch: int,
        now_ms: int,
    ) -> dict[tuple[str, int], int]:
        """AddPartitionsToTxn. Returns the error code of each partition.

        Raises:
            RefusedError: 47, 49, 51 or 90.
        """
        known = self._mine(name, identity, old_epoch)
        self._settled(known)
        codes = {place: self._code_of(place) for place in wanted}
        if any(codes.values()):
            # If one partition cannot be added, none is.
            return {place: found or OPERATION_NOT_ATTEMPTED for place, found in codes.items()}
        self._open(known, now_ms)
        known.partitions |= set(wanted)
        return codes

    def _code_of(self, place: tuple[str, int]) -> int:
        try:
            self._centre.check_allowed("write", "topic", place[0])
            self._centre.partition(*place)
        except RefusedError as refused:
            return refused.code
        return 0

    def add_offsets(
        self, name: str, identity: tuple[int, int], group: str, *, old_epoch: int, now_ms: int
    ) -> None:
        """AddOffsetsToTxn.

        Raises:
            RefusedError: 47, 49, 51 or 90.
        """
        known = self._mine(name, identity, old_epoch)
        self._settled(known)
        self._open(known, now_ms)
        self._add_group(known, group)

    def _add_group(self, known: _Transaction, name: str) -> None:
        known.groups.add(name)
        number = numbered(self._centre, name, "offsets.topic.num.partitions")
        known.partitions.add((OFFSETS_TOPIC, number))

    def put_offset(
        self,
        name: str,
        identity: tuple[int, int],
        group: Group,
        where: tuple[str, int],
        offset: Offset,
        *,
        second: bool,
        now_ms: int,
    ) -> None:
        """TxnOffsetCommit: keeps an offset until its transaction ends. With protocol 2 (`second`), this adds the group.

        Raises:
            RefusedError: 47, 48, 49 or 51.
        """
        if self._centre.profile.verifies_transactions:
            self._check_offset(name, identity, group.name, second=second, now_ms=now_ms)
        self._check_log_of_offsets(identity, group.name)
        group.pending.setdefault(identity[0], {})[where] = group.append(offset)

    def _check_log_of_offsets(self, identity: tuple[int, int], group: str) -> None:
        """The only check that old brokers make: the log that stores the offsets has seen no newer epoch."""
        producer_id, epoch = identity
        number = numbered(self._centre, group, "offsets.topic.num.partitions")
        if epoch < self._epochs_of_offsets.get((number, producer_id), -1):
            raise RefusedError(INVALID_PRODUCER_EPOCH)
        self._epochs_of_offsets[number, producer_id] = epoch

    def _check_offset(
        self, name: str, identity: tuple[int, int], group: str, *, second: bool, now_ms: int
    ) -> None:
        known = self._mine(name, identity, INVALID_PRODUCER_EPOCH)
        if second:
            self._settled(known)
            self._open(known, now_ms, second=True)
            self._add_group(known, group)
        elif known.state is not TxnState.ONGOING or group not in known.groups:
            raise RefusedError(INVALID_TXN_STATE)

    def end(
        self,
        name: str,
        identity: tuple[int, int],
        *,
        commit: bool,
        second: bool,
        old_epoch: int,
        now_ms: int,
    ) -> tuple[int, int]:
        """EndTxn. Protocol 2 (`second`) grants a new epoch (KIP-890), and recognises a repetition by the old epoch.

        Returns:
            The producer id and the epoch of the next transaction.

        Raises:
            RefusedError: 47, 48, 49, 51 or 90.
        """
        result = TxnState.COMMITTED if commit else TxnState.ABORTED
        known = self._known.get(name)
        if known is not None and (known.producer_id, known.epoch) == identity:
            self._settled(known)
        if known is not None and second and known.previous == identity:
            self._settled(known)
            if known.state is not result:
                raise RefusedError(INVALID_TXN_STATE)
            return known.producer_id, known.epoch
        known = self._mine(name, identity, old_epoch)
        if known.state is TxnState.ONGOING:
            if second:
                known.epoch += 1
            self._end(known, commit=commit, now_ms=now_ms)
            known.previous = known.kept = identity if second else None
        elif known.state is not result and not (second and not commit):
            raise RefusedError(INVALID_TXN_STATE)
        elif second and known.state is not result:
            # Aborting is allowed even without an open transaction, because a client may not know whether there is one.
            known.epoch += 1
            self._end(known, commit=False, now_ms=now_ms)
            known.previous = known.kept = identity
        return known.producer_id, known.epoch

    def known(self, name: str) -> _Transaction | None:
        """The state of a transactional id; None if it is unknown."""
        return self._known.get(name)

    # -- Helpers -----------------------------------------------------------------------------------------------------

    def _mine(self, name: str, identity: tuple[int, int], old_epoch: int) -> _Transaction:
        known = self._known.get(name)
        if known is None:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        self._check_identity(known, identity, old_epoch)
        return known

    @staticmethod
    def _check_identity(known: _Transaction, identity: tuple[int, int], old_epoch: int) -> None:
        if identity[0] != known.producer_id:
            raise RefusedError(INVALID_PRODUCER_ID_MAPPING)
        if identity[1] != known.epoch:
            raise RefusedError(old_epoch)

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

"""KafkaProducer's transactional methods and errors, implemented with atomic batches (`kafkasafe.atomic`).

The records sent between `begin_transaction` and `commit_transaction` are one atomic batch. The batch stays in memory
until `commit_transaction`. `commit_transaction` writes the whole batch to disk before any of its records is sent, and
the batch is delivered as a whole even after crashes. So an aborted transaction leaves nothing in any log, and a
committed transaction survives an outage.
"""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import kafka.errors as kafka_errors
from kafka import TopicPartition
from kafka.producer.future import RecordMetadata
from kafka.structs import ConsumerGroupMetadata

from kafkasafe import marks as m
from kafkasafe._producing.accepted_record import AcceptedRecord
from kafkasafe._producing.record_future import OpenProducer, RecordFuture
from kafkasafe.atomic import AtomicBatch, BatchOutcome
from kafkasafe.codes.sets import FENCED_CODES, NOT_A_MEMBER_CODES
from kafkasafe.delivery.callbacks import take
from kafkasafe.errors import BatchDroppedError, WaitTimeoutError, dropped_for_code
from kafkasafe.logs import EventLog
from kafkasafe.spool.refusals import because

if TYPE_CHECKING:
    from kafkasafe._producing.open_batch import OpenBatch
    from kafkasafe._producing.opening import ProducerParts
    from kafkasafe.delivery.engine.parcels import Parcel

__all__ = ["LastTransaction", "ProducerTransactions", "TransactionFuture"]

log = EventLog("producer")

_METADATA_WAIT_S: Final = 1.0


class State(enum.Enum):
    """State of a transactional producer, with kafka-python's names."""

    UNINITIALIZED = "UNINITIALIZED"
    READY = "READY"
    IN_TRANSACTION = "IN_TRANSACTION"
    COMMITTING_TRANSACTION = "COMMITTING_TRANSACTION"
    ABORTING_TRANSACTION = "ABORTING_TRANSACTION"
    ABORTABLE_ERROR = "ABORTABLE_ERROR"
    FATAL_ERROR = "FATAL_ERROR"


_FROM: Final[Mapping[State, frozenset[State]]] = {
    State.IN_TRANSACTION: frozenset({State.READY}),
    # COMMITTING may follow COMMITTING: if commit_transaction() was interrupted, a repeated call continues the same
    # commit.
    State.COMMITTING_TRANSACTION: frozenset({State.IN_TRANSACTION, State.COMMITTING_TRANSACTION}),
    # The same holds for ABORTING.
    State.ABORTING_TRANSACTION: frozenset(
        {State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING_TRANSACTION}
    ),
}


@dataclass(frozen=True, slots=True)
class LastTransaction:
    """Result of the last transaction that an earlier producer with the same transactional id asked to commit.

    Attributes:
        batch_id: Id of the transaction's batch, as `kafkasafe spool ls` shows it.
        committed: Whether `read_committed` consumers see the whole transaction; if not, they see nothing of it.
        offsets: Offsets that were part of the transaction, by consumer group.
        error: Why the transaction was not committed; None if it was committed.
    """

    batch_id: str
    committed: bool
    offsets: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)
    error: BaseException | None = None


class TransactionFuture(RecordFuture):
    """The result of one `send` in a transaction.

    While the transaction is open, the record is in memory only, and `get()` returns at once, with offset -1: this
    result shows only that the record was accepted. After `commit_transaction` the future behaves like that of any other
    record.
    """

    __slots__ = ("_given_partition", "_transaction")

    _transaction: _Transaction
    _given_partition: int

    def belong_to(self, transaction: _Transaction, partition: int) -> TransactionFuture:
        """Set the transaction that the future's record belongs to. `partition` is -1 if the caller chose none."""
        self._transaction, self._given_partition = transaction, partition
        return self

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """Wait until the transaction is committed. If it is still open, return metadata without an offset at once.

        Args:
            timeout: Seconds; None for no limit.

        Raises:
            TransactionAbortedError: The transaction was aborted.
            KafkaTimeoutError, BatchDroppedError: As for `BatchOutcome.get`.
        """
        self._raise_aborted()
        return self._not_sent() if self._transaction.is_open else super().get(timeout)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        """Wait in a coroutine until the transaction is committed. If it is still open, return metadata without an
        offset at once.

        Raises:
            TransactionAbortedError: The transaction was aborted.
        """
        self._raise_aborted()
        if self._transaction.is_open:
            return self._not_sent()
        return (yield from super().__await__())

    def _not_sent(self) -> RecordMetadata:
        at = TopicPartition(self.open_batch.topic, self._given_partition)
        return RecordMetadata(at.topic, at.partition, at, -1, -1, None, -1, -1, -1)

    def durable(self, timeout: float | None = None) -> RecordFuture:
        """Wait until the transaction is on disk. `commit_transaction` writes it there.

        Raises:
            TransactionAbortedError: The transaction was aborted.
            UsageError: The transaction is still open.
        """
        self._raise_aborted()
        return super().durable(timeout)

    @property
    def is_done(self) -> bool:  # type: ignore[override]
        """Whether the transaction is committed, aborted or dropped."""
        return self._transaction.aborted or super().is_done

    def _accepted(self) -> _RecordOfTransaction:
        return _RecordOfTransaction(self.producer.parts, self._transaction, self.open_batch, self.index)

    def _enlisted(self, calls: list[Any], call: Callable[..., Any]) -> bool:
        # The callback thread handles only batches that take no more records. The batch of an aborted transaction never
        # reaches this state, so the caller makes the call itself.
        return not self._transaction.aborted and super()._enlisted(calls, call)

    def _raise_aborted(self) -> None:
        if self._transaction.aborted:
            raise kafka_errors.TransactionAbortedError

    def __repr__(self) -> str:
        if self._transaction.aborted:
            return f"<TransactionFuture {self.open_batch.topic} aborted>"
        return super().__repr__()


class _RecordOfTransaction(AcceptedRecord):
    """A record of a transaction."""

    __slots__ = ("_transaction",)

    def __init__(
        self, parts: ProducerParts, transaction: _Transaction, open_batch: OpenBatch, index: int
    ) -> None:
        super().__init__(parts, open_batch, index)
        self._transaction = transaction

    @property
    def is_done(self) -> bool:
        """Whether the transaction is committed, aborted or dropped."""
        return self._transaction.aborted or super().is_done

    @property
    def error(self) -> BaseException | None:
        if self._transaction.aborted:
            return kafka_errors.TransactionAbortedError()
        return super().error


class _Transaction(AtomicBatch):
    """One transaction."""

    aborted = False
    _informed = True

    @property
    def is_open(self) -> bool:
        """Whether records can still be added."""
        return not self._made

    @property
    def is_empty(self) -> bool:
        """Whether the transaction has neither records nor offsets."""
        return not self._open_batches and not self.offsets

    def drop(self) -> None:
        """Discard the transaction, and call the errbacks of its records. If the call was interrupted, another call
        finishes it.
        """
        self.decision.drop()
        self.aborted = True
        for open_batch in self._open_batches:
            if open_batch.errbacks:
                self._parts.delivery.callbacks.put(functools.partial(self._call_errbacks, open_batch))
            open_batch.forget()
        super().drop()  # clears the list

    def _call_errbacks(self, open_batch: OpenBatch) -> None:
        """Call the errbacks that no earlier call has taken from the list. Runs on the callback thread."""
        functions = take(open_batch.errbacks)[1::2]
        errors = [kafka_errors.TransactionAbortedError() for _ in functions]
        self._parts.delivery.callbacks.call(functions, errors)


class ProducerTransactions:
    """The transactions of a producer with a `transactional_id`. As with KafkaProducer, only one thread may use them at
    a time.
    """

    def __init__(self, parts: ProducerParts) -> None:
        self._parts = parts
        self._id = parts.config.transactional_id or ""
        self._state = State.UNINITIALIZED
        self._error: BaseException | None = None
        self._open: _Transaction | None = None
        pump = parts.delivery.pump
        self._log = log.bind(client_id=parts.config.client_id)
        # List these batches before the delivery thread (`pump`) starts: as soon as it runs, a batch may end, and a
        # later list would lack this batch.
        self._earlier: list[Parcel] = [
            head
            for head in pump.ledger.parcels.open.values()
            if head.unit_handle is not None
            and head.unit_handle.transactional_id == self._id
            and not head.count
        ]
        self._ended = pump.earlier(self._id)
        self._asked = False
        self._checked_topics: set[str] = set()
        """Topics whose partitions `send` has looked up. `send` does this when a record first names a partition of the
        topic.
        """

    # -- the methods -------------------------------------------------------------------------------------------------

    def init(self) -> LastTransaction | None:
        """See `SafeProducer.init_transactions`."""
        if self._state is not State.UNINITIALIZED:
            return None
        pump, limit_s = self._parts.delivery.pump, self._parts.config.max_block_s
        deadline = time.monotonic() + limit_s
        waiting = (
            f"the last transaction was not finished within {limit_s:g} s. It is on disk, and the producer goes on with"
            " it"
        )
        self._await(lambda: all(head.done for head in self._earlier), deadline, waiting)
        if not self._asked:
            pump.take_over(self._id)
            self._asked = True
        self._await(
            lambda: pump.ledger.names.get(self._id, False) is not False,
            deadline,
            f"not granted within {limit_s:g} s",
        )
        error = pump.ledger.names[self._id]
        if error is not None:
            self._asked = False
            pump.ledger.names.pop(self._id, None)
            raise error
        self._state = State.READY
        return self._last()

    def _await(self, ready: Callable[[], bool], deadline: float, what: str) -> None:
        parts = self._parts
        left_s = max(0.0, deadline - time.monotonic())
        if parts.delivery.pump.wait(ready, left_s):
            return
        parts.delivery.raise_failure()
        parts.delivery.raise_wrong_cluster()
        raise WaitTimeoutError(
            f"transactional_id {self._id}: {what}. Call init_transactions() again to wait longer"
            f"{parts.delivery.pump.ledger.name_trouble.get(self._id, '')}.{because(parts.delivery.pump.refused())}"
            f"{parts.delivery.network_cause()}"
        )

    def _last(self) -> LastTransaction | None:
        last: LastTransaction | None = None
        if self._ended is not None:
            unit, mark = self._ended
            committed = mark.outcome is m.UnitOutcome.COMMITTED
            error = None if committed else BatchDroppedError(mark.reason)
            last = LastTransaction(unit.unit_id.hex(), committed, _by_group(unit.offsets), error)
        for head in self._earlier:
            unit_handle = head.unit_handle
            if unit_handle is None:
                continue
            offsets = _by_group(unit_handle.offsets)
            last = LastTransaction(unit_handle.unit_id.hex(), head.error is None, offsets, head.error)
            if last.committed:
                self._log.info(
                    "%s: the transaction %s, which an earlier producer had decided to commit, is committed",
                    self._id,
                    last.batch_id,
                    event="transaction_recovered",
                )
            else:
                self._log.warning(
                    "%s: the transaction %s, which an earlier producer had decided to commit, was not committed: %s",
                    self._id,
                    last.batch_id,
                    last.error,
                    event="transaction_recovered",
                )
        self._earlier = []
        return last

    def begin(self, producer: OpenProducer) -> None:
        """See `SafeProducer.begin_transaction`."""
        self._raise_error()
        self._check(State.IN_TRANSACTION)
        self._open = _Transaction(producer, self._id)
        self._move(State.IN_TRANSACTION)

    def send(
        self,
        producer: OpenProducer,
        topic: str,
        value: Any,
        key: Any,
        headers: list[tuple[str, bytes | None]] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> RecordFuture:
        """See `SafeProducer.send`. The future refers to this producer."""
        self._parts.lifecycle.raise_closed()
        if self._error is not None:
            raise kafka_errors.KafkaError(
                "Cannot perform send because at least one previous transactional or idempotent request has failed with"
                f" errors: {self._error}"
            ) from self._error
        if self._state is State.UNINITIALIZED:
            raise kafka_errors.IllegalStateError(
                "Cannot perform a 'send' before completing a call to init_transactions when transactions are enabled."
            )
        batch = self._open
        if self._state is not State.IN_TRANSACTION or batch is None:
            raise kafka_errors.IllegalStateError(f"Cannot call send in state {self._state.value}")
        if type(partition) is int:
            self._check_partition_exists(topic, partition)
        accepted = batch.send(topic, value, key, headers, partition, timestamp_ms)
        future: TransactionFuture = TransactionFuture()
        future.refer_to(producer, accepted.open_batch, accepted.index)
        return future.belong_to(batch, -1 if partition is None else partition)

    def _check_partition_exists(self, topic: str, partition: int) -> None:
        """Refuse a partition that the topic does not have: the commit would wait until the partition exists, and the
        transaction could no longer be aborted.
        """
        parts = self._parts
        parts.admission.check_topic(topic)
        if topic in self._checked_topics or parts.partitioning.knows(topic) or not parts.cluster.connected:
            return
        limit_s = min(_METADATA_WAIT_S, parts.config.max_block_s)
        known = parts.delivery.known_partitions(topic, limit_s)
        if known and partition not in known:
            raise ValueError(f"Unrecognized partition {partition} for topic {topic}: it has {len(known)}")
        self._checked_topics.add(topic)

    def send_offsets(self, offsets: Mapping[TopicPartition, Any], group: Any) -> None:
        """See `SafeProducer.send_offsets_to_transaction`."""
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group_id=group)
        elif not isinstance(group, ConsumerGroupMetadata):
            raise TypeError(
                "send_offsets_to_transaction expects group_metadata to be a ConsumerGroupMetadata or a group_id str,"
                f" got {type(group)!r}"
            )
        if group.generation_id > 0 and not group.member_id:
            raise ValueError(
                f"Invalid ConsumerGroupMetadata: generation_id={group.generation_id} implies a joined group but"
                " member_id is empty"
            )
        self._raise_error()
        if self._state is not State.IN_TRANSACTION or self._open is None:
            raise kafka_errors.KafkaError(
                "Cannot send offsets to transaction because the producer is not in an active transaction"
            )
        if not isinstance(offsets, Mapping):
            # Without this check, the transaction would be committed without offsets, and the consumer would read its
            # input again.
            raise TypeError(
                f"send_offsets_to_transaction expects a dict of offsets by partition, got {offsets!r}"
            )
        if offsets:
            self._open.send_offsets(offsets, group)

    def commit(self) -> None:
        """See `SafeProducer.commit_transaction`."""
        self._raise_error()
        self._check(State.COMMITTING_TRANSACTION)
        batch = self._open
        if batch is None:
            raise AssertionError("There is no transaction")
        if batch.is_open:
            if batch.is_empty:
                self._state, self._open = State.READY, None
                return
            try:
                batch.commit()
            except BatchDroppedError as dropped:
                self._dropped(dropped)
        self._state = State.COMMITTING_TRANSACTION
        self._ended_with(batch.outcome)

    def _ended_with(self, outcome: BatchOutcome) -> None:
        try:
            outcome.get()
        except BatchDroppedError as dropped:
            self._dropped(dropped)
        self._state, self._open = State.READY, None

    def _dropped(self, dropped: BatchDroppedError) -> NoReturn:
        error = _as_kafka_python(dropped)
        fatal = isinstance(error, kafka_errors.ProducerFencedError)
        state = State.FATAL_ERROR if fatal else State.ABORTABLE_ERROR
        # A Ctrl-C cannot separate these three assignments, because Python handles signals only at calls and loops, and
        # this line has none. After an earlier Ctrl-C, a repeated call of commit_transaction() continues the commit.
        self._state, self._error, self._open = state, error, None
        raise error from dropped

    def abort(self) -> None:
        """See `SafeProducer.abort_transaction`."""
        if self._state not in {State.ABORTABLE_ERROR, State.ABORTING_TRANSACTION}:
            self._raise_error()
        if self._state is State.IN_TRANSACTION and self._open is not None and not self._open.is_open:
            # commit_transaction() was interrupted (Ctrl-C) after the batch was accepted.
            self._state = State.COMMITTING_TRANSACTION
        self._move(State.ABORTING_TRANSACTION)
        if self._open is not None:
            self._open.drop()
        self._open = self._error = None
        self._state = State.READY

    def close(self) -> None:
        """Abort an open transaction."""
        batch, self._open = self._open, None
        if batch is not None and batch.is_open:
            if not batch.is_empty:
                self._log.warning(
                    "%s: the producer was closed with an open transaction. It is aborted, and none of its records was"
                    " sent",
                    self._id,
                    event="transaction_aborted",
                )
            batch.drop()

    # -- states ------------------------------------------------------------------------------------------------------

    def _raise_error(self) -> None:
        if self._error is not None:
            raise kafka_errors.KafkaError(
                f"Cannot execute transactional method because we are in an error state: {self._error}"
            ) from self._error

    def _move(self, to: State) -> None:
        self._check(to)
        self._state = to

    def _check(self, to: State) -> None:
        if self._state not in _FROM[to]:
            raise kafka_errors.KafkaError(
                f"TransactionalId {self._id}: Invalid transition attempted from state {self._state.value} to state"
                f" {to.value}"
            )


def _by_group(offsets: Sequence[m.GroupOffsets]) -> dict[str, dict[TopicPartition, int]]:
    return {
        each.group: {TopicPartition(at.topic, at.partition): at.offset for at in each.positions}
        for each in offsets
    }


def _as_kafka_python(dropped: BatchDroppedError) -> BaseException:
    """Return the error that KafkaProducer raises if a transaction fails with this code."""
    if dropped.code in FENCED_CODES:
        fenced: BaseException = kafka_errors.ProducerFencedError(str(dropped))
        return fenced
    if dropped.code in NOT_A_MEMBER_CODES:
        failed: BaseException = kafka_errors.CommitFailedError(
            f"Transaction offset commit failed due to consumer group metadata mismatch: {dropped}"
        )
        return failed
    return dropped_for_code(str(dropped), dropped.code)

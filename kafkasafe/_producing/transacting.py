"""KafkaProducer's transactional methods. `kafkasafe.transactional` implements them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.structs import TopicPartition

from kafkasafe._producing.closing import Closing

if TYPE_CHECKING:
    from kafkasafe.transactional import LastTransaction, Transactions

__all__ = ["Transacting"]


class Transacting(Closing):
    """Part of `SafeProducer`."""

    def init_transactions(self) -> LastTransaction | None:
        """Take over the transactional id. Call it once, before the first transaction.

        The cluster fences older producers with the same id. If an earlier producer on this spool called
        `commit_transaction` and then stopped, for any reason, that transaction is finished first.

        Returns:
            The result of the last such transaction, if this spool knows one; else None. (Transactions without a call of
            `commit_transaction` were never sent.) A second call does nothing and returns None.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaTimeoutError: Not finished within `max_block_ms`. Nothing is lost; call it again to wait longer.
            TransactionalIdAuthorizationFailedError, InvalidTransactionTimeoutError: The cluster refuses the id.
        """
        return self._in_transactions().init()

    def begin_transaction(self) -> None:
        """Begin a transaction. From now on `send` and `send_offsets_to_transaction` belong to it.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaError: `init_transactions` was not called, a transaction is open, the producer is fenced, or an error
                was not followed by `abort_transaction`.
        """
        self._in_transactions().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, Any],
        group_metadata: Any,
    ) -> None:
        """Commit a consumer's offsets in the transaction. `commit_transaction` raises errors of the group.

        Args:
            offsets: `{TopicPartition: OffsetAndMetadata}`; the offset is that of the next record to read.
            group_metadata: The consumer's `group_metadata()`, or the name of a group that has no members.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaError: No transaction is open.
            TypeError, ValueError: `group_metadata` has another type, or is inconsistent.
        """
        self._in_transactions().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Commit the transaction. Once it is on disk, the decision to commit is final and survives any crash.

        The call returns when `read_committed` consumers can see the records. It waits without a limit. If it is
        interrupted, call it again; or a later producer's `init_transactions` finishes the transaction.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            ProducerFencedError: Another producer has taken over the id. Nothing of the transaction is delivered, and
                this producer can only be closed.
            CommitFailedError: The consumer whose offsets are part of the transaction is no longer in its group. Nothing
                is delivered: call `abort_transaction`.
            BatchDroppedError: The cluster rejected the transaction permanently, and its records are in `rejected/`:
                call `abort_transaction`.
            SpoolFullError: There was no room within `max_block_ms`. The transaction is still open.
            KafkaError: No transaction is open.
        """
        self._in_transactions().commit()

    def abort_transaction(self) -> None:
        """Abort the transaction. None of its records was sent; their futures have a TransactionAbortedError.

        Raises:
            IllegalStateError: The producer has no `transactional_id`.
            KafkaError: No transaction is open, or the producer is fenced.
        """
        self._in_transactions().abort()

    def _in_transactions(self) -> Transactions:
        self._lifecycle.check_fork()
        if self._transactions is None:
            raise kafka_errors.IllegalStateError(
                "Transactional method invoked on a non-transactional producer: set transactional_id"
            )
        self._lifecycle.raise_closed()
        return self._transactions

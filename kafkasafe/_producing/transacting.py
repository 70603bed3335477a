"""KafkaProducer's methods of transactions. `kafkasafe.transactional` carries them out."""

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
        """Take the transactional id over. Call it once, before the first transaction.

        Older producers with the same id are fenced. A transaction that `commit_transaction` was called for, by an
        earlier producer on this spool, is brought to its end first, whatever stopped that one.

        Returns:
            What became of the last such transaction, as far as this spool knows one; else None: what an earlier
            producer had not decided to commit was never sent. A second call does nothing and returns None.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaTimeoutError: Not done within `max_block_ms`. Nothing is lost; another call waits on.
            TransactionalIdAuthorizationFailedError, InvalidTransactionTimeoutError: The cluster refuses it.
        """
        return self._in_transactions().init()

    def begin_transaction(self) -> None:
        """From now on `send` and `send_offsets_to_transaction` are part of one transaction.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaError: Before `init_transactions`, in a transaction, fenced, or after an error and before its abort.
        """
        self._in_transactions().begin()

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, Any],
        group_metadata: Any,
    ) -> None:
        """Commit a consumer's offsets in the transaction. The group's answer comes with `commit_transaction`.

        Args:
            offsets: `{TopicPartition: OffsetAndMetadata}`; the offset is that of the next record to be read.
            group_metadata: The consumer's `group_metadata()`, or the name of a group that has no members.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaError: Not in a transaction.
            TypeError, ValueError: `group_metadata` is neither, or makes no sense.
        """
        self._in_transactions().send_offsets(offsets, group_metadata)

    def commit_transaction(self) -> None:
        """Commit: from the moment that it is on disk it is decided, and survives whatever crashes.

        Returns when readers of committed records can see it. It waits for as long as that takes; interrupted, it may be
        called again, and a later producer's `init_transactions` goes on with it.

        Raises:
            IllegalStateError: No `transactional_id`.
            ProducerFencedError: Another producer has taken the id over. Nothing of the transaction is delivered, and
                this producer can only be closed.
            CommitFailedError: The consumer whose offsets are part of it is not in its group any more. Nothing of it is
                delivered: call `abort_transaction`.
            BatchDroppedError: The cluster refused it for good, its records are in `rejected/`: call
                `abort_transaction`.
            SpoolFullError: No room within `max_block_ms`. It is still open.
            KafkaError: Not in a transaction.
        """
        self._in_transactions().commit()

    def abort_transaction(self) -> None:
        """Forget it. Nothing of it was sent; its futures have a TransactionAbortedError.

        Raises:
            IllegalStateError: No `transactional_id`.
            KafkaError: Not in a transaction, or fenced.
        """
        self._in_transactions().abort()

    def _in_transactions(self) -> Transactions:
        self._check_fork()
        if self._transactions is None:
            raise kafka_errors.IllegalStateError(
                "Transactional method invoked on a non-transactional producer: set transactional_id"
            )
        self._raise_closed()
        return self._transactions

"""The requests of transactions (`Cluster.transactions`). The rules of `kafkasafe.cluster.api` hold for these requests,
too.

One transaction is a sequence of requests. Any process that knows the `TransactionIdentity` can send each request:

    init_transactional_id        → identity; fences older holders, and aborts the transaction that they left open
    add_partitions_to_transaction  with protocol 1 only
    produce                        batches stamped with the identity, `ProduceRequest.transaction` set
    add_offsets_to_transaction     with protocol 1 only
    commit_offsets_in_transaction
    end_transaction              → the identity of the next transaction

*Protocol 1* is the protocol of KIP-98. Partitions and groups must be added before the client writes to them, and the
identity stays the same from one transaction to the next. So a delayed EndTxn request can end the *next* transaction of
the transactional id. A client can avoid such an error in two ways: it obtains a new identity after each EndTxn that was
not answered, or it uses a separate transactional id for each transaction.

*Protocol 2* (KIP-890, Kafka 4.0 and later, if the feature `transaction.version` is at level 2) adds partitions and
groups implicitly, and gives each transaction its own epoch. The coordinator refuses requests of an earlier transaction,
and answers a repeated EndTxn as before.

Rules in addition to the rules of `Cluster`:

- *`Cluster` finds coordinators itself*, as it finds leaders. `Cluster` looks for a coordinator again when an answer or
  a failure shows that the coordinator may have moved. `Cluster` repeats no request: the caller gets the codes 14, 15,
  16 and 51, and tries again after a pause. If the search for the coordinator returns an error code, the answer has this
  code, and the request was not sent.
- *Each answer has an `error_code`*; no method turns codes into failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from kafkasafe.cluster.answers import Reply, TransactionIdentity

__all__ = [
    "NO_MEMBER",
    "GroupMember",
    "OffsetCommitted",
    "OffsetToCommit",
    "OffsetsCommitted",
    "PartitionsAdded",
    "TopicPartition",
    "TransactionAnswer",
    "TransactionDescribed",
    "TransactionEnded",
    "TransactionIdentity",
    "Transactions",
    "TransactionsInitialized",
]

TopicPartition: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TransactionsInitialized:
    """The answer to InitProducerId with a transactional id; `identity` is None after an error."""

    error_code: int
    identity: TransactionIdentity | None = None


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The answer to AddPartitionsToTxn.

    Attributes:
        error_code: 0 if all partitions were added. If a partition could not be added, no partition was added, and this
            is the first error code other than 55, or 55 if there is no other one.
        error_codes: Code of each partition. 55: not attempted because of another partition's error.
    """

    error_code: int
    error_codes: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """An answer that has only an error code."""

    error_code: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """The member on whose behalf offsets are committed. The group refuses the commit if this member has left the group.

    Attributes:
        member_id: Assigned by the group's coordinator.
        generation_id: The generation in which the member got its partitions.
        group_instance_id: Id of a static member; None for others.
    """

    member_id: str
    generation_id: int
    group_instance_id: str | None = None


NO_MEMBER: Final = GroupMember("", -1)
"""Stands for no member: the coordinator accepts the offsets without a check of the membership."""


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """A group's position: the offset of the next record to read.

    Attributes:
        offset: End of the processed records (exclusive).
        metadata: Text to store with the offset.
        leader_epoch: Leader epoch of the last processed record; -1 if unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """The answer to TxnOffsetCommit.

    Attributes:
        error_code: Code of the first partition that has an error; 0 for success.
        error_codes: Code of each partition. Offsets without an error are part of the transaction.
    """

    error_code: int
    error_codes: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A group's committed offset of one partition.

    Attributes:
        error_code: Kafka's error code. 88: an open transaction may change this offset.
        offset: The committed offset; -1 for none.
        metadata: Text that was stored with the offset.
        leader_epoch: Leader epoch of the last processed record; -1 if unknown.
    """

    error_code: int
    offset: int = -1
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The answer to EndTxn.

    Attributes:
        error_code: Kafka's error code; 0 for success, also if the request repeats an earlier EndTxn.
        identity: Identity of the next transaction; unchanged with protocol 1; None after an error.
    """

    error_code: int
    identity: TransactionIdentity | None = None


@dataclass(frozen=True, slots=True)
class TransactionDescribed:
    """The answer to DescribeTransactions.

    Attributes:
        error_code: Kafka's error code. 105: the coordinator does not know the transactional id.
        state: Kafka's word: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead or
            PrepareEpochFence.
        producer_id: Producer id of the latest holder.
        epoch: Epoch of the latest holder.
        timeout_ms: Time, in ms, after which the coordinator aborts an open transaction.
        partitions: Partitions of the transaction, including partitions of `__consumer_offsets`.
    """

    error_code: int
    state: str = ""
    producer_id: int = -1
    epoch: int = -1
    timeout_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()


class Transactions(Protocol):
    """The requests of transactions. The docstrings of this module and of `kafkasafe.cluster.api` state the rules for
    all methods.
    """

    def init_transactional_id(
        self,
        transactional_id: str,
        transaction_timeout_ms: int,
        reply: Reply[TransactionsInitialized],
        *,
        keep: TransactionIdentity | None = None,
    ) -> None:
        """Takes over a transactional id: the coordinator fences older holders and aborts their open transaction.

        While the coordinator is still aborting the open transaction, it answers with error code 51.

        Args:
            transactional_id: The transactional id to take over.
            transaction_timeout_ms: Time, in ms, after which the coordinator aborts a transaction that has not ended.
                The coordinator answers with error code 50 if this time is larger than the brokers'
                `transaction.max.timeout.ms`.
            reply: Gets `TransactionsInitialized` or `Failure`.
            keep: The client's present identity. The coordinator refuses the request (47 or 90) if another client has
                taken over since the identity was granted (Kafka 2.5 and later).
        """

    def add_partitions_to_transaction(
        self,
        identity: TransactionIdentity,
        partitions: Sequence[TopicPartition],
        reply: Reply[PartitionsAdded],
    ) -> None:
        """Adds partitions to the transaction, all or none of them. Adding the first partition begins the transaction.

        Allowed but not necessary with protocol 2.
        """

    def add_offsets_to_transaction(
        self, identity: TransactionIdentity, group: str, reply: Reply[TransactionAnswer]
    ) -> None:
        """Adds a group's offsets to the transaction. Allowed but not necessary with protocol 2."""

    def commit_offsets_in_transaction(
        self,
        identity: TransactionIdentity,
        group: str,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        reply: Reply[OffsetsCommitted],
        *,
        member: GroupMember = NO_MEMBER,
    ) -> None:
        """Writes a group's offsets as part of the transaction. The offsets take effect when the transaction is
        committed.

        With protocol 1, the caller must first add the group to the transaction (`add_offsets_to_transaction`). Error
        code 22, 25 or 82: the group does not have this `member` (any more). Brokers before 2.5 ignore the member.
        """

    def committed_offset(
        self,
        group: str,
        topic: str,
        partition: int,
        reply: Reply[OffsetCommitted],
        *,
        require_stable: bool = True,
    ) -> None:
        """Asks for a group's committed offset of one partition.

        With `require_stable`, the coordinator answers with error code 88 while an open transaction may change the
        offset. With brokers before 2.5, `reply` gets a `Failure` whose `unsupported` is true.
        """

    def end_transaction(
        self, identity: TransactionIdentity, commit: bool, reply: Reply[TransactionEnded]
    ) -> None:
        """Commits or aborts the transaction. The coordinator answers as soon as it has stored the decision. Readers may
        see the records only later.

        Error code 48: the coordinator has already decided the opposite (an abort instead of a commit, or the reverse),
        or there is nothing to commit. Error code 47 or 90: the transaction timed out, or another client has taken over.
        """

    def describe_transaction(self, transactional_id: str, reply: Reply[TransactionDescribed]) -> None:
        """Asks for the state of a transactional id (KIP-664). With brokers before 3.0, `reply` gets a `Failure` whose
        `unsupported` is true.
        """

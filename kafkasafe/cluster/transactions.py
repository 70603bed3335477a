"""Transactions, as a client of a cluster sees them: a part of `kafkasafe.cluster.api.Cluster`, with its rules.

One transaction is a walk of requests, each of which can be made by any process that knows the `TransactionIdentity`:

    init_transactional_id        → identity; older holders are fenced, what they left open is aborted
    add_partitions_to_transaction  where the brokers speak protocol 1
    produce                        batches stamped with the identity, `ProduceRequest.transaction` set
    add_offsets_to_transaction     where the brokers speak protocol 1
    commit_offsets_in_transaction
    end_transaction              → the identity of the next transaction

*Protocol 1* is that of KIP-98: partitions and groups have to be added before they are written to, and the identity
stays the same from one transaction to the next. That is why an EndTxn which arrives late ends the *next* transaction of
the transactional id: a client that may have left one unanswered takes a new identity before anything else, or has a
transactional id for each transaction.

*Protocol 2* (KIP-890, Kafka 4.0 and later, if the feature `transaction.version` is at level 2) adds what is written to
by itself and gives each transaction an epoch of its own. A request of an earlier transaction is refused. The same
EndTxn again is answered as the first was.

What is special here:

- *Coordinators are the cluster's business*, as leaders are: it looks for them, and anew after an answer or a failure by
  which they may have moved. It repeats nothing: codes 14, 15, 16 and 51 come to the caller, who tries again after a
  pause.
  A code of the search itself is the answer's, too, and then nothing was done.
- *Each answer has an `error_code`*; no method turns codes into failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from kafkasafe.cluster.api import Reply

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
class TransactionIdentity:
    """Who writes a transaction. Batches are stamped with the id and the epoch.

    Attributes:
        transactional_id: The name that was asked for.
        producer_id: Granted by the coordinator.
        epoch: Granted; newer ones fence older ones. With protocol 2 each transaction has its own.
        protocol: 1 or 2, as the module says.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    protocol: int


@dataclass(frozen=True, slots=True)
class TransactionsInitialized:
    """The answer to InitProducerId with a transactional id; `identity` is None if there is an error."""

    error_code: int
    identity: TransactionIdentity | None = None


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """The answer to AddPartitionsToTxn.

    Attributes:
        error_code: That of the first partition that could not be added: then none was.
        error_codes: Of each partition; 55 stands at those that only suffer from another one's error.
    """

    error_code: int
    error_codes: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """An answer that is only whether."""

    error_code: int


@dataclass(frozen=True, slots=True)
class GroupMember:
    """In whose name a group's offsets are committed: the group refuses it when it is not (any more) its member.

    Attributes:
        member_id: As the group's coordinator gave it.
        generation_id: The generation in which it got its partitions.
        group_instance_id: Of a static member.
    """

    member_id: str
    generation_id: int
    group_instance_id: str | None = None


NO_MEMBER: Final = GroupMember("", -1)
"""Nobody: allowed as long as the group has no members."""


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """A group's position: the offset of the next record to be read.

    Attributes:
        offset: Exclusive end of what was processed.
        metadata: Whatever is to be kept with it.
        leader_epoch: Of the last processed record, -1 for unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetsCommitted:
    """The answer to TxnOffsetCommit.

    Attributes:
        error_code: That of the first partition that has one, 0 for none.
        error_codes: Of each partition. Those without an error are part of the transaction.
    """

    error_code: int
    error_codes: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """A group's committed offset of one partition.

    Attributes:
        error_code: 88: a transaction that is not ended yet would change it.
        offset: -1 for none.
        metadata: What was kept with it.
        leader_epoch: Of the last processed record, -1 for unknown.
    """

    error_code: int
    offset: int = -1
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class TransactionEnded:
    """The answer to EndTxn.

    Attributes:
        error_code: 0 also for the same request again.
        identity: For the next transaction: with protocol 1 the same as before; None if there is an error.
    """

    error_code: int
    identity: TransactionIdentity | None = None


@dataclass(frozen=True, slots=True)
class TransactionDescribed:
    """The answer to DescribeTransactions.

    Attributes:
        error_code: 105: the transactional id is not known.
        state: Kafka's word: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, Dead or
            PrepareEpochFence.
        producer_id: Of the latest holder.
        epoch: Of the latest holder.
        timeout_ms: After how long an open transaction is aborted.
        started_ms: When it began, in ms since the epoch; -1 if none is open.
        partitions: Those that are part of it, the group offsets' own included.
    """

    error_code: int
    state: str = ""
    producer_id: int = -1
    epoch: int = -1
    timeout_ms: int = -1
    started_ms: int = -1
    partitions: frozenset[TopicPartition] = frozenset()


class Transactions(Protocol):
    """The requests of transactions. See the module, and `kafkasafe.cluster.api` for what is true of all methods."""

    def init_transactional_id(
        self,
        transactional_id: str,
        transaction_timeout_ms: int,
        reply: Reply[TransactionsInitialized],
        *,
        keep: TransactionIdentity | None = None,
    ) -> None:
        """Takes a transactional id over: older holders are fenced, their open transaction is aborted.

        51 is answered while that is still being done.

        Args:
            transactional_id: The name.
            transaction_timeout_ms: After how long the coordinator aborts a transaction that is not ended; 50 is
                answered if that is more than `transaction.max.timeout.ms` of the brokers.
            reply: Gets `TransactionsInitialized` or `Failure`.
            keep: Whose successor this is to be: refused (47 or 90) if anybody else has taken over since (Kafka 2.5 and
                later).
        """

    def add_partitions_to_transaction(
        self,
        identity: TransactionIdentity,
        partitions: Sequence[TopicPartition],
        reply: Reply[PartitionsAdded],
    ) -> None:
        """Makes partitions part of the transaction, which begins with the first one. All or none of them.

        With protocol 2 it is not needed, and allowed.

        Args:
            identity: Who writes.
            partitions: At least one.
            reply: Gets `PartitionsAdded` or `Failure`.
        """

    def add_offsets_to_transaction(
        self, identity: TransactionIdentity, group: str, reply: Reply[TransactionAnswer]
    ) -> None:
        """Makes a group's offsets part of the transaction. With protocol 2 it is not needed, and allowed.

        Args:
            identity: Who writes.
            group: The group's name.
            reply: Gets `TransactionAnswer` or `Failure`.
        """

    def commit_offsets_in_transaction(
        self,
        identity: TransactionIdentity,
        group: str,
        offsets: Mapping[TopicPartition, OffsetToCommit],
        reply: Reply[OffsetsCommitted],
        *,
        member: GroupMember = NO_MEMBER,
    ) -> None:
        """Writes a group's offsets as part of the transaction: they count when it is committed.

        Args:
            identity: Who writes.
            group: The group's name, added before with protocol 1.
            offsets: By partition, at least one.
            reply: Gets `OffsetsCommitted` or `Failure`. 22, 25 or 82: `member` is not in the group (any more).
            member: In whose name. Brokers before 2.5 do not look.
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
        """What a group has committed.

        Args:
            group: The group's name.
            topic: Topic name.
            partition: Partition number.
            reply: Gets `OffsetCommitted` or `Failure`.
            require_stable: Answer 88 while a transaction is open that would change it; a `Failure` that is
                `unsupported` from brokers before 2.5.
        """

    def end_transaction(
        self, identity: TransactionIdentity, commit: bool, reply: Reply[TransactionEnded]
    ) -> None:
        """Commits or aborts the transaction; the answer comes when that is decided, records may be seen a little later.

        Args:
            identity: Who writes, as it was when the transaction was written.
            commit: Or abort.
            reply: Gets `TransactionEnded` or `Failure`. 48: the coordinator did the opposite, or there is nothing to
                commit; 47 or 90: the transaction timed out, or somebody else has taken over.
        """

    def describe_transaction(self, transactional_id: str, reply: Reply[TransactionDescribed]) -> None:
        """What the coordinator knows of a transactional id (KIP-664).

        Args:
            transactional_id: The name.
            reply: Gets `TransactionDescribed`, or `Failure`; one that is `unsupported` from brokers < 3.0.
        """

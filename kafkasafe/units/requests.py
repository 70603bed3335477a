"""What is done under a transactional id, and for a unit: the answer to each is an event of `Units`."""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe.units.terms import Grant, Member
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

__all__ = [
    "Action",
    "AddPartitions",
    "Backoff",
    "CommitOffsets",
    "DescribeTxn",
    "EndTxn",
    "FindOutcome",
    "InitProducerId",
    "Produce",
    "Refuse",
    "Request",
    "RetryLater",
]


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """InitProducerId: `fenced`. With `keep`: not if another producer has taken it over since.

    With `timed_out` that is the epoch which the coordinator gives when it aborts what is open for too long.
    """

    tid: TransactionalId
    turn: int
    keep: Grant | None = None
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add its partitions to the transaction: `joined`."""

    tid: TransactionalId
    turn: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Produce:
    """Append a batch: `appended`. Those of a partition go out in the order in which they are given."""

    tid: TransactionalId
    turn: int
    transaction: Transaction
    batch: Member
    base_sequence: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Write offsets of a group inside the transaction: `noted`.

    `index` -1 is the marker: the group is called as the transactional id, and the text is the unit's id.
    """

    tid: TransactionalId
    turn: int
    transaction: Transaction
    index: int


@dataclass(frozen=True, slots=True)
class EndTxn:
    """EndTxn with commit, under the id's grant: `ended`."""

    tid: TransactionalId
    turn: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class DescribeTxn:
    """How does the coordinator describe the transaction? `described`."""

    tid: TransactionalId
    turn: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class FindOutcome:
    """Does the marker, or the log, say that it was committed? `told`.

    With `by_log` the log alone: a successor's transaction may contain our marker.
    """

    tid: TransactionalId
    turn: int
    transaction: Transaction
    by_log: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """It is to be made durable in `rejected/`: `put_aside`."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class Backoff:
    """It goes on after a pause: `rested`."""

    unit: Unit


Request = InitProducerId | AddPartitions | Produce | CommitOffsets | EndTxn | DescribeTxn | FindOutcome


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The same once more, after a pause: `again`."""

    action: Request | Backoff
    attempt: int
    code: int | None
    reason: str
    slow: bool = False


Action = Request | Refuse | RetryLater

"""Requests under a transactional id, and other actions for units. The answer to each is an event of `Units`."""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe.units.terms import Grant, Member
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

__all__ = [
    "Action",
    "AddPartitions",
    "CommitOffsets",
    "DescribeTxn",
    "EndTxn",
    "FindOutcome",
    "InitProducerId",
    "Produce",
    "Refuse",
    "Request",
    "RetryLater",
    "UnitPause",
]


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Send InitProducerId (answer: `fenced`). With `keep`, it fails if another producer has taken the id over
    meanwhile.

    With `timed_out`, `keep` has the epoch that the coordinator sets when it aborts a transaction after a timeout.
    """

    tid: TransactionalId
    turn: int
    keep: Grant | None = None
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add the partitions to the transaction (answer: `joined`)."""

    tid: TransactionalId
    turn: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Produce:
    """Append a batch (answer: `appended`). The batches of a partition are sent in the order of these actions."""

    tid: TransactionalId
    turn: int
    transaction: Transaction
    batch: Member
    base_sequence: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Write offsets of a group inside the transaction (answer: `noted`).

    The marker has `index` -1. It is an offset of a group with the name of the transactional id, whose metadata is the
    id of the unit.
    """

    tid: TransactionalId
    turn: int
    transaction: Transaction
    index: int


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Send EndTxn with commit, under the id's grant (answer: `ended`)."""

    tid: TransactionalId
    turn: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class DescribeTxn:
    """Ask the coordinator for a description of the transaction (answer: `described`)."""

    tid: TransactionalId
    turn: int
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class FindOutcome:
    """Find out from the marker or the log whether the transaction was committed (answer: `told`).

    With `by_log`, only the log counts: the marker is an offset, which a successor's transaction may commit as well.
    """

    tid: TransactionalId
    turn: int
    transaction: Transaction
    by_log: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Save the unit's records in `rejected/`, durably (answer: `put_aside`)."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class UnitPause:
    """Continue with the unit after a pause."""

    unit: Unit


Request = InitProducerId | AddPartitions | Produce | CommitOffsets | EndTxn | DescribeTxn | FindOutcome


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Repeat an action after a pause (answer: `again`)."""

    action: Request | UnitPause
    attempt: int
    code: int | None
    reason: str
    slow: bool = False


Action = Request | Refuse | RetryLater

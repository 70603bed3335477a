"""The requests that use a transactional id, and other actions for units. Each docstring names the method of `Units`
that takes the answer.

`outcome_of` reads the answer to `DescribeTxn`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.units.terms import Grant, Member
from kafkasafe.units.unit import Transaction, TransactionalId, Unit


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Send InitProducerId (answer: `fenced`).

    Attributes:
        tid: The transactional id.
        turn: The transactional id's turn, which the answer repeats (`TransactionalId.turn`).
        keep: The producer id and epoch that this producer has. The request fails if another producer has taken over the
            transactional id in the meantime. None: take over the transactional id in any case.
        timed_out: The epoch in `keep` is the epoch that the coordinator sets when it aborts a transaction after a
            timeout.
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

    With `index` -1, the request writes the marker: an offset of a group that has no consumers and whose name is derived
    from the transactional id. The metadata of this offset is the id of the transaction's first unit.
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
    """Find out from the marker (a committed offset) or the log whether the transaction was committed (answer:
    `outcome_found`).

    With `by_log`, only the log counts: the marker proves nothing, because a delayed request may have written it as part
    of another producer's transaction.
    """

    tid: TransactionalId
    turn: int
    transaction: Transaction
    by_log: bool = False


@dataclass(frozen=True, slots=True)
class Refuse:
    """Make the unit's records durable in `rejected/` (answer: `put_aside`)."""

    unit: Unit


@dataclass(frozen=True, slots=True)
class UnitPause:
    """Continue with the unit after a pause."""

    unit: Unit


Request = InitProducerId | AddPartitions | Produce | CommitOffsets | EndTxn | DescribeTxn | FindOutcome


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Repeat an action after a pause (answer: `again`).

    Attributes:
        action: The action.
        attempt: How often the action has failed.
        code: Kafka's error code; None without an answer.
        reason: Human-readable.
        slow: The cluster refuses the action, perhaps for a long time.
        early_ms: The cluster will not accept the action before this many milliseconds have passed.
    """

    action: Request | UnitPause
    attempt: int
    code: int | None
    reason: str
    slow: bool = False
    early_ms: int = 0


Action = Request | Refuse | RetryLater


_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort"})


def outcome_of(grant: Grant, state: str, producer_id: int, epoch: int, *, own: bool) -> bool | None:
    """Whether a transaction was committed, according to its coordinator's description (DescribeTransactions, KIP-664).

    The result is None if the description does not show the outcome.

    The described transaction is the last under its grant, because another transaction begins only after the outcome is
    durable.

    Args:
        grant: The grant of the transaction.
        state: The described state.
        producer_id: The described producer id.
        epoch: The described epoch.
        own: Whether no other producer uses the transactional id.
    """
    if producer_id != grant.producer_id or epoch != grant.epoch + 1:
        return None
    if grant.protocol >= 2 and state in _COMMITTED:
        # The end of the transaction raised the epoch by one. A higher epoch means that other transactions followed.
        return True
    if own and state in _ABORTED:
        # With version 1 of the transaction protocol, "aborted" means that the transaction timed out or was fenced while
        # it was open. "Committed" would prove nothing: with version 1, a commit does not raise the epoch, so the
        # description may be about an earlier transaction. For an id that a user chose, even "aborted" proves nothing,
        # because the coordinator may have described another producer's transaction. If the result is None, the engine
        # first sends InitProducerId, and then finds out the outcome.
        return False
    return None

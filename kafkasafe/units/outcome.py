"""The outcome of a transaction according to its coordinator (DescribeTransactions, KIP-664)."""

from __future__ import annotations

from typing import Final

from kafkasafe.units.terms import Grant

__all__ = ["outcome_of"]

_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort"})


def outcome_of(grant: Grant, state: str, producer_id: int, epoch: int, *, own: bool) -> bool | None:
    """Whether a transaction was committed; None if the description does not decide it.

    The transaction is the last one under the grant: no other is begun under it before the outcome is durable.

    Args:
        grant: The grant of the transaction.
        state: The described state.
        producer_id: The described producer id.
        epoch: The described epoch.
        own: No other producer uses the transactional id.
    """
    if producer_id != grant.producer_id or epoch != grant.epoch + 1:
        return None
    if grant.protocol >= 2 and state in _COMMITTED:
        # The end of the transaction raised the epoch by one. A higher epoch means that other transactions followed.
        return True
    if own and state in _ABORTED:
        # With protocol 1, the transaction timed out or was fenced while it was open. If the coordinator describes a
        # commit, that proves nothing: a commit does not raise the epoch, so it may be the commit of an earlier
        # transaction. For a user's id, the outcome is asked for after InitProducerId.
        return False
    return None

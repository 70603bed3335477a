"""What became of a transaction, as its coordinator describes it (DescribeTransactions, KIP-664)."""

from __future__ import annotations

from typing import Final

from kafkasafe.units.terms import Grant

__all__ = ["outcome_of"]

_COMMITTED: Final = frozenset({"PrepareCommit", "CompleteCommit"})
_ABORTED: Final = frozenset({"PrepareAbort", "CompleteAbort"})


def outcome_of(grant: Grant, state: str, producer_id: int, epoch: int, *, own: bool) -> bool | None:
    """Whether a transaction was committed; None where this does not say.

    Asked about is what was written last under the grant: nothing is begun under it before the outcome is durable.

    Args:
        grant: Under which it was written.
        state: As described.
        producer_id: As described.
        epoch: As described.
        own: No other producer uses the transactional id.
    """
    if producer_id != grant.producer_id or epoch != grant.epoch + 1:
        return None
    if grant.protocol >= 2 and state in _COMMITTED:
        # Its end gave the next epoch. With a higher one, other transactions came after it.
        return True
    if own and state in _ABORTED:
        # With protocol 1 it timed out, or was fenced while it was open. A commit leaves the epoch there, and may be an
        # earlier one's. Of a name of the user's, the outcome is asked for after InitProducerId.
        return False
    return None

"""The unfinished batches of one partition, in order: which are in flight, and which are in doubt.

`kafkasafe.journal.backlog` packs long backlogs.
"""

from __future__ import annotations

from kafkasafe.journal.backlog import Backlog
from kafkasafe.journal.batch import Batch, BatchState, id_fields

__all__ = ["PartitionQueue"]


class PartitionQueue(Backlog[Batch]):
    """Invariant: batches that are SENT, ACKED or REFUSED are among the first `window` ones."""

    __slots__ = ()

    @property
    def in_flight(self) -> int:
        """How many batches were sent and have no answer yet."""
        return sum(batch.state is BatchState.SENT for batch in self)

    @property
    def has_in_flight(self) -> bool:
        """Whether a batch was sent and has no answer yet."""
        return any(batch.state is BatchState.SENT for batch in self)

    @property
    def head(self) -> Batch | None:
        """The first batch that is not acknowledged."""
        return next((batch for batch in self if batch.state is not BatchState.ACKED), None)

    @property
    def last_has_id(self) -> bool:
        """Whether the last batch, which may be packed, has an id."""
        last = self.last
        return self.packed_identified if last is None else last.identity is not None

    @property
    def has_doubt(self) -> bool:
        """Whether a batch is in doubt."""
        return any(batch.state is BatchState.IN_DOUBT for batch in self)

    @property
    def doubt(self) -> list[Batch]:
        """The first batches in doubt that have the same producer id and epoch."""
        doubt: list[Batch] = []
        for batch in self:
            if batch.state is BatchState.IN_DOUBT and batch.identity is not None:
                first = doubt[0].identity if doubt else batch.identity
                if first is not None and id_fields(first)[:2] != id_fields(batch.identity)[:2]:
                    break
                doubt.append(batch)
        return doubt

    def follows_failure(self, batch: Batch) -> bool:
        """Whether a batch before this one was not appended. A sequence gap then does not indicate a loss."""
        return self._has_before(batch, frozenset({BatchState.PREPARED, BatchState.REFUSED}))

    def explains_gap(self, batch: Batch) -> bool:
        """Whether the sequences that the leader lacks may belong to an earlier batch that is refused or still to be
        sent.
        """
        return self._has_before(
            batch, frozenset({BatchState.SEALED, BatchState.PREPARED, BatchState.REFUSED})
        )

    def _has_before(self, batch: Batch, states: frozenset[BatchState]) -> bool:
        for earlier in self:
            if earlier is batch:
                return False
            if earlier.state in states:
                return True
        return False

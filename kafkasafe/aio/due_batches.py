"""Open batches that are sealed early, because tasks wait for their records."""

from __future__ import annotations

from kafkasafe._producing.open_batch import OpenBatch
from kafkasafe._producing.opening import ProducerParts
from kafkasafe.aio.threads import running_loop

__all__ = ["DueBatches"]


class DueBatches:
    """Collects open batches during an iteration of the loop, and lets the pump seal them afterwards.

    So other tasks may still add records in the same iteration.
    """

    def __init__(self, parts: ProducerParts) -> None:
        self._parts = parts
        self._open_batches: set[OpenBatch] = set()

    def add(self, open_batch: OpenBatch) -> None:
        """Seal an open batch soon, unless it is sealed already.

        Raises:
            UsageError: The open batch belongs to an atomic batch that is not committed.
        """
        if open_batch.parcels is not None:
            return
        guard = open_batch.guard
        if guard is not None:
            guard("batch.send(...) is not awaited: await its future, or batch.outcome, after the block")
        if not self._open_batches:
            running_loop().call_soon(self._seal)
        self._open_batches.add(open_batch)

    def _seal(self) -> None:
        open_batches, self._open_batches = self._open_batches, set()
        for open_batch in open_batches:
            # The pump seals the open batch. So records that are sent while the pump writes are included, and no other
            # thread has to be woken.
            open_batch.make_due()
        self._parts.delivery.pump.wake()

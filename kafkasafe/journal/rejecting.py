"""Handles batches that the cluster refuses permanently: divides the batches, or rejects them when copies are durable in
`rejected/`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.codes.sets import DESTINATION_CODES, MISSING_CODES
from kafkasafe.codes.verdicts import Scope, classify_produce
from kafkasafe.journal.batch import TOO_SLOW, Batch, BatchEvent, BatchState, Fate
from kafkasafe.journal.destinations import Destination, Partition, UnassignedTopic
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.notices import Refusal
from kafkasafe.journal.outbox import Aside, BatchEnded, Divide
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.sealing import Identities, Sealer
from kafkasafe.journal.state import JournalState


class Rejecter:
    """Rejects refused batches. Also voids files of `rejected/` whose records are in the lane's log again."""

    def __init__(
        self, state: JournalState, packer: Packer, refusals: Refusals, identities: Identities, sealer: Sealer
    ) -> None:
        self._destinations = state.destinations
        self._all = state.destinations.all
        self._out = state.out
        self._index = state.index
        self._packer = packer
        self._refusals = refusals
        self._identities = identities
        self._sealer = sealer
        self._units = state.units
        self._missing = state.missing
        self._aside_batches = state.settings.aside_batches

    def disown(self, mark: m.Resent) -> None:
        """Note in the spool that a file in `rejected/` is void, because the file could not be deleted.

        The batches in the file are not rejected: they are still in this lane's log. So `kafkasafe spool resend` must
        not send the file's copies.
        """
        if not self._index.is_disowned(mark):
            self._index.disown(mark, self._index.end)
            self._out.ready.persist.marks.append(mark)

    def deny_unchosen(self, topic: str, code: int, reason: str, now: float) -> None:
        """Note that new metadata has error 3, 17 or 29 for a topic whose partitions were never known."""
        partition = self._destinations.unassigned[topic]
        if partition.queue and self._refusals.note_refusal(partition, code, reason, Scope.DESTINATION, now):
            for unit in {
                batch.unit.number: batch.unit for batch in partition.queue.near if batch.unit
            }.values():
                if unit.durable and unit.phase is u.Phase.WAITING:
                    self._units.give_up(unit, code, reason)
            if partition.progress.flow is not Flow.REJECTING:
                # Metadata may arrive while the engine copies rejected batches. Beginning the rejection again would copy
                # some batches twice.
                self.reject_all(partition, code, reason)

    def next_aside(self, destination: int) -> None:
        """Let the engine copy the next portion of rejected batches to `rejected/`."""
        partition = self._all[destination]
        if partition.progress.flow is not Flow.REJECTING:
            return
        if partition.rejection.is_done:
            # The topic was created before the engine copied the next portion.
            partition.progress.on(FlowEvent.NOTHING_TO_KEEP)
            self._packer.touch(partition)
            return
        portion = partition.rejection.take_portion(self._aside_batches)
        self._out.ready.asides.append(Aside(partition.number, portion))

    def set_aside(self, aside: Aside, kept: int, reason: str = "") -> bool:
        """Reject the first `kept` batches, which are durable in `rejected/` now.

        Args:
            aside: The request from `ready()`.
            kept: The number of durable batches. The other batches keep waiting, and the journal tries again later.
            reason: Why the other batches could not be copied.

        Returns:
            Whether more batches follow. If so, the engine serves other partitions first, and then calls `next_aside`.
        """
        partition = self._all[aside.destination]
        if partition.progress.flow is not Flow.REJECTING:
            return False
        for batch in aside.batches[:kept]:
            self._reject(batch)
        if isinstance(partition, Partition) and any(b.identity is not None for b in aside.batches[:kept]):
            # Later batches must not continue the sequence of the rejected batches.
            self._identities.reidentify(partition)
        if kept < len(aside.batches):
            partition.rejection.stop()
            _ask_again(aside.batches[kept:])
        elif not partition.rejection.is_done:
            return True
        else:
            # If the cluster then refuses other batches, the duration of the new refusal starts at zero.
            self._refusals.clear_refusal(partition, accepted=False)
        if isinstance(partition, UnassignedTopic):
            partition.progress.on(FlowEvent.KEPT)
        elif kept < len(aside.batches):
            self._out.pause(partition, FlowEvent.NOT_KEPT, reason)
        else:
            partition.progress.on(FlowEvent.KEPT)
        self._packer.touch(partition)
        return False

    def handle_refusal(self, partition: Partition, head: Batch) -> None:
        if not self._sealer.rests(head):
            return  # the journal calls this method again when the batch is written
        if head.fault.code in DESTINATION_CODES:
            self.reject_all(partition, head.fault.code, head.fault.message)
            return
        self._refusals.clear_refusal(partition, accepted=False)
        if head.count > 1 and (
            head.fault.overdue or head.fault.code == TOO_SLOW or classify_produce(head.fault.code).splittable
        ):
            self._out.ready.divides.append(Divide(head, refused=True))
            return
        self.reject_head(partition, head)

    def reject_head(self, partition: Partition, head: Batch, event: FlowEvent = FlowEvent.REJECTS) -> None:
        if head.durable:
            self.put_aside(partition, (head,), event)
        else:
            self._sealer.spill((head,))  # the journal calls this method again when the batch is on disk

    def reject_unassigned(self, batch: Batch) -> None:
        """Reject one batch that waits for its topic's partitions."""
        unassigned = self._all[batch.destination]
        self.put_aside(unassigned, (batch,), FlowEvent.DAMAGED)
        self._packer.touch(unassigned)

    def reject_all(self, partition: Destination, code: int, reason: str) -> None:
        """Reject all batches of a destination for which the cluster accepts no batches."""
        if code in MISSING_CODES:
            reason = self._missing.proven.get(partition.number, reason)
        ended = {BatchState.SEALED, BatchState.PREPARED, BatchState.REFUSED, BatchState.IN_DOUBT}
        self._packer.unpack(partition, partition.queue.packed.count)
        doomed = [batch for batch in partition.queue.near if batch.state in ended]
        self._sealer.spill(doomed)
        durable = [batch for batch in doomed if batch.durable]
        for batch in durable:
            batch.blame(code, reason)
        if durable:
            self.put_aside(partition, durable, FlowEvent.REJECTS)
        elif partition.progress.is_asking:
            # The journal can reject only batches on disk. So the journal writes batches that are only in memory to disk
            # (`spill`), and asks the cluster again after a pause.
            self._out.pause(partition, FlowEvent.REFUSED_IN_MEMORY, reason)

    def put_aside(self, partition: Destination, batches: Sequence[Batch], event: FlowEvent) -> None:
        partition.progress.on(event)
        partition.rejection.begin(batches)
        self.next_aside(partition.number)

    def _reject(self, batch: Batch) -> None:
        """Reject a batch, which is finished when its REJECTED mark is durable."""
        batch.on(BatchEvent.KEPT)
        self._out.ready.notices.append(Refusal(batch))
        partition = self._all[batch.destination]
        partition.queue.remove(batch)
        if batch.position >= 0:
            self._out.ready.persist.marks.append(
                m.Rejected(batch.position, batch.fault.code, batch.fault.message)
            )
        self._out.ready.persist.after.append(BatchEnded(batch, Fate.REJECTED))
        self._packer.touch(partition)


def _ask_again(batches: Sequence[Batch]) -> None:
    """Let the journal send again the batches that the cluster refused because of their destination.

    1. The user lacks the permission to write to a topic. After `blocked_timeout_ms` the journal begins to reject the
       batches, but `rejected/` is full.
    2. The batches keep waiting in the state REFUSED. Then an operator grants the permission.
    3. The cluster would accept the batches now. But the journal does not send a batch in the state REFUSED, and cannot
       copy it to `rejected/`, which is full.
    """
    for batch in batches:
        if batch.state is BatchState.REFUSED and batch.fault.code in DESTINATION_CODES:
            batch.on(BatchEvent.PASSED_BY)

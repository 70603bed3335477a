"""Updates the journal when a spool group (batches and marks written together) is durable. Only this module finishes
batches: as soon as the mark with the batch's outcome is durable, or at once if the batch was never on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kafkasafe.journal.batch import Batch, BatchEvent, BatchState, Fate, batches_of
from kafkasafe.journal.destinations import Destination
from kafkasafe.journal.flow import Flow, FlowEvent
from kafkasafe.journal.outbox import (
    BaselineDurable,
    BatchEnded,
    BatchesIdentified,
    Consequence,
    Persist,
    Resolution,
    SilenceBroken,
    UnitEnded,
    UnitStaged,
)
from kafkasafe.journal.packing import Packer
from kafkasafe.journal.state import JournalState


class Durability:
    """Updates the journal when spool groups are durable, and finishes batches whose outcome is durable."""

    def __init__(self, state: JournalState, packer: Packer) -> None:
        self._all = state.destinations.all
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._index = state.index
        self._packer = packer
        self._quiescence = state.quiescence
        self._units = state.units
        self._revivals = state.revivals
        self._writes_fail = False
        """Whether the last write of a group failed."""
        self._skipped: set[Batch] = set()
        """Batches that the disk was writing when the user decided to treat them as delivered."""

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """Note that the group is durable.

        Args:
            persist: The group from `ready()`.
            positions: Spool positions of the batches of `persist.everything`, in the same order.
            end_position: The spool's next position.
        """
        begin = self._index.end
        self._writes_fail = False
        self._index.reach(end_position)
        for batch, position in zip(persist.everything, positions, strict=True):
            batch.written(position)
            self._index.place(batch)
            self._packer.touch(self._all[batch.destination])
            if batch.state is BatchState.ACKED and batch.unit is None:
                # The broker acknowledged the batch while the disk was writing it.
                self.finish(self._all[batch.destination], batch)
        for group in persist.units:
            # A unit (atomic batch) that contains no batch is only a mark. The mark's position is at least `begin`, but
            # otherwise unknown. If the unit's position were later than the mark, the spool could delete the mark's
            # segment too early.
            self._units.written(group.unit, min((b.position for b in group.batches), default=begin))
        for consequence in persist.after:
            self._follow(consequence)

    def write_failed(self, batches: Iterable[Batch]) -> None:
        """Note that these batches could not be written. Finish those that the cluster has already acknowledged. (With
        `durable_first` there are none, because the journal sends only batches on disk.)

        A failed write may leave a readable copy of a batch on disk until the next spool group is written. If the
        process is killed before that, the next process reads the copy, treats the batch as in doubt, and finds it in
        the partition's log. The copy has the id under which the cluster acknowledged the batch: while a batch is
        `writing`, the journal gives it no other id, and neither divides nor merges it.
        """
        self._writes_fail = True
        for batch in batches:
            if batch.state is BatchState.ACKED and batch.unit is None:
                self.finish(self._all[batch.destination], batch)

    def _follow(self, consequence: Consequence) -> None:
        match consequence:
            case BatchEnded(batch, Fate.COMMITTED):
                self._leave(batch)
            case BatchEnded(batch, fate, kept):
                if not kept:
                    self._index.drop(batch)
                self._out.ready.resolved.append(Resolution(batch, fate))
                if fate is Fate.REJECTED:
                    self._report_healed(batch)
            case BaselineDurable(destination):
                partition = self._partitions[destination]
                if not partition.log.begun() or partition.progress.flow is not Flow.ASKING_BASELINE:
                    # Ignore the baseline (end offset before the first batch) of a log that the journal has forgotten.
                    # The journal may also have asked for the baseline twice, for example before and after a move to
                    # another cluster. Then ignore this answer if the partition already uses the other answer, or pauses
                    # because the other question failed.
                    return
                partition.progress.recover()
                if partition.loss.suspicion is None:
                    partition.progress.on(FlowEvent.BASELINE_DURABLE)
                else:
                    partition.progress.on(FlowEvent.BASELINE_DURABLE_SUSPECTED)
                self._packer.touch(partition)
            case BatchesIdentified(destination, batches):
                for batch, identity in batches:
                    # Skip a batch whose id the journal took back during the write.
                    if batch.state is BatchState.SEALED and batch.identity is identity:
                        batch.on(BatchEvent.ID_DURABLE)
                self._packer.touch(self._partitions[destination])
            case UnitStaged(transaction):
                self._units.staged(transaction)
            case UnitEnded(unit, fate):
                for batch in batches_of(unit):
                    if fate is Fate.COMMITTED:
                        self._leave(batch)
                    else:
                        self._all[batch.destination].queue.remove(batch)
                        self._index.drop(batch)
                        self._out.ready.resolved.append(Resolution(batch, fate))
                    self._packer.touch(self._all[batch.destination])
                self._units.over(unit)
                self._out.ready.ended.append((unit, fate))
            case SilenceBroken():
                self._out.ready.sends.extend(self._quiescence.taken_back())

    def finish(self, partition: Destination, batch: Batch) -> None:
        """Commit an acknowledged batch, which is finished when its commit mark is durable."""
        partition.log.pass_id(batch.identity)
        if batch.writing and (not self._writes_fail or batch in self._skipped):
            return  # the mark needs the batch's position, which is not known yet: `persisted` calls this again
        self._skipped.discard(batch)
        if batch.position < 0:
            self._leave(batch)
            return
        partition.log.commit(batch)
        self._out.committing[partition.number] = partition
        self._out.ready.persist.after.append(BatchEnded(batch, Fate.COMMITTED))

    def skip(self, partition: Destination, batch: Batch) -> None:
        """Commit a batch that the user decided to treat as delivered. The journal does not commit a batch while the
        disk writes it. Otherwise a failed write could leave a copy without a commit mark on disk, and the next process
        would send the copy unless it found the batch in the partition's log.
        """
        if batch.writing:
            self._skipped.add(batch)
        self.finish(partition, batch)

    def _leave(self, batch: Batch) -> None:
        """Finish a batch whose commit mark is durable."""
        batch.on(BatchEvent.COMMITTED)
        partition = self._all[batch.destination]
        partition.dequeue(batch)
        partition.log.remember(batch, self._index.released)
        self._index.drop(batch)
        self._out.ready.resolved.append(Resolution(batch, Fate.COMMITTED))
        self._report_healed(batch)
        self._packer.touch(partition)

    def _report_healed(self, batch: Batch) -> None:
        healed = self._revivals.finish(batch)
        if healed is not None:
            self._out.ready.notices.append(healed)

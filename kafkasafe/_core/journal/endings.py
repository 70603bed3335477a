"""What is durable now, and what follows from that: batches are finished here, and nowhere before."""

from __future__ import annotations

from collections.abc import Sequence

from kafkasafe._core.journal.groups import (
    Begun,
    Consequence,
    Ended,
    Identified,
    Persist,
    SilenceBroken,
    UnitEnded,
    UnitStaged,
)
from kafkasafe._core.journal.losses import Losses
from kafkasafe._core.journal.messages import Resolution
from kafkasafe._core.journal.partition import Flow, Partition
from kafkasafe._core.journal.states import Batch, Fate, State, follows

__all__ = ["Endings"]


class Endings(Losses):
    """Part of `Journal`: groups that were written, and batches that end."""

    def persisted(self, persist: Persist, positions: Sequence[int], end_position: int) -> None:
        """The group is durable.

        Args:
            persist: What `ready()` gave.
            positions: Position of each of its batches.
            end_position: The spool's next position.
        """
        self._end_position = max(self._end_position, end_position)
        for batch, position in zip(persist.everything, positions, strict=True):
            batch.settle_at(position)
            batch.durable = True
            batch.writing = False
            self._spooled[position] = batch
            if batch.state is State.SEALED and batch.identity is not None:
                batch.move(State.PREPARED)
            self._touch(self._partitions[batch.destination])
            if batch.acked_early:
                batch.acked_early = False
                self._finish(self._partitions[batch.destination], batch)
        for group in persist.units:
            self.units.written(group.unit, min((b.position for b in group.batches), default=end_position - 1))
        for consequence in persist.after:
            self._follow(consequence)

    def _follow(self, consequence: Consequence) -> None:
        match consequence:
            case Ended(batch, Fate.COMMITTED):
                self._leave(batch, State.COMMITTED, Fate.COMMITTED)
            case Ended(batch, fate, kept):
                if not kept:
                    self._forget(batch)
                self._ready.resolved.append(Resolution(batch, fate))
                if fate is Fate.REJECTED:
                    self._tell_healed(batch)
            case Begun(destination):
                partition = self._partitions[destination]
                partition.flow = Flow.FLOWING if partition.suspicion is None else Flow.SETTLING
                partition.rested = True
                partition.attempt = 0
                self._touch(partition)
            case Identified(destination, batches):
                for batch, identity in batches:
                    # Unless it was taken back meanwhile.
                    if batch.state is State.SEALED and batch.identity is identity:
                        batch.move(State.PREPARED)
                self._touch(self._partitions[destination])
            case UnitStaged(unit):
                self.units.staged(unit)
            case UnitEnded(unit, fate):
                for batch in self._members(unit):
                    if fate is Fate.COMMITTED:
                        self._leave(batch, State.COMMITTED, fate)
                    else:
                        self._partitions[batch.destination].queue.remove(batch)
                        self._forget(batch)
                        self._ready.resolved.append(Resolution(batch, fate))
                    self._touch(self._partitions[batch.destination])
                self.units.over(unit)
                self._ready.ended.append((unit, fate))
            case SilenceBroken():
                self._still = False
                self._ready.sends += self._held or ()

    def _finish(self, partition: Partition, batch: Batch) -> None:
        """An acknowledged batch is finished when its commit mark is durable."""
        self._passed(partition, batch)
        if batch.writing:
            # Acknowledged while its spill is being written: the mark needs its position.
            batch.acked_early = True
            return
        if batch.position < 0:
            self._leave(batch, State.COMMITTED, Fate.COMMITTED)
            return
        self._commits(partition, batch)
        self._ready.persist.after.append(Ended(batch, Fate.COMMITTED))

    def _commits(self, partition: Partition, batch: Batch) -> None:
        partition.commits.append((batch.position, batch.base_offset))
        self._committing[partition.number] = None

    @staticmethod
    def _passed(partition: Partition, batch: Batch) -> None:
        last = partition.last_acked_id
        if batch.identity is not None and not (last is not None and follows(last, batch.identity)):
            partition.last_acked_id = batch.identity

    @staticmethod
    def _dequeue(partition: Partition, batch: Batch) -> None:
        """It is in the log, and that is durable."""
        if partition.queue[0] is not batch:
            partition.queue.remove(batch)
            return
        partition.queue.popleft()
        if batch.base_offset >= 0:
            partition.clear_offset = batch.base_offset + batch.count - 1

    def _leave(self, batch: Batch, state: State, fate: Fate) -> None:
        """A batch is finished."""
        batch.move(state)
        partition = self._partitions[batch.destination]
        self._dequeue(partition, batch)
        self._forget(batch)
        self._remember(partition, batch)
        self._ready.resolved.append(Resolution(batch, fate))
        self._tell_healed(batch)
        self._touch(partition)

    def _forget(self, batch: Batch) -> None:
        """It may be released; and with the last of its parts the batch whose place they stood in."""
        gone: Batch | None = batch
        while gone is not None:
            self._spooled.pop(gone.position, None)
            gone = gone.parent
            if gone is not None:
                gone.heirs -= 1
                if gone.heirs:
                    break

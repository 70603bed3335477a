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
from kafkasafe._core.journal.lifecycle import BatchEvent
from kafkasafe._core.journal.losses import Losses
from kafkasafe._core.journal.messages import Resolution
from kafkasafe._core.journal.partition import Partition
from kafkasafe._core.journal.states import Batch, Fate, State, batches_of

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
        self._index.reach(end_position)
        for batch, position in zip(persist.everything, positions, strict=True):
            batch.written(position)
            self._index.place(batch)
            if batch.state is State.SEALED and batch.identity is not None:
                batch.on(BatchEvent.DURABLE)
            self._touch(self._partitions[batch.destination])
            if batch.has_waited_for_position():
                self._finish(self._partitions[batch.destination], batch)
        for group in persist.units:
            self.units.written(group.unit, min((b.position for b in group.batches), default=end_position - 1))
        for consequence in persist.after:
            self._follow(consequence)

    def _follow(self, consequence: Consequence) -> None:
        match consequence:
            case Ended(batch, Fate.COMMITTED):
                self._leave(batch)
            case Ended(batch, fate, kept):
                if not kept:
                    self._index.drop(batch)
                self._out.ready.resolved.append(Resolution(batch, fate))
                if fate is Fate.REJECTED:
                    self._tell_healed(batch)
            case Begun(destination):
                partition = self._partitions[destination]
                partition.progress.recover()
                if partition.loss.suspicion is None:
                    partition.progress.go_on()
                    partition.progress.end_pause()
                else:
                    partition.progress.decide()
                self._touch(partition)
            case Identified(destination, batches):
                for batch, identity in batches:
                    # Unless it was taken back meanwhile.
                    if batch.state is State.SEALED and batch.identity is identity:
                        batch.on(BatchEvent.ID_DURABLE)
                self._touch(self._partitions[destination])
            case UnitStaged(unit):
                self.units.staged(unit)
            case UnitEnded(unit, fate):
                for batch in batches_of(unit):
                    if fate is Fate.COMMITTED:
                        self._leave(batch)
                    else:
                        self._partitions[batch.destination].queue.remove(batch)
                        self._index.drop(batch)
                        self._out.ready.resolved.append(Resolution(batch, fate))
                    self._touch(self._partitions[batch.destination])
                self.units.over(unit)
                self._out.ready.ended.append((unit, fate))
            case SilenceBroken():
                self._out.ready.sends.extend(self._quiescence.taken_back())

    def _finish(self, partition: Partition, batch: Batch) -> None:
        """An acknowledged batch is finished when its commit mark is durable."""
        partition.log.pass_id(batch.identity)
        if batch.writing:
            # Acknowledged while its spill is being written: the mark needs its position.
            batch.wait_for_position()
            return
        if batch.position < 0:
            self._leave(batch)
            return
        self._commits(partition, batch)
        self._out.ready.persist.after.append(Ended(batch, Fate.COMMITTED))

    def _commits(self, partition: Partition, batch: Batch) -> None:
        partition.log.commit(batch)
        self._out.committing[partition.number] = None

    @staticmethod
    def _dequeue(partition: Partition, batch: Batch) -> None:
        """It is in the log, and that is durable."""
        if partition.queue[0] is not batch:
            partition.queue.remove(batch)
            return
        partition.queue.popleft()
        partition.log.clear(batch.base_offset, batch.count)

    def _leave(self, batch: Batch) -> None:
        """It is in the log, and that is durable: it is finished."""
        batch.on(BatchEvent.COMMITTED)
        partition = self._partitions[batch.destination]
        self._dequeue(partition, batch)
        self._index.drop(batch)
        self._remember(partition, batch)
        self._out.ready.resolved.append(Resolution(batch, Fate.COMMITTED))
        self._tell_healed(batch)
        self._touch(partition)

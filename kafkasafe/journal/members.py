"""Applies the decisions of `kafkasafe.units` to the batches of units (atomic batches)."""

from __future__ import annotations

from collections.abc import Iterable

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.batch import Batch, BatchEvent, Fate, batches_of
from kafkasafe.journal.destinations import Partition
from kafkasafe.journal.losses import Suspicions
from kafkasafe.journal.outbox import Divide, UnitEnded, UnitStaged
from kafkasafe.journal.refusals import Refusals
from kafkasafe.journal.snapshots import state_mark
from kafkasafe.journal.state import JournalState


class UnitBatches:
    """Ends and divides the batches of units (atomic batches), and records their offsets."""

    def __init__(self, state: JournalState, suspicions: Suspicions, refusals: Refusals) -> None:
        self._destinations = state.destinations
        self._all = state.destinations.all
        self._partitions = state.destinations.partitions
        self._out = state.out
        self._suspicions = suspicions
        self._refusals = refusals
        self._units = state.units

    def advance(self) -> None:
        """Carry out what the units decided."""
        decided, persist = self._units.out, self._out.ready.persist
        self._out.ready.units.extend(self._units.advance())
        for unit, refused in decided.too_large:
            self._divide_members(unit, refused)
        decided.too_large.clear()
        for action in self._out.ready.units:
            if isinstance(action, u.Refuse):
                for batch in batches_of(action.unit):
                    batch.blame(action.unit.code, action.unit.reason)
        persist.marks.extend(self._topics_of(decided.ending))
        persist.marks.extend(decided.take_marks())
        persist.after.extend(map(UnitStaged, decided.staging))
        for unit in decided.ending:
            committed = unit.phase is u.Phase.COMMITTED
            for batch in batches_of(unit):
                if committed:
                    batch.on(BatchEvent.UNIT_COMMITTED)
                    self.place(self._partitions[batch.destination], unit, batch)
                    self._refusals.clear_refusal(self._all[batch.destination])
                else:
                    batch.on(BatchEvent.UNIT_ENDED)
            if committed:
                persist.marks.extend(self._places(unit))
            fate = Fate.COMMITTED if committed else Fate.DROPPED if unit.dropped else Fate.REJECTED
            persist.after.append(UnitEnded(unit, fate))
        decided.staging.clear()
        decided.ending.clear()
        persist.leave_out_void()

    def _topics_of(self, units: Iterable[u.Unit]) -> list[m.Mark]:
        """The STATE marks to write before the ENDED marks. They contain the topic ids of partitions whose baseline (end
        offset before the first batch) is not known.
        """
        partitions = {
            destination: self._partitions[destination]
            for unit in units
            if unit.phase is u.Phase.COMMITTED
            for destination in unit.destinations
        }
        return [
            state_mark(partition)
            for partition in partitions.values()
            if partition.log.baseline_offset < 0
            and partition.log.clear_offset < 0
            and any(partition.log.topic_id)
        ]

    def _places(self, unit: u.Unit) -> list[m.Mark]:
        """The COMMITTED marks to write after the ENDED mark. They repeat the offsets of the batches in the unit (atomic
        batch), because the spool may have deleted the STAGED mark.
        """
        entries: dict[int, list[tuple[int, int]]] = {}
        for batch in batches_of(unit):
            if batch.base_offset >= 0:
                entries.setdefault(batch.destination, []).append((batch.position, batch.base_offset))
        return [
            m.Committed(destination, self._partitions[destination].log.leader_epoch, tuple(of_it))
            for destination, of_it in entries.items()
        ]

    def _divide_members(self, unit: u.Unit, refused: u.Member) -> None:
        """Divide the batch that the cluster found too large, and the other batches of the unit (atomic batch) that have
        a similar size and the same topic.
        """
        members = {batch.handle: batch for batch in batches_of(unit)}
        topic = self._all[refused.destination].topic
        too_large = members[refused.handle].size_bytes
        for batch in members.values():
            if (
                batch.count > 1
                and self._all[batch.destination].topic == topic
                and batch.size_bytes * 4 > too_large * 3
            ):
                batch.blame(10, unit.reason)
                self._out.ready.divides.append(Divide(batch, refused=True))

    def place(self, partition: Partition, unit: u.Unit, batch: Batch) -> None:
        """Note a batch of a committed unit (atomic batch), and its offset. A later survey can then search for the
        batch.
        """
        base_offset = unit.places.get(batch.handle, -1)
        batch.locate(base_offset)
        grant = unit.grant
        if grant is not None and batch.handle in unit.sequences:
            sequence = unit.sequences[batch.handle]
            batch.identify(BatchId(grant.producer_id, grant.epoch, sequence, batch.count))
        partition.log.begin_before(base_offset)
        # The leader epoch is unknown if an earlier incarnation staged the unit (atomic batch). Using the epoch of the
        # partition's last acknowledgement would be wrong.
        leader_epoch = unit.epochs.get(batch.handle, -1)
        self._suspicions.acknowledged(partition, base_offset, batch.count, leader_epoch)
        topic = self._destinations.topics.get(partition.topic)
        known, now = partition.log.topic_id, m.NO_TOPIC_ID if topic is None else topic.topic_id
        if any(known) and any(now) and known != now:
            # The topic was created again, and the journal learned the new topic id only after the atomic batch was
            # staged. So the records may have been in the deleted topic.
            self._suspicions.recreated(partition.number, f"topic id {known.hex()} became {now.hex()}")

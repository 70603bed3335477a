"""Rebuilds the journal's state from the batches and marks of earlier incarnations, in the order of the lane's log.

Recovery writes and sends nothing. After recovery, the journal asks the cluster about the batches in doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.journal.acked import ANYWHERE
from kafkasafe.journal.batch import DAMAGED, Batch, BatchEvent, BatchState, batches_of
from kafkasafe.journal.destinations import Destination, Partition
from kafkasafe.journal.flow import FlowEvent
from kafkasafe.journal.forward import CopyForward
from kafkasafe.journal.losses import Losses, Suspicions
from kafkasafe.journal.members import UnitBatches
from kafkasafe.journal.packing import Packer, RereadBacklogs
from kafkasafe.journal.queue import PartitionQueue
from kafkasafe.journal.quiescence import Moment, alive_s
from kafkasafe.journal.state import JournalState
from kafkasafe.journal.topics import Topics
from kafkasafe.journal.verdicts import Verdicts


class Recovery:
    """Receives each batch and mark of the lane's log from the engine, which calls `recovered` at the end."""

    def __init__(
        self,
        state: JournalState,
        packer: Packer,
        suspicions: Suspicions,
        topics: Topics,
        losses: Losses,
        forward: CopyForward,
        verdicts: Verdicts,
        unit_batches: UnitBatches,
    ) -> None:
        self._destinations = state.destinations
        self._all = state.destinations.all
        self._index = state.index
        self._packer = packer
        self._backlogs = RereadBacklogs(state, packer)
        self._replay = state.replay
        self._handles = state.handles
        self._suspicions = suspicions
        self._topics = topics
        self._losses = losses
        self._forward = forward
        self._verdicts = verdicts
        self._unit_batches = unit_batches
        self._revivals = state.revivals
        self._precedence = state.precedence
        self._quiescence = state.quiescence
        self._units = state.units
        self._home = state.home
        self._request_timeout_s = state.settings.request_timeout_s

    def recover_batch(
        self,
        position: int,
        destination: int,
        *,
        count: int,
        size_bytes: int,
        max_timestamp: int,
        identity: BatchId | None,
    ) -> None:
        """Handle the next data batch of the lane's log."""
        if destination not in self._all:
            raise m.MarkError(
                f"The batch at position {position} is for destination {destination}, which was never declared"
            )
        moved, unit, parent, origin, given = self._replay.take()
        if moved is not None and moved.position not in self._index:
            waiting = self._all[destination]
            there = waiting.queue.packed.has(moved.position)
            # Unpack the queue up to the place of this batch.
            self._backlogs.reach(waiting, moved.position if there else next(iter(moved.rank), moved.position))
        known = None if moved is None else self._index.at(moved.position)
        if moved is not None and known is not None and known.destination == destination:
            self._forward.place(known, position)
            if known.rank != moved.rank:
                self._put_in_order(known, moved.rank)
            known.read_place(moved.rank, moved.origin)
            known.read_id(identity)
            self._index.reach(position + count)
            return
        batch = Batch(
            next(self._handles),
            destination,
            count,
            size_bytes,
            max_timestamp,
            position,
            identity,
            BatchState.SEALED if identity is None else BatchState.PREPARED,
            durable=True,
            former_life=True,
            origin=origin,
            given=given,
        )
        if unit is not None:
            unit.add(batch)
        queue = self._all[destination].queue
        if moved is not None:
            # The spool has deleted the segment with the original batch. The rank puts the copy before all batches that
            # were accepted later.
            _insert(queue, batch, moved.rank)
        elif parent is not None and parent.destination == destination:
            # The batch is a part of a divided batch, or was merged from several batches, and takes its parent's place
            # in the order.
            queue.insert(queue.near.index(parent), batch)
            batch.stand_for(parent)
            self._revivals.divide(parent, (batch,))
        else:
            queue.append(batch)
        if parent is not None and parent.unit is not None:
            unit = parent.unit
            unit.add_part(parent, batch)
        if unit is not None:
            batch.join(unit)
        batch.settle_at(position)
        if moved is not None:
            batch.read_place(moved.rank, moved.origin)
        self._index.place(batch)
        self._index.reach(position + count)

    def _put_in_order(self, part: Batch, rank: tuple[int, ...]) -> None:
        """Move a part of a divided batch to its place in the order of delivery, which the part's `rank` determines.

        1. The journal divides a refused batch. The parts are written after batches that the journal accepted later.
        2. The parts are copied forward. The spool deletes the segment with the divided batch, but not yet the segment
           in which the parts were first written.
        3. The next incarnation first reads the parts where they were first written. The marks there do not show the
           place of the parts in the order: only the marks of the copies contain the parts' ranks.
        """
        destination = self._all[part.destination]
        self._backlogs.reach(destination, rank[0])
        destination.queue.remove(part)
        _insert(destination.queue, part, rank)

    def recover_marks(self, position: int, recovered: Sequence[m.Mark]) -> None:
        """Apply the marks of the next spool group in the lane's log.

        If a mark names an unknown batch, either the batch was in a deleted segment, or the mark repeats an earlier
        mark.
        """
        self._drop_parents()
        blind = self._replay.is_blind
        self._index.reach(position + len(recovered) + 1)
        ended: dict[int, Batch] = {}
        for index, mark in enumerate(recovered):
            if blind and self._is_orphan(mark):
                continue
            match mark:
                case m.Topic():
                    self._destinations.learn(mark)
                case m.Destination(number, topic, partition):
                    if number not in self._all:
                        self._destinations.declare(number, topic, partition)
                case m.State() if mark.knows_nothing:
                    self._topics.forget_acknowledged(self._destinations.declared(mark.destination))
                case m.State():
                    known = self._destinations.declared(mark.destination)
                    known.log.read_state(mark)
                    if index >= 2:
                        self._recall(known, recovered[index - 2], recovered[index - 1])
                case m.Granted(producer_id):
                    self._home.read_grant(producer_id)
                case m.Identified(number, m.IdentityReason.REIDENTIFIED, -1, entries):
                    self._destinations.declared_partition(number).loss.read_gaps(entries)
                case m.Identified():
                    self._recover_identities(mark)
                case m.Committed():
                    self._recover_committed(mark, ended, repeats=_repeats_newest(recovered, index))
                case m.Replaced(at, first_child, children):
                    self._recover_replaced(at, range(first_child, first_child + children))
                case m.Rejected(at):
                    self._recover_rejected(at)
                case m.Revived():
                    self._recover_revived(mark, recovered[index + 1 : index + 2])
                case m.Resent():
                    self._index.disown(mark, position)
                case m.Torn():
                    pass  # the reader of the log has already left out the torn batches
                case m.Given(index, runs):
                    self._replay.choose(index, runs)
                case m.After():
                    self._precedence.read(mark)
                case m.Unit():
                    self._recover_unit(mark, position)
                case m.Read():
                    self._units.replay.recover_readings(mark)
                case m.Begun():
                    self._units.replay.recover_begun(mark)
                case m.Staged():
                    self._units.replay.recover_staged(mark)
                case m.Ended():
                    ended |= {batch.position: batch for batch in self._recover_ended(mark, recovered[index:])}
                case m.Moved(moves):
                    self._replay.move(moves)
                case m.Quiet():
                    self._replay.announce(mark)
                case m.Resolved(at, m.Decision.SKIP):
                    self._backlogs.reach_any(at)
                    skipped = self._index.at(at)
                    if skipped is not None:
                        _explain_gap(self._destinations.declared(skipped.destination))
                case m.Cluster():
                    forgets = any(_is_reset(each) for each in recovered[:index])
                    self._home.move(mark, forgets=forgets)
                    if forgets:
                        self._units.ids.forget_producer_ids()
                case m.Undecidable() | m.Resolved():
                    pass  # the cluster may know more now, so the journal asks the cluster again before it asks the user

    def _is_orphan(self, mark: m.Mark) -> bool:
        """Whether the spool group that declared the mark's destination is lost. If so, the destination's topic is not
        known.

        The batches of a destination without a known topic also count as damaged.
        """
        match mark:
            case m.State() | m.Identified() | m.Committed() | m.Revived():
                return mark.destination not in self._all
            case _:
                return False

    def _recover_committed(self, mark: m.Committed, ended: Mapping[int, Batch], *, repeats: bool) -> None:
        """Finish acknowledged batches.

        Args:
            mark: The mark.
            ended: By position: the batches of the units (atomic batches) that earlier marks of this spool group have
                ended.
            repeats: Whether the mark is about the newest acknowledged batch, and only repeats an earlier mark that the
                spool may have deleted.
        """
        known = self._destinations.declared(mark.destination)
        if isinstance(known, Partition):
            self._suspicions.note_leader_epoch(known, mark.leader_epoch)
        for at, base_offset in mark.entries:
            self._backlogs.reach_one(known, at)
            done = self._index.at(at)
            if done is not None and done.state is not BatchState.REPLACED:
                self._index.drop(done)
                done.read_commit(base_offset)
                known.dequeue(done)
                if not _is_found_late(known, done):
                    if isinstance(known, Partition):
                        self._suspicions.check_offset_order(known, base_offset)
                    known.log.acknowledge(base_offset, done.count)
                known.log.pass_id(done.identity)
                known.log.remember(done, self._index.released)
                self._revivals.finish(done)
            elif done is None and repeats:
                pass  # the STATE mark that follows says up to which offset all batches are finished
            elif done is None and base_offset >= 0 and at not in ended:
                # The spool has deleted the batch, so the batch and all earlier batches, except copied ones, were
                # finished. The batch's record count is unknown.
                clear = not known.queue or known.queue.near[0].rank > (at,)
                known.log.read_released(base_offset, clear=clear)
            elif at in ended and base_offset >= 0:
                # The batch belongs to a unit (atomic batch), and the unit's ENDED mark, earlier in this spool group,
                # has finished the batch.
                clear = not known.queue or known.queue.near[0].rank > (at,)
                known.log.read_ended(base_offset, ended[at].count, clear=clear)

    def _recover_replaced(self, at: int, children: range) -> None:
        """Note that the spool group's batches with the indexes `children` replace the batch at position `at`."""
        self._backlogs.reach_any(at)
        parent = self._index.at(at)
        if parent is not None and parent not in self._all[parent.destination].queue.near:
            self._backlogs.reach(self._all[parent.destination], ANYWHERE)
        self._replay.replace(parent, at if parent is None else parent.written_at, children)

    def _recover_rejected(self, at: int) -> None:
        """Finish a rejected batch."""
        self._backlogs.reach_any(at)
        done = self._index.at(at)
        if done is not None and done.state is not BatchState.REPLACED:
            self._index.drop(done)
            self._all[done.destination].queue.remove(done)
            self._backlogs.reach(self._all[done.destination])
            _explain_gap(self._all[done.destination])
            done.read_fate(BatchState.REJECTED)
            self._revivals.finish(done)

    def _recover_unit(self, mark: m.Unit, position: int) -> None:
        """Apply a UNIT mark (it declares an atomic batch), unless it repeats the UNIT mark of a divided unit."""
        first = mark.first
        if self._replay.divides_unit(first):
            return
        # A unit (atomic batch) whose batches were divided keeps its place among the units, even if its first UNIT mark
        # was in a deleted segment.
        accepted_at = self._replay.origin_from(first, position)
        read = self._units.lines.by_id.get(mark.unit_id) or self._units.replay.recover(
            mark, position, accepted_at
        )
        self._replay.read_unit(read, range(first, first + mark.batches))

    def recover_lost(self, position: int, destination: int) -> None:
        """Note damage: of one data batch or, if `destination` is 0, of a whole spool group with its marks.

        A lost mark may have given a batch its first id or a new id, or may have replaced the batch by other batches. So
        the ids in the spool do not show which unfinished batches before the damaged spool group were sent.
        """
        if destination:
            lost = self._replay.take()
            # A part of a divided batch belongs to the unit of the divided batch: see `recover_batch`.
            unit = lost.unit if lost.parent is None or lost.parent.unit is None else lost.parent.unit
            if unit is not None:
                unit.blame(DAMAGED, "a part of it is damaged on disk")
            if destination in self._all:
                _explain_gap(self._all[destination])
        else:
            self._replay.lose(position)
            for partition in self._all.values():
                self._backlogs.reach(partition, ANYWHERE)

    def recover_torn(self, destination: int) -> None:
        """Note a batch that a crash left incomplete, although later batches of its spool group are intact. The batch
        was never durable, so the producer did not promise its delivery to any caller.
        """
        self._replay.take()
        if destination in self._all:
            _explain_gap(self._all[destination])

    def recovered_log(self) -> None:
        """Complete the last spool group. Recovery completes each other group when it reads the next group."""
        self._drop_parents()
        for partition in self._all.values():
            self._backlogs.reach_sent(partition)

    def pack_recovered(self, numbers: Iterator[int]) -> None:
        """Pack long backlogs, as far as recovery has read them. The engine calls this between two spool groups of the
        log.

        Args:
            numbers: Yields numbers; each packed batch takes the next number.
        """
        self._drop_parents()
        self._backlogs.pack(numbers)

    def recovered(self, now: float, clock: Moment | None = None) -> None:
        """Finish recovery, after `recovered_log`. Each batch that an earlier incarnation may have sent is now in doubt,
        and the journal asks the cluster about the batch.

        Args:
            now: The current time in seconds.
            clock: The current time, to compute how long ago an earlier incarnation sent its last request; None:
                recovery assumes that the request was sent just now.
        """
        blind = self._replay.is_blind
        quiet = None if blind else self._replay.quiet
        pause_s = alive_s(quiet, clock, self._request_timeout_s)
        self._quiescence.begin(now + pause_s, announced=quiet is not None)
        for unit in self._units.lines.by_id.values():
            if unit.phase is u.Phase.WAITING and unit.position < self._replay.blind_before:
                reason = (
                    "damage in the spool may have destroyed marks about this atomic batch, so it may"
                    " already be committed"
                )
                unit.blame(unit.code or DAMAGED, unit.reason or reason)
        self._units.recovered()
        self._index.pin_everything()
        for destination in self._all.values():
            if not isinstance(destination, Partition):
                if not blind:
                    self._topics.note_topic(destination)
                else:
                    destination.lose_marks(self._replay.blind_before)
                    self._verdicts.stop_at_unsure(destination)
                self._packer.touch(destination)
                continue
            partition = destination
            if blind:
                partition.loss.explain()  # a lost spool group may have had batches of the partition
            partition.loss.expect(partition.queue.identities(), partition.log.last_acked_id)
            begun = partition.log.has_begun
            if not (begun or blind):
                # Unless a batch belongs to a unit (atomic batch), the journal sends it only after the partition's
                # baseline (its end offset before our first batch) is durable in the lane's log. Here, the lane's log
                # has no baseline, so only batches of units may have been sent to this partition.
                self._topics.note_topic(partition)
                self._packer.touch(partition)
                continue
            # The journal sends only batches at the front of a queue, so only the first few batches with an id can have
            # been sent. Before them, there may be lost batches that must be sent again and have no id. If marks are
            # lost, any batch with an id can have been sent.
            most = None if blind else self._backlogs.sent_at_most
            doubt = list(
                islice((batch for batch in partition.queue.near if batch.identity is not None), most)
            )
            for batch in doubt:
                batch.on(BatchEvent.MAY_BE_THERE)
            if doubt and partition.queue.near[0].identity is None:
                # An earlier incarnation put lost batches into the queue again, before the batches in doubt. The lost
                # batches get new ids, and sequences must ascend in queue order, so each batch in doubt that the log
                # does not have needs a new id, too.
                partition.ids.expire()
            if doubt:
                # The broker may still append the last requests of an earlier incarnation.
                partition.doubt.may_arrive_until(now + pause_s)
                partition.progress.on(FlowEvent.RECOVERED_IN_DOUBT)
            elif begun:
                partition.progress.on(FlowEvent.RECOVERED)
            if partition.loss.suspicion is not None:
                self._suspicions.stop(partition)
            if blind:
                partition.lose_marks(self._replay.blind_before)
                self._verdicts.stop_at_unsure(partition)
            self._packer.touch(partition)

    def _recover_revived(self, mark: m.Revived, following: Sequence[m.Mark]) -> None:
        """Apply the result of an earlier incarnation's survey: put the lost batches back into the queue. `following`
        has the next mark of the spool group.
        """
        known = self._destinations.declared_partition(mark.destination)
        self._backlogs.reach(known, ANYWHERE)
        places = dict(mark.moved)
        for done in known.log.acked:
            if done.position in places:
                done.relocate(places[done.position])
        self._drop_lost(known, following)
        known.loss.close()
        self._index.unpin(known.number)
        self._losses.revive(known, mark.positions, mark.given_up, mark.end_offset)
        if mark.positions or mark.given_up:
            known.loss.explain()

    def _recover_ended(self, mark: m.Ended, following: Sequence[m.Mark]) -> list[Batch]:
        """End a unit (atomic batch). COMMITTED marks later in the spool group have the leader epochs of the unit's
        batches.
        """
        unit = self._units.replay.recover_ended(mark)
        if unit is None:
            return []
        epochs = {
            at: each.leader_epoch
            for each in following
            if isinstance(each, m.Committed)
            for at, _ in each.entries
        }
        members = batches_of(unit)
        for batch in members:
            partition = self._all[batch.destination]
            self._backlogs.reach(partition)
            self._index.drop(batch)
            if mark.outcome is m.UnitOutcome.COMMITTED:
                unit.read_epoch(batch.handle, epochs.get(batch.position, -1))
                if isinstance(partition, Partition):  # otherwise, damage destroyed the division's mark
                    self._unit_batches.place(partition, unit, batch)
                batch.read_fate(BatchState.COMMITTED)
                partition.dequeue(batch)
                partition.log.remember(batch, self._index.released)
            else:
                partition.queue.remove(batch)
                _explain_gap(partition)
                batch.read_fate(BatchState.REJECTED)
        return members

    def _drop_parents(self) -> None:
        """End the spool group. Remove each batch that the group replaces from its queue, because other batches now have
        the batch's records.
        """
        for parent, _ in self._replay.parents:
            if not parent.heirs:
                self._index.drop(parent)
            self._all[parent.destination].queue.remove(parent)
            parent.read_fate(BatchState.REPLACED)
            if parent.unit is not None:
                parent.unit.remove(parent)
            self._revivals.finish(parent)
        self._replay.end_group()

    def _recall(self, partition: Destination, identified: m.Mark, committed: m.Mark) -> None:
        """Restore the newest acknowledged batch, which the spool may have deleted, from two marks: see `snapshots`."""
        newest = _newest_of(identified, committed)
        if newest is None:
            return
        identity, position, base_offset = newest
        count = partition.log.clear_offset - base_offset + 1
        if base_offset < 0 or count < 1:
            return
        partition.log.tell(position)
        if any(batch.position >= 0 for batch in partition.log.acked):
            return  # the spool still has it
        batch = Batch(
            next(self._handles),
            partition.number,
            count,
            size_bytes=0,
            max_timestamp=0,
            identity=BatchId(identity.producer_id, identity.producer_epoch, identity.base_sequence, count),
            state=BatchState.COMMITTED,
            durable=True,
            former_life=True,
            base_offset=base_offset,
            place=base_offset,
            rank=(position,),
        )
        partition.log.recall(batch)

    @staticmethod
    def _drop_lost(partition: Partition, following: Sequence[m.Mark]) -> None:
        """Drop lost batches that the spool has deleted. The REVIVED mark does not name these batches; their offsets are
        after the last acknowledged offset in the STATE mark.
        """
        for state in following:
            if isinstance(state, m.State):
                partition.log.cut(state.last_acked_offset)

    def _recover_identities(self, mark: m.Identified) -> None:
        partition = self._destinations.declared_partition(mark.destination)
        self._backlogs.reach(partition, max((entry.position for entry in mark.entries), default=-1))
        if mark.void_from == 0:
            # The mark voids the ids of all waiting batches. The batches to which the mark gives new ids have just been
            # unpacked, so every batch that is still packed loses its id.
            partition.queue.packed.forget_identities()
        elif mark.void_from > 0:
            self._backlogs.reach(partition, ANYWHERE)
        if mark.void_from >= 0:
            named = {entry.position for entry in mark.entries}
            # The earlier incarnation found all sent batches in the log, or proved that the log does not have them.
            partition.doubt.forget_cut()
            for batch in partition.queue.all():
                if batch.state is BatchState.JOINED:
                    continue  # the batch gets its sequences in the transaction of its unit
                if batch.position >= mark.void_from and batch.position not in named:
                    batch.read_id(None)
        for entry in mark.entries:
            known = self._index.at(entry.position)
            if known is not None and known.state is not BatchState.JOINED:
                known.read_id(
                    BatchId(entry.producer_id, entry.producer_epoch, entry.base_sequence, known.count)
                )


def _explain_gap(destination: Destination) -> None:
    """Note that a sequence gap in the partition's log is expected, because a batch may never have been appended."""
    if isinstance(destination, Partition):
        destination.loss.explain()


def _is_reset(mark: m.Mark) -> bool:
    return isinstance(mark, m.State) and mark.knows_nothing


def _newest_of(identified: m.Mark, committed: m.Mark) -> tuple[m.Identity, int, int] | None:
    """The identity, position and base offset of the one batch that both marks name (see `snapshots`). None if one of
    the marks names no batch or several batches, or if the two marks name different batches.
    """
    if not (isinstance(identified, m.Identified) and isinstance(committed, m.Committed)):
        return None
    if len(identified.entries) != 1 or len(committed.entries) != 1:
        return None
    identity, (position, base_offset) = identified.entries[0], committed.entries[0]
    return (identity, position, base_offset) if identity.position == position else None


def _repeats_newest(marks: Sequence[m.Mark], index: int) -> bool:
    """Whether the mark at `index` repeats the COMMITTED mark of the newest acknowledged batch. Such a repetition is
    between an IDENTIFIED and a STATE mark.
    """
    return (
        0 < index < len(marks) - 1
        and isinstance(marks[index + 1], m.State)
        and _newest_of(marks[index - 1], marks[index]) is not None
    )


def _insert(queue: PartitionQueue, batch: Batch, rank: tuple[int, ...]) -> None:
    """Insert a batch before all batches with a higher rank. The caller must have unpacked the queue up to the batch's
    place.
    """
    queue.insert(sum(other.rank < rank for other in queue.near), batch)


def _is_found_late(partition: Destination, batch: Batch) -> bool:
    """Whether a batch's offset may be lower than the last acknowledged offset without a loss.

    1. Batches 1 and 2 are sent. Batch 2 is acknowledged at offset 12, but the answer to batch 1 is lost.
    2. The journal searches for batch 1, finds it at offset 11, and commits it after batch 2.

    Batches 1 and 2 have the right order in the log, so nothing suggests that offset 12 is lost. After a truncation of
    the log, an acknowledgement may have a lower offset than the previous one. But it also has another leader epoch, so
    the journal asks where the earlier epoch ends.
    """
    return partition.log.leader_epoch >= 0 and any(
        other.rank > batch.rank
        and 0 <= batch.base_offset < other.base_offset
        and other.base_offset + other.count - 1 == partition.log.last_acked_offset
        for other in reversed(partition.log.acked)
    )

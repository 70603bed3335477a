"""What earlier lives left in the spool: their batches and marks, in the order of the log, as state of this life.

Nothing is written or sent in here: what is in doubt is asked about as soon as the log is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from kafkasafe._core import marks as m
from kafkasafe._core import units as u
from kafkasafe._core.identity import BatchId
from kafkasafe._core.journal.clock import Clock, alive_s
from kafkasafe._core.journal.members import Members
from kafkasafe._core.journal.partition import ANYWHERE, WINDOW, Flow, Partition
from kafkasafe._core.journal.states import DAMAGED, Batch, State

__all__ = ["Recovery"]


class Recovery(Members):
    """Part of `Journal`: the log is read back, `recovered` last."""

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
        """A data batch found in the log, in log order."""
        if destination not in self._partitions:
            raise m.MarkError(
                f"The batch at position {position} is for destination {destination}, never declared"
            )
        moved = self._moves[self._group_index] if self._group_index < len(self._moves) else None
        known = None if moved is None else self._spooled.get(moved.position)
        if moved is not None and known is not None and known.destination == destination:
            self._place(known, position)
            known.rank, known.origin = moved.rank, moved.origin
            known.identity = identity
            known.state = State.SEALED if identity is None else State.PREPARED
            self._group_index += 1
            self._end_position = max(self._end_position, position + count)
            return
        self._next_handle += 1
        batch = Batch(
            self._next_handle,
            destination,
            count,
            size_bytes,
            max_timestamp,
            position,
            identity,
            State.SEALED if identity is None else State.PREPARED,
            durable=True,
            former_life=True,
        )
        unit = next((unit for unit, members in self._units_read if self._group_index in members), None)
        if unit is not None:
            unit.batches.append(batch)
        queue = self._partitions[destination].queue
        batch.origin = next((at for at, children in self._origins if self._group_index in children), -1)
        parent = next((p for p, children in self._parents if self._group_index in children), None)
        if moved is not None:
            # Where it was is gone: it stands in front of what was accepted after it.
            queue.insert(sum(other.rank < moved.rank for other in queue), batch)
        elif parent is not None and parent.destination == destination:
            # Divided because it was too large: its records keep their place.
            queue.insert(queue.index(parent), batch)
            batch.parent = parent
            parent.heirs += 1
            self._parts_heal(parent, (batch,))
        else:
            queue.append(batch)
        if parent is not None and parent.unit is not None:
            unit = parent.unit
            unit.batches.insert(unit.batches.index(parent), batch)
        if unit is not None:
            batch.unit, batch.state = unit, State.JOINED
        batch.settle_at(position)
        if moved is not None:
            batch.rank, batch.origin = moved.rank, moved.origin
        batch.given = self._given.get(self._group_index)
        self._group_index += 1
        self._spooled[position] = batch
        self._end_position = max(self._end_position, position + count)

    def recover_marks(self, position: int, recovered: Sequence[m.Mark]) -> None:
        """The marks of one group found in the log, in log order.

        A mark about a batch that is not there any more is about a deleted segment, or repeats what is known.
        """
        self._end_position = max(self._end_position, position + len(recovered) + 1)
        self._drop_parents()
        ended: dict[int, Batch] = {}
        for index, mark in enumerate(recovered):
            match mark:
                case m.Topic():
                    self._topics[mark.topic] = mark
                case m.Destination(number, topic, partition):
                    if number not in self._partitions:
                        self._partitions[number] = Partition(number, topic, partition)
                        self._numbers[topic, partition] = number
                case m.State() if mark.knows_nothing:
                    self._forget_acknowledged(self._declared(mark.destination))
                case m.State():
                    known = self._declared(mark.destination)
                    known.baseline_offset = mark.baseline_offset
                    known.clear_offset = mark.last_acked_offset
                    # What stands behind a batch that is not finished was acknowledged all the same.
                    known.last_acked_offset = max(known.last_acked_offset, mark.last_acked_offset)
                    known.leader_epoch = mark.leader_epoch
                    known.topic_id = mark.topic_id
                    if not known.acked:
                        known.forgotten_offset = mark.last_acked_offset + 1
                    self._recall(known, recovered[max(0, index - 2) : index])
                case m.Granted(producer_id):
                    # Each incarnation takes its own id: a copied spool must never reuse one.
                    self._home.granted(producer_id)
                case m.Identified():
                    self._recover_identities(mark)
                case m.Committed():
                    known = self._declared(mark.destination)
                    self._leads(known, mark.leader_epoch)
                    for at, base_offset in mark.entries:
                        done = self._spooled.get(at)
                        if done is not None and done.state is not State.REPLACED:
                            self._forget(done)
                            done.base_offset = base_offset
                            self._dequeue(known, done)
                            if not _is_found_late(known, done):
                                self._look_back(known, base_offset)
                                if base_offset >= 0:
                                    known.last_acked_offset = base_offset + done.count - 1
                            self._passed(known, done)
                            done.state = State.COMMITTED
                            self._remember(known, done)
                            self._comes_back(done)
                        elif done is None and _repeats_newest(recovered, index):
                            pass  # STATE, which follows, says how far it goes; later ones may be acknowledged as well
                        elif done is None and base_offset >= 0 and at not in ended:
                            # Released: it, and all before it but what was moved, was finished. Its size is gone.
                            self._begins_at(known, base_offset)
                            known.last_acked_offset = base_offset
                            if not known.queue or known.queue[0].rank > (at,):
                                known.clear_offset = base_offset
                            known.known_from = -1
                            known.released.note(base_offset, known.forgotten_offset)
                            if not known.acked:
                                known.forgotten_offset = ANYWHERE
                        elif at in ended and base_offset >= 0:
                            # Another unit of the group ended before it, and is read only now: it was released.
                            if known.known_from < 0:
                                known.known_from = base_offset
                            known.last_acked_offset = base_offset + ended[at].count - 1
                            if not known.queue or known.queue[0].rank > (at,):
                                known.clear_offset = known.last_acked_offset
                case m.Replaced(at, first_child, children):
                    parent = self._spooled.get(at)
                    origin = at if parent is None else parent.written_at
                    self._origins.append((origin, range(first_child, first_child + children)))
                    if parent is not None:
                        self._parents.append((parent, range(first_child, first_child + children)))
                case m.Rejected(at):
                    done = self._spooled.get(at)
                    if done is not None and done.state is not State.REPLACED:
                        self._forget(done)
                        self._partitions[done.destination].queue.remove(done)
                        self._partitions[done.destination].explained = True
                        done.state = State.REJECTED
                        self._comes_back(done)
                case m.Revived(destination, end_offset, positions, given_up, moved):
                    known = self._declared(destination)
                    places = dict(moved)
                    for done in known.acked:
                        if done.position in places:
                            done.base_offset = done.place = places[done.position]
                    self._drop_lost(known, recovered[index + 1 : index + 2])
                    known.suspicion = None
                    known.forget_checks()
                    self._doubt_or_not(known)
                    self._revive(known, positions, given_up, end_offset)
                    known.explained = known.explained or bool(positions or given_up)
                case m.Resent():
                    self._resent[mark] = position
                case m.Torn():
                    pass  # what was left out was left out when the log was read
                case m.Given(index, runs):
                    self._given[index] = runs
                case m.After():
                    # The first group of a later segment repeats it, less what was paid meanwhile.
                    self._afters = [each for each in self._afters if each.position != mark.position]
                    self._afters.append(mark)
                case m.Unit(_, first, batches):
                    if not any(
                        parent.unit is not None and children.start == first
                        for parent, children in self._parents
                    ):
                        read = self.units.get(mark.unit_id) or self.units.recover(
                            mark,
                            position,
                            # Divided, and the segment with the first UNIT mark is gone: where that was says its turn.
                            next((at for at, children in self._origins if children.start == first), position),
                        )
                        self._units_read.append((read, range(first, first + batches)))
                case m.Read():
                    self.units.recover_readings(mark)
                case m.Begun():
                    self.units.recover_begun(mark)
                case m.Staged():
                    self.units.recover_staged(mark)
                case m.Ended():
                    ended |= {batch.position: batch for batch in self._recover_ended(mark, recovered[index:])}
                case m.Moved(moves):
                    self._moves = moves
                case m.Quiet():
                    self._quiet = mark if mark.until_ms >= 0 else None
                case m.Resolved(at, m.Decision.SKIP) if at in self._spooled:
                    self._declared(self._spooled[at].destination).explained = True
                case m.Cluster():
                    self._home.move(mark, forgets=any(_is_reset(each) for each in recovered[:index]))
                case m.Undecidable() | m.Resolved():
                    pass  # asked again: the cluster may know more today; a decision is asked for again as well

    def recover_lost(self, position: int, destination: int) -> None:
        """Damage in the log: a data batch, or (destination 0) a whole group with its marks.

        A lost mark may have given a batch its id, or a new one, or replaced it. So what was unfinished before the
        group cannot be decided: neither its old id nor its having none says that it was not sent.
        """
        if destination:
            unit = next((unit for unit, members in self._units_read if self._group_index in members), None)
            if unit is not None:
                unit.code, unit.reason = DAMAGED, "a part of it is damaged on disk"
            self._group_index += 1
            if destination in self._partitions:
                self._partitions[destination].explained = True
        else:
            self._blind_before = position

    def recover_torn(self, destination: int) -> None:
        """A batch that a crash tore, in front of intact ones of its group. It was never promised."""
        self._group_index += 1
        self._declared(destination).explained = True

    def recovered_log(self) -> None:
        """The log ends here: nothing follows that would say so of its last group."""
        self._drop_parents()

    def recovered(self, now: float, clock: Clock | None = None) -> None:
        """The log is read: every batch that has an id may have been sent by an earlier life, and is asked about.

        Args:
            now: Seconds.
            clock: What time it is, for how long ago an earlier life sent its last request; without it, just now.
        """
        self._drop_parents()
        quiet = self._quiet if self._blind_before < 0 else None
        self._still = quiet is not None
        pause_s = alive_s(quiet, clock, self._request_timeout_s)
        self._former_dead_at = now + pause_s
        for unit in self.units.unfinished:
            if unit.phase is u.Phase.WAITING and unit.position < self._blind_before:
                unit.code = unit.code or DAMAGED
                unit.reason = unit.reason or (
                    "marks that may have spoken of it are lost to damage in the spool: readers may have it already"
                )
        self.units.recovered()
        # A check may follow from a leader epoch in the first segment: it stays until there is an answer.
        self._doubted = dict.fromkeys(self._doubted, 0)
        for partition in self._partitions.values():
            # Earlier lives had answers about the leaders before.
            del partition.checks[:-1]
            if partition.baseline_offset >= 0 or partition.last_acked_offset >= 0:
                partition.flow = Flow.FLOWING
            elif self._blind_before < 0:
                # Nothing was ever sent: that waits for a durable baseline.
                self._note_topic(partition)
                self._touch(partition)
                continue
            # Only the first ones of a queue are ever sent, and what was put in front of them since has no id. Where
            # marks are lost, nobody knows what was in front.
            near = max(self._window, WINDOW) if self._blind_before < 0 else None
            doubt = list(islice((batch for batch in partition.queue if batch.identity is not None), near))
            for batch in doubt:
                batch.move(State.IN_DOUBT)
            if doubt and partition.queue[0].identity is None:
                # Lost ones came back in front of it: behind them it needs another id.
                partition.renew = True
            if doubt:
                # An earlier life's last requests may still be on their way into the broker.
                partition.dead_at = now + pause_s
                partition.doubtful = True
                partition.rested = True
                partition.flow = Flow.SETTLING
            self._stop_if_suspected(partition)
            if self._blind_before >= 0:
                partition.unsure_before = self._blind_before
                self._park_unsure(partition)
            self._touch(partition)

    def _recover_ended(self, mark: m.Ended, behind: Sequence[m.Mark]) -> list[Batch]:
        """Of the marks behind it, COMMITTED alone tells under which leader its batches were appended."""
        unit = self.units.recover_ended(mark)
        if unit is None:
            return []
        epochs = {
            at: each.leader_epoch
            for each in behind
            if isinstance(each, m.Committed)
            for at, _ in each.entries
        }
        members = self._members(unit)
        for batch in members:
            partition = self._partitions[batch.destination]
            self._forget(batch)
            if mark.outcome is m.UnitOutcome.COMMITTED:
                unit.epochs.setdefault(batch.handle, epochs.get(batch.position, -1))
                self._unit_place(partition, unit, batch)
                self._dequeue(partition, batch)
                batch.state = State.COMMITTED
                self._remember(partition, batch)
            else:
                partition.queue.remove(batch)
                partition.explained = True
                batch.state = State.REJECTED
        return members

    def _declared(self, destination: int) -> Partition:
        if destination not in self._partitions:
            raise m.MarkError(f"A mark speaks of destination {destination}, never declared")
        return self._partitions[destination]

    def _drop_parents(self) -> None:
        """The group with their children is read: the parents' records live on in them."""
        for parent, _ in self._parents:
            if not parent.heirs:
                self._forget(parent)
            self._partitions[parent.destination].queue.remove(parent)
            parent.state = State.REPLACED
            if parent.unit is not None:
                parent.unit.batches.remove(parent)
            self._comes_back(parent)
        self._parents.clear()
        self._origins.clear()
        self._units_read.clear()
        self._given.clear()
        self._moves = ()
        self._group_index = 0

    def _recall(self, partition: Partition, told: Sequence[m.Mark]) -> None:
        """The newest acknowledged batch is gone from the spool, but not which one it was: see `_newest_marks`."""
        newest = _newest_told(told)
        if newest is None:
            return
        identity, position, base_offset = newest
        count = partition.clear_offset - base_offset + 1
        if base_offset < 0 or count < 1:
            return
        partition.told_position = position
        if any(batch.position >= 0 for batch in partition.acked):
            return  # it is among them
        self._next_handle += 1
        batch = Batch(
            self._next_handle,
            partition.number,
            count,
            size_bytes=0,
            max_timestamp=0,
            identity=BatchId(identity.producer_id, identity.producer_epoch, identity.base_sequence, count),
            state=State.COMMITTED,
            durable=True,
            former_life=True,
            base_offset=base_offset,
            place=base_offset,
            rank=(position,),
        )
        partition.acked = deque((batch,))
        partition.forgotten_offset = base_offset

    @staticmethod
    def _drop_lost(partition: Partition, behind: Sequence[m.Mark]) -> None:
        """REVIVED names lost batches by position. One that has left the spool is lost if STATE ends before it."""
        for state in behind:
            if isinstance(state, m.State):
                last = state.last_acked_offset
                partition.released.cut(last + 1)
                partition.acked = deque(
                    batch
                    for batch in partition.acked
                    if batch.position >= 0 or batch.place + batch.count - 1 <= last
                )

    def _recover_identities(self, mark: m.Identified) -> None:
        partition = self._declared(mark.destination)
        if mark.void_from >= 0:
            named = {entry.position for entry in mark.entries}
            # What was sent before is where it was looked for, or nowhere.
            partition.rescan_from = -1
            for batch in partition.queue:
                if batch.state is State.JOINED:
                    continue  # its ids are those of its unit
                if batch.position >= mark.void_from and batch.position not in named:
                    batch.identity = None
                    batch.state = State.SEALED
        for entry in mark.entries:
            known = self._spooled.get(entry.position)
            if known is not None and known.state is not State.JOINED:
                known.identity = BatchId(
                    entry.producer_id, entry.producer_epoch, entry.base_sequence, known.count
                )
                known.state = State.PREPARED


def _is_reset(mark: m.Mark) -> bool:
    return isinstance(mark, m.State) and mark.knows_nothing


def _newest_told(marks: Sequence[m.Mark]) -> tuple[m.Identity, int, int] | None:
    """Identity, position and base offset of the batch that these two marks name: see `Lives._newest_marks`."""
    if len(marks) != 2:
        return None
    identified, committed = marks
    if not (isinstance(identified, m.Identified) and isinstance(committed, m.Committed)):
        return None
    if len(identified.entries) != 1 or len(committed.entries) != 1:
        return None
    identity, (position, base_offset) = identified.entries[0], committed.entries[0]
    return (identity, position, base_offset) if identity.position == position else None


def _repeats_newest(marks: Sequence[m.Mark], index: int) -> bool:
    """Whether a COMMITTED mark names the batch that was acknowledged last, once more, in front of STATE."""
    if index == 0 or _newest_told(marks[index - 1 : index + 1]) is None:
        return False
    return any(isinstance(mark, m.State) for mark in marks[index + 1 : index + 2])


def _is_found_late(partition: Partition, batch: Batch) -> bool:
    """Whether it stands where it should though its offset is lower than the last acknowledged one.

    1. Batches 1 and 2 are sent. Batch 2 is acknowledged at offset 12, the answer to batch 1 is lost.
    2. Batch 1 is looked for, found at offset 11, and committed after batch 2.

    It stands in order, so that is no reason to suspect that offset 12 is gone. Where an acknowledgement said the same
    after the log was cut, the leader epoch is another one, and the end of the one before is asked for.
    """
    return partition.leader_epoch >= 0 and any(
        other.rank > batch.rank
        and 0 <= batch.base_offset < other.base_offset
        and other.base_offset + other.count - 1 == partition.last_acked_offset
        for other in reversed(partition.acked)
    )

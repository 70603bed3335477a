"""Decides which units to begin, append and commit next."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kafkasafe import marks as m
from kafkasafe.units.ids import TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import UnitOutbox
from kafkasafe.units.readings import ReadingOrder
from kafkasafe.units.requests import AddPartitions, CommitOffsets, EndTxn, Produce
from kafkasafe.units.terms import SUPERSEDED, Grant, Line, Member, Phase
from kafkasafe.units.together import Sharing
from kafkasafe.units.transitions import MOVED_ON, Transitions
from kafkasafe.units.unit import Transaction, TransactionalId, Unit


class Schedule:
    """Begins each unit as soon as possible, and continues the units in progress.

    Args:
        front: Returns True if nothing holds the batch back, and all batches before it in the queue of its partition
            belong to units.
        lines: The unfinished units.
        readings: Knows which units are superseded: another run of a consumer has already committed their input.
        ids: The transactional ids.
        sharing: Chooses the units that share a transaction.
        transitions: Changes units.
        out: Receives the decisions.
    """

    def __init__(
        self,
        front: Callable[[Member], bool],
        lines: Lines,
        readings: ReadingOrder,
        ids: TransactionalIds,
        sharing: Sharing,
        transitions: Transitions,
        out: UnitOutbox,
    ) -> None:
        self._front = front
        self._lines = lines
        self._readings = readings
        self._ids = ids
        self._sharing = sharing
        self._transitions = transitions
        self._out = out
        self._only: frozenset[bytes] | None = None
        """Ids of the units that may be committed; None: all."""
        self.paused = False
        """True if no new unit may begin. Staged units can still be committed."""

    def pause(self, only: frozenset[bytes] | None) -> None:
        """Begin no more units, and commit only these units (None: all)."""
        self.paused, self._only = True, only

    def advance(self) -> None:
        """Make all decisions that are possible now."""
        while self._out.take_change():
            self._transitions.drop_superseded()
            self._transitions.follow_drops()
            self._begin()
            self._go_on()

    def held_up(self, unit: Unit) -> bool:
        """Whether `Units.decide` also keeps this unit waiting: an earlier unit in one of its lines, or another unit of
        its transaction, is left unfinished.

        Any thread may call it.
        """
        peers = unit.peers
        if self.paused and len(peers) > 1 and not self._are_decided_here(peers):
            return True
        held: set[Line] = set()
        for other in self._lines.all if self.paused else ():
            if other is unit:
                break
            left = other.phase is Phase.STAGED and not self._are_decided_here(other.peers)
            if left or other.phase is Phase.WAITING or not held.isdisjoint(other.lines):
                held.update(other.lines)
        return not held.isdisjoint(unit.lines)

    def abort_on_partition(self, destination: int, reason: str) -> bool:
        """Requeue the units of a partition before the partition's log is compared with the batches that the log should
        contain.

        If the topic was deleted and created again, its log lacks the batches of a prepared transaction. The coordinator
        would still commit this transaction, because it identifies topics by name. So this method aborts a transaction
        that can be aborted, and its units are prepared again later. If a transaction may already be committed, the
        engine finds out the outcome before it compares the transaction's batches with the log.

        Returns:
            True if the partition has no transaction any more. While the result is False, the caller calls this method
            again after each answer.
        """
        vacant = not self._ids.is_open(destination)
        for transaction in self._ids.under_way:
            if destination in transaction.destinations and self._are_decided_here(transaction.units):
                self._transitions.take_off(transaction, reason)
        return vacant

    # -- begin -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self.paused:
            return
        coming = self._ids.coming
        for unit in [each for each in self._lines.next_units() if self.is_ready(each)]:
            if self._readings.is_superseded(unit):
                self._transitions.drop(unit, SUPERSEDED, MOVED_ON)
                continue
            if not (unit.batches or unit.group_lines):
                self._transitions.commit_nothing(unit)
                continue
            tid = self._ids.choose(unit)
            if tid is None:
                continue
            grant = tid.grant
            if grant is None or tid.fresh:
                if not coming or unit.transactional_id:
                    self._ids.fence(tid)
                else:
                    coming -= 1
                continue
            self._begin_transaction(self._sharing.gather(unit, self.is_ready), tid, grant)

    def _begin_transaction(self, units: list[Unit], tid: TransactionalId, grant: Grant) -> None:
        transaction = self._transitions.begin(units, tid, grant)
        for each in units:
            self._out.begin(_begun(each, tid, grant))
        if transaction.batches and not adds_itself(transaction):
            self._out.ask(AddPartitions(tid, tid.turn, transaction))
        else:
            transaction.move(Phase.APPENDING)

    def is_ready(self, unit: Unit) -> bool:
        """Whether the unit could begin if it were its turn."""
        return (
            unit.phase is Phase.WAITING
            and unit.durable
            and not unit.resting
            and all(batch.position >= 0 for batch in unit.batches)
            and all(map(self._front, unit.batches))
        )

    # -- in progress -----------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Append and commit transactions. A transaction takes a step only after all earlier transactions of the same
        partitions or group offsets have taken this step.
        """
        for transaction in self._ids.under_way:
            tid, phase = transaction.tid, transaction.phase
            if tid is None:
                continue
            if phase is Phase.APPENDING and not transaction.issued:
                if self._lines.all_issued_before(transaction):
                    self._append(transaction, tid)
            elif phase is Phase.APPENDING and transaction.next_note >= 0:
                self._write_offsets(transaction, tid)
            elif phase is Phase.STAGED and self._may_end(transaction):
                if transaction.alone or self._lines.in_order(transaction):
                    transaction.move(Phase.ENDING)
                    tid.send_end()
                    self._out.ask(EndTxn(tid, tid.turn, transaction))
                elif tid.fresh:
                    # Ask for the outcome, because the earlier incarnation that staged the transaction may have sent
                    # EndTxn.
                    self._transitions.ask_outcome(transaction)
                else:
                    self._transitions.abort_and_requeue(
                        transaction, None, "it precedes a batch that was accepted earlier"
                    )

    def _may_end(self, transaction: Transaction) -> bool:
        if not self._are_decided_here(transaction.units):
            return False
        return self._lines.is_first(transaction, transaction.lines)

    def _are_decided_here(self, units: Iterable[Unit]) -> bool:
        return self._only is None or self._only.issuperset(each.unit_id for each in units)

    def _write_offsets(self, transaction: Transaction, tid: TransactionalId) -> None:
        """Write the offsets of the next consumer group, if every earlier unit that moves the same offsets is either
        committed or refused. Without this condition, a group could get an old offset:

        1. Two units of a consumer are prepared at the same time. The answer to the first unit's TxnOffsetCommit is
           lost.
        2. The second unit writes its offset.
        3. The first unit writes its offset again.
        4. Both units are committed, in order. But the group keeps the offset that was *written* last, which is the
           first unit's offset.
        """
        if not self._lines.is_first(transaction, transaction.group_lines):
            return
        for each in transaction.units:
            if self._readings.is_superseded(each):
                self._transitions.drop(each, SUPERSEDED, MOVED_ON)
                return
        self._out.ask(CommitOffsets(tid, tid.turn, transaction, transaction.take_note()))

    def _append(self, transaction: Transaction, tid: TransactionalId) -> None:
        transaction.issue(alone=self._lines.is_first(transaction, transaction.destinations))
        for batch in transaction.batches:
            sequence = tid.take_sequence(batch.destination, batch.count)
            transaction.send(batch, sequence)
            self._out.ask(Produce(tid, tid.turn, transaction, batch, sequence))
        if not (transaction.batches and adds_itself(transaction)):
            self.mark(transaction)
        self._out.change()

    def mark(self, transaction: Transaction) -> None:
        """Write the transaction's marker, which is stored as the offset of a group."""
        tid = transaction.tid
        if tid is not None:
            self._out.ask(CommitOffsets(tid, tid.turn, transaction, -1))

    def stage_if_whole(self, transaction: Transaction) -> None:
        """Write the STAGED marks of the transaction's units, if the transaction is completely appended."""
        tid, grant = transaction.tid, transaction.grant
        if tid is None or not transaction.is_whole:
            return
        transaction.move(Phase.STAGING)
        marks = [m.Staged(_begun(each, tid, grant), each.placed) for each in transaction.units]
        self._out.stage(transaction, marks)


def _begun(unit: Unit, tid: TransactionalId, grant: Grant) -> m.Begun:
    return m.Begun(unit.unit_id, tid.name, grant.producer_id, grant.epoch, grant.protocol)


def adds_itself(transaction: Transaction) -> bool:
    """Whether the Produce request also adds the partition to the transaction (KIP-890). AddPartitions adds several
    partitions at once, because concurrent Produce requests that add partitions would disturb each other.
    """
    return transaction.grant.protocol >= 2 and len(transaction.destinations) == 1

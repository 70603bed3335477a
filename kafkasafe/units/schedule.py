"""Whose turn it is: which units are begun, appended and committed next."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kafkasafe import marks as m
from kafkasafe.units.ids import TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import Outbox
from kafkasafe.units.readings import ReadingOrder
from kafkasafe.units.registry import UnitRegistry
from kafkasafe.units.requests import AddPartitions, CommitOffsets, EndTxn, Produce
from kafkasafe.units.terms import SUPERSEDED, Grant, Line, Member, Phase
from kafkasafe.units.together import Sharing
from kafkasafe.units.transitions import MOVED_ON, Transitions
from kafkasafe.units.unit import Transaction, TransactionalId, Unit

__all__ = ["Schedule", "adds_itself"]


class Schedule:
    """Begins what may be begun, and goes on with what is under way.

    Args:
        front: Whether nothing but batches of units stands before this one in the queue of its partition.
        units: Those without a fate.
        lines: Where they stand.
        readings: What became of the readings of their consumers.
        ids: Under which they go.
        sharing: Which of them share a transaction.
        transitions: How they change.
        out: Takes what is decided.
    """

    def __init__(
        self,
        front: Callable[[Member], bool],
        units: UnitRegistry,
        lines: Lines,
        readings: ReadingOrder,
        ids: TransactionalIds,
        sharing: Sharing,
        transitions: Transitions,
        out: Outbox,
    ) -> None:
        self._front = front
        self._units = units
        self._lines = lines
        self._readings = readings
        self._ids = ids
        self._sharing = sharing
        self._transitions = transitions
        self._out = out
        self._only: frozenset[bytes] | None = None
        """Ids of those that may be committed; None: all."""
        self.paused = False
        """Nothing new is begun: what is staged is brought to its end, and no more."""

    def pause(self, only: frozenset[bytes] | None) -> None:
        """Begin nothing from now on, and commit what is among these (None: all)."""
        self.paused, self._only = True, only

    def advance(self) -> None:
        """Decide what can be decided now."""
        while self._out.take_change():
            self._transitions.drop_superseded()
            self._transitions.follow_drops()
            self._begin()
            self._go_on()

    def held_up(self, unit: Unit) -> bool:
        """Whether it waits for one that is not brought to its end here (`decide`), or shares its transaction.

        From any thread.
        """
        peers = unit.peers
        if self.paused and len(peers) > 1 and not self._are_decided_here(peers):
            return True
        held: set[Line] = set()
        for other in self._units.all if self.paused else ():
            if other is unit:
                break
            left = other.phase is Phase.STAGED and not self._are_decided_here(other.peers)
            if left or other.phase is Phase.WAITING or not held.isdisjoint(other.lines):
                held.update(other.lines)
        return not held.isdisjoint(unit.lines)

    def abort_on_partition(self, destination: int, reason: str) -> bool:
        """Nothing of a unit may be on its way into a partition whose log is about to be compared with what was in it.

        The topic may be another one by now, without what was prepared in it: its transaction would be committed all the
        same, as coordinators go by names. What may still be aborted is prepared again afterwards; what may have been
        committed comes to its end first, and then is compared as well.

        Returns:
            Whether it is so. Else ask again after every answer.
        """
        vacant = not self._ids.is_open(destination)
        for transaction in self._ids.under_way:
            if destination in transaction.destinations and self._are_decided_here(transaction.units):
                self._transitions.take_off(transaction, reason)
        return vacant

    # -- what is begun ---------------------------------------------------------------------------------------------

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
        """Whether it may be begun when its turn comes."""
        return (
            unit.phase is Phase.WAITING
            and unit.durable
            and not unit.resting
            and all(batch.position >= 0 for batch in unit.batches)
            and all(map(self._front, unit.batches))
        )

    # -- what is under way -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """What is under way: appended when those before it are, committed when they are."""
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
                    # An earlier incarnation staged it, and may have sent EndTxn: that is asked.
                    self._transitions.ask_outcome(transaction)
                else:
                    self._transitions.abort_and_requeue(
                        transaction, None, "it stands before what was accepted earlier"
                    )

    def _may_end(self, transaction: Transaction) -> bool:
        if not self._are_decided_here(transaction.units):
            return False
        return self._lines.is_first(transaction, transaction.lines)

    def _are_decided_here(self, units: Iterable[Unit]) -> bool:
        return self._only is None or self._only.issuperset(each.unit_id for each in units)

    def _write_offsets(self, transaction: Transaction, tid: TransactionalId) -> None:
        """Those of the next group, when no earlier unit moves it any more.

        1. Two units of a consumer are prepared at once, and the answer to the first one's TxnOffsetCommit is lost. 2.
        The second writes its offset. 3. The first is asked to write its own again. 4. Both are committed, in order, but
        of two offsets the group keeps the one that was *written* last: it is back where the first unit left it.
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
        """Its marker is written, in a group's offset."""
        tid = transaction.tid
        if tid is not None:
            self._out.ask(CommitOffsets(tid, tid.turn, transaction, -1))

    def stage_if_whole(self, transaction: Transaction) -> None:
        """All of it may be appended: then the STAGED marks of its units are written."""
        tid, grant = transaction.tid, transaction.grant
        if tid is None or not transaction.is_whole:
            return
        transaction.move(Phase.STAGING)
        marks = [m.Staged(_begun(each, tid, grant), each.placed) for each in transaction.units]
        self._out.stage(transaction, marks)


def _begun(unit: Unit, tid: TransactionalId, grant: Grant) -> m.Begun:
    return m.Begun(unit.unit_id, tid.name, grant.producer_id, grant.epoch, grant.protocol)


def adds_itself(transaction: Transaction) -> bool:
    """Its one partition adds itself. Several at once would be in each other's way."""
    return transaction.grant.protocol >= 2 and len(transaction.destinations) == 1

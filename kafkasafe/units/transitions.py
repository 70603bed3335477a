"""How units change: to a transaction, back to the line, to their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kafkasafe import marks as m
from kafkasafe.codes.verdicts import DESTINATION_CODES
from kafkasafe.units.ids import EPOCH_REFUSED, FENCED, TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import Outbox
from kafkasafe.units.readings import Break, ReadingOrder
from kafkasafe.units.registry import UnitRegistry
from kafkasafe.units.requests import Backoff, DescribeTxn, FindOutcome, Refuse, RetryLater
from kafkasafe.units.terms import SUPERSEDED, Grant, GroupPartition, IllegalStepError, Phase
from kafkasafe.units.together import transaction_of
from kafkasafe.units.unit import Entry, Transaction, TransactionalId, Unit

__all__ = ["MOVED_ON", "Transitions"]

_UNDER_WAY: Final = frozenset({Phase.BEGUN, Phase.APPENDING, Phase.STAGING, Phase.STAGED})
"""In a transaction to which this incarnation sent no EndTxn."""
_RETRACTABLE: Final = frozenset({Phase.WAITING, Phase.BEGUN, Phase.APPENDING})
"""Its offsets are not written."""
MOVED_ON: Final = (
    "the group's offset was moved past where its consumer began: the same records were processed before"
)


class Transitions:
    """Every way out of a transaction, and out of the line.

    Args:
        units: Those without a fate.
        lines: Where they stand.
        readings: What became of the readings of their consumers.
        ids: Under which they go.
        out: Takes what is decided.
        newest_reading: Number of the reading that began last, in this process.
    """

    def __init__(
        self,
        units: UnitRegistry,
        lines: Lines,
        readings: ReadingOrder,
        ids: TransactionalIds,
        out: Outbox,
        newest_reading: Callable[[], int],
    ) -> None:
        self._units = units
        self._lines = lines
        self._readings = readings
        self._ids = ids
        self._out = out
        self._newest_reading = newest_reading
        self._moved: dict[GroupPartition, int] = {}
        """Which reading moved the groups since `drop_superseded` looked."""
        self._drops: list[Unit] = []
        """Units with offsets that were dropped since `follow_drops` looked."""

    # -- in a transaction ------------------------------------------------------------------------------------------

    def begin(self, units: Sequence[Unit], tid: TransactionalId, grant: Grant) -> Transaction:
        """These units are in a transaction from here on."""
        transaction = transaction_of(units, tid, grant)
        self._lines.unite(transaction)
        tid.begin(transaction)
        transaction.begin()
        return transaction

    def restore(self, units: Sequence[Unit], tid: TransactionalId, grant: Grant) -> None:
        """These units are in a transaction that an earlier incarnation staged."""
        transaction = transaction_of(units, tid, grant)
        self._lines.unite(transaction)
        tid.restore(transaction)
        transaction.restore()

    # -- back to the line ------------------------------------------------------------------------------------------

    def abort_and_requeue(self, transaction: Transaction, code: int | None, reason: str) -> None:
        """Back to the line; what was written is aborted. Whatever follows it has to go back as well."""
        self.abort(transaction, refused=code in FENCED)
        self.requeue(transaction)
        self.requeue_followers(transaction)
        for each in transaction.units:
            each.count_try(reason)
        # The others follow the first, so they rest as well, and may share a transaction with it afterwards.
        first = transaction.units[0]
        first.rest()
        self._out.ask(RetryLater(Backoff(first), first.tries, code, reason, slow=code in DESTINATION_CODES))

    def requeue(self, transaction: Transaction) -> None:
        """Its units wait again, each for itself."""
        transaction.move(Phase.WAITING)
        self.part(transaction)

    def part(self, transaction: Transaction) -> None:
        """Each of its units stands for itself again, in its place."""
        self._lines.part(transaction)
        transaction.part()

    def requeue_followers(self, entry: Entry) -> None:
        """Whatever is under way after a unit that is in the line goes back to it, in order.

        It could not be committed, and meanwhile would hold a transactional id that the unit itself, or one that has
        nothing to do with it, needs. What follows such a unit on another partition follows it as well.
        """
        lines = set(entry.lines)
        for other in self._ids.under_way:
            if other.number <= entry.number or other.phase not in _UNDER_WAY or lines.isdisjoint(other.lines):
                continue
            if other.tid is not None and other.tid.fresh:
                # An earlier incarnation may have sent EndTxn. What follows it goes back when it does.
                self.ask_outcome(other)
                continue
            self.abort(other)
            self.requeue(other)
            lines.update(other.lines)

    def abort(self, transaction: Transaction, *, refused: bool = False) -> None:
        """It is to be aborted: InitProducerId does it, and shuts out whatever is late."""
        tid = transaction.leave_id()
        if tid is not None:
            tid.abort(transaction.destinations)
            self._ids.fence(tid, refused=refused)
        self._out.change()

    def release(self, transaction: Transaction) -> None:
        """It is over: the id is free."""
        tid = transaction.leave_id()
        if tid is not None:
            tid.release()

    def take_off(self, transaction: Transaction, reason: str) -> None:
        """Nothing of it may be on its way into a partition. What may have been committed comes to its end first."""
        tid = transaction.tid
        if tid is None or transaction.phase not in _UNDER_WAY:
            return
        if tid.fresh:
            self.ask_outcome(transaction)
        else:
            self.abort_and_requeue(transaction, None, reason)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def ask_outcome(self, transaction: Transaction) -> None:
        """Find out whether it was committed.

        The coordinator may know. Else its marker is read after InitProducerId: then nothing of it can be committed.
        """
        tid = transaction.tid
        transaction.move(Phase.ASKING)
        if tid is None:
            raise IllegalStepError(f"{transaction} has no transactional id")
        tid.next_turn()
        # Whatever the answer is: the next transaction has a new grant.
        tid.expire()
        self._out.ask(DescribeTxn(tid, tid.turn, transaction))

    def ask_unfenced(self, transaction: Transaction, tid: TransactionalId, reason: str) -> None:
        """Was it committed before its end was refused? A successor has ended it, and must not be fenced in turn.

        If it was not, with protocol 1 it may also have timed out: `ids._late` decides, once it is known that it was
        open. There a marker that is late is taken into a successor's transaction, so only the log can be believed.
        """
        second = tid.grant is not None and tid.grant.protocol >= 2
        if not second and all(place < 0 for place in transaction.places.values()):
            self.ask_outcome(transaction)
            return
        transaction.move(Phase.ASKING)
        if second:
            for unit in transaction.units:
                self._lose(unit, reason)
            tid.lose_grant()
        else:
            transaction.refuse_end()
            transaction.explain(reason)
        tid.next_turn()
        self._out.ask(FindOutcome(tid, tid.turn, transaction, by_log=not second))

    def outcome(self, transaction: Transaction, *, committed: bool) -> None:
        """The outcome is known."""
        if committed:
            self.commit(transaction)
            return
        first = transaction.units[0]
        if transaction.end_refused and transaction.tid is not None and not first.code:
            # So it was open until it timed out, or was taken over: `ids._late` decides which.
            transaction.tid.note_open()
            self.abort_and_requeue(transaction, EPOCH_REFUSED, first.reason)
            return
        self.release(transaction)
        if first.code and not transaction.is_shared:
            self.part(transaction)
            self.refuse(first)
            return
        self.requeue(transaction)
        self.requeue_followers(transaction)
        for each in transaction.units:
            each.fail()
            if each.code:
                self.refuse(each)
        self._out.change()

    def taken_over(self, tid: TransactionalId, reason: str, *, sure: bool) -> None:
        """Another producer took over the transactional id: drop the units that wait under it."""
        reason += "; another producer has taken the transactional id over"
        if not sure:
            reason += ", or it was open for longer than transaction_timeout_ms: the cluster cannot say which"
        tid.taken_over()
        for unit in self._units.all:
            if unit.transactional_id == tid.name and unit.phase is Phase.WAITING:
                self._lose(unit, reason)
                self.refuse(unit)

    @staticmethod
    def _lose(unit: Unit, reason: str) -> None:
        """Another producer has its transactional id.

        Where it moves a group's offsets, that producer reads the same records again.
        """
        unit.blame(EPOCH_REFUSED, reason)
        unit.drop(dropped=bool(unit.offsets))

    # -- ends ------------------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> None:
        """It is committed."""
        self._lines.raise_floors(transaction, alone=transaction.alone)
        self._readings.reach(transaction, self._newest_reading() if transaction.group_lines else 0)
        transaction.move(Phase.COMMITTED)
        self._end(transaction, transaction.units, m.UnitOutcome.COMMITTED, "")
        for line in transaction.group_lines:
            self._moved[line] = transaction.reading(line).number

    def drop_superseded(self) -> None:
        """Drop units of other readings with records of the units that were committed since the last call.

        1. A program closes its producer with a unit of records 0 to 9 under way. Its consumer goes back to 0, and a
        unit of another reading has records 0 to 19. 2. The second producer commits the first unit, and is closed. 3.
        The third one does not know how far the first unit moved the group, and would commit the second one. So the
        ENDED marks of both are written in one group.
        """
        moved, self._moved = self._moved, {}
        late: dict[int, Unit] = {}
        for line, reading in moved.items():
            for entry in self._lines.from_end(line):
                if entry.reading(line).number == reading:
                    break  # readings stand in the order in which they began
                if entry.phase in _RETRACTABLE:
                    units = (entry,) if isinstance(entry, Unit) else entry.units
                    late |= {unit.number: unit for unit in units if self._readings.is_superseded(unit)}
        for _, unit in sorted(late.items()):
            self.drop(unit, SUPERSEDED, MOVED_ON)

    def commit_nothing(self, unit: Unit) -> None:
        """There is nothing to be delivered, and so it is: no transaction is needed for that."""
        unit.pass_transaction()
        self._end(unit, (unit,), m.UnitOutcome.COMMITTED, "")

    def let_go(self, unit: Unit) -> None:
        """What it holds is put aside, or its consumers read the same records again."""
        self._end(unit, (unit,), m.UnitOutcome.DROPPED, unit.reason)

    def _end(self, entry: Entry, units: Iterable[Unit], outcome: m.UnitOutcome, reason: str) -> None:
        """The fate of units is decided, and durable with their ENDED marks."""
        self._lines.leave(entry)
        for each in units:
            each.end()
            self._out.end(each, outcome, reason)
        self._out.change()

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """It is not to be delivered any more. Whether it was in time for that: what is committed already is."""
        unit.blame(code, reason)
        transaction = unit.transaction
        if transaction is None:
            if unit.phase is not Phase.WAITING:
                return False
            self.refuse(unit)
            return True
        match transaction.phase:
            case Phase.BEGUN | Phase.APPENDING:
                self._break_up(transaction)
                self.refuse(unit)
            case Phase.STAGING | Phase.STAGED | Phase.ENDING:
                if transaction.phase is Phase.STAGING:
                    transaction.move(Phase.STAGED)
                self.ask_outcome(transaction)
            case Phase.ASKING:
                pass
            case _:
                return False
        return True

    def _break_up(self, transaction: Transaction) -> None:
        """It is aborted, as one of its units is given up. The others go back to the line."""
        self.abort(transaction)
        if transaction.is_shared:
            self.requeue(transaction)
            self.requeue_followers(transaction)
        else:
            self.part(transaction)

    def refuse(self, unit: Unit) -> None:
        """It is given up: what it holds is put aside, unless its records are read again."""
        unit.move(Phase.REFUSED)
        if unit.dropped:
            self._drops.append(unit)
            self.let_go(unit)
        else:
            self._out.ask(Refuse(unit))
        self._out.change()

    def leave_group(self, transaction: Transaction, group: str, code: int, reason: str) -> None:
        """The group refuses the consumer: that is so of all that share the transaction and are of this group."""
        if transaction.is_shared:
            self._break_up(transaction)
        for each in transaction.units:
            if any(offsets.group == group for offsets in each.offsets):
                self.drop(each, code, reason)

    def drop(self, unit: Unit, code: int, reason: str) -> None:
        """Given up, and its records are not kept: its consumers read what it was made of again."""
        unit.drop()
        self.give_up(unit, code, reason)

    def follow_drops(self) -> None:
        """Drop what goes on from a unit that was dropped, wherever it is.

        1. A unit moves a group from offset 10 to 20, and the next one of the same consumer from 20 to 30. 2. The group
        is in another generation by now, and refuses the first. 3. The second one was accepted in the new generation, so
        the group takes it: records 10 to 19 are in no output, and are not read again. So the second one is dropped, and
        the consumer has to be moved back to 10.

        All their marks are written in one group with that of the first: the next incarnation, which finds units of an
        earlier one, takes all of them for one reading, and so needs no more than their order. A unit that was not
        written by then never is (`Unit.void`).
        """
        dropped, self._drops = self._drops, []
        broken: Break = {}
        for unit in dropped:
            self._readings.break_off(unit, broken)
        # In the order in which they were accepted: what goes on from one that is dropped here comes after it.
        for unit in self._units.all if dropped else ():
            if unit.phase is Phase.REFUSED:
                continue
            for line in unit.group_lines:
                reading, number = broken.get(line, (0, unit.number))
                if unit.reading(line).number <= reading and unit.number > number:
                    self.drop(unit, dropped[0].code, _without(dropped[0].reason))
                    self._readings.break_off(unit, broken)
                    break
        self._drops.clear()


def _without(reason: str) -> str:
    return f"it goes on from an atomic batch of the same consumer that was dropped ({reason})"

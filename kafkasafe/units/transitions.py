"""Moves units into transactions and back into the lines in which they wait, and ends transactions and units."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from kafkasafe import marks as m
from kafkasafe.codes.sets import BLOCKING_CODES, FENCED_CODES
from kafkasafe.units.ids import EPOCH_REFUSED, TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import UnitOutbox
from kafkasafe.units.readings import Break, ReadingOrder
from kafkasafe.units.requests import DescribeTxn, FindOutcome, Refuse, RetryLater, UnitPause
from kafkasafe.units.terms import SUPERSEDED, Grant, GroupPartition, IllegalStepError, Phase
from kafkasafe.units.together import transaction_of
from kafkasafe.units.unit import Entry, Transaction, TransactionalId, Unit

_UNDER_WAY: Final = frozenset({Phase.BEGUN, Phase.APPENDING, Phase.STAGING, Phase.STAGED})
"""Phases in which this incarnation has not yet sent EndTxn for the transaction."""
_RETRACTABLE: Final = frozenset({Phase.WAITING, Phase.BEGUN, Phase.APPENDING})
"""Phases in which the unit's offsets are not written yet."""
MOVED_ON: Final = (
    "the group's offset was moved past the place where this batch's consumer began, so the same records were already"
    " processed"
)


class Transitions:
    """Moves units into transactions and back into the lines in which they wait, and ends transactions and units.

    Args:
        lines: The unfinished units.
        readings: Knows in which readings (runs of consumers) a unit was dropped, and which units are superseded.
        ids: The transactional ids.
        out: Receives the decisions.
        newest_reading: Returns the number of the newest reading (run of a consumer) in this process.
    """

    def __init__(
        self,
        lines: Lines,
        readings: ReadingOrder,
        ids: TransactionalIds,
        out: UnitOutbox,
        newest_reading: Callable[[], int],
    ) -> None:
        self._lines = lines
        self._readings = readings
        self._ids = ids
        self._out = out
        self._newest_reading = newest_reading
        self._moved: dict[GroupPartition, int] = {}
        """For each group partition whose offset has moved since the last call of `drop_superseded`: the number of the
        reading (run of a consumer) that moved the offset.
        """
        self._drops: list[Unit] = []
        """Units with offsets, dropped since the last call of `follow_drops`."""

    # -- into a transaction ----------------------------------------------------------------------------------------

    def begin(self, units: Sequence[Unit], tid: TransactionalId, grant: Grant) -> Transaction:
        """Put these units into a new transaction."""
        transaction = transaction_of(units, tid, grant)
        self._lines.unite(transaction)
        tid.begin(transaction)
        transaction.begin()
        return transaction

    def restore(self, units: Sequence[Unit], tid: TransactionalId, grant: Grant) -> None:
        """Restore the transaction in which an earlier incarnation staged these units."""
        transaction = transaction_of(units, tid, grant)
        self._lines.unite(transaction)
        tid.restore(transaction)
        transaction.restore()

    # -- back into the lines ---------------------------------------------------------------------------------------

    def abort_and_requeue(
        self, transaction: Transaction, code: int | None, reason: str, *, early_ms: int = 0
    ) -> None:
        """Abort a transaction, and requeue its units and all later units of the same partitions and group offsets. The
        cluster will not accept the units before `early_ms` have passed.
        """
        self.abort(transaction, refused=code in FENCED_CODES)
        self.requeue(transaction)
        self.requeue_followers(transaction)
        for each in transaction.units:
            each.count_try(reason)
        # The transaction's other units follow the first unit in the lines, so they also wait until the first unit's
        # pause is over, and may then share a transaction with it again.
        first = transaction.units[0]
        first.rest()
        # Each attempt in a new transaction appends the records again, so the pauses are long while the cluster refuses
        # the transaction.
        slow = code in BLOCKING_CODES or early_ms > 0
        if transaction.is_shared:
            early_ms = 0  # only one of the units has to wait that long
        self._out.ask(RetryLater(UnitPause(first), first.tries, code, reason, slow=slow, early_ms=early_ms))

    def requeue(self, transaction: Transaction) -> None:
        """Set each unit of a transaction back to WAITING, and replace the transaction in each line with its units."""
        transaction.move(Phase.WAITING)
        self.part(transaction)

    def part(self, transaction: Transaction) -> None:
        """In each line, replace a transaction with its units."""
        self._lines.part(transaction)
        transaction.part()

    def requeue_followers(self, entry: Entry) -> None:
        """Requeue the transactions that follow a requeued unit or transaction (`entry`) in its lines, in order.

        These followers can be committed only after `entry`. Without requeueing, they would occupy transactional ids
        that `entry` or unrelated units need. When a follower is requeued, the later transactions on the follower's
        other lines are requeued too.
        """
        lines = set(entry.lines)
        for other in self._ids.under_way:
            if other.number <= entry.number or other.phase not in _UNDER_WAY or lines.isdisjoint(other.lines):
                continue
            if other.tid is not None and other.tid.fresh:
                # An earlier incarnation may have sent EndTxn for this transaction, so first ask for the outcome. If the
                # transaction is requeued later, its followers are requeued too.
                self.ask_outcome(other)
                continue
            self.abort(other)
            self.requeue(other)
            lines.update(other.lines)

    def abort(self, transaction: Transaction, *, refused: bool = False) -> None:
        """Abort a transaction with InitProducerId, which also fences its delayed requests."""
        tid = transaction.leave_id()
        if tid is not None:
            tid.abort(transaction.destinations)
            self._ids.fence(tid, refused=refused)
        self._out.change()

    def release(self, transaction: Transaction) -> None:
        """Release the id of a transaction that is over."""
        tid = transaction.leave_id()
        if tid is not None:
            tid.release()

    def take_off(self, transaction: Transaction, reason: str) -> None:
        """Requeue a transaction. If the transaction may already be committed, find out its outcome first."""
        tid = transaction.tid
        if tid is None or transaction.phase not in _UNDER_WAY:
            return
        if tid.fresh:
            self.ask_outcome(transaction)
        else:
            self.abort_and_requeue(transaction, None, reason)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def ask_outcome(self, transaction: Transaction) -> None:
        """Find out whether a transaction was committed.

        The coordinator may know the outcome. If the coordinator does not know the outcome, InitProducerId makes a later
        commit impossible, and then the marker (a committed offset) shows whether the transaction was committed.
        """
        tid = transaction.tid
        transaction.move(Phase.ASKING)
        if tid is None:
            raise IllegalStepError(f"{transaction} has no transactional id")
        tid.next_turn()
        # With any outcome, the next transaction needs a new grant.
        tid.expire()
        self._out.ask(DescribeTxn(tid, tid.turn, transaction))

    def ask_unfenced(self, transaction: Transaction, tid: TransactionalId, reason: str) -> None:
        """After a refused EndTxn, find out whether the transaction was already committed, without fencing a successor
        (a producer that took over the id).

        If the transaction was not committed, a successor has ended it or, with version 1 of the transaction protocol,
        it may have timed out. Once the engine knows that the transaction was open, `ids._late` distinguishes these
        cases. With version 1, only the log shows the outcome: a delayed TxnOffsetCommit can write this transaction's
        marker as part of a successor's transaction.
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
        """Note the outcome of a transaction."""
        if committed:
            self.commit(transaction)
            return
        first = transaction.units[0]
        if transaction.end_refused and transaction.tid is not None and not first.code:
            # The refused EndTxn did not end the transaction, so it was open until it timed out or another producer took
            # over the id; `ids._late` distinguishes these cases.
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
        """Drop the units that wait for a transactional id that another producer has taken over."""
        reason += "; another producer has taken the transactional id over"
        if not sure:
            reason += ", or it was open for longer than transaction_timeout_ms: the cluster cannot say which"
        tid.taken_over()
        for unit in self._lines.all:
            if unit.transactional_id == tid.name and unit.phase is Phase.WAITING:
                self._lose(unit, reason)
                self.refuse(unit)

    @staticmethod
    def _lose(unit: Unit, reason: str) -> None:
        """Note that the unit cannot be delivered, because another producer has taken over the unit's transactional id.

        The records of a unit that moves a group's offsets are not kept: the offsets have not moved, so the group's
        consumers read the same input again.
        """
        unit.blame(EPOCH_REFUSED, reason)
        unit.drop(dropped=bool(unit.offsets))

    # -- ends ------------------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction) -> None:
        """Note that a transaction is committed."""
        self._lines.raise_floors(transaction, alone=transaction.alone)
        self._readings.reach(transaction, self._newest_reading() if transaction.group_lines else 0)
        transaction.move(Phase.COMMITTED)
        self._end(transaction, transaction.units, m.UnitOutcome.COMMITTED, "")
        for line in transaction.group_lines:
            self._moved[line] = transaction.reading(line).number

    def drop_superseded(self) -> None:
        """Drop each uncommitted unit whose input another reading (run of a consumer) has already processed and
        committed. Considers only commits since the last call.

        1. A program closes its producer while a unit with records 0 to 9 is in progress. The program's consumer moves
           back to offset 0, and so begins another reading, whose first unit has records 0 to 19.
        2. A second producer commits the first unit, and is closed.
        3. A third producer does not know how far the first unit moved the group's offset, and would commit the second
           unit.

        So the second unit is dropped as soon as the first unit is committed, and the ENDED marks of both units are
        written in one spool group.
        """
        moved, self._moved = self._moved, {}
        late: dict[int, Unit] = {}
        for line, reading in moved.items():
            for entry in self._lines.from_end(line):
                if entry.reading(line).number == reading:
                    break  # readings are in order, so older entries belong to this or an earlier reading
                if entry.phase in _RETRACTABLE:
                    units = (entry,) if isinstance(entry, Unit) else entry.units
                    late |= {unit.number: unit for unit in units if self._readings.is_superseded(unit)}
        for _, unit in sorted(late.items()):
            self.drop(unit, SUPERSEDED, MOVED_ON)

    def commit_nothing(self, unit: Unit) -> None:
        """Commit a unit without batches and offsets, which needs no transaction."""
        unit.pass_transaction()
        self._end(unit, (unit,), m.UnitOutcome.COMMITTED, "")

    def end_dropped(self, unit: Unit) -> None:
        """End a unit that was given up. Either `rejected/` contains the unit's records, or consumers read the unit's
        input again, because the unit has not moved the group's offsets.
        """
        self._end(unit, (unit,), m.UnitOutcome.DROPPED, unit.reason)

    def _end(self, entry: Entry, units: Iterable[Unit], outcome: m.UnitOutcome, reason: str) -> None:
        """Decide the fate of units. The fate is durable once the units' ENDED marks are durable."""
        self._lines.leave(entry)
        for each in units:
            each.end()
            self._out.end(each, outcome, reason)
        self._out.change()

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """Give up a unit, unless it is committed. Returns False if the unit's fate is decided already."""
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
        """Abort a transaction because one of its units is given up. The other units are requeued."""
        self.abort(transaction)
        if transaction.is_shared:
            self.requeue(transaction)
            self.requeue_followers(transaction)
        else:
            self.part(transaction)

    def refuse(self, unit: Unit) -> None:
        """End a unit that was given up, and keep its records in `rejected/`. The records of a dropped unit are not
        kept, because consumers read its input again.
        """
        unit.move(Phase.REFUSED)
        if unit.dropped:
            self._drops.append(unit)
            self.end_dropped(unit)
        else:
            self._out.ask(Refuse(unit))
        self._out.change()

    def leave_group(self, transaction: Transaction, group: str, code: int, reason: str) -> None:
        """Drop the units with offsets of this group, because the group refuses the consumer that gave the offsets."""
        if transaction.is_shared:
            self._break_up(transaction)
        for each in transaction.units:
            if any(offsets.group == group for offsets in each.offsets):
                self.drop(each, code, reason)

    def drop(self, unit: Unit, code: int, reason: str) -> None:
        """Give up a unit without keeping its records. No record is lost: the group's offsets do not move, so consumers
        read the unit's input again.
        """
        unit.drop()
        self.give_up(unit, code, reason)

    def follow_drops(self) -> None:
        """Drop the units that continue a dropped unit.

        1. A unit moves a group from offset 10 to 20, and the next unit of the same consumer moves it from 20 to 30.
        2. The group has moved on to another generation, and refuses the first unit.
        3. The second unit was accepted in the new generation, so the group would accept its offset. The results of
           records 10 to 19 would then be in no output, and no consumer would read these records again.

        So the second unit is also dropped, and the consumer must move back to 10. The ENDED marks of all these units
        are written in one spool group, so the next incarnation finds all of them dropped, or none. A unit that is not
        on disk when it is dropped is never written (`Unit.void`).
        """
        dropped, self._drops = self._drops, []
        broken: Break = {}
        for unit in dropped:
            self._readings.break_off(unit, broken)
        # Examine units in the order in which they were accepted, so that a unit is dropped before the units that
        # continue it are examined.
        for unit in self._lines.all if dropped else ():
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
    return f"an earlier atomic batch of the same consumer was dropped ({reason})"

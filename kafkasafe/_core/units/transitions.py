"""How units change: to a transaction, back to the line, to their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.codes import DESTINATION_CODES
from kafkasafe._core.units.ids import EPOCH_REFUSED, FENCED, TransactionalIds
from kafkasafe._core.units.order import Lines
from kafkasafe._core.units.outbox import Outbox
from kafkasafe._core.units.readings import Break, ReadingOrder
from kafkasafe._core.units.registry import UnitRegistry
from kafkasafe._core.units.requests import Again, Ask, Look, Refuse, Rest
from kafkasafe._core.units.terms import IllegalStepError, Phase
from kafkasafe._core.units.together import whole_of
from kafkasafe._core.units.unit import Slot, Unit

__all__ = ["Transitions"]

_UNDER_WAY: Final = frozenset({Phase.BEGUN, Phase.APPENDING, Phase.STAGING, Phase.STAGED})
"""In a transaction to which no EndTxn was sent, by this life."""


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
        self._drops: list[Unit] = []
        """Units with offsets that were dropped since `follow_drops` looked."""

    # -- units that share a transaction ----------------------------------------------------------------------------

    def unite(self, units: list[Unit]) -> Unit:
        """They share a transaction from here on. Returns what stands for all of them, in their places."""
        if len(units) == 1:
            return units[0]
        whole = whole_of(units)
        self._lines.unite(units, whole)
        return whole

    def part(self, whole: Unit) -> None:
        """Each goes by itself again, in its place."""
        if whole.together:
            self._lines.part(whole)
            whole.part()

    # -- back to the line ------------------------------------------------------------------------------------------

    def redo(self, unit: Unit, code: int | None, reason: str) -> None:
        """Back to the line; what was written is aborted. What stands behind it has to go back as well."""
        self.abort(unit, refused=code in FENCED)
        self.to_line(unit)
        self.set_back_behind(unit)
        for each in unit.each:
            each.count_try(reason)
        # The others stand behind the first, so they rest as well, and may share a transaction with it afterwards.
        first = unit.each[0]
        first.rest()
        self._out.ask(Again(Rest(first), first.tries, code, reason, slow=code in DESTINATION_CODES))

    def to_line(self, unit: Unit) -> None:
        """It waits again; those that shared its transaction go by themselves."""
        unit.move(Phase.WAITING)
        self.part(unit)

    def set_back_behind(self, unit: Unit) -> None:
        """Whatever is under way behind a unit that is in the line goes back to it, in order.

        It could not be committed, and meanwhile would hold a transactional id that the unit itself, or one that has
        nothing to do with it, needs. Behind it is also what stands behind such a unit on another partition.
        """
        lines = set(unit.lines)
        for other in self._ids.under_way:
            if other.number <= unit.number or other.phase not in _UNDER_WAY or lines.isdisjoint(other.lines):
                continue
            if other.slot is not None and other.slot.fresh:
                # Of an earlier life, which may have sent EndTxn. What is behind it goes back when it does.
                self.doubt(other)
                continue
            self.abort(other)
            self.to_line(other)
            lines.update(other.lines)

    def abort(self, unit: Unit, *, refused: bool = False) -> None:
        """The transaction is to be aborted: InitProducerId does it, and shuts out whatever is late."""
        slot = unit.leave_slot()
        if slot is not None:
            slot.abort(unit.destinations)
            self._ids.fence(slot, refused=refused)
        self._out.change()

    def release(self, unit: Unit) -> None:
        """Its transaction is over: the id is free."""
        slot = unit.leave_slot()
        if slot is not None:
            slot.release()

    def vacate(self, unit: Unit, reason: str) -> None:
        """Nothing of it may be on its way into a partition. What may have been committed comes to its end first."""
        slot = unit.slot
        if slot is None or unit.phase not in _UNDER_WAY:
            return
        if slot.fresh:
            self.doubt(unit)
        else:
            self.redo(unit, None, reason)

    # -- outcomes --------------------------------------------------------------------------------------------------

    def doubt(self, unit: Unit) -> None:
        """Was it committed? The coordinator may know; else it is asked behind a fence: then nothing of it can be."""
        slot = unit.slot
        unit.move(Phase.ASKING)
        if slot is None:
            raise IllegalStepError(f"{unit} has no transactional id")
        slot.next_turn()
        # Whatever is told: the next transaction has a new grant.
        slot.expire()
        self._out.ask(Look(slot, slot.turn, unit))

    def ask_unfenced(self, unit: Unit, slot: Slot, reason: str) -> None:
        """Was it committed before its end was refused? Who took over has ended it, and is not to be fenced in turn.

        If it was not, with protocol 1 it may also have timed out: `ids._late` tells, once it is known that it was open.
        There a marker that is late is taken into a successor's transaction, so only the log can be believed.
        """
        second = slot.grant is not None and slot.grant.protocol >= 2
        if not second and all(place < 0 for place in unit.places.values()):
            self.doubt(unit)
            return
        unit.move(Phase.ASKING)
        if second:
            unit.blame(EPOCH_REFUSED, reason)
            # Where it moves a group's offsets, whoever has the name reads the same records again.
            unit.drop(dropped=bool(unit.offsets))
            slot.lose_grant()
        else:
            unit.lapse(reason)
        slot.next_turn()
        self._out.ask(Ask(slot, slot.turn, unit, by_log=not second))

    def outcome(self, unit: Unit, *, committed: bool) -> None:
        """The outcome of its transaction is known."""
        if committed:
            self.commit(unit)
            return
        if unit.lapsed and unit.slot is not None and not unit.code:
            # So it was open until it timed out, or was taken over: `ids._late` tells which.
            unit.slot.note_open()
            self.redo(unit, EPOCH_REFUSED, unit.reason)
            return
        self.release(unit)
        if unit.code and not unit.together:
            self.refuse(unit)
            return
        self.to_line(unit)
        self.set_back_behind(unit)
        for each in unit.each:
            each.fail()
            if each.code:
                self.refuse(each)
        self._out.change()

    def taken_over(self, slot: Slot, reason: str, *, sure: bool) -> None:
        """Another producer took over the transactional id: drop the units that wait under it."""
        reason += "; another producer has taken the transactional id over"
        if not sure:
            reason += ", or it was open for longer than transaction_timeout_ms: the cluster cannot say which"
        slot.taken_over()
        for unit in self._units.all:
            if unit.transactional_id == slot.transactional_id and unit.phase is Phase.WAITING:
                unit.blame(EPOCH_REFUSED, reason)
                # Where it moves a group's offsets, whoever has the name reads the same records again.
                unit.drop(dropped=bool(unit.offsets))
                self.refuse(unit)

    # -- ends ------------------------------------------------------------------------------------------------------

    def commit(self, unit: Unit) -> None:
        """It is committed."""
        self._lines.raise_floors(unit)
        self._readings.reach(unit, self._newest_reading() if unit.group_lines else 0)
        unit.move(Phase.COMMITTED)
        self.end(unit, m.UnitOutcome.COMMITTED, "")

    def commit_nothing(self, unit: Unit) -> None:
        """There is nothing to be delivered, and so it is: no transaction is needed for that."""
        unit.pass_transaction()
        self.end(unit, m.UnitOutcome.COMMITTED, "")

    def end(self, unit: Unit, outcome: m.UnitOutcome, reason: str) -> None:
        """Its fate is decided, and durable with its ENDED mark."""
        self._lines.leave(unit)
        for each in unit.each:
            each.end()
            self._out.end(each, outcome, reason)
        self._out.change()

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """It is not to be delivered any more. Whether it was in time for that: what is committed already is."""
        unit.blame(code, reason)
        whole = unit.within or unit
        match unit.phase:
            case Phase.WAITING:
                self.refuse(unit)
            case Phase.BEGUN | Phase.APPENDING:
                self.abort(whole)
                if whole.together:
                    self.to_line(whole)
                    self.set_back_behind(whole)
                self.refuse(unit)
            case Phase.STAGING | Phase.STAGED | Phase.ENDING:
                if unit.phase is Phase.STAGING:
                    whole.move(Phase.STAGED)
                self.doubt(whole)
            case Phase.ASKING:
                pass
            case _:
                return False
        return True

    def refuse(self, unit: Unit) -> None:
        """It is given up: what it holds is put aside, unless its records are read again."""
        unit.move(Phase.REFUSED)
        if unit.dropped:
            self._drops.append(unit)
            self.end(unit, m.UnitOutcome.DROPPED, unit.reason)
        else:
            self._out.ask(Refuse(unit))
        self._out.change()

    def leave_group(self, unit: Unit, group: str, code: int, reason: str) -> None:
        """The group refuses the consumer: that is so of all that share the transaction and are of this group."""
        self.abort(unit)
        if unit.together:
            self.to_line(unit)
            self.set_back_behind(unit)
        for each in unit.each:
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

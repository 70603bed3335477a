"""Whose turn it is: which units are begun, appended and committed next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.units.ids import TransactionalIds
from kafkasafe._core.units.order import Lines
from kafkasafe._core.units.outbox import Outbox
from kafkasafe._core.units.readings import ReadingOrder
from kafkasafe._core.units.registry import UnitRegistry
from kafkasafe._core.units.requests import Append, End, Join, Note
from kafkasafe._core.units.terms import SUPERSEDED, Grant, Line, Member, Phase
from kafkasafe._core.units.together import Sharing
from kafkasafe._core.units.transitions import Transitions
from kafkasafe._core.units.unit import Slot, Unit

__all__ = ["Schedule", "adds_itself"]

MOVED_ON: Final = (
    "the group's offset was moved past where its consumer began: the same records were processed before"
)


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
            self._transitions.follow_drops()
            self._begin()
            self._go_on()

    def held_up(self, unit: Unit) -> bool:
        """Whether it stands behind one that is not brought to its end here (`decide`), or shares its transaction.

        From any thread.
        """
        whole = unit.within
        if self.paused and whole is not None and not self._is_decided_here(whole):
            return True
        held: set[Line] = set()
        for other in self._units.all if self.paused else ():
            if other is unit:
                break
            left = other.phase is Phase.STAGED and not self._is_decided_here(other.within or other)
            if left or other.phase is Phase.WAITING or not held.isdisjoint(other.lines):
                held.update(other.lines)
        return not held.isdisjoint(unit.lines)

    def vacate(self, destination: int, reason: str) -> bool:
        """Nothing of a unit may be on its way into a partition whose log is about to be compared with what was in it.

        The topic may be another one by now, without what was prepared in it: its transaction would be committed all the
        same, as coordinators go by names. What may still be aborted is prepared again afterwards; what may have been
        committed comes to its end first, and then is compared as well.

        Returns:
            Whether it is so. Else ask again after every answer.
        """
        vacant = not self._ids.is_open(destination)
        for unit in self._ids.under_way:
            if destination in unit.destinations and self._is_decided_here(unit):
                self._transitions.vacate(unit, reason)
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
            slot = self._ids.choose(unit)
            if slot is None:
                continue
            grant = slot.grant
            if grant is None or slot.fresh:
                if not coming or unit.transactional_id:
                    self._ids.fence(slot)
                else:
                    coming -= 1
                continue
            self._begin_transaction(self._sharing.gather(unit, self.is_ready), slot, grant)

    def _begin_transaction(self, units: list[Unit], slot: Slot, grant: Grant) -> None:
        unit = self._transitions.unite(units)
        slot.begin(unit)
        unit.begin(slot, grant)
        for each in units:
            self._out.begin(_begun(each, slot, grant))
        if unit.batches and not adds_itself(unit):
            self._out.ask(Join(slot, slot.turn, unit))
        else:
            unit.move(Phase.APPENDING)

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
        for unit in self._ids.under_way:
            slot = unit.slot
            if slot is None:
                continue
            if unit.phase is Phase.APPENDING and not unit.issued:
                if self._lines.all_issued_before(unit):
                    self._append(unit, slot)
            elif unit.phase is Phase.APPENDING and unit.next_note >= 0:
                self._write_offsets(unit, slot)
            elif unit.phase is Phase.STAGED and self._may_end(unit):
                if unit.alone or self._lines.in_order(unit):
                    unit.move(Phase.ENDING)
                    slot.send_end()
                    self._out.ask(End(slot, slot.turn, unit))
                elif slot.fresh:
                    # Of an earlier life, which knew more: whether it sent EndTxn is asked.
                    self._transitions.doubt(unit)
                else:
                    self._transitions.redo(unit, None, "it stands before what was accepted earlier")

    def _may_end(self, unit: Unit) -> bool:
        if not self._is_decided_here(unit):
            return False
        return self._lines.is_first(unit, unit.lines)

    def _is_decided_here(self, unit: Unit) -> bool:
        return self._only is None or self._only.issuperset(each.unit_id for each in unit.each)

    def _write_offsets(self, unit: Unit, slot: Slot) -> None:
        """Those of the next group, when no earlier unit moves it any more.

        1. Two units of a consumer are prepared at once, and the answer to the first one's TxnOffsetCommit is lost. 2.
        The second writes its offset. 3. The first is asked to write its own again. 4. Both are committed, in order, but
        of two offsets the group keeps the one that was *written* last: it is back where the first unit left it.
        """
        if not self._lines.is_first(unit, unit.group_lines):
            return
        for each in unit.each:
            if self._readings.is_superseded(each):
                self._transitions.drop(each, SUPERSEDED, MOVED_ON)
                return
        self._out.ask(Note(slot, slot.turn, unit, unit.take_note()))

    def _append(self, unit: Unit, slot: Slot) -> None:
        unit.issue(alone=self._lines.is_first(unit, unit.destinations))
        for batch in unit.batches:
            sequence = slot.take_sequence(batch.destination, batch.count)
            unit.sequences[batch.handle] = sequence
            self._out.ask(Append(slot, slot.turn, unit, batch, sequence))
        if not (unit.batches and adds_itself(unit)):
            self.mark(unit)
        self._out.change()

    def mark(self, unit: Unit) -> None:
        """Its marker is written, in a group's offset."""
        slot = unit.slot
        if slot is not None:
            self._out.ask(Note(slot, slot.turn, unit, -1))

    def stage_if_whole(self, unit: Unit) -> None:
        """All of it may be appended: then its STAGED mark is written."""
        slot, grant = unit.slot, unit.grant
        if slot is None or grant is None or not unit.is_whole:
            return
        unit.move(Phase.STAGING)
        self._out.stage(unit, [m.Staged(_begun(each, slot, grant), each.placed) for each in unit.each])


def _begun(unit: Unit, slot: Slot, grant: Grant) -> m.Begun:
    return m.Begun(unit.unit_id, slot.transactional_id, grant.producer_id, grant.epoch, grant.protocol)


def adds_itself(unit: Unit) -> bool:
    """Its one partition adds itself. Several at once would be in each other's way."""
    grant = unit.grant
    return grant is not None and grant.protocol >= 2 and len(unit.destinations) == 1

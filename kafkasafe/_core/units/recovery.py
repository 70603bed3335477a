"""What earlier lives left: units as their marks tell of them."""

from __future__ import annotations

from kafkasafe._core import marks as m
from kafkasafe._core.units.moves import Moves
from kafkasafe._core.units.terms import GIVEN_UP, OLDEST, Grant, Phase, Reading, Slot, Unit

__all__ = ["Recovery"]


class Recovery(Moves):
    """The log is read from its beginning: a call for each mark, and `recovered` at the end."""

    def recover(self, mark: m.Unit, position: int, accepted_at: int) -> Unit:
        """A UNIT mark; its batches follow."""
        unit = self._make(mark.unit_id, mark.transactional_id, mark.offsets, {})
        unit.readings = dict.fromkeys(unit.group_lines, Reading(OLDEST))
        unit.durable, unit.position, unit.accepted_at = True, position, accepted_at
        return unit

    def recover_readings(self, mark: m.Read) -> None:
        """A READ mark: its unit is known."""
        unit = self._units.get(mark.unit_id)
        if unit is None:
            return
        unit.recorded = mark.entries
        for line, (number, start) in zip(unit.group_lines, mark.entries, strict=False):
            # Those of this incarnation are newer, whatever the clock says.
            former = self._former.setdefault(number, OLDEST + 1 + len(self._former))
            unit.readings[line] = Reading(former, start)

    def recover_begun(self, mark: m.Begun) -> None:
        """A BEGUN mark: what an earlier STAGED mark says is void."""
        unit = self._units.get(mark.unit_id)
        if unit is not None:
            self._void(unit.slot)
            unit.sequences.clear()
            unit.places.clear()

    @staticmethod
    def _void(slot: Slot | None) -> None:
        """Its transaction is not committed any more: what was staged in it is prepared again, all of it."""
        if slot is None:
            return
        for each in slot.staged:
            each.phase, each.slot = Phase.WAITING, None
        slot.staged.clear()

    def recover_staged(self, mark: m.Staged) -> None:
        """A STAGED mark."""
        begun = mark.begun
        unit = self._units.get(begun.unit_id)
        if unit is None:
            # Released since, but it says where its batches are.
            for place in mark.places:
                if place.base_offset >= 0:
                    self._raise_floor(place.destination, place.base_offset + place.count - 1)
            return
        slot = self._slot(begun.transactional_id)
        grant = Grant(begun.producer_id, begun.producer_epoch, begun.protocol)
        if unit.slot is not None:
            self._void(unit.slot)
        if slot.grant != grant:
            # It went back to the line before the slot was another's. With the same grant they share the transaction:
            # an id is fenced before it is used again, or what it had before is durably over.
            self._void(slot)
        slot.staged.append(unit)
        slot.grant = slot.former = unit.grant = grant
        slot.fresh = True
        handles = {batch.position: batch.handle for batch in unit.batches}
        # As they were: the first one says where the marker is.
        order = {place.position: index for index, place in enumerate(mark.places)}
        unit.batches.sort(key=lambda batch: order.get(batch.position, len(order)))
        for place in mark.places:
            handle = handles.get(place.position)
            if handle is not None:
                unit.sequences[handle] = place.base_sequence
                unit.places[handle] = place.base_offset
        unit.phase, unit.slot = Phase.STAGED, slot

    def recover_ended(self, mark: m.Ended) -> Unit | None:
        """An ENDED mark; the unit, if it is still there."""
        unit = self._units.pop(mark.unit_id, None)
        if unit is None:
            return None
        if unit.transactional_id:
            self.earlier[unit.transactional_id] = (unit, mark)
        if mark.outcome is m.UnitOutcome.COMMITTED:
            self._raise_floors(unit)
        self._leave(unit)
        slot = unit.slot
        if slot is not None:
            slot.staged.remove(unit)
            if mark.outcome is m.UnitOutcome.DROPPED:
                self._void(slot)
        unit.phase = Phase.OVER
        return unit

    def decide(self, commit: frozenset[bytes] | None, abort: frozenset[bytes]) -> None:
        """Nothing is prepared. What is staged is committed, if it is among these (None: all); others are given up."""
        self.paused, self._only = True, commit
        for unit_id in abort & self._units.keys():
            self._units[unit_id].code = GIVEN_UP
            self._units[unit_id].reason = "given up by kafkasafe spool abort"

    def recovered(self) -> None:
        """The log is read. What an earlier life left open under an id is ended before that id is used again."""
        for slot in self._slots.values():
            # A new life takes names over, whatever epochs earlier ones came to.
            slot.former = None
            if not slot.staged:
                slot.grant = None
        if not self._units:
            self._slots.clear()
            return
        # What was divided may be in the log behind what was accepted later.
        ordered = sorted(self._units.values(), key=lambda unit: unit.accepted_at)
        self._units = {unit.unit_id: unit for unit in ordered}
        for number, unit in enumerate(ordered, 1):
            unit.number = number
        for unit in self._units.values():
            self._line_up(unit)
        for slot in self._slots.values():
            self._restore(slot)
        # Its BEGUN mark may not be durable: whatever its ids are, a transaction of theirs may be open.
        for name in (*self._pool, *(unit.transactional_id for unit in self._units.values())):
            if name:
                slot = self._slot(name)
                if slot.unit is None and not self.paused:
                    self._fence(slot)
        for unit in list(self._units.values()):
            if unit.code and unit.phase is Phase.WAITING:
                self._refuse(unit)
            elif unit.phase is Phase.STAGED and (
                unit.code or not self._is_first(whole := unit.within or unit, whole.group_lines)
            ):
                # An earlier version wrote its offset before the units before it were committed.
                self._doubt(unit.within or unit)
        if not self.paused:
            for unit in ordered:
                if unit.phase is Phase.WAITING:
                    self._set_back_behind(unit)
        self._dirty = True

    def _restore(self, slot: Slot) -> None:
        """What was staged in its transaction is one again, in the order in which it was: the first has the marker."""
        staged = sorted(slot.staged, key=lambda unit: unit.number)
        slot.staged.clear()
        if staged:
            whole = slot.unit = self._lead(staged)
            whole.slot, whole.grant, whole.issued = slot, slot.grant, True

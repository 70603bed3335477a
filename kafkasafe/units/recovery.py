"""What earlier incarnations left: units as their marks describe them."""

from __future__ import annotations

from kafkasafe import marks as m
from kafkasafe.units.ids import TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import Outbox
from kafkasafe.units.registry import UnitRegistry
from kafkasafe.units.terms import GIVEN_UP, OLDEST, Grant, Phase, Reading
from kafkasafe.units.transitions import Transitions
from kafkasafe.units.unit import TransactionalId, Unit

__all__ = ["UnitReplay"]


class UnitReplay:
    """The log is read from its beginning: a call for each mark, and `recovered` at the end.

    Args:
        units: Those without a fate.
        lines: Where they stand.
        ids: Under which they go.
        transitions: How they change.
        out: Takes what is decided.
    """

    def __init__(
        self,
        units: UnitRegistry,
        lines: Lines,
        ids: TransactionalIds,
        transitions: Transitions,
        out: Outbox,
    ) -> None:
        self._units = units
        self._lines = lines
        self._ids = ids
        self._transitions = transitions
        self._out = out
        self._staged: dict[TransactionalId, list[Unit]] = {}
        """Units that are staged in the transaction of a transactional id."""
        self._staged_under: dict[Unit, TransactionalId] = {}
        """The same the other way round."""
        self._former: dict[int, int] = {}
        """Readings of earlier incarnations: their numbers in this one."""
        self.earlier: dict[str, tuple[Unit, m.Ended]] = {}
        """Of each transactional id that a user gave, the unit that earlier incarnations ended last."""

    def recover(self, mark: m.Unit, position: int, accepted_at: int) -> Unit:
        """A UNIT mark; its batches follow."""
        unit = self._units.make(mark.unit_id, mark.transactional_id, mark.offsets, {})
        unit.read(position, accepted_at)
        return unit

    def recover_readings(self, mark: m.Read) -> None:
        """A READ mark: its unit is known."""
        unit = self._units.get(mark.unit_id)
        if unit is None:
            return
        readings = {}
        for line, (number, start) in zip(unit.group_lines, mark.entries, strict=False):
            # Those of this incarnation are newer, whatever the clock says.
            former = self._former.setdefault(number, OLDEST + 1 + len(self._former))
            readings[line] = Reading(former, start)
        unit.read_readings(mark.entries, readings)

    def recover_begun(self, mark: m.Begun) -> None:
        """A BEGUN mark: what an earlier STAGED mark says is void."""
        unit = self._units.get(mark.unit_id)
        if unit is not None:
            self._void(self._staged_under.get(unit))
            unit.read_begun()

    def _void(self, tid: TransactionalId | None) -> None:
        """Its transaction is not committed any more: what was staged in it is prepared again, all of it."""
        if tid is None:
            return
        for each in self._staged.pop(tid, []):
            del self._staged_under[each]
            each.read_void()

    def recover_staged(self, mark: m.Staged) -> None:
        """A STAGED mark."""
        begun = mark.begun
        unit = self._units.get(begun.unit_id)
        if unit is None:
            # Released since, but it says where its batches are.
            for place in mark.places:
                if place.base_offset >= 0:
                    self._lines.raise_floor(place.destination, place.base_offset + place.count - 1)
            return
        tid = self._ids[begun.transactional_id]
        grant = Grant(begun.producer_id, begun.producer_epoch, begun.protocol)
        self._void(self._staged_under.get(unit))
        if tid.grant != grant:
            # It went back to the line before the id was another's. With the same grant they share the transaction:
            # an id is fenced before it is used again, or what it had before is durably over.
            self._void(tid)
        self._staged.setdefault(tid, []).append(unit)
        self._staged_under[unit] = tid
        tid.read_grant(grant)
        unit.read_staged(grant, mark.places)

    def recover_ended(self, mark: m.Ended) -> Unit | None:
        """An ENDED mark; the unit, if it is still there."""
        unit = self._units.pop(mark.unit_id)
        if unit is None:
            return None
        if unit.transactional_id:
            self.earlier[unit.transactional_id] = (unit, mark)
        if mark.outcome is m.UnitOutcome.COMMITTED:
            self._lines.raise_floors(unit, alone=False)
        tid = self._staged_under.pop(unit, None)
        if tid is not None:
            self._staged[tid].remove(unit)
            if mark.outcome is m.UnitOutcome.DROPPED:
                self._void(tid)
        unit.read_over()
        return unit

    def give_up(self, unit_id: bytes) -> None:
        """An operator gives it up."""
        unit = self._units.get(unit_id)
        if unit is not None:
            unit.blame(GIVEN_UP, "given up by kafkasafe spool abort")

    def recovered(self, *, paused: bool) -> None:
        """The log is read. What an earlier incarnation left open under an id is ended before that id is used again.

        Args:
            paused: Nothing new is begun.
        """
        for tid in self._ids:
            tid.begin_again(staged=bool(self._staged.get(tid)))
        if not self._units:
            self._ids.clear()
            return
        ordered = self._units.renumber()
        for unit in ordered:
            self._lines.join(unit)
            self._units.note_batches(unit)
        for tid in self._ids:
            if tid.grant is not None:
                self._restore(tid, tid.grant)
        # Its BEGUN mark may not be durable: whatever its ids are, a transaction of theirs may be open.
        for name in (*self._ids.pool, *(unit.transactional_id for unit in ordered)):
            if name:
                tid = self._ids[name]
                if tid.transaction is None and not paused:
                    self._ids.fence(tid)
        for unit in ordered:
            transaction = unit.transaction
            if unit.code and unit.phase is Phase.WAITING:
                self._transitions.refuse(unit)
            elif (
                transaction is not None
                and unit.phase is Phase.STAGED
                and (unit.code or not self._lines.is_first(transaction, transaction.group_lines))
            ):
                # An earlier version wrote its offset before the units before it were committed.
                self._transitions.ask_outcome(transaction)
        if not paused:
            for unit in ordered:
                if unit.phase is Phase.WAITING:
                    self._transitions.requeue_followers(unit)
        self._out.change()

    def _restore(self, tid: TransactionalId, grant: Grant) -> None:
        """What was staged in its transaction is one again, in the order in which it was: the first has the marker."""
        staged = sorted(self._staged.pop(tid), key=lambda unit: unit.number)
        self._transitions.restore(staged, tid, grant)

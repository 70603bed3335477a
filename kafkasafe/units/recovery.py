"""Restores the units (atomic batches) of earlier incarnations from their marks (log entries)."""

from __future__ import annotations

from kafkasafe import marks as m
from kafkasafe.units.ids import TransactionalIds
from kafkasafe.units.order import Lines
from kafkasafe.units.outbox import UnitOutbox
from kafkasafe.units.terms import GIVEN_UP, OLDEST, Grant, Phase, Reading
from kafkasafe.units.transitions import Transitions
from kafkasafe.units.unit import TransactionalId, Unit


class UnitReplay:
    """Restores units from the marks of a lane's log. The caller passes each mark to its method, in order, and then
    calls `recovered`.

    Args:
        lines: The unfinished units.
        ids: The transactional ids.
        transitions: Changes units.
        out: Receives the decisions.
    """

    def __init__(
        self,
        lines: Lines,
        ids: TransactionalIds,
        transitions: Transitions,
        out: UnitOutbox,
    ) -> None:
        self._lines = lines
        self._ids = ids
        self._transitions = transitions
        self._out = out
        self._staged: dict[TransactionalId, list[Unit]] = {}
        """By transactional id: the units that are staged in its transaction."""
        self._staged_under: dict[Unit, TransactionalId] = {}
        """Maps a staged unit to its transactional id."""
        self._former: dict[int, int] = {}
        """Maps the number of a reading (a consumer's run) in an earlier incarnation to its number in this incarnation.
        """
        self.earlier: dict[str, tuple[Unit, m.Ended]] = {}
        """By a user's transactional id: the unit of earlier incarnations that ended last, and its ENDED mark."""

    def recover(self, mark: m.Unit, position: int, accepted_at: int) -> Unit:
        """Apply a UNIT mark; the unit's batches follow."""
        unit = self._lines.make(mark.unit_id, mark.transactional_id, mark.offsets, {})
        unit.read(position, accepted_at)
        return unit

    def recover_readings(self, mark: m.Read) -> None:
        """Apply a READ mark, which follows the UNIT mark of the same unit."""
        unit = self._lines.by_id.get(mark.unit_id)
        if unit is None:
            return
        readings = {}
        for line, (number, start) in zip(unit.group_lines, mark.entries, strict=False):
            # Renumber the reading, so that readings of this incarnation are always newer, even if the clock was set
            # back.
            former = self._former.setdefault(number, OLDEST + 1 + len(self._former))
            readings[line] = Reading(former, start)
        unit.read_readings(mark.entries, readings)

    def recover_begun(self, mark: m.Begun) -> None:
        """Apply a BEGUN mark. Earlier STAGED marks of the unit no longer count."""
        self._ids.note(mark.transactional_id, mark.producer_id)
        unit = self._lines.by_id.get(mark.unit_id)
        if unit is not None:
            self._void(self._staged_under.get(unit))
            unit.read_begun()

    def _void(self, tid: TransactionalId | None) -> None:
        """Note that the id's transaction will not be committed. Its staged units are then prepared again."""
        if tid is None:
            return
        for each in self._staged.pop(tid, []):
            del self._staged_under[each]
            each.read_void()

    def recover_staged(self, mark: m.Staged) -> None:
        """Apply a STAGED mark."""
        begun = mark.begun
        self._ids.note(begun.transactional_id, begun.producer_id)
        unit = self._lines.by_id.get(begun.unit_id)
        if unit is None:
            # The spool has released the unit, but the mark still has the offsets of the unit's batches in the
            # partitions' logs.
            for place in mark.places:
                if place.base_offset >= 0:
                    self._lines.raise_floor(place.destination, place.base_offset + place.count - 1)
            return
        tid = self._ids[begun.transactional_id]
        grant = Grant(begun.producer_id, begun.producer_epoch, begun.protocol)
        self._void(self._staged_under.get(unit))
        if tid.grant != grant:
            # Units that were staged under another grant of the id were requeued before the id got this grant. Under one
            # grant, a second transaction begins only after the ENDED marks of the first transaction are durable. So
            # staged units with the same grant share one transaction.
            self._void(tid)
        self._staged.setdefault(tid, []).append(unit)
        self._staged_under[unit] = tid
        tid.read_grant(grant)
        unit.read_staged(grant, mark.places)

    def recover_ended(self, mark: m.Ended) -> Unit | None:
        """Apply an ENDED mark. Returns the unit, or None if the spool has released it."""
        unit = self._lines.pop(mark.unit_id)
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
        """Give up a unit, because an operator has decided so."""
        unit = self._lines.by_id.get(unit_id)
        if unit is not None:
            unit.blame(GIVEN_UP, "given up by kafkasafe spool abort")

    def recovered(self, *, paused: bool) -> None:
        """Finish recovery. If an earlier incarnation left a transaction open, the transaction ends before its
        transactional id is used again.

        Args:
            paused: Whether to begin no unit.
        """
        for tid in self._ids:
            tid.begin_again(staged=bool(self._staged.get(tid)))
        ordered = self._lines.renumber()
        for unit in ordered:
            self._lines.join(unit)
        for tid in self._ids:
            if tid.grant is not None:
                self._restore(tid, tid.grant)
        # Even without a BEGUN mark in the log, any of these ids may have an open transaction: the process may have
        # crashed before the mark was durable.
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
                # Either the staged unit was refused, or an old version of kafkasafe wrote the unit's offset before
                # earlier units were committed.
                self._transitions.ask_outcome(transaction)
        if not paused:
            for unit in ordered:
                if unit.phase is Phase.WAITING:
                    self._transitions.requeue_followers(unit)
        self._out.change()

    def _restore(self, tid: TransactionalId, grant: Grant) -> None:
        """Restore the transaction of the id from the transaction's staged units, in the order in which they were
        accepted. The marker (a committed offset) contains the id of the first unit.
        """
        staged = sorted(self._staged.pop(tid), key=lambda unit: unit.number)
        self._transitions.restore(staged, tid, grant)

"""How units change: to a transaction, back to the line, to their ends. What is decided by that is collected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.codes import DESTINATION_CODES
from kafkasafe._core.units.terms import (
    POOL,
    Action,
    Again,
    Ask,
    Fence,
    Grant,
    GroupPartition,
    IllegalStepError,
    Look,
    Member,
    Note,
    Phase,
    Reading,
    Refuse,
    Request,
    Rest,
    Slot,
    Unit,
)
from kafkasafe._core.units.together import MOST, Together

__all__ = ["Moves"]

FENCED: Final = frozenset({47, 90})
"""The epoch is refused: a newer one was granted, or made by a time-out."""
EPOCH_REFUSED: Final = 90
"""The one of them that a unit has which is refused for that."""
LAST_EPOCH: Final = 0x7FFF - 1
"""The one after it is never granted: a new producer id is."""
_UNDER_WAY: Final = frozenset({Phase.BEGUN, Phase.APPENDING, Phase.STAGING, Phase.STAGED})
"""In a transaction to which no EndTxn was sent, by this life."""


class Moves(Together):
    """The units of one lane, and every change of them.

    Args:
        front: Whether nothing but batches of units stands before this one in the queue of its partition.
        pool: How many of the lane's own transactional ids there are.
        most: How many units share a transaction at most.
        newest_reading: Number of the reading that began last, in this process.
    """

    def __init__(
        self,
        front: Callable[[Member], bool],
        *,
        pool: int = POOL,
        most: int = MOST,
        newest_reading: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__()
        self._front = front
        self._newest_reading = newest_reading
        self._pool = [""] * pool
        self._most = most
        self._slots: dict[str, Slot] = {}
        self._numbers = 0
        self._units: dict[bytes, Unit] = {}
        self._batchless: dict[bytes, Unit] = {}
        """Of those: whatever is looked at in each turn is not to take longer with each unit that waits."""
        self._actions: list[Action] = []
        self._dirty = False
        self._drops: list[Unit] = []
        """Units with offsets that were dropped since `_follow_drops` looked."""
        self._former: dict[int, int] = {}
        """Readings of earlier incarnations: their numbers in this one."""
        self.earlier: dict[str, tuple[Unit, m.Ended]] = {}
        """Of each transactional id that a user gave, the unit that earlier lives ended last."""
        self._marks: list[m.Mark] = []
        self._begun_marks: list[m.Mark] = []
        """Nobody waits for them: they go to the disk with what somebody waits for."""
        self.staging: list[Unit] = []
        """Those whose STAGED mark is among them."""
        self.ending: list[Unit] = []
        """Those whose ENDED mark is among them."""
        self.too_large: list[tuple[Unit, Member]] = []
        """Those of which the cluster finds a batch too large: it is divided, and all of it prepared again."""
        self._only: frozenset[bytes] | None = None
        """Ids of those that may be committed; None: all."""
        self.paused = False
        """Nothing new is begun: what is staged is brought to its end, and no more."""

    def name(self, prefix: str) -> None:
        """What the lane's own transactional ids begin with."""
        self._pool = [f"{prefix}-{number}" for number in range(len(self._pool))]

    def clear_too_large(self) -> None:
        """The batches that the cluster finds too large are being divided."""
        self.too_large.clear()

    def clear_outcomes(self) -> None:
        """What follows from `staging` and `ending` is done."""
        self.staging.clear()
        self.ending.clear()

    def take_marks(self) -> list[m.Mark]:
        """What is to be persisted now."""
        if not self._marks:
            return []
        marks = self._begun_marks + self._marks
        self._marks, self._begun_marks = [], []
        return marks

    # -- what is there ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._units)

    @property
    def bare(self) -> int:
        """How many have no batch."""
        return len(self._batchless)

    @property
    def unfinished(self) -> list[Unit]:
        """All of them, in the order in which they were accepted. From any thread."""
        return list(self._units.values())

    @property
    def pinned(self) -> Iterable[int]:
        """Spool positions that are still needed for units without a batch."""
        return (unit.position for unit in self._batchless.values())

    def get(self, unit_id: bytes) -> Unit | None:
        """A unit without a fate."""
        return self._units.get(unit_id)

    def is_own(self, transactional_id: str) -> bool:
        """Whether it is one of the lane's own."""
        return transactional_id in self._pool

    def granted(self, transactional_id: str) -> Grant | None:
        """What the id's holder has; None while it is not ours."""
        slot = self._slots.get(transactional_id)
        return None if slot is None else slot.grant

    # -- back to the line ------------------------------------------------------------------------------------------

    def _redo(self, unit: Unit, code: int | None, reason: str) -> None:
        """Back to the line; what was written is aborted. What stands behind it has to go back as well."""
        self._break(unit, refused=code in FENCED)
        self._to_line(unit)
        self._set_back_behind(unit)
        for each in unit.each:
            each.tries += 1
            each.code = 0
            each.reason = reason
        # The others stand behind the first, so they rest as well, and may share a transaction with it afterwards.
        first = unit.each[0]
        first.resting = True
        self._actions.append(Again(Rest(first), first.tries, code, reason, slow=code in DESTINATION_CODES))

    def _to_line(self, unit: Unit) -> None:
        unit.move(Phase.WAITING)
        self._part(unit)

    def _set_back_behind(self, unit: Unit) -> None:
        """Whatever is under way behind a unit that is in the line goes back to it, in order.

        It could not be committed, and meanwhile would hold a transactional id that the unit itself, or one that has
        nothing to do with it, needs. Behind it is also what stands behind such a unit on another partition.
        """
        lines = set(unit.lines)
        under_way = (slot.unit for slot in self._slots.values() if slot.unit is not None)
        for other in sorted(under_way, key=lambda each: each.number):
            if other.number <= unit.number or other.phase not in _UNDER_WAY or lines.isdisjoint(other.lines):
                continue
            if other.slot is not None and other.slot.fresh:
                # Of an earlier life, which may have sent EndTxn. What is behind it goes back when it does.
                self._doubt(other)
                continue
            self._break(other)
            self._to_line(other)
            lines.update(other.lines)

    def _break(self, unit: Unit, *, refused: bool = False) -> None:
        """The transaction is to be aborted: InitProducerId does it, and shuts out whatever is late."""
        slot, unit.slot = unit.slot, None
        unit.issued = False
        unit.next_note = -1
        if slot is not None:
            slot.unit = None
            slot.aborting |= unit.destinations.keys()
            self._fence(slot, refused=refused)
        self._dirty = True

    def _doubt(self, unit: Unit) -> None:
        """Was it committed? The coordinator may know; else it is asked behind a fence: then nothing of it can be."""
        slot = unit.slot
        unit.move(Phase.ASKING)
        if slot is None:
            raise IllegalStepError(f"{unit} has no transactional id")
        slot.next_turn()
        # Whatever is told: the next transaction has a new grant.
        slot.fresh = True
        self._actions.append(Look(slot, slot.turn, unit))

    def _free(self, unit: Unit) -> None:
        slot, unit.slot = unit.slot, None
        unit.issued = False
        if slot is not None:
            slot.unit = None
            slot.next_turn()

    def _ask_unfenced(self, unit: Unit, slot: Slot, reason: str) -> None:
        """Was it committed before its end was refused? Who took over has ended it, and is not to be fenced in turn.

        If it was not, with protocol 1 it may also have timed out: `_late` tells, once it is known that it was open.
        There a marker that is late is taken into a successor's transaction, so only the log can be believed.
        """
        second = slot.grant is not None and slot.grant.protocol >= 2
        if not second and all(place < 0 for place in unit.places.values()):
            self._doubt(unit)
            return
        unit.move(Phase.ASKING)
        unit.reason = reason
        if second:
            unit.code, unit.dropped = EPOCH_REFUSED, bool(unit.offsets)
            slot.grant = slot.former = None
        else:
            unit.lapsed = True
        slot.next_turn()
        self._actions.append(Ask(slot, slot.turn, unit, by_log=not second))

    # -- transactional ids -----------------------------------------------------------------------------------------

    def _fence(self, slot: Slot, *, refused: bool = False) -> None:
        slot.next_turn()
        slot.fencing = True
        # Of a name that the user gave: who has taken it over since is not to be fenced in turn.
        keep = slot.former if slot.transactional_id not in self._pool and slot.unit is None else None
        slot.grant = None
        late = self._late(slot, keep) if refused else None
        self._actions.append(Fence(slot, slot.turn, late or keep, timed_out=late is not None))

    @staticmethod
    def _late(slot: Slot, keep: Grant | None) -> Grant | None:
        """The grant that a time-out made of this one, which was refused; None where it may be another's.

        The coordinator aborts what is open for too long under the next epoch. Who takes over what is open gets the one
        after that, so nobody was ever granted the next one, and it is current until somebody has taken over. Of what
        was not open that is not so. With protocol 2 the grant itself is taken as well.
        """
        if keep is None or not slot.opened or keep.protocol >= 2 or keep.epoch >= LAST_EPOCH:
            return None
        return Grant(keep.producer_id, keep.epoch + 1, keep.protocol)

    def _may_have_timed_out(self, action: Fence) -> bool:
        """Whether the coordinator is asked once more, with the epoch that a time-out gave."""
        slot = action.slot
        late = None if action.timed_out else self._late(slot, action.keep)
        if late is not None:
            slot.next_turn()
            self._actions.append(Fence(slot, slot.turn, late, timed_out=True))
        return late is not None

    def _taken_over(self, action: Fence, reason: str) -> None:
        """Somebody else has the name now: what waits under it is his to do, or nobody's."""
        slot = action.slot
        sure = action.timed_out or (action.keep is not None and action.keep.protocol >= 2)
        reason += "; another producer has taken the transactional id over"
        if not sure:
            reason += ", or it was open for longer than transaction_timeout_ms: the cluster cannot say which"
        slot.fencing = False
        slot.former = None
        slot.aborting = frozenset()
        for unit in list(self._units.values()):
            if unit.transactional_id == slot.transactional_id and unit.phase is Phase.WAITING:
                # Where it moves a group's offsets, whoever has the name reads the same records again.
                unit.code, unit.reason, unit.dropped = EPOCH_REFUSED, reason, bool(unit.offsets)
                self._refuse(unit)

    def _is_a_users(self, slot: Slot) -> bool:
        """Whether a refused epoch may say that somebody else has the id now.

        What an earlier life staged is this life's all the same, which takes over what it finds.
        """
        return slot.transactional_id not in self._pool and not slot.fresh and slot.grant is not None

    def _slot(self, name: str) -> Slot:
        return self._slots.setdefault(name, Slot(name))

    def vacate(self, destination: int, reason: str) -> bool:
        """Nothing of a unit may be on its way into a partition whose log is about to be compared with what was in it.

        The topic may be another one by now, without what was prepared in it: its transaction would be committed all the
        same, as coordinators go by names. What may still be aborted is prepared again afterwards; what may have been
        committed comes to its end first, and then is compared as well.

        Returns:
            Whether it is so. Else ask again after every answer.
        """
        vacant = not self.is_open(destination)
        under_way = [slot.unit for slot in self._slots.values() if slot.unit is not None]
        for unit in sorted(under_way, key=lambda each: each.number):
            if destination not in unit.destinations:
                continue
            slot = unit.slot
            if slot is None or unit.phase not in _UNDER_WAY or not self._is_decided_here(unit):
                continue
            if slot.fresh:
                self._doubt(unit)
            else:
                self._redo(unit, None, reason)
        return vacant

    def is_open(self, destination: int) -> bool:
        """Whether a transaction with the partition may be open, or its end is not durable."""
        return any(
            destination in slot.aborting or (slot.unit is not None and destination in slot.unit.destinations)
            for slot in self._slots.values()
        )

    def _is_decided_here(self, unit: Unit) -> bool:
        return self._only is None or self._only.issuperset(each.unit_id for each in unit.each)

    # -- ends ------------------------------------------------------------------------------------------------------

    def _commit(self, unit: Unit) -> None:
        self._raise_floors(unit)
        newest = self._newest_reading() if unit.group_lines else 0
        for each in unit.offsets:
            for at in each.positions:
                line = each.group, at.topic, at.partition
                self._reached[line] = at.offset, unit.reading(line).number, newest
        unit.move(Phase.COMMITTED)
        self._end(unit, m.UnitOutcome.COMMITTED, "")

    def _end(self, unit: Unit, outcome: m.UnitOutcome, reason: str) -> None:
        self._leave(unit)
        for each in unit.each:
            each.ended = True
            if each.durable:
                self._marks.append(m.Ended(each.unit_id, outcome, reason))
            self.ending.append(each)
        self._dirty = True

    def give_up(self, unit: Unit, code: int, reason: str) -> bool:
        """It is not to be delivered any more. Whether it was in time for that: what is committed already is."""
        unit.code, unit.reason = code, reason
        whole = unit.within or unit
        match unit.phase:
            case Phase.WAITING:
                self._refuse(unit)
            case Phase.BEGUN | Phase.APPENDING:
                self._break(whole)
                if whole.together:
                    self._to_line(whole)
                    self._set_back_behind(whole)
                self._refuse(unit)
            case Phase.STAGING | Phase.STAGED | Phase.ENDING:
                if unit.phase is Phase.STAGING:
                    whole.move(Phase.STAGED)
                self._doubt(whole)
            case Phase.ASKING:
                pass
            case _:
                return False
        return True

    def _drop(self, unit: Unit, code: int, reason: str) -> None:
        """Given up, and its records are not kept: its consumers read what it was made of again."""
        unit.dropped = True
        self.give_up(unit, code, reason)

    def _follow_drops(self) -> None:
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
        broken: dict[GroupPartition, tuple[int, int]] = {}
        for unit in dropped:
            self._break_off(unit, broken)
        # In the order in which they were accepted: what goes on from one that is dropped here comes after it.
        for unit in self.unfinished if dropped else ():
            if unit.phase is Phase.REFUSED:
                continue
            for line in unit.group_lines:
                reading, number = broken.get(line, (0, unit.number))
                if unit.reading(line).number <= reading and unit.number > number:
                    self._drop(unit, dropped[0].code, _without(dropped[0].reason))
                    self._break_off(unit, broken)
                    break
        self._drops.clear()

    def _break_off(self, unit: Unit, broken: dict[GroupPartition, tuple[int, int]]) -> None:
        for line in unit.group_lines:
            mine = unit.reading(line).number
            reading, number = broken.get(line, (mine, unit.number))
            broken[line] = max(reading, mine), min(number, unit.number)
            self._broken[line] = max(self._broken.get(line, mine), broken[line][0])

    def _refuse(self, unit: Unit) -> None:
        unit.move(Phase.REFUSED)
        if unit.dropped:
            self._drops.append(unit)
            self._end(unit, m.UnitOutcome.DROPPED, unit.reason)
        else:
            self._actions.append(Refuse(unit))
        self._dirty = True

    # -- bits ------------------------------------------------------------------------------------------------------

    def _note(self, unit: Unit) -> None:
        slot = unit.slot
        if slot is not None:
            self._actions.append(Note(slot, slot.turn, unit, -1))

    @staticmethod
    def _by_itself(unit: Unit) -> bool:
        """Its one partition adds itself. Several at once would be in each other's way."""
        grant = unit.grant
        return grant is not None and grant.protocol >= 2 and len(unit.destinations) == 1

    @staticmethod
    def _begun(unit: Unit, slot: Slot, grant: Grant) -> m.Begun:
        return m.Begun(unit.unit_id, slot.transactional_id, grant.producer_id, grant.epoch, grant.protocol)

    def _valid(self, action: Request) -> bool:
        return action.turn == action.slot.turn

    def _make(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading],
    ) -> Unit:
        self._numbers += 1
        unit = Unit(self._numbers, unit_id, transactional_id, offsets, dict(readings))
        self._units[unit_id] = unit
        return unit

    def _line_up(self, unit: Unit) -> None:
        for line in unit.lines:
            self._line(line).append(unit)
        if not unit.batches:
            self._batchless[unit.unit_id] = unit
            if not unit.group_lines:
                self._bare.append(unit)


def _without(reason: str) -> str:
    return f"it goes on from an atomic batch of the same consumer that was dropped ({reason})"

"""The machine: events in, actions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.codes import DESTINATION_CODES, Scope, classify_produce
from kafkasafe._core.codes import Action as Produce
from kafkasafe._core.identity import add_sequence
from kafkasafe._core.units.moves import EPOCH_REFUSED, FENCED
from kafkasafe._core.units.recovery import Recovery
from kafkasafe._core.units.terms import (
    SUPERSEDED,
    Action,
    Again,
    Append,
    Ask,
    End,
    Fence,
    Grant,
    GroupPartition,
    Join,
    Line,
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

__all__ = ["Units"]

_PATIENCE: Final = 8
"""How often a request inside a transaction is tried before that is aborted: an open one holds readers up."""
_TOO_LARGE: Final = frozenset({10, 18})
_LOST: Final = frozenset({47, 48, 49, 90})
"""This transaction is over, or was never there: it timed out, or a newer epoch took over."""
_NOT_A_MEMBER: Final = frozenset({22, 25, 82})
_NO_OFFSETS: Final = frozenset({12, 24, 28})
"""What is to be noted will never be: a group without a name, metadata that are too long."""
BROKEN: Final = "it goes on from an atomic batch of the same consumer that was dropped"
MOVED_ON: Final = (
    "the group's offset was moved past where its consumer began: the same records were processed before"
)


class Units(Recovery):
    """The units of one lane, from the spool to their ends. See the package."""

    def seal(
        self,
        unit_id: bytes,
        transactional_id: str,
        offsets: tuple[m.GroupOffsets, ...],
        readings: Mapping[GroupPartition, Reading] = MappingProxyType({}),
    ) -> Unit:
        """A new unit, after all earlier ones; `closed` says that its batches are there.

        Args:
            unit_id: 16 bytes.
            transactional_id: Given by the user; empty: one of the lane's own.
            offsets: Of consumer groups.
            readings: Of which readings of consumers they are.
        """
        unit = self._make(unit_id, transactional_id, offsets, readings)
        if readings:
            mine = map(unit.reading, unit.group_lines)
            unit.recorded = tuple((each.number, each.start) for each in mine)
        return unit

    def closed(self, unit: Unit) -> None:
        """All its batches are in the queues of their partitions."""
        self._line_up(unit)
        if self._is_broken(unit):
            self._drop(unit, SUPERSEDED, BROKEN)

    def written(self, unit: Unit, position: int) -> None:
        """It is durable."""
        unit.durable, unit.position = True, position
        self._dirty = True

    def divided(self, unit: Unit, batch: Member, parts: Sequence[Member]) -> None:
        """One of its batches was divided, by partition."""
        at = unit.batches.index(batch)
        before = unit.destinations
        unit.batches[at : at + 1] = parts
        after = unit.destinations
        for destination in before:
            if destination not in after:
                self._lines[destination].remove(unit)
        for destination in after:
            if destination not in before:
                line = self._line(destination)
                later = sum(1 for other in line if other.number > unit.number)
                line.insert(len(line) - later, unit)
        self._dirty = True

    def look(self) -> None:
        """What stood in front of a batch of a unit is gone."""
        self._dirty = bool(self._units)

    def held_up(self, unit: Unit) -> bool:
        """Whether it stands behind one that is not brought to its end here (`decide`), or shares its transaction.

        From any thread.
        """
        whole = unit.within
        if self.paused and whole is not None and not self._is_decided_here(whole):
            return True
        held: set[Line] = set()
        for other in self.unfinished if self.paused else ():
            if other is unit:
                break
            left = other.phase is Phase.STAGED and not self._is_decided_here(other.within or other)
            if left or other.phase is Phase.WAITING or not held.isdisjoint(other.lines):
                held.update(other.lines)
        return not held.isdisjoint(unit.lines)

    def moved(self) -> None:
        """Another cluster is spoken to from now on: what this one granted means nothing there."""
        self._slots.clear()

    def forget(self, destination: int) -> None:
        """What was committed there is in another log than the one that is written to from now on."""
        self._floor.pop(destination, None)

    def take_over(self, transactional_id: str) -> None:
        """A name that the user gave becomes ours: whoever had it is fenced, and what he left open is aborted."""
        slot = self._slot(transactional_id)
        if slot.unit is None and not slot.fencing:
            slot.former = None
            self._fence(slot)

    def fenced(self, action: Fence, grant: Grant) -> None:
        """InitProducerId was answered: the id is ours, and nothing of it is open."""
        slot = action.slot
        if not self._valid(action):
            return
        slot.fencing = False
        slot.aborting = frozenset()
        slot.grant = slot.former = grant
        slot.opened = False
        slot.fresh = False
        slot.sequences.clear()
        slot.next_turn()
        unit = slot.unit
        if unit is not None and unit.phase is Phase.ASKING:
            self._actions.append(Ask(slot, slot.turn, unit))
        else:
            slot.unit = None
        self._dirty = True

    def aborted(self, action: Fence, code: int) -> bool | None:
        """EndTxn, before InitProducerId with `keep`, was answered. Whether that is to be asked as well; None: not yet.

        It ends what is open whoever opened it: the epoch is looked at only where nothing is open. So who is refused
        here goes no further, unless an earlier answer was lost: then the new epoch may be the own one.

        After a time-out it is asked twice. A successor's first InitProducerId is answered 51 and leaves the epoch
        that a time-out leaves; it comes again within a second, and then that epoch is refused.
        """
        if not self._valid(action) or (code in FENCED and not action.slot.unsure):
            return False
        slot = action.slot
        if action.timed_out and code not in FENCED and not slot.alone:
            slot.alone = True
            self._actions.append(Again(action, 1, None, "it may be another's soon", slow=True))
            return None
        slot.opened = slot.opened and action.timed_out
        return True

    def unanswered(self, action: Fence, *, ended: bool) -> None:
        """EndTxn (`ended`), or InitProducerId, may have been carried out, and no answer came."""
        if not self._valid(action):
            return
        if not ended:
            action.slot.unsure = True
        elif not action.timed_out:
            action.slot.opened = False

    def joined(self, action: Join) -> None:
        """The partitions are part of the transaction."""
        if self._valid(action):
            action.slot.opened = True
            action.unit.move(Phase.APPENDING)
            self._dirty = True

    def appended(self, action: Append, base_offset: int, leader_epoch: int) -> None:
        """A batch is in its log."""
        if not self._valid(action):
            return
        unit = action.unit
        action.slot.opened = True
        first = not unit.places
        unit.places[action.batch.handle] = base_offset
        unit.epochs[action.batch.handle] = leader_epoch
        if first and self._by_itself(unit):
            self._note(unit)
        self._whole(unit)

    def noted(self, action: Note) -> None:
        """Offsets of a group are in the transaction."""
        if not self._valid(action):
            return
        unit = action.unit
        action.slot.opened = True
        unit.notes_left -= 1
        if action.index + 1 < len(unit.offsets):
            unit.next_note = action.index + 1
            self._dirty = True
        self._whole(unit)

    def staged(self, unit: Unit) -> None:
        """Its STAGED mark is durable."""
        if unit.phase is Phase.STAGING:
            unit.move(Phase.STAGED)
            self._dirty = True

    def ended(self, action: End, grant: Grant | None) -> None:
        """EndTxn was answered: it is committed.

        Args:
            action: What was asked for.
            grant: For the next transaction; None: not known.
        """
        if not self._valid(action):
            return
        slot = action.slot
        if slot.fresh or grant is None or action in slot.attempts:
            slot.fresh = True
        elif slot.grant is not None and grant != slot.grant:
            slot.grant = slot.former = grant
            slot.sequences.clear()
        self._commit(action.unit)

    def described(self, action: Look, committed: bool | None) -> None:
        """What the coordinator says of a transaction; None: nothing that decides it."""
        if not self._valid(action):
            return
        if committed is None:
            self._fence(action.slot)
        else:
            self._outcome(action.unit, committed=committed)

    def told(self, action: Ask, *, committed: bool | None) -> None:
        """The outcome of a unit: nothing can change it any more. None: the log does not reach back that far."""
        if not self._valid(action):
            return
        if committed is None:
            # The marker says it, once nothing of anybody is open under the id.
            action.unit.lapsed = False
            action.slot.fresh = True
            self._fence(action.slot)
        else:
            self._outcome(action.unit, committed=committed)

    def _outcome(self, unit: Unit, *, committed: bool) -> None:
        if committed:
            self._commit(unit)
            return
        if unit.lapsed and unit.slot is not None and not unit.code:
            # So it was open until it timed out, or was taken over: `_late` tells which.
            unit.slot.opened = True
            self._redo(unit, EPOCH_REFUSED, unit.reason)
            return
        self._free(unit)
        if unit.code and not unit.together:
            self._refuse(unit)
            return
        self._to_line(unit)
        self._set_back_behind(unit)
        for each in unit.each:
            each.tries += 1
            if each.code:
                self._refuse(each)
        self._dirty = True

    def over(self, unit: Unit) -> None:
        """Its ENDED mark is durable."""
        unit.move(Phase.OVER)
        self._units.pop(unit.unit_id, None)
        self._batchless.pop(unit.unit_id, None)
        self._dirty = True
        whole = unit.within or unit
        slot = whole.slot
        if slot is not None and slot.unit is whole and all(each.phase is Phase.OVER for each in whole.each):
            slot.unit = None
            slot.next_turn()
            whole.slot = None

    def put_aside(self, unit: Unit, *, kept: bool, reason: str = "") -> None:
        """What it holds is durable in `rejected/`, or could not be kept, and is tried again after a pause."""
        if not kept:
            self._actions.append(Again(Rest(unit), unit.tries + 1, unit.code, reason, slow=True))
            return
        self._end(unit, m.UnitOutcome.DROPPED, unit.reason)

    def failed(
        self, action: Request, code: int | None, reason: str, *, sent: bool = True, lasting: bool = False
    ) -> None:
        """A request failed.

        Args:
            action: What was asked for.
            code: Kafka's error code, None: no answer came.
            reason: For people.
            sent: It may have reached a broker.
            lasting: It was answered so for as long as anything is waited for.
        """
        if not self._valid(action):
            return
        attempt = action.slot.attempts[action] = action.slot.attempts.get(action, 0) + 1
        if isinstance(action, Fence):
            if action.keep is not None and code in FENCED and action.slot.unit is None:
                if not self._may_have_timed_out(action):
                    self._taken_over(action, reason)
            else:
                self._actions.append(Again(action, attempt, code, reason, slow=code is not None))
            return
        unit = action.unit
        unit.reason = reason
        if isinstance(action, Look):
            self._fence(action.slot)
            return
        if isinstance(action, Ask):
            self._actions.append(Again(action, attempt, code, reason))
            return
        if isinstance(action, End):
            if code in FENCED and self._is_a_users(action.slot):
                self._ask_unfenced(unit, action.slot, reason)
                return
            if code in _LOST:
                self._doubt(unit)
                return
            if code is None and not sent:
                action.slot.attempts.pop(action)
                attempt = 1
            self._actions.append(
                Again(action, attempt, code, reason, slow=code is not None and code not in {14, 15, 16, 51})
            )
            return
        if isinstance(action, Note) and action.index >= 0 and code is not None and code in _NOT_A_MEMBER:
            self._leave_group(unit, unit.offsets[action.index].group, code, reason)
            return
        if (
            isinstance(action, Note)
            and action.index >= 0
            and code is None
            and sent
            and _is_first_protocol(unit)
        ):
            self._redo(unit, code, reason)
            return
        lasting = lasting or (isinstance(action, Note) and action.index >= 0 and code in _NO_OFFSETS)
        if isinstance(action, Append) and code is not None:
            verdict = classify_produce(code)
            if code in _TOO_LARGE and action.batch.count > 1 and unit.durable and not unit.together:
                self._redo(unit, code, reason)
                # What is divided is nearer to its end.
                unit.tries = 0
                self.too_large.append((unit, action.batch))
                return
            if verdict.action is Produce.REJECT_BATCH and verdict.scope is Scope.NONE:
                lasting = True
            elif verdict.action is not Produce.RETRY and code != 51:
                self._redo(unit, code, reason)
                return
        if lasting and not unit.together:
            unit.code = code or 0
            self._break(unit)
            self._refuse(unit)
        elif lasting or code in _LOST or code in DESTINATION_CODES or attempt >= _PATIENCE:
            # Of several that share the transaction each goes by itself then, and nobody's fate is another's.
            self._redo(unit, code, reason)
        else:
            self._actions.append(Again(action, attempt, code, reason))

    def again(self, action: Request | Rest) -> None:
        """The pause that an Again asked for is over."""
        if isinstance(action, Rest):
            if action.unit.phase is Phase.REFUSED and not action.unit.resting:
                # It could not be kept. Of what rested before it was refused, that is under way.
                self._actions.append(Refuse(action.unit))
            action.unit.resting = False
            self._dirty = True
        elif self._valid(action):
            self._actions.append(action)

    # -- what to do now --------------------------------------------------------------------------------------------

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to be done or written until something happens."""
        return not (
            self._dirty or self._actions or self._marks or self.too_large or self.staging or self.ending
        )

    def advance(self) -> list[Action]:
        """Everything that must be done now; each thing is given once."""
        while self._dirty:
            self._dirty = False
            self._follow_drops()
            self._begin()
            self._go_on()
        actions, self._actions = self._actions, []
        return actions

    def _begin(self) -> None:
        if self.paused:
            return
        coming = sum(slot.fencing and slot.unit is None for slot in self._slots.values())
        for unit in self._next():
            if self._is_superseded(unit):
                self._drop(unit, SUPERSEDED, MOVED_ON)
                continue
            if not (unit.batches or unit.group_lines):
                # There is nothing to be delivered, and so it is: no transaction is needed for that.
                unit.phase = Phase.COMMITTED
                self._end(unit, m.UnitOutcome.COMMITTED, "")
                continue
            slot = self._choose(unit)
            if slot is None:
                continue
            grant = slot.grant
            if grant is None or slot.fresh:
                if not coming or unit.transactional_id:
                    self._fence(slot)
                else:
                    coming -= 1
                continue
            unit = self._lead(self._gather(unit, self._is_ready))
            slot.unit, unit.slot = unit, slot
            slot.opened = False
            slot.next_turn()
            unit.sequences.clear()
            unit.places.clear()
            unit.epochs.clear()
            unit.issued = unit.lapsed = False
            unit.notes_left = 1 + len(unit.offsets)
            unit.next_note = -1
            unit.move(Phase.BEGUN)
            unit.grant = grant
            for each in unit.each:
                each.grant = grant
                self._begun_marks.append(self._begun(each, slot, grant))
            if unit.batches and not self._by_itself(unit):
                self._actions.append(Join(slot, slot.turn, unit))
            else:
                unit.move(Phase.APPENDING)

    def _is_ready(self, unit: Unit) -> bool:
        """Whether it may be begun when its turn comes."""
        return (
            unit.phase is Phase.WAITING
            and unit.durable
            and not unit.resting
            and all(batch.position >= 0 for batch in unit.batches)
            and all(map(self._front, unit.batches))
        )

    def _next(self) -> list[Unit]:
        """Units whose turn it is to be begun, in order."""
        found: dict[int, Unit] = {}
        for line in self._lines.values():
            for unit in line:
                if unit.phase is Phase.WAITING:
                    found[unit.number] = unit
                    break
                if unit.phase in {Phase.ASKING, Phase.REFUSED}:
                    break
        for unit in self._bare:
            if unit.phase is Phase.WAITING:
                found[unit.number] = unit
        return [
            unit
            for _, unit in sorted(found.items())
            if all(self._is_next(unit, line) for line in unit.lines) and self._is_ready(unit)
        ]

    def _choose(self, unit: Unit) -> Slot | None:
        if unit.transactional_id:
            slot = self._slot(unit.transactional_id)
            return slot if slot.unit is None and not slot.fencing else None
        free = [slot for name in self._pool if (slot := self._slot(name)).unit is None and not slot.fencing]
        ready = (slot for slot in free if slot.grant is not None and not slot.fresh)
        return next(ready, free[0] if free else None)

    def _go_on(self) -> None:
        """What is under way: appended when those before it are, committed when they are."""
        for unit in sorted(
            (slot.unit for slot in self._slots.values() if slot.unit is not None),
            key=lambda unit: unit.number,
        ):
            slot = unit.slot
            if slot is None:
                continue
            if unit.phase is Phase.APPENDING and not unit.issued:
                if all(self._issued_before(unit, destination) for destination in unit.destinations):
                    self._append(unit, slot)
            elif unit.phase is Phase.APPENDING and unit.next_note >= 0:
                self._write_offsets(unit, slot)
            elif unit.phase is Phase.STAGED and self._may_end(unit):
                if unit.alone or self._in_order(unit):
                    unit.move(Phase.ENDING)
                    slot.opened = False
                    self._actions.append(End(slot, slot.turn, unit))
                elif slot.fresh:
                    # Of an earlier life, which knew more: whether it sent EndTxn is asked.
                    self._doubt(unit)
                else:
                    self._redo(unit, None, "it stands before what was accepted earlier")

    def _may_end(self, unit: Unit) -> bool:
        if not self._is_decided_here(unit):
            return False
        return self._is_first(unit, unit.lines)

    def _write_offsets(self, unit: Unit, slot: Slot) -> None:
        """Those of the next group, when no earlier unit moves it any more.

        1. Two units of a consumer are prepared at once, and the answer to the first one's TxnOffsetCommit is lost. 2.
        The second writes its offset. 3. The first is asked to write its own again. 4. Both are committed, in order, but
        of two offsets the group keeps the one that was *written* last: it is back where the first unit left it.
        """
        if not self._is_first(unit, unit.group_lines):
            return
        for each in unit.each:
            if self._is_superseded(each):
                self._drop(each, SUPERSEDED, MOVED_ON)
                return
        self._actions.append(Note(slot, slot.turn, unit, unit.next_note))
        unit.next_note = -1

    def _leave_group(self, unit: Unit, group: str, code: int, reason: str) -> None:
        """The group refuses the consumer: that is so of all that share the transaction and are of this group."""
        self._break(unit)
        if unit.together:
            self._to_line(unit)
            self._set_back_behind(unit)
        for each in unit.each:
            if any(offsets.group == group for offsets in each.offsets):
                self._drop(each, code, reason)

    def _append(self, unit: Unit, slot: Slot) -> None:
        unit.issued = True
        unit.alone = self._is_first(unit, unit.destinations)
        for batch in unit.batches:
            sequence = slot.sequences.get(batch.destination, 0)
            slot.sequences[batch.destination] = add_sequence(sequence, batch.count)
            unit.sequences[batch.handle] = sequence
            self._actions.append(Append(slot, slot.turn, unit, batch, sequence))
        if not (unit.batches and self._by_itself(unit)):
            self._note(unit)
        self._dirty = True

    def _whole(self, unit: Unit) -> None:
        """All of it may be appended."""
        slot, grant = unit.slot, unit.grant
        if slot is None or grant is None or unit.notes_left or len(unit.places) < len(unit.batches):
            return
        unit.move(Phase.STAGING)
        for each in unit.each:
            places = tuple(
                m.Placed(
                    batch.destination,
                    batch.position,
                    batch.count,
                    unit.sequences[batch.handle],
                    unit.places[batch.handle],
                )
                for batch in each.batches
            )
            self._marks.append(m.Staged(self._begun(each, slot, grant), places))
        self.staging.append(unit)


def _is_first_protocol(unit: Unit) -> bool:
    """Where an offset that comes late is taken into the next transaction of its producer id, unless that has a newer
    epoch: so what was not answered is not asked for again, but aborted.
    """
    grant = unit.grant
    return grant is not None and grant.protocol < 2

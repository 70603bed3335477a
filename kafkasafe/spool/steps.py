"""The two-phase exchange of KAFKA-156 as a log: the step that each batch id has reached, and when. From marks alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafkasafe import marks as m
from kafkasafe.spool.examine import Step

__all__ = ["BatchTimes", "UnitLog", "steps_of"]


@dataclass(slots=True)
class BatchTimes:
    """When the spool recorded the steps of a plain batch, ms since the epoch; -1: not yet, or no longer known.

    Attributes:
        prepared_ms: The batch was written to the spool.
        prepare_acknowledged_ms: The batch id under which it may be sent was written to the spool.
        commit_acknowledged_ms: Its offset was written to the spool. Step 3 happens before that, at the broker.
    """

    prepared_ms: int = -1
    prepare_acknowledged_ms: int = -1
    commit_acknowledged_ms: int = -1


@dataclass(slots=True)
class UnitLog:
    """An atomic batch, as recorded by the marks.

    Attributes:
        unit_id: 16 bytes.
        transactional_id: Transactional id of its latest transaction; before the first one, as the user gave it.
        producer_id: Producer id of that transaction, -1 before the first one.
        producer_epoch: Producer epoch of that transaction, -1 before the first one.
        positions: Positions of its batches; the parts of a divided one take its place.
        groups: Consumer groups whose offsets are part of it.
        outcome: None until it is decided.
        reason: Why it was dropped.
        prepared_ms: When the whole batch was written to the spool.
        prepare_acknowledged_ms: When the spool recorded that the brokers have all of it. From then on it may be
            committed.
        ended_ms: When the spool recorded its outcome.
        offsets: By position, the base offset of the batch.
    """

    unit_id: bytes
    transactional_id: str
    groups: tuple[str, ...]
    positions: list[int] = field(default_factory=list)
    producer_id: int = -1
    producer_epoch: int = -1
    outcome: m.UnitOutcome | None = None
    reason: str = ""
    prepared_ms: int = -1
    prepare_acknowledged_ms: int = -1
    ended_ms: int = -1
    offsets: dict[int, int] = field(default_factory=dict)

    @property
    def batch_id(self) -> str:
        """As commands take it."""
        return self.unit_id.hex()

    @property
    def is_dropped(self) -> bool:
        """Whether it was dropped."""
        return self.outcome is m.UnitOutcome.DROPPED

    @property
    def step(self) -> Step | None:
        """The last step that is known to be done; None if it was dropped."""
        if self.is_dropped:
            return None
        if self.outcome is m.UnitOutcome.COMMITTED:
            return Step.COMMIT_ACKNOWLEDGED
        return Step.PREPARED if self.prepare_acknowledged_ms < 0 else Step.PREPARE_ACKNOWLEDGED


def steps_of(
    groups: Iterable[tuple[int, Sequence[m.Mark], Sequence[tuple[int, bool]]]],
) -> tuple[dict[int, BatchTimes], list[UnitLog]]:
    """Times of plain batches by position, and all atomic batches, in the order of the log.

    Args:
        groups: For each group: the time at which it was written (ms since the epoch), its marks, and (position, has an
            id) of its batches.
    """
    times: dict[int, BatchTimes] = {}
    units: dict[bytes, UnitLog] = {}
    unit_of: dict[int, UnitLog] = {}
    for written_ms, marks, batches in groups:
        members: dict[int, tuple[UnitLog, int]] = {}
        moved: dict[int, int] = {}
        for mark in marks:
            match mark:
                case m.Unit(unit_id, first, count, transactional_id, offsets):
                    names = tuple(each.group for each in offsets)
                    unit = units.get(unit_id)
                    if unit is None:
                        unit = UnitLog(unit_id, transactional_id, names, prepared_ms=written_ms)
                        units[unit_id] = unit
                    # The mark before also names the parts of a divided batch.
                    members = dict.fromkeys(range(first, first + count), (unit, -1)) | members
                case m.Replaced(position, first, count) if position in unit_of:
                    unit = unit_of.pop(position)
                    members.update(dict.fromkeys(range(first, first + count), (unit, position)))
                case m.Begun():
                    _began(units, mark)
                case m.Staged(begun, places):
                    _began(units, begun)
                    if begun.unit_id in units:
                        units[begun.unit_id].prepare_acknowledged_ms = written_ms
                        units[begun.unit_id].offsets = {each.position: each.base_offset for each in places}
                case m.Ended(unit_id, outcome, reason) if unit_id in units:
                    ended = units[unit_id]
                    if outcome is m.UnitOutcome.DROPPED:
                        _void(units, ended)
                    ended.outcome, ended.reason, ended.ended_ms = outcome, reason, written_ms
                case m.Identified(_, _, _, entries):
                    for entry in entries:
                        if entry.position in times:
                            times[entry.position].prepare_acknowledged_ms = written_ms
                case m.Committed(_, _, entries):
                    for position, _ in entries:
                        if position in times:
                            times[position].commit_acknowledged_ms = written_ms
                case m.Moved(moves):
                    moved = {index: move.position for index, move in enumerate(moves)}
                case (
                    m.After()
                    | m.Cluster()
                    | m.Destination()
                    | m.Ended()
                    | m.Given()
                    | m.Granted()
                    | m.Quiet()
                    | m.Read()
                    | m.Rejected()
                    | m.Replaced()
                    | m.Resent()
                    | m.Resolved()
                    | m.Revived()
                    | m.State()
                    | m.Topic()
                    | m.Torn()
                    | m.Undecidable()
                ):
                    pass  # no step of a batch
        replaced: dict[int, list[int]] = {}
        for index, (position, identified) in enumerate(batches):
            if index in moved:
                # Copied forward, as it was. The segment where it was written first may be deleted already.
                times[position] = times.pop(moved[index], BatchTimes())
                continue
            if index not in members:
                times[position] = BatchTimes(written_ms, written_ms if identified else -1)
                continue
            unit, parent = members[index]
            unit_of[position] = unit
            if parent < 0:
                unit.positions.append(position)
            else:
                replaced.setdefault(parent, []).append(position)
        for parent, positions in replaced.items():
            where = unit_of[positions[0]].positions
            at = where.index(parent)
            where[at : at + 1] = positions
    return times, list(units.values())


def undecidable_in(
    groups: Iterable[tuple[int, Sequence[m.Mark], Sequence[tuple[int, bool]]]],
) -> dict[int, int]:
    """Positions of batches that wait for an operator's decision, each with the position of the group that records it.

    Args:
        groups: For each group: its position, its marks, and (position, has an id) of its batches.
    """
    found: dict[int, int] = {}
    for at, marks, batches in groups:
        moved: dict[int, int] = {}
        for mark in marks:
            match mark:
                case m.Undecidable(position):
                    found[position] = at
                case m.Resolved(position):
                    found.pop(position, None)
                case m.Moved(moves):
                    moved = {index: move.position for index, move in enumerate(moves)}
                case (
                    m.After()
                    | m.Begun()
                    | m.Cluster()
                    | m.Committed()
                    | m.Destination()
                    | m.Ended()
                    | m.Given()
                    | m.Granted()
                    | m.Identified()
                    | m.Quiet()
                    | m.Read()
                    | m.Rejected()
                    | m.Replaced()
                    | m.Resent()
                    | m.Revived()
                    | m.Staged()
                    | m.State()
                    | m.Topic()
                    | m.Torn()
                    | m.Unit()
                ):
                    pass  # asks for no decision
        for index, (position, _) in enumerate(batches):
            if moved.get(index, -1) in found:
                found[position] = found.pop(moved[index])
    return found


def _began(units: dict[bytes, UnitLog], mark: m.Begun) -> None:
    unit = units.get(mark.unit_id)
    if unit is not None:
        if (unit.producer_id, unit.producer_epoch) != (mark.producer_id, mark.producer_epoch):
            _void(units, unit)
        unit.transactional_id = mark.transactional_id
        unit.producer_id, unit.producer_epoch = mark.producer_id, mark.producer_epoch
        unit.prepare_acknowledged_ms = -1
        unit.offsets = {}


def _void(units: dict[bytes, UnitLog], left: UnitLog) -> None:
    """One that was staged goes on without its transaction: for those that share it the mark is void as well."""
    if left.prepare_acknowledged_ms < 0:
        return
    transaction = left.transactional_id, left.producer_id, left.producer_epoch
    for unit in units.values():
        if (unit.transactional_id, unit.producer_id, unit.producer_epoch) == transaction and not unit.outcome:
            unit.prepare_acknowledged_ms = -1
            unit.offsets = {}

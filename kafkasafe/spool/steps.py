"""Finds out, from the marks in the log, when each batch reached the steps of Kafka's ticket KAFKA-156 (see
`ExchangeStep`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafkasafe import marks as m
from kafkasafe.spool.examine import ExchangeStep


@dataclass(slots=True)
class BatchTimes:
    """Times at which the steps of a plain batch were noted in the spool (ms since the epoch). -1 if a step was not
    noted, or if its time is no longer known.

    Attributes:
        prepared_ms: When the batch was written to the spool.
        prepare_acknowledged_ms: When the batch's id was written to the spool. From then on, the batch may be sent.
        commit_acknowledged_ms: When the batch's offset was written to the spool, after the broker completed step 3.
    """

    prepared_ms: int = -1
    prepare_acknowledged_ms: int = -1
    commit_acknowledged_ms: int = -1

    def identify(self, written_ms: int) -> None:
        """Note when the batch's id was written. From then on, the batch may be sent."""
        self.prepare_acknowledged_ms = written_ms

    def commit(self, written_ms: int) -> None:
        """Note when the batch's offset was written."""
        self.commit_acknowledged_ms = written_ms


@dataclass(slots=True)
class UnitLog:
    """An atomic batch, as the marks describe it.

    Attributes:
        unit_id: Id of the atomic batch, 16 bytes.
        transactional_id: Transactional id of the latest transaction; before the first transaction, the id that the user
            gave.
        producer_id: Producer id of the latest transaction; -1 before the first transaction.
        producer_epoch: Producer epoch of the latest transaction; -1 before the first transaction.
        positions: Positions of the batches in the atomic batch; for a divided batch, the positions of its parts.
        groups: Consumer groups whose offsets are part of the atomic batch.
        outcome: How the atomic batch ended; None until this is decided.
        reason: Why the atomic batch was dropped; empty for other outcomes.
        prepared_ms: When the whole batch was written to the spool.
        prepare_acknowledged_ms: When it was noted in the spool that the brokers have the whole atomic batch. Only
            afterwards does the producer commit the atomic batch.
        ended_ms: When `outcome` was written to the spool.
        offsets: Maps the position of each batch to its base offset.
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
        """The id in the form that commands accept."""
        return self.unit_id.hex()

    @property
    def is_dropped(self) -> bool:
        return self.outcome is m.UnitOutcome.DROPPED

    @property
    def step(self) -> ExchangeStep | None:
        """The last known step; None if the atomic batch was dropped."""
        if self.is_dropped:
            return None
        if self.outcome is m.UnitOutcome.COMMITTED:
            return ExchangeStep.COMMIT_ACKNOWLEDGED
        return (
            ExchangeStep.PREPARED if self.prepare_acknowledged_ms < 0 else ExchangeStep.PREPARE_ACKNOWLEDGED
        )

    @property
    def transaction(self) -> tuple[str, int, int]:
        """Transactional id, producer id and epoch of the transaction, which may contain other atomic batches, too."""
        return self.transactional_id, self.producer_id, self.producer_epoch

    @property
    def is_staged(self) -> bool:
        """Whether the brokers have the whole atomic batch, in its latest transaction."""
        return self.prepare_acknowledged_ms >= 0

    def begin(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        """Note the transaction in which the atomic batch is sent."""
        self.transactional_id = transactional_id
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.void()

    def stage(self, offsets: dict[int, int], written_ms: int) -> None:
        """Note that the brokers have the whole atomic batch, at these base offsets."""
        self.prepare_acknowledged_ms, self.offsets = written_ms, offsets

    def void(self) -> None:
        """Note that the batch is not staged any more, because its transaction cannot be committed."""
        self.prepare_acknowledged_ms, self.offsets = -1, {}

    def end(self, outcome: m.UnitOutcome, reason: str, written_ms: int) -> None:
        """Note the outcome, and when it was written."""
        self.outcome, self.reason, self.ended_ms = outcome, reason, written_ms

    def add(self, position: int) -> None:
        self.positions.append(position)

    def divide(self, position: int, parts: Sequence[int]) -> None:
        """Replace a divided batch with its parts."""
        at = self.positions.index(position)
        self.positions[at : at + 1] = parts


def steps_of(
    groups: Iterable[tuple[int, Sequence[m.Mark], Sequence[tuple[int, bool]]]],
) -> tuple[dict[int, BatchTimes], list[UnitLog]]:
    """Returns the times of the steps of plain batches, by position, and all atomic batches, in the order of the log.

    Args:
        groups: A tuple (time, marks, batches) for each spool group. `time` is when the spool group was written (ms
            since the epoch). `batches` has a pair for each batch of the group: (position, whether the batch has an id).
    """
    steps = _Steps()
    for written_ms, marks, batches in groups:
        steps.read(written_ms, marks, batches)
    return steps.times, list(steps.units.values())


class _Steps:
    """The steps of all batches of a log.

    Attributes:
        times: Times of plain batches, by position.
        units: Atomic batches by id, in the order of the log.
    """

    def __init__(self) -> None:
        self.times: dict[int, BatchTimes] = {}
        self.units: dict[bytes, UnitLog] = {}
        self._unit_of: dict[int, UnitLog] = {}

    def read(self, written_ms: int, marks: Sequence[m.Mark], batches: Sequence[tuple[int, bool]]) -> None:
        """Read one group; see `steps_of`."""
        members: dict[int, tuple[UnitLog, int]] = {}
        moved: dict[int, int] = {}
        for mark in marks:
            match mark:
                case m.Unit(_, first, count):
                    of_unit = dict.fromkeys(range(first, first + count), (self._unit(mark, written_ms), -1))
                    # If the spool group has parts of a divided batch, an earlier REPLACED mark names them.
                    members = of_unit | members
                case m.Replaced(position, first, count) if position in self._unit_of:
                    unit = self._unit_of.pop(position)
                    members.update(dict.fromkeys(range(first, first + count), (unit, position)))
                case m.Moved(moves):
                    moved = {index: move.position for index, move in enumerate(moves)}
                case m.Begun():
                    self._began(mark)
                case m.Staged(begun, places):
                    self._staged(begun, places, written_ms)
                case m.Ended(unit_id, outcome, reason) if unit_id in self.units:
                    self._ended(self.units[unit_id], outcome, reason, written_ms)
                case m.Identified(_, _, _, entries):
                    for entry in entries:
                        if entry.position in self.times:
                            self.times[entry.position].identify(written_ms)
                case m.Committed(_, _, entries):
                    for position, _ in entries:
                        if position in self.times:
                            self.times[position].commit(written_ms)
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
                    pass  # these marks are not steps of a batch
        self._on_batches(written_ms, batches, members, moved)

    def _unit(self, mark: m.Unit, written_ms: int) -> UnitLog:
        unit = self.units.get(mark.unit_id)
        if unit is None:
            names = tuple(each.group for each in mark.offsets)
            unit = UnitLog(mark.unit_id, mark.transactional_id, names, prepared_ms=written_ms)
            self.units[mark.unit_id] = unit
        return unit

    def _staged(self, begun: m.Begun, places: Sequence[m.Placed], written_ms: int) -> None:
        self._began(begun)
        if begun.unit_id in self.units:
            offsets = {each.position: each.base_offset for each in places}
            self.units[begun.unit_id].stage(offsets, written_ms)

    def _ended(self, unit: UnitLog, outcome: m.UnitOutcome, reason: str, written_ms: int) -> None:
        if outcome is m.UnitOutcome.DROPPED:
            self._void(unit)
        unit.end(outcome, reason, written_ms)

    def _began(self, mark: m.Begun) -> None:
        unit = self.units.get(mark.unit_id)
        if unit is None:
            return
        if (unit.producer_id, unit.producer_epoch) != (mark.producer_id, mark.producer_epoch):
            self._void(unit)
        unit.begin(mark.transactional_id, mark.producer_id, mark.producer_epoch)

    def _void(self, left: UnitLog) -> None:
        """Note that an atomic batch leaves its transaction. If the batch was staged, its transaction can no longer be
        committed. So the other atomic batches in this transaction do not count as staged any more, either.
        """
        if not left.is_staged:
            return
        transaction = left.transaction
        for unit in self.units.values():
            if unit.transaction == transaction and not unit.outcome:
                unit.void()

    def _on_batches(
        self,
        written_ms: int,
        batches: Sequence[tuple[int, bool]],
        members: dict[int, tuple[UnitLog, int]],
        moved: dict[int, int],
    ) -> None:
        """Add the batches of a group.

        Args:
            written_ms: When the group was written.
            batches: (position, whether the batch has an id) for each batch.
            members: Index of a batch → (its atomic batch, the position of the divided batch of which it is a part, or
                -1).
            moved: Index of each copied batch → position of the original.
        """
        replaced: dict[int, list[int]] = {}
        for index, (position, identified) in enumerate(batches):
            if index in moved:
                # The batch is an unchanged copy of an earlier batch. The earlier batch's segment may have been deleted.
                self.times[position] = self.times.pop(moved[index], BatchTimes())
                continue
            if index not in members:
                self.times[position] = BatchTimes(written_ms, written_ms if identified else -1)
                continue
            unit, parent = members[index]
            self._unit_of[position] = unit
            if parent < 0:
                unit.add(position)
            else:
                replaced.setdefault(parent, []).append(position)
        for parent, positions in replaced.items():
            self._unit_of[positions[0]].divide(parent, positions)


def undecidable_in(
    groups: Iterable[tuple[int, Sequence[m.Mark], Sequence[tuple[int, bool]]]],
) -> dict[int, int]:
    """Finds the batches that wait for an operator's decision. Returns a dict from the position of each of these batches
    to the position of the spool group that contains the batch's mark `Undecidable`.

    Args:
        groups: A tuple (position, marks, batches) for each spool group. `batches` has a pair for each batch of the
            group: (position, whether the batch has an id).
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
                    pass  # these marks say nothing about an operator's decision
        for index, (position, _) in enumerate(batches):
            if moved.get(index, -1) in found:
                found[position] = found.pop(moved[index])
    return found

"""The journal's decisions as data: the spool groups to write, what follows once they are durable, all other actions,
and the outbox that holds the decisions.

`Ready` has the actions that are due; `notices` defines the notices for users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kafkasafe import marks as m
from kafkasafe import units as u
from kafkasafe.history.identity import BatchId
from kafkasafe.history.loss import AckedBatch, Released
from kafkasafe.journal.acked import EpochCheck
from kafkasafe.journal.batch import Batch, BatchState, Fate
from kafkasafe.journal.destinations import Destination, Partition
from kafkasafe.journal.flow import FlowEvent
from kafkasafe.journal.notices import Notice


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """The mark (log entry) with a batch's final state is durable.

    Attributes:
        batch: The batch.
        fate: How it ended.
        kept: The batch stays in the spool, because its parts, or the batch into which it was merged, take its place in
            the order.
    """

    batch: Batch
    fate: Fate
    kept: bool = False


@dataclass(frozen=True, slots=True)
class BaselineDurable:
    """The baseline of a partition (the end offset before this lane's first batch) is durable.

    Attributes:
        destination: Destination number.
    """

    destination: int


@dataclass(frozen=True, slots=True)
class BatchesIdentified:
    """Batches that were already durable now have durable ids.

    Attributes:
        destination: Destination number.
        batches: Each batch with its new id.
    """

    destination: int
    batches: tuple[tuple[Batch, BatchId], ...]


@dataclass(frozen=True, slots=True)
class UnitStaged:
    """A durable mark says that all units (atomic batches) of a transaction are appended."""

    transaction: u.Transaction


@dataclass(frozen=True, slots=True)
class UnitEnded:
    """The mark with the outcome of a unit (atomic batch) is durable."""

    unit: u.Unit
    fate: Fate


@dataclass(frozen=True, slots=True)
class SilenceBroken:
    """The mark that revokes QUIET is durable, so the lane's log no longer says that this lane's owner has stopped
    sending.
    """


Consequence = BatchEnded | BaselineDurable | BatchesIdentified | SilenceBroken | UnitStaged | UnitEnded


def unit_marks(unit: u.Unit, first: int, batches: int) -> list[m.Mark]:
    """The marks by which a spool group declares that some of its batches belong to a unit (atomic batch).

    Args:
        unit: The unit.
        first: Index of the unit's first batch in the manifest of the spool group.
        batches: How many of the unit's batches are in the spool group.
    """
    marks: list[m.Mark] = [m.Unit(unit.unit_id, first, batches, unit.transactional_id, unit.offsets)]
    if unit.recorded:
        marks.append(m.Read(unit.unit_id, unit.recorded))
    return marks


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """An atomic spool group: a unit (atomic batch) with all its batches. A unit may have no batch."""

    unit: u.Unit
    batches: tuple[Batch, ...]
    handle: int
    """Increases in the order of acceptance: batches with a lower handle were accepted before the unit."""

    @property
    def marks(self) -> list[m.Mark]:
        """The marks that make the batches a unit."""
        return unit_marks(self.unit, 0, len(self.batches))


@dataclass(slots=True)
class Persist:
    """The batches, marks and new units (atomic batches) to write and make durable next. Each new unit is written as a
    separate spool group.

    Attributes:
        batches: The batches to write, in this order.
        marks: The marks to write before the batches.
        atomic: Marks and batches are one spool group, which recovery reads as a whole or not at all.
        after: What `persisted()` notes in the journal once the spool groups are durable.
        units: New units, each in a separate spool group.
    """

    batches: list[Batch] = field(default_factory=list)
    marks: list[m.Mark] = field(default_factory=list)
    atomic: bool = False
    after: list[Consequence] = field(default_factory=list)
    units: list[UnitGroup] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.batches or self.marks or self.after or self.units)

    @property
    def runs(self) -> list[tuple[UnitGroup | None, list[Batch]]]:
        """Batches and units (atomic batches) in the order in which the journal accepted them, which is also the order
        on disk.
        """
        if not self.units:
            return [(None, self.batches)] if self.batches else []
        runs: list[tuple[UnitGroup | None, list[Batch]]] = []
        batches, at = self.batches, 0
        for group in self.units:
            # In an atomic spool group, all batches come first: the parts of a divided batch precede all later batches
            # and units.
            begin = at
            while at < len(batches) and (self.atomic or batches[at].handle < group.handle):
                at += 1
            if at > begin:
                runs.append((None, batches[begin:at]))
            runs.append((group, list(group.batches)))
        if at < len(batches):
            runs.append((None, batches[at:]))
        return runs

    def keep_whole(self) -> None:
        """Make the group atomic."""
        self.atomic = True

    def leave_to(self, rest: Persist) -> None:
        """Keep only the batches that replace other batches (by a division or a merge). Move the other batches, and the
        new units (atomic batches), to `rest`, the next spool group.

        If the disk fails for some batches, the engine may write a later spool group of decisions before it writes these
        batches. Any other batch in that group would overtake them.
        """
        parts: list[Batch] = []
        places: dict[int, int] = {}
        for index, mark in enumerate(self.marks):
            if isinstance(mark, m.Replaced):
                # Several marks name the same merged batch.
                place = places.setdefault(mark.first_child, len(parts))
                if place == len(parts):
                    parts += self.batches[mark.first_child : mark.first_child + mark.children]
                self.marks[index] = m.Replaced(mark.position, place, mark.children)
            elif isinstance(mark, m.Unit):
                # The UNIT mark follows the REPLACED mark of the same batches.
                self.marks[index] = replace(mark, first=len(parts) - mark.batches)
        apart = {batch.handle for batch in parts}
        rest.batches.extend(batch for batch in self.batches if batch.handle not in apart)
        rest.units.extend(self.units)
        self.units = []
        self.batches[:] = parts

    def keep_rest(self, rest: Sequence[Persist]) -> None:
        """Replace the contents of the spool group by the groups in `rest`, because everything else is durable."""
        self.marks = [mark for part in rest for mark in part.marks]
        self.after = [each for part in rest for each in part.after]
        self.batches = [batch for part in rest for batch in part.batches]
        self.units = [unit for part in rest for unit in part.units]

    def keep_batches(self, first: int) -> None:
        """Drop what is done: the marks and the batches before index `first` are durable, and `after` is applied."""
        del self.batches[:first]
        self.marks, self.after = [], []

    def leave_out_void(self) -> None:
        """Drop units (atomic batches) that have ended, and batches that are delivered: the engine no longer has to
        write them.
        """
        if not self.atomic and any(batch.state is BatchState.COMMITTED for batch in self.batches):
            self.batches = [batch for batch in self.batches if batch.state is not BatchState.COMMITTED]
        if any(group.unit.void for group in self.units):
            self.units = [group for group in self.units if not group.unit.void]

    @property
    def everything(self) -> list[Batch]:
        """All batches, in the order in which they are written."""
        return [batch for _, run in self.runs for batch in run]


@dataclass(frozen=True, slots=True)
class OutcomeAsk:
    """A question to the cluster about one destination.

    Attributes:
        destination: Destination number.
        doubt: The batches in doubt, in queue order, all with the same producer id and epoch. If this is empty, the
            journal needs only the end offset, and the engine answers with `baseline()`.
        from_offset: The lowest offset at which our batches can begin in the log; -1 when unknown.
        acked_before: An earlier batch of the same producer id and epoch was acknowledged on the partition.
        read_log: The answer must come from the log, because the producer state is not reliable (for example, it may
            expire at any moment).
        fenced: A newer epoch of our producer id exists, so another process may own a copy of this spool. The user must
            decide about each batch in doubt that the log does not have.
        confirm: The broker refused the batch, and the journal wants to be sure that the log lacks it. One look at the
            producer state is enough: the log is not read. The engine answers with `confirmed()`.
        cut: The log may have been truncated below an acknowledged batch.
    """

    destination: int
    doubt: tuple[BatchId, ...]
    from_offset: int
    acked_before: bool
    read_log: bool
    fenced: bool
    cut: bool = False
    confirm: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause of one destination, after which the caller calls `retry()`.

    Attributes:
        destination: Destination number.
        attempt: How many failures there were in a row, at least 1.
        refresh_metadata: Request new metadata, because the leader may have moved.
        at_least_s: Shortest pause in seconds.
        reason: Human-readable text.
        refused: The cluster refuses the destination until an operator removes the cause, so pauses may grow long.
    """

    destination: int
    attempt: int
    refresh_metadata: bool
    at_least_s: float
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Divide:
    """The batch must be divided, because its topic's partitions are known now, or because the broker refused it.

    Attributes:
        batch: The batch.
        refused: False: divide the batch by partition. True: the broker refused the batch, so separate the `bad_records`
            that the broker named, or divide the batch into halves if the broker named none.
    """

    batch: Batch
    refused: bool

    @property
    def is_due(self) -> bool:
        """Whether the engine must still divide the batch. It must not if the journal has meanwhile sent the batch
        again, or rejected it as a whole. While the disk writes the batch, the division is not due; the journal requests
        the division again when the batch is durable. A batch of a unit (an atomic batch) must not be divided while the
        unit is in a transaction. If the broker then refuses the batch again, the journal requests the division again.
        """
        unit = self.batch.unit
        if unit is not None and unit.transaction is not None:
            return False
        return not self.batch.writing and self.batch.state in {
            BatchState.REFUSED if self.refused else BatchState.SEALED,
            BatchState.JOINED,
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """A batch with a final, durable outcome.

    Attributes:
        batch: The batch; its `base_offset` is -1 if unknown.
        fate: How it ended.
    """

    batch: Batch
    fate: Fate


@dataclass(frozen=True, slots=True)
class SurveyAsk:
    """The log may have lost acknowledged batches, so survey it. Answered by `surveyed()` or `survey_failed()`.

    Attributes:
        destination: Destination number.
        acked: The acknowledged batches that the journal remembers, oldest first.
        leader_epoch: Leader epoch of the last acknowledgement, -1 when unknown.
        from_offset: At or after this offset, the log may have changed, and may have batches that were appended a second
            time; -1 when unknown.
        baseline_offset: The log has no batch of this lane before this offset; -1 when unknown.
        ours: Producer ids that only batches of this lane have.
        released: Offsets of batches that the spool has deleted and that are not in `acked`.
    """

    destination: int
    acked: tuple[AckedBatch, ...]
    leader_epoch: int
    from_offset: int = -1
    baseline_offset: int = -1
    ours: frozenset[int] = frozenset()
    released: Released = field(default_factory=Released, compare=False)


@dataclass(frozen=True, slots=True)
class Aside:
    """Rejected batches that must be durable in `rejected/` before they are finished. Answered by `set_aside()`.

    Attributes:
        destination: Destination number.
        batches: The batches to copy, in queue order, all of them in the spool. One fsync can make all copies durable.
    """

    destination: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """The packed batches of a partition.

    Attributes:
        destination: Destination number.
        first_number: The engine's number of the first batch.
        batches: How many batches.
        records: How many records are in them.
        with_id: How many batches have an id.
    """

    destination: int
    first_number: int
    batches: int
    records: int
    with_id: int


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The journal has turned a compact row into a batch again, because the batch is due soon, or because an event
    concerns it.

    Attributes:
        batch: The batch.
        number: The number that the engine passed to `pack`.
        sealed_at: The time that the engine passed to `pack`.
        next_number: Number of the destination's next batch that is packed into a compact row, -1 for none.
    """

    batch: Batch
    number: int
    sealed_at: float
    next_number: int


@dataclass(slots=True)
class Ready:
    """The actions that are due now; see the contract in the package's docstring."""

    persist: Persist = field(default_factory=Persist)
    sends: list[Batch] = field(default_factory=list)
    asks: list[OutcomeAsk] = field(default_factory=list)
    surveys: list[SurveyAsk] = field(default_factory=list)
    checks: list[EpochCheck] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    divides: list[Divide] = field(default_factory=list)
    asides: list[Aside] = field(default_factory=list)
    resolved: list[Resolution] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    units: list[u.Action] = field(default_factory=list)
    ended: list[tuple[u.Unit, Fate]] = field(default_factory=list)
    wants_producer_id: bool = False
    """Batches wait until the cluster grants this run of the producer a producer id."""
    unpacked: list[Unpacked] = field(default_factory=list)
    gathers: dict[int, Sequence[Batch]] = field(default_factory=dict)
    """By destination: consecutive small batches that wait and may be merged (see `Journal.gathered`)."""

    def want_producer_id(self, *, wanted: bool) -> None:
        """Set `wants_producer_id`."""
        self.wants_producer_id = wanted

    def __bool__(self) -> bool:
        return bool(
            self.persist
            or self.sends
            or self.resolved
            or self.asks
            or self.surveys
            or self.checks
            or self.waits
            or self.divides
            or self.asides
            or self.notices
            or self.units
            or self.ended
            or self.unpacked
            or self.gathers
            or self.wants_producer_id
        )


class Outbox:
    """Actions as data, in the order in which the journal decided them.

    Attributes:
        ready: The actions decided since the last `take`.
        touched: Destination numbers of the changed partitions, in the order in which the next `ready` evaluates these
            partitions.
        postponed: Destination numbers of partitions whose survey waits until the transactions that contain the
            partition have ended. The next `ready` evaluates the partitions again.
        committing: The partitions, by number, with acknowledged batches that no mark names yet.
    """

    __slots__ = ("committing", "postponed", "ready", "touched")

    def __init__(self) -> None:
        self.ready = Ready()
        self.touched: dict[int, None] = {}
        self.postponed: dict[int, None] = {}
        self.committing: dict[int, Destination] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no action is due, and no partition has to be evaluated."""
        return not (self.touched or self.postponed or self.committing or self.ready)

    @property
    def is_writing(self) -> bool:
        """Whether marks (log entries) or batches are about to be written. The journal must then not copy a batch to
        another position, because the marks may name its present position.
        """
        return bool(self.ready.persist or self.committing)

    def postpone(self, partition: Partition) -> None:
        """Let the next `ready` evaluate the partition again."""
        self.postponed[partition.number] = None

    def touch_postponed(self) -> None:
        """During this call of `ready`, also evaluate the partitions that an earlier call postponed."""
        self.touched.update(self.postponed)
        self.postponed.clear()

    def take(self, *, wants_producer_id: bool) -> Ready:
        """Take the actions decided since the last call. If batches replace other batches (by a division or a merge),
        the result contains only the replacements, and the next call returns the remaining batches and the new units
        (atomic batches).
        """
        ready, self.ready = self.ready, Ready()
        ready.want_producer_id(wanted=wants_producer_id)
        if ready.persist.atomic:
            ready.persist.leave_to(self.ready.persist)
        for number, partition in self.committing.items():
            ready.persist.marks.append(
                m.Committed(number, partition.log.leader_epoch, partition.log.take_commits())
            )
        self.committing.clear()
        return ready

    def send(self, partition: Partition, batch: Batch) -> None:
        """Send this batch."""
        self.ready.gathers.pop(partition.number, None)
        batch.send()
        self.ready.sends.append(batch)

    def pause(
        self, partition: Destination, event: FlowEvent, reason: str, *, at_least_s: float = 0.0
    ) -> None:
        """Let the partition wait until `retry` is called.

        Args:
            partition: The partition.
            event: The event that begins the pause.
            reason: Human-readable.
            at_least_s: The shortest pause, in seconds.
        """
        refresh = partition.progress.wait(event)
        denial = partition.refusal.denial
        refused = denial is not None and denial.counted_from >= 0
        attempt = denial.answers if denial is not None and refused else partition.progress.attempt
        self.ready.waits.append(Wait(partition.number, attempt, refresh, at_least_s, reason, refused))

    def wait_for_late(self, partition: Partition, now: float, reason: str) -> None:
        """Let the partition wait until no broker can append a request whose answer was lost."""
        pause_s = max(0.0, partition.doubt.dead_at - now)
        self.pause(partition, FlowEvent.LATE_REQUEST, reason, at_least_s=pause_s)

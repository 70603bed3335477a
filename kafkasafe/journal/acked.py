"""The acknowledged batches of a partition, and what the journal knows about losses: a suspicion, checks, known gaps.

After a restart, recovery rebuilds these data from the spool. `losses` decides what raises a suspicion, and how a
suspicion ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kafkasafe import marks as m
from kafkasafe.history.identity import BatchId, add_sequence, sequence_distance
from kafkasafe.history.loss import Cause, Released
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.notices import Hole

ANYWHERE: Final = 2**63 - 1
"""An offset that is higher than all offsets of records."""
_REMEMBERED: Final = 64
"""The journal keeps at least this many acknowledged batches of a partition in memory."""


@dataclass(slots=True)
class AckedLog:
    """The acknowledged batches of one partition, with their offsets in the partition's log.

    Attributes:
        baseline_offset: The partition's log contains no batch of this lane before this offset; -1 if unknown.
        last_acked_offset: Offset of the last acknowledged record (inclusive), -1 before the first acknowledgement.
        clear_offset: Up to this offset (inclusive), each batch of this lane in the log is finished, and its outcome is
            durable. `clear_offset` can be lower than `last_acked_offset`, because the broker may acknowledge a batch
            while an earlier batch is in doubt.
        leader_epoch: Leader epoch of the last acknowledgement, -1 when unknown.
        topic_id: Id of the topic to which the offsets belong.
        last_acked_id: Id of the newest batch that is in the log below the high watermark.
        acked: Committed batches that are still in the spool, and a few older ones, in the order of their commits.
        commits: (position, base offset) of acknowledged batches that no mark names yet.
        forgotten_offset: The journal remembers no batches before this offset except the batches in `acked`.
        released: Offsets of batches that have left the spool.
        known_from: Each acknowledged batch that the log has, but that the journal has forgotten, is before this offset.
            -1 when unknown.
        told_position: Spool position of the last batch whose id the journal wrote into separate marks. These marks stay
            in the spool when the batch is deleted. A higher spool position does not mean a later delivery: a part or a
            copy of a batch can be written after a batch that is delivered later.
        unwritten: How many baselines (values of `baseline_offset`) are being written to the disk now.
        void: How many of the `unwritten` baselines no longer count, because `forget` was called after them. These are
            the oldest ones.
    """

    baseline_offset: int = -1
    last_acked_offset: int = -1
    clear_offset: int = -1
    leader_epoch: int = -1
    topic_id: bytes = m.NO_TOPIC_ID
    last_acked_id: BatchId | None = None
    acked: deque[Batch] = field(default_factory=deque)
    commits: list[tuple[int, int]] = field(default_factory=list)
    forgotten_offset: int = -1
    released: Released = field(default_factory=Released)
    known_from: int = -1
    told_position: int = -1
    unwritten: int = 0
    void: int = 0

    @property
    def has_begun(self) -> bool:
        """Whether at least one of `baseline_offset` and `last_acked_offset` is known."""
        return self.baseline_offset >= 0 or self.last_acked_offset >= 0

    @property
    def knows_nothing(self) -> bool:
        """Whether nothing is known of the log and its topic, as after `forget`."""
        return not (self.has_begun or any(self.topic_id) or self.acked)

    @property
    def reach(self) -> int:
        """The lowest offset at which an unfinished batch can begin; -1 when unknown."""
        return self.clear_offset + 1 if self.clear_offset >= 0 else self.baseline_offset

    def forget(self) -> None:
        """Drop everything, because the lane now writes to the log of another cluster or another topic."""
        self.baseline_offset = self.last_acked_offset = self.clear_offset = -1
        self.leader_epoch = -1
        self.topic_id = m.NO_TOPIC_ID
        self.last_acked_id = None
        self.acked.clear()
        self.forgotten_offset = self.known_from = self.told_position = -1
        self.released.forget()
        self.void = self.unwritten

    # -- what the cluster says -----------------------------------------------------------------------------------------

    def begin(self, end_offset: int) -> None:
        """Note the baseline: where the log ended before this lane sent its first batch. Batches of units (atomic
        batches) do not count.
        """
        self.baseline_offset = min([end_offset, *(batch.place for batch in self.acked)])
        self.unwritten += 1

    def begun(self) -> bool:
        """Note that the oldest unwritten baseline (see `begin`) is now durable. Returns False if this baseline belongs
        to a former log, because `forget` was called meanwhile.
        """
        self.unwritten -= 1
        if not self.void:
            return True
        self.void -= 1
        return False

    def begin_before(self, first_offset: int) -> None:
        """Move the baseline (see `begin`) down to the offset of a unit's batch, if no batch is acknowledged yet. The
        journal sends units (atomic batches) without waiting for the baseline, so the log may have their batches before
        the baseline.
        """
        if self.last_acked_offset < 0 <= first_offset < self.baseline_offset:
            self.baseline_offset = first_offset

    def name_topic(self, topic_id: bytes) -> None:
        """Note the topic to which the offsets belong."""
        self.topic_id = topic_id

    def lead(self, leader_epoch: int) -> None:
        """Note the leader epoch of the newest acknowledgement."""
        self.leader_epoch = leader_epoch

    def acknowledge(self, base_offset: int, count: int) -> None:
        """Note that the cluster acknowledged a batch at this base offset (-1: unknown)."""
        if base_offset > self.last_acked_offset:
            self.know_from(base_offset)
        if base_offset >= 0:
            self.last_acked_offset = base_offset + count - 1

    def find(self, base_offset: int, count: int) -> None:
        """Note that the log has a batch at this base offset, perhaps below batches that are already acknowledged."""
        self.last_acked_offset = max(self.last_acked_offset, base_offset + count - 1)

    def know_from(self, base_offset: int) -> None:
        """Set `known_from` to this offset, if `known_from` is unknown. The cluster acknowledged all forgotten batches
        before the batch at this offset.
        """
        if self.known_from < 0:
            self.known_from = base_offset

    def pass_id(self, identity: BatchId | None) -> None:
        """Note that the log has the batch with this id below the high watermark."""
        last = self.last_acked_id
        if identity is not None and not (last is not None and last.follows(identity)):
            self.last_acked_id = identity

    # -- durable -------------------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Add the acknowledged batch to the next COMMITTED mark."""
        self.commits.append((batch.position, batch.base_offset))

    def take_commits(self) -> tuple[tuple[int, int], ...]:
        """Return the entries for the COMMITTED mark, and remove them from `commits`."""
        commits = tuple(self.commits)
        self.commits.clear()
        return commits

    def clear(self, base_offset: int, count: int) -> None:
        """Note that the first unfinished batch is now finished, and is in the log at this offset (-1: unknown)."""
        if base_offset >= 0:
            self.clear_offset = base_offset + count - 1

    def remember(self, batch: Batch, released_before: int) -> None:
        """Remember a committed batch with an id, so that a survey can search for it if the log may have lost it."""
        if batch.identity is None:
            return
        # If the offset is unknown, use the lowest possible offset.
        batch.place_at(batch.base_offset if batch.base_offset >= 0 else self.next_place)
        self.acked.append(batch)
        self.trim(released_before)

    @property
    def next_place(self) -> int:
        """The lowest possible offset of a committed batch whose offset is unknown: right after the previous batch."""
        if not self.acked:
            return max(self.baseline_offset, 0)
        return self.acked[-1].place + self.acked[-1].count

    def trim(self, released_before: int) -> None:
        """Drop batches that have left the spool. Keep the last `_REMEMBERED` batches, because they show where a loss
        begins.
        """
        while len(self.acked) > _REMEMBERED and self.acked[0].position < released_before:
            batch = self.acked.popleft()
            self.forgotten_offset = max(self.forgotten_offset, batch.place + batch.count)
            self.known_from = max(self.known_from, batch.place + batch.count)

    def tell(self, position: int) -> None:
        """Set `told_position`: the position of the batch whose id and offset separate marks repeat (see `snapshots`).
        -1: these marks may not be on disk.
        """
        self.told_position = position

    # -- what a survey finds -------------------------------------------------------------------------------------------

    def leave_out(self, handles: Container[int]) -> None:
        """Drop lost batches that cannot be sent again."""
        self.acked = deque(batch for batch in self.acked if batch.handle not in handles)

    def take_out(self, positions: Sequence[int], given_up: Sequence[int]) -> list[Batch]:
        """Drop the lost batches at `positions` and `given_up`. Returns the batches at `positions`, in order."""
        lost = {batch.position: batch for batch in self.acked if batch.position >= 0}
        gone = {*positions, *given_up}
        self.acked = deque(batch for batch in self.acked if batch.position not in gone)
        return [lost[position] for position in positions if position in lost]

    def end_at(self, end_offset: int) -> None:
        """Note where the log ends, after `take_out` has dropped the lost batches."""
        last = max((batch.place + batch.count - 1 for batch in self.acked), default=-1)
        self.last_acked_offset = self.clear_offset = min(last, end_offset - 1)
        if all(batch.identity != self.last_acked_id for batch in self.acked):
            self.last_acked_id = None
        self.baseline_offset = min(self.baseline_offset, end_offset)

    def confirm_until(self, end_offset: int) -> None:
        """Set `last_acked_offset` after a survey that found no loss. The survey may have found batches at other offsets
        than the acknowledged ones.
        """
        known = max(
            (batch.base_offset + batch.count - 1 for batch in self.acked), default=self.last_acked_offset
        )
        self.last_acked_offset = min(known, end_offset - 1)

    # -- what recovery reads in the spool ------------------------------------------------------------------------------

    def read_state(self, mark: m.State) -> None:
        """Set the state from a STATE mark."""
        self.baseline_offset = mark.baseline_offset
        self.clear_offset = mark.last_acked_offset
        # The STATE mark does not count batches that the broker acknowledged while an earlier batch was unfinished.
        self.last_acked_offset = max(self.last_acked_offset, mark.last_acked_offset)
        self.leader_epoch = mark.leader_epoch
        self.topic_id = mark.topic_id
        if not self.acked:
            self.forgotten_offset = mark.last_acked_offset + 1

    def read_released(self, base_offset: int, *, clear: bool) -> None:
        """Note the offset of a batch that the spool has deleted; a mark (log entry) gives this offset. The batch's
        record count is unknown.

        Args:
            base_offset: Base offset of the batch.
            clear: No unfinished batch was accepted before this batch.
        """
        self.begin_before(base_offset)
        self.last_acked_offset = base_offset
        if clear:
            self.clear_offset = base_offset
        self.known_from = -1
        self.released.note(base_offset, self.forgotten_offset)
        if not self.acked:
            self.forgotten_offset = ANYWHERE

    def read_ended(self, base_offset: int, count: int, *, clear: bool) -> None:
        """Note a batch's base offset from the mark that ended the batch's unit (atomic batch). See `read_released` for
        `clear`.
        """
        self.know_from(base_offset)
        self.last_acked_offset = base_offset + count - 1
        if clear:
            self.clear_offset = self.last_acked_offset

    def recall(self, batch: Batch) -> None:
        """Remember only this batch. Recovery read the batch's id from marks, but knows no ids of earlier batches."""
        self.acked = deque((batch,))
        self.forgotten_offset = batch.base_offset

    def cut(self, last_offset: int) -> None:
        """Drop the batches that are lost for good: those after `last_offset` in the log that the spool has deleted."""
        self.released.cut(last_offset + 1)
        self.acked = deque(
            batch
            for batch in self.acked
            if batch.position >= 0 or batch.place + batch.count - 1 <= last_offset
        )


@dataclass(frozen=True, slots=True)
class EpochCheck:
    """A question after a change of leader: in the new leader's log, does the former leader's epoch end after
    `last_acked_offset`?

    If not, the engine calls `suspect()`. If the new leader does not know the former leader's epoch, the engine also
    calls `suspect()`, unless retention explains this: the new leader's log starts after `last_acked_offset`.

    Attributes:
        destination: Destination number.
        leader_epoch: Epoch of the former leader.
        last_acked_offset: The last offset that the former leader acknowledged (inclusive).
    """

    destination: int
    leader_epoch: int
    last_acked_offset: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why the log may have lost acknowledged batches.

    Attributes:
        cause: The sign that raised the suspicion.
        evidence: Human-readable.
        last_acked_offset: The last offset that was acknowledged before the suspicion (inclusive).
        from_offset: The log may have lost the records from this offset on, or even earlier records; -1 when unknown.
        leader_epoch: Leader epoch of the last acknowledgement before the suspicion, -1 when unknown.
        overlaps: A batch was acknowledged, or found in the log, at or before the last acknowledged offset.
    """

    cause: Cause
    evidence: str
    last_acked_offset: int
    from_offset: int
    leader_epoch: int
    overlaps: bool = False


@dataclass(slots=True)
class LossCase:
    """The suspicions about one partition.

    Attributes:
        suspicion: The first suspicion. Later suspicions are merged into it (see `add`). None: nothing suggests that the
            log has lost batches.
        asked: The check in progress. The journal makes one check for each change of leader, one at a time.
        due: The checks to make after `asked`, in order, unless a survey makes them unnecessary. No mark records that a
            check has passed, so recovery repeats the checks for all changes of leader in the lane's log.
        explained: A gap in the log's sequences is expected, because batches were damaged, rejected, skipped or lost, so
            the journal reports no further gap.
        hole: A notice for the user about a gap. The journal gives the notice if a survey finds no loss of acknowledged
            batches.
        gaps: The sequence gaps that the journal expects, each before a waiting batch of an earlier incarnation. The
            dict maps the id of the first batch after a gap (producer id, epoch, base sequence) to the first missing
            sequence. Each new segment repeats the gaps, because the spool may delete the marks that explain a gap
            before the batch after the gap is delivered.
    """

    suspicion: Suspicion | None = None
    asked: EpochCheck | None = None
    due: list[EpochCheck] = field(default_factory=list)
    explained: bool = False
    hole: Hole | None = None
    gaps: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether a suspicion or a check is open. If so, the journal may have to send acknowledged batches again."""
        return self.suspicion is not None or self.asked is not None or bool(self.due)

    def open(self, suspicion: Suspicion) -> None:
        """Set the first suspicion."""
        self.suspicion = suspicion

    def add(self, known: Suspicion, from_offset: int, *, overlaps: bool) -> None:
        """Merge a new suspicion into the open one, `known`. The suspected loss begins at the lower `from_offset`."""
        if from_offset >= 0 and not 0 <= known.from_offset <= from_offset:
            known = replace(known, from_offset=from_offset)
        self.suspicion = replace(known, overlaps=known.overlaps or overlaps)

    def find(self, base_offset: int, last_acked_offset: int) -> None:
        """Note that a batch was found at `base_offset`. If other batches were acknowledged at these offsets, the
        suspicion is marked (`overlaps`).
        """
        if self.suspicion is not None and base_offset <= last_acked_offset:
            self.suspicion = replace(self.suspicion, overlaps=True)

    def close(self) -> None:
        """Drop the suspicion and all checks, because a survey has made them unnecessary."""
        self.suspicion = None
        self.asked = None
        self.due.clear()

    def forget(self) -> None:
        """Drop everything, because the lane now writes to another log."""
        self.close()
        self.hole = None

    # -- changes of leader ---------------------------------------------------------------------------------------------

    def check(self, check: EpochCheck) -> None:
        """Add a check for a change of leader. Earlier checks may still be unanswered."""
        self.due.append(check)

    def next_check(self) -> EpochCheck:
        """Begin the next check, when a check is due and no check is in progress."""
        self.asked = self.due.pop(0)
        return self.asked

    def is_asked(self, check: EpochCheck) -> bool:
        """Whether this is the check in progress."""
        return check == self.asked

    def passed(self) -> None:
        """Note that the check in progress found no loss."""
        self.asked = None

    # -- known gaps ----------------------------------------------------------------------------------------------------

    def explain(self) -> None:
        """Note that a gap is expected."""
        self.explained = True

    def expect(self, waiting: Iterable[BatchId], last_acked: BatchId | None) -> None:
        """After recovery, determine which gaps are still expected.

        Args:
            waiting: The ids of the waiting batches, in queue order.
            last_acked: Id of the newest batch that is in the log; None if it is unknown.
        """
        known, self.gaps = self.gaps, {}
        if not (self.explained or known):
            return
        before = last_acked
        for identity in waiting:
            begin = known.get(identity.fields)
            if begin is None and self.explained:
                begin = _first_missing(before, identity)
            if begin is not None and begin != identity.base_sequence:
                self.gaps[identity.fields] = begin
            before = identity

    def read_gaps(self, entries: Sequence[m.Identity]) -> None:
        """Take over the expected sequence gaps from a mark (log entry). For each gap, the mark has two entries: the
        first missing sequence, and the first sequence after the gap.
        """
        for begin, end in zip(entries[::2], entries[1::2], strict=False):
            self.gaps[end.producer_id, end.producer_epoch, end.base_sequence] = begin.base_sequence

    def expects(self, identity: BatchId, missing: int) -> bool:
        """Whether a gap of this many records before the batch with this id is expected."""
        begin = self.gaps.get(identity.fields)
        known = begin is not None and missing <= sequence_distance(begin, identity.base_sequence)
        return self.explained or known

    def miss(self, hole: Hole) -> None:
        """Note that the records before an unfinished batch are neither in the log nor in the spool."""
        self.explained = True
        self.hole = hole

    def take_hole(self) -> Hole | None:
        """At the end of a survey, return the notice about a gap, and set `hole` to None. The journal gives the notice
        to the user only if the survey found no loss.
        """
        hole, self.hole = self.hole, None
        return hole


def _first_missing(before: BatchId | None, identity: BatchId) -> int:
    """The first sequence that may be missing between the batch ids `before` and `identity`; 0 if the ids do not show
    which. (The sequences of each producer id and epoch begin at 0.)
    """
    if before is None or before.producer != identity.producer:
        return 0
    following = add_sequence(before.last_sequence, 1)
    return following if sequence_distance(following, identity.base_sequence) >= 0 else 0

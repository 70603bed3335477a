"""What is known to be in a log: the same for the incarnation that learns it, and for the one that reads it back.

What is done where some of it may be gone is decided in `suspicions` and `losses`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.identity import BatchId
from kafkasafe._core.journal.states import Batch, follows
from kafkasafe._core.loss import Released

__all__ = ["ANYWHERE", "AckedLog"]

ANYWHERE: Final = 2**63 - 1
"""Behind every offset."""

_REMEMBERED: Final = 64
"""Acknowledged batches of a partition that are remembered at least."""


@dataclass(slots=True)
class AckedLog:
    """What was acknowledged on one partition, and where.

    Attributes:
        baseline_offset: Before this there is nothing of ours, -1 when unknown.
        last_acked_offset: Of the last acknowledged record (inclusive), -1 when nothing was.
        clear_offset: Durable: everything of ours that may be at or before this offset is finished. A batch may be
            acknowledged while one before it is in doubt, so this can be behind `last_acked_offset`.
        leader_epoch: Of the last acknowledgement, -1 when unknown.
        topic_id: Of the topic that the offsets are of.
        last_acked_id: The newest that is in the log below the high watermark.
        acked: Committed, in the order of their commits: those that are still in the spool, and a few more.
        commits: (position, base offset) of what is acknowledged and not in a mark yet.
        forgotten_offset: What was acknowledged before this offset, and in front of `acked`, is not remembered.
        released: Offsets of batches that have left the spool.
        known_from: Where that cannot be known: before this, if it is still there; -1 when not even that is known.
        told_position: Of the last one whose id was put into marks of its own, so that it is known when the batch has
            left the spool. Later ones may have lower positions: parts of a divided batch, and copies, are written after
            what follows them.
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

    @property
    def has_begun(self) -> bool:
        """Whether the log's end before our first batch is known, or something of ours is in it."""
        return self.baseline_offset >= 0 or self.last_acked_offset >= 0

    @property
    def knows_nothing(self) -> bool:
        """Nothing is known of what is in the log, nor of the topic: as after `forget`."""
        return not (self.has_begun or any(self.topic_id) or self.acked)

    @property
    def reach(self) -> int:
        """Where in the log an unfinished batch can begin at the earliest; -1 when not even that is known."""
        return self.clear_offset + 1 if self.clear_offset >= 0 else self.baseline_offset

    def forget(self) -> None:
        """Nothing is known to be in the log: it is the log of another cluster, or of another topic, from here on."""
        self.baseline_offset = self.last_acked_offset = self.clear_offset = -1
        self.leader_epoch = -1
        self.topic_id = m.NO_TOPIC_ID
        self.last_acked_id = None
        self.acked.clear()
        self.forgotten_offset = self.known_from = self.told_position = -1
        self.released.forget()

    # -- what the cluster says -----------------------------------------------------------------------------------------

    def begin(self, end_offset: int) -> None:
        """The log ended there before anything of ours was sent, but for what units put there."""
        self.baseline_offset = min([end_offset, *(batch.place for batch in self.acked)])

    def begin_before(self, first_offset: int) -> None:
        """Units do not wait for the baseline: it may be learned when the first of them is in the log."""
        if self.last_acked_offset < 0 <= first_offset < self.baseline_offset:
            self.baseline_offset = first_offset

    def name_topic(self, topic_id: bytes) -> None:
        """The offsets are of this topic."""
        self.topic_id = topic_id

    def lead(self, leader_epoch: int) -> None:
        """The newest acknowledgement is of this leader."""
        self.leader_epoch = leader_epoch

    def acknowledge(self, base_offset: int, count: int) -> None:
        """A batch is at this offset; -1: somewhere."""
        if base_offset >= 0:
            self.last_acked_offset = base_offset + count - 1

    def find(self, base_offset: int, count: int) -> None:
        """A batch was found at this offset, perhaps in front of what was acknowledged."""
        self.last_acked_offset = max(self.last_acked_offset, base_offset + count - 1)

    def know_from(self, base_offset: int) -> None:
        """What is at this offset was acknowledged behind all that is not remembered."""
        if self.known_from < 0:
            self.known_from = base_offset

    def pass_id(self, identity: BatchId | None) -> None:
        """The batch with this id is in the log below the high watermark."""
        last = self.last_acked_id
        if identity is not None and not (last is not None and follows(last, identity)):
            self.last_acked_id = identity

    # -- what is durable -----------------------------------------------------------------------------------------------

    def commit(self, batch: Batch) -> None:
        """Its place goes into the next mark."""
        self.commits.append((batch.position, batch.base_offset))

    def take_commits(self) -> tuple[tuple[int, int], ...]:
        """What the mark says."""
        commits = tuple(self.commits)
        self.commits.clear()
        return commits

    def clear(self, base_offset: int, count: int) -> None:
        """The first unfinished batch is finished, and at this offset; -1: somewhere."""
        if base_offset >= 0:
            self.clear_offset = base_offset + count - 1

    def remember(self, batch: Batch, released_before: int) -> None:
        """A committed batch, which has its place."""
        self.acked.append(batch)
        self.trim(released_before)

    @property
    def next_place(self) -> int:
        """Where a batch is at the earliest that is only known to be there: behind the one before it."""
        if not self.acked:
            return max(self.baseline_offset, 0)
        return self.acked[-1].place + self.acked[-1].count

    def trim(self, released_before: int) -> None:
        """A few batches that have left the spool are kept: they locate the start of a loss."""
        while len(self.acked) > _REMEMBERED and self.acked[0].position < released_before:
            batch = self.acked.popleft()
            self.forgotten_offset = max(self.forgotten_offset, batch.place + batch.count)
            self.known_from = max(self.known_from, batch.place + batch.count)

    def tell(self, position: int) -> None:
        """The id of the batch at this position is in marks of its own."""
        self.told_position = position

    # -- what a survey finds -------------------------------------------------------------------------------------------

    def leave_out(self, handles: Container[int]) -> None:
        """Batches that are lost and cannot be sent again are remembered no longer."""
        self.acked = deque(batch for batch in self.acked if batch.handle not in handles)

    def take_out(self, positions: Sequence[int], given_up: Sequence[int]) -> list[Batch]:
        """Lost batches are remembered no longer. Those at `positions`, in that order."""
        lost = {batch.position: batch for batch in self.acked if batch.position >= 0}
        gone = {*positions, *given_up}
        self.acked = deque(batch for batch in self.acked if batch.position not in gone)
        return [lost[position] for position in positions if position in lost]

    def end_at(self, end_offset: int) -> None:
        """The log ends there, and what was lost is taken out."""
        last = max((batch.place + batch.count - 1 for batch in self.acked), default=-1)
        self.last_acked_offset = self.clear_offset = min(last, end_offset - 1)
        if all(batch.identity != self.last_acked_id for batch in self.acked):
            self.last_acked_id = None
        self.baseline_offset = min(self.baseline_offset, end_offset)

    def confirm_until(self, end_offset: int) -> None:
        """Nothing is lost: what was acknowledged is where the log says."""
        known = max(
            (batch.base_offset + batch.count - 1 for batch in self.acked), default=self.last_acked_offset
        )
        self.last_acked_offset = min(known, end_offset - 1)

    # -- what a log says that is read back -----------------------------------------------------------------------------

    def read_state(self, mark: m.State) -> None:
        """A mark says how far it was."""
        self.baseline_offset = mark.baseline_offset
        self.clear_offset = mark.last_acked_offset
        # What stands behind a batch that is not finished was acknowledged all the same.
        self.last_acked_offset = max(self.last_acked_offset, mark.last_acked_offset)
        self.leader_epoch = mark.leader_epoch
        self.topic_id = mark.topic_id
        if not self.acked:
            self.forgotten_offset = mark.last_acked_offset + 1

    def read_released(self, base_offset: int, *, clear: bool) -> None:
        """A mark names a batch that has left the spool, so that its size is not known.

        Args:
            base_offset: Where it is.
            clear: No unfinished batch was accepted before it.
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
        """A mark names the place of a unit's batch, which has left the spool. The arguments are those of others."""
        self.know_from(base_offset)
        self.last_acked_offset = base_offset + count - 1
        if clear:
            self.clear_offset = self.last_acked_offset

    def recall(self, batch: Batch) -> None:
        """Of all that was acknowledged, this one alone is known by its id: marks named it."""
        self.acked = deque((batch,))
        self.forgotten_offset = batch.base_offset

    def cut(self, last_offset: int) -> None:
        """The log ended with this offset: batches that had left the spool, and were behind it, are lost."""
        self.released.cut(last_offset + 1)
        self.acked = deque(
            batch
            for batch in self.acked
            if batch.position >= 0 or batch.place + batch.count - 1 <= last_offset
        )

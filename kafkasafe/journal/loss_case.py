"""A partition whose log may have lost acknowledged batches: the suspicion, the checks, and known gaps.

`suspicions` decides what raises a suspicion, and `losses` what the result of a survey means.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kafkasafe.history.loss import Cause
from kafkasafe.journal.messages import EpochCheck
from kafkasafe.journal.notices import Hole

__all__ = ["LossCase", "Suspicion"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why the log may have lost acknowledged batches.

    Attributes:
        cause: The sign that raised it.
        evidence: Human-readable.
        last_acked_offset: The last offset that was acknowledged before the suspicion (inclusive).
        from_offset: If the log lost records, it lost at least those from this offset on; -1 when unknown.
        leader_epoch: Leader epoch of the last acknowledgement before the suspicion, -1 when unknown.
        overlaps: A batch was acknowledged, or found, at or before the offset of an earlier acknowledged batch.
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
        suspicion: The first suspicion; later ones extend it. None: the log is not suspected.
        asked: The check in progress. Checks are made one at a time, one per change of leader.
        due: The checks after it, in this order. A survey makes all of them unnecessary.
        explained: A gap in the log is expected: batches were damaged, rejected, skipped or lost. Then the journal
            reports no hole.
        hole: The hole to report if the log turns out to have every acknowledged batch.
    """

    suspicion: Suspicion | None = None
    asked: EpochCheck | None = None
    due: list[EpochCheck] = field(default_factory=list)
    explained: bool = False
    hole: Hole | None = None

    @property
    def is_open(self) -> bool:
        """Whether acknowledged batches may have to be sent again."""
        return self.suspicion is not None or self.asked is not None or bool(self.due)

    def open(self, suspicion: Suspicion) -> None:
        """Set the first suspicion."""
        self.suspicion = suspicion

    def add(self, known: Suspicion, from_offset: int, *, overlaps: bool) -> None:
        """Extend the open suspicion by another one."""
        if from_offset >= 0 and not 0 <= known.from_offset <= from_offset:
            known = replace(known, from_offset=from_offset)
        self.suspicion = replace(known, overlaps=known.overlaps or overlaps)

    def find(self, base_offset: int, last_acked_offset: int) -> None:
        """Note where a batch was found. The batch may overlap the offsets of batches that were acknowledged earlier."""
        if self.suspicion is not None and base_offset <= last_acked_offset:
            self.suspicion = replace(self.suspicion, overlaps=True)

    def close(self) -> None:
        """Drop the suspicion and all checks: a survey has answered them."""
        self.suspicion = None
        self.asked = None
        self.due.clear()

    def forget(self) -> None:
        """Drop everything: the lane writes to another log."""
        self.close()
        self.hole = None

    # -- leaders that came ---------------------------------------------------------------------------------------------

    def check(self, check: EpochCheck) -> None:
        """Add a check for a change of leader, even while one for an earlier change is open."""
        self.due.append(check)

    def next_check(self) -> EpochCheck | None:
        """The check to begin now; None if one is in progress or none is pending."""
        if not self.due or self.asked is not None:
            return None
        self.asked = self.due.pop(0)
        return self.asked

    def is_asked(self, check: EpochCheck) -> bool:
        """Whether this is the check in progress."""
        return check == self.asked

    def passed(self) -> None:
        """Note that the check in progress found no loss."""
        self.asked = None

    def keep_newest_check(self) -> None:
        """Keep only the newest check: earlier incarnations got answers to the older ones."""
        del self.due[:-1]

    # -- known gaps ----------------------------------------------------------------------------------------------------

    def explain(self) -> None:
        """Note that a gap is expected."""
        self.explained = True

    def miss(self, hole: Hole) -> None:
        """Note that records before an unfinished batch are neither in the log nor in the spool."""
        self.explained = True
        self.hole = hole

    def take_hole(self) -> Hole | None:
        """Return the hole and forget it, because a survey has ended. If it found a loss, that is reported instead."""
        hole, self.hole = self.hole, None
        return hole

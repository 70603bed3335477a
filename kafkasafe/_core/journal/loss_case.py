"""That acknowledged batches may be gone: what says so, what is asked about it, and what is missing anyway.

What raises a suspicion is decided in `suspicions`, what a survey of the log finds in `losses`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kafkasafe._core.journal.messages import EpochCheck
from kafkasafe._core.journal.notices import Hole
from kafkasafe._core.loss import Cause

__all__ = ["LossCase", "Suspicion"]


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why acknowledged batches may be gone.

    Attributes:
        cause: What raised it.
        evidence: Human-readable.
        last_acked_offset: How far was acknowledged before (inclusive).
        from_offset: From here on (at least) it is gone, if it is; -1 when unknown.
        leader_epoch: Of the leader that had acknowledged it, -1 when unknown.
        overlaps: A batch was acknowledged, or found, where an earlier one had been acknowledged, or before that.
    """

    cause: Cause
    evidence: str
    last_acked_offset: int
    from_offset: int
    leader_epoch: int
    overlaps: bool = False


@dataclass(slots=True)
class LossCase:
    """What is suspected of one partition.

    Attributes:
        suspicion: The first one; later ones add to it. None: there is none.
        checks: To be made, one by one, each for a leader that came. What is answered after a survey says nothing new.
        check_asked: The first of them is under way.
        explained: Something is known to be missing: damage, or what was rejected, skipped or lost. A hole says nothing
            new then.
        hole: Reported if the log turns out to have everything that was acknowledged.
    """

    suspicion: Suspicion | None = None
    checks: list[EpochCheck] = field(default_factory=list)
    check_asked: bool = False
    explained: bool = False
    hole: Hole | None = None

    @property
    def is_open(self) -> bool:
        """Whether what was acknowledged may have to be sent again."""
        return self.suspicion is not None or bool(self.checks)

    def open(self, suspicion: Suspicion) -> None:
        """The first suspicion."""
        self.suspicion = suspicion

    def add(self, known: Suspicion, from_offset: int, *, overlaps: bool) -> None:
        """Another one, while there is one."""
        if from_offset >= 0 and not 0 <= known.from_offset <= from_offset:
            known = replace(known, from_offset=from_offset)
        self.suspicion = replace(known, overlaps=known.overlaps or overlaps)

    def find(self, base_offset: int, last_acked_offset: int) -> None:
        """A batch was found there: perhaps where an earlier one had been acknowledged."""
        if self.suspicion is not None and base_offset <= last_acked_offset:
            self.suspicion = replace(self.suspicion, overlaps=True)

    def close(self) -> None:
        """The log was searched: neither the suspicion nor a check is about anything else."""
        self.suspicion = None
        self.checks.clear()
        self.check_asked = False

    def forget(self) -> None:
        """Another log is written to."""
        self.close()
        self.hole = None

    # -- leaders that came ---------------------------------------------------------------------------------------------

    def check(self, check: EpochCheck) -> None:
        """Another leader acknowledges: also while the check of an earlier one, which may have lost some, is open."""
        self.checks.append(check)

    def next_check(self) -> EpochCheck | None:
        """What is to be asked now."""
        if not self.checks or self.check_asked:
            return None
        self.check_asked = True
        return self.checks[0]

    def is_asked(self, check: EpochCheck) -> bool:
        """Whether an answer to this one is waited for."""
        return check in self.checks[:1]

    def passed(self) -> None:
        """The check under way found nothing."""
        del self.checks[0]
        self.check_asked = False

    def keep_newest_check(self) -> None:
        """Earlier incarnations had answers about the leaders before."""
        del self.checks[:-1]

    # -- what is missing anyway ----------------------------------------------------------------------------------------

    def explain(self) -> None:
        """Something is known to be missing."""
        self.explained = True

    def miss(self, hole: Hole) -> None:
        """Records in front of an unfinished batch are nowhere."""
        self.explained = True
        self.hole = hole

    def take_hole(self) -> Hole | None:
        """What is reported if nothing is lost."""
        hole, self.hole = self.hole, None
        return hole

"""Unanswered requests of a partition: where to read the log for their batches, and how long a broker may still append
these requests.

`verdicts` decides what an answer of the cluster means for the batches in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Doubt:
    """The state of one partition's unanswered requests.

    Attributes:
        fenced: A newer epoch of our producer id exists, so another process may own a copy of this spool. The user must
            decide about each batch in doubt that the log does not have.
        sequence_refused: The leader refuses the sequence of a batch in doubt.
        dead_at: Until this time (seconds), a broker may still append an unanswered request of ours.
        asked_at: When the pending question was asked (seconds); the answer reflects the log at that time or later.
        asked_from: The offset from which the log is read to answer the pending question.
        rescan_from: The lowest possible offset of a batch in doubt, if the log may have been truncated below an
            acknowledged batch; otherwise -1.
    """

    fenced: bool = False
    sequence_refused: bool = False
    dead_at: float = 0.0
    asked_at: float = 0.0
    asked_from: int = -1
    rescan_from: int = -1

    @property
    def is_cut(self) -> bool:
        """Whether the log may have been truncated below an acknowledged batch."""
        return self.rescan_from >= 0

    @property
    def is_early(self) -> bool:
        """Whether a broker could still append a late request when the journal asked its question."""
        return self.asked_at < self.dead_at

    @property
    def is_partial(self) -> bool:
        """Whether the answer is incomplete, because the journal asked before it knew that the log must be read from a
        lower offset.
        """
        return 0 <= self.rescan_from < self.asked_from

    def ask(self, now: float, from_offset: int) -> None:
        """Note when the journal asks the cluster about batches in doubt, and from which offset the engine reads the
        log.
        """
        self.asked_at, self.asked_from = now, from_offset

    def survey(self, now: float) -> None:
        """Note that a survey of the log begins."""
        self.asked_at = now

    def begin_at(self, offset: int) -> int:
        """Returns the offset from which to read the log. This is `offset`, unless the log may have been truncated below
        it.
        """
        return self.rescan_from if 0 <= self.rescan_from < offset else offset

    def may_arrive_until(self, dead_at: float) -> None:
        """Note that a request got no answer, and that the broker may append the request until `dead_at`. A request of
        an earlier incarnation with a longer request timeout may arrive even later.
        """
        self.dead_at = max(self.dead_at, dead_at)

    def sleep(self, seconds: float, before: float) -> None:
        """Extend `dead_at` by the time for which the machine slept, if a broker could still append a request when the
        sleep began (at `before`).
        """
        if self.dead_at > before:
            self.dead_at += seconds

    def fence(self) -> None:
        """Note that a newer epoch of our producer id exists."""
        self.fenced = True

    def unfence(self) -> None:
        """Reset `fenced`, because every batch that was in doubt has an outcome now."""
        self.fenced = False

    def refuse_sequence(self) -> None:
        """Note that the leader refuses the sequence of a batch in doubt."""
        self.sequence_refused = True

    def end(self) -> None:
        """Note that no batch is in doubt any more."""
        self.fenced = self.sequence_refused = False

    def cut(self, from_offset: int) -> None:
        """Note that the log may have lost the records from `from_offset` on; -1: the offset is unknown."""
        if from_offset >= 0 and not 0 <= self.rescan_from <= from_offset:
            self.rescan_from = from_offset

    def read_again(self, from_offset: int) -> None:
        """Note that the log ends before an acknowledged batch. For the next question, the engine reads the log from
        `from_offset`, or from `rescan_from` if it is set and lower.
        """
        self.rescan_from = from_offset if self.rescan_from < 0 else min(self.rescan_from, from_offset)

    def forget_cut(self) -> None:
        """Reset `rescan_from`, because every sent batch is found or proven absent, or because the lane now writes to
        another log.
        """
        self.rescan_from = -1

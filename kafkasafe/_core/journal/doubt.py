"""Batches whose outcome is unknown: since when, where the log has to be read, and how long a request may still arrive.

What an answer means is decided in `verdicts`.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Doubt"]


@dataclass(slots=True)
class Doubt:
    """What is known of the requests of one partition that had no answer.

    Attributes:
        fenced: A newer epoch of our producer id is there: what the log does not show is undecidable.
        sequence_refused: The leader does not take the sequence of a batch in doubt.
        dead_at: From then on (seconds) no request of ours whose answer was lost can still be appended.
        asked_at: When the question under way was asked: what the cluster answers is what it knew then, or later.
        asked_from: Where the log is read from for its answer.
        rescan_from: The log was seen to end before what was acknowledged: a batch in doubt may be anywhere behind this.
    """

    fenced: bool = False
    sequence_refused: bool = False
    dead_at: float = 0.0
    asked_at: float = 0.0
    asked_from: int = -1
    rescan_from: int = -1

    @property
    def is_cut(self) -> bool:
        """Whether the log was seen to end before what was acknowledged."""
        return self.rescan_from >= 0

    @property
    def is_early(self) -> bool:
        """Whether a request could still be appended when the question was asked."""
        return self.asked_at < self.dead_at

    @property
    def is_partial(self) -> bool:
        """Whether the answer is not about all of the log that matters by now."""
        return 0 <= self.rescan_from < self.asked_from

    def ask(self, now: float, from_offset: int) -> None:
        """A question about batches in doubt is asked."""
        self.asked_at, self.asked_from = now, from_offset

    def survey(self, now: float) -> None:
        """The log is searched for what was acknowledged."""
        self.asked_at = now

    def begin_at(self, offset: int) -> int:
        """Where the log has to be read from, where otherwise this offset would do."""
        return self.rescan_from if 0 <= self.rescan_from < offset else offset

    def may_arrive_until(self, dead_at: float) -> None:
        """A request had no answer: it may be appended until then."""
        self.dead_at = dead_at

    def sleep(self, seconds: float, before: float) -> None:
        """The machine slept so long, and requests that were alive before that are so for longer."""
        if self.dead_at > before:
            self.dead_at += seconds

    def fence(self) -> None:
        """A newer epoch of our producer id was seen."""
        self.fenced = True

    def unfence(self) -> None:
        """What was in doubt then is judged."""
        self.fenced = False

    def refuse_sequence(self) -> None:
        """The leader does not take the sequence of a batch in doubt."""
        self.sequence_refused = True

    def end(self) -> None:
        """Nothing is in doubt any more."""
        self.fenced = self.sequence_refused = False

    def cut(self, from_offset: int) -> None:
        """What was behind this offset may be gone; -1: nothing is known of where."""
        if from_offset >= 0 and not 0 <= self.rescan_from <= from_offset:
            self.rescan_from = from_offset

    def read_again(self, from_offset: int) -> None:
        """The log ends before what was acknowledged: it is read again from where it was read, or from further ahead."""
        self.rescan_from = from_offset if self.rescan_from < 0 else min(self.rescan_from, from_offset)

    def forget_cut(self) -> None:
        """What was sent before is where it was looked for, or nowhere."""
        self.rescan_from = -1

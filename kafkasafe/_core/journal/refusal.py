"""One refusal that may pass: since when it lasts, without another answer in between.

What is done when it lasted for too long is decided by those who ask, in `answers` and `rejecting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe._core.codes import Scope
from kafkasafe._core.journal.notices import Denial

__all__ = ["CONFIRMED_S", "SILENCE_S", "RefusalTimer"]

SILENCE_S: Final = 300.0
"""Two refusals further apart than this are not one that lasts: any answer may have come in between, unheard."""

CONFIRMED_S: Final = 1.0
"""A refusal that lasts for so long is no stray answer."""


@dataclass(slots=True)
class RefusalTimer:
    """The refusal of one destination, or of the batch at its head.

    Attributes:
        denial: What is refused now; None: nothing is.
    """

    denial: Denial | None = None

    def is_about_other(self, handle: int) -> bool:
        """Whether another thing is refused until now than the batch with this handle (-1: all of the destination)."""
        return self.denial is not None and self.denial.handle != handle

    def refused(
        self, code: int, reason: str, scope: Scope, now: float, *, handle: int, asking: bool
    ) -> Denial:
        """The cluster refused it, once more or for the first time.

        Args:
            code: Kafka's error code.
            reason: Human-readable.
            scope: What is given up in the end.
            now: Seconds.
            handle: Of the batch that is refused, -1 where all of the destination is.
            asking: What is refused is an answer to a question about batches in doubt.
        """
        denial = self.denial
        if denial is None:
            denial = self.denial = Denial(code, reason, scope, handle, now, now, now)
        denial.repeat(code, reason, now, asking=asking, silence_s=SILENCE_S)
        return denial

    def no_answer(self) -> None:
        """A broker that comes back knows no topic and no rule for a moment, so the time begins again."""
        if self.denial is None:
            return
        if self.denial.told:
            self.denial.interrupt()
        else:
            self.denial = None

    def clear(self) -> Denial | None:
        """Another answer came, or nothing waits any more. What is over, if it was reported."""
        denial, self.denial = self.denial, None
        return denial if denial is not None and denial.told else None

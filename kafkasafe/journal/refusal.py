"""Tracks one refusal that may be temporary: since when it has lasted without another answer in between.

`answers` and `rejecting` decide what happens when it lasts too long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafkasafe.codes.verdicts import Scope
from kafkasafe.journal.notices import Denial

__all__ = ["CONFIRMED_S", "SILENCE_S", "RefusalTimer"]

SILENCE_S: Final = 300.0
"""Two refusals with a longer silence between them do not count as one: another answer may have been lost in between."""

CONFIRMED_S: Final = 1.0
"""A refusal that lasts for this long is not a stray answer."""


@dataclass(slots=True)
class RefusalTimer:
    """The refusal of one destination, or of the batch at its head.

    Attributes:
        denial: The current refusal; None: the cluster refuses nothing.
    """

    denial: Denial | None = None

    def is_about_other(self, handle: int) -> bool:
        """Whether the current refusal is about something else than the batch with this handle (-1: the whole
        destination).
        """
        return self.denial is not None and self.denial.handle != handle

    def refused(
        self, code: int, reason: str, scope: Scope, now: float, *, handle: int, asking: bool
    ) -> Denial:
        """Note a refusal, whether the first or a repeated one.

        Args:
            code: Kafka's error code.
            reason: Human-readable.
            scope: What the journal gives up if the refusal lasts too long.
            now: Seconds.
            handle: Handle of the refused batch, -1 if the cluster refuses the whole destination.
            asking: The cluster refuses to answer a question about batches in doubt.
        """
        denial = self.denial
        if denial is None:
            denial = self.denial = Denial(code, reason, scope, handle, now, now, now)
        denial.repeat(code, reason, now, asking=asking, silence_s=SILENCE_S)
        return denial

    def no_answer(self) -> None:
        """Count the refusal's duration from its next answer: a broker that has just started knows no topics or
        permissions.
        """
        if self.denial is None:
            return
        if self.denial.reported:
            self.denial.interrupt()
        else:
            self.denial = None

    def clear(self) -> Denial | None:
        """End the refusal: another answer came, or no batch waits any more. Returns the refusal if it was reported."""
        denial, self.denial = self.denial, None
        return denial if denial is not None and denial.reported else None

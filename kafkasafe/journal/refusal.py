"""How long the cluster has refused a destination or a batch, which destinations may not exist, and which batches the
journal is copying to `rejected/`.

`refusals`, `answers` and `rejecting` decide what the journal does about refusals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kafkasafe.codes.verdicts import Scope
from kafkasafe.journal.batch import Batch
from kafkasafe.journal.notices import Denial

SILENCE_S: Final = 300.0
"""If a refusal follows the previous one after more than this many seconds, the duration of the refusal starts again: a
different answer may have been lost in between.
"""
CONFIRMED_S: Final = 1.0
"""A refusal that lasts for this long is not a stray answer."""


@dataclass(slots=True)
class RefusalTimer:
    """How long the cluster has refused one destination, or the first batch of the destination's queue.

    Attributes:
        denial: The current refusal; None: the cluster refuses nothing.
    """

    denial: Denial | None = None

    def is_about_other(self, handle: int) -> bool:
        """Whether the current refusal is about something else than `handle`: the handle of a batch, or -1 for the whole
        destination.
        """
        return self.denial is not None and self.denial.handle != handle

    def refused(
        self, code: int, reason: str, scope: Scope, now: float, *, handle: int, asking: bool
    ) -> Denial:
        """Note a first or repeated refusal.

        Args:
            code: Kafka's error code.
            reason: Human-readable.
            scope: What the journal rejects if the refusal lasts too long.
            now: The current time in seconds.
            handle: Handle of the refused batch, -1 if the cluster refuses the whole destination.
            asking: The cluster refuses to answer a question about batches in doubt.
        """
        denial = self.denial
        if denial is None:
            denial = self.denial = Denial(code, reason, scope, handle, now, now, now)
        denial.repeat(code, reason, now, asking=asking, silence_s=SILENCE_S)
        return denial

    def no_answer(self) -> None:
        """Note a request without an answer. The duration then starts again at the next refusal: the broker may have
        restarted, and may refuse requests only because it has not read the cluster's metadata yet.
        """
        if self.denial is None:
            return
        if self.denial.reported:
            self.denial.interrupt()
        else:
            self.denial = None

    def clear(self) -> Denial | None:
        """End the refusal, because another answer came, or no batch waits any more. Returns the refusal if it was
        reported.
        """
        denial, self.denial = self.denial, None
        return denial if denial is not None and denial.reported else None


class Missing:
    """Partitions that may not exist, and partitions that provably do not exist. `kafkasafe.cluster.absence` decides
    what counts as a proof.

    Only the journal changes this object, and only the journal's thread may read it.

    Attributes:
        said: Destinations that do not exist according to the latest answer about them.
        proven: Destinations that do not exist, each with the proof as human-readable text.
    """

    __slots__ = ("proven", "said")

    def __init__(self) -> None:
        self.said: dict[int, None] = {}
        self.proven: dict[int, str] = {}

    def say(self, destination: int) -> None:
        """Note that, according to an answer, a destination does not exist."""
        self.said[destination] = None

    def take_back(self, destination: int) -> None:
        """Undo `say`, because another answer came, or no batch waits for the destination. Proofs stay valid."""
        self.said.pop(destination, None)

    def prove(self, destination: int, reason: str) -> None:
        """Note a proof that the destination does not exist; the proof holds until `exists` is called."""
        self.proven[destination] = reason

    def exists(self, destination: int) -> None:
        """Note that the destination exists now."""
        self.said.pop(destination, None)
        self.proven.pop(destination, None)

    def clear(self) -> None:
        """Forget all reports and proofs, because from now on the lane writes to another cluster."""
        self.said.clear()
        self.proven.clear()


_PORTION_BYTES: Final = 1024 * 1024
"""The engine copies rejected batches in portions of at most this many bytes (a single batch may be larger). Between two
portions, the engine delivers batches of other partitions.
"""


@dataclass(slots=True)
class Rejection:
    """The batches of one destination that the journal still has to reject.

    Attributes:
        waiting: The batches after the portion that the engine is copying, in queue order.
    """

    waiting: deque[Batch] = field(default_factory=deque)

    @property
    def is_done(self) -> bool:
        """Whether all portions are taken."""
        return not self.waiting

    def begin(self, batches: Iterable[Batch]) -> None:
        """Begin to reject these batches, in this order."""
        self.waiting = deque(batches)

    def stop(self) -> None:
        """Stop rejecting the waiting batches for now, because the engine could not write a copy, or the topic exists
        after all.
        """
        self.waiting.clear()

    def take_portion(self, most_batches: int) -> tuple[Batch, ...]:
        """Take the next portion of batches to copy: at least one batch, at most `most_batches`."""
        portion: list[Batch] = []
        size = 0
        while self.waiting and len(portion) < most_batches:
            size += self.waiting[0].size_bytes
            if portion and size > _PORTION_BYTES:
                break
            portion.append(self.waiting.popleft())
        return tuple(portion)

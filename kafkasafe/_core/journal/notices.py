"""What people are to know: losses and their repair, refusals, batches that nobody can decide about."""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe._core.codes import Scope
from kafkasafe._core.journal.states import Batch
from kafkasafe._core.loss import Cause

__all__ = [
    "AckedLoss",
    "Delivered",
    "Denial",
    "Denied",
    "Healed",
    "Hole",
    "Notice",
    "Refusal",
    "Relented",
    "Undecidable",
]


@dataclass(frozen=True, slots=True)
class AckedLoss:
    """Acknowledged records are gone from the log.

    Attributes:
        destination: Destination number.
        first_offset: First lost offset, -1 when not known.
        last_offset: Last lost offset (inclusive).
        records: How many of them were ours.
        cause: What raised the suspicion.
        evidence: For people.
        revived: Records that are sent again.
        gone: (first offset, last offset, records) of what is not sent again; no records: all of it is.
        recreated: The topic was, or may have been, deleted and created again.
    """

    destination: int
    first_offset: int
    last_offset: int
    records: int
    cause: Cause
    evidence: str
    revived: int
    gone: tuple[int, int, int] = (-1, -1, 0)
    recreated: bool = False


@dataclass(frozen=True, slots=True)
class Healed:
    """What was sent again after a loss is in the log, all of it that was not rejected.

    Attributes:
        destination: Destination number.
        records: How many, in earlier lives too.
        first_offset: Where the first of them is now, -1 when not known.
        last_offset: Where the last of them is now (inclusive), -1 when not known.
    """

    destination: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """Acknowledged records of one partition.

    Attributes:
        topic: Topic name.
        partition: Partition.
        first_offset: Of the first of them.
        last_offset: Of the last of them (inclusive).
        records: How many.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class Undecidable:
    """A batch whose presence in the log cannot be determined: the user decides."""

    batch: Batch
    evidence: str


@dataclass(frozen=True, slots=True)
class Hole:
    """Records in front of an earlier life's first unfinished batch are neither in the cluster's log nor in the spool.

    Attributes:
        destination: Destination number.
        records: How many.
        evidence: For people: what was seen.
    """

    destination: int
    records: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The cluster refused a batch, and it is durable in `rejected/`."""

    batch: Batch


@dataclass(slots=True)
class Denial:
    """The cluster refuses a destination, or the batch at its head, for a reason that may pass.

    Attributes:
        code: Kafka's error code of the last such answer.
        reason: For people.
        scope: What is given up in the end.
        handle: Of the batch that is refused, -1 where all of the destination is.
        since: Seconds: when it began.
        counted_from: Seconds: since then it lasted without a break; -1 when the last request had no answer.
        last_at: Seconds: when the last answer came.
        answers: How many came.
        told: It was confirmed, so that it was worth a notice.
        asking: What is refused is an answer to a question about batches in doubt.
    """

    code: int
    reason: str
    scope: Scope
    handle: int
    since: float
    counted_from: float
    last_at: float
    answers: int = 0
    told: bool = False
    asking: bool = False

    def repeat(self, code: int, reason: str, now: float, *, asking: bool, silence_s: float) -> None:
        """It was refused once more; after a silence that long its time begins again."""
        if self.counted_from < 0 or now - self.last_at > silence_s:
            self.counted_from = now
        self.code, self.reason, self.last_at, self.asking = code, reason, now, asking
        self.answers += 1

    def interrupt(self) -> None:
        """A request had no answer: the time begins again with the next one."""
        self.counted_from = -1.0

    def tell(self) -> None:
        """It is reported."""
        self.told = True


@dataclass(frozen=True, slots=True)
class Denied:
    """A destination is refused, and what waits for it goes on waiting."""

    destination: int
    denial: Denial


@dataclass(frozen=True, slots=True)
class Relented:
    """What `Denied` told is over.

    Attributes:
        destination: Destination number.
        denial: What is over.
        accepted: True: the cluster takes it now. False: nothing waits for it any more, or for another reason.
    """

    destination: int
    denial: Denial
    accepted: bool


Notice = AckedLoss | Healed | Hole | Undecidable | Refusal | Denied | Relented

"""Notices for users: losses and their repair, refusals, batches whose outcome cannot be determined."""

from __future__ import annotations

from dataclasses import dataclass

from kafkasafe.codes.verdicts import Scope
from kafkasafe.history.loss import Cause
from kafkasafe.journal.batch import Batch


@dataclass(frozen=True, slots=True)
class AckedLoss:
    """The log has lost acknowledged records.

    Attributes:
        destination: Destination number.
        first_offset: First lost offset, -1 when not known.
        last_offset: Last lost offset (inclusive).
        records: How many of our records were in the range of lost offsets.
        cause: The sign that raised the suspicion.
        evidence: Human-readable text.
        revived: How many of the lost records are sent again.
        gone: (first offset, last offset, number) of the lost records that are not sent again. The number is 0 if all
            lost records are sent again.
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
    """All lost records that were sent again are in the log again, except rejected records.

    Attributes:
        destination: Destination number.
        records: How many lost records are in the log again, including records that earlier incarnations sent again.
        first_offset: Current offset of the first record that was sent again, -1 when not known.
        last_offset: Current offset of the last record that was sent again (inclusive), -1 when not known.
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
        partition: Partition number.
        first_offset: Offset of the first acknowledged record.
        last_offset: Offset of the last acknowledged record (inclusive).
        records: How many records.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class Undecidable:
    """The journal cannot determine whether a batch is in the log, so the user decides whether to send it again."""

    batch: Batch
    evidence: str


@dataclass(frozen=True, slots=True)
class Hole:
    """The records before an earlier incarnation's first unfinished batch are neither in the log nor in the spool.

    Attributes:
        destination: Destination number.
        records: How many records are missing.
        evidence: The observations, as human-readable text.
    """

    destination: int
    records: int
    evidence: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The cluster refused a batch, and a copy of the batch is durable in `rejected/`."""

    batch: Batch


@dataclass(slots=True)
class Denial:
    """The cluster refuses a destination, or the first batch of the destination's queue, for a reason that may be
    temporary.

    Attributes:
        code: Kafka's error code in the last refusal.
        reason: Human-readable text.
        scope: What the journal rejects if the refusal lasts too long.
        handle: Handle of the refused batch, -1 if the cluster refuses the whole destination.
        since: When the refusal began, in seconds.
        counted_from: The time (seconds) from which the journal counts how long the refusal has lasted. After a request
            without an answer, -1 until the next refusal.
        last_at: When the last refusal came, in seconds.
        answers: How many refusals came.
        reported: The refusal was reported by a notice.
        asking: The cluster refuses to answer a question about batches in doubt.
    """

    code: int
    reason: str
    scope: Scope
    handle: int
    since: float
    counted_from: float
    last_at: float
    answers: int = 0
    reported: bool = False
    asking: bool = False

    def repeat(self, code: int, reason: str, now: float, *, asking: bool, silence_s: float) -> None:
        """Note another refusal. The duration starts again, at `now`, if the previous refusal came more than `silence_s`
        seconds ago, or if a request has gone without an answer since.
        """
        if self.counted_from < 0 or now - self.last_at > silence_s:
            self.counted_from = now
        self.code, self.reason, self.last_at, self.asking = code, reason, now, asking
        self.answers += 1

    def interrupt(self) -> None:
        """Note a request without an answer. The duration then starts again at the next refusal."""
        self.counted_from = -1.0

    def tell(self) -> None:
        """Note that a notice reports the refusal."""
        self.reported = True


@dataclass(frozen=True, slots=True)
class Denied:
    """The cluster refuses a destination. The destination's batches keep waiting."""

    destination: int
    denial: Denial


@dataclass(frozen=True, slots=True)
class Relented:
    """Reports the end of a refusal that a `Denied` notice reported earlier.

    Attributes:
        destination: Destination number.
        denial: The refusal.
        accepted: True: the cluster accepts the destination now. False: no batch waits for the destination any more, or
            the cluster now gives another reason for the refusal.
    """

    destination: int
    denial: Denial
    accepted: bool


Notice = AckedLoss | Healed | Hole | Undecidable | Refusal | Denied | Relented

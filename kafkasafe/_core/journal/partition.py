"""One destination, a partition of a topic: its queue, and what is known of it. Only data.

(Which partition a key goes to is decided in `kafkasafe._core.partition`.)
"""

from __future__ import annotations

import enum
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from kafkasafe._core import marks as m
from kafkasafe._core.backlog import Backlog
from kafkasafe._core.identity import BatchId
from kafkasafe._core.journal.messages import EpochCheck
from kafkasafe._core.journal.notices import Denial, Hole
from kafkasafe._core.journal.states import Batch
from kafkasafe._core.loss import Cause, Released

__all__ = ["ANYWHERE", "UNCHOSEN", "WINDOW", "Flow", "Healing", "Partition", "Suspicion"]

WINDOW: Final = 5
"""A broker remembers the last five batches of a producer id per partition (`ProducerStateEntry`)."""

UNCHOSEN: Final = -1
"""Partition of a destination whose partitions are not known yet."""

ANYWHERE: Final = 2**63 - 1
"""Behind every offset."""


class Flow(enum.Enum):
    """What a partition is doing."""

    NEW = "new"
    """Nothing was ever sent: the end offset is asked first."""
    FLOWING = "flowing"
    SETTLING = "settling"
    """Something failed: nothing is sent until everything in flight has an outcome."""
    WAITING = "waiting"
    """For `retry()`."""
    ASKING = "asking"
    """For `judged()` or `baseline()`."""
    SURVEYING = "surveying"
    """For `surveyed()`: acknowledged batches may be gone from the log."""
    PROBING = "probing"
    """The newest batch that the leader has is sent once more, to learn that replicas have it."""
    PARKED = "parked"
    """Behind an undecidable batch, until `decide()`."""
    REJECTING = "rejecting"
    """For `set_aside()`: what is rejected must first be durable elsewhere."""


@dataclass(slots=True, eq=False)
class Partition:
    """One destination."""

    number: int
    topic: str
    partition: int
    flow: Flow = Flow.NEW
    queue: Backlog[Batch] = field(default_factory=Backlog)
    """Unfinished, in order. Invariant: SENT, ACKED and REFUSED batches are among the first `window`."""
    in_flight: int = 0
    attempt: int = 0
    doubtful: bool = False
    """Something in the settling window may have been appended without our knowing."""
    rested: bool = False
    """The pause after a failure is over."""
    refresh: bool = False
    fenced: bool = False
    sequence_refused: bool = False
    """The leader does not take the sequence of a batch in doubt."""
    renew: bool = False
    """The batches that are not in the log need new ids, as soon as nothing can be appended under the old ones."""
    reason: str = ""
    """Why it does not go on, for people; empty once it does."""
    producer_id: int = -1
    producer_epoch: int = -1
    next_sequence: int = 0
    baseline_offset: int = -1
    last_acked_offset: int = -1
    leader_epoch: int = -1
    topic_id: bytes = m.NO_TOPIC_ID
    clear_offset: int = -1
    """Durable: everything of ours that may be at or before this offset is finished. A batch may be acknowledged
    while one before it is in doubt, so this can be behind `last_acked_offset`."""
    last_acked_id: BatchId | None = None
    """The newest that is in the log below the high watermark."""
    confirmed_id: tuple[int, int] = (-1, -1)
    confirmed_until: float = 0.0
    """Until then (seconds) the leader surely remembers this (producer id, epoch): more than one batch of it may be
    in flight. Before, it would take any base sequence, and a second batch could overtake a failed first."""
    dead_at: float = 0.0
    """From then on no request of ours whose answer was lost can still be appended."""
    asked_at: float = 0.0
    """What the cluster answers is what it knew then, or later."""
    asked_from: int = -1
    """Where the log is read from for an answer."""
    denial: Denial | None = None
    rejecting: deque[Batch] = field(default_factory=deque)
    """What is to be put aside after the portion that is put aside now."""
    explained: bool = False
    """Something of it is known to be missing: damage, what was rejected, skipped or lost. A hole says nothing new."""
    hole: Hole | None = None
    """Reported if the log turns out to have everything that was acknowledged."""
    answered: bool = False
    """The leader acknowledged something just now: what still waits, waits for its turn."""
    gathers: bool = True
    """Small batches become one: until one of those is refused, or those cannot be read."""
    unsure_before: int = -1
    """Marks are lost that may have spoken of the batches before this position: nobody knows what was sent of them."""
    commits: list[tuple[int, int]] = field(default_factory=list)
    acked: deque[Batch] = field(default_factory=deque)
    """Committed, in the order of their commits: those that are still in the spool, and a few more."""
    forgotten_offset: int = -1
    """What was acknowledged before this offset, and in front of `acked`, is not remembered."""
    released: Released = field(default_factory=Released)
    known_from: int = -1
    """Where nobody knows how far that goes: before this, if it is still there; -1 when not even that is known."""
    told_position: int = -1
    """Of the last one whose id was put into marks of its own, so that it is known when the batch has left the spool.
    Later ones may have lower positions: parts of a divided batch, and copies, are written after what follows them."""
    suspicion: Suspicion | None = None
    checks: list[EpochCheck] = field(default_factory=list)
    """To be made, one by one, each for a leader that came. What is answered after a survey says nothing new."""
    check_asked: bool = False
    """The first of them is under way."""
    rescan_from: int = -1
    """The log was seen to end before what was acknowledged: a batch in doubt may be anywhere behind this."""

    def forget_checks(self) -> None:
        """There is nothing to be asked any more."""
        self.checks.clear()
        self.check_asked = False

    @property
    def knows_nothing(self) -> bool:
        """Nothing is known of what is in the log, nor of the topic: as after `forget_acknowledged`."""
        return (
            self.baseline_offset < 0
            and self.last_acked_offset < 0
            and not any(self.topic_id)
            and not self.acked
        )

    def forget_acknowledged(self) -> None:
        """Nothing is known to be in the log: it is the log of another cluster, or of another topic, from here on.

        Batches and their ids stay: an id is never given twice.
        """
        self.baseline_offset = self.last_acked_offset = self.clear_offset = -1
        self.leader_epoch = self.rescan_from = -1
        self.topic_id = m.NO_TOPIC_ID
        self.last_acked_id = None
        self.acked.clear()
        self.forgotten_offset = self.known_from = self.told_position = -1
        self.released.forget()
        self.suspicion = self.hole = None
        self.forget_checks()


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Why acknowledged batches may be gone.

    Attributes:
        cause: What raised it.
        evidence: For people.
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
class Healing:
    """Lost batches of one partition on their way back.

    Attributes:
        keep_from: Spool position of the first of them. Nothing from there on is released before the last one is back:
            what is in the log again may be lost again, and the next life has to know all of them.
        left: How many are not finished.
        records: How many records are in the log again.
        first_offset: Where the first of them is, -1 when not known.
        last_offset: Where the last of them is (inclusive), -1 when not known.
    """

    keep_from: int
    left: int = 0
    records: int = 0
    first_offset: int = -1
    last_offset: int = -1

"""What is counted: by one thread each (the pump's, or whoever polls a consumer), read by anybody.

Plain ints in dicts: an increment is one bytecode's work for its one writer, and a reader copies. Prometheus's own
objects take a lock per increment; they are made from this when somebody scrapes.
"""

from __future__ import annotations

import collections
from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

__all__ = ["BUCKETS_S", "ConsumerStats", "Histogram", "PartitionProgress", "Stats"]

BUCKETS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)
"""Upper bounds, seconds; one more bucket takes the rest."""


class Histogram:
    """Counts of durations.

    Attributes:
        counts: By bucket, not cumulative.
        sum_s: Sum of all durations, seconds.
    """

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, weight: int = 1) -> None:
        """`weight` times the same duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += weight
        self.sum_s += seconds * weight


class Stats:
    """All that a pump counts.

    Attributes:
        records: By (topic, outcome): accepted, committed, rejected, timed_out.
        retries: By (api, error): requests sent again, and why.
        errors: By (api, error): answers with an error code, and requests without an answer.
        sequence_errors: By (error, verdict).
        in_doubt_resolved: By (verdict, method): batches.
        losses: By detector: how often acknowledged records were found to be gone.
        lost_records: By topic.
        healed_records: By topic.
        fsync: Durations of writes to the spool, made durable.
        durable: From the sealing of a record's batch until it is durable.
        ack: From there until its commit mark is durable.
    """

    def __init__(self) -> None:
        self.records: collections.Counter[tuple[str, str]] = collections.Counter()
        self.retries: collections.Counter[tuple[str, str]] = collections.Counter()
        self.errors: collections.Counter[tuple[str, str]] = collections.Counter()
        self.sequence_errors: collections.Counter[tuple[str, str]] = collections.Counter()
        self.in_doubt_resolved: collections.Counter[tuple[str, str]] = collections.Counter()
        self.losses: collections.Counter[str] = collections.Counter()
        self.lost_records: collections.Counter[str] = collections.Counter()
        self.healed_records: collections.Counter[str] = collections.Counter()
        self.fsync = Histogram()
        self.durable = Histogram()
        self.ack = Histogram()


class ConsumerStats:
    """All that a SafeConsumer counts.

    Look-ups of offsets may come from other threads than the one that polls; a count may be lost then, no more.

    Attributes:
        resets: By (topic, reason): positions set by `auto_offset_reset`.
        skipped_records: By topic: offsets that those left out.
        regressions: By (topic, cause): end offsets that went back, with a proof.
        held: By (topic, why): lower end offsets that were not believed.
        divergences: By topic: how often records that were read were found to be gone.
        diverged_records: By topic: how many (offsets).
        unavailable_s: By topic: how long look-ups of the end waited for a leader that was not ready (78, 5).
        not_ready_s: By topic: how long partitions could not be fetched from, those that can be again.
        retries: By (api, error): requests sent again, and why.
        backoff_s: By api: pauses before them.
        exhausted: By api: deadlines that ended before there was an answer.
    """

    def __init__(self) -> None:
        self.resets: collections.Counter[tuple[str, str]] = collections.Counter()
        self.skipped_records: collections.Counter[str] = collections.Counter()
        self.regressions: collections.Counter[tuple[str, str]] = collections.Counter()
        self.held: collections.Counter[tuple[str, str]] = collections.Counter()
        self.divergences: collections.Counter[str] = collections.Counter()
        self.diverged_records: collections.Counter[str] = collections.Counter()
        self.unavailable_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.not_ready_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.retries: collections.Counter[tuple[str, str]] = collections.Counter()
        self.backoff_s: collections.defaultdict[str, float] = collections.defaultdict(float)
        self.exhausted: collections.Counter[str] = collections.Counter()


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """Where a consumer is on a partition.

    Attributes:
        position: Next offset to be handed out; None: not known yet.
        end_offset: Highest known; None: not known yet.
        not_ready_s: For how long it cannot be fetched from, seconds; None: it can.
        undecided: Records that were read are gone, or the position is out of range, and the application has not
            chosen another position.
    """

    position: int | None
    end_offset: int | None
    not_ready_s: float | None
    undecided: bool

"""What is counted: by the pump's thread only, read by anybody.

Plain ints in dicts: an increment is one bytecode's work for its one writer, and a reader copies. Prometheus's own
objects take a lock per increment; they are made from this when somebody scrapes.
"""

from __future__ import annotations

import collections
from bisect import bisect_left
from typing import Final

__all__ = ["BUCKETS_S", "Histogram", "Stats"]

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

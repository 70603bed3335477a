"""The state of a consumer for probes and metrics. Any thread may call the methods, which never wait for a broker."""

from __future__ import annotations

import time
from collections.abc import Iterable

from kafka.structs import TopicPartition

from kafkasafe._consuming.parts import AssignedPartitions
from kafkasafe._consuming.ports import Assignments, Metadata
from kafkasafe._consuming.reports import Reports
from kafkasafe.delivery.metric_samples import consumer_samples
from kafkasafe.health.states import ConsumerHealth, ConsumerSeen, consumer_health
from kafkasafe.offsets import EndOffsetTracker, IsolationLevel
from kafkasafe.stats import PartitionProgress, Sample


class Polls:
    """The polls of one consumer. The block of `with polls:` is one poll; blocks may be nested."""

    __slots__ = ("_ended_at", "_under_way")

    def __init__(self) -> None:
        self._under_way = 0
        self._ended_at: float | None = None

    def __enter__(self) -> None:
        self._under_way += 1

    def __exit__(self, *_: object) -> None:
        self._ended_at = time.monotonic()
        self._under_way -= 1

    def age_s(self) -> float | None:
        """Return the seconds since the last poll; 0 during a poll; None before the first poll. Thread-safe."""
        if self._under_way:
            return 0.0
        return None if self._ended_at is None else max(0.0, time.monotonic() - self._ended_at)


class Status:
    """Reads the state of one consumer.

    Args:
        group_id: The option `group_id`.
        max_poll_interval_s: The option `max_poll_interval_ms`, in seconds; infinite without a group.
    """

    __slots__ = (
        "_assignments",
        "_group_id",
        "_isolation",
        "_max_poll_interval_s",
        "_metadata",
        "_parts",
        "_polls",
        "_reports",
        "_tracker",
    )

    def __init__(
        self,
        *,
        assignments: Assignments,
        metadata: Metadata,
        isolation: IsolationLevel,
        parts: AssignedPartitions,
        polls: Polls,
        tracker: EndOffsetTracker,
        reports: Reports,
        group_id: str | None,
        max_poll_interval_s: float,
    ) -> None:
        self._assignments = assignments
        self._metadata = metadata
        self._isolation = isolation
        self._parts = parts
        self._polls = polls
        self._tracker = tracker
        self._reports = reports
        self._group_id = group_id
        self._max_poll_interval_s = max_poll_interval_s

    def health(self, *, closed: bool) -> ConsumerHealth:
        stopped = {
            (tp.topic, tp.partition): str(part.error)
            for tp, part in self._parts.items()
            if part.error is not None and self._assignments.state(tp) is part.state
        }
        return consumer_health(
            ConsumerSeen(
                closed=closed,
                connected=self._metadata.is_connected(),
                last_poll_age_s=self._polls.age_s(),
                max_poll_interval_s=self._max_poll_interval_s,
                stopped=stopped,
            )
        )

    def samples(self, *, closed: bool) -> Iterable[Sample]:
        health = None if closed else self.health(closed=False)
        return consumer_samples(self._reports.stats, self._progress(), self._group_id or "", health)

    def _progress(self) -> dict[TopicPartition, PartitionProgress]:
        now, found = time.monotonic(), {}
        for tp, state in self._assignments.assigned().items():
            part, position = self._parts.get(tp), state.position
            known = self._tracker.end_offset(tp.topic, tp.partition, isolation_level=self._isolation)
            ends = [end for end in (known, state.highwater) if end is not None]
            failures = None if part is None or not part.failures.count else part.failures
            found[tp] = PartitionProgress(
                None if position is None else position.offset,
                max(ends, default=None),
                None if failures is None else now - failures.since,
                part is not None and part.error is not None,
                failures is not None and bool(failures.remote),
            )
        return found

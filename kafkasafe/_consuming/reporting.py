"""Report events to the application's hook, the log and the metrics."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable

from kafka.structs import TopicPartition

from kafkasafe._consuming.waiting import Waiting
from kafkasafe._core.health import ConsumerHealth, ConsumerSeen, consumer_health
from kafkasafe._io.metric_readings import consumer_readings
from kafkasafe._io.stats import PartitionProgress, Reading
from kafkasafe.events import (
    ConsumerEvent,
    EndOffsetHeld,
    EndOffsetRegressed,
    LogDiverged,
    LossCheckInconclusive,
    PartitionNotReady,
    PartitionReady,
    PositionReset,
    PositionRewound,
)

__all__ = ["Reporting"]


class Reporting(Waiting):
    """Part of `SafeConsumer`."""

    def _emit(self, event: ConsumerEvent) -> None:
        self.counters[type(event).__name__] += 1
        self._count(event)
        match event:
            case LogDiverged() | EndOffsetRegressed():
                self._say(logging.ERROR, event)
            case PositionReset(skipped=skipped) if skipped is not None:
                self._say(logging.WARNING, event)
            case _:
                self._say(logging.INFO, event)
        if self._safe.on_event is None:
            return
        try:
            self._safe.on_event(event)
        except Exception:
            # The hook belongs to the application, and its errors must not affect the partition.
            self._log.exception("on_event failed for %s", event, event="hook_failed")

    def _say(self, level: int, event: ConsumerEvent) -> None:
        """Log an event. INFO is limited; WARNING and ERROR (a loss, a moved position) are logged each time."""
        fields = {"topic": event.topic, "partition": event.partition}
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        if level == logging.INFO:
            about = f"{event.topic}-{event.partition}"
            self._log.seldom(level, name, about, "%s", event, **fields)
        elif level == logging.WARNING:
            self._log.warning("%s", event, event=name, **fields)
        else:
            self._log.error("%s", event, event=name, **fields)

    def _count(self, event: ConsumerEvent) -> None:
        stats, topic = self._stats, event.topic
        match event:
            case LogDiverged(rolled_back=(first, last)):
                stats.divergences[topic] += 1
                stats.diverged_records[topic] += last - first + 1
            case EndOffsetRegressed(reason=reason, look_up="latest"):
                stats.regressions[topic, reason] += 1
            case EndOffsetHeld(reason=reason, look_up="latest"):
                stats.held[topic, reason] += 1
            case EndOffsetRegressed() | EndOffsetHeld():
                pass  # these metrics are about ends
            case PositionReset(reason=reason, skipped=skipped):
                stats.resets[topic, reason] += 1
                if skipped is not None:
                    stats.skipped_records[topic] += skipped[1] - skipped[0] + 1
            case PartitionReady(after_s=after_s):
                stats.not_ready_s[topic] += after_s
            case PositionRewound():
                pass  # no record is lost or skipped; the producer counts its dropped batches
            case PartitionNotReady():
                pass  # `PartitionReady` counts it
            case LossCheckInconclusive():
                stats.history_trimmed[topic] += 1

    def health(self) -> ConsumerHealth:
        """Return whether the program polls and all its partitions are read; separately, whether a broker is connected.

        It is meant for probes (docs/operations.md): it never waits for a broker or a lock. Any thread may call it at
        any time, even after `close`.
        """
        grouped = self.config["group_id"] is not None
        stopped = {
            (tp.topic, tp.partition): str(part.error)
            for tp, part in list(self._parts.items())
            if part.error is not None and self._subscription.assignment.get(tp) is part.state
        }
        return consumer_health(
            ConsumerSeen(
                closed=bool(self._closed),
                connected=bool(self._manager.has_connection),
                last_poll_age_s=self._polls.age_s(),
                max_poll_interval_s=self.config["max_poll_interval_ms"] / 1000 if grouped else float("inf"),
                stopped=stopped,
            )
        )

    def _readings(self) -> Iterable[Reading]:
        """Return the readings that `kafkasafe.metrics` collects."""
        health = None if self._closed else self.health()
        return consumer_readings(self._stats, self._progress(), self.config["group_id"] or "", health)

    def _progress(self) -> dict[TopicPartition, PartitionProgress]:
        """Return the progress on each assigned partition, for metrics. Any thread may call it."""
        now, found = time.monotonic(), {}
        for tp, state in self._assigned().items():
            part, position = self._parts.get(tp), state.position
            known = self._tracker.end_offset(tp.topic, tp.partition, isolation_level=self._isolation)
            ends = [end for end in (known, state.highwater) if end is not None]
            found[tp] = PartitionProgress(
                None if position is None else position.offset,
                max(ends, default=None),
                now - part.failing_since if part is not None and part.failures else None,
                part is not None and part.error is not None,
                part is not None and part.failures > 0 and bool(part.remote),
            )
        return found

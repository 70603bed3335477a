"""Report events to the application's hook, the log and the metrics."""

from __future__ import annotations

import collections
import logging
import re
from collections.abc import Callable
from typing import Any

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
from kafkasafe.logs import EventLog
from kafkasafe.stats import ConsumerStats

log = EventLog("consumer")


class Reports:
    """Reports the events of one consumer to its hook, log and metrics.

    Args:
        client_id: Client id of the consumer; a field of its log records.
        on_event: The application's hook, or None.

    Attributes:
        log: The consumer's log.
        counters: Maps the name of each kind of event to the number of such events. Also counts failed writes of the
            file `lineage_path`.
        stats: What the metrics show.
    """

    __slots__ = ("_on_event", "counters", "log", "stats")

    def __init__(self, client_id: Any, on_event: Callable[[Any], object] | None) -> None:
        self._on_event = on_event
        self.log = log.bind(client_id=client_id)
        self.counters: collections.Counter[str] = collections.Counter()
        self.stats = ConsumerStats()

    def lineage_not_written(self) -> None:
        self.counters["lineage_write_errors"] += 1

    def emit(self, event: ConsumerEvent) -> None:
        self.counters[type(event).__name__] += 1
        self._count(event)
        self._say(_level_of(event), event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            # The hook belongs to the application. The hook's errors must not affect the partition.
            self.log.exception("on_event failed for %s", event, event="hook_failed")

    def _say(self, level: int, event: ConsumerEvent) -> None:
        """Log an event. The rate of INFO events is limited. WARNING and ERROR events (a loss, a moved position) are all
        logged.
        """
        fields = {"topic": event.topic, "partition": event.partition}
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
        if level == logging.INFO:
            about = f"{event.topic}-{event.partition}"
            self.log.limited(level, name, about, "%s", event, **fields)
        elif level == logging.WARNING:
            self.log.warning("%s", event, event=name, **fields)
        else:
            self.log.error("%s", event, event=name, **fields)

    def _count(self, event: ConsumerEvent) -> None:
        stats, topic = self.stats, event.topic
        match event:
            case LogDiverged(rolled_back=(first, last)):
                stats.divergences[topic] += 1
                stats.diverged_records[topic] += last - first + 1
            case EndOffsetRegressed(reason=reason, look_up="latest"):
                stats.regressions[topic, reason] += 1
            case EndOffsetHeld(reason=reason, look_up="latest"):
                stats.held[topic, reason] += 1
            case EndOffsetRegressed() | EndOffsetHeld():
                pass  # the metrics of regressions are only about end offsets
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


def _level_of(event: ConsumerEvent) -> int:
    """Return the level at which an event is logged. docs/log-events.md lists the levels."""
    match event:
        case LogDiverged() | EndOffsetRegressed():
            return logging.ERROR
        case PositionReset(skipped=skipped):
            return logging.INFO if skipped is None else logging.WARNING
        case (
            EndOffsetHeld()
            | LossCheckInconclusive()
            | PartitionNotReady()
            | PartitionReady()
            | PositionRewound()
        ):
            return logging.INFO

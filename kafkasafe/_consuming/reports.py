"""Report events to the application's hook, the log and the metrics."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from kafkasafe._consuming.event_table import ROWS
from kafkasafe.events import ConsumerEvent
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
        stats: The consumer's counters.
    """

    __slots__ = ("_on_event", "log", "stats")

    def __init__(self, client_id: Any, on_event: Callable[[Any], object] | None) -> None:
        self._on_event = on_event
        self.log = log.bind(client_id=client_id)
        self.stats = ConsumerStats()

    def lineage_not_written(self) -> None:
        self.stats.lineage_write_errors.add()

    def emit(self, event: ConsumerEvent) -> None:
        self.stats.events[type(event).__name__] += 1
        row = ROWS[type(event)]
        if row.count is not None:
            row.count(self.stats, event)
        self._say(row.level_of(event), event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            # Errors of the application's hook must not affect the partition.
            self.log.exception("on_event failed for %s", event, event="hook_failed")

    def _say(self, level: int, event: ConsumerEvent) -> None:
        """Log an event. Only INFO events are rate-limited. All WARNING and ERROR events (a loss, a moved position) are
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

"""Reports events of the Spark source to Python's logging, to the driver's metrics, and to the user's function."""

from __future__ import annotations

import logging

from kafkasafe.events import EndOffsetHeld, EndOffsetRegressed, SourceDataLost
from kafkasafe.spark.option_values import imported
from kafkasafe.spark.outcomes import tell_source_event
from kafkasafe.spark.tokens import function_of

log = logging.getLogger("kafkasafe.spark")

Notice = EndOffsetHeld | EndOffsetRegressed | SourceDataLost


class Notices:
    """Reports events. An instance can be pickled, because each task reports its events from its own process.

    Args:
        hook: `package.module:function`, called with each event; None: no function is called.

    Raises:
        ConfigError: The function cannot be imported.
    """

    def __init__(self, hook: str | None) -> None:
        self._hook = hook
        if hook is not None:
            imported("onEvent", hook)

    def tell(self, event: Notice) -> None:
        """Reports one event. If the user's function raises an exception, the query ends."""
        if isinstance(event, EndOffsetHeld):
            log.info("%s", event)
        else:
            log.warning("%s", event)
        tell_source_event(*_counted(event))
        if self._hook is not None:
            function_of(self._hook)(event)


def _counted(event: Notice) -> tuple[str, str, str, int]:
    """Returns (topic, kind of event, reason, number of lost records) of an event, for the metrics."""
    match event:
        case EndOffsetHeld():
            return event.topic, "held", event.reason, 0
        case EndOffsetRegressed():
            return event.topic, "regressed", event.reason, 0
        case SourceDataLost():
            lost = 0 if event.lost is None else event.lost[1] - event.lost[0] + 1
            return event.topic, "lost", event.reason, lost

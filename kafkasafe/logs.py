"""Logging: one tree of loggers, `kafkasafe`, whose records carry fields.

Loggers: `kafkasafe.producer`, `kafkasafe.spool`, `kafkasafe.network`, `kafkasafe.consumer`, `kafkasafe.retry`,
`kafkasafe.config`. A level or a handler at `kafkasafe` is one for all of them.

Every record has `event`, a name that stays the same when the sentence changes, and, as far as they are known,
`client_id`, `lane`, `topic`, `partition`, `code`, `error` (name of the error), `attempt`, `pause_s`, `records`,
`batches`, `position`, `path`: attributes of the record, as `extra` makes them, so that any JSON formatter shows them.
No record holds an option's value, a key or a value of the application's.

What an outage would repeat is said at most once in ten seconds of one thing, and ten times of one kind; the next record
of the kind says in `suppressed` how many were left out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

__all__ = ["WINDOW_S", "EventLog", "as_own_thread", "limit_foreign", "own_threads"]

WINDOW_S: Final = 10.0
"""How long one thing is not said again, seconds."""
_PER_WINDOW: Final = 10
_REMEMBERED: Final = 1000
_FRAMES: Final = 3
"""Between the logging module and whoever calls `EventLog`."""


class _Limiter:
    """Whether something may be said now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[tuple[str, str], float] = {}
        self._windows: dict[str, tuple[float, int]] = {}
        self._suppressed: dict[str, int] = {}

    def admit(self, kind: str, about: str) -> int | None:
        """How many of the kind were left out since the last one; None: this one is left out as well."""
        now = self._clock()
        with self._lock:
            began, count = self._windows.get(kind, (now, 0))
            if now - began >= WINDOW_S:
                began, count = now, 0
            if count >= _PER_WINDOW or now - self._last.get((kind, about), -WINDOW_S) < WINDOW_S:
                self._suppressed[kind] = self._suppressed.get(kind, 0) + 1
                return None
            self._windows[kind] = began, count + 1
            if len(self._last) >= _REMEMBERED:
                self._last = {key: at for key, at in self._last.items() if now - at < WINDOW_S}
            self._last[kind, about] = now
            return self._suppressed.pop(kind, 0)


class EventLog:
    """A logger whose records carry fields.

    Args:
        name: Behind `kafkasafe.`.
        clock: Seconds, for the limits.
        fields: Of every record.
    """

    __slots__ = ("_fields", "_limiter", "_logger")

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic, **fields: Any) -> None:
        self._logger = logging.getLogger(f"kafkasafe.{name}")
        self._fields = fields
        self._limiter = _Limiter(clock)

    def bind(self, **fields: Any) -> EventLog:
        """The same logger with more fields, and limits of its own."""
        bound = EventLog.__new__(EventLog)
        bound._logger = self._logger
        bound._fields = {**self._fields, **fields}
        bound._limiter = _Limiter(self._limiter._clock)
        return bound

    def debug(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """For whoever looks for a bug."""
        self._log(logging.DEBUG, event, message, args, fields)

    def info(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """What is worth knowing."""
        self._log(logging.INFO, event, message, args, fields)

    def warning(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """What may need somebody."""
        self._log(logging.WARNING, event, message, args, fields)

    def error(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """What needs somebody."""
        self._log(logging.ERROR, event, message, args, fields)

    def exception(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """A bug, or the application's own error, with its traceback."""
        self._log(logging.ERROR, event, message, args, fields, exc_info=True)

    def seldom(self, level: int, event: str, about: str, message: str, *args: object, **fields: Any) -> None:
        """What an outage repeats.

        Args:
            level: As `logging` has them.
            event: The kind of thing.
            about: The thing: a partition, a lane.
            message: As for `logging`.
            args: As for `logging`.
            fields: Of the record.
        """
        if not self._logger.isEnabledFor(level):
            return
        suppressed = self._limiter.admit(event, about)
        if suppressed is None:
            return
        if suppressed:
            message, args = f"{message} (%d more of this kind were not logged)", (*args, suppressed)
        self._log(level, event, message, args, {**fields, "suppressed": suppressed})

    def _log(
        self,
        level: int,
        event: str,
        message: str,
        args: tuple[object, ...],
        fields: dict[str, Any],
        *,
        exc_info: bool = False,
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {**self._fields, **fields, "event": event}
            self._logger.log(level, message, *args, extra=extra, exc_info=exc_info, stacklevel=_FRAMES)


class _Foreign(logging.Filter):
    """Lets pass what others log, and of our own network threads no more than of anything else."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._limiter = _Limiter(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        if record.thread not in own_threads or record.levelno < logging.INFO:
            return True
        if record.levelno < logging.WARNING and not record.name.startswith("kafka.net."):
            return True  # how a group is doing, which is no outage's repetition
        return self._limiter.admit(record.name, str(record.msg)) is not None


own_threads: Final[set[int]] = set()
"""Idents of network threads that speak for kafkasafe."""
_FOREIGN: Final = (
    *("kafka.net.manager", "kafka.net.connection", "kafka.net.transport", "kafka.net.inet", "kafka.cluster"),
    *(
        "kafka.coordinator",
        "kafka.coordinator.consumer",
        "kafka.coordinator.heartbeat",
        "kafka.consumer.fetcher",
    ),
)
_foreign = _Foreign(time.monotonic)


def as_own_thread(run: Callable[[], None]) -> Callable[[], None]:
    """`run`, for a network thread that speaks for kafkasafe."""

    def marked() -> None:
        ident = threading.get_ident()
        own_threads.add(ident)
        try:
            run()
        finally:
            own_threads.discard(ident)

    return marked


def limit_foreign() -> None:
    """What kafka-python says of each failed connection of ours is limited as well; of others' nothing changes."""
    for name in _FOREIGN:
        logger = logging.getLogger(name)
        if _foreign not in logger.filters:
            logger.addFilter(_foreign)

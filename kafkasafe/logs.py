"""Logging: one tree of loggers, `kafkasafe`, whose records carry fields.

Loggers: `kafkasafe.producer`, `kafkasafe.spool`, `kafkasafe.network`, `kafkasafe.consumer`, `kafkasafe.retry`,
`kafkasafe.config`. A level or a handler at `kafkasafe` is one for all of them.

Every record has `event`, a name that stays the same when the sentence changes, and, as far as they are known,
`client_id`, `lane`, `topic`, `partition`, `code`, `error` (name of the error), `attempt`, `pause_s`, `records`,
`batches`, `position`, `path`: attributes of the record, as `extra` makes them, so that any JSON formatter shows them.
No record holds an option's value, a key or a value of the application's.

What an outage would repeat is said at most once in ten seconds of one thing, and ten times of one kind; the next record
of the kind says in `suppressed` how many were left out.

No thread that delivers records waits for a handler: what it logs is handled on a thread of its own (`apart`).
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

__all__ = ["WINDOW_S", "EventLog", "apart", "as_own_thread", "drain", "limit_foreign", "own_threads"]

WINDOW_S: Final = 10.0
"""How long one thing is not said again, seconds."""
_PER_WINDOW: Final = 10
_REMEMBERED: Final = 1000
_QUEUED: Final = 10_000
"""Records that wait for slow handlers."""
_EXIT_S: Final = 5.0
_FRAMES: Final = 3
"""Between the logging module and whoever calls `EventLog`."""


class _Limiter:
    """Whether something may be said now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Taken again by a signal handler that logs in the middle of another line of its thread.
        self._lock = threading.RLock()
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
        self._logger.addFilter(_apart)
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
        # Not the record's thread: one that is `apart` has it handled on another one, where it has been counted.
        if threading.get_ident() not in own_threads or record.levelno < logging.INFO:
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
    """What kafka-python logs on threads of ours is limited in outages, and `apart` where they are.

    Of what others have it log nothing changes.
    """
    for name in _FOREIGN:
        logger = logging.getLogger(name)
        if _foreign not in logger.filters:
            logger.addFilter(_foreign)
    for name in [*_FOREIGN, *list(logging.Logger.manager.loggerDict)]:
        if name.split(".")[0] == "kafka":
            logging.getLogger(name).addFilter(_apart)


class _Writer:
    """A thread that gives log records to the application's handlers, for threads that must not wait for one.

    A handler may send its records through the very producer that logs, and hold its lock until that has delivered them.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[logging.LogRecord | threading.Lock] = queue.SimpleQueue()
        self._dropped: collections.deque[None] = collections.deque()
        self._once = threading.Lock()
        self._started = False
        self._ident = 0

    def put(self, record: logging.LogRecord) -> None:
        """Log it soon. When handlers do not keep up it is dropped, and counted."""
        if self._queue.qsize() >= _QUEUED:
            self._dropped.append(None)
            return
        self._queue.put(record)
        if not self._started:
            try:
                threading.Thread(target=self._run, name="kafkasafe-log", daemon=True).start()
            except RuntimeError:
                return  # the interpreter is ending
            self._started = True

    def drain(self, timeout_s: float) -> bool:
        """Wait until what was put before has been logged; False when the time ended first."""
        if not self._started or self._ident == threading.get_ident():
            return True
        passed = threading.Lock()
        passed.acquire()
        self._queue.put(passed)
        return passed.acquire(timeout=timeout_s)

    def _run(self) -> None:
        if not self._once.acquire(blocking=False):
            return
        self._ident = threading.get_ident()
        while True:
            item = self._queue.get()
            if isinstance(item, logging.LogRecord):
                self._log(item)
                self._say_dropped()
            else:
                item.release()
            del item  # or a traceback would stay until the next one comes

    def _log(self, record: logging.LogRecord) -> None:
        # A handler is the application's; logging itself reports what goes wrong in most of them.
        with contextlib.suppress(BaseException):
            logging.getLogger(record.name).handle(record)

    def _say_dropped(self) -> None:
        dropped = len(self._dropped)
        if dropped and self._queue.qsize() < _QUEUED // 2:
            for _ in range(dropped):
                self._dropped.popleft()
            with contextlib.suppress(BaseException):
                EventLog("producer").warning(
                    "%d log records were dropped: a handler takes longer than they come",
                    dropped,
                    suppressed=dropped,
                    event="log_dropped",
                )


class _Apart(logging.Filter):
    """What is logged on a thread that is `apart` goes to the writer; there it passes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged here and now."""
        if not getattr(_thread, "apart", False):
            return True
        if record.args and record.name.startswith("kafka."):
            # kafka-python names its sockets; later they are closed, and can no longer be printed.
            with contextlib.suppress(Exception):
                record.msg, record.args = record.getMessage(), None
        _writer.put(record)
        return False


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Within this, the current thread waits for no handler: what kafkasafe and kafka-python log is logged elsewhere."""
    before = getattr(_thread, "apart", False)
    _thread.apart = True
    try:
        yield
    finally:
        _thread.apart = before


def drain(timeout_s: float) -> bool:
    """Wait until what was logged `apart` has been logged; False when the time ended first."""
    return _writer.drain(timeout_s)


_thread: Final = threading.local()
_apart: Final = _Apart()
_writer = _Writer()


def _forked() -> None:
    global _writer  # the parent's thread logs what the parent's threads said
    _writer = _Writer()


os.register_at_fork(after_in_child=_forked)
# Producers close at exit as well, and before this, because they are made later; logging's own hook comes after it.
atexit.register(drain, _EXIT_S)

"""Logging: one tree of loggers, `kafkasafe`, whose records carry fields.

Loggers: `kafkasafe.producer`, `kafkasafe.spool`, `kafkasafe.network`, `kafkasafe.consumer`, `kafkasafe.retry`,
`kafkasafe.config`. A level or a handler set on `kafkasafe` applies to all these loggers.

Every record has the attribute `event`, a name that does not change when the message is reworded. If known, it also has
these attributes: `client_id`, `lane`, `topic`, `partition`, `code`, `error` (name of the error), `attempt`, `pause_s`,
`records`, `batches`, `position` and `path`. The logger sets these attributes by `extra`, so any JSON formatter shows
them. No log record contains an option's value, or a key or value of the application's Kafka records.

To limit repetitions during an outage, an event is logged at most once in ten seconds for each subject (such as a
partition), and at most ten times in ten seconds for all subjects together. When the event is logged again, the
attribute `suppressed` is the number of records that were not logged.

Threads that deliver records never wait for a log handler: a separate thread handles their log records (`apart`).
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
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from kafkasafe.process.locks import new_lock, new_rlock

WINDOW_S: Final = 10.0
"""How many seconds pass before an event is logged again for the same subject (such as a partition)."""
_PER_WINDOW: Final = 10
_REMEMBERED: Final = 1000
_QUEUED: Final = 10_000
"""Largest number of log records that wait for slow handlers."""
_EXIT_S: Final = 5.0
_FRAMES: Final = 3
"""Number of stack frames between the logging module and the caller of `EventLog`."""


_limiters: Final[weakref.WeakSet[_Limiter]] = weakref.WeakSet()


class _Limiter:
    """Decides whether a record may be logged now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Reentrant: a signal handler may log while its own thread holds the lock.
        self._lock = new_rlock()
        self._last: dict[tuple[str, str], float] = {}
        self._windows: dict[str, tuple[float, int]] = {}
        self._suppressed: dict[str, int] = {}
        _limiters.add(self)

    def forked(self) -> None:
        """In a forked child: replace the lock, because a thread of the parent may have held it during the fork."""
        self._lock = new_rlock()

    def admit(self, kind: str, about: str) -> int | None:
        """Return how many records of this kind were suppressed since the last one that was logged; None: suppress this
        one.
        """
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
                self._last = self._last_since(now - WINDOW_S)
            self._last[kind, about] = now
            return self._suppressed.pop(kind, 0)

    def _last_since(self, time_s: float) -> dict[tuple[str, str], float]:
        return {key: at for key, at in self._last.items() if at > time_s}


class EventLog:
    """A logger whose records carry fields.

    Args:
        name: Name of the logger without the prefix `kafkasafe.`.
        clock: Returns the time in seconds. The limits use this clock.
        fields: Fields of every record.
    """

    __slots__ = ("_clock", "_fields", "_limiter", "_logger", "_name")

    def __init__(self, name: str, *, clock: Callable[[], float] = time.monotonic, **fields: Any) -> None:
        self._name, self._clock = name, clock
        self._logger = logging.getLogger(f"kafkasafe.{name}")
        self._logger.addFilter(_apart)
        self._fields = fields
        self._limiter = _Limiter(clock)

    def bind(self, **fields: Any) -> EventLog:
        """Return an EventLog with the same logger, more fields, and limits of its own."""
        return EventLog(self._name, clock=self._clock, **{**self._fields, **fields})

    def debug(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """Log details for debugging."""
        self._log(logging.DEBUG, event, message, args, fields)

    def info(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """Log information."""
        self._log(logging.INFO, event, message, args, fields)

    def warning(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """Log a condition that may need attention."""
        self._log(logging.WARNING, event, message, args, fields)

    def error(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """Log a condition that needs attention."""
        self._log(logging.ERROR, event, message, args, fields)

    def exception(self, message: str, *args: object, event: str, **fields: Any) -> None:
        """Log a bug, or an exception of the application, with its traceback."""
        self._log(logging.ERROR, event, message, args, fields, exc_info=True)

    def limited(self, level: int, event: str, about: str, message: str, *args: object, **fields: Any) -> None:
        """Log a message that would be repeated during an outage. The limits apply.

        Args:
            level: A level of `logging`.
            event: Name of the event.
            about: Subject of the event, such as a partition or a lane.
            message: As for `logging`.
            args: As for `logging`.
            fields: Fields of the record.
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


class _KafkaPythonFilter(logging.Filter):
    """Limits what kafka-python logs on kafkasafe's network threads. kafka-python's records from other threads pass."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._limiter = _Limiter(clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        # Check the current thread, not the thread that the log record names. A record that was logged within `apart` is
        # filtered twice, the second time on the thread that writes it, and must be counted only once.
        if threading.get_ident() not in own_threads or record.levelno < logging.INFO:
            return True
        if record.levelno < logging.WARNING and not record.name.startswith("kafka.net."):
            return True  # the record is about a consumer group; such records do not repeat during an outage
        return self._limiter.admit(record.name, str(record.msg)) is not None


LOGGED_ON: Final = "kafkasafe_thread"
"""Attribute of a log record: name of the thread that logged the record. Set if another thread handles the record (see
`apart`) and the record's `threadName` is None.
"""
own_threads: Final[set[int]] = set()
"""Idents of kafkasafe's network threads."""
_FOREIGN: Final = (
    *("kafka.net.manager", "kafka.net.connection", "kafka.net.transport", "kafka.net.inet", "kafka.cluster"),
    *(
        "kafka.coordinator",
        "kafka.coordinator.consumer",
        "kafka.coordinator.heartbeat",
        "kafka.consumer.fetcher",
    ),
)
_foreign = _KafkaPythonFilter(time.monotonic)


def as_own_thread(run: Callable[[], None]) -> Callable[[], None]:
    """Wrap the function `run` of a network thread of kafkasafe. While `run` runs, its thread is in `own_threads`."""

    def marked() -> None:
        ident = threading.get_ident()
        own_threads.add(ident)
        try:
            run()
        finally:
            own_threads.discard(ident)

    return marked


def limit_foreign() -> None:
    """Limit the records that kafka-python logs on kafkasafe's threads. In the context `apart()`, also let the writer's
    thread handle kafka-python's records. kafka-python's log records from other threads are not changed.
    """
    for name in _FOREIGN:
        logger = logging.getLogger(name)
        if _foreign not in logger.filters:
            logger.addFilter(_foreign)
    for name in [*_FOREIGN, *list(logging.Logger.manager.loggerDict)]:
        if name.split(".")[0] == "kafka":
            logging.getLogger(name).addFilter(_apart)


class _HandlerThread:
    """A thread that passes log records to the application's handlers, for threads that must not wait for a handler.

    Without this thread, a deadlock is possible: a handler may send log records through the producer that is logging,
    and hold the handler's lock until they are delivered, while the producer waits for this lock.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[logging.LogRecord | threading.Lock] = queue.SimpleQueue()
        self._dropped: collections.deque[None] = collections.deque()
        self._once = new_lock()
        self._started = False
        self._ident = 0

    def put(self, record: logging.LogRecord) -> None:
        """Queue the record. If the queue is full because handlers are too slow, drop the record and count it."""
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
        """Wait until all records queued before this call are logged. Return False if the timeout passed first."""
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
            del item  # release the record's traceback before waiting for the next record

    def _log(self, record: logging.LogRecord) -> None:
        # Suppress errors of the application's handlers: for most handlers, `logging` itself reports them.
        with contextlib.suppress(BaseException):
            logging.getLogger(record.name).handle(record)

    def _say_dropped(self) -> None:
        dropped = len(self._dropped)
        if dropped and self._queue.qsize() < _QUEUED // 2:
            for _ in range(dropped):
                self._dropped.popleft()
            with contextlib.suppress(BaseException):
                EventLog("producer").warning(
                    "%d log records were dropped: a log handler is too slow",
                    dropped,
                    suppressed=dropped,
                    event="log_dropped",
                )


class _Thread(threading.local):
    """Whether the current thread is in the context `apart`."""

    is_apart = False


class _Apart(logging.Filter):
    """Hands log records from inside `with apart()` to the writer's thread. Accepts all other log records."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged on the current thread."""
        if not _thread.is_apart:
            return True
        if record.args and record.name.startswith("kafka."):
            # Format the message now: kafka-python logs its sockets, and a closed socket can no longer be printed.
            with contextlib.suppress(Exception):
                record.msg, record.args = record.getMessage(), None
        if record.threadName is None:  # `logging.logThreads` is false
            setattr(record, LOGGED_ON, threading.current_thread().name)
        _writer.put(record)
        return False


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """In this context, another thread handles the records that kafkasafe and kafka-python log on the current thread."""
    before = _thread.is_apart
    _thread.is_apart = True
    try:
        yield
    finally:
        # Call no function here, because Ctrl-C may raise when a function begins: the thread would stay in the context.
        _thread.is_apart = before


def drain(timeout_s: float) -> bool:
    """Wait until all records logged in the context `apart` are handled. Return False if the timeout passed first."""
    return _writer.drain(timeout_s)


_thread: Final = _Thread()
_apart: Final = _Apart()
_writer = _HandlerThread()


def _forked() -> None:
    global _writer  # the parent's writer thread logs the parent's records
    _writer = _HandlerThread()
    own_threads.clear()  # a new thread of the child may get the ident of one of the parent's threads
    for limiter in list(_limiters):
        limiter.forked()


os.register_at_fork(after_in_child=_forked)
# Exit handlers run in reverse order of registration. Producers register after `drain`, `logging` registered before it.
# So the order is: producers, `drain`, `logging`.
atexit.register(drain, _EXIT_S)

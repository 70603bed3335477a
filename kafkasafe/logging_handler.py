"""KafkaHandler: sends log records to a Kafka topic through a spool, without blocking the program.

See docs/logging-handler.md.

A thread of the program that logs only formats the record and puts it into a queue. The handler's own thread opens the
producer and sends the record. So the program's threads never wait for the producer's locks or disk, and the producer
never logs on the program's threads.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, NoReturn, Unpack

import kafka.errors as kafka_errors
from kafka.util import ensure_valid_topic_name

from kafkasafe.config import DEFAULT_CLIENT_ID, take_locks_early
from kafkasafe.errors import ConfigError, ProducerClosedError, SpoolError, SpoolFullError
from kafkasafe.logs import LOGGED_ON, apart
from kafkasafe.options import ProducerOptions
from kafkasafe.process.at_exit import at_end_of_child
from kafkasafe.process.locks import new_lock
from kafkasafe.process.wake_flag import WakeFlag
from kafkasafe.process.weak_members import members
from kafkasafe.producer import SafeProducer

__all__ = ["KafkaHandler"]

_PAUSE_S: Final = 0.5
"""Pause after a failed attempt, seconds."""
_STEP_S: Final = 0.01
_THREAD: Final = "kafkasafe-log-handler"
_OWN: Final = ("kafka-io-", "kafkasafe-pump-", "kafkasafe-callbacks-", "kafkasafe-lookup-")
"""Prefixes of the names of a producer's threads. The client id follows."""
_OF_PRODUCERS: Final = ("kafkasafe.producer", "kafkasafe.spool", "kafkasafe.network")

Chosen = str | Callable[[logging.LogRecord], str | bytes | None]
Item = tuple[str, bytes | None, bytes, logging.LogRecord]


class _Mark:
    """Marker in the queue.

    Attributes:
        is_reached: Whether all records before the marker are accepted or dropped.
    """

    def __init__(self) -> None:
        self.is_reached = False
        # Ctrl-C could leave the lock of a `threading.Event` taken, for which `reach` would wait for ever.
        self._wake = WakeFlag()

    def reach(self) -> None:
        self.is_reached = True
        self._wake.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for `is_reached`. Return it. If several threads wait, the time-out may pass for all but one of them."""
        if not self.is_reached:
            self._wake.wait(timeout_s)
        return self.is_reached


class KafkaHandler(logging.Handler):
    """Sends log records to a topic. A SafeProducer's spool accepts the records at once, and delivers them when brokers
    answer.

    `logging.config.dictConfig` can create the handler. The root logger can use the handler at any level, until the
    interpreter exits. Each forked child opens a producer of its own when it logs for the first time. The handler does
    not send log records of a handler's own producer, or of kafka-python on that producer's threads: each such record
    would cause another one. Log records of all other producers are sent.

    If the spool is full and the queue holds `queue_records` records, a call that logs waits for room, at most
    `block_ms`. If no room appears in time, the handler drops the log record, and drops further records at once until
    there is room again. The handler counts the dropped records (`dropped`), and calls `handleError` for the first of
    them. When there is room again, the handler sends a log record with the number of dropped records.

    Args:
        topic: Topic name, a format string for the log record's attributes, or a function of the log record.
        key: Key of the Kafka record: a format string for the log record's attributes (`"%(name)s"`), or a function of
            the log record. Default: no key.
        level: Lowest level.
        on_full: What to do with a record when the spool is full: "wait" for room (the queue waits, too), or "drop" the
            record.
        queue_records: How many records may wait in memory until the spool accepts them. A `kill -9` loses these
            records, but normally each of them waits only a few milliseconds.
        block_ms: How many milliseconds a thread that logs waits for room in the queue.
        close_ms: How many milliseconds `close` waits until the spool has accepted the queued records. Then `close`
            waits for deliveries, like `SafeProducer.close`.
        configs: SafeProducer's options; `bootstrap_servers` is needed. Two defaults differ
            (`client_id="kafkasafe-log"`, `on_blocked_topic="accept"`).

    Attributes:
        dropped: Number of records that were not accepted.

    Raises:
        ConfigError: An option is unknown or cannot work.
    """

    def __init__(
        self,
        topic: Chosen,
        *,
        key: Chosen | None = None,
        level: int | str = logging.NOTSET,
        on_full: str = "wait",
        queue_records: int = 10_000,
        block_ms: float = 100,
        close_ms: float = 10_000,
        **configs: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(level)
        from kafkasafe.config import validate

        if on_full not in {"wait", "drop"}:
            raise ConfigError(f"on_full must be 'wait' or 'drop', not {on_full!r}")
        numbers: dict[str, Any] = {"queue_records": queue_records, "block_ms": block_ms, "close_ms": close_ms}
        for name, value in numbers.items():
            least = 1 if name == "queue_records" else 0
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
                raise ConfigError(f"{name} must be a number of at least {least}, not {value!r}")
        _check_chosen("topic", topic)
        if key is not None:
            _check_chosen("key", key)
        self._configs: ProducerOptions = {
            "client_id": "kafkasafe-log",
            "on_blocked_topic": "accept",
            "max_block_ms": int(_PAUSE_S * 1000),
            **configs,
        }
        if validate(dict(self._configs)).transactional_id is not None:
            raise ConfigError("transactional_id: log records are not sent in transactions; leave it out")
        self._topic = topic
        self._key = key
        self._drops = on_full == "drop"
        self._most = queue_records
        self._block_s = block_ms / 1000
        self._close_s = close_ms / 1000
        self.dropped = 0
        self._begin()
        _HANDLERS.add(self)

    def createLock(self) -> None:  # noqa: N802  # logging's name
        """Create no lock: the queue is thread-safe, so threads that log need not wait for each other."""
        self.lock = None

    def _begin(self) -> None:
        """Initialise the state for this process: an empty queue and no thread."""
        self._queue: queue.SimpleQueue[Item | _Mark] = queue.SimpleQueue()
        self._once = new_lock()
        """Held while a thread is being started."""
        self._only = new_lock()
        """Held by the handler's thread from its beginning on."""
        self._begun = WakeFlag()
        self._thread: threading.Thread | None = None
        self._ends_with_child = False
        self._producer: SafeProducer | None = None
        self._stuck = False
        self._line: list[object] = []
        """One entry for each thread that waits for room, in order of arrival."""
        self._unsaid = 0
        """Number of log records dropped since drops were last reported."""
        self._give_up_at: float | None = None
        """After this time, a record is dropped if the producer does not accept it. Set by `close`."""
        self._closed = False
        self._last = _Mark()
        """The last item: `close` puts it into the queue."""

    # -- threads that log --------------------------------------------------------------------------------------------

    def handle(self, record: logging.LogRecord) -> Any:
        """Put a record into the queue, unless a filter drops it.

        Takes no lock. From Python 3.13 on, logging's own method fails for a handler without a lock.
        """
        found: Any = self.filter(record)  # from Python 3.12 on, a filter may return another record
        if found:
            self.emit(found if isinstance(found, logging.LogRecord) else record)
        return found

    def emit(self, record: logging.LogRecord) -> None:
        """Put a record into the queue."""
        if self._is_own(record):
            return
        try:
            value = self.format(record).encode("utf-8", "backslashreplace")
            topic: Any = self._chosen(self._topic, record)
            key = None if self._key is None else self._chosen(self._key, record)
            if isinstance(key, str):
                key = key.encode("utf-8", "backslashreplace")
        except RecursionError:
            raise
        except Exception:
            self._drop(record, raised=True)
            return
        if self._closed or not self._has_room():
            self._drop(record)
            return
        self._queue.put((topic, key, value, record))
        self._start()
        if self._last.is_reached:
            self._drop_rest()

    def _is_own(self, record: logging.LogRecord) -> bool:
        """Return whether a handler's producer logged the record: sending such a record would cause another one."""
        # Without `logging.logThreads`, a log record does not name its thread.
        name = record.threadName or getattr(record, LOGGED_ON, None) or threading.current_thread().name
        if name == _THREAD:
            return True
        configs = [each._configs for each in members(lambda: _HANDLERS)]  # noqa: SLF001  # this class
        clients = {each["client_id"] or DEFAULT_CLIENT_ID for each in configs}
        if record.name in _OF_PRODUCERS:
            return getattr(record, "client_id", None) in clients
        # Compare thread names, because the thread that logged may have ended, and then cannot be looked up.
        return (
            record.name.partition(".")[0] == "kafka"
            and name.startswith(_OWN)
            and name.endswith(tuple(clients))
        )

    @staticmethod
    def _chosen(given: Chosen, record: logging.LogRecord) -> str | bytes | None:
        if callable(given):
            return given(record)
        return given % record.__dict__ if "%(" in given else given

    def _has_room(self) -> bool:
        line = self._line
        room = self._most - self._queue.qsize()
        if len(line) < room:  # enough room for this thread's record, and for the records of waiting threads
            self._stuck = False
            return True
        if self._stuck and room <= 0:
            return False
        # Serve threads in order of arrival. Otherwise later threads could take every free place, and this thread would
        # wait in vain.
        place = object()
        line.append(place)
        try:
            end = time.monotonic() + self._block_s
            while time.monotonic() < end:
                time.sleep(_STEP_S)
                if line.index(place) < self._most - self._queue.qsize():
                    self._stuck = False
                    return True
        finally:
            line.remove(place)
        # This thread got no room in time. Until the queue has room again, later calls drop their records at once.
        self._stuck = True
        return False

    def _drop(self, record: logging.LogRecord, *, raised: bool = False) -> None:
        """Count a record that is not sent, and report the first one.

        Args:
            record: The record.
            raised: Whether the record is dropped because of an exception that the handler has just caught. An exception
                that the program was handling when it logged does not count.
        """
        self.dropped += 1
        self._unsaid += 1
        if self._unsaid > 1:
            return
        if raised:
            self.handleError(record)
            return
        try:
            _raise_full(
                "The handler is closed"
                if self._closed
                else f"The queue is full: {self._most} records wait until the spool accepts them"
            )
        except SpoolFullError:
            self.handleError(record)

    def _drop_rest(self) -> None:
        """Count the records that threads queued while the handler was being closed: they will not be sent."""
        with contextlib.suppress(queue.Empty):
            while True:
                item = self._queue.get_nowait()
                if not isinstance(item, _Mark):
                    self._drop(item[3])

    # -- the handler's thread ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is not None or not self._once.acquire(blocking=False):
            return
        try:
            take_locks_early()
            if not self._ends_with_child:
                # A child of multiprocessing does not call `logging.shutdown`.
                at_end_of_child(self.close)
                self._ends_with_child = True
            # If the process has too many threads, the next log record tries again to start the handler's thread. If the
            # interpreter is ending, `close` sends the queued records. After a Ctrl-C, the next log record may start a
            # second thread: the thread that does not get the lock `_only` ends at once.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, name=_THREAD, daemon=True).start()
                if self._thread is None:
                    self._begun.wait(threading.TIMEOUT_MAX)
        finally:
            self._once.release()

    @apart()
    def _run(self) -> None:
        if not self._only.acquire(blocking=False):
            return
        self._thread = threading.current_thread()
        self._begun.set()
        while True:
            item = self._queue.get()
            if isinstance(item, _Mark):
                if item is self._last:
                    self._end()
                    item.reach()
                    self._drop_rest()
                    atexit.unregister(self.close)
                    return
                self._spool_all()
                item.reach()
                continue
            self._accept(item)
            self._say_dropped(item)

    def _accept(self, item: Item) -> None:
        """Send one record. Return once it is accepted or dropped."""
        topic, key, value, record = item
        while True:
            try:
                self._opened().send(topic, value, key, timestamp_ms=int(record.created * 1000))
            except (
                TypeError,
                ValueError,
                kafka_errors.MessageSizeTooLargeError,
                kafka_errors.InvalidTopicError,
            ):
                self._drop(record, raised=True)
                return
            except (kafka_errors.KafkaError, RuntimeError, OSError, MemoryError) as error:
                self._reopen_after(error)
                if self._drops or self._gives_up():
                    self._drop(record, raised=True)
                    return
                time.sleep(_PAUSE_S)
            except Exception:
                # The producer can never send this record, and a second attempt would delay all later records.
                self._drop(record, raised=True)
                return
            else:
                return

    def _opened(self) -> SafeProducer:
        if self._producer is None:
            producer = SafeProducer(**self._configs)
            # The handler's `close` closes the producer. `logging` calls `close` after all other exit handlers, so that
            # they can still log.
            producer.parts.shutdown.forgo_exit()
            self._producer = producer
        return self._producer

    def _reopen_after(self, error: Exception) -> None:
        producer = self._producer
        ended = producer is not None and producer.parts.delivery.pump.ledger.failure is not None
        if isinstance(error, (ProducerClosedError, SpoolError)) and ended and producer is not None:
            with contextlib.suppress(Exception):
                producer.close(0.0)
            self._producer = None

    def _gives_up(self) -> bool:
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    def _say_dropped(self, item: Item) -> None:
        if not self._unsaid:
            return
        count = self._unsaid
        said = logging.LogRecord(
            "kafkasafe.logging_handler",
            logging.WARNING,
            __file__,
            0,
            "%d log records were dropped",
            (count,),
            None,
        )
        with contextlib.suppress(Exception):
            self._opened().send(item[0], self.format(said).encode(), item[1])
            self._unsaid -= count

    def _spool_all(self) -> None:
        if self._producer is not None:
            with contextlib.suppress(Exception):
                self._producer.durable(self._close_s)

    def _end(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                producer.close()
            except Exception:
                self.handleError(
                    logging.LogRecord("kafkasafe", logging.ERROR, __file__, 0, "close", (), None)
                )

    # -- flush and close ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait, for `close_ms` at most, until all records that were logged before this call are on disk.

        Inside `dictConfig` and `fileConfig`, `flush` returns at once, because this thread then holds `logging`'s own
        lock, which the producer's threads may need.
        """
        if self._thread is None and not self._queue.empty():
            self._start()
        if self._thread is None or self._closed or threading.current_thread() is self._thread:
            return
        if _configures():
            return
        mark = _Mark()
        self._queue.put(mark)
        mark.wait(self._close_s)

    def close(self) -> None:
        """Write the queue to the spool, within `close_ms`; then close the producer, which waits a while for deliveries.

        Undelivered records stay on disk for the next handler with this `spool_dir`. When the interpreter exits,
        `logging.shutdown` calls this method after all other exit handlers. If `dictConfig` or `fileConfig` replaces
        this handler, the handler closes in the background, and the interpreter waits for it at exit. A repeated call
        waits for the first one to finish.
        """
        thread = self._thread
        first, self._closed = not self._closed, True
        if first:
            self._give_up_at = time.monotonic() + self._close_s
            if thread is not None:
                self._queue.put(self._last)
        if threading.current_thread() is not thread:
            if thread is not None and _configures():
                atexit.register(self.close)
            elif thread is not None:
                while thread.is_alive() and not self._last.wait(0.1):
                    pass
            elif first:
                while not self._queue.empty():
                    item = self._queue.get()
                    if not isinstance(item, _Mark):
                        self._accept(item)
                self._end()
        super().close()


def _configures() -> bool:
    """Return whether this thread holds `logging`'s own lock, which the producer's threads may need."""
    owned = getattr(getattr(logging, "_lock", None), "_is_owned", None)
    return owned is not None and bool(owned())


def _check_chosen(name: str, given: Any) -> None:
    """Check the topic or the key when the handler is created: otherwise a mistake would show only when a record is
    logged.
    """
    if not callable(given) and not isinstance(given, str):
        raise ConfigError(f"{name} must be a string or a function of the log record, not {given!r}")
    if name == "topic" and isinstance(given, str) and "%(" not in given:
        try:
            ensure_valid_topic_name(given)
        except ValueError as error:
            raise ConfigError(f"topic: {error}") from None


def _raise_full(why: str) -> NoReturn:
    raise SpoolFullError(f"{why}. The log record was dropped") from None


_HANDLERS: weakref.WeakSet[KafkaHandler] = weakref.WeakSet()


def _forked() -> None:
    for handler in list(_HANDLERS):
        # The queued records belong to the parent, which sends them.
        handler._begin()  # noqa: SLF001  # not for programs


os.register_at_fork(after_in_child=_forked)

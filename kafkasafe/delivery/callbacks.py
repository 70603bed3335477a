"""The thread that runs the application's callbacks. Callbacks may block, call `send`, or wait for the producer.

The pump holds a lock while it marks a record as done and passes the record's callbacks to this thread. A caller takes
the same lock to see that a record is done. So if the caller then queues a job, the callback thread runs the record's
callbacks before this job.

The number of due callbacks is limited: while `full` is true, `send` should wait. Callbacks of unfinished records need
no limit, because the size of the spool limits the number of unfinished records.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Any, Final

from kafkasafe.logs import EventLog, apart
from kafkasafe.process.locks import new_lock

log = EventLog("producer")

_DUE_LIMIT: Final = 100_000
"""From this number of due callbacks on, `send` waits for some of the callbacks to finish."""
_DUE_MOST: Final = 1_000_000
"""From this number of due callbacks on, `send` waits even if no callback makes progress (see `_STUCK_S`)."""
_STUCK_S: Final = 1.0
"""If no callback ends for this many seconds, the running callback may be waiting for a thread that itself waits in
`send`. To end such a deadlock, `send` then waits only if `_DUE_MOST` callbacks are due.
"""
_CLOSE_STUCK_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.25


class CallbackThread:
    """See the module. The thread starts with the first job.

    Args:
        name: Name of the thread.
        wake_senders: Called after callbacks have run, because `send` may wait for callbacks to finish.
        ended: Returns True once no more callbacks can become due.
    """

    def __init__(self, name: str, *, wake_senders: Callable[[], None], ended: Callable[[], bool]) -> None:
        self._name = name
        self._wake_senders = wake_senders
        self._ended = ended
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._once = new_lock()
        self._started = False
        self._stopping = False
        self._over = False
        self._ident = 0
        # Each counter has one writer: the pump (under its lock) or this thread. Other threads may read slightly old
        # values.
        self._handed = 0
        self._taken = 0
        self._current: Any = iter(())
        self._seen = -1
        self._seen_at = 0.0

    def put(self, job: Callable[[], None]) -> None:
        """Runs a job on the thread, after all earlier jobs. Once the thread has ended, runs the job on the caller's
        thread.
        """
        self._queue.put(job)
        self.start()
        if self._over:
            self._run_here()

    def start(self) -> None:
        """Starts the thread if it is not running. Call this method before the interpreter shuts down, because no thread
        can start during the shutdown.
        """
        if self._started:
            return
        # If Ctrl-C comes after the start of the thread, but before `_started` is set, the next call starts a second
        # thread. One of the two threads then ends at once.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._started = True

    def hand(self, job: Callable[[int], None], count: int) -> None:
        """Queues a job that will run callbacks. `count` estimates how many callbacks the job will run, and is added to
        the number of due callbacks. The pump calls this method under its lock.
        """
        self._handed += count
        self.put(lambda: job(count))

    def call(
        self, functions: Sequence[Callable[[Any], object]], arguments: Iterable[Any], due: int = 0
    ) -> None:
        """Calls each function with its argument, on the callback thread.

        Args:
            functions: The application's functions. If a function raises an exception, the thread logs the exception and
                calls the other functions.
            arguments: The argument of each function, in the same order.
            due: The number to subtract from the count of due callbacks (see `hand`).
        """
        self._current = functions_left = iter(functions)
        self._taken += due
        calls = zip(functions_left, arguments, strict=False)
        while True:
            try:
                for function, argument in calls:
                    function(argument)
                break
            except BaseException:
                # Also catches SystemExit and CancelledError, which would end this shared thread.
                log.exception("Error processing callback", event="callback_failed")
        self._current = iter(())
        self._wake_senders()

    def due(self) -> int:
        """Number of due callbacks that have not run."""
        return max(0, self._handed - self._taken + length_hint(self._current))

    def full(self) -> bool:
        """Whether `send` should wait for callbacks before it accepts more records."""
        due = self.due()
        if due < _DUE_LIMIT or self.is_current_thread():
            return False
        now = time.monotonic()
        run = self._handed - due
        if run != self._seen:
            self._seen, self._seen_at = run, now
        return due >= _DUE_MOST or now - self._seen_at < _STUCK_S

    def wait(self, timeout_s: float | None) -> bool:
        """Waits until all earlier jobs have run. Returns False on timeout. Does not wait if a callback calls it."""
        if self.is_current_thread():
            return True
        if not self._started:
            self._run_here()
            return True
        passed = self._mark()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._over:
            step = 1.0 if end is None else min(1.0, max(0.0, end - time.monotonic()))
            if passed.acquire(timeout=step):
                return True
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def stop(self, timeout_s: float | None) -> int:
        """Ends the thread after all jobs have run. After a timeout, the thread still runs the remaining jobs.

        Args:
            timeout_s: How long to wait for the jobs. None: the wait ends when no callback has finished for 10 s.

        Returns:
            Number of callbacks that have not run yet.
        """
        # Set this flag first: a later job may start the thread, which must then also end.
        self._stopping = True
        if not self._started:
            self._run_here()
            return 0
        passed = self._mark()
        self._queue.put(None)
        if self.is_current_thread():
            return 0
        end = None if timeout_s is None else time.monotonic() + timeout_s
        seen, seen_at = self.due(), time.monotonic()
        while not self._over:
            now = time.monotonic()
            if passed.acquire(timeout=min(_LOOK_EVERY_S, max(0.0, (end or now + 1.0) - now))):
                return 0
            now = time.monotonic()
            due = self.due()
            if due != seen:
                seen, seen_at = due, now
            if now >= (seen_at + _CLOSE_STUCK_S if end is None else end):
                return max(due, 1)  # the running callback is not in the queue any more
        return 0

    def is_current_thread(self) -> bool:
        """Whether the caller is a callback."""
        return self._ident == threading.get_ident()

    def _run_here(self) -> None:
        """Runs the queued jobs on the caller's thread, because the callback thread has ended or could not start."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    job()

    def _mark(self) -> threading.Lock:
        """A lock that is released when all earlier jobs have run. The release is a single call into C, which Ctrl-C
        cannot interrupt.
        """
        passed = threading.Lock()
        passed.acquire()
        self._queue.put(passed.release)
        return passed

    @apart()
    def _run(self) -> None:
        if not self._once.acquire(blocking=False):
            return
        self._ident = threading.get_ident()
        while True:
            try:
                job = self._queue.get(timeout=_LOOK_EVERY_S if self._stopping else None)
            except queue.Empty:
                if self._ended() and self._queue.empty():
                    break
                continue
            try:
                if job is not None:
                    job()
            except BaseException:
                log.exception("The callback thread failed", event="callback_failed")
            del job  # otherwise the job's objects would stay alive until the next job
        self._over = True
        # Run jobs that were queued before their callers could see that the thread has ended.
        self._run_here()


def take(added: list[Any]) -> list[Any]:
    """Empties a list to which other threads append, and returns the items. Items that are appended during the call stay
    in the list.
    """
    taken = added[:]
    del added[: len(taken)]
    return taken

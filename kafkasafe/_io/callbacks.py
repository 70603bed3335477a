"""The thread on which the application's callbacks run: they may block, send, or wait for the producer.

The pump hands over what became due while it holds the lock under which callers see that a record is done. A caller that
saw that and then puts a marker into the queue waits for these callbacks too.

What is due and has not run yet is bounded: `full` says that `send` should wait. Callbacks of records that are not done
are bounded by what the spool takes.
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

__all__ = ["CallbackThread", "take"]

log = EventLog("producer")

_DUE_LIMIT: Final = 100_000
"""Due callbacks with which `send` waits for those before."""
_DUE_MOST: Final = 1_000_000
"""Due callbacks with which it waits even though none of them comes to an end."""
_STUCK_S: Final = 1.0
"""A callback that takes longer may be waiting for the very thread that sends."""
_CLOSE_STUCK_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.25


class CallbackThread:
    """See the module. It starts with the first job.

    Args:
        name: Of the thread.
        wake_senders: Called when callbacks have run: `send` may wait for that.
        ended: Whether nothing can become due any more.
    """

    def __init__(self, name: str, *, wake_senders: Callable[[], None], ended: Callable[[], bool]) -> None:
        self._name = name
        self._wake_senders = wake_senders
        self._ended = ended
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._once = threading.Lock()
        self._started = False
        self._stopping = False
        self._over = False
        self._ident = 0
        # One writer each: the pump under its lock, and the thread. A look from elsewhere may be a moment old.
        self._handed = 0
        self._taken = 0
        self._current: Any = iter(())
        self._seen = -1
        self._seen_at = 0.0

    def put(self, job: Callable[[], None]) -> None:
        """Run a job on the thread, after those before."""
        self._queue.put(job)
        self.start()

    def start(self) -> None:
        """Start the thread, unless it is: before the interpreter ends, when none can be started any more."""
        if self._started:
            return
        # Interrupted in here (Ctrl-C) the next call starts another one, and one of the two ends at once.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._started = True

    def hand(self, job: Callable[[int], None], count: int) -> None:
        """Run a job of so many callbacks, which are due. By the pump, with its lock held."""
        self._handed += count
        self.put(lambda: job(count))

    def call(
        self, functions: Sequence[Callable[[Any], object]], arguments: Iterable[Any], due: int = 0
    ) -> None:
        """Call each function with its argument, on the thread.

        Args:
            functions: The application's. Whatever one raises is logged and costs the others nothing.
            arguments: As many.
            due: How many due callbacks this stands for.
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
                # Also SystemExit and CancelledError: they end a thread, and this one is everybody's.
                log.exception("Error processing callback", event="callback_failed")
        self._current = iter(())
        self._wake_senders()

    def due(self) -> int:
        """Callbacks that are due and have not run."""
        return max(0, self._handed - self._taken + length_hint(self._current))

    def full(self) -> bool:
        """Whether `send` should wait for callbacks before it accepts more."""
        due = self.due()
        if due < _DUE_LIMIT or self.is_current_thread():
            return False
        now = time.monotonic()
        run = self._handed - due
        if run != self._seen:
            self._seen, self._seen_at = run, now
        return due >= _DUE_MOST or now - self._seen_at < _STUCK_S

    def wait(self, timeout_s: float | None) -> bool:
        """Until all that was put before has run; False when the time ended first. Never waits on the thread itself."""
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
        """End the thread once everything has run, which it goes on with if that takes longer than this waits.

        Args:
            timeout_s: Default: as long as callbacks come to an end, and 10 s more.

        Returns:
            How many callbacks have not run yet.
        """
        if not self._started:
            self._run_here()
            return 0
        passed = self._mark()
        self._stopping = True
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
                return max(due, 1)  # one that runs has been taken
        return 0

    def is_current_thread(self) -> bool:
        """Whether the caller is a callback."""
        return self._ident == threading.get_ident()

    def _run_here(self) -> None:
        """What is there when there is no thread: at the end of the interpreter."""
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None:
                    job()

    def _mark(self) -> threading.Lock:
        """A lock that is released when all before it has run. One call into C, so nothing is left half by Ctrl-C."""
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
            del job  # or what it holds would stay until the next one comes
        self._over = True


def take(added: list[Any]) -> list[Any]:
    """What is in a list that others add to; whatever comes meanwhile stays there."""
    taken = added[:]
    del added[: len(taken)]
    return taken

"""kafka-python's event loop, with fixes and additions.

This module contains only the work of one turn (iteration) of the loop, which is the same for all requests.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kafka.future import Future
from kafka.net.selector import NetworkSelector, Task, TaskState

from kafkasafe.cluster.terms import log
from kafkasafe.logs import apart, own_threads

_NEVER_AT: Final = 1e9  # monotonic seconds; `call_at` ignores calls that are due later
_LONGEST_SELECT_S: Final = 3600.0


class LoopClosedError(RuntimeError):
    """The consumer is closed, so its event loop takes no more work. kafka-python would raise a plain RuntimeError."""


class Loop(NetworkSelector):
    """kafka-python's event loop, changed to report its end, and to close itself on its own thread.

    In kafka-python 3.0.12, a crashed loop leaves its sockets open, and its end is not reported. A task of the loop
    costs about 50 µs. So the loop normally uses no tasks to read and write, to run jobs of other threads, or to check
    time limits of requests.
    """

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)  # type: ignore[no-untyped-call]
        self.unwritten: list[Callable[[], None]] = []
        """Functions that write the collected data at the end of the loop's current iteration."""
        self._never: Any = Task(lambda: None)
        self._never.close()
        self._on_wake: Callable[[], None] = lambda: None
        self._on_exit: Callable[[], None] = lambda: None

    def serve(self, on_wake: Callable[[], None], on_exit: Callable[[], None]) -> None:
        """Sets two functions that the loop's thread calls: `on_wake` after another thread has woken it, and `on_exit`
        when the loop ends.
        """
        self._on_wake, self._on_exit = on_wake, on_exit

    def started(self) -> threading.Thread:
        """Start the loop's thread, and return it."""
        self.start()  # type: ignore[no-untyped-call]
        thread: Any = self._io_thread
        return thread  # type: ignore[no-any-return]

    def end_soon(self) -> None:
        """Ends the loop after its current turn."""
        self._stop = True

    def discard(self) -> None:
        """Closes a loop whose thread could not be started."""
        self.end_soon()
        self._ready.clear()
        self.close()  # type: ignore[no-untyped-call]

    def call_at(self, when: float, task: Any) -> Any:
        """Like kafka-python's method, but does not schedule calls that would be due after decades."""
        if when >= _NEVER_AT:
            return self._never
        return super().call_at(when, task)  # type: ignore[no-untyped-call]

    def read_with(self, sock: Any, receive: Callable[[], None]) -> None:
        """Calls `receive` whenever there is something to read, until `unregister_event`."""
        self._selector.register(sock, selectors.EVENT_READ, (receive, None))

    def _poll_once(self, timeout: float | None = None) -> None:
        if self._ready:
            timeout = 0.0
        elif self._scheduled:
            due_s = max(0.0, min(self._scheduled[0][0] - time.monotonic(), _LONGEST_SELECT_S))
            timeout = due_s if timeout is None else min(timeout, due_s)
        self._process_events(self._selector.select(timeout) or self._missed_events(timeout))
        self._schedule_tasks()  # type: ignore[no-untyped-call]
        for _ in range(len(self._ready)):
            self._run_task(self._ready.popleft())
        while self.unwritten:
            unwritten, self.unwritten = self.unwritten, []
            for write in unwritten:
                self._do(write)

    def _missed_events(self, timeout: float | None) -> list[Any]:
        """Look again, without waiting, after a wait that ended without events.

        1. A client waits for answers, with a timer for late answers. The process is stopped (SIGSTOP, a debugger).
        2. The brokers answer. When the process continues, the timer is due, and SIGCONT ends the wait without events.
        3. If the loop did not look again, it would run the timer before it reads the answers, and close the connections
           of brokers that have answered.
        """
        return self._selector.select(0.0) if timeout else []

    def _process_events(self, event_list: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        for event in event_list:
            key, events = event
            reader, _ = key.data
            if key.fileobj is self._wakeup_r:
                super()._process_events((event,))  # type: ignore[no-untyped-call]
                self._do(self._on_wake)
            elif reader is None or type(reader) is Task:
                super()._process_events((event,))  # type: ignore[no-untyped-call]
            else:
                if events & ~selectors.EVENT_READ:
                    others = ((key, events & ~selectors.EVENT_READ),)
                    super()._process_events(others)  # type: ignore[no-untyped-call]
                if events & selectors.EVENT_READ:
                    self._do(reader)

    def _run_task(self, task: Any) -> None:
        """Runs one step of one of kafka-python's tasks."""
        if task.state in {TaskState.DONE, TaskState.CANCELLED}:
            return
        self._current, task.state = task, TaskState.RUNNING
        try:
            awaited = task()
        except StopIteration:
            self._task_done(task)  # type: ignore[no-untyped-call]
            return
        except BaseException:
            log.exception("A task of the network thread failed", event="network_step_failed")
            self._task_done(task)  # type: ignore[no-untyped-call]
            return
        finally:
            self._current = None
        if task.state is TaskState.CANCELLED:
            # The task has cancelled itself.
            self._pending_tasks.discard(task)
            task.close()
        elif isinstance(awaited, Future):
            task.state = TaskState.WAIT_FUTURE
            awaited.add_both(lambda _: self.call_soon(task))  # type: ignore[no-untyped-call]
        else:
            self._begin_wait(task, awaited)

    def _begin_wait(self, task: Any, awaited: Any) -> None:
        # When a method of kafka-python begins to wait, it reads the running task from `_current`.
        self._current = task
        try:
            getattr(self, awaited.method)(*awaited.args)
        except Exception as error:  # an error of the task: pass it on
            task.inject_exc(error)
            self._add_ready_task(task)  # type: ignore[no-untyped-call]
        finally:
            self._current = None
            if task.state is TaskState.RUNNING:
                task.state = TaskState.UNSCHEDULED

    @staticmethod
    def _do(step: Callable[[], None]) -> None:
        try:
            step()
        except Exception:
            # The step has a bug, but the bug must not affect the other connections.
            log.exception("A step of the network thread failed", event="network_step_failed")

    @apart()
    def run_forever(self) -> None:
        """Run until `end_soon`, or until an error. Then close the loop, on this thread."""
        own_threads.add(threading.get_ident())
        try:
            super().run_forever()  # type: ignore[no-untyped-call]
        except Exception:
            log.exception(
                "The network thread ended by an error; a new thread takes its place",
                event="network_thread_ended",
            )
        finally:
            self.end_soon()  # `close` must not try to join its own thread
            try:
                self._on_exit()
            finally:
                own_threads.discard(threading.get_ident())
                # After a crash, `close` would run the ready calls again, crash again and leave sockets open.
                self._ready.clear()
                self.close()  # type: ignore[no-untyped-call]

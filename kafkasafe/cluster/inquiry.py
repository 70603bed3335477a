"""Runs procedures for a thread that waits for them (`ProcedureRunner`), and repeats requests (`ask_until_answered`).

Threads: a `ProcedureRunner` belongs to the thread that calls it. The network thread passes answers to the runner in a
queue.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from kafka.errors import KafkaError, for_code

from kafkasafe.classification import Verdict, classify
from kafkasafe.cluster.api import Cluster, Failure, Reply
from kafkasafe.cluster.at_once import at_once
from kafkasafe.cluster.backoff import PAUSES
from kafkasafe.cluster.procedures import Ask, Pause, Procedure, Step, Together
from kafkasafe.process.wake_flag import WakeFlag
from kafkasafe.stats import ConsumerStats

T = TypeVar("T")


def pause_s(failures: int) -> float:
    """Seconds to wait after a failure. `failures` is the number of consecutive failures before the latest failure."""
    return PAUSES.pause_s(failures + 1)


class RunningProcedure(Generic[T]):
    """A running procedure. After its end (`done`), either `error` is set, or `result` is its return value; neither if
    it was cancelled.

    Args:
        procedure: The procedure.
        parent: The procedure that waits for this procedure as one of its parts; None if this procedure is not a part.
    """

    def __init__(self, procedure: Procedure[T], parent: RunningProcedure[Any] | None = None) -> None:
        self.procedure = procedure
        self.done = False
        self.result: T | None = None
        self.error: Exception | None = None
        self._parent = parent
        self._parts: list[RunningProcedure[Any]] = []

    def cancel(self) -> None:
        """Cancels the procedure. A late answer is discarded."""
        self.done = True
        for part in self._parts:
            part.cancel()
        self.procedure.close()

    def split(self, procedures: Sequence[Procedure[Any]]) -> list[RunningProcedure[Any]]:
        """Adds `procedures` as the parts of this procedure, which waits until all parts have ended."""
        self._parts = [RunningProcedure(procedure, self) for procedure in procedures]
        return self._parts

    def ended(
        self, *, result: T | None = None, error: Exception | None = None
    ) -> RunningProcedure[Any] | None:
        """Ends this procedure. Returns the parent if it can continue now; otherwise None."""
        self.done, self.result, self.error = True, result, error
        parent = self._parent
        return parent if parent is not None and parent.goes_on(error) else None

    def goes_on(self, error: Exception | None) -> bool:
        """Returns whether this procedure can continue after one of its parts has ended.

        An `error` of the part ends the other parts.
        """
        if self.done:
            return False
        if error is None:
            return all(part.done for part in self._parts)
        for part in self._parts:
            if not part.done:
                part.cancel()
        return True

    def joined(self) -> Step:
        """Resumes the procedure after its parts have ended. Returns its next step."""
        parts, self._parts = self._parts, []
        for part in parts:
            if part.error is not None:
                return self.procedure.throw(part.error)
        return self.procedure.send([part.result for part in parts])


class ProcedureRunner:
    """Runs procedures.

    All procedures first advance to their next step, then their requests are sent together, so that the transport can
    combine requests of the same kind.

    Args:
        wake: Called on the network thread when an answer has arrived, for owners that do not wait in `wait`.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake
        self._arrived: collections.deque[tuple[RunningProcedure[Any], Any]] = collections.deque()
        self._awake = WakeFlag()
        self._pauses: list[tuple[float, int, RunningProcedure[Any]]] = []
        self._numbers = itertools.count()
        self._unsent: collections.deque[tuple[RunningProcedure[Any], Callable[[Reply[Any]], None]]] = (
            collections.deque()
        )

    def retire(self) -> None:
        """Stops calling `wake`."""
        self._wake = None

    def begin(self, procedure: Procedure[T]) -> RunningProcedure[T]:
        """Starts a procedure, and runs it to its first step."""
        return self.begin_all([procedure])[0]

    def begin_all(self, procedures: Iterable[Procedure[T]]) -> list[RunningProcedure[T]]:
        """Starts procedures, and runs each to its first step."""
        inquiries = [RunningProcedure(procedure) for procedure in procedures]
        for inquiry in inquiries:
            self._advance(inquiry, None)
        self._send()
        return inquiries

    def work(self) -> None:
        """Continues procedures whose answer has arrived or whose pause has ended. Does not wait."""
        self._awake.clear()
        while self._arrived:
            self._advance(*self._arrived.popleft())
        now = time.monotonic()
        while self._pauses and self._pauses[0][0] <= now:
            self._advance(heapq.heappop(self._pauses)[2], None)
        self._send()

    def _send(self) -> None:
        if not self._unsent:
            return
        at_once(self._send_all)

    def _send_all(self) -> None:
        while self._unsent:
            inquiry, send = self._unsent.popleft()
            if not inquiry.done:
                send(functools.partial(self._arrive, inquiry))

    @property
    def has_work(self) -> bool:
        """Whether an answer has arrived that `work` has not processed."""
        return bool(self._arrived)

    def due_s(self) -> float | None:
        """Seconds until the next pause ends; None if no procedure pauses."""
        return max(0.0, self._pauses[0][0] - time.monotonic()) if self._pauses else None

    def wait(self, timeout_s: float) -> None:
        """Waits until there is work, but at most for `timeout_s` seconds."""
        # A procedure may call this method. Then the other procedures must not wait, so send their unsent requests.
        self._send()
        due = self.due_s()
        if not self._arrived:
            self._awake.wait(timeout_s if due is None else min(due, timeout_s))

    def _advance(self, inquiry: RunningProcedure[Any], value: Any) -> None:
        if inquiry.done:
            return
        self._run(inquiry, lambda: inquiry.procedure.send(value))

    def _run(self, inquiry: RunningProcedure[Any], go_on: Callable[[], Step]) -> None:
        try:
            step = go_on()
        except StopIteration as stop:
            waiting = inquiry.ended(result=stop.value)
        except Exception as error:
            # The caller that began the procedure handles its error.
            waiting = inquiry.ended(error=error)
        else:
            self._take(inquiry, step)
            return
        if waiting is not None:
            self._run(waiting, waiting.joined)

    def _take(self, inquiry: RunningProcedure[Any], step: Step) -> None:
        match step:
            case Pause(seconds):
                heapq.heappush(self._pauses, (time.monotonic() + seconds, next(self._numbers), inquiry))
            case Ask(send):
                self._unsent.append((inquiry, send))
            case Together(procedures):
                parts = inquiry.split(procedures)
                for part in parts:
                    self._advance(part, None)
                if not parts:
                    self._run(inquiry, inquiry.joined)

    def _arrive(self, inquiry: RunningProcedure[Any], answer: Any) -> None:
        self._arrived.append((inquiry, answer))
        self._awake.set()  # `work` clears `_awake` before it reads the queue
        wake = self._wake
        if wake is not None:
            wake()


def ask_until_answered(
    transport: Cluster,
    topic: str,
    api: str,
    send: Callable[[Reply[Any]], None],
    on_failure: Callable[[Exception, Verdict], None] | None = None,
    *,
    stats: ConsumerStats,
) -> Procedure[Any]:
    """Sends a request, and repeats it after each retriable error. Returns the first answer without an error.

    Args:
        transport: Used to request new metadata after errors that point to outdated metadata.
        topic: The topic of the request.
        api: Request kind, for the verdict.
        send: Sends the request.
        on_failure: Called for each failed attempt. If `on_failure` raises an error, the procedure ends with this error.
        stats: Counts retries.

    Raises:
        KafkaError: An error that is not retriable.
    """
    failures = 0
    while True:
        answer = yield Ask(send)
        error: Any
        if isinstance(answer, Failure):
            error = answer.error
        elif answer.error_code:
            error = coded(answer.error_code, topic)
        else:
            return answer
        verdict = classify(error, api)
        if on_failure is not None:
            on_failure(error, verdict)
        if not verdict.retriable:
            raise error
        if verdict.refresh_metadata:
            transport.refresh_metadata([topic], _ignore)
        pause = pause_s(failures)
        stats.retries[api, verdict.name] += 1
        stats.backoff_s[api] += pause
        yield Pause(pause)
        failures += 1


def coded(code: int, message: str) -> KafkaError:
    """Creates an error for a broker's error code. Its `errno` is the code, even if kafka-python has no class for it."""
    made: Any = for_code(code)(message)
    made.errno = code
    error: KafkaError = made
    return error


def _ignore(_: object) -> None:
    """Ignores the answer, because the `Cluster` stores new metadata itself. If the metadata request fails, the caller's
    next request shows the problem.
    """

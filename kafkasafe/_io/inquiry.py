"""Questions that take several requests and pauses: generators, driven by whoever waits for them.

A *procedure* yields what it needs, an `Ask` (one request to a broker), a `Pause` or procedures `Together`, is sent the
answer, and returns its result. So a question with retries and decisions in between reads from top to bottom, and many
run side by side in one thread.

Threads: a `Desk` belongs to the thread that calls it; answers arrive from the network thread in a queue.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from kafka.errors import for_code

from kafkasafe._io.at_once import at_once
from kafkasafe._io.backoff import PAUSES
from kafkasafe._io.stats import ConsumerStats
from kafkasafe.classification import Verdict, classify
from kafkasafe.cluster.api import Cluster, Failure, Reply

__all__ = ["Ask", "Desk", "Inquiry", "Pause", "Procedure", "Step", "Together", "insist", "pause_s"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request; `send` gets the callback for its answer."""

    send: Callable[[Reply[Any]], None]


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Together:
    """Procedures side by side, begun in this order.

    The answer is the list of their results, when all have ended. The first error of one of them ends the others, and is
    raised where this was yielded.
    """

    procedures: Sequence[Procedure[Any]]


Step: TypeAlias = Ask | Pause | Together
Procedure: TypeAlias = Generator[Step, Any, T]


def pause_s(failures: int) -> float:
    """Seconds before try number `failures + 1`."""
    return PAUSES.pause_s(failures + 1)


class Inquiry(Generic[T]):
    """A procedure under way. When `done`, either `error` is set or `result` is what it returned."""

    def __init__(self, procedure: Procedure[T]) -> None:
        self.procedure = procedure
        self.done = False
        self.result: T | None = None
        self.error: Exception | None = None
        self._parent: Inquiry[Any] | None = None
        self._parts: list[Inquiry[Any]] = []

    def cancel(self) -> None:
        """Ends it; a late answer is thrown away."""
        self.done = True
        for part in self._parts:
            part.cancel()
        self.procedure.close()

    def split(self, procedures: Sequence[Procedure[Any]]) -> list[Inquiry[Any]]:
        """Waits for these from now on."""
        self._parts = [Inquiry(procedure) for procedure in procedures]
        for part in self._parts:
            part._parent = self
        return self._parts

    def ended(self, *, result: T | None = None, error: Exception | None = None) -> Inquiry[Any] | None:
        """It has come to its end. The inquiry that waits for it and can go on now, if there is one."""
        self.done, self.result, self.error = True, result, error
        parent = self._parent
        if parent is None or parent.done:
            return None
        if error is not None:
            for part in parent._parts:
                if not part.done:
                    part.cancel()
            return parent
        return parent if all(part.done for part in parent._parts) else None

    def joined(self) -> Step:
        """The next step, after its parts."""
        parts, self._parts = self._parts, []
        for part in parts:
            if part.error is not None:
                return self.procedure.throw(part.error)
        return self.procedure.send([part.result for part in parts])


class Desk:
    """Drives procedures.

    What procedures ask in one go is sent in one go, after all of them have come to their next step: so the transport
    can put questions of the same kind into one request.

    Args:
        wake: Called on the network thread when an answer has arrived, for an owner that waits elsewhere than here.
    """

    def __init__(self, wake: Callable[[], None] | None = None) -> None:
        self._wake = wake
        self._arrived: collections.deque[tuple[Inquiry[Any], Any]] = collections.deque()
        self._event = threading.Event()
        self._pauses: list[tuple[float, int, Inquiry[Any]]] = []
        self._numbers = itertools.count()
        self._unsent: collections.deque[tuple[Inquiry[Any], Callable[[Reply[Any]], None]]] = (
            collections.deque()
        )

    def retire(self) -> None:
        """Nobody is woken any more."""
        self._wake = None

    def begin(self, procedure: Procedure[T]) -> Inquiry[T]:
        """Starts a procedure: runs it to its first step."""
        return self.begin_all([procedure])[0]

    def begin_all(self, procedures: Iterable[Procedure[T]]) -> list[Inquiry[T]]:
        """Starts procedures: runs each to its first step."""
        inquiries = [Inquiry(procedure) for procedure in procedures]
        for inquiry in inquiries:
            self._advance(inquiry, None)
        self._send()
        return inquiries

    def work(self) -> None:
        """Carries on what has got its answer or slept enough. Does not wait."""
        self._event.clear()
        while self._arrived:
            self._advance(*self._arrived.popleft())
        now = time.monotonic()
        while self._pauses and self._pauses[0][0] <= now:
            self._advance(heapq.heappop(self._pauses)[2], None)
        self._send()

    def _send(self) -> None:
        with at_once():
            while self._unsent:
                inquiry, send = self._unsent.popleft()
                if not inquiry.done:
                    send(functools.partial(self._arrive, inquiry))

    @property
    def has_work(self) -> bool:
        """Whether an answer has arrived that `work` has not seen."""
        return bool(self._arrived)

    def due_s(self) -> float | None:
        """Seconds until a pause ends; None when none is under way."""
        return max(0.0, self._pauses[0][0] - time.monotonic()) if self._pauses else None

    def wait(self, timeout_s: float) -> None:
        """Waits until there is work, `timeout_s` at most."""
        self._send()  # where this is called by what a procedure calls
        due = self.due_s()
        self._event.wait(timeout_s if due is None else min(due, timeout_s))

    def _advance(self, inquiry: Inquiry[Any], value: Any) -> None:
        if inquiry.done:
            return
        self._run(inquiry, lambda: inquiry.procedure.send(value))

    def _run(self, inquiry: Inquiry[Any], go_on: Callable[[], Step]) -> None:
        try:
            step = go_on()
        except StopIteration as stop:
            waiting = inquiry.ended(result=stop.value)
        except Exception as error:
            # Whoever began it decides what becomes of it.
            waiting = inquiry.ended(error=error)
        else:
            self._take(inquiry, step)
            return
        if waiting is not None:
            self._run(waiting, waiting.joined)

    def _take(self, inquiry: Inquiry[Any], step: Step) -> None:
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

    def _arrive(self, inquiry: Inquiry[Any], answer: Any) -> None:
        self._arrived.append((inquiry, answer))
        if not self._event.is_set():  # `work` clears it before it looks
            self._event.set()
        wake = self._wake
        if wake is not None:
            wake()


def insist(
    transport: Cluster,
    topic: str,
    api: str,
    send: Callable[[Reply[Any]], None],
    on_failure: Callable[[Exception, Verdict], None] | None = None,
    *,
    stats: ConsumerStats,
) -> Procedure[Any]:
    """Asks until there is an answer without an error, for as long as the verdict on the error is to try again.

    Args:
        transport: Asked for metadata where the verdict says so.
        topic: The topic that it is about.
        api: Request kind, for the verdict.
        send: Sends the request.
        on_failure: Told of each failed try; what it raises ends the procedure.
        stats: Counts what is tried again.

    Raises:
        KafkaError: One that no retry helps.
    """
    failures = 0
    while True:
        answer = yield Ask(send)
        error: Any
        if isinstance(answer, Failure):
            error = answer.error
        elif answer.error_code:
            error = _error(answer.error_code, topic)
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


def _error(code: int, topic: str) -> Exception:
    error: Any = for_code(code)(topic)
    # Codes that kafka-python has no class for keep their number all the same.
    error.errno = code
    told: Exception = error
    return told


def _ignore(_: object) -> None:
    """The answer is in the metadata; who waits is told by his own question."""

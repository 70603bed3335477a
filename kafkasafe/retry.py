"""`RetryPolicy` repeats a failed call, with tenacity. `kafkasafe.classify` decides whether a retry may help."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

import tenacity

from kafkasafe.classification import ErrorAction, Verdict, classify
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.errors import ConfigError, UsageError, WaitTimeoutError
from kafkasafe.logs import EventLog
from kafkasafe.process.locks import new_rlock
from kafkasafe.stats import RetryStats, Sample

__all__ = ["RetryEvent", "RetryPolicy", "Times", "retry_if_kafka_retriable"]

log = EventLog("retry")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RetryEvent:
    """A call failed. It will be repeated or given up.

    Attributes:
        call: Name of the function.
        partition: Key of the rate limit; None if none was given.
        attempt: Number of the failed attempt, from 1.
        elapsed_s: Seconds since the first attempt began.
        pause_s: Seconds until the next attempt. The pause becomes longer if other calls wait for the same partition.
            None after the last attempt.
        gave_up: Why there is no next attempt: `"deadline"`, `"attempts"`, or `"verdict"` (not retriable); None
            before another attempt.
        error: The exception.
        verdict: The verdict of `kafkasafe.classify` on the exception. If the verdict's `refresh_metadata` is set,
            refresh the metadata in the callback `on_retry`, which runs before the pause.
    """

    call: str
    partition: Hashable | None
    attempt: int
    elapsed_s: float
    pause_s: float | None
    gave_up: Literal["deadline", "attempts", "verdict"] | None
    error: BaseException
    verdict: Verdict


_GaveUp = Literal["deadline", "attempts", "verdict"]

_AGAIN: Final = frozenset({ErrorAction.RETRY, ErrorAction.RETRY_AFTER_REFRESH})
# Maximum number of failing partitions that the rate limit remembers. To make room, it forgets the partitions that may
# be retried without a pause.
_MAX_KEYS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Times:
    """The clock and random numbers of a policy; tests replace them.

    Attributes:
        clock: Returns monotonic seconds.
        sleep: Sleeps for this many seconds.
        async_sleep: Sleeps for this many seconds in a task.
        random_fraction: Returns a number in [0, 1).
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    async_sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    random_fraction: Callable[[], float] = random.random


_REAL: Final = Times()


class retry_if_kafka_retriable(tenacity.retry_base):  # noqa: N801  # as tenacity names its own
    """For programs that use tenacity directly: retries a call if a retry may help according to `kafkasafe.classify`.

        @tenacity.retry(retry=retry_if_kafka_retriable(), wait=..., stop=...)
        def end_offset(topic, partition): ...

    Args:
        api: The request kind for `classify`; None: any.

    Raises:
        ConfigError: `api` is not a request of Kafka.
    """

    def __init__(self, api: str | None = None) -> None:
        self._api = classify(0, api).api

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        """Tenacity calls this after each attempt."""
        error = _outcome(retry_state)
        return isinstance(error, Exception) and classify(error, self._api).action in _AGAIN


class RetryPolicy:
    """Repeats failed calls, with a deadline, exponential pauses with full jitter, and a request rate per partition.

    A failed call is repeated if the verdict of `kafkasafe.classify` on its error is `retry` or `retry_after_refresh`.
    Errors with another verdict (`fatal`, `fence`, `ask_broker` …) are raised at once. A call that writes must be
    idempotent. `SafeProducer.send` needs no policy, because it retries by itself without duplicates.

    Use a policy as a decorator of functions and coroutine functions, or call functions with `policy.call`:

        policy = RetryPolicy(deadline_ms=30_000)

        @policy
        def end_offset(topic, partition): ...

        @policy.on(lambda topic, partition: (topic, partition), api="list_offsets")
        async def end_offset(topic, partition): ...

        policy.call(consumer.partitions_for_topic, "orders")

    Threads, tasks and functions may share one policy, and then also share its rate limit. After
    `kafkasafe.metrics.install(policy)`, Prometheus shows the policy's retries, pauses and failures
    (`kafkasafe_retries_total` ...; the label `api` is the request kind, or else the function's name).

    Args:
        deadline_ms: No attempt begins later than this many milliseconds after the first one began. If a pause would end
            later, the policy gives up the call at once. None: no limit. A running attempt is not interrupted, so give
            the function that you call a time-out of its own.
        attempts: Maximum number of attempts, including the first one. None: no limit.
        first_ms: Upper bound of the first pause. The bound doubles with each failure.
        max_ms: Upper bound of all pauses of the back-off.
        rate_per_s: While a partition fails, all calls together make at most this many attempts for it in a second. A
            success removes the limit. For calls without a partition the limit applies to each call. The default is 10,
            as in KIP-1007. Without a limit, a client may send 9,000 fetches a second (KAFKA-19599).
        api: The request kind for `classify`; None: any.
        on_retry: A function that gets a `RetryEvent` for each failed attempt. The function runs before the pause, in
            the thread or task of the call. The policy logs and ignores exceptions of this function.
        reraise: True: a call that is given up raises its last error, with a note about the attempts. False: the call
            raises tenacity's `RetryError`, with the last error as its cause.
        whether: A function that returns the verdict on an error. It replaces `kafkasafe.classify`.
        wait: One of tenacity's waits, or a function that gets tenacity's `RetryCallState` and returns the seconds until
            the next attempt. It replaces `first_ms` and `max_ms`. `rate_per_s` still applies to calls with a partition.
        client_id: Value of the label `client_id` of the policy's metrics.

    Raises:
        ConfigError: An option has an invalid value.
    """

    def __init__(
        self,
        *,
        deadline_ms: float | None = 120_000,
        attempts: int | None = None,
        first_ms: float = 100,
        max_ms: float = 10_000,
        rate_per_s: float = 10.0,
        api: str | None = None,
        on_retry: Callable[[RetryEvent], object] | None = None,
        reraise: bool = True,
        whether: Callable[[BaseException], Verdict] | None = None,
        wait: Callable[[tenacity.RetryCallState], float] | None = None,
        client_id: str = "kafkasafe-retry",
        _times: Times = _REAL,
    ) -> None:
        deadline_s = None if deadline_ms is None else _number("deadline_ms", deadline_ms, zero=True) / 1000
        if attempts is not None and (type(attempts) is not int or attempts < 1):
            raise ConfigError(f"attempts must be at least 1 or None, not {attempts!r}")
        self._first_s = _number("first_ms", first_ms) / 1000
        self._max_s = _number("max_ms", max_ms) / 1000
        limit = _RateLimit(1 / _number("rate_per_s", rate_per_s), _times.clock)
        if deadline_ms is None and attempts is None:
            # P6 of docs/promises.md: nothing is retried forever unless the user requests it.
            raise ConfigError(
                "deadline_ms and attempts are both None: a call would be repeated forever; set one"
            )
        wait = wait or Backoff(
            self._first_s, self._max_s, least_s=limit.least_s, random_fraction=_times.random_fraction
        )
        # Check the name now: otherwise a wrong name would be reported only after the first error.
        self._api = classify(0, api).api
        self.client_id = client_id
        self._rules = _Rules(deadline_s, attempts, wait, reraise, whether, on_retry, _times, limit, _Counts())

    def __repr__(self) -> str:
        rules = self._rules
        return (
            f"RetryPolicy(deadline_ms={_shown_ms(rules.deadline_s)}, attempts={rules.attempts},"
            f" first_ms={_shown_ms(self._first_s)}, max_ms={_shown_ms(self._max_s)},"
            f" rate_per_s={1 / rules.limit.least_s:g}, {len(rules.limit)} partitions failing)"
        )

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorates a function or coroutine function, so that this policy repeats its calls. The signature does not
        change.

        Raises:
            UsageError: The function is a generator function: values that it has yielded cannot be taken back.
        """
        return self.on(None)(function)

    def on(
        self, partition: Hashable | Callable[..., Hashable] | None, *, api: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Returns a decorator that works like the policy. Its rate limit applies to a partition, or to any other key.

        Args:
            partition: The key, or a function that gets the arguments of the call and returns the key.
            api: The request kind for `classify`, instead of the policy's `api`.
        """
        kind = self._api if api is None else classify(0, api).api

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                raise UsageError(
                    f"{_name(function)} is a generator: values that it has yielded cannot be taken back"
                )

            def key(args: Any, kwargs: Any) -> Hashable | None:
                return partition(*args, **kwargs) if callable(partition) else partition

            if _is_async(function):

                @functools.wraps(function)
                async def tried_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                    call = _Call(self._rules, function, key(args, kwargs), kind)
                    return await call.run_async(args, kwargs)

                return cast("Callable[P, R]", tried_async)

            @functools.wraps(function)
            def tried(*args: P.args, **kwargs: P.kwargs) -> R:
                return cast("R", _Call(self._rules, function, key(args, kwargs), kind).run(args, kwargs))

            return tried

        return decorate

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls `function` under this policy, without a partition. Coroutine functions: `await policy.call(...)`."""
        return self(function)(*args, **kwargs)

    # --- metrics ---

    def metric_samples(self) -> Iterator[Sample]:
        """Return the values that `kafkasafe.metrics` collects."""
        return self._rules.counts.samples()


class _RateLimit:
    """Limits the rate of attempts for each partition that fails. Any thread may call the methods.

    Args:
        least_s: Seconds between two attempts with the same key.
        clock: Returns monotonic seconds.
    """

    def __init__(self, least_s: float, clock: Callable[[], float]) -> None:
        self.least_s = least_s
        self._clock = clock
        # Reentrant: a signal handler may make a call under this policy while its own thread holds the lock.
        self._lock = new_rlock()
        self._next_turn: dict[Hashable, float] = {}  # Contains only partitions whose last attempt failed.
        _locked.add(self)

    def forked(self) -> None:
        """In a forked child: replace the lock, because a thread of the parent may have held it during the fork."""
        self._lock = new_rlock()

    def __len__(self) -> int:
        """Return the number of partitions that fail."""
        return len(self._next_turn)

    def turn_s(self, key: Hashable, limit_s: float) -> float | None:
        """Reserves a time for the next attempt with `key`, and returns the seconds until that time. If the next free
        time is more than `limit_s` seconds away, reserves nothing and returns None.
        """
        # Look without the lock first: usually no partition fails, so no lock is needed.
        if key not in self._next_turn:
            return 0.0
        with self._lock:
            now = self._clock()
            begin = max(self._next_turn.get(key, now), now)
            if begin - now > limit_s:
                return None
            if key in self._next_turn:
                self._next_turn[key] = begin + self.least_s
            return begin - now

    def failed(self, key: Hashable) -> None:
        """Limits the rate of `key` from now on."""
        with self._lock:
            now = self._clock()
            if len(self._next_turn) >= _MAX_KEYS and key not in self._next_turn:
                self._next_turn = dict(each for each in [*self._next_turn.items()] if each[1] > now)
            self._next_turn[key] = max(self._next_turn.get(key, now), now + self.least_s)

    def succeeded(self, key: Hashable) -> None:
        """Ends the limit of `key`."""
        if key in self._next_turn:
            with self._lock:
                self._next_turn.pop(key, None)


class _Counts:
    """The metrics of a policy. Any thread may call the methods."""

    def __init__(self) -> None:
        self._stats = RetryStats()
        self._lock = new_rlock()  # reentrant, as that of `_RateLimit`
        _locked.add(self)

    def forked(self) -> None:
        """See `_RateLimit.forked`."""
        self._lock = new_rlock()

    def count(self, api: str, error: str, pause_s: float | None, gave_up: _GaveUp | None) -> None:
        """Counts a failed attempt."""
        with self._lock:
            if pause_s is not None:
                self._stats.retries[api, error] += 1
                self._stats.backoff_s[api] += pause_s
            elif gave_up != "verdict":
                self._stats.exhausted[api] += 1

    def samples(self) -> Iterator[Sample]:
        """Yields the current values of the counts."""
        with self._lock:
            yield from list(self._stats.retry_samples())


_locked: Final[weakref.WeakSet[_RateLimit | _Counts]] = weakref.WeakSet()


def _forked() -> None:
    for each in list(_locked):
        each.forked()


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The settings and objects that all calls of a policy share. See the options of `RetryPolicy`."""

    deadline_s: float | None
    attempts: int | None
    wait: Callable[[tenacity.RetryCallState], float]
    reraise: bool
    whether: Callable[[BaseException], Verdict] | None
    on_retry: Callable[[RetryEvent], object] | None
    times: Times
    limit: _RateLimit
    counts: _Counts


class _Call:
    """One call under a policy. The methods are tenacity's callbacks, and use the policy's own clock."""

    def __init__(
        self, rules: _Rules, function: Callable[..., Any], partition: Hashable | None, api: str | None
    ) -> None:
        self._rules = rules
        self._function = function
        self._partition = partition
        self._api = api
        self._began = rules.times.clock()
        self._error: Exception | None = None
        self._verdict: Verdict | None = None
        self._tries = 0
        self._out_of_time = False
        self._gave_up: _GaveUp | None = None
        self._options: dict[str, Any] = {
            "retry": self._is_again,
            "wait": rules.wait,
            "stop": self._is_over,
            "before_sleep": self._tell_pause,
            "reraise": rules.reraise,
        }

    def run(self, args: Any, kwargs: Any) -> Any:
        def attempt() -> Any:
            if (wait_s := self._turn_s()) > 0:
                self._rules.times.sleep(wait_s)
            self._tries += 1
            return self._function(*args, **kwargs)

        try:
            result = tenacity.Retrying(sleep=cast("Any", self._rules.times.sleep), **self._options)(attempt)
        except Exception as error:
            self._note(error)
            raise
        self._succeeded()
        return result

    async def run_async(self, args: Any, kwargs: Any) -> Any:
        async def attempt() -> Any:
            if (wait_s := self._turn_s()) > 0:
                await self._rules.times.async_sleep(wait_s)
            self._tries += 1
            return await self._function(*args, **kwargs)

        sleep = cast("Any", self._rules.times.async_sleep)
        try:
            result: Any = await tenacity.AsyncRetrying(sleep=sleep, **self._options)(attempt)
        except Exception as error:
            self._note(error)
            raise
        self._succeeded()
        return result

    # --- the rate limit ---

    def _turn_s(self) -> float:
        """Returns the seconds until this call's next attempt may begin. If the next attempt would begin after the
        deadline, raises the last error.
        """
        if self._partition is None:
            return 0.0
        deadline_s = self._rules.deadline_s
        left_s = math.inf if deadline_s is None else max(0.0, deadline_s - self._elapsed_s())
        wait_s = self._rules.limit.turn_s(self._partition, left_s)
        if wait_s is not None:
            return wait_s
        self._out_of_time = True
        raise self._error or WaitTimeoutError(
            f"{_name(self._function)} was not tried: {self._partition!r} fails, and so many other calls wait for it"
            f" that this call cannot begin within {deadline_s:g} s"
        )

    def _succeeded(self) -> None:
        if self._partition is not None:
            self._rules.limit.succeeded(self._partition)

    # --- callbacks of tenacity, in the order of the calls ---

    def _is_again(self, state: tenacity.RetryCallState) -> bool:
        error = _outcome(state)
        # Interrupts and cancellations are not failures.
        if not isinstance(error, Exception):
            return False
        if self._out_of_time:
            self._tell(error, None, "deadline")
            return False
        self._judge(error)
        if self._verdict is not None and self._verdict.action in _AGAIN:
            return True
        self._tell(error, None, "verdict")
        return False

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        error = _outcome(state)
        if not isinstance(error, Exception):
            return False
        if self._error is not error:
            # Judge tenacity's own exception TryAgain here, because tenacity does not call `_is_again` for it.
            self._judge(error)
        rules = self._rules
        if rules.attempts is not None and self._tries >= rules.attempts:
            self._tell(error, None, "attempts")
            return True
        if rules.deadline_s is not None and self._elapsed_s() + state.upcoming_sleep > rules.deadline_s:
            self._tell(error, None, "deadline")
            return True
        return False

    def _tell_pause(self, state: tenacity.RetryCallState) -> None:
        error = _outcome(state)
        if isinstance(error, Exception):
            self._tell(error, state.upcoming_sleep, None)

    # --- reports ---

    def _elapsed_s(self) -> float:
        return self._rules.times.clock() - self._began

    def _judge(self, error: Exception) -> None:
        whether = self._rules.whether
        self._error = error
        self._verdict = classify(error, self._api) if whether is None else whether(error)
        if self._partition is not None:
            self._rules.limit.failed(self._partition)

    def _tell(self, error: Exception, pause_s: float | None, gave_up: _GaveUp | None) -> None:
        verdict = self._verdict or classify(error, self._api)
        self._gave_up = gave_up
        elapsed_s = self._elapsed_s()
        name = _name(self._function)
        self._rules.counts.count(self._api or name, verdict.name, pause_s, gave_up)
        if pause_s is not None:
            log.limited(
                logging.INFO,
                "retry",
                name,
                "%s failed (try %d, %.1f s): %r; again in %.2f s",
                name,
                self._tries,
                elapsed_s,
                error,
                pause_s,
                attempt=self._tries,
                pause_s=pause_s,
                error=type(error).__name__,
            )
        else:
            log.limited(
                logging.INFO,
                "retry_given_up",
                name,
                "%s failed (try %d, %.1f s): %r; given up (%s)",
                name,
                self._tries,
                elapsed_s,
                error,
                gave_up,
                attempt=self._tries,
                error=type(error).__name__,
            )
        if self._rules.on_retry is None:
            return
        event = RetryEvent(name, self._partition, self._tries, elapsed_s, pause_s, gave_up, error, verdict)
        try:
            self._rules.on_retry(event)
        except Exception:
            # An error of the user's function `on_retry` must not affect the result of the call.
            log.exception("on_retry failed for %s", event, event="hook_failed")

    def _note(self, error: Exception) -> None:
        """Adds a note about the attempts to the raised error. Removes such notes of earlier calls, because a function
        may raise the same object each time.
        """
        if self._tries < 2:
            return
        kept = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_NOTE)]
        if hasattr(error, "__notes__"):
            error.__notes__ = kept
        fix = self._verdict.explanation if self._verdict is not None else ""
        error.add_note(
            f"{_NOTE}{_name(self._function)} was tried {self._tries} times in {self._elapsed_s():.1f} s and given up"
            f" ({self._gave_up}). {fix}"
        )


_NOTE: Final = "kafkasafe.RetryPolicy: "


def _outcome(state: tenacity.RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        return False
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - this looks for a coroutine function
    )


def _name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)


def _shown_ms(seconds: float | None) -> str:
    return "None" if seconds is None else f"{seconds * 1000:g}"


def _number(name: str, value: Any, *, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a number, not {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise ConfigError(f"{name} must be {'at least' if zero else 'above'} 0, not {value!r}")
    return float(value)

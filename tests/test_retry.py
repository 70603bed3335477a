"""RetryPolicy: when to try again, on a clock that only pauses move."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import os
import signal
import threading

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    TopicAuthorizationFailedError,
)
from prometheus_client import CollectorRegistry
from waiting import until

from kafkasafe import (
    ConfigError,
    ErrorAction,
    RetryPolicy,
    UsageError,
    Verdict,
    classify,
    errors,
    metrics,
    retry_if_kafka_retriable,
)
from kafkasafe.audit import NoSuchTopicError
from kafkasafe.retry import Times

HOT = ("orders", 3)


class Clock:
    def __init__(self):
        self.now = 1000.0
        self.pauses = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        assert seconds > 0
        self.pauses.append(seconds)
        self.now += seconds

    async def async_sleep(self, seconds):
        self.sleep(seconds)


class Broker:
    """Fails so many times, then answers; every request takes its time."""

    def __init__(self, clock, failures, error=OffsetNotAvailableError, takes_s=0.0):
        self.clock, self.failures, self.error, self.takes_s = clock, failures, error, takes_s
        self.asked_at = []

    def ask(self, *arguments):
        self.asked_at.append(self.clock.now)
        self.clock.now += self.takes_s
        if len(self.asked_at) <= self.failures:
            raise self.error(*arguments)
        return arguments

    async def ask_async(self, *arguments):
        await asyncio.sleep(0)
        return self.ask(*arguments)


@pytest.fixture(params=["sync", "async"])
def world(request):
    """A clock, a maker of policies on it, and a way to call a broker through one, sync and async."""
    clock = Clock()
    events = []

    def policy(**options):
        random_fraction = options.pop("random_fraction", lambda: 0.5)
        times = Times(clock, clock.sleep, clock.async_sleep, random_fraction)
        return RetryPolicy(**{"_times": times, "on_retry": events.append, **options})

    def call(decorate, broker, *arguments):
        if request.param == "sync":
            return decorate(broker.ask)(*arguments)
        return asyncio.run(decorate(broker.ask_async)(*arguments))

    return clock, policy, call, events


def test_a_success_costs_nothing(world):
    clock, policy, call, events = world
    assert call(policy(), Broker(clock, 0), "a") == ("a",)
    assert (clock.pauses, events) == ([], [])


def test_pauses_double_with_jitter_up_to_the_bound(world):
    clock, policy, call, _ = world
    assert call(policy(first_ms=1000, max_ms=4000, deadline_ms=None, attempts=9), Broker(clock, 5), "a") == (
        "a",
    )
    # Halfway between the least pause, of ten tries a second, and the bound.
    assert clock.pauses == [0.55, 1.05, 2.05, 2.05, 2.05]


PUBLIC_ERRORS = [*(getattr(errors, name) for name in errors.__all__), NoSuchTopicError]


@pytest.mark.parametrize("kind", PUBLIC_ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_of_ours_is_retriable_where_the_verdict_says_so_and_the_policy_does_it(world, kind):
    clock, policy, call, _ = world
    assert classify(kind) == classify(kind("happened"))
    again = classify(kind).action in {ErrorAction.RETRY, ErrorAction.RETRY_AFTER_REFRESH}
    assert kind("happened").retriable is again
    assert classify(kind).retriable is again
    broker = Broker(clock, 2, functools.partial(kind, "happened"))
    if again:
        assert call(policy(), broker) == ()
        assert len(broker.asked_at) == 3
    else:
        with pytest.raises(kind, match="happened"):
            call(policy(), broker)
        assert len(broker.asked_at) == 1


def test_any_wait_of_tenacitys_may_take_the_place_of_the_pauses(world):
    clock, policy, call, _ = world
    wait = tenacity.wait_fixed(3) + tenacity.wait_fixed(1)
    assert call(policy(wait=wait), Broker(clock, 2), "a") == ("a",)
    assert clock.pauses == [4, 4]


def test_the_dice_may_say_nothing_and_the_rate_holds_all_the_same(world):
    clock, policy, call, _ = world
    broker = Broker(clock, 20)
    call(policy(random_fraction=lambda: 0.0, rate_per_s=10), broker)
    assert clock.pauses == [0.1] * 20


def test_the_deadline_ends_it_with_the_last_error_and_what_was_tried(world):
    clock, policy, call, events = world
    broker = Broker(clock, 99, takes_s=0.25)
    with pytest.raises(OffsetNotAvailableError) as raised:
        call(policy(deadline_ms=10_000, first_ms=1000, max_ms=4000), broker)
    assert clock.now - 1000 <= 10
    tries = len(broker.asked_at)
    (note,) = raised.value.__notes__
    assert f"was tried {tries} times in 9." in note
    assert "(deadline)" in note
    assert classify(78).explanation in note
    assert [event.attempt for event in events] == list(range(1, tries + 1))
    assert [event.gave_up for event in events] == [None] * (tries - 1) + ["deadline"]
    assert events[-1].pause_s is None
    assert sum(event.pause_s for event in events[:-1]) == pytest.approx(sum(clock.pauses))


def test_attempts_end_it(world):
    clock, policy, call, events = world
    broker = Broker(clock, 99)
    with pytest.raises(OffsetNotAvailableError):
        call(policy(attempts=3), broker)
    assert len(broker.asked_at) == 3
    assert events[-1].gave_up == "attempts"


def test_a_deadline_of_nothing_is_one_try(world):
    clock, policy, call, _ = world
    broker = Broker(clock, 99)
    with pytest.raises(OffsetNotAvailableError):
        call(policy(deadline_ms=0), broker)
    assert (len(broker.asked_at), clock.pauses) == (1, [])


def test_what_no_retry_helps_is_raised_at_once_as_it_is(world):
    clock, policy, call, events = world
    broker = Broker(clock, 99, TopicAuthorizationFailedError)
    with pytest.raises(TopicAuthorizationFailedError) as raised:
        call(policy(), broker)
    assert (len(broker.asked_at), clock.pauses) == (1, [])
    assert not getattr(raised.value, "__notes__", [])
    assert [(event.gave_up, event.verdict.action) for event in events] == [("verdict", ErrorAction.FATAL)]


def test_the_callback_may_refresh_metadata_before_the_pause(world):
    clock, policy, call, _ = world
    seen = []

    def on_retry(event):
        if event.verdict.refresh_metadata:
            seen.append((event.call.rsplit(".", 1)[-1], event.partition, clock.now))

    call(policy(on_retry=on_retry).on(HOT), Broker(clock, 1, NotLeaderForPartitionError))
    assert [(name.removesuffix("_async"), key, at) for name, key, at in seen] == [("ask", HOT, 1000.0)]


def test_a_callback_that_fails_decides_nothing(world, caplog):
    clock, policy, call, _ = world

    def on_retry(event):
        raise ValueError(event)

    assert call(policy(on_retry=on_retry), Broker(clock, 2), 7) == (7,)
    assert "on_retry failed" in caplog.text


def test_without_reraise_it_is_tenacitys_error(world):
    clock, policy, call, _ = world
    with pytest.raises(tenacity.RetryError) as raised:
        call(policy(attempts=2, reraise=False), Broker(clock, 99))
    assert isinstance(raised.value.__cause__, OffsetNotAvailableError)
    assert classify(raised.value) == classify(78)
    assert "2 times" in raised.value.__notes__[0]


def test_the_request_kind_reaches_the_verdict(world):
    clock, policy, call, events = world
    call(policy(api="ListOffsets"), Broker(clock, 1))
    call(policy().on(HOT, api="fetch"), Broker(clock, 1))
    assert [event.verdict.api for event in events] == ["list_offsets", "fetch"]


def test_whether_may_be_somebody_elses(world):
    clock, policy, call, _ = world

    def whether(error):
        return Verdict(None, type(error).__name__, None, ErrorAction.RETRY, False, "Again.")

    assert call(policy(whether=whether), Broker(clock, 2, ValueError), 1) == (1,)


def test_tenacitys_try_again_is_heard(world):
    clock, policy, call, events = world
    assert call(policy(), Broker(clock, 2, tenacity.TryAgain)) == ()
    assert [event.verdict.action for event in events] == [ErrorAction.RETRY] * 2
    with pytest.raises(tenacity.TryAgain):
        call(policy(attempts=3), Broker(clock, 99, tenacity.TryAgain))


def test_one_error_raised_again_and_again_does_not_grow(world):
    clock, policy, call, _ = world
    error = OffsetNotAvailableError()
    error.add_note("mine")
    for _ in range(3):
        with pytest.raises(OffsetNotAvailableError):
            call(policy(attempts=2), Broker(clock, 99, lambda: error))
    assert len(error.__notes__) == 2
    assert error.__notes__[0] == "mine"


# --- rate per partition -----------------------------------------------------------------------------------------------


def test_while_a_partition_fails_all_calls_together_keep_the_rate(world):
    clock, policy, call, _ = world
    shared = policy(attempts=1, rate_per_s=10)
    broker = Broker(clock, 99)
    for _ in range(20):
        with pytest.raises(OffsetNotAvailableError):
            call(shared.on(HOT), broker)
    gaps = [b - a for a, b in itertools.pairwise(broker.asked_at)]
    assert min(gaps) >= 0.0999
    # Others are not held up by it.
    other = Broker(clock, 0)
    before = clock.now
    call(shared.on(("orders", 4)), other)
    call(shared, other)
    assert clock.now == before


def test_a_success_lifts_the_cap(world):
    clock, policy, call, _ = world
    shared = policy(rate_per_s=1)
    call(shared.on(HOT), Broker(clock, 1))
    before = clock.now
    for _ in range(5):
        call(shared.on(HOT), Broker(clock, 0))
    assert clock.now == before


def test_the_key_may_come_from_the_arguments(world):
    clock, policy, call, events = world
    call(policy().on(lambda topic, partition: (topic, partition)), Broker(clock, 1), "orders", 3)
    assert [event.partition for event in events] == [HOT]


def test_a_crowd_before_one_partition_is_told_when_its_deadline_comes_first():
    clock = Clock()
    policy = RetryPolicy(deadline_ms=1000, attempts=1, rate_per_s=1, _times=Times(clock, clock.sleep))
    broker = Broker(clock, 1)
    with pytest.raises(OffsetNotAvailableError):
        policy.on(HOT)(broker.ask)()
    for _ in range(5):
        # Others wait already: their turns are taken.
        policy._rules.limit.turn_s(HOT, 100)
    with pytest.raises(KafkaTimeoutError, match="was not tried"):
        policy.on(HOT)(broker.ask)()
    assert len(broker.asked_at) == 1


def test_a_turn_behind_the_deadline_ends_a_retry_with_its_own_error():
    clock = Clock()
    events = []

    def crowd(event):
        events.append(event)
        for _ in range(20):
            policy._rules.limit.turn_s(HOT, 100)

    policy = RetryPolicy(deadline_ms=5000, rate_per_s=1, _times=Times(clock, clock.sleep), on_retry=crowd)
    with pytest.raises(OffsetNotAvailableError):
        policy.on(HOT)(Broker(clock, 9).ask)()
    assert [event.gave_up for event in events] == [None, "deadline"]


def test_many_threads_on_one_failing_partition_keep_the_rate_for_real():
    policy = RetryPolicy(deadline_ms=550, first_ms=1, rate_per_s=20)
    asked = []

    @policy.on(HOT)
    def ask():
        asked.append(1)
        raise OffsetNotAvailableError

    def run():
        with pytest.raises((OffsetNotAvailableError, KafkaTimeoutError)):
            ask()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The first tries were under way before anything had failed.
    assert 8 <= len(asked) <= 8 + 0.55 * 20 + 1


def test_partitions_that_nobody_asks_for_any_more_are_forgotten(monkeypatch):
    monkeypatch.setattr("kafkasafe.retry._MAX_KEYS", 10)
    clock = Clock()
    policy = RetryPolicy(attempts=1, _times=Times(clock, clock.sleep))
    for partition in range(100):
        with pytest.raises(OffsetNotAvailableError):
            policy.on(("orders", partition))(Broker(clock, 1).ask)()
        clock.now += 1
    assert len(policy._rules.limit) <= 10


@given(
    outcomes=st.lists(st.booleans(), min_size=1, max_size=60),
    random_fraction=st.floats(0, 1, exclude_max=True),
    takes_s=st.floats(0, 2),
    first_ms=st.floats(1, 5000),
)
def test_no_luck_and_no_timing_breaks_rate_or_deadline(outcomes, random_fraction, takes_s, first_ms):
    clock = Clock()
    policy = RetryPolicy(
        deadline_ms=20_000,
        first_ms=first_ms,
        rate_per_s=10,
        _times=Times(clock, clock.sleep, random_fraction=lambda: random_fraction),
    )
    begun = []
    failed = [False]

    @policy.on(HOT)
    def ask():
        begun.append((clock.now, failed[0]))
        clock.now += takes_s
        failed[0] = not (outcomes and outcomes.pop())
        if failed[0]:
            raise OffsetNotAvailableError

    for _ in range(5):
        start = clock.now
        try:
            ask()
        except OffsetNotAvailableError:
            assert failed[0]
        assert clock.now <= start + 20 + takes_s + 0.1
    for (earlier, _), (later, after_failure) in itertools.pairwise(begun):
        assert not after_failure or later - earlier >= 0.0999


# --- what it can be used on -------------------------------------------------------------------------------------------


def test_a_decorated_function_stays_what_it_was():
    @RetryPolicy()
    def plain(a: int, *, b: str = "x") -> str:
        """Doc."""
        return f"{a}{b}"

    @RetryPolicy()
    async def coroutine(a: int) -> int:
        return a

    assert (plain.__name__, plain.__doc__) == ("plain", "Doc.")
    assert list(inspect.signature(plain).parameters) == ["a", "b"]
    assert plain(1, b="y") == "1y"
    assert inspect.iscoroutinefunction(coroutine)
    assert not inspect.iscoroutinefunction(plain)


def test_partials_methods_classes_and_objects_that_are_called():
    policy = RetryPolicy(attempts=1)

    class Thing:
        def __init__(self, value=0):
            self.value = value

        @policy
        def method(self, more):
            return self.value + more

        async def __call__(self, more):
            return self.value + more

    assert Thing(2).method(3) == 5
    assert policy.call(Thing, 4).value == 4
    assert policy.call(functools.partial(int, base=2), "101") == 5
    assert asyncio.run(policy.call(Thing(2), 3)) == 5
    assert asyncio.run(policy.call(functools.partial(Thing(2), 3))) == 5


def test_generators_cannot_be_tried_again():
    def generator():
        yield 1

    async def async_generator():
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(UsageError, match="generator"):
            RetryPolicy()(function)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_pass(world, kind):
    clock, policy, _, events = world
    with pytest.raises(kind):
        policy().on(HOT)(Broker(clock, 9, kind).ask)()
    assert (events, clock.pauses) == ([], [])


def test_a_cancelled_task_is_not_held_up():
    async def run():
        async def ask():
            raise OffsetNotAvailableError

        task = asyncio.create_task(
            RetryPolicy(first_ms=30_000, max_ms=30_000, _times=Times(random_fraction=lambda: 0.9)).call(ask)
        )
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 5))


def test_nested_and_recursive_calls_do_not_mix():
    clock = Clock()
    policy = RetryPolicy(attempts=3, _times=Times(clock, clock.sleep))
    tries = []

    @policy
    def deep(level):
        tries.append(level)
        if level:
            deep(level - 1)
        raise OffsetNotAvailableError

    with pytest.raises(OffsetNotAvailableError):
        deep(2)
    assert (tries.count(2), tries.count(1), tries.count(0)) == (3, 9, 27)


@pytest.mark.parametrize(
    "options",
    [
        {"deadline_ms": -1000},
        {"deadline_ms": "1"},
        {"deadline_ms": float("nan")},
        {"deadline_ms": True},
        {"attempts": 0},
        {"attempts": 1.5},
        {"first_ms": 0},
        {"max_ms": -1000},
        {"rate_per_s": 0},
        {"rate_per_s": float("inf")},
        {"deadline_ms": None},
        {"api": "ListOffset"},
    ],
)
def test_options_that_cannot_work(options):
    with pytest.raises(ConfigError):
        RetryPolicy(**options)


def test_what_it_did_is_in_prometheus():
    clock = Clock()
    registry = CollectorRegistry()
    options = {"_times": Times(clock, clock.sleep), "client_id": "mine"}
    policy = RetryPolicy(deadline_ms=None, attempts=3, api="list_offsets", **options)
    other = RetryPolicy(deadline_ms=None, attempts=2, **options)
    metrics.install(policy, other, registry=registry)
    policy.call(Broker(clock, 2).ask)
    policy.call(Broker(clock, 1, NotLeaderForPartitionError).ask)
    for fails in (Broker(clock, 9), Broker(clock, 9, TopicAuthorizationFailedError)):
        with pytest.raises(KafkaError):
            policy.call(fails.ask)
    other.call(Broker(clock, 1).ask)

    def value(name, **labels):
        return registry.get_sample_value(f"kafkasafe_{name}", {"client_id": "mine", **labels})

    api, asked = {"api": "list_offsets"}, {"api": "Broker.ask"}
    assert value("retries_total", **api, error="OFFSET_NOT_AVAILABLE") == 4
    assert value("retries_total", **api, error="NOT_LEADER_OR_FOLLOWER") == 1
    assert value("retries_total", **asked, error="OFFSET_NOT_AVAILABLE") == 1
    assert value("retries_exhausted_total", **api) == 1, "what no retry helps is not a deadline"
    paused = value("retry_backoff_seconds_total", **api) + value("retry_backoff_seconds_total", **asked)
    assert paused == pytest.approx(sum(clock.pauses))


def test_its_repr_says_what_fails():
    clock = Clock()
    policy = RetryPolicy(attempts=1, _times=Times(clock))
    with pytest.raises(OffsetNotAvailableError):
        policy.on(HOT)(Broker(clock, 1).ask)()
    assert (
        "deadline_ms=120000, attempts=1, first_ms=100, max_ms=10000, rate_per_s=10, 1 partitions failing"
        in repr(policy)
    )


def test_what_is_for_tests_alone_is_no_part_of_the_signature():
    shown = [name for name in inspect.signature(RetryPolicy).parameters if name[0] != "_"]
    assert not {"clock", "sleep", "async_sleep", "random_fraction"} & set(shown)
    assert len(shown) == 11


@pytest.mark.parametrize("sync", [True, False])
def test_programs_that_use_tenacity_ask_the_same_table(sync):
    errors = [NotLeaderForPartitionError(), OffsetNotAvailableError("soon"), TopicAuthorizationFailedError()]
    tries = []

    def ask():
        tries.append(1)
        raise errors[len(tries) - 1]

    async def ask_async():
        ask()

    decorate = tenacity.retry(
        retry=retry_if_kafka_retriable("list_offsets"),
        wait=tenacity.wait_none(),
        stop=tenacity.stop_after_attempt(9),
        reraise=True,
    )
    with pytest.raises(TopicAuthorizationFailedError):
        decorate(ask)() if sync else asyncio.run(decorate(ask_async)())
    assert len(tries) == 3, "the last one is final"
    # As tenacity's own, it can be combined.
    either = retry_if_kafka_retriable() | tenacity.retry_if_exception_type(ZeroDivisionError)
    with pytest.raises(tenacity.RetryError):
        tenacity.retry(retry=either, stop=tenacity.stop_after_attempt(2))(lambda: 1 / 0)()
    with pytest.raises(ConfigError):
        retry_if_kafka_retriable("ListOffset")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_can_use_a_policy_that_a_thread_of_its_parent_was_using():
    """The thread holds the lock of the rate limit at the fork, and does not exist in the child."""
    holding, go_on = threading.Event(), threading.Event()

    def clock():
        if threading.current_thread() is thread and failed:
            holding.set()
            go_on.wait(60)
        return 0.0

    failed = []

    def fails(*_):
        failed.append(True)
        raise TopicAuthorizationFailedError

    policy = RetryPolicy(_times=Times(clock=clock))

    def use():
        with contextlib.suppress(TopicAuthorizationFailedError):
            policy.on(HOT)(fails)()

    thread = threading.Thread(target=use)
    thread.start()
    holding.wait(60)
    try:
        child = os.fork()
        if child == 0:
            use()
            list(policy.metric_samples())
            os._exit(7)
        with contextlib.suppress(AssertionError):
            until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), 10)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        go_on.set()
        thread.join()


@pytest.mark.parametrize("step", range(8))
def test_a_signal_handler_may_use_the_policy_in_the_middle_of_a_call_under_it(step):
    """It waited for ever for the lock that the interrupted call on its own thread had."""
    asked = itertools.count()

    def fails():
        raise TopicAuthorizationFailedError

    def use():
        with contextlib.suppress(TopicAuthorizationFailedError):
            policy.on(HOT)(fails)()

    def clock():
        if next(asked) == step:
            use()  # as a handler that comes here
        return 0.0

    policy = RetryPolicy(_times=Times(clock=clock))

    def work():
        use()
        use()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()

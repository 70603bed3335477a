"""Procedures, and procedures of procedures, with requests that are answered by hand."""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest
from ctrl_c import CtrlC

from kafkasafe.cluster.inquiry import ProcedureRunner
from kafkasafe.cluster.procedures import Ask, Pause, Together


class Requests:
    """What was sent, by name, with the callbacks for the answers."""

    def __init__(self):
        self.open = {}

    def ask(self, name):
        return Ask(lambda reply: self.open.__setitem__(name, reply))

    def answer(self, runner, name, value):
        self.open.pop(name)(value)
        runner.work()


@pytest.fixture
def requests():
    return Requests()


def one(requests, name):
    return (yield requests.ask(name))


def both(requests, *names):
    return (yield Together([one(requests, name) for name in names]))


def test_side_by_side_in_the_order_they_were_named(requests):
    runner = ProcedureRunner()
    inquiry = runner.begin(both(requests, "a", "b", "c"))
    assert list(requests.open) == ["a", "b", "c"]
    for name in "cab":
        assert not inquiry.done
        requests.answer(runner, name, name.upper())
    assert (inquiry.done, inquiry.result) == (True, ["A", "B", "C"])


def test_those_that_need_nobody_are_over_at_once():
    def ready(value):
        yield from ()
        return value

    def outer():
        first = yield Together([ready(1), ready(2)])
        second = yield Together([])
        return first, second

    assert ProcedureRunner().begin(outer()).result == ([1, 2], [])


def test_one_that_fails_ends_the_others_and_is_raised_where_they_were_waited_for(requests):
    ended = []

    def waits():
        try:
            yield requests.ask("slow")
        finally:
            ended.append("slow")

    def fails():
        yield requests.ask("bad")
        raise OSError("broken")

    def outer():
        try:
            yield Together([waits(), fails()])
        except OSError as error:
            return str(error), (yield requests.ask("after"))

    runner = ProcedureRunner()
    inquiry = runner.begin(outer())
    late = requests.open["slow"]
    requests.answer(runner, "bad", None)
    assert ended == ["slow"]
    late("too late")
    requests.answer(runner, "after", 5)
    assert inquiry.result == ("broken", 5)


def test_nested_and_cancelled(requests):
    closed = []

    def watched(procedure, name):
        try:
            return (yield from procedure)
        finally:
            closed.append(name)

    def outer():
        return (
            yield Together([watched(both(requests, "a", "b"), "inner"), watched(one(requests, "c"), "c")])
        )

    runner = ProcedureRunner()
    inquiry = runner.begin(outer())
    requests.answer(runner, "a", 1)
    inquiry.cancel()
    assert sorted(closed) == ["c", "inner"]
    for name in list(requests.open):
        requests.answer(runner, name, 2)
    assert (inquiry.done, inquiry.result, inquiry.error) == (True, None, None)

    again = runner.begin(outer())
    for name in ("c", "b", "a"):
        requests.answer(runner, name, name)
    assert again.result == [["a", "b"], "c"]


def test_a_pause_beside_a_request(requests):
    def pauses():
        yield Pause(0.0)
        return "rested"

    def outer():
        return (yield Together([pauses(), one(requests, "a")]))

    runner = ProcedureRunner()
    inquiry = runner.begin(outer())
    runner.work()
    assert not inquiry.done
    requests.answer(runner, "a", 1)
    assert inquiry.result == ["rested", 1]


def test_an_interrupt_leaves_no_lock_taken(requests):
    """With an Event, Ctrl-C within `with event._cond` left its lock taken: the next answer or look waited for ever."""
    for step in itertools.count():
        runner = ProcedureRunner()
        runner.begin(one(requests, "before"))
        requests.open.pop("before")(1)
        at = CtrlC(step, {"kafkasafe.cluster.inquiry", "kafkasafe.process.wake_flag", "threading"})
        with contextlib.suppress(KeyboardInterrupt), at:
            runner.work()
            runner.wait(0)
        if not at.pressed:
            break

        def go_on(runner=runner):
            inquiry = runner.begin(one(requests, "after"))
            requests.open.pop("after")(2)
            runner.wait(0)
            runner.work()
            assert inquiry.result == 2

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), at.place
    assert step > 20

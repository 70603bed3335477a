"""Ctrl-C in the body of `with lock`, or of a `try` that ends with `lock.release()`, must not leave the lock taken.

CPython 3.13 compiles a jump back to the head of a loop, if the jump has a condition, as two instructions. The second one
is outside the range of instructions for which the lock is released. Python looks for signals there:

1. A thread is in `with lock:`, in a loop whose last statement is an `if`.
2. The condition is false, so the thread jumps back to the head of the loop. Ctrl-C is pressed.
3. The KeyboardInterrupt leaves the body without calling the lock's `__exit__`. Every other thread waits for ever.

A loop in a function of its own, or in a generator, is safe: the error leaves the call of this function. But CPython 3.14
compiles `any` and `all` of a generator as such a loop.
"""

from __future__ import annotations

import ast
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ctrl_c import CtrlC

import kafkasafe
from kafkasafe.process.locks import EnteredByStep, new_lock, new_rlock

PACKAGE = Path(kafkasafe.__file__).parent
LOCKS = ("lock", "self._once", "self._changed")
OWN_FRAME = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp)


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes within `node` that belong to the same frame."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, OWN_FRAME):
            yield child
            yield from inside(child)


def jumps_back(body: list[ast.stmt]) -> bool:
    """Whether the end of a loop's body jumps back to the loop's head only under a condition."""
    last = body[-1]
    return isinstance(last, ast.If | ast.Match | ast.Try | ast.With | ast.For | ast.Assert)


def conditional_loops(node: ast.AST) -> Iterator[int]:
    """The lines of loops that may jump back under a condition."""
    for each in inside(node):
        if isinstance(each, ast.While):
            yield each.lineno
        elif isinstance(each, ast.ListComp | ast.SetComp | ast.DictComp):
            if any(loop.ifs for loop in each.generators):
                yield each.lineno
        elif isinstance(each, ast.Call) and ast.unparse(each.func) in {"any", "all"}:
            if isinstance(each.args[0], ast.GeneratorExp):
                yield each.lineno
        elif isinstance(each, ast.For) and (
            jumps_back(each.body) or any(isinstance(one, ast.Continue) for one in inside(each))
        ):
            yield each.lineno


def loops_under_locks(tree: ast.AST) -> list[int]:
    found = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.With)
            and any(ast.unparse(item.context_expr).endswith(LOCKS) for item in node.items)
        ) or (
            isinstance(node, ast.Try)
            and any("lock.release()" in ast.unparse(last) for last in node.finalbody)
        ):
            for statement in node.body:
                found.update(conditional_loops(ast.Module([statement], [])))
    return sorted(found)


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_ctrl_c_in_a_loop_leaves_no_lock_taken(path):
    assert loops_under_locks(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_what_counts_as_a_loop_under_a_lock():
    tree = ast.parse(
        """
with self._lock:
    for each in found:
        if each:
            found.remove(each)
    for each in found:
        each.close()
    for each in found:
        if each:
            continue
        each.close()
    for each in found:
        assert each
    while found:
        found.pop()
    names = [each for each in found if each]
    names = [each.name for each in found]
    names = list(each for each in found if each)
    assert any(names)
    assert all(each for each in found)
    def later():
        while True:
            pass
try:
    while found:
        found.pop()
finally:
    lock.release()
with open(path) as file:
    while file.read(1):
        pass
"""
    )
    assert loops_under_locks(tree) == [3, 8, 12, 14, 16, 20, 25]


OTHERS = {
    "kafkasafe/delivery/callbacks.py": 1,  # a mark in a queue: acquired and released, but not by `with`
    "kafkasafe/logs.py": 1,  # the same
    "kafkasafe/process/locks.py": 2,
    "kafkasafe/process/wake_flag.py": 1,  # each method is one call into C
}
"""How many locks of `threading` these modules make."""


def test_locks_come_from_the_module_that_makes_them_safe():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = str(path.relative_to(PACKAGE.parent))
        made = [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"threading.Lock", "threading.RLock"}
        ]
        if made and not name.startswith(("kafkasafe/testing/", "kafkasafe/demo/")):
            found[name] = len(made)
    assert found == OTHERS


def is_free(lock: Any) -> bool:
    """Whether another thread could acquire the lock."""
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(lock.acquire(blocking=False) and not lock.release())
    )
    thread.start()
    thread.join(10)
    return found == [True]


def test_a_lock_that_is_entered_by_a_step_is_a_lock():
    lock: Any = EnteredByStep(threading.Lock())
    with lock as acquired:
        assert acquired
        assert lock.locked()
        assert not lock.acquire(blocking=False)
    assert not lock.locked()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    assert lock.acquire(timeout=1)
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()


def test_a_reentrant_lock_that_is_entered_by_a_step_is_reentrant():
    lock: Any = EnteredByStep(threading.RLock())
    with lock, lock:
        assert lock._is_owned()
        assert not is_free(lock)
    assert not lock._is_owned()


@pytest.mark.parametrize("lock", [threading.Lock, threading.RLock])
def test_an_exit_stack_and_a_condition_take_such_a_lock(lock):
    entered: Any = EnteredByStep(lock())
    with contextlib.ExitStack() as stack:
        stack.enter_context(entered)
        assert not is_free(entered)
    assert is_free(entered)
    condition = threading.Condition(entered)
    waits, told, got = threading.Event(), [], []

    def wait() -> None:
        with condition:
            waits.set()
            got.append(condition.wait_for(lambda: bool(told), 10))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waits.wait(10)
    with condition:  # not before the other thread waits, which holds the lock until then
        told.append("woken")
        condition.notify_all()
    thread.join(10)
    assert got == [True]
    assert is_free(entered)


def test_ctrl_c_at_each_bytecode_of_entering_leaves_no_lock_taken():
    lock = threading.Lock()
    entered: Any = EnteredByStep(lock)
    for step in range(100):
        at = CtrlC(step, {"kafkasafe.process.locks"})
        with contextlib.suppress(KeyboardInterrupt), at, entered:
            pass
        assert not lock.locked(), at.place
        if not at.pressed:
            break
    assert step > 5


@pytest.mark.parametrize("make", [new_lock, new_rlock])
def test_ctrl_c_while_locks_are_taken_leaves_none_taken(make):
    """On Python 3.14, this left every second lock of `threading` taken."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Signals come to the main thread, and the tests run on another one")
    lock = make()

    def press(*_: object) -> None:
        raise KeyboardInterrupt

    def take() -> None:
        while True:
            with lock:
                pass

    before = signal.signal(signal.SIGALRM, press)
    try:
        for _ in range(200):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                take()
            assert is_free(lock)
            lock = make()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

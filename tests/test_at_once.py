"""What Ctrl-C leaves behind in a thread that defers wakes, or hands its log records to another thread."""

from __future__ import annotations

import contextlib

from ctrl_c import CtrlC

from kafkasafe import logs
from kafkasafe.cluster import at_once


def test_ctrl_c_leaves_no_thread_that_wakes_nobody() -> None:
    """With a function call in `finally`, or in a context manager, Python would raise before anything has changed."""
    asked: list[int] = []
    for step in range(1, 300):
        at = CtrlC(step, {"kafkasafe.cluster.at_once", "contextlib"})
        try:
            with at:
                at_once.at_once(lambda: asked.append(1))
        except KeyboardInterrupt:
            assert not at_once.is_deferred(int, 1), at.place
        assert not at_once.is_deferred(int, 1), at.place
        if not at.pressed:
            break
    assert 10 < step < 299
    assert asked


def test_ctrl_c_leaves_no_thread_apart() -> None:
    """Once the error is handled: if Ctrl-C comes before `__exit__`, the generator ends when the traceback is freed."""
    for step in range(1, 300):
        at = CtrlC(step, {"kafkasafe.logs"})
        with contextlib.suppress(KeyboardInterrupt), at, logs.apart():
            pass
        assert not logs._thread.is_apart, at.place
        if not at.pressed:
            break
    assert 10 < step < 299

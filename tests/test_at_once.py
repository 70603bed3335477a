"""What the contexts of a thread leave behind when Ctrl-C interrupts them."""

from __future__ import annotations

import contextlib

import pytest
from ctrl_c import CtrlC

from kafkasafe import logs
from kafkasafe.cluster import at_once


@pytest.mark.parametrize(
    ("enter", "module", "is_inside"),
    [
        (at_once.at_once, "kafkasafe.cluster.at_once", lambda: at_once.is_deferred(int, 1)),
        (logs.apart, "kafkasafe.logs", lambda: logs._thread.is_apart),
    ],
    ids=["at_once", "apart"],
)
def test_ctrl_c_leaves_the_thread_outside_of_the_context(enter, module, is_inside):
    """With a function call in `finally`, Python would raise before the function has changed anything."""
    for step in range(1, 300):
        at = CtrlC(step, {module})
        with contextlib.suppress(KeyboardInterrupt), at, enter():
            pass
        assert not is_inside(), at.place
        if not at.pressed:
            break
    assert 10 < step < 299

"""Errors that wait for a decision, and a signal handler that decides in the middle of another decision."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from ctrl_c import CtrlC

from kafkasafe.delivery.engine.errors_to_raise import ErrorsToRaise
from kafkasafe.delivery.engine.waits import Guard
from kafkasafe.errors import UndecidableError

MODULE = "kafkasafe.delivery.engine.errors_to_raise"


def take(errors: ErrorsToRaise, handles: list[int]) -> None:
    handles.extend(batch.handle for _, batch in errors.take_shown())


def test_a_batch_is_decided_once_although_a_signal_handler_decides_too():
    """If a batch was in nobody's hands, its records would wait for ever, and so would flush()."""
    interrupted = set()
    for step in range(1, 500):
        errors = ErrorsToRaise(Guard())
        lane: Any = object()
        for handle in (1, 2, 3):
            batch: Any = SimpleNamespace(handle=handle)
            errors.ask_about(lane, batch, UndecidableError("undecidable", evidence="none"))
        by_handler: list[int] = []
        at = CtrlC(step, {MODULE}, partial(take, errors, by_handler))
        taken: list[int] = []
        with at:
            take(errors, taken)
        assert sorted([*taken, *by_handler]) == [1, 2, 3], at.place
        if not at.pressed:
            break
        interrupted.add((len(taken), len(by_handler)))
    assert {(3, 0), (0, 3), (1, 2), (2, 1)} <= interrupted

"""Waiting for the answer to a request."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from ctrl_c import CtrlC

from kafkasafe.spark.transactions import Pending


def test_ctrl_c_while_an_answer_is_awaited_does_not_stop_the_thread_that_answers() -> None:
    """It left the lock of an event taken, and the network thread waited for this lock for ever."""
    for step in range(200):
        replies: list[Any] = []
        pending = Pending(replies.append)
        interruptible = {"threading", "kafkasafe.spark.transactions", "kafkasafe.process.wake_flag"}
        with contextlib.suppress(KeyboardInterrupt, RuntimeError), CtrlC(step, interruptible) as at:
            pending.wait(0.01)
        answering = threading.Thread(target=replies[0], args=("answer",), daemon=True)
        answering.start()
        answering.join(5)
        assert not answering.is_alive(), at.place
        assert pending.wait(0)
        assert pending.answer(0) == "answer"
        if not at.pressed:
            break
    assert step > 5

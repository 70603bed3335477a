"""Waiting for a condition. A pause is none: it is too short on a busy machine, and too long on any other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_LOOK_EVERY_S = 0.01


def until(condition: Callable[[], Any], timeout_s: float = 120.0, what: str = "") -> Any:
    """Looks again and again until the condition holds.

    Returns:
        What it gave.

    Raises:
        AssertionError: It did not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        pause.wait(_LOOK_EVERY_S)
    return value

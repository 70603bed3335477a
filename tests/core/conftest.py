"""Rules that are pure have pure tests: nothing here waits, or talks to anybody."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import NoReturn

import pytest


@pytest.fixture(scope="module", autouse=True)
def _nothing_outside(request: pytest.FixtureRequest) -> Iterator[None]:
    if hasattr(request.module, "jars"):  # compares with Kafka's own classes
        yield
        return

    def refused(*_: object) -> NoReturn:
        raise AssertionError("a test of kafkasafe/_core sleeps, or opens a connection")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", refused)
        patched.setattr(socket.socket, "connect", refused)
        yield

"""Rules that are pure have pure tests: nothing here waits, or talks to anybody."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def _nothing_outside(request: pytest.FixtureRequest) -> Iterator[None]:
    if hasattr(request.module, "jars"):  # compares with Kafka's own classes
        yield
        return

    here = threading.get_ident()

    def refusing(real: Callable[..., Any]) -> Callable[..., Any]:
        def refused(*args: Any) -> Any:
            # Other threads of the process, such as Spark's, are no business of these tests.
            if threading.get_ident() == here:
                raise AssertionError("a test of kafkasafe/_core sleeps, or opens a connection")
            return real(*args)

        return refused

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", refusing(time.sleep))
        patched.setattr(socket.socket, "connect", refusing(socket.socket.connect))
        yield

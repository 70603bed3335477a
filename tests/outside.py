"""What fast tests may not do: sleep, and talk to other processes. See `tiers.py`."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_OURS = tuple(f"{_ROOT / each}/" for each in ("tests", "kafkasafe", "examples"))
_PRODUCT = f"{_ROOT / 'kafkasafe'}/"
_LOOK_S = 0.1
"""What waits for a lock or for another thread looks at least this often: whether it has to is a matter of luck."""
_NOBODY_BELOW = 1024
_OR_NOT_QUICK = ": a quick test uses no connection; name the test in NOT_QUICK (tests/tiers.py)"
_OR_REAL = ", or give the test the marker `real` (tests/tiers.py)"

_servers: set[int] = set()
"""Ports of TCP that something in this process listens on, or did: a client may knock at a broker that is down."""


def note_servers() -> None:
    """From now on it is known which servers are of this process."""
    listen = socket.socket.listen

    def noting(self: socket.socket, *backlog: int) -> None:
        listen(self, *backlog)
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            _servers.add(self.getsockname()[1])

    socket.socket.listen = noting  # type: ignore[method-assign]


@contextlib.contextmanager
def nothing_outside(*, connections: bool = True) -> Iterator[None]:
    """`time.sleep` on this thread, and connections to other processes on this thread or one that it starts, raise.

    kafka-python's consumer may sleep, and Python's `subprocess`: that is their way to wait for a condition. The product may
    for a moment, between two looks at one. One may knock where nobody can listen, at ports of 127.0.0.1 below 1024.

    Args:
        connections: Whether connections to servers of this process are allowed, and to those ports. If not, any raises.
    """
    here = threading.get_ident()
    # Threads that shared fixtures started, such as Spark's, are no business of this test.
    # (Not by their numbers, which are used again.)
    others = set(threading.enumerate()) - {threading.current_thread()}
    sleep, connect, connect_ex = time.sleep, socket.socket.connect, socket.socket.connect_ex
    strangers = []

    def slept(seconds: float) -> None:
        caller = sys._getframe(1).f_code.co_filename
        looks = seconds <= _LOOK_S and caller.startswith(_PRODUCT)
        if threading.get_ident() == here and caller.startswith(_OURS) and not looks:
            raise AssertionError(f"sleeps: wait for a condition{_OR_REAL}")
        sleep(seconds)

    def check(self: socket.socket, address: Any) -> None:
        if self.family not in {socket.AF_INET, socket.AF_INET6} or threading.current_thread() in others:
            return
        host, port = address[:2]
        if not connections:
            strangers.append(address)
            raise AssertionError(f"connects to {address}{_OR_NOT_QUICK}")
        if port not in _servers and not (host == "127.0.0.1" and port < _NOBODY_BELOW):
            strangers.append(address)
            raise AssertionError(f"connects to {address}, which is not of this process{_OR_REAL}")

    def connected(self: socket.socket, address: Any) -> None:
        check(self, address)
        connect(self, address)

    def connected_ex(self: socket.socket, address: Any) -> int:
        check(self, address)
        return connect_ex(self, address)

    time.sleep = slept
    socket.socket.connect, socket.socket.connect_ex = connected, connected_ex  # type: ignore[method-assign]
    try:
        yield
    finally:
        time.sleep = sleep
        socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign]
    # A client takes what was raised on its own thread for a connection that failed.
    where = f", which is not of this process{_OR_REAL}" if connections else _OR_NOT_QUICK
    assert not strangers, f"connects to {strangers[0]}{where}"

"""The lists of `tiers.py` name what there is."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import outside
import pytest
import tiers
from waiting import until

HERE = Path(__file__).parent


@pytest.mark.parametrize("module", tiers.WORTH_IT)
def test_what_is_named_fast_is_there(module):
    source = (HERE / module).read_text()
    assert [name for name in tiers.WORTH_IT[module] if f"def {name}(" not in source] == []


@pytest.mark.parametrize(
    ("module", "function", "marks", "fast"),
    [
        ("core/test_batch.py", "test_x", set(), True),
        ("producer/test_lanes.py", "test_x", {"kafka", "crash"}, False),
        ("consumer/test_drop_in.py", "test_x", {"kafka"}, True),
        ("producer/test_kill.py", "test_nothing_is_lost_by_killing_the_process_a_few_times", {"kafka"}, True),
        ("producer/test_kill.py", "test_x", {"kafka", "crash"}, False),
        ("dashboard/test_dashboard.py", "test_x", set(), False),
        ("core/test_batch.py", "test_x", {"full"}, False),
    ],
)
def test_a_test_is_fast_by_rule(module, function, marks, fast):
    assert tiers.is_fast(module, function, marks) is fast


def test_a_fast_test_does_not_sleep():
    with pytest.raises(AssertionError, match="wait for a condition"):
        time.sleep(0)


def product_sleeps(seconds):
    """As a function of the package does."""
    code = compile("time.sleep(seconds)", str(HERE.parent / "kafkasafe" / "some.py"), "exec")
    exec(code, {"time": time, "seconds": seconds})


def test_the_product_may_sleep_for_a_moment():
    """Whether flush() comes when a record is on its way between two places, or a lock is held, is luck."""
    for seconds in (0, 0.02):
        product_sleeps(seconds)
    with pytest.raises(AssertionError, match="wait for a condition"):
        product_sleeps(0.2)


def test_a_fast_test_talks_to_its_own_process():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 60):
        pass


@pytest.mark.parametrize("apart", [False, True], ids=["its thread", "a thread it starts"])
@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_a_fast_test_talks_to_no_other_process(method, apart):
    serve = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", serve], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as stranger:
        address = ("127.0.0.1", int(stranger.stdout.readline()))
        outside._servers.discard(address[1])  # an earlier test's server may have had that port

        def knock_there():
            # A client takes what is raised here for a connection that failed, and says nothing.
            with socket.socket() as sock, contextlib.suppress(AssertionError):
                getattr(sock, method)(address)

        def knock():
            if not apart:
                return knock_there()
            thread = threading.Thread(target=knock_there)
            thread.start()
            return thread.join(60)

        with pytest.raises(AssertionError, match="not of this process"), outside.nothing_outside():
            knock()
        stranger.communicate("")


@pytest.mark.real
def test_a_real_test_may_sleep():
    time.sleep(0)


def test_waiting_gives_up_and_says_for_what():
    with pytest.raises(AssertionError, match="rain"):
        until(lambda: False, 0.05, "rain")


@pytest.mark.parametrize(
    ("marks", "real"), [({"kafka"}, True), ({"real"}, True), ({"full"}, True), ({"timeout"}, False)]
)
def test_what_may_leave_the_process(marks, real):
    assert tiers.is_real(marks) is real

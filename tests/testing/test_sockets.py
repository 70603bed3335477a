"""The sockets of the fake and of the proxies in a process that forks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

import pytest
from waiting import until

from kafkasafe.testing import FakeCluster
from kafkasafe.testing.tcp_proxy import TcpProxy

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@contextlib.contextmanager
def forked_child():
    """A child that this process has forked, and that does nothing once it runs."""
    runs, tells = os.pipe()
    child = os.fork()
    if not child:
        os.write(tells, b"r")
        signal.pause()
    try:
        os.read(runs, 1)  # only a child that runs has closed its copies
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(runs)
        os.close(tells)


def ended(client):
    """Whether the other side ends the connection within two seconds."""
    client.settimeout(2)
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


@pytest.fixture
def fake():
    with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def proxy(fake):
    with TcpProxy(fake.client_address(1)[1]) as made:
        yield made


def test_a_broker_is_down_although_a_forked_child_lives(fake, proxy):
    """With a copy of the listener in the child, clients would be connected, and would wait for answers."""
    where = fake.client_address(1)
    # The proxy has connected to the broker when it counts a connection of its own.
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        until(lambda: proxy.connections, 10)
        with forked_child():
            fake.kill(1)
            assert ended(client)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(where, 2)


def test_a_proxy_cuts_and_refuses_although_a_forked_child_lives(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        until(lambda: proxy.connections, 10)
        with forked_child():
            assert proxy.cut() == 1
            assert ended(client)
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", proxy.port), 2)


def test_a_forked_child_can_close_what_its_parent_uses(fake, proxy):
    child = os.fork()
    if not child:
        proxy.close()
        fake.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    socket.create_connection(("127.0.0.1", proxy.port), 2).close()
    fake.create_topic("t")

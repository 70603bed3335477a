"""The door to a cluster: over the network, or a double of this process."""

import pytest

from kafkasafe.cluster.client import Transport
from kafkasafe.kafkapython.connect import announced, connect


def test_a_double_is_reached_by_any_of_its_servers_for_as_long_as_it_is_announced():
    double = object()
    seen = []

    def make(options):
        seen.append(options)
        return double

    with announced("fake-1:1, fake-1:2", make):
        for servers in ("fake-1:2", ["127.0.0.1:9", "fake-1:1"], "127.0.0.1:9,fake-1:1"):
            options = {"bootstrap_servers": servers}
            assert connect(options) is double
            assert seen.pop() == options
        with pytest.raises(ValueError, match="fake-1:2 is announced already"), announced("fake-1:2", make):
            pass
        assert connect({"bootstrap_servers": "fake-1:1"}) is double
    transport = connect({"bootstrap_servers": "fake-1:1"})
    assert isinstance(transport, Transport)
    transport.close(1.0)

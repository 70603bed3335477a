from __future__ import annotations

import sys
from pathlib import Path

# The helpers of these tests (harness.py, lives.py) are modules beside them; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))

import harness
import pytest

from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.tcp_proxy import TcpProxy


@pytest.fixture(scope="session")
def zygote():
    """Forks producing processes that have everything imported."""
    with harness.Zygote() as running:
        yield running


@pytest.fixture(scope="session")
def proxied():
    """A broker that clients reach through a proxy; nothing else in the session uses it."""
    with TcpProxy() as proxy, KafkaCluster(brokers=1, proxy_ports={1: proxy.port}) as cluster:
        proxy.target_port = cluster.client_address(1)[1]
        yield harness.Proxied(cluster, proxy)


@pytest.fixture
def broker(proxied):
    """The proxied broker, up, with an honest wire."""
    yield proxied
    proxied.proxy.restore()
    proxied.cluster.recover()


@pytest.fixture
def some_broker(request):
    """A broker whose network can be spoilt, in memory; the proxied one in the other run of a test that is `also_real`."""
    if request.param == "real":
        yield request.getfixturevalue("broker")
        return
    with FakeCluster() as cluster:
        yield harness.Proxied(cluster, cluster)


@pytest.fixture
def producers(tmp_path):
    """Opens SafeProducers and closes what a failed test leaves open."""
    with harness.Producers(tmp_path / "spool") as opened:
        yield opened

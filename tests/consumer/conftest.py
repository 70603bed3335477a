from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path

import pytest
from kafka import TopicPartition

from kafkasafe import SafeConsumer
from kafkasafe.testing import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

# consuming.py is a module beside these tests; pytest's importlib mode adds no path.
sys.path.insert(0, str(Path(__file__).parent))
from consuming import Consumers


@pytest.fixture(scope="module")
def proxied():
    with FaultProxy() as proxy, KafkaCluster(brokers=1, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield cluster, proxy


@pytest.fixture
def proxy(proxied):
    """The fault proxy of a module's `proxied`, without rules of the test before."""
    yield proxied[1]
    proxied[1].clear()


@pytest.fixture
def cluster(proxied):
    return proxied[0]


@pytest.fixture
def consumers(cluster):
    with Consumers(cluster) as opened:
        yield opened
    cluster.recover()


@pytest.fixture
def opened_at():
    """Opens consumers that read partitions of a topic of a cluster from the beginning, and closes them."""
    with contextlib.ExitStack() as stack:

        def open_one(kafka, topic, *partitions, **options):
            consumer = SafeConsumer(
                bootstrap_servers=kafka.bootstrap_servers,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                **options,
            )
            stack.callback(consumer.close)
            consumer.assign([TopicPartition(topic, partition) for partition in partitions or (0,)])
            return consumer

        yield open_one


@pytest.fixture
def opened(some_kafka, opened_at):
    return functools.partial(opened_at, some_kafka)

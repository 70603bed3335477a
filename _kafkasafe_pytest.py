"""pytest fixtures: a real Kafka, `kafka` (one broker) and `kafka_cluster` (three), and one in memory, `fake_kafka`.

Installed with kafkasafe as a `pytest11` entry point, so every pytest run in the environment loads this module:
it imports nothing but pytest until a fixture is asked for, and lies beside the package, because importing that
would take half a second and happen before coverage is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kafkasafe.testing.broker import KafkaCluster
    from kafkasafe.testing.fake import FakeCluster

_OPEN = pytest.StashKey[list["KafkaCluster"]]()


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A real Apache Kafka with one broker, shared by the whole session. Use topics of your own."""
    yield from _serve(request, brokers=1)


@pytest.fixture(scope="module")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[KafkaCluster]:
    """A real Apache Kafka with three brokers, shared by the tests of one module.

    A test may kill, stop and pause nodes: whatever it leaves down is up again before the next test.
    """
    yield from _serve(request, brokers=3)


@pytest.fixture
def fake_kafka() -> Iterator[FakeCluster]:
    """A Kafka with three brokers in memory, for one test: no Java, up in a millisecond.

    The test fails if a client wanted something of it that it does not have.
    """
    from kafkasafe.testing.fake import FakeCluster

    with FakeCluster(brokers=3) as cluster:
        yield cluster


def _serve(request: pytest.FixtureRequest, brokers: int) -> Iterator[KafkaCluster]:
    from kafkasafe.testing.broker import KafkaCluster

    clusters = request.config.stash.setdefault(_OPEN, [])
    with KafkaCluster(brokers=brokers) as cluster:
        clusters.append(cluster)
        try:
            yield cluster
        finally:
            clusters.remove(cluster)


def _used_by(item: pytest.Item) -> list[KafkaCluster]:
    arguments = getattr(item, "funcargs", {}).values()
    return [cluster for cluster in item.config.stash.get(_OPEN, []) if any(cluster is a for a in arguments)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:  # noqa: ARG001
    """Keeps the nodes' logs when a test on them failed, and says where they are."""
    report: pytest.TestReport = yield
    if report.failed:
        for cluster in _used_by(item):
            report.sections.append(("Kafka", f"{cluster!r}\nlogs of the nodes: {cluster.keep_logs()}"))
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Brings back what the test left killed or paused, so that the next one finds all nodes."""
    for cluster in _used_by(item):
        cluster.recover()

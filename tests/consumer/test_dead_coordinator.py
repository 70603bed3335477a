"""A broker has died, and the cluster still names it as the coordinator of a group, until the broker's session ends."""

from __future__ import annotations

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from kafkasafe import SafeConsumer
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.fake.groups import Groups

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.commit({TP: OffsetAndMetadata(1, "", -1)}, timeout_ms=1000),
        lambda consumer: consumer.committed(TP, timeout_ms=1000),
    ],
    ids=["commit", "committed"],
)
def test_a_dead_coordinator_is_not_looked_up_without_a_pause(monkeypatch, call):
    """kafka-python sent up to 700 requests a second."""
    with FakeCluster(brokers=3) as cluster:
        cluster.create_topic("t", 1)
        consumer = SafeConsumer(
            bootstrap_servers=cluster.bootstrap_servers, group_id="g", enable_auto_commit=False
        )
        consumer.assign([TP])
        consumer.commit({TP: OffsetAndMetadata(0, "", -1)})
        monkeypatch.setattr(Groups, "coordinator", lambda groups, name: 2)
        cluster.kill(2)
        before = cluster.requests["FindCoordinator"]
        with pytest.raises(KafkaTimeoutError):
            call(consumer)
        assert 2 <= cluster.requests["FindCoordinator"] - before <= 15
        cluster.start(2)
        consumer.commit({TP: OffsetAndMetadata(1, "", -1)}, timeout_ms=30_000)
        assert consumer.committed(TP) == 1
        consumer.close()

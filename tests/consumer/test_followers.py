"""Reading from a follower (KIP-392): one that answers with an error is left for the leader at once."""

from __future__ import annotations

import time

import consuming
import pytest
from consuming import Consumers, collect, new_topic, until
from kafka import TopicPartition

from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = pytest.mark.kafka

LEADER, FOLLOWER = 1, 2


@pytest.fixture(scope="module")
def racks():
    """The consumer is in the rack of the one that follows."""
    config = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "offsets.topic.replication.factor": 2,
    }
    with (
        FaultProxy((LEADER, FOLLOWER)) as proxy,
        KafkaCluster(
            brokers=2,
            config=config,
            broker_config={LEADER: {"broker.rack": "a"}, FOLLOWER: {"broker.rack": "b"}},
            proxy_ports=proxy.ports,
        ) as cluster,
    ):
        proxy.connect(cluster)
        yield cluster, proxy


@pytest.mark.parametrize("code", [3, 6, 9, 56, 74, 78, 100, 103, -1])
def test_the_leader_serves_what_a_follower_cannot(racks, code):
    cluster, proxy = racks
    topic = new_topic(cluster, assignments={0: [LEADER, FOLLOWER]})
    consuming.produce(cluster, topic, [b"x"] * 10)
    cluster.wait_in_sync(topic, 0)
    with Consumers(cluster) as consumers:
        consumer = consumers.assigned(
            topic, auto_offset_reset="earliest", client_rack="b", max_poll_records=1
        )
        until(lambda: consumer.poll(200))
        state = consumer._subscription.assignment[TopicPartition(topic, 0)]
        until(lambda: consumer.poll(100) is not None and state.preferred_read_replica() == FOLLOWER)
        collect(consumer, 10 - consumer.position(TopicPartition(topic, 0)))
        rule = proxy.on("Fetch", topic=topic, partition=0)
        rule.when(lambda exchange: exchange.call.node == FOLLOWER)
        rule.answer(code=code, high_watermark=-1, records=None)
        try:
            consuming.produce(cluster, topic, [b"y"] * 10)
            began = time.monotonic()
            assert [record.offset for record in collect(consumer, 10)] == list(range(10, 20))
            assert time.monotonic() - began < 50
            # What was under way when the rule began to hold, and no second visit.
            assert rule.hits <= 3
        finally:
            rule.remove()

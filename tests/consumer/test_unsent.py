"""A fetch that cannot be sent costs nothing: neither that broker's partitions nor those of the others are left out."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest
from consuming import Consumers, Writer, collect, until
from kafka import TopicPartition

from kafkasafe.testing import FakeCluster


@pytest.fixture
def two_brokers():
    with FakeCluster(brokers=2) as cluster:
        yield cluster


def test_a_leader_that_the_metadata_do_not_have_yet(two_brokers, monkeypatch):
    """A fetch names a new leader with its answer (KIP-951), before the metadata do. kafka-python's `poll` raises
    UnknownBrokerIdError then, and nothing of what that broker leads is read any more."""
    cluster = two_brokers
    cluster.create_topic("orders", 1, replication_factor=2)
    if cluster.leader("orders", 0) != 1:
        cluster.move_leader("orders", 0, 1)
    with Consumers(cluster) as consumers, Writer(cluster) as writer:
        writer.write("orders", 5)
        cluster.stop(2)
        consumer = consumers.assigned("orders", auto_offset_reset="earliest")
        collect(consumer, 5)
        known = consumer._client.cluster
        with monkeypatch.context() as patched:
            patched.setattr(known, "ttl", lambda: 60_000)  # no metadata for now
            cluster.start(2)
            cluster.wait_in_sync("orders", 0)
            cluster.move_leader("orders", 0, 2)
            writer.write("orders", 5)
            tp = TopicPartition("orders", 0)

            def led():
                assert not consumer.poll(50)
                return known.leader_for_partition(tp) == 2

            until(led)
            for _ in range(10):
                assert not consumer.poll(50)
            assert known.leader_for_partition(tp) == 2
            assert known.broker_metadata(2) is None
        known.request_update()
        assert [record.offset for record in collect(consumer, 5)] == list(range(5, 10))


def test_a_broker_that_refuses_the_client_for_a_while(two_brokers, monkeypatch):
    """What it refused was raised; the request was built, and the broker was thought to have it."""
    cluster = two_brokers
    cluster.create_topic("orders", 4, assignments={0: [1], 1: [2], 2: [1], 3: [2]})
    with Consumers(cluster) as consumers, Writer(cluster) as writer:
        consumer = consumers.assigned("orders", 0, 1, auto_offset_reset="earliest")
        manager = consumer._client._manager
        for partition in (0, 1):
            writer.write("orders", 5, partition=partition)
        collect(consumer, 10)
        found = manager.get_connection

        def refused(node_id, *args, **options):
            if node_id == 2:
                raise kafka_errors.SaslAuthenticationFailedError("not yet")
            return found(node_id, *args, **options)

        consumer.assign([TopicPartition("orders", number) for number in range(4)])
        with monkeypatch.context() as patched:
            patched.setattr(manager, "get_connection", refused)
            with pytest.raises(kafka_errors.SaslAuthenticationFailedError):
                collect(consumer, 1)
        for partition in range(4):
            writer.write("orders", 5, partition=partition)
        assert len(collect(consumer, 20)) == 20

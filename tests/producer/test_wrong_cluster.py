"""Records that wait for one cluster never go to another."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer, TopicPartition

from kafkasafe import SafeProducer, WrongClusterError
from kafkasafe.testing.broker import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


def values(cluster, topic):
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", consumer_timeout_ms=1500
    )
    try:
        consumer.assign([TopicPartition(topic, 0)])
        return [record.value for record in consumer]
    finally:
        consumer.close()


def test_records_of_an_outage_wait_for_their_own_cluster(tmp_path):
    with KafkaCluster(brokers=1) as ours, KafkaCluster(brokers=1) as other:
        for cluster in (ours, other):
            cluster.create_topic("t", partitions=1)
        with SafeProducer(bootstrap_servers=ours.bootstrap_servers, spool_dir=tmp_path) as producer:
            producer.send("t", b"1").get(30)
            ours.kill(1)
            producer.send("t", b"2").durable(10)
            producer.close(timeout=0)

        stranger = SafeProducer(bootstrap_servers=other.bootstrap_servers, spool_dir=tmp_path)
        accepted = stranger.send("t", b"3")
        with pytest.raises(WrongClusterError, match="Nothing was sent"):
            accepted.get(30)
        with pytest.raises(WrongClusterError):
            stranger.send("t", b"4")
        with pytest.raises(WrongClusterError):
            stranger.close()
        assert values(other, "t") == []

        ours.restart(1)
        events = []
        with SafeProducer(
            bootstrap_servers=ours.bootstrap_servers, spool_dir=tmp_path, on_event=events.append
        ) as producer:
            producer.flush(60)
        # Also what the stranger had accepted before it learned where it was.
        assert values(ours, "t") == [b"1", b"2", b"3"]
        assert values(other, "t") == []

        # Nothing waits any more: now the directory may change, and what it knew of offsets is forgotten.
        events.clear()
        with SafeProducer(
            bootstrap_servers=other.bootstrap_servers, spool_dir=tmp_path, on_event=events.append
        ) as producer:
            assert producer.send("t", b"5").get(30).offset == 0
        assert not [event for event in events if type(event).__name__ == "AckedDataLost"]
        assert values(other, "t") == [b"5"]

"""A partition that is given up and assigned again: nothing that was fetched before is returned."""

from __future__ import annotations

from consuming import collect, produce
from kafka import TopicPartition

from kafkasafe import SafeConsumer
from kafkasafe.testing import FakeCluster

PLACE = TopicPartition("in", 0)


def test_records_that_were_fetched_for_a_former_assignment_are_not_returned():
    """The log was compared before they were returned, and they were not in the history: after them, the consumer went
    on in the middle of the new log."""
    with FakeCluster(3) as kafka:
        kafka.create_topic("in", partitions=1, replication_factor=3)
        produce(kafka, "in", [b"both"] * 5)
        options = {"group_id": "g", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with SafeConsumer(bootstrap_servers=kafka.bootstrap_servers, **options) as consumer:
            consumer.assign([PLACE])

            def read_half():
                produce(kafka, "in", [b"former"] * 5)
                while not (found := consumer.poll(500, max_records=5)):
                    pass
                assert [record.offset for record in found[PLACE]] == list(range(5))
                consumer.commit()
                consumer.assign([])

            kafka.unclean_failover("in", during=read_half)
            produce(kafka, "in", [b"new"] * 10)
            consumer.assign([PLACE])
            assert consumer.position(PLACE) == 5
            records = collect(consumer, 10, timeout_s=20)
    assert [(record.offset, record.value) for record in records] == [(n, b"new") for n in range(5, 15)]

"""Groups with members, on the fake and on a real broker: how they join, and whose offsets a group takes."""

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from waiting import until

from kafkasafe.consumer import SafeConsumer
from kafkasafe.testing import FakeCluster, KafkaCluster


@pytest.mark.parametrize("make", [FakeCluster, pytest.param(KafkaCluster, marks=pytest.mark.kafka)])
def test_members_that_come_one_after_the_other_share_the_first_generation(make):
    with make(brokers=1, config={"group.initial.rebalance.delay.ms": 5000}) as cluster:
        cluster.create_topic("t", 2)
        members = []
        try:
            for _ in range(2):
                member = SafeConsumer(
                    "t", bootstrap_servers=cluster.bootstrap_servers, group_id="g", heartbeat_interval_ms=200
                )
                members.append(member)
                # Its join is under way.
                until(
                    lambda member=member: member.poll(50) == {} and member._coordinator._join_task is not None
                )

            def joined():
                for member in members:
                    member.poll(50)
                return all(len(member.assignment()) == 1 for member in members)

            until(joined)
            assert [member._coordinator._generation.generation_id for member in members] == [1, 1]
        finally:
            for member in members:
                member.close()


@pytest.mark.parametrize("make", [FakeCluster, pytest.param(KafkaCluster, marks=pytest.mark.kafka)])
def test_a_group_with_members_takes_offsets_of_a_transaction_that_names_no_generation(make):
    """The reason for `send_offsets` to refuse a consumer without a generation: no broker would."""
    with make(brokers=1) as cluster:
        cluster.create_topic("t", 1)
        servers, partition = cluster.bootstrap_servers, TopicPartition("t", 0)
        member = KafkaConsumer("t", bootstrap_servers=servers, group_id="g", enable_auto_commit=False)
        producer = KafkaProducer(bootstrap_servers=servers, transactional_id="other")
        try:
            until(lambda: member.poll(2000) == {} and member.assignment() == {partition})
            generation = member._coordinator._generation.generation_id
            producer.init_transactions()
            producer.begin_transaction()
            producer.send_offsets_to_transaction({partition: OffsetAndMetadata(7, "", -1)}, "g")
            producer.commit_transaction()
            until(lambda: member.committed(partition) == 7)
            member.poll(2000)
            assert member._coordinator._generation.generation_id == generation
        finally:
            producer.close()
            member.close()

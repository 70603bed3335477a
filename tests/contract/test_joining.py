"""`group.initial.rebalance.delay.ms`, on the fake and on a real broker."""

import pytest
from waiting import until

from kafkasafe.consumer import SafeConsumer
from kafkasafe.testing import FakeCluster, KafkaCluster


@pytest.mark.parametrize("make", [FakeCluster, pytest.param(KafkaCluster, marks=pytest.mark.kafka)])
def test_members_that_come_one_after_the_other_share_the_first_generation(make):
    with make(brokers=1, config={"group.initial.rebalance.delay.ms": 2000}) as cluster:
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

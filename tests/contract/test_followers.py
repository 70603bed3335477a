"""Reading from followers (KIP-392): on the fake, and on a real cluster of the current version."""

import functools
import uuid

import pytest
import rawclient
from rawclient import make_batch
from waiting import until

from kafkasafe.record.batch import iter_headers
from kafkasafe.testing import FakeCluster, KafkaCluster
from kafkasafe.testing.fake.settings import RACK_AWARE

LEADER, FOLLOWER, OTHER = 1, 2, 3


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=[pytest.mark.kafka])])
def cluster(request):
    """Replicas on 1 and 2; 3 has none, and stands in the rack of 2."""
    made = FakeCluster if request.param == "fake" else KafkaCluster
    with made(
        brokers=3,
        config={"replica.selector.class": RACK_AWARE},
        broker_config={
            LEADER: {"broker.rack": "a"},
            FOLLOWER: {"broker.rack": "b"},
            OTHER: {"broker.rack": "b"},
        },
    ) as running:
        yield running


class Side:
    def __init__(self, cluster):
        self.cluster = cluster
        self.topic = f"f-{uuid.uuid4().hex[:8]}"
        cluster.create_topic(
            self.topic,
            assignments={0: [LEADER, FOLLOWER]},
            config={"min.insync.replicas": 1, "retention.ms": -1},
        )
        cluster.wait_in_sync(self.topic)

    def ask(self, node, api, version, **fields):
        return rawclient.ask(self.cluster.client_address(node), api, version, **fields)

    def write(self, count, acks=-1):
        def sent():
            topics = [
                {
                    "name": self.topic,
                    "partition_data": [
                        {"index": 0, "records": make_batch(b"x", timestamp=1_700_000_000_000)}
                    ],
                }
            ]
            answer = self.ask(
                LEADER, "Produce", 9, transactional_id=None, acks=acks, timeout_ms=10_000, topic_data=topics
            )
            return answer.responses[0].partition_responses[0].error_code == 0

        for _ in range(count):
            until(sent)

    def fetch(self, node, offset, *, version=12, rack="b", epoch=-1, max_wait_ms=0):
        more = {"rack_id": rack} if version >= 11 else {}
        ask = functools.partial(self.ask, node)
        return rawclient.fetch(
            ask, self.topic, offset, version=version, leader_epoch=epoch, max_wait_ms=max_wait_ms, **more
        )

    def count(self, row):
        return len(list(iter_headers(bytes(row.records or b""))))


@pytest.fixture
def side(cluster):
    cluster.recover()
    return Side(cluster)


def test_a_leader_names_a_follower_of_the_rack_and_gives_no_records(side):
    side.write(3)
    # At once, whatever the client would wait.
    for offset, wait_ms in ((0, 0), (3, 30_000)):
        row = side.fetch(LEADER, offset, max_wait_ms=wait_ms)
        assert (row.error_code, row.preferred_read_replica, side.count(row)) == (0, FOLLOWER, 0)
        assert (row.high_watermark, row.log_start_offset) == (3, 0)


@pytest.mark.parametrize(("version", "rack"), [(12, ""), (12, "a"), (12, "nowhere"), (11, ""), (10, "b")])
def test_a_leader_gives_the_records_to_others(side, version, rack):
    side.write(3)
    row = side.fetch(LEADER, 0, version=version, rack=rack)
    assert (row.error_code, side.count(row)) == (0, 3)
    assert version < 11 or row.preferred_read_replica == -1


@pytest.mark.parametrize("rack", ["b", "a", ""])
def test_a_follower_gives_records_to_whoever_asks_from_version_11_on(side, rack):
    side.write(3)
    until(lambda: side.fetch(FOLLOWER, 0, rack=rack).high_watermark == 3)
    row = side.fetch(FOLLOWER, 0, rack=rack)
    assert (row.error_code, row.preferred_read_replica, side.count(row)) == (0, -1, 3)
    assert side.fetch(FOLLOWER, 0, version=10).error_code == 6
    assert side.fetch(FOLLOWER, 4, rack=rack).error_code == 1
    epoch = side.cluster.partition_state(side.topic).leader_epoch
    assert side.fetch(FOLLOWER, 0, epoch=epoch).error_code == 0
    assert side.fetch(FOLLOWER, 0, epoch=epoch + 1).error_code == 75


def test_a_broker_without_a_replica_refuses(side):
    side.write(1)
    assert side.fetch(OTHER, 0).error_code == 6


def test_a_follower_that_is_dead_is_not_named(side):
    side.write(3)
    side.cluster.kill(FOLLOWER)
    until(lambda: side.fetch(LEADER, 0).preferred_read_replica == -1)
    assert side.count(side.fetch(LEADER, 0)) == 3
    side.cluster.start(FOLLOWER)
    until(lambda: side.fetch(LEADER, 0).preferred_read_replica == FOLLOWER)

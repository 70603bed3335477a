"""What three brokers answer after elections: on the fake, and on a real cluster of the current version."""

import functools
import time
import uuid

import pytest
import rawclient
from backends import CURRENT, Backend
from rawclient import make_batch
from waiting import until

from kafkasafe.cluster.api import LATEST, Failure
from kafkasafe.record.batch import iter_headers
from kafkasafe.testing import FakeCluster, KafkaCluster
from kafkasafe.testing.fake.virtual import VirtualCluster

PATIENCE_S = 120


class Trio:
    """Three brokers, and raw requests to any of them."""

    def __init__(self, cluster):
        self.cluster = cluster

    @property
    def now_ms(self):
        fake = isinstance(self.cluster, FakeCluster)
        return self.cluster.now_ms() if fake else time.time_ns() // 1_000_000

    def topic(self, **config):
        name = f"e-{uuid.uuid4().hex[:8]}"
        names = {key.replace("_", "."): value for key, value in config.items()}
        self.cluster.create_topic(name, assignments={0: [1, 2, 3]}, config=names)
        return name

    def ask(self, node, api, version, **fields):
        return rawclient.ask(self.cluster.client_address(node), api, version, **fields)

    def send(self, topic, seq, *, node=None, pid=77, acks=-1, timeout_ms=30_000, age_ms=0, size=0):
        now_ms = self.now_ms - age_ms
        data = make_batch(b"v%d" % seq + b"." * size, pid=pid, epoch=0, seq=seq, now_ms=now_ms)
        answer = self.ask(
            node or self.cluster.leader(topic),
            "Produce",
            10,
            transactional_id=None,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[{"name": topic, "partition_data": [{"index": 0, "records": data}]}],
        )
        return answer.responses[0].partition_responses[0]

    def fill(self, topic, sequences, **more):
        for seq in sequences:
            until(lambda seq=seq: self.send(topic, seq, **more).error_code == 0)

    def epoch_end(self, topic, epoch):
        def ask():
            topics = [
                {
                    "topic": topic,
                    "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}],
                }
            ]
            answer = self.ask(
                self.cluster.leader(topic), "OffsetForLeaderEpoch", 4, replica_id=-1, topics=topics
            )
            return answer.topics[0].partitions[0]

        until(lambda: ask().error_code == 0)
        found = ask()
        return found.leader_epoch, found.end_offset

    def end(self, topic, *, timestamp=-1, replica=None):
        """As the leader shows it; or the end of the log of a replica."""
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}

        def ask():
            topics = [{"name": topic, "partitions": [part]}]
            answer = self.ask(
                replica or self.cluster.leader(topic),
                "ListOffsets",
                6,
                replica_id=-2 if replica else -1,
                isolation_level=0,
                topics=topics,
            )
            return answer.topics[0].partitions[0]

        until(lambda: ask().error_code == 0)
        return ask().offset

    def start(self, topic):
        if isinstance(self.cluster, FakeCluster):
            self.cluster.advance(301)
        return self.end(topic, timestamp=-2)

    def fetch(self, topic, offset, last_epoch=-1):
        def fetched():
            ask = functools.partial(self.ask, self.cluster.leader(topic))
            return rawclient.fetch(ask, topic, offset, last_epoch=last_epoch)

        until(lambda: fetched().error_code == 0)
        return fetched()

    def known(self, topic, pid=77):
        answer = self.ask(
            self.cluster.leader(topic),
            "DescribeProducers",
            0,
            topics=[{"name": topic, "partition_indexes": [0]}],
        )
        producers = answer.topics[0].partitions[0].active_producers
        return {one.producer_id: one.last_sequence for one in producers}.get(pid)


@pytest.fixture(
    scope="module",
    params=["fake", pytest.param("kafka", marks=pytest.mark.kafka)],
)
def trio(request):
    often = {"log.retention.check.interval.ms": 500, "log.initial.task.delay.ms": 500}
    with (
        FakeCluster(brokers=3)
        if request.param == "fake"
        else KafkaCluster(brokers=3, config=often) as cluster
    ):
        yield Trio(cluster)


def test_who_does_not_lead_says_who_does(trio):
    topic = trio.topic()
    leader = trio.cluster.leader(topic)
    trio.fill(topic, [0])
    other = next(node for node in (1, 2, 3) if node != leader)
    answer = trio.send(topic, 1, node=other)
    state = trio.cluster.partition_state(topic)
    assert answer.error_code == 6
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (
        leader,
        state.leader_epoch,
    )


def test_an_orderly_move_loses_nothing(trio):
    topic = trio.topic()
    trio.fill(topic, range(3))
    before = trio.cluster.partition_state(topic).leader_epoch
    trio.cluster.move_leader(topic, to=2)
    trio.fill(topic, [3])
    after = trio.cluster.partition_state(topic).leader_epoch
    assert after > before
    assert trio.epoch_end(topic, before) == (before, 3)
    assert trio.epoch_end(topic, after) == (after, 4)
    # A fetch that waits for nothing may be answered with nothing.
    read = until(lambda: trio.fetch(topic, 0).records)
    epochs = [header.partition_leader_epoch for _, header in iter_headers(read)]
    assert epochs[:3] == [before] * 3
    assert epochs[3] > before
    # A follower that has become the leader has the whole window: no snapshot was between.
    assert [trio.send(topic, seq).base_offset for seq in range(4)] == [0, 1, 2, 3]


def test_the_death_of_a_leader_loses_nothing_acknowledged(trio):
    topic = trio.topic()
    trio.fill(topic, range(3))
    former = trio.cluster.leader(topic)
    before = trio.cluster.partition_state(topic).leader_epoch
    trio.cluster.kill(former)
    until(lambda: trio.cluster.leader(topic) != former)
    trio.fill(topic, [3])
    assert trio.end(topic) == 4
    assert trio.epoch_end(topic, before) == (before, 3)
    assert trio.cluster.partition_state(topic).in_sync == tuple({1, 2, 3} - {former})
    trio.cluster.start(former)
    assert set(trio.cluster.wait_in_sync(topic).in_sync) == {1, 2, 3}


def test_too_few_replicas_are_19(trio):
    topic = trio.topic(min_insync_replicas=3)
    leader = trio.cluster.leader(topic)
    trio.fill(topic, [0])
    follower = next(node for node in (1, 2, 3) if node != leader)
    trio.cluster.stop(follower)
    until(lambda: follower not in trio.cluster.partition_state(topic).in_sync)
    until(lambda: trio.send(topic, 1).error_code == 19)
    assert trio.send(topic, 1, acks=1).error_code == 0
    trio.cluster.start(follower)
    trio.cluster.wait_in_sync(topic)
    until(lambda: trio.send(topic, 1).error_code == 0)
    assert trio.end(topic) == 2


@pytest.mark.parametrize("least", [3, 9])
def test_with_too_few_replicas_in_sync_nothing_more_is_shown(trio, least):
    """No more than there are are asked for; while they are fewer, the end that readers see stands still (KIP-966)."""
    topic = trio.topic(min_insync_replicas=least)
    trio.fill(topic, [0])
    follower, other = (node for node in (1, 2, 3) if node != trio.cluster.leader(topic))
    trio.cluster.stop(follower)
    until(lambda: follower not in trio.cluster.partition_state(topic).in_sync)
    until(lambda: trio.send(topic, 1).error_code == 19)
    for seq in (1, 2):
        assert trio.send(topic, seq, acks=1).error_code == 0
        until(lambda seq=seq: trio.end(topic, replica=other) == seq + 1)
    # The follower asked for 2 after it had 1, so the leader knows that both have 1.
    assert trio.end(topic) == 1
    assert not trio.fetch(topic, 1).records
    trio.cluster.start(follower)
    trio.cluster.wait_in_sync(topic)
    until(lambda: trio.end(topic) == 3)


def test_an_unclean_election_loses_what_the_leader_alone_had(trio):
    topic = trio.topic()
    trio.fill(topic, range(3))
    before = trio.cluster.partition_state(topic).leader_epoch
    lost = trio.cluster.unclean_failover(topic, during=lambda: trio.fill(topic, range(3, 6), acks=1))
    assert lost.offsets == range(3, 6)
    assert trio.end(topic) == 3
    assert trio.epoch_end(topic, before) == (before, 3)
    assert trio.known(topic) == 2
    answer = trio.send(topic, 6)
    assert (answer.error_code, answer.base_offset) == (45, -1)
    trio.fill(topic, range(3, 5))
    assert trio.end(topic) == 5
    # A reader that had read one of the lost records under the old epoch.
    found = trio.fetch(topic, 4, last_epoch=before)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (before, 3)


def test_a_wiped_partition_takes_what_comes_at_offset_0(trio):
    topic = trio.topic()
    trio.fill(topic, range(3))
    lost = trio.cluster.lose_log(topic)
    assert lost.offsets == range(3)
    assert trio.end(topic) == 0
    answer = trio.send(topic, 3)
    assert (answer.error_code, answer.base_offset) == (0, 0)


def test_retention_takes_whole_segments(trio):
    """Of three batches each: a fourth has no room in a segment."""
    size, day_ms = 300_000, 86_400_000
    of_size = trio.topic(segment_bytes=1 << 20, retention_bytes=5 * size)
    of_time = trio.topic(segment_bytes=1 << 20, retention_ms=day_ms // 2)
    old = trio.topic(retention_ms=day_ms // 2)
    trio.fill(of_size, range(8), size=size)
    # The new one first: what is only old goes as soon as somebody looks, the segment that is written to as well.
    for seq, age_ms in enumerate([0, day_ms, day_ms, day_ms, day_ms]):
        trio.fill(of_time, [seq], size=size, age_ms=age_ms)
    trio.fill(old, range(2), age_ms=day_ms)
    until(lambda: trio.start(of_size) == 3)  # with the next segment more than five would go
    until(lambda: trio.start(old) == 2)  # the one that is written to, when it is old, too
    trio.fill(old, [2], age_ms=day_ms)
    until(lambda: trio.start(old) == 3)
    assert trio.start(of_size) == 3
    # A segment is as old as its newest batch, and none goes before the one in front of it.
    assert trio.start(of_time) == 0


def is_told_at_once(kind, cluster):
    """A question to the leader of a partition without one fails as soon as that is known, and waits for no news."""
    backend = Backend(kind, CURRENT, cluster=cluster)
    topic = f"e-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(topic, assignments={0: [3]})
    backend.until(
        lambda: getattr(backend.once(backend.client.list_offset, topic, 0, LATEST), "offset", -1) == 0
    )
    cluster.kill(3)

    def leader():
        refreshed = backend.once(backend.client.refresh_metadata, [topic])
        return None if isinstance(refreshed, Failure) else refreshed.topics[topic].partitions[0].leader

    backend.until(lambda: leader() == -1)
    heard = []
    backend.client.list_offset(topic, 0, LATEST, heard.append)
    backend.client.refresh_metadata([topic], heard.append)
    backend.until(lambda: len(heard) == 2)
    first = heard[0]
    assert (isinstance(first, Failure), getattr(first, "code", 0), getattr(first, "sent", True)) == (
        True,
        5,
        False,
    )
    cluster.start(3)
    backend.until(
        lambda: getattr(backend.once(backend.client.list_offset, topic, 0, LATEST), "offset", -1) == 0
    )
    backend.close()


def test_a_question_about_a_partition_without_a_leader_fails_at_once(trio):
    is_told_at_once("fake" if isinstance(trio.cluster, FakeCluster) else "real", trio.cluster)


def test_a_question_about_a_partition_without_a_leader_fails_at_once_in_virtual_time():
    is_told_at_once("virtual", VirtualCluster(3))

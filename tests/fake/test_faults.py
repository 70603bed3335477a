"""What a test can do to the fake that it could not, or not in time, do to real brokers."""

import contextlib
import time

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import TopicAlreadyExistsError, TopicDeletionDisabledError
from rawclient import Raw, make_batch

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.broker import ClusterError
from kafkasafe.testing.fake.checks import StoredBatch


@pytest.fixture
def cluster():
    with FakeCluster(brokers=3) as made:
        made.create_topic("t", assignments={0: [1, 2, 3]})
        yield made


@pytest.fixture
def ask(cluster):
    opened = []

    def ask(name, version, *, node=1, **fields):
        raw = Raw(*cluster.client_address(node))
        opened.append(raw)
        return raw.ask(name, version, **fields)

    yield ask
    for raw in opened:
        raw.close()


@pytest.fixture
def send(cluster, ask):
    def send(seq=-1, *, pid=-1, age_ms=0, acks=-1, timeout_ms=30_000, node=1, count=1):
        epoch = -1 if pid < 0 else 0
        stamp = cluster.now_ms() - age_ms
        data = make_batch(*[b"v"] * count, pid=pid, epoch=epoch, seq=seq, now_ms=stamp)
        rows = [{"name": "t", "partition_data": [{"index": 0, "records": data}]}]
        answer = ask(
            "Produce", 9, node=node, transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=rows
        )
        return answer.responses[0].partition_responses[0]

    return send


def end_offset(ask, version, node=1, replica_id=-1, timestamp=-1):
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    topics = [{"name": "t", "partitions": [part]}]
    answer = ask("ListOffsets", version, node=node, replica_id=replica_id, isolation_level=0, topics=topics)
    return answer.topics[0].partitions[0]


def test_an_append_costs_the_same_however_long_the_log_is(cluster, send, monkeypatch):
    looked = []
    end_offset = StoredBatch.end_offset.fget
    monkeypatch.setattr(
        StoredBatch, "end_offset", property(lambda batch: looked.append(1) or end_offset(batch))
    )
    for _ in range(200):
        send()
    looked.clear()
    send()
    assert len(looked) < 20


def test_an_election_before_the_high_watermark_is_known(cluster, ask, send):
    """KIP-207, for as long as one likes."""
    send(count=10)
    cluster.hold_back(3, "t")
    assert send(count=5, acks=1).base_offset == 10
    assert end_offset(ask, 6).offset == 10
    cluster.move_leader("t", to=2)
    assert cluster.partition_state("t").in_sync == (1, 2, 3)
    assert (end_offset(ask, 6, node=2).error_code, end_offset(ask, 4, node=2).error_code) == (78, 5)
    assert end_offset(ask, 6, node=2, timestamp=-2).offset == 0
    assert end_offset(ask, 6, node=2, timestamp=0).offset == 0
    assert end_offset(ask, 6, node=2, replica_id=-2).offset == 15
    cluster.hold_back(3, "t", on=False)
    assert end_offset(ask, 6, node=2).offset == 15


def test_replicas_that_are_too_slow_are_7_and_the_records_are_there(cluster, send):
    cluster.hold_back(3, "t")
    began = time.monotonic()
    assert send(timeout_ms=200).error_code == 7
    assert time.monotonic() - began >= 0.15
    cluster.hold_back(3, "t", on=False)
    assert len(cluster.values("t")) == 1


def test_rights(cluster, ask, send):
    cluster.deny("write", topic="t")
    assert send().error_code == 29
    cluster.deny("write", topic="t", on=False)
    assert send().error_code == 0
    cluster.deny("write")
    fields = {"transactional_id": None, "transaction_timeout_ms": 1, "producer_id": -1, "producer_epoch": -1}
    assert ask("InitProducerId", 4, **fields).error_code == 31
    cluster.deny("describe", topic="*")
    assert end_offset(ask, 6).error_code == 29
    cluster.deny("describe", group="g")
    assert ask("FindCoordinator", 3, key="g", key_type=0).error_code == 30
    with pytest.raises(UsageError, match="Rights are"):
        cluster.deny("own", topic="t")


def test_a_throttled_client_is_told_so_and_not_read_from(cluster, ask):
    cluster.throttle(0.6, "Metadata", times=1)
    raw = Raw(*cluster.client_address(1))
    began = time.monotonic()
    fields = {"topics": None, "allow_auto_topic_creation": False}
    assert raw.ask("Metadata", 8, **fields).throttle_time_ms == 600
    assert raw.ask("Metadata", 8, **fields).throttle_time_ms == 0
    assert time.monotonic() - began >= 0.25  # its loop may have looked at the clock before it was asked
    raw.close()


def test_producers_are_forgotten_by_the_time_of_their_batches(cluster, send):
    day_ms = 24 * 3_600_000
    send(0, pid=1)
    send(0, pid=2, age_ms=day_ms - 60_000)
    cluster.advance(120)
    assert send(0, pid=1).base_offset == 0
    assert send(0, pid=2).base_offset == 2  # appended again
    cluster.advance(86_400)
    assert send(0, pid=1).base_offset == 3


def test_old_records_go(cluster, send):
    cluster.alter_topic("t", {"retention.ms": 60_000})
    send(age_ms=50_000)
    send()
    cluster.advance(301)
    cluster.alter_topic("t", {"retention.ms": -1})
    assert send().log_start_offset == 2
    assert cluster.values("t") == [b"v"]


def test_too_many_bytes_go(cluster, send):
    """Segment by segment, as on a broker."""
    for _ in range(10):
        send(count=40_000)
    size = cluster.records("t")[0].header.size_bytes
    cluster.alter_topic("t", {"retention.bytes": 3 * size, "segment.bytes": 1 << 20})
    cluster.advance(301)
    in_segment = (1 << 20) // size
    assert 1 < in_segment < 10
    left = 10 - (10 - 3) // in_segment * in_segment
    assert left > 3
    assert [columns.header.count for columns in cluster.records("t")] == [40_000] * left


def test_another_cluster_at_the_same_addresses(cluster, send):
    before, servers = cluster.cluster_id, cluster.bootstrap_servers
    send()
    cluster.replace()
    assert cluster.cluster_id != before
    assert cluster.bootstrap_servers == servers
    with pytest.raises(ClusterError, match="there is no t-0"):
        cluster.leader("t")


def test_connections_end_and_are_refused(cluster):
    raw = Raw(*cluster.client_address(1))
    raw.ask("ApiVersions", 0)
    assert cluster.cut(node=2) == 0
    assert cluster.cut() == 1
    with pytest.raises(ConnectionError):
        raw.ask("ApiVersions", 0)
    raw.close()
    cluster.refuse(node=1)
    with pytest.raises(ConnectionRefusedError):
        Raw(*cluster.client_address(1))
    cluster.restore()
    Raw(*cluster.client_address(1)).close()
    cluster.kill(1)
    with pytest.raises(ConnectionRefusedError):
        Raw(*cluster.client_address(1))
    cluster.recover()
    Raw(*cluster.client_address(1)).close()


def test_a_broker_that_hangs_answers_when_it_goes_on(cluster):
    raw = Raw(*cluster.client_address(2))
    cluster.pause(2)
    assert cluster.is_running(2)
    raw.send("ApiVersions", 0)
    raw.sock.settimeout(0.2)
    with pytest.raises(TimeoutError):
        raw.sock.recv(4)
    cluster.resume(2)
    raw.sock.settimeout(60)
    assert len(raw.sock.recv(4)) == 4
    raw.close()


def test_the_last_in_sync_replica_is_waited_for_unless_the_election_may_be_unclean(cluster, send):
    cluster.alter_topic("t", {"min.insync.replicas": 1})
    send()
    cluster.stop(2)
    cluster.stop(3)
    send()
    cluster.stop(1)
    cluster.start(2)
    assert cluster.partition_state("t").leader == -1
    cluster.alter_topic("t", {"unclean.leader.election.enable": "true"})
    assert cluster.leader("t") == 2
    assert len(cluster.values("t")) == 1
    cluster.recover()
    assert cluster.partition_state("t").in_sync == (1, 2, 3)


def test_a_consumer_sees_that_a_log_became_shorter(cluster, send):
    for _ in range(5):
        send()
    partition = TopicPartition("t", 0)
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    assert consumer.end_offsets([partition]) == {partition: 5}
    cluster.lose_log("t")
    assert consumer.end_offsets([partition]) == {partition: 0}
    consumer.close()


def test_what_cannot_be_is_said_at_once(cluster):
    with pytest.raises(ConfigError, match="did you mean message"):
        FakeCluster(config={"message.max.byte": 1})
    with pytest.raises(ConfigError, match="take a KafkaCluster"):
        FakeCluster(version="1.0.0")
    with pytest.raises(ConfigError, match="brokers must be"):
        FakeCluster(brokers=0)
    with pytest.raises(UsageError, match="is not open"):
        _ = FakeCluster().bootstrap_servers
    with pytest.raises(UsageError, match="there is no broker 9"):
        cluster.kill(9)
    with pytest.raises(UsageError, match="Time does not go back"):
        cluster.advance(-1)
    with pytest.raises(UsageError, match="No time is negative"):
        cluster.throttle(-1, "Produce")
    with pytest.raises(UsageError, match="No time is negative"):
        cluster.delay(-1)
    with pytest.raises(TopicAlreadyExistsError):
        cluster.create_topic("t")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("message.max.bytes", "abc"),
        ("min.insync.replicas", 0),
        ("log.retention.ms", "1h"),
        ("auto.create.topics.enable", "maybe"),
        ("num.partitions", 0),
        ("transaction.max.timeout.ms", -1),
    ],
)
def test_settings_that_no_broker_takes_are_refused_at_once(name, value):
    with pytest.raises(ConfigError, match=f"{name} cannot be"):
        FakeCluster(config={name: value})


def test_topics_stay_where_they_may_not_be_deleted():
    config = {"delete.topic.enable": False, "auto.create.topics.enable": "TRUE"}
    with (
        FakeCluster(config=config) as cluster,
        contextlib.closing(KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)) as admin,
    ):
        cluster.create_topic("t")
        with pytest.raises(TopicDeletionDisabledError):
            admin.delete_topics(["t"])
        assert "t" in admin.list_topics()


def test_the_clusters_time_goes_on_when_the_machines_clock_is_set(cluster, monkeypatch):
    before = cluster.now_ms()
    set_back = time.time_ns() - 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: set_back)
    assert cluster.now_ms() >= before


def test_values_are_those_that_readers_can_see(cluster, send):
    """Records before the start of the log are in its first batch, but no reader gets them."""
    assert send(count=3).error_code == 0
    assert send().error_code == 0
    assert cluster.delete_records("t", 0, 2) == 2
    assert cluster.values("t") == [b"v", b"v"]

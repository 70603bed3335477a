"""Programs with unmodified clients on the fake cluster."""

import threading
import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewPartitions
from kafka.errors import KafkaError, MessageSizeTooLargeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata
from rawclient import Raw
from waiting import until

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.fake import NotModelledError
from kafkasafe.testing.proxy import FaultProxy

PATIENCE_S = 60


def read(consumer, count):
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found.extend(records)
    return found


def test_safe_producer_delivers_through_the_death_of_a_leader(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        assert producer.send("orders", b"one").get(PATIENCE_S).offset == 0
        former = fake_kafka.leader("orders")
        fake_kafka.kill(former)
        assert producer.send("orders", b"two").get(PATIENCE_S).offset == 1
    assert fake_kafka.leader("orders") != former
    assert fake_kafka.values("orders") == [b"one", b"two"]


def test_an_answer_that_is_lost_makes_no_second_record(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path, request_timeout_ms=500
    ) as producer:
        producer.send("orders", b"one").get(PATIENCE_S)
        fake_kafka.drop_responses()
        before = fake_kafka.requests["Produce"]
        future = producer.send("orders", b"two")
        until(lambda: fake_kafka.requests["Produce"] > before)
        fake_kafka.restore()
        fake_kafka.cut()
        assert future.get(PATIENCE_S).offset == 1
    assert fake_kafka.values("orders") == [b"one", b"two"]


def test_kafka_python_writes_and_reads(fake_kafka):
    fake_kafka.create_topic("orders")
    producer = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers, compression_type="gzip")
    futures = [producer.send("orders", b"x%d" % number * 20) for number in range(5)]
    assert [future.get(PATIENCE_S).offset for future in futures] == list(range(5))
    producer.close()
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=fake_kafka.bootstrap_servers, auto_offset_reset="earliest"
    )
    assert [record.value for record in read(consumer, 5)] == [b"x%d" % number * 20 for number in range(5)]
    consumer.close()


@pytest.mark.parametrize("compression", ["snappy", "lz4", "zstd"])
def test_batches_are_checked_with_every_codec(fake_kafka, tmp_path, compression):
    fake_kafka.create_topic("orders")
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path, compression_type=compression
    ) as producer:
        for number in range(5):
            producer.send("orders", b"x%d" % number * 20)
    assert fake_kafka.values("orders") == [b"x%d" % number * 20 for number in range(5)]
    assert fake_kafka.records("orders")[0].header.compression.name == compression.upper()


class Member:
    """A consumer of a group on a thread of its own.

    It polls patiently: a join that a short poll gives up halfway can be lost in kafka-python 3.0.12.
    """

    def __init__(self, client, cluster):
        self.seen = []
        self._stop = threading.Event()
        self._client = client(
            "orders",
            bootstrap_servers=cluster.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            heartbeat_interval_ms=50,
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.is_set():
            patience_ms = 100 if self._client.assignment() else 3000
            for records in self._client.poll(patience_ms).values():
                self.seen.extend(record.value for record in records)
        self._client.close()

    @property
    def assignment(self):
        return {partition.partition for partition in self._client.assignment()}

    def close(self):
        self._stop.set()
        self._thread.join(PATIENCE_S)


@pytest.mark.parametrize("client", [KafkaConsumer, SafeConsumer])
@pytest.mark.parametrize("version", ["4.3.0", "2.8.2"])
def test_two_members_of_a_group_share_the_partitions_and_one_inherits(client, version):
    with FakeCluster(version=version) as cluster:
        cluster.create_topic("orders", partitions=4)
        producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
        first, second = Member(client, cluster), Member(client, cluster)
        try:
            until(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert first.assignment | second.assignment == {0, 1, 2, 3}
            for number in range(4):
                producer.send("orders", b"%d" % number, partition=number).get(PATIENCE_S)
            until(lambda: len(first.seen) == len(second.seen) == 2)
            second.close()
            until(lambda: len(first.assignment) == 4)
            inherited = int(second.seen[0])
            producer.send("orders", b"4", partition=inherited).get(PATIENCE_S)
            until(lambda: b"4" in first.seen)
            # What the other had committed when it closed was not read again.
            assert sorted(first.seen + second.seen) == [b"0", b"1", b"2", b"3", b"4"]
        finally:
            first.close()
            second.close()
            producer.close()


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(fake_kafka):
    fake_kafka.create_topic("orders")
    producer = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers, transactional_id="t")
    producer.init_transactions()
    consumer = KafkaConsumer(
        bootstrap_servers=fake_kafka.bootstrap_servers, isolation_level="read_committed", group_id="g"
    )
    partition = TopicPartition("orders", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    try:
        producer.begin_transaction()
        producer.send("orders", b"aborted").get(PATIENCE_S)
        assert consumer.end_offsets([partition])[partition] == 0
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send("orders", b"committed").get(PATIENCE_S)
        producer.send_offsets_to_transaction({partition: OffsetAndMetadata(7, "", -1)}, "g")
        producer.commit_transaction()
        assert [record.value for record in read(consumer, 1)] == [b"committed"]
        assert consumer.committed(partition) == 7
        assert consumer.end_offsets([partition])[partition] == 4  # two records and their markers
    finally:
        producer.close()
        consumer.close()


def test_a_transaction_that_is_open_too_long_is_aborted(fake_kafka):
    fake_kafka.create_topic("orders")
    producer = KafkaProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, transactional_id="t", transaction_timeout_ms=60_000
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("orders", b"one").get(PATIENCE_S)
    fake_kafka.advance(61)
    with pytest.raises(KafkaError):
        producer.commit_transaction()
    producer.close()
    fake_kafka.advance(1)  # the markers come a moment after the end
    assert fake_kafka.partition_state("orders").leader > 0
    assert [columns.header.is_control for columns in fake_kafka.records("orders")] == [False, True]


def test_the_admin_client_makes_changes_and_removes_topics(fake_kafka):
    with fake_kafka.admin() as admin:
        admin.create_topics({"orders": {"num_partitions": 2, "replication_factor": 3}})
        with pytest.raises(TopicAlreadyExistsError):
            fake_kafka.create_topic("orders")
        assert "orders" in admin.list_topics()
        admin.create_partitions({"orders": NewPartitions(3)})
        assert len(admin.describe_topics(["orders"])[0]["partitions"]) == 3
        assert admin.describe_cluster()["cluster_id"] == fake_kafka.cluster_id
        admin.delete_topics(["orders"])
        assert "orders" not in admin.list_topics()


def test_confluent_kafka_writes_and_reads_on_it(fake_kafka):
    confluent = pytest.importorskip("confluent_kafka")
    fake_kafka.create_topic("orders")
    servers = ",".join(fake_kafka.bootstrap_servers)
    producer = confluent.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for number in range(5):
        producer.produce("orders", b"%d" % number)
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent.Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < 5 and time.monotonic() < deadline:
        record = consumer.poll(0.2)
        if record is not None:
            assert record.error() is None
            found.append(record.value())
    consumer.close()
    assert found == [b"%d" % number for number in range(5)]


def test_a_record_that_is_too_large_is_refused_with_kafkas_error(fake_kafka):
    fake_kafka.create_topic("orders", config={"max.message.bytes": 1000})
    producer = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send("orders", bytes(2000)).get(PATIENCE_S)
    producer.close()


def test_the_fault_proxy_stands_before_it_as_before_a_real_one(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders")
    with FaultProxy(bootstrap=fake_kafka.bootstrap_servers[0]) as proxy:
        rule = proxy.on("Produce").answer(6, times=1)
        with SafeProducer(bootstrap_servers=proxy.bootstrap_servers, spool_dir=tmp_path) as producer:
            assert producer.send("orders", b"one").get(PATIENCE_S).offset == 0
        assert rule.hits >= 1
    assert fake_kafka.values("orders") == [b"one"]


def test_what_the_fake_does_not_have_is_never_answered():
    cluster = FakeCluster().open()
    raw = Raw(*cluster.client_address(1))
    with pytest.raises(ConnectionError):
        raw.ask("DescribeLogDirs", 4, topics=None)
    raw.close()
    with pytest.raises(NotModelledError, match="DescribeLogDirs"):
        cluster.close()

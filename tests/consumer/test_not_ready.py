"""One partition cannot be read for a while (KIP-1007): it waits, the others flow, nothing is reset."""

from __future__ import annotations

import time

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, new_topic, until
from kafka import TopicPartition

from kafkasafe.errors import LogDivergedError, RemoteStorageNotReadyError
from kafkasafe.events import LogDiverged, PartitionNotReady, PartitionReady, PositionReset
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def proxied():
    with FaultProxy() as proxy, KafkaCluster(brokers=1, proxy_ports=proxy.ports) as cluster:
        proxy.connect(cluster)
        yield cluster, proxy


@pytest.fixture
def proxy(proxied):
    yield proxied[1]
    proxied[1].clear()


@pytest.fixture
def cluster(proxied):
    return proxied[0]


@pytest.fixture
def consumers(cluster, proxy):
    with Consumers(cluster) as opened:
        yield opened


@pytest.mark.parametrize("code", [9, -1, 7, 1, 1234])
def test_one_partition_waits_and_the_others_flow(cluster, proxy, consumers, code):
    topic = new_topic(cluster, 2)
    ready, stuck = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for number in (0, 1):
        consuming.produce(cluster, topic, [b"x"] * 10, number)
    consumer = consumers.assigned(topic, 0, 1, auto_offset_reset="latest")
    consumer.seek(ready, 0)
    consumer.seek(stuck, 0)
    rule = proxy.on("Fetch", topic=topic, partition=1).answer(code=code, high_watermark=-1, records=None)
    began = time.monotonic()
    got = []
    while time.monotonic() - began < 2.0:
        for tp, records in consumer.poll(100).items():
            got += [(tp.partition, record.offset) for record in records]
        if len(got) == 10 and time.monotonic() - began < 1.0:
            consuming.produce(cluster, topic, [b"y"], 0)
    assert {number for number, _ in got} == {0}
    assert len(got) >= 11
    assert 3 <= rule.hits <= 22  # ten a second at most
    assert consumer.position(stuck) == 0
    assert not consumers.of(PositionReset)
    assert consumers.of(PartitionNotReady)[0].position == 0
    assert consumers.of(PartitionNotReady)[0].code == code
    rule.remove()
    over = time.monotonic()
    assert [record.offset for record in collect(consumer, 10)] == list(range(10))
    assert time.monotonic() - over < 1.0
    (again,) = consumers.of(PartitionReady)
    assert again.failures >= 3


def test_poll_says_so_only_when_the_deadline_ends(cluster, proxy, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers.assigned(topic, auto_offset_reset="latest", remote_storage_timeout_ms=700)
    consumer.seek(tp, 0)
    rule = proxy.on("Fetch", topic=topic, partition=0).answer(code=9, high_watermark=-1, records=None)
    began = time.monotonic()
    with pytest.raises(RemoteStorageNotReadyError) as told:
        consumer.poll(10_000)
    assert 0.7 <= time.monotonic() - began < 2.0
    assert (told.value.topic, told.value.code, told.value.retriable) == (topic, 9, True)
    rule.remove()
    assert [record.offset for record in collect(consumer, 4)] == list(range(4))


@pytest.mark.parametrize("code", [9, -1, 7])
def test_look_ups_wait_out_the_deadline(cluster, proxy, consumers, code):
    topic = new_topic(cluster, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers()
    rule = proxy.on("ListOffsets", topic=topic, partition=0).answer(code=code)
    with pytest.raises(RemoteStorageNotReadyError):
        consumer.offsets_for_times({tp: 0}, timeout_ms=700)
    assert 2 <= rule.hits <= 8
    answered = consumer.end_offsets([tp, other], timeout_ms=700, partial=True)
    assert answered == {other: 0}
    assert isinstance(answered.missing[tp], RemoteStorageNotReadyError)
    proxy.clear()
    proxy.on("ListOffsets", topic=topic, partition=0).answer(code=code, times=2)
    assert consumer.offsets_for_times({tp: 0})[tp].offset == 0


def test_what_no_retry_helps_is_raised_at_once(cluster, proxy, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    consumer = consumers.assigned(topic)
    proxy.on("ListOffsets", topic=topic).answer(code=29)
    with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
        consumer.end_offsets([tp])
    proxy.clear()
    proxy.on("Fetch", topic=topic).answer(code=29)
    with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
        consumer.poll(10_000)


@pytest.mark.parametrize("fetch_version", [11, 12])
def test_a_divergence_is_found_whatever_fetch_can_say(cluster, proxy, consumers, fetch_version):
    """Up to v11 a broker does not say that the log diverges; the metadata's epoch does."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)

    def limit(exchange):
        for key in exchange.response.api_keys:
            if key.api_key == 1:
                key.max_version = fetch_version

    proxy.on("ApiVersions").edit(limit)
    consuming.produce(cluster, topic, [b"x"] * 8)
    consumer = consumers.assigned(topic, auto_offset_reset="earliest")
    collect(consumer, 8)
    cluster.lose_log(topic)
    consuming.produce(cluster, topic, [b"y"] * 12)
    with pytest.raises(LogDivergedError):
        consumer.poll(20_000)
    (event,) = consumers.of(LogDiverged)
    assert (event.at, event.rolled_back, event.replaced) == (0, (0, 7), (0, 7))
    assert {call.version for call in proxy.requests("Fetch", topic=topic)} == {fetch_version}
    consumer.seek(tp, 0)
    assert {record.value for record in collect(consumer, 12)} == {b"y"}


def test_metadata_that_is_too_large_for_the_brokers_does_not_stop_commits(cluster, proxy, consumers):
    topic = new_topic(cluster)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers(topic, group_id=topic, auto_offset_reset="earliest", enable_auto_commit=False)
    collect(consumer, 4)
    proxy.on("OffsetCommit").answer(code=12, times=1)
    consumer.commit()
    assert consumer.committed(TopicPartition(topic, 0), metadata=True).metadata == ""
    until(lambda: consumer.committed(TopicPartition(topic, 0)) == 4)

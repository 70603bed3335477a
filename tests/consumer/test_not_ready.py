"""One partition cannot be read for a while (KIP-1007): it waits, the others flow, nothing is reset."""

from __future__ import annotations

import contextlib
import time

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, looks_up, new_name, new_topic, tier, until
from kafka import TopicPartition
from kafka.admin import NewPartitions
from prometheus_client import CollectorRegistry

from kafkasafe.errors import LogDivergedError, RemoteStorageNotReadyError, WaitTimeoutError
from kafkasafe.events import LogDiverged, PartitionNotReady, PartitionReady, PositionReset
from kafkasafe.metrics import install

pytestmark = pytest.mark.kafka


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
    more = False
    # Four: the proxy counts answers, and the last one may not have come to the consumer yet.
    while (elapsed := time.monotonic() - began) < 2.0 or ((len(got) < 11 or rule.hits < 4) and elapsed < 60):
        for tp, records in consumer.poll(100).items():
            got += [(tp.partition, record.offset) for record in records]
        if len(got) == 10 and not more:
            consuming.produce(cluster, topic, [b"y"], 0)
            more = True
    assert {number for number, _ in got} == {0}
    assert len(got) >= 11
    assert 3 <= rule.hits <= 11 * elapsed  # ten a second at most
    assert consumer.position(stuck) == 0
    assert not consumers.of(PositionReset)
    assert consumers.of(PartitionNotReady)[0].position == 0
    assert consumers.of(PartitionNotReady)[0].code == code
    rule.remove()
    over = time.monotonic()
    assert [record.offset for record in collect(consumer, 10)] == list(range(10))
    assert time.monotonic() - over < 20.0  # within a second, on a machine that is not busy
    (again,) = consumers.of(PartitionReady)
    assert again.failures >= 3


def remote_partitions(consumer, topic):
    """What Prometheus sees."""
    registry = CollectorRegistry()
    install(consumer, registry=registry)
    labels = {"client_id": consumer.client_id, "topic": topic}
    return registry.get_sample_value("kafkasafe_remote_storage_not_ready_partitions", labels)


def test_poll_says_so_only_when_the_deadline_ends(cluster, proxy, consumers):
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers.assigned(topic, auto_offset_reset="latest", remote_storage_timeout_ms=700)
    consumer.seek(tp, 0)
    tier(proxy, topic, 2)
    rule = proxy.on("Fetch", topic=topic, partition=0).answer(code=9, high_watermark=-1, records=None)
    for _ in range(2):  # told again each time that it passes
        began = time.monotonic()
        with pytest.raises(RemoteStorageNotReadyError) as told:
            consumer.poll(60_000)
        assert time.monotonic() - began >= 0.6
    (waiting,) = consumers.of(PartitionNotReady)
    assert waiting.remote
    assert remote_partitions(consumer, topic) == 1
    assert (told.value.topic, told.value.code, told.value.retriable) == (topic, 9, True)
    rule.remove()
    assert [record.offset for record in collect(consumer, 4)] == list(range(4))
    (again,) = consumers.of(PartitionReady)
    assert again.after_s >= 1.3
    assert remote_partitions(consumer, topic) == 0


@pytest.mark.parametrize("code", [9, -1])
def test_the_same_codes_are_not_remote_storage_where_the_leader_has_it_all(cluster, proxy, consumers, code):
    topic = new_topic(cluster)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers.assigned(topic, auto_offset_reset="earliest", remote_storage_timeout_ms=200)
    rule = proxy.on("Fetch", topic=topic, partition=0).answer(code=code, high_watermark=-1, records=None)
    until(lambda: not consumer.poll(100) and rule.hits >= 6)
    assert {event.remote for event in consumers.of(PartitionNotReady)} == {False}
    assert remote_partitions(consumer, topic) == 0
    rule.remove()
    collect(consumer, 4)


def test_a_look_up_by_time_that_missed_remote_storage_is_not_believed(cluster, proxy, consumers):
    """The leader answers 0 and the first record that it has itself."""
    topic = new_topic(cluster)
    tp = TopicPartition(topic, 0)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers()
    tier(proxy, topic, 2)
    rule = proxy.on("ListOffsets", topic=topic)
    rule.when(looks_up(0)).set(offset=2)
    proxy.on("Fetch", topic=topic).answer(code=1, high_watermark=-1, records=None)
    with pytest.raises(RemoteStorageNotReadyError):
        consumer.offsets_for_times({tp: 0}, timeout_ms=4000)
    proxy.clear()
    tier(proxy, topic, 2)  # there, and readable
    assert consumer.offsets_for_times({tp: 0})[tp].offset == 0


@pytest.mark.parametrize("code", [9, -1, 7])
def test_look_ups_wait_out_the_deadline(cluster, proxy, consumers, code):
    topic = new_topic(cluster, 2)
    tp, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consuming.produce(cluster, topic, [b"x"] * 4)
    consumer = consumers()
    assert consumer.end_offsets([tp, other]) == {tp: 4, other: 0}
    rule = proxy.on("ListOffsets", topic=topic, partition=0).answer(code=code)
    with pytest.raises(kafka_errors.KafkaTimeoutError) as raised:
        consumer.offsets_for_times({tp: 0}, timeout_ms=1500)
    assert 2 <= rule.hits <= 17  # ten a second at most, and twice whether it is a matter of remote storage
    answered = consumer.end_offsets([tp, other], timeout_ms=1500, partial=True)
    assert answered == {other: 0}
    for error in (raised.value, answered.missing[tp]):  # nothing is in remote storage
        assert type(error) is WaitTimeoutError
        assert error.__cause__.errno == code
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
        consumer.poll(60_000)


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
        consumer.poll(60_000)
    (event,) = consumers.of(LogDiverged)
    assert (event.divergent_offset, event.rolled_back, event.replaced) == (0, (0, 7), (0, 7))
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


@pytest.mark.parametrize("sync", ["late", "lost"])
def test_partitions_that_a_topic_got_are_assigned(cluster, proxy, consumers, sync):
    """Its leader joins because of them, and no longer asks for it while the answer of SyncGroup is not there."""
    topic = new_topic(cluster, 1)
    options = {"metadata_max_age_ms": 300, "heartbeat_interval_ms": 300, "auto_offset_reset": "earliest"}
    consumer = consumers(topic, group_id=topic, **options)
    until(lambda: consumer.poll(100) == {} and len(consumer.assignment()) == 1)
    rule = proxy.on("SyncGroup")
    rule.delay(1.5, times=1) if sync == "late" else rule.truncate(2, times=1, hang_up=True)
    with cluster.admin() as admin:
        admin.create_partitions({topic: NewPartitions(3)})
    until(lambda: consumer.poll(100) == {} and len(consumer.assignment()) == 3, what="its new partitions")
    assert rule.hits == 1
    consuming.produce(cluster, topic, [b"x"], 2)
    assert collect(consumer, 1)[0].partition == 2


def test_metadata_that_are_asked_for_while_a_request_is_under_way(cluster, proxy, consumers):
    """Its answer says nothing of the topic; kafka-python would take it for one that does, for five minutes."""
    one, two = new_topic(cluster), new_topic(cluster, 2)
    proxy.forget()
    proxy.on("Metadata").after(1).delay(1, times=1)
    consumer = consumers(group_id=one)
    until(lambda: len(proxy.requests("Metadata")) >= 2)
    consumer.assign([TopicPartition(one, 0)])
    until(lambda: consumer._cluster.partitions_for_topic(one) == {0})  # and nobody polls
    # The same for who waits for them.
    proxy.forget()
    proxy.on("Metadata").delay(1, times=1)
    consumer._cluster.request_update()
    until(lambda: proxy.requests("Metadata"))
    known = consumer._cluster.add_topic(two)
    until(lambda: known.is_done)
    assert consumer._cluster.partitions_for_topic(two) == {0, 1}
    # And where the answer never comes.
    three = new_topic(cluster)
    proxy.forget()
    proxy.on("Metadata").truncate(2, times=1, hang_up=True).delay(1)
    consumer._cluster.request_update()
    until(lambda: proxy.requests("Metadata"))
    known = consumer._cluster.add_topic(three)
    until(lambda: known.is_done)
    assert consumer._cluster.partitions_for_topic(three) == {0}


def test_metadata_of_a_topic_that_may_not_be_read(cluster, proxy, consumers):
    """kafka-python's coordinator raises in the middle of the update; it is not the last one."""
    topic, other = new_topic(cluster), new_topic(cluster)
    rule = proxy.on("Metadata", topic=topic).answer(code=29, level="topic")
    consumer = consumers(topic, group_id=topic)
    until(lambda: consumer.poll(100) == {} and rule.hits)
    rule.remove()

    def listed():
        with contextlib.suppress(kafka_errors.TopicAuthorizationFailedError):  # of the answer under way
            return consumer.topics()

    assert {topic, other} <= until(listed)
    until(lambda: consumer.poll(100) == {} and consumer.assignment())


def test_a_pattern_with_polls_that_are_shorter_than_a_round_trip(cluster, proxy, consumers):
    """Each of them asks for metadata, and waits for them; they share the answer."""
    topic = new_topic(cluster)
    proxy.on("Metadata").delay(0.4)
    consumer = consumers(group_id=topic)
    consumer.subscribe(pattern=f"^{topic}$")
    until(lambda: consumer.poll(100) == {} and consumer.assignment())


def test_a_broker_that_does_not_know_the_leader_yet(cluster, proxy, consumers):
    """Nothing is fetched of a partition whose position is to be checked, which would make kafka-python ask again."""
    topic = new_topic(cluster)
    consuming.produce(cluster, topic, [b"x"] * 8)
    options = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    before = consumers.assigned(topic, max_poll_records=5, **options)
    collect(before, 5)
    before.commit()
    before.close()
    rule = proxy.on("Metadata", topic=topic, partition=0).set(leader_id=-1, times=3)
    consumer = consumers.assigned(topic, **options)
    assert [record.offset for record in collect(consumer, 3)] == [5, 6, 7]
    assert rule.hits == 3


def test_a_topic_that_is_not_to_be_made(cluster, consumers):
    name = new_name()
    consumer = consumers.assigned(name, allow_auto_create_topics=False)
    consumer.poll(1000)
    with cluster.admin() as admin:
        assert name not in admin.list_topics()
        consumers.assigned(name)  # as with kafka-python, by default
        until(lambda: name in admin.list_topics())

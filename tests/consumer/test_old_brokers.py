"""Brokers that tell too little: end offsets that go back and come again (KIP-207), logs without leader epochs."""

from __future__ import annotations

import contextlib
import shutil
import threading

import consuming
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentPartition
from consuming import Consumers, Raw, collect, new_topic, until
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError

from kafkasafe.errors import LogDivergedError
from kafkasafe.events import EndOffsetHeld, EndOffsetRegressed
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.offsets import EndOffsetTracker, Regressed, RegressedReason, Unproven
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.kafka

VERSIONS = ("1.1.1", "2.0.1")


@pytest.fixture(scope="module")
def clusters():
    """By version, started when first asked for."""
    config = {
        # A follower learns the high watermark with its next fetch; one that waits for data learns it late.
        "replica.fetch.wait.max.ms": 8000,
        # A broker that hangs stays in sync.
        "zookeeper.session.timeout.ms": 60_000,
        "replica.lag.time.max.ms": 60_000,
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
    }
    with contextlib.ExitStack() as stack:
        started = {}

        def get(version):
            if version not in started:
                started[version] = stack.enter_context(KafkaCluster(3, version=version, config=config))
            return started[version]

        yield get


@pytest.fixture(params=VERSIONS)
def cluster(request, clusters):
    return clusters(request.param)


def controller(cluster):
    with cluster.admin() as admin:
        return admin._manager.run(admin._refresh_controller_id) or admin._controller_id


def roles(cluster):
    """A partition that the controller leads when its leader goes: its name, and the nodes leader, heir, other."""
    heir = controller(cluster)
    # kafka-python gives old brokers no assignment; six partitions have all orders of three replicas.
    topic = new_topic(cluster, 6, replication_factor=3)
    for number in range(6):
        leader, second, other = cluster.partition_state(topic, number).replicas
        if second == heir:
            return TopicPartition(topic, number), leader, heir, other
    raise AssertionError("no such partition")


def what_others_say(cluster, heir, tp):
    """End offsets; asked of the leader, since others may hang."""
    host, port = cluster.client_address(heir)
    found = {}

    def plain_says():
        # It may have asked the one that hangs for metadata.
        with (
            contextlib.suppress(KafkaTimeoutError),
            contextlib.closing(
                KafkaConsumer(
                    bootstrap_servers=f"{host}:{port}", enable_auto_commit=False, kafka_client=tidy_client
                )
            ) as plain,
        ):
            found["kafka-python"] = plain.end_offsets([tp], timeout_ms=3000)[tp]
            return True

    until(plain_says)
    with contextlib.closing(
        ConfluentConsumer({"bootstrap.servers": f"{host}:{port}", "group.id": tp.topic})
    ) as confluent:
        found["confluent-kafka"] = confluent.get_watermark_offsets(ConfluentPartition(*tp), timeout=60)[1]
    return found


def test_the_bug_of_kip_207(cluster, consumers, tmp_path):
    """The new leader says 0 and no error; a moment later 10 again. With a restart while it lasts."""
    tp, leader, heir, hung = roles(cluster)
    consumer = consumers(request_timeout_ms=3000)
    path = tmp_path / "ends.json"
    tracker, hasty = EndOffsetTracker(path), EndOffsetTracker(hold_timeout_s=0.5)
    raw_ends, ours, tracked, hasty_results = [], [], [], []
    with Raw(cluster) as raw:

        def look():
            if (end := raw.end(*tp)) is not None:
                raw_ends.append(end)
                tracked.append(tracker.end_offsets({tp: end})[tp])
                hasty_results.append(hasty.observe(*tp, end))
                ours.append(consumer.end_offsets([tp], timeout_ms=60_000)[tp])
            return end

        consuming.produce(cluster, tp.topic, [b"x"] * 10, tp.partition, acks="all", linger_ms=200)
        assert look() == 10
        cluster.pause(hung)
        stopper = threading.Thread(target=cluster.stop, args=(leader,))
        try:
            stopper.start()
            until(lambda: look() == 0, what="the bug")
            controls = what_others_say(cluster, heir, tp)
            tracker.save()
            host, port = cluster.client_address(heir)  # another one hangs
            restarted = consumers(
                offsets_path=path, bootstrap_servers=f"{host}:{port}", request_timeout_ms=3000
            )
            ours.append(restarted.end_offsets([tp], timeout_ms=60_000)[tp])
            until(lambda: look() is not None and isinstance(hasty_results[-1], Unproven))
        finally:
            cluster.resume(hung)
            stopper.join()
        until(lambda: look() == 10)
    assert raw_ends == [10] * raw_ends.index(0) + [0] * raw_ends.count(0) + [10]
    assert controls == {"kafka-python": 0, "confluent-kafka": 0}
    assert set(ours) == set(tracked) == {10}
    assert not consumers.of(EndOffsetRegressed)
    assert {(event.offset, event.answered, event.reason) for event in consumers.of(EndOffsetHeld)} == {
        (10, 0, "lower")
    }
    # One who does not want to wait so long decides himself.
    assert {result.offset for result in hasty_results} == {10}
    hasty.observe(*tp, 0)
    assert hasty.accept(*tp) == Regressed(0, 10, RegressedReason.ACCEPTED, None)


# --- logs that tell of no leader epochs -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair():
    config = {
        "min.insync.replicas": 1,
        "offsets.topic.replication.factor": 1,
        "unclean.leader.election.enable": True,
        "controlled.shutdown.enable": False,
    }
    with KafkaCluster(2, version="1.1.1", config=config) as running:
        yield running


@pytest.mark.crash
def test_batches_that_were_read_locate_a_loss(pair, tmp_path):
    """Epochs that nobody tells (message format 1), or of which a broker says only where they end (format 2)."""
    formats = {"0.10.2": "1", "1.1": "2"}
    topics = {
        name: new_topic(
            pair, 1, replication_factor=2, config={"message.format.version": name, "min.insync.replicas": 1}
        )
        for name in formats
    }
    tps = {name: TopicPartition(topic, 0) for name, topic in topics.items()}
    leads = {tp: pair.leader(tp) for tp in tps.values()}
    with Consumers(pair) as consumers:

        def opened(**more):
            consumer = consumers(
                auto_offset_reset="earliest", metadata_max_age_ms=1000, request_timeout_ms=3000, **more
            )
            consumer.assign(list(tps.values()))
            return consumer

        def grow(count, size, value, **more):
            for tp in tps.values():
                for _ in range(count):
                    consuming.produce(
                        pair, tp.topic, [value] * size, linger_ms=100, enable_idempotence=False, **more
                    )

        path = tmp_path / "lineage.json"
        living = opened(lineage_path=path)
        plain = KafkaConsumer(
            bootstrap_servers=pair.bootstrap_servers,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            metadata_max_age_ms=1000,
            kafka_client=tidy_client,
        )
        plain.assign(list(tps.values()))
        with contextlib.closing(plain):
            # Offsets 0-2 one (compressed) batch, 3, 4, 5; on both brokers. Then 6 to 9 on one alone.
            grow(1, 3, b"both", compression_type="gzip", acks="all")
            grow(3, 1, b"both", acks="all")
            for tp in tps.values():
                pair.wait_in_sync(tp)
            survivor = 2 if leads[tps["1.1"]] == 1 else 1
            other = 3 - survivor
            pair.kill(survivor)
            until(lambda: all(pair.partition_state(tp).in_sync == (other,) for tp in tps.values()))
            grow(4, 1, b"gone", acks=1)
            for consumer in (living, plain):
                collect(consumer, 20, 60)
            living.save_lineage()
            kept = tmp_path / "kept.json"
            shutil.copy(path, kept)
            pair.kill(other)
            pair.start(survivor)
            for tp in tps.values():
                until(lambda tp=tp: pair.leader(tp) == survivor)
            grow(8, 1, b"new", acks=1)
            pair.start(other)
            found = told(living, 2)
            assert {
                tp: (event.divergent_offset, event.rolled_back, event.replaced) for tp, event in found.items()
            } == dict.fromkeys(tps.values(), (6, (6, 9), (6, 9)))
            # The next life of the process, which has positions of its own and this file.
            restarted = opened(lineage_path=kept)
            for tp in tps.values():
                restarted.seek(tp, 10)
            assert {event.divergent_offset for event in told(restarted, 2).values()} == {6}
            for tp in tps.values():
                restarted.seek(tp, 6)
            assert {record.value for record in collect(restarted, 16)} == {b"new"}
            # The control reads on, from the middle of records that it never saw the first of.
            assert {record.offset for record in collect(plain, 8, 60)} == {10, 11, 12, 13}


def told(consumer, count):
    """What `poll` raises, by partition."""
    found = {}
    until(lambda: _poll(consumer, found) and len(found) == count)
    return found


def _poll(consumer, found):
    try:
        consumer.poll(500)
    except LogDivergedError as error:
        found[TopicPartition(error.event.topic, error.event.partition)] = error.event
    return True


@pytest.mark.crash
def test_a_start_from_the_end_does_not_wait_for_ever_for_what_is_gone(pair):
    """Nothing proves it there, so it is held for a while; then the log as it is counts."""
    topic = new_topic(pair, 1, replication_factor=1)
    tp = TopicPartition(topic, 0)
    with Consumers(pair) as consumers:
        consumer = consumers.assigned(topic, auto_offset_reset="latest", offsets_hold_timeout_ms=3000)
        consuming.produce(pair, topic, [b"x"] * 10, acks="all")
        assert consumer.end_offsets([tp]) == {tp: 10}
        pair.lose_log(topic)
        consuming.produce(pair, topic, [b"y"] * 4, acks="all")
        assert consumer.end_offsets([tp]) == {tp: 10}
        assert consumer.position(tp) == 4
        assert consumer.end_offsets([tp]) == {tp: 4}
        (regressed,) = consumers.of(EndOffsetRegressed)
        assert (regressed.offset, regressed.previous, regressed.reason) == (4, 10, "accepted")
        assert {event.reason for event in consumers.of(EndOffsetHeld)} <= {"lower", "unproven"}
        consuming.produce(pair, topic, [b"z"], acks="all")
        assert [record.offset for record in collect(consumer, 1)] == [4]

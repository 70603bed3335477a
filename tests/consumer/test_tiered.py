"""Real remote storage that is not ready (KIP-1007): Kafka's own LocalTieredStorage, its metadata on another broker."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import threading
import time

import consuming
import pytest
from consuming import Raw, Slowness, new_topic, until
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from kafkasafe.cluster.api import Failure
from kafkasafe.cluster.inquiry import ProcedureRunner
from kafkasafe.cluster.lookups import LookUps
from kafkasafe.errors import RemoteStorageNotReadyError
from kafkasafe.events import PartitionNotReady, PartitionReady, PositionReset
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.offsets import EndOffsetTracker
from kafkasafe.spark.brokers import SourceUnavailableError
from kafkasafe.spark.notices import Notices
from kafkasafe.spark.options import read_options
from kafkasafe.spark.planner import Planner, Range
from kafkasafe.stats import ConsumerStats
from kafkasafe.testing.broker import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

METADATA = "__remote_log_metadata"
INTERVAL = "remote.log.manager.task.interval.ms"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    config = {
        "remote.log.storage.system.enable": True,
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.metadata.manager.listener.name": "CLIENT",
        "rsm.config.dir": tmp_path_factory.mktemp("remote"),
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
        INTERVAL: 300,
        "log.initial.task.delay.ms": 200,
        "log.retention.check.interval.ms": 300,
        "offsets.topic.replication.factor": 2,
        "min.insync.replicas": 1,
    }
    jars = [f"org.apache.kafka:{name}:4.3.0:test" for name in ("kafka-storage", "kafka-clients")]
    with KafkaCluster(2, config=config, extra_artifacts=jars) as running:
        yield running


@pytest.fixture
def holder(cluster):
    """The broker that has the metadata of remote storage; the other one has the data."""
    return until(lambda: cluster.leader(METADATA))


class Tiered:
    """A topic: of partition 0 the first offsets are in remote storage only, partition 1 is local."""

    def __init__(self, cluster, raw, node):
        self.raw = raw
        config = {
            "remote.storage.enable": True,
            "segment.bytes": 1_048_576,
            "local.retention.bytes": 1,
            "file.delete.delay.ms": 100,
            "retention.ms": -1,
        }
        self.topic = new_topic(cluster, assignments={0: [node], 1: [node]}, config=config)
        self.remote, self.local = TopicPartition(self.topic, 0), TopicPartition(self.topic, 1)
        values = [os.urandom(100_000) for _ in range(35)]  # ten to a segment
        consuming.produce(cluster, self.topic, values, 0, max_request_size=2_000_000)
        consuming.produce(cluster, self.topic, [b"x"] * 5, 1)
        until(lambda: self.offset(-4) >= 20 and self.offset(-5) >= 19, what="tiering")

    def offset(self, timestamp):
        answer = self._ask(self.raw.transport.list_offset, timestamp)
        return None if isinstance(answer, Failure) or answer.error_code else answer.offset

    def fetched(self, offset):
        """Its error code, None for none."""
        answer = self._ask(self.raw.transport.fetch_records, offset, 1, max_wait_ms=1000)
        if isinstance(answer, Failure) or answer.error_code:
            return -999 if isinstance(answer, Failure) else answer.error_code
        return None if answer.records else 7

    def await_loss(self):
        """Until the leader no longer finds the remote segments."""
        seen = []

        def is_lost():
            seen.append((self.fetched(0), self.offset(0)))
            code, offset = seen[-1]
            return code == 1 and (offset or 0) >= 20

        try:
            until(is_lost)
        except AssertionError as error:
            error.add_note(f"(error code, offset): {seen[:3]} … {seen[-3:]}")
            raise

    def _ask(self, send, *args, **more):
        done, box = threading.Event(), []
        send(self.topic, 0, *args, lambda answer: (box.append(answer), done.set()), **more)
        assert done.wait(60)
        return box[0]


def polled(consumer, seconds, least=0):
    """(partition, offset) of what comes in that time; at least so many records are waited for."""
    got = []
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds or (len(got) < least and elapsed < 60):
        for tp, records in consumer.poll(100).items():
            got += [(tp.partition, record.offset) for record in records]
    return got


def planned(cluster, topic, wait_ms):
    """What Spark's source would read of the partition, from a moment that is before all its records."""
    options = read_options(
        {
            "kafka.bootstrap.servers": ",".join(cluster.bootstrap_servers),
            "assign": json.dumps({topic.topic: [0]}),
            "startingTimestamp": "0",
            "kafkaConsumer.pollTimeoutMs": str(wait_ms),
        },
        streaming=False,
    )
    planner = Planner(options, Notices(None))
    try:
        return planner.batch()
    finally:
        planner.close()


def patiently(consumer, partition):
    """The same, of one partition, by who takes the error for what it is: retriable."""
    with contextlib.suppress(RemoteStorageNotReadyError):
        return [each for each in polled(consumer, 0.05) if each[0] == partition]
    return []


def test_metadata_that_cannot_be_had_and_a_rebalance_and_a_restart_meanwhile(cluster, consumers, holder):
    node = 3 - holder
    with Raw(cluster) as raw:
        topic = Tiered(cluster, raw, node)
        options = {
            "group_id": topic.topic,
            "auto_offset_reset": "latest",
            "enable_auto_commit": False,
            "heartbeat_interval_ms": 300,
        }
        one = consumers(topic.topic, **options)
        until(lambda: one.poll(100) is not None and len(one.assignment()) == 2)
        one.commit({tp: OffsetAndMetadata(2, "", -1) for tp in (topic.remote, topic.local)})
        one.close(autocommit=False)
        consumers.events.clear()
        cluster.kill(holder)
        # Groups live on with the other one.
        until(
            lambda: all(
                cluster.partition_state("__consumer_offsets", number).in_sync == (node,)
                for number in range(3)
            ),
            120,
        )
        cluster.kill(node)
        cluster.start(node)
        until(lambda: topic.fetched(0) == 9)
        assert (topic.offset(-2), topic.offset(-1), topic.offset(-5)) == (0, 35, -1)

        one = consumers(topic.topic, **options)
        until(lambda: (1, 4) in polled(one, 0.1), 120)  # what is local flows
        until(lambda: not polled(one, 0.1) and consumers.of(PartitionNotReady))
        before = one._objects.reports.stats.retries.copy()
        began = time.monotonic()
        consuming.produce(cluster, topic.topic, [b"y"], 1)
        assert polled(one, 1.5, 1) == [(1, 5)]
        tries = sum(one._objects.reports.stats.retries.values()) - sum(before.values())
        assert 2 <= tries <= 10 * (time.monotonic() - began) + 1
        assert one.position(topic.remote) == 2
        with pytest.raises(RemoteStorageNotReadyError):
            one.offsets_for_times({topic.remote: 0}, timeout_ms=1000)
        assert one.end_offsets([topic.remote, topic.local]) == {topic.remote: 35, topic.local: 6}
        other = consumers(auto_offset_reset="none")
        other.assign([topic.remote])
        other.seek(topic.remote, 33)  # on the leader's own disk
        assert polled(other, 1.0, 2) == [(0, 33), (0, 34)]
        # The first record there is, is a remote one: it is waited for, not replaced by the first local one.
        first = consumers(auto_offset_reset="earliest")
        first.assign([topic.remote, topic.local])
        begun = []
        until(lambda: begun.extend(polled(first, 0.1)) or len(begun) >= 6)
        assert {partition for partition, _ in begun} == {1}
        assert (first.position(topic.remote), first.position(topic.local)) == (0, 6)

        two = consumers(topic.topic, remote_storage_timeout_ms=1000, **options)
        until(lambda: [polled(each, 0.1) for each in (one, two)] and two.assignment())
        one.close(autocommit=False)
        until(lambda: polled(two, 0.1) is not None and len(two.assignment()) == 2)
        with pytest.raises(RemoteStorageNotReadyError) as told:
            polled(two, 30)
        assert (told.value.topic, told.value.partition, told.value.code) == (topic.topic, 0, 9)
        assert two.position(topic.remote) == 2

        ready = []
        stop = threading.Event()

        def probe():
            with Raw(cluster) as own:
                topic.raw = own
                while not stop.is_set() and not ready:
                    if topic.fetched(0) is None:
                        ready.append(time.monotonic())
                    time.sleep(0.02)

        threads = [threading.Thread(target=work) for work in (probe, lambda: cluster.start(holder))]
        for thread in threads:
            thread.start()
        with Slowness() as slowness:
            try:
                got = until(lambda: patiently(two, 0))
                arrived = time.monotonic()
            finally:
                until(lambda: ready)
                stop.set()
                for thread in threads:
                    thread.join()
        assert got[0] == (0, 2)
        assert until(lambda: patiently(first, 0))[0] == (0, 0)
        assert arrived - ready[0] < 5.0 + 2 * slowness.seconds
    # One consumer began without a position, at the first record.
    resets = consumers.of(PositionReset)
    assert {(event.reason, event.strategy, event.position, event.skipped) for event in resets} == {
        ("no_position", "earliest", 0, None)
    }
    assert {(event.partition, event.code) for event in consumers.of(PartitionNotReady)} == {(0, 9)}
    assert any(event.remote for event in consumers.of(PartitionNotReady))
    assert {event.partition for event in consumers.of(PartitionReady)} == {0}


def test_look_ups_by_time_while_the_metadata_come_back_give_no_wrong_answer(
    cluster, consumers, holder, tmp_path
):
    """The leader lives on: at some moment between a look-up and the fetch after it, it finds its remote segments."""
    node = 3 - holder
    properties = cluster.data_dir(node).parent / "server.properties"
    usual = properties.read_text()
    metadata = cluster.data_dir(holder) / f"{METADATA}-0"
    with Raw(cluster) as raw:
        topic = Tiered(cluster, raw, node)
        cluster.kill_all()
        shutil.copytree(metadata, tmp_path / "saved")
        shutil.rmtree(metadata)
        properties.write_text(usual.replace(f"{INTERVAL}=300", f"{INTERVAL}=3600000"))
        try:
            cluster.start_all()
            topic.await_loss()
            cluster.kill(holder)
            shutil.rmtree(metadata)
            shutil.copytree(tmp_path / "saved", metadata)
            with consumers() as consumer:
                # Many that are at different steps when it happens. All records are newer than any of these times.
                runner = ProcedureRunner()
                lookups = LookUps(
                    consumer._objects.connections.network,
                    EndOffsetTracker(),
                    ConsumerStats(),
                    print,
                    0,
                    lambda _: None,
                )
                begun = runner.begin_all(lookups.at_time(topic.topic, 0, 1 + number) for number in range(400))
                starting = threading.Thread(target=cluster.start, args=(holder,))
                starting.start()
                deadline = time.monotonic() + 120
                while not all(inquiry.done for inquiry in begun):
                    assert time.monotonic() < deadline
                    runner.wait(1.0)
                    runner.work()
                starting.join()
                assert [inquiry.error for inquiry in begun if inquiry.error is not None] == []
                assert collections.Counter(inquiry.result.offset for inquiry in begun) == {0: 400}
                assert consumer.offsets_for_times({topic.remote: 0})[topic.remote].offset == 0
        finally:
            cluster.kill_all()
            properties.write_text(usual)
            cluster.start_all()


def test_a_segment_that_is_not_found_is_no_offset_out_of_range(cluster, consumers, holder, tmp_path):
    """Its metadata are gone: fetches answer 1, look-ups by time a wrong offset, and neither an error that says so."""
    node = 3 - holder
    properties = cluster.data_dir(node).parent / "server.properties"
    usual = properties.read_text()
    metadata = cluster.data_dir(holder) / f"{METADATA}-0"
    with Raw(cluster) as raw:
        topic = Tiered(cluster, raw, node)
        group = consumers(group_id=topic.topic, auto_offset_reset="latest", enable_auto_commit=False)
        group.commit({topic.remote: OffsetAndMetadata(3, "", -1)})
        consumers.events.clear()
        cluster.kill_all()
        shutil.copytree(metadata, tmp_path / "saved")
        shutil.rmtree(metadata)
        # Else the leader gives the remote part up for lost, and moves the start of its log, after a while.
        properties.write_text(usual.replace(f"{INTERVAL}=300", f"{INTERVAL}=3600000"))
        try:
            cluster.start_all()
            topic.await_loss()
            assert topic.offset(-2) == 0
            consumer = consumers.assigned(topic.topic, 0, 1, auto_offset_reset="latest")
            for tp in (topic.remote, topic.local):
                consumer.seek(tp, 0)
            assert polled(consumer, 2.0, 5) == [(1, offset) for offset in range(5)]
            assert consumer.position(topic.remote) == 0
            with pytest.raises(RemoteStorageNotReadyError):
                consumer.offsets_for_times({topic.remote: 0}, timeout_ms=1000)
            consumer.close()
            # The Spark source does not begin behind what it misses either.
            with pytest.raises(SourceUnavailableError, match="REMOTE_STORAGE_NOT_READY"):
                planned(cluster, topic, wait_ms=1500)
            restarted = consumers(group_id=topic.topic, auto_offset_reset="latest", enable_auto_commit=False)
            restarted.assign([topic.remote, topic.local])
            polled(restarted, 1.0)
            assert restarted.position(topic.remote) == 3
            # The control: position and records are silently given up.
            with contextlib.closing(
                KafkaConsumer(
                    bootstrap_servers=cluster.bootstrap_servers,
                    auto_offset_reset="latest",
                    enable_auto_commit=False,
                    kafka_client=tidy_client,
                )
            ) as plain:
                plain.assign([topic.remote])
                plain.seek(topic.remote, 0)
                until(lambda: not plain.poll(100) and plain.position(topic.remote) == 35)
        finally:
            cluster.kill_all()
            shutil.rmtree(metadata)
            shutil.copytree(tmp_path / "saved", metadata)
            properties.write_text(usual)
            cluster.start_all()
        assert planned(cluster, topic, wait_ms=60_000) == [Range(topic.topic, 0, 0, 35)]
        got = until(lambda: [each for each in polled(restarted, 0.1) if each[0] == 0])
        assert got[0] == (0, 3)
    resets = [event for event in consumers.of(PositionReset) if event.partition == 0]
    assert not resets
    assert (0, 1, True) in {
        (event.partition, event.code, event.remote) for event in consumers.of(PartitionNotReady)
    }

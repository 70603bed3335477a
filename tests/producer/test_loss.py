"""Acknowledged records that the cluster lost: noticed, counted, and put back."""

from __future__ import annotations

import gc
import random
import shutil
import socket
import time
from pathlib import Path

import confluent_kafka
import harness
import lives
import pytest
from kafka import KafkaProducer, TopicPartition

from kafkasafe import DataLossError, SafeConsumer, events
from kafkasafe.testing.broker import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.crash]

RETAINED = 64 * 1024 * 1024


def sockets() -> list[socket.socket]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is socket.socket and thing.fileno() >= 0]


@pytest.fixture
def controls():
    """The other clients. KafkaProducer leaves sockets open to brokers that were killed: they are closed for it."""
    before = set(map(id, sockets()))
    made: list[Control] = []
    yield made
    for control in made:
        control.close()
    for left in sockets():
        if id(left) not in before:
            left.close()


class Safe:
    """A SafeProducer on one partition; each of its records is acknowledged before the next one is sent."""

    def __init__(self, producers, cluster: KafkaCluster, topic: str, partition: int, spool: Path, **options):
        self.cluster, self.topic, self.partition = cluster, topic, partition
        self.events: list[events.Event] = []
        self.sent = 0
        self.raised: list[DataLossError] = []
        options.setdefault("retain_acked_bytes", RETAINED)
        self.producer = producers(
            cluster.bootstrap_servers,
            spool_dir=spool / f"{topic}-{partition}",
            on_event=self.events.append,
            linger_ms=0,
            request_timeout_ms=3000,
            **options,
        )

    def send(self, count: int, more: bytes = b"") -> None:
        """A loss that is not put back is raised instead of accepting a record: it is sent again then."""
        for number in range(self.sent, self.sent + count):
            try:
                future = self._send(number, more)
            except DataLossError as error:
                self.raised.append(error)
                future = self._send(number, more)
            future.get(60)
        self.sent += count

    def _send(self, number: int, more: bytes):
        value = lives.record_value(number) + more
        return self.producer.send(self.topic, value, partition=self.partition)

    def seen(self, kind: type) -> list:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def lost(self) -> events.DataLost:
        """The one loss there is."""
        harness.until(lambda: self.seen(events.DataLost), what="the loss to be noticed")
        (event,) = self.seen(events.DataLost)
        return event

    def healed(self, records: int) -> None:
        harness.until(
            lambda: sum(e.records for e in self.seen(events.LostRecordsRestored)) >= records, 120, "healing"
        )
        assert sum(e.records for e in self.seen(events.LostRecordsRestored)) == records


class Control:
    """Another client on one partition, and how many of its records it was told are delivered."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.sent = self.delivered = 0

    def send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self.deliver(lives.record_value(number), lives.record_key(number))
        self.sent += count


class KafkaPython(Control):
    def __init__(self, cluster: KafkaCluster, topic: str, partition: int, acks) -> None:
        super().__init__(topic, partition)
        self.producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, acks=acks, enable_idempotence=acks == "all"
        )

    def deliver(self, value: bytes, key: bytes | None) -> None:
        self.producer.send(self.topic, value, key, partition=self.partition).get(60)
        self.delivered += 1

    def close(self) -> None:
        self.producer.close(5)


class Confluent(Control):
    def __init__(self, cluster: KafkaCluster, topic: str, partition: int, acks) -> None:
        super().__init__(topic, partition)
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": ",".join(cluster.bootstrap_servers),
                "acks": acks,
                "enable.idempotence": acks == "all",
                "log_level": 0,
            }
        )

    def deliver(self, value: bytes, key: bytes | None) -> None:
        answers: list = []
        self.producer.produce(
            self.topic,
            value,
            key,
            partition=self.partition,
            on_delivery=lambda error, _: answers.append(error),
        )
        self.producer.flush(60)
        assert answers == [None]
        self.delivered += 1

    def close(self) -> None:
        self.producer.flush(5)


def wipe(cluster: KafkaCluster, topic: str, partitions: int) -> None:
    """All replicas of all partitions of a topic lose their disk."""
    cluster.kill_all()
    for node in (1, 2, 3):
        for partition in range(partitions):
            shutil.rmtree(cluster.data_dir(node) / f"{topic}-{partition}")
    cluster.start_all()
    for partition in range(partitions):
        cluster.wait_in_sync(topic, partition)


def logged(cluster: KafkaCluster, topic: str) -> dict[int, list[int]]:
    return {p: harness.numbers_of(r) for p, r in harness.read_log(cluster.bootstrap_servers, topic).items()}


def same_brokers(partitions: int) -> dict[int, list[int]]:
    """One fail-over hits all partitions."""
    return {partition: [1, 2, 3] for partition in range(partitions)}


LONG = 120
"""More than the acknowledged batches that are remembered in any case (64)."""


@pytest.mark.full
def test_an_unclean_election_loses_what_the_leader_alone_had(kafka_cluster, controls, producers, tmp_path):
    """acks=1. Others report success and never know; what is lost spans two leader epochs.

    One of ours loses more than its spool remembers: all of it is named all the same.
    """
    cluster = kafka_cluster
    topic = f"unclean-{random.SystemRandom().getrandbits(32):x}"
    cluster.create_topic(topic, assignments=same_brokers(6))

    def safe(partition: int, **options) -> Safe:
        return Safe(producers, cluster, topic, partition, tmp_path, acks=1, **options)

    heals, tells, raises = safe(0), safe(1, on_data_loss="event"), safe(2, on_data_loss="raise")
    small = {"spool_segment_bytes": 1 << 20, "max_request_size": 500_000, "retain_acked_bytes": 0}
    forgets = safe(5, **small)
    controls += [KafkaPython(cluster, topic, 3, 1), Confluent(cluster, topic, 4, 1)]
    clients = [heals, tells, raises, forgets, *controls]

    def all_send(count: int) -> None:
        for client in clients:
            client.send(count)

    def alone() -> None:
        all_send(6)
        # The same leader, in another epoch.
        cluster.restart(1, hard=True)
        all_send(4)
        forgets.send(LONG, b"x" * 30_000)

    all_send(10)
    for partition in range(6):
        # The high watermark: all replicas have them.
        harness.until(lambda p=partition: harness.end_offset(cluster, topic, p) == 10)
    lost = cluster.unclean_failover(topic, 0, during=alone)
    assert (lost.first_offset, lost.end_offset) == (10, 20)
    # Within one acknowledgement: nothing more is sent before it is known.
    for client in clients:
        client.send(1)
    for client in (heals, tells, raises):
        event = client.lost()
        assert (event.first_offset, event.last_offset, event.records) == (10, 19, 10), event
        assert (event.topic, event.partition) == (topic, client.partition)
        assert event.restoring_records == (10 if client is heals else 0)
    all_send(4)
    heals.healed(10)
    assert not tells.seen(events.LostRecordsRestored)
    lost = forgets.lost()
    assert (lost.first_offset, lost.last_offset, lost.records) == (10, 19 + LONG, 10 + LONG), lost
    assert 0 < lost.restoring_records < LONG
    (error,) = forgets.raised
    gone = 10 + LONG - lost.restoring_records
    assert (error.first_offset, error.last_offset, error.records) == (10, 9 + gone, gone)
    (error,) = raises.raised
    assert (error.first_offset, error.last_offset, error.partition) == (10, 19, 2)
    raises.producer.flush(60)  # raised once
    assert not heals.raised
    assert not tells.raised
    log = logged(cluster, topic)
    for control in controls:
        assert control.delivered == 25
        assert log[control.partition] == [*range(10), *range(20, 25)], type(control)
    assert log[1] == log[2] == [*range(10), *range(20, 25)]
    assert sorted(log[0]) == list(range(25))
    back = [number for number in log[0] if 10 <= number < 20]
    assert back == list(range(10, 20))
    assert [number for number in log[0] if not 10 <= number < 20] == [*range(10), *range(20, 25)]


def test_a_wiped_log_loses_what_all_had(kafka_cluster, controls, producers, tmp_path):
    """acks=all. A partition to which nothing is sent is looked after as well."""
    cluster = kafka_cluster
    topic = f"wiped-{random.SystemRandom().getrandbits(32):x}"
    cluster.create_topic(topic, assignments=same_brokers(4))
    heals = Safe(producers, cluster, topic, 0, tmp_path)
    idle = Safe(producers, cluster, topic, 1, tmp_path, data_loss_check_ms=200)
    controls += [KafkaPython(cluster, topic, 2, "all"), Confluent(cluster, topic, 3, "all")]
    for client in (heals, idle, *controls):
        client.send(20)
    wipe(cluster, topic, 4)
    for client in (heals, *controls):
        client.send(1)
    for client in (heals, idle):
        event = client.lost()
        assert (event.first_offset, event.last_offset, event.records, event.restoring_records) == (
            0,
            19,
            20,
            20,
        )
    for client in (heals, *controls):
        client.send(4)
    heals.healed(20)
    idle.healed(20)
    log = logged(cluster, topic)
    for control in controls:
        assert control.delivered == 25
        assert log[control.partition] == list(range(20, 25)), type(control)
    assert log[1] == list(range(20))
    assert sorted(log[0]) == list(range(25))
    assert [number for number in log[0] if number < 20] == list(range(20))


@pytest.mark.parametrize("restore_recreated_topics", [False, True])
def test_a_topic_that_is_created_again(kafka_cluster, producers, tmp_path, restore_recreated_topics):
    cluster = kafka_cluster
    topic = harness.new_topic(cluster, 1)
    safe = Safe(producers, cluster, topic, 0, tmp_path, restore_recreated_topics=restore_recreated_topics)
    safe.send(10)
    cluster.delete_topic(topic)
    cluster.create_topic(topic, 1)
    safe.send(1)
    event = safe.lost()
    healed = 10 if restore_recreated_topics else 0
    assert (event.first_offset, event.last_offset, event.records) == (0, 9, 10)
    assert (event.reason, event.restoring_records) == ("topic id", healed)
    if healed:
        safe.healed(10)
    safe.send(1)
    safe.producer.flush(60)
    assert [(e.first_offset, e.last_offset, e.records) for e in safe.raised] == (
        [] if healed else [(0, 9, 10)]
    )
    log = logged(cluster, topic)[0]
    assert sorted(log) == list(range(0 if healed else 10, 12))
    assert [number for number in log if number < 10] == list(range(healed))


def test_what_was_removed_proves_nothing(kafka_cluster, producers, tmp_path):
    """After an election it cannot be known whether the log ever had what was acknowledged, and read: that is said."""
    cluster = kafka_cluster
    topic = f"trimmed-{random.SystemRandom().getrandbits(32):x}"
    cluster.create_topic(topic, assignments=same_brokers(1))
    safe = Safe(producers, cluster, topic, 0, tmp_path, data_loss_check_ms=200)
    safe.send(5)
    seen: list[events.ConsumerEvent] = []
    with SafeConsumer(
        bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest", on_event=seen.append
    ) as reader:
        where = TopicPartition(topic, 0)
        reader.assign([where])
        read: list[int] = []

        def reads(count: int) -> bool:
            read.extend(r.offset for found in reader.poll(100).values() for r in found)
            return len(read) == count

        harness.until(lambda: reads(5))
        with cluster.admin() as admin:
            admin.delete_records({where: 5})
        cluster.wait_in_sync(topic)
        cluster.kill(cluster.leader(topic))
        harness.until(lambda: safe.seen(events.LossCheckInconclusive))

        def noticed() -> bool:
            reads(5)
            return any(isinstance(event, events.LossCheckInconclusive) for event in seen)

        harness.until(noticed)
        cluster.start_all()
        cluster.wait_in_sync(topic)
        safe.send(1)
        safe.producer.flush(60)
        harness.until(lambda: reads(6))
        for client in (reader, safe.producer):
            found = [
                reading[1:]
                for reading in client.metric_samples()
                if reading[0].name == "loss_checks_inconclusive"
            ]
            assert found == [((topic,), 1)]
    (told,) = safe.seen(events.LossCheckInconclusive)
    assert (told.topic, told.partition, told.position, told.log_start_offset) == (topic, 0, 5, 5)
    told = next(event for event in seen if isinstance(event, events.LossCheckInconclusive))
    assert (told.topic, told.partition, told.position, told.log_start_offset) == (topic, 0, 5, 5)
    assert not safe.seen(events.DataLost)
    assert not [event for event in seen if isinstance(event, events.LogDiverged)]


KILLED = 6
RECORDS = 120


def test_killed_while_it_heals(kafka_cluster, zygote, producers, tmp_path):
    """kill -9 between the loss and the last record that is put back, in up to three lives.

    Every other producer dies twice when it has sent a given part of what it puts back; the others at random moments,
    which may be before the first or after the last.
    """
    seed = random.SystemRandom().getrandbits(31)
    rnd = random.Random(seed)
    note = f"seed {seed}"
    cluster = kafka_cluster
    topic = f"killed-{seed:x}"
    cluster.create_topic(topic, assignments=same_brokers(KILLED))
    options = {
        "retain_acked_bytes": RETAINED,
        "data_loss_check_ms": 100,
        "request_timeout_ms": 2000,
        "linger_ms": 0,
        # Two batches at a time: healing takes its time.
        "max_in_flight_requests_per_connection": 2,
    }

    def live(partition: int, sends: int, batches: int | None = None) -> harness.Life:
        return zygote.burst(
            tmp_path,
            cluster.bootstrap_servers,
            topic,
            tmp_path / f"ready{partition}",
            [0, sends],
            spool=tmp_path / f"spool{partition}",
            go=tmp_path / "never",
            first=sends,
            partition=partition,
            options=options,
            batches=batches,
        )

    first = [live(partition, RECORDS) for partition in range(KILLED)]
    for partition, life in enumerate(first):
        life.until(tmp_path / f"ready{partition}.first")
    for life in first[::2]:
        assert life.kill() == -9
    wipe(cluster, topic, KILLED)
    for life in first[1::2]:
        time.sleep(rnd.random() * 0.3)
        assert life.kill() == -9
    for _ in range(2):
        # Each record is a batch. Two may be lost on their way with the process.
        again = [
            live(partition, 0, None if partition % 2 else rnd.randrange(3, RECORDS // 2 - 5))
            for partition in range(KILLED)
        ]
        time.sleep(rnd.choice((0.3, 1.0, 2.2)))
        for life in again[1::2]:
            time.sleep(rnd.random() * 0.2)
            assert life.kill() == -9
        for partition, life in list(enumerate(again))[::2]:
            assert life.wait() == -9, note
            assert 0 < harness.end_offset(cluster, topic, partition) < RECORDS, note
    last = [
        producers(cluster.bootstrap_servers, spool_dir=tmp_path / f"spool{partition}", **options)
        for partition in range(KILLED)
    ]
    for partition, producer in enumerate(last):
        harness.until(
            lambda p=partition: harness.end_offset(cluster, topic, p) >= RECORDS, 120, f"{partition}: {note}"
        )
        producer.flush(60)
    log = harness.read_log(cluster.bootstrap_servers, topic)
    for partition in range(KILLED):
        harness.audit({partition: log[partition]}, range(RECORDS), note=note)

"""Brokers get another version on the data that they have, under a producer that lives, one that is restarted, and a group.

"This will also enable brokers upgrade/maintenance without message loss" (KAFKA-156).
"""

from __future__ import annotations

import contextlib
import random
import time

import pytest
from kafka import TopicPartition

from kafkasafe import ConfigError, SafeConsumer, SafeProducer, events
from kafkasafe.testing.broker import KafkaCluster

pytestmark = pytest.mark.kafka

PARTITIONS = 2
LOSSES = (
    events.DataLost,
    events.RecordsUndecidable,
    events.RecordsRejected,
    events.LogDiverged,
    events.EndOffsetRegressed,
    events.PositionReset,
    events.SpoolRecordsMissing,
)


class Scene:
    """Two producers with spools of their own and a consumer of a group, on one topic."""

    def __init__(self, cluster: KafkaCluster, directory, stack: contextlib.ExitStack) -> None:
        self.cluster = cluster
        self.seen: list = []
        self.sent = {"lives": 0, "restarts": 0}
        self.read: list = []
        self._directory = directory
        self._stack = stack
        self.topic = f"u-{random.SystemRandom().getrandbits(40):010x}"
        cluster.create_topic(self.topic, PARTITIONS)
        self.producers = {name: self._producer(name) for name in self.sent}
        # With them, so that no answer is waited for at the end. Whatever `until` waits for is the test.
        stack.callback(lambda: [producer.close(timeout=0) for producer in self.producers.values()])
        self.consumer = stack.enter_context(
            contextlib.closing(
                SafeConsumer(
                    self.topic,
                    bootstrap_servers=cluster.bootstrap_servers,
                    group_id=f"{self.topic}-g",
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    on_event=self.seen.append,
                )
            )
        )

    def _producer(self, name: str) -> SafeProducer:
        return SafeProducer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            spool_dir=self._directory / name,
            client_id=name,
            on_event=self.seen.append,
        )

    def send(self, count: int) -> None:
        """So many by each producer, to all partitions; durable on return."""
        for name, producer in self.producers.items():
            for number in range(self.sent[name], self.sent[name] + count):
                producer.send(self.topic, b"%s %d" % (name.encode(), number), partition=number % PARTITIONS)
            self.sent[name] += count
            producer.durable(60)

    def flush(self) -> None:
        for producer in self.producers.values():
            producer.flush(120)

    def restart(self) -> None:
        """One of the producers ends, with what it has on disk, and another life begins later."""
        self.producers.pop("restarts").close(timeout=0)

    def again(self) -> None:
        self.producers["restarts"] = self._producer("restarts")

    def consume(self) -> None:
        """What was sent until now, and commit."""
        deadline = time.monotonic() + 120
        while len(self.read) < sum(self.sent.values()):
            assert time.monotonic() < deadline, f"{len(self.read)} of {self.sent} were read"
            for records in self.consumer.poll(500).values():
                self.read += records
        self.consumer.commit()

    def check(self) -> None:
        """Each record once and in order, nothing called a loss, and end offsets that say so."""
        for partition in range(PARTITIONS):
            for name, count in self.sent.items():
                mine = [
                    int(record.value.split()[1])
                    for record in self.read
                    if record.partition == partition and record.value.startswith(name.encode())
                ]
                assert mine == list(range(partition, count, PARTITIONS)), (name, partition)
        ends = self.consumer.end_offsets([TopicPartition(self.topic, p) for p in range(PARTITIONS)])
        assert sum(ends.values()) == sum(self.sent.values()) == len(self.read)
        assert [event for event in self.seen if isinstance(event, LOSSES)] == []


def run(cluster: KafkaCluster, directory, *upgrades) -> None:
    with contextlib.ExitStack() as stack:
        scene = Scene(cluster, directory, stack)
        scene.send(15)
        scene.flush()
        scene.consume()
        scene.seen.clear()  # where a new group begins is an event as well
        for upgrade in upgrades:
            cluster.stop(1)
            scene.send(20)
            scene.restart()
            upgrade()
            scene.again()
            scene.send(10)
            scene.flush()
            scene.consume()
        scene.check()
        # The next member of the group goes on where this one committed.
        scene.consumer.close()
        with contextlib.closing(
            SafeConsumer(
                scene.topic,
                bootstrap_servers=cluster.bootstrap_servers,
                group_id=f"{scene.topic}-g",
                auto_offset_reset="earliest",
            )
        ) as member:
            scene.producers["lives"].send(scene.topic, b"last", partition=0).get(60)
            deadline = time.monotonic() + 120
            found: list = []
            while not found and time.monotonic() < deadline:
                found = [record.value for records in member.poll(500).values() for record in records]
            assert found == [b"last"]


@pytest.mark.parametrize(("old", "new"), [("1.1.1", "2.3.1"), ("2.3.1", "2.8.2"), ("3.9.1", "4.3.0")])
def test_brokers_are_upgraded_in_place(tmp_path, old, new):
    with KafkaCluster(1, version=old) as cluster:
        run(cluster, tmp_path, lambda: cluster.upgrade(new))
        assert cluster.version == new


@pytest.mark.full
def test_from_zookeeper_to_kafka_4(tmp_path):
    """2.8 → 4.3: by 3.9 on ZooKeeper, and its migration to KRaft. There is no shorter way."""
    with KafkaCluster(1, version="2.8.2") as cluster:
        with pytest.raises(ConfigError, match="does not support ZooKeeper"):
            cluster.upgrade("4.3.0")

        def migrate() -> None:
            cluster.start_all()
            cluster.leave_zookeeper()

        run(cluster, tmp_path, lambda: cluster.upgrade("3.9.1"), migrate, lambda: cluster.upgrade("4.3.0"))
        assert cluster.version == "4.3.0"


def test_what_cannot_be_upgraded_stays_as_it_is(kafka):
    before = kafka.pid(1)
    with pytest.raises(ConfigError, match=r"2\.8\.2 is not newer than 4\.3\.0"):
        kafka.upgrade("2.8.2")
    with pytest.raises(ConfigError, match=r"this is 4\.3\.0 in KRaft mode"):
        kafka.leave_zookeeper()
    assert kafka.pid(1) == before

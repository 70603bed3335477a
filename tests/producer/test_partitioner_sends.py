"""A partitioner that uses its own producer: each record is asked for once, and none is lost or repeated without end."""

from __future__ import annotations

from collections import Counter

import pytest
from kafka.partitioner import Partitioner

from kafkasafe.errors import UsageError


class Sending(Partitioner):
    """For each record of topic `t` that does not begin with `inner`, sends one to `to`, and chooses partition 1."""

    def __init__(self, to: str) -> None:
        self.to = to
        self.producer = None
        self.asked: Counter = Counter()
        self.sent: list = []
        self.refused: list = []

    def partition(self, topic, key, serialized_key, value, serialized_value, cluster) -> int:
        self.asked[serialized_value] += 1
        if topic == "t" and not serialized_value.startswith(b"inner"):
            try:
                self.sent.append(self.producer.send(self.to, b"inner-" + serialized_value))
            except UsageError as error:
                self.refused.append(error)
        return 1


@pytest.fixture
def sending(fake_kafka, producers):
    """Returns a function that makes a producer whose partitioner sends to a topic, and the partitioner."""
    fake_kafka.create_topic("t", 2)
    fake_kafka.create_topic("audit", 2)

    def make(to: str, **options):
        partitioner = Sending(to)
        partitioner.producer = producers(fake_kafka.bootstrap_servers, partitioner=partitioner, **options)
        return partitioner.producer, partitioner

    return make


@pytest.mark.parametrize("to", ["t", "audit"])
def test_a_partitioner_is_asked_once_for_each_record(fake_kafka, sending, to):
    """Asked again at sealing, it sent its own record a second time, and to its own topic hundreds of times."""
    producer, partitioner = sending(to)
    for topic in {"t", to}:
        producer.send(topic, b"inner-first", partition=0).get(60)  # now the topic is known
    for number in range(3):
        producer.send("t", b"%d" % number)
    producer.flush(60)
    assert {value: partitioner.asked[value] for value in (b"0", b"1", b"2")} == {b"0": 1, b"1": 1, b"2": 1}
    assert len(partitioner.sent) == 3
    assert sorted(value for value in fake_kafka.values("t", 1) if not value.startswith(b"inner")) == [
        b"0",
        b"1",
        b"2",
    ]
    assert sorted(value for value in fake_kafka.values(to, 1) if value.startswith(b"inner")) == [
        b"inner-0",
        b"inner-1",
        b"inner-2",
    ]
    assert not partitioner.refused


def test_a_partitioner_that_sends_to_its_own_topic_while_the_batch_is_sealed(fake_kafka, sending):
    """The topic became known between `send` and sealing. The nested call sealed the same open batch again, and so on
    until the stack was exhausted, with one more record at each level.
    """
    producer, partitioner = sending("t", linger_ms=60_000)
    for node in (1, 2, 3):
        fake_kafka.pause(node)
    first = producer.send("t", b"inner-first")
    first.durable(60)  # sealed, and waits for the topic's partitions
    waiting = [producer.send("t", b"%d" % number) for number in range(3)]
    for node in (1, 2, 3):
        fake_kafka.resume(node)
    first.get(60)
    producer.flush(60)
    assert [future.get(60).partition for future in waiting] == [1, 1, 1]
    assert sorted(value for value in fake_kafka.values("t") if not value.startswith(b"inner")) == [
        b"0",
        b"1",
        b"2",
    ]
    assert 0 < len(partitioner.sent) + len(partitioner.refused) <= 6
    assert partitioner.refused
    assert "partitioner" in str(partitioner.refused[0])
    assert len([value for value in fake_kafka.values("t") if value.startswith(b"inner")]) == 1 + len(
        partitioner.sent
    )

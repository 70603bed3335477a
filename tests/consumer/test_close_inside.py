"""`close()` in a function of the application that `poll` calls: the consumer is closed, and the call ends as a
KafkaConsumer's does.
"""

from __future__ import annotations

import time

import consuming
import pytest
from kafka import KafkaConsumer
from kafka.errors import IllegalStateError
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from kafkasafe import SafeConsumer

VALUES = [b"%d" % number for number in range(5)]


@pytest.fixture
def topic(fake_kafka):
    topic = consuming.new_topic(fake_kafka)
    consuming.produce(fake_kafka, topic, VALUES)
    return topic


class Closing(Deserializer):
    """A deserializer that closes the consumer at the third record."""

    def __init__(self) -> None:
        self.consumer = None
        self.calls = 0

    def deserialize(self, topic, headers, data):
        self.calls += 1
        if self.calls == 3:
            self.consumer.close()
        return data


def opened(kind, fake_kafka, topic, **options):
    consumer = kind(
        bootstrap_servers=fake_kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **options,
    )
    consumer.assign([TopicPartition(topic, 0)])
    return consumer


@pytest.mark.parametrize("kind", [KafkaConsumer, SafeConsumer])
def test_close_in_a_deserializer(fake_kafka, topic, kind):
    """It ended in a RuntimeError, "NetworkSelector closed!", and the records of that poll were not returned."""
    closing = Closing()
    closing.consumer = consumer = opened(kind, fake_kafka, topic, value_deserializer=closing)
    read = []
    end = time.monotonic() + 30
    while not read and time.monotonic() < end:
        read = [record.value for records in consumer.poll(1000).values() for record in records]
    assert read == VALUES
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)
    consumer.close()


def test_close_in_a_deserializer_keeps_the_position(fake_kafka, topic, tmp_path):
    """The next run with the same `lineage_path` reads on, and notices no loss."""
    closing, events = Closing(), []
    options = {"lineage_path": tmp_path / "lineage", "on_event": events.append}
    closing.consumer = consumer = opened(
        SafeConsumer, fake_kafka, topic, value_deserializer=closing, **options
    )
    while not consumer.poll(1000):
        pass
    with opened(SafeConsumer, fake_kafka, topic, **options) as again:
        again.seek(TopicPartition(topic, 0), 5)
        consuming.produce(fake_kafka, topic, [b"more"])
        assert [record.value for record in consuming.collect(again, 1)] == [b"more"]
    assert {type(event).__name__ for event in events} <= {"PositionReset"}


@pytest.mark.parametrize("kind", [KafkaConsumer, SafeConsumer])
def test_close_in_a_deserializer_ends_the_iteration(fake_kafka, topic, kind):
    """The call returns its record, because the position is past it. The others are read by the next consumer."""
    closing = Closing()
    closing.consumer = consumer = opened(kind, fake_kafka, topic, value_deserializer=closing)
    assert [record.value for record in consumer] == VALUES[:1]
    assert list(consumer) == []


def test_close_in_a_deserializer_ends_the_iteration_of_a_member(fake_kafka, topic):
    """A closed member has no partitions, and so no next record. The call raised IllegalStateError, as KafkaConsumer's."""
    closing = Closing()
    closing.consumer = consumer = SafeConsumer(
        topic,
        bootstrap_servers=fake_kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        group_id=consuming.new_name(),
        value_deserializer=closing,
    )
    assert list(consumer) == []


@pytest.mark.parametrize("call", ["poll", "poll_arrow", "poll_batches", "position", "__next__"])
def test_close_in_an_event_hook(fake_kafka, topic, call):
    """It ended in a RuntimeError, "NetworkSelector closed!"."""
    events = []

    def hook(event):
        events.append(event)
        consumer.close()

    consumer = opened(SafeConsumer, fake_kafka, topic, on_event=hook)
    begun = time.monotonic()
    match call:
        case "position":
            assert consumer.position(TopicPartition(topic, 0)) == 0  # found before the hook was called
        case "__next__":
            assert list(consumer) == []
        case _:
            assert len(getattr(consumer, call)(20_000)) == 0
    assert [type(event).__name__ for event in events] == ["PositionReset"]
    assert time.monotonic() - begun < 15
    with pytest.raises(IllegalStateError, match="closed"):
        consumer.poll(0)


@pytest.mark.parametrize("kind", [KafkaConsumer, SafeConsumer])
def test_a_position_that_was_sought_after_close_is_returned_at_once(fake_kafka, topic, kind):
    """SafeConsumer compares it with the log before it reads on. It waited for that, for `request_timeout_ms`."""
    tp = TopicPartition(topic, 0)
    consumer = opened(kind, fake_kafka, topic)
    while not consumer.poll(1000):
        pass
    consumer.close()
    consumer.seek(tp, 2)
    began = time.monotonic()
    assert consumer.position(tp) == 2
    assert time.monotonic() - began < 10

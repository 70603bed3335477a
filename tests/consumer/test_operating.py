"""What an operator sees of a SafeConsumer: logs in an outage, its close, its messages."""

from __future__ import annotations

import logging
import time

import consuming
import pytest
from consuming import Consumers, collect, kafka_errors, new_topic, until
from kafka import TopicPartition

from kafkasafe._consuming.results import diverged_error
from kafkasafe.events import LogDiverged


def diverged(replaced):
    return LogDiverged("t", 0, 17, 10, (10, 16), replaced, (3,), True, "truncated", 2)


@pytest.mark.parametrize(
    ("replaced", "resume", "says"),
    [
        ((10, 12), 13, "seek to 10 to read the records that are there now, or to 13 to skip them"),
        ((10, 16), 17, "or to 17 to skip them"),
        (None, 10, "then seek to 10 to go on."),
    ],
)
def test_the_place_to_go_on_is_one_that_the_log_has(replaced, resume, says):
    """In a log that was cut to 13 a seek to 17 is out of range, and auto_offset_reset reads all of it again."""
    event = diverged(replaced)
    assert event.resume_offset == resume
    assert says in str(diverged_error(event))


@pytest.mark.kafka
def test_an_outage_does_not_flood_the_log(proxied, caplog):
    cluster, _ = proxied
    topic = new_topic(cluster, 3)
    consuming.produce(cluster, topic, [b"x"] * 3)
    with Consumers(cluster) as consumers:
        consumer = consumers(topic, group_id=topic, auto_offset_reset="earliest", session_timeout_ms=6000)
        collect(consumer, 3)
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            cluster.kill(1)
            end = time.monotonic() + 9
            while time.monotonic() < end:
                consumer.poll(200)
            lines = [record for record in caplog.records if record.name.startswith(("kafka", "kafkasafe"))]
        cluster.start(1)
        until(lambda: consumer.end_offsets([TopicPartition(topic, 0)]))
        # A consumer whose lines are not limited writes eight in a second.
        assert len(lines) <= 25, [(record.name, record.getMessage()) for record in lines]


@pytest.mark.kafka
def test_close_while_positions_are_checked_logs_nothing(proxied, caplog):
    cluster, proxy = proxied
    topic = new_topic(cluster, 3)
    consumers = Consumers(cluster)
    consumer = consumers.assigned(topic, 0, 1, 2, auto_offset_reset="earliest")
    rule = proxy.on("ListOffsets", topic=topic).delay(30)
    until(lambda: consumer.poll(50) == {} and rule.hits)
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        consumer.close(autocommit=False)
    rule.remove()
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.kafka
def test_no_offset_without_an_error_is_an_error_of_kafka(proxied):
    cluster, proxy = proxied
    topic = new_topic(cluster)
    with Consumers(cluster) as consumers:
        consumer = consumers.assigned(topic)
        rule = proxy.on("ListOffsets", topic=topic).set(offset=-1)
        with pytest.raises(kafka_errors.KafkaError, match="answered offset -1 without an error"):
            consumer.end_offsets([TopicPartition(topic, 0)], timeout_ms=5000)
        rule.remove()


@pytest.mark.kafka
def test_repr_says_what_it_reads(proxied):
    cluster, _ = proxied
    with Consumers(cluster) as consumers:
        one = consumers("a", "b", group_id="g", client_id="billing")
        assert repr(one) == "<SafeConsumer billing open group=g topics=a, b>"
        one.close()
        assert repr(one) == "<SafeConsumer billing closed group=g topics=a, b>"
        two = consumers.assigned("c", 0, 1)
        assert "topics=c>" in repr(two)
        three = consumers()
        three.subscribe(pattern="^x-.*")
        assert "topics=^x-.*" in repr(three)

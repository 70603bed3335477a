"""A topic that was deleted under a consumer, and that nobody but consumers creates again.

Brokers with `auto.create.topics.enable`, the default, create a topic when a client's metadata request names it.
"""

from __future__ import annotations

import contextlib
import time

import consuming
import pytest
from consuming import Consumers, collect, new_topic, told, until
from kafka import KafkaConsumer, TopicPartition

from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import LogDivergedError
from kafkasafe.events import LogDiverged
from kafkasafe.testing import FakeCluster

OLD = [b"old%d" % number for number in range(10)]
# Several times the age at which the metadata are requested again.
LONG_ENOUGH_S = 1.5


@contextlib.contextmanager
def opened(kind, cluster, **options):
    consumer = kind(
        bootstrap_servers=cluster.bootstrap_servers,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        metadata_max_age_ms=200,
        **options,
    )
    try:
        yield consumer
    finally:
        consumer.close(autocommit=False)


def poll_for_a_while(consumer):
    until_then = time.monotonic() + LONG_ENOUGH_S
    while time.monotonic() < until_then:
        assert not consumer.poll(100)


def exists(cluster, topic):
    with cluster.admin() as admin:
        return topic in admin.list_topics()


@pytest.mark.also_real
@pytest.mark.parametrize("kind", [KafkaConsumer, SafeConsumer])
def test_a_pattern_does_not_create_the_topic_again(some_kafka, kind):
    """A request for all topics names none. The requests of the checks and look-ups must not create it either."""
    topic = new_topic(some_kafka)
    tp = TopicPartition(topic, 0)
    consuming.produce(some_kafka, topic, OLD)
    with opened(kind, some_kafka, group_id=topic) as consumer:
        consumer.subscribe(pattern=f"^{topic}$")
        collect(consumer, len(OLD))
        consumer.commit()
        assert consumer.end_offsets([tp]) == {tp: len(OLD)}
        some_kafka.delete_topic(topic)
        if kind is SafeConsumer:  # KafkaConsumer sometimes keeps the partition
            until(lambda: not consumer.poll(100) and not consumer.assignment(), 60)
        poll_for_a_while(consumer)
        assert not exists(some_kafka, topic)


@pytest.mark.also_real
@pytest.mark.parametrize(
    "grouped", [True, pytest.param(False, marks=pytest.mark.full)], ids=["group", "no_group"]
)
def test_a_topic_that_may_not_be_created_is_only_missing(some_kafka, grouped):
    topic = new_topic(some_kafka)
    consuming.produce(some_kafka, topic, OLD)
    group_id = topic if grouped else None
    with opened(SafeConsumer, some_kafka, group_id=group_id, allow_auto_create_topics=False) as consumer:
        consumer.subscribe([topic])
        collect(consumer, len(OLD))
        some_kafka.delete_topic(topic)
        until(lambda: not consumer.poll(100) and not consumer.assignment(), 60)
        poll_for_a_while(consumer)
        assert not exists(some_kafka, topic)


@pytest.mark.also_real
@pytest.mark.parametrize(
    "grouped", [True, pytest.param(False, marks=pytest.mark.full)], ids=["group", "no_group"]
)
def test_a_subscription_by_name_creates_the_topic_again_and_tells(some_kafka, grouped):
    """KafkaConsumer creates it as well. The new topic is another log, so a seek decides where to continue."""
    topic = new_topic(some_kafka)
    consuming.produce(some_kafka, topic, OLD)
    events = []
    group_id = topic if grouped else None
    with opened(SafeConsumer, some_kafka, group_id=group_id, on_event=events.append) as consumer:
        consumer.subscribe([topic])
        collect(consumer, len(OLD))
        with some_kafka.admin() as admin:  # `delete_topic` of the cluster would wait until the topic is gone
            admin.delete_topics([topic])
        event = told(consumer)
        assert (event.reason, event.rolled_back, event.replaced) == ("recreated", (0, 9), None)
        # It is the reminder that is repeated, not the event.
        assert told(consumer) is event
        assert exists(some_kafka, topic)
        consumer.seek(TopicPartition(topic, 0), event.divergent_offset)
        poll_for_a_while(consumer)
        consuming.produce(some_kafka, topic, [b"new"])
        assert [record.value for record in collect(consumer, 1)] == [b"new"]
        assert [each for each in events if isinstance(each, LogDiverged)] == [event]


def test_a_seek_decides_although_the_topic_was_deleted_again():
    """An error that no call could end would be of no use."""
    with (
        FakeCluster(config={"auto.create.topics.enable": False}) as cluster,
        Consumers(cluster) as consumers,
    ):
        topic = new_topic(cluster)
        tp = TopicPartition(topic, 0)
        consuming.produce(cluster, topic, OLD)
        consumer = consumers.assigned(topic, auto_offset_reset="earliest", metadata_max_age_ms=200)
        collect(consumer, len(OLD))
        cluster.delete_topic(topic)
        cluster.create_topic(topic, 1)
        event = told(consumer)
        cluster.delete_topic(topic)
        assert told(consumer) is event
        consumer.seek(tp, event.divergent_offset)
        poll_for_a_while(consumer)
        cluster.create_topic(topic, 1)
        consuming.produce(cluster, topic, [b"new"])
        assert [record.value for record in collect(consumer, 1)] == [b"new"]


@pytest.mark.parametrize(
    "grouped", [True, pytest.param(False, marks=pytest.mark.full)], ids=["group", "no_group"]
)
def test_the_error_ends_with_the_assignment(grouped):
    """The recreated topic is deleted before the program decides. The subscription then has no partition of it."""
    with FakeCluster(config={"auto.create.topics.enable": False}) as cluster:
        topic = new_topic(cluster)
        consuming.produce(cluster, topic, OLD)
        with opened(SafeConsumer, cluster, group_id=topic if grouped else None) as consumer:
            consumer.subscribe([topic])
            collect(consumer, len(OLD))
            cluster.delete_topic(topic)
            cluster.create_topic(topic, 1)
            told(consumer)
            cluster.delete_topic(topic)

            def revoked():
                with contextlib.suppress(LogDivergedError):
                    consumer.poll(100)
                return not consumer.assignment()

            until(revoked, 60)
            poll_for_a_while(consumer)

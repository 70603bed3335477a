"""`health()` of a consumer: an outage is no reason; a program that does not poll is, and a partition that waits for it."""

from __future__ import annotations

import threading

import consuming
from consuming import until
from kafka import TopicPartition

from kafkasafe import SafeConsumer


def names(health):
    assert health.ready == (not health.reasons)
    return [each.name for each in health.reasons]


def test_an_outage_and_a_program_that_does_not_poll(fake_kafka):
    fake_kafka.create_topic("orders", 1)
    consumer = SafeConsumer(
        "orders",
        bootstrap_servers=fake_kafka.bootstrap_servers,
        group_id="readers",
        max_poll_interval_ms=700,
        session_timeout_ms=6000,
        heartbeat_interval_ms=200,
    )
    try:
        assert (names(consumer.health()), consumer.health().last_poll_age_s) == ([], None)
        until(lambda: consumer.poll(100) == {} and consumer.assignment())
        health = consumer.health()
        assert (names(health), health.connected) == ([], True)
        assert health.last_poll_age_s < 60
        found = []
        prober = threading.Thread(target=lambda: found.append(consumer.health()))
        prober.start()
        prober.join(60)
        assert found[0].connected

        fake_kafka.refuse()
        fake_kafka.cut()
        until(lambda: consumer.poll(50) == {} and not consumer.health().connected)
        assert names(consumer.health()) == []
        fake_kafka.restore()
        until(lambda: consumer.poll(50) == {} and consumer.health().connected)

        until(lambda: names(consumer.health()) == ["poll_overdue"])
        assert "max_poll_interval_ms" in consumer.health().reasons[0].text
        consumer.poll(0)
        assert names(consumer.health()) == []
    finally:
        consumer.close()
    assert (names(consumer.health()), consumer.health().connected) == (["closed"], False)


def test_during_a_poll_its_age_is_0(fake_kafka):
    fake_kafka.create_topic("orders", 1)
    with SafeConsumer(bootstrap_servers=fake_kafka.bootstrap_servers, group_id=None) as consumer:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.poll(0)
        ages = []
        done = threading.Event()

        def probe() -> None:
            while not done.wait(0.01):
                ages.append(consumer.health().last_poll_age_s)

        prober = threading.Thread(target=probe)
        prober.start()
        consumer.poll(500)
        done.set()
        prober.join(60)
        assert ages.count(0.0) > 5
        # Without a group nobody expects it to poll.
        assert names(consumer.health()) == []


def stops(consumer) -> bool:
    """Whether a poll raises what only a seek ends."""
    try:
        consumer.poll(100)
    except consuming.kafka_errors.OffsetOutOfRangeError:
        return True
    return False


def test_a_partition_that_waits_for_the_program(fake_kafka):
    fake_kafka.create_topic("orders", 2)
    stuck = TopicPartition("orders", 1)
    consuming.produce(fake_kafka, "orders", [b"x"] * 10, 1)
    with SafeConsumer(
        bootstrap_servers=fake_kafka.bootstrap_servers, group_id=None, auto_offset_reset="none"
    ) as consumer:
        consumer.assign([TopicPartition("orders", 0), stuck])
        consumer.seek(TopicPartition("orders", 0), 0)
        consumer.seek(stuck, 50)
        until(lambda: stops(consumer))
        health = consumer.health()
        assert (names(health), health.stopped_partitions) == (["partitions_stopped"], (("orders", 1),))
        assert "orders-1" in health.reasons[0].text
        consumer.seek(stuck, 5)
        until(lambda: consumer.poll(100).get(stuck))
        assert names(consumer.health()) == []

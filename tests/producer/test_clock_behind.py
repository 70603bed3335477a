"""A producer whose clock is behind the brokers', by which these forget it; see also tests/engine/test_clocks.py."""

from __future__ import annotations

import time
from contextlib import closing

import pytest
from kafka import KafkaProducer

from kafkasafe import logs
from kafkasafe.delivery import clocks
from kafkasafe.journal.outbox import Outbox


@pytest.fixture
def most_under_way(fake_kafka, monkeypatch):
    """Gives how many batches a producer has under way at once, of six to the topic `plain`."""
    fake_kafka.create_topic("plain", partitions=1)
    under_way: list[int] = []

    def send(outbox, partition, batch, sends=Outbox.send):
        sends(outbox, partition, batch)
        if partition.topic == "plain":
            under_way.append(partition.queue.in_flight)

    monkeypatch.setattr(Outbox, "send", send)

    def count(producer) -> int:
        producer.send("plain", b"first").get(60)
        under_way.clear()
        fake_kafka.delay(0.2)
        for number in range(6):
            producer.send("plain", b"%d" % number).durable(60)
        producer.flush(60)
        fake_kafka.delay(0)
        return max(under_way)

    return count


def warnings(caplog):
    logs.drain(60)
    return [
        record.getMessage() for record in caplog.records if getattr(record, "event", "") == "clock_behind"
    ]


def test_where_a_broker_tells_the_time_batches_go_one_by_one(fake_kafka, producers, most_under_way, caplog):
    """Five were under way at brokers that had forgotten the producer, and would take them in any order."""
    fake_kafka.create_topic("stamped", partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    fake_kafka.advance(25 * 3600)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=0)
    assert (
        most_under_way(producer) > 1
    )  # of this clock nothing is known: brokers that stamp nothing tell no time
    producer.send("stamped", b"x").get(60)
    assert most_under_way(producer) == 1
    (said,) = warnings(caplog)
    assert "25.0 h behind the brokers'" in said
    assert [value for value in fake_kafka.values("plain") if value != b"first"] == [
        b"%d" % n for n in range(6)
    ] * 2


def test_where_others_write_their_records_tell_the_time(
    fake_kafka, producers, most_under_way, caplog, monkeypatch
):
    """With CreateTime nobody noticed."""
    monkeypatch.setattr(clocks, "_PAUSE_S", 0.0)
    fake_kafka.advance(25 * 3600)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=0)
    assert most_under_way(producer) > 1  # asked, and nothing learned: nobody else wrote there
    assert not warnings(caplog)
    monkeypatch.setattr(clocks, "_HOUR_S", 0.0)
    with closing(KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers)) as other:
        other.send("plain", b"first", timestamp_ms=fake_kafka.now_ms()).get(60)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=0)
    deadline = time.monotonic() + 60
    while not warnings(caplog) and time.monotonic() < deadline:
        producer.send("plain", b"first").get(60)
    assert most_under_way(producer) == 1
    assert "Records of plain-0 have timestamps 25.0 h ahead of this machine's clock" in warnings(caplog)[0]

"""A producer whose clock is behind the brokers', by which these forget it."""

from __future__ import annotations

from kafkasafe import logs
from kafkasafe._core.journal import Journal


def test_where_a_broker_tells_the_time_batches_go_one_by_one(fake_kafka, producers, monkeypatch, caplog):
    """Five were under way at brokers that had forgotten the producer, and would take them in any order."""
    fake_kafka.create_topic("stamped", partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    fake_kafka.create_topic("plain", partitions=1)
    fake_kafka.advance(25 * 3600)
    under_way: list[int] = []

    def send(journal, partition, batch, sends=Journal._send):
        sends(journal, partition, batch)
        if partition.topic == "plain":
            under_way.append(partition.in_flight)

    monkeypatch.setattr(Journal, "_send", send)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=0)

    def most_under_way() -> int:
        producer.send("plain", b"first").get(60)
        under_way.clear()
        fake_kafka.delay(0.2)
        for number in range(6):
            producer.send("plain", b"%d" % number).durable(60)
        producer.flush(60)
        fake_kafka.delay(0)
        return max(under_way)

    assert most_under_way() > 1  # of this clock nothing is known: brokers that stamp nothing tell no time
    producer.send("stamped", b"x").get(60)
    assert most_under_way() == 1
    logs.drain(60)
    (said,) = [record for record in caplog.records if getattr(record, "event", "") == "clock_behind"]
    assert "25.0 h behind the brokers'" in said.getMessage()
    assert [value for value in fake_kafka.values("plain") if value != b"first"] == [
        b"%d" % n for n in range(6)
    ] * 2

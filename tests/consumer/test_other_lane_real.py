"""A producer is closed with a batch under way, and the program goes on with another lane: on a real Kafka."""

from __future__ import annotations

import contextlib
import time
import uuid

import pytest
from kafka import KafkaConsumer, TopicPartition

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.errors import BatchDroppedError
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

RECORDS = 30
ABORTS = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.min.session.timeout.ms": "1000",
}


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster(config=ABORTS) as made:
        yield made


def polled(consumer):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [each.value for some in consumer.poll(200).values() for each in some]
        if found:
            return found
    return []


def copy(producer, consumer, values, out):
    with producer.batch() as batch:
        for value in values:
            batch.send(out, value)
        batch.send_offsets(consumer)
    return batch.outcome


def copy_to(end, producer, consumer, place, out):
    deadline = time.monotonic() + 120
    while (consumer.committed(place) or 0) < end and time.monotonic() < deadline:
        with contextlib.suppress(BatchDroppedError):
            copy(producer, consumer, polled(consumer), out).get(60)
    assert consumer.committed(place) >= end


@pytest.mark.parametrize(
    ("held", "static"),
    [("Produce", False), ("EndTxn", False), ("Produce", True), ("EndTxn", True)],
    ids=["prepared", "staged", "prepared-static", "staged-static"],
)
def test_a_member_that_goes_on_with_another_lane_copies_each_record_once(cluster, tmp_path, held, static):
    """The batch that is left is being prepared; or it is staged, so that the group has its offset, but not for good."""
    name = uuid.uuid4().hex[:8]
    source, out = f"in-{name}", f"out-{name}"
    place = TopicPartition(source, 0)
    for topic in (source, out):
        cluster.create_topic(topic, 1)
    servers = cluster.bootstrap_servers
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path / "in") as made:
        for number in range(RECORDS):
            made.send(source, b"%d" % number)
        made.flush(60)
    first = {
        "bootstrap_servers": servers,
        "spool_dir": tmp_path / "one",
        "retry_backoff_ms": 20,
        "transaction_timeout_ms": 3000,
    }
    consumer = SafeConsumer(
        source,
        bootstrap_servers=servers,
        group_id=f"g-{name}",
        group_instance_id="one" if static else None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=5,
        session_timeout_ms=10_000,
    )
    with (
        consumer,
        FaultProxy(bootstrap=servers[0]) as proxy,
        SafeProducer(**{**first, "spool_dir": tmp_path / "two"}) as two,
    ):
        copy(two, consumer, polled(consumer), out).get(60)
        one = SafeProducer(**{**first, "bootstrap_servers": proxy.bootstrap_servers})
        waits = proxy.on(held, topic=out) if held == "Produce" else proxy.on(held)
        if held == "Produce":
            waits.delay(60)
        else:
            waits.answer_without_forwarding(15)
        copy(one, consumer, polled(consumer), out).durable(60)
        waits.wait()
        one.close(timeout=0)
        copy_to(15, two, consumer, place, out)
        with SafeProducer(**first) as again:
            again.flush(60)
        copy_to(RECORDS, two, consumer, place, out)
    reader = KafkaConsumer(
        bootstrap_servers=servers, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    reader.assign([TopicPartition(out, 0)])
    found = []
    while more := polled_once(reader, found):
        found += more
    reader.close()
    assert [int(value) for value in found] == list(range(RECORDS))


def polled_once(reader, found):
    """What comes next; once all is there, whatever comes within a second."""
    if len(found) < RECORDS:
        return polled(reader)
    return [each.value for some in reader.poll(1000).values() for each in some]

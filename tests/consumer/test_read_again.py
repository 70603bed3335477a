"""Consume, process, produce: what a dropped batch had is read again, and comes once, in order."""

from __future__ import annotations

import contextlib
import time

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import ConsumerGroupMetadata
from topics import read_values
from waiting import until

from kafkasafe import SafeConsumer, SafeProducer, UsageError
from kafkasafe.errors import BatchDroppedError
from kafkasafe.events import PositionRewound
from kafkasafe.testing.proxy import FaultProxy

PLACE = TopicPartition("in", 0)
RECORDS = 60
GONE = ConsumerGroupMetadata("g", 3, "gone", None)
"""A member that the group does not have: it refuses its offsets."""


@pytest.fixture
def servers(fake_kafka, tmp_path):
    fake_kafka.create_topic("in", partitions=1)
    fake_kafka.create_topic("out", partitions=1)
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "in") as made:
        for number in range(RECORDS):
            made.send("in", b"%d" % number)
        made.flush(60)
    return fake_kafka.bootstrap_servers


def output(fake_kafka):
    fake_kafka.wait_for_markers()
    servers = fake_kafka.bootstrap_servers
    return [int(value) for value in read_values(servers, "out", isolation_level="read_committed")[0]]


def committed(fake_kafka):
    group = fake_kafka._handler.groups._groups.get("g")
    found = None if group is None else group.offsets.get(PLACE)
    return None if found is None else found.offset


def raise_first(outcomes):
    """Of a KafkaConsumer only they tell what was dropped, once there is no record left to be read."""
    errors = list(filter(None, (each.exception for each in outcomes)))
    if errors:
        outcomes.clear()
        raise errors[0]


def expel(fake_kafka):
    """The group is in its next generation before its member hears of it."""
    group = fake_kafka._handler.groups._groups["g"]
    group.generation += 1


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("kind", [SafeConsumer, KafkaConsumer])
def test_what_a_dropped_batch_had_is_read_again_and_comes_once(fake_kafka, servers, tmp_path, kind, waits):
    """Pipelined: the next batch is made while the one before is under way, and nothing waits for its outcome."""
    options = {} if kind is SafeConsumer else {"isolation_level": "read_committed"}
    consumer = kind(
        bootstrap_servers=servers,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=5,
        heartbeat_interval_ms=100,
        **options,
    )
    # A KafkaConsumer that joins before it knows the topic joins again at once, and now and then is stuck in that.
    assert consumer.partitions_for_topic("in") == {0}
    consumer.subscribe(["in"])
    drops = batches = 0
    outcomes = []
    with SafeProducer(
        bootstrap_servers=servers, spool_dir=tmp_path / "spool", retry_backoff_ms=20
    ) as producer:
        end = time.monotonic() + 90
        while time.monotonic() < end:
            try:
                if kind is KafkaConsumer:
                    raise_first(outcomes)
                # kafka-python may stay in <rebalancing> for good where a short poll ends while it joins.
                records = [each for some in consumer.poll(2000).values() for each in some]
                if records:
                    with producer.batch() as batch:
                        for record in records:
                            batch.send("out", record.value)
                        batch.send_offsets(consumer)
                        batches += 1
                        if batches in {3, 4, 7}:
                            expel(fake_kafka)
                    outcomes.append(batch.outcome)
                    if waits:
                        batch.outcome.get(60)
            except BatchDroppedError:
                drops += 1
                if kind is KafkaConsumer:
                    for at in consumer.assignment():
                        consumer.seek(at, consumer.committed(at) or 0)
            if committed(fake_kafka) == RECORDS:
                break
        consumer.close()
        producer.flush(60)
    assert output(fake_kafka) == list(range(RECORDS))
    assert drops or kind is SafeConsumer


def polled(consumer):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = [int(each.value) for some in consumer.poll(100).values() for each in some]
        if found:
            return found
    return []


def member(servers, **options):
    return SafeConsumer(
        bootstrap_servers=servers,
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=5,
        **options,
    )


@pytest.fixture
def pair(servers, tmp_path):
    """A consumer by `assign`, so that nothing but a dropped batch can move it; its events; and a producer."""
    events = []
    with (
        member(servers, on_event=events.append) as consumer,
        SafeProducer(
            bootstrap_servers=servers, spool_dir=tmp_path / "spool", retry_backoff_ms=20
        ) as producer,
    ):
        consumer.assign([PLACE])
        assert polled(consumer) == [0, 1, 2, 3, 4]
        with producer.batch() as batch:
            batch.send_offsets(consumer)
        batch.outcome.get(60)
        yield consumer, events, producer


def drop(consumer, producer, monkeypatch):
    """A batch that the group refuses, as of a member that it does not have any more."""
    with monkeypatch.context() as patch, producer.batch() as batch:
        patch.setattr(consumer, "group_metadata", lambda: GONE)
        batch.send("out", b"dropped")
        batch.send_offsets(consumer)
    return batch.outcome


def test_a_consumer_is_moved_back_with_an_event_and_nothing_is_raised(fake_kafka, pair, monkeypatch):
    consumer, events, producer = pair
    assert polled(consumer) == [5, 6, 7, 8, 9]
    with pytest.raises(BatchDroppedError):
        drop(consumer, producer, monkeypatch).get(60)
    until(lambda: committed(fake_kafka) == 5)
    assert polled(consumer) == [5, 6, 7, 8, 9]
    rewound = [event for event in events if isinstance(event, PositionRewound)]
    assert rewound == [PositionRewound("in", 0, "dropped", 10)]
    assert consumer.counters["PositionRewound"] == 1
    with producer.batch() as batch:
        batch.send_offsets(consumer)
    batch.outcome.get(60)
    until(lambda: committed(fake_kafka) == 10)


def test_a_batch_of_what_is_read_again_is_not_sent(fake_kafka, pair, monkeypatch):
    """The program has collected records over two polls, and a batch of before is dropped in between."""
    consumer, _, producer = pair
    assert polled(consumer) == [5, 6, 7, 8, 9]
    outcome = drop(consumer, producer, monkeypatch)
    collected = polled(consumer)
    with pytest.raises(BatchDroppedError):
        outcome.get(60)
    collected += polled(consumer)
    batch = producer.batch()
    for each in collected:
        batch.send("out", b"%d" % each)
    with pytest.raises(BatchDroppedError, match="read again"):
        batch.send_offsets(consumer)
    with pytest.raises(UsageError, match="dropped"):
        batch.commit()
    assert polled(consumer) == [5, 6, 7, 8, 9]
    with producer.batch() as batch:
        batch.send("out", b"again")
        batch.send_offsets(consumer)
    batch.outcome.get(60)
    until(lambda: committed(fake_kafka) == 10)


def test_a_batch_that_is_open_while_its_consumer_is_moved_back_is_not_sent(pair, monkeypatch):
    consumer, _, producer = pair
    assert polled(consumer) == [5, 6, 7, 8, 9]
    outcome = drop(consumer, producer, monkeypatch)
    batch = producer.batch()
    if polled(consumer) == [10, 11, 12, 13, 14]:
        batch.send("out", b"10")
        with contextlib.suppress(BatchDroppedError):  # it may be known by now
            batch.send_offsets(consumer)
    with pytest.raises(BatchDroppedError):
        outcome.get(60)
    assert polled(consumer) == [5, 6, 7, 8, 9]
    with pytest.raises(UsageError if batch.decision.is_dropped else BatchDroppedError):
        batch.commit()


def test_what_else_was_in_a_batch_that_came_too_late_is_read_again_as_well(
    fake_kafka, servers, pair, tmp_path, monkeypatch
):
    """The program discards the whole batch, also records of partitions that were not moved back: they were lost."""
    consumer, _, producer = pair
    fake_kafka.create_topic("more", partitions=1)
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path / "more") as made:
        for number in range(100, 105):
            made.send("more", b"%d" % number)
        made.flush(60)
    more = TopicPartition("more", 0)
    assert polled(consumer) == [5, 6, 7, 8, 9]
    refused = producer.batch()
    with monkeypatch.context() as patch:
        patch.setattr(consumer, "group_metadata", lambda: GONE)
        refused.send("out", b"dropped")
        refused.send_offsets(consumer)
    consumer.assign([PLACE, more])
    consumer.pause(PLACE)
    assert polled(consumer) == [100, 101, 102, 103, 104]
    late = producer.batch()
    late.send("out", b"100 to 104")
    consumer.resume(PLACE)
    assert polled(consumer) == [10, 11, 12, 13, 14]
    late.send("out", b"10 to 14")
    late.send_offsets(consumer)
    with pytest.raises(BatchDroppedError):
        refused.commit().get(60)
    assert polled(consumer) == [5, 6, 7, 8, 9]
    with pytest.raises(BatchDroppedError, match="read again"):
        late.commit()
    with producer.batch() as batch:
        batch.send("out", b"5 to 9")
        batch.send_offsets(consumer)
    batch.outcome.get(60)
    assert fake_kafka._handler.groups._groups["g"].offsets.get(more) is None
    found = []
    until(lambda: found.extend(polled(consumer)) or 104 in found, 30)
    assert [each for each in found if each >= 100] == [100, 101, 102, 103, 104]


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_what_a_closed_producer_left_and_another_delivered_is_not_copied_again(
    fake_kafka, servers, tmp_path, how
):
    """A third producer does not know of it, so the records were there twice."""
    options = {"bootstrap_servers": servers, "spool_dir": tmp_path / "spool", "retry_backoff_ms": 20}
    consumer = member(servers)
    if how == "subscribe":
        consumer.subscribe(["in"])
    else:
        consumer.assign([PLACE])
    with consumer:
        leave_a_batch(fake_kafka, consumer, options)
        again = polled(consumer)
        assert again == [5, 6, 7, 8, 9], "nothing says whether it will ever be delivered"
        SafeProducer(**options).close()
        assert committed(fake_kafka) == 10
        with SafeProducer(**options) as third:
            batch = third.batch()
            for each in again:
                batch.send("out", b"%d" % each)
            with pytest.raises(BatchDroppedError, match="read again"):
                batch.send_offsets(consumer)
            copy_next(consumer, third, [10, 11, 12, 13, 14]).get(60)
    assert output(fake_kafka) == list(range(15))


def test_what_a_closed_producer_left_is_not_copied_again_after_a_rejected_batch(
    fake_kafka, servers, tmp_path
):
    """1. Batch A with records 5 to 9 is left in the spool, and the consumer goes back to 5. 2. The second producer
    takes A up. Another batch with records 5 to 7 has a record that is too large, so it is rejected while A is under way.
    3. A is committed, and the producer is closed. The third one does not know of A, and copied records 8 and 9 again.
    """
    another = next(node for node in fake_kafka.brokers if node != fake_kafka.leader("out"))
    fake_kafka.create_topic("small", config={"max.message.bytes": "1000"}, assignments={0: [another]})
    with FaultProxy(bootstrap=servers[0]) as proxy:
        options = {
            "bootstrap_servers": proxy.bootstrap_servers,
            "spool_dir": tmp_path / "spool",
            "retry_backoff_ms": 20,
        }
        consumer = member(servers)
        consumer.subscribe(["in"])
        with consumer:
            leave_a_batch(fake_kafka, consumer, options)
            held = proxy.on("Produce", topic="out").delay(60)
            second = SafeProducer(**options)
            held.wait()
            consumer.config["max_poll_records"] = 3
            assert polled(consumer) == [5, 6, 7]
            with second.batch() as rejected:
                rejected.send("small", b"x" * 5000)
                rejected.send_offsets(consumer)
            with pytest.raises(BatchDroppedError, match="TOO_LARGE"):
                rejected.outcome.get(60)
            assert committed(fake_kafka) == 5
            assert polled(consumer) == [8, 9, 10]
            held.remove()
            proxy.cut()
            until(lambda: committed(fake_kafka) == 10, 60)
            second.close()
            with SafeProducer(**options) as third:
                batch = third.batch()
                for each in (8, 9, 10):
                    batch.send("out", b"%d" % each)
                with pytest.raises(BatchDroppedError, match="read again"):
                    batch.send_offsets(consumer)
                copy_next(consumer, third, [10, 11, 12]).get(60)
    assert output(fake_kafka) == list(range(13))


def leave_a_batch(fake_kafka, consumer, options):
    """A producer commits records 0 to 4, and is closed with a batch of records 5 to 9 in its spool."""
    producer = SafeProducer(**options)
    copy_next(consumer, producer, [0, 1, 2, 3, 4]).get(60)
    fake_kafka.deny("write", transactional_id="*")
    copy_next(consumer, producer, [5, 6, 7, 8, 9]).durable(60)
    producer.close(timeout=0)
    fake_kafka.deny("write", transactional_id="*", on=False)


def copy_next(consumer, producer, expected):
    found = polled(consumer)
    assert found == expected
    with producer.batch() as batch:
        for each in found:
            batch.send("out", b"%d" % each)
        batch.send_offsets(consumer)
    return batch.outcome


def test_only_positions_that_moved_are_sent(fake_kafka, pair):
    consumer, _, producer = pair
    other = TopicPartition("out", 0)
    consumer.assign([PLACE, other])
    assert consumer.position(other, 30_000) == 0
    assert polled(consumer) == [5, 6, 7, 8, 9]
    with producer.batch() as batch:
        batch.send_offsets(consumer)
    batch.outcome.get(60)
    assert polled(consumer) == [10, 11, 12, 13, 14]
    batch = producer.batch()
    batch.send_offsets(consumer)
    batch.send_offsets(consumer)
    assert [(each.partition, each.offset) for each in batch.offsets.groups["g"].positions] == [(0, 15)]
    batch.commit().get(60)
    with producer.batch() as batch:
        batch.send_offsets(consumer)
    assert batch.offsets.groups == {}
    until(lambda: committed(fake_kafka) == 15)

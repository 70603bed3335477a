"""Consume, process, produce while the group changes: what others read as well is not sent, and all comes once.

A program may collect the records of several polls. Its consumer loses partitions meanwhile, or all of them.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import ConsumerGroupMetadata
from topics import read_values
from waiting import until

from kafkasafe import SafeConsumer, SafeProducer
from kafkasafe.delivery.batch_offsets import offering
from kafkasafe.delivery.readings import OffsetsFate
from kafkasafe.errors import BatchDroppedError
from kafkasafe.events import PositionRewound
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.spool.own_lane import OwnLane
from kafkasafe.testing.proxy import FaultProxy

RECORDS = 40
LANE = OwnLane(b"lane", Path("lane"), in_memory=False)
PLACES = [TopicPartition("in", 0), TopicPartition("in", 1)]
GONE = ConsumerGroupMetadata("g", 3, "gone", None)
"""A member that the group does not have: it refuses its offsets."""


@pytest.fixture
def servers(fake_kafka, tmp_path):
    fake_kafka.create_topic("in", partitions=2)
    fake_kafka.create_topic("out", partitions=1)
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "in") as made:
        for number in range(RECORDS):
            made.send("in", b"%d" % number, partition=number % 2)
        made.flush(60)
    return fake_kafka.bootstrap_servers


@pytest.fixture
def producer(servers, tmp_path):
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path / "spool", retry_backoff_ms=20) as made:
        yield made


def options(servers, **more):
    return {
        "bootstrap_servers": servers,
        "group_id": "g",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_poll_records": 3,
        "heartbeat_interval_ms": 50,
        **more,
    }


def polled(consumer, timeout_ms=None):
    if timeout_ms is None:
        # kafka-python may stay in <rebalancing> for good where a short poll ends while it joins.
        timeout_ms = 2000 if type(consumer) is KafkaConsumer else 100
    return [record for records in consumer.poll(timeout_ms).values() for record in records]


def numbers(records):
    return [int(record.value) for record in records]


def deliver(producer, consumer, records):
    with producer.batch() as batch:
        for record in records:
            batch.send("out", record.value)
        batch.send_offsets(consumer)
    batch.outcome.get(60)


def output(servers):
    """All of it, as a reader of committed records sees it."""
    return [int(value) for value in read_values(servers, "out", isolation_level="read_committed")[0]]


def read_all(servers, producer, consumer):
    """Until the group has everything."""

    def is_over():
        records = polled(consumer)
        if records:
            with contextlib.suppress(BatchDroppedError):
                deliver(producer, consumer, records)
        return all(consumer.committed(place) == RECORDS // 2 for place in PLACES)

    until(is_over)


class Other(threading.Thread):
    """Another member, which processes nothing."""

    def __init__(self, consumer):
        super().__init__()
        self.consumer = consumer
        self.over = threading.Event()

    def run(self):
        with self.consumer:
            while not self.over.is_set():
                self.consumer.poll(20)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


@pytest.mark.parametrize("returns", [False, True])
def test_what_was_collected_of_a_partition_that_was_given_away_is_not_sent(servers, producer, returns):
    with SafeConsumer("in", **options(servers)) as consumer:
        deliver(producer, consumer, until(lambda: polled(consumer)))
        collected = []
        until(lambda: collected.extend(polled(consumer)) or {each.partition for each in collected} == {0, 1})
        with Other(SafeConsumer("in", **options(servers))):
            until(lambda: collected.extend(polled(consumer)) or len(consumer.assignment()) == 1)
            if not returns:
                with pytest.raises(BatchDroppedError, match="Discard the collected records"):
                    deliver(producer, consumer, collected)
        if returns:
            until(lambda: collected.extend(polled(consumer)) or len(consumer.assignment()) == 2)
            with pytest.raises(BatchDroppedError, match="Discard the collected records"):
                deliver(producer, consumer, collected)
        read_all(servers, producer, consumer)
    assert sorted(output(servers)) == list(range(RECORDS))


def test_a_batch_whose_offsets_are_sent_once_more_after_a_partition_was_lost_is_not_sent(servers, producer):
    with SafeConsumer("in", **options(servers)) as consumer:
        batch = producer.batch()
        collected = []
        until(lambda: collected.extend(polled(consumer)) or {each.partition for each in collected} == {0, 1})
        for record in collected:
            batch.send("out", record.value)
        batch.send_offsets(consumer)
        consumer.pause(*PLACES)
        with Other(SafeConsumer("in", **options(servers))):
            seen = []
            until(lambda: seen.extend(polled(consumer)) or len(consumer.assignment()) == 1)
            if seen:  # a rebalance resumes partitions, so some records may have come after it
                with pytest.raises(BatchDroppedError, match="Discard the collected records"):
                    batch.send_offsets(consumer)
            else:
                # The other member may have had both partitions for a moment.
                with contextlib.suppress(BatchDroppedError):
                    batch.send_offsets(consumer)
            with pytest.raises(BatchDroppedError, match="lost its partitions"):
                batch.commit()
        consumer.resume(*consumer.assignment())
        read_all(servers, producer, consumer)
    assert sorted(output(servers)) == list(range(RECORDS))


def test_a_partition_of_which_nothing_is_collected_goes_without_a_word(servers, producer):
    """Of one nothing was read yet, of the other all that was read is in a batch."""
    with SafeConsumer("in", **options(servers)) as consumer:
        records = until(lambda: polled(consumer))
        assert len({record.partition for record in records}) == 1
        until(lambda: all(consumer.position(place) is not None for place in PLACES))
        for _ in range(2):
            deliver(producer, consumer, records)
            consumer.pause(*PLACES)
            with Other(SafeConsumer("in", **options(servers))):
                until(lambda: polled(consumer) == [] and len(consumer.assignment()) == 1)
            until(lambda: polled(consumer) == [] and len(consumer.assignment()) == 2)
            consumer.resume(*PLACES)
            records = until(lambda: polled(consumer))
        deliver(producer, consumer, records)


def test_an_assignment_that_the_program_changed_leaves_no_records_without_offsets(servers, producer):
    with SafeConsumer(**options(servers)) as consumer:
        consumer.assign(PLACES)
        collected = []
        until(lambda: collected.extend(polled(consumer)) or {each.partition for each in collected} == {0, 1})
        consumer.assign(PLACES[1:])
        with pytest.raises(BatchDroppedError, match="Discard the collected records"):
            deliver(producer, consumer, collected)
        consumer.assign(PLACES)
        read_all(servers, producer, consumer)
    assert sorted(output(servers)) == list(range(RECORDS))


@pytest.mark.parametrize("moment", ["before it looks", "while offsets are sent"])
def test_a_safe_consumer_that_fell_out_of_its_group_sends_nothing(
    fake_kafka, servers, producer, monkeypatch, moment
):
    """A heartbeat is answered with UNKNOWN_MEMBER_ID on another thread, at a moment between two looks."""
    with SafeConsumer("in", **options(servers, heartbeat_interval_ms=2000)) as consumer:
        deliver(producer, consumer, until(lambda: polled(consumer)))
        rereading = consumer._objects.rereading
        name = "settle" if moment == "before it looks" else "offer"
        original = getattr(rereading, name)

        def fallen(*args, **kwargs):
            if name == "settle":
                monkeypatch.undo()
                consumer._coordinator.reset_generation()
                return original(*args, **kwargs)
            monkeypatch.undo()
            found = original(*args, **kwargs)
            consumer._coordinator.reset_generation()
            return found

        if name == "offer":
            records = until(lambda: polled(consumer))
        monkeypatch.setattr(rereading, name, fallen)
        if name == "settle":
            records = polled(consumer, 5000)
            assert records
        with producer.batch() as batch:
            for record in records:
                batch.send("out", record.value)
            try:
                batch.send_offsets(consumer)
            except BatchDroppedError:
                records = None
            else:
                assert batch.offsets.groups["g"].generation_id >= 0
        assert (records is None) is (name == "settle")
        fake_kafka.advance(60)  # the session of the member that it was is over
        read_all(servers, producer, consumer)
    assert sorted(output(servers)) == list(range(RECORDS))


def test_a_kafka_consumer_that_fell_out_of_its_group_sends_nothing(fake_kafka, servers, producer):
    given = options(servers, isolation_level="read_committed", heartbeat_interval_ms=2000)
    with contextlib.closing(KafkaConsumer("in", **given, kafka_client=tidy_client)) as consumer:
        deliver(producer, consumer, [])  # it has not joined yet, and nothing to send
        deliver(producer, consumer, until(lambda: polled(consumer)))
        records = polled(consumer, 5000)
        assert records
        consumer._coordinator.reset_generation()
        with pytest.raises(BatchDroppedError, match="not a member"):
            deliver(producer, consumer, records)
        fake_kafka.advance(60)
        for place in consumer.assignment():
            consumer.seek(place, consumer.committed(place) or 0)
        read_all(servers, producer, consumer)
    assert sorted(output(servers)) == list(range(RECORDS))


def test_an_answer_that_was_late_is_not_that_of_a_later_question(fake_kafka, servers, producer):
    """The group's offset is asked for again when a partition comes back, also if a former question has an answer."""
    fake_kafka.create_topic("one", partitions=1)
    place = TopicPartition("one", 0)
    for number in range(RECORDS):
        producer.send("one", b"%d" % number)
    producer.flush(60)
    with FaultProxy(bootstrap=servers[0]) as proxy:
        rule = proxy.on("OffsetFetch").delay(0.3, times=1)
        # The first member in the order of their names has the partition.
        with SafeConsumer("one", **options(proxy.bootstrap_servers, client_id="z")) as consumer:
            until(lambda: consumer.poll(0) or rule.hits)
            [question] = consumer._coordinator._offset_fetch_futures.values()
            until(lambda: question.is_done)

            def process():
                with SafeConsumer("one", **options(servers, client_id="a")) as other:
                    deliver(producer, other, until(lambda: polled(other)))

            def go_on():
                # A slow join may end after records were returned, which belong into the output as well.
                if records := polled(consumer, 20):
                    with contextlib.suppress(BatchDroppedError):
                        deliver(producer, consumer, records)

            others = threading.Thread(target=process)
            others.start()
            until(consumer._coordinator.need_rejoin)
            until(lambda: go_on() or not consumer.assignment())
            until(lambda: go_on() or not others.is_alive())
            others.join()

            def is_over():
                if records := polled(consumer):
                    deliver(producer, consumer, records)
                return consumer.committed(place) == RECORDS

            until(is_over)
    assert sorted(output(servers)) == list(range(RECORDS))


def test_a_step_back_to_what_is_in_no_batch_goes_on_from_the_batches(
    fake_kafka, servers, producer, monkeypatch
):
    """Programs seek back after an error. What they go on from is dropped: its records must not be passed."""
    with SafeConsumer(**options(servers)) as consumer:
        consumer.assign(PLACES[:1])
        deliver(producer, consumer, until(lambda: polled(consumer)))
        records = until(lambda: polled(consumer))
        with monkeypatch.context() as patch, producer.batch() as batch:
            patch.setattr(consumer, "group_metadata", lambda: GONE)
            batch.send_offsets(consumer)
        consumer.seek(PLACES[0], records[-1].offset + 1)
        with pytest.raises(BatchDroppedError):
            batch.outcome.get(60)
        assert numbers(until(lambda: polled(consumer))) == numbers(records)


def test_a_step_back_voids_what_is_not_committed(servers, producer):
    with SafeConsumer(**options(servers)) as consumer:
        consumer.assign(PLACES[:1])
        deliver(producer, consumer, until(lambda: polled(consumer)))
        first = until(lambda: polled(consumer))
        batch = producer.batch()
        batch.send_offsets(consumer)
        consumer.seek(PLACES[0], first[0].offset)
        with pytest.raises(BatchDroppedError):
            batch.commit()
        again = until(lambda: polled(consumer))
        assert numbers(again) == numbers(first)
        deliver(producer, consumer, again)
        assert until(lambda: consumer.committed(PLACES[0])) == again[-1].offset + 1


def test_the_program_is_told_once_also_while_a_partition_waits(servers, producer):
    """A batch of partition 0 is undecided for long, one of partition 1 was dropped."""
    events = []
    with SafeConsumer(**options(servers, on_event=events.append)) as consumer:

        def rewound():
            found = [event for event in events if isinstance(event, PositionRewound)]
            return [(event.partition, event.previous) for event in found]

        consumer.assign(PLACES)
        deliver(producer, consumer, [record for place in PLACES for record in read_of(consumer, place)])
        fates = [OffsetsFate.WAITING, OffsetsFate.WAITING]
        for number, place in enumerate(PLACES):
            read_of(consumer, place)
            offering(consumer)(lambda number=number: fates[number], LANE)
        for place in PLACES:
            read_of(consumer, place)
        fates[1] = OffsetsFate.DROPPED
        with pytest.raises(BatchDroppedError):
            offering(consumer)(lambda: OffsetsFate.WAITING, LANE)
        for _ in range(2):
            again = until(lambda: polled(consumer))
            assert {record.partition for record in again} == {1}
            moved, *_ = offering(consumer)(lambda: OffsetsFate.WAITING, LANE)
            assert set(moved) == {PLACES[1]}
        assert rewound() == [(1, 9)]
        fates[0] = OffsetsFate.COMMITTED
        until(lambda: 0 in {record.partition for record in polled(consumer)})
        assert rewound() == [(1, 9), (0, 9)]


def read_of(consumer, place):
    """Some records of one partition."""
    others = consumer.assignment() - {place}
    consumer.pause(*others)
    records = until(lambda: polled(consumer))
    consumer.resume(*others)
    return records


def test_an_iterator_goes_on_from_where_the_consumer_was_moved_back_to(servers, producer, monkeypatch):
    """Also when the consumer was moved by another call than the iterator's own."""
    with SafeConsumer(**options(servers, max_poll_records=20)) as consumer:
        consumer.assign(PLACES[:1])
        assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
        with producer.batch() as batch:
            batch.send_offsets(consumer)
        batch.outcome.get(60)
        assert [next(consumer).offset for _ in range(3)] == [3, 4, 5]
        with monkeypatch.context() as patch, producer.batch() as batch:
            patch.setattr(consumer, "group_metadata", lambda: GONE)
            batch.send_offsets(consumer)
        with pytest.raises(BatchDroppedError):
            batch.outcome.get(60)
        assert consumer.position(PLACES[0]) == 3
        assert [next(consumer).offset for _ in range(3)] == [3, 4, 5]

"""Topics with many partitions: an open batch has more room, and what is sent keeps its order and its limits."""

from __future__ import annotations

import collections
import contextlib

import pytest

from kafkasafe import SpoolFullError
from kafkasafe.record import batch as codec
from kafkasafe.record.partition import partition_for_key
from kafkasafe.testing import FakeCluster

MIB = 1024 * 1024
PARTITIONS = 100
KEYS = [b"key-%03d" % number for number in range(1000)]


@pytest.fixture
def topic(fake_kafka) -> str:
    fake_kafka.create_topic("many", partitions=PARTITIONS)
    return "many"


def spread(producer, topic: str) -> None:
    """Have an open batch divided among all partitions. Before the first contact it would be divided later."""
    producer.send(topic, b"first", KEYS[0]).get(30)
    for key in KEYS:
        producer.send(topic, b"first", key)
    producer.flush()


def open_batch_of(producer, topic: str):
    return producer._open_batches[topic]


def sealed(producer, topic: str, open_batch) -> list:
    """Seal the open batch; return its parcels."""
    producer.parts.accumulator.seal_one(open_batch)
    return open_batch.parcels


def test_an_open_batch_has_more_room_after_one_that_was_divided_among_many(fake_kafka, producers, topic):
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    spread(producer, topic)
    futures = [producer.send(topic, b"x" * 100, KEYS[number % 1000]) for number in range(20_000)]
    open_batch = open_batch_of(producer, topic)
    assert open_batch.room == PARTITIONS * 32 * 1024
    assert open_batch.waiting == 20_000
    assert len(sealed(producer, topic, open_batch)) == PARTITIONS
    producer.flush()
    assert all(
        future.get(0).partition == partition_for_key(KEYS[number % 1000], PARTITIONS)
        for number, future in enumerate(futures)
    )


def test_records_without_keys_have_the_usual_room(fake_kafka, producers, topic):
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    producer.send(topic, b"first").get(30)
    for _ in range(300):
        producer.send(topic, b"x" * 100)
    open_batch = open_batch_of(producer, topic)
    assert open_batch.room == producer.parts.accumulator.open_batch_bytes
    assert len(sealed(producer, topic, open_batch)) == 1


@pytest.mark.parametrize("how", ["one key", "no key", "given partition", "headers"])
def test_many_records_of_one_partition_become_several_batches_in_order(fake_kafka, producers, topic, how):
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000, batch_size=50_000)
    spread(producer, topic)
    more = {
        "one key": {"key": KEYS[0]},
        "no key": {},
        "given partition": {"partition": 7},
        "headers": {"key": KEYS[0], "headers": [("name", b"y" * 500)]},
    }[how]
    values = [b"%06d" % number + b"x" * (number % 600) for number in range(1000)]
    producer.send(topic, b"", **more)  # opens it
    open_batch = open_batch_of(producer, topic)
    futures = [producer.send(topic, value, **more) for value in values]
    assert open_batch_of(producer, topic) is open_batch
    parcels = sealed(producer, topic, open_batch)
    assert len(parcels) > 5
    assert len({parcel.partition for parcel in parcels}) == 1
    assert max(parcel.size_bytes for parcel in parcels) <= 50_000 + codec.HEADER_BYTES
    producer.flush()
    found = [future.get(0) for future in futures]
    assert [each.offset for each in found] == list(range(found[0].offset, found[0].offset + len(values)))
    sent = set(values)
    assert [value for value in fake_kafka.values(topic, found[0].partition) if value in sent] == values


def test_the_order_of_each_key_is_that_of_the_calls(fake_kafka, producers, topic):
    producer = producers(fake_kafka.bootstrap_servers, batch_size=20_000)
    expected = collections.defaultdict(list)
    for number in range(30_000):
        key = KEYS[number * number % 997 % (5 if number % 3 else 1000)]
        value = b"%s %d" % (key, number)
        expected[partition_for_key(key, PARTITIONS)].append(value)
        producer.send(topic, value, key)
    producer.flush()
    for partition, values in expected.items():
        assert fake_kafka.values(topic, partition) == values


def test_open_batches_of_many_topics_share_the_additional_room(fake_kafka, producers):
    topics = [f"many-{number}" for number in range(8)]
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    for topic in topics:
        fake_kafka.create_topic(topic, partitions=PARTITIONS)
        spread(producer, topic)
    for topic in topics:
        producer.send(topic, b"x", KEYS[0])
    usual, most = producer.parts.accumulator.open_batch_bytes, producer.parts.accumulator.most_room
    rooms = [open_batch_of(producer, topic).room for topic in topics]
    assert rooms[0] > 3 * usual
    assert rooms[-1] == usual
    assert sum(rooms) == len(topics) * usual + most
    producer.flush()


@pytest.mark.parametrize(
    "options",
    [
        {"delivery": "transactional"},
        {"run_ahead_bytes": MIB},
        {
            "spool_max_bytes": 16 * MIB,
            "spool_segment_bytes": 4 * MIB,
            "run_ahead_bytes": None,
            "max_request_size": 2 * MIB,
        },
    ],
)
def test_the_room_is_the_usual_one_where_more_would_break_a_limit(fake_kafka, producers, topic, options):
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000, **options)
    spread(producer, topic)
    producer.send(topic, b"x", KEYS[0])
    assert open_batch_of(producer, topic).room == producer.parts.accumulator.open_batch_bytes
    producer.flush()


@pytest.mark.parametrize("keyed", [True, False])
def test_several_batches_of_a_partition_give_the_next_open_batch_no_more_room(fake_kafka, producers, keyed):
    """Each open batch had room for one usual batch more than the last one, and without keys it kept that."""
    batch_size = 16_384
    fake_kafka.create_topic("two", partitions=2)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000, batch_size=batch_size)
    producer.send("two", b"first", b"a").get(30)
    rooms = set()
    for number in range(3000):
        producer.send("two", b"x" * 100, KEYS[number % 1000] if keyed or number < 500 else None)
        rooms.add(open_batch_of(producer, "two").room)
    assert max(rooms) == 2 * batch_size
    assert open_batch_of(producer, "two").room == (2 if keyed else 1) * batch_size
    producer.flush()


def test_an_open_batch_whose_partitions_are_unknown_becomes_no_batch_that_is_too_large(producers):
    """Given partitions of a missing topic made more room, and a record without one made one batch of it all."""
    with FakeCluster(config={"auto.create.topics.enable": "false"}) as cluster:
        producer = producers(
            cluster.bootstrap_servers, linger_ms=600_000, batch_size=50_000, on_blocked_topic="accept"
        )
        for partition in range(PARTITIONS):
            producer.send("late", b"first", partition=partition)
        producer.durable()
        futures = [producer.send("late", b"x" * 1000, partition=7) for _ in range(200)]
        futures.append(producer.send("late", b"last", KEYS[0]))
        producer.durable()
        assert (
            max(each.size_bytes for future in futures for each in future.open_batch.parcels)
            <= 50_000 + codec.HEADER_BYTES
        )
        cluster.create_topic("late", partitions=PARTITIONS)
        producer.flush()
        assert cluster.values("late", 7) == [b"first"] + [b"x" * 1000] * 200


def test_an_open_batch_with_more_room_leaves_the_spool_within_its_limit(fake_kafka, producers):
    """It kept its room while records of other topics took the spool's last bytes."""
    limit = 16 * MIB
    fake_kafka.create_topic("other", partitions=1)
    fake_kafka.create_topic("many", partitions=1000)
    producer = producers(
        fake_kafka.bootstrap_servers,
        linger_ms=600_000,
        spool_max_bytes=limit,
        spool_segment_bytes=2 * MIB,
        max_block_ms=0,
        run_ahead_bytes=None,
    )
    producer.send("other", b"first").get(30)
    spread(producer, "many")
    for node in (1, 2, 3):
        fake_kafka.pause(node)
    producer.send("many", b"first", KEYS[0])
    assert open_batch_of(producer, "many").room > 6 * MIB
    for topic, key in ("other", None), ("many", KEYS[0]):
        for _ in range(10_000):
            try:
                producer.send(topic, b"x" * 2000, key)
            except SpoolFullError:
                break
        else:
            pytest.fail("The spool takes more than its limit")
        with contextlib.suppress(SpoolFullError):
            producer.send("many", b"more", KEYS[0])
    producer.durable()
    assert producer._pump.ledger.room.used <= limit
    for node in (1, 2, 3):
        fake_kafka.resume(node)
    producer.flush()

"""`poll_arrow(views=True)`: keys and values where they were received, with the same contents as copies."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute
import pytest
from confluent_kafka import Producer
from consuming import new_topic, until
from kafka import TopicPartition

from kafkasafe.kafkapython import sockets
from kafkasafe.testing.broker import KafkaCluster

RND = random.Random(7)
NOISE = RND.randbytes(400_000)


def value_of(number):
    if number % 13 == 12:
        return None
    if number == 50:
        return NOISE[:300_000]  # larger than the fetches of one test
    return NOISE[number : number + (number % 29 if number % 2 else 600 + number % 300)]


def key_of(number):
    return (None, b"", b"%d" % number, b"a key of more than twelve bytes %d" % number)[number % 4]


@pytest.fixture
def write(some_kafka):
    def write(topic, partition, *, codec="none", count=700, headers=None, transactions=False):
        options = {
            "bootstrap.servers": ",".join(some_kafka.bootstrap_servers),
            "enable.idempotence": True,
            "linger.ms": 50,
            "batch.num.messages": 200,
            "compression.type": codec,
        }
        if transactions:
            options["transactional.id"] = f"{topic}-{partition}"
        producer = Producer(options)
        if transactions:
            producer.init_transactions(60)
        for turn in range(4 if transactions else 1):
            if transactions:
                producer.begin_transaction()
            for number in range(count):
                producer.produce(
                    topic,
                    value_of(number),
                    key_of(number),
                    partition,
                    headers=headers if number % 3 else None,
                )
            assert producer.flush(60) == 0
            if transactions and turn % 2:
                producer.abort_transaction(60)
            elif transactions:
                producer.commit_transaction(60)

    return write


def gather(consumer, count, **options):
    tables = []

    def poll():
        table = consumer.poll_arrow(500, **options)
        table.validate(full=True)
        tables.append(table)
        return sum(each.num_rows for each in tables) >= count

    until(poll)
    return pa.concat_tables(tables)


def plain(table):
    """With the usual types, and by partition: partitions come in any order."""
    for name in ("key", "value"):
        if name in table.schema.names:
            assert table.schema.field(name).type == pa.binary_view()
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, table[name].cast(pa.binary()))
    return ordered(table)


def ordered(table):
    return table.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()


@pytest.mark.also_real
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_views_hold_what_copies_hold(some_kafka, write, opened, codec):
    topic = new_topic(some_kafka, 2)
    write(topic, 0, codec=codec, headers=[("a", b"1"), ("a", None), ("ü", b"")], transactions=True)
    write(topic, 1, codec=codec)
    if isinstance(some_kafka, KafkaCluster):
        some_kafka.wait_for_markers()
    for level, count in (("read_committed", 3 * 700), ("read_uncommitted", 5 * 700)):
        for options in ({}, {"max_partition_fetch_bytes": 100_000}):
            consumer = opened(topic, 0, 1, isolation_level=level, **options)
            expected = ordered(gather(consumer, count))
            assert expected.num_rows == count
            consumer.seek_to_beginning()
            assert plain(gather(consumer, count, views=True)).equals(expected)
            # From the middle of a batch.
            consumer.pause(TopicPartition(topic, 0))
            consumer.seek(TopicPartition(topic, 1), 333)
            rest = expected.filter(pa.compute.equal(expected["partition"], 1)).slice(333)
            assert plain(gather(consumer, 700 - 333, views=True, max_records=90)).equals(rest)


@pytest.mark.also_real
def test_tables_that_are_kept_do_not_change(some_kafka, write, opened):
    topic = new_topic(some_kafka, 2)
    for partition in (0, 1):
        write(topic, partition, count=1500, codec=("none", "zstd")[partition])
    consumer = opened(topic, 0, 1, max_partition_fetch_bytes=200_000)
    expected = ordered(gather(consumer, 3000))
    consumer.seek_to_beginning()
    kept = []
    until(lambda: kept.append(consumer.poll_arrow(500, 100, views=True)) or sum(map(len, kept)) >= 400)
    before = [table.to_pylist() for table in kept]
    slices = [(table.slice(1, 3), table.slice(1, 3).to_pylist()) for table in kept if len(table) > 4]
    for turn in range(100):
        consumer.poll_arrow(0 if turn % 5 else 200, 50, views=True)
        if turn % 20 == 10:
            consumer.seek_to_beginning()
    assert [table.to_pylist() for table in kept] == before
    assert [(part.to_pylist() == rows) for part, rows in slices] == [True] * len(slices)
    rows = {(row["partition"], row["offset"]): row for row in expected.to_pylist()}
    assert all(row == rows[row["partition"], row["offset"]] for table in before for row in table)
    consumer.close()
    assert [table.to_pylist() for table in kept] == before


@pytest.mark.also_real
def test_values_are_where_they_were_received(some_kafka, write, opened, monkeypatch):
    frames = []
    read = sockets._Incoming.read
    monkeypatch.setattr(
        sockets._Incoming, "read", lambda frame, *size: frames.append(frame) or read(frame, *size)
    )
    topic = new_topic(some_kafka)
    write(topic, 0)
    table = gather(opened(topic, 0), 700, views=True)
    places = [(start := pa.py_buffer(frame).address, start + len(frame)) for frame in frames]
    found = [
        any(start <= buffer.address and buffer.address + buffer.size <= end for start, end in places)
        for chunk in table["value"].chunks
        for buffer in chunk.buffers()[2:]
    ]
    assert any(found)  # small responses are copied


def test_batches_by_partition(some_kafka, write, opened):
    topic = new_topic(some_kafka, 2)
    for partition in (0, 1):
        write(topic, partition)
    consumer = opened(topic, 0, 1, max_partition_fetch_bytes=50_000)
    got = {0: [], 1: []}

    def poll():
        for tp, records in consumer.poll_batches(500, columns=["value"], views=True).items():
            assert records.schema.field("value").type == pa.binary_view()
            got[tp.partition] += records["value"].to_pylist()
        return sum(map(len, got.values())) >= 1400

    until(poll)
    assert got == {partition: [value_of(number) for number in range(700)] for partition in (0, 1)}


def test_views_copies_and_records_in_turn(some_kafka, write, opened):
    """What is left of a fetch when the kind changes is read again."""
    topic = new_topic(some_kafka)
    write(topic, 0)
    consumer = opened(topic, 0)
    values = []

    def poll():
        values.extend(consumer.poll_arrow(500, 30, views=True)["value"].to_pylist())
        values.extend(consumer.poll_arrow(500, 20)["value"].to_pylist())
        values.extend(record.value for some in consumer.poll(500, 10).values() for record in some)
        return len(values) >= 700

    until(poll)
    assert values == [value_of(number) for number in range(700)]


@pytest.mark.parametrize("way", ["views", "copies", "records"])
def test_what_a_paused_partition_has_left_keeps_no_response(some_kafka, write, opened, way):
    topic = new_topic(some_kafka, 2)
    for partition in (0, 1):
        write(topic, partition)
    consumer = opened(topic, 0, 1)
    fetcher = consumer._fetcher
    got = {0: [], 1: []}

    def take(most):
        if way == "records":
            for tp, records in consumer.poll(500, most).items():
                got[tp.partition] += [record.value for record in records]
            return
        for row in consumer.poll_arrow(500, most, views=way == "views").to_pylist():
            got[row["partition"]].append(row["value"])

    until(lambda: take(1) or got[0] or got[1])
    paused = TopicPartition(topic, 0 if got[0] else 1)
    other = 1 - paused.partition
    consumer.pause(paused)
    until(lambda: take(100) or len(got[other]) >= 700)
    parked = [each.partition_data.records for each in fetcher._paused_completed_fetches.values()]
    parked += [each._buffer for each in fetcher._paused_partition_records.values() if way != "records"]
    assert not [each for each in parked if isinstance(each, memoryview)]
    consumer.resume(paused)
    until(lambda: take(100) or len(got[paused.partition]) >= 700)
    assert got == {partition: [value_of(number) for number in range(700)] for partition in (0, 1)}

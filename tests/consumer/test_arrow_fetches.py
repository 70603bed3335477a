"""How much `poll_arrow` asks brokers for, and what becomes of a consumer that reads records as well."""

from __future__ import annotations

import pytest
from consuming import new_topic, until
from kafka import TopicPartition

from kafkasafe import SafeProducer
from kafkasafe.kafkapython.fetcher import Fetcher

MB = 1024 * 1024
VALUES = [b"%d-" % number + b"x" * 50_000 for number in range(330)]


@pytest.fixture
def asked(monkeypatch):
    """The sizes that were asked for, of each partition."""
    sizes = []
    create = Fetcher._create_fetch_requests

    def created(fetcher):
        requests = create(fetcher)
        for request, _ in requests.values():
            sizes.extend(part.partition_max_bytes for topic in request.topics for part in topic.partitions)
        return requests

    monkeypatch.setattr(Fetcher, "_create_fetch_requests", created)
    return sizes


@pytest.fixture
def topic(some_kafka, tmp_path):
    name = new_topic(some_kafka)
    with SafeProducer(bootstrap_servers=some_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        for value in VALUES:
            producer.send(name, value, partition=0)
        producer.flush(60)
    return name


def read(consumer):
    values = []
    until(lambda: values.extend(consumer.poll_arrow(500)["value"].to_pylist()) or len(values) >= len(VALUES))
    return values


@pytest.mark.also_real
def test_a_consumer_that_reads_batches_alone_asks_for_more_and_more(topic, opened, asked, monkeypatch):
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_S", 60)
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_SHARE", 0.01)
    consumer = opened(topic)
    consumer.poll(0)  # returns nothing, so it changes nothing
    assert read(consumer) == VALUES
    assert asked[0] == MB
    assert set(asked) == {MB, 2 * MB, 4 * MB, 8 * MB}


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"max_partition_fetch_bytes": 300_000}, {300_000}),
        ({"max_partition_fetch_bytes": MB}, {MB}),
        ({"fetch_max_bytes": 3_000_000}, {MB, 2 * MB, 3_000_000}),
    ],
)
def test_options_bound_it(topic, opened, asked, monkeypatch, options, sizes):
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_S", 60)
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_SHARE", 0.01)
    assert read(opened(topic, **options)) == VALUES
    assert set(asked) == sizes


@pytest.mark.also_real
@pytest.mark.parametrize("iterates", [False, True])
def test_a_consumer_that_reads_records_alone_asks_for_more_up_to_4_mib(
    topic, opened, asked, monkeypatch, iterates
):
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_S", 60)
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_SHARE", 0.01)
    consumer = opened(topic)
    values = []

    def take():
        if iterates:
            values.append(next(consumer).value)
        else:
            values.extend(record.value for some in consumer.poll(500).values() for record in some)
        return len(values) >= len(VALUES)

    until(take)
    assert values == VALUES
    assert asked[0] == MB
    assert set(asked) == {MB, 2 * MB, 4 * MB}


def test_a_consumer_that_seeks_begins_with_small_requests_again(topic, opened, asked, monkeypatch):
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_S", 60)
    monkeypatch.setattr("kafkasafe.limits.fetch_size._SOON_SHARE", 0.01)
    consumer = opened(topic)
    until(lambda: consumer.poll(500) is not None and 4 * MB in asked)
    consumer.seek(TopicPartition(topic, 0), 0)
    del asked[:]
    until(lambda: consumer.poll(500) is not None and MB in asked)


@pytest.mark.also_real
def test_a_consumer_that_reads_records_as_well_asks_for_what_kafka_python_asks_for(topic, opened, asked):
    consumer = opened(topic)
    values = consumer.poll_arrow(10_000, max_records=1)["value"].to_pylist()

    def take_turns():
        before = len(values)
        for some in consumer.poll(500, max_records=5).values():
            values.extend(record.value for record in some)
        if len(values) > before:
            del asked[:-1]  # one may have been on its way
        values.extend(consumer.poll_arrow(500, max_records=20)["value"].to_pylist())
        return len(values) >= len(VALUES)

    until(take_turns)
    assert values == VALUES
    assert set(asked) == {MB}

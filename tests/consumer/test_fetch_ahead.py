"""A consumer fetches the next response while records of the last one wait."""

from __future__ import annotations

import functools

import pytest
from consuming import collect, new_topic, until
from kafka import KafkaProducer, TopicPartition

from kafkasafe import SafeProducer
from kafkasafe.kafkapython.fetcher import Fetcher
from kafkasafe.kafkapython.fetching_ahead import end_of
from kafkasafe.limits.fetch_ahead import AheadOffset, ResponseEnd
from kafkasafe.record import batch
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

BATCHES, EACH = 20, 50
COUNT = BATCHES * EACH
FETCH_BYTES = 6_000
"""Each response has one batch, or two."""


def made(base_offset, count, leader_epoch=3, **options):
    """A batch as a broker returns it."""
    data = bytearray(batch.encode(None, [b"v"] * count, timestamps=1_000, **options))
    data[0:8] = base_offset.to_bytes(8, "big")
    data[12:16] = leader_epoch.to_bytes(4, "big")
    return bytes(data)


def test_a_response_ends_after_its_last_whole_batch():
    response = made(100, 10) + made(110, 5, leader_epoch=4)
    assert end_of(response, 103) == ResponseEnd(103, 115, 4)
    assert end_of(memoryview(response), 103) == ResponseEnd(103, 115, 4)
    for cut in range(1, len(made(110, 5))):
        assert end_of(response[:-cut], 103) == ResponseEnd(103, 110, 3)


@pytest.mark.parametrize("response", [b"", made(0, 5)[:-1], b"\0" * 100, b"\xff" * 100, made(0, 1)[:16]])
def test_what_is_not_a_batch_has_no_end(response):
    assert end_of(response, 0) is None


def test_an_older_message_format_has_no_end():
    old = bytearray(made(0, 5))
    old[16] = 1
    assert end_of(bytes(old), 0) is None


def test_the_end_is_where_every_reader_continues():
    """Batches lose records by compaction, but their headers keep the last offset."""
    response = made(7, 3) + made(40, 1)
    (*_, (_, last)) = batch.iter_headers(response)
    assert end_of(response, 7).end_offset == last.last_offset + 1 == 41


@pytest.fixture
def fetches(monkeypatch):
    """The offsets of the requests, in order: an `AheadOffset` for each that was sent ahead."""
    sent = []
    create = Fetcher._create_fetch_requests

    def created(fetcher):
        requests = create(fetcher)
        for _, offsets in requests.values():
            sent.extend(offsets.values())
        return requests

    monkeypatch.setattr(Fetcher, "_create_fetch_requests", created)
    return sent


@pytest.fixture
def ahead(fetches):
    return lambda: [offset for offset in fetches if isinstance(offset, AheadOffset)]


def fill(kafka, tmp_path, partitions=1, **options):
    name = new_topic(kafka, partitions)
    with SafeProducer(bootstrap_servers=kafka.bootstrap_servers, spool_dir=tmp_path, **options) as producer:
        for number in range(BATCHES):
            for partition in range(partitions):
                for index in range(EACH):
                    producer.send(name, b"%d" % (number * EACH + index) + b"x" * 60, partition=partition)
            producer.flush(60)
    return name


@pytest.fixture
def topic(some_kafka, tmp_path):
    return fill(some_kafka, tmp_path)


@pytest.fixture
def opened_at(opened_at):
    return functools.partial(opened_at, max_partition_fetch_bytes=FETCH_BYTES, max_poll_records=10)


def until_sent(consumer, condition):
    """Wait until the condition holds, and do meanwhile what each poll does except that no records are taken.

    1. A request may count as in flight for a moment after its records can be taken.
    2. The position may be checked again after metadata has arrived. The next poll uses the result of the check.

    In both cases the poll that took the records sends no request, but the next one does.
    """

    def holds():
        if not condition():
            consumer._fetcher.validate_offsets_if_needed()
            consumer._fetcher.send_fetches()
        return condition()

    until(holds, 30)


def in_order(records, first=0):
    assert [record.offset for record in records] == list(range(first, first + len(records)))
    for record in records:
        assert record.value.rstrip(b"x") == b"%d" % record.offset


def test_the_next_response_is_fetched_while_records_wait(topic, opened, ahead):
    consumer = opened(topic)
    records = collect(consumer, 10)
    until_sent(consumer, ahead)
    assert ahead()[0] >= EACH  # the position is 10
    assert consumer.position(TopicPartition(topic, 0)) == 10
    records += collect(consumer, COUNT - 10)
    in_order(records)


def test_at_most_one_response_is_fetched_ahead(topic, opened, ahead, fetches):
    consumer = opened(topic)
    collect(consumer, 1)
    until_sent(consumer, ahead)
    for _ in range(3):
        consumer.poll(0, max_records=1)
    assert len(fetches) == 2


@pytest.mark.parametrize("target", [0, 15, 30, COUNT - 60])
def test_a_seek_discards_it(topic, opened, ahead, target):
    consumer = opened(topic)
    collect(consumer, 10)
    until_sent(consumer, ahead)
    consumer.seek(TopicPartition(topic, 0), target)
    in_order(collect(consumer, COUNT - target), target)


def test_a_seek_to_its_offset_uses_it_or_fetches_again(topic, opened, ahead):
    consumer = opened(topic)
    collect(consumer, 10)
    until_sent(consumer, ahead)
    target = int(ahead()[0])
    consumer.seek(TopicPartition(topic, 0), target)
    in_order(collect(consumer, COUNT - target), target)


def test_a_paused_partition_goes_on_where_it_was(topic, opened, ahead):
    consumer = opened(topic)
    tp = TopicPartition(topic, 0)
    records = collect(consumer, 10)
    until_sent(consumer, ahead)
    consumer.pause(tp)
    for _ in range(3):
        assert not consumer.poll(50)
    consumer.resume(tp)
    in_order(records + collect(consumer, COUNT - 10))


def test_many_partitions_stay_in_order_while_some_are_paused(some_kafka, tmp_path, opened):
    topic = fill(some_kafka, tmp_path, partitions=4)
    consumer = opened(topic, *range(4), max_poll_records=7)
    places = [TopicPartition(topic, partition) for partition in range(4)]
    found = {tp: [] for tp in places}
    rounds = 0
    while any(len(records) < COUNT for records in found.values()):
        rounds += 1
        assert rounds < 20_000
        paused = places[rounds % 5 : rounds % 5 + 2] if rounds % 3 else []
        consumer.pause(*paused)
        for tp, records in consumer.poll(20).items():
            assert tp not in paused
            found[tp] += records
        consumer.resume(*paused)
    for records in found.values():
        in_order(records)


def test_a_resumed_partition_does_not_wait_for_the_end_of_another(some_kafka, tmp_path, opened):
    """Its next response is fetched ahead, so something of the other partition is always left."""
    topic = fill(some_kafka, tmp_path, partitions=2)
    other, resumed = TopicPartition(topic, 0), TopicPartition(topic, 1)
    consumer = opened(topic, 0, 1, max_poll_records=7)
    consumer.seek(resumed, COUNT - 40)  # one response, and nothing ahead of it
    found = {other: [], resumed: []}

    def poll():
        for tp, records in consumer.poll(1000).items():
            found[tp] += records

    while not found[resumed]:
        poll()
    consumer.pause(resumed)
    while len(found[other]) < 2 * EACH:
        poll()
        until_sent(consumer, lambda: consumer._fetcher._completed_fetches)
    consumer.resume(resumed)
    while len(found[resumed]) < 40:
        poll()
        until_sent(consumer, lambda: consumer._fetcher._completed_fetches)
        assert len(found[other]) < 4 * EACH
    in_order(found[resumed], COUNT - 40)
    in_order(found[other] + collect(consumer, COUNT - len(found[other])))


def test_nothing_is_fetched_ahead_at_the_end_of_the_log(topic, opened, ahead):
    consumer = opened(topic, max_partition_fetch_bytes=1024 * 1024)
    in_order(collect(consumer, COUNT))
    assert not ahead()


def test_records_and_tables_in_turns(topic, opened, ahead):
    consumer = opened(topic)
    at = 0
    while at < COUNT:
        if at % 20:
            table = consumer.poll_arrow(1000, max_records=10)
            assert table["offset"].to_pylist() == list(range(at, at + table.num_rows))
            at += table.num_rows
        else:
            records = collect(consumer, 1)
            in_order(records, at)
            at += len(records)
            until_sent(consumer, ahead)


def test_the_iterator(topic, opened, ahead):
    consumer = opened(topic, consumer_timeout_ms=5000)
    records = [next(consumer)]
    until_sent(consumer, ahead)
    in_order(records + [next(consumer) for _ in range(COUNT - 1)])


def iterate(consumer, count):
    """Return the next records. Except for the last ones, wait until the response after each of them is there."""
    records = []
    while len(records) < count:
        records.append(next(consumer))
        if len(records) < count - 3 * EACH:
            until_sent(consumer, lambda: consumer._fetcher._completed_fetches)
    return records


def test_the_iterator_fetches_nothing_twice(topic, opened, fetches):
    """The position is behind the records that it holds, and before the response that follows them."""
    consumer = opened(topic, max_poll_records=7)
    in_order(iterate(consumer, COUNT))
    assert len(set(fetches)) == len(fetches)


def test_the_iterator_goes_on_behind_markers(some_kafka, opened, fetches):
    """Each response ends with a marker, which is no record."""
    name = new_topic(some_kafka)
    with KafkaProducer(bootstrap_servers=some_kafka.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        for _ in range(BATCHES):
            producer.begin_transaction()
            for _ in range(EACH):
                producer.send(name, b"x" * 60, partition=0)
            producer.commit_transaction()
    consumer = opened(name, max_poll_records=7, isolation_level="read_committed")
    offsets = [record.offset for record in iterate(consumer, COUNT)]
    assert offsets == [offset for offset in range(BATCHES * (EACH + 1)) if (offset + 1) % (EACH + 1)]
    assert all((offset + 1) % (EACH + 1) for offset in fetches)
    assert consumer.position(TopicPartition(name, 0)) == offsets[-1] + 1


def test_without_fetch_sessions_nothing_is_fetched_ahead(topic, opened, ahead):
    consumer = opened(topic, enable_incremental_fetch_sessions=False)
    in_order(collect(consumer, COUNT))
    assert not ahead()


def test_a_response_from_before_a_check_is_not_used(topic, opened, ahead, fetches):
    """The leadership under which the position was found valid is another object: the position was checked again."""
    consumer = opened(topic)
    tp = TopicPartition(topic, 0)
    records = collect(consumer, 10)
    until_sent(consumer, ahead)
    part = consumer._objects.parts.get(tp)
    part.check((*part.checked,))  # another object
    former = int(ahead()[0])
    records += collect(consumer, COUNT - 10)
    in_order(records)
    assert [int(offset) for offset in fetches].count(former) == 2


def test_an_empty_response_ahead_leaves_an_ordinary_position(tmp_path, opened_at):
    """A broker returns nothing of a partition if others fill the response. Then the leader moves."""
    with FakeCluster(brokers=2) as kafka, FaultProxy(bootstrap=kafka.bootstrap_servers[0]) as proxy:
        topic = fill(kafka, tmp_path)
        tp = TopicPartition(topic, 0)
        fetches = proxy.on("Fetch", topic=topic)
        empty = fetches.when(lambda each: each.request.topics[0].partitions[0].fetch_offset > 0)
        empty.set(records=b"", times=1)
        consumer = opened_at(proxy, topic)
        records = collect(consumer, 10)
        until(lambda: empty.hits and consumer._fetcher._completed_fetches, 30)
        proxy.on("Fetch", topic=topic).answer(code=6, high_watermark=-1, records=None)
        while found := consumer.poll(0).get(tp):
            records += found
        kafka.move_leader(topic, 0, to=3 - kafka.leader(topic))
        proxy.clear()
        in_order(records + collect(consumer, COUNT - len(records), timeout_s=30))
        consumer.close()

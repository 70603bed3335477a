"""Consumers whose offsets are part of atomic batches: who is refused, and which offsets a SafeConsumer is given."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from waiting import until

from kafkasafe import SafeConsumer, SafeProducer, UsageError, aio
from kafkasafe.kafkapython.admin import tidy_client

PLACE = TopicPartition("in", 0)
RECORDS = 20


@pytest.fixture
def producer(fake_kafka, tmp_path):
    fake_kafka.create_topic("in", partitions=1)
    fake_kafka.create_topic("out", partitions=1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        retry_backoff_ms=20,
        max_block_ms=60_000,
    ) as made:
        for number in range(RECORDS):
            made.send("in", b"%d" % number)
        made.flush(60)
        yield made


def options(servers, **more):
    return {
        "bootstrap_servers": servers,
        "group_id": "g",
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "max_poll_records": 5,
        **more,
    }


def opened(kind, servers, **more):
    if kind is KafkaConsumer:
        more = {"isolation_level": "read_committed", "kafka_client": tidy_client, **more}
    consumer = kind(**options(servers, **more))
    consumer.assign([PLACE])
    return contextlib.closing(consumer)


def poll(consumer, timeout_ms=100):
    return [record for records in consumer.poll(timeout_ms).values() for record in records]


@pytest.mark.parametrize(
    ("kind", "wrong", "way_out"),
    [
        (KafkaConsumer, {"enable_auto_commit": True}, "enable_auto_commit=False"),
        (SafeConsumer, {"enable_auto_commit": True}, "enable_auto_commit=False"),
        (KafkaConsumer, {"isolation_level": "read_uncommitted"}, 'isolation_level="read_committed"'),
        (KafkaConsumer, {"group_id": None}, "group_id"),
        (SafeConsumer, {"group_id": None, "enable_auto_commit": False}, "group_id"),
    ],
)
def test_a_consumer_that_cannot_be_exact_is_refused_with_the_way_out(
    fake_kafka, producer, kind, wrong, way_out
):
    with opened(kind, fake_kafka.bootstrap_servers, **wrong) as consumer:
        batch = producer.batch()
        with pytest.raises(UsageError, match=way_out):
            batch.send_offsets(consumer)
        batch.drop()


@pytest.mark.parametrize(
    ("kind", "isolation"),
    [(KafkaConsumer, "read_committed"), (SafeConsumer, "read_committed"), (SafeConsumer, "read_uncommitted")],
)
def test_the_others_are_taken(fake_kafka, producer, kind, isolation):
    with opened(kind, fake_kafka.bootstrap_servers, isolation_level=isolation) as consumer:
        records = until(lambda: poll(consumer))
        with producer.batch() as batch:
            batch.send("out", b"sum")
            batch.send_offsets(consumer)
        batch.outcome.get(60)
        assert until(lambda: consumer.committed(PLACE)) == records[-1].offset + 1


@pytest.mark.parametrize("reads", ["subscribe", "assign"])
@pytest.mark.parametrize("kind", [KafkaConsumer, SafeConsumer])
def test_a_closed_consumer_is_refused_each_time(fake_kafka, producer, kind, reads):
    """It has left its group and has no partitions, so the batch committed no offsets: the output was there again."""
    with opened(kind, fake_kafka.bootstrap_servers) as consumer:
        if reads == "subscribe":
            consumer.unsubscribe()
            consumer.subscribe(["in"])
        until(lambda: poll(consumer))
        consumer.close()
        batch = producer.batch()
        batch.send("out", b"sum")
        for _ in range(2):
            with pytest.raises(UsageError, match="closed"):
                batch.send_offsets(consumer)
        batch.drop()


@pytest.mark.parametrize("kind", [KafkaConsumer, SafeConsumer])
def test_a_listener_that_close_calls_may_commit_the_last_batch(fake_kafka, producer, kind):
    """kafka-python marks the consumer as closed before it calls the listener, which is still a member of its group."""
    given: list[bytes] = []

    class Last(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            pass

        def on_partitions_revoked(self, revoked):
            if given:
                with producer.batch() as batch:
                    batch.send("out", b"|".join(given))
                    batch.send_offsets(consumer)
                batch.outcome.get(60)

    with opened(kind, fake_kafka.bootstrap_servers) as consumer:
        consumer.unsubscribe()
        consumer.subscribe(["in"], listener=Last())
        given += [record.value for record in until(lambda: poll(consumer))]
    assert fake_kafka.values("out") == [b"|".join(given)]
    with opened(KafkaConsumer, fake_kafka.bootstrap_servers) as reader:
        assert reader.committed(PLACE) == len(given)


def given_by(way, consumer):
    """The arguments of `send_offsets` for all that a consumer has returned."""
    if way == "consumer":
        return (consumer,)
    return {place: consumer.position(place) for place in consumer.assignment()}, consumer.group_metadata()


@pytest.mark.parametrize("second", ["consumer", "dict"])
@pytest.mark.parametrize("first", ["consumer", "dict"])
def test_offsets_of_several_consumers_of_a_group_are_all_committed(fake_kafka, producer, first, second):
    """Only those of the last call were, so the group read the records of the others again."""
    fake_kafka.create_topic("more", partitions=1)
    more = TopicPartition("more", 0)
    producer.send("more", b"1")
    producer.flush(60)
    servers = fake_kafka.bootstrap_servers
    with opened(SafeConsumer, servers) as one, opened(SafeConsumer, servers) as two:
        two.assign([more])
        records = until(lambda: poll(one)), until(lambda: poll(two))
        with producer.batch() as batch:
            batch.send("out", b"sum")
            batch.send_offsets(*given_by(first, one))
            batch.send_offsets(*given_by(second, two))
        batch.outcome.get(60)
        until(lambda: one.committed(more) == 1)
        assert one.committed(PLACE) == records[0][-1].offset + 1


def test_one_of_asyncio_that_commits_by_itself_is_refused(fake_kafka, producer, tmp_path):
    async def main():
        given = options(fake_kafka.bootstrap_servers, enable_auto_commit=True)
        async with (
            aio.SafeConsumer("in", **given) as consumer,
            aio.SafeProducer(
                bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "aio"
            ) as mine,
        ):
            batch = mine.batch()
            with pytest.raises(UsageError, match="enable_auto_commit=False"):
                await batch.send_offsets(consumer)
            batch.drop()

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_consumer_waits_for_an_offset_that_a_transaction_is_about_to_change(
    fake_kafka, producer, isolation
):
    """What another process has in its spool is committed, and would be read again."""
    servers = fake_kafka.bootstrap_servers
    with opened(SafeConsumer, servers) as consumer:
        records = until(lambda: poll(consumer))
        # The transaction is decided, and the group's coordinator does not hear of it.
        fake_kafka._handler.transactions.markers_take_ms = 600_000
        with producer.batch() as batch:
            batch.send("out", b"sum")
            batch.send_offsets(consumer)
        batch.outcome.get(60)
    with opened(SafeConsumer, servers, isolation_level=isolation) as another:
        for _ in range(5):
            assert poll(another, 50) == []
        fake_kafka.advance(601)
        assert until(lambda: poll(another))[0].offset == records[-1].offset + 1


def test_offsets_that_are_not_awaited_end_the_batch(fake_kafka, producer, tmp_path):
    async def main():
        given = options(fake_kafka.bootstrap_servers)
        async with (
            aio.SafeConsumer("in", **given) as consumer,
            aio.SafeProducer(
                bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "aio"
            ) as mine,
        ):
            batch = mine.batch()
            batch.send("out", b"sum")
            batch.send_offsets(consumer)
            with pytest.raises(UsageError, match="not awaited"):
                await batch.commit()
            with pytest.raises(UsageError, match="dropped"):
                batch.outcome  # noqa: B018

    asyncio.run(asyncio.wait_for(main(), 120))

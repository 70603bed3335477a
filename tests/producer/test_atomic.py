"""Atomic batches and staged delivery, as users see them: on the fake cluster, and once on a real broker."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError, TopicAuthorizationFailedError
from kafka.structs import OffsetAndMetadata
from topics import read_values
from waiting import until

from kafkasafe import BatchDroppedError, SafeProducer, UsageError, WrongClusterError, events
from kafkasafe.config import validate
from kafkasafe.errors import ConfigError, RejectedError
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.testing import FakeCluster


def read(servers, *topics):
    """Values by topic that readers of committed records see, partition by partition."""
    logs = {topic: read_values(servers, topic, isolation_level="read_committed") for topic in topics}
    return {topic: [value for values in log.values() for value in values] for topic, log in logs.items()}


def see(servers, expected):
    """Readers see these values by topic, a moment after they are committed at the latest: markers come behind EndTxn."""
    for _ in range(100):
        found = read(servers, *expected)
        if found == expected:
            return
    assert found == expected


def has_committed(consumer, place, offset):
    """A group's offset is this, a moment after the batch with it is committed at the latest."""
    for _ in range(200):
        found = consumer.committed(place)
        if found == offset:
            return
        consumer.poll(50)
    assert found == offset


@pytest.fixture
def producer(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=2)
    fake_kafka.create_topic("audit", partitions=1)
    seen = []
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", on_event=seen.append
    ) as made:
        made.seen = seen
        yield made


def test_all_of_a_batch_is_delivered_and_told(producer, fake_kafka):
    called = []
    with producer.batch() as batch:
        first = batch.send("orders", b"1", key=b"a")
        second = batch.send("audit", b"one", headers=[("h", b"x")])
    batch.outcome.add_callback(called.append)
    assert batch.outcome.durable(60) is batch.outcome
    done = batch.outcome.get(60)
    assert done.records == 2
    assert done.offsets[TopicPartition("audit", 0)] == (0, 0)
    assert called == [done]
    assert (first.get(60).topic, second.get(60).offset) == ("orders", 0)
    see(fake_kafka.bootstrap_servers, {"orders": [b"1"], "audit": [b"one"]})
    committed = [event for event in producer.seen if isinstance(event, events.AtomicBatchCommitted)]
    assert [(event.batch_id, event.records, event.partitions) for event in committed] == [
        (done.batch_id, 2, 2)
    ]


@pytest.mark.parametrize("end", ["commit", "drop"])
def test_a_batch_that_is_over_does_not_keep_its_producer(fake_kafka, tmp_path, end):
    """It stood in a cycle of references: a producer that was dropped lived on until the garbage collector came."""
    fake_kafka.create_topic("orders")
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool")
    batch = producer.batch()
    batch.send("orders", b"1")
    gc.collect()
    gc.disable()
    try:
        getattr(batch, end)()
        with pytest.warns(ResourceWarning, match=r"dropped without close"):
            del producer, batch
    finally:
        gc.enable()


def test_an_exception_in_the_block_sends_nothing(producer, fake_kafka):
    batch = producer.batch()

    def fails():
        with batch:
            futures.append(batch.send("orders", b"1"))
            raise KeyError("no")

    futures = []
    with pytest.raises(KeyError):
        fails()
    [future] = futures
    with pytest.raises(UsageError, match="dropped"):
        future.get(1)
    with pytest.raises(UsageError, match="dropped"):
        batch.outcome.get(1)
    with producer.batch() as batch:
        batch.send("audit", b"after")
    batch.outcome.get(60)
    see(fake_kafka.bootstrap_servers, {"orders": [], "audit": [b"after"]})


def test_nothing_can_be_waited_for_while_the_block_is_open(producer):
    with producer.batch() as batch:
        future = batch.send("orders", b"1")
        with pytest.raises(UsageError, match="still open"):
            future.get(1)
        with pytest.raises(UsageError, match="still open"):
            batch.outcome  # noqa: B018
    assert future.get(60).offset == 0
    with pytest.raises(UsageError, match="committed already"):
        batch.send("orders", b"2")


def test_records_and_batches_keep_the_order_in_which_they_were_accepted(producer, fake_kafka):
    for number in range(6):
        producer.send("audit", b"p%d" % number)
        with producer.batch() as batch:
            batch.send("audit", b"u%d" % number)
            batch.send("orders", b"u%d" % number, partition=0)
    producer.flush(60)
    expected = [b"%s%d" % (kind, number) for number in range(6) for kind in (b"p", b"u")]
    see(fake_kafka.bootstrap_servers, {"audit": expected})


def test_what_the_cluster_refuses_for_good_takes_all_of_the_batch_with_it(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=1)
    fake_kafka.create_topic("small", partitions=1, config={"max.message.bytes": 200})
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool"
    ) as producer:
        with producer.batch() as batch:
            batch.send("orders", b"1")
            future = batch.send("small", bytes(500))
        with pytest.raises(BatchDroppedError, match="MESSAGE_TOO_LARGE"):
            batch.outcome.get(60)
        assert future.exception is not None
        with producer.batch() as batch:
            batch.send("orders", b"2")
        batch.outcome.get(60)
    see(fake_kafka.bootstrap_servers, {"orders": [b"2"], "small": []})
    assert len(list((tmp_path / "spool").glob("lane-*/rejected/*.log"))) == 2


def test_a_batch_waits_in_the_spool_and_the_next_life_delivers_it(fake_kafka, tmp_path):
    # Nobody ever heard of the topics: their partitions are chosen when it is delivered.
    producer = SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path / "spool")
    with producer.batch() as batch:
        batch.send("orders", b"1", key=b"a")
        batch.send("audit", b"one")
    batch.outcome.durable(60)
    producer.close(0)
    fake_kafka.create_topic("orders", partitions=2)
    fake_kafka.create_topic("audit", partitions=1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool"
    ) as producer:
        producer.flush(60)
    see(fake_kafka.bootstrap_servers, {"orders": [b"1"], "audit": [b"one"]})


def test_staged_delivery_is_seen_when_it_is_committed(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", partitions=3)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        delivery="transactional",
        linger_ms=1,
    ) as producer:
        futures = [producer.send("orders", b"%d" % i, key=b"%d" % (i % 7)) for i in range(500)]
        assert len({(f.get(60).partition, f.get(60).offset) for f in futures}) == 500
    for _ in range(100):
        values = read(fake_kafka.bootstrap_servers, "orders")["orders"]
        if len(values) >= 500:
            break
    assert sorted(values) == sorted(b"%d" % i for i in range(500))


def test_offsets_are_committed_with_the_batch_or_not_at_all(fake_kafka, tmp_path):
    servers = fake_kafka.bootstrap_servers
    fake_kafka.create_topic("in", partitions=1)
    fake_kafka.create_topic("out", partitions=1)
    place = TopicPartition("in", 0)
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path / "spool") as producer:
        with producer.batch() as batch:
            batch.send("out", b"1")
            batch.send_offsets({place: 7}, "readers")
        batch.outcome.get(60)
        # Nothing but offsets is a batch, too.
        with producer.batch() as batch:
            batch.send_offsets({place: 9}, "readers")
        batch.outcome.get(60)
    consumer = KafkaConsumer(
        bootstrap_servers=servers, group_id="readers", enable_auto_commit=False, kafka_client=tidy_client
    )
    try:
        has_committed(consumer, place, 9)
    finally:
        consumer.close()


def test_a_consumer_that_lost_its_partitions_gets_nothing_committed(kafka, tmp_path):
    servers = kafka.bootstrap_servers
    kafka.create_topic("members-in", partitions=1)
    kafka.create_topic("members-out", partitions=1)
    with SafeProducer(bootstrap_servers=servers, spool_dir=tmp_path / "spool") as producer:
        for number in range(3):
            producer.send("members-in", b"%d" % number)
        producer.flush(60)
        consumer = KafkaConsumer(
            "members-in",
            bootstrap_servers=servers,
            group_id="members",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        # No short polls: one that ends while it waits for SyncGroup's answer may leave kafka-python's consumer
        # rebalancing for ever.
        seen = 0
        while seen < 3:
            found = consumer.poll(120_000)
            assert found, f"{seen} records"
            seen += sum(map(len, found.values()))
        with producer.batch() as batch:
            batch.send("members-out", b"done")
            batch.send_offsets(consumer)
        batch.outcome.get(60)
        metadata = consumer.group_metadata()
        has_committed(consumer, TopicPartition("members-in", 0), 3)
        consumer.close()
        with producer.batch() as batch:
            batch.send("members-out", b"too late")
            batch.send_offsets({TopicPartition("members-in", 0): 1}, metadata)
        with pytest.raises(BatchDroppedError) as raised:
            batch.outcome.get(60)
        assert raised.value.code in {22, 25}
        with producer.batch() as batch:
            batch.send("members-out", b"after")
        batch.outcome.get(60)
    see(servers, {"members-out": [b"done", b"after"]})


def test_wrong_options_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'transactional'"):
        SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path, delivery="transaction")


def test_to_await_a_record_of_a_batch_that_is_not_committed_is_an_error(producer):
    async def waited(future):
        return await asyncio.wait_for(asyncio.ensure_future(awaited(future)), 10)

    async def awaited(future):
        return await future

    batch = producer.batch()
    future = batch.send("t", b"x")
    with pytest.raises(UsageError, match="still open"):
        asyncio.run(waited(future))
    batch.drop()
    with pytest.raises(UsageError, match="was dropped"):
        asyncio.run(waited(future))


def test_a_callback_that_is_added_after_the_close_is_called_at_once(producer):
    with producer.batch() as batch:
        batch.send("t", b"x")
    batch.outcome.add_callback(lambda _: None).get(60)
    producer.close()
    until(lambda: not [thread for thread in threading.enumerate() if "kafkasafe-callbacks" in thread.name])
    called = []
    batch.outcome.add_both(called.append)
    assert called == [batch.outcome.value]


def test_a_callback_that_is_added_after_the_close_leaves_no_thread(producer):
    """The first callback of a producer that was closed started a thread, which never ended."""
    with producer.batch() as batch:
        batch.send("t", b"x")
    batch.outcome.get(60)
    producer.close()
    called = []
    batch.outcome.add_callback(called.append)
    until(lambda: called)
    until(lambda: not [thread for thread in threading.enumerate() if "kafkasafe-callbacks" in thread.name])


def test_a_callback_that_is_added_while_others_are_called_is_called_as_well(producer):
    """The thread that adds it has looked up the list, then the callback thread has its turn."""
    with producer.batch() as batch:
        batch.send("orders", b"1")
    outcome = batch.outcome
    outcome.get(60)
    called = []
    unit = outcome.unit
    calls = unit.callbacks
    unit.call(0)
    calls.append((True, called.append))
    unit.watch()
    producer.flush(60)
    assert called == [outcome.get(60)]


ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("offsets", "group"),
    [
        ({ORDERS: -1}, "g"),
        ({ORDERS: 2**63}, "g"),
        ({ORDERS: None}, "g"),
        ({ORDERS: "5"}, "g"),
        ({ORDERS: OffsetAndMetadata("5", "", -1)}, "g"),
        ({ORDERS: OffsetAndMetadata(5, 7, -1)}, "g"),
        ({ORDERS: OffsetAndMetadata(5, "\ud800", -1)}, "g"),
        ({ORDERS: OffsetAndMetadata(5, "", 2**31)}, "g"),
        ({TopicPartition("orders", "0"): 5}, "g"),
        ({TopicPartition(None, 0): 5}, "g"),
        ({("orders", 0): 5}, "g"),
        ({ORDERS: 5}, 7),
        ({ORDERS: 5}, ""),
        ({TopicPartition("or ders", 0): 5}, "g"),
        (5, "g"),
        ([ORDERS], None),
        ({ORDERS: 5}, "\ud800"),
        ({ORDERS: 5}, "g" * 40_000),
    ],
    ids=str,
)
def test_offsets_that_cannot_be_written_are_refused_and_the_producer_goes_on(producer, offsets, group):
    """They ended it: nothing of the process was delivered any more."""
    with producer.batch() as batch:
        with pytest.raises((TypeError, ValueError)):
            batch.send_offsets(offsets, group)
        batch.send("orders", b"", partition=0)
    assert batch.outcome.get(60)


@pytest.mark.parametrize(
    "wrong", [None, 5, b"id", "\ud800", "i" * 40_000], ids=lambda wrong: repr(wrong)[:10]
)
def test_a_transactional_id_that_cannot_be_written_is_refused(producer, wrong):
    error = ConfigError if isinstance(wrong, str) else TypeError
    with pytest.raises(error, match="transactional_id"):
        producer.batch(transactional_id=wrong)
    with producer.batch() as batch:
        batch.send("orders", b"", partition=0)
    assert batch.outcome.get(60)


def test_the_same_string_raises_the_same_error_as_an_option_and_as_an_argument(producer):
    too_long = {"transactional_id": "i" * 40_000}
    with pytest.raises(ConfigError) as of_argument:
        producer.batch(**too_long)
    with pytest.raises(ConfigError) as of_option:
        validate(too_long)
    assert str(of_argument.value) == str(of_option.value)


@pytest.mark.parametrize(
    "options",
    [
        {"transactional_id": "\ud800"},
        {"transactional_id": "i" * 40_000},
        {"transaction_timeout_ms": 2**31},
    ],
    ids=str,
)
def test_what_cannot_be_sent_is_refused_as_an_option(tmp_path, options):
    """It was accepted, and `init_transactions` waited for an answer to what was never sent."""
    with pytest.raises(ConfigError, match=next(iter(options))):
        SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=tmp_path, **options)


def test_what_cannot_be_called_is_refused(producer):
    with producer.batch() as batch:
        batch.send("orders", b"1")
    with pytest.raises(TypeError, match="add_callback"):
        batch.outcome.add_callback(None)


def test_who_waits_in_vain_hears_what_the_cluster_refuses(fake_kafka, tmp_path):
    """Of the batch, and of what stands behind it."""
    fake_kafka.create_topic("orders", 1)
    fake_kafka.deny("read", group="g")
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path, retry_backoff_ms=20
    ) as producer:
        with producer.batch() as batch:
            batch.send("orders", b"1")
            batch.send_offsets({ORDERS: 5}, "g")
        assert producer._pump.wait(lambda: bool(producer._pump.refused()), 60)
        with pytest.raises(KafkaTimeoutError, match="group g: GROUP_AUTHORIZATION_FAILED"):
            batch.outcome.get(0.1)
        behind = producer.send("orders", b"2")
        with pytest.raises(KafkaTimeoutError, match="group g: GROUP_AUTHORIZATION_FAILED"):
            behind.get(0.1)
        fake_kafka.deny("read", group="g", on=False)
        assert batch.outcome.get(60)


def test_a_record_that_is_refused_with_its_batch_does_not_say_that_it_is_its_fault(fake_kafka, tmp_path):
    fake_kafka.create_topic("orders", 1)
    fake_kafka.create_topic("small", 1, config={"max.message.bytes": 1000})
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        with producer.batch() as batch:
            innocent = batch.send("orders", b"1")
            batch.send("small", bytes(2000))
        with pytest.raises(
            RejectedError, match="part of an atomic batch that was rejected as a whole: MESSAGE_TOO"
        ):
            innocent.get(60)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_is_not_refused_for_what_stands_beside_it_in_a_batch(fake_kafka, tmp_path, partitions):
    """`send` raised for all topics of a batch when one of them was forbidden, and said that their right was missing."""
    fake_kafka.create_topic("free", partitions)
    fake_kafka.create_topic("forbidden", partitions)
    fake_kafka.deny("write", topic="forbidden")
    seen = []
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers,
        spool_dir=tmp_path,
        retry_backoff_ms=20,
        on_event=seen.append,
    ) as producer:
        with producer.batch() as batch:
            batch.send("free", b"1", partition=0)
            batch.send("forbidden", b"1", partition=0)
        assert producer._pump.wait(lambda: bool(producer._pump.refused_topics), 60)
        behind = producer.send("free", b"2", partition=0)
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send("forbidden", b"2")
        with pytest.raises(
            KafkaTimeoutError, match="Blocked by the cluster: forbidden-0: TOPIC_AUTHORIZATION"
        ) as waited:
            behind.get(0.1)
        assert "free-0" not in str(waited.value)
        [refused] = producer._pump.refused()
        assert (refused.topic, refused.partition) == ("forbidden", 0)
        assert refused.reason.endswith("forbidden-0")
        fake_kafka.deny("write", topic="forbidden", on=False)
        assert batch.outcome.get(60)
        assert behind.get(60)
    assert {each.topic for each in seen if isinstance(each, events.TopicBlocked)} == {"forbidden"}


def test_offsets_of_a_batch_that_waits_for_its_cluster_are_not_called_dropped(tmp_path):
    with FakeCluster() as ours, FakeCluster() as other:
        for cluster in (ours, other):
            cluster.create_topic("orders", partitions=1)
        with SafeProducer(bootstrap_servers=ours.bootstrap_servers, spool_dir=tmp_path) as producer:
            producer.send("orders", b"0").get(60)
            ours.kill(1)
            producer.send("orders", b"1").durable(60)
            producer.close(timeout=0)
        other.refuse()  # or the producer could end before it has the batch
        stranger = SafeProducer(bootstrap_servers=other.bootstrap_servers, spool_dir=tmp_path)
        with stranger.batch() as batch:
            batch.send("orders", b"2")
            batch.send_offsets({TopicPartition("in", 0): 5}, "g")
        other.restore()
        with pytest.raises(WrongClusterError):
            batch.outcome.get(60)
        with pytest.raises(WrongClusterError):
            stranger.batch().send_offsets({TopicPartition("in", 0): 6}, "g")
        with pytest.raises(WrongClusterError):
            stranger.close()

"""KafkaProducer's transactional methods: the same calls, results and errors, and what a crash leaves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import threading
import uuid

import harness
import kafka.errors as kafka_errors
import pytest
from ctrl_c import PRODUCER, CtrlC
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata
from waiting import until

from kafkasafe import SafeProducer, aio
from kafkasafe.errors import BatchDroppedError, ConfigError
from kafkasafe.logging_handler import KafkaHandler
from kafkasafe.testing import FakeCluster, KafkaCluster

CURRENT, OLD = "4.3.0", "2.8.2"
ABORTING = PRODUCER | {"kafkasafe.transactional", "kafkasafe.atomic"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((FakeCluster, CURRENT), id="fake-4.3"),
        pytest.param((FakeCluster, OLD), id="fake-2.8"),
        pytest.param((KafkaCluster, CURRENT), id="kafka-4.3", marks=pytest.mark.kafka),
        pytest.param((KafkaCluster, OLD), id="kafka-2.8", marks=pytest.mark.kafka),
    ],
)
def cluster(request):
    kind, version = request.param
    with kind(brokers=1, version=version) as running:
        yield running


@pytest.fixture(scope="module")
def fake():
    with FakeCluster(brokers=1) as running:
        yield running


@pytest.fixture
def opened(tmp_path):
    """Opens transactional producers, each on a spool of its own, and closes them."""
    all_of_them = []

    def open_one(kind, cluster, name=None, **options):
        mine = {"spool_dir": tmp_path / f"spool-{len(all_of_them)}"} if kind is SafeProducer else {}
        all_of_them.append(
            kind(
                bootstrap_servers=cluster.bootstrap_servers,
                transactional_id=name or f"txn-{uuid.uuid4().hex[:8]}",
                **mine,
                **options,
            )
        )
        return all_of_them[-1]

    yield open_one
    for each in all_of_them:
        each.close(timeout=10)


def topic_of(cluster, partitions=1):
    name = f"t-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, partitions)
    return name


def read(cluster, topic, *, isolation="read_committed"):
    """The values that a reader sees, by partition; it waits until nothing is undecided."""
    harness.until_decided(cluster.bootstrap_servers, topic)
    return harness.read_values(cluster.bootstrap_servers, topic, isolation_level=isolation)


def position(cluster, group, at):
    """What is committed; it waits until nothing is undecided."""
    reader = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        isolation_level="read_committed",
        kafka_client=harness.tidy_client,
    )
    try:
        return reader.committed(at)
    finally:
        reader.close()


# -- What kafka-python tests of its own --------------------------------------------------------------------------------


def test_records_of_a_committed_transaction_are_seen_and_those_of_an_aborted_one_are_not(cluster, opened):
    topic = topic_of(cluster)
    with opened(SafeProducer, cluster) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, partition=0, value=b"1").get()
        producer.send(topic, partition=0, value=b"2").get()
        producer.abort_transaction()
        producer.begin_transaction()
        third = producer.send(topic, partition=0, value=b"3")
        assert third.get().offset == -1
        producer.send(topic, partition=0, value=b"4").get()
        producer.commit_transaction()
        assert third.get().offset >= 0
    assert read(cluster, topic) == {0: [b"3", b"4"]}
    assert read(cluster, topic, isolation="read_uncommitted") == {0: [b"3", b"4"]}, "an aborted one was sent"


def test_offsets_are_committed_with_the_transaction_or_not_at_all(cluster, opened):
    topic, group = topic_of(cluster, 2), f"g-{uuid.uuid4().hex[:8]}"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with opened(SafeProducer, cluster) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, partition=0, value=b"1").get()
        producer.send_offsets_to_transaction({first: OffsetAndMetadata(7, "metadata", 0)}, group)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({second: OffsetAndMetadata(1, "bad", 1)}, group)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({first: OffsetAndMetadata(8, "", -1)}, group)
        producer.commit_transaction()
    assert (position(cluster, group, first), position(cluster, group, second)) == (8, None)


@pytest.mark.parametrize("kind", [SafeProducer, KafkaProducer])
def test_offsets_of_several_calls_are_all_committed(cluster, opened, kind):
    topic, group = topic_of(cluster, 3), f"g-{uuid.uuid4().hex[:8]}"
    places = [TopicPartition(topic, number) for number in range(3)]
    with opened(kind, cluster) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, partition=0, value=b"1")
        for offsets in ({0: 4, 1: 5}, {1: 6}, {2: 7}):
            given = {places[number]: OffsetAndMetadata(offset, "", -1) for number, offset in offsets.items()}
            producer.send_offsets_to_transaction(given, group)
        producer.commit_transaction()
    assert [position(cluster, group, at) for at in places] == [4, 6, 7]


def test_a_group_of_the_same_name_as_the_transactional_id_keeps_its_offsets(cluster, opened):
    topic, name = topic_of(cluster), f"app-{uuid.uuid4().hex[:8]}"
    at = TopicPartition(topic, 0)
    with opened(SafeProducer, cluster, name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, partition=0, value=b"1")
        producer.send_offsets_to_transaction({at: OffsetAndMetadata(7, "", -1)}, name)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, partition=0, value=b"2")
        producer.commit_transaction()
    assert position(cluster, name, at) == 7


# -- Calls in the wrong order, beside KafkaProducer --------------------------------------------------------------------


def outcome(call):
    """What a call does: the error's type, in kafka-python's terms."""
    try:
        call()
    except Exception as error:
        return next(
            kind for kind in type(error).__mro__ if kind.__module__.startswith(("kafka.", "builtins"))
        )
    return None


OFFSETS = {TopicPartition("t", 0): OffsetAndMetadata(1, "", -1)}

STEPS = {
    "begin": lambda producer, _: producer.begin_transaction(),
    "send": lambda producer, topic: producer.send(topic, b"x", partition=0),
    "offsets": lambda producer, topic: producer.send_offsets_to_transaction(
        {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}, "g"
    ),
    "none": lambda producer, _: producer.send_offsets_to_transaction({}, "g"),
    "garbage": lambda producer, _: producer.send_offsets_to_transaction({}, 5),
    "nobody": lambda producer, _: producer.send_offsets_to_transaction(
        {}, ConsumerGroupMetadata("g", 3, "", None)
    ),
    "commit": lambda producer, _: producer.commit_transaction(),
    "abort": lambda producer, _: producer.abort_transaction(),
    "init": lambda producer, _: producer.init_transactions(),
    "flush": lambda producer, _: producer.flush(),
    "wrong": lambda producer, _: producer.send("no such name!", b"x"),
    "large": lambda producer, topic: producer.send(topic, b"x" * 2_000_000),
}


@pytest.mark.parametrize(
    "order",
    [
        "begin",
        "send",
        "commit",
        "abort",
        "offsets",
        "init send commit",
        "init commit",
        "init abort offsets",
        "init begin begin send commit",
        "init begin init send flush none commit commit send",
        "init begin garbage nobody commit",
        "init begin commit begin abort abort",
        "init begin send abort begin send commit",
        "init begin offsets commit begin offsets abort",
        "init begin wrong large send commit",
        "init init begin send commit",
    ],
)
def test_calls_in_any_order_end_as_those_of_kafka_producer(fake, opened, order):
    topic = topic_of(fake)
    found = []
    for kind in (KafkaProducer, SafeProducer):
        producer = opened(kind, fake)
        found.append(
            [(step, outcome(lambda p=producer, s=step: STEPS[s](p, topic))) for step in order.split()]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", [KafkaProducer, SafeProducer])
def test_without_a_transactional_id_there_are_no_transactions(fake, tmp_path, kind):
    mine = {"spool_dir": tmp_path} if kind is SafeProducer else {}
    with kind(bootstrap_servers=fake.bootstrap_servers, **mine) as producer:
        for step in ("init", "begin", "offsets", "commit", "abort"):
            assert outcome(lambda s=step: STEPS[s](producer, "t")) is kafka_errors.IllegalStateError


@pytest.mark.parametrize("name", ["", 5, b"x"])
def test_a_transactional_id_is_a_text(tmp_path, name):
    with pytest.raises(ConfigError, match="transactional_id must be a non-empty string"):
        SafeProducer(transactional_id=name, spool_dir=tmp_path)


@pytest.mark.parametrize("kind", [KafkaProducer, SafeProducer])
def test_a_partition_that_is_not_there_is_refused_before_anything_is_decided(fake, opened, kind):
    topic = topic_of(fake, 3)
    producer = opened(kind, fake)
    producer.init_transactions()
    producer.begin_transaction()
    for _ in range(2):
        with pytest.raises((AssertionError, ValueError), match=r"[Pp]artition"):
            producer.send(topic, b"x", partition=99)
    producer.send(topic, b"y", partition=2)
    producer.commit_transaction()
    assert read(fake, topic) == {0: [], 1: [], 2: [b"y"]}


@pytest.mark.parametrize("wrong", [None, [], 5], ids=str)
def test_offsets_that_are_none_do_not_pass_for_an_empty_dict(fake, opened, wrong):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"1")
    with pytest.raises(TypeError, match="offsets by partition"):
        producer.send_offsets_to_transaction(wrong, "g")
    producer.send_offsets_to_transaction({}, "g")
    producer.commit_transaction()


def test_what_has_no_transactions_takes_no_transactional_id():
    with pytest.raises(ConfigError, match=r"producer\.batch\(transactional_id"):
        aio.SafeProducer(bootstrap_servers="localhost:1", transactional_id="app")
    with pytest.raises(ConfigError, match="not sent in transactions"):
        KafkaHandler("logs", bootstrap_servers="localhost:1", transactional_id="app")


def test_an_abort_that_ctrl_c_interrupts_anywhere_is_finished_by_another_call(fake, opened):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    for step in range(0, 1000, 3):
        producer.begin_transaction()
        future = producer.send(topic, b"never")
        errors = []
        future.add_errback(errors.append)
        with contextlib.suppress(KeyboardInterrupt), CtrlC(step, ABORTING) as ctrl_c:
            producer.abort_transaction()
        if not ctrl_c.pressed:
            break
        with contextlib.suppress(kafka_errors.KafkaError):  # the interrupted call had finished
            producer.abort_transaction()
        assert isinstance(future.exception, kafka_errors.TransactionAbortedError), ctrl_c.place
        producer.flush()
        assert [type(each) for each in errors] == [kafka_errors.TransactionAbortedError], ctrl_c.place
    else:
        pytest.fail("the call did not end")
    producer.begin_transaction()
    producer.send(topic, b"1")
    producer.commit_transaction()
    assert read(fake, topic) == {0: [b"1"]}


def test_a_commit_that_fails_and_that_ctrl_c_interrupts_anywhere_can_be_repeated_and_aborted(fake, opened):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
    stranger = ConsumerGroupMetadata("g", 5, "stranger", None)
    for step in range(0, 1000, 3):
        producer.begin_transaction()
        producer.send(topic, b"never")
        producer.send_offsets_to_transaction(offsets, stranger)
        with CtrlC(step, {"kafkasafe.transactional"}) as ctrl_c:
            try:
                producer.commit_transaction()
            except (KeyboardInterrupt, kafka_errors.CommitFailedError) as error:
                interrupted = isinstance(error, KeyboardInterrupt)
        if not ctrl_c.pressed:
            break
        if interrupted:
            with pytest.raises(kafka_errors.KafkaError, match="group metadata mismatch"):
                producer.commit_transaction()
        producer.abort_transaction()
    else:
        pytest.fail("the call did not end")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"1")
    producer.commit_transaction()
    assert read(fake, topic) == {0: [b"1"]}


# -- Two with one id ---------------------------------------------------------------------------------------------------


def test_the_older_of_two_producers_is_fenced(cluster, opened):
    topic, name = topic_of(cluster), f"txn-{uuid.uuid4().hex[:8]}"
    older = opened(SafeProducer, cluster, name)
    older.init_transactions()
    older.begin_transaction()
    lost = older.send(topic, b"older", partition=0)
    newer = opened(SafeProducer, cluster, name)
    newer.init_transactions()
    newer.begin_transaction()
    newer.send(topic, b"newer", partition=0)
    newer.commit_transaction()
    with pytest.raises(kafka_errors.ProducerFencedError):
        older.commit_transaction()
    for step in ("begin", "abort", "commit", "offsets"):
        with pytest.raises(kafka_errors.KafkaError, match=r"we are in an error state.*Fenced"):
            STEPS[step](older, topic)
    with pytest.raises(kafka_errors.KafkaError, match=r"failed with errors.*Fenced"):
        older.send(topic, b"x")
    assert isinstance(lost.exception, kafka_errors.KafkaError)
    newer.begin_transaction()
    newer.send(topic, b"again", partition=0)
    newer.commit_transaction()
    assert read(cluster, topic) == {0: [b"newer", b"again"]}


@pytest.mark.parametrize("former_first", [True, False])
def test_offsets_of_two_generations_in_one_transaction_are_refused(fake, opened, former_first):
    """A partition of the former generation may have another owner, which reads the same records again."""
    topic, group = topic_of(fake, 2), f"g-{uuid.uuid4().hex[:8]}"
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    with contextlib.closing(
        KafkaConsumer(
            topic,
            bootstrap_servers=fake.bootstrap_servers,
            group_id=group,
            enable_auto_commit=False,
            kafka_client=harness.tidy_client,
        )
    ) as consumer:
        until(lambda: consumer.poll(timeout_ms=2000) or consumer.assignment())
        member = consumer.group_metadata()
        former = ConsumerGroupMetadata(group, member.generation_id - 1, member.member_id, None)
        producer.begin_transaction()
        producer.send(topic, b"out", partition=0)
        for number, whose in enumerate((former, member) if former_first else (member, former)):
            offsets = {TopicPartition(topic, number): OffsetAndMetadata(1, "", -1)}
            producer.send_offsets_to_transaction(offsets, whose)
        with pytest.raises(kafka_errors.CommitFailedError):
            producer.commit_transaction()
        producer.abort_transaction()


def test_a_consumer_that_is_out_of_its_group_commits_nothing(cluster, opened):
    topic, group = topic_of(cluster), f"g-{uuid.uuid4().hex[:8]}"
    at = TopicPartition(topic, 0)
    producer = opened(SafeProducer, cluster)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"before", partition=0)
    producer.commit_transaction()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        kafka_client=harness.tidy_client,
    )
    try:
        # Short polls would do what kafka-python cannot: one that ends while a leader whose topics became known after
        # its first join waits for SyncGroup's answer leaves it rebalancing, and without partitions, for ever.
        assert consumer.poll(timeout_ms=120_000)
        member = consumer.group_metadata()
        producer.begin_transaction()
        producer.send(topic, b"in", partition=0)
        producer.send_offsets_to_transaction({at: OffsetAndMetadata(1, "", -1)}, member)
        producer.commit_transaction()
        stale = ConsumerGroupMetadata(group, member.generation_id + 1, member.member_id, None)
        producer.begin_transaction()
        out = producer.send(topic, b"out", partition=0)
        producer.send_offsets_to_transaction({at: OffsetAndMetadata(2, "", -1)}, stale)
        with pytest.raises(kafka_errors.CommitFailedError):
            producer.commit_transaction()
    finally:
        consumer.close()
    assert out.failed()
    with pytest.raises(kafka_errors.KafkaError, match="error state"):
        producer.begin_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"after", partition=0)
    producer.commit_transaction()
    assert read(cluster, topic) == {0: [b"before", b"in", b"after"]}
    assert position(cluster, group, at) == 1


# -- Futures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KafkaProducer, SafeProducer])
def test_a_record_that_the_topic_finds_too_large_ends_the_commit_with_the_error_of_kafka_producer(
    fake, opened, kind
):
    topic = f"small-{uuid.uuid4().hex[:8]}"
    fake.create_topic(topic, partitions=1, config={"max.message.bytes": "1000"})
    # The batch is sent by the commit. KafkaProducer raises another error if the answer is there before.
    producer = opened(kind, fake, linger_ms=60_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"x" * 5000)
    with pytest.raises(kafka_errors.MessageSizeTooLargeError) as raised:
        producer.commit_transaction()
    assert not isinstance(raised.value, kafka_errors.RetriableError)
    producer.abort_transaction()


def test_what_futures_of_a_transaction_say(fake, opened):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    heard, called = [], threading.Event()

    def listen(future):
        future.add_callback(lambda metadata: heard.append(metadata.offset))
        future.add_errback(lambda error: (heard.append(type(error)), called.set()))
        return future

    producer.begin_transaction()
    future = listen(producer.send(topic, b"1"))
    assert (future.is_done, future.succeeded(), future.value) == (False, False, None)
    assert future.get(0).topic == topic
    producer.abort_transaction()
    assert (future.is_done, future.failed()) == (True, True)
    for ask in (future.get, future.durable):
        with pytest.raises(kafka_errors.TransactionAbortedError):
            ask()
    assert called.wait(60)
    assert heard == [kafka_errors.TransactionAbortedError]
    producer.begin_transaction()
    future = listen(producer.send(topic, b"2"))
    producer.commit_transaction()
    assert (future.is_done, future.succeeded(), future.get().offset, heard[1:]) == (True, True, 0, [0])


def test_after_a_commit_that_is_too_late_the_transaction_can_be_aborted(opened):
    """An atomic batch of the same producer, with offsets of the same group, was dropped meanwhile."""
    gone = ConsumerGroupMetadata("g", 5, "not a member", None)
    with FakeCluster(brokers=1) as cluster:
        topic = topic_of(cluster)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(1, "", -1)}
        producer = opened(SafeProducer, cluster)
        producer.init_transactions()
        cluster.kill_all()
        batch = producer.batch()
        batch.send_offsets(offsets, gone)
        outcome = batch.commit()
        producer.begin_transaction()
        future = producer.send(topic, b"1")
        producer.send_offsets_to_transaction(offsets, gone)
        cluster.start_all()
        with pytest.raises(BatchDroppedError):
            outcome.get(60)
        with pytest.raises(BatchDroppedError):
            producer.batch().send_offsets(offsets, gone)
        with pytest.raises(BatchDroppedError, match="Nothing of this batch is sent"):
            producer.commit_transaction()
        assert isinstance(future.exception, kafka_errors.TransactionAbortedError)
        producer.abort_transaction()
        producer.begin_transaction()
        assert producer.send(topic, b"2").get(0).offset == -1
        producer.commit_transaction()
        assert read(cluster, topic) == {0: [b"2"]}


def test_await_says_what_get_says(fake, opened):
    async def waited(future):
        return await asyncio.wait_for(asyncio.ensure_future(awaited(future)), 10)

    async def awaited(future):
        return await future

    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send(topic, b"1", partition=0)
    assert asyncio.run(waited(future)) == future.get(0)
    assert future.get(0).offset == -1
    producer.commit_transaction()
    assert asyncio.run(waited(future)) == future.get(0)
    assert future.get(0).offset == 0
    producer.begin_transaction()
    future = producer.send(topic, b"2")
    producer.abort_transaction()
    with pytest.raises(kafka_errors.TransactionAbortedError):
        asyncio.run(waited(future))


def test_an_errback_that_is_added_after_the_abort_is_called_at_once(fake, opened):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    for end in (producer.abort_transaction, producer.close):
        producer.begin_transaction()
        future = producer.send(topic, b"1")
        end()
        heard = []
        future.add_errback(heard.append).add_both(heard.append).add_callback(heard.append)
        assert [type(each) for each in heard] == [kafka_errors.TransactionAbortedError] * 2


def test_callbacks_have_run_when_the_commit_returns(fake, opened):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    offsets = []
    for number in range(3):
        producer.begin_transaction()
        future = producer.send(topic, b"x", partition=0)
        for _ in range(2):
            future.add_callback(lambda metadata: offsets.append(metadata.offset))
        producer.commit_transaction()
        assert offsets == [offset for number in range(number + 1) for offset in [2 * number] * 2]


def test_a_producer_that_is_closed_in_a_transaction_aborts_it_and_says_so(fake, opened, caplog):
    topic = topic_of(fake)
    producer = opened(SafeProducer, fake)
    producer.init_transactions()
    producer.begin_transaction()
    future = producer.send(topic, b"1")
    with caplog.at_level(logging.WARNING, logger="kafkasafe"):
        producer.close()
    assert "closed with an open transaction. It is aborted" in caplog.text
    assert isinstance(future.exception, kafka_errors.TransactionAbortedError)
    assert read(fake, topic, isolation="read_uncommitted") == {0: []}


# -- Trouble -----------------------------------------------------------------------------------------------------------


def test_init_waits_no_longer_than_it_may_and_may_be_called_again(opened):
    with FakeCluster(brokers=1) as cluster:
        topic = topic_of(cluster)
        cluster.pause(1)
        producer = opened(SafeProducer, cluster, max_block_ms=200)
        with pytest.raises(kafka_errors.KafkaTimeoutError, match=r"Call init_transactions\(\) again"):
            producer.init_transactions()
        with pytest.raises(kafka_errors.KafkaError, match="UNINITIALIZED"):
            producer.begin_transaction()
        cluster.resume(1)

        def ready():
            try:
                producer.init_transactions()
            except kafka_errors.KafkaTimeoutError:
                return False
            return True

        until(ready)
        producer.begin_transaction()
        producer.send(topic, b"1")
        producer.commit_transaction()
        assert read(cluster, topic) == {0: [b"1"]}
        producer.close()


def test_init_says_what_the_last_transaction_waits_for(tmp_path):
    with FakeCluster(brokers=1, config={"auto.create.topics.enable": "false"}) as cluster:
        mine = {
            "bootstrap_servers": cluster.bootstrap_servers,
            "spool_dir": tmp_path,
            "transactional_id": "app",
        }
        producer = SafeProducer(**mine)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("gone", b"1", partition=0)
        committing = threading.Thread(target=outcome, args=(producer.commit_transaction,))
        committing.start()
        until(lambda: any(b"gone" in log.read_bytes() for log in tmp_path.rglob("*.log")))
        producer.close(timeout=0)
        committing.join(60)
        with SafeProducer(**mine, max_block_ms=2000) as producer:
            until(producer._pump.refused)
            with pytest.raises(
                kafka_errors.KafkaTimeoutError, match=r"Blocked by the cluster: gone-0.*create the topic"
            ):
                producer.init_transactions()
            cluster.create_topic("gone")
            until(lambda: outcome(producer.init_transactions) is None)
        assert read(cluster, "gone") == {0: [b"1"]}


def test_a_cluster_that_refuses_the_id_says_so_at_once(fake, opened):
    producer = opened(SafeProducer, fake, transaction_timeout_ms=9_000_000)
    with pytest.raises(kafka_errors.InvalidTransactionTimeoutError, match=r"transaction\.max\.timeout\.ms"):
        producer.init_transactions()
    name = f"txn-{uuid.uuid4().hex[:8]}"
    fake.deny("write", transactional_id=name)
    producer = opened(SafeProducer, fake, name)
    with pytest.raises(kafka_errors.TransactionalIdAuthorizationFailedError):
        producer.init_transactions()


def test_a_commit_that_was_interrupted_goes_on_when_it_is_called_again(opened):
    with FakeCluster(brokers=1) as cluster:
        topic = topic_of(cluster)
        producer = opened(SafeProducer, cluster)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"1")
        cluster.pause(1)

        def interrupt(*_):
            raise KeyboardInterrupt

        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                producer.commit_transaction()
        finally:
            signal.signal(signal.SIGALRM, former)
        with pytest.raises(kafka_errors.KafkaError, match="from state COMMITTING_TRANSACTION"):
            producer.abort_transaction()
        cluster.resume(1)
        producer.commit_transaction()
        assert read(cluster, topic) == {0: [b"1"]}
        producer.close()


# -- kill -9 -----------------------------------------------------------------------------------------------------------

CHILD = """
import sys
from kafka import TopicPartition
from kafka.structs import OffsetAndMetadata
from kafkasafe import SafeProducer
servers, spool, topic, name = sys.argv[1:]
producer = SafeProducer(bootstrap_servers=servers.split(","), spool_dir=spool, transactional_id=name)
producer.init_transactions()
producer.begin_transaction()
producer.send(topic, b"first", partition=0)
producer.commit_transaction()
producer.begin_transaction()
for number in range(3):
    producer.send(topic, b"second-%d" % number, partition=number)
producer.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(7, "", -1)}, name)
print("open", flush=True)
sys.stdin.readline()
producer.commit_transaction()
print("committed", flush=True)
sys.stdin.readline()
"""


@pytest.mark.crash
@pytest.mark.parametrize("moment", ["open", "decided", "committed"])
def test_after_a_kill_the_next_life_knows_and_ends_what_was_decided(cluster, tmp_path, moment):
    topic, name = topic_of(cluster, 3), f"txn-{uuid.uuid4().hex[:8]}"
    spool = tmp_path / "spool"
    arguments = [",".join(cluster.bootstrap_servers), str(spool), topic, name]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout.readline() == "open\n"
            if moment == "decided":
                cluster.pause(1)
            if moment != "open":
                child.stdin.write("\n")
                child.stdin.flush()
            if moment == "decided":
                until(lambda: any(b"second-2" in log.read_bytes() for log in spool.rglob("*.log")))
            if moment == "committed":
                assert child.stdout.readline() == "committed\n"
        finally:
            child.kill()
            child.wait()
            if moment == "decided":
                cluster.resume(1)
    seen = moment != "open"
    with SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers, spool_dir=spool, transactional_id=name
    ) as producer:
        last = producer.init_transactions()
        assert last.committed
        assert last.error is None
        assert last.offsets == ({name: {TopicPartition(topic, 0): 7}} if seen else {})
        producer.begin_transaction()
        producer.send(topic, b"third", partition=0)
        producer.commit_transaction()
    found = read(cluster, topic)
    assert found[0] == [b"first", *([b"second-0"] if seen else []), b"third"]
    assert (found[1], found[2]) == (([b"second-1"], [b"second-2"]) if seen else ([], []))
    assert position(cluster, name, TopicPartition(topic, 0)) == (7 if seen else None)

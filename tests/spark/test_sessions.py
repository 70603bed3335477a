"""The driver's side of a transaction on a real broker, without Spark."""

from __future__ import annotations

import re
import struct
import threading
import time
from collections import Counter
from dataclasses import replace
from unittest import mock

import crc32c
import pytest
from confluent_kafka import Producer
from kafka.errors import KafkaError, UnknownTopicOrPartitionError
from sinks import new_name, options, values

from kafkasafe.cluster.api import MetadataRefreshed
from kafkasafe.errors import CheckpointMismatchError, ConfigError, WaitTimeoutError
from kafkasafe.record import batch
from kafkasafe.spark import transactions
from kafkasafe.spark.appender import FencedError, RestartError
from kafkasafe.spark.session import Session
from kafkasafe.spark.sink_options import sink_options
from kafkasafe.spark.transactions import TransactionRequests, _error
from kafkasafe.spark.txn import Marker, Report
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

pytestmark = pytest.mark.kafka


@pytest.fixture
def make(kafka):
    topic, markers, app = new_name(), new_name("markers"), new_name("app")
    kafka.create_topic(topic, partitions=2)
    made = []

    def session(app_id=app, **more):
        given = options(kafka, topic=topic, markerTopic=markers, txnAppId=app_id, **more)
        made.append(Session(sink_options(given), app_id))
        return made[-1]

    yield session
    for one in made:
        one.close()


def write(session, batch_id):
    return session.write(batch_id, "q", lambda _: [], plan=f"plan {batch_id}", count=lambda: 0).name


def test_a_transaction_of_another_id_on_the_marker_partition_stops_nobody(kafka, make):
    old = make()
    assert write(old, 0) == "written"
    # Its next marker, which is aborted.
    grant = old.transaction.fence()
    old.transaction.open(grant)
    old.markers.write(grant, Marker(2, "q", 0, "plan 1"))
    old.transaction.abort(grant)
    blocker = Producer(
        {"bootstrap.servers": ",".join(kafka.bootstrap_servers), "transactional.id": new_name("blocker")}
    )
    blocker.init_transactions(60)
    blocker.begin_transaction()
    for partition in range(8):
        blocker.produce(old._options.marker_topic, b"x", b"foreign", partition)
    assert blocker.flush(60) == 0
    try:
        # A new id, and one whose group's offset has expired: both read the topic.
        assert write(make(new_name("app"), **{"kafka.max.block.ms": 50_000}), 0) == "written"
        with kafka.admin() as admin:
            admin.delete_groups([old._id])
        again = make(**{"kafka.max.block.ms": 50_000})
        again.transaction.fence()
        assert again.markers.read() == Marker(1, "q", 0, "plan 0")
        assert write(again, 0) == "duplicate"
        assert write(again, 1) == "written"
    finally:
        blocker.abort_transaction(60)


def test_a_batch_that_takes_longer_than_its_transaction_names_the_option(make, monkeypatch):
    session = make(maxRestarts=1)
    replaced = make()

    def late(_):
        replaced.transaction.fence()  # as the coordinator does when the time is over
        session.transaction._opened_at -= 600
        return []

    with pytest.raises(
        FencedError, match=r"took longer than kafka\.transaction\.timeout\.ms=600000.*raise that"
    ):
        session.write(0, "q", late, plan="p", count=lambda: 0)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_batch_that_was_started_too_often_leaves_no_open_transaction(restarts):
    """Readers of committed records waited until it had timed out, ten minutes by default."""
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=1)
        given = {"topic": "t", "txnAppId": "app", "maxRestarts": restarts}
        session = Session(sink_options(options(cluster, **given)), "app")
        ends = []

        def work(grant):
            data = bytearray(batch.encode([None], [b"x"], timestamps=1))
            session.transaction.append(grant, {("t", 0)}, [("t", 0, data)], Counter())
            ends.append(cluster.requests["EndTxn"])
            raise RestartError("A task was started again")

        with pytest.raises(RestartError):
            session.write(0, "q", work, plan="p", count=lambda: 1)
        assert ends == [0] * (restarts + 1)
        assert cluster.requests["EndTxn"] == 1
        session.close()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_marker_topic_that_was_created_by_hand_needs_no_permission_to_create(is_there):
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=1)
        if is_there:
            cluster.create_topic("kafkasafe-spark-markers", partitions=3)
        cluster.deny("create", topic="kafkasafe-spark-markers")
        given = {"topic": "t", "txnAppId": "app", "kafka.max.block.ms": 30_000 if is_there else 3000}
        session = Session(sink_options(options(cluster, **given)), "app")
        if is_there:
            assert session.write(0, "q", lambda _: [], plan="p", count=lambda: 0).name == "written"
            assert session.markers.read().next_batch_id == 1
        else:
            with pytest.raises(
                ConfigError, match=r"needs the permission CREATE on the topic.*create it by hand"
            ):
                session.write(0, "q", lambda _: [], plan="p", count=lambda: 0)
        session.close()


def test_a_topic_that_brokers_do_not_know_is_missing_even_if_the_last_answer_comes_too_late():
    """The last request of several gets what is left of the time: a moment, in which no broker may answer."""
    asked = []

    def answer_the_first(names, reply):
        asked.append(names)
        if len(asked) == 1:
            reply(MetadataRefreshed(None, (), {}))

    transport = mock.Mock(refresh_metadata=answer_the_first)
    with pytest.raises(UnknownTopicOrPartitionError):
        TransactionRequests(transport, "", timeout_s=1.0).partition_count("t")
    assert len(asked) == 2


def test_brokers_that_fall_silent_after_an_answer_are_what_a_wait_for_a_topic_reports():
    answers = [MetadataRefreshed(None, (), {})]

    def answer_the_first(names, reply):
        if answers:
            reply(answers.pop())

    requests = TransactionRequests(mock.Mock(refresh_metadata=answer_the_first), "", timeout_s=1.0)
    with mock.patch.object(transactions, "_MOMENT_S", 0.1), pytest.raises(WaitTimeoutError):
        requests.partition_count("t")


def emptied(records):
    """The first transaction as the log cleaner leaves it: an empty control batch keeps the epoch of its producer."""
    found = bytearray()
    for begin, header in batch.iter_headers(records):
        if header.base_offset == 0:
            continue
        data = bytearray(records[begin : begin + header.size_bytes])
        if header.is_control and header.base_offset == 1:
            del data[61:]
            struct.pack_into(">i", data, 8, 49)
            struct.pack_into(">i", data, 57, 0)
            struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
        found += data
    return bytes(found)


def test_a_marker_topic_with_an_emptied_control_batch_is_read(monkeypatch):
    with FakeCluster() as cluster:
        cluster.create_topic("t", partitions=1)
        cluster.create_topic("markers", partitions=1)
        given = options(cluster, topic="t", txnAppId="app", markerTopic="markers")
        session = Session(sink_options(given), "app")
        for number in range(2):
            session.write(number, "q", lambda _: [], plan=f"p{number}", count=lambda: 0)
        session.transaction.fence()  # waits for the control batches
        fetch = session.transport.fetch_records
        hits = []

        def cleaned(*args, **more):
            *others, reply = args

            def answer(found):
                records = emptied(bytes(found.records))
                hits.append(len(records) < len(found.records))
                reply(replace(found, records=records))

            fetch(*others, answer, **more)

        monkeypatch.setattr(session.transport, "fetch_records", cleaned)
        monkeypatch.setattr(TransactionRequests, "committed_offset", lambda *_: None)  # it has expired
        assert session.markers.read() == Marker(2, "q", 0, "p1")
        assert any(hits)
        session.close()


@pytest.mark.parametrize(
    ("code", "message", "right"),
    [
        (29, "AddPartitionsToTxn of app, orders-0", "WRITE on the topic"),
        (29, "Metadata of orders", "DESCRIBE on the topic"),
        (29, "DescribeProducers of orders-0", "READ on the topic"),
        (30, "OffsetFetch of app", "DESCRIBE on the group"),
        (30, "AddOffsetsToTxn of app", "READ on the group"),
        (53, "InitProducerId of app", "WRITE on the transactional id"),
        (53, "FindCoordinator of app", "DESCRIBE on the transactional id"),
    ],
)
def test_a_missing_right_is_named(code, message, right):
    assert re.search(f"{message}: this user needs the permission {right}", str(_error(code, message)))


@pytest.fixture
def asked(monkeypatch):
    """The kinds of requests to coordinators, in order."""
    names = []
    real = TransactionRequests._ask

    def ask(self, api, make, **how):
        names.append(api)
        return real(self, api, make, **how)

    monkeypatch.setattr(TransactionRequests, "_ask", ask)
    return names


def test_a_driver_goes_on_with_the_epoch_that_its_commit_granted(kafka, make, asked):
    session = make()
    grants = []

    def work(grant):
        grants.append(grant)
        return []

    for batch_id in range(3):
        done = session.write(batch_id, "q", work, plan=f"plan {batch_id}", count=lambda: 0)
        assert (done.name, done.restarts) == ("written", 0)
    assert asked.count("InitProducerId") == asked.count("OffsetFetch") == 1
    assert "AddOffsetsToTxn" not in asked  # protocol 2
    first, *later = ((grant.producer_id, grant.epoch) for grant in grants)
    assert later == [(first[0], first[1] + number) for number in (1, 2)]
    # What the brokers have: the newest marker is the third one.
    other = make()
    other.transaction.fence()
    assert other.markers.read() == Marker(3, "q", 0, "plan 2")


def test_a_driver_that_was_replaced_between_two_batches_reads_what_the_other_one_wrote(kafka, make, asked):
    old, new = make(), make()
    assert write(old, 0) == "written"
    assert write(new, 1) == "written"
    done = old.write(1, "q", lambda _: pytest.fail("it is written"), plan="plan 1", count=lambda: 0)
    assert (done.name, done.restarts) == ("duplicate", 0)
    assert write(old, 2) == "written"
    with pytest.raises(CheckpointMismatchError):
        write(new, 2 + 2)
    assert write(new, 3) == "written"


def test_a_batch_that_failed_is_followed_by_a_fence(kafka, make, asked):
    session = make()
    assert write(session, 0) == "written"
    with pytest.raises(ZeroDivisionError):
        session.write(1, "q", lambda _: 1 // 0, plan="plan 1", count=lambda: 0)
    asked.clear()
    assert write(session, 1) == "written"
    assert "InitProducerId" in asked
    assert "OffsetFetch" in asked


def test_tasks_of_the_last_batch_are_locked_out_of_the_next(kafka, make):
    session = make()
    topic = session._options.topic
    grants = []

    def append(grant):
        appender = session.transaction.appender(grant, ())
        data = batch.encode([None], [b"x"], timestamps=1)
        appender.append(topic, 0, bytearray(data))
        return appender.finish()

    def work(grant):
        grants.append(grant)
        if len(grants) > 1:
            with pytest.raises((FencedError, RestartError)):
                append(grants[0])
        return append(grant)

    for batch_id in range(2):
        done = session.write(batch_id, "q", work, plan=f"plan {batch_id}", count=lambda: 0)
        assert (done.name, done.rows, done.restarts) == ("written", 1, 0)
    assert values(kafka, topic, committed=False) == {b"x": 2}


def test_only_partitions_with_rows_are_verified_where_no_task_had_the_grant(kafka, make, mocker):
    described, asked = (
        mocker.spy(TransactionRequests, "producers"),
        mocker.spy(TransactionRequests, "partitions"),
    )
    session = make()
    topic = session._options.topic

    def send(grant):
        appender = session.transaction.appender(grant, ())
        appender.append(topic, 1, bytearray(batch.encode([None], [b"x"], timestamps=1)))
        return appender.finish()

    def as_tasks(_):
        return []

    for batch_id, work, places in (
        (0, as_tasks, [(topic, 0), (topic, 1)]),
        (1, send, [(topic, 1)]),
        (2, as_tasks, [(topic, 0), (topic, 1)]),
    ):
        assert session.write(batch_id, "q", work, plan=f"plan {batch_id}", count=lambda: 0).name == "written"
        assert sorted(described.call_args.args[1]) == places
    assert asked.call_count == 2


@pytest.fixture
def proxied(kafka):
    """A session whose requests go through a proxy, after its first batch."""
    topic, app = new_name(), new_name("app")
    kafka.create_topic(topic, partitions=2)
    with FaultProxy(bootstrap=",".join(kafka.bootstrap_servers)) as proxy:
        given = options(proxy, topic=topic, markerTopic=new_name("markers"), txnAppId=app)
        session = Session(sink_options(given), app)
        assert write(session, 0) == "written"
        proxy.forget()
        yield proxy, session
        session.close()


def test_the_marker_is_sent_to_its_topic_and_to_the_group_at_the_same_time(proxied):
    proxy, session = proxied
    slow = proxy.on("Produce", topic=session._options.marker_topic).delay(1.0, times=1)
    group = proxy.on("TxnOffsetCommit")
    running = threading.Thread(target=write, args=(session, 1))
    running.start()
    began = time.monotonic()
    group.wait(1)
    assert time.monotonic() - began < 0.9
    slow.wait(1)
    running.join(30)
    assert session.markers.read() == Marker(2, "q", 0, "plan 1")


def test_a_marker_that_its_topic_refused_for_a_moment_is_sent_again(kafka, proxied):
    proxy, session = proxied
    rule = proxy.on("Produce", topic=session._options.marker_topic).answer_without_forwarding(code=6, times=1)
    assert write(session, 1) == "written"
    rule.wait(1)
    kafka.wait_for_markers()
    assert session.markers._from_topic() == Marker(2, "q", 0, "plan 1").encode()


def test_a_transaction_is_aborted_only_after_its_marker_was_answered(kafka, proxied, monkeypatch):
    proxy, session = proxied
    # A rule of the proxy would not do: all requests have one connection, and a delayed answer delays later ones.
    refused = mock.Mock(side_effect=_error(30, "TxnOffsetCommit of app"))
    monkeypatch.setattr(session.markers._requests, "commit_offset", refused)
    proxy.on("Produce", topic=session._options.marker_topic).delay(1.0, times=1)
    with pytest.raises(KafkaError, match="TxnOffsetCommit"):
        write(session, 1)
    (sent,) = proxy.requests("Produce", topic=session._options.marker_topic)
    (ended,) = proxy.requests("EndTxn")
    assert ended.time - sent.time >= 0.9
    monkeypatch.undo()
    assert write(session, 1) == "written"
    kafka.wait_for_markers()
    assert session.markers._from_topic() == Marker(2, "q", 0, "plan 1").encode()


def test_rows_that_a_leader_lost_are_noticed_where_no_task_had_the_grant(kafka, make):
    session = make(maxRestarts=1)
    topic = session._options.topic
    sent = []

    def send(grant):
        appender = session.transaction.appender(grant, ())
        appender.append(topic, 1, bytearray(batch.encode([None], [b"x"], timestamps=1)))
        (report,) = appender.finish()
        sent.append(grant)
        return [Report(topic, 1, report.rows + (len(sent) == 1))]

    done = session.write(0, "q", send, plan="plan 0", count=lambda: 0)
    assert (done.name, done.rows, done.restarts) == ("resumed", 1, 1)
    assert values(kafka, topic) == {b"x": 1}

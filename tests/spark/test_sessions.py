"""The driver's side of a transaction on a real broker, without Spark."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Producer
from sinks import new_name, options

from kafkasafe._core.txn import Marker
from kafkasafe._io.appender import FencedError
from kafkasafe._io.transactions import _error
from kafkasafe.spark.session import Session
from kafkasafe.spark.sink_options import sink_options

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
    grant = old.fence()
    old.open(grant)
    old.mark(grant, Marker(2, "q", 0, "plan 1"))
    old.abort(grant)
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
        again.fence()
        assert again.marker() == Marker(1, "q", 0, "plan 0")
        assert write(again, 0) == "duplicate"
        assert write(again, 1) == "written"
    finally:
        blocker.abort_transaction(60)


def test_a_batch_that_takes_longer_than_its_transaction_names_the_option(make, monkeypatch):
    session = make(maxRestarts=1)
    replaced = make()

    def late(_):
        replaced.fence()  # as the coordinator does when the time is over
        session._opened_at -= 600
        return []

    with pytest.raises(
        FencedError, match=r"took longer than kafka\.transaction\.timeout\.ms=600000.*raise that"
    ):
        session.write(0, "q", late, plan="p", count=lambda: 0)


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

"""What a task appends under a transaction that is not its own: claims, fences, repetitions, on a real broker."""

from __future__ import annotations

import contextlib
import time
import uuid

import numpy as np
import pyarrow as pa
import pytest
from topics import read_values

from kafkasafe.errors import RejectedError
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import arrow_encode, batch
from kafkasafe.spark.appender import Appender, FencedError, RestartError, claim_base
from kafkasafe.spark.sink_options import sink_options
from kafkasafe.spark.transactions import TransactionRequests
from kafkasafe.spark.txn import Report

pytestmark = pytest.mark.kafka


@pytest.fixture
def transport(kafka):
    made = over_sockets({"bootstrap_servers": kafka.bootstrap_servers})
    made.start()
    yield made
    assert made.close(30)


@pytest.fixture
def topic(kafka):
    name = f"appended-{uuid.uuid4().hex}"
    kafka.create_topic(name, partitions=2)
    return name


@pytest.fixture
def coordinator(transport):
    return TransactionRequests(transport, f"app-{uuid.uuid4().hex}", timeout_s=60)


def begin(coordinator, topic):
    grant = coordinator.fence(60_000)
    coordinator.add_partitions(grant, [(topic, 0), (topic, 1)])
    return grant


def appender(transport, grant):
    options = {"kafka.delivery.timeout.ms": 60_000, "kafka.buffer.memory": 1_000_000}
    return Appender(transport, grant, sink_options({"kafka.bootstrap.servers": "none:1", **options}))


def encoded(*values, claim=False):
    now = int(time.time() * 1000)
    base = claim_base(now) if claim else now
    rows = arrow_encode.Rows.of(None, pa.array(values))
    body, _ = arrow_encode.records(rows, np.arange(len(rows)), timestamp_delta=now - base)
    return batch.frame(body, len(rows), base_timestamp=base, max_timestamp=now)


def send(task, topic, partition, data):
    task.append(topic, partition, data)
    return task.finish()


def committed(kafka, topic, partition=0):
    kafka.wait_for_markers()
    return read_values(kafka.bootstrap_servers, topic, isolation_level="read_committed")[partition]


def test_batches_arrive_in_order_and_are_reported(kafka, transport, coordinator, topic):
    grant = begin(coordinator, topic)
    task = appender(transport, grant)
    for partition in (0, 1):
        task.append(topic, partition, encoded(b"0", b"1", claim=True))
        for number in range(2, 30):
            task.append(topic, partition, encoded(b"%d" % number))
    assert task.finish() == [Report(topic, 0, 30), Report(topic, 1, 30)]
    states = coordinator.producers([(topic, 0), (topic, 1)])
    assert {state.producers[grant.producer_id].last_sequence for state in states.values()} == {29}
    assert {place[0] for place in coordinator.partitions(grant)} == {topic}
    coordinator.end(grant, commit=True)
    assert committed(kafka, topic) == [b"%d" % number for number in range(30)]


def test_batches_above_the_topics_max_message_bytes_are_divided(kafka, transport, coordinator):
    topic = f"small-{uuid.uuid4().hex}"
    kafka.create_topic(topic, partitions=2, config={"max.message.bytes": "2000"})
    grant = begin(coordinator, topic)
    task = appender(transport, grant)
    values = [b"%d " % number + b"x" * 300 for number in range(300)]
    for partition in (0, 1):
        # The claim too: 20 records of 300 bytes.
        task.append(topic, partition, encoded(*values[:20], claim=True))
        task.append(topic, partition, encoded(*values[20:200]))
        task.append(topic, partition, encoded(*values[200:]))
    assert task.finish() == [Report(topic, 0, 300), Report(topic, 1, 300)]
    coordinator.end(grant, commit=True)
    assert committed(kafka, topic, 0) == committed(kafka, topic, 1) == values
    with pytest.raises(
        RejectedError, match=r"a record of 5\d\d\d bytes, .*Raise that limit, or drop the row"
    ):
        send(appender(transport, begin(coordinator, topic)), topic, 0, encoded(b"", b"y" * 5000, claim=True))


def test_batches_above_the_topics_segment_bytes_are_divided(kafka, transport, coordinator):
    """The broker refuses them with RECORD_LIST_TOO_LARGE, not with MESSAGE_TOO_LARGE."""
    topic = f"segments-{uuid.uuid4().hex}"
    kafka.create_topic(
        topic, partitions=2, config={"segment.bytes": "1048576", "max.message.bytes": "8000000"}
    )
    grant = begin(coordinator, topic)
    task = appender(transport, grant)
    values = [b"%d " % number + b"x" * 100_000 for number in range(32)]
    task.append(topic, 0, encoded(*values[:16], claim=True))
    task.append(topic, 0, encoded(*values[16:]))
    assert task.finish() == [Report(topic, 0, 32)]
    coordinator.end(grant, commit=True)
    assert committed(kafka, topic) == values


@pytest.mark.parametrize("second", [(b"x", b"y"), (b"x",), (b"x", b"y", b"z")], ids=["same", "fewer", "more"])
def test_of_two_attempts_one_ends_before_it_has_changed_anything(
    kafka, transport, coordinator, topic, second
):
    grant = begin(coordinator, topic)
    first, late = appender(transport, grant), appender(transport, grant)
    first.append(topic, 0, encoded(b"a", b"b", claim=True))
    first.finish()
    # The leader says success to the same number of records, with the first attempt's offset.
    with pytest.raises(RestartError):
        send(late, topic, 0, encoded(*second, claim=True))
    first.append(topic, 0, encoded(b"c"))
    assert first.finish() == [Report(topic, 0, 3)]
    coordinator.end(grant, commit=True)
    assert committed(kafka, topic) == [b"a", b"b", b"c"]


def test_two_attempts_at_the_same_time(kafka, transport, coordinator, topic):
    for number in range(10):
        grant = begin(coordinator, topic)
        tasks = [appender(transport, grant) for _ in range(2)]
        ends: list[list[Report] | None] = [None, None]
        # Whoever loses hears of it from any call.
        for attempt, task in enumerate(tasks):
            with contextlib.suppress(RestartError):
                task.append(topic, 0, encoded(b"%d-%d" % (number, attempt), claim=True))
        for attempt, task in enumerate(tasks):
            with contextlib.suppress(RestartError):
                task.append(topic, 0, encoded(b"%d-%d" % (number, attempt)))
                ends[attempt] = task.finish()
        winners = [attempt for attempt, end in enumerate(ends) if end is not None]
        assert len(winners) == 1, ends
        coordinator.end(grant, commit=True)
        assert committed(kafka, topic)[-2:] == [b"%d-%d" % (number, winners[0])] * 2


def test_an_old_grant_is_worth_nothing(kafka, transport, coordinator, topic):
    old = begin(coordinator, topic)
    task = appender(transport, old)
    task.append(topic, 0, encoded(b"old", claim=True))
    task.finish()
    grant = begin(coordinator, topic)
    with pytest.raises(FencedError):
        send(task, topic, 0, encoded(b"late"))
    with pytest.raises(FencedError):
        send(appender(transport, old), topic, 1, encoded(b"late", claim=True))
    with pytest.raises(Exception, match=r"(?i)fenced|epoch|hands"):
        coordinator.partitions(old)
    coordinator.end(grant, commit=True)
    assert committed(kafka, topic) == committed(kafka, topic, 1) == []


def test_what_the_broker_refuses_is_told(kafka, transport, coordinator):
    name = f"small-{uuid.uuid4().hex}"
    kafka.create_topic(name, partitions=2, config={"max.message.bytes": 2000})
    grant = begin(coordinator, name)
    with pytest.raises(RejectedError) as told:
        send(appender(transport, grant), name, 0, encoded(b"x" * 5000, claim=True))
    assert told.value.code == 10
    coordinator.end(grant, commit=False)


def test_a_marker_is_an_offset_that_comes_with_its_transaction(transport, coordinator, topic):
    assert coordinator.committed_offset((topic, 0)) is None
    for number, commit, seen in ((1, True, (1, "m1")), (2, False, (1, "m1")), (3, True, (3, "m3"))):
        grant = begin(coordinator, topic)
        coordinator.commit_offset(grant, (topic, 0), number, f"m{number}")
        coordinator.end(grant, commit=commit)
        coordinator.end(grant, commit=commit)  # as often as one likes
        coordinator.fence(60_000)
        assert coordinator.committed_offset((topic, 0)) == seen


def test_claims_differ():
    bases = {claim_base(1_700_000_000_000) for _ in range(100)}
    assert len(bases) == 100
    assert batch.read_header(encoded(b"x", claim=True)).base_timestamp < 1_800_000_000_000

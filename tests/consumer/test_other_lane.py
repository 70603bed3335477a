"""Consume, process, produce: a producer is closed with a batch under way, and the program goes on with another lane.

Each producer compares the batches of its own lane only. If both batches were committed, records were there twice.
"""

from __future__ import annotations

import contextlib
import gc
import time

import pytest
import test_read_again
from kafka.errors import KafkaTimeoutError
from test_read_again import PLACE, RECORDS, committed, copy_next, leave_a_batch, member, output, polled

from kafkasafe import SafeProducer, UsageError
from kafkasafe.delivery.engine import context
from kafkasafe.errors import BatchDroppedError

servers = test_read_again.servers
"""A fixture: the cluster has records to be copied."""


@pytest.fixture
def first(servers, tmp_path):
    return {
        "bootstrap_servers": servers,
        "spool_dir": tmp_path / "spool",
        "client_id": "one",
        "retry_backoff_ms": 20,
    }


OTHERS = {"client id": {"client_id": "two"}, "directory": {"spool_dir": "elsewhere"}}


def another(first, how, tmp_path):
    changed = dict(OTHERS[how])
    if "spool_dir" in changed:
        changed["spool_dir"] = tmp_path / changed["spool_dir"]
    return {**first, **changed}


def copy_on(fake_kafka, consumer, producer, end):
    """As a program does: what is refused is discarded and read again."""
    deadline = time.monotonic() + 60
    while (committed(fake_kafka) or 0) < end and time.monotonic() < deadline:
        found = [int(each.value) for some in consumer.poll(100).values() for each in some]
        if not found:
            continue
        try:
            with producer.batch() as batch:
                for each in found:
                    batch.send("out", b"%d" % each)
                batch.send_offsets(consumer)
            batch.outcome.get(60)
        except BatchDroppedError:
            pass
    assert committed(fake_kafka) >= end


@pytest.mark.parametrize("opened", ["before", "after"])
@pytest.mark.parametrize("how", OTHERS)
def test_a_member_goes_on_with_another_lane(fake_kafka, servers, first, tmp_path, how, opened):
    """The consumer becomes another member, so the group refuses what was left."""
    second = another(first, how, tmp_path)
    producer = SafeProducer(**second) if opened == "before" else None
    consumer = member(servers)
    consumer.subscribe(["in"])
    with consumer:
        leave_a_batch(fake_kafka, consumer, first)
        if producer is None:
            producer = SafeProducer(**second)
        with producer:
            copy_on(fake_kafka, consumer, producer, 20)
            SafeProducer(**first).close()
            copy_on(fake_kafka, consumer, producer, RECORDS)
    assert output(fake_kafka) == list(range(RECORDS))


def test_a_member_that_goes_on_with_the_same_lane_stays_in_its_group(fake_kafka, servers, first):
    """There the batches are compared, so no rebalance is needed."""
    consumer = member(servers)
    consumer.subscribe(["in"])
    with consumer:
        leave_a_batch(fake_kafka, consumer, first)
        before = consumer.group_metadata()
        with SafeProducer(**first) as producer:
            copy_on(fake_kafka, consumer, producer, RECORDS)
        assert consumer.group_metadata() == before
    assert output(fake_kafka) == list(range(RECORDS))


def test_assign_is_refused_while_another_directory_has_a_batch(fake_kafka, servers, first, tmp_path):
    """The group cannot refuse what was left, so the program has to deliver it first."""
    consumer = member(servers)
    consumer.assign([PLACE])
    with consumer, SafeProducer(**another(first, "directory", tmp_path)) as producer:
        leave_a_batch(fake_kafka, consumer, first)
        again = polled(consumer)
        assert again == [5, 6, 7, 8, 9]
        batch = producer.batch()
        for each in again:
            batch.send("out", b"%d" % each)
        for _ in range(2):
            with pytest.raises(UsageError, match="spool drain"):
                batch.send_offsets(consumer)
        SafeProducer(**first).close()
        with pytest.raises(BatchDroppedError, match="read again"):
            batch.send_offsets(consumer)
        copy_on(fake_kafka, consumer, producer, RECORDS)
    assert output(fake_kafka) == list(range(RECORDS))


def test_assign_waits_for_a_batch_that_the_producer_adopts(fake_kafka, servers, first, tmp_path):
    consumer = member(servers)
    consumer.assign([PLACE])
    with consumer, SafeProducer(**another(first, "client id", tmp_path)) as producer:
        leave_a_batch(fake_kafka, consumer, first)
        copy_on(fake_kafka, consumer, producer, RECORDS)
    SafeProducer(**first).close()
    assert output(fake_kafka) == list(range(RECORDS))


@pytest.mark.parametrize("how", ["subscribe", "assign"])
def test_a_batch_waits_for_the_outcome_of_another_producers_batch(
    fake_kafka, servers, first, tmp_path, how, monkeypatch
):
    """Both producers are open. The second batch goes on from the first one: if it came before it, the group's offset
    went back; if the first one were dropped, its records were in no output.
    """
    monkeypatch.setattr(context, "_REFUSED_PAUSE_S", 2.0)  # after which the producer tries again
    consumer = member(servers, session_timeout_ms=6000, request_timeout_ms=6500)
    if how == "subscribe":
        consumer.subscribe(["in"])
    else:
        consumer.assign([PLACE])
    with consumer, SafeProducer(**first) as one, SafeProducer(**another(first, "directory", tmp_path)) as two:
        copy_next(consumer, one, [0, 1, 2, 3, 4]).get(60)
        fake_kafka.deny("write", transactional_id="*")
        waits = copy_next(consumer, one, [5, 6, 7, 8, 9])
        found = polled(consumer)
        assert found == [10, 11, 12, 13, 14]
        batch = two.batch()
        for each in found:
            batch.send("out", b"%d" % each)
        with pytest.raises(KafkaTimeoutError, match="no outcome yet"):
            batch.send_offsets(consumer)
        fake_kafka.deny("write", transactional_id="*", on=False)
        # The producer tries again after a while. The error says to call again.
        for _ in range(5):
            with contextlib.suppress(KafkaTimeoutError):
                batch.send_offsets(consumer)
                break
        assert waits.succeeded()
        batch.commit().get(60)
        copy_on(fake_kafka, consumer, two, RECORDS)
    assert output(fake_kafka) == list(range(RECORDS))


def test_a_batch_is_refused_while_another_producers_batch_is_open(servers, first, tmp_path):
    consumer = member(servers)
    consumer.assign([PLACE])
    with consumer, SafeProducer(**first) as one, SafeProducer(**another(first, "directory", tmp_path)) as two:
        assert polled(consumer) == [0, 1, 2, 3, 4]
        earlier = one.batch()
        earlier.send_offsets(consumer)
        assert polled(consumer) == [5, 6, 7, 8, 9]
        batch = two.batch()
        with pytest.raises(UsageError, match="still open"):
            batch.send_offsets(consumer)
        earlier.commit()
        batch.send_offsets(consumer)
        batch.commit().get(60)


def test_a_batch_that_nobody_can_decide_any_more_does_not_refuse_others(servers, first, tmp_path):
    """Ctrl-C at the end of its block has left it open."""
    consumer = member(servers)
    consumer.assign([PLACE])
    with consumer, SafeProducer(**first) as one, SafeProducer(**another(first, "directory", tmp_path)) as two:
        polled(consumer)
        batch = one.batch()
        batch.send("out", b"0")
        batch.send_offsets(consumer)
        polled(consumer)
        other = two.batch()
        with pytest.raises(UsageError, match="still open"):
            other.send_offsets(consumer)
        del batch
        gc.collect()
        other.send_offsets(consumer)
        other.commit().get(60)

"""Raw batches and the list of topics, from the log."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import kafka.errors
import pytest
from confluent_kafka import Producer
from waiting import until

from kafkasafe.cluster.api import Failure, RecordsFetched, TopicsListed
from kafkasafe.cluster.client import Transport
from kafkasafe.kafkapython.connect import over_sockets
from kafkasafe.record import batch
from kafkasafe.testing.broker import KafkaCluster


@contextlib.contextmanager
def opened(cluster: KafkaCluster) -> Iterator[Transport]:
    transport = over_sockets({"bootstrap_servers": cluster.bootstrap_servers})
    transport.start()
    try:
        yield transport
    finally:
        assert transport.close(60.0)


def ask(call: Callable[..., None], *args: Any, timeout_s: float = 60.0, **options: Any) -> Any:
    """Until there is an answer without an error."""
    deadline = time.monotonic() + timeout_s
    while True:
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        call(*args, replies.put, **options)
        result = replies.get(timeout=timeout_s)
        if not isinstance(result, Failure) and not getattr(result, "error_code", 0):
            return result
        assert time.monotonic() < deadline, result
        threading.Event().wait(0.05)


def values(fetched: RecordsFetched) -> list[bytes | None]:
    return [
        value
        for at, header in batch.iter_headers(fetched.records)
        if not header.is_control
        for value in batch.decode(fetched.records, at).values
    ]


def transact(cluster: KafkaCluster, topic: str, value: str, *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": ",".join(cluster.bootstrap_servers), "transactional.id": value})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(60)
    if commit:
        producer.commit_transaction(60)
    else:
        producer.abort_transaction(60)


def wait_for_markers(transport: Transport, topic: str, end: int) -> None:
    """They are written a moment after the transaction's end is acknowledged."""
    until(lambda: ask(transport.list_offset, topic, 0, -1, isolation_level=1).offset >= end)


@pytest.mark.also_real
def test_records_come_as_they_are_in_the_log_with_what_was_aborted(some_kafka: KafkaCluster) -> None:
    topic = "fetch-records"
    some_kafka.create_topic(topic)
    with opened(some_kafka) as transport:
        transact(some_kafka, topic, "taken-back", commit=False)
        wait_for_markers(transport, topic, 2)
        transact(some_kafka, topic, "kept", commit=True)
        wait_for_markers(transport, topic, 4)
        plain = ask(transport.fetch_records, topic, 0, 0, 1_000_000)
        assert values(plain) == [b"taken-back", b"kept"]
        assert (plain.aborted, plain.next_offset, plain.high_watermark, plain.log_start_offset) == (
            (),
            4,
            4,
            0,
        )
        assert plain.diverging is None
        committed = ask(transport.fetch_records, topic, 0, 0, 1_000_000, isolation_level=1)
        assert bytes(committed.records) == bytes(plain.records)
        assert committed.last_stable_offset == 4
        first = next(header for _, header in batch.iter_headers(plain.records))
        assert committed.aborted == ((first.producer_id, 0),)
        later = ask(transport.fetch_records, topic, 0, 2, 1_000_000, isolation_level=1)
        assert values(later) == [b"kept"]
        assert later.aborted == ()


@pytest.mark.also_real
def test_a_reader_of_another_epoch_is_told(some_kafka: KafkaCluster) -> None:
    topic = "fetch-records-epochs"
    some_kafka.create_topic(topic)
    transact(some_kafka, topic, "epochs", commit=True)
    with opened(some_kafka) as transport:
        wait_for_markers(transport, topic, 2)
        told = ask(transport.fetch_records, topic, 0, 1, 1000, last_fetched_epoch=0)
        assert told.diverging is None
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        transport.fetch_records(topic, 0, 0, 1000, replies.put, current_leader_epoch=7)
        assert replies.get(timeout=60).error_code == 75
        # Past the end of the epoch: those records are not in this log.
        replies = queue.SimpleQueue()
        transport.fetch_records(topic, 0, 5, 1000, replies.put, last_fetched_epoch=0)
        told = replies.get(timeout=60)
        assert told.error_code == 1 or (told.diverging == (0, 2) and not told.records)


def test_all_topics_are_listed_and_not_watched(some_kafka: KafkaCluster) -> None:
    some_kafka.create_topic("listed", partitions=3)
    with opened(some_kafka) as transport:
        found: TopicsListed = ask(transport.list_topics)
        assert found.topics["listed"] == (0, 1, 2)
        assert not any(name.startswith("__") for name in found.topics)
        assert transport.topic("listed") is None


def test_without_brokers_the_questions_fail() -> None:
    transport = over_sockets({"bootstrap_servers": "127.0.0.1:1"})
    assert transport.close(60.0)
    for ask_it in (lambda reply: transport.fetch_records("t", 0, 0, 1, reply), transport.list_topics):
        replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        ask_it(replies.put)
        assert isinstance(replies.get(timeout=60).error, kafka.errors.KafkaConnectionError)

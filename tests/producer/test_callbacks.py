"""Callbacks: when they have run, what they cost, and that nothing one does harms the others."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time

import harness
import pytest
from kafka.errors import KafkaTimeoutError

from kafkasafe.errors import DeliveryTimeoutError, RejectedError
from kafkasafe.testing import FakeCluster


@pytest.mark.parametrize(("partitions", "keyed"), [(1, False), (4, True)])
def test_callbacks_have_run_when_flush_returns(some_kafka, producers, partitions, keyed):
    topic = harness.new_topic(some_kafka, partitions)
    producer = producers(some_kafka.bootstrap_servers)
    # The first round is sealed before the topic is known, and divided later.
    for number in range(5):
        called: list = []
        futures = []
        for i in range(2000):
            key = b"%d" % i if keyed else None
            future = producer.send(topic, b"%d" % i, key, headers=[("h", b"x")] if i % 7 == 0 else None)
            futures.append(future.add_callback(called.append).add_errback(called.append))
        producer.flush(60)
        assert len(called) == 2000, number
        assert sorted(called) == sorted(future.get(0) for future in futures)
    # Not a batch for each record: for a reader of the topic it would be one too.
    assert producer.metrics()["kafkasafe"]["batches_sent"] < 200


@pytest.mark.also_real
def test_callbacks_have_run_when_get_returns(some_kafka, producers):
    topic = harness.new_topic(some_kafka, 1, config={"max.message.bytes": 5000})
    producer = producers(some_kafka.bootstrap_servers)
    for number in range(60):
        called: list = []
        future = producer.send(topic, b"x").add_callback(called.append)
        assert [future.get(60)] == called, number
    # As late as can be: the batch is on its way.
    for number in range(60):
        called = []
        future = producer.send(topic, b"x")
        future.durable(60)
        future.add_callback(called.append)
        assert [future.get(60)] == called, number
    bad = producer.send(topic, b"x" * 20_000).add_errback(called.append)
    producer.flush(60)
    assert called[1:] == [bad.exception]
    bad = producer.send(topic, b"x" * 20_000).add_errback(called.append)
    with pytest.raises(RejectedError):
        bad.get(60)
    assert called[2:] == [bad.exception]


@pytest.mark.also_real
def test_the_errback_of_a_timeout_has_run_when_flush_returns(some_broker, producers):
    topic = harness.new_topic(some_broker.cluster, 3)
    producer = producers(some_broker.cluster.bootstrap_servers, delivery_timeout_ms=1000)
    # Divided at first contact: the fate of what was divided is that of its parts.
    futures = [producer.send(topic, b"x", b"%d" % i) for i in range(30)]
    some_broker.proxy.refuse()
    called: list = []
    for future in futures:
        future.add_both(called.append)
    producer.flush(60)
    assert len(called) == 30
    futures = [producer.send(topic, b"x", b"%d" % i).add_errback(called.append) for i in range(30)]
    producer.flush(60)
    assert len(called) == 60
    assert {type(error) for error in called[30:]} == {DeliveryTimeoutError}


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit])
def test_what_a_callback_raises_costs_the_others_nothing(some_kafka, producers, caplog, raised):
    topic = harness.new_topic(some_kafka, 1)
    producer = producers(some_kafka.bootstrap_servers)
    called: list = []

    def callback(metadata):
        called.append(metadata.offset)
        if metadata.offset == 3:
            raise raised

    for _ in range(10):
        producer.send(topic, b"x").add_callback(callback)
    producer.flush(60)
    assert called == list(range(10))
    producer.send(topic, b"x").add_callback(callback).get(60)
    assert called == list(range(11))
    producer.close()
    # Clients of earlier tests may still log that their brokers are away.
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.event for record in errors if record.name == "kafkasafe.producer"] == ["callback_failed"]


def test_waiting_in_a_callback(some_kafka, producers):
    """Whoever waits for callbacks in one would wait for itself."""
    topic = harness.new_topic(some_kafka, 1)
    producer = producers(some_kafka.bootstrap_servers)
    called: list = []

    def callback(metadata):
        called.append(producer.send(topic, b"y").add_callback(called.append).get(60))
        producer.flush(60)

    producer.send(topic, b"x").add_callback(callback).get(60)
    producer.flush(60)
    assert [metadata.offset for metadata in called] == [1, 1]

    def closing(metadata):
        producer.close()
        called.append(metadata)

    future = producer.send(topic, b"x").add_callback(closing)
    future.add_callback(called.append)
    harness.until(lambda: len(called) == 4)
    assert called[2:] == [future.get(0)] * 2


def test_a_send_that_waits_for_callbacks_in_vain_does_not_count_as_one_without_room(tmp_path, monkeypatch):
    """The metric `spool_full` counted it, and an alert said that the spool was full."""
    with FakeCluster() as cluster, harness.Producers(tmp_path / "spool") as opened:
        cluster.create_topic("orders")
        producer = opened(cluster.bootstrap_servers, max_block_ms=10)
        with monkeypatch.context() as patch:
            patch.setattr(producer.parts.delivery.callbacks, "full", lambda: True)
            with pytest.raises(KafkaTimeoutError, match="callbacks are due"):
                producer.send("orders", b"x")
        assert producer.parts.delivery.pump.refused_sends == 0


@pytest.mark.real
def test_slow_callbacks_hold_up_send_and_are_all_called(some_kafka, producers, monkeypatch, caplog):
    monkeypatch.setattr("kafkasafe.delivery.callbacks._DUE_LIMIT", 1000)
    monkeypatch.setattr("kafkasafe.delivery.callbacks._DUE_MOST", 4000)
    topic = harness.new_topic(some_kafka, 1)
    producer = producers(some_kafka.bootstrap_servers, batch_size=20_000, max_block_ms=3000)
    go_on = threading.Event()
    called: list = []

    def callback(metadata):
        go_on.wait(120)
        called.append(metadata.offset)

    accepted = 0

    def send():
        nonlocal accepted
        while accepted < 50_000:
            producer.send(topic, b"x" * 100).add_callback(callback)
            accepted += 1
            if accepted % 100 == 0:
                time.sleep(0.01)  # or all would be accepted before anything is acknowledged

    with pytest.raises(KafkaTimeoutError, match="callbacks are due"):
        send()
    with pytest.raises(KafkaTimeoutError, match="callback"):
        producer.flush(0.5)
    last = producer.parts.delivery.callbacks.due()
    assert 4000 <= last <= accepted
    producer.close(timeout=0.5)
    assert [record.event for record in caplog.records if "callbacks had not run" in record.getMessage()] == [
        "callbacks_left"
    ]
    go_on.set()
    harness.until(lambda: len(called) == accepted)
    assert called == list(range(accepted))


@pytest.mark.real
def test_slow_callbacks_that_come_to_an_end_only_slow_send_down(some_kafka, producers, monkeypatch):
    monkeypatch.setattr("kafkasafe.delivery.callbacks._DUE_LIMIT", 500)
    topic = harness.new_topic(some_kafka, 1)
    producer = producers(some_kafka.bootstrap_servers, batch_size=20_000)
    called: list = []
    most = 0

    def callback(metadata):
        called.append(metadata)
        time.sleep(0.0005)

    for number in range(4000):
        producer.send(topic, b"x" * 100).add_callback(callback)
        if number % 50 == 0:
            time.sleep(0.002)
            most = max(most, producer.parts.delivery.callbacks.due())
    producer.close()
    assert len(called) == 4000
    assert most < 2000


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError])
def test_what_a_hook_raises_does_not_end_the_producer(some_kafka, producers, raised):
    topic = harness.new_topic(some_kafka, 1, config={"max.message.bytes": 5000})
    letters: list = []
    events: list = []

    def on_rejected(**letter):
        letters.append(letter)
        raise raised

    def on_event(event):
        events.append(event)
        raise raised

    producer = producers(some_kafka.bootstrap_servers, on_rejected=on_rejected, on_event=on_event)
    with pytest.raises(RejectedError):
        producer.send(topic, b"x" * 20_000).get(60)
    assert producer.send(topic, b"x").get(60).offset == 0
    producer.flush(60)
    assert len(letters) == 1
    assert len(events) >= 2


SCRIPT = """
import sys
from kafkasafe import SafeProducer

if sys.argv[4] == "late":
    # As from Python 3.12 on, when the interpreter ends.
    import threading

    def start(thread, start=threading.Thread.start):
        if "callbacks" in thread.name:
            raise RuntimeError("can't start new thread at interpreter shutdown")
        start(thread)

    threading.Thread.start = start
producer = SafeProducer(bootstrap_servers=sys.argv[1], spool_dir=sys.argv[2], linger_ms=60_000)
future = producer.send(sys.argv[3], b"x")
future.add_callback(lambda metadata: print(metadata.offset))
producer.send(sys.argv[3], b"y").add_callback(lambda metadata: print(metadata.offset))
if sys.argv[4] == "late":
    producer.flush()
"""


@pytest.mark.also_real
@pytest.mark.parametrize("when", ["end", "late"])
def test_callbacks_run_at_the_end_of_the_process(some_kafka, tmp_path, when):
    topic = harness.new_topic(some_kafka, 1)
    command = [
        sys.executable,
        "-c",
        SCRIPT,
        ",".join(some_kafka.bootstrap_servers),
        str(tmp_path),
        topic,
        when,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["0", "1"], done.stderr

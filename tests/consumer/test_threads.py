"""What kafka-python's I/O thread may do to a SafeConsumer, and what a constructor that fails leaves behind."""

import gc
import threading
import warnings

import pytest
from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer
from waiting import until

from kafkasafe._consuming.objects import ConsumerObjects
from kafkasafe._consuming.partition import AssignedPartition
from kafkasafe._consuming.positions import Positions
from kafkasafe.consumer import SafeConsumer
from kafkasafe.errors import UsageError


def test_only_the_consumers_thread_writes_what_is_known_of_a_partition(fake_kafka, monkeypatch):
    """A fetch that fails is noted by the I/O thread, and without leader epochs the position is checked again."""
    writers, checked = set(), []
    check = Positions.check

    def written(part, name, value):
        writers.add((name, threading.current_thread()))
        object.__setattr__(part, name, value)

    monkeypatch.setattr(AssignedPartition, "__setattr__", written)
    monkeypatch.setattr(Positions, "check", lambda *args: checked.append(args) or check(*args))
    fake_kafka.create_topic("t")
    producer = KafkaProducer(bootstrap_servers=fake_kafka.bootstrap_servers)
    consumer = SafeConsumer(
        "t", bootstrap_servers=fake_kafka.bootstrap_servers, auto_offset_reset="earliest", api_version=(2, 3)
    )
    try:
        producer.send("t", b"1").get(60)
        until(lambda: consumer.poll(100))
        before = len(checked)

        def is_checked_again():
            consumer.poll(100)
            fake_kafka.cut()  # there may be no fetch on its way
            return len(checked) > before

        until(is_checked_again)
        producer.send("t", b"2").get(60)
        until(lambda: consumer.poll(100))
    finally:
        consumer.close()
        producer.close()
    assert ("doubted", threading.current_thread()) in writers
    assert {thread for _, thread in writers} == {threading.current_thread()}


def test_a_consumer_without_a_group_needs_no_interval_between_polls(fake_kafka):
    fake_kafka.create_topic("t")
    options = {"bootstrap_servers": fake_kafka.bootstrap_servers, "max_poll_interval_ms": None}
    with SafeConsumer("t", **options) as consumer:
        assert consumer.poll(10) == {}
        assert consumer.health().ready


@pytest.mark.parametrize("when", ["revoked", "assigned"])
def test_close_in_a_rebalance_listener_is_refused_and_closes_nothing(fake_kafka, when):
    """kafka-python calls listeners on its I/O thread, which cannot wait for itself. Half of the consumer was closed."""
    fake_kafka.create_topic("t")
    before = set(threading.enumerate())
    consumer = SafeConsumer(bootstrap_servers=fake_kafka.bootstrap_servers, group_id="g")
    refused = []

    class Listener(ConsumerRebalanceListener):
        def on_partitions_revoked(self, partitions):
            self.close("revoked")

        def on_partitions_assigned(self, partitions):
            self.close("assigned")

        def close(self, now):
            if now == when and not refused:
                with pytest.raises(UsageError, match=r"listener.*after poll") as error:
                    consumer.close()
                refused.append(error)

    consumer.subscribe(["t"], listener=Listener())
    until(lambda: consumer.poll(100) or (consumer.assignment() and refused))
    consumer.close()
    until(lambda: set(threading.enumerate()) <= before)


def test_a_constructor_that_fails_leaves_nothing_behind(fake_kafka, monkeypatch, tmp_path):
    """No thread, and no lock on the file of histories: the next attempt would find it in use."""
    fake_kafka.create_topic("t")
    before = set(threading.enumerate())
    options = {"bootstrap_servers": fake_kafka.bootstrap_servers, "lineage_path": tmp_path / "lineage"}
    with monkeypatch.context() as patch:
        patch.setattr(ConsumerObjects, "__init__", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            SafeConsumer("t", **options)
    until(lambda: set(threading.enumerate()) <= before)
    SafeConsumer("t", **options).close()


def test_a_dropped_consumer_keeps_its_thread_as_a_kafka_consumer_does(fake_kafka):
    """docs/consumer.md says so: only close() ends it."""
    fake_kafka.create_topic("t")

    def dropped(kind):
        before = set(threading.enumerate())
        consumer = kind("t", bootstrap_servers=fake_kafka.bootstrap_servers)
        consumer.poll(10)
        started = set(threading.enumerate()) - before
        client = consumer._client
        del consumer
        gc.collect()
        alive = {thread for thread in started if thread.is_alive()}
        client.close()
        for thread in started:
            thread.join(10)
            assert not thread.is_alive()
        return len(started), len(alive)

    assert dropped(SafeConsumer) == (1, 1)
    gc.collect()
    with warnings.catch_warnings():
        # Now and then KafkaConsumer's client closes while it connects, and drops the socket without closing it.
        warnings.simplefilter("ignore", ResourceWarning)
        assert dropped(KafkaConsumer) == (1, 1)
        gc.collect()

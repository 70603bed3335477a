"""`prometheus=True` and a registration that fails: the constructor raises the error, and nothing stays open."""

from __future__ import annotations

import threading

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest

from kafkasafe import SafeConsumer, SafeProducer, metrics


def threads() -> set[threading.Thread]:
    """The threads of clients. `kafkasafe-log` is the process's."""
    names = ("kafka-io", "kafkasafe-pump", "kafkasafe-callbacks")
    return {each for each in threading.enumerate() if each.name.startswith(names)}


@pytest.fixture
def failing(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(metrics, "install", fail)


def test_a_producer(fake_kafka, tmp_path, failing, monkeypatch):
    """Its pump went on, and its lane stayed locked, at least while the program kept the error."""
    before = threads()
    options = {"bootstrap_servers": fake_kafka.bootstrap_servers, "spool_dir": tmp_path, "spool_lane": 0}
    with pytest.raises(RuntimeError, match="new thread") as kept:
        SafeProducer(**options, prometheus=True)
    assert kept.tb is not None  # it refers to the frame of the constructor, and so to the producer
    assert threads() <= before
    monkeypatch.undo()
    fake_kafka.create_topic("t")
    with SafeProducer(**options) as producer:
        producer.send("t", b"sent").get(60)


def test_a_producer_whose_spool_has_records(tmp_path, failing, monkeypatch):
    """It does not wait for their delivery, and they stay in the spool."""
    options = {"bootstrap_servers": "127.0.0.1:1", "spool_dir": tmp_path, "spool_lane": 0}
    producer = SafeProducer(**options)
    producer.send("t", b"waits").durable(60)
    producer.close(0)
    with pytest.raises(RuntimeError, match="new thread"):
        SafeProducer(**options, prometheus=True)
    monkeypatch.undo()
    with SafeProducer(**options) as producer:
        assert producer.metrics()["kafkasafe"]["unfinished_batches"] == 1
        producer.close(0)


def test_a_consumer(fake_kafka, tmp_path, failing, monkeypatch):
    """Its threads and connections stayed, and the lock of its file."""
    before = threads()
    options = {"bootstrap_servers": fake_kafka.bootstrap_servers, "lineage_path": tmp_path / "lineage"}
    with pytest.raises(RuntimeError, match="new thread") as kept:
        SafeConsumer(**options, prometheus=True)
    assert kept.tb is not None
    assert threads() <= before
    monkeypatch.undo()
    SafeConsumer(**options).close()


def test_a_registration_that_failed_is_tried_again():
    """The collector counted as registered, and the next `install` showed nothing."""

    class Full(CollectorRegistry):
        refuses = True

        def register(self, collector):
            if self.refuses:
                raise ValueError("Duplicated timeseries")
            super().register(collector)

    registry = Full()
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.install(registry=registry)
    registry.refuses = False
    metrics.install(registry=registry)
    assert b"kafkasafe_build_info" in generate_latest(registry)


def test_a_mirror_that_failed_is_tried_again(monkeypatch, tmp_path):
    """If several processes are scraped as one, and the thread cannot be started."""
    started = []

    class Mirror:
        def __init__(self, _) -> None: ...

        def start(self) -> None:
            started.append(self)
            if len(started) == 1:
                raise RuntimeError("can't start new thread")

        def stop(self) -> None: ...

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    monkeypatch.setattr(metrics, "_Mirror", Mirror)
    monkeypatch.setattr(metrics, "_multiprocess", lambda: True)
    try:
        with pytest.raises(RuntimeError, match="new thread"):
            metrics.install(registry=REGISTRY)
        metrics.install(registry=REGISTRY)
        metrics.install(registry=REGISTRY)
        assert len(started) == 2
    finally:
        metrics.uninstall()


def test_an_endpoint_without_a_source_listens_nowhere():
    threads = set(threading.enumerate())
    with pytest.raises(TypeError, match="only SafeProducer"):
        metrics.serve(object(), registry=CollectorRegistry())
    assert set(threading.enumerate()) <= threads

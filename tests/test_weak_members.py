"""Weak collections that several threads use."""

from __future__ import annotations

import logging
import weakref

import pytest

from kafkasafe import logging_handler, metrics
from kafkasafe.logging_handler import KafkaHandler


class Grows(weakref.WeakSet):
    """Another thread adds to it while it is iterated for the first time."""

    def __iter__(self):
        kept = self.__dict__.setdefault("kept", [])
        for each in super().__iter__():
            if not kept:
                kept.append(type("Handler", (), {"_configs": {"client_id": "other"}})())
                self.add(kept[0])
            yield each


class GrowsByKey(weakref.WeakKeyDictionary):
    """See `Grows`."""

    def values(self):
        kept = self.__dict__.setdefault("kept", [])
        for each in super().values():
            if not kept:
                kept.append(type("Registry", (), {})())
                self[kept[0]] = each
            yield each


@pytest.mark.parametrize("name", ["kafka.conn", "app"])
def test_a_program_logs_while_another_thread_makes_a_handler(fake_kafka, tmp_path, monkeypatch, name):
    fake_kafka.create_topic("logs")
    handlers = Grows()
    monkeypatch.setattr(logging_handler, "_HANDLERS", handlers)
    handler = KafkaHandler("logs", bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path)
    try:
        handler.emit(logging.LogRecord(name, logging.INFO, __file__, 1, "hello", None, None))
        assert len(handlers) == 2
    finally:
        handler.close()


def test_a_client_closes_while_another_thread_installs_metrics(monkeypatch):
    closed = []
    registry, collector = (
        type("Registry", (), {})(),
        type("Collector", (), {"closed": staticmethod(closed.append)})(),
    )
    installed = GrowsByKey({registry: collector})
    monkeypatch.setattr(metrics, "_installed", installed)
    source = object()
    metrics._closed(source)
    assert closed == [source, source]

"""flush() without a timeout says what it waits for."""

from __future__ import annotations

import kafka.errors as kafka_errors
import pytest

from kafkasafe import SafeProducer, logs
from kafkasafe import producer as module


def said(caplog) -> list[str]:
    assert logs.drain(60)
    return [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "flush_waits"]


def test_flush_says_what_it_waits_for(fake_kafka, tmp_path, monkeypatch, caplog):
    """An acknowledgement stepped back, and without READ nobody may look: flush() waited for ever without a word."""
    monkeypatch.setattr(module, "_SAY_EVERY_S", 0.3)
    fake_kafka.create_topic("t", partitions=1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", retry_backoff_ms=50
    ) as producer:
        for _ in range(5):
            producer.send("t", b"x").get(timeout=60)
        fake_kafka.deny("read", topic="t")
        # lose_log() restarts the leader: a request that its old connection takes along is in doubt, and waits for READ itself.
        with fake_kafka._acting() as desk:
            desk.centre.wipe("t", 0)
        producer.send("t", b"behind").get(timeout=60)
        while not said(caplog):
            with pytest.raises(kafka_errors.KafkaTimeoutError, match=r"Whether t-0 still has"):
                producer.flush(timeout=2.0)
        assert "whether t-0 still has all acknowledged records" in said(caplog)[-1]
        assert "acknowledged at offset 0, though offset 4" in said(caplog)[-1]
        fake_kafka.deny("read", topic="t", on=False)
        producer.flush(timeout=120)

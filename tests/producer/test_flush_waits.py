"""flush() without a timeout says what it waits for."""

from __future__ import annotations

import threading

import kafka.errors as kafka_errors
import pytest
from waiting import until

from kafkasafe import SafeProducer, logs
from kafkasafe._producing import delivery
from kafkasafe.delivery.engine.waits import WaitingCallers
from kafkasafe.process.wake_flag import WakeFlag


def said(caplog) -> list[str]:
    assert logs.drain(60)
    return [each.getMessage() for each in caplog.records if getattr(each, "event", "") == "flush_waits"]


def test_flush_says_what_it_waits_for(fake_kafka, tmp_path, monkeypatch, caplog):
    """An acknowledgement stepped back, and without READ nobody may look: flush() waited for ever without a word."""
    monkeypatch.setattr(delivery, "_SAY_EVERY_S", 0.3)
    fake_kafka.create_topic("t", partitions=1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", retry_backoff_ms=50
    ) as producer:
        for _ in range(5):
            producer.send("t", b"x").get(timeout=60)
        fake_kafka.deny("read", topic="t")
        # lose_log() restarts the leader: a request that its old connection takes along is in doubt, and waits for READ itself.
        with fake_kafka._acting() as handler:
            handler.centre.wipe("t", 0)
        producer.send("t", b"behind").get(timeout=60)
        while not said(caplog):
            with pytest.raises(kafka_errors.KafkaTimeoutError, match=r"check whether t-0 still has"):
                producer.flush(timeout=2.0)
        assert "whether t-0 still has all acknowledged records" in said(caplog)[-1]
        assert "acknowledged at offset 0, though offset 4" in said(caplog)[-1]
        fake_kafka.deny("read", topic="t", on=False)
        producer.flush(timeout=120)


def test_get_wakes_up_once(fake_kafka, tmp_path, monkeypatch):
    """It was woken when its record was on disk, when the spool grew, and before it was done, each time in vain."""
    fake_kafka.create_topic("t", partitions=1)
    with SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path) as producer:
        producer.send("t", b"first").get(60)
        waits, wait = [], WakeFlag.wait

        def counted(wake_flag, timeout_s):
            if threading.current_thread() is threading.main_thread():
                waits.append(timeout_s)
            wait(wake_flag, timeout_s)

        monkeypatch.setattr(WakeFlag, "wait", counted)
        for _ in range(20):
            producer.send("t", b"next").get(60)
        assert len(waits) <= 20


def test_what_a_look_raises_is_raised_where_it_is_waited_for():
    waiting = WaitingCallers()
    broken: list[int] = []

    def ready() -> bool:
        return bool(broken and 1 // 0)

    def ring() -> None:
        until(lambda: bool(waiting))
        broken.append(1)
        waiting.notify_all()

    ringer = threading.Thread(target=ring)
    ringer.start()
    with pytest.raises(ZeroDivisionError):
        waiting.wait_for(ready, 60, choosy=True)
    ringer.join()
    assert not waiting


@pytest.mark.parametrize(("wrong", "error"), [(float("nan"), ValueError), ("5", TypeError), ([], TypeError)])
def test_a_time_out_that_is_none_is_refused_and_nothing_is_changed(fake_kafka, tmp_path, wrong, error):
    """flush(nan) never ended, and said a thousand times a second that it had waited for 0 s."""
    fake_kafka.create_topic("t", partitions=1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool"
    ) as producer:
        future = producer.send("t", b"x")
        with producer.batch() as batch:
            batch.send("t", b"y")
        outcome = batch.outcome
        waits = [producer.flush, producer.durable, producer.close]
        for wait in [*waits, future.get, future.durable, outcome.get, outcome.durable]:
            with pytest.raises(error, match="timeout must be a number of seconds, or None, not "):
                wait(wrong)
        producer.send("t", b"z")
        producer.flush(float("inf"))
        assert future.get(0).offset == 0

"""close(), and programs that end without it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import harness
import pytest

pytestmark = pytest.mark.kafka

HANDLERS = Path(__file__).with_name("handlers.py")


def values_of(servers, topic) -> list[int]:
    return [int(record.value) for records in harness.read_log(servers, topic).values() for record in records]


def test_close_after_an_idle_time(kafka, producers, tmp_path, monkeypatch):
    """Its patience was counted from the last delivery, or the constructor: it gave up at once, on a healthy broker."""
    monkeypatch.setattr("kafkasafe.producer._CLOSE_IDLE_S", 3.0)
    topic = harness.new_topic(kafka, 1)
    used = producers(kafka.bootstrap_servers, spool_dir=tmp_path / "used")
    used.send(topic, b"0").get(60)
    unused = producers(kafka.bootstrap_servers, spool_dir=tmp_path / "unused", linger_ms=0)
    time.sleep(3.5)
    futures = [used.send(topic, b"%d" % number) for number in range(1, 21)]
    used.close()
    with unused:
        futures.append(unused.send(topic, b"21"))
    assert [future.exception for future in futures if not future.succeeded()] == []
    assert sorted(values_of(kafka.bootstrap_servers, topic)) == list(range(22))


@pytest.mark.parametrize("call", ["close", "flush", "flush_spool", "get", "send"])
def test_signal_handler_in_the_middle_of_send(kafka, tmp_path, call):
    """The handler waited for ever for the lock that the interrupted send() on its own thread had."""
    topic = harness.new_topic(kafka, 1)
    arguments = [",".join(kafka.bootstrap_servers), topic, str(tmp_path / "spool"), call]
    tries = "20" if call == "close" else "80"
    done = subprocess.run(
        [sys.executable, str(HANDLERS), *arguments, tries],
        capture_output=True,
        timeout=150,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["longest_s"] < 60
    log = values_of(kafka.bootstrap_servers, topic)
    assert len(log) == len(set(log)), "twice"
    assert set(log) == set(said["accepted"])
    if call not in {"get", "send"}:
        assert log == sorted(log)


def test_ctrl_c_before_the_first_record_of_a_batch(kafka, producers):
    """An empty batch that was due kept the pump turning, at a full core, until somebody sent to that topic."""
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, linger_ms=1)
    producer.send(topic, b"0").get(60)
    with producer._lock:
        # As an interrupt leaves it that comes right after the batch was opened.
        producer._open_chunk(topic)
    time.sleep(0.2)
    turns = 0
    turn = producer._pump._turn

    def counted():
        nonlocal turns
        turns += 1
        turn()

    producer._pump._turn = counted
    time.sleep(0.5)
    assert turns < 50
    assert producer.send(topic, b"1").get(60).offset == 1

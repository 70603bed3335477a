"""close(), and programs that end without it."""

from __future__ import annotations

import gc
import json
import logging
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from pathlib import Path

import harness
import pytest
from programs import python

from kafkasafe import SafeProducer

pytestmark = pytest.mark.kafka

HANDLERS = Path(__file__).with_name("handlers.py")


def test_close_after_an_idle_time(kafka, producers, tmp_path, monkeypatch):
    """Its patience was counted from the last delivery, or the constructor: it gave up at once, on a healthy broker."""
    monkeypatch.setattr("kafkasafe._producing.shutdown._CLOSE_IDLE_S", 3.0)
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
    assert sorted(harness.values_of(kafka.bootstrap_servers, topic)) == list(range(22))


@pytest.mark.parametrize("call", ["close", "flush", "durable", "get", "send"])
def test_signal_handler_in_the_middle_of_send(kafka, tmp_path, call):
    """The handler waited for ever for the lock that the interrupted send() on its own thread had."""
    topic = harness.new_topic(kafka, 1)
    arguments = [",".join(kafka.bootstrap_servers), topic, str(tmp_path / "spool"), call]
    tries = "20" if call == "close" else "80"
    done = python(HANDLERS, *arguments, tries, timeout=150)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["longest_s"] < 60
    log = harness.values_of(kafka.bootstrap_servers, topic)
    assert len(log) == len(set(log)), "twice"
    assert set(log) == set(said["accepted"])
    if call not in {"get", "send"}:
        assert log == sorted(log)


def test_ctrl_c_before_the_first_record_of_a_batch(kafka, producers, mocker):
    """An empty batch that was due kept the pump turning, at a full core, until somebody sent to that topic."""
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, linger_ms=1)
    producer.send(topic, b"0").get(60)
    with producer.parts.accumulator.lock:
        # As an interrupt leaves it that comes right after the batch was opened.
        producer.parts.admission.add_open_batch(topic)
    time.sleep(0.2)
    turn = mocker.spy(producer._pump, "_turn")
    time.sleep(0.5)
    assert turn.call_count < 50
    assert producer.send(topic, b"1").get(60).offset == 1


SENDING = """
    import logging, sys
    logging.basicConfig(level=logging.INFO)
    from kafkasafe import SafeProducer
    servers, topic, spool, run = sys.argv[1:]

    def program():
        producer = SafeProducer(bootstrap_servers=servers, spool_dir=spool)
        for number in range(10):
            producer.send(topic, b"%d" % (10 * int(run) + number))
        return producer
"""
ENDS = {
    "end of the script": ("producer = program()", 0),
    "producer local to a function": ("program() and None", 0),
    "sys.exit": ("producer = program(); sys.exit(3)", 3),
    "exception": ("producer = program(); raise RuntimeError", 1),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_without_close(kafka, tmp_path, end):
    """Each life ended before it knew the topic: the spool grew, and none of its records was ever delivered."""
    topic = harness.new_topic(kafka, 1)
    statement, code = ENDS[end]
    for run in range(3):
        arguments = [",".join(kafka.bootstrap_servers), topic, str(tmp_path / "spool"), str(run)]
        done = python("-c", textwrap.dedent(SENDING) + statement, *arguments)
        assert done.returncode == code, done.stderr
        assert not [line for line in done.stderr.splitlines() if line.startswith(("ERROR:", "CRITICAL:"))]
        assert harness.values_of(kafka.bootstrap_servers, topic) == list(range(10 * run + 10)), done.stderr


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def left(caplog) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", "") == "records_left"]


def test_what_is_left_on_disk_is_said_once(producers, tmp_path, monkeypatch, caplog):
    """close() returned without a word, and a program ended so, though nothing had been delivered."""
    monkeypatch.setattr("kafkasafe._producing.shutdown._CLOSE_IDLE_S", 0.2)
    producer = producers(harness.dead_address())
    for number in range(7):
        producer.send("t", b"%d" % number)
    producer.close()
    (said,) = left(caplog)
    assert (said.levelno, said.records, said.path) == (logging.WARNING, 7, str(tmp_path / "spool"))
    assert f"kafkasafe spool drain {tmp_path / 'spool'} -b {harness.dead_address()}" in said.getMessage()
    caplog.clear()
    producers(harness.dead_address()).close()
    assert [said.records for said in left(caplog)] == [7], "they wait still"


def dropped(caught: list[warnings.WarningMessage]) -> int:
    """Of the warnings, those about a dropped producer. What other tests left to the collector may warn as well."""
    said = [str(each.message) for each in caught if each.category is ResourceWarning]
    return sum("dropped without close()" in each for each in said)


def test_dropped_producers(kafka, tmp_path):
    """Each kept two threads, six files and a lane until the process ended."""
    topic = harness.new_topic(kafka, 1)
    options = {"bootstrap_servers": kafka.bootstrap_servers, "spool_dir": tmp_path / "spool"}
    gc.collect()
    threads, files = threading.active_count(), open_files()
    for number in range(20):
        producer = SafeProducer(**options)
        producer.send(topic, b"%d" % number)
        if number % 2:
            producer.itself = producer  # as in a reference cycle
        gone = weakref.ref(producer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
            gc.collect()
            # Another thread may be collecting already. Then `gc.collect()` does nothing, and `__del__` runs there.
            harness.until(lambda: dropped(caught), 10, "the warning")
        assert dropped(caught) == 1
    harness.until(
        lambda: threading.active_count() <= threads + 1, what="threads end"
    )  # that of the log stays
    harness.until(lambda: gone() is None, what="the producer goes")
    assert open_files() <= files + 2
    assert len(list((tmp_path / "spool").glob("lane-*"))) <= 3
    assert harness.values_of(kafka.bootstrap_servers, topic) == list(range(20))


def test_what_a_dropped_producer_leaves_comes_first(broker, producers, tmp_path):
    """In an outage the next producer on the directory takes its lane over."""
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    dropped = SafeProducer(bootstrap_servers=broker.servers, spool_dir=tmp_path / "spool")
    lane = dropped.lane
    for number in range(5):
        dropped.send(topic, b"%d" % number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del dropped
    producer = producers(broker.servers)
    for number in range(5, 10):
        producer.send(topic, b"%d" % number)
    broker.proxy.restore()
    producer.flush(60)
    assert producer.lane == lane
    assert harness.values_of(broker.servers, topic) == list(range(10))


DYING = """
    import sys, time
    from kafkasafe import SafeProducer
    servers, topic, spool = sys.argv[1:]
    producer = SafeProducer(bootstrap_servers=servers, spool_dir=spool)
    producer.send(topic, b"0").get(60)
    print("delivered", flush=True)
    sys.stdin.readline()
    for number in (1, 2, 3):
        producer.send(topic, b"%d" % number, timestamp_ms=int((time.time() - 7 * 3600) * 1000))
    producer.durable(60)
    print("durable", flush=True)
    time.sleep(120)
"""


def test_short_lives_deliver_what_is_old(broker, producers, tmp_path):
    """Each life waited for a request timeout of its own before it sent a batch that old, and none lived that long."""
    topic = harness.new_topic(broker.cluster, 1)
    arguments = [",".join(broker.servers), topic, str(tmp_path / "spool")]
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DYING), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as dying:
        assert dying.stdout.readline() == "delivered\n"
        broker.proxy.refuse()
        dying.stdin.write("\n")
        dying.stdin.flush()
        assert dying.stdout.readline() == "durable\n"
        dying.kill()
    broker.proxy.restore()
    sent = 4
    while broker.end_offset(topic) < 4 and sent < 14:
        producer = producers(broker.servers, request_timeout_ms=8000)
        producer.send(topic, b"%d" % sent)
        producer.close(timeout=3)
        sent += 1
    assert broker.end_offset(topic) > 3, "ten lives, and nothing delivered"
    producers(broker.servers).close()
    assert harness.values_of(broker.servers, topic) == list(range(sent))


def test_a_signal_handler_seals_what_is_being_sealed(tmp_path):
    """It came when the open batch had been closed and its records were not taken yet: they were forgotten, and IndexError."""
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path / "spool", linger_ms=60_000)
    try:
        first = producer.send("orders", b"first")
        open_batch = producer._open_batches["orders"]

        class Handled:
            """The open batch's numbers, the next of which a signal handler comes before."""

            def __init__(self, numbers):
                self.numbers = numbers

            def __iter__(self):
                return self

            def __next__(self):
                open_batch.numbers = self.numbers
                producer.durable(60)
                return next(self.numbers)

        open_batch.numbers = Handled(open_batch.numbers)
        with producer.parts.accumulator.lock:
            producer.parts.accumulator.seal(open_batch)
        assert first.durable(60) is not None
        assert open_batch.encoded.count == 1
    finally:
        producer.close(timeout=0)

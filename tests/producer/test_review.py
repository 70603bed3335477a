"""Bugs that a review found, each with what would have shown it."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import threading
import time

import harness
import pytest
from kafka.errors import IllegalStateError
from kafka.serializer import Serializer

from kafkasafe import SafeProducer
from kafkasafe.delivery.engine.disk import DiskWriter
from kafkasafe.errors import (
    ConfigError,
    ForkedProcessError,
    SpoolCorruptError,
    SpoolError,
    SpoolWriteError,
    UsageError,
)
from kafkasafe.events import DataLost, SpoolRecordsMissing
from kafkasafe.maintenance.examination import read_content
from kafkasafe.record import batch as codec
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.spool import Spool

pytestmark = pytest.mark.kafka


@pytest.fixture
def interrupting():
    """SIGALRM raises in the main thread, as Ctrl-C does."""

    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    yield Interrupted
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_anywhere_in_send(kafka, producers, interrupting):
    """It left the producer's lock taken for ever, or forgot up to 8,192 accepted records."""
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, linger_ms=1)
    producer.partitions_for(topic)
    accepted: list[int] = []
    number, interrupts, chance = 0, 0, random.Random(7)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        try:
            # Again after a second: what is raised in a callback of the garbage collector (hypothesis has one) is not
            # seen. The timer is set in here: on a busy machine it is over before the next line.
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.02), 1.0)
            while True:
                number += 1
                producer.send(topic, b"%d" % number)
                accepted.append(number)
        except interrupting:
            signal.setitimer(signal.ITIMER_REAL, 0)
            interrupts += 1
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
    assert interrupts > 10
    log = harness.values_of(kafka.bootstrap_servers, topic)
    assert log == sorted(set(log)), "twice, or out of order"
    assert set(accepted) <= set(log)


def test_ctrl_c_in_close(broker, producers, interrupting):
    """What was accepted and not yet written was forgotten."""
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    producer = producers(broker.servers, linger_ms=60_000)
    for number in range(100):
        producer.send(topic, b"%d" % number)
    producer.parts.shutdown._flush_disk = lambda *_: (_ for _ in ()).throw(interrupting)
    with pytest.raises(interrupting):
        producer.close()
    broker.proxy.restore()
    with producers(broker.servers) as producer:
        producer.flush(60)
    assert harness.values_of(broker.servers, topic) == list(range(100))


def test_waiting_for_a_producer_that_ended_by_an_error(broker, producers, monkeypatch):
    """flush() and durable() returned as if everything was safe, durable() of a future after close() never returned."""
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()

    def fail(*_):
        raise RuntimeError("a bug")

    for wait in ("flush", "durable", "close"):
        producer = producers(broker.servers, linger_ms=60_000)
        future = producer.send(topic, b"1")
        with monkeypatch.context() as patch:
            patch.setattr(DiskWriter, "_write_group", fail)
            with pytest.raises(SpoolError, match="a bug"):
                getattr(producer, wait)()
        with pytest.raises(SpoolError, match="a bug"):
            future.durable()
        if wait != "close":
            with pytest.raises(SpoolError, match="a bug"):
                producer.close()


def test_close_tells_what_it_could_not_write(broker, producers, monkeypatch, mocker):
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    monkeypatch.setattr("kafkasafe._producing.shutdown._CLOSE_DISK_LEAST_S", 0.3)
    producer = producers(broker.servers)
    future = producer.send(topic, b"1")
    full = OSError(errno.ENOSPC, "No space left on device")
    written = mocker.patch.object(OsFiles, "writev", autospec=True, side_effect=full)
    with pytest.raises(SpoolWriteError, match=r"1 record was accepted and not durable .* make room"):
        producer.close(timeout=0)
    assert written.call_count > 1, "it is tried again"
    with pytest.raises(SpoolWriteError, match="It is lost, unless the cluster has it"):
        future.durable()


def test_a_request_larger_than_the_backlog(kafka, producers):
    """max_request_size above 16 MB: every send() was refused by a spool that was empty."""
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": "30000000"})
    producer = producers(kafka.bootstrap_servers, max_request_size=20_000_000, max_block_ms=2000)
    assert producer.send(topic, bytes(17_000_000)).get(60).offset == 0
    producer.close()


def test_lingering_batches_hold_up_nobody(kafka, producers):
    """Open batches of many topics fill the buffer: they were not sealed before their time, and send() was refused."""
    topics = [harness.new_topic(kafka, 1) for _ in range(6)]
    options = {
        "linger_ms": 60_000,
        "batch_size": 8_000_000,
        "max_request_size": 8_000_000,
        "max_block_ms": 2000,
    }
    producer = producers(kafka.bootstrap_servers, **options)
    for topic in topics:
        for _ in range(7):
            producer.send(topic, bytes(900_000))
    producer.flush(60)
    producer.close()


def test_serializers_see_the_headers_that_are_sent_and_are_closed(kafka, producers):
    class Tagging(Serializer):
        closed = 0

        def serialize(self, topic, headers, data):
            headers.append(("schema", b"7"))
            return data.encode()

        def close(self):
            self.closed += 1

    serializer = Tagging()
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, value_serializer=serializer)
    producer.send(topic, "a")
    producer.send(topic, "b", headers=[])
    producer.close()
    assert serializer.closed == 1
    (records,) = harness.read_log(kafka.bootstrap_servers, topic).values()
    assert [list(record.headers) for record in records] == [[("schema", b"7")]] * 2


@pytest.mark.parametrize(
    "option",
    [
        {"max_block_ms": float("inf")},
        {"max_block_ms": float("nan")},
        {"spool_lane": -1},
        {"spool_lane": "a"},
        {"spool_lane": 1000},
        {"on_rejected": 5},
        {"on_rejected": "orders-dlq"},
        {"on_event": "print"},
        {"spool_dir": 5},
        {"partitioner": 5},
        {"compression_type": ["gzip"]},
        {"acks": [1]},
    ],
    ids=str,
)
def test_options_that_cannot_work(tmp_path, option):
    """Lane -1 was even taken: nobody would ever have found its records."""
    with pytest.raises(ConfigError, match=next(iter(option))):
        SafeProducer(**{"spool_dir": tmp_path, **option})


def test_after_close(producers):
    """As kafka-python's error, and at once."""
    producer = producers(harness.dead_address())
    with pytest.raises(ValueError, match="-1"):
        producer.close(-1)
    producer.close(timeout=float("inf"))
    with pytest.raises(IllegalStateError):
        producer.send("t", b"x")
    with pytest.raises(IllegalStateError):
        producer.partitions_for("t")


def test_futures_of_the_parent_in_a_forked_child(producers):
    """They waited for ever: nobody works in the child."""
    producer = producers(harness.dead_address())
    future = producer.send("t", b"x")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(10)
            producer.metrics()
            for wait in (future.get, future.durable, producer.flush):
                try:
                    wait()
                except ForkedProcessError:
                    code = 0
                else:
                    code = 2
                    break
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    future.durable(60)
    producer.close(0)


def test_close_in_a_hook(kafka, producers):
    """The pump's own thread cannot wait for itself."""
    topic = harness.new_topic(kafka, 1)
    closed = threading.Event()

    def on_event(event):
        if not closed.is_set():
            producer.close()
            closed.set()

    producer = producers(kafka.bootstrap_servers, on_event=on_event)
    producer.send(topic, b"0")
    producer.durable(60)
    assert closed.wait(60)
    harness.until(lambda: not producer._pump._thread.is_alive())
    with producers(kafka.bootstrap_servers) as producer:
        producer.flush(60)
    assert harness.values_of(kafka.bootstrap_servers, topic) == [0]


def test_too_many_open_files_for_a_while(kafka, producers):
    """The search for lanes left behind ended the whole producer."""
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers)
    producer.send(topic, b"0").get(60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        time.sleep(3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    producer.send(topic, b"1").get(60)
    producer.close()


@pytest.mark.parametrize("outage", [False, True])
def test_given_and_chosen_partitions_at_first_contact(broker, producers, outage):
    """Records to a given partition overtook those whose partition was not chosen yet, though they went to the same."""
    topic = harness.new_topic(broker.cluster, 1)
    if outage:
        broker.proxy.refuse()
    producer = producers(broker.servers)
    chance = random.Random(3)
    futures = []
    for number in range(300):
        partition = 0 if chance.random() < 0.5 else None
        headers = [("n", b"%d" % number)] if number % 7 == 0 else None
        futures.append(producer.send(topic, b"%d" % number, partition=partition, headers=headers))
        if chance.random() < 0.03:
            producer.durable(60)
    if outage:
        producer.close(timeout=0)
        broker.proxy.restore()
        producer = producers(broker.servers)
    producer.flush(60)
    if not outage:
        assert [future.get().offset for future in futures] == list(range(300))
        assert [future.get().serialized_header_size for future in futures[:8]] == [2, *[-1] * 6, 2]
    producer.close()
    (records,) = harness.read_log(broker.servers, topic).values()
    assert [int(record.value) for record in records] == list(range(300))
    for number, record in enumerate(records):
        assert list(record.headers) == ([("n", b"%d" % number)] if number % 7 == 0 else [])


@pytest.mark.parametrize("known", [False, True])
def test_a_spool_that_cannot_be_read_for_a_while(broker, producers, monkeypatch, known):
    """One read error of what waits on disk ended the producer."""
    monkeypatch.setattr("kafkasafe.delivery.engine.disk._MEMORY_BYTES", 0)
    topic = harness.new_topic(broker.cluster, 1)
    producer = producers(broker.servers, batch_size=2000)
    if known:
        producer.send(topic, b"0").get(60)
    broker.proxy.refuse()
    for number in range(known, 300):
        producer.send(topic, b"%d" % number)
        if number % 10 == 0:
            producer.durable(60)
    failed = threading.Event()

    def fail(*_):
        failed.set()
        raise SpoolError("Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "read", fail)
        broker.proxy.restore()
        assert failed.wait(60)
        time.sleep(0.3)
    producer.flush(60)
    producer.close()
    assert harness.values_of(broker.servers, topic) == list(range(300))


def test_a_hook_that_waits_for_the_producer(kafka, producers):
    """It waited for itself, for ever where no timeout was given."""
    topic = harness.new_topic(kafka, 1, config={"max.message.bytes": "10000"})
    letters = harness.new_topic(kafka, 1)
    seen: list = []

    def on_rejected(value, **_):
        future = producer.send(letters, value[:3])
        try:
            future.get()
        except UsageError as error:
            seen.append(str(error))

    producer = producers(kafka.bootstrap_servers, on_rejected=on_rejected)
    assert producer.send(topic, b"1" * 20_000).add_errback(seen.append) is not None
    producer.flush(60)
    producer.close()
    assert "own thread" in seen[0]
    assert harness.values_of(kafka.bootstrap_servers, letters) == [111]


def test_the_network_thread_crashes_while_records_are_sent(kafka, producers):
    """The producer was a silent zombie from then on: it accepted, retried and delivered nothing."""
    topic = harness.new_topic(kafka, 1)
    producer = producers(kafka.bootstrap_servers, linger_ms=1)
    futures = []
    for number in range(3000):
        futures.append(producer.send(topic, b"%d" % number))
        if number % 1000 == 500:
            crashed = producer.parts.cluster._network.loop
            crashed._schedule_tasks = lambda: 1 / 0
            crashed.wakeup()
            harness.until(lambda crashed=crashed: producer.parts.cluster._network.loop is not crashed, 120)
    producer.flush(120)
    assert producer.bootstrap_connected()
    assert [future.get(0).offset for future in futures] == list(range(3000))
    producer.close()
    assert harness.values_of(kafka.bootstrap_servers, topic) == list(range(3000))


def test_a_deleted_topic_stays_deleted_and_is_forgotten(kafka, producers, monkeypatch):
    """Asking whether its records were still there created it again, also in lives that never wrote to it."""
    topic, other = harness.new_topic(kafka, 1), "made-on-demand"
    seen: list[object] = []
    options = {"data_loss_check_ms": 100, "linger_ms": 1, "on_event": seen.append}

    def exists(name: str) -> bool:
        with kafka.admin() as admin:
            return name in admin.list_topics()

    def lives_on(producer: SafeProducer, name: str) -> None:
        for number in range(3):
            producer.send(name, b"%d" % number).get(60)
            time.sleep(0.4)

    def known(producer: SafeProducer) -> set[str]:
        return {name for (name, _), _ in producer._pump.lanes[0].journal.views.last_acked_offsets()}

    producer = producers(kafka.bootstrap_servers, **options)
    producer.send(topic, b"0").get(60)
    kafka.delete_topic(topic)
    harness.until(lambda: not exists(topic), 120)
    lives_on(producer, other)
    assert exists(other), "what is wanted is created as before"
    assert not exists(topic)
    producer.close()
    # A later life, which never writes to it.
    monkeypatch.setattr("kafkasafe.delivery.engine.topics._FORGET_GONE_S", 0.5)
    producer = producers(kafka.bootstrap_servers, **options)
    lives_on(producer, other)
    harness.until(lambda: known(producer) == {other}, 120)
    harness.until(lambda: topic not in producer.parts.cluster._topics.names, 120)
    producer.close()
    assert not exists(topic)
    producer = producers(kafka.bootstrap_servers, **options)
    assert known(producer) == {other}
    # Whoever sends to it wants it.
    assert producer.send(topic, b"1").get(60).offset == 0
    producer.close()
    assert not [event for event in seen if isinstance(event, DataLost)]
    kafka.delete_topic(topic)
    kafka.delete_topic(other)


@pytest.mark.parametrize("on_corrupt", ["raise", "quarantine"])
def test_records_that_vanished_from_the_spool_are_reported_by_what_the_leader_remembers(
    broker, producers, on_corrupt
):
    """Also where the spool itself cannot tell. What was behind them was given new ids, without a word."""
    topic = harness.new_topic(broker.cluster, 1)
    seen: list[object] = []
    options = {
        "spool_segment_bytes": 1 << 20,
        "max_request_size": 900_000,
        "linger_ms": 0,
        "request_timeout_ms": 3000,
        "on_event": seen.append,
        "on_corrupt": on_corrupt,
    }
    producer = producers(broker.servers, **options)
    producer.send(topic, b"0").get(60)
    broker.proxy.refuse()
    broker.proxy.cut()
    for number in range(1, 9):
        producer.send(topic, b"%d".ljust(600_000) % number)
        producer.durable()
    producer.close(timeout=0)
    lane = producers.spool / "lane-000"
    segments = sorted(lane.glob("*.log"))
    assert len(segments) > 4
    for path in (lane / "extent", *segments[:-4]):
        path.unlink()
    left = [int(value.split()[0]) for value in waiting_values(lane)]
    assert 0 < len(left) < 8
    broker.proxy.restore()
    producer = producers(broker.servers, **options)
    missing = f"{8 - len(left)} records? of lane-000"
    if on_corrupt == "raise":
        harness.until(lambda: [event for event in seen if isinstance(event, SpoolRecordsMissing)], 120)
        with pytest.raises(SpoolCorruptError, match=missing):
            producer.flush(60)
    producer.flush(60)
    producer.close()
    (event,) = [event for event in seen if isinstance(event, SpoolRecordsMissing)]
    assert (event.topic, event.partition, event.records) == (topic, 0, 8 - len(left))
    assert harness.values_of(broker.servers, topic) == [0, *left]


def waiting_values(lane) -> list[bytes]:
    content = read_content(lane, files=OsFiles())
    return [value for batch in content.batches for value in codec.decode(content.data(batch)).values]

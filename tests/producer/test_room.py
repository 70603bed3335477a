"""Room in the spool, as callers ask for it."""

from __future__ import annotations

import contextlib
import os
import random
import threading

import harness
import pytest
from waiting import until

from kafkasafe import RejectedError, SafeProducer, SpoolFullError, events
from kafkasafe.delivery.pump import _BACKLOG
from kafkasafe.spool.files import OsFiles

MIB = 1 << 20


def test_a_disk_that_does_not_say_how_much_room_is_left_holds_up_no_caller(tmp_path, monkeypatch):
    """A network file system whose statvfs hangs: send() held both of the producer's locks meanwhile."""
    hangs, over = threading.Event(), threading.Event()
    askers = set()

    class Hanging(OsFiles):
        def free_bytes(self, path, *, at=None):
            askers.add(threading.current_thread())
            if hangs.is_set():
                over.wait(120)
            return super().free_bytes(path, at=at)

    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", Hanging)
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path / "spool", linger_ms=0)
    try:
        producer.send("orders", b"first").durable(120)
        askers.clear()
        hangs.set()
        done = threading.Event()

        def send() -> None:
            for number in range(100):
                producer.send("orders", b"%d" % number, partition=number % 7)
            done.set()

        caller = threading.Thread(target=send, daemon=True)
        caller.start()
        assert done.wait(60), "send() waits for the disk"
        until(lambda: askers)  # the pump asks after a write, at the latest after two seconds
        assert caller not in askers
    finally:
        over.set()
        producer.close(timeout=0)


def test_what_was_just_written_counts_before_anything_else_is_accepted(tmp_path, monkeypatch):
    """Between the fsync and the next look at the disk written bytes counted nowhere, and the spool grew too large."""

    busy = threading.Event()

    class Slow(OsFiles):
        def free_bytes(self, path, *, at=None):
            busy.wait(0.02)
            return super().free_bytes(path, at=at)

    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", Slow)
    limit = 16 << 20
    spool = tmp_path / "spool"
    producer = SafeProducer(
        bootstrap_servers="127.0.0.1:9",
        spool_dir=spool,
        spool_max_bytes=limit,
        max_request_size=300_000,
        batch_size=100_000,
        max_block_ms=300,
    )

    def fill() -> None:
        while True:
            try:
                producer.send("orders", os.urandom(10_000))
            except SpoolFullError:
                return

    callers = [threading.Thread(target=fill) for _ in range(4)]
    try:
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(120)
        producer.durable(120)
        assert sum(path.stat().st_size for path in spool.rglob("*.log")) <= limit
    finally:
        producer.close(timeout=0)


def test_an_atomic_batch_that_waits_for_room_sleeps(tmp_path, monkeypatch):
    """There was room for a record, so it asked again at once, all the time that there was none for the batch."""
    stuck, over, asked = threading.Event(), threading.Event(), []

    class Stuck(OsFiles):
        def writev(self, handle, buffers, offset):
            if stuck.is_set():
                over.wait(120)
            return super().writev(handle, buffers, offset)

    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", Stuck)
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path / "spool", max_block_ms=500)
    wait = producer.parts.admission._wait_for_room

    def counted(*arguments):
        asked.append(arguments)
        return wait(*arguments)

    monkeypatch.setattr(producer.parts.admission, "_wait_for_room", counted)
    try:
        producer.send("orders", b"first").durable(120)
        stuck.set()
        for _ in range(20):
            producer.send("orders", bytes(MIB - 1000), partition=0)
        batch = producer.batch()
        for _ in range(20):
            batch.send("orders", bytes(MIB - 1000), partition=0)
        with pytest.raises(SpoolFullError):
            batch.commit()
        assert 1 < len(asked) < 20
    finally:
        over.set()
        producer.close(timeout=0)


@pytest.mark.parametrize("mib", [31, 60])
def test_an_atomic_batch_may_be_as_large_as_a_file(tmp_path, mib):
    """With nothing else in memory it found no room there: 32 MiB are for what waits for the disk."""
    producer = SafeProducer(
        bootstrap_servers="127.0.0.1:9", spool_dir=tmp_path / "spool", max_block_ms=30_000
    )
    try:
        with producer.batch() as batch:
            for _ in range(mib):
                batch.send("orders", bytes(MIB - 1000), partition=0)
        batch.outcome.durable(120)
    finally:
        producer.close(timeout=0)


def fill(producer, topic: str, *, at_most: int, seed: int) -> int:
    """Random values until no room is left for another; how many bytes were accepted, all of them durable."""
    made, taken = random.Random(seed), 0
    while taken < at_most:
        try:
            producer.send(topic, made.randbytes(100_000))
        except SpoolFullError:
            break
        taken += 100_000
    producer.durable(120)
    return taken


@pytest.fixture
def small(some_broker, producers):
    """Producers of one directory with room for 16 MiB each."""

    def small(**options):
        options = {"retry_backoff_ms": 20, "request_timeout_ms": 1000, **options}
        return producers(
            some_broker.servers,
            spool_max_bytes=16 * MIB,
            max_request_size=300_000,
            batch_size=100_000,
            max_block_ms=1000,
            **options,
        )

    return small


def cut_off(broker) -> None:
    broker.proxy.refuse()
    broker.proxy.cut()


@pytest.mark.also_real
def test_what_is_delivered_gives_way_to_what_waits(some_broker, small):
    """In an outage nothing was deleted, and what `retain_acked_bytes` kept took the room of what waits."""
    topic = harness.new_topic(some_broker.cluster, 1)
    seen: list = []
    producer = small(retain_acked_bytes=6 * MIB, on_event=seen.append)
    first = 0
    for seed in range(7):
        first += fill(producer, topic, at_most=1_000_000, seed=seed)
        producer.flush(
            120
        )  # or all of it would wait where the cluster is slow, and nothing be delivered that is kept
    assert not [event for event in seen if isinstance(event, events.RetainedRecordsDeleted)]
    cut_off(some_broker)
    second = fill(producer, topic, at_most=20 * MIB, seed=8)
    assert second > 10 * MIB
    gone = [event for event in seen if isinstance(event, events.RetainedRecordsDeleted)]
    assert gone
    assert {event.topic for event in gone} == {topic}
    assert gone[-1].last_offset < first // 100_000
    some_broker.proxy.restore()
    producer.flush(120)
    assert some_broker.end_offset(topic) == (first + second) // 100_000


def test_what_is_delivered_gives_way_again_and_again(some_broker, small):
    """Each write was more than what it had freed: from then on nothing gave way, until something was delivered."""
    topic = harness.new_topic(some_broker.cluster, 1)
    producer = small(retain_acked_bytes=6 * MIB)
    fill(producer, topic, at_most=7 * MIB, seed=1)
    producer.flush(120)
    cut_off(some_broker)
    made, taken = random.Random(2), 0
    with contextlib.suppress(SpoolFullError):
        while taken < 20 * MIB:
            with producer.batch() as batch:
                for _ in range(19):
                    batch.send(topic, made.randbytes(100_000))
            batch.outcome.durable(120)
            taken += 1_900_000
    assert taken > 10 * MIB
    some_broker.proxy.restore()


@pytest.mark.kafka
def test_what_a_dead_neighbour_left_takes_no_room_of_a_survivor(some_broker, small, tmp_path):
    """A survivor that adopted what filled its neighbour's spool took nothing more itself."""
    topic = harness.new_topic(some_broker.cluster, 1)
    seen: list = []
    directory = tmp_path / "shared"
    survivor = small(spool_dir=directory, client_id="survivor", on_event=seen.append)
    dies = small(spool_dir=directory, client_id="dies")
    for producer in (survivor, dies):
        producer.send(topic, b"first").get(120)
    cut_off(some_broker)
    left = fill(dies, topic, at_most=11 * MIB, seed=3)
    dies.close(timeout=0)
    until(lambda: any(isinstance(event, events.LaneAdopted) for event in seen))
    own = fill(survivor, topic, at_most=11 * MIB, seed=4)
    assert min(left, own) > 10 * MIB
    some_broker.proxy.restore()
    survivor.flush(120)
    until(lambda: some_broker.end_offset(topic) == 2 + (left + own) // 100_000)


def test_who_commits_without_a_pause_lets_the_pump_work(fake_kafka, tmp_path, monkeypatch):
    """It kept the interpreter from the pump, which took thousands of batches in a turn, and delivered none of them."""
    stuck, over, waits = threading.Event(), threading.Event(), []

    class Stuck(OsFiles):
        def sync_data(self, handle):
            if stuck.is_set():
                over.wait(120)
            super().sync_data(handle)

    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", Stuck)
    fake_kafka.create_topic("orders", partitions=1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool"
    ) as producer:
        producer.send("orders", b"first").durable(120)
        pump = producer._pump
        wait = pump.wait

        def seen(ready, timeout, **of):
            if waits or not pump.is_backlogged():
                return wait(ready, timeout, **of)
            over.set()
            waits.append(len(pump._inbox))
            waits.append(wait(ready, 120))
            return waits[-1]

        monkeypatch.setattr(pump, "wait", seen)
        stuck.set()
        outcomes = []
        while not waits:
            with producer.batch() as batch:
                batch.send("orders", b"v")
            outcomes.append(batch.outcome)
            assert len(outcomes) < 200
        assert waits[0] >= _BACKLOG
        assert waits[1]
        for outcome in outcomes:
            outcome.get(120)


def test_a_commit_in_a_handler_on_the_pumps_thread_waits_for_nobody(fake_kafka, tmp_path):
    outcomes = []

    def on_event(event):
        if not outcomes:
            for _ in range(2 * _BACKLOG):
                with producer.batch() as batch:
                    batch.send("orders", b"v")
                outcomes.append(batch.outcome)

    fake_kafka.create_topic("orders", partitions=1)
    fake_kafka.create_topic("small", partitions=1, config={"max.message.bytes": "100"})
    producer = SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", on_event=on_event
    )
    with producer:
        with pytest.raises(RejectedError):
            producer.send("small", bytes(1000)).get(120)
        until(lambda: len(outcomes) == 2 * _BACKLOG)
        for outcome in outcomes:
            outcome.get(120)

"""`send` takes no lock: what threads and signal handlers may do in the middle of it."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from functools import partial

import harness
import pytest
from ctrl_c import PRODUCER, CtrlC

from kafkasafe.errors import ProducerClosedError
from kafkasafe.testing import FakeCluster


@pytest.fixture
def restless():
    """Threads take turns after each few bytecodes."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_send_to_one_topic(fake_kafka, producers, restless):
    """Each record is there once, in the order of its thread, and its future and callbacks speak of that very record."""
    topic = "t"
    fake_kafka.create_topic(topic, partitions=2)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=0, batch_size=2000)
    producer.partitions_for(topic)
    futures: dict[tuple[int, int], object] = {}
    called: dict[tuple[int, int], object] = {}

    def send(thread: int) -> None:
        key = None if thread % 2 else b"%d" % thread
        for number in range(3000):
            headers = [("n", b"%d" % number)] if number % 11 == 0 else None
            stamp = number if number % 13 == 0 else None
            future = producer.send(topic, b"%d %d" % (thread, number), key, headers, None, stamp)
            futures[thread, number] = future.add_callback(partial(called.__setitem__, (thread, number)))

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    producer.flush(60)
    log = harness.read_log(fake_kafka.bootstrap_servers, topic)
    there = {(partition, record.offset): record for partition, records in log.items() for record in records}
    assert len(there) == len(futures) == len(called) == 18_000
    places: dict[int, list[tuple[int, int]]] = {}
    for (thread, number), future in futures.items():
        metadata = future.get(0)
        assert called[thread, number] == metadata
        record = there[metadata.partition, metadata.offset]
        assert record.value == b"%d %d" % (thread, number)
        assert record.headers == ([("n", b"%d" % number)] if number % 11 == 0 else [])
        assert metadata.timestamp == record.timestamp
        assert metadata.serialized_value_size == len(record.value)
        assert metadata.serialized_key_size == (1 if record.key else -1)
        places.setdefault(thread, []).append((metadata.partition, metadata.offset))
    for thread, found in places.items():
        for partition in range(2):
            offsets = [offset for number, offset in found if number == partition]
            assert offsets == sorted(offsets), thread


def test_what_is_done_while_callbacks_run_is_called_as_well(producers):
    """Two partitions of one batch: the second is acknowledged while the first one's callback runs."""
    with FakeCluster(2) as cluster:
        cluster.create_topic("t", assignments={0: [1], 1: [2]})
        producer = producers(cluster.bootstrap_servers, linger_ms=600_000)
        producer.partitions_for("t")
        cluster.pause(2)
        first, second = (producer.send("t", b"v", partition=number) for number in range(2))
        called = []

        def wait_for_the_second(_):
            cluster.resume(2)
            called.append(second.get(60).partition)

        first.add_callback(wait_for_the_second)
        second.add_callback(called.append)
        producer.flush(60)
        assert called == [1, second.value]


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_record_that_never_came(fake_kafka, producers, keyed, known):
    """Ctrl-C came after its number was taken: the others keep their places, null values and all that is their own."""
    topic = "t"
    fake_kafka.create_topic(topic, partitions=3 if keyed else 1)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    if known:
        producer.partitions_for(topic)
    called: list = []

    def send(number: int):
        key = b"%d" % number if keyed else None
        value = None if keyed and number % 5 == 0 else b"%d" % number
        headers = [("n", b"%d" % number)] if number % 3 == 0 else None
        return producer.send(topic, value, key, headers).add_callback(called.append)

    futures = [send(number) for number in range(20)]
    open_batch = producer._open_batches[topic]
    next(open_batch.numbers)
    futures += [send(number) for number in range(20, 40)]
    open_batch.special[next(open_batch.numbers)] = (None, (("gone", b""),), None)
    assert producer._open_batches[topic] is open_batch
    producer.flush(60)
    log = harness.read_log(fake_kafka.bootstrap_servers, topic)
    there = {(partition, record.offset): record for partition, records in log.items() for record in records}
    assert len(there) == 40
    for number, future in enumerate(futures):
        metadata = future.get(0)
        record = there[metadata.partition, metadata.offset]
        assert (record.key if keyed else record.value) == b"%d" % number
        assert record.headers == ([("n", b"%d" % number)] if number % 3 == 0 else [])
        assert metadata.serialized_value_size == (-1 if record.value is None else len(record.value))
    assert sorted(called) == sorted(future.get(0) for future in futures)
    # Nothing else is in a batch of its own.
    open_batch = producer.parts.admission.add_open_batch(topic)
    next(open_batch.numbers)
    producer.flush(60)
    assert producer.send(topic, b"1", b"1").get(60)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_handler_seals_what_send_is_adding_to(fake_kafka, producers, when):
    """Right before the record is in its place it is not in that batch, right after it is: once in any case."""
    topic = "t"
    fake_kafka.create_topic(topic, partitions=1)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    producer.send(topic, b"0").get(60)

    class Interrupted(list):
        """As a signal handler would, before or after its turn."""

        def __setitem__(self, index, value) -> None:
            if when == "after":
                super().__setitem__(index, value)
            producer.durable(60)
            if when == "before":
                super().__setitem__(index, value)

    futures = [producer.send(topic, b"1")]
    open_batch = producer._open_batches[topic]
    open_batch.values = Interrupted(open_batch.values)
    futures.append(producer.send(topic, b"2"))
    assert open_batch.parcels is not None
    assert (topic in producer._open_batches) == (when == "before")
    futures.append(producer.send(topic, b"3"))
    producer.flush(60)
    log = harness.read_log(fake_kafka.bootstrap_servers, topic)[0]
    assert [record.value for record in log] == [b"0", b"1", b"2", b"3"]
    assert [future.get(0).offset for future in futures] == [1, 2, 3]


def interrupted_at(function, step: int, action):
    """Calls `function` and, in the middle of it and before its bytecode number `step`, `action`: as a signal would.

    Returns:
        Whether it has so many.
    """
    left, done = step, False

    def trace(frame, event, _):
        nonlocal left, done
        if frame.f_globals.get("__name__") not in PRODUCER:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            if left == 0 and not done:
                done = True
                action()
            left -= 1
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return done


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("what", ["sealed", "acknowledged", "another"])
def test_a_signal_handler_in_the_middle_of_add_callback(fake_kafka, producers, alone, partitions, what):
    """At each of its bytecodes: each callback is called once, whichever way it took."""
    fake_kafka.create_topic("t", partitions=partitions)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    producer.partitions_for("t")

    def tried(step: int) -> bool:
        called: list[str] = []
        note = {
            name: lambda _, name=name: called.append(name) for name in ("before", "first", "second", "after")
        }
        before = producer.send("t", b"1", b"a")
        if not alone:
            before.add_callback(note["before"])
        future = producer.send("t", b"2", b"b")
        act = {
            "sealed": lambda: producer.parts.accumulator.seal_one(future.open_batch),
            "acknowledged": lambda: producer.flush(60),
            "another": lambda: future.add_callback(note["second"]),
        }[what]
        more = interrupted_at(lambda: future.add_callback(note["first"]), step, act)
        after = producer.send("t", b"3", b"c").add_callback(note["after"])
        producer.flush(60)
        assert all(done.succeeded() for done in (before, future, after))
        missing = {"before"} if alone else set()
        if not more or what != "another":
            missing.add("second")
        assert sorted(called) == sorted({*note} - missing), step
        return more

    assert next(step for step in itertools.count() if not tried(step)) > 20


def test_threads_that_add_callbacks_to_the_same_records(fake_kafka, producers, restless):
    """Each is called once, with the record's own metadata; whether it came first, second, or after the batch was sealed."""
    fake_kafka.create_topic("t", partitions=2)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=1, batch_size=5000)
    producer.partitions_for("t")
    called: list = []
    futures: list = []
    added: list[int] = [0] * 4

    def add(thread: int) -> None:
        at = 0
        while at < 4000:
            if at >= len(futures):
                continue
            if (at + thread) % 5:
                futures[at].add_callback(lambda metadata, at=at: called.append((at, thread, metadata)))
                added[thread] += 1
            at += 1

    threads = [threading.Thread(target=add, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    futures.extend(producer.send("t", b"%d" % number, b"k" if number % 3 else None) for number in range(4000))
    for thread in threads:
        thread.join(120)
    producer.flush(60)
    assert len(called) == len({(number, thread) for number, thread, _ in called}) == sum(added)
    for number, _, metadata in called:
        assert metadata == futures[number].get(0)


def test_close_refuses_new_records_before_it_seals_what_it_has(producers, monkeypatch):
    """The other way round a record accepted in between would be in no open batch that anybody seals."""
    producer = producers(harness.dead_address(), linger_ms=60_000)
    producer.send("orders", b"before")
    seal_all = producer.parts.accumulator.seal_all
    caught = []

    def send():
        try:
            producer.send("invoices", b"in between")
        except ProducerClosedError as error:
            caught.append(error)

    def sealing():
        seal_all()
        sender = threading.Thread(target=send)
        sender.start()
        sender.join(60)

    monkeypatch.setattr(producer.parts.accumulator, "seal_all", sealing)
    producer.close(timeout=0)
    assert len(caught) == 1


@pytest.mark.parametrize("room", ["plenty", "to be made", "none", "no batch"])
def test_ctrl_c_at_each_place_of_send(fake_kafka, producers, room):
    """The record may be accepted or not; no lock stays taken, and everything else comes once, in order."""
    fake_kafka.create_topic("t", partitions=1)
    producer = producers(fake_kafka.bootstrap_servers, linger_ms=600_000)
    sent, doubtful, places = [], set(), set()

    def send(value):
        sent.append(value)
        return producer.send("t", value)

    for step in range(0, 10_000, 2):
        for i in range({"plenty": 2, "to be made": 16, "none": 1, "no batch": 0}[room]):
            send(b"%d before %d" % (step, i))
        if room == "none":
            producer._open_batches["t"].left = 0
        at = CtrlC(step, PRODUCER | {"kafkasafe.delivery.pump"})
        with contextlib.suppress(KeyboardInterrupt), at:
            send(b"%d" % step)
        send(b"%d after" % step)
        if not at.pressed:
            break
        doubtful.add(b"%d" % step)
        places.add(at.place)
        sealing = threading.Thread(target=producer.parts.accumulator.seal_all, daemon=True)
        sealing.start()
        sealing.join(60)
        assert not sealing.is_alive(), places
    assert len(places) > 2
    producer.close()
    values = fake_kafka.values("t")
    came = set(values)
    assert values == [value for value in sent if value in came]
    assert came >= set(sent) - doubtful

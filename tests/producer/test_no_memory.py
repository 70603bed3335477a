"""A process without memory, or without stack: what send() accepted, and what the other calls say."""

from __future__ import annotations

import asyncio
import collections
import errno
import sys
import threading

import harness
import pytest
from programs import python

from kafkasafe import SafeProducer, aio
from kafkasafe.errors import ProducerClosedError, SpoolError, SpoolWriteError
from kafkasafe.events import SpoolDisplaced
from kafkasafe.journal.journal import Journal
from kafkasafe.logs import EventLog
from kafkasafe.record.batch import encoding
from kafkasafe.spool.extent_file import ExtentFile
from kafkasafe.spool.reserve import Reserve
from kafkasafe.spool.segment import StoredSegment
from kafkasafe.spool.segment_list import SegmentList
from kafkasafe.spool.segment_writer import SegmentWriter
from kafkasafe.testing import FakeCluster


@pytest.fixture
def cluster():
    with FakeCluster() as made:
        made.create_topic("orders", partitions=2)
        yield made


@pytest.fixture
def producer(cluster, tmp_path):
    with SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        linger_ms=60_000,
        batch_size=500,
        compression_type="zstd",
    ) as made:
        made.send("orders", b"first", partition=0).get(60)
        yield made


class NoMemory:
    """Compression fails while `left` is above 0, as it does under RLIMIT_AS."""

    def __init__(self, monkeypatch, error: BaseException) -> None:
        self.left = 0
        self._error = error
        self._compress = encoding.compress
        monkeypatch.setattr(encoding, "compress", self)

    def __call__(self, *arguments):
        if self.left > 0:
            self.left -= 1
            raise self._error
        return self._compress(*arguments)


@pytest.fixture(
    params=[OSError("ZSTD compression failed: Allocation error : not enough memory"), MemoryError()],
    ids=["zstd", "python"],
)
def memory(request, monkeypatch):
    return NoMemory(monkeypatch, request.param)


@pytest.mark.parametrize("call", ["producer durable", "flush", "durable", "get", "commit"])
def test_what_cannot_be_encoded_is_said_in_kafkas_terms_and_delivered_by_the_next_call(
    cluster, producer, memory, call
):
    batch = producer.batch()
    if call == "commit":
        batch.send("orders", b"1", partition=0)
        again = batch.commit
    else:
        future = producer.send("orders", b"1", partition=0)
        again = getattr(producer if call in {"producer durable", "flush"} else future, call.split()[-1])
    memory.left = 1
    with pytest.raises(SpoolWriteError, match=r"no memory .* no accepted record is lost"):
        again()
    again()
    producer.flush(60)
    assert sorted(cluster.values("orders")) == [b"1", b"first"]


def test_a_send_that_cannot_encode_what_came_before_accepts_nothing_and_one_that_accepts_does_not_raise(
    cluster, producer, memory
):
    accepted = 0
    for number in range(200):
        memory.left = number % 7
        try:
            producer.send("orders", b"%03d" % number * 20, partition=0)
        except SpoolWriteError:
            continue
        accepted += 1
    memory.left = 0
    producer.flush(60)
    counts = collections.Counter(cluster.values("orders"))
    assert max(counts.values()) == 1
    assert len(counts) == accepted + 1
    assert 20 < accepted < 200


def test_the_producers_own_thread_tries_again(cluster, tmp_path, memory):
    with SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        linger_ms=1,
        compression_type="zstd",
    ) as producer:
        memory.left = 3
        future = producer.send("orders", b"1", partition=0)
        producer._pump.wait(lambda: future.is_done, 60)
        assert future.succeeded()


@pytest.mark.parametrize("times", [1, 1000])
def test_close_delivers_what_it_can_encode_and_says_what_not(cluster, tmp_path, memory, times):
    producer = SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        linger_ms=60_000,
        compression_type="zstd",
    )
    producer.send("orders", b"1", partition=0)
    memory.left = times
    if times == 1:
        producer.close()
        assert cluster.values("orders") == [b"1"]
    else:
        with pytest.raises(SpoolWriteError, match=r"1 record that was accepted could not be encoded .* lost"):
            producer.close()


def deeper(frames: int, call) -> None:
    if frames:
        deeper(frames - 1, call)
    else:
        call()


@pytest.mark.parametrize("special", [{}, {"key": b"k"}, {"partition": 1, "headers": [("h", b"x")]}])
@pytest.mark.parametrize("batch_size", [16_384, 300])
def test_a_send_without_stack_accepts_the_record_or_raises(cluster, tmp_path, batch_size, special):
    """A program that repeats what raised had the record twice: at the very end of the stack, once Python had
    specialized `send`, only the call that makes the future raised, after the record was accepted.
    """
    with SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool", batch_size=batch_size
    ) as producer:
        for _ in range(3000):
            producer.send("orders", b"warm")
        producer.flush(60)
        here, frame = 0, sys._getframe()
        while frame is not None:
            here, frame = here + 1, frame.f_back
        room = sys.getrecursionlimit() - here
        accepted, refused = set(), set()
        for number, frames in enumerate([*range(room - 70, room + 2)] * 8):
            value = b"%d" % number
            try:
                deeper(frames, lambda value=value: producer.send("orders", value, **special))
            except RecursionError:
                refused.add(value)
            else:
                accepted.add(value)
        producer.flush(60)
        found = collections.Counter(value for value in cluster.values("orders") if value != b"warm")
        assert max(found.values()) == 1
        assert set(found) == accepted
        assert refused
        assert len(accepted) > 50


@pytest.mark.parametrize("call", ["get", "durable", "flush", "producer durable", "await"])
def test_after_close_gave_records_up_no_call_waits_for_them(cluster, tmp_path, memory, call):
    """With memory again, get() encoded the record for a thread that had ended, and waited for ever."""
    producer = SafeProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        spool_dir=tmp_path / "spool",
        linger_ms=60_000,
        compression_type="zstd",
    )
    failed = []
    future = producer.send("orders", b"1", partition=0).add_errback(failed.append)
    memory.left = 1000
    with pytest.raises(SpoolWriteError, match=r"1 record .* lost"):
        producer.close()
    memory.left = 0

    async def awaited():
        async with asyncio.timeout(20):
            return await future

    calls = {
        "get": lambda: future.get(20),
        "durable": lambda: future.durable(20),
        "flush": lambda: producer.flush(20),
        "producer durable": lambda: producer.durable(20),
        "await": lambda: asyncio.run(awaited()),
    }
    with pytest.raises(SpoolWriteError, match=r"1 record .* lost"):
        calls[call]()
    assert len(failed) == 1
    assert future.failed()
    assert not list(cluster.values("orders"))


def test_a_coroutine_that_sends_after_such_a_close_does_not_wait(cluster, tmp_path, memory):
    """It waited for ever for a thread that had ended."""

    async def main():
        producer = aio.SafeProducer(
            bootstrap_servers=cluster.bootstrap_servers,
            spool_dir=tmp_path / "spool",
            linger_ms=60_000,
            compression_type="zstd",
        )
        await producer.start()
        await producer.send("orders", b"1", partition=0)
        memory.left = 1000
        with pytest.raises(SpoolWriteError, match="lost"):
            await producer.stop()
        async with asyncio.timeout(20):
            with pytest.raises(ProducerClosedError):
                await producer.send("orders", b"2")

    asyncio.run(main())


def test_a_send_to_an_atomic_batch_without_stack_adds_the_record_or_raises(cluster, tmp_path):
    """As with `SafeProducer.send`: the call that makes the future raised after the record was added."""
    with SafeProducer(bootstrap_servers=cluster.bootstrap_servers, spool_dir=tmp_path / "spool") as producer:
        batch = producer.batch()
        for _ in range(3000):
            batch.send("orders", b"warm")
        added, here, frame = 3000, 0, sys._getframe()
        while frame is not None:
            here, frame = here + 1, frame.f_back
        room = sys.getrecursionlimit() - here
        for frames in [*range(room - 70, room + 2)] * 4:
            try:
                deeper(frames, lambda: batch.send("orders", b"x"))
            except RecursionError:
                continue
            added += 1
        assert batch.commit().get(60).records == added


def test_without_another_thread_the_lane_of_a_dead_producer_is_read_by_the_producers_own(
    cluster, tmp_path, monkeypatch
):
    """The process has reached its limit of threads (`ulimit -u`, or that of a container)."""
    options = {"bootstrap_servers": cluster.bootstrap_servers, "spool_dir": tmp_path}
    cluster.stop(1)
    dead = SafeProducer(**options)
    dead.send("orders", b"left", partition=0).durable(10)
    dead.close(0)
    cluster.start(1)
    start = threading.Thread.start

    def refused(thread):
        if thread.name.startswith("kafkasafe-look-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with SafeProducer(**options, spool_lane=1) as producer:
        harness.until(lambda: cluster.values("orders") == [b"left"], 20, "the delivery")
        producer.send("orders", b"own").get(10)


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (SegmentList, "append"),
        (StoredSegment, "append"),
        (SegmentWriter, "write_out"),
        (SegmentWriter, "sync"),
        (Reserve, "ensure"),
        (Journal, "persisted"),
    ],
)
def test_a_producer_that_ends_without_memory_leaves_its_lane_as_a_killed_one_does(
    cluster, tmp_path, monkeypatch, of, name
):
    """It still wrote to the log that it closed the lane. If memory was missing while a group was written, the log looked
    damaged, and the next producer refused to open it.
    """
    options = {"bootstrap_servers": cluster.bootstrap_servers, "spool_dir": tmp_path}
    displaced = []
    cluster.stop(1)
    producer = SafeProducer(
        **options,
        on_event=lambda event: displaced.append(event) if isinstance(event, SpoolDisplaced) else None,
    )
    producer.send("orders", b"durable", partition=0).durable(60)
    before, left = getattr(of, name), [1]

    def without_memory(*arguments, **named):
        if left and threading.current_thread().name.startswith("kafkasafe-pump"):
            left.pop()
            raise MemoryError
        return before(*arguments, **named)

    monkeypatch.setattr(of, name, without_memory)
    late = producer.send("orders", b"late", partition=0)
    with pytest.raises(SpoolError, match="MemoryError"):
        late.durable(20)
    with pytest.raises(SpoolError, match="MemoryError"):
        producer.close()
    assert not left
    assert not displaced, "no file was moved or cut"
    cluster.start(1)
    with SafeProducer(**options) as following:
        following.flush(60)
        assert [path.name for path in tmp_path.glob("lane-*")] == ["lane-000"]
    assert cluster.values("orders")[0] == b"durable"
    assert set(cluster.values("orders")[1:]) <= {b"late"}


@pytest.mark.parametrize(
    ("of", "name", "error"),
    [(ExtentFile, "close", OSError(errno.EIO, "close")), (SegmentList, "close", MemoryError())],
    ids=["EIO", "no memory"],
)
def test_a_second_error_at_the_end_leaves_no_lane_locked(cluster, tmp_path, monkeypatch, of, name, error):
    """The next producer got a lane of its own, and the durable record waited for the end of this process."""
    options = {"bootstrap_servers": cluster.bootstrap_servers, "spool_dir": tmp_path}
    cluster.stop(1)
    producer = SafeProducer(**options)
    producer.send("orders", b"durable", partition=0).durable(60)
    close = getattr(of, name)

    def fail(*_):
        raise MemoryError

    def close_and_fail(self):
        close(self)
        raise error

    with monkeypatch.context() as patches:
        patches.setattr(Journal, "persisted", fail)
        patches.setattr(of, name, close_and_fail)
        with pytest.raises(SpoolError, match="MemoryError"):
            producer.send("orders", b"late", partition=0).durable(20)
        with pytest.raises(SpoolError, match="MemoryError"):
            producer.close()
    cluster.start(1)
    with SafeProducer(**options) as following:
        following.flush(60)
        assert [path.name for path in tmp_path.glob("lane-*")] == ["lane-000"]
    assert cluster.values("orders")[0] == b"durable"


def test_an_end_that_cannot_be_logged_still_reaches_those_who_wait(cluster, tmp_path, monkeypatch):
    """flush() returned as if the records of an earlier run were delivered, and close() as if nothing had happened."""
    options = {"bootstrap_servers": cluster.bootstrap_servers, "spool_dir": tmp_path}
    cluster.stop(1)
    with SafeProducer(**options) as earlier:
        earlier.send("orders", b"durable", partition=0).durable(60)
        earlier.close(timeout=0)
    producer = SafeProducer(**options)
    unlogged = []

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", unlogged.append)
    with monkeypatch.context() as patches:
        patches.setattr(EventLog, "exception", fail)
        patches.setattr(Journal, "ready", fail)
        with pytest.raises(SpoolError, match="MemoryError"):
            producer.flush(20)
        with pytest.raises(SpoolError, match="MemoryError"):
            producer.close()
    assert len(unlogged) == 1
    cluster.start(1)
    with SafeProducer(**options) as following:
        following.flush(60)
    assert cluster.values("orders") == [b"durable"]


NOT_A_BYTE_LEFT = """
import resource
import sys

from kafkasafe import SafeProducer
from kafkasafe.errors import SpoolError
from kafkasafe.journal.journal import Journal

producer = SafeProducer(bootstrap_servers="127.0.0.1:1", spool_dir=sys.argv[1])
producer.send("orders", b"durable", partition=0).durable(60)
places = list(range(1_000_000))
held = [None] * len(places)
sizes = [2**size for size in range(22, 9, -1)] + list(range(480, 0, -8))


def exhaust(*_):
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, resource.RLIM_INFINITY))
    left = iter(places)
    for size in sizes:
        try:
            for place in left:
                held[place] = bytes(size)
        except MemoryError:
            pass
    raise MemoryError


Journal.ready = exhaust
try:
    producer.flush(60)
except SpoolError as error:
    print(error)
"""


def test_the_end_of_a_process_without_any_memory_reaches_those_who_wait(tmp_path):
    """CPython aborted, or hung with the GIL, because not even the end of the network thread had memory."""
    done = python("-c", NOT_A_BYTE_LEFT, tmp_path / "spool")
    assert done.stdout == "The producer ended by an error: MemoryError()\n", done.stderr

"""Full spools, full disks, disks that fail: nothing accepted is lost, and it goes on when it can."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import threading
import time
from pathlib import Path

import harness
import lives
import pytest

from kafkasafe import events
from kafkasafe.errors import SpoolFullError
from kafkasafe.spool.files import OsFiles

pytestmark = pytest.mark.kafka

MIB = 1024 * 1024
SMALL = {"spool_max_bytes": 16 * MIB, "spool_segment_bytes": 2 * MIB, "max_request_size": 300_000}


BLOCK = 4096


def _taken(status: os.stat_result) -> int:
    """Bytes of the disk that a file takes, also those that are reserved for it."""
    return max(-(-status.st_size // BLOCK) * BLOCK, status.st_blocks * 512)


class Quota(OsFiles):
    """The operating system's files, with so many bytes of room under a directory.

    Attributes:
        room: For everything under the directory.
        honest: `free_bytes` tells of it. Real disks are filled by others as well, between any two calls.
        greedy: Others take at once whatever a failed write had taken and gives back.
        fail: By method: errors to raise, one per call.
    """

    __slots__ = ("_lock", "directory", "fail", "greedy", "honest", "room")

    def __init__(self, directory: Path, room: int = 1 << 40, *, honest: bool = True) -> None:
        self.directory = directory
        self.room = room
        self.honest = honest
        self.greedy = False
        self.fail: dict[str, list[int]] = {}
        # What is measured is not changed meanwhile by the thread that writes.
        self._lock = threading.Lock()

    def fill_up(self) -> None:
        """Not a byte is left for anybody: others take the rest, and from now on whatever is given back."""
        with self._lock:
            self.room, self.greedy = self._used(), True

    def _used(self) -> int:
        """In whole blocks, as they are taken and given back."""
        used = 0
        for path in self.directory.rglob("*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.is_file():
                used += _taken(status)
        return used

    def _strike(self, method: str) -> None:
        if self.fail.get(method):
            code = self.fail[method].pop()
            raise OSError(code, os.strerror(code))

    def writev(self, handle, buffers, offset):
        self._strike("writev")
        data = b"".join(buffers)
        with self._lock:
            left = max(0, self.room - self._used())
            end = min(offset + len(data), _taken(os.fstat(handle)) + left // BLOCK * BLOCK)
            if end <= offset:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            # Like the kernel: what fits is written, the next call fails.
            return super().writev(handle, [data[: end - offset]], offset)

    def preallocate(self, handle, size):
        with self._lock:
            if self._used() + size - os.fstat(handle).st_size > self.room:
                return False
            return super().preallocate(handle, size)

    @contextlib.contextmanager
    def _gives_back(self):
        with self._lock:
            before = self._used()
            yield
            if self.greedy:
                # A file system takes blocks for its own lists as well, and nobody else can take those that are in use.
                self.room = max(self.room - max(0, before - self._used()), self._used())

    def truncate(self, handle, size):
        with self._gives_back():
            super().truncate(handle, size)

    def unlink(self, path, *, at=None):
        # The newest segment goes when what is in it was not written to its end.
        if path.suffix == ".log" and path.name == max(
            each.name for each in self.directory.glob("lane-*/*.log")
        ):
            with self._gives_back():
                super().unlink(path, at=at)
        else:
            with self._lock:
                super().unlink(path, at=at)

    def create(self, path, *, at=None):
        self._strike("create")
        return super().create(path, at=at)

    def sync_data(self, handle):
        self._strike("sync_data")
        super().sync_data(handle)

    def free_bytes(self, path, *, at=None):
        return self.room - self._used() if self.honest else 1 << 40


@pytest.fixture
def quota(producers, monkeypatch):
    """What producers opened by the test have for a disk."""
    files = Quota(producers.spool)
    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", lambda: files)
    return files


def big(number: int) -> bytes:
    return b"%0*d" % (lives.DIGITS, number) + b"." * 100_000


def fill(producer, topic: str, limit: int = 2000, first: int = 0) -> tuple[int, SpoolFullError, float]:
    """Sends until there is no room: (records accepted, error, seconds that the refused send took)."""
    for number in range(first, limit):
        began = time.monotonic()
        try:
            producer.send(topic, big(number))
        except SpoolFullError as error:
            return number, error, time.monotonic() - began
    raise AssertionError(f"{limit} records were accepted")


def delivered(servers, topic, count: int) -> None:
    log = harness.read_log(servers, topic)
    harness.audit(log, range(count), contents=False)
    for records in log.values():
        assert all(record.value == big(int(record.value[: lives.DIGITS])) for record in records)


# -- the limit of the spool --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spool", ["always", "on_error"])
def test_a_full_spool_blocks_and_then_refuses(broker, producers, spool):
    topic = harness.new_topic(broker.cluster, 2)
    broker.proxy.refuse()
    producer = producers(broker.servers, max_block_ms=700, spool=spool, spool_after_ms=100, **SMALL)
    count, error, seconds = fill(producer, topic)
    assert 0.7 <= seconds < 60
    assert 100 < count <= 160
    text = str(error)
    assert "within max_block_ms=700" in text
    assert "was not accepted; all accepted records are kept" in text
    assert "Raise spool_max_bytes" in text
    assert isinstance(error, harness.kafka_errors.KafkaTimeoutError)
    producer.durable(60)
    used = sum(path.stat().st_size for path in producers.spool.rglob("*.log"))
    assert used <= SMALL["spool_max_bytes"]
    # A second life finds everything, and is as full.
    producer.close(timeout=0)
    producer = producers(broker.servers, max_block_ms=300, **SMALL)
    with pytest.raises(SpoolFullError):
        producer.send(topic, big(count))
    broker.proxy.restore()
    # And goes on by itself when the cluster is back.
    harness.until(lambda: _accepts(producer, topic, big(count)), what="room in the spool")
    producer.flush(60)
    harness.until(lambda: producer.metrics()["kafkasafe"]["spool_bytes"] < 6 * MIB)
    producer.close()
    delivered(broker.servers, topic, count + 1)


def _accepts(producer, topic: str, value: bytes) -> bool:
    try:
        producer.send(topic, value)
    except SpoolFullError:
        return False
    return True


def test_a_blocked_send_goes_on_when_there_is_room(broker, producers):
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    producer = producers(broker.servers, max_block_ms=60_000, **SMALL)
    sent = 0

    def send() -> None:
        nonlocal sent
        for number in range(300):
            producer.send(topic, big(number))
            sent = number + 1

    sender = threading.Thread(target=send)
    sender.start()
    try:

        def blocked() -> bool:
            before = sent
            time.sleep(0.5)
            return before == sent > 100

        harness.until(blocked, 120)
        assert sent < 160
    finally:
        broker.proxy.restore()
        sender.join(60)
    assert sent == 300
    producer.flush(60)
    producer.close()
    delivered(broker.servers, topic, 300)


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("honest", "met"), [(True, False), (False, True), (False, False)])
def test_a_full_disk(broker, producers, quota, honest, met):
    """The cluster is away, the disk runs full. When the cluster is back, deliveries make room by themselves.

    Also where nobody had told how full it was, so that it is full to the last byte: marks go into the reserve, and what was
    spooled before the first contact is divided by partition in it.
    """
    topic = harness.new_topic(broker.cluster, 2)
    options = {"max_block_ms": 700, "spool_segment_bytes": 2 * MIB, "max_request_size": 300_000}
    quota.room, quota.honest = 10 * MIB, honest
    producer = producers(broker.servers, **options)
    first = 0
    if met:
        producer.send(topic, big(0)).get(60)
        first = 1
    broker.proxy.refuse()
    broker.proxy.cut()
    count, error, _ = fill(producer, topic, first=first)
    assert error.limit == "volume"
    assert "Make room on the disk" in str(error)
    assert "all accepted records are kept" in str(error)
    assert count > 30
    if not honest:
        quota.fill_up()
        # A division needs what the reserve gives back, and writes more than one group.
        quota.greedy = met
    broker.proxy.restore()
    if not honest:
        committed = lambda: producer.metrics()["kafkasafe"].get("records_committed", 0)  # noqa: E731
        harness.until(lambda: committed() > first, 120, "a delivery that is marked")
        quota.greedy = False
    producer.flush(60)
    quota.room = 10 * MIB
    harness.until(lambda: _accepts(producer, topic, big(count)), what="room on the disk")
    producer.flush(60)
    # There again for the next time.
    reserve = producers.spool / producer.lane / "reserve"
    harness.until(lambda: reserve.exists() and reserve.stat().st_size == 65_536)
    producer.close()
    delivered(broker.servers, topic, count + 1)


def test_opened_on_a_full_disk(broker, producers, quota):
    """Not a byte can be written: what waits is safe, and goes on when there is room."""
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    with producers(broker.servers, **SMALL) as producer:
        for number in range(20):
            producer.send(topic, big(number)).durable(60)
        producer.close(timeout=0)
    broker.proxy.restore()
    quota.room = 0
    producer = producers(broker.servers, max_block_ms=300, **SMALL)
    with pytest.raises(SpoolFullError, match="all accepted records are kept"):
        producer.send(topic, big(20))
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError):
        producer.flush(1)
    quota.room = 1 << 40
    producer.flush(60)
    producer.send(topic, big(20)).get(60)
    producer.close()
    delivered(broker.servers, topic, 21)


def test_closed_on_a_full_disk(broker, producers, quota):
    """What was durable stays; what could not be written was never promised, and is told."""
    topic = harness.new_topic(broker.cluster, 1)
    broker.proxy.refuse()
    producer = producers(broker.servers, **SMALL)
    for number in range(20):
        producer.send(topic, big(number)).durable(60)
    quota.room, quota.honest = 0, False
    late = producer.send(topic, big(20))
    with pytest.raises(harness.kafka_errors.KafkaError):
        late.durable(0.5)
    try:
        producer.close(timeout=1)
    except harness.kafka_errors.KafkaError as error:
        assert "on disk" in str(error) or "spool" in str(error)  # noqa: PT017
    assert late.failed()
    quota.room = 1 << 40
    broker.proxy.restore()
    with producers(broker.servers, **SMALL) as producer:
        producer.flush(60)
    log = harness.read_log(broker.servers, topic)
    harness.audit(log, range(20), contents=False)


@pytest.mark.parametrize("options", [{}, {"spool_sync": "each"}, {"spool": "on_error", "spool_after_ms": 0}])
@pytest.mark.parametrize("method", ["writev", "sync_data", "create"])
def test_a_disk_that_fails_now_and_then(kafka, producers, quota, method, options):
    """After a failed fsync the same file proves nothing any more: what was not promised is written anew."""
    topic = harness.new_topic(kafka, 2)
    seen: list = []
    producer = producers(
        kafka.bootstrap_servers, on_event=seen.append, linger_ms=1, batch_size=5000, **options
    )
    futures = []
    for number in range(600):
        if number % 60 == 30:
            quota.fail[method] = [errno.EIO] * (number // 300 + 1)
            if method == "create":
                # A segment is begun after a failure.
                quota.fail["writev"] = [errno.EIO]
        futures.append(harness.send(producer, topic, number))
        if number % 20 == 19:
            futures[-1].durable(60)
    producer.flush(60)
    assert [future.exception for future in futures if not future.succeeded()] == []
    failures = [event for event in seen if isinstance(event, events.SpoolWriteFailed)]
    # Where the cluster is faster than the disk, "on_error" may have nothing to write.
    assert failures or options.get("spool") == "on_error"
    assert all("Input/output error" in failure.error for failure in failures)
    producer.close()
    harness.audit(harness.read_log(kafka.bootstrap_servers, topic), range(600))
    # And what is on disk is whole.
    quota.fail.clear()
    producers(kafka.bootstrap_servers).close()


def test_the_kernel_refuses_every_write(kafka, zygote, tmp_path):
    """Not a double: RLIMIT_FSIZE of a process. Writes fail with EFBIG until it is lifted."""
    topic = harness.new_topic(kafka, 1)
    result = tmp_path / "result"
    life = zygote.fork(
        lives.full_disk,
        tmp_path / "lives.log",
        servers=kafka.bootstrap_servers,
        topic=topic,
        spool=str(tmp_path / "spool"),
        result=str(result),
        go="",
        options={},
    )
    assert life.wait(120) == 0, life.tail()
    told = json.loads(result.read_text())
    assert told["error"] == "SpoolFullError"
    assert "all accepted records are kept" in told["message"]
    assert told["write_errors"] > 0
    log = harness.read_log(kafka.bootstrap_servers, topic)
    harness.audit(log, range(told["accepted"]), contents=False)


# -- what is on the disk -----------------------------------------------------------------------------------------------


def test_kafkas_own_tool_reads_every_segment(broker, zygote, producers, tmp_path):
    """Spools of all kinds: of several codecs and lives, with rejected, divided and unpartitioned batches in them."""
    topic = harness.new_topic(broker.cluster, 3, config={"max.message.bytes": 20_000})
    broker.proxy.refuse()
    begin = 0
    for number, compression in enumerate([None, "gzip", "snappy", "lz4", "zstd"]):
        ready = tmp_path / f"ready{number}"
        life = zygote.burst(
            tmp_path,
            broker.servers,
            topic,
            ready,
            [begin, begin + 1500],
            spool=producers.spool,
            batches_of=100,
            options={
                "compression_type": compression,
                "spool_segment_bytes": MIB,
                "max_request_size": 200_000,
            },
        )
        life.until(ready)
        life.kill()
        begin += 1500
    lane = producers.spool / "lane-000"
    segments = sorted(lane.glob("*.log"))
    assert len(segments) >= 3
    batches = harness.dump_segments(segments)
    assert all(batch["isvalid"] == "true" for batch in batches)
    data = [batch for batch in batches if batch["isControl"] == "false"]
    assert sum(int(batch["count"]) for batch in data) == begin
    assert {batch["compresscodec"].lower() for batch in data} == {"none", "gzip", "snappy", "lz4", "zstd"}
    # Positions ascend without holes, through all segments.
    position = 0
    for batch in batches:
        assert int(batch["baseOffset"]) == position
        position = int(batch["lastOffset"]) + 1
    broker.proxy.restore()
    with producers(
        broker.servers, retain_acked_bytes=512 * MIB, spool_segment_bytes=MIB, max_request_size=200_000
    ) as producer:
        producer.flush(60)
    after = harness.dump_segments(sorted(lane.glob("*.log")))
    assert len(after) > len(batches)
    assert all(batch["isvalid"] == "true" for batch in after)
    # Larger than the topic allows, and not compressed to less.
    rejected = harness.dump_segments(sorted((lane / "rejected").glob("*.log")))
    assert all(batch["isvalid"] == "true" for batch in rejected)
    assert [batch["count"] for batch in rejected if batch["isControl"] == "false"] == ["1"] * 4


def test_acknowledged_records_are_kept_as_long_as_wanted(kafka, producers):
    topic = harness.new_topic(kafka, 1)
    options = {"spool_segment_bytes": MIB, "max_request_size": 300_000}

    def kept(retain: int) -> int:
        with producers(kafka.bootstrap_servers, retain_acked_bytes=retain, **options) as producer:
            for number in range(60):
                producer.send(topic, big(number)).durable(60)
            producer.flush(60)
        return sum(path.stat().st_size for path in producers.spool.rglob("*.log"))

    assert kept(0) <= 2 * MIB
    assert 3 * MIB <= kept(3 * MIB) <= 6 * MIB
    # Less is wanted now: the rest goes.
    assert kept(0) <= 2 * MIB

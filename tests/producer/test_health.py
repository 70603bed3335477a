"""`health()`: in an outage a producer stays ready, since records wait on disk; when it cannot accept any more it says why."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time

import harness
import pytest

from kafkasafe import ProducerHealth, SafeProducer
from kafkasafe.errors import SpoolFullError, UndecidableError
from kafkasafe.spool.files import OsFiles
from kafkasafe.spool.lanes import SpoolDirectory
from kafkasafe.testing import FakeCluster
from kafkasafe.testing.proxy import FaultProxy

MIB = 1 << 20
SMALL = {"spool_max_bytes": 16 * MIB, "spool_segment_bytes": 2 * MIB, "max_request_size": 300_000}


def names(health: ProducerHealth) -> list[str]:
    assert health.ready == (not health.reasons)
    return [each.name for each in health.reasons]


def fill(producer, topic) -> None:
    """Until there is no room."""
    with contextlib.suppress(SpoolFullError):
        for _ in range(2000):
            producer.send(topic, b"." * 100_000)
        raise AssertionError("2,000 records were accepted")


@pytest.mark.also_real
@pytest.mark.timeout(400)
def test_an_outage_leaves_it_ready_until_the_spool_is_full(some_broker, producers):
    topic = harness.new_topic(some_broker.cluster, 1)
    producer = producers(some_broker.servers, max_block_ms=300, **SMALL)
    producer.send(topic, b"before").get(60)
    harness.until(lambda: producer.health().connected)
    health = producer.health()
    assert (names(health), health.alive, health.waiting_records, health.network_error) == ([], True, 0, None)
    assert health.spool_max_bytes == 16 * MIB
    assert 13 * MIB < health.room_bytes < 14 * MIB

    some_broker.proxy.refuse()
    some_broker.proxy.cut()
    began = time.monotonic()
    sent = 0
    outage_s = 2.0 if isinstance(some_broker.cluster, FakeCluster) else 10.0

    def over() -> bool:
        nonlocal sent
        producer.send(topic, b"during").durable(60)
        sent += 1
        assert names(producer.health()) == []
        return time.monotonic() - began > outage_s and not producer.health().connected

    harness.until(over)
    health = producer.health()
    assert (health.ready, health.alive, health.connected) == (True, True, False)
    assert health.network_error
    assert health.waiting_records == sent
    assert outage_s - 1 < health.oldest_record_age_s < outage_s + 120

    fill(producer, topic)
    harness.until(lambda: names(producer.health()) == ["spool_full"], what="full")
    health = producer.health()
    assert (health.alive, health.connected) == (True, False)
    assert "spool_max_bytes is 16,777,216" in health.reasons[0].text
    assert health.room_bytes < MIB

    some_broker.proxy.restore()
    harness.until(lambda: producer.health().ready and producer.health().connected, what="ready again")
    producer.flush(60)
    health = producer.health()
    assert (health.waiting_records, health.oldest_record_age_s, health.network_error) == (0, 0.0, None)
    producer.close()
    health = producer.health()
    assert (names(health), health.alive, health.connected) == (["closed"], False, False)


def test_records_in_memory(fake_kafka):
    """Not a false alarm of a disk that is stuck either: without a spool only the cluster makes records durable."""
    fake_kafka.create_topic("orders", 1)
    with SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers,
        spool="never",
        spool_max_bytes=16 * MIB,
        max_request_size=300_000,
        max_block_ms=300,
    ) as producer:
        producer.send("orders", b"before").get(60)
        fake_kafka.refuse()
        fake_kafka.cut()
        producer.send("orders", b"." * 1000)
        harness.until(lambda: producer.health().waiting_records == 1)
        assert names(producer.health()) == []
        fill(producer, "orders")
        health = producer.health()
        assert names(health) == ["spool_full"]
        assert "in memory" in health.reasons[0].text
        assert health.spool_bytes > 14 * MIB
        fake_kafka.restore()
        harness.until(lambda: producer.health().ready)


def test_what_is_in_memory_at_first_is_no_stuck_disk(fake_kafka, producers, monkeypatch):
    """With spool="on_error" records of a topic that nobody knows yet go to disk as well, after `spool_after_ms`."""
    monkeypatch.setattr("kafkasafe.delivery.pump.DISK_STUCK_S", 1.0)
    fake_kafka.refuse()
    producer = producers(fake_kafka.bootstrap_servers, spool="on_error", spool_after_ms=300)
    producer.send("unknown", b"1")
    producer.send("unknown", b"2", partition=0)
    end = time.monotonic() + 2.0

    def later() -> bool:
        assert names(producer.health()) == []
        return time.monotonic() > end

    harness.until(later)
    assert producer.health().waiting_records == 2


class Disk(OsFiles):
    """The operating system's files, of which a sync fails or hangs for a while."""

    __slots__ = ("code", "go_on")

    def __init__(self) -> None:
        self.code = 0
        self.go_on = threading.Event()
        self.go_on.set()

    def sync_data(self, handle):
        assert self.go_on.wait(60)
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        super().sync_data(handle)


@pytest.fixture
def disk(monkeypatch):
    files = Disk()
    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", lambda: files)
    yield files
    files.go_on.set()
    files.code = 0


@pytest.mark.parametrize(("code", "name"), [(errno.EIO, "disk_failed"), (errno.ENOSPC, "volume_full")])
def test_a_disk_that_fails(fake_kafka, producers, disk, code, name):
    fake_kafka.create_topic("orders", 1)
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").get(60)
    disk.code = code
    later = producer.send("orders", b"2")
    producer.parts.accumulator.seal_all()
    harness.until(lambda: names(producer.health()) == [name], what=name)
    assert producer.health().alive
    disk.code = 0
    later.durable(60)
    harness.until(lambda: producer.health().ready)


def test_a_disk_that_fails_when_the_cluster_is_met_first(fake_kafka, producers, disk):
    """The id of the cluster is written down before anything else goes on. Its failure was no trouble of the disk."""
    fake_kafka.create_topic("orders", 1)
    fake_kafka.refuse()
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").durable(60)
    disk.code = errno.EIO
    fake_kafka.restore()
    harness.until(lambda: names(producer.health()) == ["disk_failed"], what="trouble")
    assert "CLUSTER cannot be read or written" in producer.health().reasons[0].text
    later = producer.send("orders", b"2")
    with pytest.raises(harness.kafka_errors.KafkaTimeoutError, match=r"takes nothing for now: .*CLUSTER"):
        later.durable(0.1)
    disk.code = 0
    later.get(60)
    harness.until(lambda: producer.health().ready)


def test_a_disk_that_hangs(fake_kafka, producers, disk, monkeypatch):
    """No call waits for it: neither `health()`, nor the lock that it would take."""
    monkeypatch.setattr("kafkasafe.delivery.pump.DISK_STUCK_S", 0.5)
    fake_kafka.create_topic("orders", 1)
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").durable(60)
    disk.go_on.clear()
    later = producer.send("orders", b"2")
    producer.parts.accumulator.seal_all()
    harness.until(lambda: names(producer.health()) == ["disk_stuck"], what="stuck")
    disk.go_on.set()
    later.durable(60)
    harness.until(lambda: producer.health().ready)


def test_it_takes_no_lock(fake_kafka, producers):
    """A probe answers while a partitioner, or an encoder, is at work for long."""
    producer = producers(fake_kafka.bootstrap_servers)
    held, found = threading.Event(), []
    done = threading.Event()

    def hold() -> None:
        with producer.parts.accumulator.lock, producer._pump.ledger.lock:
            held.set()
            assert done.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    prober = threading.Thread(target=lambda: found.append(producer.health()))
    prober.start()
    prober.join(30)
    done.set()
    holder.join(60)
    assert [health.ready for health in found] == [True]


def test_a_spool_that_was_moved_and_cannot_be_fetched(fake_kafka, producers, tmp_path):
    fake_kafka.create_topic("orders", 1)
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").get(60)
    shutil.move(producers.spool, tmp_path / "away")
    producers.spool.write_text("in the way")
    harness.until(lambda: names(producer.health()) == ["spool_displaced"], what="displaced")
    assert "moved away" in producer.health().reasons[0].text
    producers.spool.unlink()
    harness.until(lambda: producer.health().ready, what="the lane to be fetched")
    producer.send("orders", b"2").durable(60)


def test_the_reason_is_there_while_the_spool_is_being_restored(fake_kafka, producers, tmp_path, monkeypatch):
    fake_kafka.create_topic("orders", 1)
    producer = producers(fake_kafka.bootstrap_servers)
    producer.send("orders", b"1").get(60)
    seen = []
    restore = SpoolDirectory.restore

    def look_and_restore(home, lock):
        seen.append(producer.health().reasons)
        restore(home, lock)

    monkeypatch.setattr(SpoolDirectory, "restore", look_and_restore)
    shutil.move(producers.spool, tmp_path / "away")
    harness.until(lambda: seen and producer.health().ready, what="the lane to be fetched")
    (reason,) = seen[0]
    assert reason.name == "spool_displaced"
    assert "moved away" in reason.text


def test_an_undecidable_batch(producers):
    with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
        cluster.create_topic("orders", 1)
        producer = producers(proxy.bootstrap_servers, request_timeout_ms=1000)
        producer.send("orders", b"0").get(60)
        proxy.on("Produce", topic="orders", partition=0).answer_without_forwarding(47)
        late = producer.send("orders", b"1")
        producer.parts.accumulator.seal_all()
        harness.until(lambda: not producer.health().ready, what="undecidable")
        health = producer.health()
        assert (names(health), health.alive, health.undecidable_batches) == (["undecidable"], True, 1)
        with pytest.raises(UndecidableError):
            producer.flush(60)
        assert names(producer.health()) == ["undecidable"]
        proxy.clear()
        producer.resolve_undecidable(resend=True)
        assert producer.health().ready
        late.get(60)
        producer.close()


def test_a_topic_that_the_cluster_blocks_is_a_warning(producers):
    with FakeCluster() as cluster, FaultProxy(bootstrap=cluster.bootstrap_servers[0]) as proxy:
        cluster.create_topic("orders", 1)
        producer = producers(proxy.bootstrap_servers)
        proxy.on("Produce", topic="orders").answer_without_forwarding(29)
        producer.send("orders", b"1").durable(60)
        harness.until(lambda: producer.health().warnings, what="a warning")
        health = producer.health()
        assert (health.ready, [each.name for each in health.warnings]) == (True, ["blocked"])
        assert "orders" in health.warnings[0].text
        proxy.clear()
        harness.until(lambda: not producer.health().warnings, what="the warning to end")
        producer.close()


@pytest.mark.parametrize("denied", [("read", "group"), ("write", "transactional_id")])
def test_a_group_or_a_transactional_id_that_the_cluster_blocks_is_a_warning(denied, producers, fake_kafka):
    fake_kafka.create_topic("orders", 1)
    operation, kind = denied
    fake_kafka.deny(operation, **{kind: "*"})
    producer = producers(fake_kafka.bootstrap_servers)
    with producer.batch() as batch:
        batch.send("orders", b"1")
    harness.until(lambda: producer.health().warnings, what="a warning")
    health = producer.health()
    assert (health.ready, [each.name for each in health.warnings]) == (True, ["blocked"])
    assert kind.replace("_", " ") in health.warnings[0].text
    fake_kafka.deny(operation, **{kind: "*"}, on=False)
    batch.outcome.get(60)
    assert not producer.health().warnings
    producer.close()


def test_a_producer_that_ended_by_an_error(fake_kafka, producers, monkeypatch):
    producer = producers(fake_kafka.bootstrap_servers)
    monkeypatch.setattr(
        type(producer._pump.engine), "turn", lambda _: (_ for _ in ()).throw(RuntimeError("broken"))
    )
    producer._pump.wake()
    harness.until(lambda: not producer.health().alive, what="the end")
    health = producer.health()
    assert names(health) == ["failed"]
    assert "broken" in health.reasons[0].text
    monkeypatch.undo()
    with pytest.raises(Exception, match="broken"):
        producer.close(timeout=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_in_a_forked_child(fake_kafka, producers):
    producer = producers(fake_kafka.bootstrap_servers)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, ",".join(names(producer.health())).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as told:
        assert told.read() == "forked"
    assert producer.health().ready

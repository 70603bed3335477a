"""What is said while the spool takes nothing is true, and names the cause; `close(timeout=1)` takes about a second."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
import time

import kafka.errors as kafka_errors
import pytest
from waiting import until

from kafkasafe import SafeProducer
from kafkasafe.delivery.pump import Pump
from kafkasafe.errors import SpoolCorruptError, SpoolFullError, SpoolWriteError
from kafkasafe.spool.files import OsFiles

MIB = 1 << 20


class Failing(OsFiles):
    """The operating system's files, until writing fails."""

    __slots__ = ("answers", "code", "directories")

    def __init__(self) -> None:
        self.answers = threading.Event()
        """While it is not set, no call returns that makes data durable."""
        self.answers.set()
        self.code = 0
        self.directories = True
        """New ones can be made."""

    def make_directory(self, path, *, at=None):
        if not self.directories:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return super().make_directory(path, at=at)

    def writev(self, handle, buffers, offset):
        if self.code:
            raise OSError(self.code, os.strerror(self.code))
        return super().writev(handle, buffers, offset)

    def sync_data(self, handle):
        assert self.answers.wait(100)
        super().sync_data(handle)


@pytest.fixture
def disk(monkeypatch):
    files = Failing()
    monkeypatch.setattr("kafkasafe._producing.opening.OsFiles", lambda: files)
    return files


@pytest.fixture
def producer(fake_kafka, tmp_path, disk):
    fake_kafka.create_topic("orders", 1)
    producer = SafeProducer(
        bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool", max_block_ms=500
    )
    producer.send("orders", b"first").get(60)
    yield producer
    disk.code = 0
    producer.close()


def broken(producer, disk, records: int = 10):
    """The disk fails; records are accepted, and are in memory only."""
    disk.code = errno.EIO
    futures = [producer.send("orders", b"%d" % number) for number in range(records)]
    with pytest.raises(kafka_errors.KafkaTimeoutError):
        futures[-1].durable(0.5)
    until(lambda: producer._pump.ledger.room.disk_trouble)
    return futures


CAUSE = r"[Tt]he spool takes nothing for now: .*Input/output error"


def test_every_message_names_the_cause(producer, disk):
    (future, *_) = broken(producer, disk)
    for call in (
        lambda: future.durable(0.1),
        lambda: future.get(0.1),
        lambda: producer.flush(0.1),
        lambda: producer.durable(0.1),
    ):
        with pytest.raises(kafka_errors.KafkaTimeoutError, match=CAUSE):
            call()
    with producer.batch() as batch:
        batch.send("orders", b"in a batch")
    for call in (batch.outcome.durable, batch.outcome.get):
        with pytest.raises(kafka_errors.KafkaTimeoutError, match=CAUSE):
            call(0.1)
    disk.code = 0
    producer.durable(60)
    assert not producer._pump.ledger.room.disk_trouble
    producer.flush(60)


def test_flush_tells_what_is_in_memory_from_what_is_in_the_spool(producer, disk, fake_kafka):
    """It said "they are in the spool and will be delivered" of what was lost with the process."""
    fake_kafka.refuse()
    fake_kafka.cut()
    for number in range(3):
        producer.send("orders", b"%d" % number)
    producer.durable(60)
    with pytest.raises(kafka_errors.KafkaTimeoutError, match="they are in the spool and will be delivered"):
        producer.flush(0.1)
    broken(producer, disk)
    with pytest.raises(kafka_errors.KafkaTimeoutError) as raised:
        producer.flush(0.1)
    assert "3 of them are in the spool" in str(raised.value)
    assert "10 are in memory only, and lost if this process ends before they are written" in str(raised.value)
    fake_kafka.restore()


def test_a_send_that_is_refused_names_the_disk_that_fails(producer, disk):
    broken(producer, disk)

    def send_much() -> None:
        for _ in range(200):
            producer.send("orders", bytes(MIB - 1000))

    with pytest.raises(SpoolFullError, match=CAUSE) as raised:
        send_much()
    assert raised.value.limit == "disk"
    assert "Raise spool_max_bytes" not in str(raised.value)


def test_close_with_a_timeout_waits_no_longer_for_a_disk_that_fails(fake_kafka, tmp_path, disk, caplog):
    """It waited ten seconds longer, which no option shortened."""
    fake_kafka.create_topic("orders", 1)
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool")
    producer.send("orders", b"first").get(60)
    broken(producer, disk)
    began = time.monotonic()
    with pytest.raises(SpoolWriteError) as raised:
        producer.close(timeout=1)
    assert 0.9 < time.monotonic() - began < 3.0
    assert "10 records" in str(raised.value)
    assert "Input/output error" in str(raised.value)
    assert "batches" not in str(raised.value)


def test_a_disk_that_works_again_in_time_is_used(fake_kafka, tmp_path, disk):
    fake_kafka.create_topic("orders", 1)
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool")
    producer.send("orders", b"first").get(60)
    futures = broken(producer, disk)
    disk.code = 0
    producer.close(timeout=60)
    assert all(future.succeeded() for future in futures)


def test_what_is_deleted_and_cannot_be_made_again_is_not_said_to_wait_there(tmp_path, disk, caplog):
    """close() said that one record was waiting in a directory that did not exist."""
    spool = tmp_path / "spool"
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool)
    producer.send("orders", b"promised", partition=0).durable(60)
    disk.directories = False
    shutil.rmtree(spool)
    with pytest.raises(kafka_errors.KafkaTimeoutError, match="Permission denied"):
        producer.send("orders", b"later", partition=0).durable(2)
    began = time.monotonic()
    with pytest.raises(SpoolCorruptError, match="1 record that waited there is lost") as raised:
        producer.close(timeout=1)
    assert time.monotonic() - began < 3.0
    assert "Permission denied" in str(raised.value)
    assert "1 record was accepted and not durable" in str(raised.value)
    assert "confirmed is safe" not in str(raised.value)
    assert "1 record is not delivered, and the next producer" in caplog.text
    assert "delivers all records in it" not in caplog.text


def test_what_was_moved_to_where_it_cannot_be_fetched_from_is_said_to_be_there(tmp_path, disk, caplog):
    spool = tmp_path / "spool"
    producer = SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool)
    producer.send("orders", b"promised", partition=0).durable(60)
    disk.directories = False
    spool.rename(tmp_path / "away")
    with pytest.raises(kafka_errors.KafkaTimeoutError, match=r"it was moved away.*Permission denied"):
        producer.send("orders", b"later", partition=0).durable(2)
    with pytest.raises(SpoolWriteError, match=r"1 record was accepted and not durable .*/away/lane-000"):
        producer.close(timeout=1)
    assert f"2 records are not delivered, and the next producer on {spool} does not find them" in caplog.text
    assert f"they are in {tmp_path / 'away' / 'lane-000'}" in caplog.text


def test_close_raises_if_the_disk_does_not_answer(fake_kafka, tmp_path, disk, monkeypatch):
    fake_kafka.create_topic("orders", 1)
    stop = Pump.stop
    monkeypatch.setattr(Pump, "stop", lambda pump, _, deadline=None: stop(pump, 0.1, deadline))
    monkeypatch.setattr("kafkasafe._producing.shutdown._CLOSE_DISK_LEAST_S", 0.1)
    producer = SafeProducer(bootstrap_servers=fake_kafka.bootstrap_servers, spool_dir=tmp_path / "spool")
    producer.send("orders", b"first").get(60)
    disk.answers.clear()
    try:
        producer.send("orders", b"second")
        with pytest.raises(
            SpoolWriteError, match=r"^1 record was accepted and not durable when the producer ended"
        ):
            producer.close(0.1)
    finally:
        disk.answers.set()
    until(producer._pump.ended)


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (errno.EMFILE, "raise the limit of open files (ulimit -n), or close some"),
        (errno.EFBIG, "raise the limit of file sizes (ulimit -f)"),
        (errno.EROFS, "mount the file system read-write"),
    ],
)
def test_the_warning_says_what_helps(producer, disk, code, remedy, caplog):
    disk.code = code
    with pytest.raises(kafka_errors.KafkaTimeoutError, match=re.escape(remedy)):
        producer.send("orders", b"").durable(0.5)
    assert remedy in producer.health().reasons[0].text
    (warning,) = [record for record in caplog.records if record.event == "spool_write_failed"]
    assert warning.getMessage().count(remedy) == 1
    assert "permissions" not in warning.getMessage()

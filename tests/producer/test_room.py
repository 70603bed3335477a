"""Room in the spool, as callers ask for it."""

from __future__ import annotations

import os
import threading

from waiting import until

from kafkasafe import SafeProducer, SpoolFullError
from kafkasafe._io.files import OsFiles


def test_a_disk_that_does_not_say_how_much_room_is_left_holds_up_no_caller(tmp_path, monkeypatch):
    """A network file system whose statvfs hangs: send() held both of the producer's locks meanwhile."""
    hangs, over = threading.Event(), threading.Event()
    askers = set()

    class Hanging(OsFiles):
        def free_bytes(self, path):
            askers.add(threading.current_thread())
            if hangs.is_set():
                over.wait(120)
            return super().free_bytes(path)

    monkeypatch.setattr("kafkasafe.producer.OsFiles", Hanging)
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
        def free_bytes(self, path):
            busy.wait(0.02)
            return super().free_bytes(path)

    monkeypatch.setattr("kafkasafe.producer.OsFiles", Slow)
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
        producer.flush_spool(120)
        assert sum(path.stat().st_size for path in spool.rglob("*.log")) <= limit
    finally:
        producer.close(timeout=0)

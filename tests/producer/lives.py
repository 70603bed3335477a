"""Lives of producing processes, forked from one process that has everything imported.

A fresh interpreter needs half a second for its imports; a fork of this one is at work after a few milliseconds, so
hundreds of them can be killed in a minute. Run as a script it is the process that forks: orders come as JSON lines.
A producer is opened after the fork, always.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import json
import logging
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from pathlib import Path

import kafka.errors as kafka_errors

from kafkasafe import cli
from kafkasafe._producing import opening
from kafkasafe.cli import common
from kafkasafe.cluster.client import Transport
from kafkasafe.demo.ledger import Ledger
from kafkasafe.events import SpoolDisplaced
from kafkasafe.producer import SafeProducer
from kafkasafe.spool.files import OsFiles

DIGITS = 12


def record_key(number: int) -> bytes | None:
    return None if number % 7 == 0 else b"k%d" % (number * 7919 % 61)


def record_value(number: int) -> bytes:
    """The number, and something of a size of its own behind it: what it holds is checked as well."""
    rnd = random.Random(number)
    size = rnd.choice((0, 10, 10, 100, 100, 1000, 3000)) if number % 400 else 30_000
    half = rnd.randbytes(size // 2)
    return b"%0*d" % (DIGITS, number) + half + b"." * (size - size // 2)


def send(producer: SafeProducer, topic: str, number: int, **more):
    return producer.send(topic, record_value(number), record_key(number), **more)


def stream(
    *,
    servers: list[str],
    topic: str,
    spool: str,
    ledger: str,
    seed: int,
    options: dict,
    timestamp_ms: int | None = None,
    pause_s: float = 0.0,
) -> None:
    """Sends numbered records as long as the ledger allows, and notes what it is told. Ends when told to stop."""
    rnd = random.Random(seed)
    book = Ledger(Path(ledger))
    attempted, accepted, durable, acked, failed = (
        book[p] for p in ("attempted", "accepted", "durable", "acked", "failed")
    )
    number = promised = book.next_number()
    futures: collections.deque = collections.deque()
    where = {} if options.get("spool") == "never" else {"spool_dir": spool}
    producer = SafeProducer(bootstrap_servers=servers, **where, **options)
    while not book.stop:
        for _ in range(rnd.randint(1, 60)):
            if number >= book.limit:
                break
            attempted[number] = 1
            futures.append((number, send(producer, topic, number, timestamp_ms=timestamp_ms)))
            accepted[number] = 1
            number += 1
        else:
            if rnd.random() < 0.3:
                time.sleep(rnd.random() * 0.01)
        if pause_s:
            time.sleep(pause_s)
        if promised < number and rnd.random() < 0.5:
            producer.durable(60)
            durable[promised:number] = 1
            promised = number
        while futures and futures[0][1].is_done:
            at, future = futures.popleft()
            (acked if future.succeeded() else failed)[at] = 1
        if number >= book.limit:
            if promised < number:
                continue
            with contextlib.suppress(kafka_errors.KafkaTimeoutError):
                producer.flush(0.1)
                if not futures or futures[-1][1].is_done:
                    book.settle(number)
            time.sleep(0.002)
    producer.close()


def promise(*, servers: list[str], topic: str, spool: str, book: str, first: int, options: dict) -> None:
    """Sends records one after the other, and writes down which were called durable, until it is killed.

    Args:
        servers: Bootstrap servers.
        topic: Topic.
        spool: Spool directory.
        book: File that gets the number of each durable record; `<book>.events` gets where the spool stands.
        first: Number of the first record.
        options: More options of the producer.
    """
    with (
        Path(book).open("ab", buffering=0) as promised,
        Path(f"{book}.events").open("ab", buffering=0) as seen,
    ):

        def note(event: object) -> None:
            if isinstance(event, SpoolDisplaced):
                seen.write(f"{event.reason} {event.restored} {event.lost_records}\n".encode())

        producer = SafeProducer(
            bootstrap_servers=servers, spool_dir=spool, on_event=note, linger_ms=0, **options
        )
        number = first
        while True:
            future = send(producer, topic, number, partition=0)
            with contextlib.suppress(kafka_errors.KafkaTimeoutError):
                future.durable(0.5)
                promised.write(b"%d\n" % number)
            number += 1


def die_after(batches: int) -> None:
    """kill -9 of this process, once so many batches were sent and it is about to send another one."""
    produce = Transport.produce
    sent = 0

    def counted(self, requests, *args, **more):
        nonlocal sent
        if sent >= batches:
            os.kill(os.getpid(), signal.SIGKILL)
        sent += len(requests)
        return produce(self, requests, *args, **more)

    Transport.produce = counted


def burst(
    *,
    servers: list[str],
    topic: str,
    spool: str,
    ready: str,
    numbers: list[int],
    options: dict,
    batches_of: int = 5,
    timestamp_ms: int | None = None,
    partition: int | None = None,
    go: str | None = None,
    first: int = 0,
    batches: int | None = None,
) -> None:
    """Sends records in batches of a few, makes them durable, says so by a file, and waits to be killed.

    Args:
        servers: Bootstrap servers.
        topic: Topic.
        spool: Spool directory.
        ready: File made when everything is durable.
        numbers: First and last + 1 of the records.
        options: More options of the producer.
        batches_of: Records per batch.
        timestamp_ms: Of all records.
        partition: Of all records.
        go: With `first`: file to wait for before the rest is sent.
        first: So many records are sent and acknowledged before `go` is waited for; `<ready>.first` says so.
        batches: It dies of kill -9 when it has sent so many, at the latest.
    """
    if batches is not None:
        die_after(batches)
    producer = SafeProducer(bootstrap_servers=servers, spool_dir=spool, **options)
    begin, end = numbers
    for number in range(begin, begin + first):
        send(producer, topic, number, timestamp_ms=timestamp_ms, partition=partition).get(60)
    if go is not None:
        Path(f"{ready}.first").touch()
        while not Path(go).exists():
            time.sleep(0.005)
    for number in range(begin + first, end):
        future = send(producer, topic, number, timestamp_ms=timestamp_ms, partition=partition)
        if (number - begin - first) % batches_of == batches_of - 1:
            future.durable(60)
    producer.durable(60)
    Path(ready).touch()
    time.sleep(600)


def full_disk(*, servers: list[str], topic: str, spool: str, result: str, go: str, options: dict) -> None:
    """Lives through a time in which the kernel refuses every write to a file (RLIMIT_FSIZE)."""
    producer = SafeProducer(bootstrap_servers=servers, spool_dir=spool, max_block_ms=500, **options)
    number = 0
    for number in range(50):
        send(producer, topic, number)
    producer.flush(60)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    number = 50
    error = None
    began = time.monotonic()
    while error is None and time.monotonic() - began < 60:
        try:
            producer.send(topic, record_value(number) + b"." * 100_000)
            number += 1
        except kafka_errors.KafkaError as refused:
            error = refused
    counters = producer.metrics()["kafkasafe"]
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    producer.flush(60)
    for more in range(number, number + 50):
        send(producer, topic, more).get(60)
    producer.close()
    Path(result).write_text(
        json.dumps(
            {
                "error": type(error).__name__,
                "message": str(error),
                "accepted": number + 50,
                "write_errors": counters.get("spool_write_errors", 0),
            }
        )
    )


def unwritable(*, spool: str, result: str) -> None:
    """Opens a spool directory that another user made."""
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        SafeProducer(bootstrap_servers="127.0.0.1:9", spool_dir=spool)
        text = "opened"
    except kafka_errors.KafkaError as error:
        text = f"{type(error).__name__}: {error}"
    Path(result).write_text(text)


def health_of_another_user(*, spool: str, result: str) -> None:
    """Looks at a spool directory that another user made."""
    arguments = ["health", spool, "--json"]
    with contextlib.suppress(SystemExit):
        cli.main(arguments)  # imports what the other user may not read
    if os.getuid() == 0:
        os.setuid(65534)
    with (
        Path(result).open("w") as output,
        contextlib.redirect_stdout(output),
        contextlib.suppress(SystemExit),
    ):
        cli.main(arguments)


class Mortal(OsFiles):
    """The operating system's files; kill -9 at the call after so many that change what is durable."""

    __slots__ = ("left",)

    def __init__(self, calls: int) -> None:
        self.left = calls

    def _count(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def writev(self, handle, buffers, offset):
        self._count()
        return super().writev(handle, buffers, offset)

    def sync_data(self, handle):
        self._count()
        super().sync_data(handle)

    def sync_directory(self, path, *, at=None):
        self._count()
        super().sync_directory(path, at=at)

    def unlink(self, path, *, at=None):
        self._count()
        super().unlink(path, at=at)


def command(*, arguments: list[str], calls: int) -> None:
    """A command line that has to end well; it dies when it has done so much to the disk."""
    files = Mortal(calls)
    common.OsFiles = opening.OsFiles = lambda: files
    try:
        cli.main(arguments)
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"exit code {ended.code}") from ended


LIVES = {
    life.__name__: life
    for life in (stream, promise, burst, full_disk, unwritable, health_of_another_user, command)
}


def _live(order: dict) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    logging.basicConfig(
        format="%(process)d %(asctime)s %(name)s %(levelname)s %(message)s", level=logging.INFO
    )
    logging.getLogger("kafka").setLevel(logging.ERROR)
    code = 0
    try:
        LIVES[order["life"]](**order["arguments"])
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


def _zygote() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    # The kernel does as told; Python's default would end the process.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    ended: dict[int, int] = {}
    buffered = b""
    while True:
        while b"\n" not in buffered:
            select.select([0], [], [])
            data = os.read(0, 65536)
            if not data:
                os._exit(0)  # the children get SIGKILL from the kernel
            buffered += data
        line, buffered = buffered.split(b"\n", 1)
        order = json.loads(line)
        match order["do"]:
            case "fork":
                pid = os.fork()
                if not pid:
                    answers.close()
                    _live(order)
                ended.pop(pid, None)  # pids come again
                answers.write(json.dumps(pid) + "\n")
            case "poll":
                pid = order["pid"]
                if pid not in ended:
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        ended[pid] = os.waitstatus_to_exitcode(status)
                answers.write(json.dumps(ended.get(pid)) + "\n")


if __name__ == "__main__":
    _zygote()

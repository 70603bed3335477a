"""The processes that benchmarks/chaos.py kills: three producers and a member of a consumer group.

Each process works in its own folder, and keeps a `Ledger` there, which survives SIGKILL. After a fault of the spool
directory, the harness writes a new number to the file `fault`. The producer copies this number to the file `seen` when
all records that it accepted are durable again.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import faulthandler
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from kafkasafe.demo.ledger import Ledger

PARTITIONS = 3
RECREATED = "recreated"
TOPICS = {
    "plain": ("plain", "gzipped", "stamped", RECREATED),
    "staged": ("staged", "pair"),
    "mover": ("moved",),
}
"""Topics of each producer. Records of `pair` are in atomic batches: `pair-copy` has the same numbers."""
COPY = "pair-copy"
SOURCE, DERIVED = "plain", "derived"
GROUP = "pipeline"
RECORDS = 4_000_000
SETTLE_S = 300.0
DEPTH = 10
"""Largest number of a member's atomic batches without an outcome."""


def open_producer(options: argparse.Namespace, spool: Path, **more: Any) -> Any:
    """Opens a producer. The seed determines its settings."""
    from kafkasafe import SafeProducer

    rng = random.Random(options.seed)
    return SafeProducer(
        bootstrap_servers=options.servers.split(","),
        spool_dir=spool,
        spool_max_bytes=256 * 1024 * 1024,
        spool_segment_bytes=2 * 1024 * 1024,
        request_timeout_ms=5000,
        max_block_ms=5000,
        batch_size=rng.choice((2000, 20_000, 1_000_000)),
        linger_ms=rng.choice((0, 1, 5)),
        compression_type=rng.choice((None, "gzip", "snappy", "lz4", "zstd")),
        transaction_timeout_ms=20_000,
        on_data_loss="event",
        **more,
    )


def end_on_signals(producer: Any) -> None:
    """Lets SIGTERM close the producer and SIGINT flush it. Either signal may interrupt any call of the program."""
    from kafka.errors import KafkaTimeoutError

    from kafkasafe.errors import WrongClusterError

    def terminate(*_: object) -> None:
        # If another cluster answers, `close` and `flush` raise, and records for the first cluster stay in the spool.
        with contextlib.suppress(WrongClusterError):
            producer.close(timeout=10)
        sys.exit(0)

    def interrupt(*_: object) -> None:
        with contextlib.suppress(KafkaTimeoutError, WrongClusterError):
            producer.flush(timeout=5)
        sys.exit(0)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, interrupt)


def number_in(path: Path) -> int:
    """Returns the number in a file; 0 if the file is missing or empty."""
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def say_open(folder: Path) -> None:
    """Reports that the spool is open, so that the harness may disturb its directory."""
    (folder / "open").write_text(str(os.getpid()))


def is_disturbed(folder: Path) -> bool:
    """Returns whether the spool directory was disturbed and `durable()` has not returned since then."""
    return number_in(folder / "fault") > number_in(folder / "seen")


def produce(options: argparse.Namespace) -> None:
    """Sends numbered records until a signal arrives, or returns without `close()` after `--seconds`."""
    from kafka.errors import KafkaError

    folder = Path(options.folder)
    books = {topic: Ledger(folder / topic) for topic in TOPICS[options.role]}
    rng = random.Random(options.seed)
    delivery = {"delivery": "transactional"} if options.role == "staged" else {}
    producer = open_producer(options, folder / "spool", **delivery)
    end_on_signals(producer)
    called: collections.Counter[str] = collections.Counter()
    numbers = {topic: book.next_number() for topic, book in books.items()}
    promised = dict(numbers)
    until = time.monotonic() + options.seconds

    def send(topic: str, book: Ledger, count: int) -> None:
        for _ in range(count):
            number = numbers[topic]
            numbers[topic] = number + 1
            book["attempted"][number] = 1
            value = b"%012d" % number + b"." * rng.choice((0, 20, 90))
            try:
                future = producer.send(topic, value, b"k%d" % (number % 31))
            except KafkaError:
                book["failed"][number] = 1
            else:
                book["accepted"][number] = 1
                future.add_callback(lambda _, topic=topic: called.update((topic,)))

    def send_together(topic: str, book: Ledger, count: int) -> None:
        first = numbers[topic]
        numbers[topic] += count
        mine = slice(first, first + count)
        book["attempted"][mine] = 1
        try:
            with producer.batch() as batch:
                for number in range(first, first + count):
                    batch.send(topic, b"%012d" % number, b"k%d" % (number % 31))
                    batch.send(COPY, b"%012d" % number, b"k%d" % (number % 31))
        except KafkaError:
            book["failed"][mine] = 1
        else:
            book["accepted"][mine] = 1

    say_open(folder)
    while time.monotonic() < until or is_disturbed(folder):
        fault = number_in(folder / "fault")
        for topic, book in books.items():
            (send_together if topic == "pair" else send)(topic, book, rng.randint(1, options.burst))
        if rng.random() < 0.3 or fault != number_in(folder / "seen"):
            with contextlib.suppress(KafkaError):
                producer.durable(30)
                for topic, book in books.items():
                    mine = slice(promised[topic], numbers[topic])
                    book["durable"][mine] = book["accepted"][mine]
                    promised[topic] = numbers[topic]
                (folder / "seen").write_text(str(fault))
        time.sleep(rng.random() * 0.04)
    if options.drain:
        producer.flush(SETTLE_S if options.role != "mover" else 60)
        producer.close()


def transform(options: argparse.Namespace) -> None:
    """Runs a member of a group: copies records, partition by partition, in atomic batches with the group's offsets."""
    from kafka.errors import FencedInstanceIdError, KafkaError

    from kafkasafe import SafeConsumer
    from kafkasafe.errors import BatchDroppedError

    folder = Path(options.folder)
    rng = random.Random(options.seed)
    producer = open_producer(options, folder / "spool")
    consumer = SafeConsumer(
        SOURCE,
        bootstrap_servers=options.servers.split(","),
        group_id=GROUP,
        group_instance_id=rng.choice((None, f"static-{folder.name}")),
        client_id=folder.name,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=rng.choice((50, 500, 2000)),
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
    )
    end_on_signals(producer)
    outcomes: collections.deque[Any] = collections.deque()
    until = time.monotonic() + options.seconds
    say_open(folder)
    while time.monotonic() < until or is_disturbed(folder):
        fault = number_in(folder / "fault")
        try:
            polled = consumer.poll(200)
        except FencedInstanceIdError:
            # A delayed join request of the previous process has taken this process's place in the group. End, as a
            # program would.
            sys.exit(0)
        if polled:
            # The batch is dropped if this or the other member will read these records again.
            with contextlib.suppress(BatchDroppedError):
                with producer.batch() as batch:
                    for place, records in polled.items():
                        for record in records:
                            batch.send(DERIVED, record.value, record.key, partition=place.partition)
                    batch.send_offsets(consumer)
                outcomes.append(batch.outcome)
        while outcomes and (len(outcomes) >= DEPTH or outcomes[0].is_done):
            # After a dropped batch, the consumer returns to the group's offset and reads the records again.
            with contextlib.suppress(BatchDroppedError):
                outcomes.popleft().get(SETTLE_S)
        if fault != number_in(folder / "seen"):
            with contextlib.suppress(KafkaError):
                producer.durable(30)
                (folder / "seen").write_text(str(fault))


def main() -> None:
    """Runs one process. benchmarks/chaos.py starts it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=[*TOPICS, "member"])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--burst", type=int, default=40)
    parser.add_argument("--drain", action="store_true")
    options = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # writes the stack of a process that hangs to its log
    (transform if options.role == "member" else produce)(options)


if __name__ == "__main__":
    main()

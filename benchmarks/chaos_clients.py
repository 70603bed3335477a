"""The processes that benchmarks/chaos.py kills: three producers and a member of a consumer group.

Each process works in a folder of its own and keeps its books there (`Ledger`, which survives SIGKILL). A producer that
found a new number in the file `fault` has all that it accepted durable again before it writes that number to `seen`: a
fault of its directory is over for it then.
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
"""Of each producer. Its records of `pair` are atomic batches: each number is also in `pair-copy`."""
COPY = "pair-copy"
SOURCE, DERIVED = "plain", "derived"
GROUP = "pipeline"
RECORDS = 4_000_000
SETTLE_S = 300.0
DEPTH = 10
"""Atomic batches of a member that may be under way."""


def open_producer(options: argparse.Namespace, spool: Path, **more: Any) -> Any:
    """A producer with settings drawn by the seed."""
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
    """SIGTERM closes it, SIGINT flushes it; both in the middle of whatever the program does."""
    from kafka.errors import KafkaTimeoutError

    from kafkasafe.errors import WrongClusterError

    def terminate(*_: object) -> None:
        # Where another cluster answers, what waits for the first one stays in the spool, and both say so.
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
    """What the harness, or the process, wrote there; 0 if nothing."""
    try:
        return int(path.read_text() or 0)
    except FileNotFoundError:
        return 0


def say_open(folder: Path) -> None:
    """The spool is open: from now on its directory may be disturbed."""
    (folder / "open").write_text(str(os.getpid()))


def is_disturbed(folder: Path) -> bool:
    """The spool's directory was disturbed, and `durable()` has not said yet that all is in it again."""
    return number_in(folder / "fault") > number_in(folder / "seen")


def produce(options: argparse.Namespace) -> None:
    """Sends numbered records until a signal comes, or leaves without `close()` after `--seconds`."""
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
    """Member of a group: copies what it reads, partition by partition, its offsets in the same atomic batches."""
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
            # A late join of the life before took the place of this one in the group: end, as a program would.
            sys.exit(0)
        if polled:
            # Refused once where these records are read again, here or by the other member: they are discarded.
            with contextlib.suppress(BatchDroppedError):
                with producer.batch() as batch:
                    for place, records in polled.items():
                        for record in records:
                            batch.send(DERIVED, record.value, record.key, partition=place.partition)
                    batch.send_offsets(consumer)
                outcomes.append(batch.outcome)
        while outcomes and (len(outcomes) >= DEPTH or outcomes[0].is_done):
            # A batch that was dropped is read again: the consumer goes back to what the group has.
            with contextlib.suppress(BatchDroppedError):
                outcomes.popleft().get(SETTLE_S)
        if fault != number_in(folder / "seen"):
            with contextlib.suppress(KafkaError):
                producer.durable(30)
                (folder / "seen").write_text(str(fault))


def main() -> None:
    """One process; started by benchmarks/chaos.py."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=[*TOPICS, "member"])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--burst", type=int, default=40)
    parser.add_argument("--drain", action="store_true")
    options = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # where a process that hangs stands, into its log
    (transform if options.role == "member" else produce)(options)


if __name__ == "__main__":
    main()

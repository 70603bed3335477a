"""A producer under everything at once, for minutes, and a count of what is left.

    python benchmarks/chaos.py [--minutes 10] [--seed N] [--json FILE]

Three brokers behind a proxy that reads Kafka's protocol, and one process after the other that sends numbered
records to four topics from one spool directory. Meanwhile, drawn by the seed:

- the process ends by kill -9, by SIGTERM with a handler that calls `close()`, by SIGINT with a handler that calls
  `flush()`, both in the middle of `send()`, or without `close()`; each life sends with callbacks, calls
  `flush_spool()` and notes what was promised;
- brokers are killed with -9, paused, moved away from their leadership, and all killed together;
- answers are lost after the broker appended, connections are cut;
- the right to write to a topic goes away and comes back (code 29 in answers to Produce and Metadata);
- one topic is deleted and recreated.

At the end everything is healed, a last life delivers what the spool has, and confluent-kafka reads every topic. For
each partition: no number twice, numbers ascending, no promised number missing, none that `send()` had refused. Of
the topic that is recreated what went with its former life is not missed; duplicates and order count there too.

The exit code is 0 if all of that holds and no process hung.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka.errors import TopicAlreadyExistsError

from kafkasafe.testing.demo import Ledger

STEADY = ("plain", "gzipped", "stamped")
RECREATED = "recreated"
TOPICS = (*STEADY, RECREATED)
PARTITIONS = 3
RECORDS = 4_000_000
ENDS = ("kill", "kill", "terminate", "terminate", "interrupt", "interrupt", "leave")
HANG_S = 90.0
"""A process that was told to end and has not ended after so long hung."""
SETTLE_S = 300.0


# --- one life of the producer, in a process of its own ----------------------------------------------------------------


def live(options: argparse.Namespace) -> None:
    """Sends until a signal comes, or leaves without `close()` after `--seconds`."""
    from kafka.errors import KafkaError, KafkaTimeoutError

    from kafkasafe import SafeProducer

    folder = Path(options.folder)
    books = {topic: Ledger(folder / topic) for topic in TOPICS}
    dice = random.Random(options.seed)
    producer = SafeProducer(
        bootstrap_servers=options.servers.split(","),
        spool_dir=folder / "spool",
        spool_max_bytes=256 * 1024 * 1024,
        spool_segment_bytes=2 * 1024 * 1024,
        request_timeout_ms=5000,
        max_block_ms=5000,
        batch_size=dice.choice((2000, 20_000, 1_000_000)),
        linger_ms=dice.choice((0, 1, 5)),
        compression_type=dice.choice((None, "gzip", "snappy", "lz4", "zstd")),
        on_acked_loss="event",
    )

    def terminate(*_: object) -> None:
        producer.close(timeout=10)
        sys.exit(0)

    def interrupt(*_: object) -> None:
        with contextlib.suppress(KafkaTimeoutError):
            producer.flush(timeout=5)
        sys.exit(0)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, interrupt)
    called: collections.Counter[str] = collections.Counter()
    numbers = {topic: book.next_number() for topic, book in books.items()}
    promised = dict(numbers)
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        for topic, book in books.items():
            for _ in range(dice.randint(1, 40)):
                number = numbers[topic]
                numbers[topic] = number + 1
                book["attempted"][number] = 1
                try:
                    future = producer.send(
                        topic, b"%012d" % number + b"." * dice.choice((0, 20, 90)), b"k%d" % (number % 31)
                    )
                except KafkaError:
                    book["failed"][number] = 1
                else:
                    book["accepted"][number] = 1
                    future.add_callback(lambda _, topic=topic: called.update((topic,)))
        if dice.random() < 0.3:
            producer.flush_spool(60)
            for topic, book in books.items():
                mine = slice(promised[topic], numbers[topic])
                book["durable"][mine] = book["accepted"][mine]
                promised[topic] = numbers[topic]
        time.sleep(dice.random() * 0.04)
    if options.drain:
        producer.flush(SETTLE_S)
        producer.close()


# --- faults -----------------------------------------------------------------------------------------------------------


class Chaos:
    """Draws a fault, waits, mends it."""

    def __init__(self, cluster: Any, proxy: Any, dice: random.Random) -> None:
        self.cluster, self.proxy, self.dice = cluster, proxy, dice
        self.done: collections.Counter[str] = collections.Counter()
        self.recreated_at = 0.0

    def kill_broker(self) -> None:
        node = self.dice.randint(1, 3)
        self.cluster.kill(node)
        time.sleep(self.dice.uniform(0, 4))
        self.cluster.start(node)

    def pause_broker(self) -> None:
        node = self.dice.randint(1, 3)
        self.cluster.pause(node)
        time.sleep(self.dice.uniform(0, 7))
        self.cluster.resume(node)

    def kill_all_brokers(self) -> None:
        self.cluster.kill_all()
        time.sleep(self.dice.uniform(0, 5))
        self.cluster.start_all()

    def move_leader(self) -> None:
        topic, partition = self.dice.choice(STEADY), self.dice.randrange(PARTITIONS)
        self.cluster.move_leader(topic, partition)

    def lose_answers(self) -> None:
        rule = self.proxy.on("Produce").drop(times=self.dice.randint(1, 8))
        time.sleep(self.dice.uniform(0.5, 3))
        rule.remove()

    def cut(self) -> None:
        for _ in range(self.dice.randint(1, 5)):
            self.proxy.cut()
            time.sleep(self.dice.uniform(0, 0.5))

    def forbid(self) -> None:
        """The right to write flaps, with or without Metadata that says so."""
        topic = self.dice.choice(STEADY)
        rules = [self.proxy.on("Produce", topic=topic).answer_without_forwarding(29)]
        if self.dice.random() < 0.5:
            rules.append(self.proxy.on("Metadata", topic=topic).answer(29, level="topic"))
        time.sleep(self.dice.uniform(0.2, 4))
        for rule in rules:
            rule.remove()

    def recreate(self) -> None:
        with self.cluster.admin() as admin:
            admin.delete_topics([RECREATED])
        time.sleep(self.dice.uniform(0, 3))
        # A producer with records for it may have had the broker make it already.
        with contextlib.suppress(TopicAlreadyExistsError):
            self.cluster.create_topic(RECREATED, PARTITIONS, 3)
        self.recreated_at = time.monotonic()

    def one(self) -> None:
        kinds = (
            *(
                self.kill_broker,
                self.kill_broker,
                self.pause_broker,
                self.move_leader,
                self.lose_answers,
                self.lose_answers,
            ),
            *(self.cut, self.cut, self.forbid, self.forbid, self.kill_all_brokers, self.recreate),
        )
        kind: Callable[[], None] = self.dice.choice(kinds)
        try:
            kind()
        finally:
            self.proxy.clear()
        self.done[kind.__name__] += 1


# --- the count --------------------------------------------------------------------------------------------------------


def read(servers: list[str], topic: str) -> list[list[int]]:
    """Numbers by partition, in the log's order, as a plain reader sees them."""
    from confluent_kafka import Consumer, TopicPartition

    found: list[list[int]] = []
    for partition in range(PARTITIONS):
        consumer = Consumer(
            {
                "bootstrap.servers": ",".join(servers),
                "group.id": "count",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
            }
        )
        place = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        numbers: list[int] = []
        deadline = time.monotonic() + 120
        while len(numbers) < end:
            if time.monotonic() > deadline:
                sys.exit(f"{topic}-{partition}: only {len(numbers)} of {end} records could be read")
            numbers += [int(message.value()[:12]) for message in consumer.consume(10_000, 1.0)]
        consumer.close()
        found.append(numbers)
    return found


def judge(servers: list[str], topic: str, book: Ledger) -> dict[str, int]:
    logs = read(servers, topic)
    every = [number for log in logs for number in log]
    there = set(every)
    durable = {number for number in range(book.next_number()) if book["durable"][number]}
    refused = {number for number in range(book.next_number()) if book["failed"][number]}
    return {
        "attempted": book.next_number(),
        "promised": len(durable),
        "in the log": len(every),
        "lost": 0 if topic == RECREATED else len(durable - there),
        "duplicated": len(every) - len(there),
        "out of order": sum(a > b for log in logs for a, b in itertools.pairwise(log)),
        "refused, yet there": len(refused & there),
    }


# --- the run ----------------------------------------------------------------------------------------------------------


def start(
    folder: Path, servers: list[str], seed: int, seconds: float, *, drain: bool = False
) -> subprocess.Popen[bytes]:
    with (folder / "lives.log").open("ab") as output:
        return subprocess.Popen(
            [
                *(
                    sys.executable,
                    __file__,
                    "--live",
                    "--folder",
                    str(folder),
                    "--servers",
                    ",".join(servers),
                ),
                *("--seed", str(seed), "--seconds", str(seconds), *(["--drain"] if drain else [])),
            ],
            stdout=output,
            stderr=output,
        )


def end(child: subprocess.Popen[bytes], how: str) -> bool:
    """Ends a life; False if it hung."""
    match how:
        case "kill":
            child.kill()
        case "terminate":
            child.terminate()
        case "interrupt":
            child.send_signal(signal.SIGINT)
    try:
        child.wait(HANG_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        return False
    return True


def run(options: argparse.Namespace, folder: Path) -> int:
    import threading

    from kafkasafe.testing.broker import KafkaCluster
    from kafkasafe.testing.proxy import FaultProxy

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts jobs in the background. A life would not notice a signal before it has its handlers.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    dice = random.Random(options.seed)
    for topic in TOPICS:
        Ledger(folder / topic, RECORDS)
    lives: collections.Counter[str] = collections.Counter()
    hung = 0
    made = {"num.partitions": PARTITIONS, "default.replication.factor": 3}
    with (
        FaultProxy((1, 2, 3)) as proxy,
        KafkaCluster(brokers=3, proxy_ports=proxy.ports, config=made) as cluster,
    ):
        proxy.connect(cluster)
        for topic in TOPICS:
            config = {
                "gzipped": {"compression.type": "gzip"},
                "stamped": {"message.timestamp.type": "LogAppendTime"},
            }
            cluster.create_topic(topic, PARTITIONS, 3, config.get(topic, {}))
        chaos = Chaos(cluster, proxy, random.Random(f"{options.seed} faults"))
        until = time.monotonic() + options.minutes * 60
        failures: list[BaseException] = []

        def faults() -> None:
            try:
                while time.monotonic() < until:
                    time.sleep(chaos.dice.uniform(0, 3))
                    chaos.one()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=faults)
        thread.start()
        while time.monotonic() < until and not failures:
            how = dice.choice(ENDS)
            seconds = dice.uniform(1, 15)
            child = start(
                folder, proxy.bootstrap_servers, dice.getrandbits(31), seconds if how == "leave" else 600
            )
            if how != "leave":
                time.sleep(seconds)
            if not end(child, how):
                hung += 1
                print(f"hung after {how}", flush=True)
            # A signal before the handlers are there ends the process as such.
            if child.returncode not in {0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}:
                hung += 1
                print(
                    f"a life ended with exit code {child.returncode} ({how}): see {folder}/lives.log",
                    flush=True,
                )
            lives[how] += 1
        thread.join()
        if failures:
            raise failures[0]
        proxy.clear()
        cluster.heal()
        last = start(folder, proxy.bootstrap_servers, 0, 0.0, drain=True)
        if last.wait(SETTLE_S + 60):
            print(f"the last life did not deliver everything: see {folder}/lives.log", flush=True)
            hung += 1
        results = {topic: judge(cluster.bootstrap_servers, topic, Ledger(folder / topic)) for topic in TOPICS}
    print(f"seed {options.seed}, {options.minutes} minutes; lives {dict(lives)}; faults {dict(chaos.done)}")
    names = list(next(iter(results.values())))
    print(f"{'':12}" + "".join(f"{name:>20}" for name in names))
    for topic, counts in results.items():
        print(f"{topic:12}" + "".join(f"{counts[name]:>20,}" for name in names))
    bad = hung + sum(
        counts[name]
        for counts in results.values()
        for name in ("lost", "duplicated", "out of order", "refused, yet there")
    )
    print(
        "0 lost, 0 duplicated, 0 out of order, nothing hung" if not bad else f"{bad} VIOLATIONS", flush=True
    )
    if options.json:
        about = {"seed": options.seed, "minutes": options.minutes, "lives": lives, "faults": chaos.done}
        options.json.write_text(json.dumps({**about, "hung": hung, "topics": results}, indent=1) + "\n")
    return int(bool(bad))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--keep", type=Path, help="work in this directory and leave it there")
    parser.add_argument("--json", type=Path)
    child = parser.add_argument_group("one life (used by this program itself)")
    child.add_argument("--live", action="store_true")
    child.add_argument("--drain", action="store_true")
    child.add_argument("--folder")
    child.add_argument("--servers")
    child.add_argument("--seconds", type=float)
    options = parser.parse_args()
    if options.live:
        live(options)
        return
    if options.keep:
        options.keep.mkdir(parents=True)
        sys.exit(run(options, options.keep))
    with tempfile.TemporaryDirectory() as scratch:
        sys.exit(run(options, Path(scratch)))


if __name__ == "__main__":
    main()

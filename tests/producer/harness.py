"""What the tests of SafeProducer on real brokers share: processes to kill, and the audit of a topic."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import kafka.errors as kafka_errors
import lives
from kafka import KafkaConsumer, TopicPartition
from lives import record_key, record_value, send
from waiting import until

from kafkasafe import SafeProducer
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.testing import FakeCluster, jars
from kafkasafe.testing.broker import KafkaCluster
from kafkasafe.testing.tcp_proxy import TcpProxy

__all__ = [
    "Life",
    "Log",
    "Producers",
    "Proxied",
    "Zygote",
    "audit",
    "dead_address",
    "dump_segments",
    "end_offset",
    "kafka_errors",
    "new_topic",
    "numbers_of",
    "read_log",
    "record_key",
    "record_value",
    "send",
    "tidy_client",
    "until",
    "until_decided",
]


Log = dict[int, list]
"""By partition, the records in the order of the log."""


def new_topic(cluster: KafkaCluster, partitions: int = 3, **more) -> str:
    """Create a topic with a name of its own, and return the name.

    Brokers with ZooKeeper now and then answer with error -1 while the machine is busy.
    """
    for is_last in (False, False, True):
        name = f"t-{random.SystemRandom().getrandbits(40):010x}"
        try:
            cluster.create_topic(name, partitions, **more)
        except kafka_errors.UnknownError:
            if is_last:
                raise
        else:
            return name
    raise AssertionError


def dead_address() -> str:
    """Where nobody listens: a port below 1024 that needs privileges."""
    return "127.0.0.1:9"


# -- processes ---------------------------------------------------------------------------------------------------------


class Life:
    """A producing process."""

    def __init__(self, zygote: Zygote, pid: int, log: Path) -> None:
        self._zygote = zygote
        self.pid = pid
        self.log = log

    def ended(self) -> int | None:
        """Exit code, None while it lives; -9 after `kill`."""
        return self._zygote.ask(do="poll", pid=self.pid)

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self, timeout_s: float = 120.0) -> int:
        deadline = time.monotonic() + timeout_s
        while (code := self.ended()) is None:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"process {self.pid} did not end within {timeout_s} s:\n{self.tail()}")
            time.sleep(0.002)
        return code

    def until(self, path: Path, timeout_s: float = 120.0) -> None:
        """Waits for a file that the process makes."""
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            assert self.ended() is None, f"process {self.pid} ended by itself:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{path.name} not within {timeout_s} s:\n{self.tail()}"
            time.sleep(0.005)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Zygote:
    """The process that forks lives."""

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, lives.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def ask(self, **order):
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def fork(self, life, log: Path, **arguments) -> Life:
        pid = self.ask(do="fork", life=life.__name__, log=str(log), arguments=arguments)
        return Life(self, pid, log)


class Producers:
    """Opens SafeProducers on one spool directory; closes what is still open at the end."""

    def __init__(self, spool: Path) -> None:
        self.spool = spool
        self._open: list[SafeProducer] = []

    def __call__(self, bootstrap_servers, **options) -> SafeProducer:
        options.setdefault("spool_dir", self.spool)
        producer = SafeProducer(bootstrap_servers=bootstrap_servers, **options)
        self._open.append(producer)
        return producer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.ExitStack() as stack:
            for producer in self._open:
                stack.callback(producer.close, timeout=0)


@dataclass
class Proxied:
    cluster: KafkaCluster | FakeCluster
    proxy: TcpProxy | FakeCluster

    @property
    def servers(self) -> list[str]:
        return self.cluster.bootstrap_servers

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Past the proxy."""
        return end_offset(self.cluster, topic, partition)


def end_offset(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    from kafka.admin import OffsetSpec

    where = TopicPartition(topic, partition)
    with cluster.admin() as admin:
        return admin.list_partition_offsets({where: OffsetSpec.LATEST})[where].offset


def until_decided(servers: list[str], places: list[TopicPartition]) -> None:
    """Until each transaction in these partitions is committed or aborted for readers: markers come a moment after EndTxn."""
    options = {"bootstrap_servers": servers, "group_id": None, "kafka_client": tidy_client}
    with (
        KafkaConsumer(isolation_level="read_committed", **options) as decided,
        KafkaConsumer(isolation_level="read_uncommitted", **options) as everything,
    ):

        def same() -> bool:
            try:
                return decided.end_offsets(places) == everything.end_offsets(places)
            except kafka_errors.KafkaTimeoutError:
                return False  # brokers that were killed may be asked for long on a busy machine

        until(same, what="a transaction is open")


# -- audit -------------------------------------------------------------------------------------------------------------


def read_log(servers: list[str], topic: str, timeout_s: float = 120.0) -> Log:
    """The whole topic, as a plain KafkaConsumer sees it: read_uncommitted, from the beginning."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        enable_auto_commit=False,
        isolation_level="read_uncommitted",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=10_000,
        # Its own leaves the socket of a connection that failed to the garbage collector, whose warning is an error.
        kafka_client=tidy_client,
    )
    deadline = time.monotonic() + timeout_s
    try:
        found = until(lambda: consumer.partitions_for_topic(topic), timeout_s, f"{topic} is not there")
        partitions = [TopicPartition(topic, p) for p in sorted(found)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        logs: Log = {tp.partition: [] for tp in partitions}
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            assert time.monotonic() < deadline, f"{topic} could not be read to its end {ends}"
            for tp, records in consumer.poll(timeout_ms=500).items():
                logs[tp.partition] += records
    finally:
        consumer.close()
    return logs


def numbers_of(records: list) -> list[int]:
    return [int(record.value[: lives.DIGITS]) for record in records]


def audit(log: Log, promised, *, note: object = "", ordered: bool = True, contents: bool = True) -> None:
    """Nothing promised is lost, nothing is there twice or behind a later one, every byte is as it was sent."""
    found: collections.Counter[int] = collections.Counter()
    behind = []
    changed = []
    for partition, records in log.items():
        newest = -1
        for record, number in zip(records, numbers_of(records), strict=True):
            if ordered and number < newest and not found[number]:
                behind.append((partition, record.offset, number, newest))
            found[number] += 1
            newest = max(newest, number)
            if contents and (record.key, record.value) != (record_key(number), record_value(number)):
                changed.append((partition, record.offset, number))
    lost = sorted(set(promised) - set(found))
    twice = sorted(number for number, copies in found.items() if copies > 1)
    verdict = {"lost": lost, "duplicated": twice, "out of order": behind, "changed": changed}
    bad = {name: (len(which), which[:10]) for name, which in verdict.items() if which}
    assert not bad, f"{bad} of {len(found)} in the log; {note}"


# -- Kafka's own reader ------------------------------------------------------------------------------------------------


def dump_segments(segments: list[Path]) -> list[dict[str, str]]:
    """The batches in spool segments as Kafka's DumpLogSegments reports them."""
    version = "4.3.0"
    directory = jars.resolve(version, extra=(f"org.apache.kafka:kafka-tools:{version}",))
    done = subprocess.run(
        [
            jars.find_java(),
            "-cp",
            jars.classpath(directory),
            "org.apache.kafka.tools.DumpLogSegments",
            "--deep-iteration",
            "--files",
            ",".join(map(str, segments)),
        ],
        capture_output=True,
        timeout=120,
        check=True,
        encoding="latin-1",
    )
    return [
        dict(re.findall(r"(\w+): (\S*)", line))
        for line in done.stdout.splitlines()
        if line.startswith("baseOffset")
    ]

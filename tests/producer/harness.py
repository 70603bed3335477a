"""What the tests of SafeProducer on real brokers share: processes to kill, and the audit of a topic."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import kafka.errors as kafka_errors
import lives
from dumping import dumped
from kafka import TopicPartition
from lives import record_key, record_value, send
from topics import Log, read_log, read_values, until_decided
from waiting import until

from kafkasafe import SafeProducer
from kafkasafe.kafkapython.admin import tidy_client
from kafkasafe.testing import FakeCluster
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
    "read_values",
    "record_key",
    "record_value",
    "send",
    "tidy_client",
    "until",
    "until_decided",
    "values_of",
]


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

    def burst(
        self, where: Path, servers, topic, ready: Path, numbers, *, spool=None, options=None, **more
    ) -> Life:
        """A life that sends these numbers; its log and, unless another is given, its spool are in a directory."""
        paths = {name: str(value) for name, value in more.items() if isinstance(value, Path)}
        return self.fork(
            lives.burst,
            where / "lives.log",
            servers=servers,
            topic=topic,
            spool=str(spool or where / "spool"),
            ready=str(ready),
            numbers=numbers,
            options=options or {},
            **{**more, **paths},
        )

    def stream(self, where: Path, servers, topic, seed: int, *, spool=None, **more) -> Life:
        """A life that sends as the ledger in a directory says; its log and its spool are there, too."""
        return self.fork(
            lives.stream,
            where / "lives.log",
            servers=servers,
            topic=topic,
            spool=str(spool or where / "spool"),
            ledger=str(where / "ledger"),
            seed=seed,
            **more,
        )


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


# -- audit -------------------------------------------------------------------------------------------------------------


def values_of(servers: list[str], topic: str) -> list[int]:
    """The numbers that are the values of a topic, partition by partition."""
    return [int(value) for values in read_values(servers, topic).values() for value in values]


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
    return [fields for line, fields in dumped(segments, "--deep-iteration") if line.startswith("baseOffset")]

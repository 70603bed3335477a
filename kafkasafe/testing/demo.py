"""The engine of `kafkasafe demo`: real brokers, real producers, kill -9 of everything, and an audit at the end.

There are three brokers (replication 3, min.insync.replicas 2). Every client under test runs in its own process, and
sends numbered records to its own topic. All topics have the same assignment, so one fault affects all clients at once.
The faults follow each other:

- `leader`: the broker that leads a partition is killed, and started again;
- `producer`: the producing processes are killed, at any moment, and started again;
- `brokers`: all brokers are killed at once, and started again;
- `everything`: all brokers are killed; while none answers, the producing processes are killed too; both start again.

Record *i* belongs to partition *i mod P* and is the *i div P*-th record there. So the numbers alone show loss,
duplication and order. No number is used twice: a process that starts again continues after the last number that its
predecessor may have sent.

A `Ledger` records what the producer reported to the application. It is a memory-mapped file, so its content survives
kill -9 of the process. It needs no system call per record, which would change the timing. It has one byte per record
for each of these facts:

- *attempted* before `send`: the number is used from here on;
- *accepted* after `send` returned;
- *durable* after a `producer.durable()` that began after `send` returned (SafeProducer), or after the commit of the
  row in the outbox;
- *acked* when the client reports that the cluster has the record, *failed* when it reports that it gave up.

One client for comparison is the usual remedy for a producer that loses records: an **outbox**. The application commits
each record to a table of SQLite. A relay sends the rows with confluent-kafka, waits for the acknowledgements, and
deletes the rows. If the relay is killed between Kafka's answer and the deletion, it sends these rows again.

**Promised** records are those on which the application may rely; the audit judges these. For SafeProducer and the
outbox they are the durable or acknowledged ones. For the other clients they are those that `send` accepted: an
application without its own copy knows no more. Records lost *after* their acknowledgement are counted separately.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import importlib.util
import logging
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

import kafka.errors as kafka_errors
import numpy as np
import numpy.typing as npt
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from kafkasafe.errors import KafkaSafeError
from kafkasafe.testing.broker import KafkaCluster

__all__ = [
    "CLIENTS",
    "DURABLE_CLIENTS",
    "FAULTS",
    "Demo",
    "DemoError",
    "Ledger",
    "Progress",
    "Run",
    "Settings",
]

CLIENTS: Final = ("kafkasafe", "outbox", "kafka-python", "confluent-kafka")
DURABLE_CLIENTS: Final = frozenset({"kafkasafe", "outbox"})
"""Clients that write a record to disk before they promise its delivery."""
FAULTS: Final = ("leader", "producer", "brokers", "everything")

VALUE_BYTES: Final = 100
_DIGITS: Final = 12
_PHASE_LIMIT_S: Final = 150.0
"""Longer than any client's delivery timeout (120 s), so every record has an outcome by then."""
_POLL_S: Final = 0.02

Plane: TypeAlias = Literal["attempted", "accepted", "durable", "acked", "failed"]
Flags: TypeAlias = npt.NDArray[np.uint8]
_PLANES: Final[tuple[Plane, ...]] = ("attempted", "accepted", "durable", "acked", "failed")
_CELLS: Final = 4


class DemoError(KafkaSafeError, RuntimeError):
    """The demo could not be carried out. This does not mean that records were lost."""


class Ledger:
    """What a client reported about each record. The demo and the producing process share it; it survives kill -9.

    Args:
        path: The file.
        records: Number of records. If given, the file is created, otherwise opened.

    Attributes:
        records: Number of records.
    """

    def __init__(self, path: Path, records: int | None = None) -> None:
        cells = 8 * _CELLS
        if records is not None:
            with path.open("wb") as file:
                file.truncate(cells + len(_PLANES) * records)
        self.records = (path.stat().st_size - cells) // len(_PLANES)
        self._cells: npt.NDArray[np.int64] = np.memmap(path, np.int64, "r+", 0, (_CELLS,))
        planes: Flags = np.memmap(path, np.uint8, "r+", cells, (len(_PLANES), self.records))
        self._planes: dict[Plane, Flags] = {name: planes[row] for row, name in enumerate(_PLANES)}

    def __getitem__(self, plane: Plane) -> Flags:
        """One byte per record; 1 if the fact is known."""
        return self._planes[plane]

    @property
    def limit(self) -> int:
        """Records with smaller numbers may be sent now. The demo sets it."""
        return int(self._cells[0])

    @limit.setter
    def limit(self, number: int) -> None:
        self._cells[0] = number

    @property
    def settled(self) -> int:
        """Every record with a smaller number has an outcome, as far as its producer can know. The producer sets it."""
        return int(self._cells[1])

    @settled.setter
    def settled(self, number: int) -> None:
        self._cells[3] = time.monotonic_ns()
        self._cells[1] = number

    @property
    def settled_at(self) -> float:
        """When `settled` was set, in seconds of the system's monotonic clock."""
        return int(self._cells[3]) / 1e9

    @property
    def stop(self) -> bool:
        """Whether the producer should close and end."""
        return bool(self._cells[2])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._cells[2] = value

    def next_number(self) -> int:
        """First number that no incarnation of the producer has used."""
        # Numbers are used in order and without gaps.
        return int(np.count_nonzero(self["attempted"]))


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the demo.

    Attributes:
        records: Records per client, over all faults.
        clients: Which of `CLIENTS`.
        partitions: Partitions of each topic.
        stream_s: Seconds over which the records of one fault are spread, not counting outages.
        outage_s: Minimum seconds that a killed broker stays down.
        producer_kills: How often the producing process is killed in the fault `producer`.
        faults: Which of `FAULTS`, in this order.
        seed: Determines the moments of the faults; None: different ones each time.
    """

    records: int = 40_000
    clients: tuple[str, ...] = CLIENTS
    partitions: int = 3
    stream_s: float = 6.0
    outage_s: float = 3.0
    producer_kills: int = 3
    faults: tuple[str, ...] = FAULTS
    seed: int | None = None

    @classmethod
    def quick(cls, records: int = 12_000, *, clients: tuple[str, ...] = CLIENTS) -> Settings:
        """All faults in 40 s on two cores, if the jars are in the cache."""
        return cls(records=records, clients=clients, stream_s=2.0, outage_s=0.7, producer_kills=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The audit's result for one client and one fault. All fields but `seconds` are numbers of records.

    Attributes:
        client: One of `CLIENTS`.
        fault: One of `FAULTS`.
        sent: Promised to the application, see the module.
        acked: Those of `sent` that the client reported as acknowledged.
        spooled: Those of `sent` that were on disk before they were promised (`DURABLE_CLIENTS` only).
        in_log: Those of `sent` that are in the topic.
        lost: sent - in_log.
        acked_lost: Those of `lost` that had been acknowledged.
        duplicated: Additional copies in the topic, of promised and unpromised records.
        out_of_order: Records that come after a record of the same partition that was sent later.
        unpromised: Passed to `send`, but neither durable nor acknowledged when the process was killed (SafeProducer);
            or killed within `send`. May be in the topic once, or not at all.
        unpromised_in_log: Those of `unpromised` that are in the topic.
        failed: Records that the client itself reported as failed.
        seconds: From the first record until every record had an outcome.
    """

    client: str
    fault: str
    sent: int
    acked: int
    spooled: int
    in_log: int
    lost: int
    acked_lost: int
    duplicated: int
    out_of_order: int
    unpromised: int
    unpromised_in_log: int
    failed: int
    seconds: float

    @property
    def kept_its_promise(self) -> bool:
        """No promised record is lost, and no record is in the topic twice or out of order.

        False if the client promised nothing at all.
        """
        return self.sent > 0 and not (self.lost or self.duplicated or self.out_of_order)


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a client: numbers of records so far."""

    client: str
    accepted: int
    durable: int
    acked: int
    alive: bool


class Demo:
    """One demonstration, as a context manager. `run()` does everything.

    Args:
        settings: Settings of the demo.
        say: Called with one line for each step.
        cluster: Use this cluster of three brokers, and leave it running; None: start one.
        directory: Directory for spools, ledgers and logs. Default: a new one, removed after success.
    """

    def __init__(
        self,
        settings: Settings,
        say: Callable[[str], object] = lambda _: None,
        *,
        cluster: KafkaCluster | None = None,
        directory: Path | None = None,
    ) -> None:
        self.settings = settings
        self._say = say
        self._cluster = cluster
        self._stack = contextlib.ExitStack()
        self._given_directory = directory
        self._random = random.Random(settings.seed)
        self._per_fault = max(settings.records // len(settings.faults), settings.partitions)
        self._workers: dict[str, _Worker] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and issubclass(kind, DemoError):
            for worker in self._workers.values():
                worker.keep = True
        self._stack.close()

    @property
    def total(self) -> int:
        """Number of records per client."""
        return self._per_fault * len(self.settings.faults)

    def progress(self) -> list[Progress]:
        """The progress of each client. May be called from any thread."""
        return [worker.progress() for worker in list(self._workers.values())]

    def run(self) -> list[Run]:
        """Starts the cluster, causes the faults, and audits the topics.

        Raises:
            DemoError: A producer ended by itself or hung.
            ClusterError: The brokers did not start.
            JarError: Kafka's jars are not available.
        """
        cluster = self._open()
        topics = self._topics(cluster)
        for number, fault in enumerate(self.settings.faults):
            self._phase(cluster, number, fault, list(topics.values()))
        for worker in self._workers.values():
            worker.finish()
        runs = []
        for name, topic in topics.items():
            self._say(
                f"audit: {topic} is read from its beginning by a plain KafkaConsumer (read_uncommitted)"
            )
            logs = read_topic(cluster.bootstrap_servers, topic)
            runs += self._audit(name, self._workers[name].ledger, logs)
        return runs

    # -- preparation -----------------------------------------------------------------------------------------------

    def _open(self) -> KafkaCluster:
        if self._cluster is None:
            self._say("starting 3 brokers and a controller of Apache Kafka on this machine")
            started = time.monotonic()
            self._cluster = self._stack.enter_context(KafkaCluster(brokers=3))
            self._say(
                f"Kafka {self._cluster.version} serves after {time.monotonic() - started:.1f} s"
                f" at {','.join(self._cluster.bootstrap_servers)}"
            )
        return self._cluster

    def _topics(self, cluster: KafkaCluster) -> dict[str, str]:
        """Makes a topic and a worker for each client. All topics have the same leaders, so a fault affects all."""
        directory = self._given_directory
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="kafkasafe-demo-"))
            self._stack.callback(self._clean, directory)
        names = list(self.settings.clients)
        if importlib.util.find_spec("confluent_kafka") is None:
            missing = [name for name in names if name in {"confluent-kafka", "outbox"}]
            names = [name for name in names if name not in missing]
            if missing:
                self._say(f"confluent-kafka is not installed: shown without {' and '.join(missing)}")
        nodes = cluster.brokers
        assignments = {
            p: [nodes[(p + i) % len(nodes)] for i in range(min(3, len(nodes)))]
            for p in range(self.settings.partitions)
        }
        run = f"{self._random.getrandbits(32):08x}"
        topics = {}
        for name in names:
            topic = topics[name] = f"demo-{run}-{name}"
            cluster.create_topic(topic, assignments=assignments)
            self._workers[name] = worker = _Worker(
                name,
                topic,
                cluster.bootstrap_servers,
                directory,
                records=self.total,
                rate=self._per_fault / self.settings.stream_s,
                partitions=self.settings.partitions,
            )
            self._stack.callback(worker.kill)
        self._say(
            f"each of {', '.join(names)} sends {self.total:,} records to {self.settings.partitions} partitions"
        )
        return topics

    def _clean(self, directory: Path) -> None:
        if any(worker.keep for worker in self._workers.values()):
            self._say(f"spools, ledgers and logs are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)

    # -- faults ----------------------------------------------------------------------------------------------------

    def _phase(self, cluster: KafkaCluster, number: int, fault: str, topics: Sequence[str]) -> None:
        """Streams the records of one fault, causes the fault in the middle, and waits for the records' outcomes."""
        first, end = number * self._per_fault, (number + 1) * self._per_fault
        started = time.monotonic()
        for worker in self._workers.values():
            worker.ledger.limit = end
            if not worker.alive:
                worker.start()
        self._reach(first, 0.2, 0.4)
        match fault:
            case "leader":
                self._fault_leader(cluster, topics)
            case "producer":
                kills = self.settings.producer_kills
                for kill in range(kills):
                    if kill:
                        self._reach(first, 0.4 + 0.5 * kill / kills, 0.4 + 0.5 * (kill + 0.5) / kills)
                    self._kill_producers()
                    self._start_producers()
            case "brokers":
                self._fault_all_brokers(cluster)
            case "everything":
                self._fault_everything(cluster)
            case _:
                raise DemoError(f"There is no fault {fault!r}; there are {', '.join(FAULTS)}")

        def settled(worker: _Worker) -> bool:
            if worker.ledger.settled < end:
                return False
            seconds = self._seconds[worker.client, fault] = worker.ledger.settled_at - started
            self._say(
                f"{worker.client}: every record of fault {fault!r} has an outcome after {seconds:.1f} s"
            )
            return True

        self._await(settled, f"the end of fault {fault!r}")
        for topic in topics:
            for partition in range(self.settings.partitions):
                # Each fault is judged alone, so it begins on a healthy cluster.
                cluster.wait_in_sync(topic, partition)

    def _reach(self, first: int, low: float, high: float) -> None:
        """Waits until every producer is at a random point between two fractions of the fault's records."""
        number = first + int(self._per_fault * self._random.uniform(low, high))
        self._await(lambda worker: worker.reached() >= number, f"record {number:,}")

    def _fault_leader(self, cluster: KafkaCluster, topics: Sequence[str]) -> None:
        leader = cluster.leader(topics[0], 0)
        cluster.kill(leader)
        killed = time.monotonic()
        self._say(f"FAULT leader: kill -9 of broker {leader}, the leader of partition 0")
        new = cluster.leader(topics[0], 0)
        self._say(f"broker {new} leads partition 0 after {time.monotonic() - killed:.1f} s")
        self._rest(killed)
        cluster.start(leader)
        self._say(f"broker {leader} is back")

    def _fault_all_brokers(self, cluster: KafkaCluster) -> None:
        cluster.kill_all()
        killed = time.monotonic()
        self._say("FAULT brokers: kill -9 of all three brokers at once")
        self._rest(killed)
        cluster.start_all()
        self._say(f"all brokers are back {time.monotonic() - killed:.1f} s after they were killed")

    def _fault_everything(self, cluster: KafkaCluster) -> None:
        cluster.kill_all()
        killed = time.monotonic()
        self._say("FAULT everything: kill -9 of all three brokers at once …")
        self._rest(killed)
        self._kill_producers()
        # Producers start first, so they start while no broker answers.
        self._start_producers()
        cluster.start_all()
        self._say(f"all brokers are back {time.monotonic() - killed:.1f} s after they were killed")

    def _rest(self, since: float) -> None:
        while time.monotonic() < since + self.settings.outage_s:
            self._check()
            time.sleep(_POLL_S)

    def _kill_producers(self) -> None:
        for worker in self._workers.values():
            # At a random moment for each client, so that no kill falls between two batches systematically.
            time.sleep(self._random.uniform(0.0, 0.02))
            worker.kill()
            self._say(f"FAULT producer: kill -9 of {worker.client} after {worker.reached():,} records")

    def _start_producers(self) -> None:
        for worker in self._workers.values():
            worker.start()

    def _await(self, done: Callable[[_Worker], bool], what: str) -> None:
        """Polls until `done` has been true for each worker, possibly at different times."""
        deadline = time.monotonic() + _PHASE_LIMIT_S
        waiting = list(self._workers.values())
        while waiting := [worker for worker in waiting if not done(worker)]:
            self._check()
            if time.monotonic() > deadline:
                names = ", ".join(worker.client for worker in waiting)
                raise DemoError(
                    f"{names} did not get to {what} within {_PHASE_LIMIT_S:g} s\n{waiting[0].tail()}"
                )
            time.sleep(_POLL_S)

    def _check(self) -> None:
        for worker in self._workers.values():
            if not worker.alive:
                raise DemoError(f"The process of {worker.client} ended by itself:\n{worker.tail()}")

    # -- audit -----------------------------------------------------------------------------------------------------

    def _audit(self, client: str, ledger: Ledger, logs: Mapping[int, npt.NDArray[np.int64]]) -> list[Run]:
        runs = []
        for number, fault in enumerate(self.settings.faults):
            first, end = number * self._per_fault, (number + 1) * self._per_fault
            seconds = self._seconds.get((client, fault), 0.0)
            runs.append(audit(client, fault, ledger, logs, first, end, seconds=seconds))
        return runs


def audit(
    client: str,
    fault: str,
    ledger: Ledger,
    logs: Mapping[int, npt.NDArray[np.int64]],
    first: int,
    end: int,
    *,
    seconds: float = 0.0,
) -> Run:
    """Compares what a client reported about the records [first, end) with the log.

    Args:
        client: Name of the client. `DURABLE_CLIENTS` promise what is durable, others what `send` accepted.
        fault: Name of the fault.
        ledger: What the client reported.
        logs: By partition, the record numbers in the order of the log.
        first: First record.
        end: End of the records (exclusive).
        seconds: Passed on to the result.
    """
    copies = np.zeros(ledger.records, np.int64)
    out_of_order = 0
    for numbers in logs.values():
        np.add.at(copies, numbers, 1)
        # Count a second copy as a duplicate only, not as out of order as well.
        once = numbers[np.sort(np.unique(numbers, return_index=True)[1])]
        behind = once[1:] < np.maximum.accumulate(once)[:-1] if once.size else np.zeros(0, bool)
        late = once[1:][behind] if once.size else once
        out_of_order += int(((late >= first) & (late < end)).sum())
    part = slice(first, end)
    here = copies[part]
    attempted, accepted, durable, acked, failed = (ledger[plane][part].astype(bool) for plane in _PLANES)
    promised = durable | acked if client in DURABLE_CLIENTS else accepted
    lost = promised & (here == 0)
    unpromised = attempted & ~promised
    return Run(
        client=client,
        fault=fault,
        sent=int(promised.sum()),
        acked=int((promised & acked).sum()),
        spooled=int(durable.sum()),
        in_log=int((promised & (here > 0)).sum()),
        lost=int(lost.sum()),
        acked_lost=int((lost & acked).sum()),
        duplicated=int(np.maximum(here - 1, 0).sum()),
        out_of_order=out_of_order,
        unpromised=int(unpromised.sum()),
        unpromised_in_log=int((unpromised & (here > 0)).sum()),
        failed=int(failed.sum()),
        seconds=round(seconds, 2),
    )


def read_topic(
    bootstrap_servers: Sequence[str], topic: str, timeout_s: float = 60.0
) -> dict[int, npt.NDArray[np.int64]]:
    """Record numbers by partition, in the order of the log, as a plain read_uncommitted KafkaConsumer reads them.

    Raises:
        DemoError: The topic could not be read to its end in time, or a record is not in its partition.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=list(bootstrap_servers),
        enable_auto_commit=False,
        isolation_level="read_uncommitted",
        # The brokers are on this machine, so use fewer and larger answers.
        max_partition_fetch_bytes=4 * 1024 * 1024,
        max_poll_records=10_000,
    )
    try:
        deadline = time.monotonic() + timeout_s
        while not (found := consumer.partitions_for_topic(topic)):
            if time.monotonic() > deadline:
                raise DemoError(f"The topic {topic} cannot be found")
            time.sleep(_POLL_S)
        partitions = [TopicPartition(topic, p) for p in sorted(found)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        logs: dict[int, list[int]] = {tp.partition: [] for tp in partitions}
        while any(consumer.position(tp) < ends[tp] for tp in partitions):
            if time.monotonic() > deadline:
                raise DemoError(f"{topic} could not be read to its end {ends} within {timeout_s:g} s")
            for tp, records in consumer.poll(timeout_ms=500).items():
                logs[tp.partition] += [int(record.value[:_DIGITS]) for record in records]
    finally:
        consumer.close()
    arrays = {partition: np.array(numbers, np.int64) for partition, numbers in logs.items()}
    for partition, numbers in arrays.items():
        if (numbers % len(arrays) != partition).any():
            raise DemoError(f"{topic}-{partition} holds records of another partition")
    return arrays


# --- the producing process, from outside ----------------------------------------------------------------------------


class _Worker:
    """The process of one client, over all its incarnations."""

    def __init__(
        self,
        client: str,
        topic: str,
        bootstrap_servers: Sequence[str],
        directory: Path,
        *,
        records: int,
        rate: float,
        partitions: int,
    ) -> None:
        self.client = client
        self.keep = False
        self.ledger = Ledger(directory / f"{client}.ledger", records)
        self._log = directory / f"{client}.log"
        self._command = [
            *(sys.executable, "-m", __name__, client),
            *("--bootstrap", ",".join(bootstrap_servers)),
            *("--topic", topic),
            *("--ledger", str(directory / f"{client}.ledger")),
            *("--spool", str(directory / f"{client}.spool")),
            *("--rate", f"{rate:.3f}"),
            *("--partitions", str(partitions)),
            *("--parent", str(os.getpid())),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C reaches only the demo, which then ends its children
            )

    def kill(self) -> None:
        """Sends SIGKILL, and returns when the process has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def finish(self, timeout_s: float = 30.0) -> None:
        """Lets the process close its producer and end."""
        self.ledger.stop = True
        if self._process is None:
            return
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoError(f"{self.client} was not closed after {timeout_s:g} s:\n{self.tail()}") from None
        if code:
            raise DemoError(f"The process of {self.client} ended with code {code}:\n{self.tail()}")

    def reached(self) -> int:
        """First number that was not passed to `send` yet."""
        return self.ledger.next_number()

    def progress(self) -> Progress:
        ledger = self.ledger
        accepted, durable, acked = (
            int(np.count_nonzero(ledger[plane])) for plane in ("accepted", "durable", "acked")
        )
        return Progress(self.client, accepted, durable, acked, self.alive)

    def tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])
        except OSError as error:
            return str(error)


# --- the producing process, from inside -------------------------------------------------------------------------------


class _Client(Protocol):
    """A producer under test. `observe` and `flushed` record in the ledger what the producer reported."""

    def send(self, number: int, partition: int, value: bytes) -> bool:
        """Sends one record. False: the producer did not accept it, so it must be tried again."""

    def observe(self) -> None:
        """Records the outcomes of earlier records, as far as they are known now."""

    def flushed(self, timeout_s: float) -> bool:
        """Waits until all earlier records have an outcome. False: the time ran out first."""

    def close(self) -> None: ...


class _Futures:
    """Futures of records without a recorded outcome, per partition. Within a partition they complete in order."""

    def __init__(self, ledger: Ledger, partitions: int) -> None:
        self._acked, self._failed = ledger["acked"], ledger["failed"]
        self._open: list[collections.deque[tuple[int, Any]]] = [
            collections.deque() for _ in range(partitions)
        ]

    def add(self, number: int, partition: int, future: Any) -> None:
        self._open[partition].append((number, future))

    def note(self) -> bool:
        for waiting in self._open:
            while waiting and waiting[0][1].is_done:
                number, future = waiting.popleft()
                (self._acked if future.succeeded() else self._failed)[number] = 1
        return not any(self._open)


class _Safe:
    """SafeProducer."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, partitions: int, spool: str) -> None:
        from kafkasafe.producer import (
            SafeProducer,  # here, so that the other clients start without its imports
        )

        self._producer = SafeProducer(bootstrap_servers=servers, spool_dir=spool, client_id="demo")
        self._topic = topic
        self._ledger = ledger
        self._futures = _Futures(ledger, partitions)
        self._begin = self._promised = self._next = ledger.next_number()

    def send(self, number: int, partition: int, value: bytes) -> bool:
        future = self._producer.send(self._topic, value, b"%d" % partition, partition=partition)
        self._futures.add(number, partition, future)
        self._next = number + 1
        return True

    def observe(self) -> None:
        reached = self._next
        if reached > self._promised:
            self._producer.durable(30.0)
            self._ledger["durable"][self._promised : reached] = 1
            self._promised = reached
        self._futures.note()

    def flushed(self, timeout_s: float) -> bool:
        try:
            self._producer.flush(timeout_s)
        except kafka_errors.KafkaTimeoutError:
            return False
        # The spool has now delivered what former incarnations promised. This one has no futures for those records.
        former = slice(0, self._begin)
        self._ledger["acked"][former] |= self._ledger["durable"][former]
        self._begin = 0
        return self._futures.note()

    def close(self) -> None:
        self._producer.close()


class _KafkaPython:
    """KafkaProducer with its default settings, which include acks=all."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, partitions: int) -> None:
        while True:
            try:
                self._producer = KafkaProducer(bootstrap_servers=servers, acks="all")
                break
            except kafka_errors.KafkaError:
                time.sleep(0.2)  # it does not start without a broker, so the application tries again
        self._topic = topic
        self._futures = _Futures(ledger, partitions)

    def send(self, number: int, partition: int, value: bytes) -> bool:
        try:
            future = self._producer.send(self._topic, value, b"%d" % partition, partition=partition)
        except kafka_errors.KafkaError:
            return False
        self._futures.add(number, partition, future)
        return True

    def observe(self) -> None:
        self._futures.note()

    def flushed(self, timeout_s: float) -> bool:
        with contextlib.suppress(kafka_errors.KafkaTimeoutError):
            self._producer.flush(timeout_s)
        return self._futures.note()

    def close(self) -> None:
        self._producer.close(timeout=10)


class _Confluent:
    """confluent-kafka's Producer with acks=all and idempotence, otherwise with its defaults."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(
            {"bootstrap.servers": ",".join(servers), "acks": "all", "enable.idempotence": True}
        )
        self._topic = topic
        self._acked, self._failed = ledger["acked"], ledger["failed"]

    def send(self, number: int, partition: int, value: bytes) -> bool:
        def delivered(error: object, _: object) -> None:
            (self._failed if error is not None else self._acked)[number] = 1

        try:
            self._producer.produce(self._topic, value, b"%d" % partition, partition, on_delivery=delivered)
        except BufferError:
            return False
        return True

    def observe(self) -> None:
        self._producer.poll(0)

    def flushed(self, timeout_s: float) -> bool:
        return not self._producer.flush(timeout_s)

    def close(self) -> None:
        self._producer.flush(10)


class _Outbox:
    """confluent-kafka with a table of SQLite as its queue: the outbox pattern.

    The application inserts its records, and commits them in groups with synchronous=FULL. The relay is a thread with
    its own connection and producer. It sends the oldest rows, waits until each is acknowledged, and deletes them.
    """

    _ROWS: Final = 500
    _POLL_S: Final = 0.005

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, path: str) -> None:
        self._path = path
        self._ledger = ledger
        self._uncommitted: list[tuple[int, int, bytes]] = []
        self._table = self._connect()
        self._table.execute(
            "CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, part INTEGER, value BLOB)"
        )
        self._stop = threading.Event()
        self._relay = threading.Thread(target=self._relay_rows, args=(servers, topic), daemon=True)
        self._relay.start()

    def send(self, number: int, partition: int, value: bytes) -> bool:
        self._uncommitted.append((number, partition, value))
        return True

    def observe(self) -> None:
        if not self._uncommitted:
            return
        self._table.execute("BEGIN IMMEDIATE")
        self._table.executemany("INSERT INTO outbox VALUES (?, ?, ?)", self._uncommitted)
        self._table.execute("COMMIT")
        self._ledger["durable"][[number for number, *_ in self._uncommitted]] = 1
        self._uncommitted.clear()

    def flushed(self, timeout_s: float) -> bool:
        self.observe()
        deadline = time.monotonic() + timeout_s
        while self._table.execute("SELECT EXISTS (SELECT 1 FROM outbox)").fetchone()[0]:
            if time.monotonic() > deadline:
                return False
            time.sleep(self._POLL_S)
        # By now, records that an earlier process committed are delivered too.
        self._ledger["acked"][:] |= self._ledger["durable"]
        return True

    def close(self) -> None:
        self._stop.set()
        self._relay.join(30)
        self._table.close()

    def _connect(self) -> sqlite3.Connection:
        table = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        table.execute("PRAGMA journal_mode=WAL")
        table.execute("PRAGMA synchronous=FULL")
        return table

    def _relay_rows(self, servers: list[str], topic: str) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": ",".join(servers), "acks": "all", "enable.idempotence": True}
        )
        table = self._connect()
        acked = self._ledger["acked"]
        while not self._stop.is_set():
            rows = table.execute(
                "SELECT number, part, value FROM outbox ORDER BY number LIMIT ?", (self._ROWS,)
            ).fetchall()
            if not rows:
                self._stop.wait(self._POLL_S)
                continue
            for number, partition, value in rows:

                def delivered(error: object, _: object, number: int = number) -> None:
                    acked[number] = error is None

                producer.produce(topic, value, b"%d" % partition, partition, on_delivery=delivered)
            producer.flush()
            done = [(number,) for number, *_ in rows if acked[number]]
            table.execute("BEGIN IMMEDIATE")
            table.executemany("DELETE FROM outbox WHERE number = ?", done)
            table.execute("COMMIT")
        table.close()


def _open_client(
    name: str, servers: list[str], topic: str, ledger: Ledger, partitions: int, spool: str
) -> _Client:
    match name:
        case "kafkasafe":
            return _Safe(servers, topic, ledger, partitions, spool)
        case "outbox":
            return _Outbox(servers, topic, ledger, spool)
        case "kafka-python":
            return _KafkaPython(servers, topic, ledger, partitions)
        case "confluent-kafka":
            return _Confluent(servers, topic, ledger)
        case _:
            raise DemoError(f"There is no client {name!r}; there are {', '.join(CLIENTS)}")


def _stream(client: _Client, ledger: Ledger, partitions: int, rate: float) -> None:
    """Sends the permitted records at the given rate, and records what the client reports, until the demo stops it."""
    attempted, accepted = ledger["attempted"], ledger["accepted"]
    padding = b"." * (VALUE_BYTES - _DIGITS)
    number = ledger.next_number()
    due = observed = time.monotonic()
    while True:
        now = time.monotonic()
        if now - observed > 0.01:
            client.observe()
            observed = time.monotonic()
        if number >= ledger.limit:
            client.observe()
            if ledger.settled < number and client.flushed(0.2):
                ledger.settled = number
            if ledger.stop:
                return
            time.sleep(0.005)
            due = time.monotonic()
            continue
        if now < due:
            time.sleep(min(due - now, 0.002))
            continue
        attempted[number] = 1
        if client.send(number, number % partitions, b"%0*d" % (_DIGITS, number) + padding):
            accepted[number] = 1
            number += 1
            # After a pause, do not catch up with the schedule in one burst.
            due = max(due + 1 / rate, now - 0.05)
        else:
            client.observe()
            time.sleep(0.01)


def _die_with(parent: int) -> None:
    """Makes the kernel send SIGKILL to this process when the demo ends, for whatever reason."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The demo has ended")


def _child(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("client", choices=CLIENTS)
    for option in ("--bootstrap", "--topic", "--ledger", "--spool"):
        parser.add_argument(option, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    _die_with(options.parent)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    logging.getLogger("kafkasafe").setLevel(logging.INFO)
    ledger = Ledger(Path(options.ledger))
    client = _open_client(
        options.client, options.bootstrap.split(","), options.topic, ledger, options.partitions, options.spool
    )
    _stream(client, ledger, options.partitions, options.rate)
    client.close()


if __name__ == "__main__":
    _child(sys.argv[1:])

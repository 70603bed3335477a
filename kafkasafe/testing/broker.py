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

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kafka import KafkaAdminClient, TopicPartition

from kafkasafe.errors import ConfigError, UsageError
from kafkasafe.testing import jars, secure
from kafkasafe.testing._real.admin import Admin
from kafkasafe.testing._real.boot import boot_files
from kafkasafe.testing._real.disasters import Disasters
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.listeners import Listeners
from kafkasafe.testing._real.node import as_text
from kafkasafe.testing._real.node_files import NodeFiles
from kafkasafe.testing._real.nodes import Nodes
from kafkasafe.testing._real.processes import Resources
from kafkasafe.testing._real.release import Release
from kafkasafe.testing._real.topics import Topics
from kafkasafe.testing._real.values import (
    CONTROLLER,
    DEFAULT_JAVA_OPTIONS,
    ClusterError,
    LostRecords,
    PartitionState,
    UnsupportedByVersionError,
)
from kafkasafe.testing._real.workspace import Workspace
from kafkasafe.testing.upgrade import Upgrades

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
        protocols = dict(listeners or {})
        passwords = dict(_USERS if users is None else users)
        secure.check_listeners(protocols, passwords, number)
        self.brokers = tuple(range(1, brokers + 1))
        """Node ids of the brokers."""
        self._start_timeout_s = start_timeout_s
        self._keep_logs = keep_logs
        self._owner = os.getpid()
        resources = Resources()
        # Also runs at interpreter exit, for a cluster that nobody closed.
        self._finalizer = weakref.finalize(self, Resources.release, resources)
        # Reserved now, so that a proxy can be pointed at `client_address` before the brokers start.
        client_ports = {node: resources.reserve_port() for node in self.brokers}
        self._layout = layout = Layout(
            self.brokers,
            combined=brokers == 1 and number >= (3, 0),
            config={name: as_text(value) for name, value in (config or {}).items()},
            broker_config={
                node: {name: as_text(value) for name, value in settings.items()}
                for node, settings in (broker_config or {}).items()
            },
            proxy_ports=dict(proxy_ports or {}),
            client_ports=client_ports,
            inner_ports={node: resources.reserve_port() for node in self.brokers}
            if proxy_ports
            else client_ports,
        )
        more_ports = {(name, node): resources.reserve_port() for name in protocols for node in self.brokers}
        self._release = Release(version, java_options, extra_artifacts)
        self._workspace = space = Workspace(resources, None if data_dir is None else Path(data_dir))
        self._nodes = nodes = Nodes(
            layout, space, resources, zookeeper=number < (3, 0), controller_port=resources.reserve_port()
        )
        self._admin = Admin(layout, space, nodes)
        self._topics = Topics(layout, space, nodes, self._admin)
        self._disasters = Disasters(layout, self._release, space, nodes, self._admin, self._topics)
        self._listeners = Listeners(layout, self._release, space, protocols, passwords, more_ports)
        self._files = NodeFiles(layout, self._release, space, nodes, self._listeners)
        self._upgrades = Upgrades(self._release, space, resources, nodes, self._files)

    def __repr__(self) -> str:
        states = ", ".join(f"{node.name} {node.state}" for node in self._nodes.all())
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
        if self._workspace.opened:
            raise UsageError("a KafkaCluster is opened once; make a new one")
        directory = self._release.open()
        self._files.check_settings(directory)
        self._workspace.open()
        try:
            self._listeners.make_certificate()
            if self._nodes.zookeeper:
                self._files.define_zookeeper()
            else:
                self._files.define_kraft(boot_files(directory, self._release.java))
            self.start_all(timeout_s=self._start_timeout_s)
            if self._listeners.authenticates:
                self._listeners.create_users(self._admin)
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
        self._upgrades.upgrade(version, timeout_s)

    def leave_zookeeper(self, timeout_s: float = 180.0) -> None:
        """Migrates a cluster of Kafka 3.9 from ZooKeeper to KRaft, in the steps of Kafka's documentation.

        A controller comes, takes over the metadata, brokers restart twice, ZooKeeper goes. Topics, records, committed
        offsets and producer state stay. Afterwards `upgrade` goes on to 4.x.

        Raises:
            ConfigError: Not a cluster of 3.9 on ZooKeeper.
            ClusterError: A step did not end in time.
        """
        self._upgrades.leave_zookeeper(timeout_s)

    # --- where things are ---------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """Apache Kafka's version; `upgrade` changes it."""
        return self._release.version

    @property
    def bootstrap_servers(self) -> list[str]:
        """`["127.0.0.1:port", …]` of all brokers, dead or alive, in node order; a proxy's port where there is one."""
        return self._layout.bootstrap_servers

    def client_address(self, node: int) -> tuple[str, int]:
        """(host, port) of the broker's own client listener: what a proxy in front of it connects to.

        Known, and reserved, before the cluster is started.
        """
        return self._layout.client_address(node)

    def address(self, listener: str, node: int = 1) -> str:
        """Where a broker's listener of that name is, "127.0.0.1:port". Known before the cluster is started."""
        return self._listeners.address(listener, node)

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
        return self._listeners.client_options(listener, user, mechanism)

    @property
    def log_dir(self) -> Path:
        """Directory of the nodes' own logs (`broker-1.log` …), not of their data."""
        return self._workspace.log_dir

    def keep_logs(self, reason: str = "") -> Path:
        """Marks this run as failed, so that `close` leaves the logs. Returns their directory."""
        return self._workspace.keep_logs(reason)

    @property
    def cluster_id(self) -> str:
        """Kafka's id of this cluster."""
        return self._nodes.cluster_id

    @property
    def controller_node(self) -> int:
        """Node id of the controller process: `CONTROLLER`, or 1 where the single broker is its own."""
        return self._layout.controller_node

    def data_dir(self, node: int) -> Path:
        """The broker's `log.dirs` directory: holds one directory per partition."""
        return self._nodes.data_dir(node)

    def pid(self, node: int) -> int:
        """Process id of a running node. Raises `ClusterError` when it is not running."""
        return self._nodes.pid(node)

    def is_running(self, node: int) -> bool:
        """Whether the node's process is there (a paused one is)."""
        return self._nodes.is_running(node)

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """A kafka-python admin client connected directly (past any proxy) to the living brokers."""
        with self._admin.client() as client:
            yield client

    # --- nodes --------------------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """SIGKILL; returns when the process is gone. Does nothing to a node that is not running."""
        self._nodes.kill(node)

    def kill_all(self, *, controller: bool = False) -> None:
        """SIGKILL to all brokers at once (with `controller=True` to the controller too). Data stays."""
        self._nodes.kill_all(controller=controller)

    def stop(self, node: int, timeout_s: float = 30.0) -> None:
        """Orderly shutdown (SIGTERM): leaders are moved away first, and the log is closed cleanly.

        Raises:
            ClusterError: Not down after `timeout_s`; it is killed then.
        """
        self._nodes.stop(node, timeout_s)

    def start(self, node: int, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts a node on the data it left. Does nothing to one that runs.

        Args:
            node: Its id.
            timeout_s: Seconds it may take.
            wait: Return only when the broker serves requests (`wait_ready`); else at once.

        Raises:
            ClusterError: It ended or did not serve in time.
        """
        self._nodes.start(node, timeout_s, wait=wait)

    def start_all(self, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts, together, all nodes that are not running, as `start` does."""
        self._nodes.start_all(timeout_s, wait=wait)

    def restart(self, node: int, timeout_s: float = 60.0, *, hard: bool = False) -> None:
        """`stop` (with `hard=True` `kill`) and `start`; returns when the broker serves again."""
        self._nodes.restart(node, timeout_s, hard=hard)

    def pause(self, node: int) -> None:
        """SIGSTOP: connections stay open and nothing answers. Returns when the process has stopped.

        After 2 s the controller takes the broker for dead and its partitions move.
        """
        self._nodes.pause(node)

    def resume(self, node: int) -> None:
        """SIGCONT after `pause`. Does nothing to a node that is not paused."""
        self._nodes.resume(node)

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = 60.0) -> None:
        """Returns when the given brokers (default: all that run and are not paused) are up and in the metadata.

        Raises:
            ClusterError: Not within `timeout_s`, or a process ended; holds the end of its log.
        """
        self._nodes.wait_ready(nodes, timeout_s)

    # --- topics -------------------------------------------------------------------------------------------------

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
        """Creates a topic; returns when every partition is led, all replicas are in sync, and each broker tells of it.

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
        self._topics.create_topic(
            name, partitions, replication_factor, config, assignments=assignments, timeout_s=timeout_s
        )

    def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Deletes a topic; returns when the metadata no longer has it."""
        self._topics.delete_topic(name, timeout_s)

    def partition_state(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0
    ) -> PartitionState:
        """Leader, epoch, replicas and in-sync replicas, as a living broker tells them now.

        Raises:
            ClusterError: No broker could tell within `timeout_s`, or there is no such partition.
        """
        return self._topics.partition_state(topic, partition, timeout_s)

    def leader(self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0) -> int:
        """Node id of the partition's leader; waits while there is none or the one named is killed or paused."""
        return self._topics.leader(topic, partition, timeout_s)

    def wait_in_sync(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> PartitionState:
        """Returns when all replicas of the partition are in sync and its leader lives."""
        return self._topics.wait_in_sync(topic, partition, timeout_s)

    def wait_for_markers(self, timeout_s: float = 120.0) -> None:
        """Returns when each transaction that was committed or aborted before the call is so for every reader.

        A commit is answered when it is decided; its markers are written afterwards, partition by partition. Until then
        a `read_committed` reader ends, for a moment, before the transaction's records.

        Raises:
            ClusterError: There are transactions without their markers after `timeout_s`.
            kafka.errors.UnsupportedVersionError: The brokers are older than 3.0 (KIP-664).
        """
        self._topics.wait_for_markers(timeout_s)

    def alter_topic(self, name: str, config: Mapping[str, object], timeout_s: float = 30.0) -> None:
        """Sets topic settings; the others stay as they are."""
        self._topics.alter_topic(name, config, timeout_s)

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
        return self._topics.log_segments(topic, partition, node)

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
        return self._disasters.move_leader(topic, partition, to, timeout_s)

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
        return self._disasters.unclean_failover(topic, partition, during, timeout_s)

    def lose_log(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> LostRecords:
        """Wipes a partition on all its replicas, as a lost disk would: it starts again at offset 0.

        Kills the brokers that hold it, removes the partition's directory on each, starts them again. No client
        is told of this by an error code; an acknowledgement with a lower offset is all there is to see.

        Returns:
            The lost offsets, and the leader of the empty partition.
        """
        return self._disasters.lose_log(topic, partition, timeout_s)

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
        self._disasters.expire_producers(topics, timeout_s)

    def recover(self, timeout_s: float = 60.0) -> None:
        """Resumes what is paused, starts what is down, and returns when all brokers serve. Cheap if all do."""
        self._nodes.recover(timeout_s)

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
        return self._release.run_tool(self._workspace, main_class, args, timeout_s)

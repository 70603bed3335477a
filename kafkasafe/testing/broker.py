"""A real Apache Kafka for tests. The cluster runs on this machine without Docker, and has methods that cause failures.

`KafkaCluster` starts N broker processes and one dedicated controller process (KRaft). For Kafka before 3.3,
`KafkaCluster` starts one ZooKeeper instead of the controller. Each node has its own JVM and listens on 127.0.0.1 only.
In KRaft mode, a single broker is also the controller, which halves the start time. If this broker is killed, the
controller ends, too, which does no harm, because no other broker needs it.

Non-obvious:

- If brokers were also controllers, stopping two of three brokers would cost the controllers their quorum. So there is a
  dedicated controller, which `kill_all` spares by default.
- A stray broker of an earlier run might answer the next test. So ports are checked and reserved by lock files, the
  cluster id is compared, and the kernel sends SIGKILL to every child when its parent dies. For the kernel, the parent
  is the *thread* that forked the child, so one thread forks all children, and never ends.
- Ports are below the ephemeral range, so that no outgoing connection takes the port of a killed broker before the
  broker starts again.
- A JVM spends most of its start loading classes. A class data archive reduces the start of three brokers from 6.6 s to
  3.1 s on two cores. The archive is made once for each combination of jars and Java.
- A controller with eligible leader replicas (4.1 and later) uses the `min.insync.replicas` of its own configuration,
  not that of a broker. So all nodes get all settings.
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

    Brokers have the node ids 1 … `brokers`. Methods with the parameters `topic, partition` also accept a single
    `TopicPartition`. Every method returns when its effect has been achieved, and raises `ClusterError` after
    `timeout_s`. Methods may be called from any thread, but calls that start or stop the same node must not overlap.

    The following settings differ from Kafka's defaults; `config` can override all of them. Topics, including those of
    offsets and transactions, have min(3, `brokers`) replicas. With three or more brokers, `min.insync.replicas` is 2.
    The controller declares a broker dead after 2 s. Group rebalances begin without a delay. Internal topics have three
    partitions. Leaders do not move back automatically (`auto.leader.rebalance.enable=false`). Brokers check every
    second (Kafka's default: ten minutes) whether producer state has expired (see `expire_producers`).

    Args:
        brokers: Number of brokers, 1 or more.
        version: Apache Kafka's version. 3.3 and later run in KRaft mode, 0.11.0 to 2.8 with ZooKeeper.
        config: Broker settings by Kafka's names, for all nodes. `True`/`False` become `true`/`false`. A name that this
            version does not know is refused. Exception: if a setting names a plug-in's class (`….class`, `….classes`,
            `….class.name`, `….reporters`), every name is accepted, because a plug-in defines its own settings.
        broker_config: `{node: settings}`: settings of single brokers, such as `broker.rack`. They override `config`.
        listeners: `{name: protocol}`: listeners of each broker in addition to the plain one. The protocol is SSL,
            SASL_PLAINTEXT, SASL_SSL or PLAINTEXT, as in `{"SECURE": "SASL_SSL"}`. The brokers' certificate is made with
            openssl or keytool. See `address` and `client_options`.
        users: `{name: password}` for listeners with SASL. They can log in with PLAIN and SCRAM. Default: one user,
            alice, with a password.
        java_options: Options of every JVM.
        proxy_ports: `{node: port}`: ports of your proxies. Metadata and `bootstrap_servers` name 127.0.0.1:`port` as
            the broker's address. Your proxy listens at this address, and forwards to `client_address(node)`. Only
            clients use the proxies; brokers and the methods of this object do not.
        extra_artifacts: Additional jars for the class path, `group:name:version[:classifier]`.
        data_dir: Directory for all files. By default, a new directory, which `close` removes. If you pass a directory,
            it must be empty, and is kept.
        keep_logs: Whether to keep the nodes' logs even after an orderly end. After a failure they are always kept.
        start_timeout_s: Maximum duration of `open` in seconds, not counting the resolution of jars.

    Raises:
        ConfigError: The number of brokers, the version or a port is invalid.
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
        # If the cluster was not closed, the finalizer runs at interpreter exit.
        self._finalizer = weakref.finalize(self, Resources.release, resources)
        # Reserve the ports now, so that a proxy can get `client_address` before the brokers start.
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

    # --- lifecycle ----------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Resolves the jars if necessary, starts all nodes, and returns when all brokers serve. `with` calls it.

        Raises:
            JarError: The jars are not in the cache and could not be resolved.
            JavaNotFoundError: Java 17 or later was not found.
            ConfigError: `config` names a setting that this version does not have, or `data_dir` is not empty.
            ClusterError: A node did not start. The message contains the end of the node's log.
        """
        if self._workspace.opened:
            raise UsageError("a KafkaCluster is opened once; make a new one")
        directory = self._release.open()
        self._files.check_settings(directory)
        self._workspace.open()
        if self._keep_logs:
            self.keep_logs()
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
        """Kills all nodes and removes their data. Keeps logs only if something failed, if `keep_logs` was called, or if
        the option `keep_logs` is set.

        Idempotent. Does nothing in a forked child: the cluster belongs to the process that constructed it.
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
        if error is not None and self._finalizer.alive:  # otherwise the logs are deleted
            error.add_note(f"logs of the Kafka nodes: {self.keep_logs()}")
        self.close()

    def upgrade(self, version: str, timeout_s: float = 120.0) -> None:
        """Upgrades all nodes to a newer version and keeps their data. Returns when all brokers serve.

        First stops the running nodes in an orderly way. Nodes that were down are started with the others. ZooKeeper
        keeps its version; Kafka 3.9 is the last version that supports ZooKeeper. In KRaft mode the metadata version
        does not change.

        Args:
            version: Apache Kafka's version.
            timeout_s: Maximum duration in seconds, not counting the resolution of jars.

        Raises:
            ConfigError: `version` is not newer than the current version; or it does not have a setting of `config`; or
                it is 4.x, and the cluster uses ZooKeeper (see `leave_zookeeper`). Nothing was changed.
            ClusterError: A node did not start.
        """
        self._upgrades.upgrade(version, timeout_s)

    def leave_zookeeper(self, timeout_s: float = 180.0) -> None:
        """Migrates a cluster of Kafka 3.9 from ZooKeeper to KRaft, in the steps of Kafka's documentation.

        Starts a controller, copies the metadata to it, restarts the brokers twice, and stops ZooKeeper. Topics,
        records, committed offsets and producer state are kept. Afterwards `upgrade` can continue to 4.x.

        Raises:
            ConfigError: The cluster does not use ZooKeeper, or its version is not 3.9.
            ClusterError: A step did not end in time.
        """
        self._upgrades.leave_zookeeper(timeout_s)

    # --- addresses and files ------------------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """Apache Kafka's version; `upgrade` changes it."""
        return self._release.version

    @property
    def bootstrap_servers(self) -> list[str]:
        """`["127.0.0.1:port", …]` of all brokers, whether they run or not, in the order of their node ids. If a broker
        has a proxy, the port is the proxy's.
        """
        return self._layout.bootstrap_servers

    def client_address(self, node: int) -> tuple[str, int]:
        """(host, port) of the broker's own client listener, to which a proxy forwards.

        The port is reserved when the cluster is constructed, so the address is known before the cluster starts.
        """
        return self._layout.client_address(node)

    def address(self, listener: str, node: int = 1) -> str:
        """Address "127.0.0.1:port" of the broker's listener named `listener`. Known before the cluster starts."""
        return self._listeners.address(listener, node)

    def client_options(
        self, listener: str, user: str | None = None, mechanism: str | None = None
    ) -> dict[str, Any]:
        """Options of kafka-python's clients for a listener. SafeProducer and SafeConsumer accept these options too.

        Args:
            listener: One of `listeners`.
            user: One of `users`; default: the first.
            mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. Default: SCRAM-SHA-256 for Kafka 2.7, 2.8, and 3.5 and
                later; PLAIN for other versions, which have no API to create users.

        Returns:
            The options bootstrap_servers and security_protocol. If the listener needs them, also ssl_cafile,
            sasl_mechanism, sasl_plain_username and sasl_plain_password.

        Raises:
            UsageError: The listener, user or mechanism does not exist, or the cluster is not open.
        """
        return self._listeners.client_options(listener, user, mechanism)

    @property
    def log_dir(self) -> Path:
        """Directory of the nodes' log messages (`broker-1.log` …). The partitions' logs are in `data_dir`."""
        return self._workspace.log_dir

    def keep_logs(self, reason: str = "") -> Path:
        """Marks this run as failed, so that `close` keeps the logs. Returns the directory of the logs."""
        return self._workspace.keep_logs(reason)

    @property
    def cluster_id(self) -> str:
        """Kafka's id of this cluster."""
        return self._nodes.cluster_id

    @property
    def controller_node(self) -> int:
        """Node id of the controller process: `CONTROLLER`, or 1 if the single broker is its own controller."""
        return self._layout.controller_node

    def data_dir(self, node: int) -> Path:
        """The broker's `log.dirs` directory, which has one directory per partition."""
        return self._nodes.data_dir(node)

    def pid(self, node: int) -> int:
        """Process id of a running node. Raises `ClusterError` if the node is not running."""
        return self._nodes.pid(node)

    def is_running(self, node: int) -> bool:
        """Whether the node's process exists, even if it is paused."""
        return self._nodes.is_running(node)

    @contextlib.contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        """A kafka-python admin client that is connected directly, without proxies, to the running brokers."""
        with self._admin.client() as client:
            yield client

    # --- nodes --------------------------------------------------------------------------------------------------

    def kill(self, node: int) -> None:
        """Sends SIGKILL, and returns when the process has ended. Does nothing if the node is not running."""
        self._nodes.kill(node)

    def kill_all(self, *, controller: bool = False) -> None:
        """Sends SIGKILL to all brokers at once; with `controller=True` to the controller too. Data stays."""
        self._nodes.kill_all(controller=controller)

    def stop(self, node: int, timeout_s: float = 30.0) -> None:
        """Shuts a node down in an orderly way (SIGTERM): a broker first hands its partitions to other leaders, and
        closes its logs cleanly.

        Raises:
            ClusterError: The node had not ended after `timeout_s`, so it was killed.
        """
        self._nodes.stop(node, timeout_s)

    def start(self, node: int, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts a node on its data. Does nothing if it is running.

        Args:
            node: Node id.
            timeout_s: Maximum duration in seconds.
            wait: True: return when the broker serves requests (`wait_ready`). False: return at once.

        Raises:
            ClusterError: The process ended, or did not serve in time.
        """
        self._nodes.start(node, timeout_s, wait=wait)

    def start_all(self, timeout_s: float = 60.0, *, wait: bool = True) -> None:
        """Starts all nodes that are not running, concurrently. See `start`."""
        self._nodes.start_all(timeout_s, wait=wait)

    def restart(self, node: int, timeout_s: float = 60.0, *, hard: bool = False) -> None:
        """Calls `stop` (with `hard=True`, `kill`) and `start`. Returns when the broker serves again."""
        self._nodes.restart(node, timeout_s, hard=hard)

    def pause(self, node: int) -> None:
        """Sends SIGSTOP: connections stay open, but nothing answers. Returns when the process has stopped.

        After 2 s the controller considers the broker dead, and elects other leaders for the broker's partitions.
        """
        self._nodes.pause(node)

    def resume(self, node: int) -> None:
        """Sends SIGCONT after `pause`. Does nothing if the node is not paused."""
        self._nodes.resume(node)

    def wait_ready(self, nodes: Iterable[int] | None = None, timeout_s: float = 60.0) -> None:
        """Waits until the brokers `nodes` answer and are in the metadata. By default, waits for all running, unpaused
        brokers.

        Raises:
            ClusterError: The brokers did not serve within `timeout_s`, or a process ended. The message contains the
                last lines of the logs.
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
        """Creates a topic. Returns when all partitions have leaders, all replicas are in sync, and all running brokers
        know the topic.

        Args:
            name: Topic name.
            partitions: Number of partitions.
            replication_factor: Default min(3, brokers).
            config: Topic settings by Kafka's names.
            assignments: `{partition: [node, …]}`, preferred leaders first. Replaces `partitions` and
                `replication_factor`.
            timeout_s: Maximum duration in seconds.

        Raises:
            kafka.errors.TopicAlreadyExistsError: The topic exists.
            kafka.errors.KafkaError: The cluster refused to create the topic (invalid name, setting …).
            ClusterError: The topic was not ready in time.
        """
        self._topics.create_topic(
            name, partitions, replication_factor, config, assignments=assignments, timeout_s=timeout_s
        )

    def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        """Deletes a topic. Returns when the topic is no longer in the metadata."""
        self._topics.delete_topic(name, timeout_s)

    def partition_state(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0
    ) -> PartitionState:
        """Leader, epoch, replicas and in-sync replicas, as a running broker reports them now.

        Raises:
            ClusterError: No broker reported the partition's state within `timeout_s`, or the partition does not exist.
        """
        return self._topics.partition_state(topic, partition, timeout_s)

    def leader(self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 30.0) -> int:
        """Node id of the partition's leader. Waits for a leader that is neither killed nor paused."""
        return self._topics.leader(topic, partition, timeout_s)

    def wait_in_sync(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> PartitionState:
        """Waits until all replicas of the partition are in sync and its leader is running."""
        return self._topics.wait_in_sync(topic, partition, timeout_s)

    def wait_for_markers(self, timeout_s: float = 120.0) -> None:
        """Waits until all readers see the end of each transaction that was committed or aborted before this call.

        The coordinator answers EndTxn as soon as the commit or abort is decided, and writes the markers to the
        partitions afterwards. Until a partition has its marker, a `read_committed` reader does not get the
        transaction's records there.

        Raises:
            ClusterError: After `timeout_s`, the markers of some transactions are still missing.
            kafka.errors.UnsupportedVersionError: The brokers are older than 3.0 (KIP-664).
        """
        self._topics.wait_for_markers(timeout_s)

    def alter_topic(self, name: str, config: Mapping[str, object], timeout_s: float = 30.0) -> None:
        """Changes settings of a topic; its other settings stay."""
        self._topics.alter_topic(name, config, timeout_s)

    def log_segments(
        self, topic: str | TopicPartition, partition: int = 0, node: int | None = None
    ) -> list[Path]:
        """The partition's `.log` files on a broker, oldest first. The broker may have been killed.

        Args:
            topic: Topic name.
            partition: Partition number.
            node: Node id of the broker; by default the leader.

        Raises:
            ClusterError: The broker does not have this partition.
        """
        return self._topics.log_segments(topic, partition, node)

    def log_end(self, topic: str | TopicPartition, partition: int = 0, node: int | None = None) -> int:
        """The end offset of a partition's log on a broker, read from its files. It is exact if the broker is down.

        Args:
            topic: Topic name.
            partition: Partition number.
            node: Node id of the broker; by default the leader.

        Raises:
            ClusterError: The broker does not have this partition.
        """
        return self._topics.log_end(topic, partition, node)

    # --- disasters ----------------------------------------------------------------------------------------------

    def move_leader(
        self, topic: str | TopicPartition, partition: int = 0, to: int | None = None, timeout_s: float = 30.0
    ) -> int:
        """Waits until all replicas are in sync, and moves a partition's leadership. Nothing is lost, and no node stops.

        Args:
            topic: Topic name.
            partition: Partition number.
            to: Node id of the new leader; by default the next replica.
            timeout_s: Maximum duration in seconds.

        Returns:
            The new leader's node id.

        Raises:
            UnsupportedByVersionError: Kafka before 2.4.
            UsageError: `to` is not a replica of the partition, or the partition has only one replica.
            ClusterError: The leadership did not move in time.
        """
        return self._disasters.move_leader(topic, partition, to, timeout_s)

    def unclean_failover(
        self,
        topic: str | TopicPartition,
        partition: int = 0,
        during: Callable[[], object] | None = None,
        timeout_s: float = 60.0,
    ) -> LostRecords:
        """Elects a leader that lacks the latest writes, so acknowledged records are lost, and logs are truncated.

        Kills the followers, waits until the leader is the only in-sync replica, and calls `during`. Next, kills the
        leader and starts a follower, which wins an unclean election. At last, starts the other replicas, which truncate
        their logs to the new leader's log. During the call the topic has `min.insync.replicas=1` and
        `unclean.leader.election.enable=true`. The kills also affect other partitions on these brokers, but the unclean
        election does not. At the end, even after an exception, all nodes run, and the topic has its former settings
        again.

        Args:
            topic: Topic name; at least two replicas.
            partition: Partition number.
            during: Called once while the leader is the only in-sync replica, to write the records that will be lost.
                None: nothing is written here, so only records that other threads write meanwhile are lost.
            timeout_s: Maximum duration in seconds, including `during`.

        Returns:
            The lost offsets, and the new leader. All replicas are in sync with it again.

        Raises:
            UsageError: The partition has only one replica.
            ClusterError: A step did not end in time.
        """
        return self._disasters.unclean_failover(topic, partition, during, timeout_s)

    def lose_log(
        self, topic: str | TopicPartition, partition: int = 0, timeout_s: float = 60.0
    ) -> LostRecords:
        """Deletes a partition's log on all its replicas, as if their disks were lost. It starts again at offset 0.

        Kills the brokers of the replicas, removes the partition's directory on each, and starts the brokers again. No
        error code informs clients. A client can notice the loss only when a later acknowledgement has a lower offset
        than an earlier one.

        Returns:
            The lost offsets, and the leader of the empty partition.
        """
        return self._disasters.lose_log(topic, partition, timeout_s)

    def expire_producers(self, topics: Iterable[str] | None = None, timeout_s: float = 30.0) -> None:
        """Makes the brokers forget all idempotent producers, as after 24 h without a write.

        If a client sends an old batch again after this call, the brokers append it again, because they have no state to
        recognise the duplicate. Records are kept. Returns when no replica of the topics has producer state any more,
        and the setting of 24 h is restored. The brokers may also forget producers that write during the call.

        Args:
            topics: Topics to wait for (default: all except internal ones). The brokers also forget the producers of all
                other topics.
            timeout_s: Maximum duration in seconds. Usually one or two seconds suffice.

        Raises:
            UnsupportedByVersionError: Kafka before 3.5 can change the setting only at start. Pass
                `config={"transactional.id.expiration.ms": …}` to the constructor instead.
            ClusterError: Brokers still had producer state after `timeout_s`. The reason may be an open transaction, or
                a `producer.id.expiration.check.interval.ms` that you set longer than `timeout_s`.
        """
        self._disasters.expire_producers(topics, timeout_s)

    def recover(self, timeout_s: float = 60.0) -> None:
        """Resumes paused nodes, starts nodes that are down, and returns when the started brokers serve."""
        self._nodes.recover(timeout_s)

    # --- Java ---------------------------------------------------------------------------------------------------

    def run_java_tool(self, main_class: str, *args: str | os.PathLike[str], timeout_s: float = 60.0) -> str:
        """Runs one of Kafka's own tools with this cluster's jars. Returns its standard output.

        A tool takes about a second. Examples are `org.apache.kafka.tools.DumpLogSegments` with `--files`, and
        `org.apache.kafka.tools.consumer.ConsoleConsumer` (`kafka.tools.…` before 3.x). The first call of a tool in
        `org.apache.kafka.tools` fetches an additional jar into the cache.

        Raises:
            ClusterError: The tool's exit code was not 0, or it took longer than `timeout_s` and was killed.
            JarError: The tools' jar is not in the cache and could not be resolved.
        """
        return self._release.run_tool(self._workspace, main_class, args, timeout_s)

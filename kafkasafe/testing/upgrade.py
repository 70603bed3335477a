"""A cluster gets another version on the data that it has: what `KafkaCluster.upgrade` and `leave_zookeeper` do.

Kafka 4 has no ZooKeeper. Started on the data of 2.8 it ends at once with 'Missing required configuration
"process.roles"'; the way is the one of Kafka's documentation: 3.9 on ZooKeeper, migration to KRaft, 4.x.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kafkasafe.errors import ConfigError
from kafkasafe.testing import jars
from kafkasafe.testing._real.boot import boot_files
from kafkasafe.testing._real.node import Node, random_id
from kafkasafe.testing._real.values import CONTROLLER

if TYPE_CHECKING:
    from kafkasafe.testing.broker import KafkaCluster

__all__ = ["leave_zookeeper", "upgrade"]

_MIGRATED: Final = "Completed migration of metadata from ZooKeeper to KRaft"
_LAST_ON_ZOOKEEPER: Final = (3, 9)


def upgrade(cluster: KafkaCluster, version: str, timeout_s: float) -> None:
    """See `KafkaCluster.upgrade`."""
    number = jars.version_tuple(version)
    if number <= cluster._number:
        raise ConfigError(
            f"{version} is not newer than {cluster.version}: Kafka's data is not read by older versions"
        )
    if cluster._zookeeper and number[:2] > _LAST_ON_ZOOKEEPER:
        raise ConfigError(
            f"Kafka {version} has no ZooKeeper, on which this cluster is: upgrade('3.9.1'), leave_zookeeper(), and"
            f" then upgrade({version!r})"
        )
    deadline = time.monotonic() + timeout_s
    directory = jars.resolve(version, extra=cluster._extra)
    cluster._check_settings(directory)
    for node in cluster._nodes.values():
        if node.running and node.kind != "zookeeper":
            cluster.stop(node.id, max(1.0, deadline - time.monotonic()))
    cluster.version, cluster._number = version, number
    cluster._classpath = jars.classpath(directory)
    # The archive of classes belongs to the other jars.
    cluster._boot_options = []
    for node in cluster._nodes.values():
        if node.kind != "zookeeper":
            node.command = _command(cluster, node)
    # First the controller: a broker waits for it, and gives up.
    for node in sorted(cluster._nodes.values(), key=lambda node: node.serves):
        if not node.serves:
            cluster._start([node], deadline, wait=True)
    cluster.start_all(max(1.0, deadline - time.monotonic()))


def leave_zookeeper(cluster: KafkaCluster, timeout_s: float) -> None:
    """See `KafkaCluster.leave_zookeeper`."""
    if not cluster._zookeeper or cluster._number[:2] != _LAST_ON_ZOOKEEPER:
        raise ConfigError(
            f"Only Kafka 3.9 on ZooKeeper is migrated to KRaft here; this is {cluster.version}"
            f" {'on ZooKeeper' if cluster._zookeeper else 'in KRaft mode'}"
        )
    deadline = time.monotonic() + timeout_s

    def left() -> float:
        return max(1.0, deadline - time.monotonic())

    brokers = [node for node in cluster._nodes.values() if node.serves]
    zookeeper = cluster._nodes[CONTROLLER]
    port = cluster._resources.reserve_port()
    quorum = {
        "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
    }
    migrating = {
        "zookeeper.metadata.migration.enable": "true",
        "zookeeper.connect": f"127.0.0.1:{cluster._controller_port}",
    }
    # The node that will be the controller, beside the ZooKeeper that goes on under that number until it is done.
    directory = cluster._work_dir / "node-controller"
    data = directory / "data"
    data.mkdir(parents=True)
    boot = boot_files(jars.resolve(cluster.version, extra=cluster._extra), cluster._java)
    shutil.copy(boot.checkpoint, data / boot.checkpoint.name)
    (data / "meta.properties").write_text(
        f"version=1\ncluster.id={cluster.cluster_id}\nnode.id={CONTROLLER}\ndirectory.id={random_id()}\n"
    )
    own = {
        **cluster._settings(),
        **quorum,
        "process.roles": "controller",
        "node.id": str(CONTROLLER),
        "log.dirs": str(data),
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,INNER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
    }
    controller = Node(CONTROLLER, "controller", directory, [], (port,))
    controller.command = _command(cluster, controller)
    _write(controller, own | migrating)
    cluster._spawn(controller)
    cluster._wait_listening(controller, deadline)
    before = {node.id: _read(node) for node in brokers}
    for node in brokers:
        _write(node, {**before[node.id], **quorum, **migrating, "inter.broker.protocol.version": "3.9"})
        cluster.restart(node.id, left())
    cluster._until(
        lambda: _MIGRATED in controller.log.read_text(errors="replace"),
        left(),
        "the metadata were not migrated",
    )
    for node in brokers:
        mine = {name: value for name, value in before[node.id].items() if not name.startswith("zookeeper.")}
        del mine["broker.id"]
        _write(node, {**mine, **quorum, "process.roles": "broker", "node.id": str(node.id)})
        cluster.stop(node.id, left())
    cluster._zookeeper = False
    cluster._nodes[CONTROLLER] = controller
    cluster._controller_port = port
    _write(controller, own)
    # Before ZooKeeper ends: without it, what migrates may wait for it for ever, also at its own end.
    cluster.restart(CONTROLLER, left())
    cluster._kill([zookeeper])
    cluster.start_all(left())


def _command(cluster: KafkaCluster, node: Node) -> list[str]:
    return [*cluster._java_command("info"), "kafka.Kafka", str(node.directory / "server.properties")]


def _read(node: Node) -> dict[str, str]:
    """As they were written: escaped."""
    lines = (node.directory / "server.properties").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _write(node: Node, properties: Mapping[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    (node.directory / "server.properties").write_text(text)

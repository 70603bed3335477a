"""Changes the version of a cluster and keeps its data: `KafkaCluster.upgrade` and `leave_zookeeper`.

Kafka 4 does not support ZooKeeper: with the settings of a ZooKeeper cluster, a broker exits at once ('Missing required
configuration "process.roles"'). So the upgrade follows Kafka's documentation: 3.9 with ZooKeeper, migration to KRaft,
then 4.x.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Final

from kafkasafe.errors import ConfigError
from kafkasafe.testing import jars
from kafkasafe.testing._real.boot import boot_files
from kafkasafe.testing._real.node import Node, random_id
from kafkasafe.testing._real.node_files import NodeFiles
from kafkasafe.testing._real.nodes import Nodes
from kafkasafe.testing._real.processes import Resources
from kafkasafe.testing._real.release import Release
from kafkasafe.testing._real.values import CONTROLLER
from kafkasafe.testing._real.workspace import Workspace

_MIGRATED: Final = "Completed migration of metadata from ZooKeeper to KRaft"
_LAST_ON_ZOOKEEPER: Final = (3, 9)


class Upgrades:
    """Changes a cluster's release of Kafka, or replaces ZooKeeper with a KRaft controller. This object has no state of
    its own.
    """

    def __init__(
        self, release: Release, workspace: Workspace, resources: Resources, nodes: Nodes, files: NodeFiles
    ) -> None:
        self._release = release
        self._workspace = workspace
        self._resources = resources
        self._nodes = nodes
        self._files = files

    def upgrade(self, version: str, timeout_s: float) -> None:
        """See `KafkaCluster.upgrade`."""
        number = jars.version_tuple(version)
        if number <= self._release.number:
            raise ConfigError(
                f"{version} is not newer than {self._release.version}: older versions cannot read Kafka's data"
            )
        if self._nodes.zookeeper and number[:2] > _LAST_ON_ZOOKEEPER:
            raise ConfigError(
                f"Kafka {version} does not support ZooKeeper, which this cluster uses: upgrade('3.9.1'),"
                f" leave_zookeeper(), and then upgrade({version!r})"
            )
        deadline = time.monotonic() + timeout_s
        directory = self._release.resolve(version)
        self._files.check_settings(directory)
        for node in self._nodes.all():
            if node.running and node.kind != "zookeeper":
                self._nodes.stop(node.id, max(1.0, deadline - time.monotonic()))
        self._release.change(version, directory)
        for node in self._nodes.all():
            if node.kind != "zookeeper":
                node.run_as(self._command(node))
        # Start the controller first: a broker gives up if it finds no controller.
        for node in sorted(self._nodes.all(), key=lambda node: node.serves):
            if not node.serves:
                self._nodes.start_together([node], deadline, wait=True)
        self._nodes.start_all(max(1.0, deadline - time.monotonic()))

    def leave_zookeeper(self, timeout_s: float) -> None:
        """See `KafkaCluster.leave_zookeeper`."""
        if not self._nodes.zookeeper or self._release.number[:2] != _LAST_ON_ZOOKEEPER:
            raise ConfigError(
                f"Only Kafka 3.9 with ZooKeeper can be migrated to KRaft; this is {self._release.version}"
                f" {'on ZooKeeper' if self._nodes.zookeeper else 'in KRaft mode'}"
            )
        deadline = time.monotonic() + timeout_s

        def left() -> float:
            return max(1.0, deadline - time.monotonic())

        brokers = [node for node in self._nodes.all() if node.serves]
        zookeeper = self._nodes.find(CONTROLLER)
        port = self._resources.reserve_port()
        quorum = {
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
        }
        migrating = {
            "zookeeper.metadata.migration.enable": "true",
            "zookeeper.connect": f"127.0.0.1:{self._nodes.controller_port}",
        }
        # During the migration, the new controller and ZooKeeper run together, both with the node id `CONTROLLER`. So
        # the controller's directory needs another name.
        directory = self._workspace.directory / "node-controller"
        data = directory / "data"
        data.mkdir(parents=True)
        boot = boot_files(self._release.resolve(self._release.version), self._release.java)
        shutil.copy(boot.checkpoint, data / boot.checkpoint.name)
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={self._nodes.cluster_id}\nnode.id={CONTROLLER}\ndirectory.id={random_id()}\n"
        )
        own = {
            **self._files.settings(),
            **quorum,
            "process.roles": "controller",
            "node.id": str(CONTROLLER),
            "log.dirs": str(data),
            "listeners": f"CONTROLLER://127.0.0.1:{port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,INNER:PLAINTEXT",
            "inter.broker.listener.name": "CLIENT",
        }
        controller = Node(CONTROLLER, "controller", directory, [], (port,))
        controller.run_as(self._command(controller))
        _write(controller, own | migrating)
        self._nodes.spawn(controller)
        self._nodes.wait_listening(controller, deadline)
        before = {node.id: _read(node) for node in brokers}
        for node in brokers:
            _write(node, {**before[node.id], **quorum, **migrating, "inter.broker.protocol.version": "3.9"})
            self._nodes.restart(node.id, left())
        self._workspace.until(
            lambda: _MIGRATED in controller.log.read_text(errors="replace"),
            left(),
            "the metadata were not migrated",
        )
        for node in brokers:
            mine = {
                name: value for name, value in before[node.id].items() if not name.startswith("zookeeper.")
            }
            del mine["broker.id"]
            _write(node, {**mine, **quorum, "process.roles": "broker", "node.id": str(node.id)})
            self._nodes.stop(node.id, left())
        self._nodes.replace_zookeeper(controller)
        _write(controller, own)
        # Restart the controller while ZooKeeper still runs, because the migrating controller could wait for ZooKeeper
        # forever, even at shutdown.
        self._nodes.restart(CONTROLLER, left())
        self._nodes.kill_together([zookeeper])
        self._nodes.start_all(left())

    def _command(self, node: Node) -> list[str]:
        return self._release.server_command(node.directory / "server.properties")


def _read(node: Node) -> dict[str, str]:
    """Reads the properties as they are written in the file, with escapes."""
    lines = (node.directory / "server.properties").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def _write(node: Node, properties: Mapping[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in properties.items())
    (node.directory / "server.properties").write_text(text)

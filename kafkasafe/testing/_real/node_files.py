"""The commands, settings and listeners with which nodes start."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kafkasafe.errors import ConfigError
from kafkasafe.testing import jars
from kafkasafe.testing._real.boot import BootFiles
from kafkasafe.testing._real.layout import Layout
from kafkasafe.testing._real.listeners import Listeners
from kafkasafe.testing._real.node import MIN_ISR, SESSION_TIMEOUT_MS, Node, random_id
from kafkasafe.testing._real.nodes import Nodes
from kafkasafe.testing._real.release import Release
from kafkasafe.testing._real.values import CONTROLLER
from kafkasafe.testing._real.workspace import Workspace

_PLUGIN_SETTINGS = (".class", ".classes", ".class.name", ".class.names", ".class.path", ".reporters")


class NodeFiles:
    """Writes the settings of all nodes, and adds the nodes to `Nodes`. The object has no state of its own."""

    def __init__(
        self, layout: Layout, release: Release, workspace: Workspace, nodes: Nodes, more: Listeners
    ) -> None:
        self._layout = layout
        self._release = release
        self._workspace = workspace
        self._nodes = nodes
        self._more = more

    def settings(self) -> dict[str, str]:
        """The settings that all nodes share, as far as they differ from Kafka's defaults."""
        copies = min(3, len(self._layout.brokers))
        safe = 2 if len(self._layout.brokers) >= 3 else 1
        settings: dict[str, object] = {
            "default.replication.factor": copies,
            MIN_ISR: safe,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": safe,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
            "auto.leader.rebalance.enable": "false",
            # The default of 128 MB is too large for the heap of a test broker.
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
        }
        if self._nodes.zookeeper:
            # The default connection timeout, which equals the session timeout, is too short for the start of a broker
            # on a busy machine.
            settings |= {
                "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                "zookeeper.connection.timeout.ms": 120_000,
            }
        else:
            settings |= {
                "broker.session.timeout.ms": SESSION_TIMEOUT_MS,
                "broker.heartbeat.interval.ms": 250,
                "producer.id.expiration.check.interval.ms": 1000,
                "unclean.leader.election.interval.ms": 1000,
                "share.coordinator.state.topic.replication.factor": copies,
                "share.coordinator.state.topic.min.isr": safe,
                "share.coordinator.state.topic.num.partitions": 3,
            }
        return {name: str(value) for name, value in settings.items()}

    def _listeners(self, node: int) -> dict[str, str]:
        layout = self._layout
        client, inner = layout.client_ports[node], layout.inner_ports[node]
        listeners = [f"CLIENT://127.0.0.1:{client}"]
        advertised = [f"CLIENT://127.0.0.1:{layout.proxy_ports.get(node, client)}"]
        protocols = ["CLIENT:PLAINTEXT", "CONTROLLER:PLAINTEXT"]
        if inner != client:
            listeners.append(f"INNER://127.0.0.1:{inner}")
            advertised.append(f"INNER://127.0.0.1:{inner}")
            protocols.append("INNER:PLAINTEXT")
        for name, protocol in self._more.protocols.items():
            listeners.append(f"{name}://{self._more.address(name, node)}")
            advertised.append(f"{name}://{self._more.address(name, node)}")
            protocols.append(f"{name}:{protocol}")
        if layout.combined:
            listeners.append(f"CONTROLLER://127.0.0.1:{self._nodes.controller_port}")
        return {
            **self._more.settings(),
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": ",".join(protocols),
            "inter.broker.listener.name": "INNER" if inner != client else "CLIENT",
        }

    def define_kraft(self, boot: BootFiles) -> None:
        """Adds the brokers, and a controller unless the only broker is the controller."""
        self._nodes.identify(random_id())
        self._release.boot_with(boot.options)
        quorum = {
            "controller.quorum.voters": f"{self._layout.controller_node}@127.0.0.1:{self._nodes.controller_port}",
            "controller.listener.names": "CONTROLLER",
        }
        if not self._layout.combined:
            controller = {
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{self._nodes.controller_port}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT,INNER:PLAINTEXT",
            }
            self._define(CONTROLLER, "controller", quorum | controller, (self._nodes.controller_port,), boot)
        for node in self._layout.brokers:
            roles = {"process.roles": "broker,controller" if self._layout.combined else "broker"}
            ports = {self._layout.inner_ports[node]: 0, self._layout.client_ports[node]: 0}
            ports |= dict.fromkeys(self._more.ports_of(node), 0)
            if self._layout.combined:
                ports[self._nodes.controller_port] = 0
            self._define(
                node,
                "combined" if self._layout.combined else "broker",
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
        boot: BootFiles | None,
    ) -> None:
        directory = self._workspace.directory / f"node-{node}"
        data = directory / "data"
        data.mkdir(parents=True)
        if boot is not None:
            # Do the work of the tool `kafka-storage format`, which needs a JVM per node. The tool writes only
            # `meta.properties` and the feature levels. The file of feature levels is copied from a directory that the
            # tool has formatted.
            shutil.copy(boot.checkpoint, data / boot.checkpoint.name)
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={self._nodes.cluster_id}\nnode.id={node}\ndirectory.id={random_id()}\n"
            )
        identity = {"broker.id" if self._nodes.zookeeper else "node.id": str(node), "log.dirs": str(data)}
        given = {**self._layout.config, **self._layout.broker_config.get(node, {})}
        merged = {**self.settings(), **identity, **own, **given}
        properties = directory / "server.properties"
        properties.write_text("".join(f"{name}={_escape(value)}\n" for name, value in merged.items()))
        command = self._release.server_command(properties)
        self._nodes.add(Node(node, kind, directory, command, ports))

    def define_zookeeper(self) -> None:
        """Adds the ZooKeeper and the brokers."""
        directory = self._workspace.directory / f"node-{CONTROLLER}"
        (directory / "data").mkdir(parents=True)
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        properties = directory / "zookeeper.properties"
        # ZooKeeper's shortest session timeout is two ticks, so a tick of 500 ms permits a session timeout of 1 s.
        # ZooKeeper 3.5 and later has an admin server on port 8080, which is switched off.
        properties.write_text(
            f"dataDir={directory / 'data'}\nclientPort={self._nodes.controller_port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=500\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        command = [
            *self._release.java_command("info"),
            "-Dzookeeper.admin.enableServer=false",
            main,
            str(properties),
        ]
        # The -D option precedes the class name, because Java passes everything after the class name to the class.
        self._nodes.add(Node(CONTROLLER, "zookeeper", directory, command, (self._nodes.controller_port,)))
        for node in self._layout.brokers:
            own = {"zookeeper.connect": f"127.0.0.1:{self._nodes.controller_port}"} | self._listeners(node)
            more = self._more.ports_of(node)
            ports = dict.fromkeys((self._layout.inner_ports[node], self._layout.client_ports[node], *more))
            self._define(node, "broker", own, tuple(ports), None)

    def check_settings(self, jar_dir: Path) -> None:
        """Refuses unknown settings, such as misspelt names. Kafka itself ignores unknown settings."""
        given = dict.fromkeys(
            [*self._layout.config, *(n for s in self._layout.broker_config.values() for n in s)]
        )
        if any(name.endswith(_PLUGIN_SETTINGS) for name in given):
            return
        doubtful = [
            name for name in given if not name.startswith(("listener.name.", "rsm.config.", "rlmm.config."))
        ]
        known = jars.broker_settings(jar_dir, self._release.java) if doubtful else frozenset()
        for name in doubtful if known else ():
            if name not in known and not jars.mentions_setting(jar_dir, name):
                near = difflib.get_close_matches(name, known, n=1)
                raise ConfigError(
                    f"Kafka {self._release.version} has no broker setting {name!r}"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                    + " (settings of a plug-in are accepted only with the setting that names its class)"
                )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")

"""How the nodes are started: their commands, settings and listeners."""

from __future__ import annotations

import difflib
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from kafka.admin import UserScramCredentialUpsertion
from kafka.errors import KafkaError

from kafkasafe.errors import ConfigError
from kafkasafe.testing import jars, secure
from kafkasafe.testing._real.asking import Asking, open_admin
from kafkasafe.testing._real.boot import BootFiles
from kafkasafe.testing._real.node import MIN_ISR, SESSION_TIMEOUT_MS, Node, random_id
from kafkasafe.testing._real.values import CONTROLLER

__all__ = ["Defining"]

_PLUGIN_SETTINGS = (".class", ".classes", ".class.name", ".class.names", ".class.path", ".reporters")


class Defining(Asking):
    """Part of `KafkaCluster`."""

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
            MIN_ISR: safe,
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
                    open_admin(**options, timeout_ms=5000).close()
                    break
                except KafkaError as error:
                    if time.monotonic() > deadline:
                        raise self._error(
                            f"no user can log in at listener {listener}: {error!r}", []
                        ) from error
                    time.sleep(0.1)

    def _define_kraft(self, boot: BootFiles) -> None:
        self._cluster_id = random_id()
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
        boot: BootFiles | None,
    ) -> None:
        directory = self._work_dir / f"node-{node}"
        data = directory / "data"
        data.mkdir(parents=True)
        if boot is not None:
            # What `kafka-storage format` writes, without a JVM per node: its only lasting product beside these
            # properties is the list of feature levels, and that was made by the tool itself.
            shutil.copy(boot.checkpoint, data / boot.checkpoint.name)
            (data / "meta.properties").write_text(
                f"version=1\ncluster.id={self._cluster_id}\nnode.id={node}\ndirectory.id={random_id()}\n"
            )
        identity = {"broker.id" if self._zookeeper else "node.id": str(node), "log.dirs": str(data)}
        given = {**self._user_config, **self._broker_config.get(node, {})}
        merged = {**self._settings(), **identity, **own, **given}
        properties = directory / "server.properties"
        properties.write_text("".join(f"{name}={_escape(value)}\n" for name, value in merged.items()))
        command = [*self._java_command("info"), "kafka.Kafka", str(properties)]
        self._nodes[node] = Node(node, kind, directory, command, ports)

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
        self._nodes[CONTROLLER] = Node(CONTROLLER, "zookeeper", directory, command, (self._controller_port,))
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


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")

"""Where a cluster's things are: the state that its parts share (`KafkaCluster.__init__` makes it). Nothing is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kafkasafe.errors import UsageError
from kafkasafe.testing import secure
from kafkasafe.testing._real.node import POLL_S, Node, tail
from kafkasafe.testing._real.processes import Resources
from kafkasafe.testing._real.values import CONTROLLER, ClusterError, log

__all__ = ["Places"]


class Places:
    """Part of `KafkaCluster`."""

    brokers: tuple[int, ...]
    version: str
    _boot_options: list[str]
    _broker_config: dict[int, dict[str, str]]
    _ca_file: Path | None
    _classpath: str
    _client_ports: dict[int, int]
    _cluster_id: str
    _combined: bool
    _controller_port: int
    _directory: Path | None
    _extra: tuple[str, ...]
    _inner_ports: dict[int, int]
    _java: Path
    _java_options: tuple[str, ...]
    _more_listeners: dict[str, str]
    _more_ports: dict[tuple[str, int], int]
    _nodes: dict[int, Node]
    _number: tuple[int, ...]
    _proxy_ports: dict[int, int]
    _resources: Resources
    _store: Path
    _user_config: dict[str, str]
    _users: dict[str, str]
    _zookeeper: bool

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

    def keep_logs(self, reason: str = "") -> Path:
        """Marks this run as failed, so that `close` leaves the logs. Returns their directory."""
        self._resources.keep_logs = True
        logs = self.log_dir
        if reason:
            log.info("logs of the Kafka nodes are kept in %s: %s", logs, reason)
        return logs

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

    def pid(self, node: int) -> int:
        """Process id of a running node. Raises `ClusterError` when it is not running."""
        process = self._node(node).process
        if process is None or process.poll() is not None:
            raise ClusterError(f"{self._node(node).name} is not running", log_dir=self.log_dir)
        return process.pid

    def is_running(self, node: int) -> bool:
        """Whether the node's process is there (a paused one is)."""
        return self._node(node).running

    @property
    def _work_dir(self) -> Path:
        if self._directory is None:
            raise UsageError("the cluster is not open")
        return self._directory

    def _node(self, node: int) -> Node:
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
    def _state(node: Node) -> str:
        if not node.running:
            return "down"
        return "paused" if node.paused else "up"

    def _error(self, message: str, nodes: Sequence[Node]) -> ClusterError:
        logs = self.keep_logs()
        ends = "".join(f"\n--- end of {node.log}:\n{tail(node.log)}" for node in nodes[:3])
        return ClusterError(f"{message}; logs: {logs}{ends}", log_dir=logs)

    def _until(self, condition: Callable[[], bool], timeout_s: float, message: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise self._error(message, [])
            time.sleep(POLL_S)

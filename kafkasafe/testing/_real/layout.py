"""The fixed description of a cluster: its brokers, their settings and their ports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kafkasafe.errors import UsageError
from kafkasafe.testing._real.values import CONTROLLER


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The description of a cluster. The ports are already reserved, so addresses are known before the cluster starts.

    Attributes:
        combined: Whether the single broker is its own controller.
        config: Broker settings of all nodes.
        broker_config: Broker settings of single nodes.
        proxy_ports: Port of each broker's proxy, by node.
        client_ports: For each node, the port on which the broker (not its proxy) listens for clients.
        inner_ports: For each node, the port to which the other brokers and this package send requests. Equal to
            `client_ports` if no broker has a proxy.
    """

    brokers: tuple[int, ...]
    combined: bool
    config: Mapping[str, str]
    broker_config: Mapping[int, Mapping[str, str]]
    proxy_ports: Mapping[int, int]
    client_ports: Mapping[int, int]
    inner_ports: Mapping[int, int]

    @property
    def bootstrap_servers(self) -> list[str]:
        return [f"127.0.0.1:{self.proxy_ports.get(node, self.client_ports[node])}" for node in self.brokers]

    def client_address(self, node: int) -> tuple[str, int]:
        self.check_broker(node)
        return "127.0.0.1", self.client_ports[node]

    @property
    def controller_node(self) -> int:
        return 1 if self.combined else CONTROLLER

    def check_broker(self, node: int) -> None:
        """Raises `UsageError` if the broker does not exist."""
        if node not in self.brokers:
            raise UsageError(f"there is no broker {node}; there are {list(self.brokers)}")

"""Connects to a cluster over the network, or to a simulated cluster in this process (see `announced`).

Only this module makes a `Transport` over sockets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from kafkasafe.cluster.api import Cluster
from kafkasafe.cluster.client import Transport
from kafkasafe.kafkapython.network import SocketNetwork

Connect: TypeAlias = Callable[[Mapping[str, Any]], Cluster]
"""A function that takes `KafkaProducer`'s options, and makes a `Cluster`, but does not start it."""

_doubles: dict[str, Connect] = {}
"""The simulated clusters that `announced` added, by server ('host:port', as in `bootstrap_servers`)."""


def connect(options: Mapping[str, Any]) -> Cluster:
    """Makes a `Cluster` for these options, but does not start it. If one of the servers is the address of a simulated
    cluster, the result is a client of that cluster.
    """
    servers = options.get("bootstrap_servers") or ()
    for server in servers.split(",") if isinstance(servers, str) else servers:
        double = _doubles.get(server.strip())
        if double is not None:
            return double(options)
    return over_sockets(options)


def over_sockets(options: Mapping[str, Any]) -> Transport:
    """Makes a `Transport` for these options, but does not start it.

    Args:
        options: `KafkaProducer`'s options. Options that do not concern connections or metadata are ignored.
            `reconnect_backoff_max_ms` defaults to 1000 here, so that the client soon notices when a cluster is
            available again. `max_in_flight_requests_per_connection` is ignored, because the caller limits its requests
            itself.
    """
    return Transport(SocketNetwork(options), options)


@contextlib.contextmanager
def announced(servers: str, made: Connect) -> Iterator[None]:
    """Within this context, `made` replaces the network for clients that have one of these servers as bootstrap server.
    `servers` is a comma-separated list of 'host:port'.
    """
    names = [name.strip() for name in servers.split(",")]
    taken = [name for name in names if name in _doubles]
    if taken:
        raise ValueError(f"{', '.join(taken)} is announced already")
    _doubles.update(dict.fromkeys(names, made))
    try:
        yield
    finally:
        for name in names:
            del _doubles[name]

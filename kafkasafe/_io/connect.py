"""Connects to a cluster: over the network, or to a simulated one in this process that was announced.

For clients that need only `Cluster`, this module is the only place that makes a `Transport`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from kafkasafe._io.transport import Transport
from kafkasafe.cluster.api import Cluster

__all__ = ["Connect", "announced", "connect"]

Connect: TypeAlias = Callable[[Mapping[str, Any]], Cluster]
"""Gets `KafkaProducer`'s options, like `Transport`, and makes a `Cluster` that is not started yet."""

_doubles: dict[str, Connect] = {}
"""By server, as in `bootstrap_servers`: 'host:port'."""


def connect(options: Mapping[str, Any]) -> Cluster:
    """A `Cluster` for these options, not started. If one of the servers is announced, its simulated cluster."""
    servers = options.get("bootstrap_servers") or ()
    for server in servers.split(",") if isinstance(servers, str) else servers:
        double = _doubles.get(server.strip())
        if double is not None:
            return double(options)
    return Transport(options)


@contextlib.contextmanager
def announced(servers: str, made: Connect) -> Iterator[None]:
    """In this context, clients with one of these servers ('host:port', comma-separated) get the result of `made`."""
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

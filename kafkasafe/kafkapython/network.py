"""The network of a client, over sockets: kafka-python's event loop, its manager of connections, and its address book.

This module knows no topics, and makes no decisions about requests.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from kafkasafe.cluster.api import Broker
from kafkasafe.cluster.network import Life, Service
from kafkasafe.cluster.terms import NodeId
from kafkasafe.kafkapython.connection import DirectConnection
from kafkasafe.kafkapython.loop import Loop
from kafkasafe.kafkapython.manager import DirectManager
from kafkasafe.kafkapython.sockets import LINGER_RESET
from kafkasafe.logs import limit_foreign

__all__ = ["SocketNetwork"]

_MANAGER_OPTIONS: Final = frozenset(DirectManager.DEFAULT_CONFIG) | {"socks5_proxy"}
_LOOP_OPTIONS: Final = frozenset(Loop.DEFAULT_CONFIG)


class SocketNetwork:
    """The loop that runs on the network thread, and the connections that it serves; see `kafkasafe.cluster.network`.

    Args:
        options: `KafkaProducer`'s options. Options that do not concern connections or metadata are ignored.
            `reconnect_backoff_max_ms` defaults to 1000 here, so that a cluster that comes back is noticed soon.
            `max_in_flight_requests_per_connection` is ignored: the caller limits its requests itself.
        life: Makes the object that starts and ends the loop's thread.

    Attributes:
        loop: The event loop. After a crash, a new loop replaces it.
        manager: Makes connections for this loop.
        client_id: See `Network`.
        request_timeout_s: See `Network`.
        metadata_max_age_s: See `Network`.
        reconnect_backoff_s: See `Network`.
        reconnect_backoff_max_s: See `Network`.
    """

    def __init__(self, options: Mapping[str, Any], life: Callable[[SocketNetwork, Service], Life]) -> None:
        self._life = life
        settings: dict[str, Any] = {
            key: value for key, value in options.items() if key in _MANAGER_OPTIONS | _LOOP_OPTIONS
        }
        if settings.get("client_id") is None:
            settings["client_id"] = "kafkasafe"
        if settings.get("api_version") == "auto":
            settings["api_version"] = None
        settings.setdefault("reconnect_backoff_max_ms", 1000)
        settings.setdefault("receive_message_max_bytes", 100_000_000)
        # Slow steps are normal on a busy machine, but kafka-python would log a warning for each.
        settings.setdefault("slow_task_threshold_secs", 0)
        # Reply callbacks run before kafka-python lifts its pause, and a paused connection refuses requests.
        settings["max_in_flight_requests_per_connection"] = 2**31 - 1
        default_options: Any = DirectManager.DEFAULT_CONFIG["socket_options"]
        sockets = list(settings.get("socket_options") or default_options)
        for key, option in (
            ("send_buffer_bytes", socket.SO_SNDBUF),
            ("receive_buffer_bytes", socket.SO_RCVBUF),
        ):
            if options.get(key) is not None:
                sockets.append((socket.SOL_SOCKET, option, int(options[key])))
        sockets.append((socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET))
        settings["socket_options"] = sockets
        self._settings = settings
        self._on_wake: Callable[[], None] = lambda: None
        self._on_exit: Callable[[], None] = lambda: None
        limit_foreign()
        self.client_id: str = settings["client_id"]
        self.loop: Any
        self.manager: Any
        self.renew()
        config: dict[str, Any] = self.manager.config
        self.request_timeout_s: float = config["request_timeout_ms"] / 1000
        self.metadata_max_age_s: float = config["metadata_max_age_ms"] / 1000
        self.reconnect_backoff_s: float = config["reconnect_backoff_ms"] / 1000
        self.reconnect_backoff_max_s: float = config["reconnect_backoff_max_ms"] / 1000

    def serve(self, service: Service) -> Life:
        """See `Network`."""
        return self._life(self, service)

    def call_back(self, *, on_wake: Callable[[], None], on_exit: Callable[[], None]) -> None:
        """Sets the functions that this loop and its successors call when another thread has woken them, and when they
        end.
        """
        self._on_wake, self._on_exit = on_wake, on_exit
        self.loop.serve(on_wake, on_exit)

    def renew(self) -> None:
        """Replaces the loop with a new one that has its own connections."""
        make_loop: Any = Loop
        make_manager: Any = DirectManager
        self.loop = make_loop(**{k: v for k, v in self._settings.items() if k in _LOOP_OPTIONS})
        self.loop.serve(self._on_wake, self._on_exit)
        self.manager = make_manager(self.loop, **self._settings)

    def start(self) -> threading.Thread:
        """Starts the loop's thread."""
        thread: threading.Thread = self.loop.started()
        return thread

    def stop(self) -> None:
        """Refuses to make connections from now on, and ends the loop after this turn."""
        self.manager.refuse()
        self.loop.end_soon()

    @property
    def broker_version(self) -> tuple[int, ...] | None:
        """Kafka version, from `api_version` or from the first broker reached; None before that."""
        version: tuple[int, ...] | None = self.manager.broker_version
        return version

    # -- Time ----------------------------------------------------------------------------------------------------

    now = staticmethod(time.monotonic)

    def random_fraction(self) -> float:
        """See `Network`."""
        return random.random()

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        """See `Network`."""
        return self.loop.call_at(when, call)

    def cancel(self, timer: Any) -> None:
        """See `Network`."""
        self.loop.cancel(timer)

    def wake(self) -> None:
        """See `Network`."""
        self.loop.wakeup()

    # -- Connections ---------------------------------------------------------------------------------------------

    def connect(self, node_id: NodeId) -> DirectConnection:
        """See `Network`."""
        return DirectConnection(self.manager, node_id)

    # -- The address book ----------------------------------------------------------------------------------------

    def brokers(self) -> list[Broker]:
        """The brokers of the latest metadata."""
        return [
            Broker(each.node_id, each.host, each.port, each.rack) for each in self.manager.cluster.brokers()
        ]

    def nodes(self) -> list[NodeId]:
        """Node ids of the brokers of the latest metadata."""
        return [broker.node_id for broker in self.manager.cluster.brokers()]

    def bootstrap_nodes(self) -> list[NodeId]:
        """Node ids of the brokers of option `bootstrap_servers`."""
        return [broker.node_id for broker in self.manager.cluster.bootstrap_brokers()]

    def addresses(self) -> Collection[int]:
        """Node ids of the brokers whose addresses are known."""
        known: Collection[int] = self.manager.known_brokers()
        return known

    def learn_broker(self, endpoint: Any) -> None:
        """Adds the address of a broker that another one named, unless it is known already."""
        known = self.manager.known_brokers()
        if endpoint.node_id not in known:
            kind: Any = type(self.manager.cluster.bootstrap_brokers()[0])
            broker = kind(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            self.manager.take_brokers({**known, endpoint.node_id: broker})

    def learn_brokers(self, brokers: Iterable[Any]) -> tuple[int, ...]:
        """Replaces the known brokers with those of a metadata answer. Returns their node ids."""
        known = {broker.node_id: broker for broker in brokers}
        self.manager.take_brokers(known)
        return tuple(known)

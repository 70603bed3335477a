"""kafka-python's event loop and manager of connections, made of a client's options, and its address book of brokers.

No topic is known here, and no request.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from kafkasafe._io.backoff import Backoff
from kafkasafe.cluster.api import Broker
from kafkasafe.cluster.terms import NodeId
from kafkasafe.kafkapython.loop import Loop
from kafkasafe.kafkapython.manager import DirectManager
from kafkasafe.kafkapython.sockets import FORGETS
from kafkasafe.logs import limit_foreign

__all__ = ["Network"]

_MANAGER_OPTIONS: Final = frozenset(DirectManager.DEFAULT_CONFIG) | {"socks5_proxy"}
_LOOP_OPTIONS: Final = frozenset(Loop.DEFAULT_CONFIG)


class Network:
    """The loop that runs on the network thread, and the connections that it serves.

    Args:
        options: See `Transport`.

    Attributes:
        loop: The event loop. Another one takes its place after a crash.
        manager: Makes connections for this loop.
        client_id: Option, with its default.
        request_timeout_s: Option `request_timeout_ms`, in seconds.
        metadata_max_age_s: Option `metadata_max_age_ms`, in seconds.
        reconnect_backoff: Pauses between attempts to connect to one broker.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        settings: dict[str, Any] = {
            key: value for key, value in options.items() if key in _MANAGER_OPTIONS | _LOOP_OPTIONS
        }
        if settings.get("client_id") is None:
            settings["client_id"] = "kafkasafe"
        if settings.get("api_version") == "auto":
            settings["api_version"] = None
        settings.setdefault("reconnect_backoff_max_ms", 1000)
        settings.setdefault("receive_message_max_bytes", 100_000_000)
        # A slow step is no error on a busy machine: kafka-python would log a warning for each.
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
                sockets.append((socket.SOL_SOCKET, option, options[key]))
        sockets.append((socket.SOL_SOCKET, socket.SO_LINGER, FORGETS))
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
        self.reconnect_backoff = Backoff.around(
            config["reconnect_backoff_ms"] / 1000, config["reconnect_backoff_max_ms"] / 1000
        )

    def serve(self, *, on_wake: Callable[[], None], on_exit: Callable[[], None]) -> None:
        """What this loop and its successors call: when another thread woke them, and when they end."""
        self._on_wake, self._on_exit = on_wake, on_exit
        self.loop.serve(on_wake, on_exit)

    def renew(self) -> None:
        """Another loop, with connections of its own."""
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
        """No connection is made any more, and the loop ends after this turn."""
        self.manager.refuse()
        self.loop.end_soon()

    # -- The address book ----------------------------------------------------------------------------------------

    def brokers(self) -> list[Broker]:
        """The brokers of the latest metadata."""
        return [
            Broker(each.node_id, each.host, each.port, each.rack) for each in self.manager.cluster.brokers()
        ]

    def nodes(self) -> list[NodeId]:
        """Their node ids."""
        return [broker.node_id for broker in self.manager.cluster.brokers()]

    def bootstrap_nodes(self) -> list[NodeId]:
        """Those of option `bootstrap_servers`."""
        return [broker.node_id for broker in self.manager.cluster.bootstrap_brokers()]

    def addresses(self) -> Collection[int]:
        """Node ids of the brokers whose addresses are known."""
        known: Collection[int] = self.manager.known_brokers()
        return known

    def learn_broker(self, endpoint: Any) -> None:
        """Adds a broker that another one named."""
        known = self.manager.known_brokers()
        if endpoint.node_id not in known:
            kind: Any = type(self.manager.cluster.bootstrap_brokers()[0])
            broker = kind(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            self.manager.take_brokers({**known, endpoint.node_id: broker})

    def learn_brokers(self, brokers: Iterable[Any]) -> tuple[int, ...]:
        """Takes over the brokers of an answer about metadata. Returns their node ids."""
        known = {broker.node_id: broker for broker in brokers}
        self.manager.take_brokers(known)
        return tuple(known)

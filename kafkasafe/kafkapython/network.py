"""A client's network over sockets: kafka-python's event loop on its own thread, the manager of connections, and the
brokers' addresses. After a crash, a new loop on a new thread takes over.

This module does not depend on topics, and makes no decisions about requests.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Broker
from kafkasafe.cluster.backoff import Backoff
from kafkasafe.cluster.network import Service
from kafkasafe.cluster.terms import NodeId, closed_error, log
from kafkasafe.kafkapython.connection import DirectConnection
from kafkasafe.kafkapython.loop import Loop
from kafkasafe.kafkapython.manager import DirectManager
from kafkasafe.kafkapython.sockets import LINGER_RESET
from kafkasafe.logs import limit_foreign
from kafkasafe.process.locks import new_lock

_MANAGER_OPTIONS: Final = frozenset(DirectManager.DEFAULT_CONFIG) | {"socks5_proxy"}
_LOOP_OPTIONS: Final = frozenset(Loop.DEFAULT_CONFIG)
_CALM_S: Final = 60.0  # if the network thread ran longer, its crash counts as the first one
_CRASH_BACKOFF: Final = Backoff(0.1, 5.0, jitter=0.0)


class SocketNetwork:
    """The event loop on the network thread, and the connections that the loop serves.

    `kafkasafe.cluster.network.Network` describes the methods.

    Args:
        options: `KafkaProducer`'s options. Options that do not concern connections or metadata are ignored.
            `reconnect_backoff_max_ms` defaults to 1000 here, so that the client soon notices when a cluster is
            available again. `max_in_flight_requests_per_connection` is ignored, because the caller limits its requests
            itself.

    Attributes:
        thread: The network thread; None before `start`.
        loop: The event loop. After a crash, a new loop replaces it.
        manager: Makes connections for this loop.
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
        # Let kafka-python log no warnings about slow steps, which are normal on a busy machine.
        settings.setdefault("slow_task_threshold_secs", 0)
        # Set no real limit on the requests in flight. When the limit is reached, kafka-python pauses the connection
        # until the callback of a reply has returned. So the callback itself could not send a request.
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
        self._service: Service
        self._pid = os.getpid()
        self._born_at = 0.0
        self._crashes = 0
        self._start_lock = new_lock()
        self._stopped = threading.Event()
        self._ended = False
        limit_foreign()
        self.thread: threading.Thread | None = None
        self.client_id: str = settings["client_id"]
        self.loop: Any
        self.manager: Any
        self._renew()
        config: dict[str, Any] = self.manager.config
        self.request_timeout_s: float = config["request_timeout_ms"] / 1000
        self.metadata_max_age_s: float = config["metadata_max_age_ms"] / 1000
        self.reconnect_backoff_s: float = config["reconnect_backoff_ms"] / 1000
        self.reconnect_backoff_max_s: float = config["reconnect_backoff_max_ms"] / 1000

    # -- The thread ----------------------------------------------------------------------------------------------

    def serve(self, service: Service) -> None:
        self._service = service
        self.loop.serve(service.look, self._on_exit)

    def start(self) -> None:
        with self._start_lock:
            if self.thread is None and not self._ended:
                self._start()

    def _start(self) -> None:
        self._service.begin()
        self._born_at = time.monotonic()
        self.thread = self.loop.started()

    def close(self, timeout_s: float) -> bool:
        if os.getpid() != self._pid:
            return True  # a forked child shares the loop's epoll with its parent, and must not use it
        with self._start_lock:
            if self.thread is None:
                if not self._ended:
                    self._service.shut_down()
                    self._on_exit()
                    self.loop.close()
                return True
        if threading.current_thread() is self.thread:
            self._service.shut_down()
            return False
        self._stopped.set()
        self._service.close_soon()
        deadline = time.monotonic() + timeout_s
        while True:
            # After a crash, a new thread may have replaced the former thread.
            thread = self.thread
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread is self.thread or thread.is_alive():
                return not thread.is_alive()

    def _on_exit(self) -> None:
        """Called when `close` or a crash has ended the loop. Every caller must get an answer."""
        error: BaseException = kafka_errors.KafkaConnectionError(
            "The network thread ended by an error, see the log"
        )
        crashed = self._service.interrupted(error)
        if crashed:
            self._crashes = 0 if time.monotonic() - self._born_at > _CALM_S else self._crashes + 1
            while not self._stopped.wait(_CRASH_BACKOFF.pause_s(self._crashes + 1)):
                if self._begin_anew():
                    return
                self._crashes += 1
        self._ended = True
        self._service.end(error if crashed else closed_error())

    def _begin_anew(self) -> bool:
        """Runs on the crashed thread, and starts a new loop with its own connections. Earlier requests have failed.

        The client keeps its metadata, and the jobs that callers have posted since the crash. Returns False if the
        process lacks handles, threads or memory for another loop.
        """
        with self._start_lock:
            former = self.loop
            try:
                self._renew()
                self.loop.serve(self._service.look, self._on_exit)
                self._service.begin_anew()
                self.wake()
                self._start()
            except Exception as error:
                # A log handler may keep the error. So drop the error's stack frames, which refer to an unfinished loop
                # and its handles.
                error.with_traceback(None)
                self._service.interrupted(error)
                if self.loop is not former:
                    self.loop.discard()
                log.limited(
                    logging.ERROR,
                    "network_not_replaced",
                    self.client_id,
                    "The network thread ended, and no new thread can be started (%r); trying again until one can."
                    " Raise the limits of open files (ulimit -n), threads (ulimit -u) and memory",
                    error,
                    error=type(error).__name__,
                )
                return False
        return True

    def _renew(self) -> None:
        make_loop: Any = Loop
        make_manager: Any = DirectManager
        self.loop = make_loop(**{k: v for k, v in self._settings.items() if k in _LOOP_OPTIONS})
        self.manager = make_manager(self.loop, **self._settings)

    def stop(self) -> None:
        """From now on, refuses to make connections. Ends the loop after this turn."""
        self.manager.refuse()
        self.loop.end_soon()

    # -- Time ----------------------------------------------------------------------------------------------------

    now = staticmethod(time.monotonic)

    def random_fraction(self) -> float:
        return random.random()

    def call_at(self, when: float, call: Callable[[], None]) -> Any:
        return self.loop.call_at(when, call)

    def cancel(self, timer: Any) -> None:
        self.loop.cancel(timer)

    def wake(self) -> None:
        self.loop.wakeup()

    # -- Connections ---------------------------------------------------------------------------------------------

    def connect(self, node_id: NodeId) -> DirectConnection:
        return DirectConnection(self.manager, node_id)

    # -- The address book ----------------------------------------------------------------------------------------

    def brokers(self) -> list[Broker]:
        return [
            Broker(each.node_id, each.host, each.port, each.rack) for each in self.manager.cluster.brokers()
        ]

    def nodes(self) -> list[NodeId]:
        return [broker.node_id for broker in self.manager.cluster.brokers()]

    def bootstrap_nodes(self) -> list[NodeId]:
        return [broker.node_id for broker in self.manager.cluster.bootstrap_brokers()]

    def addresses(self) -> Collection[int]:
        known: Collection[int] = self.manager.known_brokers()
        return known

    def learn_broker(self, endpoint: Any) -> None:
        known = self.manager.known_brokers()
        if endpoint.node_id not in known:
            kind: Any = type(self.manager.cluster.bootstrap_brokers()[0])
            broker = kind(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            self.manager.take_brokers({**known, endpoint.node_id: broker})

    def learn_brokers(self, brokers: Iterable[Any]) -> tuple[int, ...]:
        known = {broker.node_id: broker for broker in brokers}
        self.manager.take_brokers(known)
        return tuple(known)

"""What the parts of `Transport` stand on: options, kafka-python's loop, and the way in for other threads.

No broker and no topic is known here.
"""

from __future__ import annotations

import collections
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from kafkasafe._io import at_once
from kafkasafe._io.backoff import Backoff
from kafkasafe._io.transport.loop import Loop
from kafkasafe._io.transport.manager import DirectManager
from kafkasafe._io.transport.sockets import FORGETS
from kafkasafe.cluster.coordinators import Coordinated
from kafkasafe.cluster.terms import closed_error, log
from kafkasafe.errors import ForkedProcessError
from kafkasafe.logs import limit_foreign

__all__ = ["Ground"]

_MANAGER_OPTIONS: Final = frozenset(KafkaConnectionManager.DEFAULT_CONFIG) | {"socks5_proxy"}
_LOOP_OPTIONS: Final = frozenset(NetworkSelector.DEFAULT_CONFIG)


class Ground(Coordinated, ABC):
    """Part of `Transport`: what the others stand on."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__()
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
        default_options: Any = KafkaConnectionManager.DEFAULT_CONFIG["socket_options"]
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

        self._client_id: str = settings["client_id"]
        self._log = log.bind(client_id=self._client_id)
        limit_foreign()
        self._net: Any
        self._manager: Any
        self._make_loop()
        config: dict[str, Any] = self._manager.config
        self._request_timeout_s: float = config["request_timeout_ms"] / 1000
        self._reconnect_backoff = Backoff.around(
            config["reconnect_backoff_ms"] / 1000, config["reconnect_backoff_max_ms"] / 1000
        )
        self._pid = os.getpid()

        # Jobs from other threads: (run on the network thread, fail instead).
        self._inbox: collections.deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = (
            collections.deque()
        )
        self._woken = False
        self._ended = False  # nobody will look into the inbox any more

        # Everything below belongs to the network thread; readers elsewhere see whole values.
        self._closing = False

    @abstractmethod
    def _ask_gathered(self) -> None: ...

    @abstractmethod
    def _on_loop_exit(self) -> None: ...

    def _make_loop(self) -> None:
        make_loop: Any = Loop
        make_manager: Any = DirectManager
        self._net = make_loop(**{k: v for k, v in self._settings.items() if k in _LOOP_OPTIONS})
        self._net.on_exit = self._on_loop_exit
        self._net.on_wake = self._look
        self._manager = make_manager(self._net, **self._settings)

    def _post(self, run: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        if os.getpid() != self._pid:
            fail(ForkedProcessError("The connections belong to the parent process"))
            return
        self._inbox.append((run, fail))
        # One wake-up serves all jobs that come before the thread has looked. `_look` clears the flag before it
        # empties the inbox, so a job that finds it set is seen.
        if not self._woken and not at_once.held(self._wake, id(self)):
            self._wake()
        if self._ended:
            self._empty_inbox(closed_error())

    def _wake(self) -> None:
        if not self._woken:
            self._woken = True
            self._net.wakeup()

    def _look(self) -> None:
        self._woken = False
        while self._inbox:
            run, fail = self._inbox.popleft()
            try:
                if self._closing:
                    fail(closed_error())
                else:
                    run()
            except Exception:
                # A bug, but one that must not take the other jobs with it.
                log.exception("A request could not be passed on", event="request_failed")
        self._ask_gathered()

    def _empty_inbox(self, error: BaseException) -> None:
        while True:
            try:
                _, fail = self._inbox.popleft()
            except IndexError:
                return
            fail(error)

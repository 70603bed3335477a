"""Starts and ends the network thread, and replaces it after a crash."""

from __future__ import annotations

import threading
import time
from typing import Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.backoff import Backoff
from kafkasafe.cluster.network import Service
from kafkasafe.cluster.terms import closed_error
from kafkasafe.kafkapython.network import SocketNetwork

__all__ = ["NetworkThread"]

_CALM_S: Final = 60.0  # if a network thread ran for this long, its crash is not counted as a repeated one
_CRASH_BACKOFF: Final = Backoff(0.1, 5.0, jitter=0.0)


class NetworkThread:
    """Starts the network thread, ends it, and replaces it: the `Life` of a network over sockets.

    Args:
        network: The loop that runs on the thread.
        service: The methods of the client that the thread calls.

    Attributes:
        thread: The network thread; None before `start`.
    """

    def __init__(self, network: SocketNetwork, service: Service) -> None:
        self._network = network
        self._service = service
        self._born_at = 0.0
        self._crashes = 0
        self.thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._stopped = threading.Event()
        network.call_back(on_wake=service.look, on_exit=self._on_exit)

    def start(self) -> None:
        """Starts the network thread, which tries to connect to a broker until it succeeds. Idempotent."""
        with self._start_lock:
            if self.thread is not None or self._service.ended:
                return
            self._service.begin()
            self._born_at = time.monotonic()
            self.thread = self._network.start()

    def close(self, timeout_s: float) -> bool:
        """Ends the thread and closes all sockets. Outstanding requests get a `Failure`. Idempotent.

        Args:
            timeout_s: How long to wait for the thread to end, in seconds.

        Returns:
            Whether the thread has ended. If the thread has not ended (because a callback blocks), it ends as soon as it
            can.
        """
        if self._service.in_child:
            return True  # this child shares the loop's epoll with its parent, and must not use it
        with self._start_lock:
            if self.thread is None:
                if not self._service.ended:
                    self._service.shut_down()
                    self._on_exit()
                    self._network.loop.close()
                return True
        if threading.current_thread() is self.thread:
            self._service.shut_down()
            return False
        self._stopped.set()
        self._service.close_soon()
        deadline = time.monotonic() + timeout_s
        while True:
            # A new thread may have replaced the former one after a crash.
            thread = self.thread
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread is self.thread or thread.is_alive():
                return not thread.is_alive()

    def _on_exit(self) -> None:
        """Called when the loop has ended, by `close` or by a crash: every caller must get an answer."""
        error = _crashed_error()
        crashed = self._service.interrupted(error)
        if crashed:
            self._crashes = 0 if time.monotonic() - self._born_at > _CALM_S else self._crashes + 1
            if not self._stopped.wait(_CRASH_BACKOFF.pause_s(self._crashes + 1)):
                self._begin_anew()
                return
        self._service.end(error if crashed else closed_error())

    def _begin_anew(self) -> None:
        """On the crashed thread: starts another loop with its own connections. Earlier requests have failed.

        The client keeps its metadata, and the jobs that callers have posted meanwhile.
        """
        self._service.begin_anew()
        with self._start_lock:
            self._network.renew()
            self._service.reopen()
            self._born_at = time.monotonic()
            self._network.wake()
            self._service.begin()
            self.thread = self._network.start()


def _crashed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError(
        "The network thread ended by an error, see the log"
    )
    return error

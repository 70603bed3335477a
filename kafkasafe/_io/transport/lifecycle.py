"""The network thread: its start, its end, and another one in its place after a crash."""

from __future__ import annotations

import threading
import time
from typing import Final

import kafka.errors as kafka_errors

from kafkasafe._io.backoff import Backoff
from kafkasafe._io.transport.links import Links
from kafkasafe._io.transport.mailbox import Mailbox
from kafkasafe._io.transport.network import Network
from kafkasafe._io.transport.order import Order
from kafkasafe._io.transport.refresher import Refresher
from kafkasafe._io.transport.schedule import RefreshSchedule
from kafkasafe.cluster.terms import closed_error

__all__ = ["Lifecycle"]

_CALM_S: Final = 60.0  # a network thread that ran for so long had no lasting reason to crash
_CRASH_BACKOFF: Final = Backoff(0.1, 5.0, jitter=0.0)


class Lifecycle:
    """Starts the network thread, ends it, and replaces it.

    Args:
        network: The loop that runs on the thread.
        mailbox: Jobs for the thread.
        schedule: When metadata are asked for.
        links: The ways to the brokers.
        refresher: What waits for metadata.
        order: Of batches.

    Attributes:
        thread: The network thread; None before `start`.
    """

    def __init__(
        self,
        network: Network,
        mailbox: Mailbox,
        schedule: RefreshSchedule,
        links: Links,
        refresher: Refresher,
        order: Order,
    ) -> None:
        self._network = network
        self._mailbox = mailbox
        self._schedule = schedule
        self._links = links
        self._refresher = refresher
        self._order = order
        self._born_at = 0.0
        self._crashes = 0
        self.thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._stopped = threading.Event()
        network.serve(on_wake=mailbox.look, on_exit=self._on_exit)

    def start(self) -> None:
        """Starts the network thread and goes looking for a broker, for as long as it takes. Idempotent."""
        with self._start_lock:
            if self.thread is not None or self._mailbox.ended:
                return
            self._mailbox.post(lambda: self._schedule.want(urgent=True), lambda _: None)
            self._born_at = time.monotonic()
            self.thread = self._network.start()

    def close(self, timeout_s: float) -> bool:
        """Ends the thread and closes all sockets; everything outstanding gets a `Failure`. Idempotent.

        Args:
            timeout_s: How long to wait for the thread to end, in seconds.

        Returns:
            Whether it has ended. If not (it hangs in a callback), it will end by itself as soon as it can.
        """
        if self._mailbox.in_child:
            return True  # the loop's epoll is shared with the parent: it must not be touched
        with self._start_lock:
            if self.thread is None:
                if not self._mailbox.ended:
                    self._shut_down()
                    self._on_exit()
                    self._network.loop.close()
                return True
        if threading.current_thread() is self.thread:
            self._shut_down()
            return False
        self._stopped.set()
        self._mailbox.post(self._shut_down, lambda _: None)
        deadline = time.monotonic() + timeout_s
        while True:
            # It may be that one that takes the place of a crashed one.
            thread = self.thread
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread is self.thread or thread.is_alive():
                return not thread.is_alive()

    def _shut_down(self) -> None:
        """On the network thread: everything outstanding fails, every connection closes, the loop stops."""
        if self._mailbox.close():
            return
        error = closed_error()
        self._refresher.fail_all(error)
        self._links.close(error)
        self._network.stop()

    def _on_exit(self) -> None:
        """The loop has ended, by `close` or by a crash: nobody may be left without an answer."""
        crashed = not self._mailbox.close()
        error = closed_error() if not crashed else _crashed_error()
        self._refresher.fail_all(error)
        self._links.abandon(error)
        if crashed:
            self._crashes = 0 if time.monotonic() - self._born_at > _CALM_S else self._crashes + 1
            if not self._stopped.wait(_CRASH_BACKOFF.pause_s(self._crashes + 1)):
                self._begin_anew()
                return
        self._mailbox.end(error)

    def _begin_anew(self) -> None:
        """On the thread that crashed: another loop, with connections of its own. What was asked for has failed.

        What is known of the cluster stays, and so does what callers posted meanwhile.
        """
        self._links.begin_anew()
        self._order.begin_anew()
        self._schedule.begin_anew()
        with self._start_lock:
            self._network.renew()
            self._mailbox.reopen()
            self._born_at = time.monotonic()
            self._network.loop.wakeup()
            self._mailbox.post(lambda: self._schedule.want(urgent=True), lambda _: None)
            self.thread = self._network.start()


def _crashed_error() -> BaseException:
    error: BaseException = kafka_errors.KafkaConnectionError(
        "The network thread ended by an error, see the log"
    )
    return error

"""KafkaConsumer's connections. Chooses the broker to ask. Finds the cluster again even if no known broker can be
reached.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import Any, Final

import kafka.errors as kafka_errors
from kafka import KafkaConsumer
from kafka.net.selector import NetworkSelector

from kafkasafe.errors import ForkedProcessError
from kafkasafe.kafkapython.loop import LoopClosedError
from kafkasafe.kafkapython.manager import Manager
from kafkasafe.kafkapython.metadata import Metadata
from kafkasafe.logs import as_own_thread, limit_foreign
from kafkasafe.process.locks import new_lock
from kafkasafe.process.wake_flag import WakeFlag

_NO_LIMIT: Final = -1.0
_START_S: Final = 0.5
"""Time in seconds that a thread may take to start."""
_START_PAUSE_S: Final = 0.01


class _ReachingManager(Manager):
    """Connects to the bootstrap servers again if no broker in the metadata can be reached (KIP-899).

    kafka-python 3.0.12 does not recover when all brokers that it knew have left, and only logs the cause of a failed
    connection.

    Attributes:
        last_failure: Error of the last failed connection or metadata request.
    """

    def __init__(self, net: Any, **configs: Any) -> None:
        self.last_failure: BaseException | None = None
        parent: Any = super()
        parent.__init__(net, **configs)
        name = "allow_auto_create_topics"  # kafka-python 3.0's KafkaConsumer does not pass this option on
        self.cluster = Metadata(**{**self.cluster.config, name: configs.get(name, True)})
        attach: Any = self.cluster.attach
        attach(self)

    @property
    def has_connection(self) -> bool:
        """Whether a connection to a broker is open. Any thread may read this property."""
        return any(conn.connected for conn in list(self._conns.values()))

    def update_backoff(self, node_id: Any) -> Any:
        # KafkaConnectionManager calls `update_backoff` in its `except` clause, so `sys.exc_info` returns the error.
        failure = sys.exc_info()[1]
        late = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)
        cut_short = isinstance(failure, late) or isinstance(getattr(failure, "__cause__", None), late)
        # If the last attempt timed out, keep the more useful error of an earlier attempt.
        if failure is not None and not (cut_short and self.last_failure is not None):
            self.last_failure = failure
        parent: Any = super()
        return parent.update_backoff(node_id)

    def least_loaded_node(self) -> Any:
        parent: Any = super()
        node = parent.least_loaded_node()
        if node is not None or self.has_connection:
            return node
        brokers = [broker.node_id for broker in self.cluster.bootstrap_brokers()]
        able = [node_id for node_id in brokers if parent.connection_delay(node_id) <= 0]
        return random.choice(able) if able else None


class _InterruptibleNet(NetworkSelector):
    """kafka-python's event loop, which Ctrl-C in a caller's thread cannot block.

    With kafka-python 3.0.12, a caller waits for a `threading.Event`. If Ctrl-C interrupts the wait, the Event's lock
    may stay locked, and the I/O thread and each later call would wait for the lock for ever. The lock of the waiting
    callers is one of ours for the same reason (`kafkasafe.process.locks`).
    """

    config: dict[str, Any]
    _closed: bool
    _exception: BaseException | None
    _io_thread: threading.Thread | None
    _stop: bool

    def __init__(self, **configs: Any) -> None:
        parent: Any = super()
        parent.__init__(**configs)
        self._pid = os.getpid()
        self._pending_waiters_lock = new_lock()

    def check_process(self) -> None:
        """Raise ForkedProcessError in a forked child, which has no I/O thread: a call would wait for ever."""
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                "This consumer belongs to the parent process. Open another one in this process"
            )

    @property
    def runs_here(self) -> bool:
        """Whether the current thread is the I/O thread. The I/O thread calls rebalance listeners, and cannot wait for
        itself.
        """
        return self._io_thread is threading.current_thread()

    def run(self, coro: Any, *args: Any) -> Any:
        """See kafka-python's method. Runs a coroutine on the I/O thread, and waits for the result."""
        self.check_process()
        self._check_open()
        parent: Any = super()
        if self._exception or self._io_thread in (None, threading.current_thread()):
            return parent.run(coro, *args)  # either raises an error, or has no other thread to wait for
        me: Any = self
        ended = WakeFlag()
        state: dict[str, Any] = {"exception": None}

        async def waiter() -> None:
            try:
                state["value"] = await me._invoke(coro, *args)
            except BaseException as error:
                if state["exception"] is None:
                    state["exception"] = error
            finally:
                with me._pending_waiters_lock:
                    me._pending_waiters.pop(ended, None)
                ended.set()

        with me._pending_waiters_lock:
            me._pending_waiters[ended] = state
        me.call_soon_threadsafe(waiter)
        ended.wait(_NO_LIMIT)
        if state["exception"] is not None:
            raise state["exception"]
        return state["value"]

    def call_soon_threadsafe(self, callback: Any) -> Any:
        """See kafka-python's method."""
        self._check_open()
        parent: Any = super()
        return parent.call_soon_threadsafe(callback)

    def _check_open(self) -> None:
        """Raise LoopClosedError if the loop is closed.

        A deserializer or a hook of the application may close the consumer in the middle of a `poll`, which must notice
        this.
        """
        if self._closed and not self._exception:
            raise LoopClosedError("NetworkSelector closed!")

    def run_forever(self) -> None:
        """See kafka-python's method. Does nothing if the loop was closed while its thread started."""
        parent: Any = super()
        if not self._closed:
            parent.run_forever()

    def stop(self, timeout_ms: float | None = None) -> None:
        """See kafka-python's method. Raises no error if Ctrl-C interrupted the start of the thread."""
        parent: Any = super()
        deadline = time.monotonic() + _START_S
        while True:
            try:
                parent.stop(timeout_ms)
            except RuntimeError:  # the thread has not started yet
                self._stop = False
                if time.monotonic() < deadline:
                    time.sleep(_START_PAUSE_S)
                    continue
            return


def _tidy_client(**options: Any) -> Any:
    """Make KafkaConsumer's network client, but with connections that close their sockets when they fail, and that look
    up names on a separate thread.
    """
    make: Any = KafkaConsumer.DEFAULT_CONFIG["kafka_client"]
    net: Any = _InterruptibleNet
    client = make(
        net=net(**options), manager=False, **options
    )  # with None, the client would make its own manager
    manager: Any = _ReachingManager
    client._manager = manager(client._net, **options)
    limit_foreign()
    client._net.run_forever = as_own_thread(client._net.run_forever)
    return client


# Defaults that differ from KafkaConsumer's. A shorter back-off lets the consumer soon notice that a cluster is
# available again.
OURS: Final[dict[str, Any]] = {"kafka_client": _tidy_client, "reconnect_backoff_max_ms": 1000}

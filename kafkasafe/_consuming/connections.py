"""The connections that a consumer makes in addition to kafka-python's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import kafka.errors as kafka_errors

from kafkasafe.cluster.api import Cluster
from kafkasafe.kafkapython.connect import connect
from kafkasafe.process.locks import new_lock

_CLOSE_S: Final = 5.0


class Connections:
    """Makes a consumer's additional connections on first use. Any thread may call the methods.

    Args:
        options: KafkaConsumer's options.
        is_closed: Returns whether the consumer is closed.
        may_create: Returns whether the brokers may create a missing topic. Called on the connections' own thread.
    """

    __slots__ = ("_is_closed", "_lock", "_may_create", "_options", "_transport")

    def __init__(
        self, options: Mapping[str, Any], is_closed: Callable[[], bool], may_create: Callable[[str], bool]
    ) -> None:
        self._options = options
        self._is_closed = is_closed
        self._may_create = may_create
        self._lock = new_lock()
        self._transport: Cluster | None = None

    def network(self) -> Cluster:
        """Return the connections.

        Raises:
            IllegalStateError: The consumer is closed.
        """
        transport = self._transport
        if transport is not None and not self._is_closed():
            return transport  # without the lock, to save time: each look-up calls this method several times
        with self._lock:
            if self._is_closed():
                raise kafka_errors.IllegalStateError("The consumer is closed")
            if self._transport is None:
                transport = connect(self._options)
                transport.create_only(self._may_create)
                transport.start()
                self._transport = transport
            return self._transport

    def close(self) -> None:
        """Close the connections of a closed consumer. Idempotent."""
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(_CLOSE_S)

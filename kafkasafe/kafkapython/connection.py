"""What a link needs of kafka-python's connection that has no public name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kafka.net.connection import KafkaConnection

__all__ = [
    "KafkaConnection",
    "connect",
    "drop_unsent",
    "is_reauthenticating",
    "on_outcome",
    "throttled_until",
]


def connect(manager: Any, node_id: int | str) -> Any:
    """Begin a connection to a broker at once.

    kafka-python 3.0.12 resets its back-off when a connection is made that then fails to initialise, and one
    authentication failure blocks the broker for ever. The caller has its own back-off.

    Raises:
        KafkaError: The broker is unknown, or an option cannot work.
    """
    manager.reset_backoff(node_id)
    manager._auth_failures.pop(node_id, None)
    return manager.get_connection(node_id, refresh_metadata_on_err=False)


def is_reauthenticating(conn: Any) -> bool:
    """Return whether the connection authenticates again (KIP-368). It takes no request meanwhile."""
    return bool(conn._reauth.is_reauthenticating)


def throttled_until(conn: Any) -> float:
    """Return until when the broker throttles the connection, monotonic seconds; 0: it does not."""
    found: float = conn._throttle_time or 0.0
    return found


def on_outcome(future: Any, done: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
    """Call one of two functions when a future is done; cheaper than `add_callback` and `add_errback`."""
    future._add_cb_eb(done, failed)


def drop_unsent(conn: Any) -> None:
    """Drop the bytes that are not written yet.

    In kafka-python 3.0.12 they keep a closed transport open until the broker, which may hang, has taken them.
    """
    if conn.transport is not None:
        conn.transport._write_buffer.clear()

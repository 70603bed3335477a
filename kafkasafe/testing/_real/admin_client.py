"""Opens kafka-python's admin client, without leaks if that fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient

from kafkasafe.kafkapython.admin import tidy_client

__all__ = ["open_admin"]


def open_admin(bootstrap_servers: Sequence[str], timeout_ms: int, **options: Any) -> KafkaAdminClient:
    """Opens an admin client. If it cannot connect, closes its thread and sockets, which its constructor would leak."""
    client: KafkaAdminClient = KafkaAdminClient.__new__(KafkaAdminClient)
    try:
        client.__init__(  # type: ignore[misc]
            **options,
            bootstrap_servers=list(bootstrap_servers),
            bootstrap_timeout_ms=timeout_ms,
            request_timeout_ms=timeout_ms,
            reconnect_backoff_max_ms=500,
            client_id="kafkasafe-testing",
            kafka_client=tidy_client,
        )
    except BaseException:
        if hasattr(client, "_net"):
            client._closed = False
            client.close()
        raise
    return client

"""Opens kafka-python's admin client with options for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient

from kafkasafe.kafkapython.admin import make_admin


def open_admin(bootstrap_servers: Sequence[str], timeout_ms: int, **options: Any) -> KafkaAdminClient:
    """Opens an admin client, which the caller closes."""
    return make_admin(
        {
            **options,
            "bootstrap_servers": list(bootstrap_servers),
            "bootstrap_timeout_ms": timeout_ms,
            "request_timeout_ms": timeout_ms,
            "reconnect_backoff_max_ms": 500,
            "client_id": "kafkasafe-testing",
        }
    )

"""Clusters for tests, a real Kafka (`broker`) and a Kafka in memory (`fake`), and proxies that cause network faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkasafe.testing.broker import KafkaCluster
    from kafkasafe.testing.fake import FakeCluster

__all__ = ["FakeCluster", "KafkaCluster"]


def __getattr__(name: str) -> Any:
    """Imports each class at its first use, so that a program imports only the classes that it uses."""
    if name == "FakeCluster":
        from kafkasafe.testing.fake import FakeCluster

        return FakeCluster
    if name == "KafkaCluster":
        from kafkasafe.testing.broker import KafkaCluster

        return KafkaCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Clusters for tests: a real Kafka (`broker`), one in memory (`fake`), and what breaks the way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkasafe.testing.broker import KafkaCluster
    from kafkasafe.testing.fake import FakeCluster

__all__ = ["FakeCluster", "KafkaCluster"]


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: whoever wants the one does not wait for the other."""
    if name == "FakeCluster":
        from kafkasafe.testing.fake import FakeCluster

        return FakeCluster
    if name == "KafkaCluster":
        from kafkasafe.testing.broker import KafkaCluster

        return KafkaCluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
